/** The overview: the whole graph, small, with ticks where something was found; drawn once, the window each frame. */
import { badges } from "./shapes.js";

const MARGIN = 14; // right of the graph: the ticks
const TOP = 8;

export class Minimap {
  #image = null;
  #scale = 1;
  #left = 0;

  constructor(canvas) {
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d");
  }

  /** What it shows has changed. */
  stale() {
    this.#image = null;
  }

  /** The point of the world under a point of the overview. */
  toWorld(x, y) {
    return [(x - this.#left) / this.#scale, (y - TOP) / this.#scale];
  }

  /** `r`: the renderer. */
  draw(r) {
    const { canvas, ctx } = this;
    const { clientWidth: w, clientHeight: h } = canvas;
    if (!w || !h) return;
    this.#scale = Math.min((w - 30) / r.scene.w, (h - 16) / r.scene.h);
    this.#left = (w - MARGIN - r.scene.w * this.#scale) / 2;
    this.#image ??= this.#imageOf(r, w, h);
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.clearRect(0, 0, canvas.width, canvas.height);
    ctx.drawImage(this.#image, 0, 0);
    ctx.setTransform(r.ratio, 0, 0, r.ratio, 0, 0);
    this.#paintWindow(r, w, h);
    this.#paintSelection(r, w);
  }

  #paintWindow({ theme, view, w, h }, width, height) {
    const { ctx } = this;
    const s = this.#scale;
    const left = Math.max(1, this.#left + view.x * s);
    const right = Math.min(width - 12, this.#left + (view.x + w / view.k) * s);
    const top = Math.max(1, TOP + view.y * s);
    const bottom = Math.min(height - 1, Math.max(TOP + (view.y + h / view.k) * s, top + 4));
    ctx.fillStyle = theme.accent;
    ctx.globalAlpha = 0.1;
    ctx.fillRect(left, top, right - left, bottom - top);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = theme.accent;
    ctx.lineWidth = 1;
    ctx.strokeRect(left + 0.5, top + 0.5, right - left - 1, bottom - top - 1);
  }

  #paintSelection({ scene, state, theme }, width) {
    const box = scene.box(state.selection);
    if (!box) return;
    this.ctx.fillStyle = theme.accent;
    this.ctx.fillRect(width - 9, TOP + (box.y + Math.min(box.h, 30) / 2) * this.#scale - 1.5, 7, 3);
  }

  #imageOf(r, w, h) {
    const image = Object.assign(document.createElement("canvas"), {
      width: this.canvas.width,
      height: this.canvas.height,
    });
    const ctx = image.getContext("2d");
    const s = this.#scale;
    ctx.setTransform(r.ratio, 0, 0, r.ratio, 0, 0);
    ctx.fillStyle = r.theme.sunken;
    for (const b of r.scene.frames(-Infinity, Infinity, -Infinity, Infinity, 2))
      ctx.fillRect(this.#left + b.x * s, TOP + b.y * s, b.w * s, b.h * s);
    const matches = this.#paintBoxes(ctx, r, w, h);
    this.#paintTicks(ctx, r, w, matches);
    return image;
  }

  /** Returns the boxes in which a search found something. */
  #paintBoxes(ctx, r, w, h) {
    const { place, size, item, leaves } = r.scene;
    const { dim, hits } = r.state;
    const s = this.#scale;
    const matches = [];
    const taken = new Uint8Array(4 * w * (h + 1)); // of many boxes on one half pixel one is enough
    for (const i of leaves) {
      const x = this.#left + place[2 * i] * s;
      const y = TOP + place[2 * i + 1] * s;
      const spot = Math.floor(2 * y) * 2 * w + Math.floor(2 * x);
      if (hits?.[item[i]]) matches.push(i);
      if (taken[spot]) continue;
      taken[spot] = 1;
      const colour = r.colourOf(r.graph.items[item[i]]);
      ctx.globalAlpha = dim?.[item[i]] ? 0.2 : 1;
      ctx.fillStyle = colour.quiet ? colour.border : colour.solid;
      ctx.fillRect(x, y, Math.max(size[2 * i] * s, 1), Math.max(size[2 * i + 1] * s, 1));
    }
    ctx.globalAlpha = 1;
    return matches;
  }

  #paintTicks(ctx, { scene, theme }, w, matches) {
    const s = this.#scale;
    const tick = (b, colour, tall) => {
      ctx.fillStyle = colour;
      ctx.fillRect(w - 9, TOP + (b.y + b.h / 2) * s - tall / 2, 7, tall);
    };
    let last = -9;
    for (const i of matches) {
      const b = scene.view(i);
      if (Math.abs(b.y * s - last) < 0.5) continue;
      tick(b, theme.hit, 2);
      last = b.y * s;
    }
    for (const b of scene.badged) if (badges(b.item).some(([, loud]) => loud)) tick(b, theme["c-alarm"], 3);
  }
}
