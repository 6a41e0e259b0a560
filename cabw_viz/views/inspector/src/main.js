/**
 * The inspector: its state and what follows from a change of it. `render({ model, el })` is anywidget's signature; the traits
 * selection, expanded, level, color_by and query are two-way. In a saved file `shim.js` stands in for the kernel.
 * `graph` holds the autograd nodes, whatever level is shown; `drawn` is the graph on the canvas.
 */
import { AriaTree } from "./aria.js";
import { Camera } from "./camera.js";
import { h } from "./dom.js";
import { ENCODINGS } from "./encode.js";
import { unfold } from "./expanded.js";
import { find, step } from "./find.js";
import { frame, legend, status } from "./frame.js";
import { keys, pointer } from "./input.js";
import { levelFor, Levels, translated } from "./levels.js";
import { showPanel } from "./panels.js";
import { adopt, cancel, emphasise, hover, rebuild } from "./picture.js";
import { Renderer } from "./render.js";
import { showNote } from "./note.js";
import { SessionFacts } from "./session.js";
import { followTheme } from "./theme.js";
import { Tooltip } from "./tooltip.js";
import { listen, takeFindings } from "./traits.js";

class Inspector {
  ui = {};
  filter = new Set();
  tab = "node";
  hits = null;
  wrapped = false;
  opened = -1e9;
  afterwards = [];
  times = { began: performance.now() };

  constructor(model, el) {
    this.model = model;
    this.levels = new Levels(model);
    this.graph = this.drawn = this.levels.graph;
    takeFindings(this);
    this.session = new SessionFacts(model.get("session"));
    this.times.read = performance.now();
    this.layout = this.levels.base.layout;
    const wanted = model.get("level");
    this.level = wanted === "autograd" || !this.graph.grouped ? "autograd" : wanted === "" ? "" : "module";
    this.expanded = wanted === "autograd" ? this.graph.all() : unfold(model.get("expanded"), this.graph);
    this.selection = model.get("selection");
    this.el = h("div.cabw-inspector", { role: "region", "aria-label": "cabw_viz inspector" });
    this.aria = new AriaTree(this);
    this.prefix = this.aria.prefix;
    this.tooltip = new Tooltip(this);
    frame(this);
    el.append(this.el);
    this.renderer = new Renderer(this.canvas, this.mapCanvas);
    this.camera = new Camera(this);
    this.renderer.onDraw = () => this.camera.drawn();
    pointer(this);
    keys(this);
    this.#follow();
    this.renderer.resize();
    this.colour = ENCODINGS[model.get("color_by")] ? model.get("color_by") : "kind";
    this.paint();
    legend(this);
    this.#begin(levelFor(this.selection, wanted));
  }

