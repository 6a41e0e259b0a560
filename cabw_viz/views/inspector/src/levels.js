/**
 * The levels of the graph: which graph each draws, and where its data comes from. `module` and `autograd` draw autograd
 * nodes, all groups closed or all open; `fx` and `aten` draw the nodes of a graph, whose code is asked for when the level
 * is first shown.
 */
import { LayoutClient } from "./client.js";
import { Code } from "./code.js";
import { sent } from "./columns.js";
import { Graph } from "./graph.js";
import { OpsGraph } from "./ops.js";

export const LEVELS = [
  ["module", "Module", "Modules, closed"],
  ["autograd", "Autograd", "Every autograd node"],
  ["fx", "FX", "The nodes of the captured graph, without those that only carry values"],
  ["aten", "Aten", "The aten operators of the lowered graph"],
];
/** The part that a level is made of, and the letter that begins the keys of its nodes. */
const MADE_OF = { fx: ["code", "f"], aten: ["aten", "a"] };
const LEVEL_OF = { f: "fx", a: "aten" };

export class Levels {
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
export const levelFor = (key, now) => LEVEL_OF[key[0]] ?? now;

/** What an item of one graph is in another: itself, its autograd node, or the module around it; "" for nothing. */
export function translated(key, from, to) {
  if (!key || to.item(key)) return key;
  const item = from.item(key);
  const base = item?.owner ?? (item?.nodes ? null : item?.base);
  if (base && to.item(base.key)) return base.key;
  for (let group = item; group; group = group.parent) {
    const same = group.path && to.groups.get(group.path);
    if (same) return same.key;
  }
  return "";
}
