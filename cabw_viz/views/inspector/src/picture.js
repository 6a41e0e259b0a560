/** What the canvas shows: a graph at a level, which of its groups are open, the scene laid out of them, and what of it is marked. */
import { fold, unfold } from "./expanded.js";
import { reachOf } from "./reach.js";

export class Picture {
  /** null until the first layout is there */
  scene = null;
  /** The level that was asked for and has no data yet, or none at all; a note covers the canvas meanwhile. */
  pending = null;
  /** The level that is drawn once the layout of its graph is done. */
  switching = null;
  /** Whether the picture is set in columns. */
  wrapped = false;
  reach = null;
  #arrival = null; // the promise of the scene that is being laid out
  #openInScene = new Set();

  /** `level`, `expanded`: the traits, as they are at the beginning. */
  constructor(inspector, { level, expanded }) {
    const { graph, levels } = inspector;
    this.inspector = inspector;
    this.drawn = graph;
    this.layout = levels.base.layout;
    const autograd = level === "autograd" || !graph.grouped;
    this.level = autograd ? "autograd" : level === "" ? "" : "module";
    this.expanded = level === "autograd" ? graph.all() : unfold(expanded, graph);
  }

  /* Which graph, and what of it is open. Each resolves to whether its picture came: a layout may be given up. */

  setLevel(level) {
    const { inspector } = this;
    if (this.switching) this.cancel();
    this.wrapped = false;
    this.pending = null;
    const { levels, model } = inspector;
    if (!levels.has(level) && model.get("kernel")) model.send({ type: "aten" }); // lowered by hand meanwhile?
    const entry = levels.has(level) ? levels.entry(level) : null;
    if (!entry?.graph.list.length) {
      this.pending = level;
      this.level = level;
      inspector.setTrait("level", level);
    } else if (entry.graph === this.drawn) this.#openTo(level);
    else this.#adopt(entry, level);
    inspector.frame.showNote();
    inspector.frame.showChoices();
  }

