/** The picture for one set of open groups on the page: the arrays that arrange.js made, and how to find things in them. */
import { ROW } from "./arrange.js";
import { GUTTER } from "./wrap.js";

const KIND = ["node", "group", "stack", "open"];

/** A box in sight: a view onto the arrays, made for a frame and thrown away. */
class Box {
  constructor(scene, i) {
    this.item = scene.graph.items[scene.item[i]];
    this.kind = KIND[scene.kind[i]];
    this.depth = scene.depth[i];
    this.x = scene.place[2 * i];
    this.y = scene.place[2 * i + 1];
    this.w = scene.size[2 * i];
    this.h = scene.size[2 * i + 1];
  }
  get key() {
    return this.item.key;
  }
}

export class Scene {
  #heads = null;

  constructor(graph, arrays) {
    Object.assign(this, { graph }, arrays);
    this.count = this.item.length;
    this.mark();
  }

  /** Looks up again which boxes wear a badge: findings may come after the picture. */
  mark() {
    this.badged = this.graph.flagged
      .filter((item) => this.at[item.index] >= 0 && this.kind[this.at[item.index]] !== 3)
      .map((item) => this.view(this.at[item.index]));
  }

  view(i) {
    return new Box(this, i);
  }
  box(key) {
    const item = this.graph.item(key);
    const i = item ? this.at[item.index] : -1;
    return i >= 0 ? this.view(i) : undefined;
  }
  homeOf(node) {
    return this.graph.items[this.home[node.index]]?.key;
  }

  /** Of a picture in columns: where each begins, how wide it is, and which modules it shows. */
  get heads() {
    return (this.#heads ??= this.columns > 1 ? this.#makeHeads() : []);
  }

  #makeHeads() {
    const stride = (this.w + GUTTER) / this.columns;
    const ends = Array.from({ length: this.columns }, () => [null, null]);
    for (const i of this.leaves) {
      const way = wayTo(this.graph.items[this.item[i]]);
      const c = Math.min(this.columns - 1, Math.floor(this.place[2 * i] / stride));
      const y = this.place[2 * i + 1];
      if (!way.length) continue;
      if (!ends[c][0] || y < ends[c][0].y) ends[c][0] = { y, way };
      if (!ends[c][1] || y >= ends[c][1].y) ends[c][1] = { y, way };
    }
    return ends.map(([first, last], c) => ({
      x: c * stride,
      w: stride,
      texts: first ? range(first.way, last.way) : [],
    }));
  }

  /** Closed boxes in a part of the world, by rows of height. */
  visible(top, bottom, left, right) {
    const out = [];
    const rows = this.rowAt.length - 1;
    const from = Math.max(0, Math.min(rows, Math.floor((top - this.tallest) / ROW)));
    const to = Math.max(0, Math.min(rows, Math.floor(bottom / ROW) + 1));
    const { place, size, leaves } = this;
    for (let k = this.rowAt[from]; k < this.rowAt[to]; k++) {
      const i = leaves[k];
      const x = place[2 * i];
      const y = place[2 * i + 1];
      if (y <= bottom && y + size[2 * i + 1] >= top && x <= right && x + size[2 * i] >= left) out.push(this.view(i));
    }
    return out;
  }

  /** Open frames in a part of the world, outermost first; `most` is the depth to go down to. */
  frames(top, bottom, left, right, most = 255) {
    const out = [];
    const { place, size, depth } = this;
    for (const i of this.open) {
      const x = place[2 * i];
      const y = place[2 * i + 1];
      if (depth[i] <= most && y <= bottom && y + size[2 * i + 1] >= top && x <= right && x + size[2 * i] >= left)
        out.push(this.view(i));
    }
    return out;
  }

  /** The closed box highest up (1) or lowest down (-1), of all or of those inside an item. */
  end(direction, within) {
    let best = -1;
    for (const i of this.leaves) {
      if (within && !inside(this.graph.items[this.item[i]], within)) continue;
      if (best < 0 || (this.place[2 * i + 1] - this.place[2 * best + 1]) * direction < 0) best = i;
    }
    return best < 0 ? undefined : this.view(best).key;
  }

  /** Which boxes one arrow key away from which: along edges, whatever groups they cross. */
  next(key, direction) {
    const box = this.box(key);
    const rows = this.graph[direction];
    const out = new Set();
    if (!box) return out;
    for (const n of box.item.nodes || [box.item])
      for (let k = rows.at[n.index]; k < rows.at[n.index + 1]; k++) {
        const other = this.homeOf(this.graph.list[rows.items[k]]);
        if (other && other !== key) out.add(other);
      }
    return out;
  }
}

const inside = (item, group) => {
  for (let g = item.parent; g; g = g.parent) if (g === group) return true;
  return false;
};

/** The names of the modules around an item, the outermost first. */
function wayTo(item) {
  const names = [];
  for (let g = item.nodes ? item : item.parent; g?.parent; g = g.parent) if (!g.owner) names.unshift(g.name);
  return names;
}

/** `layers.47 – 44` for what begins in one module and ends in the other, and `47 – 44` where there is less room. */
function range(a, b) {
  const [from, to] = [a, b].map((way) => way.slice(0, 2).join("."));
  const short = (way) => way[1] ?? way[0];
  if (from === to) return [from, short(a)];
  const alike = a[0] === b[0] && a[1] && b[1];
  return [`${from} – ${alike ? b[1] : to}`, `${short(a)} – ${short(b)}`, short(a)];
}
