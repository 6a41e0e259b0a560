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

export function paintEdges(r, top, bottom, left, right) {
  const { ctx, theme, view, scene } = r;
  const { mark, near: close, path: way } = r.state;
  const plain = new Path2D();
  const up = new Path2D();
  const down = new Path2D();
  const near = new Path2D();
  const arrows = view.k >= LOD.labels ? [] : null;
  const some = (pairs, test) => {
    for (let i = 0; i < pairs.length; i += 2) if (test(pairs[i], pairs[i + 1])) return true;
    return false;
  };
  const { bounds, pointsAt, pairsAt } = scene;
  const many = scene.arrow.length;
  for (let e = 0; e < many; e++) {
    if (bounds[4 * e + 3] < top || bounds[4 * e + 1] > bottom || bounds[4 * e + 2] < left || bounds[4 * e] > right)
      continue;
    const points = scene.points.subarray(pointsAt[e], pointsAt[e + 1]);
    const pairs = close || way || mark ? scene.pairs.subarray(pairsAt[e], pairsAt[e + 1]) : null;
    let path = plain;
    let colour = theme.edge;
    if (close && some(pairs, (a, b) => close[a] || close[b])) {
      path = near;
      colour = theme.text;
    } else if (way) {
      if (some(pairs, (a, b) => way[a] && way[b])) {
        path = up;
        colour = theme.up;
      }
    } else if (mark && some(pairs, (a, b) => mark[a] & 1 && mark[b] & 1)) {
      path = up;
      colour = theme.up;
    } else if (mark && some(pairs, (a, b) => mark[a] & 2 && mark[b] & 2)) {
      path = down;
      colour = theme.down;
    }
    curve(path, points, view.k < LOD.round);
    if (arrows && scene.arrow[e]) arrows.push(points[points.length - 2], points[points.length - 1], colour);
  }
  const thin = Math.min(1.25, 1.1 / view.k + 0.1);
  ctx.globalAlpha = r.t < 1 ? r.t : 1;
  const stroke = (path, colour, width, dash = []) => {
    ctx.setLineDash(dash);
    ctx.strokeStyle = colour;
    ctx.lineWidth = width;
    ctx.stroke(path);
  };
  stroke(plain, theme.edge, Math.max(thin, 0.6 / view.k));
  stroke(down, theme.down, Math.max(1.6, 1.2 / view.k), [5, 3]);
  stroke(up, theme.up, Math.max(1.6, 1.2 / view.k));
  stroke(near, theme.text, Math.max(1.6, 1.2 / view.k));
  ctx.setLineDash([]);
  for (let i = 0; arrows && i < arrows.length; i += 3) {
    const x = arrows[i];
    const y = arrows[i + 1];
    ctx.fillStyle = arrows[i + 2];
    ctx.beginPath();
    ctx.moveTo(x, y);
    ctx.lineTo(x - 3.2, y - 6);
    ctx.lineTo(x + 3.2, y - 6);
    ctx.fill();
  }
  ctx.globalAlpha = 1;
}

export function paintBox(r, b) {
  const { ctx, view } = r;
  ctx.globalAlpha = fade(r, b);
  const found = r.classOf(b.item);
  const colour = r.colours.get(b.item.nodes ? found.main : found);
  const rect = rectOf(r, b);
  if (view.k < LOD.round) {
    // far away: colour only
    ctx.fillStyle = colour.quiet ? colour.border : colour.solid;
    ctx.fillRect(rect[0], rect[1], rect[2], Math.max(rect[3], 0.9 / view.k)); // never paler than its colour
  } else if (b.kind === "node") paintNode(r, b, rect, colour);
  else paintGroup(r, b, rect, found.parts);
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

function paintGroup(r, b, [x, y, w, h], parts) {
  const { ctx, theme, view } = r;
  const g = b.item;
  const stack = b.kind === "stack";
  const H = stack ? h - 8 : h;
  ctx.strokeStyle = theme["line-strong"];
  ctx.lineWidth = 1;
  for (const i of stack ? [2, 1] : []) {
    ctx.fillStyle = theme.surface;
    ctx.beginPath();
    ctx.roundRect(x + i * 5, y + i * 4, w - i * 10, H, 6);
    ctx.fill();
    ctx.stroke();
  }
  ctx.fillStyle = theme.box;
  ctx.beginPath();
  ctx.roundRect(x, y, w, H, 6);
  ctx.fill();
  ctx.stroke();
  if (stack) paintCells(r, b);
  else paintBar(r, x + 10, y + H - 8, w - 20, 3, parts);
  if (view.k < LOD.marks) return;
  ctx.fillStyle = theme.faint;
  ctx.beginPath();
  ctx.moveTo(x + 10, y + 10);
  ctx.lineTo(x + 15, y + 14);
  ctx.lineTo(x + 10, y + 18);
  ctx.fill();
  ctx.textBaseline = "middle";
  ctx.fillStyle = theme.text;
  const used = paintText(
    r,
    nameOf(g) + (stack ? `  ×${g.stack}` : ""),
    x + 21,
    y + 14.5,
    w - 60,
    `600 ${(12.5 * r.grow).toFixed(1)}px`,
  );
  if (view.k < LOD.labels) return;
  ctx.fillStyle = theme.muted;
  const sub = stack ? `${g.children[0].cls}` : g.cls === g.name ? "" : g.cls;
  paintText(r, sub, x + 21 + used + 7, y + 15, w - 44 - used, `${(11 * r.grow).toFixed(1)}px`);
  paintText(
    r,
    `${plural(g.nodes.length, "node")}${r.figureOf(g) ? `  ·  ${r.figureOf(g)}` : ""}`,
    x + 21,
    y + (stack ? 30 : 27.5),
    w - 30,
    `${(11 * r.grow).toFixed(1)}px`,
  );
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
    ctx.fillStyle = r.colourBy === "kind" ? theme["c-none"] : r.colours.get(main).solid;
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
