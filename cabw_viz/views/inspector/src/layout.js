/**
 * Layered layout of one group of boxes. Pure and deterministic: no DOM, no randomness, time about linear.
 *
 *   rank    longest path; boxes pinned "top" or "bottom" (the ports of an open group) get rows of their own
 *   chain   an edge over several rows becomes a chain of thin dummies, so that it bends around boxes
 *   order   median sweeps with a transpose pass; the order with fewest crossings wins
 *   place   the main way and every long edge get a column each; columns are packed, then pulled to their other links
 *   route   curves live in the gaps between rows only, so no edge ever runs under a box
 */
export function layered({ width, height, edges, pin = [], endsAt = [], gapX = 16, gapY = 26, sweeps = 8 }) {
  const rank = rankOf(width.length, edges, pin);
  const net = chain(width, rank, edges, endsAt);
  const rows = order(net, sweeps);
  const x = place(net, rows, gapX);
  return route({ net, rows, x, height, edges, pin, endsAt, gapY });
}

function rankOf(n, edges, pin) {
  const outs = lists(n);
  const inspector = lists(n);
  const degree = new Int32Array(n);
  const rank = new Int32Array(n);
  for (const [a, b] of edges) {
    outs[a].push(b);
    inspector[b].push(a);
    degree[b]++;
  }
  const topo = [];
  for (let u = 0; u < n; u++) if (!degree[u]) topo.push(u);
  for (let k = 0; k < topo.length; k++) for (const v of outs[topo[k]]) if (!--degree[v]) topo.push(v);
  for (const u of topo) {
    if (pin[0] === "top" && pin[u] !== "top" && !inspector[u].length) rank[u] = 1;
    for (const v of outs[u]) rank[v] = Math.max(rank[v], rank[u] + 1);
  }
  for (let k = topo.length - 1; k >= 0; k--) {
    // a box with more ways out than in sinks towards them
    const u = topo[k];
    if (pin[u] || outs[u].length <= inspector[u].length) continue;
    const lowest = Math.min(...outs[u].filter((v) => pin[v] !== "bottom").map((v) => rank[v] - 1));
    if (lowest < Infinity) rank[u] = lowest;
  }
  let last = 0;
  for (let u = 0; u < n; u++) if (pin[u] !== "bottom") last = Math.max(last, rank[u]);
  for (let u = 0; u < n; u++) if (pin[u] === "bottom") rank[u] = last + 1;
  return rank;
}

/** Boxes and dummies as one net of short links; each link knows where on its ends it is attached. */
function chain(width, rank, edges, endsAt) {
  const real = width.length;
  const up = lists(real);
  const down = lists(real);
  const net = { real, width: [...width], rank: [...rank], up, down, dummies: [] };
  edges.forEach(([a, b], i) => {
    const [from = 0, to = 0] = endsAt[i] || [];
    const path = [];
    let above = a;
    let offset = from;
    for (let r = rank[a] + 1; r < rank[b]; r++) {
      const dummy = net.width.length;
      net.width.push(6);
      net.rank.push(r);
      up.push([]);
      down.push([]);
      link(net, above, dummy, offset, 0);
      path.push(dummy);
      above = dummy;
      offset = 0;
    }
    link(net, above, b, offset, to);
    net.dummies.push(path);
  });
  return net;
}

function link({ up, down }, a, b, offsetA, offsetB) {
  down[a].push({ to: b, here: offsetA, there: offsetB });
  up[b].push({ to: a, here: offsetB, there: offsetA });
}

function order(net, sweeps) {
  const { up, down, rank } = net;
  const n = rank.length;
  const depth = rank.reduce((a, b) => Math.max(a, b), 0) + 1;
  const rows = Array.from({ length: depth }, () => []);
  const seen = new Uint8Array(n);
  const stack = [];
  for (let u = n - 1; u >= 0; u--) if (!up[u].length) stack.push(u);
  while (stack.length) {
    const u = stack.pop();
    if (seen[u]) continue;
    seen[u] = 1;
    rows[rank[u]].push(u);
    for (let k = down[u].length - 1; k >= 0; k--) stack.push(down[u][k].to);
  }
  const pos = new Float64Array(n);
  const number = (row) =>
    row.forEach((u, i) => {
      pos[u] = i;
    });
  rows.forEach(number);
  let best = rows.map((r) => [...r]);
  let fewest = crossings(rows, down, pos);
  for (let s = 0; s < sweeps && fewest; s++) {
    const downward = s % 2 === 0;
    const side = downward ? up : down;
    for (let q = 0; q < depth; q++) {
      const row = rows[downward ? q : depth - 1 - q];
      const wish = new Map(
        row.map((u) => [u, side[u].length ? median(side[u].map((l) => pos[l.to] + l.there * 1e-4)) : pos[u]]),
      );
      row.sort((a, b) => wish.get(a) - wish.get(b) || pos[a] - pos[b]);
      number(row);
    }
    for (const row of rows) transpose(row, up, down, pos);
    const count = crossings(rows, down, pos);
    if (count < fewest) {
      fewest = count;
      best = rows.map((r) => [...r]);
    }
  }
  return best;
}

