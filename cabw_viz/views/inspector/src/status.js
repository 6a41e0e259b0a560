/** The line at the bottom: counts and findings, each a way to them. */
import { h, number, plural } from "./dom.js";
import { place, title } from "./parts.js";

/** The children of the line. */
export function statusItems(inspector) {
  const { graph, drawn } = inspector;
  return [
    h("span", null, plural(drawn.nodes.size, graph === drawn ? "node" : "graph node")),
    h("span", null, plural(drawn.edgeCount, "edge")),
    touchStatus(inspector),
    parityStatus(inspector),
    h("button.end", { onclick: () => inspector.help(), title: "Keyboard help" }, "Keys ?"),
  ].filter(Boolean);
}

function touchStatus(inspector) {
  const { touched, watched } = inspector.graph;
  const onclick = () => {
    inspector.setColour("touches");
    inspector.openTab("metadata");
    if (touched[0]) inspector.reveal(touched[0].key);
  };
  if (!inspector.graph.data.traced) return h("button", { onclick }, "not traced");
  const untouched = watched.has("initial_trace") ? "initial trace: untouched" : "initial trace: not watched";
  return h(
    "button",
    { onclick },
    touched.length ? `${plural(touched.length, "node")} touched before the graph ran` : untouched,
  );
}

function parityStatus(inspector) {
  if (!inspector.graph.data.traced) return null;
  const { first, wrong, parity, parameters } = inspector.graph;
  const onclick = () => {
    inspector.setColour("parity");
    inspector.openTab("parity");
    if (first) inspector.reveal(first.key);
  };
  const where = first ? `, first at ${title(first)}, ${place(inspector, first)}` : "";
  if (!parity) return h("button.cut", { onclick }, first ? `gradients part${where.slice(1)}` : "parity: not computed");
  return h(
    "button.cut",
    { onclick },
    wrong.length
      ? `parity: ${number(wrong.length)} of ${plural(parameters.length, "gradient")} differ${where}`
      : `parity: ${parity.ok ? agreement(parity, parameters.length) : "nothing compared"}`,
  );
}

function agreement(parity, compared) {
  const total = compared + parity.missed;
  return parity.missed ? `${number(compared)} of ${plural(total, "gradient")} compared, and agree` : "all agree";
}
