/** What panels are made of. */
import { h, mark, plural, svg, ICON } from "./dom.js";
import { differs, ENCODINGS, error } from "./encode.js";

export const ALARM = "var(--c-alarm)";
export const title = (n) => n.title;
export const moduleOf = (inspector, n) =>
  n.module || (n.within ? inspector.graph.model : inspector.graph.grouped ? "outside of any module" : "");
export const place = (inspector, n) => [moduleOf(inspector, n), n.line?.[0]].filter(Boolean).join(", ");

export function kindMark(n, size) {
  const [, , token, name] = ENCODINGS.family.classes.find(([key]) => key === n.family);
  return mark(name, `var(--${token})`, size);
}

/** Properties of a button that leads to an item: hovering shows it in the graph, clicking selects it. */
export const linkProps = (inspector, key) => ({ "data-key": key, onclick: () => inspector.reveal(key) });

/** Words that lead to an item, and more words after them. */
export const link = (inspector, key, text, after) =>
  h(
    "span",
    null,
    h("button.cabw-link", { "data-key": key, onclick: () => inspector.reveal(key) }, text),
    after && h("span.muted", null, after),
  );

function nameOf(item) {
  if (item.owner) return item.owner.title;
  return item.nodes ? item.path || item.name : item.title;
}

/** What stands where there is nothing to show: what is missing, then what makes it. */
export const empty = (...children) => h("div.cabw-empty", null, ...children);

/** What stands where only a captured graph would tell, in a capture that was not traced. */
export const untraced = () =>
  empty(
    "This backward was watched without a trace, so there is no captured graph. To have one: ",
    h("code", null, "capture(model)"),
    " without ",
    h("code", null, "trace=False"),
  );

/** A small heading, with a figure at its right. */
export const heading = (text, note) => h("h3", null, h("span", null, text), note && h("small", null, note));

export const facts = (rows) =>
  h(
    "dl.cabw-facts",
    null,
    rows.filter((r) => r && r[1]).flatMap(([k, v]) => [h("dt", null, k), h("dd", null, v)]),
  );

export function finding(inspector, { icon, colour = ALARM, head, text, onclick }) {
  return h(
    "button.cabw-finding",
    { onclick },
    mark(icon, colour, 14),
    h("div", null, h("b", null, head), h("div", null, text)),
    h("i", null, "›"),
  );
}

export const meter = (share, colour) => {
  const width = (Math.max(Math.min(share, 1), share > 0 ? 0.02 : 0) * 100).toFixed(1);
  return h("div.cabw-meter", null, h("div", { style: `width:${width}%;background:${colour}` }));
};

export function reach(cone, [up, down] = ["towards the loss", "towards the leaves"]) {
  if (!cone) return null;
  return [
    h("div", null, h("i.cabw-reach"), plural(cone.up, "ancestor"), h("span.muted", null, ` ${up}`)),
    h("div", null, h("i.cabw-reach.down"), plural(cone.down, "descendant"), h("span.muted", null, ` ${down}`)),
  ];
}

/** A button to open or close something that is folded. */
export function fold(open, name, onclick) {
  const label = (open ? "Close " : "Open ") + name;
  return h(
    "button.cabw-icon.cabw-fold",
    { "aria-label": label, "aria-expanded": String(open), onclick },
    svg(open ? ICON.down : ICON.right, { size: 12 }),
  );
}

/** Says that only a part of the graph is shown, and leads back to all of it. */
export function scope(inspector) {
  if (!inspector.selection) return null;
  const item = inspector.drawn.item(inspector.selection);
  return h(
    "div.cabw-toolrow",
    null,
    h("span.muted", null, "Only"),
    h("span.cabw-cut", null, item ? nameOf(item) : ""),
    h("button.cabw-link.cabw-end", { onclick: () => inspector.select("") }, "Show all"),
  );
}

/** The findings at an item, in words: for tooltips and the screen reader. */
export function findingsText(item) {
  const nodes = item.nodes || [item];
  const out = [];
  const wrong = nodes.filter(differs);
  if (nodes.some((n) => n.failed)) out.push("the trace stopped here");
  if (nodes.some((n) => n.origin))
    out.push(item.nodes ? "first divergence inside" : `first divergence, ${error(item.relative)} relative`);
  else if (wrong.length)
    out.push(item.nodes ? `${wrong.length} of ${nodes.length} nodes differ` : `differs by ${error(item.relative)}`);
  if (nodes.some((n) => n.initial)) out.push("touched in the initial trace");
  if (nodes.some((n) => n.passes)) out.push("looked for in a graph pass");
  if (nodes.some((n) => n.hooks)) out.push("hook");
  return out.join(", ");
}