function transpose(row, up, down, pos) {
  const cost = (left, right, side) => {
    let c = 0;
    for (const a of side[left]) for (const b of side[right]) if (pos[a.to] > pos[b.to]) c++;
    return c;
  };
  for (let i = 0; i + 1 < row.length; i++) {
    const a = row[i];
    const b = row[i + 1];
    if (cost(a, b, up) + cost(a, b, down) > cost(b, a, up) + cost(b, a, down)) {
      row[i] = b;
      row[i + 1] = a;
      pos[b] = i;
      pos[a] = i + 1;
    }
  }
}

function crossings(rows, down, pos) {
  let total = 0;
  for (const row of rows) {
    const ends = [];
    for (const u of row) for (const t of down[u].map((l) => pos[l.to]).sort((a, b) => a - b)) ends.push(t);
    const sorted = [];
    for (const t of ends) {
      // inversions by binary insertion
      let lo = 0;
      let hi = sorted.length;
      while (lo < hi) {
        const mid = (lo + hi) >> 1;
        if (sorted[mid] <= t) lo = mid + 1;
        else hi = mid;
      }
      total += sorted.length - lo;
      sorted.splice(lo, 0, t);
    }
  }
  return total;
}

/**
 * Every box prefers one link up and one down: the one on the longest way that leads on to a port. Where both ends
 * prefer each other they share a column and stand exactly above each other, as do the dummies of a long edge.
 * Columns are then packed against their neighbours in each row and pulled to the median of their other links.
 */
function place(net, rows, gap) {
  const { width, up, down } = net;
  const n = width.length;
  const { column, shift } = columns(net, rows);
  const right = Array.from({ length: n }, () => []);
  const left = Array.from({ length: n }, () => []);
  const pending = new Int32Array(n);
  for (const row of rows)
    for (let i = 1; i < row.length; i++) {
      const a = row[i - 1];
      const b = row[i];
      const A = column[a];
      const B = column[b];
      const apart = (width[a] + width[b]) / 2 + gap + shift[a] - shift[b];
      right[A].push([B, apart]);
      left[B].push([A, apart]);
      pending[B]++;
    }
  const heads = [...Array(n).keys()].filter((u) => column[u] === u);
  const topo = heads.filter((c) => !pending[c]);
  for (let k = 0; k < topo.length; k++) for (const [B] of right[topo[k]]) if (!--pending[B]) topo.push(B);
  const at = new Float64Array(n);
  for (const c of topo) for (const [B, apart] of right[c]) at[B] = Math.max(at[B], at[c] + apart);
  const members = new Map(heads.map((c) => [c, []]));
  for (let u = 0; u < n; u++) members.get(column[u]).push(u);
  const links = new Map(
    [...members].map(([c, us]) => [
      c,
      us.flatMap((u) =>
        [...up[u], ...down[u]]
          .filter((l) => column[l.to] !== c)
          .map((l) => [l.to, shift[l.to] + l.there - l.here - shift[u]]),
      ),
    ]),
  );
  const pull = (c, side) => {
    const wishes = links.get(c);
    if (!wishes.length) return;
    let x = median(wishes.map(([v, d]) => at[column[v]] + d));
    for (const [A, apart] of left[c]) x = Math.max(x, at[A] + apart);
    for (const [B, apart] of right[c]) x = Math.min(x, at[B] - apart);
    if (!side || x !== at[c]) at[c] = x;
  };
  for (let s = 0; s < 10; s++) for (let k = 0; k < topo.length; k++) pull(topo[s % 2 ? k : topo.length - 1 - k], s);
  return Float64Array.from(column, (c, u) => at[c] + shift[u]);
}

