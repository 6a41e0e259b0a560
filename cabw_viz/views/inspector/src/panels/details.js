/** What is known of one autograd node, a section each: its forward line, links, hooks, tensors, metadata, code. */
import { statement } from "../code.js";
import { h, number, plural, shape } from "../dom.js";
import { bytes } from "../encode.js";
import { operatorOf } from "../families.js";
import { fxPicture } from "../fx.js";
import { empty, heading, kindMark, link, linkProps } from "../parts.js";

const MOST_LINES = 60;

export function forwardLine(inspector, n) {
  if (!n.line) return null;
  const [short, full, text, first, around] = n.line;
  const line = Number(short.slice(short.lastIndexOf(":") + 1));
  const rows = around ? around.map((code, i) => [first + i, code]) : text ? [[line, text]] : [];
  const row = ([at, code]) =>
    h(`div${at === line ? ".on" : ""}`, null, h("span", null, String(at)), h("span", { title: code }, code || " "));
  return h(
    "div",
    null,
    heading("Forward line", h("span", { title: full }, short)),
    rows.length ? h("div.cabw-src.mono", null, rows.map(row)) : null,
  );
}

/** The way the gradient takes from this node to a parameter, marked in the graph. */
export function pathTo(inspector, n) {
  const { graph } = inspector;
  const cone = inspector.drawn === graph ? inspector.cone : graph.cone(n.key);
  if (!cone?.down) return null;
  const parameters = graph.list.filter((p) => p.parameter && cone.mark[p.index] === 2);
  if (!parameters.length) return null;
  const names = h(
    "datalist",
    { id: `${inspector.aria.prefix}below` },
    parameters.slice(0, 500).map((p) => h("option", { value: p.parameter })),
  );
  const input = h("input.cabw-input", {
    placeholder: `Way to one of ${plural(parameters.length, "parameter")}`,
    "aria-label": "Show the way to a parameter",
    value: inspector.way ? inspector.way.name : "",
    spellcheck: false,
    onchange: () => {
      const p = parameters.find((q) => q.parameter === input.value);
      inspector.showPath(p ? n.key : null, p?.key);
    },
  });
  input.setAttribute("list", names.id);
  return h(
    "div",
    null,
    heading("Way to a parameter", inspector.way ? plural(inspector.way.count, "node") : ""),
    input,
    names,
  );
}

export function links(inspector, n) {
  const side = (name, ids, none) =>
    h(
      "div",
      null,
      heading(name, number(ids.length)),
      ids.length
        ? ids.slice(0, 50).map((id) => {
            const other = n.graph.nodes.get(id);
            return h(
              "button",
              linkProps(inspector, other.key),
              kindMark(other, 11),
              h("span", null, other.label),
              h("span.muted", null, other.tag),
            );
          })
        : h("p.muted", null, none),
      ids.length > 50 ? h("p.muted", null, `${number(ids.length - 50)} more`) : null,
    );
  return h(
    "div.cabw-links",
    null,
    n.graph === inspector.graph
      ? [
          side("Gradient from", n.ins, "The root: nothing above."),
          side("Gradient to", n.outs, "A leaf: the gradient ends here."),
        ]
      : [side("Reads", n.ins, "Only inputs of the graph."), side("Read by", n.outs, "Nothing but the output.")],
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

export function hooks(inspector, n) {
  const rows = inspector.graph.hooksOf(n.index);
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

export function savedTensors(inspector, n) {
  const rows = inspector.graph.savedOf(n.index);
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
          s.by && h("div.muted", null, "made by ", link(inspector, s.by.key, `${s.by.label} #${s.by.id}`)),
        ),
        h("td.num", null, s.shared ? "shared" : s.packed ? "" : bytes(s.bytes)),
      ]),
    ),
  );
}

export function liftedMetadata(inspector, n) {
  const rows = inspector.graph.liftedOf(n.index);
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

export function bakedMetadata(inspector, n) {
  const rows = inspector.graph.bakedOf(n.index);
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

/** The operators that it runs: of the lowered graph, or as an audit saw them. */
export function operators(inspector, n) {
  const code = inspector.levels.known("aten");
  const own = code ? code.linesOf(n) : [];
  const show = h("button.cabw-link", { onclick: () => inspector.setLevel("aten") }, "Show in the graph");
  if (own.length) {
    const rows = own.slice(0, MOST_LINES).map((i) => {
      const key = `a${code.columns.ordinal[i]}`;
      const [name, target, rest] = statement(code.lines[i].slice(0, 300));
      return h(
        "button.cabw-one",
        { "data-key": key, title: code.lines[i].slice(0, 2000), onclick: () => inspector.reveal(key) },
        [`${name} = `, h("b", null, operatorOf(target)), h("span.muted", null, rest)],
      );
    });
    return h("div", null, heading("Aten operators", show), h("div.cabw-src.mono", null, rows));
  }
  if (!code && inspector.graph.data.lowered)
    return h(
      "div",
      null,
      heading("Aten operators", h("button.cabw-link", { onclick: () => inspector.levels.code("aten") }, "Show them")),
    );
  const ran = new Map();
  for (const t of inspector.graph.touches)
    if (t.node === n && t.phase === "execution" && t.attribute.includes("."))
      ran.set(t.attribute, (ran.get(t.attribute) || 0) + t.count);
  if (!ran.size) return null;
  return h(
    "div",
    null,
    heading("Operators", "as the audit saw them"),
    h(
      "div.cabw-tags",
      null,
      [...ran].map(([name, count]) =>
        h("span.cabw-tag", null, name, count > 1 ? h("span.muted", null, `× ${count}`) : ""),
      ),
    ),
  );
}

export function graphCode(inspector, n) {
  if (!inspector.graph.columns.graph_nodes[n.index]) return null;
  const code = inspector.code();
  const own = code ? code.linesOf(n) : [];
  if (code && !own.length) return null;
  const line = (i) =>
    h("div.cabw-one", { title: code.lines[i].slice(0, 2000) }, h("span", null, code.lines[i].slice(0, 300)));
  return h(
    "div",
    null,
    heading(
      "Graph nodes",
      own.length ? h("button.cabw-link", { onclick: () => inspector.openTab("code") }, "Show in Code") : null,
    ),
    code
      ? [fxPicture(inspector, code, own), h("div.cabw-src.mono", null, own.slice(0, MOST_LINES).map(line))]
      : empty("Fetching the code…"),
    own.length > MOST_LINES ? h("p.muted", null, `${number(own.length - MOST_LINES)} more lines in Code.`) : null,
  );
}
