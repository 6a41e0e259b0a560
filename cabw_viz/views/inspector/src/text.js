/** Words and marks on the canvas: a cut is worked out once, and so is the path of a mark. */
import { markPath } from "./encode.js";

export function paintMark(r, name, x, y, size, colour) {
  const { ctx } = r;
  const id = name + size.toFixed(1);
  if (!r.paths.has(id)) {
    const [how, d] = markPath(name, size);
    r.paths.set(id, [how, new Path2D(d)]);
  }
  const [how, path] = r.paths.get(id);
  ctx.save();
  ctx.translate(x, y);
  if (how === "fill") {
    ctx.fillStyle = colour;
    ctx.fill(path);
  } else {
    ctx.strokeStyle = colour;
    ctx.lineWidth = Math.max(1.6, size * 0.4);
    ctx.stroke(path);
  }
  ctx.restore();
}

/** Text cut to a width; what a cut gives is remembered. Returns the width used. */
export function paintText(r, text, x, y, room, font) {
  const { ctx, theme } = r;
  if (!text || room < 12) return 0;
  ctx.font = `${font} ${theme.ui}`;
  const id = `${font}|${Math.round(room)}|${text}`;
  let cut = r.clipped.get(id);
  if (!cut) {
    let s = text.length > 400 ? text.slice(0, 400) : text;
    if (ctx.measureText(s).width > room) {
      let lo = 0;
      let hi = s.length;
      while (lo < hi) {
        const mid = (lo + hi + 1) >> 1;
        if (ctx.measureText(`${s.slice(0, mid)}…`).width <= room) lo = mid;
        else hi = mid - 1;
      }
      s = `${s.slice(0, lo)}…`;
    }
    cut = [s, ctx.measureText(s).width];
    if (r.clipped.size > 20000) r.clipped.clear();
    r.clipped.set(id, cut);
  }
  ctx.fillText(cut[0], x, y);
  return cut[1];
}
