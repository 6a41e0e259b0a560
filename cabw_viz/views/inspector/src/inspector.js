/**
 * The inspector: its parts, what is selected, and what follows from a change.
 *
 *     Inspector        what is selected, the colouring, findings
 *       Frame          the DOM around canvas and panels
 *       Search, Legend, Panels, Task, Tooltip, Busy     state and DOM of one thing each
 *       Picture        which graph is drawn, at which level, what of it is open; the scene; what is marked
 *       Camera         the view
 *       Renderer       the canvas; Minimap, Tiles
 *       AriaTree       the same for assistive technology
 *
 * Each part alone changes its fields; the others call its methods.
 */
import { AriaTree } from "./aria.js";
import { Busy } from "./busy.js";
import { Camera } from "./camera.js";
import { ENCODINGS } from "./encode.js";
import { Frame } from "./frame.js";
import { Pointer } from "./input.js";
import { listenToKeys } from "./keys.js";
import { Legend } from "./legend.js";
import { levelFor, Levels, translated } from "./levels.js";
import { Panels } from "./panels.js";
import { Picture } from "./picture.js";
import { Renderer } from "./render.js";
import { Search } from "./search.js";
import { SessionFacts } from "./session.js";
import { Task } from "./task.js";
import { followTheme } from "./theme.js";
import { Tooltip } from "./tooltip.js";
import { listenToTraits, readFindings } from "./traits.js";

export class Inspector {
  /** The key of the selected item; "" for none. */
  selection = "";
  /** What the gradient of the selection came from and goes to. */
  cone = null;
  /** The way to a parameter that is marked. */
  way = null;
  theme = null;
  #undo = [];

  constructor(model, el) {
    this.model = model;
    this.levels = new Levels(model);
    /** The autograd nodes, whatever level is drawn. */
    this.graph = this.levels.graph;
    readFindings(this);
    this.session = new SessionFacts(model.get("session"));
    this.selection = model.get("selection");
    this.colour = Object.hasOwn(ENCODINGS, model.get("color_by")) ? model.get("color_by") : "family";
    this.#makeParts();
    el.append(this.el);
    this.#follow();
    this.renderer.resize();
    this.paint();
    this.legend.show(this.colour);
    this.#begin(levelFor(this.selection, model.get("level")));
  }

