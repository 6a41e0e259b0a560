/* Made by `python -m cabw_viz.views.inspector.bundle` from src/: change it there. */
const $columns_ = () => {
/** Reads what columns.py packed: facts and tables from a JSON header, everything per node from typed arrays over the buffer. */
const TYPES = {
  i1: Int8Array,
  i2: Int16Array,
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
  i4: Int32Array,
  f4: Float32Array,
  f8: Float64Array,
};
const MAGIC = 0x77626163; // "cabw"

/** `bytes` is a DataView (a traitlets.Bytes as anywidget hands it over), a typed array or an ArrayBuffer. */
function unpack(bytes) {
  let buffer = bytes.buffer ?? bytes;
  let start = bytes.byteOffset ?? 0;
  if (start % 8) {
    buffer = buffer.slice(start, start + bytes.byteLength); // typed arrays want alignment; a websocket frame promises none
    start = 0;
  }
  const view = new DataView(buffer, start);
  const length = view.getUint32(4, true);
  if (view.getUint32(0, true) !== MAGIC) throw new Error("not a packed capture");
  const { facts, tables, columns } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, start + 8, length)));
  const read = {};
  for (const [name, [type, at, count, differences]] of Object.entries(columns)) {
    const column = new TYPES[type](buffer, start + 8 + length + at, count);
    read[name] = differences ? summed(column) : column;
  }
  return { facts, tables, columns: read };
}

/** The numbers of which these are the differences. */
function summed(steps) {
  const out = new Uint32Array(steps.length);
  let sum = 0;
  for (let i = 0; i < steps.length; i++) out[i] = sum += steps[i];
  return out;
}

/** Whether a part has been sent at all: an empty one stands for what was not computed. */
const sent = (bytes) => Boolean(bytes?.byteLength);

/** Lists per row in compressed form: `at[i]` to `at[i + 1]` of `items` belong to row i. */
function rowsOf(count, keys, values = null) {
  const at = new Uint32Array(count + 1);
  const items = new Uint32Array(keys.length);
  for (const k of keys) at[k + 1]++;
  for (let i = 0; i < count; i++) at[i + 1] += at[i];
  const next = at.slice();
  for (let i = 0; i < keys.length; i++) items[next[keys[i]]++] = values ? values[i] : i;
  return { at, items };
}
return { unpack, sent, rowsOf };
};
const $columns = $columns_();
const $tree_ = () => {
/**
 * The tree of modules over the nodes of a graph. A group is drawn as one box, so no gradient may leave a group and come
 * back to it: where that happens (a module called twice, two lists of modules called in turn) the group is cut into the
 * parts that run one after the other, `mlp`, `mlp@2`, `mlp@3`.
 */
function treeOf({ nodes, moduleOf, segments, classOf, edgeFrom, edgeTo, name }) {
  const groups = new Map();
  const buckets = new Uint32Array(nodes.length); // of each node in the group at hand; one array for all groups, for speed
  const root = make("", name, "", null);

  function make(path, shown, module, parent) {
    let key = path;
    for (let n = 2; groups.has(key); n++) key = `${path}@${n}`;
    const group = { key: "g:" + key, path: key, name: shown, module, cls: classOf.get(module) || "", parent };
    Object.assign(group, { depth: parent ? parent.depth + 1 : 0, children: [], own: [], nodes: [], part: 0, parts: 0 });
    parent?.children.push(group);
    groups.set(key, group);
    return group;
  }

  const todo = [[root, nodes, Uint32Array.from(edgeFrom, (_, e) => e)]];
  while (todo.length) {
    const [group, members, edges] = todo.pop();
    group.nodes = members;
    const { order, inside, scattered } = divide(group, members, moduleOf, segments, buckets);
    if (!order.length) continue;
    const cyclic = scattered ? tangled(order.length, crossing(edges, edgeFrom, edgeTo, buckets)) : null;
    const within = edgesWithin(order.length, edges, edgeFrom, edgeTo, buckets);
    // Worked out before any child is divided: the buckets are then those of the child.
    const parts = order.map((_, b) => (cyclic?.[b] ? runsOf(members, buckets, b + 1, cyclic) : [inside[b]]));
    order.forEach((segment, b) => {
      const path = group.path ? `${group.path}.${segment}` : segment;
      const module = group.module ? `${group.module}.${segment}` : segment;
      const runs = parts[b];
      runs.forEach((run, k) => {
        const child = make(k ? `${path}@${k + 1}` : path, segment, module, group);
        if (runs.length > 1) Object.assign(child, { part: k + 1, parts: runs.length });
        todo.push([child, run, runs.length > 1 ? only(within[b], run, edgeFrom, edgeTo) : within[b]]);
      });
    });
  }
  for (const group of groups.values()) finish(group);
  return { root, groups };
}

/**
 * Sets `own` of a group, and says for each other member which child it goes to (from 1; 0 is the group's own). Where no
 * child is scattered, each runs in one stretch, and no gradient can leave it and come back.
 */
function divide(group, members, moduleOf, segments, buckets) {
  const order = [];
  const inside = [];
  const known = new Map();
  let before = 0;
  let scattered = false;
  for (const node of members) {
    const module = moduleOf[node.index];
    const segment = module ? segments[module - 1][group.depth] : undefined;
    let bucket = 0;
    if (segment === undefined) {
      node.parent = group;
      group.own.push(node);
    } else {
      bucket = known.get(segment) ?? 0;
      if (!bucket) {
        known.set(segment, (bucket = order.push(segment)));
        inside.push([]);
      } else if (bucket !== before) scattered = true;
      inside[bucket - 1].push(node);
    }
    buckets[node.index] = before = bucket;
  }
  return { order, inside, scattered };
}

/** The group's edges within each child. */
function edgesWithin(children, edges, from, to, buckets) {
  const within = Array.from({ length: children }, () => []);
  for (const e of edges) {
    const b = buckets[from[e]];
    if (b && b === buckets[to[e]]) within[b - 1].push(e);
  }
  return within;
}

/** The ends of the group's other edges: children from 0, the group's own nodes below 0. */
function crossing(edges, from, to, buckets) {
  const pairs = [];
  for (const e of edges) {
    const a = buckets[from[e]];
    const b = buckets[to[e]];
    if (!a || a !== b) pairs.push(a ? a - 1 : -1 - from[e], b ? b - 1 : -1 - to[e]);
  }
  return pairs;
}

/** Which children lie on a cycle, or between two: what is left when sources, and then sinks, are taken away one after the other. */
function tangled(children, crossing) {
  const number = new Map();
  const id = (v) => (v >= 0 ? v : (number.get(v) ?? number.set(v, children + number.size).get(v)));
  const pairs = crossing.map(id);
  const count = children + number.size;
  const left = new Uint8Array(count).fill(1);
  for (const [start, end] of [
    [0, 1],
    [1, 0],
  ]) {
    const degree = new Uint32Array(count);
    const next = Array.from({ length: count }, () => []);
    for (let i = 0; i < pairs.length; i += 2) {
      const a = pairs[i + start];
      const b = pairs[i + end];
      if (!left[a] || !left[b]) continue;
      degree[b]++;
      next[a].push(b);
    }
    const free = [];
    for (let v = 0; v < count; v++) if (left[v] && !degree[v]) free.push(v);
    while (free.length) {
      const v = free.pop();
      left[v] = 0;
      for (const w of next[v]) if (!--degree[w]) free.push(w);
    }
  }
  return left.some(Boolean) ? left : null;
}

/** A child's nodes in the stretches in which they run, undisturbed by others that are tangled up with it. */
function runsOf(members, buckets, bucket, cyclic) {
  const runs = [];
  let before = 0;
  for (const node of members) {
    const b = buckets[node.index];
    const counts = b === 0 || cyclic[b - 1];
    if (b === bucket) {
      if (before !== bucket) runs.push([]);
      runs.at(-1).push(node);
    }
    if (counts) before = b;
  }
  return runs;
}

function only(edges, nodes, from, to) {
  const inside = new Set(nodes.map((n) => n.index));
  return edges.filter((e) => inside.has(from[e]) && inside.has(to[e]));
}

/**
 * Order of the children, and whether they are blocks built alike that may be drawn as one stack: of one class, and most of
 * one size, for the first block of a model often lacks the way to an input that needs no gradient. `odd` are the others.
 */
function finish(group) {
  const { children } = group;
  children.sort((a, b) => a.nodes[0].index - b.nodes[0].index);
  const sizes = new Map();
  for (const { nodes } of children) sizes.set(nodes.length, (sizes.get(nodes.length) ?? 0) + 1);
  const [usual, many] = [...sizes].reduce((a, b) => (b[1] > a[1] ? b : a), [0, 0]);
  const alike = new Set(children.map((c) => c.cls)).size === 1 && many >= 0.75 * children.length;
  group.stack = !group.own.length && children.length > 2 && alike ? children.length : 0;
  group.odd = group.stack ? children.filter((c) => c.nodes.length !== usual) : [];
}
return { treeOf };
};
const $tree = $tree_();
const $drawable_ = () => {
/**
 * What the canvas can draw: nodes in the order in which they run, edges between them, and a tree of groups over them.
 * An item is a node or a group: items[0..n) are the nodes, the groups follow. graph.js draws autograd nodes this way,
 * ops.js the nodes of a graph. Runs on the page and, for the layout, in the worker.
 */
const { rowsOf } = $columns;
const { treeOf } = $tree;

class Drawable {
  #flagged = null;

  /** Takes nodes, the ends of their edges, and each node's way down the tree: a row, from 1, of `segments`. */
  arrange({ list, from, to, placeOf, segments, classes, name }) {
    const n = list.length;
    Object.assign(this, { list, edges: { from, to }, edgeCount: from.length });
    this.nodes = new Map(list.map((node) => [node.id, node]));
    this.down = rowsOf(n, from, to);
    this.up = rowsOf(n, to, from);
    Object.assign(
      this,
      treeOf({ nodes: list, moduleOf: placeOf, segments, classOf: classes, edgeFrom: from, edgeTo: to, name }),
    );
    this.items = [...list, ...this.groups.values()];
    let i = n;
    for (const g of this.groups.values()) g.index = i++;
    this.inner = [...this.groups.values()].sort((a, b) => b.depth - a.depth); // innermost first
  }

  /** The paths of all groups. */
  all() {
    return new Set([...this.groups.keys()].filter(Boolean));
  }

  /** What wears a badge, and the groups around it; looked for when it is first asked for after a change. */
  get flagged() {
    return (this.#flagged ??= this.#flag());
  }

  /** Findings have changed: what was worked out from the old ones is worked out anew. */
  renew() {
    this.#flagged = null;
  }

  #flag() {
    const flagged = new Set();
    for (const n of this.list) {
      if (n.origin || n.initial || n.passes || n.hooks || n.failed) {
        for (let item = n; item; item = item.parent) flagged.add(item);
      }
    }
    for (const item of this.items) item.badges = null;
    return [...flagged];
  }

  ids({ at, items }, i) {
    return Array.from(items.subarray(at[i], at[i + 1]), (k) => this.list[k].id);
  }

  item(key) {
    if (key?.startsWith("g:")) return this.groups.get(key.slice(2));
    return key?.[0] === this.letter && /^.\d+$/.test(key) ? this.nodes.get(Number(key.slice(1))) : undefined;
  }
  nodesOf(key) {
    const item = this.item(key);
    return item ? item.nodes || [item] : [];
  }

  /** What the value of `key` came from (1: ancestors) and goes to (2: descendants), marked per node; `key` itself is 3. */
  cone(key) {
    const start = this.nodesOf(key);
    const mark = new Uint8Array(this.list.length);
    const counts = { up: 0, down: 0 };
    for (const n of start) mark[n.index] = 3;
    for (const [name, bit, { at, items }] of [
      ["up", 1, this.up],
      ["down", 2, this.down],
    ]) {
      const todo = start.map((n) => n.index);
      while (todo.length) {
        const u = todo.pop();
        for (let k = at[u]; k < at[u + 1]; k++) {
          if (mark[items[k]]) continue;
          mark[items[k]] = bit;
          counts[name]++;
          todo.push(items[k]);
        }
      }
    }
    return { mark, ...counts };
  }

  /** The way from a node to a parameter, marked: what is below the node and above the parameter, both included. */
  path(from, to) {
    const a = this.cone(from).mark;
    const b = this.cone(to).mark;
    const on = new Uint8Array(a.length);
    let count = 0;
    for (let i = 0; i < a.length; i++) {
      if ((a[i] === 2 || a[i] === 3) && (b[i] === 1 || b[i] === 3)) {
        on[i] = 1;
        count++;
      }
    }
    return { on, count };
  }

  /** Ids of the nodes in which every word of a query is found; null for an empty query. */
  search(query) {
    const words = query.trim().toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return null;
    const tests = words.map((word) => this.finder(word));
    const out = [];
    for (let i = 0; i < this.list.length; i++) if (tests.every((test) => test(i))) out.push(this.list[i].id);
    return out;
  }

  /** Which groups are open, by index: what the layout is told. */
  openFlags(expanded) {
    return Uint8Array.from(this.groups.values(), (g) => (expanded.has(g.path) ? 1 : 0));
  }

  /** The item that stands for a node when only `expanded` groups are open. */
  shown(node, expanded) {
    let key = node.key;
    for (let g = node.parent; g && g.parent; g = g.parent) if (!expanded.has(g.path)) key = g.key;
    return key;
  }
}

/** Words of a query that ask for more than a name. */
const FLAGS = Object.assign(Object.create(null), {
  "is:touched": (n) => n.initial || n.passes,
  "is:read": (n) => n.execution,
  "is:diverging": (n) => n.compared && !n.good,
  "is:first": (n) => n.origin,
  "is:failed": (n) => n.failed,
  "is:parameter": (n) => n.parameter,
  "has:hook": (n) => n.hooks,
});
/** Those that a panel names; the others say the same in other words. */
const NAMED = Object.keys(FLAGS);
FLAGS["is:differs"] = FLAGS.diverging = FLAGS["is:diverging"];
FLAGS.touched = FLAGS["is:touched"];

/** Bytes held by the tensors that nodes save, each storage once, parameters and buffers left out. Read off the columns: it runs over whole graphs. */
function heldBy(nodes) {
  const c = nodes[0]?.graph.saves;
  if (!c) return 0;
  const seen = new Set();
  let total = 0;
  for (const { saver } of nodes) {
    if (saver < 0) continue;
    for (let k = c.saved_at[saver]; k < c.saved_at[saver + 1]; k++) {
      const storage = c.saved_storage[k];
      if (c.saved_shared[k] || (storage && seen.has(storage))) continue;
      seen.add(storage);
      total += c.saved_bytes[k];
    }
  }
  return total;
}
return { Drawable, FLAGS, NAMED, heldBy };
};
const $drawable = $drawable_();
const $encode_ = () => {
/**
 * What a colour means. An encoding has classes, strongest first, each with a token of the style sheet and a mark,
 * so that nothing is told by colour alone; `of` gives a node's class.
 */
const { heldBy } = $drawable;

const sum = (nodes, of) => nodes.reduce((a, n) => a + of(n), 0);
const reads = (n) => n.execution + n.initial + n.passes;
/** Whether what is known of an item's autograd node as a whole may stand at this one. */
const speaks = (nodes) => nodes.length > 1 || nodes[0].speaks;

/** The figure behind a colour, for a node or a group: colour never stands alone. */
function figure(name, nodes) {
  const wrong = name === "parity" ? nodes.filter(differs).length : 0;
  switch (name) {
    case "parity":
      return nodes.length === 1
        ? wrong
          ? error(nodes[0].relative)
          : ""
        : wrong
          ? `${wrong.toLocaleString("en-US")} differ`
          : nodes.some((n) => n.compared)
            ? "equal"
            : "";
    case "touches": {
      const r = speaks(nodes) ? sum(nodes, reads) : 0;
      return nodes.length === 1 ? String(r || "") : r ? `${r.toLocaleString("en-US")} reads` : "";
    }
    case "bytes": {
      const b = speaks(nodes) ? heldBy(nodes) : 0;
      return b ? bytes(b) : "";
    }
    case "time":
      return speaks(nodes) ? duration(timed(nodes)) : "";
    default:
      return "";
  }
}

/** Seconds that nodes took together; NaN where none of them was timed. */
function timed(nodes) {
  let total = NaN;
  for (const n of nodes) if (!Number.isNaN(n.seconds)) total = (total || 0) + n.seconds;
  return total;
}

/** Seconds as one says them: `1.24 ms`; nothing for NaN. */
function duration(s) {
  if (Number.isNaN(s)) return "";
  const [value, unit] = s < 1e-3 ? [s * 1e6, "µs"] : s < 1 ? [s * 1e3, "ms"] : [s, "s"];
  return `${value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : value.toFixed(0)} ${unit}`;
}

function bytes(n) {
  if (!n) return "0 B";
  const unit = n < 1e3 ? 0 : n < 1e6 ? 1 : n < 1e9 ? 2 : 3,
    v = n / 10 ** (3 * unit);
  return `${unit === 0 ? v : v < 10 ? v.toFixed(2) : v < 100 ? v.toFixed(1) : v.toFixed(0)} ${["B", "kB", "MB", "GB"][unit]}`;
}

/** An error in two figures: endless where a gradient is missing or not finite. */
const error = (x) =>
  x === null || Number.isNaN(x) ? "–" : x === 0 ? "0" : x === Infinity ? "∞" : x.toExponential(1);

/** What a comparison came to at a node. */
function parityClass(n) {
  if (n.origin) return "first";
  if (!n.compared) return "none";
  if (n.verdict === "bitwise") return "equal";
  if (n.good) return "close";
  return n.relative >= 1e-3 ? "d3" : "d2";
}

const differs = (n) => ["first", "d3", "d2"].includes(parityClass(n));

const ENCODINGS = {
  kind: {
    label: "Kind",
    classes: [
      ["matmul", "Matmul", "c-matmul", "square"],
      ["norm", "Norm, softmax", "c-norm", "triangle"],
      ["pointwise", "Pointwise", "c-pointwise", "circle"],
      ["loss", "Loss, lookup", "c-loss", "diamond"],
      ["custom", "Custom Function", "c-custom", "star"],
      ["compiled", "Compiled region", "c-compiled", "frame"],
      ["hook", "Hook", "c-custom", "hook"],
      ["check", "Check of a gradient", "c-none", "ring"],
      ["view", "View, copy", "c-view", "bar"],
      ["parameter", "Parameter", "c-parameter", "tag"],
    ],
    of: (n) => n.family,
  },
  touches: {
    label: "Touches",
    classes: [
      ["initial", "Initial trace, graph pass", "c-alarm", "bang"],
      ["e3", "Execution, 9 or more", "q4", "bar3"],
      ["e2", "4 to 8 reads", "q3", "bar2"],
      ["e1", "1 to 3", "q1", "bar1"],
      ["none", "Untouched", "c-none", "ring"],
    ],
    of: ({ shade: n }) =>
      n.initial || n.passes ? "initial" : steps(n.execution, [9, 4, 1], ["e3", "e2", "e1"], "none"),
  },
  parity: {
    label: "Parity",
    classes: [
      ["first", "First divergence", "c-alarm", "flag"],
      ["d3", "Differs, ≥ 1e-3", "d3", "bar3"],
      ["d2", "Differs, less", "d2", "bar2"],
      ["close", "Within tolerance", "q2", "bar1"],
      ["equal", "Bitwise equal", "c-equal", "equal"],
      ["none", "Not compared", "c-none", "ring"],
    ],
    of: parityClass,
  },
  bytes: {
    label: "Bytes",
    classes: [
      ["b4", "≥ 1 MB", "q4", "bar3"],
      ["b3", "≥ 512 kB", "q3", "bar2"],
      ["b2", "≥ 64 kB", "q2", "bar2"],
      ["b1", "< 64 kB", "q1", "bar1"],
      ["none", "Nothing saved", "c-none", "ring"],
    ],
    of: ({ shade: n }) => steps(n.bytes, [1e6, 524288, 65536, 1], ["b4", "b3", "b2", "b1"], "none"),
  },
  time: {
    label: "Time",
    classes: [
      ["t4", "≥ half of the slowest", "q4", "bar3"],
      ["t3", "≥ 1/8", "q3", "bar2"],
      ["t2", "≥ 1/64", "q2", "bar2"],
      ["t1", "Less", "q1", "bar1"],
      ["none", "Not timed", "c-none", "ring"],
    ],
    of: ({ shade: n }) => timeClass(n),
  },
};

/** A node's time as a part of the slowest node's: nodes of one backward differ by orders of magnitude. */
function timeClass(n) {
  const s = n.seconds;
  if (Number.isNaN(s)) return "none";
  return steps(s / (n.base.graph.slowest || 1), [1 / 2, 1 / 8, 1 / 64], ["t4", "t3", "t2"], "t1");
}

function steps(value, limits, keys, otherwise) {
  const i = limits.findIndex((l) => value >= l);
  return i < 0 ? otherwise : keys[i];
}

/** Counts per class over nodes, in the order of the legend. */
function composition(encoding, nodes) {
  const counts = new Map(encoding.classes.map(([key]) => [key, 0]));
  for (const n of nodes) {
    const key = encoding.of(n);
    counts.set(key, counts.get(key) + 1);
  }
  return counts;
}

/** The strongest class among nodes; for kinds, the commonest. */
function strongest(encoding, nodes) {
  const counts = [...composition(encoding, nodes)];
  if (encoding === ENCODINGS.kind) return counts.reduce((a, b) => (b[1] > a[1] ? b : a))[0];
  return counts.find(([, c]) => c)[0];
}

/** A mark as path commands around (0, 0) with radius r: [fill or stroke, draw]. Shared by canvas and SVG. */
function markPath(name, r) {
  const h = r * 0.85;
  switch (name) {
    case "square":
      return ["fill", `M${-h} ${-h}H${h}V${h}H${-h}Z`];
    case "triangle":
      return ["fill", `M0 ${-r}L${r} ${h}H${-r}Z`];
    case "circle":
      return ["fill", `M${-r} 0A${r} ${r} 0 1 1 ${r} 0A${r} ${r} 0 1 1 ${-r} 0Z`];
    case "diamond":
      return ["fill", `M0 ${-r * 1.15}L${r * 1.15} 0L0 ${r * 1.15}L${-r * 1.15} 0Z`];
    case "bar":
      return ["stroke", `M${-r} 0H${r}`];
    case "tag":
      return ["fill", `M${-r} ${-h}H${r * 0.2}L${r} 0L${r * 0.2} ${h}H${-r}Z`];
    case "ring":
      return ["stroke", `M${-h} 0A${h} ${h} 0 1 1 ${h} 0A${h} ${h} 0 1 1 ${-h} 0Z`];
    case "equal":
      return ["stroke", `M${-r} ${-r * 0.42}H${r}M${-r} ${r * 0.42}H${r}`];
    case "differ":
      return ["stroke", `M${-r} ${-r * 0.42}H${r}M${-r} ${r * 0.42}H${r}M${r * 0.5} ${-r}L${-r * 0.5} ${r}`];
    case "star":
      return [
        "fill",
        `M0 ${-r * 1.1}L${r * 0.32} ${-r * 0.32}L${r * 1.1} 0L${r * 0.32} ${r * 0.32}L0 ${r * 1.1}L${-r * 0.32} ${r * 0.32}L${-r * 1.1} 0L${-r * 0.32} ${-r * 0.32}Z`,
      ];
    case "frame":
      return ["stroke", `M${-h} ${-h}H${h}V${h}H${-h}Z`];
    case "cross":
      return ["stroke", `M${-h} ${-h}L${h} ${h}M${h} ${-h}L${-h} ${h}`];
    case "flag":
      return ["fill", `M${-h} ${-r}H${-h + r * 0.45}L${r} ${-r * 0.4}L${-h + r * 0.45} ${r * 0.25}V${r}H${-h}Z`];
    case "bang":
      return [
        "fill",
        `M${-r * 0.28} ${-r}H${r * 0.28}L${r * 0.16} ${r * 0.25}H${-r * 0.16}ZM${-r * 0.26} ${r * 0.5}H${r * 0.26}V${r}H${-r * 0.26}Z`,
      ];
    case "hook":
      return [
        "stroke",
        `M${r * 0.35} ${-r}V${r * 0.25}A${r * 0.5} ${r * 0.5} 0 0 1 ${-r * 0.65} ${r * 0.25}V${-r * 0.1}`,
      ];
    default:
      return [
        "fill",
        [0, 1, 2]
          .slice(0, Number(name.at(-1)))
          .map((i) => `M${(i - 1.35) * r * 0.74} ${r * (0.2 - i * 0.6)}h${r * 0.56}V${r}h${-r * 0.56}Z`)
          .join(""),
      ]; // bar1, bar2, bar3
  }
}
return { figure, timed, duration, bytes, error, differs, ENCODINGS, composition, strongest, markPath };
};
const $encode = $encode_();
const $dom_ = () => {
/** Small helpers to build DOM. Children are nodes or text: nothing here ever parses markup. */
const { markPath } = $encode;

function h(spec, props, ...children) {
  const [tagName, ...classes] = spec.split(".");
  const el = document.createElement(tagName || "div");
  if (classes.length) el.className = classes.join(" ");
  for (const [key, value] of Object.entries(props || {})) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
    else if (key === "style") el.style.cssText = value;
    else if (key in el && !key.startsWith("aria")) el[key] = value;
    else el.setAttribute(key, value);
  }
  el.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return el;
}

const SVG = "http://www.w3.org/2000/svg";
function svg(d, { size = 14, colour = "currentColor", how = "stroke", box = "0 0 16 16", width = 1.5 } = {}) {
  const el = document.createElementNS(SVG, "svg"),
    path = document.createElementNS(SVG, "path");
  for (const [k, v] of Object.entries({ width: size, height: size, viewBox: box, "aria-hidden": "true", fill: "none" }))
    el.setAttribute(k, v);
  path.setAttribute("d", d);
  path.setAttribute(how, colour);
  if (how === "stroke") {
    path.setAttribute("stroke-width", width);
    path.setAttribute("stroke-linecap", "round");
    path.setAttribute("stroke-linejoin", "round");
  }
  el.append(path);
  return el;
}

function mark(name, colour, size = 12) {
  const [how, d] = markPath(name, 5);
  return svg(d, { size, colour, how, box: "-7 -7 14 14", width: 2 });
}

const ICON = {
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10ZM10.6 10.6 14 14",
  up: "M4 10l4-4 4 4",
  down: "M4 6l4 4 4-4",
  close: "M4.5 4.5l7 7M11.5 4.5l-7 7",
  plus: "M8 3.5v9M3.5 8h9",
  minus: "M3.5 8h9",
  fit: "M2.5 6V2.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10",
  captured: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 10A2 2 0 1 0 8 6a2 2 0 0 0 0 4Z",
  hit: "M3 8.5l3.2 3.2L13 5",
  failed: "M4 4l8 8M12 4l-8 8",
  bypassed: "M3 8h10",
  right: "M6 4l4 4-4 4",
};

const number = (n) => n.toLocaleString("en-US");
const plural = (n, one, many = one + "s") => `${number(n)} ${n === 1 ? one : many}`;
const shape = (s) => (s.length ? s.join(" × ") : "scalar");
return { h, svg, mark, ICON, number, plural, shape };
};
const $dom = $dom_();
const $parts_ = () => {
/** What panels are made of. */
const { h, mark, plural, svg, ICON } = $dom;
const { differs, ENCODINGS, error } = $encode;

const ALARM = "var(--c-alarm)";
const title = (n) => n.title;
const inModule = (ins, n) =>
  n.module || (n.within ? ins.graph.model : ins.graph.grouped ? "outside of any module" : "");
const place = (ins, n) => [inModule(ins, n), n.line?.[0]].filter(Boolean).join(", ");

function kindMark(n, size) {
  const [, , token, name] = ENCODINGS.kind.classes.find(([key]) => key === n.family);
  return mark(name, `var(--${token})`, size);
}

/** Properties of a button that leads to an item: hovering shows it in the graph, clicking selects it. */
const to = (ins, key) => ({ "data-key": key, onclick: () => ins.reveal(key) });

/** What stands where there is nothing to show: what is missing, then what makes it. */
const empty = (...children) => h("div.cabw-empty", null, ...children);

/** A small heading, with a figure at its right. */
const heading = (text, note) => h("h3", null, h("span", null, text), note && h("small", null, note));

const facts = (rows) =>
  h(
    "dl.cabw-facts",
    null,
    rows.filter((r) => r && r[1]).flatMap(([k, v]) => [h("dt", null, k), h("dd", null, v)]),
  );

function finding(ins, { icon, colour = ALARM, head, text, onclick }) {
  return h(
    "button.cabw-finding",
    { onclick },
    mark(icon, colour, 14),
    h("div", null, h("b", null, head), h("div", null, text)),
    h("i", null, "›"),
  );
}

const meter = (share, colour) => {
  const width = (Math.max(Math.min(share, 1), share > 0 ? 0.02 : 0) * 100).toFixed(1);
  return h("div.cabw-meter", null, h("div", { style: `width:${width}%;background:${colour}` }));
};

function reach(cone, [up, down] = ["towards the loss", "towards the leaves"]) {
  if (!cone) return null;
  return [
    h("div", null, h("i.cabw-reach"), plural(cone.up, "ancestor"), h("span.muted", null, " " + up)),
    h("div", null, h("i.cabw-reach.down"), plural(cone.down, "descendant"), h("span.muted", null, " " + down)),
  ];
}

/** A button to open or close something that is folded. */
function fold(open, name, onclick) {
  const label = (open ? "Close " : "Open ") + name;
  return h(
    "button.cabw-icon.cabw-fold",
    { "aria-label": label, "aria-expanded": String(open), onclick },
    svg(open ? ICON.down : ICON.right, { size: 12 }),
  );
}

/** Says that only a part of the graph is shown, and leads back to all of it. */
function scope(ins) {
  if (!ins.selection) return null;
  return h(
    "div.cabw-toolrow",
    null,
    h("span.muted", null, "Only"),
    h("span.cabw-cut", null, ins.name(ins.selection)),
    h("button.cabw-link.cabw-end", { onclick: () => ins.select("") }, "Show all"),
  );
}

/** What was found at an item, in words: for tooltips and the screen reader. */
function told(item) {
  const nodes = item.nodes || [item];
  const out = [];
  const wrong = nodes.filter(differs);
  if (nodes.some((n) => n.failed)) out.push("the trace stopped here");
  if (nodes.some((n) => n.origin))
    out.push(item.nodes ? "first divergence inside" : `first divergence, ${error(item.relative)} relative`);
  else if (wrong.length)
    out.push(item.nodes ? `${wrong.length} of ${nodes.length} nodes differ` : `differs by ${error(item.relative)}`);
  if (nodes.some((n) => n.initial)) out.push("touched in the initial trace");
  if (nodes.some((n) => n.passes)) out.push("looked for in a graph pass");
  if (nodes.some((n) => n.hooks)) out.push("hook");
  return out.join(", ");
}
return { ALARM, title, inModule, place, kindMark, to, empty, heading, facts, finding, meter, reach, fold, scope, told };
};
const $parts = $parts_();
const $families_ = () => {
/** What kind of work a node does, from its name: the classes of the colouring by kind; and names fit to be drawn. */
const FAMILY_OF_KIND = {
  graph_root: "loss",
  custom_function: "custom",
  cpp_function: "custom",
  aot_backward: "compiled",
  copy_slices: "view",
  accumulate_grad: "parameter",
};
const VIEWS =
  "View|UnsafeView|Transpose|T|Permute|Expand|Clone|Copy|Split|SplitWithSizes|Reshape|ReshapeAlias|Slice|Select|Squeeze|" +
  "Unsqueeze|Alias|AsStrided|Cat|Stack|ToCopy|Unbind|Detach|Unfold|Narrow|Flatten|Unflatten|NewZeros|NewEmpty|Zeros|" +
  "ZerosLike|Empty|EmptyLike|EmptyStrided|Full|FullLike|NewEmptyStrided|LiftFreshCopy";
const FAMILY_OF_NAME = [
  ["matmul", /^(Addmm|Mm|Bmm|Baddbmm|Addbmm|Mv|Dot|.*Conv.*|Linear|.*Attention.*)/],
  ["norm", /(Norm|Softmax)/],
  ["loss", /(Loss|Embedding|Gather|Index)/],
  ["view", new RegExp(`^(${VIEWS})(Backward|$)`)],
];

const ofName = (name) => (FAMILY_OF_NAME.find(([, pattern]) => pattern.test(name)) || ["pointwise"])[0];

/** The family that an autograd node's kind alone tells; undefined for PyTorch's own nodes, whose name tells. */
const familyOfKind = (kind) => FAMILY_OF_KIND[kind];

/** The family and the label of an autograd node of PyTorch's own. */
const lookOf = (name) => ({
  family: ofName(name),
  label: plain(name.replace(/(.)Backward\d*$/, "$1")) || "(no name)",
});

/** The family of an operator: `native_layer_norm_backward` is read as `NativeLayerNormBackward`. */
const familyOfOperator = (name) =>
  ofName(name.replace(/(^|_)([a-z0-9])/g, (_, __, letter) => letter.toUpperCase()).replace(/_/g, ""));

/** An operator as one says it: `mm` of `aten.mm.default`, `AddmmBackward0` of `ops.AddmmBackward0`. */
const operatorOf = (target) =>
  target
    .replace(/^(torch\.)?(_?ops\.)?(aten\.)?/, "")
    .replace(/\.(default|int|Tensor|Scalar|self|dim|input|dim_IntList)$/, "");

/** A name fit for one line of the picture: what cannot be seen, or would turn the line round, as a dot. */
const plain = (text) => text.replace(/[\u0000-\u001f\u007f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/g, "·");
return { familyOfKind, lookOf, familyOfOperator, operatorOf, plain };
};
const $families = $families_();
const $shapes_ = () => {
/** What the picture is made of: badges, names, outlines, curves. Nothing here knows of the canvas it is drawn on. */
const { plain } = $families;

/** A group's name; of a module that is drawn in parts, all but the first say which they are. */
const nameOf = (group) => plain(group.name) + (group.part > 1 ? ` (${group.part})` : "");

const PLAIN = [];
/** What is worth a badge at any zoom and in any colouring: [mark, loud]. */
function badges(item) {
  if (!item.nodes)
    return (item.badges ??=
      item.origin || item.initial || item.passes || item.hooks || item.failed ? worth([item]) : PLAIN);
  return (item.badges ??= worth(item.nodes));
}
function worth(nodes) {
  const out = [];
  if (nodes.some((n) => n.failed)) out.push(["cross", true]);
  if (nodes.some((n) => n.origin)) out.push(["flag", true]);
  if (nodes.some((n) => n.initial || n.passes)) out.push(["bang", true]);
  if (nodes.some((n) => n.hooks)) out.push(["hook", false]);
  return out;
}

/** One cell per repeated block on a folded stack. */
function cells(b) {
  const all = b.item.children,
    step = (b.w - 20) / all.length;
  return all.map((group, i) => ({ key: group.key, group, x: b.x + 10 + i * step, y: b.y + 42, w: step - 2, h: 6 }));
}

function tag(ctx, x, y, w, h) {
  const r = 4,
    p = h / 2.6;
  ctx.moveTo(x + r, y);
  ctx.lineTo(x + w - p, y);
  ctx.lineTo(x + w, y + h / 2);
  ctx.lineTo(x + w - p, y + h);
  ctx.lineTo(x + r, y + h);
  ctx.arcTo(x, y + h, x, y + h - r, r);
  ctx.lineTo(x, y + r);
  ctx.arcTo(x, y, x + r, y, r);
  ctx.closePath();
}

/** Straight down beside boxes, an S between rows. */
function curve(path, p, straight) {
  path.moveTo(p[0], p[1]);
  for (let i = 2; i < p.length; i += 2) {
    const x0 = p[i - 2],
      y0 = p[i - 1],
      x1 = p[i],
      y1 = p[i + 1];
    if (straight || Math.abs(x0 - x1) < 0.5) path.lineTo(x1, y1);
    else {
      const m = (y0 + y1) / 2;
      path.bezierCurveTo(x0, m, x1, m, x1, y1);
    }
  }
}
return { nameOf, badges, cells, tag, curve };
};
const $shapes = $shapes_();
const $aria_ = () => {
/**
 * The tree a screen reader gets: what the canvas shows, in the same order. Only what is in sight exists, and the selection,
 * so that its cost follows the window and not the graph; aria-posinset and aria-setsize say where in the whole each item is.
 */
const { h, plural } = $dom;
const { told } = $parts;
const { badges } = $shapes;

const MOST = 150,
  WAIT = 120;
let instances = 0;

class AriaTree {
  prefix = `cabw${++instances}-t-`;
  shown = new Map();

  constructor(ins) {
    this.ins = ins;
  }

  /** After a movement has settled; assistive technology reads much slower than the view pans. */
  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.update(), WAIT);
  }

  update() {
    const { ins } = this,
      { renderer, scene } = ins;
    if (!scene) return;
    const list = renderer.inSight(MOST),
      selected = scene.box(renderer.state.selection),
      keep = new Map();
    if (selected && !list.some((b) => b.item === selected.item)) list.push(selected);
    list.sort((a, b) => a.y - b.y || a.x - b.x || a.depth - b.depth);
    for (const b of list)
      keep.set(
        b.item,
        this.shown.get(b.item)?.open === (b.kind === "open") ? this.shown.get(b.item) : this.#element(b),
      );
    this.shown = keep;
    ins.tree.replaceChildren(...[...keep.values()].map((e) => e.el));
    this.select();
  }

  #element(b) {
    const { item } = b,
      open = b.kind === "open",
      [position, size] = place(item);
    return {
      open,
      el: h(
        "div",
        {
          role: "treeitem",
          id: this.prefix + item.index,
          "aria-level": String(b.depth || 1),
          "aria-posinset": String(position),
          "aria-setsize": String(size),
          "aria-expanded": item.nodes ? String(open) : undefined,
          "aria-selected": "false",
        },
        item.nodes
          ? `${item.name}, ${item.cls || "group"}, ${plural(item.nodes.length, "node")}${this.#said(item)}`
          : `${item.parameter ? "gradient of " + item.parameter : item.name}${item.tag ? ", number " + item.tag.slice(1) : ""}${this.#said(item)}`,
      ),
    };
  }

  #said(item) {
    return badges(item).length || (!item.nodes && item.relative) ? ", " + told(item) : "";
  }

  /** Points assistive technology at the selection, which is made on the spot if it has no element yet. */
  select() {
    const { tree, renderer, drawn } = this.ins,
      item = drawn.item(renderer.state.selection),
      known = item && this.shown.get(item);
    tree.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    if (item && !known && this.ins.scene?.box(renderer.state.selection)) return this.update();
    if (known) {
      known.el.setAttribute("aria-selected", "true");
      tree.setAttribute("aria-activedescendant", known.el.id);
    } else tree.removeAttribute("aria-activedescendant");
  }

  stop() {
    clearTimeout(this.timer);
  }
}

