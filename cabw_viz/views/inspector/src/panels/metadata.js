/** Reads of metadata, by phase: the code that read, and the node. */
import { h, number, plural } from "../dom.js";
import { empty, heading, kindMark, link, meter, place, scope, title, untraced, linkProps } from "../parts.js";
import { taskForm } from "../task.js";

const MOST = 40;
const total = (touches) => touches.reduce((sum, t) => sum + t.count, 0);

export function metadataPanel(inspector) {
  const { graph } = inspector;
  if (!graph.data.traced) return h("div.cabw-pad", null, h("h2", null, "Metadata"), untraced());
  const selected = inspector.selection ? new Set(inspector.selectedNodes()) : null;
  const of = (phase) => graph.touches.filter((t) => t.phase === phase && (!selected || selected.has(t.node)));
  const initial = of("initial_trace");
  const passes = of("graph_pass");
  const at = new Set([...initial, ...passes].map((t) => t.node));
  return h(
    "div",
    null,
    scope(inspector),
    h(
      "div.cabw-pad",
      null,
      h(
        "h2",
        null,
        at.size ? `${plural(at.size, "node")} touched before the graph ran` : "Untouched before the graph ran",
      ),
      phaseParts(
        inspector,
        "initial_trace",
        initial,
        "Initial trace",
        "of a dummy",
        "A dummy has no real shape. Code that reads it makes a mistake, which the graph may carry on.",
      ),
      phaseParts(
        inspector,
        "graph_pass",
        passes,
        "Graph passes",
        "of what is not there",
        "The graph's nodes hold no example values. A pass that looks for them finds nothing.",
      ),
      execution(inspector, of("execution")),
    ),
  );
}

const CALM = {
  initial_trace: "No code read a dummy: this backward keeps the promise of the initial trace.",
  graph_pass: "No pass looked for metadata that the graph does not hold.",
};

function unwatchedText(inspector, phase) {
  const tripwire = ["Not watched in this capture: ", h("code", null, "capture(tripwire=True)"), " does."];
  const watching = inspector.graph.watched.has("initial_trace");
  return phase === "graph_pass" && watching
    ? "No compiler was given this graph: there was no pass to watch."
    : tripwire;
}

function phaseParts(inspector, phase, touches, name, what, words) {
  const note = touches.length ? `${plural(total(touches), "read")} ${what}` : "";
  if (!touches.length)
    return [heading(name), empty(inspector.graph.watched.has(phase) ? CALM[phase] : unwatchedText(inspector, phase))];
  return [
    heading(name, note),
    h("p", null, words),
    byNode(touches)
      .slice(0, MOST)
      .map((group) => readsAt(inspector, group)),
  ];
}

/** Reads at the same node, as one. */
function byNode(touches) {
  const groups = new Map();
  for (const t of touches) {
    const key = t.node ?? t.at;
    groups.set(key, [...(groups.get(key) || []), t]);
  }
  return [...groups.values()];
}

/** One node, and each line of code that read metadata there, with the attributes that it read. */
function readsAt(inspector, group) {
  const [{ node, at }] = group;
  const lines = new Map();
  for (const t of group) {
    const line = `${t.by}: ${t.where}`;
    const attributes = lines.get(line) ?? lines.set(line, new Map()).get(line);
    attributes.set(t.attribute, (attributes.get(t.attribute) || 0) + t.count);
  }
  return h(
    "div.cabw-read",
    null,
    node
      ? h("div", null, link(inspector, node.key, title(node)), h("span.muted", null, `  ${place(inspector, node)}`))
      : h("div", null, at ?? "no node of this backward"),
    [...lines].slice(0, MOST).map(([line, attributes]) => [
      h("div.mono.muted.cabw-wrap.cabw-by", null, line),
      h(
        "div.cabw-tags",
        null,
        [...attributes].map(([name, count]) => tag(name, count)),
      ),
    ]),
  );
}

const tag = (name, count) => h("span.cabw-tag", null, name, h("span.muted", null, `× ${number(count)}`));

function execution(inspector, touches) {
  if (!touches.length)
    return [
      heading("Execution"),
      inspector.graph.watched.has("execution")
        ? empty("No read while the graph ran.")
        : taskForm(inspector, "audit", "What each node reads when the graph runs has not been watched."),
    ];
  const nodes = tally(
    touches.filter((t) => t.node),
    (t) => t.node,
  );
  return [
    heading("Execution", `${plural(total(touches), "read")} at ${plural(nodes.length, "node")}`),
    attributeTable(tally(touches, (t) => t.attribute)),
    heading("Most reads"),
    h(
      "div.cabw-links.cabw-single",
      null,
      nodes.slice(0, 12).map((counted) => nodeButton(inspector, counted)),
    ),
  ];
}

function attributeTable(attributes) {
  const [[, most]] = attributes;
  const row = ([name, count]) =>
    h(
      "tr",
      null,
      h("td.cabw-attribute.cabw-wrap", null, name),
      h("td.cabw-middle", null, meter(count / most, "var(--q3)")),
      h("td.num", null, number(count)),
    );
  return h("table", null, h("tbody", null, attributes.slice(0, MOST).map(row)));
}

function nodeButton(inspector, [node, count]) {
  return h(
    "button",
    linkProps(inspector, node.key),
    kindMark(node, 11),
    h("span", null, node.label, h("span.muted", null, ` #${node.id}  ${node.module || ""}`)),
    h("span", null, number(count)),
  );
}

/** [what, count] of each, the most frequent first. */
function tally(touches, of) {
  const counts = new Map();
  for (const t of touches) counts.set(of(t), (counts.get(of(t)) || 0) + t.count);
  return [...counts].sort((a, b) => b[1] - a[1]);
}
