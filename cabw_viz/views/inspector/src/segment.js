/** A row of buttons, one of them on; arrow keys go from one to the next. */
import { h } from "./dom.js";

export class Segment {
  /** `options`: [value, text] of each button. `changed(value)` is called when a person picks one. */
  constructor(label, options, value, changed) {
    this.el = h("div.cabw-seg", { role: "radiogroup", "aria-label": label, onkeydown: (e) => this.#key(e) });
    for (const [v, text] of options) {
      const pick = () => {
        this.mark(v);
        changed(v);
      };
      this.el.append(h("button", { role: "radio", "data-value": v, onclick: pick }, text));
    }
    this.mark(value);
  }

  /** Shows which one is on; another value than those of the buttons stands for none. */
  mark(value) {
    const buttons = [...this.el.children];
    for (const b of buttons) {
      b.setAttribute("aria-checked", String(b.dataset.value === value));
      b.tabIndex = b.dataset.value === value ? 0 : -1;
    }
    if (!buttons.some((b) => !b.tabIndex)) this.el.firstChild.tabIndex = 0;
  }

  #key(e) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!by) return;
    const buttons = [...this.el.children];
    const next = buttons[(buttons.indexOf(e.target) + by + buttons.length) % buttons.length];
    e.preventDefault();
    next.focus();
    next.click();
  }
}
