/** Where a layout is put together: boxes and edges as columns that grow. */

/** A typed array that grows. */
class Column {
  constructor(Type) {
    this.Type = Type;
    this.values = new Type(64);
    this.length = 0;
  }
  room(more) {
    if (this.length + more <= this.values.length) return;
    const larger = new this.Type(Math.max(this.values.length * 2, this.length + more));
    larger.set(this.values.subarray(0, this.length));
    this.values = larger;
  }
  push(v) {
    this.room(1);
    this.values[this.length++] = v;
  }
  /** Appends `source` plus dx at even and dy at odd places. */
  shifted(source, dx, dy) {
    this.room(source.length);
    const { values, length: n } = this;
    for (let k = 0; k < source.length; k += 2) {
      values[n + k] = source[k] + dx;
      values[n + k + 1] = source[k + 1] + dy;
    }
    this.length += source.length;
  }
  append(source, plus = 0, from = 0) {
    this.room(source.length - from);
    const { values, length: n } = this;
    for (let k = from; k < source.length; k++) values[n + k - from] = source[k] + plus;
    this.length += source.length - from;
  }
  cut() {
    return this.values.slice(0, this.length);
  }
}

/** Collects boxes and edges in absolute coordinates. */
export class Sheet {
  item = new Column(Uint32Array);
  kind = new Column(Uint8Array);
  place = new Column(Float64Array);
  size = new Column(Float32Array);
  depth = new Column(Uint8Array);
  points = new Column(Float64Array);
  pointsAt = new Column(Uint32Array);
  pairs = new Column(Uint32Array);
  pairsAt = new Column(Uint32Array);
  arrow = new Column(Uint8Array);
  constructor() {
    this.clear();
  }
  clear() {
    for (const c of Object.values(this)) c.length = 0;
    this.pointsAt.push(0);
    this.pairsAt.push(0);
  }
  box(item, kind, x, y, w, h, depth) {
    this.item.push(item);
    this.kind.push(kind);
    this.place.push(x);
    this.place.push(y);
    this.size.push(w);
    this.size.push(h);
    this.depth.push(depth);
  }
  edge(route, dx, dy, start, end, pairs, arrow) {
    const from = this.points.length;
    this.points.shifted(route, dx, dy);
    if (start !== null) this.points.values[from + 1] = start;
    if (end !== null) this.points.values[this.points.length - 1] = end;
    this.pairs.append(pairs);
    this.pointsAt.push(this.points.length);
    this.pairsAt.push(this.pairs.length);
    this.arrow.push(arrow);
  }
  copy(flat, dx, dy, depth) {
    const points = this.points.length;
    const pairs = this.pairs.length;
    this.item.append(flat.item);
    this.kind.append(flat.kind);
    this.place.shifted(flat.place, dx, dy);
    this.size.append(flat.size);
    this.depth.append(flat.depth, depth);
    this.points.shifted(flat.points, dx, dy);
    this.pairs.append(flat.pairs);
    this.arrow.append(flat.arrow);
    this.pointsAt.append(flat.pointsAt, points, 1);
    this.pairsAt.append(flat.pairsAt, pairs, 1);
  }
  arrays() {
    return Object.fromEntries(Object.entries(this).map(([name, column]) => [name, column.cut()]));
  }
}
