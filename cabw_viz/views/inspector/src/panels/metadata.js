/** Who read which metadata, by phase. */
import { h, number, plural } from "../dom.js";
import { empty, heading, kindMark, meter, place, scope, title, to } from "../parts.js";
import { taskForm } from "../task.js";

const MOST = 40;
const total = (touches) => touches.reduce((sum, t) => sum + t.count, 0);

export function metadataPanel(ins) {
  const { graph } = ins;
  const picked = ins.selection ? new Set(ins.picked()) : null;
  const of = (phase) => graph.touches.filter((t) => t.phase === phase && (!picked || picked.has(t.node)));
  const initial = of("initial_trace");
  const passes = of("graph_pass");
  const at = new Set([...initial, ...passes].map((t) => t.node));
  return h(
    "div",
    null,
    scope(ins),
    h(
      "div.cabw-pad",
      null,
      h(
        "h2",
        null,
        at.size ? `${plural(at.size, "node")} touched before the graph ran` : "Untouched before the graph ran",
      ),
      marked(
        ins,
        "initial_trace",
        initial,
        "Initial trace",
        "of a dummy",
        "A dummy has no real shape. Whoever read it made a mistake that the graph may carry on.",
      ),
      marked(
        ins,
        "graph_pass",
        passes,
        "Graph passes",
        "of what is not there",
        "The graph's nodes hold no example values. A pass that looks for them finds nothing.",
      ),
      execution(ins, of("execution")),
    ),
  );
}

const CALM = {
  initial_trace: "Nobody read a dummy: this backward keeps the promise of the initial trace.",
  graph_pass: "No pass looked for metadata that the graph does not hold.",
};

function unwatched(ins, phase) {
  const tripwire = ["Not watched in this capture: ", h("code", null, "capture(tripwire=True)"), " does."];
  const watching = ins.graph.watched.has("initial_trace");
  return phase === "graph_pass" && watching
    ? "No compiler was given this graph: there was no pass to watch."
    : tripwire;
}

function marked(ins, phase, touches, name, what, words) {
  const note = touches.length ? `${plural(total(touches), "read")} ${what}` : "";
  if (!touches.length)
    return [heading(name), empty(ins.graph.watched.has(phase) ? CALM[phase] : unwatched(ins, phase))];
  return [
    heading(name, note),
    h("p", null, words),
    grouped(touches)
      .slice(0, MOST)
      .map((group) => read(ins, group)),
  ];
}

/** Reads at the same node, as one. */
function grouped(touches) {
  const groups = new Map();
  for (const t of touches) {
    const key = t.node ?? t.at;
    groups.set(key, [...(groups.get(key) || []), t]);
  }
  return [...groups.values()];
}

/** One node, and each line of code that read at it with what it read. */
function read(ins, group) {
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
      ? h("div", null, ins.link(node.key, title(node)), h("span.muted", null, `  ${place(ins, node)}`))
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

function execution(ins, touches) {
  const watched = ins.graph.watched.has("execution");
  const missing = "What each node reads when the graph runs has not been watched.";
  if (!touches.length)
    return [heading("Execution"), watched ? empty("No read while the graph ran.") : taskForm(ins, "audit", missing)];
  const attributes = tally(touches, (t) => t.attribute);
  const nodes = tally(
    touches.filter((t) => t.node),
    (t) => t.node,
  );
  const most = attributes[0][1];
  return [
    heading("Execution", `${plural(total(touches), "read")} at ${plural(nodes.length, "node")}`),
    h(
      "table",
      null,
      h(
        "tbody",
        null,
        attributes
          .slice(0, MOST)
          .map(([name, count]) =>
            h(
              "tr",
              null,
              h("td.cabw-attribute.cabw-wrap", null, name),
              h("td.cabw-middle", null, meter(count / most, "var(--q3)")),
              h("td.num", null, number(count)),
            ),
          ),
      ),
    ),
    heading("Most reads"),
    h(
      "div.cabw-links.cabw-single",
      null,
      nodes
        .slice(0, 12)
        .map(([n, count]) =>
          h(
            "button",
            to(ins, n.key),
            kindMark(n, 11),
            h("span", null, n.label, h("span.muted", null, ` #${n.id}  ${n.module || ""}`)),
            h("span", null, number(count)),
          ),
        ),
    ),
  ];
}

function tally(touches, of) {
  const counts = new Map();
  for (const t of touches) counts.set(of(t), (counts.get(of(t)) || 0) + t.count);
  return [...counts].sort((a, b) => b[1] - a[1]);
}
