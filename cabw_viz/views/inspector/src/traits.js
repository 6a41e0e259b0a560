/** What the model says: findings that come after the graph, code that was asked for, traits that Python sets. */
import { sent } from "./columns.js";
import { ENCODINGS } from "./encode.js";
import { SessionFacts } from "./session.js";

/** The parts that are findings, each with the method of the graph that takes it over. */
const FINDINGS = {
  touches: "setTouches",
  parity: "setParity",
  divergence: "setDivergence",
  times: "setTimes",
  nonfinite: "setNonfinite",
};

/** Traits that both sides set. What this side has set comes back here too, and changes nothing. */
const TWO_WAY = {
  selection(inspector, value) {
    if (value !== inspector.selection) inspector.reveal(value);
  },
  color_by(inspector, value) {
    if (value !== inspector.colour && Object.hasOwn(ENCODINGS, value)) inspector.setColour(value);
  },
  query(inspector, value) {
    if (value !== inspector.search.query) inspector.find(value);
  },
  level(inspector, value) {
    if (value !== inspector.level) inspector.setLevel(value);
  },
  expanded(inspector, value) {
    inspector.picture.setExpanded(value).then((drawn) => drawn && inspector.camera.show(inspector.selection));
  },
};

/** Returns a function that stops it. */
export function listenToTraits(inspector) {
  const { model } = inspector;
  const listeners = {
    code: () => useCode(inspector, "code"),
    aten: () => useCode(inspector, "aten"),
    task: () => {
      inspector.refreshPanel();
      inspector.frame.showNote();
    },
    session: () => inspector.setSession(new SessionFacts(model.get("session"))),
  };
  for (const part of Object.keys(FINDINGS)) {
    listeners[part] = () => {
      readFinding(inspector, part);
      inspector.showFindings();
    };
  }
  for (const [name, set] of Object.entries(TWO_WAY)) listeners[name] = () => set(inspector, model.get(name));
  for (const [name, f] of Object.entries(listeners)) model.on(`change:${name}`, f);
  return () => {
    for (const [name, f] of Object.entries(listeners)) model.off(`change:${name}`, f);
  };
}

export function readFindings(inspector) {
  for (const part of Object.keys(FINDINGS)) readFinding(inspector, part);
}

function readFinding({ graph, model }, part) {
  graph[FINDINGS[part]](model.get(part));
}

/** The code of a graph has come: a level may have waited for it. */
function useCode(inspector, part) {
  if (!sent(inspector.model.get(part))) return; // another capture is on its way
  const level = inspector.levels.renew(part);
  const { picture } = inspector;
  const isDrawn = picture.level === level && !picture.switching && picture.drawn !== inspector.graph;
  if (picture.pending === level || isDrawn) inspector.setLevel(level);
  inspector.refreshPanel();
}
