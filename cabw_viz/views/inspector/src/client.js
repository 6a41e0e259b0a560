/** Lays out: in a worker where the graph is large and the page allows one, else here. The answer to an older question is dropped. */
import { workerSource } from "./bundle.js";
import { Arranger, Scene } from "./scene.js";

const SMALL = 1500; // nodes up to which laying out costs less than a frame or two, so nothing is gained by a worker

export class LayoutClient {
  asked = 0;
  ms = 0;
  where = "page";

  constructor(graph, capture) {
    this.graph = graph;
    if (graph.list.length > SMALL) this.#start(capture);
  }

  #start(capture) {
    const source = workerSource();
    if (!source) return;
    try {
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      this.worker = new Worker(url);
      this.url = url;
      this.capture = capture.buffer
        ? new Uint8Array(capture.buffer, capture.byteOffset, capture.byteLength).slice()
        : capture.slice(0);
      this.worker.onmessage = ({ data }) => {
        this.alive = true;
        this.where = "worker";
        this.#answer(data);
      };
      this.worker.onerror = (e) => {
        e.preventDefault();
        this.#fallBack(e.message || "the page forbids it");
      };
    } catch (e) {
      this.#fallBack(e.message);
    } // a page may forbid workers (CSP)
  }

  #fallBack(why) {
    console.warn("cabw_viz: laying out on the page, the worker failed:", why);
    this.worker?.terminate();
    this.worker = null;
    if (this.waiting) {
      const { expanded, aspect, done } = this.waiting;
      this.waiting = null;
      this.scene(expanded, aspect, done);
    }
  }

  /** `done(scene)` is called at once where the layout runs here, later where it runs in the worker. */
  scene(expanded, aspect, done) {
    const id = ++this.asked;
    if (this.worker) {
      this.waiting = { id, expanded, aspect, done };
      this.worker.postMessage(
        { id, expanded, aspect, capture: this.capture },
        this.capture ? [this.capture.buffer ?? this.capture] : [],
      );
      this.capture = null;
      return;
    }
    const began = performance.now();
    const arrays = (this.arranger ??= new Arranger(this.graph)).scene(expanded, aspect);
    this.ms = performance.now() - began;
    done(new Scene(this.graph, arrays));
  }

  #answer({ id, arrays, ms }) {
    if (id !== this.waiting?.id) return;
    const { done } = this.waiting;
    this.waiting = null;
    this.ms = ms;
    done(new Scene(this.graph, arrays));
  }

  stop() {
    this.worker?.terminate();
    if (this.url) URL.revokeObjectURL(this.url);
  }
}
