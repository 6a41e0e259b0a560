/** Keys: those of the whole inspector, and those of the canvas. */

export function listenToKeys(inspector) {
  const { frame, search } = inspector;
  frame.el.addEventListener("keydown", (e) => {
    if (e.target.matches?.("input, select") || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "/") {
      e.preventDefault();
      search.focus();
    } else if (e.key === "?") inspector.help();
  });
  frame.tree.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || !Object.hasOwn(ACTIONS, e.key)) return;
    e.preventDefault();
    e.stopPropagation();
    ACTIONS[e.key](inspector, inspector.drawn.item(inspector.renderer.state.selection));
  });
}

const zoomIn = ({ camera }) => camera.zoom(1.25, { animate: true });

/** What each key does, given the inspector and the selected item. */
const ACTIONS = {
  ArrowDown: (inspector) => walk(inspector, "down"),
  ArrowUp: (inspector) => walk(inspector, "up"),
  ArrowLeft: (inspector) => stepAside(inspector, -1),
  ArrowRight: (inspector) => stepAside(inspector, 1),
  Enter: (inspector, item) => item && (item.nodes ? inspector.toggle(item.path) : inspector.openTab("node")),
  Escape: escape,
  Backspace: (inspector, item) => item?.parent?.parent && inspector.reveal(item.parent.key),
  Home: (inspector) => inspector.go(inspector.scene.end(1)),
  End: (inspector) => inspector.go(inspector.scene.end(-1)),
  f: ({ camera }) => camera.fit(),
  "+": zoomIn,
  "=": zoomIn,
  "-": ({ camera }) => camera.zoom(0.8, { animate: true }),
  0: ({ camera }) => camera.zoom(1 / camera.view.k, { animate: true }),
  n: ({ search }) => search.step(1),
  N: ({ search }) => search.step(-1),
};

/** Closes the help; else clears the selection, else the search. */
function escape(inspector) {
  if (inspector.frame.helpIsShown) inspector.help();
  else if (inspector.selection) inspector.select("");
  else inspector.search.clear();
}

/** Along an edge; of several, the one that lies straightest ahead. */
function walk(inspector, direction) {
  const { scene, renderer } = inspector;
  const box = scene.box(renderer.state.selection);
  if (!box) return inspector.go(scene.end(1));
  if (box.kind === "open") return inspector.go(scene.end(direction === "down" ? 1 : -1, box.item));
  const ways = [...scene.next(box.key, direction)].map((key) => scene.box(key));
  ways.sort((a, b) => turn(a, box) - turn(b, box));
  return inspector.go(ways[0]?.key);
}

/** To the left or right in the same row. */
function stepAside(inspector, by) {
  const { scene, renderer } = inspector;
  const box = scene.box(renderer.state.selection);
  if (!box) return inspector.go(scene.end(1));
  const row = scene
    .visible(box.y + 1, box.y + box.h - 1, -Infinity, Infinity)
    .filter((b) => b.item !== box.item && Math.sign(b.x - box.x) === by);
  row.sort((a, b) => Math.abs(a.x - box.x) - Math.abs(b.x - box.x));
  return inspector.go(row[0]?.key);
}

/** How far a step from `b` to `a` turns aside. */
const turn = (a, b) =>
  Math.abs(a.x + a.w / 2 - b.x - b.w / 2) + Math.abs(a.y - b.y) * 0.5 + (a.item.parameter ? 60 : 0);
