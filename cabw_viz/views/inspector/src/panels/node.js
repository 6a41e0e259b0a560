/** The selected node or group; without a selection what was found in the whole capture. */
import { fxPicture } from "../fx.js";
import { h, mark, number, plural, shape, svg, ICON } from "../dom.js";
import { bytes, differs, error } from "../encode.js";
import { heldBy } from "../graph.js";
import { windowed } from "../list.js";
import { ALARM, empty, facts, finding, heading, inModule, kindMark, place, reach, title, to } from "../parts.js";
import { matches, overview } from "./overview.js";

const MOST_LINES = 60;
const ROW = 24;

export function nodePanel(ins) {
  const item = ins.graph.item(ins.selection);
  if (!item) return ins.hits ? matches(ins) : overview(ins);
  return h("div.cabw-pad", null, item.nodes ? groupParts(ins, item) : nodeParts(ins, item));
}

function nodeParts(ins, n) {
  return [
    head(ins, n),
    nodeFacts(ins, n),
    source(ins, n),
    pathTo(ins, n),
    links(ins, n),
    hooks(ins, n),
    saved(ins, n),
    lifted(ins, n),
    baked(ins, n),
    graphCode(ins, n),
  ];
}

function head(ins, n) {
  const verdict =
    !n.compared || n.origin
      ? null
      : differs(n)
        ? h(
            "span.cabw-tag.alarm",
            null,
            mark("differ", ALARM, 10),
            n.row ? n.row.verdict : `differs by ${error(n.relative)}`,
          )
        : h(
            "span.cabw-tag",
            null,
            mark("equal", "var(--muted)", 10),
            n.row && n.row.verdict !== "bitwise" ? n.row.verdict.replace("_", " ") : "bitwise equal to eager",
          );
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
        h("span.muted", null, "  #" + n.id),
      ),
    ),
    tags.length ? h("div.cabw-tags", null, tags) : null,
    n.failed ? h("pre.cabw-error", null, ins.graph.data.failure) : null,
  );
}

const spec = (g) => (g ? `${shape(g[0])}  ${g[1]}` : "not known");
const specs = (list) =>
  list.length && list.some(Boolean)
    ? [...new Set(list.map(spec))].slice(0, 6).map((text) => h("div", null, text))
    : null;

function nodeFacts(ins, n) {
  const { graph } = ins;
  const visit = graph.columns.visit[n.index];
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
          ? ins.link(n.parent.key, n.parent.module, ` ${n.parent.cls}`)
          : (n.module ?? graph.model)
        : null,
    ],
    ["Call", visit ? `number ${visit + 1} of this module` : null],
    ["Kind", n.kind === "builtin" ? null : n.kind.replaceAll("_", " ")],
    ...leaves.map((leaf) => [
      leaf.output === null ? "Parameter" : "Returned",
      h("span", null, leaf.name, h("span.muted", null, `  ${shape(leaf.shape)}  ${leaf.dtype}`)),
    ]),
    ["Gradient in", n.parameter ? null : specs(graph.gradients("in", n.index))],
    ["Gradient out", out.length ? specs(out) : null],
    [
      "Error",
      n.row && n.row.relative
        ? `${error(n.row.rel)} relative, ${error(n.row.abs)} absolute`
        : n.compared && n.relative
          ? `${error(n.relative)} relative`
          : null,
    ],
    ["Reads", reads || null],
    ["Holds", n.bytes ? bytes(n.bytes) : null],
    ["Reach", reach(ins.cone)],
  ]);
}

function source(ins, n) {
  if (!n.line) return null;
  const [short, full, text] = n.line;
  const line = short.slice(short.lastIndexOf(":") + 1);
  return h(
    "div",
    null,
    heading("Forward line", h("span", { title: full }, short)),
    text
      ? h("div.cabw-src.mono", null, h("div.on", null, h("span", null, line), h("span", { title: text }, text)))
      : null,
  );
}

