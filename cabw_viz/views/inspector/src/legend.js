/** The legend of the colouring: one entry a class, with its count; each is a filter. */
import { h, mark, number } from "./dom.js";
import { composition, ENCODINGS, RARE } from "./encode.js";

export class Legend {
  /** The classes that are shown alone; empty for all. */
  filter = new Set();

  constructor(inspector) {
    this.inspector = inspector;
    this.el = h("div.cabw-legend", { role: "group", "aria-label": "Legend, each entry filters" });
  }

  /** `colour` names the colouring. */
  show(colour) {
    const encoding = ENCODINGS[colour];
    const counts = composition(encoding, this.inspector.drawn.list);
    const classes = encoding.classes.filter(([key]) => counts.get(key) || !RARE.has(key));
    this.el.replaceChildren(...classes.map((entry) => this.#chip(entry, counts)));
    const offer = this.#offer(colour);
    if (offer) this.el.append(h("button.cabw-link", { onclick: offer.onclick }, `${offer.text} ›`));
  }

  /** Another colouring has other classes. */
  clearFilter() {
    this.filter.clear();
  }

  #chip([key, label, token, shape], counts) {
    const chip = h(
      "button.cabw-chip",
      {
        disabled: !counts.get(key),
        "aria-pressed": String(this.filter.has(key)),
        title: "Show only these",
        onclick: () => {
          if (!this.filter.delete(key)) this.filter.add(key);
          chip.setAttribute("aria-pressed", String(this.filter.has(key)));
          this.inspector.emphasise();
        },
      },
      mark(shape, `var(--${token})`, 11),
      label,
      h("span", null, number(counts.get(key))),
    );
    return chip;
  }

  /** Where the colouring needs what has not been computed: the way to what computes it. */
  #offer(colour) {
    const { inspector } = this;
    const { graph } = inspector;
    if (graph.data.failure || !graph.nodes.size) return null;
    if (colour === "time" && !graph.times)
      return {
        text: "Time the nodes",
        onclick: () => {
          inspector.select("");
          inspector.openTab("node");
        },
      };
    if (colour === "parity" && !graph.parity && !graph.divergence)
      return { text: "Compare", onclick: () => inspector.openTab("parity") };
    return null;
  }
}
