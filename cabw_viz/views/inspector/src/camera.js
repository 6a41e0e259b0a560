/** Where the view is and how it moves: fit, show, zoom, and what follows a drawn frame (zoom figure, breadcrumb). */
import { h } from "./dom.js";

const MOTION = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 200;
const READABLE = 0.8;
const ZOOM = [0.0004, 4];
const NEWSPAPER = 0.16; // below this zoom a whole spine shows nothing: it is wrapped into columns

export class Camera {
  moving = null;

  constructor(ins) {
    this.ins = ins;
  }

  room() {
    const { renderer: r, mapCanvas } = this.ins;
    return { w: Math.max(50, r.w - mapCanvas.clientWidth - 48), h: Math.max(50, r.h - 84) };
  }
  aspect() {
    const { w, h } = this.room();
    return w / h;
  }

  /** First to the readable width; again for the whole graph, a long one wrapped into columns; and back. */
  fit(animate = true) {
    const { ins } = this;
    const { w, h } = this.room();
    const s = ins.scene;
    if (!s) return;
    const whole = Math.min(1.2, w / s.w, h / s.h);
    if (animate && ins.wrapped) {
      ins.wrapped = false;
      ins.lastFit = null;
      return ins.rebuild(null, { then: () => this.fit(false) });
    }
    const again = animate && ins.lastFit === "wide";
    if (again && whole < NEWSPAPER) {
      ins.wrapped = true;
      ins.lastFit = "whole";
      return ins.rebuild(null, { then: () => this.#whole(false) });
    }
    ins.lastFit = whole < READABLE && !again ? "wide" : "whole";
    if (whole >= READABLE || again) return this.#whole(animate);
    const k = Math.max(READABLE, Math.min(1, w / s.w));
    this.move({ x: s.w / 2 - (w / 2 + 24) / k, y: -48 / k, k }, animate);
  }

  #whole(animate) {
    const { w, h } = this.room();
    const s = this.ins.scene;
    const k = Math.min(1.2, w / s.w, h / s.h);
    this.move({ x: s.w / 2 - (w / 2 + 24) / k, y: s.h / 2 - (h / 2 + 26) / k, k }, animate);
  }

  /** Whether any of the picture is in sight. */
  sees() {
    const {
      renderer: { view, w, h },
      scene,
    } = this.ins;
    return view.x < scene.w && view.y < scene.h && view.x + w / view.k > 0 && view.y + h / view.k > 0;
  }

  show(key) {
    const { renderer, scene } = this.ins;
    const b = scene?.box(key);
    const { view } = renderer;
    const { w, h } = this.room();
    if (!b) return;
    const k = Math.max(view.k, 0.8);
    const cx = b.x + b.w / 2;
    const cy = b.y + Math.min(b.h / 2, h / 2 / k);
    const [sx, sy] = renderer.toScreen(cx, cy);
    const half = Math.min(b.w * k, w) / 2;
    const off = (at, low, high) => (at < low ? at - low : at > high ? at - high : 0);
    const dx = off(sx, half + 16, w + 32 - half);
    const dy = off(sy, 32, h - 8);
    if (k === view.k && !dx && !dy) return;
    if (k === view.k && Math.abs(dx) < w / 2 && Math.abs(dy) < h / 2)
      return this.move({ x: view.x + dx / k, y: view.y + dy / k, k }); // near: as little as it takes
    this.move({ x: cx - (w / 2 + 24) / k, y: cy - (h / 2 + 26) / k, k });
  }

  /** What lies at (sx, sy) on screen goes to (tx, ty), which is where it is if nothing else is said. */
  zoom(factor, sx = this.ins.renderer.w / 2, sy = this.ins.renderer.h / 2, animate = false, tx = sx, ty = sy) {
    const { renderer } = this.ins;
    const k = Math.max(ZOOM[0], Math.min(ZOOM[1], renderer.view.k * factor));
    const [x, y] = renderer.toWorld(sx, sy);
    this.ins.lastFit = null;
    this.move({ x: x - tx / k, y: y - ty / k, k }, animate);
  }

  move(to, animate = true) {
    const r = this.ins.renderer;
    if (!animate || !MOTION) {
      this.moving = null;
      r.view = to;
      r.request();
      return;
    }
    const from = { ...r.view };
    const began = performance.now();
    const run = (this.moving = {});
    const step = () => {
      if (this.moving !== run) return;
      const t = Math.min(1, (performance.now() - began) / MOTION);
      const e = 1 - (1 - t) ** 3;
      const k = t === 1 ? to.k : from.k * (to.k / from.k) ** e;
      const a = from.k === to.k ? e : (k - from.k) / (to.k - from.k);
      const sx = (v) => from[v] * from.k + (to[v] * to.k - from[v] * from.k) * a;
      r.view = t === 1 ? to : { x: sx("x") / k, y: sx("y") / k, k };
      r.request();
      if (t < 1) requestAnimationFrame(step);
    };
    step();
  }

  drawn() {
    const { ins } = this;
    const { renderer, scene } = ins;
    const { view } = renderer;
    const percent = view.k < 0.1 ? `${(view.k * 100).toFixed(1)}%` : `${Math.round(view.k * 100)}%`;
    if (ins.zoomOut.textContent !== percent) ins.zoomOut.textContent = percent;
    ins.aria.later();
    const [x, y] = renderer.toWorld(this.room().w / 2, 44);
    const within = (b) =>
      b.y + 20 < view.y + 44 / view.k &&
      b.y + b.h > y &&
      b.h * view.k > 60 &&
      (b.depth === 1 || (b.x < x && b.x + b.w > x));
    const inside = ins.wrapped
      ? []
      : scene.frames(view.y, view.y + renderer.h / view.k, -Infinity, Infinity, view.k < 0.16 ? 2 : 255).filter(within);
    const id = inside.map((b) => b.key).join();
    if (this.crumbs === id) return;
    this.crumbs = id;
    ins.crumbs.replaceChildren(
      ...inside
        .flatMap((b, i) => [
          i ? h("i", null, "›") : "",
          h(
            "button",
            {
              title: `Go to the top of ${b.item.path}`,
              onclick: () => {
                ins.select(b.key);
                this.move({ x: view.x, y: b.y - 48 / view.k, k: view.k });
              },
            },
            b.item.name,
          ),
        ])
        .filter(Boolean),
    );
  }
}
