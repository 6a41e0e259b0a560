/** What stands over the canvas where there is no picture: what is missing, and what makes it. */
import { h, plural } from "./dom.js";
import { taskForm } from "./task.js";

export function showNote(ins) {
  const said = ins.graph.nodes.size ? waiting(ins) : nothing(ins);
  ins.note.hidden = !said;
  ins.note.replaceChildren(...(said ?? []));
  ins.tree.inert = ins.crumbs.inert = Boolean(said);
}

/** A level whose data is not there. */
function waiting(ins) {
  const { data } = ins.graph;
  const { pending } = ins;
  if (!pending) return null;
  if (pending === "aten" && !ins.levels.has("aten"))
    return [
      h("b", null, data.graph_nodes ? "Not lowered to aten operators" : "There is no graph to lower"),
      h("div", null, taskForm(ins, "lower", "Lowering breaks each autograd node up into the operators that it runs.")),
    ];
  if (!data.graph_nodes)
    return [
      h("b", null, "There is no graph"),
      h("span", null, data.failure ? "The trace stopped before the graph was made." : "This capture holds no graph."),
    ];
  if (ins.levels.known(pending === "fx" ? "code" : "aten"))
    return [h("b", null, "No operator"), h("span", null, "This graph only hands values on.")];
  return [h("b", null, ins.model.get("kernel") ? "Fetching the graph…" : "Unpacking the graph…")];
}

function nothing(ins) {
  const { events, captures: all } = ins.session;
  if (ins.graph.data.failure)
    return [
      h("b", null, "This backward failed before its first node"),
      h("span", null, ins.graph.data.failure.slice(0, 300)),
    ];
  if (all.length)
    return [
      h("b", null, "This capture has no nodes"),
      h("span", null, "The backward failed before the first node, or the loss needs no gradient."),
    ];
  if (!events.length)
    return [
      h("b", null, "No backward was captured"),
      h("span", null, "No backward call was made in the session's block."),
    ];
  return [
    h("b", null, "No backward was captured"),
    h(
      "span",
      null,
      `${plural(events.length, "backward call")}, the last ${events.at(-1).outcome}. The Misses panel says why.`,
    ),
  ];
}