  /** What the canvas and the panels follow: theme, size, traits. */
  #follow() {
    this.stop = [
      followTheme(this.el, (theme) => {
        this.theme = theme;
        this.paint();
        this.refreshPanel();
      }),
    ];
    const observer = new ResizeObserver(() => {
      this.renderer.resize();
      this.firstFit();
    });
    observer.observe(this.tree);
    this.stop.push(
      () => observer.disconnect(),
      () => this.levels.stop(),
      () => this.aria.stop(),
      () => this.tooltip.stop(),
    );
    listen(this);
  }

  /** The first picture: that of the level that is wanted, or what stands in for it until its data is there. */
  #begin(wanted) {
    const query = this.model.get("query");
    if (query) {
      this.input.value = query;
      this.find(query);
    }
    if (wanted === "fx" || wanted === "aten") {
      this.setLevel(wanted);
      if (this.switching || this.scene) return;
    }
    const { selection } = this;
    this.rebuild(null, {
      then: () => {
        if (this.graph.item(selection)) {
          this.camera.fit(false);
          this.fitted = true;
          this.reveal(selection);
        } else if (selection && !this.pending) this.select("");
      },
    });
    this.refreshPanel();
    this.segments();
  }

  firstFit() {
    if (!this.fitted && this.renderer.w && this.scene) {
      this.fitted = true;
      this.camera.fit(false);
    }
  }

  /* State. Everything that changes goes through one of these. */

  /** Asks for another capture of the session; its parts come as traits. */
  openCapture(index) {
    this.tell("capture", index);
  }

  tell(name, value) {
    this.model.set(name, value);
    this.model.save_changes();
  }

  #choose(key) {
    this.selection = key || "";
    this.cone = this.drawn.item(this.selection) ? this.drawn.cone(this.selection) : null;
    this.way = null;
    this.tell("selection", this.selection);
  }

  select(key) {
    this.#choose(key);
    this.emphasise();
    this.refreshPanel();
    this.aria.select();
  }

  /** The autograd nodes of the selection, whatever level it was made at. */
  picked() {
    return [...new Set(this.drawn.nodesOf(this.selection).map((n) => n.base))].filter(Boolean);
  }

  /** Marks the way the gradient takes from one node to a parameter's; null clears it. */
  showPath(from, to) {
    this.way = from ? { ...this.drawn.path(from, to), name: this.graph.item(to).parameter } : null;
    this.emphasise();
    this.refreshPanel();
  }

  /** Selects an item wherever it is: goes to its level, opens the groups around it and brings it into sight. */
  reveal(key) {
    const level = key ? levelFor(key, this.level) : this.level;
    if (level !== this.level || this.switching) {
      this.selection = key; // taken over when the other graph is drawn
      return level === this.level ? undefined : this.setLevel(level);
    }
    if (this.pending) return this.select(this.drawn.item(key) ? key : ""); // the picture is covered
    const item = this.drawn.item(key);
    if (!item) return this.select("");
    const before = this.expanded.size;
    for (let g = item.parent; g && g.parent; g = g.parent) this.expanded.add(g.path);
    this.select(key);
    if (this.expanded.size !== before || this.layout.waiting)
      this.rebuild(null, {
        quiet: true,
        then: () => {
          this.emphasise();
          this.aria.select();
          this.camera.show(key);
        },
      });
    else this.camera.show(key);
  }

  toggle(path, select = true) {
    const group = this.drawn.groups.get(path);
    if (!group?.parent || this.switching) return;
    if (this.expanded.has(path)) {
      // Every group inside closes too.
      const todo = [group];
      while (todo.length) {
        const g = todo.pop();
        this.expanded.delete(g.path);
        todo.push(...g.children);
      }
    } else this.expanded.add(path);
    this.rebuild(group.key, {
      then: () => {
        this.refreshPanel();
        this.aria.select();
      },
    });
    if (select && this.selection !== group.key) {
      this.#choose(group.key);
      if (!this.layout.waiting) this.emphasise();
    } // the picture that is coming does it otherwise
  }

  setLevel(level) {
    if (this.switching) cancel(this);
    this.wrapped = false;
    this.pending = null;
    if (!this.levels.has(level) && this.model.get("kernel")) this.model.send({ type: "aten" }); // made by hand meanwhile?
    const entry = this.levels.has(level) ? this.levels.entry(level) : null;
    if (!entry || !entry.graph.list.length) {
      this.pending = level; // its data is on its way, or there is none: the note says which
      this.level = level;
      this.tell("level", level);
    } else if (entry.graph === this.drawn) this.#open(level);
    else adopt(this, entry, level);
    this.showNote();
    this.segments();
  }

  /** All open or all closed, in the graph that is drawn already. */
  #open(level) {
    this.expanded = level === "module" ? new Set() : level === "" ? this.expanded : this.drawn.all();
    this.level = level;
    this.rebuild(null, {
      then: () => (this.selection && level !== "module" ? this.camera.show(this.selection) : this.camera.fit()),
    });
    this.tell("level", level);
  }

  /** Another graph has been laid out and is about to be drawn: what was chosen in the old one is looked for in it. */
  takeOver(entry, level) {
    const { selection } = this;
    const from = this.drawn;
    this.drawn = entry.graph;
    this.level = level;
    Object.assign(this.renderer.state, { hover: null, near: null, nearKeys: [] });
    this.tell("level", level);
    this.#choose(translated(selection, from, entry.graph));
    this.paint();
    legend(this);
    status(this);
    this.find(this.input.value);
    this.refreshPanel();
    this.showNote();
    this.segments();
  }

  setColour(name) {
    this.colour = name;
    this.filter.clear();
    this.tell("color_by", name);
    this.paint();
    legend(this);
    this.segments();
    this.emphasise();
  }

  find(query) {
    find(this, query);
  }
  step(by) {
    step(this, by);
  }
  hover(key, cell) {
    hover(this, key, cell);
  }
  /** Points in the picture at an item of any level, or at what stands for it. */
  point(key) {
    const [first] = key ? this.drawn.nodesOf(key) : [];
    this.hover(first ? this.drawn.shown(first, this.expanded) : null);
  }
  rebuild(anchor, how) {
    rebuild(this, anchor, how);
  }
  emphasise(known) {
    emphasise(this, known);
  }

  go(key) {
    if (key) {
      this.select(key);
      this.camera.show(key);
    }
  }

  /** The captured graph's code, asked for when it is first shown: it outweighs everything else. */
  code() {
    return this.levels.code("code");
  }

  paint() {
    if (this.renderer && this.theme && this.colour)
      this.renderer.setColours(ENCODINGS[this.colour], this.theme, this.drawn);
  }

  help() {
    this.keys.hidden = !this.keys.hidden;
  }

  segments() {
    this.levelBar.mark(this.level === "module" && !this.graph.grouped ? "autograd" : this.level);
    this.colours.mark(this.colour);
  }

  showNote() {
    showNote(this);
  }

  /* Panels */

  openTab(name, focus) {
    this.tab = name;
    this.refreshPanel();
    if (focus) this.tabBar.querySelector("[aria-selected=true]")?.focus();
  }

  refreshPanel() {
    if (this.body && this.theme) showPanel(this);
  }

  name(key) {
    const item = this.drawn.item(key);
    if (!item) return "";
    return item.owner ? item.owner.title : item.nodes ? item.path || item.name : item.title;
  }
  link(key, text, after) {
    return h(
      "span",
      null,
      h("button.cabw-link", { "data-key": key, onclick: () => this.reveal(key) }, text),
      after && h("span.muted", null, after),
    );
  }

  dispose() {
    this.stop.forEach((f) => f());
    this.el.remove();
  }
}

export function render({ model, el }) {
  const start = () => {
    el.inspector = new Inspector(model, el);
  };
  const again = () => {
    el.inspector.dispose();
    start();
  };
  start();
  model.on("change:data", again); // another capture: everything is read anew
  return () => {
    model.off("change:data", again);
    el.inspector.dispose();
  };
}
