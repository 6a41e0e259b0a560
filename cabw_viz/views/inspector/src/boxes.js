/** Frames, edges and boxes of a scene, onto the canvas of the renderer `r`. */
import { plural } from "./dom.js";
import { LOD } from "./lod.js";
import { cells, curve, nameOf, tag } from "./shapes.js";
import { paintMark, paintText } from "./text.js";

export function rectOf(r, b) {
  const old = r.t < 1 && r.from?.get(b.key);
  if (!old) return [b.x, b.y, b.w, b.h];
  return [b.x, b.y, b.w, b.h].map((v, i) => old[i] + (v - old[i]) * r.t);
}

function unreached(r, item) {
  return r.graph.letter === "n" && r.graph.data.failed_at !== null && (item.nodes || [item]).every((n) => n.unreached);
}

export function fade(r, b) {
  const dim = r.state.dim?.[b.item.index] ? 0.28 : unreached(r, b.item) ? 0.5 : 1;
  return r.t < 1 && r.from && !r.from.has(b.key) ? dim * r.t : dim;
}

export function paintFrame(r, b) {
  const { ctx, theme, view } = r;
  const [x, y, w, h] = rectOf(r, b);
  ctx.globalAlpha = r.t < 1 && r.from && !r.from.has(b.key) ? r.t : 1;
  ctx.fillStyle = b.depth % 2 ? theme.sunken : theme.surface;
  ctx.strokeStyle = theme.line;
  ctx.lineWidth = Math.min(1 / view.k, 3);
  ctx.beginPath();
  ctx.roundRect(x, y, w, h, 8);
  ctx.fill();
  ctx.stroke();
  ctx.globalAlpha = 1;
}

const some = (pairs, test) => {
  for (let i = 0; i < pairs.length; i += 2) if (test(pairs[i], pairs[i + 1])) return true;
  return false;
};

/** How an edge is marked: "near" what is hovered, "up" on the way of the selection or above it, "down" below it, or "plain". */
function markOf(pairs, { mark, near, path }) {
  if (near && some(pairs, (a, b) => near[a] || near[b])) return "near";
  if (path) return some(pairs, (a, b) => path[a] && path[b]) ? "up" : "plain";
  if (mark && some(pairs, (a, b) => mark[a] & 1 && mark[b] & 1)) return "up";
  return mark && some(pairs, (a, b) => mark[a] & 2 && mark[b] & 2) ? "down" : "plain";
}

export function paintEdges(r, top, bottom, left, right) {
  const { ctx, theme, view, scene, state } = r;
  const colours = { plain: theme.edge, down: theme.down, up: theme.up, near: theme.text };
  const paths = { plain: new Path2D(), down: new Path2D(), up: new Path2D(), near: new Path2D() };
  const arrows = [];
  const marked = state.near || state.path || state.mark;
  const straight = view.k < LOD.round;
  const { bounds, pointsAt, pairsAt } = scene;
  const many = scene.arrow.length;
  for (let e = 0; e < many; e++) {
    if (bounds[4 * e + 3] < top || bounds[4 * e + 1] > bottom || bounds[4 * e + 2] < left || bounds[4 * e] > right)
      continue;
    const points = scene.points.subarray(pointsAt[e], pointsAt[e + 1]);
    const mark = marked ? markOf(scene.pairs.subarray(pairsAt[e], pairsAt[e + 1]), state) : "plain";
    curve(paths[mark], points, straight);
    if (view.k >= LOD.labels && scene.arrow[e]) arrows.push([...arrowAt(points, scene.arrow[e]), colours[mark]]);
  }
  ctx.globalAlpha = r.t < 1 ? r.t : 1;
  ctx.lineWidth = Math.max(Math.min(1.25, 1.1 / view.k + 0.1), 0.6 / view.k);
  for (const [mark, path] of Object.entries(paths)) {
    ctx.setLineDash(mark === "down" ? [5, 3] : []);
    ctx.strokeStyle = colours[mark];
    ctx.stroke(path);
    ctx.lineWidth = Math.max(1.6, 1.2 / view.k); // all but plain ones
  }
  ctx.setLineDash([]);
  for (const [x, y, back, colour] of arrows) paintArrow(ctx, x, y, back, colour);
  ctx.globalAlpha = 1;
}

/** Where an edge's arrow is, and how far its back lies below its head: an edge that closes a circle leads up. */
const arrowAt = (points, arrow) => (arrow === 2 ? [points[0], points[1], 6] : [points.at(-2), points.at(-1), -6]);

function paintArrow(ctx, x, y, back, colour) {
  ctx.fillStyle = colour;
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.lineTo(x - 3.2, y + back);
  ctx.lineTo(x + 3.2, y + back);
  ctx.fill();
}

export function paintBox(r, b) {
  const { ctx, view } = r;
  ctx.globalAlpha = fade(r, b);
  const colour = r.colourOf(b.item);
  const rect = rectOf(r, b);
  if (view.k < LOD.round) {
    // far away: colour only
    ctx.fillStyle = colour.quiet ? colour.border : colour.solid;
    ctx.fillRect(rect[0], rect[1], rect[2], Math.max(rect[3], 0.9 / view.k)); // never paler than its colour
  } else if (b.kind === "node") paintNode(r, b, rect, colour);
  else paintGroup(r, b, rect);
  ctx.globalAlpha = 1;
}

