/** The six panels and the tabs above them. A panel is a function of the inspector that returns DOM; each row leads back to the graph. */
import { h, number } from "./dom.js";
import { codePanel } from "./panels/code.js";
import { memoryPanel } from "./panels/memory.js";
import { metadataPanel } from "./panels/metadata.js";
import { missesPanel } from "./panels/misses.js";
import { nodePanel } from "./panels/node.js";
import { parityPanel } from "./panels/parity.js";

const TABS = {
  node: ["Node", nodePanel],
  metadata: ["Metadata", metadataPanel],
  parity: ["Parity", parityPanel],
  memory: ["Memory", memoryPanel],
  misses: ["Misses", missesPanel],
  code: ["Code", codePanel],
};
const FOCUSABLE = "button, input, select, [tabindex]";

export class Panels {
  tab = "node";
  #shownTab = null;
  #shownFor = null;
  #states = new Map();

  constructor(inspector) {
    this.inspector = inspector;
    this.tabBar = h("div.cabw-tabs", { role: "tablist", "aria-label": "Panels", onkeydown: (e) => this.#key(e) });
    this.body = h("div.cabw-body", {
      role: "tabpanel",
      tabIndex: 0,
      "aria-label": "Panel",
      onpointerover: (e) => inspector.point(e.target.closest?.("[data-key]")?.dataset.key),
      onpointerleave: () => inspector.hover(null),
    });
  }

  /** What a panel remembers from one time that it is built to the next: `initial()` at first. */
  state(name, initial) {
    if (!this.#states.has(name)) this.#states.set(name, initial());
    return this.#states.get(name);
  }

  forget(name) {
    this.#states.delete(name);
  }

  open(tab, focus) {
    this.tab = tab;
    this.inspector.refreshPanel();
    if (focus) this.#focusTab();
  }

  scrollTo(top) {
    this.body.scrollTop = top;
  }

  #key(e) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    const tabs = Object.keys(TABS);
    if (by) this.open(tabs[(tabs.indexOf(this.tab) + by + tabs.length) % tabs.length], true);
  }

  #focusTab() {
    this.tabBar.querySelector("[aria-selected=true]")?.focus();
  }

  /** Builds the panel that is open, and the tabs. */
  show() {
    const { tab, body, inspector } = this;
    const same = this.#shownTab === tab && (tab !== "node" || this.#shownFor === inspector.selection);
    const top = same ? body.scrollTop : 0;
    const restoreFocus = this.#focusRestorer();
    const [, panel] = TABS[tab];
    this.tabBar.replaceChildren(...Object.keys(TABS).map((key) => this.#tabButton(key)));
    body.replaceChildren(panel(inspector));
    body.scrollTop = top;
    restoreFocus();
    this.#shownTab = tab;
    this.#shownFor = inspector.selection;
  }

  #tabButton(key) {
    const { graph, session } = this.inspector;
    const [count, css] = {
      metadata: [graph.touched.length, ".alarm"],
      parity: [graph.wrong.length, ".alarm"],
      misses: [session.again.length, ""],
    }[key] ?? [0, ""];
    const selected = key === this.tab;
    return h(
      "button",
      {
        role: "tab",
        "aria-selected": String(selected),
        tabIndex: selected ? 0 : -1,
        onclick: () => this.inspector.openTab(key),
      },
      TABS[key][0],
      count ? h(`span.cabw-count${css}`, null, number(count)) : null,
    );
  }

  /** Remembers what has the focus among tabs and panel; the function that it returns gives the focus back to what replaced it. */
  #focusRestorer() {
    const { body, tabBar } = this;
    const { activeElement: focused } = body.getRootNode();
    if (focused && tabBar.contains(focused)) return () => this.#focusTab();
    if (!focused || focused === body || !body.contains(focused)) return () => {};
    const { key } = focused.dataset;
    const name = signature(focused);
    return () => {
      const elements = [...body.querySelectorAll(FOCUSABLE)];
      const same =
        elements.find((el) => signature(el) === name) ?? elements.find((el) => key && el.dataset.key === key);
      (same ?? body).focus({ preventScroll: true }); // else the focus would fall off the page
    };
  }
}

const signature = (el) => [el.localName, el.dataset.key, el.getAttribute("aria-label") ?? el.textContent].join();
