/** The layout's side of the conversation with client.js: one graph, then one scene a message. */
import { Graph } from "./graph.js";
import { Arranger } from "./scene.js";

export function serve(port) {
  let arranger;
  port.onmessage = ({ data: { id, capture, expanded, aspect } }) => {
    const began = performance.now();
    if (capture) arranger = new Arranger(new Graph(capture));
    const arrays = arranger.scene(expanded, aspect);
    port.postMessage({ id, arrays, ms: performance.now() - began }, [
      ...new Set(
        Object.values(arrays)
          .filter(ArrayBuffer.isView)
          .map((a) => a.buffer),
      ),
    ]);
  };
}
