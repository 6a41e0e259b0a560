/** The graph nodes of one autograd node, drawn: what reads what, with the same layout as the graph. */
import { statement } from "./code.js";
import { h } from "./dom.js";
import { layered } from "./layout.js";

const MOST = 40;
const WIDTH = 126;
const HEIGHT = 20;
const SVG = "http://www.w3.org/2000/svg";

/** The lines to draw, after those of other autograd nodes that they read, and an edge for each read. */
export function pictureOf(code, own) {
  const inside = new Set(own);
  const outside = [...new Set(own.flatMap((i) => [...code.readsOf(i)]))].filter((i) => !inside.has(i));
  const lines = [...outside.slice(0, MOST / 4), ...own].slice(0, MOST);
  const place = new Map(lines.map((line, k) => [line, k]));
  const edges = [];
  for (const i of own) {
    for (const j of place.has(i) ? code.readsOf(i) : []) if (place.has(j)) edges.push([place.get(j), place.get(i)]);
  }
  return { lines, edges, outside: new Set(outside), left: own.length + outside.length - lines.length };
}

export function fxPicture(inspector, code, own) {
  const { lines, edges, outside, left } = pictureOf(code, own);
  if (lines.length < 2) return null;
  const plan = layered({ width: lines.map(() => WIDTH), height: lines.map(() => HEIGHT), edges, gapX: 12, gapY: 18 });
  const w = plan.w + 4;
  const tall = plan.h + 4;
  const svg = make("svg", { viewBox: `-2 -2 ${w} ${tall}`, width: w, height: tall, role: "img" });
  svg.setAttribute("aria-label", `${lines.length} graph nodes and what each reads`);
  for (const route of plan.routes) {
    svg.append(make("path", { d: curve(route), fill: "none", stroke: "var(--edge)", "stroke-width": 1.25 }));
  }
  lines.forEach((line, i) => svg.append(...box(inspector, code, line, outside.has(line), plan.x[i], plan.y[i])));
  return h(
    "div.cabw-fx",
    { tabIndex: 0, role: "group", "aria-label": "Graph nodes of this autograd node" },
    svg,
    left > 0 ? h("p.muted", null, `${left} more are not drawn.`) : null,
  );
}

function box(inspector, code, line, outside, x, y) {
  const [name, target] = statement(code.lines[line]);
  const text = outside
    ? name
    : target.replace(/^(torch\.)?(ops\.)?(aten\.)?/, "").replace(/\.(default|int|Tensor)$/, "") || name;
  const rect = make("rect", {
    x,
    y,
    width: WIDTH,
    height: HEIGHT,
    rx: 4,
    fill: outside ? "none" : "var(--box)",
    stroke: "var(--line-strong)",
  });
  if (outside) rect.setAttribute("stroke-dasharray", "3 2");
  const words = make("text", {
    x: x + WIDTH / 2,
    y: y + 13.5,
    "text-anchor": "middle",
    "font-size": 10.5,
    fill: "var(--text)",
  });
  words.textContent = text.length > 20 ? `${text.slice(0, 19)}…` : text;
  words.style.pointerEvents = "none";
  const title = make("title", {});
  title.textContent = code.lines[line].slice(0, 400);
  rect.append(title);
  const node = code.nodeAt(line);
  if (outside && node) {
    rect.style.cursor = "pointer";
    rect.addEventListener("click", () => inspector.reveal(node.key));
  }
  return [rect, words];
}

function make(name, attributes) {
  const el = document.createElementNS(SVG, name);
  for (const [k, v] of Object.entries(attributes)) el.setAttribute(k, v);
  return el;
}

function curve(p) {
  let d = `M${p[0]} ${p[1]}`;
  for (let i = 2; i < p.length; i += 2) {
    const m = (p[i - 1] + p[i + 1]) / 2;
    d +=
      Math.abs(p[i] - p[i - 2]) < 0.5 ? `L${p[i]} ${p[i + 1]}` : `C${p[i - 2]} ${m} ${p[i]} ${m} ${p[i]} ${p[i + 1]}`;
  }
  return d;
}