  #makeParts() {
    const { model } = this;
    this.picture = new Picture(this, { level: model.get("level"), expanded: model.get("expanded") });
    this.search = new Search(this);
    this.legend = new Legend(this);
    this.task = new Task(this);
    this.tooltip = new Tooltip(this);
    this.busy = new Busy(() => this.picture.cancel());
    this.panels = new Panels(this);
    this.aria = new AriaTree(this);
    this.frame = new Frame(this);
    this.frame.showStatus();
    this.frame.showNote();
    this.el = this.frame.el;
    this.camera = new Camera(this);
    this.renderer = new Renderer({
      canvas: this.frame.canvas,
      map: this.frame.map,
      camera: this.camera,
      onDraw: () => this.camera.followFrame(),
    });
    this.pointer = new Pointer(this);
    listenToKeys(this);
  }

  /** What canvas and panels follow: theme, size, traits. */
  #follow() {
    const observer = new ResizeObserver(() => {
      this.renderer.resize();
      this.camera.firstFit();
    });
    observer.observe(this.tree);
    this.#undo.push(
      followTheme(this.el, (theme) => {
        this.theme = theme;
        this.paint();
        this.refreshPanel();
      }),
      () => observer.disconnect(),
      () => this.levels.stop(),
      () => this.aria.stop(),
      () => this.tooltip.stop(),
      () => this.task.stop(),
      listenToTraits(this),
    );
  }

  /** The first picture: that of the level that is wanted, or what stands in for it until its data is there. */
  #begin(wanted) {
    const query = this.model.get("query");
    if (query) this.search.find(query);
    if (wanted === "fx" || wanted === "aten") {
      this.setLevel(wanted);
      if (this.picture.switching || this.scene) return;
    }
    const { selection } = this;
    this.picture.rebuild().then((drawn) => {
      if (drawn && this.graph.item(selection)) {
        this.camera.firstFit(true);
        this.reveal(selection);
      } else if (drawn && selection && !this.pending) this.select("");
    });
    this.refreshPanel();
    this.frame.showChoices();
  }

  /* Of its parts, what many read. */

  get tree() {
    return this.frame.tree;
  }
  /** The graph on the canvas. */
  get drawn() {
    return this.picture.drawn;
  }
  get scene() {
    return this.picture.scene;
  }
  get expanded() {
    return this.picture.expanded;
  }
  get level() {
    return this.picture.level;
  }
  get pending() {
    return this.picture.pending;
  }
  get hits() {
    return this.search.hits;
  }
  get filter() {
    return this.legend.filter;
  }

  /* Traits. */

  setTrait(name, value) {
    this.model.set(name, value);
    this.model.save_changes();
  }

  /** Asks for another capture of the session; its parts come as traits. */
  openCapture(index) {
    this.setTrait("capture", index);
  }

  setSession(session) {
    this.session = session;
    this.refreshPanel();
  }

  /** Findings have changed: shows them wherever they show. */
  showFindings() {
    this.levels.renewed();
    this.picture.renew();
    this.panels.forget("parity list");
    this.paint();
    this.legend.show(this.colour);
    this.frame.showStatus();
    this.emphasise();
    this.refreshPanel();
  }

  /* Selection. */

  #choose(key) {
    this.selection = key || "";
    this.cone = this.drawn.item(this.selection) ? this.drawn.cone(this.selection) : null;
    this.way = null;
    this.setTrait("selection", this.selection);
  }

  select(key) {
    this.#choose(key);
    this.emphasise();
    this.refreshPanel();
    this.aria.select();
  }

  /** The autograd nodes of the selection, whatever level it was made at. */
  selectedNodes() {
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
    if (level !== this.level || this.picture.switching) {
      this.selection = key; // taken over when the other graph is drawn
      if (level !== this.level) this.setLevel(level);
      return;
    }
    const item = this.drawn.item(key);
    if (!item || this.pending) {
      this.select(item ? key : ""); // the picture is covered, or does not have it
      return;
    }
    const hidden = this.picture.openAround(item);
    this.select(key);
    if (!hidden) {
      this.camera.show(key);
      return;
    }
    this.picture.rebuild(null, { quiet: true }).then((drawn) => {
      if (!drawn) return;
      this.emphasise();
      this.aria.select();
      this.camera.show(key);
    });
  }

  /** Selects an item that is in the picture, if any. */
  go(key) {
    if (!key) return;
    this.select(key);
    this.camera.show(key);
  }

  /* The picture. */

  /** Opens or closes a group. */
  toggle(path, select = true) {
    const { picture } = this;
    const group = this.drawn.groups.get(path);
    if (!group?.parent || picture.switching) return;
    picture.toggle(group).then((drawn) => {
      if (!drawn) return;
      this.refreshPanel();
      this.aria.select();
    });
    if (!select || this.selection === group.key) return;
    this.#choose(group.key);
    if (!picture.layout.waiting) this.emphasise(); // else the picture that is coming does it
  }

  setLevel(level) {
    this.picture.setLevel(level);
  }

  /** Another graph has taken the place of the old one: the selection and the search are looked for in it. */
  takeOver(old) {
    this.renderer.hover({ hover: null, near: null, nearKeys: [] });
    this.setTrait("level", this.level);
    this.#choose(translated(this.selection, old, this.drawn));
    this.paint();
    this.legend.show(this.colour);
    this.frame.showStatus();
    this.search.find(this.search.query);
    this.refreshPanel();
    this.frame.showNote();
    this.frame.showChoices();
  }

  setColour(name) {
    this.colour = name;
    this.legend.clearFilter();
    this.setTrait("color_by", name);
    this.paint();
    this.legend.show(name);
    this.frame.showChoices();
    this.emphasise();
  }

  paint() {
    if (this.theme) this.renderer.setColours(ENCODINGS[this.colour], this.theme, this.drawn);
  }

  emphasise() {
    this.picture.emphasise();
  }

  hover(key, cell) {
    this.picture.hover(key, cell);
  }

  /** Points in the picture at an item of any level, or at what stands for it. */
  point(key) {
    const [first] = key ? this.drawn.nodesOf(key) : [];
    this.hover(first ? this.drawn.shown(first, this.expanded) : null);
  }

  find(query) {
    this.search.find(query);
  }
  step(by) {
    this.search.step(by);
  }
  help() {
    this.frame.toggleHelp();
  }

  /* Panels. */

  openTab(name) {
    this.panels.open(name);
  }

  refreshPanel() {
    if (this.theme) this.panels.show();
  }

  /** The captured graph's code, asked for when it is first shown: it outweighs everything else. */
  code() {
    return this.levels.code("code");
  }

  dispose() {
    this.#undo.forEach((f) => f());
    this.el.remove();
  }
}
