/**
 * The picture for one set of open groups, as typed arrays that a worker can hand over: pure, no DOM.
 * What is inside a group depends on what is open inside it alone, so each group keeps its last layouts: opening one lays out
 * that group and those around it. Blocks that are built alike are laid out once.
 */
import { layered } from "./layout.js";
import { Sheet } from "./sheet.js";
import { wrap } from "./wrap.js";

export const BOX = {
  node: [144, 24],
  op: [180, 24],
  parameter: [124, 22],
  group: [184, 42],
  stack: [268, 76],
  header: 26,
  pad: 14,
};
const KEPT = 4;

export class Arranger {
  plans = new Map();
  signatures = new Map();
  layouts = new Map();
  sheet = new Sheet();

  constructor(graph) {
    this.graph = graph;
    this.first = graph.list.length; // groups are numbered after the nodes
    this.box = graph.letter === "n" ? BOX.node : BOX.op;
    this.local = localEdges(graph);
    this.sides = new Map();
  }

  /** `expanded`: a flag per group. `aspect`: width by height to wrap into, 0 for one spine. `told`: hears what share is done. */
  scene(expanded, aspect = 0, told = null) {
    this.progress = { told, open: expanded.reduce((n, flag) => n + flag, 1), done: 0, at: performance.now() };
    const { graph } = this;
    const block = this.#group(graph.root, expanded, [], []);
    this.sheet.clear();
    put(this.sheet, block, 0, 0, 0);
    const arrays = { ...this.sheet.arrays(), w: block.w, h: block.h, columns: 1 };
    return indexed(graph, aspect ? wrap(arrays, aspect) : arrays);
  }

