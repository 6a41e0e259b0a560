/** Stands in for the kernel in a saved file: anywidget's model over plain values. `lazy` answers what is asked for later. */
export class Shim {
  #values;
  #lazy;
  #listeners = new Map();
  #changed = new Set();
  constructor(values, lazy = {}) {
    this.#values = values;
    this.#lazy = lazy;
  }
  get(name) {
    return this.#values[name];
  }
  set(name, value) {
    if (this.#values[name] !== value) {
      this.#values[name] = value;
      this.#changed.add(name);
    }
  }
  on(event, f) {
    this.#listeners.set(event, [...(this.#listeners.get(event) || []), f]);
  }
  off(event, f) {
    const left = (this.#listeners.get(event) || []).filter((g) => g !== f);
    this.#listeners.set(event, left);
  }
  save_changes() {
    const names = [...this.#changed];
    this.#changed.clear();
    for (const name of names) for (const f of this.#listeners.get(`change:${name}`) || []) f();
  }
  async send({ type }) {
    const value = await this.#lazy[type]?.(this);
    if (value) {
      this.set(type, value);
      this.save_changes();
    }
  }
}

/** Bytes of a saved file: gzip, base64, in a script tag that the browser never runs; empty where there is none. */
export async function readInlined(id) {
  const text = document.getElementById(id)?.textContent.trim();
  if (!text) return new Uint8Array(0);
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

/** Opens a saved file: reads its parts, draws the first capture, and the others when they are picked. */
export async function openFile(render, el) {
  const began = performance.now();
  const part = (name, capture) => readInlined(`cabw-${capture}-${name}`);
  const parts = async (capture) => {
    const names = ["data", "touches", "parity", "divergence", "times", "nonfinite"];
    const read = await Promise.all(names.map((name) => part(name, capture)));
    return { ...Object.fromEntries(names.map((name, i) => [name, read[i]])), code: null, aten: null };
  };
  // A link may carry state: run.html#color_by=parity&selection=n307
  const linked = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const state = {
    selection: "",
    expanded: [],
    level: "module",
    color_by: "family",
    query: "",
    kernel: false,
    choices: {},
    task: {},
    ...linked,
  };
  const capture = Number(linked.capture ?? document.body.dataset.capture ?? 0);
  const values = { ...state, capture, session: await readInlined("cabw-session"), ...(await parts(capture)) };
  const model = new Shim(values, {
    code: () => part("code", model.get("capture")),
    aten: () => part("aten", model.get("capture")),
  });
  model.on("change:capture", async () => {
    for (const [name, value] of Object.entries(await parts(model.get("capture")))) model.set(name, value);
    model.save_changes();
  });
  const ready = performance.now();
  render({ model, el });
  const painted = () => {
    const { inspector } = el;
    if (!inspector.scene || !inspector.renderer.frames || !inspector.renderer.complete)
      return requestAnimationFrame(painted);
    // After the frame is on the screen: what benchmarks and tests wait for.
    return setTimeout(() => {
      window.cabwTimes = {
        unpack: ready - began,
        paint: performance.now() - ready,
        layout: inspector.picture.layout.ms,
        where: inspector.picture.layout.where,
      };
    });
  };
  requestAnimationFrame(painted);
  Object.assign(window, { cabw: { render, Shim, model } });
}