  /** All groups open or all closed, in the graph that is drawn already. */
  #openTo(level) {
    const { inspector } = this;
    if (level !== "") this.expanded = level === "module" ? new Set() : this.drawn.all();
    this.level = level;
    this.rebuild().then((drawn) => {
      if (drawn && inspector.selection && level !== "module") inspector.camera.show(inspector.selection);
      else if (drawn) inspector.camera.fit();
    });
    inspector.setTrait("level", level);
  }

  /** Lays out another graph, all of it open, and goes over to it when its picture is there. */
  #adopt(entry, level) {
    const { inspector } = this;
    this.layout.cancel();
    this.#settle(false);
    this.switching = level;
    this.layout = entry.layout;
    const expanded = level === "module" ? new Set() : entry.graph.all();
    this.#promise().then((drawn) => {
      if (drawn && inspector.selection && level !== "module") inspector.camera.show(inspector.selection);
      else if (drawn) inspector.camera.fit(false);
    });
    this.#layOut(entry.graph.openFlags(expanded), (scene) => {
      const old = this.drawn;
      Object.assign(this, { switching: null, scene: null, drawn: entry.graph, level, expanded });
      inspector.takeOver(old);
      inspector.setTrait("expanded", fold(expanded, entry.graph));
      this.#put(scene, null);
    });
  }

  /** Opens a group, or closes it with every group inside. */
  toggle(group) {
    if (this.expanded.has(group.path)) this.#close(group);
    else this.expanded.add(group.path);
    return this.rebuild(group.key);
  }

  #close(group) {
    const groups = [group];
    while (groups.length) {
      const g = groups.pop();
      this.expanded.delete(g.path);
      groups.push(...g.children);
    }
  }

  open(group) {
    this.expanded.add(group.path);
    return this.rebuild(group.key);
  }

  /** Opens the groups around an item. Returns whether the scene has to be laid out again before the item is in it. */
  openAround(item) {
    const before = this.expanded.size;
    for (let g = item.parent; g && g.parent; g = g.parent) this.expanded.add(g.path);
    return this.expanded.size !== before || this.layout.waiting;
  }

  /** The trait `expanded`, set by Python. */
  setExpanded(paths) {
    if (this.switching || String(paths) === String(fold(this.expanded, this.drawn))) return Promise.resolve(false);
    this.expanded = unfold(paths, this.drawn);
    return this.rebuild(null, { quiet: true });
  }

  /** Sets the picture in columns, or in one. */
  wrap(wrapped) {
    this.wrapped = wrapped;
    return this.rebuild();
  }

  /* From what is open to a scene. */

  /**
   * Lays out what is open. `anchor` stays where it is on screen; `quiet` says that a person opened or closed something.
   * A layout that is under way is replaced by this one, and the promise of it kept with this one.
   */
  rebuild(anchor = null, { quiet = Boolean(anchor) } = {}) {
    const { inspector } = this;
    if (this.switching) return Promise.resolve(false);
    if (quiet && this.drawn === inspector.graph) this.level = this.expanded.size ? "" : "module";
    inspector.setTrait("expanded", fold(this.expanded, this.drawn));
    inspector.frame.showChoices();
    const promise = this.#promise();
    this.#layOut(this.drawn.openFlags(this.expanded), (scene) => this.#put(scene, anchor));
    return promise;
  }

  #promise() {
    if (!this.#arrival) {
      let settle;
      const promise = new Promise((resolve) => (settle = resolve));
      this.#arrival = { promise, settle };
    }
    return this.#arrival.promise;
  }

  #settle(drawn) {
    const arrival = this.#arrival;
    this.#arrival = null;
    arrival?.settle(drawn);
  }

  #layOut(flags, put) {
    const { busy, camera } = this.inspector;
    busy.begin();
    const done = (scene) => {
      busy.end();
      put(scene);
    };
    this.layout.scene(flags, this.wrapped ? camera.aspect() : 0, done, (share) => busy.progress(share));
  }

  /** A new scene onto the canvas, moved so that `anchor` stays where it is. */
  #put(scene, anchor) {
    const { camera, renderer, aria } = this.inspector;
    const before = anchor && this.scene?.box(anchor);
    const after = before && scene.box(anchor);
    const shift = after ? [after.x + after.w / 2 - before.x - before.w / 2, after.y - before.y] : [0, 0];
    camera.jump(camera.view.x + shift[0], camera.view.y + shift[1]);
    this.scene = scene;
    this.#openInScene = new Set(this.expanded);
    renderer.setScene(scene, shift);
    this.emphasise(this.reach);
    camera.follow(Boolean(anchor));
    aria.schedule();
    this.#settle(true);
  }

  /** Gives up the layout that is under way: the picture stays as it is, and so does what is open. */
  cancel() {
    if (!this.layout.waiting) return;
    const { inspector } = this;
    this.layout.cancel();
    inspector.busy.end();
    this.#settle(false);
    const switched = this.switching;
    this.switching = null;
    this.layout = inspector.levels.of(this.drawn).layout;
    if (switched) inspector.setTrait("level", this.level);
    if (this.scene) {
      this.expanded = new Set(this.#openInScene);
      inspector.setTrait("expanded", fold(this.expanded, this.drawn));
    } else if (this.drawn.grouped) {
      this.expanded.clear(); // nothing was drawn yet: what is quick to lay out
      this.rebuild(null, { quiet: true }).then((drawn) => drawn && inspector.camera.fit(false));
    }
    inspector.frame.showChoices();
  }

  /* What of the scene is marked: worked out once for a change and not for each frame. */

  /** Marks an item, or a block of a stack, and what is joined to it. */
  hover(key, cell) {
    const { renderer } = this.inspector;
    if (renderer.state.hover === key && renderer.state.hoverCell === cell) return;
    const box = key && this.scene?.box(key);
    const marked = box && box.kind !== "open";
    const near = marked ? new Uint8Array(this.drawn.list.length) : null;
    if (marked) for (const n of this.drawn.nodesOf(key)) near[n.index] = 1;
    const nearKeys = marked ? [...this.scene.next(key, "up"), ...this.scene.next(key, "down")] : [];
    renderer.hover({ hover: key, hoverCell: cell, near, nearKeys });
  }

  /** Marks search, filter and selection. `known`: the reach of an earlier call, where only the scene is new. */
  emphasise(known) {
    const { inspector, drawn } = this;
    const { cone, way, colour, filter, hits } = inspector;
    if (!this.scene || !colour) return;
    const same = known && known.cone === cone && known.way === way && known.graph === drawn;
    this.reach = same ? known : reachOf({ graph: drawn, filter, cone, way, hits, colour });
    inspector.renderer.emphasise({
      selection: this.#shownFor(inspector.selection),
      mark: cone?.mark || null,
      path: way?.on || null,
      hits: this.reach.hits,
      dim: this.reach.kept ? this.#dimmed(this.reach) : null,
    });
  }

  /** The item that stands in the picture for one that may be inside a closed group. */
  #shownFor(key) {
    const item = this.drawn.item(key);
    if (!item) return null;
    return this.scene.box(item.key) ? item.key : this.drawn.shown(this.drawn.nodesOf(key)[0], this.expanded);
  }

  #dimmed({ kept, reached }) {
    const { item, kind } = this.scene;
    const dim = new Uint8Array(this.drawn.items.length);
    for (let b = 0; b < item.length; b++) if (!(kind[b] === 3 ? kept : reached)[item[b]]) dim[item[b]] = 1;
    return dim;
  }

  /** Findings have changed. */
  renew() {
    this.scene?.mark();
  }
}