  /** A number for what is open inside a group: equal numbers, equal layouts. */
  #signature(group, expanded) {
    let text = "";
    for (const c of group.children)
      if (expanded[c.index - this.first]) text += `${c.index}:${this.#signature(c, expanded)},`;
    if (!this.signatures.has(text)) this.signatures.set(text, this.signatures.size);
    return this.signatures.get(text);
  }

  #group(group, expanded, tops, bottoms) {
    const key = this.#signature(group, expanded);
    const kept = this.layouts.get(group) ?? this.layouts.set(group, new Map()).get(group);
    if (!kept.has(key)) {
      if (kept.size >= KEPT) kept.delete(kept.keys().next().value);
      kept.set(key, this.#layOut(group, expanded, tops, bottoms));
      this.#tell();
    }
    return kept.get(key);
  }

  /** Says from time to time how far it has come. */
  #tell() {
    const { progress } = this;
    const now = performance.now();
    progress.done++;
    if (!progress.told || now - progress.at < 100) return;
    progress.at = now;
    progress.told(Math.min(1, progress.done / progress.open));
  }

  /** Edges of a group by the child they enter or leave, worked out once. */
  #sidesOf(group, edges) {
    if (!this.sides.has(group)) {
      const into = new Map();
      const out = new Map();
      const push = (map, k, v) => (map.has(k) ? map.get(k).push(v) : map.set(k, [v]));
      for (const e of edges) {
        push(into, e.b, `in|${e.a}`);
        push(out, e.a, `out|${e.b}`);
      }
      this.sides.set(group, { into, out });
    }
    return this.sides.get(group);
  }

  #layOut(group, expanded, tops, bottoms) {
    const { items } = this.graph;
    const edges = this.local.get(group) || [];
    const sides = this.#sidesOf(group, edges);
    const first = (item) => (item.nodes ? item.nodes[0].index : item.index);
    const inside = [...group.own, ...group.children].sort((a, b) => first(a) - first(b)).map((i) => i.index);
    const all = [...tops, ...inside, ...bottoms];
    const index = new Map(all.map((k, i) => [k, i]));
    const inner = new Map();
    for (const child of group.children)
      if (expanded[child.index - this.first])
        inner.set(
          child.index,
          this.#group(child, expanded, sides.into.get(child.index) || [], sides.out.get(child.index) || []),
        );
    const port = (key) => typeof key === "string";
    const size = all.map((key) => {
      if (port(key)) return [6, 0];
      const open = inner.get(key);
      const item = items[key];
      if (open) return [open.w, open.h];
      return item.nodes ? (item.stack ? BOX.stack : BOX.group) : item.parameter ? BOX.parameter : this.box;
    });
    const endsAt = edges.map((e) => [inner.get(e.a)?.ports.get(`out|${e.b}`), inner.get(e.b)?.ports.get(`in|${e.a}`)]);
    const plan = this.#plan({
      width: size.map((s) => s[0]),
      height: size.map((s) => s[1]),
      edges: edges.map((e) => [index.get(e.a), index.get(e.b)]),
      endsAt,
      pin: all.map((_, i) => (i < tops.length ? "top" : i >= all.length - bottoms.length ? "bottom" : "")),
      gapY: group.parent ? 22 : 24,
    });
    const pad = group.parent ? BOX.pad : 0;
    const lift = tops.length ? 10 : 0;
    const head = group.parent ? BOX.header + 8 - lift : 0;
    const foot = group.parent ? (bottoms.length ? 0 : BOX.pad) : 0;
    const w = Math.max(plan.w + 2 * pad, group.parent ? 150 : 0);
    const h = plan.h + head + foot;
    const shift = (w - plan.w) / 2;
    const [ports, below] = portsOf(tops, bottoms, index, plan, w / 2 - shift);
    edges.forEach((e, i) => {
      const route = plan.routes[i];
      const last = route.length - 2;
      if (ports.has(e.a)) route[0] = route[2] = w / 2 - shift + ports.get(e.a);
      if (below.has(e.b)) route[last] = route[last - 2] = w / 2 - shift + below.get(e.b);
    });
    for (const [key, x] of below) ports.set(key, x);
    const kind = all.map((key) => (port(key) || !items[key].nodes ? 0 : items[key].stack ? 2 : 1));
    const emit = (sheet, x0, y0, depth) => {
      if (group.parent) sheet.box(group.index, 3, x0, y0, w, h, depth);
      for (let i = tops.length; i < all.length - bottoms.length; i++) {
        const key = all[i];
        const x = x0 + shift + plan.x[i];
        const y = y0 + head + plan.y[i];
        const open = inner.get(key);
        if (open) put(sheet, open, x, y, depth + 1);
        else sheet.box(key, kind[i], x, y, size[i][0], size[i][1], depth + 1);
      }
      for (let i = 0; i < edges.length; i++) {
        const e = edges[i];
        sheet.edge(
          plan.routes[i],
          x0 + shift,
          y0 + head,
          port(e.a) ? y0 : null,
          port(e.b) ? y0 + h : null,
          e.pairs,
          !port(e.b) && !inner.has(e.b),
        );
      }
    };
    return { w, h, ports, emit, boxes: all.length + [...inner.values()].reduce((n, b) => n + b.boxes, 0) };
  }

  #plan(input) {
    const key = JSON.stringify(input);
    if (!this.plans.has(key)) {
      if (this.plans.size > 500) this.plans.clear();
      this.plans.set(key, layered(input));
    }
    const plan = this.plans.get(key);
    return { ...plan, routes: plan.routes.map((r) => r.slice()) };
  }
}

/**
 * Every autograd edge in every group it crosses, whatever is open: inside a group an end that lies elsewhere is a port,
 * named after what it is joined to where the two ends part. It depends on the module tree alone, so it is done once.
 */
