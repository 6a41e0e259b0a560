/** Things that only a kernel can do, asked for in a panel: what to run it with, how it goes, what became of it. */
import { h } from "./dom.js";
import { empty } from "./parts.js";

const PATIENCE = 8000; // after this long without a word the kernel is busy or gone

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

/** The form for a task, or what stands in its place where there is no kernel. `missing` says what has not been computed. */
export function taskForm(ins, what, missing) {
  const { button, code } = TEXTS[what];
  if (!ins.model.get("kernel")) return missing ? empty(missing, " With a kernel: ", h("code", null, code)) : null;
  const choices = ins.model.get("choices")?.[what];
  if (!choices) return missing ? empty(missing) : null; // the session holds nothing that could be run
  const task = ins.model.get("task") || {};
  const running = task.state === "running" || asked(ins, what);
  const chosen = (ins.ui[what] ??= {});
  const fields = Object.entries(choices).map(([name, options]) => choice(name, options, chosen, running));
  const run = () => {
    ins.asked = { what, at: performance.now(), task: ins.model.get("task") };
    ins.model.send({ type: "run", what, options: chosen });
    ins.refreshPanel();
    clearTimeout(ins.patience);
    ins.patience = setTimeout(() => ins.refreshPanel(), PATIENCE + 50);
  };
  return h(
    "div.cabw-form",
    null,
    missing ? h("p.cabw-missing", null, missing) : null,
    fields,
    h("button.cabw-button", { disabled: running, onclick: run }, running ? "Running…" : button),
    state(ins, what, task),
  );
}

function choice(name, options, chosen, disabled) {
  chosen[name] ??= options[0];
  const select = h(
    "select",
    { disabled, onchange: () => (chosen[name] = select.value) },
    options.map((o) => h("option", { selected: o === chosen[name] }, o)),
  );
  return h("label", null, LABELS[name] ?? name, select);
}

/** Whether a task was asked for that the kernel has not yet spoken about. */
function asked(ins, what) {
  return ins.asked?.what === what && ins.asked.task === ins.model.get("task");
}

function state(ins, what, task) {
  if (asked(ins, what)) {
    const late = performance.now() - ins.asked.at > PATIENCE;
    return h(
      "p",
      { role: "status" },
      late ? "No answer yet: the kernel is busy with a cell, or gone." : "Asked the kernel…",
    );
  }
  if (task.what !== what) return null;
  if (task.state === "running")
    return h(
      "div.cabw-running",
      null,
      h("p", { role: "status" }, `${TEXTS[what].running}. Interrupt the kernel to stop it.`),
      task.share === undefined
        ? null
        : h("progress", { max: 1, value: task.share, "aria-label": "How far the run of the graph has come" }),
    );
  if (task.state === "failed") return h("pre.cabw-error", { role: "alert" }, task.error);
  if (task.state === "interrupted") return h("p", { role: "status" }, "Stopped by an interrupt; nothing was changed.");
  return task.seconds === undefined
    ? null
    : h(
        "p",
        { role: "status" },
        `Done in ${task.seconds < 1 ? `${Math.round(task.seconds * 1000)} ms` : `${task.seconds.toFixed(1)} s`}.`,
      );
}
