/** What lies over the boxes and keeps its size on screen: titles, badges, hits, selection. `r` is the renderer. */
import { fade, rectOf } from "./boxes.js";
import { LOD } from "./lod.js";
import { badges, nameOf, tag } from "./shapes.js";
import { paintMark, paintText } from "./text.js";
import { GUTTER } from "./wrap.js";

/** Titles of open groups keep their size on screen; far away they stand to the left of the frame. */
export function paintTitles(r, frames) {
  const { ctx, theme, view, scene } = r;
  ctx.setTransform(r.ratio, 0, 0, r.ratio, 0, 0);
  ctx.textBaseline = "middle";
  let lastOutside = -Infinity;
  for (const b of frames) {
    const [x, y, w, h] = rectOf(r, b);
    const [sx, sy] = r.toScreen(x, y);
    const inside = view.k >= LOD.headers;
    const scale = inside ? Math.min(view.k, 1.4) : 1;
    ctx.globalAlpha = fade(r, b);
    if (inside) {
      const cy = sy + 14 * view.k;
      const size = (s) => `${(s * scale).toFixed(2)}px`;
      ctx.fillStyle = theme.faint;
      ctx.beginPath();
      ctx.moveTo(sx + 10 * scale, cy - 3 * scale);
      ctx.lineTo(sx + 18 * scale, cy - 3 * scale);
      ctx.lineTo(sx + 14 * scale, cy + 3 * scale);
      ctx.fill();
      ctx.font = `600 ${size(12)} ${theme.ui}`;
      const back = ctx.measureText(nameOf(b.item)).width + ctx.measureText(b.item.cls || "").width * 0.9 + 14 * scale;
      ctx.fillStyle = b.depth % 2 ? theme.sunken : theme.surface; // an edge that passes stays behind the words
      ctx.fillRect(sx + 20 * scale, cy - 8 * scale, Math.min(back, w * view.k - 26 * scale), 16 * scale);
      ctx.fillStyle = theme.text;
      const used = paintText(r, nameOf(b.item), sx + 23 * scale, cy + 0.5, w * view.k - 40, `600 ${size(12)}`);
      ctx.fillStyle = theme.muted;
      paintText(
        r,
        `${b.item.cls || ""}`,
        sx + (23 + 7) * scale + used,
        cy + 0.5,
        w * view.k - used - 50 * scale,
        size(11),
      );
    } else if (
      h * view.k >= 18 &&
      b.depth < 3 &&
      !(b.depth === 1 && frames.some((f) => f.item.parent === b.item)) &&
      (scene.columns > 1 || sy > lastOutside + 12)
    ) {
      const wrapped = scene.columns > 1;
      const room = wrapped ? GUTTER * view.k - 4 : 200; // beside a column there is room for a number at most
      ctx.fillStyle = theme.muted;
      ctx.textAlign = "right";
      paintText(
        r,
        wrapped ? b.item.name : b.item.path,
        sx - (wrapped ? 3 : 8),
        sy < 0 ? Math.min(52, sy + h * view.k - 8) : sy + 8,
        room,
        "11px",
      );
      ctx.textAlign = "left";
      lastOutside = sy;
    }
  }
  ctx.globalAlpha = 1;
  const k = view.k * r.ratio;
  ctx.setTransform(k, 0, 0, k, -view.x * k, -view.y * k);
}

/** Over each column of a picture in columns: which modules it shows. */
export function paintHeads(r) {
  const { ctx, theme, view, scene } = r;
  if (scene.columns < 2) return;
  ctx.setTransform(r.ratio, 0, 0, r.ratio, 0, 0);
  ctx.textBaseline = "middle";
  ctx.fillStyle = theme.muted;
  ctx.font = `600 11px ${theme.ui}`;
  for (const { x, w, texts } of scene.heads) {
    const [sx, sy] = r.toScreen(x, 0);
    if (sx > r.w || sx + w * view.k < 0) continue;
    const room = w * view.k - 8;
    const text = texts.find((words) => ctx.measureText(words).width <= room) ?? texts.at(-1) ?? "";
    paintText(r, text, sx, Math.max(sy - 12, 12), room, "600 11px");
  }
  const k = view.k * r.ratio;
  ctx.setTransform(k, 0, 0, k, -view.x * k, -view.y * k);
}

/** Badges, search hits, hover and selection: above everything, never smaller than they can be seen. */
export function paintOverlays(r, boxes) {
  const { ctx, theme, state, view } = r;
  for (const b of boxes) {
    const [x, y] = rectOf(r, b);
    const hits = state.hits?.[b.item.index];
    if (hits) {
      ctx.strokeStyle = theme.hit;
      ctx.lineWidth = Math.max(1.5, 1.5 / view.k);
      ctx.beginPath();
      outline(r, b, 2.5);
      ctx.stroke();
      if (b.item.nodes && view.k >= LOD.labels) pill(r, String(hits), x - 2, y);
    }
  }
  ctx.globalAlpha = 1;
  const ring = (key, colour, width, offset) => {
    const b = r.scene.box(key);
    if (!b) return;
    ctx.strokeStyle = colour;
    ctx.lineWidth = Math.max(width, width / view.k);
    ctx.beginPath();
    outline(r, b, offset);
    ctx.stroke();
  };
  for (const key of state.nearKeys || []) ring(key, theme.muted, 1.25, 0);
  if (state.hover && state.hover !== state.selection) ring(state.hover, theme.text, 1.25, 0);
  if (state.selection) ring(state.selection, theme.accent, 2, 3);
  for (const b of boxes) {
    const [x, y, w] = rectOf(r, b);
    ctx.globalAlpha = Math.max(fade(r, b), 0.5);
    const grow = Math.max(1, 0.62 / view.k);
    badges(b.item)
      .filter(([, loud]) => loud || grow < 4)
      .slice(0, grow > 3 ? 1 : 3)
      .forEach(([mark, loud], i) => {
        const round = 7.5 * grow;
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
  ctx.globalAlpha = 1;
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
