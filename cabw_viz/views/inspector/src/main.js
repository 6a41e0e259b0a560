/**
 * The inspector: its state and what follows from a change of it. `render({ model, el })` is anywidget's signature; the traits
 * selection, expanded, level, color_by and query are two-way. In a saved file `shim.js` stands in for the kernel.
 */
import { AriaTree } from "./aria.js";
import { Camera } from "./camera.js";
import { LayoutClient } from "./client.js";
import { Code } from "./code.js";
import { sent } from "./columns.js";
import { h, number } from "./dom.js";
import { differs, ENCODINGS, error } from "./encode.js";
import { frame, legend, segment, status } from "./frame.js";
import { Graph } from "./graph.js";
import { fold, unfold } from "./expanded.js";
import { keys, pointer } from "./input.js";
import { TABS } from "./panels.js";
import { reachOf } from "./reach.js";
import { Renderer } from "./render.js";
import { SessionFacts } from "./session.js";
import { followTheme } from "./theme.js";
import { Tooltip } from "./tooltip.js";

class Inspector {
  ui = {};
  filter = new Set();
  tab = "node";
  hits = null;
  wrapped = false;
  opened = -1e9;
  times = { began: performance.now() };

  constructor(model, el) {
    this.model = model;
    this.graph = new Graph(model.get("data"));
    this.graph.setTouches(model.get("touches"));
    this.graph.setParity(model.get("parity"));
    this.session = new SessionFacts(model.get("session"));
    this.times.read = performance.now();
    this.layout = new LayoutClient(this.graph, model.get("data"));
    this.level = model.get("level");
    this.expanded = this.level === "autograd" ? this.#all() : unfold(model.get("expanded"), this.graph);
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
    this.stop = [
      followTheme(this.el, (theme) => {
        this.theme = theme;
        this.#paint();
        this.refreshPanel();
      }),
    ];
    const observer = new ResizeObserver(() => {
      this.renderer.resize();
      this.#firstFit();
    });
    observer.observe(this.tree);
    this.stop.push(
      () => observer.disconnect(),
      () => this.layout.stop(),
      () => this.aria.stop(),
      () => this.tooltip.stop(),
    );
    this.#listen();
    this.renderer.resize();
    this.colour = ENCODINGS[model.get("color_by")] ? model.get("color_by") : "kind";
    this.#paint();
    legend(this);
    const query = model.get("query");
    if (query) {
      this.input.value = query;
      this.find(query);
    }
    this.rebuild(null, {
      then: () => {
        if (this.selection) {
          this.camera.fit(false);
          this.fitted = true;
          this.reveal(this.selection);
        } else this.select("");
      },
    });
    this.refreshPanel();
    this.#segments();
  }

