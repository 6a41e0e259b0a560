/** The DOM around canvas and panels. The inspector's parts bring their own elements; the frame has the rest and their places. */
import { h, iconButton, number } from "./dom.js";
import { ENCODINGS } from "./encode.js";
import { LEVELS } from "./levels.js";
import { noteOf } from "./note.js";
import { Segment } from "./segment.js";
import { statusItems } from "./status.js";

const KEYS = [
  ["Along edges", "↑ ↓"],
  ["Across a row", "← →"],
  ["Open or close a group", "Enter"],
  ["To the group around", "Backspace"],
  ["Search, next, previous", "/  n  N"],
  ["Fit width, then all", "f"],
  ["Zoom", "+  −  0"],
  ["Clear selection, then search", "Esc"],
  ["Zoom with the wheel", "Ctrl"],
];

export class Frame {
  constructor(inspector) {
    this.inspector = inspector;
    const { graph } = inspector;
    this.levels = new Segment(
      "Level",
      LEVELS.filter(([level]) => level !== "module" || graph.grouped),
      "module",
      (level) => inspector.setLevel(level),
    );
    this.colours = new Segment(
      "Colour by",
      Object.entries(ENCODINGS).map(([name, encoding]) => [name, encoding.label]),
      "family",
      (name) => inspector.setColour(name),
    );
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.map = h("canvas.cabw-map", { "aria-hidden": "true" });
    this.tree = h("div.cabw-tree", { role: "tree", tabIndex: 0, "aria-label": "Backward graph" });
    this.crumbs = h("nav.cabw-crumbs", { "aria-label": "Where the view is" });
    this.zoom = h("output", null, "100%");
    this.note = h("div.cabw-note", { hidden: true });
    this.view = this.#view();
    this.status = h("div.cabw-status", { role: "status" });
    this.keys = h(
      "div.cabw-keys",
      { hidden: true },
      KEYS.map(([text, key]) => h("div", null, text, h("kbd", null, key))),
    );
    const { panels } = inspector;
    const panel = h("section.cabw-panel", { "aria-label": "Details" }, this.#splitter(), panels.tabBar, panels.body);
    this.el = h(
      "div.cabw-inspector",
      { role: "region", "aria-label": "cabw_viz inspector" },
      h("div.cabw-frame", null, this.#bar(), this.#strip(), this.view, panel, this.status),
      this.keys,
    );
  }

  #bar() {
    const { graph, search } = this.inspector;
    return h(
      "div.cabw-bar",
      null,
      h("div.cabw-title", null, h("b", { title: graph.model }, graph.model), this.#captures()),
      graph.nodes.size ? this.levels.el : null,
      search.el,
    );
  }

  /** Which capture is shown, and a way to the others. */
  #captures() {
    const { session, graph } = this.inspector;
    const { captures } = session;
    if (captures.length < 2) return h("span", null, graph.data.model ? graph.data.title : "");
    const options = captures.map((c, i) =>
      h(
        "option",
        { value: String(i), selected: i === graph.data.capture },
        `${i}: ${c.title}, ${number(c.nodes)} nodes${c.failed ? ", failed" : ""}`,
      ),
    );
    const select = h(
      "select.cabw-captures",
      { "aria-label": "Capture", onchange: () => this.inspector.openCapture(Number(select.value)) },
      options,
    );
    return select;
  }

  #strip() {
    const label = h("span.muted", null, "Colour by");
    return h("div.cabw-strip", null, label, this.colours.el, this.inspector.legend.el);
  }

  #view() {
    const { tooltip, busy } = this.inspector;
    const zoom = h(
      "div.cabw-zoom",
      null,
      iconButton("minus", "Zoom out", () => this.inspector.camera.zoom(0.8, { animate: true })),
      this.zoom,
      iconButton("plus", "Zoom in", () => this.inspector.camera.zoom(1.25, { animate: true })),
      iconButton("fit", "Fit (f), again for the whole graph", () => this.inspector.camera.fit()),
    );
    return h(
      "div.cabw-view",
      null,
      this.canvas,
      this.tree,
      this.map,
      this.crumbs,
      zoom,
      tooltip.el,
      busy.el,
      this.note,
    );
  }

  #splitter() {
    const bar = h("div.cabw-split", { "aria-hidden": "true" });
    bar.addEventListener("pointerdown", (e) => {
      bar.setPointerCapture(e.pointerId);
      const { right } = this.el.getBoundingClientRect();
      bar.onpointermove = ({ clientX }) => {
        const width = Math.max(280, Math.min(this.el.clientWidth * 0.6, right - clientX));
        this.el.style.setProperty("--panel", `${width}px`);
      };
      bar.onpointerup = () => {
        bar.onpointermove = null;
        this.inspector.refreshPanel();
      };
    });
    return bar;
  }

  /* What changes. */

  /** Which level and which colouring are chosen. */
  showChoices() {
    const { level, graph, colour } = this.inspector;
    this.levels.mark(level === "module" && !graph.grouped ? "autograd" : level);
    this.colours.mark(colour);
  }

  showStatus() {
    this.status.replaceChildren(...statusItems(this.inspector));
  }

  /** What stands over the canvas where there is no picture; what is under it cannot be reached meanwhile. */
  showNote() {
    const note = noteOf(this.inspector);
    this.note.hidden = !note;
    this.note.replaceChildren(...(note ?? []));
    this.tree.inert = this.crumbs.inert = Boolean(note);
  }

  showZoom(k) {
    const percent = `${k < 0.1 ? (k * 100).toFixed(1) : Math.round(k * 100)}%`;
    if (this.zoom.textContent !== percent) this.zoom.textContent = percent;
  }

  /** The open groups around the view, each a button; the outermost first. */
  showCrumbs(boxes, go) {
    const button = (b) => h("button", { title: `Go to the top of ${b.item.path}`, onclick: () => go(b) }, b.item.name);
    this.crumbs.replaceChildren(...boxes.flatMap((b, i) => (i ? [h("i", null, "›"), button(b)] : [button(b)])));
  }

  /** What the pointer does: "hit" over something, "grab" while it drags, "". */
  showCursor(name) {
    this.view.dataset.cursor = name;
  }

  get helpIsShown() {
    return !this.keys.hidden;
  }

  toggleHelp() {
    this.keys.hidden = !this.keys.hidden;
  }
}
