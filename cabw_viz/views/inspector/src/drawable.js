/**
 * What the canvas can draw: nodes in the order in which they run, edges between them, and a tree of groups over them.
 * An item is a node or a group: items[0..n) are the nodes, the groups follow. graph.js draws autograd nodes this way,
 * ops.js the nodes of a graph. Runs on the page and, for the layout, in the worker.
 */
import { rowsOf } from "./columns.js";
import { treeOf } from "./tree.js";

export class Drawable {
  #flagged = null;

  /** Takes nodes, the ends of their edges, and the tree over them; see `treeOf`. */
  arrange({ list, from, to, groupOf, rows, name }) {
    const n = list.length;
    Object.assign(this, { list, edges: { from, to }, edgeCount: from.length });
    this.nodes = new Map(list.map((node) => [node.id, node]));
    this.down = rowsOf(n, from, to);
    this.up = rowsOf(n, to, from);
    Object.assign(this, treeOf(list, groupOf, rows, name));
    this.items = [...list, ...this.groups.values()];
    let i = n;
    for (const g of this.groups.values()) g.index = i++;
    this.inner = [...this.groups.values()].sort((a, b) => b.depth - a.depth); // innermost first
  }

  /** The paths of all groups. */
  all() {
    return new Set([...this.groups.keys()].filter(Boolean));
  }

  /** The items that have a badge, and the groups around them; computed at first use after a change. */
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

  /** A flag for each group, by index: whether it is open. The layout takes these. */
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
export const FLAGS = Object.assign(Object.create(null), {
  "is:touched": (n) => n.initial || n.passes,
  "is:read": (n) => n.execution,
  "is:diverging": (n) => n.compared && !n.good,
  "is:first": (n) => n.origin,
  "is:failed": (n) => n.failed,
  "is:parameter": (n) => n.parameter,
  "has:hook": (n) => n.hooks,
});
/** Those that a panel names; the others say the same in other words. */
export const NAMED = Object.keys(FLAGS);
FLAGS["is:differs"] = FLAGS.diverging = FLAGS["is:diverging"];
FLAGS.touched = FLAGS["is:touched"];

/** Bytes held by the tensors that nodes save, each storage once, parameters and buffers left out. Read off the columns: it runs over whole graphs. */
export function heldBy(nodes) {
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
