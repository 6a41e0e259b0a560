/** Pointer, wheel and keys: everything that a person does to the canvas. */

const STRAY = 3; // pixels that a click may move by
const FOLD = [20, 26]; // size of the triangle that opens a group, in the world
const DOUBLE = 500; // milliseconds within which a second click belongs to the first

/** Pointers on the canvas: hovering, clicks, dragging, pinching, the wheel. */
export class Pointer {
  #fingers = new Map(); // where each pointer that is down is
  #drag = null; // where it began, the view then, and whether it has moved
  #pinch = null; // distance and middle of two fingers
  #openedAt = -Infinity;

  constructor(inspector) {
    this.inspector = inspector;
    const { tree, map } = inspector.frame;
    const on = (name, f) => tree.addEventListener(name, f);
    on("pointerdown", (e) => this.#down(e));
    on("pointermove", (e) => this.#move(e));
    on("pointerup", (e) => this.#up(e));
    on("pointercancel", (e) => this.#up(e));
    on("pointerleave", () => this.#leave());
    on("dblclick", (e) => this.#doubleClick(this.#place(e)));
    tree.addEventListener("wheel", (e) => this.#wheel(e), { passive: false });
    map.addEventListener("pointerdown", (e) => this.#mapDown(e));
  }

  #place(e) {
    const { left, top } = this.inspector.tree.getBoundingClientRect();
    return [e.clientX - left, e.clientY - top];
  }

  #down(e) {
    if (e.button) return;
    const { inspector } = this;
    inspector.tree.setPointerCapture(e.pointerId);
    this.#fingers.set(e.pointerId, this.#place(e));
    inspector.camera.stop();
    this.#drag = { from: this.#place(e), view: inspector.camera.view, moved: false };
    this.#pinch = this.#fingers.size === 2 ? this.#spread() : null;
    inspector.tooltip.show(null);
  }

  #move(e) {
    const p = this.#place(e);
    if (this.#fingers.has(e.pointerId)) this.#fingers.set(e.pointerId, p);
    if (this.#pinch && this.#fingers.size === 2) this.#pinchTo(p);
    else if (!this.#drag) this.#hover(p);
    else if (this.#drag.moved || distance(p, this.#drag.from) > STRAY) this.#dragTo(p);
  }

  #pinchTo(p) {
    const { camera } = this.inspector;
    const now = this.#spread();
    camera.zoom(now.distance / this.#pinch.distance, { from: this.#pinch.middle, to: now.middle });
    this.#pinch = now;
    this.#drag = { from: p, view: camera.view, moved: true };
  }

  #dragTo(p) {
    const { from, view } = this.#drag;
    this.#drag.moved = true;
    this.inspector.frame.showCursor("grab");
    this.inspector.camera.pan(view.x - (p[0] - from[0]) / view.k, view.y - (p[1] - from[1]) / view.k);
  }

  #hover(p) {
    const { inspector } = this;
    const hit = inspector.renderer.hit(...p);
    const leaf = hit && !hit.frame;
    const active = leaf || hit?.header;
    inspector.frame.showCursor(active ? "hit" : "");
    inspector.hover(active ? hit.key : null, hit?.cell);
    inspector.tooltip.show(leaf ? hit : null, p);
  }

  #up(e) {
    this.#fingers.delete(e.pointerId);
    if (this.#fingers.size) return;
    if (this.#drag && !this.#drag.moved && e.type === "pointerup") this.#click(this.#place(e));
    this.#drag = this.#pinch = null;
    this.inspector.frame.showCursor("");
  }

  #leave() {
    this.inspector.hover(null);
    this.inspector.tooltip.show(null);
  }

  #click(p) {
    const { inspector } = this;
    inspector.tree.focus({ preventScroll: true });
    const hit = inspector.renderer.hit(...p);
    if (!hit || (hit.frame && !hit.header)) return inspector.select("");
    const item = inspector.drawn.item(hit.key);
    if (hit.cell) {
      this.#openedAt = performance.now();
      inspector.picture.open(item);
      return inspector.reveal(hit.cell);
    }
    const [x, y] = inspector.renderer.toWorld(...p);
    const box = inspector.scene.box(hit.key);
    if (item.nodes && x - box.x < FOLD[0] && y - box.y < FOLD[1]) {
      this.#openedAt = performance.now();
      return inspector.toggle(item.path);
    }
    return inspector.select(hit.key);
  }

  #doubleClick(p) {
    if (performance.now() - this.#openedAt < DOUBLE) return; // the first click has already opened something
    const { renderer, drawn } = this.inspector;
    const hit = renderer.hit(...p);
    const item = hit && drawn.item(hit.key);
    if (item?.nodes) this.inspector.toggle(item.path);
  }

  /** Wheel pans, Ctrl or a pinch zooms; at the end of the graph the page takes over, so the cell never traps a scroll. */
  #wheel(e) {
    const { camera, renderer, scene, tooltip } = this.inspector;
    const unit = e.deltaMode === 1 ? 18 : 1;
    if (e.ctrlKey || e.metaKey) {
      e.preventDefault();
      camera.zoom(Math.exp(-e.deltaY * unit * 0.008), { from: this.#place(e) });
      return;
    }
    const { x, y, k } = camera.view;
    const margin = 90 / k;
    const dx = ((e.shiftKey ? e.deltaY : e.deltaX) * unit) / k;
    let dy = ((e.shiftKey ? 0 : e.deltaY) * unit) / k;
    if (dy > 0) dy = Math.max(0, Math.min(dy, scene.h + margin - renderer.h / k - y));
    else dy = Math.min(0, Math.max(dy, -margin - y));
    if (!dx && !dy) return;
    e.preventDefault();
    camera.pan(x + dx, y + dy);
    tooltip.show(null);
  }

  #mapDown(e) {
    const { camera, frame, renderer, scene } = this.inspector;
    const { map } = frame;
    const go = ({ clientX, clientY }) => {
      const { left, top } = map.getBoundingClientRect();
      const [x, y] = renderer.minimap.toWorld(clientX - left, clientY - top);
      const { view } = camera;
      const width = camera.room().w / view.k;
      camera.jump(scene.w > width ? x - width / 2 : view.x, y - renderer.h / view.k / 2);
    };
    map.setPointerCapture(e.pointerId);
    go(e);
    map.onpointermove = go;
    map.onpointerup = () => {
      map.onpointermove = null;
    };
  }

  #spread() {
    const places = [...this.#fingers.values()];
    const middle = [0, 1].map((axis) => places.reduce((sum, p) => sum + p[axis], 0) / places.length);
    return { middle, distance: distance(places[0], places[1]) || 1 };
  }
}

const distance = (p, q) => Math.hypot(p[0] - q[0], p[1] - q[1]);
