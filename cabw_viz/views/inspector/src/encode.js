/**
 * What a colour means. An encoding has classes, strongest first, each with a token of the style sheet and a mark,
 * so that nothing is told by colour alone; `of` gives a node's class.
 */
import { heldBy } from "./drawable.js";
import { DIFFERS_MUCH, ENCODING_TABLE } from "./palette.js";

const sum = (nodes, of) => nodes.reduce((a, n) => a + of(n), 0);
const reads = (n) => n.execution + n.initial + n.passes;
/** Whether what is known of an item's autograd node as a whole may stand at this one. */
const speaks = (nodes) => nodes.length > 1 || nodes[0].speaks;

/** The figure behind a colour, for a node or a group: colour never stands alone. */
export function figure(name, nodes) {
  const wrong = name === "parity" ? nodes.filter(differs).length : 0;
  switch (name) {
    case "parity":
      return nodes.length === 1
        ? wrong
          ? error(nodes[0].relative)
          : ""
        : wrong
          ? `${wrong.toLocaleString("en-US")} differ`
          : nodes.some((n) => n.compared)
            ? "equal"
            : "";
    case "touches": {
      const r = speaks(nodes) ? sum(nodes, reads) : 0;
      return nodes.length === 1 ? String(r || "") : r ? `${r.toLocaleString("en-US")} reads` : "";
    }
    case "bytes": {
      const b = speaks(nodes) ? heldBy(nodes) : 0;
      return b ? bytes(b) : "";
    }
    case "time":
      return speaks(nodes) ? duration(timed(nodes)) : "";
    default:
      return "";
  }
}

/** Seconds that nodes took together; NaN where none of them was timed. */
export function timed(nodes) {
  let total = NaN;
  for (const n of nodes) if (!Number.isNaN(n.seconds)) total = (total || 0) + n.seconds;
  return total;
}

/** Seconds as one says them: `1.24 ms`; nothing for NaN. */
export function duration(s) {
  if (Number.isNaN(s)) return "";
  const [value, unit] = s < 1e-3 ? [s * 1e6, "µs"] : s < 1 ? [s * 1e3, "ms"] : [s, "s"];
  return `${value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : value.toFixed(0)} ${unit}`;
}

export function bytes(n) {
  if (!n) return "0 B";
  const unit = n < 1e3 ? 0 : n < 1e6 ? 1 : n < 1e9 ? 2 : 3,
    v = n / 10 ** (3 * unit);
  return `${unit === 0 ? v : v < 10 ? v.toFixed(2) : v < 100 ? v.toFixed(1) : v.toFixed(0)} ${["B", "kB", "MB", "GB"][unit]}`;
}

/** An error in two figures: endless where a gradient is missing or not finite. */
export const error = (x) =>
  x === null || Number.isNaN(x) ? "–" : x === 0 ? "0" : x === Infinity ? "∞" : x.toExponential(1);

const LIMITS = Object.fromEntries(
  Object.entries(ENCODING_TABLE).map(([name, { classes }]) => [name, classes.filter((c) => c.limit !== null)]),
);

/** The class of a figure: the first whose least figure it reaches; `none` below all, and for NaN. */
const byLimit = (name, figure) => LIMITS[name].find((c) => figure >= c.limit)?.key ?? "none";

/** What a comparison came to at a node. */
function parityClass(n) {
  if (n.origin) return "first";
  if (!n.compared) return "none";
  if (n.verdict === "bitwise") return "equal";
  if (n.good) return "close";
  return n.relative >= DIFFERS_MUCH ? "d3" : "d2";
}

export const differs = (n) => ["first", "d3", "d2"].includes(parityClass(n));

const KINDS = new Set(ENCODING_TABLE.kind.classes.map((c) => c.key));
const CALLS = new Set(["backward_call", "aot_op", "aten_op"]);

/** The kind of an autograd node; that of its autograd node for what computes in the captured graph. */
const kindClass = (n) => (CALLS.has(n.kind) && n.base ? n.base.kind : KINDS.has(n.kind) ? n.kind : "other");

/** A node's time as a part of the slowest node's: nodes of one backward differ by orders of magnitude. */
const timePart = (n) => n.seconds / (n.base.graph.slowest || 1);

const CLASS_OF = {
  family: (n) => n.family,
  kind: kindClass,
  touches: ({ shade: n }) => (n.initial || n.passes ? "initial" : byLimit("touches", n.execution)),
  parity: parityClass,
  bytes: ({ shade: n }) => byLimit("bytes", n.bytes),
  time: ({ shade: n }) => byLimit("time", timePart(n)),
};

