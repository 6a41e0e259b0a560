/** Draws a scene on one canvas 2D and its overview beside it. Knows nothing of panels, Python or the DOM around it. */
import { composition, ENCODINGS, figure, markPath, strongest } from "./encode.js";
import { plural } from "./dom.js";
import { LOD } from "./lod.js";
import { drawMap } from "./minimap.js";
import { GUTTER } from "./wrap.js";
import { badges, cells, curve, nameOf, tag } from "./shapes.js";
import { mix } from "./theme.js";
import { Tiles } from "./tiles.js";

/** From how many boxes on the view from afar is put together from tiles. */
const TILED = 1500;
const MOTION = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 180;

export class Renderer {
  view = { x: 0, y: 0, k: 1 };
  /** selection, hover: keys. mark, near, path: per node. dim, hits: per item. All null where there is nothing to show. */
  state = { selection: null, hover: null, mark: null, near: null, path: null, dim: null, hits: null };
  paths = new Map();
  clipped = new Map();
  frames = 0;

  constructor(canvas, map) {
    this.canvas = canvas;
    this.map = map;
    this.ctx = this.screen = canvas.getContext("2d", { alpha: false });
    this.tiles = new Tiles((ctx, left, top, right, bottom, k) => this.#paint(ctx, left, top, right, bottom, k));
    this.mapCtx = map.getContext("2d");
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    for (const c of [this.canvas, this.map]) {
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
    this.picture = null;
    this.request();
  }

  /** A new scene moves into place from the old one; both are in the same coordinates, apart from `shift`. */
  setScene(scene, shift = [0, 0]) {
    const old = this.scene;
    this.scene = scene;
    this.picture = null;
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
    this.picture = null;
    this.tiles.stale();
    const { rgb } = theme;
    this.colours = new Map(
      encoding.classes.map(([key, , token, mark]) => [
        key,
        {
          mark,
          solid: theme[token],
          fill: mix(rgb[token], rgb.box, encoding === ENCODINGS.kind ? theme.tint : theme.tint * 1.5),
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

  /** The number that goes with the colour of an item, remembered. */
  figureOf(item) {
    if (!this.figures.has(item)) this.figures.set(item, figure(this.colourBy, item.nodes || [item]));
    return this.figures.get(item);
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
    const [x, y] = this.toWorld(sx, sy),
      inside = (b) => x >= b.x && x <= b.x + b.w && y >= b.y && y <= b.y + b.h;
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
    const { view, scene } = this,
      top = view.y,
      bottom = top + this.h / view.k,
      left = view.x,
      right = left + this.w / view.k;
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
    const top = view.y,
      bottom = view.y + this.h / view.k,
      left = view.x,
      right = view.x + this.w / view.k;
    ctx.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    ctx.fillStyle = theme.sunken;
    ctx.fillRect(0, 0, this.w, this.h);
    const k = view.k * this.ratio,
      world = () => ctx.setTransform(k, 0, 0, k, -view.x * k, -view.y * k);
    const tiled = view.k < LOD.marks && scene.leaves.length > TILED && !this.from;
    this.complete = !tiled || this.tiles.draw(ctx, view, this.w, this.h, this.ratio);
    world();
    const all = [-Infinity, Infinity, -Infinity, Infinity],
      part = this.from ? all : [top, bottom, left, right];
    const boxes = tiled
      ? scene.badged.filter((b) => b.y <= bottom && b.y + b.h >= top).slice(0, 400)
      : scene.visible(...part);
    const frames = scene.frames(...part, tiled ? 2 : 255);
    if (!tiled) {
      frames.forEach((b) => this.#frame(b));
      this.#edges(top, bottom, left, right);
      boxes.forEach((b) => this.#box(b));
    }
    this.#titles(frames);
    this.#overlays(boxes);
    drawMap(this);
    if (this.from || !this.complete) this.request();
    this.onDraw?.();
  }

  /** One tile: frames, edges where they can be told apart, boxes, hits. Text and badges come on top, in their own size. */
  #paint(ctx, left, top, right, bottom, k) {
    const { scene, theme, view } = this;
    Object.assign(this, { ctx, view: { ...view, k } });
    ctx.fillStyle = theme.sunken;
    ctx.fillRect(left, top, right - left, bottom - top);
    for (const b of scene.frames(top, bottom, left, right)) if (b.w * k > 4) this.#frame(b);
    if (k > 0.02) this.#edges(top, bottom, left, right);
    const { hits } = this.state,
      found = [];
    for (const b of scene.visible(top, bottom, left, right)) {
      this.#box(b);
      if (hits?.[b.item.index]) found.push(b);
    }
    ctx.fillStyle = theme.hit;
    for (const b of found) {
      const grow = Math.max(0, 3 / k - b.h) / 2;
      ctx.fillRect(b.x, b.y - grow, b.w, b.h + 2 * grow);
    }
    Object.assign(this, { ctx: this.screen, view });
  }

  #rect(b) {
    const old = this.t < 1 && this.from?.get(b.key);
    if (!old) return [b.x, b.y, b.w, b.h];
    return [b.x, b.y, b.w, b.h].map((v, i) => old[i] + (v - old[i]) * this.t);
  }

  #unreached(item) {
    return this.graph.letter === "n" && this.graph.data.failed_at !== null && (item.nodes || [item]).every((n) => n.unreached);
  }

  #fade(b) {
    const dim = this.state.dim?.[b.item.index] ? 0.28 : this.#unreached(b.item) ? 0.5 : 1;
    return this.t < 1 && this.from && !this.from.has(b.key) ? dim * this.t : dim;
  }

  #frame(b) {
    const { ctx, theme, view } = this,
      [x, y, w, h] = this.#rect(b);
    ctx.globalAlpha = this.t < 1 && this.from && !this.from.has(b.key) ? this.t : 1;
    ctx.fillStyle = b.depth % 2 ? theme.sunken : theme.surface;
    ctx.strokeStyle = theme.line;
    ctx.lineWidth = Math.min(1 / view.k, 3);
    ctx.beginPath();
    ctx.roundRect(x, y, w, h, 8);
    ctx.fill();
    ctx.stroke();
    ctx.globalAlpha = 1;
  }

  #edges(top, bottom, left, right) {
    const { ctx, theme, view, scene } = this,
      { mark, near: close, path: way } = this.state;
    const plain = new Path2D(),
      up = new Path2D(),
      down = new Path2D(),
      near = new Path2D(),
      arrows = view.k >= LOD.labels ? [] : null;
    const some = (pairs, test) => {
      for (let i = 0; i < pairs.length; i += 2) if (test(pairs[i], pairs[i + 1])) return true;
      return false;
    };
    const { bounds, pointsAt, pairsAt } = scene,
      many = scene.arrow.length;
    for (let e = 0; e < many; e++) {
      if (bounds[4 * e + 3] < top || bounds[4 * e + 1] > bottom || bounds[4 * e + 2] < left || bounds[4 * e] > right)
        continue;
      const points = scene.points.subarray(pointsAt[e], pointsAt[e + 1]),
        pairs = close || way || mark ? scene.pairs.subarray(pairsAt[e], pairsAt[e + 1]) : null;
      let path = plain,
        colour = theme.edge;
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
    ctx.globalAlpha = this.t < 1 ? this.t : 1;
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
      const x = arrows[i],
        y = arrows[i + 1];
      ctx.fillStyle = arrows[i + 2];
      ctx.beginPath();
      ctx.moveTo(x, y);
      ctx.lineTo(x - 3.2, y - 6);
      ctx.lineTo(x + 3.2, y - 6);
      ctx.fill();
    }
    ctx.globalAlpha = 1;
  }

  #box(b) {
    const { ctx, view } = this;
    ctx.globalAlpha = this.#fade(b);
    const found = this.classOf(b.item),
      colour = this.colours.get(b.item.nodes ? found.main : found);
    const rect = this.#rect(b);
    if (view.k < LOD.round) {
      // far away: colour only
      ctx.fillStyle = colour.quiet ? colour.border : colour.solid;
      ctx.fillRect(rect[0], rect[1], rect[2], Math.max(rect[3], 0.9 / view.k)); // never paler than its colour
    } else if (b.kind === "node") this.#node(b, rect, colour);
    else this.#group(b, rect, found.parts);
    ctx.globalAlpha = 1;
  }

  #node(b, [x, y, w, h], colour) {
    const { ctx, theme, view } = this,
      n = b.item,
      loud = colour.loud;
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
    this.#mark(
      colour.mark,
      x + 13,
      y + h / 2,
      4,
      loud ? theme["on-strong"] : far && !colour.quiet ? theme.box : colour.solid,
    );
    if (far) return;
    const g = this.grow,
      id = g > 1.12 ? "" : this.figureOf(n) || n.tag,
      room = w - 30 - 6.2 * id.length - (n.parameter ? 8 : 4);
    ctx.textBaseline = "middle";
    ctx.fillStyle = loud ? theme["on-strong"] : colour.quiet && n.family === "view" ? theme.muted : theme.text;
    this.#text(n.label, x + 23, y + h / 2 + 0.5, room, (n.parameter ? "italic " : "") + (12 * g).toFixed(1) + "px");
    ctx.fillStyle = loud ? theme["on-strong"] : theme.faint;
    ctx.textAlign = "right";
    this.#text(id, x + w - (n.parameter ? 13 : 8), y + h / 2 + 0.5, 60, "10.5px");
    ctx.textAlign = "left";
  }

