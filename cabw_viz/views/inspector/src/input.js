/** Pointer, wheel and keys: everything a person does to the canvas. Functions of the inspector; they hold no state of their own but a drag. */
export function pointer(ins) {
  const el = ins.tree;
  const at = (e) => {
    const r = el.getBoundingClientRect();
    return [e.clientX - r.left, e.clientY - r.top];
  };
  const held = new Map();
  let drag = null;
  let pinch = 0;
  let middle = [0, 0];
  el.addEventListener("pointerdown", (e) => {
    if (e.button) return;
    el.setPointerCapture(e.pointerId);
    held.set(e.pointerId, at(e));
    ins.camera.moving = null;
    drag = { from: at(e), view: { ...ins.renderer.view }, moved: false };
    pinch = held.size === 2 ? spread(held) : 0;
    middle = between(held);
    ins.tooltip.show(null);
  });
  el.addEventListener("pointermove", (e) => {
    const p = at(e);
    if (held.has(e.pointerId)) held.set(e.pointerId, p);
    if (pinch && held.size === 2) {
      const now = spread(held);
      const to = between(held);
      ins.camera.zoom(now / pinch, ...middle, false, ...to);
      pinch = now;
      middle = to;
      drag.moved = true;
      drag.from = p;
      drag.view = { ...ins.renderer.view };
    } else if (drag && (drag.moved || Math.hypot(p[0] - drag.from[0], p[1] - drag.from[1]) > 3)) {
      drag.moved = true;
      ins.view.dataset.cursor = "grab";
      ins.lastFit = null;
      ins.renderer.view = {
        ...drag.view,
        x: drag.view.x - (p[0] - drag.from[0]) / drag.view.k,
        y: drag.view.y - (p[1] - drag.from[1]) / drag.view.k,
      };
      ins.renderer.request();
    } else if (!drag) {
      const hit = ins.renderer.hit(...p);
      const leaf = hit && !hit.frame;
      ins.view.dataset.cursor = leaf || hit?.header ? "hit" : "";
      ins.hover(leaf || hit?.header ? hit.key : null, hit?.cell);
      ins.tooltip.show(leaf ? hit : null, p);
    }
  });
  const up = (e) => {
    held.delete(e.pointerId);
    if (held.size) return;
    if (drag && !drag.moved && e.type === "pointerup") click(ins, at(e));
    drag = null;
    pinch = 0;
    ins.view.dataset.cursor = "";
  };
  el.addEventListener("pointerup", up);
  el.addEventListener("pointercancel", up);
  el.addEventListener("pointerleave", () => {
    ins.hover(null);
    ins.tooltip.show(null);
  });
  el.addEventListener("dblclick", (e) => {
    const hit = ins.renderer.hit(...at(e));
    const item = hit && ins.drawn.item(hit.key);
    if (performance.now() - ins.opened < 500) return; // the first click has already opened something
    if (item?.nodes) ins.toggle(item.path);
  });
  el.addEventListener("wheel", (e) => wheel(ins, e, at(e)), { passive: false });
  ins.mapCanvas.addEventListener("pointerdown", (e) => {
    const go = (e) => {
      const r = ins.mapCanvas.getBoundingClientRect();
      const m = ins.renderer.mapping;
      const v = ins.renderer.view;
      ins.camera.moving = null;
      ins.renderer.view = {
        ...v,
        y: (e.clientY - r.top - m.oy) / m.s - ins.renderer.h / v.k / 2,
        x:
          ins.scene.w > ins.camera.room().w / v.k
            ? (e.clientX - r.left - m.ox) / m.s - ins.camera.room().w / v.k / 2
            : v.x,
      };
      ins.renderer.request();
    };
    ins.mapCanvas.setPointerCapture(e.pointerId);
    go(e);
    ins.mapCanvas.onpointermove = go;
    ins.mapCanvas.onpointerup = () => {
      ins.mapCanvas.onpointermove = null;
    };
  });
}

function click(ins, p) {
  ins.tree.focus({ preventScroll: true });
  const hit = ins.renderer.hit(...p);
  if (!hit || (hit.frame && !hit.header)) return ins.select("");
  const item = ins.drawn.item(hit.key);
  const [x, y] = ins.renderer.toWorld(...p);
  const box = ins.scene.box(hit.key);
  if (hit.cell) {
    ins.opened = performance.now();
    ins.expanded.add(item.path);
    ins.rebuild(item.key);
    return ins.reveal(hit.cell);
  }
  if (item.nodes && x - box.x < 20 && y - box.y < 26) {
    ins.opened = performance.now();
    return ins.toggle(item.path);
  }
  ins.select(hit.key);
}

