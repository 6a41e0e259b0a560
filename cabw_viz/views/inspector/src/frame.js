/** The DOM around canvas and panels: toolbar, legend, status, and the controls they are made of. */
import { h, ICON, mark, number, plural, svg } from "./dom.js";
import { composition, ENCODINGS } from "./encode.js";
import { LEVELS } from "./levels.js";
import { showNote } from "./note.js";
import { TABS } from "./panels.js";
import { place, title } from "./parts.js";
import { cancel } from "./picture.js";
import { segment } from "./segment.js";

export function frame(ins) {
  const button = (icon, label, onclick) =>
    h("button.cabw-icon", { onclick, title: label, "aria-label": label }, svg(ICON[icon]));
  ins.input = h("input", {
    placeholder: "Search nodes, modules, lines, is:touched",
    "aria-label": "Search",
    spellcheck: false,
    oninput: () => ins.find(ins.input.value),
    onkeydown: (e) => {
      if (e.key === "Enter") {
        e.preventDefault();
        ins.step(e.shiftKey ? -1 : 1);
      }
      if (e.key === "Escape") {
        e.preventDefault();
        if (ins.input.value) {
          ins.input.value = "";
          ins.find("");
        } else ins.tree.focus();
      }
      e.stopPropagation();
    },
  });
  ins.count = h("output", { "aria-live": "polite" });
  ins.slash = h("kbd", { "aria-hidden": "true" }, "/");
  ins.steps = [button("up", "Previous match", () => ins.step(-1)), button("down", "Next match", () => ins.step(1))];
  ins.clearButton = button("close", "Clear search", () => {
    ins.input.value = "";
    ins.find("");
    ins.input.focus();
  });
  for (const b of [...ins.steps, ins.clearButton]) b.hidden = true;
  ins.levelBar = segment(
    "Level",
    LEVELS.filter(([level]) => level !== "module" || ins.graph.grouped),
    "module",
    (v) => ins.setLevel(v),
  );
  const bar = h(
    "div.cabw-bar",
    null,
    h("div.cabw-title", null, h("b", { title: ins.graph.model }, ins.graph.model), captures(ins)),
    ins.graph.nodes.size ? ins.levelBar : null,
    h(
      "div.cabw-search",
      { role: "search" },
      svg(ICON.search),
      ins.input,
      ins.count,
      ins.slash,
      ins.steps,
      ins.clearButton,
    ),
  );
  ins.colours = segment(
    "Colour by",
    Object.entries(ENCODINGS).map(([k, e]) => [k, e.label]),
    "kind",
    (v) => ins.setColour(v),
  );
  ins.legend = h("div.cabw-legend", { role: "group", "aria-label": "Legend, each entry filters" });
  const strip = h("div.cabw-strip", null, h("span.muted", null, "Colour by"), ins.colours, ins.legend);

  ins.canvas = h("canvas", { "aria-hidden": "true" });
  ins.mapCanvas = h("canvas.cabw-map", { "aria-hidden": "true" });
  ins.tree = h("div.cabw-tree", { role: "tree", tabIndex: 0, "aria-label": "Backward graph" });
  ins.crumbs = h("nav.cabw-crumbs", { "aria-label": "Where the view is" });
  ins.zoomOut = h("output", null, "100%");
  const zoom = h(
    "div.cabw-zoom",
    null,
    button("minus", "Zoom out", () => ins.camera.zoom(0.8, undefined, undefined, true)),
    ins.zoomOut,
    button("plus", "Zoom in", () => ins.camera.zoom(1.25, undefined, undefined, true)),
    button("fit", "Fit (f), again for the whole graph", () => ins.camera.fit()),
  );
  ins.busyText = h("span", { role: "status" }, "Laying out…");
  ins.busy = h(
    "div.cabw-busy",
    { hidden: true },
    ins.busyText,
    h("button.cabw-link", { onclick: () => cancel(ins) }, "Cancel"),
  );
  ins.note = h("div.cabw-note", { hidden: true });
  ins.view = h(
    "div.cabw-view",
    null,
    ins.canvas,
    ins.tree,
    ins.mapCanvas,
    ins.crumbs,
    zoom,
    ins.tooltip.el,
    ins.busy,
    ins.note,
  );

  ins.tabBar = h("div.cabw-tabs", {
    role: "tablist",
    "aria-label": "Panels",
    onkeydown: (e) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
      const keys = Object.keys(TABS);
      if (by) {
        ins.openTab(keys[(keys.indexOf(ins.tab) + by + keys.length) % keys.length], true);
      }
    },
  });
  const point = (e) => {
    ins.point(e.target.closest?.("[data-key]")?.dataset.key);
  };
  ins.body = h("div.cabw-body", {
    role: "tabpanel",
    tabIndex: 0,
    "aria-label": "Panel",
    onpointerover: point,
    onpointerleave: () => ins.hover(null),
  });
  const panel = h("section.cabw-panel", { "aria-label": "Details" }, splitter(ins), ins.tabBar, ins.body);
  ins.keys = h(
    "div.cabw-keys",
    { hidden: true },
    [
      ["Along edges", "↑ ↓"],
      ["Across a row", "← →"],
      ["Open or close a group", "Enter"],
      ["To the group around", "Backspace"],
      ["Search, next, previous", "/  n  N"],
      ["Fit width, then all", "f"],
      ["Zoom", "+  −  0"],
      ["Clear selection, then search", "Esc"],
      ["Zoom with the wheel", "Ctrl"],
    ].map(([a, b]) => h("div", null, a, h("kbd", null, b))),
  );
  ins.statusLine = h("div.cabw-status", { role: "status" });
  ins.el.append(h("div.cabw-frame", null, bar, strip, ins.view, panel, ins.statusLine), ins.keys);
  status(ins);
  showNote(ins);
}