/** Which of how many an item is among those of its group, in backward order. */
function place(item) {
  const group = item.parent;
  if (!group) return [1, 1];
  const first = (i) => (i.nodes ? i.nodes[0].index : i.index);
  group.order ??= new Map(
    [...group.own, ...group.children].sort((a, b) => first(a) - first(b)).map((i, k) => [i, k + 1]),
  );
  return [group.order.get(item), group.order.size];
}
return { AriaTree };
};
const $aria = $aria_();
const $camera_ = () => {
/** Where the view is and how it moves: fit, show, zoom, and what follows a drawn frame (zoom figure, breadcrumb). */
const { h } = $dom;

const MOTION = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 200;
const READABLE = 0.8,
  ZOOM = [0.0004, 4],
  NEWSPAPER = 0.16; // below this zoom a whole spine shows nothing: it is wrapped into columns

class Camera {
  moving = null;

  constructor(ins) {
    this.ins = ins;
  }

  room() {
    const { renderer: r, mapCanvas } = this.ins;
    return { w: Math.max(50, r.w - mapCanvas.clientWidth - 48), h: Math.max(50, r.h - 84) };
  }
  aspect() {
    const { w, h } = this.room();
    return w / h;
  }

  /** First to the readable width; again for the whole graph, a long one wrapped into columns; and back. */
  fit(animate = true) {
    const { ins } = this,
      { w, h } = this.room(),
      s = ins.scene;
    if (!s) return;
    const whole = Math.min(1.2, w / s.w, h / s.h);
    if (animate && ins.wrapped) {
      ins.wrapped = false;
      ins.lastFit = null;
      return ins.rebuild(null, { then: () => this.fit(false) });
    }
    const again = animate && ins.lastFit === "wide";
    if (again && whole < NEWSPAPER) {
      ins.wrapped = true;
      ins.lastFit = "whole";
      return ins.rebuild(null, { then: () => this.#whole(false) });
    }
    ins.lastFit = whole < READABLE && !again ? "wide" : "whole";
    if (whole >= READABLE || again) return this.#whole(animate);
    const k = Math.max(READABLE, Math.min(1, w / s.w));
    this.move({ x: s.w / 2 - (w / 2 + 24) / k, y: -48 / k, k }, animate);
  }

  #whole(animate) {
    const { w, h } = this.room(),
      s = this.ins.scene,
      k = Math.min(1.2, w / s.w, h / s.h);
    this.move({ x: s.w / 2 - (w / 2 + 24) / k, y: s.h / 2 - (h / 2 + 26) / k, k }, animate);
  }

  /** Whether any of the picture is in sight. */
  sees() {
    const {
      renderer: { view, w, h },
      scene,
    } = this.ins;
    return view.x < scene.w && view.y < scene.h && view.x + w / view.k > 0 && view.y + h / view.k > 0;
  }

  show(key) {
    const { renderer, scene } = this.ins,
      b = scene?.box(key),
      { view } = renderer,
      { w, h } = this.room();
    if (!b) return;
    const k = Math.max(view.k, 0.8),
      cx = b.x + b.w / 2,
      cy = b.y + Math.min(b.h / 2, h / 2 / k);
    const [sx, sy] = renderer.toScreen(cx, cy),
      half = Math.min(b.w * k, w) / 2;
    const off = (at, low, high) => (at < low ? at - low : at > high ? at - high : 0);
    const dx = off(sx, half + 16, w + 32 - half),
      dy = off(sy, 32, h - 8);
    if (k === view.k && !dx && !dy) return;
    if (k === view.k && Math.abs(dx) < w / 2 && Math.abs(dy) < h / 2)
      return this.move({ x: view.x + dx / k, y: view.y + dy / k, k }); // near: as little as it takes
    this.move({ x: cx - (w / 2 + 24) / k, y: cy - (h / 2 + 26) / k, k });
  }

  /** What lies at (sx, sy) on screen goes to (tx, ty), which is where it is if nothing else is said. */
  zoom(factor, sx = this.ins.renderer.w / 2, sy = this.ins.renderer.h / 2, animate = false, tx = sx, ty = sy) {
    const { renderer } = this.ins,
      k = Math.max(ZOOM[0], Math.min(ZOOM[1], renderer.view.k * factor)),
      [x, y] = renderer.toWorld(sx, sy);
    this.ins.lastFit = null;
    this.move({ x: x - tx / k, y: y - ty / k, k }, animate);
  }

  move(to, animate = true) {
    const r = this.ins.renderer;
    if (!animate || !MOTION) {
      this.moving = null;
      r.view = to;
      r.request();
      return;
    }
    const from = { ...r.view },
      began = performance.now(),
      run = (this.moving = {});
    const step = () => {
      if (this.moving !== run) return;
      const t = Math.min(1, (performance.now() - began) / MOTION),
        e = 1 - (1 - t) ** 3,
        k = t === 1 ? to.k : from.k * (to.k / from.k) ** e;
      const a = from.k === to.k ? e : (k - from.k) / (to.k - from.k),
        sx = (v) => from[v] * from.k + (to[v] * to.k - from[v] * from.k) * a;
      r.view = t === 1 ? to : { x: sx("x") / k, y: sx("y") / k, k };
      r.request();
      if (t < 1) requestAnimationFrame(step);
    };
    step();
  }

  drawn() {
    const { ins } = this,
      { renderer, scene } = ins,
      { view } = renderer,
      percent = view.k < 0.1 ? (view.k * 100).toFixed(1) + "%" : Math.round(view.k * 100) + "%";
    if (ins.zoomOut.textContent !== percent) ins.zoomOut.textContent = percent;
    ins.aria.later();
    const [x, y] = renderer.toWorld(this.room().w / 2, 44),
      within = (b) =>
        b.y + 20 < view.y + 44 / view.k &&
        b.y + b.h > y &&
        b.h * view.k > 60 &&
        (b.depth === 1 || (b.x < x && b.x + b.w > x));
    const inside = ins.wrapped
        ? []
        : scene
            .frames(view.y, view.y + renderer.h / view.k, -Infinity, Infinity, view.k < 0.16 ? 2 : 255)
            .filter(within),
      id = inside.map((b) => b.key).join();
    if (this.crumbs === id) return;
    this.crumbs = id;
    ins.crumbs.replaceChildren(
      ...inside
        .flatMap((b, i) => [
          i ? h("i", null, "›") : "",
          h(
            "button",
            {
              title: "Go to the top of " + b.item.path,
              onclick: () => {
                ins.select(b.key);
                this.move({ x: view.x, y: b.y - 48 / view.k, k: view.k });
              },
            },
            b.item.name,
          ),
        ])
        .filter(Boolean),
    );
  }
}
return { Camera };
};
const $camera = $camera_();
const $expanded_ = () => {
/**
 * The trait `expanded`: the paths of open groups; where most are open "*" and, with a "!", the highest closed ones. With
 * thousands of groups the paths would otherwise cross the wire at each click.
 */
const FEW = 100;

function fold(expanded, graph) {
  if (expanded.size < FEW || expanded.size * 2 < graph.groups.size) return [...expanded];
  const closed = [];
  for (const g of graph.groups.values()) {
    if (!g.parent || expanded.has(g.path)) continue;
    if (!g.parent.parent || expanded.has(g.parent.path)) closed.push("!" + g.path);
  }
  return ["*", ...closed];
}

function unfold(list, graph) {
  if (list[0] !== "*") return new Set(list);
  const closed = new Set(list.slice(1).map((path) => path.slice(1)));
  const open = new Set();
  const todo = [...graph.root.children];
  while (todo.length) {
    const g = todo.pop();
    if (closed.has(g.path)) continue;
    open.add(g.path);
    todo.push(...g.children);
  }
  return open;
}
return { fold, unfold };
};
const $expanded = $expanded_();
const $find_ = () => {
/** Search: what was found, how many, and the steps from one to the next. */
const { number } = $dom;

function find(ins, query) {
  ins.hits = ins.drawn.search(query);
  ins.at = -1;
  ins.tell("query", query);
  ins.emphasise();
  counted(ins);
  if (ins.tab === "code" || (ins.tab === "node" && !ins.selection)) ins.refreshPanel();
}

function step(ins, by) {
  if (!ins.hits?.length) return;
  ins.at = (ins.at + by + ins.hits.length) % ins.hits.length;
  ins.reveal(ins.drawn.letter + ins.hits[ins.at]);
  counted(ins);
}

function counted(ins) {
  const n = ins.hits?.length;
  const total = ins.drawn.nodes.size;
  ins.count.textContent =
    ins.hits === null
      ? ""
      : n
        ? ins.at >= 0
          ? `${number(ins.at + 1)} of ${number(n)}`
          : `${number(n)} of ${number(total)}`
        : "no match";
  ins.clearButton.hidden = ins.hits === null;
  for (const b of ins.steps) b.hidden = !n;
  ins.slash.hidden = ins.hits !== null;
}
return { find, step };
};
const $find = $find_();
const $layout_ = () => {
/**
 * Layered layout of one group of boxes. Pure and deterministic: no DOM, no randomness, time about linear.
 *
 *   rank    longest path; boxes pinned "top" or "bottom" (the ports of an open group) get rows of their own
 *   chain   an edge over several rows becomes a chain of thin dummies, so that it bends around boxes
 *   order   median sweeps with a transpose pass; the order with fewest crossings wins
 *   place   the main way and every long edge get a column each; columns are packed, then pulled to their other links
 *   route   curves live in the gaps between rows only, so no edge ever runs under a box
 */
function layered({ width, height, edges, pin = [], endsAt = [], gapX = 16, gapY = 26, sweeps = 8 }) {
  const rank = rankOf(width.length, edges, pin);
  const net = chain(width, rank, edges, endsAt);
  const rows = order(net, sweeps);
  const x = place(net, rows, gapX);
  return route({ net, rows, x, height, edges, pin, endsAt, gapY });
}

function rankOf(n, edges, pin) {
  const outs = lists(n),
    ins = lists(n),
    degree = new Int32Array(n),
    rank = new Int32Array(n);
  for (const [a, b] of edges) {
    outs[a].push(b);
    ins[b].push(a);
    degree[b]++;
  }
  const topo = [];
  for (let u = 0; u < n; u++) if (!degree[u]) topo.push(u);
  for (let k = 0; k < topo.length; k++) for (const v of outs[topo[k]]) if (!--degree[v]) topo.push(v);
  for (const u of topo) {
    if (pin[0] === "top" && pin[u] !== "top" && !ins[u].length) rank[u] = 1;
    for (const v of outs[u]) rank[v] = Math.max(rank[v], rank[u] + 1);
  }
  for (let k = topo.length - 1; k >= 0; k--) {
    // a box with more ways out than in sinks towards them
    const u = topo[k];
    if (pin[u] || outs[u].length <= ins[u].length) continue;
    const lowest = Math.min(...outs[u].filter((v) => pin[v] !== "bottom").map((v) => rank[v] - 1));
    if (lowest < Infinity) rank[u] = lowest;
  }
  let last = 0;
  for (let u = 0; u < n; u++) if (pin[u] !== "bottom") last = Math.max(last, rank[u]);
  for (let u = 0; u < n; u++) if (pin[u] === "bottom") rank[u] = last + 1;
  return rank;
}

/** Boxes and dummies as one net of short links; each link knows where on its ends it is attached. */
function chain(width, rank, edges, endsAt) {
  const real = width.length,
    up = lists(real),
    down = lists(real);
  const net = { real, width: [...width], rank: [...rank], up, down, dummies: [] };
  edges.forEach(([a, b], i) => {
    const [from = 0, to = 0] = endsAt[i] || [];
    const path = [];
    let above = a,
      offset = from;
    for (let r = rank[a] + 1; r < rank[b]; r++) {
      const dummy = net.width.length;
      net.width.push(6);
      net.rank.push(r);
      up.push([]);
      down.push([]);
      link(net, above, dummy, offset, 0);
      path.push(dummy);
      above = dummy;
      offset = 0;
    }
    link(net, above, b, offset, to);
    net.dummies.push(path);
  });
  return net;
}

function link({ up, down }, a, b, offsetA, offsetB) {
  down[a].push({ to: b, here: offsetA, there: offsetB });
  up[b].push({ to: a, here: offsetB, there: offsetA });
}

function order(net, sweeps) {
  const { up, down, rank } = net,
    n = rank.length;
  const depth = rank.reduce((a, b) => Math.max(a, b), 0) + 1;
  let rows = Array.from({ length: depth }, () => []);
  const seen = new Uint8Array(n),
    stack = [];
  for (let u = n - 1; u >= 0; u--) if (!up[u].length) stack.push(u);
  while (stack.length) {
    const u = stack.pop();
    if (seen[u]) continue;
    seen[u] = 1;
    rows[rank[u]].push(u);
    for (let k = down[u].length - 1; k >= 0; k--) stack.push(down[u][k].to);
  }
  const pos = new Float64Array(n);
  const number = (row) =>
    row.forEach((u, i) => {
      pos[u] = i;
    });
  rows.forEach(number);
  let best = rows.map((r) => [...r]),
    fewest = crossings(rows, down, pos);
  for (let s = 0; s < sweeps && fewest; s++) {
    const downward = s % 2 === 0,
      side = downward ? up : down;
    for (let q = 0; q < depth; q++) {
      const row = rows[downward ? q : depth - 1 - q];
      const wish = new Map(
        row.map((u) => [u, side[u].length ? median(side[u].map((l) => pos[l.to] + l.there * 1e-4)) : pos[u]]),
      );
      row.sort((a, b) => wish.get(a) - wish.get(b) || pos[a] - pos[b]);
      number(row);
    }
    for (const row of rows) transpose(row, up, down, pos);
    const count = crossings(rows, down, pos);
    if (count < fewest) {
      fewest = count;
      best = rows.map((r) => [...r]);
    }
  }
  return best;
}

function transpose(row, up, down, pos) {
  const cost = (left, right, side) => {
    let c = 0;
    for (const a of side[left]) for (const b of side[right]) if (pos[a.to] > pos[b.to]) c++;
    return c;
  };
  for (let i = 0; i + 1 < row.length; i++) {
    const a = row[i],
      b = row[i + 1];
    if (cost(a, b, up) + cost(a, b, down) > cost(b, a, up) + cost(b, a, down)) {
      row[i] = b;
      row[i + 1] = a;
      pos[b] = i;
      pos[a] = i + 1;
    }
  }
}

function crossings(rows, down, pos) {
  let total = 0;
  for (const row of rows) {
    const ends = [];
    for (const u of row) for (const t of down[u].map((l) => pos[l.to]).sort((a, b) => a - b)) ends.push(t);
    const sorted = [];
    for (const t of ends) {
      // inversions by binary insertion
      let lo = 0,
        hi = sorted.length;
      while (lo < hi) {
        const mid = (lo + hi) >> 1;
        if (sorted[mid] <= t) lo = mid + 1;
        else hi = mid;
      }
      total += sorted.length - lo;
      sorted.splice(lo, 0, t);
    }
  }
  return total;
}

/**
 * Every box prefers one link up and one down: the one on the longest way that leads on to a port. Where both ends
 * prefer each other they share a column and stand exactly above each other, as do the dummies of a long edge.
 * Columns are then packed against their neighbours in each row and pulled to the median of their other links.
 */
function place(net, rows, gap) {
  const { width, up, down } = net,
    n = width.length;
  const { column, shift } = columns(net, rows);
  const right = Array.from({ length: n }, () => []),
    left = Array.from({ length: n }, () => []),
    pending = new Int32Array(n);
  for (const row of rows)
    for (let i = 1; i < row.length; i++) {
      const a = row[i - 1],
        b = row[i],
        A = column[a],
        B = column[b];
      const apart = (width[a] + width[b]) / 2 + gap + shift[a] - shift[b];
      right[A].push([B, apart]);
      left[B].push([A, apart]);
      pending[B]++;
    }
  const heads = [...Array(n).keys()].filter((u) => column[u] === u),
    topo = heads.filter((c) => !pending[c]);
  for (let k = 0; k < topo.length; k++) for (const [B] of right[topo[k]]) if (!--pending[B]) topo.push(B);
  const at = new Float64Array(n);
  for (const c of topo) for (const [B, apart] of right[c]) at[B] = Math.max(at[B], at[c] + apart);
  const members = new Map(heads.map((c) => [c, []]));
  for (let u = 0; u < n; u++) members.get(column[u]).push(u);
  const links = new Map(
    [...members].map(([c, us]) => [
      c,
      us.flatMap((u) =>
        [...up[u], ...down[u]]
          .filter((l) => column[l.to] !== c)
          .map((l) => [l.to, shift[l.to] + l.there - l.here - shift[u]]),
      ),
    ]),
  );
  const pull = (c, side) => {
    const wishes = links.get(c);
    if (!wishes.length) return;
    let x = median(wishes.map(([v, d]) => at[column[v]] + d));
    for (const [A, apart] of left[c]) x = Math.max(x, at[A] + apart);
    for (const [B, apart] of right[c]) x = Math.min(x, at[B] - apart);
    if (!side || x !== at[c]) at[c] = x;
  };
  for (let s = 0; s < 10; s++) for (let k = 0; k < topo.length; k++) pull(topo[s % 2 ? k : topo.length - 1 - k], s);
  return Float64Array.from(column, (c, u) => at[c] + shift[u]);
}

/** Which column each box stands in, and how far from the middle of the column so that attached ends meet. */
function columns(net, rows) {
  const { up, down, rank, real } = net,
    n = rank.length;
  const reachUp = ways(net, rows, up),
    reachDown = ways(net, [...rows].reverse(), down);
  const prefer = (side, length) =>
    side.map((links) => links.reduce((best, l) => (!best || length[l.to] > length[best.to] ? l : best), null));
  const above = prefer(up, reachUp),
    below = prefer(down, reachDown),
    pos = new Float64Array(n);
  for (const row of rows)
    row.forEach((u, i) => {
      pos[u] = i;
    });
  const column = Int32Array.from({ length: n }, (_, u) => u),
    shift = new Float64Array(n);
  for (const row of rows) {
    const pairs = row.filter((u) => below[u] && above[below[u].to]?.to === u).map((u) => [u, below[u]]);
    const rate = ([u, l]) => (u >= real && l.to >= real ? 2e4 : 0) + reachUp[u] + reachDown[l.to];
    pairs.sort((a, b) => rate(b) - rate(a) || a[0] - b[0]);
    const taken = [];
    for (const [u, l] of pairs) {
      if (taken.some(([a, b]) => (pos[a] - pos[u]) * (pos[b] - pos[l.to]) < 0)) continue; // never across each other
      taken.push([u, l.to]);
      column[l.to] = column[u];
      shift[l.to] = shift[u] + l.here - l.there;
    }
  }
  return { column, shift };
}

/** For each box the number of real boxes on the longest way to that side; ways that end in a port (no height) win. */
function ways(net, rows, side) {
  const length = new Float64Array(net.width.length);
  for (const row of rows)
    for (const u of row) {
      let best = side[u].length ? -Infinity : net.width[u] === 6 && u < net.real ? 1e4 : 0;
      for (const l of side[u]) best = Math.max(best, length[l.to]);
      length[u] = best + (u < net.real ? 1 : 0);
    }
  return length;
}

function route({ net, rows, x, height, edges, pin, endsAt, gapY }) {
  const { real, rank, width, dummies } = net,
    top = [],
    tall = [];
  let y = 0;
  rows.forEach((row, r) => {
    tall[r] = Math.max(0, ...row.map((u) => (u < real ? height[u] : 0)));
    top[r] = y;
    const ports = pin[row[0]] === "top" || pin[rows[r + 1]?.[0]] === "bottom";
    y += tall[r] + (r + 1 < rows.length ? (ports ? Math.min(14, gapY) : gapY) : 0);
  });
  let left = Infinity,
    right = -Infinity;
  for (let u = 0; u < width.length; u++) {
    left = Math.min(left, x[u] - width[u] / 2);
    right = Math.max(right, x[u] + width[u] / 2);
  }
  const at = (u) => x[u] - left;
  const yOf = (u) => top[rank[u]] + (tall[rank[u]] <= 60 ? (tall[rank[u]] - height[u]) / 2 : 0);
  const fan = spread(edges, net, x, endsAt);
  const routes = edges.map(([a, b], i) => {
    const points = [at(a) + fan[i][0], yOf(a) + height[a], at(a) + fan[i][0], top[rank[a]] + tall[rank[a]]];
    for (const d of dummies[i]) points.push(at(d), top[rank[d]], at(d), top[rank[d]] + tall[rank[d]]);
    points.push(at(b) + fan[i][1], top[rank[b]], at(b) + fan[i][1], yOf(b));
    return points;
  });
  return {
    x: Array.from({ length: real }, (_, u) => at(u) - width[u] / 2),
    y: Array.from({ length: real }, (_, u) => yOf(u)),
    w: right - left,
    h: y,
    rank: rank.slice(0, real),
    routes,
  };
}

/** Where on its box each edge ends: at its port, or fanned out in the order of the other ends. */
function spread(edges, net, x, endsAt) {
  const fan = edges.map((_, i) => [endsAt[i]?.[0] ?? 0, endsAt[i]?.[1] ?? 0]);
  for (const end of [0, 1]) {
    const byBox = new Map();
    edges.forEach((e, i) => {
      if (endsAt[i]?.[end] !== undefined) return;
      const near = net.dummies[i].at(end ? -1 : 0) ?? e[1 - end];
      const list = byBox.get(e[end]) || [];
      list.push([x[near] + (net.dummies[i].length ? 0 : (endsAt[i]?.[1 - end] ?? 0)), i]);
      byBox.set(e[end], list);
    });
    for (const [u, list] of byBox) {
      if (list.length < 2) continue;
      list.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      const step = Math.min(14, (net.width[u] * 0.7) / list.length);
      const straight = list.findIndex(([to]) => Math.abs(to - x[u]) < 1),
        middle = straight < 0 ? (list.length - 1) / 2 : straight;
      list.forEach(([, i], k) => {
        fan[i][end] = (k - middle) * step;
      });
    }
  }
  return fan;
}

const lists = (n) => Array.from({ length: n }, () => []);
function median(values) {
  values.sort((a, b) => a - b);
  const k = values.length >> 1;
  return values.length % 2 ? values[k] : (values[k - 1] + values[k]) / 2;
}
return { layered };
};
const $layout = $layout_();
const $sheet_ = () => {
/** Where a layout is put together: boxes and edges as columns that grow. */

/** A typed array that grows. */
class Column {
  constructor(Type) {
    this.Type = Type;
    this.values = new Type(64);
    this.length = 0;
  }
  room(more) {
    if (this.length + more <= this.values.length) return;
    const larger = new this.Type(Math.max(this.values.length * 2, this.length + more));
    larger.set(this.values.subarray(0, this.length));
    this.values = larger;
  }
  push(v) {
    this.room(1);
    this.values[this.length++] = v;
  }
  /** Appends `source` plus dx at even and dy at odd places. */
  shifted(source, dx, dy) {
    this.room(source.length);
    const { values, length: n } = this;
    for (let k = 0; k < source.length; k += 2) {
      values[n + k] = source[k] + dx;
      values[n + k + 1] = source[k + 1] + dy;
    }
    this.length += source.length;
  }
  append(source, plus = 0, from = 0) {
    this.room(source.length - from);
    const { values, length: n } = this;
    for (let k = from; k < source.length; k++) values[n + k - from] = source[k] + plus;
    this.length += source.length - from;
  }
  cut() {
    return this.values.slice(0, this.length);
  }
}

/** Collects boxes and edges in absolute coordinates. */
class Sheet {
  item = new Column(Uint32Array);
  kind = new Column(Uint8Array);
  place = new Column(Float64Array);
  size = new Column(Float32Array);
  depth = new Column(Uint8Array);
  points = new Column(Float64Array);
  pointsAt = new Column(Uint32Array);
  pairs = new Column(Uint32Array);
  pairsAt = new Column(Uint32Array);
  arrow = new Column(Uint8Array);
  constructor() {
    this.clear();
  }
  clear() {
    for (const c of Object.values(this)) c.length = 0;
    this.pointsAt.push(0);
    this.pairsAt.push(0);
  }
  box(item, kind, x, y, w, h, depth) {
    this.item.push(item);
    this.kind.push(kind);
    this.place.push(x);
    this.place.push(y);
    this.size.push(w);
    this.size.push(h);
    this.depth.push(depth);
  }
  edge(route, dx, dy, start, end, pairs, arrow) {
    const from = this.points.length;
    this.points.shifted(route, dx, dy);
    if (start !== null) this.points.values[from + 1] = start;
    if (end !== null) this.points.values[this.points.length - 1] = end;
    this.pairs.append(pairs);
    this.pointsAt.push(this.points.length);
    this.pairsAt.push(this.pairs.length);
    this.arrow.push(arrow ? 1 : 0);
  }
  copy(flat, dx, dy, depth) {
    const points = this.points.length,
      pairs = this.pairs.length;
    this.item.append(flat.item);
    this.kind.append(flat.kind);
    this.place.shifted(flat.place, dx, dy);
    this.size.append(flat.size);
    this.depth.append(flat.depth, depth);
    this.points.shifted(flat.points, dx, dy);
    this.pairs.append(flat.pairs);
    this.arrow.append(flat.arrow);
    this.pointsAt.append(flat.pointsAt, points, 1);
    this.pairsAt.append(flat.pairsAt, pairs, 1);
  }
  arrays() {
    return Object.fromEntries(Object.entries(this).map(([name, column]) => [name, column.cut()]));
  }
}
return { Sheet };
};
const $sheet = $sheet_();
const $wrap_ = () => {
const { Sheet } = $sheet;

/** Between two columns: room for the titles of the frames in the right one. */
const GUTTER = 150;

/** A long spine set like a newspaper: cut between boxes into columns that fill `aspect` best. Frames and edges over a cut are split. */
function wrap(scene, aspect) {
  const { item, kind, place, size, depth, points, pointsAt, pairs, pairsAt, arrow, w, h } = scene,
    stride = w + GUTTER;
  const zoom = (c) => Math.min(aspect / (c * stride), c / h); // for a window of `aspect` by 1
  let count = 1;
  while (count < 400 && zoom(count + 1) > zoom(count)) count++;
  if (count < 2) return scene;
  const leaves = [];
  for (let i = 0; i < item.length; i++)
    if (kind[i] !== 3) leaves.push([place[2 * i + 1], place[2 * i + 1] + size[2 * i + 1]]);
  leaves.sort((a, b) => a[0] - b[0]);
  const cuts = [0];
  for (let c = 1, i = 0; c < count; c++) {
    // the first gap after an even share
    let y = (c * h) / count;
    while (i < leaves.length && leaves[i][0] < y + 6) {
      if (leaves[i][1] + 6 > y) y = leaves[i][1] + 6;
      i++;
    }
    if (y < h && y > cuts.at(-1)) cuts.push(y);
  }
  cuts.push(Infinity);
  const columnAt = (y) => {
    let lo = 0,
      hi = cuts.length - 2;
    while (lo < hi) {
      const mid = (lo + hi + 1) >> 1;
      if (cuts[mid] <= y) lo = mid;
      else hi = mid - 1;
    }
    return lo;
  };
  const sheet = new Sheet();
  let tall = 0;
  for (let i = 0; i < item.length; i++) {
    const x = place[2 * i],
      y = place[2 * i + 1],
      bw = size[2 * i],
      bh = size[2 * i + 1];
    for (let c = columnAt(y); c < cuts.length - 1 && cuts[c] < y + bh - 1; c++) {
      const top = Math.max(y, cuts[c]),
        bottom = Math.min(y + bh, cuts[c + 1]);
      sheet.box(item[i], kind[i], x + c * stride, top - cuts[c], bw, bottom - top, depth[i]);
      tall = Math.max(tall, bottom - cuts[c]);
    }
  }
  for (let e = 0; e < arrow.length; e++) {
    const p = points.subarray(pointsAt[e], pointsAt[e + 1]),
      own = pairs.subarray(pairsAt[e], pairsAt[e + 1]);
    let c = columnAt(p[1]),
      piece = [p[0], p[1]];
    for (let k = 2; k < p.length; k += 2) {
      while (p[k + 1] > cuts[c + 1]) {
        const t = (cuts[c + 1] - p[k - 1]) / (p[k + 1] - p[k - 1]),
          x = p[k - 2] + (p[k] - p[k - 2]) * Math.max(0, t);
        piece.push(x, cuts[c + 1]);
        sheet.edge(piece, c * stride, -cuts[c], null, null, own, false);
        piece = [x, cuts[c + 1]];
        c++;
      }
      piece.push(p[k], p[k + 1]);
    }
    sheet.edge(piece, c * stride, -cuts[c], null, null, own, arrow[e] === 1);
  }
  return { ...sheet.arrays(), w: (cuts.length - 1) * stride - GUTTER, h: tall, columns: cuts.length - 1 };
}
return { GUTTER, wrap };
};
const $wrap = $wrap_();
const $arrange_ = () => {
/**
 * The picture for one set of open groups, as typed arrays that a worker can hand over: pure, no DOM.
 * What is inside a group depends on what is open inside it alone, so each group keeps its last layouts: opening one lays out
 * that group and those around it. Blocks that are built alike are laid out once.
 */
const { layered } = $layout;
const { Sheet } = $sheet;
const { wrap } = $wrap;

const BOX = {
  node: [144, 24],
  op: [180, 24],
  parameter: [124, 22],
  group: [184, 42],
  stack: [268, 76],
  header: 26,
  pad: 14,
};
const KEPT = 4;

class Arranger {
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
    const { graph } = this,
      block = this.#group(graph.root, expanded, [], []);
    this.sheet.clear();
    put(this.sheet, block, 0, 0, 0);
    const arrays = { ...this.sheet.arrays(), w: block.w, h: block.h, columns: 1 };
    return index(graph, aspect ? wrap(arrays, aspect) : arrays);
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
    const key = this.#signature(group, expanded),
      kept = this.layouts.get(group) ?? this.layouts.set(group, new Map()).get(group);
    if (!kept.has(key)) {
      if (kept.size >= KEPT) kept.delete(kept.keys().next().value);
      kept.set(key, this.#layOut(group, expanded, tops, bottoms));
      this.#tell();
    }
    return kept.get(key);
  }

  /** Says from time to time how far it has come. */
  #tell() {
    const { progress } = this,
      now = performance.now();
    progress.done++;
    if (!progress.told || now - progress.at < 100) return;
    progress.at = now;
    progress.told(Math.min(1, progress.done / progress.open));
  }

  /** Edges of a group by the child they enter or leave, worked out once. */
  #sidesOf(group, edges) {
    if (!this.sides.has(group)) {
      const into = new Map(),
        out = new Map(),
        push = (map, k, v) => (map.has(k) ? map.get(k).push(v) : map.set(k, [v]));
      for (const e of edges) {
        push(into, e.b, "in|" + e.a);
        push(out, e.a, "out|" + e.b);
      }
      this.sides.set(group, { into, out });
    }
    return this.sides.get(group);
  }

  #layOut(group, expanded, tops, bottoms) {
    const { items } = this.graph,
      edges = this.local.get(group) || [],
      sides = this.#sidesOf(group, edges);
    const first = (item) => (item.nodes ? item.nodes[0].index : item.index);
    const inside = [...group.own, ...group.children].sort((a, b) => first(a) - first(b)).map((i) => i.index);
    const all = [...tops, ...inside, ...bottoms],
      index = new Map(all.map((k, i) => [k, i])),
      inner = new Map();
    for (const child of group.children)
      if (expanded[child.index - this.first])
        inner.set(
          child.index,
          this.#group(child, expanded, sides.into.get(child.index) || [], sides.out.get(child.index) || []),
        );
    const port = (key) => typeof key === "string";
    const size = all.map((key) => {
      if (port(key)) return [6, 0];
      const open = inner.get(key),
        item = items[key];
      if (open) return [open.w, open.h];
      return item.nodes ? (item.stack ? BOX.stack : BOX.group) : item.parameter ? BOX.parameter : this.box;
    });
    const endsAt = edges.map((e) => [inner.get(e.a)?.ports.get("out|" + e.b), inner.get(e.b)?.ports.get("in|" + e.a)]);
    const plan = this.#plan({
      width: size.map((s) => s[0]),
      height: size.map((s) => s[1]),
      edges: edges.map((e) => [index.get(e.a), index.get(e.b)]),
      endsAt,
      pin: all.map((_, i) => (i < tops.length ? "top" : i >= all.length - bottoms.length ? "bottom" : "")),
      gapY: group.parent ? 22 : 24,
    });
    const pad = group.parent ? BOX.pad : 0,
      lift = tops.length ? 10 : 0;
    const head = group.parent ? BOX.header + 8 - lift : 0,
      foot = group.parent ? (bottoms.length ? 0 : BOX.pad) : 0;
    const w = Math.max(plan.w + 2 * pad, group.parent ? 150 : 0),
      h = plan.h + head + foot,
      shift = (w - plan.w) / 2;
    const [ports, below] = portsOf(tops, bottoms, index, plan, w / 2 - shift);
    edges.forEach((e, i) => {
      const route = plan.routes[i],
        last = route.length - 2;
      if (ports.has(e.a)) route[0] = route[2] = w / 2 - shift + ports.get(e.a);
      if (below.has(e.b)) route[last] = route[last - 2] = w / 2 - shift + below.get(e.b);
    });
    for (const [key, x] of below) ports.set(key, x);
    const kind = all.map((key) => (port(key) || !items[key].nodes ? 0 : items[key].stack ? 2 : 1));
    const emit = (sheet, x0, y0, depth) => {
      if (group.parent) sheet.box(group.index, 3, x0, y0, w, h, depth);
      for (let i = tops.length; i < all.length - bottoms.length; i++) {
        const key = all[i],
          x = x0 + shift + plan.x[i],
          y = y0 + head + plan.y[i],
          open = inner.get(key);
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
  const local = new Map(),
    known = new Map(),
    { from, to } = graph.edges,
    many = graph.items.length;
  const add = (group, a, b, u, v) => {
    if (!local.has(group)) {
      local.set(group, []);
      known.set(group, new Map());
    }
    const seen = known.get(group),
      id = typeof a === "number" && typeof b === "number" ? a * many + b : a + "→" + b;
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
  const chains = new Map(),
    around = (node) => {
      if (!chains.has(node.parent)) chains.set(node.parent, chain(node).slice(1));
      return chains.get(node.parent);
    };
  for (let e = 0; e < from.length; e++) {
    const u = graph.list[from[e]],
      v = graph.list[to[e]],
      A = around(u),
      B = around(v);
    let i = A.length - 1,
      j = B.length - 1;
    while (i > 0 && j > 0 && A[i - 1] === B[j - 1]) {
      i--;
      j--;
    }
    const a = (i ? A[i - 1] : u).index,
      b = (j ? B[j - 1] : v).index;
    if (a === b) continue;
    add(A[i], a, b, u.index, v.index);
    let other = b;
    for (let k = i - 1; k >= 0; k--) {
      other = "out|" + other;
      add(A[k], (k ? A[k - 1] : u).index, other, u.index, v.index);
    }
    other = a;
    for (let k = j - 1; k >= 0; k--) {
      other = "in|" + other;
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

const ROW = 256;

/** What finds things in a scene: boxes by height (rows of ROW), by item and by node, the extent of each edge. */
function index(graph, s) {
  const n = s.item.length,
    m = s.arrow.length,
    at = new Int32Array(graph.items.length).fill(-1),
    home = new Int32Array(graph.list.length).fill(-1),
    bounds = new Float64Array(4 * m);
  const rows = Math.floor(s.h / ROW) + 2,
    rowAt = new Uint32Array(rows + 1),
    open = [];
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
  const next = rowAt.slice(),
    leaves = new Uint32Array(n - open.length);
  for (let i = 0; i < n; i++)
    if (s.kind[i] !== 3) leaves[next[Math.floor(Math.max(0, s.place[2 * i + 1]) / ROW)]++] = i;
  for (let e = 0; e < m; e++) {
    let left = Infinity,
      right = -Infinity;
    for (let k = s.pointsAt[e]; k < s.pointsAt[e + 1]; k += 2) {
      const x = s.points[k];
      if (x < left) left = x;
      if (x > right) right = x;
    }
    bounds.set([left, s.points[s.pointsAt[e] + 1], right, s.points[s.pointsAt[e + 1] - 1]], 4 * e);
  }
  return { ...s, at, home, bounds, rowAt, leaves, open: Uint32Array.from(open), tallest };
}
return { BOX, Arranger, ROW };
};
const $arrange = $arrange_();
const $code_ = () => {
/** A graph's code, packed apart because it outweighs the rest: lines, the node each belongs to, and the lines each reads. */
const { rowsOf, unpack } = $columns;

class Code {
  constructor(graph, bytes) {
    const { columns, facts, tables } = unpack(bytes);
    Object.assign(this, { graph, columns, tables, length: facts.lines });
  }
  /** The text; the layout's worker does without. */
  get lines() {
    return (this.text ??= this.length ? new TextDecoder().decode(this.columns.text).split("\n") : []);
  }
  nodeAt(i) {
    return this.columns.line_node[i] ? this.graph.list[this.columns.line_node[i] - 1] : null;
  }
  kindAt(i) {
    return this.tables.line_kinds[this.columns.line_kind[i]];
  }
  readsOf(i) {
    return this.columns.reads.subarray(this.columns.reads_at[i], this.columns.reads_at[i + 1]);
  }
  linesOf(node) {
    this.rows ??= rowsOf(this.graph.list.length + 1, this.columns.line_node);
    const { at, items } = this.rows;
    return Array.from(items.subarray(at[node.index + 1], at[node.index + 2]));
  }
}

/** A line as [name, target, the rest]: `x`, `torch.add`, `(y, z)`. */
function statement(text) {
  const m = /^(\S+) = ([^(\s]*)([\s\S]*)$/.exec(text);
  return m ? m.slice(1) : [text, "", ""];
}
return { Code, statement };
};
const $code = $code_();
const $touches_ = () => {
/** Every touch of a part: who read what, at which of the nodes. */
function readTouches({ columns: c, tables: t }, nodes) {
  return Array.from(c.touch_phase, (phase, k) => ({
    phase: t.phases[phase],
    node: c.touch_node[k] ? nodes[c.touch_node[k] - 1] : null,
    attribute: t.attributes[c.touch_attribute[k]],
    by: t.touchers[c.touch_by[k]],
    where: t.touch_places[c.touch_place[k]],
    count: c.touch_count[k],
    at: c.touch_at[k] ? t.touched_nodes[c.touch_at[k] - 1] : null,
  }));
}
return { readTouches };
};
const $touches = $touches_();
const $graph_ = () => {
/** The autograd nodes of a capture: views onto columns, and the joins to touches, parity and times. */
const { rowsOf, sent, unpack } = $columns;
const { Drawable, FLAGS, heldBy } = $drawable;
const { familyOfKind, lookOf, plain } = $families;
const { readTouches } = $touches;

/** The verdicts with which a comparison is in order. */
const GOOD = new Set(["bitwise", "within_tolerance", "within_noise"]);

/** One autograd node: an index and getters. Fifty thousand of them cost an object each and no strings. */
class Node {
  row = null;
  parent = null;
  constructor(graph, index) {
    this.graph = graph;
    this.index = index;
    this.id = graph.columns.id[index];
  }
  get key() {
    return "n" + this.id;
  }
  get name() {
    return this.graph.tables.names[this.graph.columns.name[this.index]];
  }
  get kind() {
    return this.graph.tables.kinds[this.graph.columns.kind[this.index]];
  }
  get family() {
    return familyOfKind(this.kind) ?? this.#look.family;
  }
  get label() {
    const p = this.parameter;
    return p ? plain(p.slice(p.lastIndexOf(".") + 1)) || "(no name)" : this.#look.label;
  }
  get module() {
    return this.graph.text("module", "modules", this.index);
  }
  get title() {
    return `${this.name} #${this.id}`;
  }
  get tag() {
    return "#" + this.id;
  }
  /** Whether it was made in a module's forward, the subject's own included. */
  get within() {
    return this.graph.columns.within[this.index] === 1;
  }
  get parameter() {
    return this.graph.text("parameter", "parameters", this.index);
  }
  /** [file:line, path:line, text] of the forward line, or null. */
  get line() {
    return this.graph.text("line", "lines", this.index);
  }
  get hooks() {
    const { hook_at } = this.graph.columns;
    return hook_at[this.index + 1] - hook_at[this.index];
  }
  get failed() {
    return this.graph.data.failed_at === this.id;
  }
  /** Whether the trace stopped before it came here. */
  get unreached() {
    const { failed_at } = this.graph.data;
    return failed_at !== null && this.id > failed_at;
  }
  get compared() {
    return this.verdict !== null;
  }
  /** How its gradients compare with the reference, the worst of them; null where they were not compared. */
  get verdict() {
    return this.row?.verdict ?? this.graph.verdictAt(this.index);
  }
  get good() {
    return GOOD.has(this.verdict);
  }
  /** Largest relative error seen at the node; endless where a gradient is missing or not finite. */
  get relative() {
    if (this.row) return this.row.relative;
    return Math.max(this.graph.errorAt("node_into", this.index) || 0, this.graph.errorAt("node_out", this.index) || 0);
  }
  /** Relative errors of the gradients that enter and leave it; NaN where they were not compared. */
  get into() {
    return this.graph.errorAt("node_into", this.index);
  }
  get out() {
    return this.graph.errorAt("node_out", this.index);
  }
  get origin() {
    return this.graph.divergence?.first === this.id;
  }
  get initial() {
    return this.graph.reads.initial_trace[this.index];
  }
  get passes() {
    return this.graph.reads.graph_pass[this.index];
  }
  get execution() {
    return this.graph.reads.execution[this.index];
  }
  get ins() {
    return this.graph.ids(this.graph.up, this.index);
  }
  get outs() {
    return this.graph.ids(this.graph.down, this.index);
  }
  get bytes() {
    return heldBy([this]);
  }
  /** The row of the saved tensors, as `heldBy` reads it. */
  get saver() {
    return this.index;
  }
  /** Seconds that it took when the graph was timed; NaN where that was not done, or not known. */
  get seconds() {
    return this.graph.times?.[this.index] ?? NaN;
  }
  /** The node whose figures it is coloured by. */
  get shade() {
    return this;
  }
  get speaks() {
    return true;
  }
  /** The autograd node behind an item of any level. */
  get base() {
    return this;
  }
  get #look() {
    return this.graph.names[this.graph.columns.name[this.index]];
  }
}

class Graph extends Drawable {
  letter = "n";
  #touches = null;
  #touchPart = null;

  constructor(bytes) {
    super();
    const { facts, tables, columns } = unpack(bytes);
    Object.assign(this, { data: facts, tables, columns, saves: columns });
    this.names = tables.names.map(lookOf);
    this.grouped = tables.modules.length > 0;
    this.model = facts.model || facts.title || "No capture"; // the class of the subject is known only if it made a node itself
    this.segments = tables.modules.map((path) => path.split("."));
    this.classes = new Map(tables.modules.map((path, i) => [path, tables.classes[i]]));
    this.arrange({
      list: Array.from(columns.id, (_, i) => new Node(this, i)),
      from: columns.edge_from,
      to: columns.edge_to,
      placeOf: columns.module,
      segments: this.segments,
      classes: this.classes,
      name: this.model,
    });
    this.stack = [...this.groups.values()].find((g) => g.stack);
    this.setTouches(null);
    this.setParity(null);
    this.setDivergence(null);
  }

  /** Takes over who read which metadata; a null or empty part is one without touches. */
  setTouches(bytes) {
    const n = this.list.length;
    this.reads = { initial_trace: new Uint32Array(n), graph_pass: new Uint32Array(n), execution: new Uint32Array(n) };
    const part = (this.#touchPart = this.#part(bytes));
    this.#touches = null;
    if (part) {
      const { touch_phase: phases, touch_node: nodes, touch_count: counts } = part.columns;
      const reads = part.tables.phases.map((phase) => this.reads[phase]);
      for (let k = 0; k < phases.length; k++) if (nodes[k]) reads[phases[k]][nodes[k] - 1] += counts[k];
    }
    this.watched = new Set(part?.facts.watched);
    this.touched = this.list.filter((node) => node.initial || node.passes);
    this.renew();
  }

  /** Every touch; made when a panel first asks, for an audit makes very many. */
  get touches() {
    return (this.#touches ??= this.#touchPart ? readTouches(this.#touchPart, this.list) : []);
  }

  /** Takes over what a comparison of gradients came to; a null or empty part is one that was not made. */
  setParity(bytes) {
    const part = this.#part(bytes);
    this.parity = part?.facts ?? null;
    this.parameters = [];
    for (const node of this.list) node.row = null;
    if (part) {
      const { columns: c, tables: t } = part;
      this.parameters = Array.from(c.row_name, (name, k) => {
        const verdict = t.verdicts[c.row_verdict[k]];
        const known = !Number.isNaN(c.row_rel[k]);
        const row = {
          name: t.row_names[name],
          shape: t.row_shapes[c.row_shape[k]],
          dtype: t.row_dtypes[c.row_dtype[k]],
          verdict,
          good: GOOD.has(verdict),
          rel: known ? c.row_rel[k] : null,
          abs: Number.isNaN(c.row_abs[k]) ? null : c.row_abs[k],
          relative: known ? c.row_rel[k] : GOOD.has(verdict) ? 0 : Infinity,
          elements: c.row_elements[k],
          mismatched: c.row_mismatched[k],
          note: c.row_note[k] ? t.row_notes[c.row_note[k] - 1] : "",
          ref: c.row_node[k] ? this.list[c.row_node[k] - 1] : null,
        };
        if (row.ref) row.ref.row = row;
        return row;
      });
    }
    this.wrong = this.parameters.filter((row) => !row.good);
    this.renew();
  }

  /** Takes over how the gradients at each node compare, and which steps are at fault; a null or empty part is a search that was not made. */
  setDivergence(bytes) {
    const part = this.#part(bytes);
    this.divergence = part?.facts ?? null;
    this.errors = part?.columns ?? {};
    this.verdicts = part?.tables.verdicts;
    this.culprits = [];
    if (part) {
      const { columns: c, tables: t } = part;
      this.culprits = Array.from(c.culprit_node, (node, k) => ({
        node: node ? this.list[node - 1] : null,
        kind: t.culprit_kinds[c.culprit_kind[k]],
        name: t.culprit_names[c.culprit_name[k]],
        verdict: t.verdicts[c.culprit_verdict[k]],
        rel: c.culprit_rel[k],
        abs: c.culprit_abs[k],
        note: c.culprit_note[k] ? t.culprit_notes[c.culprit_note[k] - 1] : "",
      }));
    }
    this.first = this.list.find((node) => node.origin) || null;
    this.renew();
  }

  verdictAt(i) {
    const k = this.errors.node_verdict?.[i];
    return k ? this.verdicts[k - 1] : null;
  }

  /** A part, if it belongs to this capture: while another one is on its way, parts of both may be around. */
  #part(bytes) {
    if (!sent(bytes)) return null;
    const part = unpack(bytes);
    return part.facts.capture === this.data.capture ? part : null;
  }

  /** The text that a column counted from 1 points at; null for 0, and for a column that was not packed. */
  text(column, table, i) {
    const k = this.columns[column]?.[i];
    return k ? this.tables[table][k - 1] : null;
  }
  errorAt(column, i) {
    return this.errors[column]?.[i] ?? NaN;
  }
  #slice(column, i, read) {
    const at = this.columns[column];
    const out = [];
    for (let k = at?.[i]; k < at?.[i + 1]; k++) out.push(read(k));
    return out;
  }

  hooksOf(i) {
    const { columns: c, tables: t } = this;
    return this.#slice("hook_at", i, (k) => ({
      kind: t.hook_kinds[c.hook_kind[k]],
      name: t.hook_names[c.hook_name[k]],
      where: this.text("hook_place", "hook_places", k),
    }));
  }

  liftedOf(i) {
    const { columns: c, tables: t } = this;
    return this.#slice("lifted_at", i, (k) => ({
      size: c.lifted_size[k],
      meaning: t.lifted_meanings[c.lifted_meaning[k]],
      value: c.lifted_value[k],
    }));
  }

  bakedOf(i) {
    const { columns: c, tables: t } = this;
    return this.#slice("baked_at", i, (k) => ({
      attribute: t.baked_attributes[c.baked_attribute[k]],
      value: t.baked_values[c.baked_value[k]],
      meaning: t.baked_meanings[c.baked_meaning[k]],
    }));
  }

  /** The leaves whose gradients a node accumulates, or that are returned as they enter it. */
  leavesOf(i) {
    const { columns: c, tables: t } = this;
    this.leafRows ??= rowsOf(this.list.length + 1, c.leaf_node);
    const { at, items } = this.leafRows;
    return Array.from(items.subarray(at[i + 1], at[i + 2]), (k) => ({
      name: t.parameters[c.leaf_name[k]],
      shape: t.leaf_shapes[c.leaf_shape[k]],
      dtype: t.leaf_dtypes[c.leaf_dtype[k]],
      output: c.leaf_output[k] ? c.leaf_output[k] - 1 : null,
    }));
  }

  savedOf(i) {
    const { columns: c, tables: t } = this;
    return this.#slice("saved_at", i, (k) => ({
      field: t.saved_fields[c.saved_field[k]],
      shape: t.saved_shapes[c.saved_shape[k]],
      dtype: t.saved_dtypes[c.saved_dtype[k]],
      bytes: c.saved_bytes[k],
      of: this.text("saved_of", "saved_names", k),
      shared: c.saved_shared[k] === 1,
      packed: c.saved_packed[k] === 1,
      by: c.saved_by[k] ? this.list[c.saved_by[k] - 1] : null,
    }));
  }

  /** [shape, dtype] of each gradient on a side of a node, "in" or "out"; null for one that is not known or goes nowhere. */
  gradients(side, i) {
    return this.#slice(side + "_at", i, (k) => this.text(side + "_spec", "specs", k));
  }

  /** Takes over how long each node took; a null or empty part is one that was not timed. */
  setTimes(bytes) {
    const part = this.#part(bytes);
    this.times = part?.columns.seconds ?? null;
    this.slowest = this.times ? this.times.reduce((most, s) => (s > most ? s : most), 0) : 0;
  }

  /** Whether a word is found at a node, by its place: see `FLAGS` for those with a meaning. Words are looked up in the tables first. */
  finder(word) {
    if (FLAGS[word]) return (i) => FLAGS[word](this.list[i]);
    const { columns: c, tables: t } = this;
    if (/^#\d+$/.test(word)) return (i) => c.id[i] === Number(word.slice(1));
    const found = (table) => Uint8Array.from(table ?? [], (text) => text.toLowerCase().includes(word));
    const names = found(t.names);
    const kinds = found(t.kinds);
    const modules = found(t.modules.map((path, k) => `${path} ${t.classes[k]}`));
    const parameters = found(t.parameters);
    const lines = found(t.lines.map(([place, , text]) => `${place} ${text}`));
    return (i) =>
      names[c.name[i]] ||
      kinds[c.kind[i]] ||
      (c.module[i] && modules[c.module[i] - 1]) ||
      (c.parameter[i] && parameters[c.parameter[i] - 1]) ||
      (c.line[i] && lines[c.line[i] - 1]);
  }
}
return { Graph };
};
const $graph = $graph_();
const $ops_ = () => {
/**
 * The nodes of a graph, drawn: those of the captured FX graph or of the lowered one, inside the autograd node that made
 * them, inside its module. Made of the code that is shown as text too, so nothing is sent for it a second time.
 */
const { statement } = $code;
const { Drawable, FLAGS, heldBy } = $drawable;
const { familyOfOperator, operatorOf, plain } = $families;

const FAMILY_OF_KIND = {
  validate_outputs: "check",
  gradient_sum: "pointwise",
  hook: "hook",
  unpack_hook: "hook",
  accumulate_grad: "parameter",
  copy_slices_prologue: "view",
  copy_slices_epilogue: "view",
};
const NONE = Object.freeze({ family: "pointwise" });

/** One graph node: a line of the code, and the autograd node that made it as `base`; null where it belongs to none. */
class Op {
  parent = null;
  constructor(graph, index, base) {
    this.graph = graph;
    this.index = index;
    this.base = base;
    this.id = graph.code.columns.ordinal[index];
  }
  get key() {
    return this.graph.letter + this.id;
  }
  get kind() {
    return this.graph.code.kindAt(this.index);
  }
  get text() {
    return this.graph.code.lines[this.index];
  }
  get name() {
    return statement(this.text.slice(0, 400))[0];
  }
  get title() {
    return this.name;
  }
  /** What is called, without the namespaces that go without saying. */
  get operator() {
    return operatorOf(statement(this.text.slice(0, 400))[1]) || this.name;
  }
  get label() {
    const p = this.parameter;
    return plain(p ? p.slice(p.lastIndexOf(".") + 1) : this.operator) || "(no name)";
  }
  /** Which autograd node it belongs to, where no frame around it says so. */
  get tag() {
    return this.base && this.parent.owner !== this.base ? "#" + this.base.id : "";
  }
  get family() {
    const { kind } = this;
    if (kind === "backward_call") return (this.base ?? NONE).family;
    return FAMILY_OF_KIND[kind] ?? familyOfOperator(this.operator);
  }
  get parameter() {
    return this.kind === "accumulate_grad" && this.base ? this.base.parameter : null;
  }
  /** The first of its autograd node, which stands for what is known of that node as a whole. */
  get leads() {
    return this.base !== null && this.graph.leads[this.base.index] === this.index + 1;
  }
  /** Figures are those of autograd nodes: of several operators none can be told from the others, so all have the colour. */
  get shade() {
    return this.graph.letter === "a" && this.base ? this.base : this;
  }
  /** Whether its autograd node's figures may stand at it: at the call of it, or at its only operator. */
  get speaks() {
    return this.graph.letter === "f" || this.parent.owner !== this.base;
  }
  get module() {
    return this.base?.module ?? null;
  }
  get within() {
    return this.base?.within ?? false;
  }
  get line() {
    return this.base?.line ?? null;
  }
  get hooks() {
    return this.kind === "hook" ? 1 : 0;
  }
  get failed() {
    return this.leads && this.base.failed;
  }
  get unreached() {
    return false;
  }
  get row() {
    return this.base?.row ?? null;
  }
  get compared() {
    return this.base?.compared ?? false;
  }
  get verdict() {
    return this.base?.verdict ?? null;
  }
  get good() {
    return this.base?.good ?? false;
  }
  get relative() {
    return this.base?.relative ?? 0;
  }
  get origin() {
    return this.leads && this.base.origin;
  }
  get initial() {
    return this.graph.reads.initial_trace[this.index];
  }
  get passes() {
    return this.graph.reads.graph_pass[this.index];
  }
  get execution() {
    return this.graph.reads.execution[this.index];
  }
  get saver() {
    return this.leads ? this.base.index : -1;
  }
  get bytes() {
    return heldBy([this]);
  }
  get seconds() {
    return this.leads ? this.base.seconds : NaN;
  }
  get ins() {
    return this.graph.ids(this.graph.up, this.index);
  }
  get outs() {
    return this.graph.ids(this.graph.down, this.index);
  }
}

class OpsGraph extends Drawable {
  #reads = null;

  /** `letter` begins the keys of its nodes: "f" for the captured graph, "a" for the lowered one. */
  constructor(base, code, letter) {
    super();
    Object.assign(this, { code, letter, data: base.data, model: base.model, saves: base.columns, autograd: base });
    const { line_node: owner, reads_at: at, reads } = code.columns;
    const to = new Uint32Array(reads.length);
    for (let i = 0; i < owner.length; i++) to.fill(i, at[i], at[i + 1]);
    const { segments, placeOf, shared } = this.#places(base, owner);
    this.arrange({
      list: Array.from(owner, (one, i) => new Op(this, i, one ? base.list[one - 1] : null)),
      from: reads,
      to,
      placeOf,
      segments,
      classes: base.classes,
      name: base.model,
    });
    this.#owners(segments, placeOf, shared);
    this.grouped = this.groups.size > 1;
  }

  /** Each line's way down the tree: its module's, and one step more where its autograd node has other lines too. */
  #places(base, owner) {
    const counts = new Uint32Array(base.list.length + 1);
    this.leads = new Uint32Array(base.list.length); // each autograd node's first call, or first line, from 1
    const calls = new Uint8Array(base.list.length);
    owner.forEach((one, i) => {
      counts[one]++;
      if (!one) return;
      const call = this.code.kindAt(i) === "backward_call";
      if (!this.leads[one - 1] || (call && !calls[one - 1])) this.leads[one - 1] = i + 1;
      if (call) calls[one - 1] = 1;
    });
    const segments = [...base.segments];
    const shared = segments.length; // rows beyond are those of autograd nodes
    const row = new Uint32Array(base.list.length);
    for (const node of base.list) {
      const module = base.columns.module[node.index];
      row[node.index] =
        counts[node.index + 1] > 1
          ? segments.push([...(module ? base.segments[module - 1] : []), "#" + node.id])
          : module;
    }
    return { segments, shared, placeOf: Uint32Array.from(owner, (one) => (one ? row[one - 1] : 0)) };
  }

  /** Groups that are an autograd node's: they have its name and its key. */
  #owners(segments, placeOf, shared) {
    this.owned = new Map();
    for (const g of this.groups.values()) {
      const first = g.nodes[0];
      const place = first ? placeOf[first.index] : 0;
      if (!g.parent || place <= shared || g.depth !== segments[place - 1].length) continue;
      const node = first.base;
      Object.assign(g, {
        owner: node,
        name: node.parameter ?? node.label,
        cls: "#" + node.id,
        module: g.parent.module,
      });
      Object.assign(g.parent, { stack: 0, odd: [] }); // calls of one module are no blocks
      if (this.owned.has(node.key)) continue;
      g.key = node.key;
      this.owned.set(node.key, g);
    }
    for (const op of this.list) if (op.base && !this.owned.has(op.base.key)) this.owned.set(op.base.key, op);
  }

  /** The item of a key; that of an autograd node is its group, or its only graph node. */
  item(key) {
    return key?.[0] === "n" ? this.owned.get(key) : super.item(key);
  }
  nodesOf(key) {
    const item = this.item(key);
    if (item?.owner && item.parts > 1) return this.list.filter((op) => op.base === item.owner); // in parts
    return super.nodesOf(key);
  }

  renew() {
    super.renew();
    this.#reads = null;
  }

  /** How often each graph node was read at, by phase; reads of which no graph node is known count at the first of the autograd node. */
  get reads() {
    return (this.#reads ??= this.#count());
  }

  #count() {
    const n = this.list.length;
    const reads = {
      initial_trace: new Uint32Array(n),
      graph_pass: new Uint32Array(n),
      execution: new Uint32Array(n),
    };
    const { touches } = this.autograd;
    const named = new Map(touches.length && this.letter === "f" ? this.list.map((op) => [op.name, op.index]) : []);
    for (const { phase, node, at, count } of touches) {
      const index = named.get(at) ?? (node ? this.leads[node.index] - 1 : -1);
      if (index >= 0) reads[phase][index] += count;
    }
    return reads;
  }

  /** Whether a word is found at a graph node, by its place: in its code, or at its autograd node. */
  finder(word) {
    if (FLAGS[word]) return (i) => FLAGS[word](this.list[i]);
    const { line_node: owner } = this.code.columns;
    const found = this.autograd.finder(word);
    const known = Array.from(this.autograd.list, (_, i) => found(i));
    if (/^#\d+$/.test(word)) return (i) => owner[i] && known[owner[i] - 1];
    return (i) => (owner[i] && known[owner[i] - 1]) || this.code.lines[i].toLowerCase().includes(word);
  }
}
return { OpsGraph };
};
const $ops = $ops_();
const $worker_ = () => {
/** The layout's side of the conversation with client.js: one graph, then one scene a message. */
const { Arranger } = $arrange;
const { Code } = $code;
const { Graph } = $graph;
const { OpsGraph } = $ops;

function serve(port) {
  let arranger;
  port.onmessage = ({ data: { id, parts, expanded, aspect } }) => {
    const began = performance.now();
    if (parts) return void (arranger = new Arranger(drawn(parts)));
    const arrays = arranger.scene(expanded, aspect, (share) => port.postMessage({ id, share }));
    port.postMessage({ id, arrays, ms: performance.now() - began }, [
      ...new Set(
        Object.values(arrays)
          .filter(ArrayBuffer.isView)
          .map((a) => a.buffer),
      ),
    ]);
  };
}

function drawn({ data, code, letter }) {
  const graph = new Graph(data);
  return code ? new OpsGraph(graph, new Code(graph, code), letter) : graph;
}
return { serve };
};
const $worker = $worker_();
const $bundle_ = () => {
function workerSource() {
const parts = [["$layout", $layout_], ["$sheet", $sheet_], ["$wrap", $wrap_], ["$arrange", $arrange_], ["$columns", $columns_], ["$code", $code_], ["$tree", $tree_], ["$drawable", $drawable_], ["$families", $families_], ["$touches", $touches_], ["$graph", $graph_], ["$ops", $ops_], ["$worker", $worker_]];
return parts.map(([name, f]) => `const ${name} = (${f})();`).join('\n') + '\n$worker.serve(self);';
}
return { workerSource };
};
const $bundle = $bundle_();
const $scene_ = () => {
/** The picture for one set of open groups on the page: the arrays that arrange.js made, and how to find things in them. */
const { ROW } = $arrange;
const { GUTTER } = $wrap;

const KIND = ["node", "group", "stack", "open"];

/** A box in sight: a view onto the arrays, made for a frame and thrown away. */
class Box {
  constructor(scene, i) {
    this.item = scene.graph.items[scene.item[i]];
    this.kind = KIND[scene.kind[i]];
    this.depth = scene.depth[i];
    this.x = scene.place[2 * i];
    this.y = scene.place[2 * i + 1];
    this.w = scene.size[2 * i];
    this.h = scene.size[2 * i + 1];
  }
  get key() {
    return this.item.key;
  }
}

class Scene {
  #heads = null;

  constructor(graph, arrays) {
    Object.assign(this, { graph }, arrays);
    this.count = this.item.length;
    this.mark();
  }

  /** Looks up again which boxes wear a badge: findings may come after the picture. */
  mark() {
    this.badged = this.graph.flagged
      .filter((item) => this.at[item.index] >= 0 && this.kind[this.at[item.index]] !== 3)
      .map((item) => this.view(this.at[item.index]));
  }

  view(i) {
    return new Box(this, i);
  }
  box(key) {
    const item = this.graph.item(key),
      i = item ? this.at[item.index] : -1;
    return i >= 0 ? this.view(i) : undefined;
  }
  homeOf(node) {
    return this.graph.items[this.home[node.index]]?.key;
  }

  /** Of a picture in columns: where each begins, how wide it is, and which modules it shows. */
  get heads() {
    return (this.#heads ??= this.columns > 1 ? this.#headed() : []);
  }

  #headed() {
    const stride = (this.w + GUTTER) / this.columns;
    const ends = Array.from({ length: this.columns }, () => [null, null]);
    for (const i of this.leaves) {
      const way = wayTo(this.graph.items[this.item[i]]);
      const c = Math.min(this.columns - 1, Math.floor(this.place[2 * i] / stride));
      const y = this.place[2 * i + 1];
      if (!way.length) continue;
      if (!ends[c][0] || y < ends[c][0].y) ends[c][0] = { y, way };
      if (!ends[c][1] || y >= ends[c][1].y) ends[c][1] = { y, way };
    }
    return ends.map(([first, last], c) => ({
      x: c * stride,
      w: stride,
      texts: first ? range(first.way, last.way) : [],
    }));
  }

  /** Closed boxes in a part of the world, by rows of height. */
  visible(top, bottom, left, right) {
    const out = [],
      rows = this.rowAt.length - 1,
      from = Math.max(0, Math.min(rows, Math.floor((top - this.tallest) / ROW))),
      to = Math.max(0, Math.min(rows, Math.floor(bottom / ROW) + 1)),
      { place, size, leaves } = this;
    for (let k = this.rowAt[from]; k < this.rowAt[to]; k++) {
      const i = leaves[k],
        x = place[2 * i],
        y = place[2 * i + 1];
      if (y <= bottom && y + size[2 * i + 1] >= top && x <= right && x + size[2 * i] >= left) out.push(this.view(i));
    }
    return out;
  }

  /** Open frames in a part of the world, outermost first; `most` is the depth to go down to. */
  frames(top, bottom, left, right, most = 255) {
    const out = [],
      { place, size, depth } = this;
    for (const i of this.open) {
      const x = place[2 * i],
        y = place[2 * i + 1];
      if (depth[i] <= most && y <= bottom && y + size[2 * i + 1] >= top && x <= right && x + size[2 * i] >= left)
        out.push(this.view(i));
    }
    return out;
  }

  /** The closed box highest up (1) or lowest down (-1), of all or of those inside an item. */
  end(direction, within) {
    let best = -1;
    for (const i of this.leaves) {
      if (within && !inside(this.graph.items[this.item[i]], within)) continue;
      if (best < 0 || (this.place[2 * i + 1] - this.place[2 * best + 1]) * direction < 0) best = i;
    }
    return best < 0 ? undefined : this.view(best).key;
  }

  /** Which boxes one arrow key away from which: along edges, whatever groups they cross. */
  next(key, direction) {
    const box = this.box(key),
      rows = this.graph[direction],
      out = new Set();
    if (!box) return out;
    for (const n of box.item.nodes || [box.item])
      for (let k = rows.at[n.index]; k < rows.at[n.index + 1]; k++) {
        const other = this.homeOf(this.graph.list[rows.items[k]]);
        if (other && other !== key) out.add(other);
      }
    return out;
  }
}

const inside = (item, group) => {
  for (let g = item.parent; g; g = g.parent) if (g === group) return true;
  return false;
};

/** The names of the modules around an item, the outermost first. */
function wayTo(item) {
  const names = [];
  for (let g = item.nodes ? item : item.parent; g?.parent; g = g.parent) if (!g.owner) names.unshift(g.name);
  return names;
}

/** `layers.47 – 44` for what begins in one module and ends in the other, and `47 – 44` where there is less room. */
function range(a, b) {
  const [from, to] = [a, b].map((way) => way.slice(0, 2).join("."));
  const short = (way) => way[1] ?? way[0];
  if (from === to) return [from, short(a)];
  const alike = a[0] === b[0] && a[1] && b[1];
  return [`${from} – ${alike ? b[1] : to}`, `${short(a)} – ${short(b)}`, short(a)];
}
return { Scene };
};
const $scene = $scene_();
const $client_ = () => {
/** Lays out: in a worker where the graph is large and the page allows one, else here. The answer to an older question is dropped. */
const { Arranger } = $arrange;
const { workerSource } = $bundle;
const { Scene } = $scene;

const SMALL = 1500; // nodes up to which laying out costs less than a frame or two, so nothing is gained by a worker
const LIGHT = 100_000; // bytes of parts that hold about as many

class LayoutClient {
  asked = 0;
  ms = 0;
  where = "page";

  /**
   * `parts`: the bytes that the graph is made of, for the worker to make it too. Where they are many it begins at once,
   * while the page makes its own; `use` says then what graph that is.
   */
  constructor(parts) {
    this.parts = parts;
    const size = Object.values(parts).reduce((sum, part) => sum + (part.byteLength ?? 0), 0);
    if (size > LIGHT) this.#start();
  }

  use(graph) {
    this.graph = graph;
    const large = graph.list.length > SMALL;
    if (large && !this.worker && !this.forbidden) this.#start();
    if (!large) this.#end();
  }

  #start() {
    const source = workerSource();
    if (!source) return;
    try {
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      this.worker = new Worker(url);
      this.url = url;
      const parts = copied(this.parts);
      this.worker.postMessage({ parts }, buffersOf(parts));
      this.worker.onmessage = ({ data }) => {
        this.where = "worker";
        if (data.share === undefined) this.#answer(data);
        else if (data.id === this.waiting?.id) this.waiting.told?.(data.share);
      };
      this.worker.onerror = (e) => {
        e.preventDefault();
        this.#fallBack(e.message || "the page forbids it");
      };
    } catch (e) {
      this.#fallBack(e.message);
    } // a page may forbid workers (CSP)
  }

  #fallBack(why) {
    console.warn("cabw_viz: laying out on the page, the worker failed:", why);
    this.#end();
    this.forbidden = true;
    if (this.waiting) {
      const { expanded, aspect, done } = this.waiting;
      this.waiting = null;
      this.scene(expanded, aspect, done);
    }
  }

  /** `done(scene)` is called at once where the layout runs here, later where it runs in the worker; `told(share)` on the way. */
  scene(expanded, aspect, done, told) {
    const id = ++this.asked;
    if (this.worker) {
      this.waiting = { id, expanded, aspect, done, told };
      this.worker.postMessage({ id, expanded, aspect });
      return;
    }
    const began = performance.now();
    const arrays = (this.arranger ??= new Arranger(this.graph)).scene(expanded, aspect);
    this.ms = performance.now() - began;
    done(new Scene(this.graph, arrays));
  }

  #answer({ id, arrays, ms }) {
    if (id !== this.waiting?.id) return;
    const { done } = this.waiting;
    this.waiting = null;
    this.ms = ms;
    done(new Scene(this.graph, arrays));
  }

  /** Gives up what is under way: a worker that lays out hears nothing, so it is ended and another one started. */
  cancel() {
    if (!this.waiting) return;
    this.waiting = null;
    this.#end();
    this.#start();
  }

  #end() {
    this.worker?.terminate();
    this.worker = null;
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = null;
  }

  stop() {
    this.waiting = null;
    this.#end();
  }
}

