/**
 * The graph behind the picture: nodes as views onto columns, the module tree, and the joins to touches and parity.
 * Runs on the page and, for the layout, in the worker. An item is a node or a group: items[0..n) are the nodes, the groups follow.
 */
import { rowsOf, sent, unpack } from "./columns.js";
import { treeOf } from "./tree.js";

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
  "Unsqueeze|Alias|AsStrided|Cat|Stack|ToCopy|Unbind|Detach|Unfold|Narrow|Flatten|Unflatten";
const FAMILY_OF_NAME = [
  ["matmul", /^(Addmm|Mm|Bmm|Baddbmm|Addbmm|Mv|Dot|.*Conv.*|Linear|.*Attention.*)/],
  ["norm", /(Norm|Softmax)/],
  ["loss", /(Loss|Embedding|Gather|Index)/],
  ["view", new RegExp(`^(${VIEWS})Backward`)],
];

/** A name fit for one line of the picture: what cannot be seen, or would turn the line round, as a dot. */
export const plain = (text) => text.replace(/[\u0000-\u001f\u007f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/g, "·");

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
    return FAMILY_OF_KIND[this.kind] ?? this.#look.family;
  }
  get label() {
    const p = this.parameter;
    return p ? plain(p.slice(p.lastIndexOf(".") + 1)) || "(no name)" : this.#look.label;
  }
  get module() {
    return this.graph.text("module", "modules", this.index);
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
    return (
      this.row !== null ||
      !Number.isNaN(this.graph.errorAt("node_into", this.index) + this.graph.errorAt("node_out", this.index))
    );
  }
  /** Largest relative error seen at the node; endless where a gradient is missing or not finite. */
  get relative() {
    if (this.row) return this.row.relative;
    return Math.max(this.graph.errorAt("node_into", this.index) || 0, this.graph.errorAt("node_out", this.index) || 0);
  }
  get origin() {
    return this.graph.parity?.first === this.id;
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
    return this.graph.held(this.index);
  }
  get #look() {
    return this.graph.names[this.graph.columns.name[this.index]];
  }
}

export class Graph {
  #flagged = null;

  constructor(bytes) {
    const { facts, tables, columns } = unpack(bytes);
    Object.assign(this, { data: facts, tables, columns });
    this.names = tables.names.map((name) => ({
      family: (FAMILY_OF_NAME.find(([, pattern]) => pattern.test(name)) || ["pointwise"])[0],
      label: plain(name.replace(/(.)Backward\d*$/, "$1")) || "(no name)",
    }));
    this.list = Array.from(columns.id, (_, i) => new Node(this, i));
    this.nodes = new Map(this.list.map((n) => [n.id, n]));
    const n = this.list.length;
    this.edgeCount = columns.edge_from.length;
    this.down = rowsOf(n, columns.edge_from, columns.edge_to);
    this.up = rowsOf(n, columns.edge_to, columns.edge_from);
    this.grouped = tables.modules.length > 0;
    this.model = facts.model || facts.title || "No capture"; // the class of the subject is known only if it made a node itself
    Object.assign(
      this,
      treeOf({
        nodes: this.list,
        moduleOf: columns.module,
        paths: tables.modules,
        classes: tables.classes,
        edgeFrom: columns.edge_from,
        edgeTo: columns.edge_to,
        name: this.model,
      }),
    );
    this.stack = [...this.groups.values()].find((g) => g.stack);
    this.items = [...this.list, ...this.groups.values()];
    let i = n;
    for (const g of this.groups.values()) g.index = i++;
    this.inner = [...this.groups.values()].sort((a, b) => b.depth - a.depth); // innermost first
    this.setTouches(null);
    this.setParity(null);
  }

  /** Takes over who read which metadata; a null or empty part is one without touches. */
  setTouches(bytes) {
    const n = this.list.length;
    this.reads = { initial_trace: new Uint32Array(n), graph_pass: new Uint32Array(n), execution: new Uint32Array(n) };
    this.touches = [];
    const part = this.#part(bytes);
    if (part) {
      const { columns: c, tables: t } = part;
      this.touches = Array.from(c.touch_phase, (phase, k) => ({
        phase: t.phases[phase],
        node: c.touch_node[k] ? this.list[c.touch_node[k] - 1] : null,
        attribute: t.attributes[c.touch_attribute[k]],
        by: t.touchers[c.touch_by[k]],
        where: t.touch_places[c.touch_place[k]],
        count: c.touch_count[k],
        at: c.touch_at[k] ? t.touched_nodes[c.touch_at[k] - 1] : null,
      }));
      for (const touch of this.touches) if (touch.node) this.reads[touch.phase][touch.node.index] += touch.count;
    }
    this.watched = new Set(part?.facts.watched);
    this.touched = this.list.filter((node) => node.initial || node.passes);
    this.#flagged = null;
  }

