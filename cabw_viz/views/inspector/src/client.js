/** Lays out: in a worker where the graph is large and the page allows one, else here. The answer to an older question is dropped. */
import { Arranger } from "./arrange.js";
import { workerSource } from "./worker_source.js";
import { Scene } from "./scene.js";

const SMALL = 1500; // nodes up to which laying out costs less than a frame or two, so nothing is gained by a worker
const LIGHT = 100_000; // bytes of parts that hold about as many

export class LayoutClient {
  requests = 0;
  ms = 0;
  where = "page";

  /**
   * `parts`: the bytes that the graph is made of, for the worker to make it too. Where they are many it begins at once,
   * while the page makes its own; `use` says then what graph that is.
   */
  constructor(parts) {
    this.parts = parts;
    const size = Object.values(parts).reduce((sum, part) => sum + (part.byteLength ?? 0), 0);
    if (size > LIGHT) this.#start();
  }

  use(graph) {
    this.graph = graph;
    const large = graph.list.length > SMALL;
    if (large && !this.worker && !this.forbidden) this.#start();
    if (!large) this.#end();
  }

  #start() {
    const source = workerSource();
    if (!source) return;
    try {
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      this.worker = new Worker(url);
      this.url = url;
      const parts = copyOf(this.parts);
      this.worker.postMessage({ parts }, buffersOf(parts));
      this.worker.onmessage = ({ data }) => {
        this.where = "worker";
        if (data.share === undefined) this.#answer(data);
        else if (data.id === this.waiting?.id) this.waiting.onProgress?.(data.share);
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
    this.#end();
    this.forbidden = true;
    if (this.waiting) {
      const { expanded, aspect, done } = this.waiting;
      this.waiting = null;
      this.scene(expanded, aspect, done);
    }
  }

  /** `done(scene)` is called at once where the layout runs here, later where it runs in the worker; `onProgress(share)` on the way. */
  scene(expanded, aspect, done, onProgress) {
    const id = ++this.requests;
    if (this.worker) {
      this.waiting = { id, expanded, aspect, done, onProgress };
      this.worker.postMessage({ id, expanded, aspect });
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

  /** Gives up what is under way: a worker that lays out hears nothing, so it is ended and another one started. */
  cancel() {
    if (!this.waiting) return;
    this.waiting = null;
    this.#end();
    this.#start();
  }

  #end() {
    this.worker?.terminate();
    this.worker = null;
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = null;
  }

  stop() {
    this.waiting = null;
    this.#end();
  }
}

const binary = (value) => typeof value === "object";
const buffersOf = (parts) =>
  Object.values(parts)
    .filter(binary)
    .map((bytes) => bytes.buffer);

/** The worker gets bytes of its own: the page goes on reading these. */
function copyOf(parts) {
  const copy = (bytes) =>
    bytes.buffer
      ? new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength).slice()
      : new Uint8Array(bytes.slice(0));
  return Object.fromEntries(Object.entries(parts).map(([name, value]) => [name, binary(value) ? copy(value) : value]));
}