const binary = (value) => typeof value === "object";
const buffersOf = (parts) =>
  Object.values(parts)
    .filter(binary)
    .map((bytes) => bytes.buffer);

/** The worker gets bytes of its own: the page goes on reading these. */
function copied(parts) {
  const copy = (bytes) =>
    bytes.buffer
      ? new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength).slice()
      : new Uint8Array(bytes.slice(0));
  return Object.fromEntries(Object.entries(parts).map(([name, value]) => [name, binary(value) ? copy(value) : value]));
}
return { LayoutClient };
};
const $client = $client_();
const $levels_ = () => {
/**
 * The levels of the graph: which graph each draws, and where its data comes from. `module` and `autograd` draw autograd
 * nodes, all groups closed or all open; `fx` and `aten` draw the nodes of a graph, whose code is asked for when the level
 * is first shown.
 */
const { LayoutClient } = $client;
const { Code } = $code;
const { sent } = $columns;
const { Graph } = $graph;
const { OpsGraph } = $ops;

const LEVELS = [
  ["module", "Module", "Modules, closed"],
  ["autograd", "Autograd", "Every autograd node"],
  ["fx", "FX", "The nodes of the captured graph, without those that only carry values"],
  ["aten", "Aten", "The aten operators of the lowered graph"],
];
/** The part that a level is made of, and the letter that begins the keys of its nodes. */
const MADE_OF = { fx: ["code", "f"], aten: ["aten", "a"] };
const LEVEL_OF = { f: "fx", a: "aten" };

class Levels {
  #asked = new Set();
  #codes = new Map();
  #drawn = new Map();

  constructor(model) {
    this.model = model;
    const layout = new LayoutClient({ data: model.get("data") });
    this.graph = new Graph(model.get("data"));
    layout.use(this.graph);
    this.base = { graph: this.graph, layout };
  }

  /** The code of a part, `code` or `aten`; null while it is on its way, which it is from the first time on. */
  code(part) {
    if (!this.#codes.has(part)) {
      const bytes = this.model.get(part);
      if (!sent(bytes)) return this.#ask(part);
      this.#codes.set(part, new Code(this.graph, bytes));
    }
    return this.#codes.get(part);
  }

  /** The code of a part if it is here already. */
  known(part) {
    return sent(this.model.get(part)) ? this.code(part) : null;
  }

  #ask(part) {
    if (!this.#asked.has(part)) {
      this.#asked.add(part);
      this.model.send({ type: part });
    }
    return null;
  }

  /** Whether there is anything that a level could be made of. */
  has(level) {
    return level !== "aten" || this.graph.data.lowered > 0 || sent(this.model.get("aten"));
  }

  /** What a level draws and who lays it out; null while its data is on its way. */
  entry(level) {
    const made = MADE_OF[level];
    if (!made) return this.base;
    const [part, letter] = made;
    if (!this.#drawn.has(level)) {
      const code = this.code(part);
      if (!code) return null;
      const layout = new LayoutClient({ data: this.model.get("data"), code: this.model.get(part), letter });
      const graph = new OpsGraph(this.graph, code, letter);
      layout.use(graph);
      this.#drawn.set(level, { graph, layout });
    }
    return this.#drawn.get(level);
  }

  /** The entry that draws a graph. */
  of(graph) {
    return [...this.#drawn.values()].find((entry) => entry.graph === graph) ?? this.base;
  }

  /** A part was computed anew, or has come: what was made of an older one goes. Says which level it is for. */
  renew(part) {
    const [level] = Object.entries(MADE_OF).find(([, [name]]) => name === part);
    this.#codes.delete(part);
    this.#drawn.get(level)?.layout.stop();
    this.#drawn.delete(level);
    return level;
  }

  /** Findings have changed, at whatever level they show. */
  renewed() {
    for (const { graph } of this.#drawn.values()) graph.renew();
  }

  stop() {
    for (const { layout } of [this.base, ...this.#drawn.values()]) layout.stop();
  }
}

/** The level that shows an item of this key, given the one that is shown now. */
const levelFor = (key, now) => LEVEL_OF[key[0]] ?? now;

/** What an item of one graph is in another: itself, its autograd node, or the module around it; "" for nothing. */
function translated(key, from, to) {
  if (!key || to.item(key)) return key;
  const item = from.item(key);
  const base = item?.owner ?? (item?.nodes ? null : item?.base);
  if (base && to.item(base.key)) return base.key;
  for (let group = item; group; group = group.parent) {
    const found = group.module && to.groups.get(group.module);
    if (found) return found.key;
  }
  return "";
}
return { LEVELS, Levels, levelFor, translated };
};
const $levels = $levels_();
const $task_ = () => {
/** Things that only a kernel can do, asked for in a panel: what to run it with, how it goes, what became of it. */
const { h } = $dom;
const { empty } = $parts;

const PATIENCE = 8000; // after this long without a word the kernel is busy or gone

const TEXTS = {
  parity: { button: "Compare with eager", running: "Running the graph again and comparing", code: "cap.parity()" },
  audit: { button: "Run the audit", running: "Running the graph on watched tensors", code: "cap.audit()" },
  lower: { button: "Lower the graph", running: "Lowering the graph to aten operators", code: "cap.lower()" },
  times: { button: "Time the nodes", running: "Running the graph and timing each node", code: "cap.times()" },
  divergence: {
    button: "Find the first divergence",
    running: "Running the graph and comparing at every node",
    code: "cap.divergence()",
  },
};
const LABELS = { device: "Device", dtype: "Dtype", backend: "Backend", hooks: "Hooks" };

/** The form for a task, or what stands in its place where there is no kernel. `missing` says what has not been computed. */
function taskForm(ins, what, missing) {
  const { button, code } = TEXTS[what];
  if (!ins.model.get("kernel")) return missing ? empty(missing, " With a kernel: ", h("code", null, code)) : null;
  const choices = ins.model.get("choices")?.[what];
  if (!choices) return missing ? empty(missing) : null; // the session holds nothing that could be run
  const task = ins.model.get("task") || {};
  const running = task.state === "running" || asked(ins, what);
  const chosen = (ins.ui[what] ??= {});
  const fields = Object.entries(choices).map(([name, options]) => choice(name, options, chosen, running));
  const run = () => {
    ins.asked = { what, at: performance.now(), task: ins.model.get("task") };
    ins.model.send({ type: "run", what, options: chosen });
    ins.refreshPanel();
    clearTimeout(ins.patience);
    ins.patience = setTimeout(() => ins.refreshPanel(), PATIENCE + 50);
  };
  return h(
    "div.cabw-form",
    null,
    missing ? h("p.cabw-missing", null, missing) : null,
    fields,
    h("button.cabw-button", { disabled: running, onclick: run }, running ? "Running…" : button),
    state(ins, what, task),
  );
}

function choice(name, options, chosen, disabled) {
  chosen[name] ??= options[0];
  const select = h(
    "select",
    { disabled, onchange: () => (chosen[name] = select.value) },
    options.map((o) => h("option", { selected: o === chosen[name] }, o)),
  );
  return h("label", null, LABELS[name] ?? name, select);
}

/** Whether a task was asked for that the kernel has not yet spoken about. */
function asked(ins, what) {
  return ins.asked?.what === what && ins.asked.task === ins.model.get("task");
}

function state(ins, what, task) {
  if (asked(ins, what)) {
    const late = performance.now() - ins.asked.at > PATIENCE;
    return h(
      "p",
      { role: "status" },
      late ? "No answer yet: the kernel is busy with a cell, or gone." : "Asked the kernel…",
    );
  }
  if (task.what !== what) return null;
  if (task.state === "running")
    return h(
      "div.cabw-running",
      null,
      h("p", { role: "status" }, `${TEXTS[what].running}. Interrupt the kernel to stop it.`),
      task.share === undefined
        ? null
        : h("progress", { max: 1, value: task.share, "aria-label": "How far the run of the graph has come" }),
    );
  if (task.state === "failed") return h("pre.cabw-error", { role: "alert" }, task.error);
  if (task.state === "interrupted") return h("p", { role: "status" }, "Stopped by an interrupt; nothing was changed.");
  return task.seconds === undefined
    ? null
    : h(
        "p",
        { role: "status" },
        `Done in ${task.seconds < 1 ? `${Math.round(task.seconds * 1000)} ms` : `${task.seconds.toFixed(1)} s`}.`,
      );
}
return { taskForm };
};
const $task = $task_();
const $note_ = () => {
/** What stands over the canvas where there is no picture: what is missing, and what makes it. */
const { h, plural } = $dom;
const { taskForm } = $task;

function showNote(ins) {
  const said = ins.graph.nodes.size ? waiting(ins) : nothing(ins);
  ins.note.hidden = !said;
  ins.note.replaceChildren(...(said ?? []));
  ins.tree.inert = ins.crumbs.inert = Boolean(said);
}

/** A level whose data is not there. */
function waiting(ins) {
  const { data } = ins.graph;
  const { pending } = ins;
  if (!pending) return null;
  if (pending === "aten" && !ins.levels.has("aten"))
    return [
      h("b", null, data.graph_nodes ? "Not lowered to aten operators" : "There is no graph to lower"),
      h("div", null, taskForm(ins, "lower", "Lowering breaks each autograd node up into the operators that it runs.")),
    ];
  if (!data.graph_nodes)
    return [
      h("b", null, "There is no graph"),
      h("span", null, data.failure ? "The trace stopped before the graph was made." : "This capture holds no graph."),
    ];
  if (ins.levels.known(pending === "fx" ? "code" : "aten"))
    return [h("b", null, "No operator"), h("span", null, "This graph only hands values on.")];
  return [h("b", null, ins.model.get("kernel") ? "Fetching the graph…" : "Unpacking the graph…")];
}

function nothing(ins) {
  const { events, captures: all } = ins.session;
  if (ins.graph.data.failure)
    return [
      h("b", null, "This backward failed before its first node"),
      h("span", null, ins.graph.data.failure.slice(0, 300)),
    ];
  if (all.length)
    return [
      h("b", null, "This capture has no nodes"),
      h("span", null, "The backward failed before the first node, or the loss needs no gradient."),
    ];
  if (!events.length)
    return [
      h("b", null, "No backward was captured"),
      h("span", null, "No backward call was made in the session's block."),
    ];
  return [
    h("b", null, "No backward was captured"),
    h(
      "span",
      null,
      `${plural(events.length, "backward call")}, the last ${events.at(-1).outcome}. The Misses panel says why.`,
    ),
  ];
}
return { showNote };
};
const $note = $note_();
const $list_ = () => {
/** A long list of which only the rows in sight exist. */
const { h } = $dom;

const SPARE = 10;

/**
 * `make(i)` builds row i, which is `height` pixels tall. `scroller()` is what scrolls it; where the list is not on the
 * page yet, the first rows are there and the rest follows.
 */
function windowed({ count, height, make, scroller, className = "", role = "list" }) {
  const list = h("div.cabw-window" + className, { role, style: `height:${count * height}px` });
  const rows = new Map();
  const put = (from, to) => {
    for (const [i, el] of rows) {
      if (i >= from && i < to) continue;
      if (el.contains(el.getRootNode().activeElement)) continue; // the focus must not fall off the page
      el.remove();
      rows.delete(i);
    }
    for (let i = from; i < to; i++) {
      if (rows.has(i)) continue;
      const place = { role: "listitem", "aria-posinset": String(i + 1), "aria-setsize": String(count) };
      const el = h("div", role === "list" ? place : null, make(i));
      el.style.top = i * height + "px";
      rows.set(i, el);
      const after = list.children[i - from];
      list.insertBefore(el, after ?? null);
    }
  };
  const paint = () => {
    const box = scroller();
    if (!list.isConnected || !box) return;
    const above = box.getBoundingClientRect().top - list.getBoundingClientRect().top;
    const from = Math.max(0, Math.min(count, Math.floor(above / height) - SPARE));
    put(from, Math.min(count, from + Math.ceil(box.clientHeight / height) + 2 * SPARE));
  };
  const follow = () => {
    const box = scroller();
    const on = () => (list.isConnected ? paint() : box.removeEventListener("scroll", on));
    box.addEventListener("scroll", on, { passive: true });
    paint();
  };
  put(0, Math.min(count, 2 * SPARE));
  requestAnimationFrame(() => list.isConnected && follow());
  return list;
}
return { windowed };
};
const $list = $list_();
const $panels_code_ = () => {
/** The graph's code: thousands of lines of which only those in sight exist; a click selects the node of a line. */
const { statement } = $code;
const { h, number, plural } = $dom;
const { windowed } = $list;
const { empty } = $parts;

const LINE = 18;
const WIDE = 1000; // characters of a line that are shown

function codePanel(ins) {
  const code = ins.code();
  if (!code)
    return h("div.cabw-pad", null, empty(ins.model.get("kernel") ? "Fetching the code…" : "Unpacking the code…"));
  if (!code.length)
    return h(
      "div.cabw-pad",
      null,
      h("h2", null, "Code"),
      empty(ins.graph.data.failure ? "The trace stopped before the graph was made." : "This capture holds no graph."),
    );
  const picked = new Set(ins.picked());
  const hits = new Set((ins.hits || []).map((id) => ins.drawn.nodes.get(id).base?.id));
  const lines = [...picked].flatMap((n) => code.linesOf(n)).sort((a, b) => a - b);
  const make = (i) => line(ins, code, i, picked, hits);
  const body = h("div.cabw-scroll", { tabIndex: 0, role: "region", "aria-label": "Graph code" });
  body.append(
    windowed({
      count: code.length,
      height: LINE,
      make,
      scroller: () => body,
      className: ".cabw-code",
      role: "presentation",
    }),
  );
  requestAnimationFrame(() => {
    if (lines.length) body.scrollTop = Math.max(0, lines[0] * LINE - body.clientHeight / 3);
  });
  return h(
    "div.cabw-codepanel",
    null,
    h(
      "div.cabw-toolrow",
      null,
      h("span", null, plural(code.length, "statement")),
      h("span.muted", null, `${number(ins.graph.data.plumbing)} of plumbing folded`),
      lines.length ? h("span.muted.cabw-end", null, `${number(lines.length)} selected`) : null,
    ),
    body,
  );
}

function line(ins, code, i, picked, hits) {
  const node = code.nodeAt(i);
  const [name, target, rest] = statement(code.lines[i].slice(0, WIDE));
  const css = (picked.has(node) ? ".on" : "") + (node && hits.has(node.id) ? ".hit" : "");
  const onclick = () => node && ins.reveal(node.key);
  return h(
    "button" + css,
    { tabIndex: -1, title: node ? `${node.name.slice(0, 200)} #${node.id}` : "", onclick },
    h("i", null, String(i + 1)),
    target ? `${name} = ` : name,
    h("b", null, target),
    h("em", null, rest),
  );
}
return { codePanel };
};
const $panels_code = $panels_code_();
const $panels_memory_ = () => {
/** What the backward's nodes hold until they have run, by module. */
const { h, shape } = $dom;
const { bytes } = $encode;
const { heldBy } = $drawable;
const { windowed } = $list;
const { empty, fold, heading, meter, place } = $parts;

const ROW = 26;
const LARGEST = 8;

function memoryPanel(ins) {
  const { graph } = ins;
  const total = heldBy(graph.list);
  if (!total)
    return h(
      "div.cabw-pad",
      null,
      h("h2", null, "Memory"),
      empty(
        graph.columns.saved_field.length
          ? "The tensors that this backward saved are all parameters or buffers."
          : "No node of this backward is known to save a tensor.",
      ),
    );
  ins.held ??= new Map([...graph.groups.values()].map((g) => [g, heldBy(g.nodes)]));
  const rows = unfolded(ins, (ins.ui.memory ??= new Set([""])));
  return h(
    "div",
    null,
    h(
      "div.cabw-pad.cabw-tight",
      null,
      h("h2", null, `${bytes(total)} held until this backward has run`),
      h(
        "p.muted",
        null,
        "Tensors saved by autograd nodes, each storage counted once. Parameters and buffers are left out.",
      ),
    ),
    graph.grouped
      ? [
          h(
            "div.cabw-row.cabw-cols.cabw-memory",
            null,
            h("span", null, "Module"),
            h("span"),
            h("span.num", null, "Held"),
          ),
          windowed({
            count: rows.length,
            height: ROW,
            make: (i) => line(ins, rows[i], total),
            scroller: () => ins.body,
          }),
        ]
      : null,
    h("div.cabw-pad", null, heading("Largest saved tensors"), largest(ins)),
  );
}

/** [group, depth] of each row: the open ones with what is in them, the largest first; blocks in their own order. */
function unfolded(ins, open) {
  const rows = [];
  const todo = [[ins.graph.root, 0]];
  while (todo.length) {
    const [g, depth] = todo.pop();
    rows.push([g, depth]);
    if (!open.has(g.path)) continue;
    const order = g.stack ? (a, b) => Number(a.name) - Number(b.name) : (a, b) => ins.held.get(b) - ins.held.get(a);
    todo.push(
      ...g.children
        .slice()
        .sort(order)
        .reverse()
        .map((c) => [c, depth + 1]),
    );
  }
  return rows;
}

function line(ins, [g, depth], total) {
  const open = ins.ui.memory;
  const step = () => {
    open.has(g.path) ? open.delete(g.path) : open.add(g.path);
    ins.refreshPanel();
  };
  return h(
    "div.cabw-row.cabw-memory",
    {
      "data-key": g.parent ? g.key : undefined,
      "aria-current": ins.selection === g.key ? "true" : undefined,
    },
    h(
      "span.cabw-member",
      { style: `padding-left:${Math.min(depth, 12) * 14}px` },
      g.children.length ? fold(open.has(g.path), g.name, step) : h("i.cabw-fold"),
      h(
        "button.cabw-link.cabw-plain",
        { onclick: () => (g.parent ? ins.reveal(g.key) : ins.select("")) },
        g.part > 1 ? `${g.name} (${g.part})` : g.name,
        h("span.muted", null, g.cls && g.cls !== g.name ? "  " + g.cls : ""),
      ),
    ),
    meter(ins.held.get(g) / total, "var(--q3)"),
    h("span.num", null, bytes(ins.held.get(g))),
  );
}

function largest(ins) {
  const { graph } = ins;
  const { saved_bytes: size, saved_storage: storage, saved_shared: shared, saved_at: at } = graph.columns;
  const seen = new Set();
  const best = [];
  for (let i = 0; i < graph.list.length; i++) {
    for (let k = at[i]; k < at[i + 1]; k++) {
      if (
        shared[k] ||
        (best.length === LARGEST && size[k] <= best[LARGEST - 1][2]) ||
        (storage[k] && seen.has(storage[k]))
      )
        continue;
      seen.add(storage[k]);
      best.push([graph.list[i], k - at[i], size[k]]);
      best.sort((a, b) => b[2] - a[2]);
      best.length = Math.min(LARGEST, best.length);
    }
  }
  return h(
    "table",
    null,
    h(
      "tbody",
      null,
      best.map(([n, k]) => {
        const s = graph.savedOf(n.index)[k];
        return h(
          "tr",
          null,
          h("td", null, ins.link(n.key, `${n.label} #${n.id}`), h("div.muted", null, place(ins, n))),
          h("td.mono", null, s.field),
          h("td", null, shape(s.shape)),
          h("td.num", null, bytes(s.bytes)),
        );
      }),
    ),
  );
}
return { memoryPanel };
};
const $panels_memory = $panels_memory_();
const $panels_metadata_ = () => {
/** Who read which metadata, by phase. */
const { h, number, plural } = $dom;
const { empty, heading, kindMark, meter, place, scope, title, to } = $parts;
const { taskForm } = $task;

const MOST = 40;
const total = (touches) => touches.reduce((sum, t) => sum + t.count, 0);

function metadataPanel(ins) {
  const { graph } = ins;
  const picked = ins.selection ? new Set(ins.picked()) : null;
  const of = (phase) => graph.touches.filter((t) => t.phase === phase && (!picked || picked.has(t.node)));
  const initial = of("initial_trace");
  const passes = of("graph_pass");
  const at = new Set([...initial, ...passes].map((t) => t.node));
  return h(
    "div",
    null,
    scope(ins),
    h(
      "div.cabw-pad",
      null,
      h(
        "h2",
        null,
        at.size ? `${plural(at.size, "node")} touched before the graph ran` : "Untouched before the graph ran",
      ),
      marked(
        ins,
        "initial_trace",
        initial,
        "Initial trace",
        "of a dummy",
        "A dummy has no real shape. Whoever read it made a mistake that the graph may carry on.",
      ),
      marked(
        ins,
        "graph_pass",
        passes,
        "Graph passes",
        "of what is not there",
        "The graph's nodes hold no example values. A pass that looks for them finds nothing.",
      ),
      execution(ins, of("execution")),
    ),
  );
}

const CALM = {
  initial_trace: "Nobody read a dummy: this backward keeps the promise of the initial trace.",
  graph_pass: "No pass looked for metadata that the graph does not hold.",
};

function unwatched(ins, phase) {
  const tripwire = ["Not watched in this capture: ", h("code", null, "capture(tripwire=True)"), " does."];
  const watching = ins.graph.watched.has("initial_trace");
  return phase === "graph_pass" && watching
    ? "No compiler was given this graph: there was no pass to watch."
    : tripwire;
}

function marked(ins, phase, touches, name, what, words) {
  const note = touches.length ? `${plural(total(touches), "read")} ${what}` : "";
  if (!touches.length)
    return [heading(name), empty(ins.graph.watched.has(phase) ? CALM[phase] : unwatched(ins, phase))];
  return [
    heading(name, note),
    h("p", null, words),
    grouped(touches)
      .slice(0, MOST)
      .map((group) => read(ins, group)),
  ];
}

/** Reads at the same node, as one. */
function grouped(touches) {
  const groups = new Map();
  for (const t of touches) {
    const key = t.node ?? t.at;
    groups.set(key, [...(groups.get(key) || []), t]);
  }
  return [...groups.values()];
}

/** One node, and each line of code that read at it with what it read. */
function read(ins, group) {
  const [{ node, at }] = group;
  const lines = new Map();
  for (const t of group) {
    const line = `${t.by}: ${t.where}`;
    const attributes = lines.get(line) ?? lines.set(line, new Map()).get(line);
    attributes.set(t.attribute, (attributes.get(t.attribute) || 0) + t.count);
  }
  return h(
    "div.cabw-read",
    null,
    node
      ? h("div", null, ins.link(node.key, title(node)), h("span.muted", null, "  " + place(ins, node)))
      : h("div", null, at ?? "no node of this backward"),
    [...lines].slice(0, MOST).map(([line, attributes]) => [
      h("div.mono.muted.cabw-wrap.cabw-by", null, line),
      h(
        "div.cabw-tags",
        null,
        [...attributes].map(([name, count]) => tag(name, count)),
      ),
    ]),
  );
}

const tag = (name, count) => h("span.cabw-tag", null, name, h("span.muted", null, "× " + number(count)));

function execution(ins, touches) {
  const watched = ins.graph.watched.has("execution");
  const missing = "What each node reads when the graph runs has not been watched.";
  if (!touches.length)
    return [heading("Execution"), watched ? empty("No read while the graph ran.") : taskForm(ins, "audit", missing)];
  const attributes = tally(touches, (t) => t.attribute);
  const nodes = tally(
    touches.filter((t) => t.node),
    (t) => t.node,
  );
  const most = attributes[0][1];
  return [
    heading("Execution", `${plural(total(touches), "read")} at ${plural(nodes.length, "node")}`),
    h(
      "table",
      null,
      h(
        "tbody",
        null,
        attributes
          .slice(0, MOST)
          .map(([name, count]) =>
            h(
              "tr",
              null,
              h("td.cabw-attribute.cabw-wrap", null, name),
              h("td.cabw-middle", null, meter(count / most, "var(--q3)")),
              h("td.num", null, number(count)),
            ),
          ),
      ),
    ),
    heading("Most reads"),
    h(
      "div.cabw-links.cabw-single",
      null,
      nodes
        .slice(0, 12)
        .map(([n, count]) =>
          h(
            "button",
            to(ins, n.key),
            kindMark(n, 11),
            h("span", null, n.label, h("span.muted", null, ` #${n.id}  ${n.module || ""}`)),
            h("span", null, number(count)),
          ),
        ),
    ),
  ];
}

function tally(touches, of) {
  const counts = new Map();
  for (const t of touches) counts.set(of(t), (counts.get(of(t)) || 0) + t.count);
  return [...counts].sort((a, b) => b[1] - a[1]);
}
return { metadataPanel };
};
const $panels_metadata = $panels_metadata_();
const $reasons_ = () => {
/** What PyTorch says of a cache miss, in words; other reasons as they are. */
const MISS = /new autograd node: (\S+) \(NodeCall (\d+)\) with key size (\d+), previous key sizes=\[(.*)\]/;
const SIZES = /Cache miss due to (\d+) changed tensor shapes/;

function inPlainWords(reason) {
  const miss = MISS.exec(reason);
  if (miss) {
    const name = miss[1].split("::").pop();
    if (name === "AccumulateGrad")
      return `AccumulateGrad #${miss[2]} has another key, as when a .grad that was None is there now.`;
    return `${name} #${miss[2]} has another key: size ${miss[3]}, seen before ${miss[4] || "none"}.`;
  }
  const sizes = SIZES.exec(reason);
  if (sizes) return `${sizes[1]} sizes changed; from here on they are symbolic.`;
  return reason;
}
return { inPlainWords };
};
const $reasons = $reasons_();
const $panels_misses_ = () => {
/** Every backward call of the session, and why it was captured again. */
const { h, ICON, plural, svg } = $dom;
const { windowed } = $list;
const { ALARM, empty } = $parts;
const { inPlainWords } = $reasons;

const FEW = 200; // more rows than these get one height, so that only those in sight exist
const ROW = 62;
const LOOKS = {
  captured: ["captured", "Captured"],
  cache_hit: ["hit", "Cache hit"],
  failed: ["failed", "Failed"],
  bypassed: ["bypassed", "Bypassed"],
};

function missesPanel(ins) {
  const { events, again } = ins.session;
  if (!events.length)
    return h("div.cabw-pad", null, h("h2", null, "Misses"), empty("No backward call of a session is known here."));
  const count = events.filter((e) => e.outcome === "captured").length;
  const rows = alike(events);
  return h(
    "div",
    null,
    h(
      "div.cabw-pad.cabw-tight",
      null,
      h("h2", null, `${plural(count, "capture")} in ${plural(events.length, "backward call")}`),
      h(
        "p.muted",
        null,
        again.length ? "Each call of this session, and why it was captured again." : "Each call of this session.",
      ),
    ),
    rows.length <= FEW
      ? rows.map((row, i) => line(ins, row, i))
      : windowed({
          count: rows.length,
          height: ROW,
          className: ".cabw-even",
          make: (i) => line(ins, rows[i], i),
          scroller: () => ins.body,
        }),
  );
}

/** Calls in a row that differ in nothing but their number and time, as one. */
function alike(events) {
  const rows = [];
  for (const e of events) {
    const likeness = [e.outcome, e.reason, e.capture, e.function, e.where, e.call === null].join("\n");
    const last = rows.at(-1);
    if (last?.likeness === likeness)
      Object.assign(last, { until: e.call, count: last.count + 1, seconds: last.seconds + e.seconds });
    else rows.push({ ...e, likeness, until: e.call, count: 1 });
  }
  return rows;
}

function line(ins, e, i) {
  const [icon, text] = LOOKS[e.outcome];
  const loud = (e.outcome === "captured" && i) || e.outcome === "failed";
  const words = inPlainWords(e.reason);
  const calls =
    e.call === null
      ? e.count > 1
        ? `${e.count} calls`
        : ""
      : e.count > 1
        ? `calls ${e.call} to ${e.until}`
        : `call ${e.call}`;
  return h(
    "div.cabw-call",
    null,
    svg(ICON[icon], { colour: loud ? ALARM : "var(--muted)" }),
    h("div", null, h("b", null, text), h("span.muted", null, `  ${calls}`)),
    h("span.muted", null, `${(e.seconds * 1000).toFixed(e.seconds < 0.1 ? 1 : 0)} ms`),
    h(
      "div.why",
      null,
      h("span.mono", null, `${e.function} at ${e.where || "an unknown place"}`),
      e.capture === null || e.outcome !== "captured" ? null : shown(ins, e.capture),
    ),
    e.reason ? h("div.why", { title: e.reason }, words) : null,
    words !== e.reason ? h("div.why.mono.cabw-wrap.cabw-raw", null, e.reason) : null,
  );
}

function shown(ins, capture) {
  if (ins.session.captures.length < 2) return null;
  if (capture === ins.graph.data.capture) return h("span", null, "  shown here");
  return h(
    "span",
    null,
    "  ",
    h("button.cabw-link", { onclick: () => ins.openCapture(capture) }, `Show capture ${capture}`),
  );
}
return { missesPanel };
};
const $panels_misses = $panels_misses_();
const $fx_ = () => {
/** The graph nodes of one autograd node, drawn: what reads what, with the same layout as the graph. */
const { statement } = $code;
const { h } = $dom;
const { layered } = $layout;

const MOST = 40;
const WIDTH = 126;
const HEIGHT = 20;
const SVG = "http://www.w3.org/2000/svg";

/** The lines to draw, those they read from elsewhere first, and an edge for each reading. */
function pictured(code, own) {
  const inside = new Set(own);
  const outside = [...new Set(own.flatMap((i) => [...code.readsOf(i)]))].filter((i) => !inside.has(i));
  const lines = [...outside.slice(0, MOST / 4), ...own].slice(0, MOST);
  const place = new Map(lines.map((line, k) => [line, k]));
  const edges = [];
  for (const i of own) {
    for (const j of place.has(i) ? code.readsOf(i) : []) if (place.has(j)) edges.push([place.get(j), place.get(i)]);
  }
  return { lines, edges, outside: new Set(outside), left: own.length + outside.length - lines.length };
}

function fxPicture(ins, code, own) {
  const { lines, edges, outside, left } = pictured(code, own);
  if (lines.length < 2) return null;
  const plan = layered({ width: lines.map(() => WIDTH), height: lines.map(() => HEIGHT), edges, gapX: 12, gapY: 18 });
  const w = plan.w + 4;
  const tall = plan.h + 4;
  const svg = make("svg", { viewBox: `-2 -2 ${w} ${tall}`, width: w, height: tall, role: "img" });
  svg.setAttribute("aria-label", `${lines.length} graph nodes and what each reads`);
  for (const route of plan.routes) {
    svg.append(make("path", { d: curve(route), fill: "none", stroke: "var(--edge)", "stroke-width": 1.25 }));
  }
  lines.forEach((line, i) => svg.append(...box(ins, code, line, outside.has(line), plan.x[i], plan.y[i])));
  return h(
    "div.cabw-fx",
    { tabIndex: 0, role: "group", "aria-label": "Graph nodes of this autograd node" },
    svg,
    left > 0 ? h("p.muted", null, `${left} more are not drawn.`) : null,
  );
}

function box(ins, code, line, outside, x, y) {
  const [name, target] = statement(code.lines[line]);
  const text = outside
    ? name
    : target.replace(/^(torch\.)?(ops\.)?(aten\.)?/, "").replace(/\.(default|int|Tensor)$/, "") || name;
  const rect = make("rect", {
    x,
    y,
    width: WIDTH,
    height: HEIGHT,
    rx: 4,
    fill: outside ? "none" : "var(--box)",
    stroke: "var(--line-strong)",
  });
  if (outside) rect.setAttribute("stroke-dasharray", "3 2");
  const words = make("text", {
    x: x + WIDTH / 2,
    y: y + 13.5,
    "text-anchor": "middle",
    "font-size": 10.5,
    fill: "var(--text)",
  });
  words.textContent = text.length > 20 ? text.slice(0, 19) + "…" : text;
  words.style.pointerEvents = "none";
  const title = make("title", {});
  title.textContent = code.lines[line].slice(0, 400);
  rect.append(title);
  const node = code.nodeAt(line);
  if (outside && node) {
    rect.style.cursor = "pointer";
    rect.addEventListener("click", () => ins.reveal(node.key));
  }
  return [rect, words];
}

function make(name, attributes) {
  const el = document.createElementNS(SVG, name);
  for (const [k, v] of Object.entries(attributes)) el.setAttribute(k, v);
  return el;
}

function curve(p) {
  let d = `M${p[0]} ${p[1]}`;
  for (let i = 2; i < p.length; i += 2) {
    const m = (p[i - 1] + p[i + 1]) / 2;
    d +=
      Math.abs(p[i] - p[i - 2]) < 0.5 ? `L${p[i]} ${p[i + 1]}` : `C${p[i - 2]} ${m} ${p[i]} ${m} ${p[i]} ${p[i + 1]}`;
  }
  return d;
}
return { pictured, fxPicture };
};
const $fx = $fx_();
const $panels_details_ = () => {
/** What is known of one autograd node, a section each: its forward line, links, hooks, tensors, metadata, code. */
const { statement } = $code;
const { h, number, plural, shape } = $dom;
const { bytes } = $encode;
const { operatorOf } = $families;
const { fxPicture } = $fx;
const { empty, heading, kindMark, to } = $parts;

const MOST_LINES = 60;

function source(ins, n) {
  if (!n.line) return null;
  const [short, full, text, first, around] = n.line;
  const line = Number(short.slice(short.lastIndexOf(":") + 1));
  const rows = around ? around.map((code, i) => [first + i, code]) : text ? [[line, text]] : [];
  const row = ([number, code]) =>
    h(
      "div" + (number === line ? ".on" : ""),
      null,
      h("span", null, String(number)),
      h("span", { title: code }, code || " "),
    );
  return h(
    "div",
    null,
    heading("Forward line", h("span", { title: full }, short)),
    rows.length ? h("div.cabw-src.mono", null, rows.map(row)) : null,
  );
}

/** The way the gradient takes from this node to a parameter, marked in the graph. */
function pathTo(ins, n) {
  const { graph } = ins;
  const cone = ins.drawn === graph ? ins.cone : graph.cone(n.key);
  if (!cone?.down) return null;
  const parameters = graph.list.filter((p) => p.parameter && cone.mark[p.index] === 2);
  if (!parameters.length) return null;
  const names = h(
    "datalist",
    { id: ins.prefix + "below" },
    parameters.slice(0, 500).map((p) => h("option", { value: p.parameter })),
  );
  const input = h("input.cabw-input", {
    placeholder: `Way to one of ${plural(parameters.length, "parameter")}`,
    "aria-label": "Show the way to a parameter",
    value: ins.way ? ins.way.name : "",
    spellcheck: false,
    onchange: () => {
      const p = parameters.find((q) => q.parameter === input.value);
      ins.showPath(p ? n.key : null, p?.key);
    },
  });
  input.setAttribute("list", names.id);
  return h("div", null, heading("Way to a parameter", ins.way ? plural(ins.way.count, "node") : ""), input, names);
}

function links(ins, n) {
  const side = (name, ids, none) =>
    h(
      "div",
      null,
      heading(name, number(ids.length)),
      ids.length
        ? ids.slice(0, 50).map((id) => {
            const other = n.graph.nodes.get(id);
            return h(
              "button",
              to(ins, other.key),
              kindMark(other, 11),
              h("span", null, other.label),
              h("span.muted", null, other.tag),
            );
          })
        : h("p.muted", null, none),
      ids.length > 50 ? h("p.muted", null, `${number(ids.length - 50)} more`) : null,
    );
  return h(
    "div.cabw-links",
    null,
    n.graph === ins.graph
      ? [
          side("Gradient from", n.ins, "The root: nothing above."),
          side("Gradient to", n.outs, "A leaf: the gradient ends here."),
        ]
      : [side("Reads", n.ins, "Only inputs of the graph."), side("Read by", n.outs, "Nothing but the output.")],
  );
}

const table = (rows) =>
  h(
    "table",
    null,
    h(
      "tbody",
      null,
      rows.map((cells) => h("tr", null, cells)),
    ),
  );

function hooks(ins, n) {
  const rows = ins.graph.hooksOf(n.index);
  if (!rows.length) return null;
  return h(
    "div",
    null,
    heading("Hooks", String(rows.length)),
    table(
      rows.map((hook) => [
        h("td", null, h("span.mono", null, hook.name), h("div.muted", null, hook.kind.replaceAll("_", " "))),
        h("td.num.muted", null, hook.where && short(hook.where)),
      ]),
    ),
  );
}

const short = (where) =>
  h("span", { title: where }, where.slice(Math.max(where.lastIndexOf("/"), where.lastIndexOf("\\")) + 1));

function saved(ins, n) {
  const rows = ins.graph.savedOf(n.index);
  if (!rows.length) return null;
  return h(
    "div",
    null,
    heading("Saved tensors", n.bytes ? bytes(n.bytes) : ""),
    table(
      rows.map((s) => [
        h("td.mono", null, s.field),
        h(
          "td",
          null,
          s.packed ? "packed by a hook" : [shape(s.shape), h("span.muted", null, ` ${s.dtype}`)],
          s.of && h("div.muted", null, s.of),
          s.by && h("div.muted", null, "made by ", ins.link(s.by.key, `${s.by.label} #${s.by.id}`)),
        ),
        h("td.num", null, s.shared ? "shared" : s.packed ? "" : bytes(s.bytes)),
      ]),
    ),
  );
}

function lifted(ins, n) {
  const rows = ins.graph.liftedOf(n.index);
  return rows.length
    ? h(
        "div",
        null,
        heading("Lifted metadata", "inputs of the graph"),
        table(
          rows.map((r) => [
            h("td.mono", null, r.meaning),
            h("td.mono.muted", null, `sizes[${r.size}]`),
            h("td.mono.num", null, String(r.value)),
          ]),
        ),
      )
    : null;
}

function baked(ins, n) {
  const rows = ins.graph.bakedOf(n.index);
  return rows.length
    ? h(
        "div",
        null,
        heading("Baked metadata", "constants: changing one captures again"),
        table(
          rows.map((r) => [
            h("td", null, h("span.mono", null, r.meaning), h("div.muted", null, r.attribute)),
            h("td.mono.num.cabw-wrap", null, r.value),
          ]),
        ),
      )
    : null;
}

/** The operators that it runs: of the lowered graph, or as an audit saw them. */
function operators(ins, n) {
  const code = ins.levels.known("aten");
  const own = code ? code.linesOf(n) : [];
  const show = h("button.cabw-link", { onclick: () => ins.setLevel("aten") }, "Show in the graph");
  if (own.length) {
    const rows = own.slice(0, MOST_LINES).map((i) => {
      const key = "a" + code.columns.ordinal[i];
      const [name, target, rest] = statement(code.lines[i].slice(0, 300));
      return h(
        "button.cabw-one",
        { "data-key": key, title: code.lines[i].slice(0, 2000), onclick: () => ins.reveal(key) },
        [`${name} = `, h("b", null, operatorOf(target)), h("span.muted", null, rest)],
      );
    });
    return h("div", null, heading("Aten operators", show), h("div.cabw-src.mono", null, rows));
  }
  if (!code && ins.graph.data.lowered)
    return h(
      "div",
      null,
      heading("Aten operators", h("button.cabw-link", { onclick: () => ins.levels.code("aten") }, "Show them")),
    );
  const ran = new Map();
  for (const t of ins.graph.touches)
    if (t.node === n && t.phase === "execution" && t.attribute.includes("."))
      ran.set(t.attribute, (ran.get(t.attribute) || 0) + t.count);
  if (!ran.size) return null;
  return h(
    "div",
    null,
    heading("Operators", "as the audit saw them"),
    h(
      "div.cabw-tags",
      null,
      [...ran].map(([name, count]) =>
        h("span.cabw-tag", null, name, count > 1 ? h("span.muted", null, `× ${count}`) : ""),
      ),
    ),
  );
}

function graphCode(ins, n) {
  if (!ins.graph.columns.graph_nodes[n.index]) return null;
  const code = ins.code();
  const own = code ? code.linesOf(n) : [];
  if (code && !own.length) return null;
  const line = (i) =>
    h("div.cabw-one", { title: code.lines[i].slice(0, 2000) }, h("span", null, code.lines[i].slice(0, 300)));
  return h(
    "div",
    null,
    heading(
      "Graph nodes",
      own.length ? h("button.cabw-link", { onclick: () => ins.openTab("code") }, "Show in Code") : null,
    ),
    code
      ? [fxPicture(ins, code, own), h("div.cabw-src.mono", null, own.slice(0, MOST_LINES).map(line))]
      : empty("Fetching the code…"),
    own.length > MOST_LINES ? h("p.muted", null, `${number(own.length - MOST_LINES)} more lines in Code.`) : null,
  );
}
return { source, pathTo, links, hooks, saved, lifted, baked, operators, graphCode };
};
const $panels_details = $panels_details_();
const $panels_group_ = () => {
/** The selected group: what its nodes come to, and what is in it. */
const { h, number, plural, svg, ICON } = $dom;
const { heldBy } = $drawable;
const { bytes, duration, timed } = $encode;
const { windowed } = $list;
const { facts, finding, heading, kindMark, place, reach, title, to } = $parts;

const ROW = 24;

function groupParts(ins, g) {
  const nodes = ins.drawn === ins.graph ? g.nodes : [...new Set(g.nodes.map((n) => n.base))].filter(Boolean);
  const rows = nodes.map((n) => n.row).filter(Boolean);
  const wrong = rows.filter((row) => !row.good);
  const held = heldBy(nodes);
  const spent = timed(nodes);
  const open = ins.expanded.has(g.path);
  const list = g.children.length ? [...g.children, ...g.own] : g.nodes;
  const parameters = nodes.filter((n) => n.parameter).length;
  return [
    h("h2.clip", null, h("bdi", null, g.module || g.name), h("span.muted.cabw-light", null, "  " + g.cls)),
    g.parts > 1
      ? h("p.muted", null, `Part ${g.part} of ${g.parts}: the gradient leaves this module and comes back to it.`)
      : null,
    facts([
      [nodes === g.nodes ? "Nodes" : "Graph nodes", number(g.nodes.length)],
      ["In each block", g.stack ? blocks(g) : null],
      ["Autograd nodes", nodes === g.nodes ? null : number(nodes.length)],
      [
        "Parameters",
        rows.length
          ? `${number(rows.length)}, ${wrong.length ? `${number(wrong.length)} differ` : "all agree with eager"}`
          : number(parameters),
      ],
      ["Holds", held ? bytes(held) : null],
      ["Time", duration(spent) || null],
      ["Reach", reach(ins.cone)],
    ]),
    g.parent
      ? h(
          "div.cabw-tags",
          null,
          h(
            "button.cabw-tag",
            { onclick: () => ins.toggle(g.path) },
            open ? "Close group" : g.stack ? `Open ${g.stack} blocks` : "Open group",
            h("span.muted", null, "Enter"),
          ),
        )
      : null,
    found(ins, nodes),
    heading(g.children.length ? "Inside" : "Nodes", number(list.length)),
    windowed({
      count: list.length,
      height: ROW,
      scroller: () => ins.body,
      className: ".cabw-links",
      make: (i) => member(ins, list[i]),
    }),
  ];
}

/** How many nodes the blocks of a stack have, and which have another number. */
function blocks(g) {
  const usual = g.children.find((c) => !g.odd.includes(c));
  const odd = g.odd.slice(0, 3).map((c) => `${number(c.nodes.length)} in ${c.name}`);
  const more = g.odd.length > 3 ? [`others in ${number(g.odd.length - 3)} more`] : [];
  return [plural(usual.nodes.length, "node"), ...odd, ...more].join(", ");
}

function found(ins, nodes) {
  const origin = nodes.find((n) => n.origin);
  const touched = nodes.filter((n) => n.initial || n.passes);
  return [
    origin &&
      finding(ins, {
        icon: "flag",
        head: "First divergence inside",
        text: `${title(origin)}, ${place(ins, origin)}`,
        onclick: () => ins.reveal(origin.key),
      }),
    ...touched.slice(0, 5).map((n) =>
      finding(ins, {
        icon: "bang",
        head: n.initial ? "Touched in the initial trace" : "Looked for in a graph pass",
        text: `${title(n)}, ${place(ins, n)}`,
        onclick: () => ins.reveal(n.key),
      }),
    ),
  ].filter(Boolean);
}

function member(ins, c) {
  return h(
    "button",
    to(ins, c.key),
    c.nodes ? svg(ICON.right, { size: 11 }) : kindMark(c, 11),
    h(
      "span",
      null,
      c.nodes ? `${c.name}${c.part > 1 ? ` (${c.part})` : ""} ` : c.label,
      c.nodes && h("span.muted", null, c.cls),
    ),
    h("span.muted", null, c.nodes ? plural(c.nodes.length, "node") : c.tag),
  );
}
return { groupParts };
};
const $panels_group = $panels_group_();
const $panels_overview_ = () => {
/** What stands in the Node panel without a selection: findings before facts, each a link; or what a search found. */
const { h, number, plural } = $dom;
const { bytes, duration, error, timed } = $encode;
const { heldBy, NAMED } = $drawable;
const { windowed } = $list;
const { inPlainWords } = $reasons;
const { ALARM, empty, facts, finding, heading, kindMark, place, title, to } = $parts;
const { taskForm } = $task;

const ROW = 26;
const CALM = "var(--muted)";
const RAN = {
  eager: "in eager, as you made it",
  compiled: "through compiled autograd",
  user: "through your own compiler",
};

/** What a search found, as a list; the canvas shows the same hits in place. */
function matches(ins) {
  const ids = ins.hits;
  if (!ids.length) {
    const words = NAMED.flatMap((flag) => [h("code", null, flag), ", "]);
    return h(
      "div.cabw-pad",
      null,
      h("h2", null, "No match"),
      empty(
        "Every word must occur in a node's name, kind, module, class, parameter or source line. ",
        words,
        h("code", null, "#307"),
        " work too.",
      ),
    );
  }
  const make = (i) => {
    const n = ins.drawn.nodes.get(ids[i]);
    return h(
      "button.cabw-row.cabw-match",
      to(ins, n.key),
      kindMark(n, 11),
      h("span", null, n.label),
      h("span.muted", null, n.parameter || n.module || ""),
      h("span.muted", null, n.base ? "#" + n.base.id : ""),
    );
  };
  return h(
    "div",
    null,
    h(
      "div.cabw-pad.cabw-tight",
      null,
      h(
        "h2",
        null,
        plural(ids.length, "match", "matches"),
        h("span.muted.cabw-light", null, `  of ${number(ins.drawn.nodes.size)} nodes`),
      ),
    ),
    windowed({ count: ids.length, height: ROW, make, scroller: () => ins.body }),
  );
}

function overview(ins) {
  const { graph } = ins;
  const { data } = graph;
  return h(
    "div.cabw-pad",
    null,
    h(
      "h2",
      null,
      data.failure ? "This backward failed" : graph.nodes.size ? "What this backward shows" : "Nothing was captured",
    ),
    data.failure ? failed(ins) : null,
    graph.nodes.size ? [parity(ins), touched(ins), held(ins), slow(ins)] : null,
    calls(ins),
    graph.nodes.size
      ? [
          heading("Capture"),
          facts([
            ["Call", data.title],
            ["Model", data.model],
            ["Ran", RAN[data.run]],
            ["Autograd nodes", number(graph.nodes.size)],
            ["Graph nodes", `${number(data.graph_nodes)}, of them ${number(data.plumbing)} plumbing`],
            ["Inputs", `${plural(data.inputs, "tensor")}, ${plural(data.sizes, "size")}`],
            ["Traced in", `${data.seconds.toFixed(2)} s`],
            ["PyTorch", data.torch],
          ]),
          h("p.muted.cabw-hint", null, "Select a node or a group to see it here."),
        ]
      : null,
  );
}

function failed(ins) {
  const { data } = ins.graph;
  const node = ins.graph.nodes.get(data.failed_at);
  return finding(ins, {
    icon: "cross",
    head: node ? `Stopped at ${title(node)}` : "The trace stopped",
    text: data.failure.slice(0, 400),
    onclick: () => node && ins.reveal(node.key),
  });
}

function parity(ins) {
  const { graph } = ins;
  const see = (key) => () => {
    ins.setColour("parity");
    ins.openTab(key ? "node" : "parity");
    if (key) ins.reveal(key);
  };
  const { first, wrong, parameters } = graph;
  if (!graph.parity && !first)
    return graph.data.failure
      ? null
      : finding(ins, {
          icon: "ring",
          colour: CALM,
          head: "Parity has not been computed",
          text: ins.model.get("kernel")
            ? "The Parity panel runs the graph again and compares."
            : "With a kernel: cap.parity()",
          onclick: () => ins.openTab("parity"),
        });
  if (first)
    return finding(ins, {
      icon: "flag",
      head: `Gradients part at ${title(first)}`,
      text: [
        place(ins, first),
        "Its inputs agree with eager",
        parameters.length ? `${number(wrong.length)} of ${plural(parameters.length, "gradient")} differ` : null,
      ]
        .filter(Boolean)
        .map((words) => words + ".")
        .join(" "),
      onclick: see(first.key),
    });
  return finding(ins, {
    icon: wrong.length ? "differ" : "equal",
    colour: wrong.length ? ALARM : CALM,
    head: wrong.length
      ? `${number(wrong.length)} of ${plural(parameters.length, "gradient")} differ`
      : "The gradients agree with eager",
    text: wrong.length ? worst(wrong) : graph.parity.summary,
    onclick: see(),
  });
}

function worst(wrong) {
  const row = wrong.reduce((a, b) => (b.relative > a.relative ? b : a));
  return `The worst is ${row.name.slice(0, 200)}: ${row.verdict}, ${error(row.rel)} relative.`;
}

function touched(ins) {
  const { graph } = ins;
  const see = (n) => () => {
    ins.setColour("touches");
    ins.reveal(n.key);
  };
  const shown = graph.touched.slice(0, 5).map((n) => {
    const text = n.initial
      ? `${plural(n.initial, "read")} of a dummy in the initial trace.`
      : `${plural(n.passes, "lookup")} of metadata that the graph does not hold.`;
    return finding(ins, {
      icon: "bang",
      head: `Metadata touched at ${title(n)}`,
      text: [place(ins, n), text].filter(Boolean).join(". "),
      onclick: see(n),
    });
  });
  if (graph.touched.length > 5)
    shown.push(h("p.muted", null, `${number(graph.touched.length - 5)} more in the Metadata panel.`));
  return shown;
}

function held(ins) {
  const { graph } = ins;
  const total = heldBy(graph.list);
  if (!total) return null;
  const { stack } = graph;
  const each = stack && new Set(stack.children.map((c) => heldBy(c.nodes))).size === 1;
  const text = each
    ? `${bytes(heldBy(stack.children[0].nodes))} in each of the ${stack.stack} blocks of ${stack.path}.`
    : "By module, in the Memory panel.";
  const onclick = () => {
    ins.setColour("bytes");
    ins.openTab("memory");
  };
  return finding(ins, {
    icon: "bar3",
    colour: "var(--q3)",
    head: `${bytes(total)} held for this backward`,
    text,
    onclick,
  });
}

/** Where the time goes; an offer to measure it, where the colour asks for it. */
function slow(ins) {
  const { graph } = ins;
  if (!graph.times) {
    const form = ins.colour === "time" || ins.model.get("task")?.what === "times";
    return form ? h("div", null, heading("Time"), taskForm(ins, "times", "The nodes have not been timed.")) : null;
  }
  const worst = graph.list.reduce((a, b) => (b.seconds > (a?.seconds ?? -1) ? b : a), null);
  if (!worst) return null;
  return finding(ins, {
    icon: "bar3",
    colour: "var(--q3)",
    head: `${duration(timed(graph.list))} in all nodes, the graph run op by op`,
    text: `The slowest is ${title(worst)}, ${place(ins, worst)}: ${duration(worst.seconds)}.`,
    onclick: () => {
      ins.setColour("time");
      ins.reveal(worst.key);
    },
  });
}

function calls(ins) {
  const { events, again, captures } = ins.session;
  if (!events.length)
    return captures.length
      ? null
      : empty(
          "No backward call was made in the block: call ",
          h("code", null, ".backward()"),
          " or ",
          h("code", null, "torch.autograd.grad"),
          " inside of it.",
        );
  const failures = events.filter((e) => e.outcome === "failed" || e.outcome === "bypassed");
  const onclick = () => ins.openTab("misses");
  if (!captures.length)
    return finding(ins, {
      icon: "cross",
      head:
        events.length === 1
          ? "The one backward call was not captured"
          : `None of ${number(events.length)} backward calls was captured`,
      text: events.at(-1).reason.slice(0, 300),
      onclick,
    });
  return [
    failures.length
      ? finding(ins, {
          icon: "cross",
          head: `${plural(failures.length, "backward call")} failed or bypassed`,
          text: failures[0].reason.slice(0, 200),
          onclick,
        })
      : null,
    again.length
      ? finding(ins, {
          icon: "circle",
          colour: CALM,
          head: `Captured again in ${number(again.length)} of ${plural(events.length - 1, "later call")}`,
          text: inPlainWords(again[0].reason).slice(0, 300),
          onclick,
        })
      : finding(ins, {
          icon: "circle",
          colour: CALM,
          head: "Captured once",
          text:
            events.length > 1 ? "No later backward call was captured again." : "The only backward call of the session.",
          onclick,
        }),
  ];
}
return { matches, overview };
};
const $panels_overview = $panels_overview_();
const $panels_node_ = () => {
/** The selected item; without a selection what was found in the whole capture. */
const { h, mark, plural, shape } = $dom;
const { bytes, differs, duration, error } = $encode;
const { ALARM, facts, heading, kindMark, reach } = $parts;
const { baked, graphCode, hooks, lifted, links, operators, pathTo, saved, source } = $panels_details;
const { groupParts } = $panels_group;
const { matches, overview } = $panels_overview;

function nodePanel(ins) {
  const item = ins.drawn.item(ins.selection);
  if (!item) return ins.hits ? matches(ins) : overview(ins);
  const node = item.owner ?? (ins.selection[0] === "n" ? item.base : null);
  const parts = node ? nodeParts : item.nodes ? groupParts : opParts;
  return h("div.cabw-pad", null, parts(ins, node ?? item));
}

const MADE = {
  backward_call: "call of the autograd node",
  aot_op: "operator of a compiled region",
  aten_op: "operator",
  validate_outputs: "check of gradients against what the forward left",
  gradient_sum: "sum of gradients that meet",
  unpack_hook: "hook that unpacks a saved tensor",
};

/** A graph node, and the autograd node that it belongs to. */
function opParts(ins, op) {
  const reads = [
    op.initial && `${op.initial} initial trace`,
    op.passes && `${op.passes} graph pass`,
    op.execution && `${op.execution} execution`,
  ];
  return [
    h(
      "div.cabw-head",
      null,
      kindMark(op, 15),
      h(
        "h2.clip",
        { title: op.name.slice(0, 2000) },
        h("bdi", null, op.operator),
        h("span.muted", null, "  " + op.name),
      ),
    ),
    facts([
      ["Kind", MADE[op.kind] ?? op.kind.replaceAll("_", " ")],
      ["Autograd node", op.base ? ins.link(op.base.key, op.base.title) : "none"],
      ["Module", op.module || null],
      ["Reads", reads.filter(Boolean).join(", ") || null],
      ["Reach", reach(ins.cone, ["towards the inputs", "towards the outputs"])],
    ]),
    h("div.cabw-src.mono", null, h("div.cabw-one.cabw-whole", null, op.text.slice(0, 4000))),
    source(ins, op),
    links(ins, op),
  ];
}

function nodeParts(ins, n) {
  return [
    head(ins, n),
    nodeFacts(ins, n),
    source(ins, n),
    pathTo(ins, n),
    links(ins, n),
    hooks(ins, n),
    saved(ins, n),
    lifted(ins, n),
    baked(ins, n),
    operators(ins, n),
    graphCode(ins, n),
  ];
}

/** What a step does wrong on its own, given gradients that agree. */
function atFault(c) {
  const what = Number.isNaN(c.rel)
    ? c.verdict.replaceAll("_", " ")
    : `${error(c.rel)} relative, ${error(c.abs)} absolute`;
  const who = { gradient_sum: `The ${c.name}`, hook: `The ${c.name}` }[c.kind] ?? "It";
  return h(
    "p.cabw-fault",
    null,
    `${who} makes a difference of gradients that agree: ${what}${c.note ? `; ${c.note}` : ""}.`,
  );
}

function agreed(n) {
  return n.verdict === "bitwise" ? "bitwise equal to eager" : n.verdict.replaceAll("_", " ");
}

/** An error that says nothing of the kind of difference, or the kind. */
const differing = (n) => (n.relative < Infinity ? `differs by ${error(n.relative)}` : n.verdict.replaceAll("_", " "));

function head(ins, n) {
  const verdict =
    !n.compared || n.origin
      ? null
      : differs(n)
        ? h("span.cabw-tag.alarm", null, mark("differ", ALARM, 10), n.row ? n.row.verdict : differing(n))
        : h("span.cabw-tag", null, mark("equal", "var(--muted)", 10), agreed(n));
  const tags = [
    n.failed && h("span.cabw-tag.alarm", null, mark("cross", ALARM, 10), "The trace stopped here"),
    n.unreached && h("span.cabw-tag", null, "Not reached: the trace stopped before it"),
    n.origin && h("span.cabw-tag.alarm", null, mark("flag", ALARM, 10), "First divergence"),
    n.initial && h("span.cabw-tag.alarm", null, mark("bang", ALARM, 10), "Touched in the initial trace"),
    n.passes && h("span.cabw-tag.alarm", null, mark("bang", ALARM, 10), "Looked for in a graph pass"),
    n.hooks && h("span.cabw-tag", null, mark("hook", "currentColor", 11), plural(n.hooks, "hook")),
    verdict,
  ].filter(Boolean);
  return h(
    "div",
    null,
    h(
      "div.cabw-head",
      null,
      kindMark(n, 15),
      h(
        "h2.clip",
        { title: n.name.slice(0, 2000) },
        h("bdi", null, n.name || "(no name)"),
        h("span.muted", null, "  #" + n.id),
      ),
    ),
    tags.length ? h("div.cabw-tags", null, tags) : null,
    n.failed ? h("pre.cabw-error", null, ins.graph.data.failure) : null,
    ins.graph.culprits.filter((c) => c.node === n).map(atFault),
  );
}

const spec = (g) => (g ? `${shape(g[0])}  ${g[1]}` : "not known");
const specs = (list) =>
  list.length && list.some(Boolean)
    ? [...new Set(list.map(spec))].slice(0, 6).map((text) => h("div", null, text))
    : null;

function nodeFacts(ins, n) {
  const { graph } = ins;
  const visit = graph.columns.visit[n.index];
  const leaves = graph.leavesOf(n.index);
  const out = graph.gradients("out", n.index).filter(Boolean);
  const reads = [
    n.initial && `${n.initial} initial trace`,
    n.passes && `${n.passes} graph pass`,
    n.execution && `${n.execution} execution`,
  ]
    .filter(Boolean)
    .join(", ");
  return facts([
    [
      "Module",
      graph.grouped
        ? n.parent.path
          ? ins.link(n.parent.key, n.parent.module, ` ${n.parent.cls}`)
          : (n.module ?? graph.model)
        : null,
    ],
    ["Call", visit ? `number ${visit + 1} of this module` : null],
    ["Kind", n.kind === "builtin" ? null : n.kind.replaceAll("_", " ")],
    ...leaves.map((leaf) => [
      leaf.output === null ? "Parameter" : "Returned",
      h("span", null, leaf.name, h("span.muted", null, `  ${shape(leaf.shape)}  ${leaf.dtype}`)),
    ]),
    ["Gradient in", n.parameter ? null : specs(graph.gradients("in", n.index))],
    ["Gradient out", out.length ? specs(out) : null],
    ["Error", n.row?.relative ? `${error(n.row.rel)} relative, ${error(n.row.abs)} absolute` : null],
    ["Error in, out", n.relative && !n.row ? `${error(n.into)}, ${error(n.out)} relative` : null],
    ["Reads", reads || null],
    ["Holds", n.bytes ? bytes(n.bytes) : null],
    ["Time", duration(n.seconds) || null],
    ["Reach", reach(ins.cone)],
  ]);
}
return { nodePanel };
};
const $panels_node = $panels_node_();
const $segment_ = () => {
/** A row of buttons of which one is on: arrow keys go from one to the next. */
const { h } = $dom;

function segment(label, options, value, changed) {
  const el = h("div.cabw-seg", { role: "radiogroup", "aria-label": label });
  const mark = (v) => {
    for (const b of el.children) {
      b.setAttribute("aria-checked", String(b.dataset.value === v));
      b.tabIndex = b.dataset.value === v ? 0 : -1;
    }
    if (![...el.children].some((b) => !b.tabIndex)) el.firstChild.tabIndex = 0;
  };
  for (const [v, text] of options) {
    const b = h(
      "button",
      {
        role: "radio",
        onclick: () => {
          mark(v);
          changed(v);
        },
      },
      text,
    );
    b.dataset.value = v;
    el.append(b);
  }
  el.addEventListener("keydown", (e) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!by) return;
    const all = [...el.children],
      to = all[(all.indexOf(e.target) + by + all.length) % all.length];
    e.preventDefault();
    to.focus();
    to.click();
  });
  mark(value);
  el.mark = mark;
  return el;
}
return { segment };
};
const $segment = $segment_();
const $panels_chart_ = () => {
/** Relative error of each node along the backward: a step shows where it begins. */
const { h } = $dom;
const { differs, error } = $encode;
const { title } = $parts;

const LEFT = 30;
const BOTTOM = 6;
const FLOOR = -8; // powers of ten shown
const TOP = 0;

function chart(ins) {
  const canvas = h("canvas.cabw-chart", { role: "img", "aria-label": "Relative error of each node in backward order" });
  const out = h("div.muted.cabw-under");
  const nodes = ins.graph.list.filter((n) => n.compared && !n.parameter);
  const equal = `${nodes.filter((n) => !n.relative).length} of ${nodes.length} operations equal`;
  const draw = (at) => {
    paint(ins, canvas, nodes, at);
    out.textContent =
      at === undefined
        ? equal
        : `${title(nodes[at])}  ${nodes[at].module || ""}  ${nodes[at].relative ? error(nodes[at].relative) : "equal"}`;
  };
  const index = (e) =>
    Math.max(
      0,
      Math.min(
        nodes.length - 1,
        Math.round(((e.offsetX - LEFT - 4) / (canvas.clientWidth - LEFT - 12)) * (nodes.length - 1)),
      ),
    );
  canvas.addEventListener("pointermove", (e) => {
    if (!nodes.length) return;
    ins.point(nodes[index(e)].key);
    draw(index(e));
  });
  canvas.addEventListener("pointerleave", () => {
    ins.hover(null);
    draw();
  });
  canvas.addEventListener("click", (e) => nodes.length && ins.reveal(nodes[index(e)].key));
  requestAnimationFrame(() => draw());
  return h("div", null, canvas, out);
}

function paint(ins, canvas, nodes, at) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width) return;
  const ratio = devicePixelRatio || 1;
  const t = ins.theme;
  const c = canvas.getContext("2d");
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  c.scale(ratio, ratio);
  const x = (i) => LEFT + 4 + (i / Math.max(1, nodes.length - 1)) * (width - LEFT - 12);
  const y = (e) => {
    if (!e) return height - BOTTOM;
    const power = e === Infinity ? TOP : Math.max(FLOOR, Math.min(TOP, Math.log10(e)));
    return height - BOTTOM - 14 - ((power - FLOOR) / (TOP - FLOOR)) * (height - BOTTOM - 22);
  };
  c.font = "10.5px " + t.ui;
  c.textBaseline = "middle";
  c.textAlign = "right";
  for (const [value, label] of [
    [1e-2, "1e-2"],
    [1e-5, "1e-5"],
    [0, "equal"],
  ]) {
    c.fillStyle = t.line;
    c.fillRect(LEFT, Math.round(y(value)), width - LEFT, 1);
    c.fillStyle = t.muted;
    c.fillText(label, LEFT - 4, y(value));
  }
  const picked = new Set(ins.picked());
  nodes.forEach((n, i) => {
    const loud = n.origin || picked.has(n);
    const top = y(n.relative);
    c.fillStyle = picked.has(n)
      ? t.accent
      : n.origin
        ? t["c-alarm"]
        : differs(n)
          ? t[n.relative >= 1e-3 ? "d3" : "d2"]
          : n.relative
            ? t.q2
            : t["c-equal"];
    c.globalAlpha = loud ? 1 : 0.55;
    if (n.relative) c.fillRect(x(i) - (loud ? 0.75 : 0.4), top, loud ? 1.5 : 0.8, height - BOTTOM - top);
    c.globalAlpha = 1;
    c.beginPath();
    c.arc(x(i), top, n.origin ? 3.5 : picked.has(n) ? 2.5 : 1.3, 0, 7);
    c.fill();
  });
  if (at === undefined) return;
  c.fillStyle = t.text;
  c.globalAlpha = 0.5;
  c.fillRect(x(at), 0, 1, height);
  c.globalAlpha = 1;
}
return { chart };
};
const $panels_chart = $panels_chart_();
const $panels_parity_ = () => {
/** Gradients held against eager: a verdict for each leaf, the error at each node where it was looked for. */
const { h, mark, number, plural, shape } = $dom;
const { error } = $encode;
const { windowed } = $list;
const { ALARM, empty, finding, heading, meter, place, title } = $parts;
const { segment } = $segment;
const { taskForm } = $task;
const { chart } = $panels_chart;

const ROW = 26;
const MARKS = { bitwise: "equal", within_tolerance: "bar1", within_noise: "bar2" };
const FILTERS = [
  ["bad", "Differ", (row) => !row.good],
  ["close", "Close", (row) => row.good && row.verdict !== "bitwise"],
  ["equal", "Equal", (row) => row.verdict === "bitwise"],
  ["all", "All", () => true],
];
const ORDERS = {
  rel: (a, b) => b.relative - a.relative,
  abs: (a, b) => (b.abs ?? Infinity) - (a.abs ?? Infinity),
  name: (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }),
};

