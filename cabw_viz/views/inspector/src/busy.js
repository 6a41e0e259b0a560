/** What stands over the canvas while a layout takes long: how far it has come, and a way to give it up. */
import { h, number } from "./dom.js";

const PATIENCE = 150; // milliseconds

export class Busy {
  #timer = null;

  constructor(cancel) {
    this.text = h("span", { role: "status" }, "Laying out…");
    this.el = h("div.cabw-busy", { hidden: true }, this.text, h("button.cabw-link", { onclick: cancel }, "Cancel"));
  }

  begin() {
    this.#timer ??= setTimeout(() => (this.el.hidden = false), PATIENCE);
    this.text.textContent = "Laying out…";
  }

  progress(share) {
    this.text.textContent = `Laying out… ${number(Math.round(share * 100))}%`;
  }

  end() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.el.hidden = true;
  }
}
