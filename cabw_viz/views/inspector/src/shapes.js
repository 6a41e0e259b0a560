/** What the picture is made of: badges, names, outlines, curves. Nothing here knows of the canvas it is drawn on. */
import { plain } from "./families.js";

/** A group's name; of a module that is drawn in parts, all but the first say which they are. */
export const nameOf = (group) => plain(group.name) + (group.part > 1 ? ` (${group.part})` : "");

const PLAIN = [];
/** What is worth a badge at any zoom and in any colouring: [mark, loud]. */
export function badges(item) {
  if (!item.nodes)
    return (item.badges ??=
      item.origin || item.initial || item.passes || item.hooks || item.failed ? worth([item]) : PLAIN);
  return (item.badges ??= worth(item.nodes));
}
function worth(nodes) {
  const out = [];
  if (nodes.some((n) => n.failed)) out.push(["cross", true]);
  if (nodes.some((n) => n.origin)) out.push(["flag", true]);
  if (nodes.some((n) => n.initial || n.passes)) out.push(["bang", true]);
  if (nodes.some((n) => n.hooks)) out.push(["hook", false]);
  return out;
}

/** One cell per repeated block on a folded stack. */
export function cells(b) {
  const all = b.item.children;
  const step = (b.w - 20) / all.length;
  return all.map((group, i) => ({ key: group.key, group, x: b.x + 10 + i * step, y: b.y + 42, w: step - 2, h: 6 }));
}

export function tag(ctx, x, y, w, h) {
  const r = 4;
  const p = h / 2.6;
  ctx.moveTo(x + r, y);
  ctx.lineTo(x + w - p, y);
  ctx.lineTo(x + w, y + h / 2);
  ctx.lineTo(x + w - p, y + h);
  ctx.lineTo(x + r, y + h);
  ctx.arcTo(x, y + h, x, y + h - r, r);
  ctx.lineTo(x, y + r);
  ctx.arcTo(x, y, x + r, y, r);
  ctx.closePath();
}

/** Straight down beside boxes, an S between rows. */
export function curve(path, p, straight) {
  path.moveTo(p[0], p[1]);
  for (let i = 2; i < p.length; i += 2) {
    const x0 = p[i - 2];
    const y0 = p[i - 1];
    const x1 = p[i];
    const y1 = p[i + 1];
    if (straight || Math.abs(x0 - x1) < 0.5) path.lineTo(x1, y1);
    else {
      const m = (y0 + y1) / 2;
      path.bezierCurveTo(x0, m, x1, m, x1, y1);
    }
  }
}