function parityPanel(ins) {
  const { graph } = ins;
  if (!graph.parity)
    return h(
      "div.cabw-pad",
      null,
      h("h2", null, "Parity"),
      taskForm(ins, "parity", "Parity has not been computed."),
      diverging(ins),
    );
  const ui = (ins.ui.parityList ??= { show: graph.wrong.length ? "bad" : "all", by: "order" });
  const rows = listed(graph, ui);
  return h(
    "div",
    null,
    h(
      "div.cabw-pad.cabw-tight",
      null,
      summary(ins),
      diverging(ins),
      heading("Parameters"),
      conditions(ins),
      taskForm(ins, "parity"),
    ),
    graph.parameters.length ? [toolbar(ins, ui), columns(ins, ui), table(ins, rows)] : null,
  );
}

function listed(graph, ui) {
  const [, , test] = FILTERS.find(([key]) => key === ui.show) ?? FILTERS.at(-1);
  const rows = graph.parameters.filter(test);
  return ORDERS[ui.by] ? rows.sort(ORDERS[ui.by]) : rows;
}

function summary(ins) {
  const { parity, wrong, parameters } = ins.graph;
  const count = plural(parameters.length, "gradient");
  const head = !parameters.length
    ? "No gradient was compared"
    : wrong.length
      ? `${number(wrong.length)} of ${count} differ`
      : parameters.length === 1
        ? "The one gradient agrees"
        : `All ${count} agree`;
  return [h("h2", null, head), h("p.muted", null, sentence(`${parity.candidate}, against ${parity.reference}.`))];
}

