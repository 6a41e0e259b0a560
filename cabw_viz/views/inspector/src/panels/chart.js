/** Relative error of each node along the backward: a step shows where it begins. */
import { h } from "../dom.js";
import { differs, error } from "../encode.js";
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

function paint(inspector, canvas, nodes, at) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width) return;
  const ratio = devicePixelRatio || 1;
  const t = inspector.theme;
  const c = canvas.getContext("2d");
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  c.scale(ratio, ratio);
  const x = (i) => LEFT + 4 + (i / Math.max(1, nodes.length - 1)) * (width - LEFT - 12);
  const y = (e) => {
    if (!e) return height - BOTTOM;
    const power = e === Infinity ? TOP : Math.max(FLOOR, Math.min(TOP, Math.log10(e)));
    return height - BOTTOM - 14 - ((power - FLOOR) / (TOP - FLOOR)) * (height - BOTTOM - 22);
  };
  c.font = `10.5px ${t.ui}`;
  c.textBaseline = "middle";
  c.textAlign = "right";
  for (const [value, label] of [
    [1e-2, "1e-2"],
    [1e-5, "1e-5"],
    [0, "equal"],
  ]) {
    c.fillStyle = t.line;
    c.fillRect(LEFT, Math.round(y(value)), width - LEFT, 1);
    c.fillStyle = t.muted;
    c.fillText(label, LEFT - 4, y(value));
  }
  const selected = new Set(inspector.selectedNodes());
  nodes.forEach((n, i) => {
    const loud = n.origin || selected.has(n);
    const top = y(n.relative);
    c.fillStyle = selected.has(n)
      ? t.accent
      : n.origin
        ? t["c-alarm"]
        : differs(n)
          ? t[n.relative >= 1e-3 ? "d3" : "d2"]
          : n.relative
            ? t.q2
            : t["c-equal"];
    c.globalAlpha = loud ? 1 : 0.55;
    if (n.relative) c.fillRect(x(i) - (loud ? 0.75 : 0.4), top, loud ? 1.5 : 0.8, height - BOTTOM - top);
    c.globalAlpha = 1;
    c.beginPath();
    c.arc(x(i), top, n.origin ? 3.5 : selected.has(n) ? 2.5 : 1.3, 0, 7);
    c.fill();
  });
  if (at === undefined) return;
  c.fillStyle = t.text;
  c.globalAlpha = 0.5;
  c.fillRect(x(at), 0, 1, height);
  c.globalAlpha = 1;
}
