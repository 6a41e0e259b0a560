/** A few words about what is under the pointer, after a short rest. */
import { h, plural, shape } from "./dom.js";
import { bytes } from "./encode.js";
import { heldBy } from "./graph.js";
import { place } from "./parts.js";

const REST = 320;

export class Tooltip {
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
    const { graph, renderer } = this.ins;
    const item = graph.item(key);
    if (!item) return;
    const name = item.nodes ? item.path : `${item.name} #${item.id}`;
    const lines = item.nodes ? this.#ofGroup(item) : this.#ofNode(item);
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
      this.ins.told(g),
    ];
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
      this.ins.told(n),
    ];
  }

  stop() {
    clearTimeout(this.timer);
  }
}
