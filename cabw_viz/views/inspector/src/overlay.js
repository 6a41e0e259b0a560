/** What lies over the boxes and keeps its size on screen: titles, badges, hits, selection. `r` is the renderer. */
import { fade, rectOf } from "./boxes.js";
import { LOD } from "./lod.js";
import { badges, nameOf, tag } from "./shapes.js";
import { paintMark, paintText } from "./text.js";
import { GUTTER } from "./wrap.js";

/** Titles of open groups keep their size on screen; far away they stand to the left of the frame. */
export function paintTitles(r, frames) {
  const { ctx, view } = r;
  onScreen(r);
  let lastOutside = -Infinity;
  for (const b of frames) {
    const [x, y, w, h] = rectOf(r, b);
    const [sx, sy] = r.toScreen(x, y);
    ctx.globalAlpha = fade(r, b);
    if (view.k >= LOD.headers) paintTitleInside(r, b, sx, sy, w * view.k);
    else if (hasTitleOutside(r, b, h, frames) && (r.scene.columns > 1 || sy > lastOutside + 12)) {
      paintTitleOutside(r, b, sx, sy, h);
      lastOutside = sy;
    }
  }
  ctx.globalAlpha = 1;
  inWorld(r);
}

function onScreen({ ctx, ratio }) {
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.textBaseline = "middle";
}

function inWorld({ ctx, ratio, view }) {
  const k = view.k * ratio;
  ctx.setTransform(k, 0, 0, k, -view.x * k, -view.y * k);
}

/** A triangle, the name and the class, in the head of a frame; `width` is the frame's on screen. */
function paintTitleInside(r, b, sx, sy, width) {
  const { ctx, theme, view } = r;
  const scale = Math.min(view.k, 1.4);
  const cy = sy + 14 * view.k;
  const size = (s) => `${(s * scale).toFixed(2)}px`;
  const name = nameOf(b.item);
  const cls = b.item.cls || "";
  ctx.fillStyle = theme.faint;
  ctx.beginPath();
  ctx.moveTo(sx + 10 * scale, cy - 3 * scale);
  ctx.lineTo(sx + 18 * scale, cy - 3 * scale);
  ctx.lineTo(sx + 14 * scale, cy + 3 * scale);
  ctx.fill();
  ctx.font = `600 ${size(12)} ${theme.ui}`;
  const back = ctx.measureText(name).width + ctx.measureText(cls).width * 0.9 + 14 * scale;
  ctx.fillStyle = b.depth % 2 ? theme.sunken : theme.surface; // an edge that passes stays behind the words
  ctx.fillRect(sx + 20 * scale, cy - 8 * scale, Math.min(back, width - 26 * scale), 16 * scale);
  ctx.fillStyle = theme.text;
  const used = paintText(r, name, sx + 23 * scale, cy + 0.5, width - 40, `600 ${size(12)}`);
  ctx.fillStyle = theme.muted;
  paintText(r, cls, sx + (23 + 7) * scale + used, cy + 0.5, width - used - 50 * scale, size(11));
}

/** Far away, a frame has a title if it is tall enough and shows nothing more than its own boxes. */
function hasTitleOutside({ view }, b, h, frames) {
  if (h * view.k < 18 || b.depth >= 3) return false;
  return b.depth !== 1 || !frames.some((f) => f.item.parent === b.item);
}

function paintTitleOutside(r, b, sx, sy, h) {
  const { ctx, theme, view, scene } = r;
  const wrapped = scene.columns > 1;
  const room = wrapped ? GUTTER * view.k - 4 : 200; // beside a column there is room for a number at most
  const y = sy < 0 ? Math.min(52, sy + h * view.k - 8) : sy + 8;
  ctx.fillStyle = theme.muted;
  ctx.textAlign = "right";
  paintText(r, wrapped ? b.item.name : b.item.path, sx - (wrapped ? 3 : 8), y, room, "11px");
  ctx.textAlign = "left";
}

