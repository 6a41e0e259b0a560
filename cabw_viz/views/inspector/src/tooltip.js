/** A few words about what is under the pointer, after a short rest. */
import { h, plural, shape } from "./dom.js";
import { bytes } from "./encode.js";
import { heldBy } from "./drawable.js";
import { place, findingsText } from "./parts.js";

const REST = 320;

export class Tooltip {
  constructor(inspector) {
    this.inspector = inspector;
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
    const { drawn, graph, renderer } = this.inspector;
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
    this.el.style.left = `${Math.max(4, p[0] + 14 + w > renderer.w - 6 ? p[0] - w - 10 : p[0] + 14)}px`;
    this.el.style.top = `${Math.max(4, Math.min(p[1] + 16, renderer.h - tall - 6))}px`;
  }

  #ofGroup(g) {
    const held = heldBy(g.nodes);
    return [
      [g.cls, plural(g.nodes.length, "node")].filter(Boolean).join(", "),
      held ? `holds ${bytes(held)}` : null,
      findingsText(g),
    ];
  }

  #ofOp(op) {
    const text = op.text.slice(0, 400);
    return [
      text.slice(text.indexOf(" = ") + 3),
      op.base?.title,
      place(this.inspector, op),
      op.line?.[2],
      findingsText(op),
    ];
  }

  #ofNode(n) {
    const { graph } = this.inspector;
    const leaves = graph.leavesOf(n.index).map((leaf) => `${leaf.name} ${shape(leaf.shape)} ${leaf.dtype}`);
    const out = graph.gradients("in", n.index).filter(Boolean);
    return [
      ...leaves,
      n.parameter ? null : place(this.inspector, n),
      n.line?.[2],
      n.parameter ? null : out.map(([s, t]) => `${shape(s)} ${t}`).join(", "),
      findingsText(n),
    ];
  }

  stop() {
    clearTimeout(this.timer);
  }
}