export const ENCODINGS = Object.fromEntries(
  Object.entries(ENCODING_TABLE).map(([name, { label, classes, isCategorical }]) => [
    name,
    { label, isCategorical, classes: classes.map((c) => [c.key, c.words, c.token, c.mark]), of: CLASS_OF[name] },
  ]),
);

/** The classes that the legend shows only where there are such nodes. */
export const RARE = new Set(
  Object.values(ENCODING_TABLE).flatMap(({ classes }) => classes.filter((c) => c.rare).map((c) => c.key)),
);

/** Counts per class over nodes, in the order of the legend. */
export function composition(encoding, nodes) {
  const counts = new Map(encoding.classes.map(([key]) => [key, 0]));
  for (const n of nodes) {
    const key = encoding.of(n);
    counts.set(key, counts.get(key) + 1);
  }
  return counts;
}

const BACKGROUND = new Set(
  Object.values(ENCODING_TABLE).flatMap(({ classes }) => classes.filter((c) => c.background).map((c) => c.key)),
);

/** The strongest class among nodes; for kinds and families the commonest, background classes only among themselves. */
export function strongest(encoding, nodes) {
  const counts = [...composition(encoding, nodes)].filter(([, count]) => count);
  if (!encoding.isCategorical) return counts[0][0];
  const foreground = counts.filter(([key]) => !BACKGROUND.has(key));
  return (foreground.length ? foreground : counts).reduce((a, b) => (b[1] > a[1] ? b : a))[0];
}

/** A mark as path commands around (0, 0) with radius r: [fill or stroke, draw]. Shared by canvas and SVG. */
export function markPath(name, r) {
  const h = r * 0.85;
  switch (name) {
    case "square":
      return ["fill", `M${-h} ${-h}H${h}V${h}H${-h}Z`];
    case "triangle":
      return ["fill", `M0 ${-r}L${r} ${h}H${-r}Z`];
    case "circle":
      return ["fill", `M${-r} 0A${r} ${r} 0 1 1 ${r} 0A${r} ${r} 0 1 1 ${-r} 0Z`];
    case "diamond":
      return ["fill", `M0 ${-r * 1.15}L${r * 1.15} 0L0 ${r * 1.15}L${-r * 1.15} 0Z`];
    case "bar":
      return ["stroke", `M${-r} 0H${r}`];
    case "tag":
      return ["fill", `M${-r} ${-h}H${r * 0.2}L${r} 0L${r * 0.2} ${h}H${-r}Z`];
    case "ring":
      return ["stroke", `M${-h} 0A${h} ${h} 0 1 1 ${h} 0A${h} ${h} 0 1 1 ${-h} 0Z`];
    case "equal":
      return ["stroke", `M${-r} ${-r * 0.42}H${r}M${-r} ${r * 0.42}H${r}`];
    case "differ":
      return ["stroke", `M${-r} ${-r * 0.42}H${r}M${-r} ${r * 0.42}H${r}M${r * 0.5} ${-r}L${-r * 0.5} ${r}`];
    case "star":
      return [
        "fill",
        `M0 ${-r * 1.1}L${r * 0.32} ${-r * 0.32}L${r * 1.1} 0L${r * 0.32} ${r * 0.32}L0 ${r * 1.1}L${-r * 0.32} ${r * 0.32}L${-r * 1.1} 0L${-r * 0.32} ${-r * 0.32}Z`,
      ];
    case "frame":
      return ["stroke", `M${-h} ${-h}H${h}V${h}H${-h}Z`];
    case "cross":
      return ["stroke", `M${-h} ${-h}L${h} ${h}M${h} ${-h}L${-h} ${h}`];
    case "flag":
      return ["fill", `M${-h} ${-r}H${-h + r * 0.45}L${r} ${-r * 0.4}L${-h + r * 0.45} ${r * 0.25}V${r}H${-h}Z`];
    case "bang":
      return [
        "fill",
        `M${-r * 0.28} ${-r}H${r * 0.28}L${r * 0.16} ${r * 0.25}H${-r * 0.16}ZM${-r * 0.26} ${r * 0.5}H${r * 0.26}V${r}H${-r * 0.26}Z`,
      ];
    case "hook":
      return [
        "stroke",
        `M${r * 0.35} ${-r}V${r * 0.25}A${r * 0.5} ${r * 0.5} 0 0 1 ${-r * 0.65} ${r * 0.25}V${-r * 0.1}`,
      ];
    default:
      return [
        "fill",
        [0, 1, 2]
          .slice(0, Number(name.at(-1)))
          .map((i) => `M${(i - 1.35) * r * 0.74} ${r * (0.2 - i * 0.6)}h${r * 0.56}V${r}h${-r * 0.56}Z`)
          .join(""),
      ]; // bar1, bar2, bar3
  }
}