function paintNode(r, b, [x, y, w, h], colour) {
  const { ctx, theme, view } = r;
  const n = b.item;
  const loud = colour.loud;
  ctx.beginPath();
  if (n.parameter) tag(ctx, x, y, w, h);
  else ctx.roundRect(x, y, w, h, 5);
  const far = view.k < LOD.labels; // no words any more: the colour has to carry further
  ctx.fillStyle = loud ? colour.solid : colour.quiet ? theme.box : far ? colour.border : colour.fill;
  ctx.fill();
  ctx.strokeStyle = colour.border;
  ctx.lineWidth = 1;
  ctx.stroke();
  if (view.k < LOD.marks) return;
  paintMark(
    r,
    colour.mark,
    x + 13,
    y + h / 2,
    4,
    loud ? theme["on-strong"] : far && !colour.quiet ? theme.box : colour.solid,
  );
  if (far) return;
  const g = r.grow;
  const id = g > 1.12 ? "" : r.figureOf(n) || n.tag;
  const room = w - 30 - 6.2 * id.length - (n.parameter ? 8 : 4);
  ctx.textBaseline = "middle";
  ctx.fillStyle = loud ? theme["on-strong"] : colour.quiet && n.family === "view" ? theme.muted : theme.text;
  paintText(r, n.label, x + 23, y + h / 2 + 0.5, room, `${(n.parameter ? "italic " : "") + (12 * g).toFixed(1)}px`);
  ctx.fillStyle = loud ? theme["on-strong"] : theme.faint;
  ctx.textAlign = "right";
  paintText(r, id, x + w - (n.parameter ? 13 : 8), y + h / 2 + 0.5, 60, "10.5px");
  ctx.textAlign = "left";
}

function paintGroup(r, b, [x, y, w, h]) {
  const { ctx, theme, view } = r;
  const isStack = b.kind === "stack";
  const front = isStack ? h - 8 : h;
  ctx.strokeStyle = theme["line-strong"];
  ctx.lineWidth = 1;
  const card = (dx, dy, fill) => {
    ctx.fillStyle = fill;
    ctx.beginPath();
    ctx.roundRect(x + dx, y + dy, w - 2 * dx, front, 6);
    ctx.fill();
    ctx.stroke();
  };
  for (const i of isStack ? [2, 1] : []) card(i * 5, i * 4, theme.surface);
  card(0, 0, theme.box);
  if (isStack) paintCells(r, b);
  else paintBar(r, x + 10, y + front - 8, w - 20, 3, r.classOf(b.item).parts);
  if (view.k < LOD.marks) return;
  ctx.fillStyle = theme.faint;
  ctx.beginPath();
  ctx.moveTo(x + 10, y + 10);
  ctx.lineTo(x + 15, y + 14);
  ctx.lineTo(x + 10, y + 18);
  ctx.fill();
  paintGroupText(r, b.item, isStack, x + 21, y, w);
}

function paintGroupText(r, g, isStack, x, y, w) {
  const { ctx, theme, view } = r;
  const size = (s) => `${(s * r.grow).toFixed(1)}px`;
  ctx.textBaseline = "middle";
  ctx.fillStyle = theme.text;
  const name = nameOf(g) + (isStack ? `  ×${g.stack}` : "");
  const used = paintText(r, name, x, y + 14.5, w - 60, `600 ${size(12.5)}`);
  if (view.k < LOD.labels) return;
  ctx.fillStyle = theme.muted;
  const ownClass = g.cls === g.name ? "" : g.cls;
  paintText(r, isStack ? `${g.children[0].cls}` : ownClass, x + used + 7, y + 15, w - 44 - used, size(11));
  const figure = r.figureOf(g) ? `  ·  ${r.figureOf(g)}` : "";
  paintText(r, plural(g.nodes.length, "node") + figure, x, y + (isStack ? 30 : 27.5), w - 30, size(11));
}

function paintBar(r, x, y, w, h, parts) {
  const { ctx } = r;
  const total = [...parts.values()].reduce((a, b) => a + b, 0);
  let at = x;
  for (const [key, count] of parts) {
    if (!count) continue;
    const c = r.colours.get(key);
    const width = (w * count) / total;
    ctx.fillStyle = c.solid;
    ctx.fillRect(at, y, Math.max(width - 1, 0.8), h);
    at += width;
  }
}

function paintCells(r, b) {
  const { ctx, theme, view } = r;
  for (const c of cells(b)) {
    const { main } = r.classOf(c.group);
    ctx.fillStyle = r.encoding.isCategorical ? theme["c-none"] : r.colours.get(main).solid;
    ctx.fillRect(c.x, c.y, c.w, c.h);
    if (view.k < 0.7) continue;
    ctx.fillStyle = r.state.hoverCell === c.key ? theme.accent : theme.muted;
    ctx.textAlign = "center";
    paintText(
      r,
      c.group.name,
      c.x + c.w / 2,
      c.y + c.h + 7.5,
      c.w + 6,
      r.state.hoverCell === c.key ? "600 10px" : "10px",
    );
    ctx.textAlign = "left";
  }
}