/** Which capture is shown, and a way to the others. */
function captures(ins) {
  const { captures: all } = ins.session;
  const shown = ins.graph.data.capture;
  if (all.length < 2) return h("span", null, ins.graph.data.model ? ins.graph.data.title : "");
  const options = all.map((c, i) =>
    h(
      "option",
      { value: String(i), selected: i === shown },
      `${i}: ${c.title}, ${number(c.nodes)} nodes${c.failed ? ", failed" : ""}`,
    ),
  );
  const select = h(
    "select.cabw-captures",
    { "aria-label": "Capture", onchange: () => ins.openCapture(Number(select.value)) },
    options,
  );
  return select;
}

/** The line at the bottom: counts, and what was found, each a way to it. */
export function status(ins) {
  const g = ins.graph;
  const { touched } = g;
  const toTouches = () => {
    ins.setColour("touches");
    ins.openTab("metadata");
    if (touched[0]) ins.reveal(touched[0].key);
  };
  const watched = g.watched.has("initial_trace");
  ins.statusLine.replaceChildren(
    h("span", null, plural(ins.drawn.nodes.size, g === ins.drawn ? "node" : "graph node")),
    h("span", null, plural(ins.drawn.edgeCount, "edge")),
    h(
      "button",
      { onclick: toTouches },
      touched.length
        ? `${plural(touched.length, "node")} touched before the graph ran`
        : watched
          ? "initial trace: untouched"
          : "initial trace: not watched",
    ),
    parityStatus(ins),
    h("button.end", { onclick: () => ins.help(), title: "Keyboard help" }, "Keys ?"),
  );
}

function parityStatus(ins) {
  const { first, wrong, parity, parameters } = ins.graph;
  const see = () => {
    ins.setColour("parity");
    ins.openTab("parity");
    if (first) ins.reveal(first.key);
  };
  const where = first ? `, first at ${title(first)}, ${place(ins, first)}` : "";
  if (!parity)
    return h("button.cut", { onclick: see }, first ? `gradients part${where.slice(1)}` : "parity: not computed");
  return h(
    "button.cut",
    { onclick: see },
    wrong.length
      ? `parity: ${number(wrong.length)} of ${plural(parameters.length, "gradient")} differ${where}`
      : `parity: ${parity.ok ? "all agree" : "nothing compared"}`,
  );
}

function splitter(ins) {
  const bar = h("div.cabw-split", { "aria-hidden": "true" });
  bar.addEventListener("pointerdown", (e) => {
    bar.setPointerCapture(e.pointerId);
    const right = ins.el.getBoundingClientRect().right;
    bar.onpointermove = (m) => {
      ins.el.style.setProperty("--panel", `${Math.max(280, Math.min(ins.el.clientWidth * 0.6, right - m.clientX))}px`);
    };
    bar.onpointerup = () => {
      bar.onpointermove = null;
      ins.refreshPanel();
    };
  });
  return bar;
}

/** What a colouring asks for that has not been computed: words, and the way to what computes it. */
function lacking(ins) {
  const { graph } = ins;
  if (graph.data.failure || !graph.nodes.size) return null;
  const times = () => {
    ins.select("");
    ins.openTab("node");
  };
  if (ins.colour === "time" && !graph.times) return ["Time the nodes", times];
  if (ins.colour === "parity" && !graph.parity && !graph.divergence) return ["Compare", () => ins.openTab("parity")];
  return null;
}

/** One entry a class, with its count; each is a filter. */
export function legend(ins) {
  const encoding = ENCODINGS[ins.colour];
  const counts = composition(encoding, ins.drawn.list);
  const rare = new Set(["custom", "compiled", "check", "hook", "first"]); // not worth a place where there are none
  const classes = encoding.classes.filter(([key]) => counts.get(key) || !rare.has(key));
  ins.legend.replaceChildren(
    ...classes.map(([key, label, token, shape]) =>
      h(
        "button.cabw-chip",
        {
          disabled: !counts.get(key),
          "aria-pressed": String(ins.filter.has(key)),
          title: "Show only these",
          onclick: (e) => {
            if (!ins.filter.delete(key)) ins.filter.add(key);
            e.currentTarget.setAttribute("aria-pressed", String(ins.filter.has(key)));
            ins.emphasise();
          },
        },
        mark(shape, `var(--${token})`, 11),
        label,
        h("span", null, number(counts.get(key))),
      ),
    ),
  );
  const missing = lacking(ins);
  if (missing) ins.legend.append(h("button.cabw-link", { onclick: missing[1] }, `${missing[0]} ›`));
}
