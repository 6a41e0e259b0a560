/** The selected group: what its nodes come to, and what is in it. */
import { h, number, plural, svg, ICON } from "../dom.js";
import { heldBy } from "../drawable.js";
import { bytes, duration, timed } from "../encode.js";
import { virtualList } from "../list.js";
import { facts, finding, heading, kindMark, place, reach, title, linkProps } from "../parts.js";

const ROW = 24;

export function groupParts(inspector, g) {
  const list = g.children.length ? [...g.children, ...g.own] : g.nodes;
  const nodes =
    inspector.drawn === inspector.graph ? g.nodes : [...new Set(g.nodes.map((n) => n.base))].filter(Boolean);
  return [
    h("h2.clip", null, h("bdi", null, g.module || g.name), h("span.muted.cabw-light", null, `  ${g.cls}`)),
    g.parts > 1
      ? h("p.muted", null, `Part ${g.part} of ${g.parts}: the gradient leaves this module and comes back to it.`)
      : null,
    groupFacts(inspector, g, nodes),
    g.parent ? toggleButton(inspector, g) : null,
    findings(inspector, nodes),
    heading(g.children.length ? "Inside" : "Nodes", number(list.length)),
    virtualList({
      count: list.length,
      height: ROW,
      scroller: () => inspector.panels.body,
      className: ".cabw-links",
      make: (i) => member(inspector, list[i]),
    }),
  ];
}

function groupFacts(inspector, g, nodes) {
  const rows = nodes.map((n) => n.row).filter(Boolean);
  const wrong = rows.filter((row) => !row.good);
  const bytesHeld = heldBy(nodes);
  const verdict = wrong.length ? `${number(wrong.length)} differ` : "all agree with eager";
  const parameters = number(nodes.filter((n) => n.parameter).length);
  return facts([
    [nodes === g.nodes ? "Nodes" : "Graph nodes", number(g.nodes.length)],
    ["In each block", g.stack ? blocks(g) : null],
    ["Autograd nodes", nodes === g.nodes ? null : number(nodes.length)],
    ["Parameters", rows.length ? `${number(rows.length)}, ${verdict}` : parameters],
    ["Holds", bytesHeld ? bytes(bytesHeld) : null],
    ["Time", duration(timed(nodes)) || null],
    ["Reach", reach(inspector.cone)],
  ]);
}

function toggleButton(inspector, g) {
  const open = inspector.expanded.has(g.path);
  return h(
    "div.cabw-tags",
    null,
    h(
      "button.cabw-tag",
      { onclick: () => inspector.toggle(g.path) },
      open ? "Close group" : g.stack ? `Open ${g.stack} blocks` : "Open group",
      h("span.muted", null, "Enter"),
    ),
  );
}

/** How many nodes the blocks of a stack have, and which have another number. */
function blocks(g) {
  const usual = g.children.find((c) => !g.odd.includes(c));
  const differing = (c) => (c.nodes.length === usual.nodes.length ? "others" : number(c.nodes.length));
  const odd = g.odd.slice(0, 3).map((c) => `${differing(c)} in ${c.name}`);
  const more = g.odd.length > 3 ? [`others in ${number(g.odd.length - 3)} more`] : [];
  return [plural(usual.nodes.length, "node"), ...odd, ...more].join(", ");
}

function findings(inspector, nodes) {
  const origin = nodes.find((n) => n.origin);
  const touched = nodes.filter((n) => n.initial || n.passes);
  return [
    origin &&
      finding(inspector, {
        icon: "flag",
        head: "First divergence inside",
        text: `${title(origin)}, ${place(inspector, origin)}`,
        onclick: () => inspector.reveal(origin.key),
      }),
    ...touched.slice(0, 5).map((n) =>
      finding(inspector, {
        icon: "bang",
        head: n.initial ? "Touched in the initial trace" : "Looked for in a graph pass",
        text: `${title(n)}, ${place(inspector, n)}`,
        onclick: () => inspector.reveal(n.key),
      }),
    ),
  ].filter(Boolean);
}

function member(inspector, c) {
  return h(
    "button",
    linkProps(inspector, c.key),
    c.nodes ? svg(ICON.right, { size: 11 }) : kindMark(c, 11),
    h(
      "span",
      null,
      c.nodes ? `${c.name}${c.part > 1 ? ` (${c.part})` : ""} ` : c.label,
      c.nodes && h("span.muted", null, c.cls),
    ),
    h("span.muted", null, c.nodes ? plural(c.nodes.length, "node") : c.tag),
  );
}