/** How the gradients of parameters were compared; folded, for it is the same each time. */
function conditions(ins) {
  const { notes, tolerances } = ins.graph.parity;
  const words = tolerances.map(
    ([dtype, rtol, atol]) =>
      `Tolerance for ${dtype.replace("torch.", "")}: ${error(rtol)} relative, ${error(atol)} of the largest element.`,
  );
  const all = [...words, ...notes.map((note) => sentence(note + "."))];
  if (!all.length) return null;
  const details = h(
    "details.cabw-details",
    { open: Boolean(ins.ui.conditions), ontoggle: () => (ins.ui.conditions = details.open) },
    h("summary", null, "How they were compared"),
    all.map((text) => h("p.muted", null, text)),
  );
  return details;
}

/** Where gradients first part: the steps at fault, and the error at every node. */
function diverging(ins) {
  const { divergence, culprits } = ins.graph;
  const missing = "Where gradients first part from eager has not been looked for.";
  if (!divergence) return [heading("First divergence"), taskForm(ins, "divergence", missing)];
  const step = (c, i) =>
    finding(ins, {
      icon: i ? "differ" : "flag",
      head: `${i ? "At fault too" : "First divergence"}: ${c.node && !STEPS.has(c.kind) ? title(c.node) : c.name}`,
      text: [
        c.node ? place(ins, c.node) : "",
        Number.isNaN(c.rel) ? c.verdict.replaceAll("_", " ") : `off by ${error(c.rel)} of the largest element`,
      ]
        .filter(Boolean)
        .join(", "),
      onclick: () => c.node && ins.reveal(c.node.key),
    });
  const made = ([id, text]) =>
    finding(ins, { icon: "bang", head: text.split(": ")[0], text, onclick: () => ins.reveal("n" + id) });
  return [
    heading("First divergence", divergence.drifts ? "apart by rounding" : ""),
    culprits.length ? culprits.slice(0, MOST).map(step) : h("p", null, divergence.summary),
    culprits.length > MOST ? h("p.muted", null, `${number(culprits.length - MOST)} more steps are at fault.`) : null,
    divergence.nonfinite.map(made),
    divergence.notes.map((note) => h("p.muted", null, sentence(note + "."))),
    taskForm(ins, "divergence"),
    divergence.compared ? [heading("Error at each node, in backward order", "relative"), chart(ins)] : null,
  ];
}

