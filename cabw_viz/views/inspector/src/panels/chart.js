/** Relative error of each node along the backward: a step shows where it begins. */
import { h } from "../dom.js";
import { differs, error } from "../encode.js";
import { DIFFERS_MUCH } from "../palette.js";
import { title } from "../parts.js";

const LEFT = 30;
const BOTTOM = 6;
const FLOOR = -8; // powers of ten shown
const TOP = 0;

export function chart(inspector) {
  const canvas = h("canvas.cabw-chart", { role: "img", "aria-label": "Relative error of each node in backward order" });
  const out = h("div.muted.cabw-under");
  const nodes = inspector.graph.list.filter((n) => n.compared && !n.parameter);
  const equal = `${nodes.filter((n) => !n.relative).length} of ${nodes.length} operations equal`;
  const draw = (at) => {
    paint(inspector, canvas, nodes, at);
    out.textContent =
      at === undefined
        ? equal
        : `${title(nodes[at])}  ${nodes[at].module || ""}  ${nodes[at].relative ? error(nodes[at].relative) : "equal"}`;
  };
  const index = (e) =>
    Math.max(
      0,
      Math.min(
        nodes.length - 1,
        Math.round(((e.offsetX - LEFT - 4) / (canvas.clientWidth - LEFT - 12)) * (nodes.length - 1)),
      ),
    );
  canvas.addEventListener("pointermove", (e) => {
    if (!nodes.length) return;
    inspector.point(nodes[index(e)].key);
    draw(index(e));
  });
  canvas.addEventListener("pointerleave", () => {
    inspector.hover(null);
    draw();
  });
  canvas.addEventListener("click", (e) => nodes.length && inspector.reveal(nodes[index(e)].key));
  requestAnimationFrame(() => draw());
  return h("div", null, canvas, out);
}

/** The nodes' errors as bars, and a line at node `at`, if any. */
function paint(inspector, canvas, nodes, at) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width) return;
  const { theme } = inspector;
  const ctx = sized(canvas, width, height);
  const x = (i) => LEFT + 4 + (i / Math.max(1, nodes.length - 1)) * (width - LEFT - 12);
  const y = (e) => {
    if (!e) return height - BOTTOM;
    const power = e === Infinity ? TOP : Math.max(FLOOR, Math.min(TOP, Math.log10(e)));
    return height - BOTTOM - 14 - ((power - FLOOR) / (TOP - FLOOR)) * (height - BOTTOM - 22);
  };
  paintScale(ctx, theme, y, width);
  const selected = new Set(inspector.selectedNodes());
  nodes.forEach((n, i) => paintError(ctx, theme, n, selected.has(n), x(i), y(n.relative), height - BOTTOM));
  if (at === undefined) return;
  ctx.fillStyle = theme.text;
  ctx.globalAlpha = 0.5;
  ctx.fillRect(x(at), 0, 1, height);
  ctx.globalAlpha = 1;
}

function sized(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  return ctx;
}

function paintScale(ctx, theme, y, width) {
  ctx.font = `10.5px ${theme.ui}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  for (const [value, label] of [
    [1e-2, "1e-2"],
    [1e-5, "1e-5"],
    [0, "equal"],
  ]) {
    ctx.fillStyle = theme.line;
    ctx.fillRect(LEFT, Math.round(y(value)), width - LEFT, 1);
    ctx.fillStyle = theme.muted;
    ctx.fillText(label, LEFT - 4, y(value));
  }
}

function paintError(ctx, theme, n, selected, x, top, bottom) {
  const loud = n.origin || selected;
  ctx.fillStyle = selected ? theme.accent : colourOf(n, theme);
  ctx.globalAlpha = loud ? 1 : 0.55;
  if (n.relative) ctx.fillRect(x - (loud ? 0.75 : 0.4), top, loud ? 1.5 : 0.8, bottom - top);
  ctx.globalAlpha = 1;
  ctx.beginPath();
  ctx.arc(x, top, n.origin ? 3.5 : selected ? 2.5 : 1.3, 0, 7);
  ctx.fill();
}

function colourOf(n, theme) {
  if (n.origin) return theme["c-alarm"];
  if (differs(n)) return theme[n.relative >= DIFFERS_MUCH ? "d3" : "d2"];
  return n.relative ? theme.q2 : theme["c-equal"];
}