  /** Takes over what a comparison of gradients came to; a null or empty part is one that was not made. */
  setParity(bytes) {
    const part = this.#part(bytes);
    this.parity = part?.facts ?? null;
    this.errors = part?.columns ?? {};
    this.parameters = [];
    for (const node of this.list) node.row = null;
    if (part) {
      const { columns: c, tables: t } = part;
      const good = new Set(t.good);
      this.parameters = Array.from(c.row_name, (name, k) => {
        const verdict = t.verdicts[c.row_verdict[k]];
        const known = !Number.isNaN(c.row_rel[k]);
        const row = {
          name: t.row_names[name],
          shape: t.row_shapes[c.row_shape[k]],
          dtype: t.row_dtypes[c.row_dtype[k]],
          verdict,
          good: good.has(verdict),
          rel: known ? c.row_rel[k] : null,
          abs: Number.isNaN(c.row_abs[k]) ? null : c.row_abs[k],
          relative: known ? c.row_rel[k] : good.has(verdict) ? 0 : Infinity,
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
    this.first = this.list.find((node) => node.origin) || null;
    this.#flagged = null;
  }

  /** A part, if it belongs to this capture: while another one is on its way, parts of both may be around. */
  #part(bytes) {
    if (!sent(bytes)) return null;
    const part = unpack(bytes);
    return part.facts.capture === this.data.capture ? part : null;
  }

  /** What wears a badge, and the groups around it; looked for when it is first asked for after a change. */
  get flagged() {
    return (this.#flagged ??= this.#flag());
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

  /** The text that a column counted from 1 points at; null for 0, and for a column that was not packed. */
  text(column, table, i) {
    const k = this.columns[column]?.[i];
    return k ? this.tables[table][k - 1] : null;
  }
  errorAt(column, i) {
    return this.errors[column]?.[i] ?? NaN;
  }
  ids({ at, items }, i) {
    return Array.from(items.subarray(at[i], at[i + 1]), (k) => this.list[k].id);
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

  /** Bytes one node holds, each storage once, parameters left out. */
  held(i) {
    return heldBy([this.list[i]]);
  }

  item(key) {
    if (key?.startsWith("g:")) return this.groups.get(key.slice(2));
    return /^n\d+$/.test(key ?? "") ? this.nodes.get(Number(key.slice(1))) : undefined;
  }
  nodesOf(key) {
    const item = this.item(key);
    return item ? item.nodes || [item] : [];
  }

  /** What the gradient of `key` came from (1: ancestors) and goes to (2: descendants), marked per node; `key` itself is 3. */
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

  /** Ids of nodes that match a query: every word must be found, see `FLAGS` for those with a colon. Words are looked up in the tables first. */
  search(query) {
    const words = query.trim().toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return null;
    const tests = words.map((word) => this.#test(word));
    const out = [];
    for (let i = 0; i < this.list.length; i++) if (tests.every((test) => test(i))) out.push(this.list[i].id);
    return out;
  }

  #test(word) {
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
export const FLAGS = {
  "is:touched": (n) => n.initial || n.passes,
  "is:read": (n) => n.execution,
  "is:differs": (n) => (n.row ? !n.row.good : n.relative > 0),
  "is:first": (n) => n.origin,
  "is:failed": (n) => n.failed,
  "is:parameter": (n) => n.parameter,
  "has:hook": (n) => n.hooks,
};

/** Bytes held by the tensors that nodes save, each storage once, parameters and buffers left out. Read off the columns: it runs over whole graphs. */
export function heldBy(nodes) {
  const c = nodes[0]?.graph.columns;
  if (!c) return 0;
  const seen = new Set();
  let total = 0;
  for (const { index } of nodes) {
    for (let k = c.saved_at[index]; k < c.saved_at[index + 1]; k++) {
      const storage = c.saved_storage[k];
      if (c.saved_shared[k] || (storage && seen.has(storage))) continue;
      seen.add(storage);
      total += c.saved_bytes[k];
    }
  }
  return total;
}
