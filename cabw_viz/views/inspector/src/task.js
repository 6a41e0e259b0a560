/** Work that only a kernel can do, requested in a panel: its options, how far it is, its outcome. */
import { h } from "./dom.js";
import { empty, untraced } from "./parts.js";

const PATIENCE = 8000; // milliseconds without an answer after which the kernel is busy or gone

const TEXTS = {
  parity: { button: "Compare with eager", running: "Running the graph again and comparing", code: "cap.parity()" },
  audit: { button: "Run the audit", running: "Running the graph on watched tensors", code: "cap.audit()" },
  lower: { button: "Lower the graph", running: "Lowering the graph to aten operators", code: "cap.lower()" },
  times: { button: "Time the nodes", running: "Running the graph and timing each node", code: "cap.times()" },
  divergence: {
    button: "Find the first divergence",
    running: "Running the graph and comparing at every node",
    code: "cap.divergence()",
  },
};
const LABELS = { device: "Device", dtype: "Dtype", backend: "Backend", hooks: "Hooks" };

/** The task that was requested last, and the trait `task`, which is the kernel's answer. */
export class Task {
  /** What was requested, when, and the answer that was there before. */
  latest = null;
  #patience = null;

  constructor(inspector) {
    this.inspector = inspector;
  }

  get answer() {
    return this.inspector.model.get("task") || {};
  }

  request(what, options) {
    const { inspector } = this;
    this.latest = { what, at: performance.now(), before: inspector.model.get("task") };
    inspector.model.send({ type: "run", what, options });
    inspector.refreshPanel();
    clearTimeout(this.#patience);
    this.#patience = setTimeout(() => inspector.refreshPanel(), PATIENCE + 50);
  }

  /** Whether it was requested and the kernel has not answered yet. */
  isUnanswered(what) {
    return this.latest?.what === what && this.latest.before === this.inspector.model.get("task");
  }

  isRunning(what) {
    return this.answer.state === "running" || this.isUnanswered(what);
  }

  get isLate() {
    return performance.now() - this.latest.at > PATIENCE;
  }

  stop() {
    clearTimeout(this.#patience);
  }
}

/** The form for a task, or what stands in its place where there is no kernel. `missing` says what has not been computed. */
export function taskForm(inspector, what, missing) {
  const { button, code } = TEXTS[what];
  if (!inspector.graph.data.traced) return missing ? untraced() : null;
  if (!inspector.model.get("kernel")) return missing ? empty(missing, " With a kernel: ", h("code", null, code)) : null;
  const choices = inspector.model.get("choices")?.[what];
  if (!choices) return missing ? empty(missing) : null; // the session holds nothing that could be run
  const { task } = inspector;
  const running = task.isRunning(what);
  const options = inspector.panels.state(`options of ${what}`, () => ({}));
  for (const [name, values] of Object.entries(choices)) options[name] ??= values[0];
  const fields = Object.entries(choices).map(([name, values]) => choice(name, values, options, running));
  const onclick = () => task.request(what, options);
  return h(
    "div.cabw-form",
    null,
    missing ? h("p.cabw-missing", null, missing) : null,
    fields,
    h("button.cabw-button", { disabled: running, onclick }, running ? "Running…" : button),
    taskState(task, what),
  );
}

/** A field that writes its value into `options`. */
function choice(name, values, options, disabled) {
  const select = h(
    "select",
    { disabled, onchange: () => Object.assign(options, { [name]: select.value }) },
    values.map((value) => h("option", { selected: value === options[name] }, value)),
  );
  return h("label", null, LABELS[name] ?? name, select);
}

const message = (text) => h("p", { role: "status" }, text);

function taskState(task, what) {
  if (task.isUnanswered(what))
    return message(task.isLate ? "No answer yet: the kernel is busy with a cell, or gone." : "Asked the kernel…");
  const { answer } = task;
  if (answer.what !== what) return null;
  if (answer.state === "running")
    return h(
      "div.cabw-running",
      null,
      message(`${TEXTS[what].running}. Interrupt the kernel to stop it.`),
      answer.share === undefined
        ? null
        : h("progress", { max: 1, value: answer.share, "aria-label": "How far the run of the graph has come" }),
    );
  if (answer.state === "failed") return h("pre.cabw-error", { role: "alert" }, answer.error);
  if (answer.state === "interrupted") return message("Stopped by an interrupt; nothing was changed.");
  const { seconds } = answer;
  if (seconds === undefined) return null;
  return message(`Done in ${seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`}.`);
}