const MOST = 5;
const STEPS = new Set(["gradient_sum", "hook", "in_place_write"]);

const sentence = (text) => text[0].toUpperCase() + text.slice(1);

function toolbar(ins, ui) {
  const filters = FILTERS.map(([key, text, test]) => [key, text, ins.graph.parameters.filter(test).length]).filter(
    ([key, , count]) => count || key === "all",
  );
  const show = filters.some(([key]) => key === ui.show) ? ui.show : "all";
  return h(
    "div.cabw-toolrow.cabw-above",
    null,
    segment(
      "Verdict",
      filters.map(([key, text, count]) => [key, `${text} ${number(count)}`]),
      show,
      (key) => change(ins, ui, { show: key }),
    ),
  );
}

function change(ins, ui, values) {
  Object.assign(ui, values);
  ins.refreshPanel();
}

function columns(ins, ui) {
  const column = (key, text, css = "") =>
    h(
      "button" + css,
      { onclick: () => change(ins, ui, { by: ui.by === key ? "order" : key }), title: "Sort" },
      text + (ui.by === key ? " ↓" : ""),
    );
  return h(
    "div.cabw-row.cabw-cols.cabw-parity",
    null,
    h("span"),
    column("name", "Gradient"),
    h("span"),
    column("rel", "max rel", ".num"),
    column("abs", "max abs", ".num"),
  );
}

function table(ins, rows) {
  if (!rows.length) return h("div.cabw-pad", null, empty("None."));
  const picked = new Set(ins.picked());
  const current = rows.findIndex((row) => picked.has(row.ref));
  const list = windowed({
    count: rows.length,
    height: ROW,
    make: (i) => line(ins, rows[i], picked),
    scroller: () => ins.body,
  });
  if (current >= 0 && ins.selection !== ins.ui.paritySeen) {
    ins.ui.paritySeen = ins.selection; // once for each selection, so that the list does not fight its reader
    requestAnimationFrame(() => {
      const top = list.offsetTop + current * ROW;
      if (list.isConnected && (top < ins.body.scrollTop || top > ins.body.scrollTop + ins.body.clientHeight - ROW))
        ins.body.scrollTop = top - ins.body.clientHeight / 2;
    });
  }
  return list;
}

/** A name in three parts of which the first gives way: `layers.3.` and `mlp.` in grey, `weight`. */
function nameParts(name) {
  const last = name.lastIndexOf(".") + 1;
  const middle = last ? name.lastIndexOf(".", last - 2) + 1 : 0;
  return [name.slice(0, middle), name.slice(middle, last), name.slice(last)].map((text, i) =>
    h(i < 2 ? "span.muted" : "span", null, text),
  );
}

function line(ins, row, picked) {
  const level = row.good ? "q2" : row.relative >= 1e-3 ? "d3" : "d2";
  const share = row.relative ? (row.relative === Infinity ? 1 : (Math.log10(row.relative) + 8) / 8) : 0;
  const words = [
    row.verdict.replaceAll("_", " "),
    row.mismatched ? `${number(row.mismatched)} of ${number(row.elements)} elements` : "",
    row.note,
  ]
    .filter(Boolean)
    .join("; ");
  return h(
    "button.cabw-row.cabw-parity",
    {
      "aria-current": picked.has(row.ref) ? "true" : undefined,
      title: `${row.name.slice(0, 500)}  ${shape(row.shape)} ${row.dtype}: ${words}`,
      "data-key": row.ref?.key,
      onclick: () => row.ref && ins.reveal(row.ref.key),
    },
    mark(row.good ? MARKS[row.verdict] : "differ", row.good ? "var(--c-equal)" : ALARM, 11),
    h("span.cabw-name", null, nameParts(row.name)),
    row.relative ? meter(share, `var(--${level})`) : h("span"),
    h("span.num" + (row.good ? ".muted" : ""), null, row.rel === null ? row.verdict : error(row.rel)),
    h("span.num.muted", null, error(row.abs)),
    h("span.cabw-sr", null, words),
  );
}
return { parityPanel };
};
const $panels_parity = $panels_parity_();
const $panels_ = () => {
/** The six panels. Each is a function of the inspector that returns DOM; each row leads back to the graph. */
const { h, number } = $dom;
const { codePanel } = $panels_code;
const { memoryPanel } = $panels_memory;
const { metadataPanel } = $panels_metadata;
const { missesPanel } = $panels_misses;
const { nodePanel } = $panels_node;
const { parityPanel } = $panels_parity;

const TABS = {
  node: ["Node", nodePanel],
  metadata: ["Metadata", metadataPanel],
  parity: ["Parity", parityPanel],
  memory: ["Memory", memoryPanel],
  misses: ["Misses", missesPanel],
  code: ["Code", codePanel],
};

const REACHED = "button, input, select, [tabindex]";
const said = (el) => [el.localName, el.dataset.key, el.getAttribute("aria-label") ?? el.textContent].join();

/** Remembers what has the focus among tabs and panel; what it returns gives the focus back to what is there instead. */
function focused(ins) {
  const { activeElement: at } = ins.el.getRootNode();
  if (at && ins.tabBar.contains(at)) return () => ins.tabBar.querySelector("[aria-selected=true]")?.focus();
  if (!at || at === ins.body || !ins.body.contains(at)) return () => {};
  const { key } = at.dataset;
  const name = said(at);
  return () => {
    const now = [...ins.body.querySelectorAll(REACHED)];
    const same = now.find((el) => said(el) === name) ?? now.find((el) => key && el.dataset.key === key);
    (same ?? ins.body).focus({ preventScroll: true }); // else the focus would fall off the page
  };
}

/** Builds the panel that is open, and the tabs above it. */
function showPanel(ins) {
  const same = ins.shownTab === ins.tab && (ins.tab !== "node" || ins.shownFor === ins.selection);
  const top = same ? ins.body.scrollTop : 0;
  const counts = {
    metadata: [ins.graph.touched.length, "alarm"],
    parity: [ins.graph.wrong.length, "alarm"],
    misses: [ins.session.again.length, ""],
  };
  const tab = ([key, [label]]) =>
    h(
      "button",
      {
        role: "tab",
        "aria-selected": String(key === ins.tab),
        tabIndex: key === ins.tab ? 0 : -1,
        onclick: () => ins.openTab(key),
      },
      label,
      counts[key]?.[0]
        ? h("span.cabw-count" + (counts[key][1] ? "." + counts[key][1] : ""), null, number(counts[key][0]))
        : null,
    );
  const focus = focused(ins);
  ins.tabBar.replaceChildren(...Object.entries(TABS).map(tab));
  ins.body.replaceChildren(TABS[ins.tab][1](ins));
  ins.body.scrollTop = top;
  focus();
  ins.shownTab = ins.tab;
  ins.shownFor = ins.selection;
}
return { TABS, showPanel };
};
const $panels = $panels_();
const $reach_ = () => {
/** What passes search, filter and selection, for each item; worked out once for a change and not for each frame. */
const { ENCODINGS } = $encode;

/**
 * How many nodes of each item pass filter and search (kept), how many of these lie on the ways of the selection too
 * (reached), how many were found (hits). All null where nothing is searched, filtered or selected.
 */
function reachOf({ graph, filter, cone, way, hits: ids, colour }) {
  const out = { graph, cone, way, kept: null, reached: null, hits: null };
  if (!ids && !filter.size && !cone) return out;
  const n = graph.items.length;
  const encoding = ENCODINGS[colour];
  const on = way?.on || cone?.mark;
  const found = ids && new Uint8Array(graph.list.length);
  const kept = (out.kept = new Uint32Array(n));
  const reached = (out.reached = new Uint32Array(n));
  const hits = (out.hits = found && new Uint32Array(n));
  if (found) for (const id of ids) found[graph.nodes.get(id).index] = 1;
  for (const node of graph.list) {
    const i = node.index;
    if ((filter.size && !filter.has(encoding.of(node))) || (found && !found[i])) continue;
    kept[i] = 1;
    if (!on || on[i]) reached[i] = 1;
    if (found) hits[i] = 1;
  }
  for (const counts of [kept, reached, hits]) if (counts) sum(graph, counts);
  return out;
}

/** Adds the counts of nodes up into their groups, the innermost first. */
function sum(graph, counts) {
  for (const g of graph.inner) for (const item of g.own) counts[g.index] += counts[item.index];
  for (const g of graph.inner) if (g.parent) counts[g.parent.index] += counts[g.index];
}
return { reachOf };
};
const $reach = $reach_();
const $picture_ = () => {
/** What the canvas shows: the layout that was asked for last, and what of it is marked. Functions of the inspector. */
const { fold } = $expanded;
const { number } = $dom;
const { reachOf } = $reach;

const PATIENCE = 150; // a layout that takes longer says so

/** Lays out what is open. `anchor` stays where it is on screen; `then` runs once the picture is there, now or soon. */
function rebuild(ins, anchor, { then, quiet } = {}) {
  if (ins.switching) return; // another graph is on its way
  if ((anchor || quiet) && ins.drawn === ins.graph) ins.level = ins.expanded.size ? "" : "module";
  ins.tell("expanded", fold(ins.expanded, ins.drawn));
  ins.segments();
  ins.afterwards = [...(ins.layout.waiting ? ins.afterwards : []), then].filter(Boolean);
  layOut(ins, ins.layout, ins.drawn.openFlags(ins.expanded), (scene) => put(ins, scene, anchor));
}

/** Lays out another graph, all of it open, and goes over to it when its picture is there. */
function adopt(ins, entry, level) {
  ins.switching = level;
  ins.layout.cancel();
  const expanded = level === "module" ? new Set() : entry.graph.all();
  ins.layout = entry.layout;
  ins.afterwards = [
    () => (ins.selection && level !== "module" ? ins.camera.show(ins.selection) : ins.camera.fit(false)),
  ];
  layOut(ins, entry.layout, entry.graph.openFlags(expanded), (scene) => {
    ins.switching = null;
    ins.expanded = expanded;
    ins.scene = null; // what is marked in the old one means nothing in the new one
    ins.takeOver(entry, level);
    ins.tell("expanded", fold(expanded, entry.graph));
    put(ins, scene, null);
  });
}

function layOut(ins, layout, flags, done) {
  const asked = performance.now();
  ins.busyTimer ??= setTimeout(() => (ins.busy.hidden = false), PATIENCE);
  ins.busyText.textContent = "Laying out…";
  const told = (share) => (ins.busyText.textContent = `Laying out… ${number(Math.round(share * 100))}%`);
  const arrived = (scene) => {
    rest(ins);
    done(scene);
    ins.times.scene = performance.now();
    ins.times.rebuild = ins.times.scene - asked;
  };
  layout.scene(flags, ins.wrapped ? ins.camera.aspect() : 0, arrived, told);
}

function rest(ins) {
  clearTimeout(ins.busyTimer);
  ins.busyTimer = null;
  ins.busy.hidden = true;
}

/** A new scene into the canvas: moved so that `anchor` stays where it is. */
function put(ins, scene, anchor) {
  const before = anchor && ins.scene?.box(anchor);
  const after = before && scene.box(anchor);
  const shift = after ? [after.x + after.w / 2 - before.x - before.w / 2, after.y - before.y] : [0, 0];
  ins.renderer.view.x += shift[0];
  ins.renderer.view.y += shift[1];
  ins.scene = scene;
  ins.drawnOpen = new Set(ins.expanded);
  ins.camera.moving = null;
  ins.renderer.setScene(scene, shift);
  ins.emphasise(ins.reach);
  ins.firstFit();
  if (!anchor && ins.fitted && !ins.camera.sees()) ins.camera.fit(false); // a smaller picture may lie elsewhere
  ins.aria.later();
  const run = ins.afterwards;
  ins.afterwards = [];
  run.forEach((f) => f());
}

/** Gives up the layout that is under way: the picture stays as it is, and so does what is open. */
function cancel(ins) {
  if (!ins.layout.waiting) return;
  ins.layout.cancel();
  rest(ins);
  ins.afterwards = [];
  const back = ins.switching;
  ins.switching = null;
  const entry = ins.levels.of(ins.drawn);
  ins.layout = entry.layout;
  if (back) ins.tell("level", ins.level);
  if (ins.scene) {
    ins.expanded = new Set(ins.drawnOpen);
    ins.tell("expanded", fold(ins.expanded, ins.drawn));
  } else if (ins.drawn.grouped) {
    ins.expanded.clear(); // nothing was drawn yet: what is quick to lay out
    ins.rebuild(null, { quiet: true, then: () => ins.camera.fit(false) });
  }
  ins.segments();
}

function hover(ins, key, cell) {
  const { state } = ins.renderer;
  if (state.hover === key && state.hoverCell === cell) return;
  state.hover = key;
  state.hoverCell = cell;
  const box = key && ins.scene?.box(key);
  const lit = box && box.kind !== "open";
  state.near = lit ? new Uint8Array(ins.drawn.list.length) : null;
  if (lit) for (const n of ins.drawn.nodesOf(key)) state.near[n.index] = 1;
  state.nearKeys = lit ? [...ins.scene.next(key, "up"), ...ins.scene.next(key, "down")] : [];
  ins.renderer.request();
}

/** What is dimmed and what is marked, worked out once per change and not per frame. `known`: what an earlier call returned, where only the picture is new. */
function emphasise(ins, known) {
  if (!ins.scene || !ins.colour) return;
  const { state } = ins.renderer;
  const { drawn } = ins;
  const before = state.dim || state.mark || state.path || state.hits;
  const same = known && known.cone === ins.cone && known.way === ins.way && known.graph === drawn;
  const reach = (ins.reach = same
    ? known
    : reachOf({ graph: drawn, filter: ins.filter, cone: ins.cone, way: ins.way, hits: ins.hits, colour: ins.colour }));
  const selected = drawn.item(ins.selection);
  state.selection = !selected
    ? null
    : ins.scene.box(selected.key)
      ? selected.key
      : drawn.shown(drawn.nodesOf(ins.selection)[0], ins.expanded);
  state.mark = ins.cone?.mark || null;
  state.path = ins.way?.on || null;
  state.hits = reach.hits;
  state.dim = null;
  if (reach.kept) {
    const { item, kind } = ins.scene;
    state.dim = new Uint8Array(drawn.items.length);
    for (let b = 0; b < item.length; b++)
      if (!(kind[b] === 3 ? reach.kept : reach.reached)[item[b]]) state.dim[item[b]] = 1;
  }
  if (before || state.dim) {
    ins.renderer.tiles.stale();
    ins.renderer.picture = null;
  }
  ins.renderer.request();
}
return { rebuild, adopt, cancel, hover, emphasise };
};
const $picture = $picture_();
const $frame_ = () => {
/** The DOM around canvas and panels: toolbar, legend, status, and the controls they are made of. */
const { h, ICON, mark, number, plural, svg } = $dom;
const { composition, ENCODINGS } = $encode;
const { LEVELS } = $levels;
const { showNote } = $note;
const { TABS } = $panels;
const { place, title } = $parts;
const { cancel } = $picture;
const { segment } = $segment;

function frame(ins) {
  const button = (icon, label, onclick) =>
    h("button.cabw-icon", { onclick, title: label, "aria-label": label }, svg(ICON[icon]));
  ins.input = h("input", {
    placeholder: "Search nodes, modules, lines, is:touched",
    "aria-label": "Search",
    spellcheck: false,
    oninput: () => ins.find(ins.input.value),
    onkeydown: (e) => {
      if (e.key === "Enter") {
        e.preventDefault();
        ins.step(e.shiftKey ? -1 : 1);
      }
      if (e.key === "Escape") {
        e.preventDefault();
        if (ins.input.value) {
          ins.input.value = "";
          ins.find("");
        } else ins.tree.focus();
      }
      e.stopPropagation();
    },
  });
  ins.count = h("output", { "aria-live": "polite" });
  ins.slash = h("kbd", { "aria-hidden": "true" }, "/");
  ins.steps = [button("up", "Previous match", () => ins.step(-1)), button("down", "Next match", () => ins.step(1))];
  ins.clearButton = button("close", "Clear search", () => {
    ins.input.value = "";
    ins.find("");
    ins.input.focus();
  });
  for (const b of [...ins.steps, ins.clearButton]) b.hidden = true;
  ins.levelBar = segment(
    "Level",
    LEVELS.filter(([level]) => level !== "module" || ins.graph.grouped),
    "module",
    (v) => ins.setLevel(v),
  );
  const bar = h(
    "div.cabw-bar",
    null,
    h("div.cabw-title", null, h("b", { title: ins.graph.model }, ins.graph.model), captures(ins)),
    ins.graph.nodes.size ? ins.levelBar : null,
    h(
      "div.cabw-search",
      { role: "search" },
      svg(ICON.search),
      ins.input,
      ins.count,
      ins.slash,
      ins.steps,
      ins.clearButton,
    ),
  );
  ins.colours = segment(
    "Colour by",
    Object.entries(ENCODINGS).map(([k, e]) => [k, e.label]),
    "kind",
    (v) => ins.setColour(v),
  );
  ins.legend = h("div.cabw-legend", { role: "group", "aria-label": "Legend, each entry filters" });
  const strip = h("div.cabw-strip", null, h("span.muted", null, "Colour by"), ins.colours, ins.legend);

  ins.canvas = h("canvas", { "aria-hidden": "true" });
  ins.mapCanvas = h("canvas.cabw-map", { "aria-hidden": "true" });
  ins.tree = h("div.cabw-tree", { role: "tree", tabIndex: 0, "aria-label": "Backward graph" });
  ins.crumbs = h("nav.cabw-crumbs", { "aria-label": "Where the view is" });
  ins.zoomOut = h("output", null, "100%");
  const zoom = h(
    "div.cabw-zoom",
    null,
    button("minus", "Zoom out", () => ins.camera.zoom(0.8, undefined, undefined, true)),
    ins.zoomOut,
    button("plus", "Zoom in", () => ins.camera.zoom(1.25, undefined, undefined, true)),
    button("fit", "Fit (f), again for the whole graph", () => ins.camera.fit()),
  );
  ins.busyText = h("span", { role: "status" }, "Laying out…");
  ins.busy = h(
    "div.cabw-busy",
    { hidden: true },
    ins.busyText,
    h("button.cabw-link", { onclick: () => cancel(ins) }, "Cancel"),
  );
  ins.note = h("div.cabw-note", { hidden: true });
  ins.view = h(
    "div.cabw-view",
    null,
    ins.canvas,
    ins.tree,
    ins.mapCanvas,
    ins.crumbs,
    zoom,
    ins.tooltip.el,
    ins.busy,
    ins.note,
  );

  ins.tabBar = h("div.cabw-tabs", {
    role: "tablist",
    "aria-label": "Panels",
    onkeydown: (e) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key],
        keys = Object.keys(TABS);
      if (by) {
        ins.openTab(keys[(keys.indexOf(ins.tab) + by + keys.length) % keys.length], true);
      }
    },
  });
  const point = (e) => {
    ins.point(e.target.closest?.("[data-key]")?.dataset.key);
  };
  ins.body = h("div.cabw-body", {
    role: "tabpanel",
    tabIndex: 0,
    "aria-label": "Panel",
    onpointerover: point,
    onpointerleave: () => ins.hover(null),
  });
  const panel = h("section.cabw-panel", { "aria-label": "Details" }, splitter(ins), ins.tabBar, ins.body);
  ins.keys = h(
    "div.cabw-keys",
    { hidden: true },
    [
      ["Along edges", "↑ ↓"],
      ["Across a row", "← →"],
      ["Open or close a group", "Enter"],
      ["To the group around", "Backspace"],
      ["Search, next, previous", "/  n  N"],
      ["Fit width, then all", "f"],
      ["Zoom", "+  −  0"],
      ["Clear selection, then search", "Esc"],
      ["Zoom with the wheel", "Ctrl"],
    ].map(([a, b]) => h("div", null, a, h("kbd", null, b))),
  );
  ins.statusLine = h("div.cabw-status", { role: "status" });
  ins.el.append(h("div.cabw-frame", null, bar, strip, ins.view, panel, ins.statusLine), ins.keys);
  status(ins);
  showNote(ins);
}

/** Which capture is shown, and a way to the others. */
function captures(ins) {
  const { captures: all } = ins.session;
  const shown = ins.graph.data.capture;
  if (all.length < 2) return h("span", null, ins.graph.data.model ? ins.graph.data.title : "");
  const options = all.map((c, i) =>
    h(
      "option",
      { value: String(i), selected: i === shown },
      `${i}: ${c.title}, ${number(c.nodes)} nodes${c.failed ? ", failed" : ""}`,
    ),
  );
  const select = h(
    "select.cabw-captures",
    { "aria-label": "Capture", onchange: () => ins.openCapture(Number(select.value)) },
    options,
  );
  return select;
}

/** The line at the bottom: counts, and what was found, each a way to it. */
function status(ins) {
  const g = ins.graph;
  const { touched } = g;
  const toTouches = () => {
    ins.setColour("touches");
    ins.openTab("metadata");
    if (touched[0]) ins.reveal(touched[0].key);
  };
  const watched = g.watched.has("initial_trace");
  ins.statusLine.replaceChildren(
    h("span", null, plural(ins.drawn.nodes.size, g === ins.drawn ? "node" : "graph node")),
    h("span", null, plural(ins.drawn.edgeCount, "edge")),
    h(
      "button",
      { onclick: toTouches },
      touched.length
        ? `${plural(touched.length, "node")} touched before the graph ran`
        : watched
          ? "initial trace: untouched"
          : "initial trace: not watched",
    ),
    parityStatus(ins),
    h("button.end", { onclick: () => ins.help(), title: "Keyboard help" }, "Keys ?"),
  );
}

function parityStatus(ins) {
  const { first, wrong, parity, parameters } = ins.graph;
  const see = () => {
    ins.setColour("parity");
    ins.openTab("parity");
    if (first) ins.reveal(first.key);
  };
  const where = first ? `, first at ${title(first)}, ${place(ins, first)}` : "";
  if (!parity)
    return h("button.cut", { onclick: see }, first ? `gradients part${where.slice(1)}` : "parity: not computed");
  return h(
    "button.cut",
    { onclick: see },
    wrong.length
      ? `parity: ${number(wrong.length)} of ${plural(parameters.length, "gradient")} differ${where}`
      : `parity: ${parity.ok ? "all agree" : "nothing compared"}`,
  );
}

function splitter(ins) {
  const bar = h("div.cabw-split", { "aria-hidden": "true" });
  bar.addEventListener("pointerdown", (e) => {
    bar.setPointerCapture(e.pointerId);
    const right = ins.el.getBoundingClientRect().right;
    bar.onpointermove = (m) => {
      ins.el.style.setProperty("--panel", Math.max(280, Math.min(ins.el.clientWidth * 0.6, right - m.clientX)) + "px");
    };
    bar.onpointerup = () => {
      bar.onpointermove = null;
      ins.refreshPanel();
    };
  });
  return bar;
}

/** What a colouring asks for that has not been computed: words, and the way to what computes it. */
function lacking(ins) {
  const { graph } = ins;
  if (graph.data.failure || !graph.nodes.size) return null;
  const times = () => {
    ins.select("");
    ins.openTab("node");
  };
  if (ins.colour === "time" && !graph.times) return ["Time the nodes", times];
  if (ins.colour === "parity" && !graph.parity && !graph.divergence) return ["Compare", () => ins.openTab("parity")];
  return null;
}

