/** What the model says, taken over: findings that come after the graph, code that was asked for, traits that Python sets. */
import { sent } from "./columns.js";
import { ENCODINGS } from "./encode.js";
import { fold, unfold } from "./expanded.js";
import { legend, status } from "./frame.js";
import { SessionFacts } from "./session.js";

/** The parts that are findings, each with the method of the graph that takes it over. */
const FINDINGS = {
  touches: "setTouches",
  parity: "setParity",
  divergence: "setDivergence",
  times: "setTimes",
};
const TWO_WAY = ["selection", "expanded", "color_by", "query", "level"];

export function listen(ins) {
  const { model } = ins;
  const on = {
    code: () => arrived(ins, "code"),
    aten: () => arrived(ins, "aten"),
    task: () => {
      ins.refreshPanel();
      ins.showNote();
    },
    session: () => {
      ins.session = new SessionFacts(model.get("session"));
      ins.refreshPanel();
    },
  };
  for (const part of Object.keys(FINDINGS)) on[part] = () => found(ins, part);
  for (const name of TWO_WAY) on[name] = () => set(ins, name, model.get(name));
  for (const [name, f] of Object.entries(on)) {
    model.on(`change:${name}`, f);
    ins.stop.push(() => model.off(`change:${name}`, f));
  }
}

export function takeFindings(ins) {
  for (const part of Object.keys(FINDINGS)) take(ins, part);
}

function take(ins, part) {
  ins.graph[FINDINGS[part]](ins.model.get(part));
}

/** Something was computed after the graph was drawn: take it over, and show it wherever it shows. */
function found(ins, part) {
  take(ins, part);
  ins.levels.renewed();
  ins.scene?.mark();
  ins.ui.parityList = null;
  ins.paint();
  legend(ins);
  status(ins);
  ins.emphasise();
  ins.refreshPanel();
}

/** The code of a graph has come: a level may have waited for it. */
function arrived(ins, part) {
  if (!sent(ins.model.get(part))) return; // another capture is on its way
  const level = ins.levels.renew(part);
  const shown = ins.level === level && !ins.switching && ins.drawn !== ins.graph;
  if (ins.pending === level || shown) ins.setLevel(level);
  ins.refreshPanel();
}

/** A trait that Python has set; what this side has told Python comes back here too, and changes nothing. */
function set(ins, name, value) {
  if (name === "selection" && value !== ins.selection) ins.reveal(value);
  if (name === "color_by" && value !== ins.colour && ENCODINGS[value]) ins.setColour(value);
  if (name === "query" && value !== ins.input.value) {
    ins.input.value = value;
    ins.find(value);
  }
  if (name === "level" && value !== ins.level) ins.setLevel(value);
  if (name === "expanded" && !ins.switching && String(value) !== String(fold(ins.expanded, ins.drawn))) {
    ins.expanded = unfold(value, ins.drawn);
    ins.rebuild(null, { quiet: true, then: () => ins.camera.show(ins.selection) });
  }
}
