/** Gradients compared with eager: a verdict for each leaf, and the error at each node if the first divergence was searched. */
import { h, mark, number, plural, shape } from "../dom.js";
import { error } from "../encode.js";
import { virtualList } from "../list.js";
import { ALARM, empty, finding, heading, meter, place, title } from "../parts.js";
import { DIFFERS_MUCH, VERDICT_MARKS } from "../palette.js";
import { Segment } from "../segment.js";
import { taskForm } from "../task.js";
import { chart } from "./chart.js";

const ROW = 26;
const FILTERS = [
  ["bad", "Differ", (row) => !row.good],
  ["close", "Close", (row) => row.good && row.verdict !== "bitwise"],
  ["equal", "Equal", (row) => row.verdict === "bitwise"],
  ["all", "All", () => true],
];
const ORDERS = {
  rel: (a, b) => b.relative - a.relative,
  abs: (a, b) => (b.abs ?? Infinity) - (a.abs ?? Infinity),
  name: (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }),
};

export function parityPanel(inspector) {
  const { graph } = inspector;
  if (!graph.parity)
    return h(
      "div.cabw-pad",
      null,
      h("h2", null, "Parity"),
      taskForm(inspector, "parity", "Parity has not been computed."),
      graph.data.traced ? divergenceParts(inspector) : null,
    );
  const ui = inspector.panels.state("parity list", () => ({ show: graph.wrong.length ? "bad" : "all", by: "order" }));
  const rows = visibleRows(graph, ui);
  return h(
    "div",
    null,
    h(
      "div.cabw-pad.cabw-tight",
      null,
      summary(inspector),
      divergenceParts(inspector),
      heading("Parameters"),
      conditions(inspector),
      taskForm(inspector, "parity"),
    ),
    graph.parameters.length ? [toolbar(inspector, ui), columns(inspector, ui), table(inspector, rows)] : null,
  );
}

/** Whether the conditions are unfolded, and the selection that the list was scrolled to. */
const parityMemo = () => ({ conditions: false, scrolledTo: null });

function visibleRows(graph, ui) {
  const [, , test] = FILTERS.find(([key]) => key === ui.show) ?? FILTERS.at(-1);
  const rows = graph.parameters.filter(test);
  return ORDERS[ui.by] ? rows.sort(ORDERS[ui.by]) : rows;
}

function summary(inspector) {
  const { parity, wrong, parameters } = inspector.graph;
  const count = plural(parameters.length, "gradient");
  const head = !parameters.length
    ? "No gradient was compared"
    : wrong.length
      ? `${number(wrong.length)} of ${count} differ`
      : parameters.length === 1
        ? "The one gradient agrees"
        : `All ${count} agree`;
  return [h("h2", null, head), h("p.muted", null, sentence(`${parity.candidate}, against ${parity.reference}.`))];
}

/** How the gradients of parameters were compared; folded, for it is the same each time. */
function conditions(inspector) {
  const { notes, tolerances } = inspector.graph.parity;
  const words = tolerances.map(
    ([dtype, rtol, atol]) =>
      `Tolerance for ${dtype.replace("torch.", "")}: ${error(rtol)} relative, ${error(atol)} of the largest element.`,
  );
  const all = [...words, ...notes.map((note) => sentence(`${note}.`))];
  if (!all.length) return null;
  const memo = inspector.panels.state("parity memo", parityMemo);
  const details = h(
    "details.cabw-details",
    { open: memo.conditions, ontoggle: () => Object.assign(memo, { conditions: details.open }) },
    h("summary", null, "How they were compared"),
    all.map((text) => h("p.muted", null, text)),
  );
  return details;
}

/** Where gradients first part: the steps at fault, and the error at every node. */
function divergenceParts(inspector) {
  const { divergence, culprits } = inspector.graph;
  const missing = "Where gradients first part from eager has not been looked for.";
  if (!divergence) return [heading("First divergence"), taskForm(inspector, "divergence", missing)];
  const step = (c, i) =>
    finding(inspector, {
      icon: i ? "differ" : "flag",
      head: `${i ? "At fault too" : "First divergence"}: ${c.node && !STEPS.has(c.kind) ? title(c.node) : c.name}`,
      text: [
        c.node ? place(inspector, c.node) : "",
        Number.isNaN(c.rel) ? c.verdict.replaceAll("_", " ") : `off by ${error(c.rel)} of the largest element`,
      ]
        .filter(Boolean)
        .join(", "),
      onclick: () => c.node && inspector.reveal(c.node.key),
    });
  const nonfiniteFinding = ([id, text]) =>
    finding(inspector, { icon: "bang", head: text.split(": ")[0], text, onclick: () => inspector.reveal(`n${id}`) });
  return [
    heading("First divergence", divergence.drifts ? "apart by rounding" : ""),
    culprits.length ? culprits.slice(0, MOST).map(step) : h("p", null, divergence.summary),
    culprits.length > MOST ? h("p.muted", null, `${number(culprits.length - MOST)} more steps are at fault.`) : null,
    divergence.nonfinite.map(nonfiniteFinding),
    divergence.notes.map((note) => h("p.muted", null, sentence(`${note}.`))),
    taskForm(inspector, "divergence"),
    divergence.compared ? [heading("Error at each node, in backward order", "relative"), chart(inspector)] : null,
  ];
}

