/** Where the view is and how it moves: fit, show, zoom, pan; and what follows a drawn frame: the zoom's figure, the breadcrumb. */
import { LOD } from "./lod.js";

const MOTION = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 200;
const READABLE = 0.8;
const ZOOM = [0.0004, 4];
const NEWSPAPER = 0.16; // below this zoom a whole spine shows nothing: it is wrapped into columns

export class Camera {
  /** The world's point at the top left of the canvas, and pixels per unit of the world. */
  view = { x: 0, y: 0, k: 1 };
  #motion = null;
  #lastFit = null; // "wide" or "whole" until the view is moved in another way
  #fitted = false;
  #crumbs = null;

  constructor(inspector) {
    this.inspector = inspector;
  }

  /** Whether the view is on its way. */
  get moves() {
    return this.#motion !== null;
  }

  /** The part of the canvas that nothing covers. */
  room() {
    const { renderer, frame } = this.inspector;
    return { w: Math.max(50, renderer.w - frame.map.clientWidth - 48), h: Math.max(50, renderer.h - 84) };
  }
  aspect() {
    const { w, h } = this.room();
    return w / h;
  }

  /** Fits the first picture, once the canvas has a size. */
  firstFit(sized = this.inspector.renderer.w > 0) {
    if (this.#fitted || !sized || !this.inspector.scene) return;
    this.#fitted = true;
    this.fit(false);
  }

  /** First to the readable width; again for the whole graph, a long one wrapped into columns; and back. */
  fit(animate = true) {
    const { picture, scene } = this.inspector;
    if (!scene) return;
    const { w, h } = this.room();
    const whole = Math.min(1.2, w / scene.w, h / scene.h);
    if (animate && picture.wrapped) {
      this.#lastFit = null;
      picture.wrap(false).then((drawn) => drawn && this.fit(false));
      return;
    }
    const again = animate && this.#lastFit === "wide";
    this.#lastFit = whole < READABLE && !again ? "wide" : "whole";
    if (again && whole < NEWSPAPER) picture.wrap(true).then((drawn) => drawn && this.#fitWhole(false));
    else if (whole >= READABLE || again) this.#fitWhole(animate);
    else {
      const k = Math.max(READABLE, Math.min(1, w / scene.w));
      this.move({ x: scene.w / 2 - (w / 2 + 24) / k, y: -48 / k, k }, animate);
    }
  }

  #fitWhole(animate) {
    const { w, h } = this.room();
    const { scene } = this.inspector;
    const k = Math.min(1.2, w / scene.w, h / scene.h);
    this.move({ x: scene.w / 2 - (w / 2 + 24) / k, y: scene.h / 2 - (h / 2 + 26) / k, k }, animate);
  }

  /** A new picture is there. A smaller one may lie out of sight. */
  follow(anchored) {
    this.firstFit();
    if (!anchored && this.#fitted && !this.#seesPicture()) this.fit(false);
  }

  #seesPicture() {
    const { renderer, scene } = this.inspector;
    const { x, y, k } = this.view;
    return x < scene.w && y < scene.h && x + renderer.w / k > 0 && y + renderer.h / k > 0;
  }

  /** Brings a box into sight: by as little as it takes where it is near. */
  show(key) {
    const { renderer, scene } = this.inspector;
    const box = scene?.box(key);
    if (!box) return;
    const { view } = this;
    const { w, h } = this.room();
    const k = Math.max(view.k, READABLE);
    const cx = box.x + box.w / 2;
    const cy = box.y + Math.min(box.h / 2, h / 2 / k);
    const [sx, sy] = renderer.toScreen(cx, cy);
    const half = Math.min(box.w * k, w) / 2;
    const dx = beyond(sx, half + 16, w + 32 - half);
    const dy = beyond(sy, 32, h - 8);
    if (k === view.k && !dx && !dy) return;
    if (k === view.k && Math.abs(dx) < w / 2 && Math.abs(dy) < h / 2)
      this.move({ x: view.x + dx / k, y: view.y + dy / k, k });
    else this.move({ x: cx - (w / 2 + 24) / k, y: cy - (h / 2 + 26) / k, k });
  }

  /** The world's point at `from` on the screen goes to `to`; the middle of the canvas stays where neither is given. */
  zoom(factor, { from = this.#middle(), to = from, animate = false } = {}) {
    const k = Math.max(ZOOM[0], Math.min(ZOOM[1], this.view.k * factor));
    const [x, y] = this.inspector.renderer.toWorld(...from);
    this.#lastFit = null;
    this.move({ x: x - to[0] / k, y: y - to[1] / k, k }, animate);
  }

  #middle() {
    const { w, h } = this.inspector.renderer;
    return [w / 2, h / 2];
  }

  /** A person moves the view to a point of the world: at once, and a fit that was made no longer holds. */
  pan(x, y) {
    this.#lastFit = null;
    this.jump(x, y);
  }

  /** The view goes to a point of the world at once. */
  jump(x, y) {
    this.#motion = null;
    this.#look({ ...this.view, x, y });
  }

  /** A motion ends where it is. */
  stop() {
    this.#motion = null;
  }

  move(to, animate = true) {
    if (!animate || !MOTION) {
      this.#motion = null;
      this.#look(to);
      return;
    }
    const from = { ...this.view };
    const began = performance.now();
    const motion = (this.#motion = {});
    const step = () => {
      if (this.#motion !== motion) return;
      const t = Math.min(1, (performance.now() - began) / MOTION);
      this.#look(t === 1 ? to : between(from, to, 1 - (1 - t) ** 3));
      if (t === 1) this.#motion = null;
      else requestAnimationFrame(step);
    };
    step();
  }

  #look(view) {
    this.view = view;
    this.inspector.renderer.request();
  }

  /** A frame was drawn. */
  followFrame() {
    const { inspector, view } = this;
    inspector.frame.showZoom(view.k);
    inspector.aria.schedule();
    const around = inspector.picture.wrapped ? [] : this.#framesAround();
    const id = around.map((b) => b.key).join();
    if (this.#crumbs === id) return;
    this.#crumbs = id;
    inspector.frame.showCrumbs(around, (b) => {
      inspector.select(b.key);
      this.move({ x: view.x, y: b.y - 48 / view.k, k: view.k });
    });
  }

  /** The open groups that the top of the view lies in, the outermost first. */
  #framesAround() {
    const { renderer, scene } = this.inspector;
    const { view } = this;
    const [x, y] = renderer.toWorld(this.room().w / 2, 44);
    return scene
      .frames(view.y, view.y + renderer.h / view.k, -Infinity, Infinity, view.k < LOD.round ? 2 : 255)
      .filter(
        (b) =>
          b.y + 20 < view.y + 44 / view.k &&
          b.y + b.h > y &&
          b.h * view.k > 60 &&
          (b.depth === 1 || (b.x < x && b.x + b.w > x)),
      );
  }
}

/** By how much a number lies outside of a range. */
function beyond(value, low, high) {
  if (value < low) return value - low;
  return value > high ? value - high : 0;
}

/** The view at a share of the way: the zoom grows evenly, and what both views show goes straight. */
function between(from, to, share) {
  const k = from.k * (to.k / from.k) ** share;
  const a = from.k === to.k ? share : (k - from.k) / (to.k - from.k);
  const at = (axis) => (from[axis] * from.k + (to[axis] * to.k - from[axis] * from.k) * a) / k;
  return { x: at("x"), y: at("y"), k };
}
