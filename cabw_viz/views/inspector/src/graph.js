/** The autograd nodes of a capture: views onto columns, and the joins to touches, parity and times. */
import { rowsOf, sent, unpack } from "./columns.js";
import { Drawable, FLAGS, heldBy } from "./drawable.js";
import { familyOfKind, lookOf, plain } from "./families.js";
import { IS_PASSING } from "./palette.js";
import { readTouches } from "./touches.js";
import { groupRows } from "./tree.js";

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
    return this.parent.module || null;
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
    return IS_PASSING[this.verdict] ?? false;
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

export class Graph extends Drawable {
  letter = "n";
  #touches = null;
  #touchPart = null;
  #moduleWords = null;

  constructor(bytes) {
    super();
    const { facts, tables, columns } = unpack(bytes);
    Object.assign(this, { data: facts, tables, columns, saves: columns });
    this.names = tables.names.map(lookOf);
    this.rows = groupRows({ columns, tables });
    this.grouped = this.rows.length > 1;
    this.model = facts.model || facts.title || "No capture"; // the class of the subject is known only if it made a node itself
    this.arrange({
      list: Array.from(columns.id, (_, i) => new Node(this, i)),
      from: columns.edge_from,
      to: columns.edge_to,
      groupOf: columns.group,
      rows: this.rows,
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
          good: IS_PASSING[verdict] ?? false,
          rel: known ? c.row_rel[k] : null,
          abs: Number.isNaN(c.row_abs[k]) ? null : c.row_abs[k],
          relative: known ? c.row_rel[k] : IS_PASSING[verdict] ? 0 : Infinity,
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

  /** Takes over where NaN and infinity begin; null and empty where that was not looked for. */
  setNonfinite(bytes) {
    this.nonfinite = this.#part(bytes)?.facts ?? null;
  }

  /** What a word is looked for in, of each group by its row; nothing of the subject, for every node is in it. */
  get moduleWords() {
    if (!this.#moduleWords) {
      this.#moduleWords = this.rows.map(() => "");
      for (const { row, module, cls } of this.groups.values()) if (row) this.#moduleWords[row] = `${module} ${cls}`;
    }
    return this.#moduleWords;
  }

  /** Whether a word is found at a node, by its place: see `FLAGS` for those with a meaning. Words are looked up in the tables first. */
  finder(word) {
    if (FLAGS[word]) return (i) => FLAGS[word](this.list[i]);
    const { columns: c, tables: t } = this;
    if (/^#\d+$/.test(word)) return (i) => c.id[i] === Number(word.slice(1));
    const found = (table) => Uint8Array.from(table ?? [], (text) => text.toLowerCase().includes(word));
    const [names, kinds, modules, parameters] = [t.names, t.kinds, this.moduleWords, t.parameters].map(found);
    const lines = found(t.lines.map(([place, , text]) => `${place} ${text}`));
    return (i) =>
      names[c.name[i]] ||
      kinds[c.kind[i]] ||
      modules[c.group[i]] ||
      (c.parameter[i] && parameters[c.parameter[i] - 1]) ||
      (c.line[i] && lines[c.line[i] - 1]);
  }
}