/** One entry a class, with its count; each is a filter. */
function legend(ins) {
  const encoding = ENCODINGS[ins.colour],
    counts = composition(encoding, ins.drawn.list);
  const rare = new Set(["custom", "compiled", "check", "hook", "first"]); // not worth a place where there are none
  const classes = encoding.classes.filter(([key]) => counts.get(key) || !rare.has(key));
  ins.legend.replaceChildren(
    ...classes.map(([key, label, token, shape]) =>
      h(
        "button.cabw-chip",
        {
          disabled: !counts.get(key),
          "aria-pressed": String(ins.filter.has(key)),
          title: "Show only these",
          onclick: (e) => {
            ins.filter.has(key) ? ins.filter.delete(key) : ins.filter.add(key);
            e.currentTarget.setAttribute("aria-pressed", String(ins.filter.has(key)));
            ins.emphasise();
          },
        },
        mark(shape, `var(--${token})`, 11),
        label,
        h("span", null, number(counts.get(key))),
      ),
    ),
  );
  const missing = lacking(ins);
  if (missing) ins.legend.append(h("button.cabw-link", { onclick: missing[1] }, missing[0] + " ›"));
}
return { frame, status, legend };
};
const $frame = $frame_();
const $input_ = () => {
/** Pointer, wheel and keys: everything a person does to the canvas. Functions of the inspector; they hold no state of their own but a drag. */
function pointer(ins) {
  const el = ins.tree,
    at = (e) => {
      const r = el.getBoundingClientRect();
      return [e.clientX - r.left, e.clientY - r.top];
    };
  const held = new Map();
  let drag = null,
    pinch = 0,
    middle = [0, 0];
  el.addEventListener("pointerdown", (e) => {
    if (e.button) return;
    el.setPointerCapture(e.pointerId);
    held.set(e.pointerId, at(e));
    ins.camera.moving = null;
    drag = { from: at(e), view: { ...ins.renderer.view }, moved: false };
    pinch = held.size === 2 ? spread(held) : 0;
    middle = between(held);
    ins.tooltip.show(null);
  });
  el.addEventListener("pointermove", (e) => {
    const p = at(e);
    if (held.has(e.pointerId)) held.set(e.pointerId, p);
    if (pinch && held.size === 2) {
      const now = spread(held);
      const to = between(held);
      ins.camera.zoom(now / pinch, ...middle, false, ...to);
      pinch = now;
      middle = to;
      drag.moved = true;
      drag.from = p;
      drag.view = { ...ins.renderer.view };
    } else if (drag && (drag.moved || Math.hypot(p[0] - drag.from[0], p[1] - drag.from[1]) > 3)) {
      drag.moved = true;
      ins.view.dataset.cursor = "grab";
      ins.lastFit = null;
      ins.renderer.view = {
        ...drag.view,
        x: drag.view.x - (p[0] - drag.from[0]) / drag.view.k,
        y: drag.view.y - (p[1] - drag.from[1]) / drag.view.k,
      };
      ins.renderer.request();
    } else if (!drag) {
      const hit = ins.renderer.hit(...p),
        leaf = hit && !hit.frame;
      ins.view.dataset.cursor = leaf || hit?.header ? "hit" : "";
      ins.hover(leaf || hit?.header ? hit.key : null, hit?.cell);
      ins.tooltip.show(leaf ? hit : null, p);
    }
  });
  const up = (e) => {
    held.delete(e.pointerId);
    if (held.size) return;
    if (drag && !drag.moved && e.type === "pointerup") click(ins, at(e));
    drag = null;
    pinch = 0;
    ins.view.dataset.cursor = "";
  };
  el.addEventListener("pointerup", up);
  el.addEventListener("pointercancel", up);
  el.addEventListener("pointerleave", () => {
    ins.hover(null);
    ins.tooltip.show(null);
  });
  el.addEventListener("dblclick", (e) => {
    const hit = ins.renderer.hit(...at(e)),
      item = hit && ins.drawn.item(hit.key);
    if (performance.now() - ins.opened < 500) return; // the first click has already opened something
    if (item?.nodes) ins.toggle(item.path);
  });
  el.addEventListener("wheel", (e) => wheel(ins, e, at(e)), { passive: false });
  ins.mapCanvas.addEventListener("pointerdown", (e) => {
    const go = (e) => {
      const r = ins.mapCanvas.getBoundingClientRect(),
        m = ins.renderer.mapping,
        v = ins.renderer.view;
      ins.camera.moving = null;
      ins.renderer.view = {
        ...v,
        y: (e.clientY - r.top - m.oy) / m.s - ins.renderer.h / v.k / 2,
        x:
          ins.scene.w > ins.camera.room().w / v.k
            ? (e.clientX - r.left - m.ox) / m.s - ins.camera.room().w / v.k / 2
            : v.x,
      };
      ins.renderer.request();
    };
    ins.mapCanvas.setPointerCapture(e.pointerId);
    go(e);
    ins.mapCanvas.onpointermove = go;
    ins.mapCanvas.onpointerup = () => {
      ins.mapCanvas.onpointermove = null;
    };
  });
}

function click(ins, p) {
  ins.tree.focus({ preventScroll: true });
  const hit = ins.renderer.hit(...p);
  if (!hit || (hit.frame && !hit.header)) return ins.select("");
  const item = ins.drawn.item(hit.key),
    [x, y] = ins.renderer.toWorld(...p),
    box = ins.scene.box(hit.key);
  if (hit.cell) {
    ins.opened = performance.now();
    ins.expanded.add(item.path);
    ins.rebuild(item.key);
    return ins.reveal(hit.cell);
  }
  if (item.nodes && x - box.x < 20 && y - box.y < 26) {
    ins.opened = performance.now();
    return ins.toggle(item.path);
  }
  ins.select(hit.key);
}

/** Wheel pans, Ctrl or a pinch zooms; at the end of the graph the page takes over, so the cell never traps a scroll. */
function wheel(ins, e, p) {
  const v = ins.renderer.view,
    unit = e.deltaMode === 1 ? 18 : 1;
  if (e.ctrlKey || e.metaKey) {
    e.preventDefault();
    ins.camera.zoom(Math.exp(-e.deltaY * unit * 0.008), ...p);
    return;
  }
  const H = ins.renderer.h / v.k,
    margin = 90 / v.k;
  const dx = ((e.shiftKey ? e.deltaY : e.deltaX) * unit) / v.k;
  let dy = ((e.shiftKey ? 0 : e.deltaY) * unit) / v.k;
  if (dy > 0) dy = Math.max(0, Math.min(dy, ins.scene.h + margin - H - v.y));
  else dy = Math.min(0, Math.max(dy, -margin - v.y));
  if (!dx && !dy) return;
  e.preventDefault();
  ins.camera.moving = null;
  ins.lastFit = null;
  ins.renderer.view = { ...v, x: v.x + dx, y: v.y + dy };
  ins.renderer.request();
  ins.tooltip.show(null);
}

function keys(ins) {
  ins.el.addEventListener("keydown", (e) => {
    if (e.target.matches?.("input, select") || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "/") {
      e.preventDefault();
      ins.input.focus();
      ins.input.select();
    } else if (e.key === "?") ins.help();
  });
  ins.tree.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const item = ins.drawn.item(ins.renderer.state.selection),
      act = {
        ArrowDown: () => walk(ins, "down"),
        ArrowUp: () => walk(ins, "up"),
        ArrowLeft: () => aside(ins, -1),
        ArrowRight: () => aside(ins, 1),
        Enter: () => item && (item.nodes ? ins.toggle(item.path) : ins.openTab("node")),
        Escape: () =>
          ins.keys.hidden ? (ins.selection ? ins.select("") : ((ins.input.value = ""), ins.find(""))) : ins.help(),
        Backspace: () => item?.parent?.parent && ins.reveal(item.parent.key),
        Home: () => ins.go(ins.scene.end(1)),
        End: () => ins.go(ins.scene.end(-1)),
        f: () => ins.camera.fit(),
        "+": () => ins.camera.zoom(1.25, undefined, undefined, true),
        "=": () => ins.camera.zoom(1.25, undefined, undefined, true),
        "-": () => ins.camera.zoom(0.8, undefined, undefined, true),
        0: () => ins.camera.zoom(1 / ins.renderer.view.k, undefined, undefined, true),
        n: () => ins.step(1),
        N: () => ins.step(-1),
      }[e.key];
    if (act) {
      e.preventDefault();
      e.stopPropagation();
      act();
    }
  });
}

/** Along an edge; of several, the one that lies straightest ahead. */
function walk(ins, direction) {
  const key = ins.renderer.state.selection,
    box = ins.scene.box(key);
  if (!box) return ins.go(ins.scene.end(1));
  if (box.kind === "open") return ins.go(ins.scene.end(direction === "down" ? 1 : -1, box.item));
  const ways = [...ins.scene.next(key, direction)].map((k) => ins.scene.box(k));
  ways.sort((a, b) => cost(a, box) - cost(b, box));
  ins.go(ways[0]?.key);
}

/** To the left or right in the same row; else to another end of the edges that lead here. */
function aside(ins, by) {
  const box = ins.scene.box(ins.renderer.state.selection);
  if (!box) return ins.go(ins.scene.end(1));
  const row = ins.scene
    .visible(box.y + 1, box.y + box.h - 1, -Infinity, Infinity)
    .filter((b) => b.item !== box.item && Math.sign(b.x - box.x) === by);
  row.sort((a, b) => Math.abs(a.x - box.x) - Math.abs(b.x - box.x));
  ins.go(row[0]?.key);
}

const spread = (held) => {
  const [a, b] = [...held.values()];
  return Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;
};
/** The point in the middle of the fingers. */
const between = (held) => {
  const all = [...held.values()];
  return [0, 1].map((axis) => all.reduce((sum, p) => sum + p[axis], 0) / all.length);
};
const cost = (a, b) =>
  Math.abs(a.x + a.w / 2 - b.x - b.w / 2) + Math.abs(a.y - b.y) * 0.5 + (a.item.parameter ? 60 : 0);
return { pointer, keys };
};
const $input = $input_();
const $lod_ = () => {
/** Zoom at which things appear: below `marks` only colour, below `labels` no text in boxes, below `headers` titles leave the frame. */
const LOD = { labels: 0.6, marks: 0.3, headers: 0.6, round: 0.16 };
return { LOD };
};
const $lod = $lod_();
const $text_ = () => {
/** Words and marks on the canvas: a cut is worked out once, and so is the path of a mark. */
const { markPath } = $encode;

function paintMark(r, name, x, y, size, colour) {
  const { ctx } = r,
    id = name + size.toFixed(1);
  if (!r.paths.has(id)) {
    const [how, d] = markPath(name, size);
    r.paths.set(id, [how, new Path2D(d)]);
  }
  const [how, path] = r.paths.get(id);
  ctx.save();
  ctx.translate(x, y);
  if (how === "fill") {
    ctx.fillStyle = colour;
    ctx.fill(path);
  } else {
    ctx.strokeStyle = colour;
    ctx.lineWidth = Math.max(1.6, size * 0.4);
    ctx.stroke(path);
  }
  ctx.restore();
}

/** Text cut to a width; what a cut gives is remembered. Returns the width used. */
function paintText(r, text, x, y, room, font) {
  const { ctx, theme } = r;
  if (!text || room < 12) return 0;
  ctx.font = `${font} ${theme.ui}`;
  const id = `${font}|${Math.round(room)}|${text}`;
  let cut = r.clipped.get(id);
  if (!cut) {
    let s = text.length > 400 ? text.slice(0, 400) : text;
    if (ctx.measureText(s).width > room) {
      let lo = 0,
        hi = s.length;
      while (lo < hi) {
        const mid = (lo + hi + 1) >> 1;
        if (ctx.measureText(s.slice(0, mid) + "…").width <= room) lo = mid;
        else hi = mid - 1;
      }
      s = s.slice(0, lo) + "…";
    }
    cut = [s, ctx.measureText(s).width];
    if (r.clipped.size > 20000) r.clipped.clear();
    r.clipped.set(id, cut);
  }
  ctx.fillText(cut[0], x, y);
  return cut[1];
}
return { paintMark, paintText };
};
const $text = $text_();
const $boxes_ = () => {
/** Frames, edges and boxes of a scene, onto the canvas of the renderer `r`. */
const { plural } = $dom;
const { LOD } = $lod;
const { cells, curve, nameOf, tag } = $shapes;
const { paintMark, paintText } = $text;

function rectOf(r, b) {
  const old = r.t < 1 && r.from?.get(b.key);
  if (!old) return [b.x, b.y, b.w, b.h];
  return [b.x, b.y, b.w, b.h].map((v, i) => old[i] + (v - old[i]) * r.t);
}

function unreached(r, item) {
  return r.graph.letter === "n" && r.graph.data.failed_at !== null && (item.nodes || [item]).every((n) => n.unreached);
}

function fade(r, b) {
  const dim = r.state.dim?.[b.item.index] ? 0.28 : unreached(r, b.item) ? 0.5 : 1;
  return r.t < 1 && r.from && !r.from.has(b.key) ? dim * r.t : dim;
}

function paintFrame(r, b) {
  const { ctx, theme, view } = r,
    [x, y, w, h] = rectOf(r, b);
  ctx.globalAlpha = r.t < 1 && r.from && !r.from.has(b.key) ? r.t : 1;
  ctx.fillStyle = b.depth % 2 ? theme.sunken : theme.surface;
  ctx.strokeStyle = theme.line;
  ctx.lineWidth = Math.min(1 / view.k, 3);
  ctx.beginPath();
  ctx.roundRect(x, y, w, h, 8);
  ctx.fill();
  ctx.stroke();
  ctx.globalAlpha = 1;
}

function paintEdges(r, top, bottom, left, right) {
  const { ctx, theme, view, scene } = r,
    { mark, near: close, path: way } = r.state;
  const plain = new Path2D(),
    up = new Path2D(),
    down = new Path2D(),
    near = new Path2D(),
    arrows = view.k >= LOD.labels ? [] : null;
  const some = (pairs, test) => {
    for (let i = 0; i < pairs.length; i += 2) if (test(pairs[i], pairs[i + 1])) return true;
    return false;
  };
  const { bounds, pointsAt, pairsAt } = scene,
    many = scene.arrow.length;
  for (let e = 0; e < many; e++) {
    if (bounds[4 * e + 3] < top || bounds[4 * e + 1] > bottom || bounds[4 * e + 2] < left || bounds[4 * e] > right)
      continue;
    const points = scene.points.subarray(pointsAt[e], pointsAt[e + 1]),
      pairs = close || way || mark ? scene.pairs.subarray(pairsAt[e], pairsAt[e + 1]) : null;
    let path = plain,
      colour = theme.edge;
    if (close && some(pairs, (a, b) => close[a] || close[b])) {
      path = near;
      colour = theme.text;
    } else if (way) {
      if (some(pairs, (a, b) => way[a] && way[b])) {
        path = up;
        colour = theme.up;
      }
    } else if (mark && some(pairs, (a, b) => mark[a] & 1 && mark[b] & 1)) {
      path = up;
      colour = theme.up;
    } else if (mark && some(pairs, (a, b) => mark[a] & 2 && mark[b] & 2)) {
      path = down;
      colour = theme.down;
    }
    curve(path, points, view.k < LOD.round);
    if (arrows && scene.arrow[e]) arrows.push(points[points.length - 2], points[points.length - 1], colour);
  }
  const thin = Math.min(1.25, 1.1 / view.k + 0.1);
  ctx.globalAlpha = r.t < 1 ? r.t : 1;
  const stroke = (path, colour, width, dash = []) => {
    ctx.setLineDash(dash);
    ctx.strokeStyle = colour;
    ctx.lineWidth = width;
    ctx.stroke(path);
  };
  stroke(plain, theme.edge, Math.max(thin, 0.6 / view.k));
  stroke(down, theme.down, Math.max(1.6, 1.2 / view.k), [5, 3]);
  stroke(up, theme.up, Math.max(1.6, 1.2 / view.k));
  stroke(near, theme.text, Math.max(1.6, 1.2 / view.k));
  ctx.setLineDash([]);
  for (let i = 0; arrows && i < arrows.length; i += 3) {
    const x = arrows[i],
      y = arrows[i + 1];
    ctx.fillStyle = arrows[i + 2];
    ctx.beginPath();
    ctx.moveTo(x, y);
    ctx.lineTo(x - 3.2, y - 6);
    ctx.lineTo(x + 3.2, y - 6);
    ctx.fill();
  }
  ctx.globalAlpha = 1;
}

function paintBox(r, b) {
  const { ctx, view } = r;
  ctx.globalAlpha = fade(r, b);
  const found = r.classOf(b.item),
    colour = r.colours.get(b.item.nodes ? found.main : found);
  const rect = rectOf(r, b);
  if (view.k < LOD.round) {
    // far away: colour only
    ctx.fillStyle = colour.quiet ? colour.border : colour.solid;
    ctx.fillRect(rect[0], rect[1], rect[2], Math.max(rect[3], 0.9 / view.k)); // never paler than its colour
  } else if (b.kind === "node") paintNode(r, b, rect, colour);
  else paintGroup(r, b, rect, found.parts);
  ctx.globalAlpha = 1;
}

function paintNode(r, b, [x, y, w, h], colour) {
  const { ctx, theme, view } = r,
    n = b.item,
    loud = colour.loud;
  ctx.beginPath();
  if (n.parameter) tag(ctx, x, y, w, h);
  else ctx.roundRect(x, y, w, h, 5);
  const far = view.k < LOD.labels; // no words any more: the colour has to carry further
  ctx.fillStyle = loud ? colour.solid : colour.quiet ? theme.box : far ? colour.border : colour.fill;
  ctx.fill();
  ctx.strokeStyle = colour.border;
  ctx.lineWidth = 1;
  ctx.stroke();
  if (view.k < LOD.marks) return;
  paintMark(
    r,
    colour.mark,
    x + 13,
    y + h / 2,
    4,
    loud ? theme["on-strong"] : far && !colour.quiet ? theme.box : colour.solid,
  );
  if (far) return;
  const g = r.grow,
    id = g > 1.12 ? "" : r.figureOf(n) || n.tag,
    room = w - 30 - 6.2 * id.length - (n.parameter ? 8 : 4);
  ctx.textBaseline = "middle";
  ctx.fillStyle = loud ? theme["on-strong"] : colour.quiet && n.family === "view" ? theme.muted : theme.text;
  paintText(r, n.label, x + 23, y + h / 2 + 0.5, room, (n.parameter ? "italic " : "") + (12 * g).toFixed(1) + "px");
  ctx.fillStyle = loud ? theme["on-strong"] : theme.faint;
  ctx.textAlign = "right";
  paintText(r, id, x + w - (n.parameter ? 13 : 8), y + h / 2 + 0.5, 60, "10.5px");
  ctx.textAlign = "left";
}

function paintGroup(r, b, [x, y, w, h], parts) {
  const { ctx, theme, view } = r,
    g = b.item,
    stack = b.kind === "stack",
    H = stack ? h - 8 : h;
  ctx.strokeStyle = theme["line-strong"];
  ctx.lineWidth = 1;
  for (const i of stack ? [2, 1] : []) {
    ctx.fillStyle = theme.surface;
    ctx.beginPath();
    ctx.roundRect(x + i * 5, y + i * 4, w - i * 10, H, 6);
    ctx.fill();
    ctx.stroke();
  }
  ctx.fillStyle = theme.box;
  ctx.beginPath();
  ctx.roundRect(x, y, w, H, 6);
  ctx.fill();
  ctx.stroke();
  if (stack) paintCells(r, b);
  else paintBar(r, x + 10, y + H - 8, w - 20, 3, parts);
  if (view.k < LOD.marks) return;
  ctx.fillStyle = theme.faint;
  ctx.beginPath();
  ctx.moveTo(x + 10, y + 10);
  ctx.lineTo(x + 15, y + 14);
  ctx.lineTo(x + 10, y + 18);
  ctx.fill();
  ctx.textBaseline = "middle";
  ctx.fillStyle = theme.text;
  const used = paintText(
    r,
    nameOf(g) + (stack ? `  ×${g.stack}` : ""),
    x + 21,
    y + 14.5,
    w - 60,
    `600 ${(12.5 * r.grow).toFixed(1)}px`,
  );
  if (view.k < LOD.labels) return;
  ctx.fillStyle = theme.muted;
  const sub = stack ? `${g.children[0].cls}` : g.cls === g.name ? "" : g.cls;
  paintText(r, sub, x + 21 + used + 7, y + 15, w - 44 - used, `${(11 * r.grow).toFixed(1)}px`);
  paintText(
    r,
    `${plural(g.nodes.length, "node")}${r.figureOf(g) ? "  ·  " + r.figureOf(g) : ""}`,
    x + 21,
    y + (stack ? 30 : 27.5),
    w - 30,
    `${(11 * r.grow).toFixed(1)}px`,
  );
}

function paintBar(r, x, y, w, h, parts) {
  const { ctx } = r,
    total = [...parts.values()].reduce((a, b) => a + b, 0);
  let at = x;
  for (const [key, count] of parts) {
    if (!count) continue;
    const c = r.colours.get(key),
      width = (w * count) / total;
    ctx.fillStyle = c.solid;
    ctx.fillRect(at, y, Math.max(width - 1, 0.8), h);
    at += width;
  }
}

function paintCells(r, b) {
  const { ctx, theme, view } = r;
  for (const c of cells(b)) {
    const { main } = r.classOf(c.group);
    ctx.fillStyle = r.colourBy === "kind" ? theme["c-none"] : r.colours.get(main).solid;
    ctx.fillRect(c.x, c.y, c.w, c.h);
    if (view.k < 0.7) continue;
    ctx.fillStyle = r.state.hoverCell === c.key ? theme.accent : theme.muted;
    ctx.textAlign = "center";
    paintText(
      r,
      c.group.name,
      c.x + c.w / 2,
      c.y + c.h + 7.5,
      c.w + 6,
      r.state.hoverCell === c.key ? "600 10px" : "10px",
    );
    ctx.textAlign = "left";
  }
}
return { rectOf, fade, paintFrame, paintEdges, paintBox };
};
const $boxes = $boxes_();
const $minimap_ = () => {
const { badges } = $shapes;

/** The overview: the whole graph, small, with ticks where something was found; drawn once, the window each frame. */
function drawMap(r) {
  const { map, mapCtx: c, scene, theme, view, ratio } = r,
    W = map.clientWidth,
    H = map.clientHeight;
  if (!W || !H) return;
  const s = Math.min((W - 30) / scene.w, (H - 16) / scene.h),
    ox = (W - 14 - scene.w * s) / 2,
    oy = 8;
  r.mapping = { s, ox, oy };
  if (!r.picture) {
    r.picture = Object.assign(document.createElement("canvas"), { width: map.width, height: map.height });
    const p = r.picture.getContext("2d");
    p.setTransform(ratio, 0, 0, ratio, 0, 0);
    p.fillStyle = theme.sunken;
    for (const b of scene.frames(-Infinity, Infinity, -Infinity, Infinity, 2))
      p.fillRect(ox + b.x * s, oy + b.y * s, b.w * s, b.h * s);
    const found = [];
    const W2 = 2 * W,
      taken = new Uint8Array(W2 * 2 * (H + 1)),
      { place, size, item, leaves } = scene,
      { dim, hits } = r.state; // of many boxes on one half pixel one is enough
    for (const i of leaves) {
      const x = ox + place[2 * i] * s,
        y = oy + place[2 * i + 1] * s,
        spot = Math.floor(2 * y) * W2 + Math.floor(2 * x);
      if (hits?.[item[i]]) found.push(i);
      if (taken[spot]) continue;
      taken[spot] = 1;
      const node = r.graph.items[item[i]],
        f = r.classOf(node),
        col = r.colours.get(node.nodes ? f.main : f);
      p.globalAlpha = dim?.[item[i]] ? 0.2 : 1;
      p.fillStyle = col.quiet ? col.border : col.solid;
      p.fillRect(x, y, Math.max(size[2 * i] * s, 1), Math.max(size[2 * i + 1] * s, 1));
    }
    p.globalAlpha = 1;
    const tick = (b, colour, tall) => {
      p.fillStyle = colour;
      p.fillRect(W - 9, oy + (b.y + b.h / 2) * s - tall / 2, 7, tall);
    };
    let last = -9;
    for (const i of found) {
      const b = scene.view(i),
        at = b.y * s;
      if (Math.abs(at - last) >= 0.5) {
        tick(b, theme.hit, 2);
        last = at;
      }
    }
    for (const b of scene.badged) if (badges(b.item).some(([, loud]) => loud)) tick(b, theme["c-alarm"], 3);
  }
  c.setTransform(1, 0, 0, 1, 0, 0);
  c.clearRect(0, 0, map.width, map.height);
  c.drawImage(r.picture, 0, 0);
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  const x0 = Math.max(1, ox + view.x * s),
    x1 = Math.min(W - 12, ox + (view.x + r.w / view.k) * s);
  const y0 = Math.max(1, oy + view.y * s),
    y1 = Math.min(H - 1, Math.max(oy + (view.y + r.h / view.k) * s, y0 + 4));
  c.fillStyle = theme.accent;
  c.globalAlpha = 0.1;
  c.fillRect(x0, y0, x1 - x0, y1 - y0);
  c.globalAlpha = 1;
  c.strokeStyle = theme.accent;
  c.lineWidth = 1;
  c.strokeRect(x0 + 0.5, y0 + 0.5, x1 - x0 - 1, y1 - y0 - 1);
  const sel = scene.box(r.state.selection);
  if (sel) {
    c.fillStyle = theme.accent;
    c.fillRect(W - 9, oy + (sel.y + Math.min(sel.h, 30) / 2) * s - 1.5, 7, 3);
  }
}
return { drawMap };
};
const $minimap = $minimap_();
const $overlay_ = () => {
/** What lies over the boxes and keeps its size on screen: titles, badges, hits, selection. `r` is the renderer. */
const { fade, rectOf } = $boxes;
const { LOD } = $lod;
const { badges, nameOf, tag } = $shapes;
const { paintMark, paintText } = $text;
const { GUTTER } = $wrap;

/** Titles of open groups keep their size on screen; far away they stand to the left of the frame. */
function paintTitles(r, frames) {
  const { ctx, theme, view, scene } = r;
  ctx.setTransform(r.ratio, 0, 0, r.ratio, 0, 0);
  ctx.textBaseline = "middle";
  let lastOutside = -Infinity;
  for (const b of frames) {
    const [x, y, w, h] = rectOf(r, b),
      [sx, sy] = r.toScreen(x, y),
      inside = view.k >= LOD.headers;
    const scale = inside ? Math.min(view.k, 1.4) : 1;
    ctx.globalAlpha = fade(r, b);
    if (inside) {
      const cy = sy + 14 * view.k,
        size = (s) => `${(s * scale).toFixed(2)}px`;
      ctx.fillStyle = theme.faint;
      ctx.beginPath();
      ctx.moveTo(sx + 10 * scale, cy - 3 * scale);
      ctx.lineTo(sx + 18 * scale, cy - 3 * scale);
      ctx.lineTo(sx + 14 * scale, cy + 3 * scale);
      ctx.fill();
      ctx.font = `600 ${size(12)} ${theme.ui}`;
      const back = ctx.measureText(nameOf(b.item)).width + ctx.measureText(b.item.cls || "").width * 0.9 + 14 * scale;
      ctx.fillStyle = b.depth % 2 ? theme.sunken : theme.surface; // an edge that passes stays behind the words
      ctx.fillRect(sx + 20 * scale, cy - 8 * scale, Math.min(back, w * view.k - 26 * scale), 16 * scale);
      ctx.fillStyle = theme.text;
      const used = paintText(r, nameOf(b.item), sx + 23 * scale, cy + 0.5, w * view.k - 40, "600 " + size(12));
      ctx.fillStyle = theme.muted;
      paintText(
        r,
        `${b.item.cls || ""}`,
        sx + (23 + 7) * scale + used,
        cy + 0.5,
        w * view.k - used - 50 * scale,
        size(11),
      );
    } else if (
      h * view.k >= 18 &&
      b.depth < 3 &&
      !(b.depth === 1 && frames.some((f) => f.item.parent === b.item)) &&
      (scene.columns > 1 || sy > lastOutside + 12)
    ) {
      const wrapped = scene.columns > 1,
        room = wrapped ? GUTTER * view.k - 4 : 200; // beside a column there is room for a number at most
      ctx.fillStyle = theme.muted;
      ctx.textAlign = "right";
      paintText(
        r,
        wrapped ? b.item.name : b.item.path,
        sx - (wrapped ? 3 : 8),
        sy < 0 ? Math.min(52, sy + h * view.k - 8) : sy + 8,
        room,
        "11px",
      );
      ctx.textAlign = "left";
      lastOutside = sy;
    }
  }
  ctx.globalAlpha = 1;
  const k = view.k * r.ratio;
  ctx.setTransform(k, 0, 0, k, -view.x * k, -view.y * k);
}

/** Over each column of a picture in columns: which modules it shows. */
function paintHeads(r) {
  const { ctx, theme, view, scene } = r;
  if (scene.columns < 2) return;
  ctx.setTransform(r.ratio, 0, 0, r.ratio, 0, 0);
  ctx.textBaseline = "middle";
  ctx.fillStyle = theme.muted;
  ctx.font = `600 11px ${theme.ui}`;
  for (const { x, w, texts } of scene.heads) {
    const [sx, sy] = r.toScreen(x, 0);
    if (sx > r.w || sx + w * view.k < 0) continue;
    const room = w * view.k - 8;
    const text = texts.find((words) => ctx.measureText(words).width <= room) ?? texts.at(-1) ?? "";
    paintText(r, text, sx, Math.max(sy - 12, 12), room, "600 11px");
  }
  const k = view.k * r.ratio;
  ctx.setTransform(k, 0, 0, k, -view.x * k, -view.y * k);
}

/** Badges, search hits, hover and selection: above everything, never smaller than they can be seen. */
function paintOverlays(r, boxes) {
  const { ctx, theme, state, view } = r;
  for (const b of boxes) {
    const [x, y] = rectOf(r, b);
    const hits = state.hits?.[b.item.index];
    if (hits) {
      ctx.strokeStyle = theme.hit;
      ctx.lineWidth = Math.max(1.5, 1.5 / view.k);
      ctx.beginPath();
      outline(r, b, 2.5);
      ctx.stroke();
      if (b.item.nodes && view.k >= LOD.labels) pill(r, String(hits), x - 2, y);
    }
  }
  ctx.globalAlpha = 1;
  const ring = (key, colour, width, offset) => {
    const b = r.scene.box(key);
    if (!b) return;
    ctx.strokeStyle = colour;
    ctx.lineWidth = Math.max(width, width / view.k);
    ctx.beginPath();
    outline(r, b, offset);
    ctx.stroke();
  };
  for (const key of state.nearKeys || []) ring(key, theme.muted, 1.25, 0);
  if (state.hover && state.hover !== state.selection) ring(state.hover, theme.text, 1.25, 0);
  if (state.selection) ring(state.selection, theme.accent, 2, 3);
  for (const b of boxes) {
    const [x, y, w] = rectOf(r, b);
    ctx.globalAlpha = Math.max(fade(r, b), 0.5);
    const grow = Math.max(1, 0.62 / view.k);
    badges(b.item)
      .filter(([, loud]) => loud || grow < 4)
      .slice(0, grow > 3 ? 1 : 3)
      .forEach(([mark, loud], i) => {
        const round = 7.5 * grow,
          cx = x + w - (b.kind === "node" ? 2 : 10) - i * (round * 2 + 2),
          cy = y - (b.kind === "node" ? 3 : 0);
        ctx.beginPath();
        ctx.arc(cx, cy, round, 0, 7);
        ctx.fillStyle = loud ? theme["c-alarm"] : theme.box;
        ctx.fill();
        ctx.strokeStyle = loud ? theme.box : theme["line-strong"];
        ctx.lineWidth = loud ? 1.5 : 1;
        ctx.stroke();
        paintMark(r, mark, cx, cy, 3.7 * grow, loud ? theme["on-strong"] : theme.text);
      });
  }
  ctx.globalAlpha = 1;
}

function outline(r, b, o) {
  const [x, y, w, h] = rectOf(r, b);
  if (b.kind === "node" && b.item.parameter) tag(r.ctx, x - o, y - o, w + 2 * o, h + 2 * o);
  else
    r.ctx.roundRect(x - o, y - o, w + 2 * o, (b.kind === "stack" ? h - 8 : h) + 2 * o, (b.kind === "node" ? 5 : 7) + o);
}

function pill(r, text, x, y) {
  const { ctx, theme } = r;
  ctx.font = "600 10.5px " + theme.ui;
  const w = Math.max(16, ctx.measureText(text).width + 9);
  ctx.fillStyle = theme.hit;
  ctx.beginPath();
  ctx.roundRect(x - 4, y - 8, w, 15, 7.5);
  ctx.fill();
  ctx.fillStyle = theme.name === "dark" ? "#10141a" : "#ffffff";
  ctx.textAlign = "center";
  ctx.fillText(text, x - 4 + w / 2, y + 0.5);
  ctx.textAlign = "left";
}
return { paintTitles, paintHeads, paintOverlays };
};
const $overlay = $overlay_();
const $theme_ = () => {
/** Colours for the canvas come from the style sheet; this file decides light or dark and reads the tokens. */
const TOKENS = [
  "surface",
  "sunken",
  "line",
  "line-strong",
  "text",
  "muted",
  "faint",
  "accent",
  "accent-soft",
  "up",
  "down",
  "edge",
  "box",
  "open",
  "hit",
  "on-strong",
  "c-matmul",
  "c-norm",
  "c-pointwise",
  "c-loss",
  "c-custom",
  "c-compiled",
  "c-view",
  "c-parameter",
  "c-none",
  "c-equal",
  "c-alarm",
  "q1",
  "q2",
  "q3",
  "q4",
  "d1",
  "d2",
  "d3",
  "tint",
  "ui",
  "mono",
];

/** Calls `changed(theme)` now and whenever the host or the system changes; returns a function that stops it. */
function followTheme(el, changed) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const read = () => {
    if (!el.isConnected) return; // a notebook renders first and attaches later; without a document there are no styles to read
    const host = getComputedStyle(el).getPropertyValue("--jp-layout-color1").trim();
    const dark = host ? luminance(toRgb(host)) < 0.4 : (named() ?? system.matches);
    el.dataset.theme = dark ? "dark" : "light";
    const style = getComputedStyle(el),
      theme = { name: el.dataset.theme };
    for (const t of TOKENS) theme[t] = style.getPropertyValue("--" + t).trim();
    for (const t of TOKENS.slice(0, -3))
      if (!/^#[0-9a-f]{6}$/i.test(theme[t])) theme[t] = `rgb(${toRgb(theme[t]).join(",")})`; // color-mix() and the like
    theme.tint = Number(theme.tint);
    theme.rgb = Object.fromEntries(TOKENS.slice(0, -3).map((t) => [t, toRgb(theme[t])]));
    changed(theme);
  };
  const observer = new MutationObserver(read);
  for (const page of [document.body, document.documentElement]) observer.observe(page, { attributes: true });
  const attached = new ResizeObserver(() => {
    if (el.isConnected) {
      attached.disconnect();
      read();
    }
  });
  attached.observe(el);
  system.addEventListener("change", read);
  read();
  return () => {
    observer.disconnect();
    attached.disconnect();
    system.removeEventListener("change", read);
  };
}

/** Whether the page says that it is dark, as VS Code, Colab and marimo do, each in its own way; null where it says nothing. */
function named() {
  const words = [document.documentElement, document.body]
    .map((el) => `${el.className} ${el.dataset.vscodeThemeKind ?? ""} ${el.getAttribute("theme") ?? ""}`)
    .join(" ");
  const said = /(?:^|[\s-])(dark|light)(?![\w-])/.exec(words);
  return said ? said[1] === "dark" : /\bvscode-high-contrast\b/.test(words) || null;
}

let probe;
function toRgb(colour) {
  const hex = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(colour);
  if (hex) return hex.slice(1).map((v) => parseInt(v, 16));
  probe ??= Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", {
    willReadFrequently: true,
  });
  probe.clearRect(0, 0, 1, 1);
  probe.fillStyle = colour || "#000";
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

