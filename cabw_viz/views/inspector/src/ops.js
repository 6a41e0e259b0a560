/**
 * The nodes of a graph, drawn: those of the captured FX graph or of the lowered one, inside the autograd node that made
 * them, inside its module. Made of the code that is shown as text too, so nothing is sent for it a second time.
 */
import { statement } from "./code.js";
import { Drawable, FLAGS, heldBy } from "./drawable.js";
import { familyOfOperator, operatorOf, plain } from "./families.js";

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
    return this.base && this.parent.owner !== this.base ? `#${this.base.id}` : "";
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
  /** Figures belong to autograd nodes: they cannot be split between its operators, so all of these have its colour. */
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

export class OpsGraph extends Drawable {
  #reads = null;

  /** `letter` begins the keys of its nodes: "f" for the captured graph, "a" for the lowered one. */
  constructor(base, code, letter) {
    super();
    Object.assign(this, { code, letter, data: base.data, model: base.model, saves: base.columns, autograd: base });
    const { line_node: owner, reads_at: at, reads } = code.columns;
    const to = new Uint32Array(reads.length);
    for (let i = 0; i < owner.length; i++) to.fill(i, at[i], at[i + 1]);
    const { rows, groupOf } = this.#homes(base, owner);
    this.arrange({
      list: Array.from(owner, (one, i) => new Op(this, i, one ? base.list[one - 1] : null)),
      from: reads,
      to,
      groupOf,
      rows,
      name: base.model,
    });
    this.#nameOwners();
    this.grouped = this.groups.size > 1;
  }

  /** Each line's group: that of its autograd node's module, or one of the node's own where that has other lines too. */
  #homes(base, owner) {
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
    const rows = [...base.rows];
    const homes = Uint32Array.from(base.columns.group);
    for (const node of base.list) {
      if (counts[node.index + 1] < 2) continue;
      const parent = homes[node.index];
      homes[node.index] = rows.push({ parent, name: `#${node.id}`, cls: `#${node.id}`, owner: node }) - 1;
    }
    return { rows, groupOf: Uint32Array.from(owner, (one) => (one ? homes[one - 1] : 0)) };
  }

  /** Groups that are an autograd node's have its name and its key. */
  #nameOwners() {
    this.owned = new Map();
    for (const group of this.groups.values()) {
      const node = group.owner;
      if (!node) continue;
      Object.assign(group, { name: node.parameter ?? node.label, module: group.parent.module, key: node.key });
      Object.assign(group.parent, { stack: 0, odd: [] }); // calls of one module are no blocks
      this.owned.set(node.key, group);
    }
    for (const op of this.list) if (op.base && !this.owned.has(op.base.key)) this.owned.set(op.base.key, op);
  }

  /** The item of a key; that of an autograd node is its group, or its only graph node. */
  item(key) {
    return key?.[0] === "n" ? this.owned.get(key) : super.item(key);
  }
  renew() {
    super.renew();
    this.#reads = null;
  }

  /** Reads at each graph node, by phase. A read without a known graph node counts at the first of its autograd node. */
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
