/** The graph's code: thousands of lines, with DOM only for those in sight; a click selects the node of a line. */
import { statement } from "../code.js";
import { h, number, plural } from "../dom.js";
import { virtualList } from "../list.js";
import { empty, untraced } from "../parts.js";

const LINE = 18;
const WIDE = 1000; // characters of a line that are shown

export function codePanel(inspector) {
  if (!inspector.graph.data.traced) return h("div.cabw-pad", null, h("h2", null, "Code"), untraced());
  const code = inspector.code();
  if (!code)
    return h("div.cabw-pad", null, empty(inspector.model.get("kernel") ? "Fetching the code…" : "Unpacking the code…"));
  if (!code.length)
    return h(
      "div.cabw-pad",
      null,
      h("h2", null, "Code"),
      empty(
        inspector.graph.data.failure ? "The trace stopped before the graph was made." : "This capture holds no graph.",
      ),
    );
  const selected = new Set(inspector.selectedNodes());
  const hits = new Set((inspector.hits || []).map((id) => inspector.drawn.nodes.get(id).base?.id));
  const lines = [...selected].flatMap((n) => code.linesOf(n)).sort((a, b) => a - b);
  const make = (i) => line(inspector, code, i, selected, hits);
  const body = h("div.cabw-scroll", { tabIndex: 0, role: "region", "aria-label": "Graph code" });
  body.append(
    virtualList({
      count: code.length,
      height: LINE,
      make,
      scroller: () => body,
      className: ".cabw-code",
      role: "presentation",
    }),
  );
  requestAnimationFrame(() => {
    if (lines.length) body.scrollTop = Math.max(0, lines[0] * LINE - body.clientHeight / 3);
  });
  return h(
    "div.cabw-codepanel",
    null,
    h(
      "div.cabw-toolrow",
      null,
      h("span", null, plural(code.length, "statement")),
      h("span.muted", null, `${number(inspector.graph.data.plumbing)} of plumbing folded`),
      lines.length ? h("span.muted.cabw-end", null, `${number(lines.length)} selected`) : null,
    ),
    body,
  );
}

function line(inspector, code, i, selected, hits) {
  const node = code.nodeAt(i);
  const [name, target, rest] = statement(code.lines[i].slice(0, WIDE));
  const css = (selected.has(node) ? ".on" : "") + (node && hits.has(node.id) ? ".hit" : "");
  const onclick = () => node && inspector.reveal(node.key);
  return h(
    `button${css}`,
    { tabIndex: -1, title: node ? `${node.name.slice(0, 200)} #${node.id}` : "", onclick },
    h("i", null, String(i + 1)),
    target ? `${name} = ` : name,
    h("b", null, target),
    h("em", null, rest),
  );
}
