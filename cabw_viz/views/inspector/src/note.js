/** What stands over the canvas where there is no picture: what is missing, and what makes it. */
import { h, plural, sentence } from "./dom.js";
import { taskForm } from "./task.js";

/** The children of the note; null where there is a picture. */
export function noteOf(inspector) {
  if (!inspector.graph.nodes.size) return emptyNote(inspector);
  return inspector.pending ? pendingNote(inspector, inspector.pending) : null;
}

const note = (head, text) => [h("b", null, head), ...(text ? [h("span", null, text)] : [])];

/** A level that has no data. */
function pendingNote(inspector, level) {
  const { data } = inspector.graph;
  if (!data.traced) return note("There is no graph", "This backward was watched without a trace (trace=False).");
  if (level === "aten" && !inspector.levels.has("aten"))
    return [
      h("b", null, data.graph_nodes ? "Not lowered to aten operators" : "There is no graph to lower"),
      h(
        "div",
        null,
        taskForm(inspector, "lower", "Lowering breaks each autograd node up into the operators that it runs."),
      ),
    ];
  if (!data.graph_nodes)
    return note(
      "There is no graph",
      data.failure ? "The trace stopped before the graph was made." : "This capture holds no graph.",
    );
  if (inspector.levels.known(level === "fx" ? "code" : "aten"))
    return note("No operator", "This graph only hands values on.");
  return note(inspector.model.get("kernel") ? "Fetching the graph…" : "Unpacking the graph…");
}

/** A capture without nodes. */
function emptyNote(inspector) {
  const { events, captures } = inspector.session;
  const { failure } = inspector.graph.data;
  if (failure) return note("This backward failed before its first node", sentence(failure));
  if (captures.length)
    return note(
      "This capture has no nodes",
      "The backward failed before the first node, or the loss needs no gradient.",
    );
  if (!events.length) return note("No backward was captured", "No backward call was made in the session's block.");
  const calls = `${plural(events.length, "backward call")}, the last ${events.at(-1).outcome}`;
  return note("No backward was captured", `${calls}. The Misses panel says why.`);
}