  #group(b, [x, y, w, h], parts) {
    const { ctx, theme, view } = this,
      g = b.item,
      stack = b.kind === "stack",
      H = stack ? h - 8 : h;
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
    if (stack) this.#cells(b);
    else this.#bar(x + 10, y + H - 8, w - 20, 3, parts);
    if (view.k < LOD.marks) return;
    ctx.fillStyle = theme.faint;
    ctx.beginPath();
    ctx.moveTo(x + 10, y + 10);
    ctx.lineTo(x + 15, y + 14);
    ctx.lineTo(x + 10, y + 18);
    ctx.fill();
    ctx.textBaseline = "middle";
    ctx.fillStyle = theme.text;
    const used = this.#text(
      nameOf(g) + (stack ? `  ×${g.stack}` : ""),
      x + 21,
      y + 14.5,
      w - 60,
      `600 ${(12.5 * this.grow).toFixed(1)}px`,
    );
    if (view.k < LOD.labels) return;
    ctx.fillStyle = theme.muted;
    const sub = stack ? `${g.children[0].cls}` : g.cls === g.name ? "" : g.cls;
    this.#text(sub, x + 21 + used + 7, y + 15, w - 44 - used, `${(11 * this.grow).toFixed(1)}px`);
    this.#text(
      `${plural(g.nodes.length, "node")}${this.figureOf(g) ? "  ·  " + this.figureOf(g) : ""}`,
      x + 21,
      y + (stack ? 30 : 27.5),
      w - 30,
      `${(11 * this.grow).toFixed(1)}px`,
    );
  }

  #bar(x, y, w, h, parts) {
    const { ctx } = this,
      total = [...parts.values()].reduce((a, b) => a + b, 0);
    let at = x;
    for (const [key, count] of parts) {
      if (!count) continue;
      const c = this.colours.get(key),
        width = (w * count) / total;
      ctx.fillStyle = c.solid;
      ctx.fillRect(at, y, Math.max(width - 1, 0.8), h);
      at += width;
    }
  }

  #cells(b) {
    const { ctx, theme, view } = this;
    for (const c of cells(b)) {
      const { main } = this.classOf(c.group);
      ctx.fillStyle = this.colourBy === "kind" ? theme["c-none"] : this.colours.get(main).solid;
      ctx.fillRect(c.x, c.y, c.w, c.h);
      if (view.k < 0.7) continue;
      ctx.fillStyle = this.state.hoverCell === c.key ? theme.accent : theme.muted;
      ctx.textAlign = "center";
      this.#text(
        c.group.name,
        c.x + c.w / 2,
        c.y + c.h + 7.5,
        c.w + 6,
        this.state.hoverCell === c.key ? "600 10px" : "10px",
      );
      ctx.textAlign = "left";
    }
  }

  /** Titles of open groups keep their size on screen; far away they stand to the left of the frame. */
  #titles(frames) {
    const { ctx, theme, view, scene } = this;
    ctx.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    ctx.textBaseline = "middle";
    let lastOutside = -Infinity;
    for (const b of frames) {
      const [x, y, w, h] = this.#rect(b),
        [sx, sy] = this.toScreen(x, y),
        inside = view.k >= LOD.headers;
      const scale = inside ? Math.min(view.k, 1.4) : 1;
      ctx.globalAlpha = this.#fade(b);
      if (inside) {
        const cy = sy + 14 * view.k,
          size = (s) => `${(s * scale).toFixed(2)}px`;
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
        const used = this.#text(nameOf(b.item), sx + 23 * scale, cy + 0.5, w * view.k - 40, "600 " + size(12));
        ctx.fillStyle = theme.muted;
        this.#text(
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
        const wrapped = scene.columns > 1,
          room = wrapped ? GUTTER * view.k - 4 : 200; // beside a column there is room for a number at most
        ctx.fillStyle = theme.muted;
        ctx.textAlign = "right";
        this.#text(
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
    const k = view.k * this.ratio;
    ctx.setTransform(k, 0, 0, k, -view.x * k, -view.y * k);
  }

  /** Badges, search hits, hover and selection: above everything, never smaller than they can be seen. */
  #overlays(boxes) {
    const { ctx, theme, state, view } = this;
    for (const b of boxes) {
      const [x, y] = this.#rect(b);
      const hits = state.hits?.[b.item.index];
      if (hits) {
        ctx.strokeStyle = theme.hit;
        ctx.lineWidth = Math.max(1.5, 1.5 / view.k);
        ctx.beginPath();
        this.#outline(b, 2.5);
        ctx.stroke();
        if (b.item.nodes && view.k >= LOD.labels) this.#pill(String(hits), x - 2, y);
      }
    }
    ctx.globalAlpha = 1;
    const ring = (key, colour, width, offset) => {
      const b = this.scene.box(key);
      if (!b) return;
      ctx.strokeStyle = colour;
      ctx.lineWidth = Math.max(width, width / view.k);
      ctx.beginPath();
      this.#outline(b, offset);
      ctx.stroke();
    };
    for (const key of state.nearKeys || []) ring(key, theme.muted, 1.25, 0);
    if (state.hover && state.hover !== state.selection) ring(state.hover, theme.text, 1.25, 0);
    if (state.selection) ring(state.selection, theme.accent, 2, 3);
    for (const b of boxes) {
      const [x, y, w] = this.#rect(b);
      ctx.globalAlpha = Math.max(this.#fade(b), 0.5);
      const grow = Math.max(1, 0.62 / view.k);
      badges(b.item)
        .filter(([, loud]) => loud || grow < 4)
        .slice(0, grow > 3 ? 1 : 3)
        .forEach(([mark, loud], i) => {
          const r = 7.5 * grow,
            cx = x + w - (b.kind === "node" ? 2 : 10) - i * (r * 2 + 2),
            cy = y - (b.kind === "node" ? 3 : 0);
          ctx.beginPath();
          ctx.arc(cx, cy, r, 0, 7);
          ctx.fillStyle = loud ? theme["c-alarm"] : theme.box;
          ctx.fill();
          ctx.strokeStyle = loud ? theme.box : theme["line-strong"];
          ctx.lineWidth = loud ? 1.5 : 1;
          ctx.stroke();
          this.#mark(mark, cx, cy, 3.7 * grow, loud ? theme["on-strong"] : theme.text);
        });
    }
    ctx.globalAlpha = 1;
  }

  #outline(b, o) {
    const [x, y, w, h] = this.#rect(b);
    if (b.kind === "node" && b.item.parameter) tag(this.ctx, x - o, y - o, w + 2 * o, h + 2 * o);
    else
      this.ctx.roundRect(
        x - o,
        y - o,
        w + 2 * o,
        (b.kind === "stack" ? h - 8 : h) + 2 * o,
        (b.kind === "node" ? 5 : 7) + o,
      );
  }

  #pill(text, x, y) {
    const { ctx, theme } = this;
    ctx.font = "600 10.5px " + theme.ui;
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

  #mark(name, x, y, r, colour) {
    const { ctx } = this,
      id = name + r.toFixed(1);
    if (!this.paths.has(id)) {
      const [how, d] = markPath(name, r);
      this.paths.set(id, [how, new Path2D(d)]);
    }
    const [how, path] = this.paths.get(id);
    ctx.save();
    ctx.translate(x, y);
    if (how === "fill") {
      ctx.fillStyle = colour;
      ctx.fill(path);
    } else {
      ctx.strokeStyle = colour;
      ctx.lineWidth = Math.max(1.6, r * 0.4);
      ctx.stroke(path);
    }
    ctx.restore();
  }

  /** Text cut to a width; what a cut gives is remembered. Returns the width used. */
  #text(text, x, y, room, font) {
    const { ctx, theme } = this;
    if (!text || room < 12) return 0;
    ctx.font = `${font} ${theme.ui}`;
    const id = `${font}|${Math.round(room)}|${text}`;
    let cut = this.clipped.get(id);
    if (!cut) {
      let s = text.length > 400 ? text.slice(0, 400) : text;
      if (ctx.measureText(s).width > room) {
        let lo = 0,
          hi = s.length;
        while (lo < hi) {
          const mid = (lo + hi + 1) >> 1;
          if (ctx.measureText(s.slice(0, mid) + "…").width <= room) lo = mid;
          else hi = mid - 1;
        }
        s = s.slice(0, lo) + "…";
      }
      cut = [s, ctx.measureText(s).width];
      if (this.clipped.size > 20000) this.clipped.clear();
      this.clipped.set(id, cut);
    }
    ctx.fillText(cut[0], x, y);
    return cut[1];
  }
}
