/** The layout's side of the conversation with client.js: one graph, then one scene a message. */
import { Arranger } from "./arrange.js";
import { Code } from "./code.js";
import { Graph } from "./graph.js";
import { OpsGraph } from "./ops.js";

export function serve(port) {
  let arranger;
  port.onmessage = ({ data: { id, parts, expanded, aspect } }) => {
    const began = performance.now();
    if (parts) return void (arranger = new Arranger(drawn(parts)));
    const arrays = arranger.scene(expanded, aspect, (share) => port.postMessage({ id, share }));
    port.postMessage({ id, arrays, ms: performance.now() - began }, [
      ...new Set(
        Object.values(arrays)
          .filter(ArrayBuffer.isView)
          .map((a) => a.buffer),
      ),
    ]);
  };
}

function drawn({ data, code, letter }) {
  const graph = new Graph(data);
  return code ? new OpsGraph(graph, new Code(graph, code), letter) : graph;
}
