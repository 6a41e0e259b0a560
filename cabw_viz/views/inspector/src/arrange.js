/**
 * The picture for one set of open groups, as typed arrays that a worker can hand over: pure, no DOM.
 * What is inside a group depends on what is open inside it alone, so each group keeps its last layouts: opening one lays out
 * that group and those around it. Blocks that are built alike are laid out once.
 */
import { layered } from "./layout.js";
import { isPort, localEdges } from "./local_edges.js";
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
const CACHED_LAYOUTS = 4;

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

  /** `expanded`: a flag per group. `aspect`: width by height to wrap into, 0 for one spine. `onProgress(share)` is called from time to time. */
  scene(expanded, aspect = 0, onProgress = null) {
    this.progress = {
      report: onProgress,
      open: expanded.reduce((n, flag) => n + flag, 1),
      done: 0,
      at: performance.now(),
    };
    const { graph } = this;
    const block = this.#group(graph.root, expanded, [], []);
    this.sheet.clear();
    put(this.sheet, block, 0, 0, 0);
    const arrays = { ...this.sheet.arrays(), w: block.w, h: block.h, columns: 1 };
    return withIndex(graph, aspect ? wrap(arrays, aspect) : arrays);
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
    const cached = this.layouts.get(group) ?? this.layouts.set(group, new Map()).get(group);
    if (!cached.has(key)) {
      if (cached.size >= CACHED_LAYOUTS) cached.delete(cached.keys().next().value);
      cached.set(key, this.#layOut(group, expanded, tops, bottoms));
      this.#reportProgress();
    }
    return cached.get(key);
  }

  /** At most ten times a second. */
  #reportProgress() {
    const { progress } = this;
    const now = performance.now();
    progress.done++;
    if (!progress.report || now - progress.at < 100) return;
    progress.at = now;
    progress.report(Math.min(1, progress.done / progress.open));
  }

  /** Edges of a group by the child they enter or leave, worked out once. */
  #sidesOf(group, edges) {
    if (!this.sides.has(group)) {
      const into = new Map();
      const out = new Map();
      const push = (map, k, v) => (map.has(k) ? map.get(k).push(v) : map.set(k, [v]));
      for (const e of edges) {
        push(into, e.b, `in|${e.a}${e.mark}`);
        push(out, e.a, `out|${e.b}${e.mark}`);
      }
      this.sides.set(group, { into, out });
    }
    return this.sides.get(group);
  }

  #layOut(group, expanded, tops, bottoms) {
    const edges = this.local.get(group) || [];
    const inner = this.#innerBlocks(group, expanded, this.#sidesOf(group, edges));
    const keys = [...tops, ...membersOf(group), ...bottoms];
    const index = new Map(keys.map((key, i) => [key, i]));
    const sizes = keys.map((key) => this.#sizeOf(key, inner));
    const plan = this.#plan({
      width: sizes.map((s) => s[0]),
      height: sizes.map((s) => s[1]),
      edges: edges.map((e) => [index.get(e.a), index.get(e.b)]),
      endsAt: edges.map((e) => [
        inner.get(e.a)?.ports.get(`out|${e.b}${e.mark}`),
        inner.get(e.b)?.ports.get(`in|${e.a}${e.mark}`),
      ]),
      pin: keys.map((_, i) => (i < tops.length ? "top" : i >= keys.length - bottoms.length ? "bottom" : "")),
      gapY: group.parent ? 22 : 24,
    });
    const margins = marginsOf(group, plan, tops.length > 0, bottoms.length > 0);
    const middle = margins.w / 2 - margins.shift;
    const [ports, below] = portsOf(tops, bottoms, index, plan, middle);
    edges.forEach((e, i) => {
      const route = plan.routes[i];
      const last = route.length - 2;
      if (ports.has(e.a)) route[0] = route[2] = middle + ports.get(e.a);
      if (below.has(e.b)) route[last] = route[last - 2] = middle + below.get(e.b);
    });
    for (const [key, x] of below) ports.set(key, x);
    const first = tops.length;
    const members = keys.slice(first, keys.length - bottoms.length).map((key, i) => ({
      key,
      block: inner.get(key),
      kind: kindOf(this.graph.items[key]),
      x: margins.shift + plan.x[first + i],
      y: margins.head + plan.y[first + i],
      size: sizes[first + i],
    }));
    const lines = edges.map((e, i) => ({ ...e, route: plan.routes[i], arrow: arrowOf(e, inner) }));
    const emit = (sheet, x, y, depth) => emitGroup(sheet, { group, margins, members, lines }, x, y, depth);
    const boxes = keys.length + [...inner.values()].reduce((n, block) => n + block.boxes, 0);
    return { w: margins.w, h: margins.h, ports, emit, boxes };
  }

  /** The layouts of the open groups inside a group, by index. */
  #innerBlocks(group, expanded, sides) {
    const blocks = new Map();
    for (const child of group.children) {
      const { index } = child;
      if (!expanded[index - this.first]) continue;
      blocks.set(index, this.#group(child, expanded, sides.into.get(index) || [], sides.out.get(index) || []));
    }
    return blocks;
  }

  #sizeOf(key, inner) {
    if (isPort(key)) return [6, 0];
    const block = inner.get(key);
    if (block) return [block.w, block.h];
    const item = this.graph.items[key];
    if (item.nodes) return item.stack ? BOX.stack : BOX.group;
    return item.parameter ? BOX.parameter : this.box;
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

function kindOf(item) {
  if (!item?.nodes) return 0;
  return item.stack ? 2 : 1;
}

/** What is inside a group, in backward order, by index. */
function membersOf(group) {
  const first = (item) => (item.nodes ? item.nodes[0].index : item.index);
  return [...group.own, ...group.children].sort((a, b) => first(a) - first(b)).map((item) => item.index);
}

/** The size of a group around its plan: `head` above it, and `shift` to its left. */
function marginsOf(group, plan, hasTops, hasBottoms) {
  if (!group.parent) return { w: plan.w, h: plan.h, head: 0, shift: 0 };
  const head = BOX.header + 8 - (hasTops ? 10 : 0);
  const w = Math.max(plan.w + 2 * BOX.pad, 150);
  return { w, h: plan.h + head + (hasBottoms ? 0 : BOX.pad), head, shift: (w - plan.w) / 2 };
}

/** A group at (x, y): its frame, what is inside, and the edges. */
function emitGroup(sheet, { group, margins, members, lines }, x, y, depth) {
  if (group.parent) sheet.box(group.index, 3, x, y, margins.w, margins.h, depth);
  for (const m of members) {
    if (m.block) put(sheet, m.block, x + m.x, y + m.y, depth + 1);
    else sheet.box(m.key, m.kind, x + m.x, y + m.y, m.size[0], m.size[1], depth + 1);
  }
  for (const { a, b, route, pairs, arrow } of lines) {
    const top = isPort(a) ? y : null;
    const bottom = isPort(b) ? y + margins.h : null;
    sheet.edge(route, x + margins.shift, y + margins.head, top, bottom, pairs, arrow);
  }
}

/** Where an edge has its arrow: 1 at its lower end, 2 at its upper one, 0 where it ends in a port or an open group. */
function arrowOf({ a, b, back }, inner) {
  const end = back ? a : b;
  if (isPort(end) || inner.has(end)) return 0;
  return back ? 2 : 1;
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
function withIndex(graph, s) {
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