/** The way the gradient takes from this node to a parameter, marked in the graph. */
function pathTo(ins, n) {
  const { graph } = ins;
  if (!ins.cone?.down) return null;
  const parameters = graph.list.filter((p) => p.parameter && ins.cone.mark[p.index] === 2);
  if (!parameters.length) return null;
  const names = h(
    "datalist",
    { id: ins.prefix + "below" },
    parameters.slice(0, 500).map((p) => h("option", { value: p.parameter })),
  );
  const input = h("input.cabw-input", {
    placeholder: `Way to one of ${plural(parameters.length, "parameter")}`,
    "aria-label": "Show the way to a parameter",
    value: ins.way ? ins.way.name : "",
    spellcheck: false,
    onchange: () => {
      const p = parameters.find((q) => q.parameter === input.value);
      ins.showPath(p ? n.key : null, p?.key);
    },
  });
  input.setAttribute("list", names.id);
  return h("div", null, heading("Way to a parameter", ins.way ? plural(ins.way.count, "node") : ""), input, names);
}

function links(ins, n) {
  const side = (name, ids, none) =>
    h(
      "div",
      null,
      heading(name, number(ids.length)),
      ids.length
        ? ids.slice(0, 50).map((id) => {
            const other = ins.graph.nodes.get(id);
            return h(
              "button",
              to(ins, other.key),
              kindMark(other, 11),
              h("span", null, other.label),
              h("span.muted", null, "#" + id),
            );
          })
        : h("p.muted", null, none),
      ids.length > 50 ? h("p.muted", null, `${number(ids.length - 50)} more`) : null,
    );
  return h(
    "div.cabw-links",
    null,
    side("Gradient from", n.ins, "The root: nothing above."),
    side("Gradient to", n.outs, "A leaf: the gradient ends here."),
  );
}

const table = (rows) =>
  h(
    "table",
    null,
    h(
      "tbody",
      null,
      rows.map((cells) => h("tr", null, cells)),
    ),
  );

function hooks(ins, n) {
  const rows = ins.graph.hooksOf(n.index);
  if (!rows.length) return null;
  return h(
    "div",
    null,
    heading("Hooks", String(rows.length)),
    table(
      rows.map((hook) => [
        h("td", null, h("span.mono", null, hook.name), h("div.muted", null, hook.kind.replaceAll("_", " "))),
        h("td.num.muted", null, hook.where && short(hook.where)),
      ]),
    ),
  );
}

const short = (where) =>
  h("span", { title: where }, where.slice(Math.max(where.lastIndexOf("/"), where.lastIndexOf("\\")) + 1));

function saved(ins, n) {
  const rows = ins.graph.savedOf(n.index);
  if (!rows.length) return null;
  return h(
    "div",
    null,
    heading("Saved tensors", n.bytes ? bytes(n.bytes) : ""),
    table(
      rows.map((s) => [
        h("td.mono", null, s.field),
        h(
          "td",
          null,
          s.packed ? "packed by a hook" : [shape(s.shape), h("span.muted", null, ` ${s.dtype}`)],
          s.of && h("div.muted", null, s.of),
          s.by && h("div.muted", null, "made by ", ins.link(s.by.key, `${s.by.label} #${s.by.id}`)),
        ),
        h("td.num", null, s.shared ? "shared" : s.packed ? "" : bytes(s.bytes)),
      ]),
    ),
  );
}

function lifted(ins, n) {
  const rows = ins.graph.liftedOf(n.index);
  return rows.length
    ? h(
        "div",
        null,
        heading("Lifted metadata", "inputs of the graph"),
        table(
          rows.map((r) => [
            h("td.mono", null, r.meaning),
            h("td.mono.muted", null, `sizes[${r.size}]`),
            h("td.mono.num", null, String(r.value)),
          ]),
        ),
      )
    : null;
}

function baked(ins, n) {
  const rows = ins.graph.bakedOf(n.index);
  return rows.length
    ? h(
        "div",
        null,
        heading("Baked metadata", "constants: changing one captures again"),
        table(
          rows.map((r) => [
            h("td", null, h("span.mono", null, r.meaning), h("div.muted", null, r.attribute)),
            h("td.mono.num.cabw-wrap", null, r.value),
          ]),
        ),
      )
    : null;
}

