/** A graph's code, packed apart because it outweighs the rest: lines, the node each belongs to, and the lines each reads. */
import { rowsOf, unpack } from "./columns.js";

export class Code {
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
export function statement(text) {
  const m = /^(\S+) = ([^(\s]*)([\s\S]*)$/.exec(text);
  return m ? m.slice(1) : [text, "", ""];
}
