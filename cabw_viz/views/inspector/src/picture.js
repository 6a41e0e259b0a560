/** What the canvas shows: the layout that was asked for last, and what of it is marked. Functions of the inspector. */
import { fold } from "./expanded.js";
import { number } from "./dom.js";
import { reachOf } from "./reach.js";

const PATIENCE = 150; // a layout that takes longer says so

/** Lays out what is open. `anchor` stays where it is on screen; `then` runs once the picture is there, now or soon. */
export function rebuild(ins, anchor, { then, quiet } = {}) {
  if (ins.switching) return; // another graph is on its way
  if ((anchor || quiet) && ins.drawn === ins.graph) ins.level = ins.expanded.size ? "" : "module";
  ins.tell("expanded", fold(ins.expanded, ins.drawn));
  ins.segments();
  ins.afterwards = [...(ins.layout.waiting ? ins.afterwards : []), then].filter(Boolean);
  layOut(ins, ins.layout, ins.drawn.openFlags(ins.expanded), (scene) => put(ins, scene, anchor));
}

/** Lays out another graph, all of it open, and goes over to it when its picture is there. */
export function adopt(ins, entry, level) {
  ins.switching = level;
  ins.layout.cancel();
  const expanded = level === "module" ? new Set() : entry.graph.all();
  ins.layout = entry.layout;
  ins.afterwards = [
    () => (ins.selection && level !== "module" ? ins.camera.show(ins.selection) : ins.camera.fit(false)),
  ];
  layOut(ins, entry.layout, entry.graph.openFlags(expanded), (scene) => {
    ins.switching = null;
    ins.expanded = expanded;
    ins.scene = null; // what is marked in the old one means nothing in the new one
    ins.takeOver(entry, level);
    ins.tell("expanded", fold(expanded, entry.graph));
    put(ins, scene, null);
  });
}

function layOut(ins, layout, flags, done) {
  const asked = performance.now();
  ins.busyTimer ??= setTimeout(() => (ins.busy.hidden = false), PATIENCE);
  ins.busyText.textContent = "Laying out…";
  const told = (share) => (ins.busyText.textContent = `Laying out… ${number(Math.round(share * 100))}%`);
  const arrived = (scene) => {
    rest(ins);
    done(scene);
    ins.times.scene = performance.now();
    ins.times.rebuild = ins.times.scene - asked;
  };
  layout.scene(flags, ins.wrapped ? ins.camera.aspect() : 0, arrived, told);
}

function rest(ins) {
  clearTimeout(ins.busyTimer);
  ins.busyTimer = null;
  ins.busy.hidden = true;
}

/** A new scene into the canvas: moved so that `anchor` stays where it is. */
function put(ins, scene, anchor) {
  const before = anchor && ins.scene?.box(anchor);
  const after = before && scene.box(anchor);
  const shift = after ? [after.x + after.w / 2 - before.x - before.w / 2, after.y - before.y] : [0, 0];
  ins.renderer.view.x += shift[0];
  ins.renderer.view.y += shift[1];
  ins.scene = scene;
  ins.drawnOpen = new Set(ins.expanded);
  ins.camera.moving = null;
  ins.renderer.setScene(scene, shift);
  ins.emphasise(ins.reach);
  ins.firstFit();
  if (!anchor && ins.fitted && !ins.camera.sees()) ins.camera.fit(false); // a smaller picture may lie elsewhere
  ins.aria.later();
  const run = ins.afterwards;
  ins.afterwards = [];
  run.forEach((f) => f());
}

/** Gives up the layout that is under way: the picture stays as it is, and so does what is open. */
export function cancel(ins) {
  if (!ins.layout.waiting) return;
  ins.layout.cancel();
  rest(ins);
  ins.afterwards = [];
  const back = ins.switching;
  ins.switching = null;
  const entry = ins.levels.of(ins.drawn);
  ins.layout = entry.layout;
  if (back) ins.tell("level", ins.level);
  if (ins.scene) {
    ins.expanded = new Set(ins.drawnOpen);
    ins.tell("expanded", fold(ins.expanded, ins.drawn));
  } else if (ins.drawn.grouped) {
    ins.expanded.clear(); // nothing was drawn yet: what is quick to lay out
    ins.rebuild(null, { quiet: true, then: () => ins.camera.fit(false) });
  }
  ins.segments();
}

export function hover(ins, key, cell) {
  const { state } = ins.renderer;
  if (state.hover === key && state.hoverCell === cell) return;
  state.hover = key;
  state.hoverCell = cell;
  const box = key && ins.scene?.box(key);
  const lit = box && box.kind !== "open";
  state.near = lit ? new Uint8Array(ins.drawn.list.length) : null;
  if (lit) for (const n of ins.drawn.nodesOf(key)) state.near[n.index] = 1;
  state.nearKeys = lit ? [...ins.scene.next(key, "up"), ...ins.scene.next(key, "down")] : [];
  ins.renderer.request();
}

/** What is dimmed and what is marked, worked out once per change and not per frame. `known`: what an earlier call returned, where only the picture is new. */
export function emphasise(ins, known) {
  if (!ins.scene || !ins.colour) return;
  const { state } = ins.renderer;
  const { drawn } = ins;
  const before = state.dim || state.mark || state.path || state.hits;
  const same = known && known.cone === ins.cone && known.way === ins.way && known.graph === drawn;
  const reach = (ins.reach = same
    ? known
    : reachOf({ graph: drawn, filter: ins.filter, cone: ins.cone, way: ins.way, hits: ins.hits, colour: ins.colour }));
  const selected = drawn.item(ins.selection);
  state.selection = !selected
    ? null
    : ins.scene.box(selected.key)
      ? selected.key
      : drawn.shown(drawn.nodesOf(ins.selection)[0], ins.expanded);
  state.mark = ins.cone?.mark || null;
  state.path = ins.way?.on || null;
  state.hits = reach.hits;
  state.dim = null;
  if (reach.kept) {
    const { item, kind } = ins.scene;
    state.dim = new Uint8Array(drawn.items.length);
    for (let b = 0; b < item.length; b++)
      if (!(kind[b] === 3 ? reach.kept : reach.reached)[item[b]]) state.dim[item[b]] = 1;
  }
  if (before || state.dim) {
    ins.renderer.tiles.stale();
    ins.renderer.picture = null;
  }
  ins.renderer.request();
}
