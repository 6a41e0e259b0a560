/**
 * Far away a scene has too many boxes for one frame. It is painted once into tiles; a frame puts tiles together, paints the
 * missing ones until its time is up and asks for another frame. While the zoom changes the old tiles are stretched.
 */
const SIZE = 512,
  KEPT = 48,
  BUDGET = 7;

export class Tiles {
  levels = [];

  /** `paint(ctx, left, top, right, bottom, k)` draws that part of the world; the context is already in world coordinates. */
  constructor(paint) {
    this.paint = paint;
  }

  clear() {
    this.levels = [];
    this.spare = null;
  }

  /** What was painted for another state stays on screen until its successor is there, so that a click does not flicker. */
  stale() {
    this.spare = this.levels[0] || this.spare;
    this.levels = [];
  }

  /** Returns whether everything in sight was there. */
  draw(ctx, view, w, h, ratio) {
    const steady = this.lastK === view.k;
    this.lastK = view.k;
    let level = this.levels[0];
    if (!level || (level.k !== view.k && (steady || view.k / level.k > 2 || view.k / level.k < 0.5))) {
      level = { k: view.k, tiles: new Map() };
      this.levels = [level, this.levels[0]].filter(Boolean);
    }
    const old = this.levels[1] || this.spare,
      side = SIZE / level.k;
    if (old) this.#put(ctx, old, view, w, h, ratio);
    const seen = [];
    for (let i = Math.floor(view.x / side); i * side < view.x + w / view.k; i++)
      for (let j = Math.floor(view.y / side); j * side < view.y + h / view.k; j++) seen.push([i, j]);
    const cx = (view.x + w / view.k / 2) / side - 0.5,
      cy = (view.y + h / view.k / 2) / side - 0.5;
    seen.sort((a, b) => Math.hypot(a[0] - cx, a[1] - cy) - Math.hypot(b[0] - cx, b[1] - cy));
    const began = performance.now();
    let missing = 0;
    for (const [i, j] of seen) {
      const id = i + ":" + j;
      if (level.tiles.has(id)) continue;
      if (performance.now() - began > BUDGET) {
        missing++;
        continue;
      }
      level.tiles.set(id, this.#tile(i, j, side, level.k, ratio));
      if (level.tiles.size > KEPT) level.tiles.delete(level.tiles.keys().next().value);
    }
    this.#put(ctx, level, view, w, h, ratio);
    if (!missing && level.k === view.k) {
      this.levels = [level];
      this.spare = null;
    }
    return !missing && level.k === view.k;
  }

  #tile(i, j, side, k, ratio) {
    const canvas = Object.assign(document.createElement("canvas"), {
        width: Math.ceil(SIZE * ratio),
        height: Math.ceil(SIZE * ratio),
      }),
      ctx = canvas.getContext("2d", { alpha: false });
    const s = k * ratio;
    ctx.setTransform(s, 0, 0, s, -i * side * s, -j * side * s);
    this.paint(ctx, i * side, j * side, (i + 1) * side, (j + 1) * side, k);
    return { canvas, i, j };
  }

  #put(ctx, level, view, w, h, ratio) {
    const s = view.k / level.k,
      side = SIZE / level.k;
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    for (const { canvas, i, j } of level.tiles.values()) {
      const x = Math.round((i * side - view.x) * view.k * ratio),
        y = Math.round((j * side - view.y) * view.k * ratio);
      if (x > w * ratio || y > h * ratio || x + canvas.width * s < 0 || y + canvas.height * s < 0) continue;
      if (s === 1) ctx.drawImage(canvas, x, y);
      else ctx.drawImage(canvas, x, y, Math.ceil(canvas.width * s), Math.ceil(canvas.height * s));
    }
  }
}
