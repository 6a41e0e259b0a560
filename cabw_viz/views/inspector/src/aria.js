/**
 * The tree a screen reader gets: what the canvas shows, in the same order. Only what is in sight exists, and the selection,
 * so that its cost follows the window and not the graph; aria-posinset and aria-setsize say where in the whole each item is.
 */
import { h, plural } from "./dom.js";
import { findingsText } from "./parts.js";
import { badges } from "./shapes.js";

const MOST = 150;
const WAIT = 120;
let instances = 0;

export class AriaTree {
  prefix = `cabw${++instances}-t-`;
  elements = new Map();

  constructor(inspector) {
    this.inspector = inspector;
  }

  /** After a movement has settled; assistive technology reads much slower than the view pans. */
  schedule() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.update(), WAIT);
  }

  update() {
    const { inspector } = this;
    const { renderer, scene } = inspector;
    if (!scene) return;
    const list = renderer.inSight(MOST);
    const selected = scene.box(renderer.state.selection);
    const keep = new Map();
    if (selected && !list.some((b) => b.item === selected.item)) list.push(selected);
    list.sort((a, b) => a.y - b.y || a.x - b.x || a.depth - b.depth);
    for (const b of list)
      keep.set(
        b.item,
        this.elements.get(b.item)?.open === (b.kind === "open") ? this.elements.get(b.item) : this.#element(b),
      );
    this.elements = keep;
    inspector.tree.replaceChildren(...[...keep.values()].map((e) => e.el));
    this.select();
  }

  #element(b) {
    const { item } = b;
    const open = b.kind === "open";
    const [position, size] = place(item);
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
          ? `${item.name}, ${item.cls || "group"}, ${plural(item.nodes.length, "node")}${this.#findings(item)}`
          : `${item.parameter ? `gradient of ${item.parameter}` : item.name}${item.tag ? `, number ${item.tag.slice(1)}` : ""}${this.#findings(item)}`,
      ),
    };
  }

  #findings(item) {
    return badges(item).length || (!item.nodes && item.relative) ? `, ${findingsText(item)}` : "";
  }

  /** Points assistive technology at the selection, which is made on the spot if it has no element yet. */
  select() {
    const { tree, renderer, drawn } = this.inspector;
    const item = drawn.item(renderer.state.selection);
    const known = item && this.elements.get(item);
    tree.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    if (item && !known && this.inspector.scene?.box(renderer.state.selection)) return this.update();
    if (known) {
      known.el.setAttribute("aria-selected", "true");
      tree.setAttribute("aria-activedescendant", known.el.id);
    } else tree.removeAttribute("aria-activedescendant");
  }

  stop() {
    clearTimeout(this.timer);
  }
}

const orders = new WeakMap(); // of each group: the number of each item in it

/** Which of how many an item is among those of its group, in backward order. */
function place(item) {
  const group = item.parent;
  if (!group) return [1, 1];
  if (!orders.has(group)) orders.set(group, orderOf(group));
  const order = orders.get(group);
  return [order.get(item), order.size];
}

function orderOf(group) {
  const first = (item) => (item.nodes ? item.nodes[0].index : item.index);
  const items = [...group.own, ...group.children].sort((a, b) => first(a) - first(b));
  return new Map(items.map((item, i) => [item, i + 1]));
}