  #all() {
    return new Set([...this.graph.groups.keys()].filter(Boolean));
  }
  #firstFit() {
    if (!this.fitted && this.renderer.w && this.scene) {
      this.fitted = true;
      this.camera.fit(false);
    }
  }

  /* State. Everything that changes goes through one of these. */

  #listen() {
    const { model } = this;
    const on = {
      code: () => this.refreshPanel(),
      task: () => this.refreshPanel(),
      touches: () => this.#found(() => this.graph.setTouches(model.get("touches"))),
      parity: () => this.#found(() => this.graph.setParity(model.get("parity"))),
      session: () => {
        this.session = new SessionFacts(model.get("session"));
        this.refreshPanel();
      },
    };
    for (const name of ["selection", "expanded", "color_by", "query", "level"]) on[name] = () => this.#fromModel(name);
    for (const [name, f] of Object.entries(on)) {
      model.on("change:" + name, f);
      this.stop.push(() => model.off("change:" + name, f));
    }
  }

  /** Something was computed after the graph was drawn: take it over, and show it wherever it shows. */
  #found(take) {
    take();
    this.scene?.mark();
    this.ui.parityList = null;
    this.#paint();
    legend(this);
    status(this);
    this.emphasise();
    this.refreshPanel();
  }

  /** Asks for another capture of the session; its parts come as traits. */
  openCapture(index) {
    this.#tell("capture", index);
  }

  #tell(name, value) {
    this.model.set(name, value);
    this.model.save_changes();
  }

  #fromModel(name) {
    const value = this.model.get(name);
    if (name === "selection" && value !== this.selection) this.reveal(value);
    if (name === "color_by" && value !== this.colour && ENCODINGS[value]) this.setColour(value);
    if (name === "query" && value !== this.input.value) {
      this.input.value = value;
      this.find(value);
    }
    if (name === "level" && value !== this.level) this.setLevel(value);
    if (name === "expanded" && String(value) !== String(fold(this.expanded, this.graph))) {
      this.expanded = unfold(value, this.graph);
      this.rebuild(null, { quiet: true, then: () => this.camera.show(this.selection) });
    }
  }

  #choose(key) {
    this.selection = key || "";
    this.cone = this.selection ? this.graph.cone(this.selection) : null;
    this.way = null;
    this.#tell("selection", this.selection);
  }

  select(key) {
    this.#choose(key);
    this.emphasise();
    this.refreshPanel();
    this.aria.select();
  }

  /** Marks the way the gradient takes from one node to a parameter's; null clears it. */
  showPath(from, to) {
    this.way = from ? { ...this.graph.path(from, to), name: this.graph.item(to).parameter } : null;
    this.emphasise();
    this.refreshPanel();
  }

  /** Selects an item wherever it is: opens the groups around it and brings it into sight. */
  reveal(key) {
    const item = this.graph.item(key);
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
    const group = this.graph.groups.get(path);
    if (!group?.parent) return;
    if (this.expanded.has(path))
      for (const p of [...this.expanded]) {
        if (p === path || p.startsWith(path + ".")) this.expanded.delete(p);
      }
    else this.expanded.add(path);
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
    this.level = level;
    this.wrapped = false;
    if (level === "module") {
      this.expanded.clear();
      this.rebuild(null, { then: () => this.camera.fit() });
    }
    if (level === "autograd") {
      this.expanded = this.#all();
      this.rebuild(null, { then: () => (this.selection ? this.camera.show(this.selection) : this.camera.fit()) });
    }
    this.#tell("level", level);
    this.#segments();
  }

  setColour(name) {
    this.colour = name;
    this.filter.clear();
    this.#tell("color_by", name);
    this.#paint();
    legend(this);
    this.#segments();
    this.emphasise();
  }

  find(query) {
    this.hits = this.graph.search(query);
    this.at = -1;
    this.#tell("query", query);
    this.emphasise();
    this.#counted();
    if (this.tab === "code" || (this.tab === "node" && !this.selection)) this.refreshPanel();
  }

  step(by) {
    if (!this.hits?.length) return;
    this.at = (this.at + by + this.hits.length) % this.hits.length;
    this.reveal("n" + this.hits[this.at]);
    this.#counted();
  }

  #counted() {
    const n = this.hits?.length,
      total = this.graph.nodes.size;
    this.count.textContent =
      this.hits === null
        ? ""
        : n
          ? this.at >= 0
            ? `${number(this.at + 1)} of ${number(n)}`
            : `${number(n)} of ${number(total)}`
          : "no match";
    this.clearButton.hidden = this.hits === null;
    for (const b of this.steps) b.hidden = !n;
    this.slash.hidden = this.hits !== null;
  }

  hover(key, cell) {
    const { state } = this.renderer;
    if (state.hover === key && state.hoverCell === cell) return;
    state.hover = key;
    state.hoverCell = cell;
    const box = key && this.scene?.box(key),
      lit = box && box.kind !== "open";
    state.near = lit ? new Uint8Array(this.graph.list.length) : null;
    if (lit) for (const n of this.graph.nodesOf(key)) state.near[n.index] = 1;
    state.nearKeys = lit ? [...this.scene.next(key, "up"), ...this.scene.next(key, "down")] : [];
    this.renderer.request();
  }

  go(key) {
    if (key) {
      this.select(key);
      this.camera.show(key);
    }
  }

  /** The code, asked for when it is first shown: it outweighs everything else. */
  code() {
    if (this.codeRead) return this.codeRead;
    const bytes = this.model.get("code");
    if (sent(bytes)) return (this.codeRead = new Code(this.graph, bytes));
    if (!this.codeAsked) {
      this.codeAsked = true;
      this.model.send({ type: "code" });
    }
    return null;
  }

  /* The picture */

  /** Lays out what is open. `anchor` stays where it is on screen; `then` runs once the picture is there, now or soon. */
  rebuild(anchor, { then, quiet } = {}) {
    if (anchor || quiet) this.level = this.expanded.size ? "" : "module";
    this.#tell("expanded", fold(this.expanded, this.graph));
    this.#segments();
    this.afterwards = [...(this.layout.waiting ? this.afterwards : []), then].filter(Boolean);
    this.busyTimer ??= setTimeout(() => {
      this.busy.hidden = false;
    }, 150);
    const asked = performance.now();
    this.layout.scene(this.graph.openFlags(this.expanded), this.wrapped ? this.camera.aspect() : 0, (scene) => {
      clearTimeout(this.busyTimer);
      this.busyTimer = null;
      this.busy.hidden = true;
      const before = anchor && this.scene?.box(anchor),
        after = before && scene.box(anchor);
      const shift = after ? [after.x + after.w / 2 - before.x - before.w / 2, after.y - before.y] : [0, 0];
      this.renderer.view.x += shift[0];
      this.renderer.view.y += shift[1];
      this.scene = scene;
      this.camera.moving = null;
      this.renderer.setScene(scene, shift);
      this.emphasise(this.reach);
      this.#firstFit();
      if (!anchor && this.fitted && !this.camera.sees()) this.camera.fit(false); // a smaller picture may lie elsewhere
      this.aria.later();
      const run = this.afterwards;
      this.afterwards = [];
      run.forEach((f) => f());
      this.times.scene = performance.now();
      this.times.rebuild = this.times.scene - asked;
    });
  }

  #paint() {
    if (this.renderer && this.theme && this.colour)
      this.renderer.setColours(ENCODINGS[this.colour], this.theme, this.graph);
  }

  /** What is dimmed and what is marked, worked out once per change and not per frame. `known`: what an earlier call returned, where only the picture is new. */
  emphasise(known) {
    if (!this.scene || !this.colour) return;
    const { state } = this.renderer,
      { graph } = this,
      before = state.dim || state.mark || state.path || state.hits;
    const reach = (this.reach = known && known.cone === this.cone && known.way === this.way ? known : reachOf(this));
    state.selection = this.selection
      ? this.scene.box(this.selection)
        ? this.selection
        : graph.item(this.selection) && graph.shown(graph.nodesOf(this.selection)[0], this.expanded)
      : null;
    state.mark = this.cone?.mark || null;
    state.path = this.way?.on || null;
    state.hits = reach.hits;
    state.dim = null;
    if (reach.kept) {
      const { item, kind } = this.scene;
      state.dim = new Uint8Array(graph.items.length);
      for (let b = 0; b < item.length; b++)
        if (!(kind[b] === 3 ? reach.kept : reach.reached)[item[b]]) state.dim[item[b]] = 1;
    }
    if (before || state.dim) {
      this.renderer.tiles.stale();
      this.renderer.picture = null;
    }
    this.renderer.request();
  }

  /** What was found at an item, in words: for tooltips and the screen reader. */
  told(item) {
    const nodes = item.nodes || [item];
    const out = [];
    const wrong = nodes.filter(differs);
    if (nodes.some((n) => n.failed)) out.push("the trace stopped here");
    if (nodes.some((n) => n.origin))
      out.push(item.nodes ? "first divergence inside" : `first divergence, ${error(item.relative)} relative`);
    else if (wrong.length)
      out.push(item.nodes ? `${wrong.length} of ${nodes.length} nodes differ` : `differs by ${error(item.relative)}`);
    if (nodes.some((n) => n.initial)) out.push("touched in the initial trace");
    if (nodes.some((n) => n.passes)) out.push("looked for in a graph pass");
    if (nodes.some((n) => n.hooks)) out.push("hook");
    return out.join(", ");
  }

  help() {
    this.keys.hidden = !this.keys.hidden;
  }

  #segments() {
    this.levels.mark(this.level ?? "module");
    this.colours.mark(this.colour);
  }

  segment(...args) {
    return segment(...args);
  }

  /* Panels */

  openTab(name, focus) {
    this.tab = name;
    this.refreshPanel();
    if (focus) this.tabBar.querySelector("[aria-selected=true]")?.focus();
  }

  refreshPanel() {
    if (!this.body || !this.theme) return;
    const same = this.shownTab === this.tab && (this.tab !== "node" || this.shownFor === this.selection),
      top = same ? this.body.scrollTop : 0,
      g = this.graph;
    const counts = {
      metadata: [g.touched.length, "alarm"],
      parity: [g.wrong.length, "alarm"],
      misses: [this.session.again.length, ""],
    };
    this.tabBar.replaceChildren(
      ...Object.entries(TABS).map(([key, [label]]) =>
        h(
          "button",
          {
            role: "tab",
            "aria-selected": String(key === this.tab),
            tabIndex: key === this.tab ? 0 : -1,
            onclick: () => this.openTab(key),
          },
          label,
          counts[key]?.[0]
            ? h("span.cabw-count" + (counts[key][1] ? "." + counts[key][1] : ""), null, number(counts[key][0]))
            : null,
        ),
      ),
    );
    this.body.replaceChildren(TABS[this.tab][1](this));
    this.body.scrollTop = top;
    this.shownTab = this.tab;
    this.shownFor = this.selection;
  }

  name(key) {
    const item = this.graph.item(key);
    return item.nodes ? item.path || item.name : `${item.name} #${item.id}`;
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
    },
    again = () => {
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
