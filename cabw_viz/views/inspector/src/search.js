/** Search: its box in the toolbar, which nodes match, and the steps from one match to the next. */
import { h, ICON, iconButton, number, svg } from "./dom.js";

export class Search {
  /** Ids of the nodes that match; null without a query. */
  hits = null;
  #at = -1;

  constructor(inspector) {
    this.inspector = inspector;
    this.input = h("input", {
      placeholder: "Search nodes, modules, lines, is:touched",
      "aria-label": "Search",
      spellcheck: false,
      oninput: () => this.find(this.query),
      onkeydown: (e) => this.#key(e),
    });
    this.count = h("output", { "aria-live": "polite" });
    this.slash = h("kbd", { "aria-hidden": "true" }, "/");
    this.steps = [
      iconButton("up", "Previous match", () => this.step(-1)),
      iconButton("down", "Next match", () => this.step(1)),
    ];
    this.clearButton = iconButton("close", "Clear search", () => {
      this.clear();
      this.input.focus();
    });
    this.el = h(
      "div.cabw-search",
      { role: "search" },
      svg(ICON.search),
      this.input,
      this.count,
      this.slash,
      this.steps,
      this.clearButton,
    );
    this.#showCount();
  }

  get query() {
    return this.input.value;
  }

  #key(e) {
    if (e.key === "Enter") {
      e.preventDefault();
      this.step(e.shiftKey ? -1 : 1);
    }
    if (e.key === "Escape") {
      e.preventDefault();
      if (this.query) this.clear();
      else this.inspector.tree.focus();
    }
    e.stopPropagation();
  }

  focus() {
    this.input.focus();
    this.input.select();
  }

  clear() {
    this.find("");
  }

  /** Searches the drawn graph. */
  find(query) {
    const { inspector } = this;
    if (query !== this.query) this.input.value = query;
    this.hits = inspector.drawn.search(query);
    this.#at = -1;
    inspector.setTrait("query", query);
    inspector.emphasise();
    this.#showCount();
    const { tab } = inspector.panels;
    if (tab === "code" || (tab === "node" && !inspector.selection)) inspector.refreshPanel();
  }

  /** Goes to the match that lies `by` steps on. */
  step(by) {
    const { hits, inspector } = this;
    if (!hits?.length) return;
    this.#at = (this.#at + by + hits.length) % hits.length;
    inspector.reveal(inspector.drawn.letter + hits[this.#at]);
    this.#showCount();
  }

  #showCount() {
    const { hits } = this;
    this.count.textContent = hits === null ? "" : this.#countText(hits.length);
    this.clearButton.hidden = hits === null;
    for (const button of this.steps) button.hidden = !hits?.length;
    this.slash.hidden = hits !== null;
  }

  #countText(matches) {
    if (!matches) return "no match";
    const [part, whole] = this.#at < 0 ? [matches, this.inspector.drawn.nodes.size] : [this.#at + 1, matches];
    return `${number(part)} of ${number(whole)}`;
  }
}