/** Wheel pans, Ctrl or a pinch zooms; at the end of the graph the page takes over, so the cell never traps a scroll. */
function wheel(ins, e, p) {
  const v = ins.renderer.view;
  const unit = e.deltaMode === 1 ? 18 : 1;
  if (e.ctrlKey || e.metaKey) {
    e.preventDefault();
    ins.camera.zoom(Math.exp(-e.deltaY * unit * 0.008), ...p);
    return;
  }
  const H = ins.renderer.h / v.k;
  const margin = 90 / v.k;
  const dx = ((e.shiftKey ? e.deltaY : e.deltaX) * unit) / v.k;
  let dy = ((e.shiftKey ? 0 : e.deltaY) * unit) / v.k;
  if (dy > 0) dy = Math.max(0, Math.min(dy, ins.scene.h + margin - H - v.y));
  else dy = Math.min(0, Math.max(dy, -margin - v.y));
  if (!dx && !dy) return;
  e.preventDefault();
  ins.camera.moving = null;
  ins.lastFit = null;
  ins.renderer.view = { ...v, x: v.x + dx, y: v.y + dy };
  ins.renderer.request();
  ins.tooltip.show(null);
}

export function keys(ins) {
  ins.el.addEventListener("keydown", (e) => {
    if (e.target.matches?.("input, select") || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "/") {
      e.preventDefault();
      ins.input.focus();
      ins.input.select();
    } else if (e.key === "?") ins.help();
  });
  ins.tree.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const item = ins.drawn.item(ins.renderer.state.selection);
    const act = {
      ArrowDown: () => walk(ins, "down"),
      ArrowUp: () => walk(ins, "up"),
      ArrowLeft: () => aside(ins, -1),
      ArrowRight: () => aside(ins, 1),
      Enter: () => item && (item.nodes ? ins.toggle(item.path) : ins.openTab("node")),
      Escape: () =>
        ins.keys.hidden ? (ins.selection ? ins.select("") : ((ins.input.value = ""), ins.find(""))) : ins.help(),
      Backspace: () => item?.parent?.parent && ins.reveal(item.parent.key),
      Home: () => ins.go(ins.scene.end(1)),
      End: () => ins.go(ins.scene.end(-1)),
      f: () => ins.camera.fit(),
      "+": () => ins.camera.zoom(1.25, undefined, undefined, true),
      "=": () => ins.camera.zoom(1.25, undefined, undefined, true),
      "-": () => ins.camera.zoom(0.8, undefined, undefined, true),
      0: () => ins.camera.zoom(1 / ins.renderer.view.k, undefined, undefined, true),
      n: () => ins.step(1),
      N: () => ins.step(-1),
    }[e.key];
    if (act) {
      e.preventDefault();
      e.stopPropagation();
      act();
    }
  });
}

/** Along an edge; of several, the one that lies straightest ahead. */
function walk(ins, direction) {
  const key = ins.renderer.state.selection;
  const box = ins.scene.box(key);
  if (!box) return ins.go(ins.scene.end(1));
  if (box.kind === "open") return ins.go(ins.scene.end(direction === "down" ? 1 : -1, box.item));
  const ways = [...ins.scene.next(key, direction)].map((k) => ins.scene.box(k));
  ways.sort((a, b) => cost(a, box) - cost(b, box));
  ins.go(ways[0]?.key);
}

/** To the left or right in the same row; else to another end of the edges that lead here. */
function aside(ins, by) {
  const box = ins.scene.box(ins.renderer.state.selection);
  if (!box) return ins.go(ins.scene.end(1));
  const row = ins.scene
    .visible(box.y + 1, box.y + box.h - 1, -Infinity, Infinity)
    .filter((b) => b.item !== box.item && Math.sign(b.x - box.x) === by);
  row.sort((a, b) => Math.abs(a.x - box.x) - Math.abs(b.x - box.x));
  ins.go(row[0]?.key);
}

const spread = (held) => {
  const [a, b] = [...held.values()];
  return Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;
};
/** The point in the middle of the fingers. */
const between = (held) => {
  const all = [...held.values()];
  return [0, 1].map((axis) => all.reduce((sum, p) => sum + p[axis], 0) / all.length);
};
const cost = (a, b) =>
  Math.abs(a.x + a.w / 2 - b.x - b.w / 2) + Math.abs(a.y - b.y) * 0.5 + (a.item.parameter ? 60 : 0);