/** Over each column of a picture in columns: which modules it shows. */
export function paintHeads(r) {
  const { ctx, theme, view, scene } = r;
  if (scene.columns < 2) return;
  onScreen(r);
  ctx.fillStyle = theme.muted;
  ctx.font = `600 11px ${theme.ui}`;
  for (const { x, w, texts } of scene.heads) {
    const [sx, sy] = r.toScreen(x, 0);
    if (sx > r.w || sx + w * view.k < 0) continue;
    const room = w * view.k - 8;
    const text = texts.find((words) => ctx.measureText(words).width <= room) ?? texts.at(-1) ?? "";
    paintText(r, text, sx, Math.max(sy - 12, 12), room, "600 11px");
  }
  inWorld(r);
}

/** Badges, search hits, hover and selection: above everything, never smaller than they can be seen. */
export function paintOverlays(r, boxes) {
  const { ctx, theme, state } = r;
  if (state.hits) for (const b of boxes) paintMatch(r, b, state.hits[b.item.index]);
  ctx.globalAlpha = 1;
  for (const key of state.nearKeys || []) paintRing(r, r.scene.box(key), theme.muted, 1.25, 0);
  if (state.hover && state.hover !== state.selection) paintRing(r, r.scene.box(state.hover), theme.text, 1.25, 0);
  if (state.selection) paintRing(r, r.scene.box(state.selection), theme.accent, 2, 3);
  for (const b of boxes) paintBadges(r, b);
  ctx.globalAlpha = 1;
}

/** A box in which `count` nodes match the search. */
function paintMatch(r, b, count) {
  if (!count) return;
  const [x, y] = rectOf(r, b);
  paintRing(r, b, r.theme.hit, 1.5, 2.5);
  if (b.item.nodes && r.view.k >= LOD.labels) pill(r, String(count), x - 2, y);
}

function paintRing(r, b, colour, width, offset) {
  if (!b) return;
  const { ctx, view } = r;
  ctx.strokeStyle = colour;
  ctx.lineWidth = Math.max(width, width / view.k);
  ctx.beginPath();
  outline(r, b, offset);
  ctx.stroke();
}

function paintBadges(r, b) {
  const { ctx, theme, view } = r;
  const grow = Math.max(1, 0.62 / view.k);
  const visible = badges(b.item).filter(([, loud]) => loud || grow < 4);
  if (!visible.length) return;
  const [x, y, w] = rectOf(r, b);
  const round = 7.5 * grow;
  ctx.globalAlpha = Math.max(fade(r, b), 0.5);
  visible.slice(0, grow > 3 ? 1 : 3).forEach(([mark, loud], i) => {
    const cx = x + w - (b.kind === "node" ? 2 : 10) - i * (round * 2 + 2);
    const cy = y - (b.kind === "node" ? 3 : 0);
    ctx.beginPath();
    ctx.arc(cx, cy, round, 0, 7);
    ctx.fillStyle = loud ? theme["c-alarm"] : theme.box;
    ctx.fill();
    ctx.strokeStyle = loud ? theme.box : theme["line-strong"];
    ctx.lineWidth = loud ? 1.5 : 1;
    ctx.stroke();
    paintMark(r, mark, cx, cy, 3.7 * grow, loud ? theme["on-strong"] : theme.text);
  });
}

function outline(r, b, o) {
  const [x, y, w, h] = rectOf(r, b);
  if (b.kind === "node" && b.item.parameter) tag(r.ctx, x - o, y - o, w + 2 * o, h + 2 * o);
  else
    r.ctx.roundRect(x - o, y - o, w + 2 * o, (b.kind === "stack" ? h - 8 : h) + 2 * o, (b.kind === "node" ? 5 : 7) + o);
}

function pill(r, text, x, y) {
  const { ctx, theme } = r;
  ctx.font = `600 10.5px ${theme.ui}`;
  const w = Math.max(16, ctx.measureText(text).width + 9);
  ctx.fillStyle = theme.hit;
  ctx.beginPath();
  ctx.roundRect(x - 4, y - 8, w, 15, 7.5);
  ctx.fill();
  ctx.fillStyle = theme.name === "dark" ? "#10141a" : "#ffffff";
  ctx.textAlign = "center";
  ctx.fillText(text, x - 4 + w / 2, y + 0.5);
  ctx.textAlign = "left";
}