/** Which column each box stands in, and how far from the middle of the column so that attached ends meet. */
function columns(net, rows) {
  const { up, down, rank, real } = net;
  const n = rank.length;
  const reachUp = ways(net, rows, up);
  const reachDown = ways(net, [...rows].reverse(), down);
  const prefer = (side, length) =>
    side.map((links) => links.reduce((best, l) => (!best || length[l.to] > length[best.to] ? l : best), null));
  const above = prefer(up, reachUp);
  const below = prefer(down, reachDown);
  const pos = new Float64Array(n);
  for (const row of rows)
    row.forEach((u, i) => {
      pos[u] = i;
    });
  const column = Int32Array.from({ length: n }, (_, u) => u);
  const shift = new Float64Array(n);
  for (const row of rows) {
    const pairs = row.filter((u) => below[u] && above[below[u].to]?.to === u).map((u) => [u, below[u]]);
    const rate = ([u, l]) => (u >= real && l.to >= real ? 2e4 : 0) + reachUp[u] + reachDown[l.to];
    pairs.sort((a, b) => rate(b) - rate(a) || a[0] - b[0]);
    const taken = [];
    for (const [u, l] of pairs) {
      if (taken.some(([a, b]) => (pos[a] - pos[u]) * (pos[b] - pos[l.to]) < 0)) continue; // never across each other
      taken.push([u, l.to]);
      column[l.to] = column[u];
      shift[l.to] = shift[u] + l.here - l.there;
    }
  }
  return { column, shift };
}

/** For each box the number of real boxes on the longest way to that side; ways that end in a port (no height) win. */
function ways(net, rows, side) {
  const length = new Float64Array(net.width.length);
  for (const row of rows)
    for (const u of row) {
      let best = side[u].length ? -Infinity : net.width[u] === 6 && u < net.real ? 1e4 : 0;
      for (const l of side[u]) best = Math.max(best, length[l.to]);
      length[u] = best + (u < net.real ? 1 : 0);
    }
  return length;
}

function route({ net, rows, x, height, edges, pin, endsAt, gapY }) {
  const { real, rank, width, dummies } = net;
  const top = [];
  const tall = [];
  let y = 0;
  rows.forEach((row, r) => {
    tall[r] = Math.max(0, ...row.map((u) => (u < real ? height[u] : 0)));
    top[r] = y;
    const ports = pin[row[0]] === "top" || pin[rows[r + 1]?.[0]] === "bottom";
    y += tall[r] + (r + 1 < rows.length ? (ports ? Math.min(14, gapY) : gapY) : 0);
  });
  let left = Infinity;
  let right = -Infinity;
  for (let u = 0; u < width.length; u++) {
    left = Math.min(left, x[u] - width[u] / 2);
    right = Math.max(right, x[u] + width[u] / 2);
  }
  const at = (u) => x[u] - left;
  const yOf = (u) => top[rank[u]] + (tall[rank[u]] <= 60 ? (tall[rank[u]] - height[u]) / 2 : 0);
  const fan = spread(edges, net, x, endsAt);
  const routes = edges.map(([a, b], i) => {
    const points = [at(a) + fan[i][0], yOf(a) + height[a], at(a) + fan[i][0], top[rank[a]] + tall[rank[a]]];
    for (const d of dummies[i]) points.push(at(d), top[rank[d]], at(d), top[rank[d]] + tall[rank[d]]);
    points.push(at(b) + fan[i][1], top[rank[b]], at(b) + fan[i][1], yOf(b));
    return points;
  });
  return {
    x: Array.from({ length: real }, (_, u) => at(u) - width[u] / 2),
    y: Array.from({ length: real }, (_, u) => yOf(u)),
    w: right - left,
    h: y,
    rank: rank.slice(0, real),
    routes,
  };
}

/** Where on its box each edge ends: at its port, or fanned out in the order of the other ends. */
function spread(edges, net, x, endsAt) {
  const fan = edges.map((_, i) => [endsAt[i]?.[0] ?? 0, endsAt[i]?.[1] ?? 0]);
  for (const end of [0, 1]) {
    const byBox = new Map();
    edges.forEach((e, i) => {
      if (endsAt[i]?.[end] !== undefined) return;
      const near = net.dummies[i].at(end ? -1 : 0) ?? e[1 - end];
      const list = byBox.get(e[end]) || [];
      list.push([x[near] + (net.dummies[i].length ? 0 : (endsAt[i]?.[1 - end] ?? 0)), i]);
      byBox.set(e[end], list);
    });
    for (const [u, list] of byBox) {
      if (list.length < 2) continue;
      list.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      const step = Math.min(14, (net.width[u] * 0.7) / list.length);
      const straight = list.findIndex(([to]) => Math.abs(to - x[u]) < 1);
      const middle = straight < 0 ? (list.length - 1) / 2 : straight;
      list.forEach(([, i], k) => {
        fan[i][end] = (k - middle) * step;
      });
    }
  }
  return fan;
}

const lists = (n) => Array.from({ length: n }, () => []);
function median(values) {
  values.sort((a, b) => a - b);
  const k = values.length >> 1;
  return values.length % 2 ? values[k] : (values[k - 1] + values[k]) / 2;
}