function graphCode(ins, n) {
  if (!ins.graph.columns.graph_nodes[n.index]) return null;
  const code = ins.code();
  const own = code ? code.linesOf(n) : [];
  if (code && !own.length) return null;
  const line = (i) =>
    h("div.cabw-one", { title: code.lines[i].slice(0, 2000) }, h("span", null, code.lines[i].slice(0, 300)));
  return h(
    "div",
    null,
    heading(
      "Graph nodes",
      own.length ? h("button.cabw-link", { onclick: () => ins.openTab("code") }, "Show in Code") : null,
    ),
    code
      ? [fxPicture(ins, code, own), h("div.cabw-src.mono", null, own.slice(0, MOST_LINES).map(line))]
      : empty("Fetching the code…"),
    own.length > MOST_LINES ? h("p.muted", null, `${number(own.length - MOST_LINES)} more lines in Code.`) : null,
  );
}

function groupParts(ins, g) {
  const rows = g.nodes.map((n) => n.row).filter(Boolean);
  const wrong = rows.filter((row) => !row.good);
  const held = heldBy(g.nodes);
  const open = ins.expanded.has(g.path);
  const list = g.children.length ? [...g.children, ...g.own] : g.nodes;
  const parameters = g.nodes.filter((n) => n.parameter).length;
  return [
    h("h2.clip", null, h("bdi", null, g.module || g.name), h("span.muted.cabw-light", null, "  " + g.cls)),
    g.parts > 1
      ? h("p.muted", null, `Part ${g.part} of ${g.parts}: the gradient leaves this module and comes back to it.`)
      : null,
    facts([
      ["Nodes", number(g.nodes.length)],
      [
        "Parameters",
        rows.length
          ? `${number(rows.length)}, ${wrong.length ? `${number(wrong.length)} differ` : "all agree with eager"}`
          : number(parameters),
      ],
      ["Holds", held ? bytes(held) : null],
      ["Reach", reach(ins.cone)],
    ]),
    g.parent
      ? h(
          "div.cabw-tags",
          null,
          h(
            "button.cabw-tag",
            { onclick: () => ins.toggle(g.path) },
            open ? "Close group" : g.stack ? `Open ${g.stack} blocks` : "Open group",
            h("span.muted", null, "Enter"),
          ),
        )
      : null,
    found(ins, g),
    heading(g.children.length ? "Inside" : "Nodes", number(list.length)),
    windowed({
      count: list.length,
      height: ROW,
      scroller: () => ins.body,
      className: ".cabw-links",
      make: (i) => member(ins, list[i]),
    }),
  ];
}

function found(ins, g) {
  const origin = g.nodes.find((n) => n.origin);
  const touched = g.nodes.filter((n) => n.initial || n.passes);
  return [
    origin &&
      finding(ins, {
        icon: "flag",
        head: "First divergence inside",
        text: `${title(origin)}, ${place(ins, origin)}`,
        onclick: () => ins.reveal(origin.key),
      }),
    ...touched.slice(0, 5).map((n) =>
      finding(ins, {
        icon: "bang",
        head: n.initial ? "Touched in the initial trace" : "Looked for in a graph pass",
        text: `${title(n)}, ${place(ins, n)}`,
        onclick: () => ins.reveal(n.key),
      }),
    ),
  ].filter(Boolean);
}

function member(ins, c) {
  return h(
    "button",
    to(ins, c.key),
    c.nodes ? svg(ICON.right, { size: 11 }) : kindMark(c, 11),
    h(
      "span",
      null,
      c.nodes ? `${c.name}${c.part > 1 ? ` (${c.part})` : ""} ` : c.label,
      c.nodes && h("span.muted", null, c.cls),
    ),
    h("span.muted", null, c.nodes ? plural(c.nodes.length, "node") : "#" + c.id),
  );
}
