/** Draws a scene on one canvas 2D and its overview beside it. Knows nothing of panels, Python or the DOM around it. */
import { paintBox, paintEdges, paintFrame } from "./boxes.js";
import { composition, ENCODINGS, figure, strongest } from "./encode.js";
import { LOD } from "./lod.js";
import { Minimap } from "./minimap.js";
import { paintHeads, paintOverlays, paintTitles } from "./overlay.js";
import { cells } from "./shapes.js";
import { mix } from "./theme.js";
import { Tiles } from "./tiles.js";

/** From how many boxes on the view from afar is put together from tiles. */
const TILED = 1500;
const MOTION = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 180;

export class Renderer {
  /** selection, hover: keys. mark, near, path: per node. dim, hits: per item. All null where there is nothing to show. */
  state = { selection: null, hover: null, mark: null, near: null, path: null, dim: null, hits: null };
  paths = new Map();
  clipped = new Map();
  frames = 0;
  #tileView = null; // instead of the camera's while a tile is painted

  /** `onDraw` is called after each frame. */
  constructor({ canvas, map, camera, onDraw }) {
    this.canvas = canvas;
    this.minimap = new Minimap(map);
    this.camera = camera;
    this.onDraw = onDraw;
    this.ctx = this.screen = canvas.getContext("2d", { alpha: false });
    this.tiles = new Tiles((ctx, left, top, right, bottom, k) => this.#paint(ctx, left, top, right, bottom, k));
  }

  get view() {
    return this.#tileView ?? this.camera.view;
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    for (const c of [this.canvas, this.minimap.canvas]) {
      const { clientWidth: w, clientHeight: h } = c;
      if (c.width !== Math.round(w * ratio) || c.height !== Math.round(h * ratio)) {
        c.width = Math.round(w * ratio);
        c.height = Math.round(h * ratio);
      }
    }
    if (this.ratio !== ratio) this.tiles.clear();
    this.ratio = ratio;
    this.w = this.canvas.clientWidth;
    this.h = this.canvas.clientHeight;
    this.minimap.stale();
    this.request();
  }

  /** A new scene moves into place from the old one; both are in the same coordinates, apart from `shift`. */
  setScene(scene, shift = [0, 0]) {
    const old = this.scene;
    this.scene = scene;
    this.minimap.stale();
    this.tiles.clear();
    this.from = null;
    if (old && MOTION && scene.count < 3000 && old.count < 3000) {
      this.from = new Map(
        Array.from({ length: old.count }, (_, i) => old.view(i)).map((b) => [
          b.key,
          [b.x + shift[0], b.y + shift[1], b.w, b.h],
        ]),
      );
      this.began = performance.now();
    }
    this.request();
  }

  setColours(encoding, theme, graph) {
    this.encoding = encoding;
    this.theme = theme;
    this.graph = graph;
    this.minimap.stale();
    this.tiles.stale();
    const { rgb } = theme;
    this.colours = new Map(
      encoding.classes.map(([key, , token, mark]) => [
        key,
        {
          mark,
          solid: theme[token],
          fill: mix(rgb[token], rgb.box, encoding.isCategorical ? theme.tint : theme.tint * 1.5),
          border: mix(rgb[token], rgb.box, 0.5),
          loud: ["first", "initial"].includes(key),
          quiet: ["view", "check", "none"].includes(key),
        },
      ]),
    );
    this.classes = new Map();
    this.figures = new Map();
    this.colourBy = Object.keys(ENCODINGS).find((k) => ENCODINGS[k] === encoding);
    this.request();
  }

  classOf(item) {
    if (!item.nodes) return this.encoding.of(item);
    if (!this.classes.has(item))
      this.classes.set(item, {
        main: strongest(this.encoding, item.nodes),
        parts: composition(this.encoding, item.nodes),
      });
    return this.classes.get(item);
  }

  colourOf(item) {
    const look = this.classOf(item);
    return this.colours.get(item.nodes ? look.main : look);
  }

  /** The number that goes with the colour of an item, remembered. */
  figureOf(item) {
    if (!this.figures.has(item)) this.figures.set(item, figure(this.colourBy, item.nodes || [item]));
    return this.figures.get(item);
  }

  /** Search, filter and selection have changed, or what of them shows. */
  emphasise(marks) {
    const { dim, mark, path, hits } = this.state;
    Object.assign(this.state, marks);
    if (dim || mark || path || hits || marks.dim) {
      this.tiles.stale();
      this.minimap.stale();
    }
    this.request();
  }

  hover(marks) {
    Object.assign(this.state, marks);
    this.request();
  }

  request() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  toWorld(sx, sy) {
    return [this.view.x + sx / this.view.k, this.view.y + sy / this.view.k];
  }
  toScreen(x, y) {
    return [(x - this.view.x) * this.view.k, (y - this.view.y) * this.view.k];
  }

  hit(sx, sy) {
    const [x, y] = this.toWorld(sx, sy);
    const inside = (b) => x >= b.x && x <= b.x + b.w && y >= b.y && y <= b.y + b.h;
    const leaf = this.scene.visible(y, y, x, x).find(inside);
    if (leaf?.kind === "stack") {
      const cell = cells(leaf).find((c) => x >= c.x && x < c.x + c.w + 2 && y >= c.y - 4 && y <= c.y + c.h + 14);
      return { key: leaf.key, cell: cell?.key };
    }
    if (leaf) return { key: leaf.key };
    const frame = this.scene.frames(y, y, x, x).at(-1);
    return frame ? { key: frame.key, header: y < frame.y + 26, frame: true } : null;
  }

  /** What a reader of the picture can tell apart now, `most` at most: open groups in sight, then boxes once they have a mark. */
  inSight(most) {
    const { view, scene } = this;
    const top = view.y;
    const bottom = top + this.h / view.k;
    const left = view.x;
    const right = left + this.w / view.k;
    const frames = scene
      .frames(top, bottom, left, right, view.k < LOD.round ? 2 : 255)
      .filter((b) => b.h * view.k > 18);
    return [
      ...frames.slice(0, most / 3),
      ...(view.k >= LOD.round ? scene.visible(top, bottom, left, right) : scene.badged),
    ].slice(0, most);
  }

  draw() {
    const { ctx, view, theme, scene } = this;
    if (!scene || !theme || !this.w) return;
    this.frames++;
    const age = this.from ? (performance.now() - this.began) / MOTION : 1;
    this.grow = Math.max(1, Math.min(1.25, 9.5 / 12 / view.k)); // text stays readable a little longer than boxes do
    this.t = age >= 1 ? 1 : 1 - (1 - age) ** 3;
    if (age >= 1) this.from = null;
    const top = view.y;
    const bottom = view.y + this.h / view.k;
    const left = view.x;
    const right = view.x + this.w / view.k;
    ctx.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    ctx.fillStyle = theme.sunken;
    ctx.fillRect(0, 0, this.w, this.h);
    const k = view.k * this.ratio;
    const world = () => ctx.setTransform(k, 0, 0, k, -view.x * k, -view.y * k);
    const tiled = view.k < LOD.marks && scene.leaves.length > TILED && !this.from;
    this.complete = !tiled || this.tiles.draw(ctx, view, this.w, this.h, this.ratio);
    world();
    const all = [-Infinity, Infinity, -Infinity, Infinity];
    const part = this.from ? all : [top, bottom, left, right];
    const boxes = tiled
      ? scene.badged.filter((b) => b.y <= bottom && b.y + b.h >= top).slice(0, 400)
      : scene.visible(...part);
    const frames = scene.frames(...part, tiled ? 2 : 255);
    if (!tiled) {
      frames.forEach((b) => paintFrame(this, b));
      paintEdges(this, top, bottom, left, right);
      boxes.forEach((b) => paintBox(this, b));
    }
    paintTitles(this, frames);
    paintHeads(this);
    paintOverlays(this, boxes);
    this.minimap.draw(this);
    if (this.from || !this.complete) this.request();
    this.onDraw();
  }

  /** One tile: frames, edges where they can be told apart, boxes, hits. Text and badges come on top, in their own size. */
  #paint(ctx, left, top, right, bottom, k) {
    const { scene, theme, view } = this;
    this.ctx = ctx;
    this.#tileView = { ...view, k };
    ctx.fillStyle = theme.sunken;
    ctx.fillRect(left, top, right - left, bottom - top);
    for (const b of scene.frames(top, bottom, left, right)) if (b.w * k > 4) paintFrame(this, b);
    if (k > 0.02) paintEdges(this, top, bottom, left, right);
    const boxes = scene.visible(top, bottom, left, right);
    for (const b of boxes) paintBox(this, b);
    const { hits } = this.state;
    ctx.fillStyle = theme.hit;
    for (const b of hits ? boxes.filter(({ item }) => hits[item.index]) : []) {
      const grow = Math.max(0, 3 / k - b.h) / 2;
      ctx.fillRect(b.x, b.y - grow, b.w, b.h + 2 * grow);
    }
    this.ctx = this.screen;
    this.#tileView = null;
  }
}