const luminance = ([r, g, b]) => (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;

/** `a` over `b` at `t`, as a CSS colour. */
function mix(a, b, t) {
  return `rgb(${a.map((v, i) => Math.round(v * t + b[i] * (1 - t))).join(",")})`;
}
return { followTheme, mix };
};
const $theme = $theme_();
const $tiles_ = () => {
/**
 * Far away a scene has too many boxes for one frame. It is painted once into tiles; a frame puts tiles together, paints the
 * missing ones until its time is up and asks for another frame. While the zoom changes the old tiles are stretched.
 */
const SIZE = 512,
  KEPT = 48,
  BUDGET = 7;

class Tiles {
  levels = [];

  /** `paint(ctx, left, top, right, bottom, k)` draws that part of the world; the context is already in world coordinates. */
  constructor(paint) {
    this.paint = paint;
  }

  clear() {
    this.levels = [];
    this.spare = null;
  }

  /** What was painted for another state stays on screen until its successor is there, so that a click does not flicker. */
  stale() {
    this.spare = this.levels[0] || this.spare;
    this.levels = [];
  }

  /** Returns whether everything in sight was there. */
  draw(ctx, view, w, h, ratio) {
    const steady = this.lastK === view.k;
    this.lastK = view.k;
    let level = this.levels[0];
    if (!level || (level.k !== view.k && (steady || view.k / level.k > 2 || view.k / level.k < 0.5))) {
      level = { k: view.k, tiles: new Map() };
      this.levels = [level, this.levels[0]].filter(Boolean);
    }
    const old = this.levels[1] || this.spare,
      side = SIZE / level.k;
    if (old) this.#put(ctx, old, view, w, h, ratio);
    const seen = [];
    for (let i = Math.floor(view.x / side); i * side < view.x + w / view.k; i++)
      for (let j = Math.floor(view.y / side); j * side < view.y + h / view.k; j++) seen.push([i, j]);
    const cx = (view.x + w / view.k / 2) / side - 0.5,
      cy = (view.y + h / view.k / 2) / side - 0.5;
    seen.sort((a, b) => Math.hypot(a[0] - cx, a[1] - cy) - Math.hypot(b[0] - cx, b[1] - cy));
    const began = performance.now();
    let missing = 0;
    for (const [i, j] of seen) {
      const id = i + ":" + j;
      if (level.tiles.has(id)) continue;
      if (performance.now() - began > BUDGET) {
        missing++;
        continue;
      }
      level.tiles.set(id, this.#tile(i, j, side, level.k, ratio));
      if (level.tiles.size > KEPT) level.tiles.delete(level.tiles.keys().next().value);
    }
    this.#put(ctx, level, view, w, h, ratio);
    if (!missing && level.k === view.k) {
      this.levels = [level];
      this.spare = null;
    }
    return !missing && level.k === view.k;
  }

  #tile(i, j, side, k, ratio) {
    const canvas = Object.assign(document.createElement("canvas"), {
        width: Math.ceil(SIZE * ratio),
        height: Math.ceil(SIZE * ratio),
      }),
      ctx = canvas.getContext("2d", { alpha: false });
    const s = k * ratio;
    ctx.setTransform(s, 0, 0, s, -i * side * s, -j * side * s);
    this.paint(ctx, i * side, j * side, (i + 1) * side, (j + 1) * side, k);
    return { canvas, i, j };
  }

  #put(ctx, level, view, w, h, ratio) {
    const s = view.k / level.k,
      side = SIZE / level.k;
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    for (const { canvas, i, j } of level.tiles.values()) {
      const x = Math.round((i * side - view.x) * view.k * ratio),
        y = Math.round((j * side - view.y) * view.k * ratio);
      if (x > w * ratio || y > h * ratio || x + canvas.width * s < 0 || y + canvas.height * s < 0) continue;
      if (s === 1) ctx.drawImage(canvas, x, y);
      else ctx.drawImage(canvas, x, y, Math.ceil(canvas.width * s), Math.ceil(canvas.height * s));
    }
  }
}
return { Tiles };
};
const $tiles = $tiles_();
const $render_ = () => {
/** Draws a scene on one canvas 2D and its overview beside it. Knows nothing of panels, Python or the DOM around it. */
const { paintBox, paintEdges, paintFrame } = $boxes;
const { composition, ENCODINGS, figure, strongest } = $encode;
const { LOD } = $lod;
const { drawMap } = $minimap;
const { paintHeads, paintOverlays, paintTitles } = $overlay;
const { cells } = $shapes;
const { mix } = $theme;
const { Tiles } = $tiles;

/** From how many boxes on the view from afar is put together from tiles. */
const TILED = 1500;
const MOTION = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 180;

class Renderer {
  view = { x: 0, y: 0, k: 1 };
  /** selection, hover: keys. mark, near, path: per node. dim, hits: per item. All null where there is nothing to show. */
  state = { selection: null, hover: null, mark: null, near: null, path: null, dim: null, hits: null };
  paths = new Map();
  clipped = new Map();
  frames = 0;

  constructor(canvas, map) {
    this.canvas = canvas;
    this.map = map;
    this.ctx = this.screen = canvas.getContext("2d", { alpha: false });
    this.tiles = new Tiles((ctx, left, top, right, bottom, k) => this.#paint(ctx, left, top, right, bottom, k));
    this.mapCtx = map.getContext("2d");
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    for (const c of [this.canvas, this.map]) {
      const { clientWidth: w, clientHeight: h } = c;
      if (c.width !== Math.round(w * ratio) || c.height !== Math.round(h * ratio)) {
        c.width = Math.round(w * ratio);
        c.height = Math.round(h * ratio);
      }
    }
    if (this.ratio !== ratio) this.tiles.clear();
    this.ratio = ratio;
    this.w = this.canvas.clientWidth;
    this.h = this.canvas.clientHeight;
    this.picture = null;
    this.request();
  }

  /** A new scene moves into place from the old one; both are in the same coordinates, apart from `shift`. */
  setScene(scene, shift = [0, 0]) {
    const old = this.scene;
    this.scene = scene;
    this.picture = null;
    this.tiles.clear();
    this.from = null;
    if (old && MOTION && scene.count < 3000 && old.count < 3000) {
      this.from = new Map(
        Array.from({ length: old.count }, (_, i) => old.view(i)).map((b) => [
          b.key,
          [b.x + shift[0], b.y + shift[1], b.w, b.h],
        ]),
      );
      this.began = performance.now();
    }
    this.request();
  }

  setColours(encoding, theme, graph) {
    this.encoding = encoding;
    this.theme = theme;
    this.graph = graph;
    this.picture = null;
    this.tiles.stale();
    const { rgb } = theme;
    this.colours = new Map(
      encoding.classes.map(([key, , token, mark]) => [
        key,
        {
          mark,
          solid: theme[token],
          fill: mix(rgb[token], rgb.box, encoding === ENCODINGS.kind ? theme.tint : theme.tint * 1.5),
          border: mix(rgb[token], rgb.box, 0.5),
          loud: ["first", "initial"].includes(key),
          quiet: ["view", "check", "none"].includes(key),
        },
      ]),
    );
    this.classes = new Map();
    this.figures = new Map();
    this.colourBy = Object.keys(ENCODINGS).find((k) => ENCODINGS[k] === encoding);
    this.request();
  }

  classOf(item) {
    if (!item.nodes) return this.encoding.of(item);
    if (!this.classes.has(item))
      this.classes.set(item, {
        main: strongest(this.encoding, item.nodes),
        parts: composition(this.encoding, item.nodes),
      });
    return this.classes.get(item);
  }

  /** The number that goes with the colour of an item, remembered. */
  figureOf(item) {
    if (!this.figures.has(item)) this.figures.set(item, figure(this.colourBy, item.nodes || [item]));
    return this.figures.get(item);
  }

  request() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  toWorld(sx, sy) {
    return [this.view.x + sx / this.view.k, this.view.y + sy / this.view.k];
  }
  toScreen(x, y) {
    return [(x - this.view.x) * this.view.k, (y - this.view.y) * this.view.k];
  }

  hit(sx, sy) {
    const [x, y] = this.toWorld(sx, sy),
      inside = (b) => x >= b.x && x <= b.x + b.w && y >= b.y && y <= b.y + b.h;
    const leaf = this.scene.visible(y, y, x, x).find(inside);
    if (leaf?.kind === "stack") {
      const cell = cells(leaf).find((c) => x >= c.x && x < c.x + c.w + 2 && y >= c.y - 4 && y <= c.y + c.h + 14);
      return { key: leaf.key, cell: cell?.key };
    }
    if (leaf) return { key: leaf.key };
    const frame = this.scene.frames(y, y, x, x).at(-1);
    return frame ? { key: frame.key, header: y < frame.y + 26, frame: true } : null;
  }

  /** What a reader of the picture can tell apart now, `most` at most: open groups in sight, then boxes once they have a mark. */
  inSight(most) {
    const { view, scene } = this,
      top = view.y,
      bottom = top + this.h / view.k,
      left = view.x,
      right = left + this.w / view.k;
    const frames = scene
      .frames(top, bottom, left, right, view.k < LOD.round ? 2 : 255)
      .filter((b) => b.h * view.k > 18);
    return [
      ...frames.slice(0, most / 3),
      ...(view.k >= LOD.round ? scene.visible(top, bottom, left, right) : scene.badged),
    ].slice(0, most);
  }

  draw() {
    const { ctx, view, theme, scene } = this;
    if (!scene || !theme || !this.w) return;
    this.frames++;
    const age = this.from ? (performance.now() - this.began) / MOTION : 1;
    this.grow = Math.max(1, Math.min(1.25, 9.5 / 12 / view.k)); // text stays readable a little longer than boxes do
    this.t = age >= 1 ? 1 : 1 - (1 - age) ** 3;
    if (age >= 1) this.from = null;
    const top = view.y,
      bottom = view.y + this.h / view.k,
      left = view.x,
      right = view.x + this.w / view.k;
    ctx.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    ctx.fillStyle = theme.sunken;
    ctx.fillRect(0, 0, this.w, this.h);
    const k = view.k * this.ratio,
      world = () => ctx.setTransform(k, 0, 0, k, -view.x * k, -view.y * k);
    const tiled = view.k < LOD.marks && scene.leaves.length > TILED && !this.from;
    this.complete = !tiled || this.tiles.draw(ctx, view, this.w, this.h, this.ratio);
    world();
    const all = [-Infinity, Infinity, -Infinity, Infinity],
      part = this.from ? all : [top, bottom, left, right];
    const boxes = tiled
      ? scene.badged.filter((b) => b.y <= bottom && b.y + b.h >= top).slice(0, 400)
      : scene.visible(...part);
    const frames = scene.frames(...part, tiled ? 2 : 255);
    if (!tiled) {
      frames.forEach((b) => paintFrame(this, b));
      paintEdges(this, top, bottom, left, right);
      boxes.forEach((b) => paintBox(this, b));
    }
    paintTitles(this, frames);
    paintHeads(this);
    paintOverlays(this, boxes);
    drawMap(this);
    if (this.from || !this.complete) this.request();
    this.onDraw?.();
  }

  /** One tile: frames, edges where they can be told apart, boxes, hits. Text and badges come on top, in their own size. */
  #paint(ctx, left, top, right, bottom, k) {
    const { scene, theme, view } = this;
    Object.assign(this, { ctx, view: { ...view, k } });
    ctx.fillStyle = theme.sunken;
    ctx.fillRect(left, top, right - left, bottom - top);
    for (const b of scene.frames(top, bottom, left, right)) if (b.w * k > 4) paintFrame(this, b);
    if (k > 0.02) paintEdges(this, top, bottom, left, right);
    const { hits } = this.state,
      found = [];
    for (const b of scene.visible(top, bottom, left, right)) {
      paintBox(this, b);
      if (hits?.[b.item.index]) found.push(b);
    }
    ctx.fillStyle = theme.hit;
    for (const b of found) {
      const grow = Math.max(0, 3 / k - b.h) / 2;
      ctx.fillRect(b.x, b.y - grow, b.w, b.h + 2 * grow);
    }
    Object.assign(this, { ctx: this.screen, view });
  }
}
return { Renderer };
};
const $render = $render_();
const $session_ = () => {
/** What is known beside the capture that is open: the other captures by title, and what became of each backward call. */
const { sent, unpack } = $columns;

class SessionFacts {
  captures = [];
  events = [];

  constructor(bytes) {
    if (!sent(bytes)) return;
    const { facts, tables: t, columns: c } = unpack(bytes);
    this.captures = facts.captures;
    this.events = Array.from(c.event_outcome, (outcome, i) => ({
      call: c.event_call[i] ? c.event_call[i] - 1 : null,
      function: t.functions[c.event_function[i]],
      where: t.places[c.event_place[i]],
      outcome: t.outcomes[outcome],
      reason: c.event_reason[i] ? t.reasons[c.event_reason[i] - 1] : "",
      capture: c.event_capture[i] ? c.event_capture[i] - 1 : null,
      seconds: c.event_seconds[i],
    }));
  }

  /** Captures made after the first one: those that a cache might have saved. */
  get again() {
    return this.events.filter((e) => e.outcome === "captured").slice(1);
  }
}
return { SessionFacts };
};
const $session = $session_();
const $tooltip_ = () => {
/** A few words about what is under the pointer, after a short rest. */
const { h, plural, shape } = $dom;
const { bytes } = $encode;
const { heldBy } = $drawable;
const { place, told } = $parts;

const REST = 320;

class Tooltip {
  constructor(ins) {
    this.ins = ins;
    this.el = h("div.cabw-tip", { hidden: true, role: "tooltip" });
  }

  show(hit, p) {
    clearTimeout(this.timer);
    const key = hit && (hit.cell || hit.key);
    if (key !== this.key) {
      this.el.hidden = true;
      this.key = key;
    }
    if (key && this.el.hidden) this.timer = setTimeout(() => this.#put(key, p), REST);
  }

  #put(key, p) {
    const { drawn, graph, renderer } = this.ins;
    const item = drawn.item(key);
    if (!item) return;
    const name = item.owner ? item.owner.title : item.nodes ? item.path : item.title;
    const lines = item.owner
      ? [plural(item.nodes.length, "graph node"), ...this.#ofNode(item.owner)]
      : item.nodes
        ? this.#ofGroup(item)
        : drawn === graph
          ? this.#ofNode(item)
          : this.#ofOp(item);
    this.el.replaceChildren(
      h("b", null, name.slice(0, 120)),
      ...lines.filter(Boolean).map((t) => h("div", null, t.slice(0, 200))),
    );
    this.el.hidden = false;
    const { offsetWidth: w, offsetHeight: tall } = this.el;
    this.el.style.left = Math.max(4, p[0] + 14 + w > renderer.w - 6 ? p[0] - w - 10 : p[0] + 14) + "px";
    this.el.style.top = Math.max(4, Math.min(p[1] + 16, renderer.h - tall - 6)) + "px";
  }

  #ofGroup(g) {
    const held = heldBy(g.nodes);
    return [
      [g.cls, plural(g.nodes.length, "node")].filter(Boolean).join(", "),
      held ? `holds ${bytes(held)}` : null,
      told(g),
    ];
  }

  #ofOp(op) {
    const text = op.text.slice(0, 400);
    return [text.slice(text.indexOf(" = ") + 3), op.base?.title, place(this.ins, op), op.line?.[2], told(op)];
  }

  #ofNode(n) {
    const { graph } = this.ins;
    const leaves = graph.leavesOf(n.index).map((leaf) => `${leaf.name} ${shape(leaf.shape)} ${leaf.dtype}`);
    const out = graph.gradients("in", n.index).filter(Boolean);
    return [
      ...leaves,
      n.parameter ? null : place(this.ins, n),
      n.line?.[2],
      n.parameter ? null : out.map(([s, t]) => `${shape(s)} ${t}`).join(", "),
      told(n),
    ];
  }

  stop() {
    clearTimeout(this.timer);
  }
}
return { Tooltip };
};
const $tooltip = $tooltip_();
const $traits_ = () => {
/** What the model says, taken over: findings that come after the graph, code that was asked for, traits that Python sets. */
const { sent } = $columns;
const { ENCODINGS } = $encode;
const { fold, unfold } = $expanded;
const { legend, status } = $frame;
const { SessionFacts } = $session;

/** The parts that are findings, each with the method of the graph that takes it over. */
const FINDINGS = {
  touches: "setTouches",
  parity: "setParity",
  divergence: "setDivergence",
  times: "setTimes",
};
const TWO_WAY = ["selection", "expanded", "color_by", "query", "level"];

function listen(ins) {
  const { model } = ins;
  const on = {
    code: () => arrived(ins, "code"),
    aten: () => arrived(ins, "aten"),
    task: () => {
      ins.refreshPanel();
      ins.showNote();
    },
    session: () => {
      ins.session = new SessionFacts(model.get("session"));
      ins.refreshPanel();
    },
  };
  for (const part of Object.keys(FINDINGS)) on[part] = () => found(ins, part);
  for (const name of TWO_WAY) on[name] = () => set(ins, name, model.get(name));
  for (const [name, f] of Object.entries(on)) {
    model.on("change:" + name, f);
    ins.stop.push(() => model.off("change:" + name, f));
  }
}

function takeFindings(ins) {
  for (const part of Object.keys(FINDINGS)) take(ins, part);
}

function take(ins, part) {
  ins.graph[FINDINGS[part]](ins.model.get(part));
}

/** Something was computed after the graph was drawn: take it over, and show it wherever it shows. */
function found(ins, part) {
  take(ins, part);
  ins.levels.renewed();
  ins.scene?.mark();
  ins.ui.parityList = null;
  ins.paint();
  legend(ins);
  status(ins);
  ins.emphasise();
  ins.refreshPanel();
}

/** The code of a graph has come: a level may have waited for it. */
function arrived(ins, part) {
  if (!sent(ins.model.get(part))) return; // another capture is on its way
  const level = ins.levels.renew(part);
  const shown = ins.level === level && !ins.switching && ins.drawn !== ins.graph;
  if (ins.pending === level || shown) ins.setLevel(level);
  ins.refreshPanel();
}

/** A trait that Python has set; what this side has told Python comes back here too, and changes nothing. */
function set(ins, name, value) {
  if (name === "selection" && value !== ins.selection) ins.reveal(value);
  if (name === "color_by" && value !== ins.colour && ENCODINGS[value]) ins.setColour(value);
  if (name === "query" && value !== ins.input.value) {
    ins.input.value = value;
    ins.find(value);
  }
  if (name === "level" && value !== ins.level) ins.setLevel(value);
  if (name === "expanded" && !ins.switching && String(value) !== String(fold(ins.expanded, ins.drawn))) {
    ins.expanded = unfold(value, ins.drawn);
    ins.rebuild(null, { quiet: true, then: () => ins.camera.show(ins.selection) });
  }
}
return { listen, takeFindings };
};
const $traits = $traits_();
const $main_ = () => {
/**
 * The inspector: its state and what follows from a change of it. `render({ model, el })` is anywidget's signature; the traits
 * selection, expanded, level, color_by and query are two-way. In a saved file `shim.js` stands in for the kernel.
 * `graph` holds the autograd nodes, whatever level is shown; `drawn` is the graph on the canvas.
 */
const { AriaTree } = $aria;
const { Camera } = $camera;
const { h } = $dom;
const { ENCODINGS } = $encode;
const { unfold } = $expanded;
const { find, step } = $find;
const { frame, legend, status } = $frame;
const { keys, pointer } = $input;
const { levelFor, Levels, translated } = $levels;
const { showPanel } = $panels;
const { adopt, cancel, emphasise, hover, rebuild } = $picture;
const { Renderer } = $render;
const { showNote } = $note;
const { SessionFacts } = $session;
const { followTheme } = $theme;
const { Tooltip } = $tooltip;
const { listen, takeFindings } = $traits;

class Inspector {
  ui = {};
  filter = new Set();
  tab = "node";
  hits = null;
  wrapped = false;
  opened = -1e9;
  afterwards = [];
  times = { began: performance.now() };

  constructor(model, el) {
    this.model = model;
    this.levels = new Levels(model);
    this.graph = this.drawn = this.levels.graph;
    takeFindings(this);
    this.session = new SessionFacts(model.get("session"));
    this.times.read = performance.now();
    this.layout = this.levels.base.layout;
    const wanted = model.get("level");
    this.level = wanted === "autograd" || !this.graph.grouped ? "autograd" : wanted === "" ? "" : "module";
    this.expanded = wanted === "autograd" ? this.graph.all() : unfold(model.get("expanded"), this.graph);
    this.selection = model.get("selection");
    this.el = h("div.cabw-inspector", { role: "region", "aria-label": "cabw_viz inspector" });
    this.aria = new AriaTree(this);
    this.prefix = this.aria.prefix;
    this.tooltip = new Tooltip(this);
    frame(this);
    el.append(this.el);
    this.renderer = new Renderer(this.canvas, this.mapCanvas);
    this.camera = new Camera(this);
    this.renderer.onDraw = () => this.camera.drawn();
    pointer(this);
    keys(this);
    this.#follow();
    this.renderer.resize();
    this.colour = ENCODINGS[model.get("color_by")] ? model.get("color_by") : "kind";
    this.paint();
    legend(this);
    this.#begin(levelFor(this.selection, wanted));
  }

  /** What the canvas and the panels follow: theme, size, traits. */
  #follow() {
    this.stop = [
      followTheme(this.el, (theme) => {
        this.theme = theme;
        this.paint();
        this.refreshPanel();
      }),
    ];
    const observer = new ResizeObserver(() => {
      this.renderer.resize();
      this.firstFit();
    });
    observer.observe(this.tree);
    this.stop.push(
      () => observer.disconnect(),
      () => this.levels.stop(),
      () => this.aria.stop(),
      () => this.tooltip.stop(),
    );
    listen(this);
  }

  /** The first picture: that of the level that is wanted, or what stands in for it until its data is there. */
  #begin(wanted) {
    const query = this.model.get("query");
    if (query) {
      this.input.value = query;
      this.find(query);
    }
    if (wanted === "fx" || wanted === "aten") {
      this.setLevel(wanted);
      if (this.switching || this.scene) return;
    }
    const { selection } = this;
    this.rebuild(null, {
      then: () => {
        if (this.graph.item(selection)) {
          this.camera.fit(false);
          this.fitted = true;
          this.reveal(selection);
        } else if (selection && !this.pending) this.select("");
      },
    });
    this.refreshPanel();
    this.segments();
  }

  firstFit() {
    if (!this.fitted && this.renderer.w && this.scene) {
      this.fitted = true;
      this.camera.fit(false);
    }
  }

  /* State. Everything that changes goes through one of these. */

  /** Asks for another capture of the session; its parts come as traits. */
  openCapture(index) {
    this.tell("capture", index);
  }

  tell(name, value) {
    this.model.set(name, value);
    this.model.save_changes();
  }

  #choose(key) {
    this.selection = key || "";
    this.cone = this.drawn.item(this.selection) ? this.drawn.cone(this.selection) : null;
    this.way = null;
    this.tell("selection", this.selection);
  }

  select(key) {
    this.#choose(key);
    this.emphasise();
    this.refreshPanel();
    this.aria.select();
  }

  /** The autograd nodes of the selection, whatever level it was made at. */
  picked() {
    return [...new Set(this.drawn.nodesOf(this.selection).map((n) => n.base))].filter(Boolean);
  }

  /** Marks the way the gradient takes from one node to a parameter's; null clears it. */
  showPath(from, to) {
    this.way = from ? { ...this.drawn.path(from, to), name: this.graph.item(to).parameter } : null;
    this.emphasise();
    this.refreshPanel();
  }

  /** Selects an item wherever it is: goes to its level, opens the groups around it and brings it into sight. */
  reveal(key) {
    const level = key ? levelFor(key, this.level) : this.level;
    if (level !== this.level || this.switching) {
      this.selection = key; // taken over when the other graph is drawn
      return level === this.level ? undefined : this.setLevel(level);
    }
    if (this.pending) return this.select(this.drawn.item(key) ? key : ""); // the picture is covered
    const item = this.drawn.item(key);
    if (!item) return this.select("");
    const before = this.expanded.size;
    for (let g = item.parent; g && g.parent; g = g.parent) this.expanded.add(g.path);
    this.select(key);
    if (this.expanded.size !== before || this.layout.waiting)
      this.rebuild(null, {
        quiet: true,
        then: () => {
          this.emphasise();
          this.aria.select();
          this.camera.show(key);
        },
      });
    else this.camera.show(key);
  }

  toggle(path, select = true) {
    const group = this.drawn.groups.get(path);
    if (!group?.parent || this.switching) return;
    if (this.expanded.has(path)) {
      // Every group inside closes too.
      const todo = [group];
      while (todo.length) {
        const g = todo.pop();
        this.expanded.delete(g.path);
        todo.push(...g.children);
      }
    } else this.expanded.add(path);
    this.rebuild(group.key, {
      then: () => {
        this.refreshPanel();
        this.aria.select();
      },
    });
    if (select && this.selection !== group.key) {
      this.#choose(group.key);
      if (!this.layout.waiting) this.emphasise();
    } // the picture that is coming does it otherwise
  }

  setLevel(level) {
    if (this.switching) cancel(this);
    this.wrapped = false;
    this.pending = null;
    if (!this.levels.has(level) && this.model.get("kernel")) this.model.send({ type: "aten" }); // made by hand meanwhile?
    const entry = this.levels.has(level) ? this.levels.entry(level) : null;
    if (!entry || !entry.graph.list.length) {
      this.pending = level; // its data is on its way, or there is none: the note says which
      this.level = level;
      this.tell("level", level);
    } else if (entry.graph === this.drawn) this.#open(level);
    else adopt(this, entry, level);
    this.showNote();
    this.segments();
  }

  /** All open or all closed, in the graph that is drawn already. */
  #open(level) {
    this.expanded = level === "module" ? new Set() : level === "" ? this.expanded : this.drawn.all();
    this.level = level;
    this.rebuild(null, {
      then: () => (this.selection && level !== "module" ? this.camera.show(this.selection) : this.camera.fit()),
    });
    this.tell("level", level);
  }

  /** Another graph has been laid out and is about to be drawn: what was chosen in the old one is looked for in it. */
  takeOver(entry, level) {
    const { selection } = this;
    const from = this.drawn;
    this.drawn = entry.graph;
    this.level = level;
    Object.assign(this.renderer.state, { hover: null, near: null, nearKeys: [] });
    this.tell("level", level);
    this.#choose(translated(selection, from, entry.graph));
    this.paint();
    legend(this);
    status(this);
    this.find(this.input.value);
    this.refreshPanel();
    this.showNote();
    this.segments();
  }

  setColour(name) {
    this.colour = name;
    this.filter.clear();
    this.tell("color_by", name);
    this.paint();
    legend(this);
    this.segments();
    this.emphasise();
  }

  find(query) {
    find(this, query);
  }
  step(by) {
    step(this, by);
  }
  hover(key, cell) {
    hover(this, key, cell);
  }
  /** Points in the picture at an item of any level, or at what stands for it. */
  point(key) {
    const [first] = key ? this.drawn.nodesOf(key) : [];
    this.hover(first ? this.drawn.shown(first, this.expanded) : null);
  }
  rebuild(anchor, how) {
    rebuild(this, anchor, how);
  }
  emphasise(known) {
    emphasise(this, known);
  }

  go(key) {
    if (key) {
      this.select(key);
      this.camera.show(key);
    }
  }

  /** The captured graph's code, asked for when it is first shown: it outweighs everything else. */
  code() {
    return this.levels.code("code");
  }

  paint() {
    if (this.renderer && this.theme && this.colour)
      this.renderer.setColours(ENCODINGS[this.colour], this.theme, this.drawn);
  }

  help() {
    this.keys.hidden = !this.keys.hidden;
  }

  segments() {
    this.levelBar.mark(this.level === "module" && !this.graph.grouped ? "autograd" : this.level);
    this.colours.mark(this.colour);
  }

  showNote() {
    showNote(this);
  }

  /* Panels */

  openTab(name, focus) {
    this.tab = name;
    this.refreshPanel();
    if (focus) this.tabBar.querySelector("[aria-selected=true]")?.focus();
  }

  refreshPanel() {
    if (this.body && this.theme) showPanel(this);
  }

  name(key) {
    const item = this.drawn.item(key);
    if (!item) return "";
    return item.owner ? item.owner.title : item.nodes ? item.path || item.name : item.title;
  }
  link(key, text, after) {
    return h(
      "span",
      null,
      h("button.cabw-link", { "data-key": key, onclick: () => this.reveal(key) }, text),
      after && h("span.muted", null, after),
    );
  }

  dispose() {
    this.stop.forEach((f) => f());
    this.el.remove();
  }
}

function render({ model, el }) {
  const start = () => {
      el.inspector = new Inspector(model, el);
    },
    again = () => {
      el.inspector.dispose();
      start();
    };
  start();
  model.on("change:data", again); // another capture: everything is read anew
  return () => {
    model.off("change:data", again);
    el.inspector.dispose();
  };
}
return { render };
};
const $main = $main_();
const $shim_ = () => {
/** Stands in for the kernel in a saved file: anywidget's model over plain values. `lazy` answers what is asked for later. */
class Shim {
  #values;
  #lazy;
  #listeners = new Map();
  #changed = new Set();
  constructor(values, lazy = {}) {
    this.#values = values;
    this.#lazy = lazy;
  }
  get(name) {
    return this.#values[name];
  }
  set(name, value) {
    if (this.#values[name] !== value) {
      this.#values[name] = value;
      this.#changed.add(name);
    }
  }
  on(event, f) {
    this.#listeners.set(event, [...(this.#listeners.get(event) || []), f]);
  }
  off(event, f) {
    const left = (this.#listeners.get(event) || []).filter((g) => g !== f);
    this.#listeners.set(event, left);
  }
  save_changes() {
    const names = [...this.#changed];
    this.#changed.clear();
    for (const name of names) for (const f of this.#listeners.get("change:" + name) || []) f();
  }
  async send({ type }) {
    const value = await this.#lazy[type]?.(this);
    if (value) {
      this.set(type, value);
      this.save_changes();
    }
  }
}

/** Bytes of a saved file: gzip, base64, in a script tag that the browser never runs; empty where there is none. */
async function inlined(id) {
  const text = document.getElementById(id)?.textContent.trim();
  if (!text) return new Uint8Array(0);
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

/** Opens a saved file: reads its parts, draws the first capture, and the others when they are picked. */
async function openFile(render, el) {
  const began = performance.now();
  const part = (name, capture) => inlined(`cabw-${capture}-${name}`);
  const parts = async (capture) => {
    const names = ["data", "touches", "parity", "divergence", "times"];
    const read = await Promise.all(names.map((name) => part(name, capture)));
    return { ...Object.fromEntries(names.map((name, i) => [name, read[i]])), code: null, aten: null };
  };
  // A link may carry state: run.html#color_by=parity&selection=n307
  const linked = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const state = {
    selection: "",
    expanded: [],
    level: "module",
    color_by: "kind",
    query: "",
    kernel: false,
    choices: {},
    task: {},
    ...linked,
  };
  const capture = Number(linked.capture ?? document.body.dataset.capture ?? 0);
  const values = { ...state, capture, session: await inlined("cabw-session"), ...(await parts(capture)) };
  const model = new Shim(values, {
    code: () => part("code", model.get("capture")),
    aten: () => part("aten", model.get("capture")),
  });
  model.on("change:capture", async () => {
    for (const [name, value] of Object.entries(await parts(model.get("capture")))) model.set(name, value);
    model.save_changes();
  });
  const ready = performance.now();
  render({ model, el });
  const painted = () => {
    const { inspector } = el;
    if (!inspector.scene || !inspector.renderer.frames || !inspector.renderer.complete)
      return requestAnimationFrame(painted);
    // After the frame is on the screen: what benchmarks and tests wait for.
    return setTimeout(() => {
      window.cabwTimes = {
        unpack: ready - began,
        paint: performance.now() - ready,
        layout: inspector.layout.ms,
        where: inspector.layout.where,
      };
    });
  };
  requestAnimationFrame(painted);
  Object.assign(window, { cabw: { render, Shim, model } });
}
return { Shim, inlined, openFile };
};
const $shim = $shim_();
const { render } = $main;
const { Shim, inlined, openFile } = $shim;
export default { render };