function localEdges(graph) {
  const local = new Map();
  const known = new Map();
  const { from, to } = graph.edges;
  const many = graph.items.length;
  const add = (group, a, b, u, v) => {
    if (!local.has(group)) {
      local.set(group, []);
      known.set(group, new Map());
    }
    const seen = known.get(group);
    const id = typeof a === "number" && typeof b === "number" ? a * many + b : `${a}→${b}`;
    let e = seen.get(id);
    if (!e) {
      seen.set(id, (e = { a, b, pairs: [] }));
      local.get(group).push(e);
    }
    e.pairs.push(u, v);
  };
  const chain = (node) => {
    const out = [node];
    for (let g = node.parent; g; g = g.parent) out.push(g);
    return out;
  }; // from the node up to the root
  const chains = new Map();
  const around = (node) => {
    if (!chains.has(node.parent)) chains.set(node.parent, chain(node).slice(1));
    return chains.get(node.parent);
  };
  for (let e = 0; e < from.length; e++) {
    const u = graph.list[from[e]];
    const v = graph.list[to[e]];
    const A = around(u);
    const B = around(v);
    let i = A.length - 1;
    let j = B.length - 1;
    while (i > 0 && j > 0 && A[i - 1] === B[j - 1]) {
      i--;
      j--;
    }
    const a = (i ? A[i - 1] : u).index;
    const b = (j ? B[j - 1] : v).index;
    if (a === b) continue;
    add(A[i], a, b, u.index, v.index);
    let other = b;
    for (let k = i - 1; k >= 0; k--) {
      other = `out|${other}`;
      add(A[k], (k ? A[k - 1] : u).index, other, u.index, v.index);
    }
    other = a;
    for (let k = j - 1; k >= 0; k--) {
      other = `in|${other}`;
      add(B[k], other, (k ? B[k - 1] : v).index, u.index, v.index);
    }
  }
  return local;
}

/** Where the ports of an open group are, from its middle: in and out in one line where the layout has them so, else side by side at the middle. */
function portsOf(tops, bottoms, index, plan, middle) {
  const x = (key) => plan.x[index.get(key)] + 3;
  const line = tops.length === 1 && bottoms.length === 1 && Math.abs(x(tops[0]) - x(bottoms[0])) < 1;
  return [tops, bottoms].map((keys) => {
    const sorted = [...keys].sort((a, b) => x(a) - x(b));
    return new Map(sorted.map((key, k) => [key, line ? x(key) - middle : (k - (sorted.length - 1) / 2) * 14]));
  });
}

/** A block into a sheet. One of middling size is kept as arrays, so that what did not change is copied and not made again. */
function put(sheet, block, x, y, depth) {
  if (!block.flat && block.boxes >= 24 && block.boxes <= 4000) {
    const own = new Sheet();
    block.emit(own, 0, 0, 0);
    block.flat = own.arrays();
  }
  if (block.flat) sheet.copy(block.flat, x, y, depth);
  else block.emit(sheet, x, y, depth);
}

export const ROW = 256;

/** What finds things in a scene: boxes by height (rows of ROW), by item and by node, the extent of each edge. */
function indexed(graph, s) {
  const n = s.item.length;
  const m = s.arrow.length;
  const at = new Int32Array(graph.items.length).fill(-1);
  const home = new Int32Array(graph.list.length).fill(-1);
  const bounds = new Float64Array(4 * m);
  const rows = Math.floor(s.h / ROW) + 2;
  const rowAt = new Uint32Array(rows + 1);
  const open = [];
  let tallest = 0;
  for (let i = 0; i < n; i++) {
    if (at[s.item[i]] < 0) at[s.item[i]] = i; // of a frame over several columns the first
    if (s.kind[i] === 3) {
      open.push(i);
      continue;
    }
    const item = graph.items[s.item[i]];
    if (item.nodes) for (const node of item.nodes) home[node.index] = item.index;
    else home[item.index] = item.index;
    tallest = Math.max(tallest, s.size[2 * i + 1]);
    rowAt[Math.floor(Math.max(0, s.place[2 * i + 1]) / ROW) + 1]++;
  }
  for (let r = 0; r < rows; r++) rowAt[r + 1] += rowAt[r];
  const next = rowAt.slice();
  const leaves = new Uint32Array(n - open.length);
  for (let i = 0; i < n; i++)
    if (s.kind[i] !== 3) leaves[next[Math.floor(Math.max(0, s.place[2 * i + 1]) / ROW)]++] = i;
  for (let e = 0; e < m; e++) {
    let left = Infinity;
    let right = -Infinity;
    for (let k = s.pointsAt[e]; k < s.pointsAt[e + 1]; k += 2) {
      const x = s.points[k];
      if (x < left) left = x;
      if (x > right) right = x;
    }
    bounds.set([left, s.points[s.pointsAt[e] + 1], right, s.points[s.pointsAt[e + 1] - 1]], 4 * e);
  }
  return { ...s, at, home, bounds, rowAt, leaves, open: Uint32Array.from(open), tallest };
}
