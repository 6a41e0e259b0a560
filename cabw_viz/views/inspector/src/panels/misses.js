/** Every backward call of the session, and why it was captured again. */
import { h, ICON, plural, svg } from "../dom.js";
import { virtualList } from "../list.js";
import { ALARM, empty } from "../parts.js";
import { inPlainWords } from "../reasons.js";

const FEW = 200; // more rows than these get one height, so that only those in sight exist
const ROW = 62;
const LOOKS = {
  captured: ["captured", "Captured"],
  watched: ["captured", "Watched"],
  cache_hit: ["hit", "Cache hit"],
  failed: ["failed", "Failed"],
  bypassed: ["bypassed", "Bypassed"],
};

export function missesPanel(inspector) {
  const { events, again } = inspector.session;
  if (!events.length)
    return h("div.cabw-pad", null, h("h2", null, "Misses"), empty("No backward call of a session is known here."));
  const count = events.filter((e) => e.outcome === "captured" || e.outcome === "watched").length;
  const rows = mergeEqual(events);
  return h(
    "div",
    null,
    h(
      "div.cabw-pad.cabw-tight",
      null,
      h("h2", null, `${plural(count, "capture")} in ${plural(events.length, "backward call")}`),
      h(
        "p.muted",
        null,
        again.length ? "Each call of this session, and why it was captured again." : "Each call of this session.",
      ),
    ),
    rows.length <= FEW
      ? rows.map((row, i) => line(inspector, row, i))
      : virtualList({
          count: rows.length,
          height: ROW,
          className: ".cabw-even",
          make: (i) => line(inspector, rows[i], i),
          scroller: () => inspector.panels.body,
        }),
  );
}

/** Calls in a row that differ in nothing but their number and time, as one. */
function mergeEqual(events) {
  const rows = [];
  for (const e of events) {
    const likeness = [e.outcome, e.reason, e.capture, e.function, e.where, e.call === null].join("\n");
    const last = rows.at(-1);
    if (last?.likeness === likeness)
      Object.assign(last, { until: e.call, count: last.count + 1, seconds: last.seconds + e.seconds });
    else rows.push({ ...e, likeness, until: e.call, count: 1 });
  }
  return rows;
}

function line(inspector, e, i) {
  const [icon, text] = LOOKS[e.outcome];
  const loud = (e.outcome === "captured" && i) || e.outcome === "failed";
  const words = inPlainWords(e.reason);
  const calls =
    e.call === null
      ? e.count > 1
        ? `${e.count} calls`
        : ""
      : e.count > 1
        ? `calls ${e.call} to ${e.until}`
        : `call ${e.call}`;
  return h(
    "div.cabw-call",
    null,
    svg(ICON[icon], { colour: loud ? ALARM : "var(--muted)" }),
    h("div", null, h("b", null, text), h("span.muted", null, `  ${calls}`)),
    h("span.muted", null, `${(e.seconds * 1000).toFixed(e.seconds < 0.1 ? 1 : 0)} ms`),
    h(
      "div.why",
      null,
      h("span.mono", null, `${e.function} at ${e.where || "an unknown place"}`),
      e.capture === null || !["captured", "watched"].includes(e.outcome) ? null : captureLink(inspector, e.capture),
    ),
    e.reason ? h("div.why", { title: e.reason }, words) : null,
    words !== e.reason ? h("div.why.mono.cabw-wrap.cabw-raw", null, e.reason) : null,
  );
}

function captureLink(inspector, capture) {
  if (inspector.session.captures.length < 2) return null;
  if (capture === inspector.graph.data.capture) return h("span", null, "  shown here");
  return h(
    "span",
    null,
    "  ",
    h("button.cabw-link", { onclick: () => inspector.openCapture(capture) }, `Show capture ${capture}`),
  );
}
