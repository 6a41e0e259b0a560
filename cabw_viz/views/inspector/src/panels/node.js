/** The selected item; without a selection the findings of the whole capture. */
import { h, mark, plural, shape } from "../dom.js";
import { bytes, differs, duration, error } from "../encode.js";
import { ALARM, facts, kindMark, link, reach } from "../parts.js";
import {
  bakedMetadata,
  graphCode,
  hooks,
  liftedMetadata,
  links,
  operators,
  pathTo,
  savedTensors,
  forwardLine,
} from "./details.js";
import { groupParts } from "./group.js";
import { matches, overview } from "./overview.js";

export function nodePanel(inspector) {
  const item = inspector.drawn.item(inspector.selection);
  if (!item) return inspector.hits ? matches(inspector) : overview(inspector);
  const node = item.owner ?? (inspector.selection[0] === "n" ? item.base : null);
  const parts = node ? nodeParts : item.nodes ? groupParts : opParts;
  return h("div.cabw-pad", null, parts(inspector, node ?? item));
}

const ORIGINS = {
  backward_call: "call of the autograd node",
  aot_op: "operator of a compiled region",
  aten_op: "operator",
  validate_outputs: "check of gradients against what the forward left",
  gradient_sum: "sum of gradients that meet",
  unpack_hook: "hook that unpacks a saved tensor",
};

/** A graph node, and the autograd node that it belongs to. */
function opParts(inspector, op) {
  const reads = [
    op.initial && `${op.initial} initial trace`,
    op.passes && `${op.passes} graph pass`,
    op.execution && `${op.execution} execution`,
  ];
  return [
    h(
      "div.cabw-head",
      null,
      kindMark(op, 15),
      h(
        "h2.clip",
        { title: op.name.slice(0, 2000) },
        h("bdi", null, op.operator),
        h("span.muted", null, `  ${op.name}`),
      ),
    ),
    facts([
      ["Kind", ORIGINS[op.kind] ?? op.kind.replaceAll("_", " ")],
      ["Autograd node", op.base ? link(inspector, op.base.key, op.base.title) : "none"],
      ["Module", op.module || null],
      ["Reads", reads.filter(Boolean).join(", ") || null],
      ["Reach", reach(inspector.cone, ["towards the inputs", "towards the outputs"])],
    ]),
    h("div.cabw-src.mono", null, h("div.cabw-one.cabw-whole", null, op.text.slice(0, 4000))),
    forwardLine(inspector, op),
    links(inspector, op),
  ];
}

function nodeParts(inspector, n) {
  return [
    head(inspector, n),
    nodeFacts(inspector, n),
    forwardLine(inspector, n),
    pathTo(inspector, n),
    links(inspector, n),
    hooks(inspector, n),
    savedTensors(inspector, n),
    liftedMetadata(inspector, n),
    bakedMetadata(inspector, n),
    operators(inspector, n),
    graphCode(inspector, n),
  ];
}

/** The difference that a step makes on its own: its inputs match eager. */
function faultText(c) {
  const what = Number.isNaN(c.rel)
    ? c.verdict.replaceAll("_", " ")
    : `${error(c.rel)} relative, ${error(c.abs)} absolute`;
  const step = { gradient_sum: `The ${c.name}`, hook: `The ${c.name}` }[c.kind] ?? "It";
  return h(
    "p.cabw-fault",
    null,
    `${step} has inputs that match eager and an output that does not: ${what}${c.note ? `; ${c.note}` : ""}.`,
  );
}

function verdictText(n) {
  return n.verdict === "bitwise" ? "bitwise equal to eager" : n.verdict.replaceAll("_", " ");
}

/** The relative error; where it is infinite, the verdict. */
const differenceText = (n) =>
  n.relative < Infinity ? `differs by ${error(n.relative)}` : n.verdict.replaceAll("_", " ");

function head(inspector, n) {
  const verdict =
    !n.compared || n.origin
      ? null
      : differs(n)
        ? h("span.cabw-tag.alarm", null, mark("differ", ALARM, 10), n.row ? n.row.verdict : differenceText(n))
        : h("span.cabw-tag", null, mark("equal", "var(--muted)", 10), verdictText(n));
  const tags = [
    n.failed && h("span.cabw-tag.alarm", null, mark("cross", ALARM, 10), "The trace stopped here"),
    n.unreached && h("span.cabw-tag", null, "Not reached: the trace stopped before it"),
    n.origin && h("span.cabw-tag.alarm", null, mark("flag", ALARM, 10), "First divergence"),
    n.initial && h("span.cabw-tag.alarm", null, mark("bang", ALARM, 10), "Touched in the initial trace"),
    n.passes && h("span.cabw-tag.alarm", null, mark("bang", ALARM, 10), "Looked for in a graph pass"),
    n.hooks && h("span.cabw-tag", null, mark("hook", "currentColor", 11), plural(n.hooks, "hook")),
    verdict,
  ].filter(Boolean);
  return h(
    "div",
    null,
    h(
      "div.cabw-head",
      null,
      kindMark(n, 15),
      h(
        "h2.clip",
        { title: n.name.slice(0, 2000) },
        h("bdi", null, n.name || "(no name)"),
        h("span.muted", null, `  #${n.id}`),
      ),
    ),
    tags.length ? h("div.cabw-tags", null, tags) : null,
    n.failed ? h("pre.cabw-error", null, inspector.graph.data.failure) : null,
    inspector.graph.culprits.filter((c) => c.node === n).map(faultText),
  );
}

const spec = (g) => (g ? `${shape(g[0])}  ${g[1]}` : "not known");
const specs = (list) =>
  list.length && list.some(Boolean)
    ? [...new Set(list.map(spec))].slice(0, 6).map((text) => h("div", null, text))
    : null;

function nodeFacts(inspector, n) {
  const { graph } = inspector;
  const visit = graph.columns.visit[n.index];
  const maker = graph.text("backward_of", "makers", n.index);
  const leaves = graph.leavesOf(n.index);
  const out = graph.gradients("out", n.index).filter(Boolean);
  const reads = [
    n.initial && `${n.initial} initial trace`,
    n.passes && `${n.passes} graph pass`,
    n.execution && `${n.execution} execution`,
  ]
    .filter(Boolean)
    .join(", ");
  return facts([
    [
      "Module",
      graph.grouped
        ? n.parent.path
          ? link(inspector, n.parent.key, n.parent.module, ` ${n.parent.cls}`)
          : (n.module ?? graph.model)
        : null,
    ],
    ["Made by", maker ? `the backward of ${maker}` : null],
    ["Call", visit ? `number ${visit + 1} of this module` : null],
    ["Kind", n.kind === "builtin" ? null : n.kind.replaceAll("_", " ")],
    ...leaves.map((leaf) => [
      leaf.output === null ? "Parameter" : "Returned",
      h("span", null, leaf.name, h("span.muted", null, `  ${shape(leaf.shape)}  ${leaf.dtype}`)),
    ]),
    ["Gradient in", n.parameter ? null : specs(graph.gradients("in", n.index))],
    ["Gradient out", out.length ? specs(out) : null],
    ["Error", n.row?.relative ? `${error(n.row.rel)} relative, ${error(n.row.abs)} absolute` : null],
    ["Error in, out", n.relative && !n.row ? `${error(n.into)}, ${error(n.out)} relative` : null],
    ["Reads", reads || null],
    ["Holds", n.bytes ? bytes(n.bytes) : null],
    ["Time", duration(n.seconds) || null],
    ["Reach", reach(inspector.cone)],
  ]);
}