const MOST = 5;
const STEPS = new Set(["gradient_sum", "hook", "in_place_write"]);

const sentence = (text) => text[0].toUpperCase() + text.slice(1);

function toolbar(inspector, ui) {
  const filters = FILTERS.map(([key, text, test]) => [
    key,
    text,
    inspector.graph.parameters.filter(test).length,
  ]).filter(([key, , count]) => count || key === "all");
  const show = filters.some(([key]) => key === ui.show) ? ui.show : "all";
  return h(
    "div.cabw-toolrow.cabw-above",
    null,
    new Segment(
      "Verdict",
      filters.map(([key, text, count]) => [key, `${text} ${number(count)}`]),
      show,
      (key) => change(inspector, ui, { show: key }),
    ).el,
  );
}

function change(inspector, ui, values) {
  Object.assign(ui, values);
  inspector.refreshPanel();
}

function columns(inspector, ui) {
  const column = (key, text, css = "") =>
    h(
      `button${css}`,
      { onclick: () => change(inspector, ui, { by: ui.by === key ? "order" : key }), title: "Sort" },
      text + (ui.by === key ? " ↓" : ""),
    );
  return h(
    "div.cabw-row.cabw-cols.cabw-parity",
    null,
    h("span"),
    column("name", "Gradient"),
    h("span"),
    column("rel", "max rel", ".num"),
    column("abs", "max abs", ".num"),
  );
}

function table(inspector, rows) {
  if (!rows.length) return h("div.cabw-pad", null, empty("None."));
  const selected = new Set(inspector.selectedNodes());
  const current = rows.findIndex((row) => selected.has(row.ref));
  const list = virtualList({
    count: rows.length,
    height: ROW,
    make: (i) => line(inspector, rows[i], selected),
    scroller: () => inspector.panels.body,
  });
  const memo = inspector.panels.state("parity memo", parityMemo);
  if (current >= 0 && inspector.selection !== memo.scrolledTo) {
    memo.scrolledTo = inspector.selection; // once for each selection, so that the list does not fight its reader
    requestAnimationFrame(() => {
      const top = list.offsetTop + current * ROW;
      if (
        list.isConnected &&
        (top < inspector.panels.body.scrollTop ||
          top > inspector.panels.body.scrollTop + inspector.panels.body.clientHeight - ROW)
      )
        inspector.panels.scrollTo(top - inspector.panels.body.clientHeight / 2);
    });
  }
  return list;
}

/** A name in three parts: `layers.3.` and `mlp.` in grey, `weight`. The first part is cut where there is little room. */
function nameParts(name) {
  const last = name.lastIndexOf(".") + 1;
  const middle = last ? name.lastIndexOf(".", last - 2) + 1 : 0;
  return [name.slice(0, middle), name.slice(middle, last), name.slice(last)].map((text, i) =>
    h(i < 2 ? "span.muted" : "span", null, text),
  );
}

function line(inspector, row, selected) {
  const level = row.good ? "q2" : row.relative >= DIFFERS_MUCH ? "d3" : "d2";
  const share = row.relative ? (row.relative === Infinity ? 1 : (Math.log10(row.relative) + 8) / 8) : 0;
  const words = [
    row.verdict.replaceAll("_", " "),
    row.mismatched ? `${number(row.mismatched)} of ${number(row.elements)} elements` : "",
    row.note,
  ]
    .filter(Boolean)
    .join("; ");
  return h(
    "button.cabw-row.cabw-parity",
    {
      "aria-current": selected.has(row.ref) ? "true" : undefined,
      title: `${row.name.slice(0, 500)}  ${shape(row.shape)} ${row.dtype}: ${words}`,
      "data-key": row.ref?.key,
      onclick: () => row.ref && inspector.reveal(row.ref.key),
    },
    mark(VERDICT_MARKS[row.verdict], row.good ? "var(--c-equal)" : ALARM, 11),
    h("span.cabw-name", null, nameParts(row.name)),
    row.relative ? meter(share, `var(--${level})`) : h("span"),
    h(`span.num${row.good ? ".muted" : ""}`, null, row.rel === null ? row.verdict : error(row.rel)),
    h("span.num.muted", null, error(row.abs)),
    h("span.cabw-sr", null, words),
  );
}
