/** The edges that the layout of each group has to draw; see `localEdges`. */

/** Whether an end of an edge lies outside of its group. */
export const isPort = (key) => typeof key === "string";

/** The edges inside each group: from one end to the other, with the pairs of nodes that they stand for. */
class LocalEdges {
  groups = new Map();
  #known = new Map();

  constructor(items) {
    this.items = items;
  }

  /** `mark` is part of the names of the ports that the edge leads to in groups at its ends. */
  add(group, a, b, { from, to, back }, mark = "") {
    if (!this.groups.has(group)) {
      this.groups.set(group, []);
      this.#known.set(group, new Map());
    }
    const known = this.#known.get(group);
    const id = back || isPort(a) || isPort(b) ? `${a}→${b}${back ? "~" : ""}` : a * this.items + b;
    let edge = known.get(id);
    if (!edge) {
      edge = { a, b, pairs: [], back, mark };
      known.set(id, edge);
      this.groups.get(group).push(edge);
    }
    edge.pairs.push(from, to);
  }
}

/**
 * Every autograd edge in every group it crosses, whatever is open: inside a group, an end that lies outside is a port,
 * named after the item at which the edge leaves the innermost group around both ends. Only the module tree matters, so
 * this is computed once.
 * An edge that closes a circle of boxes is laid out the other way round, as `back`, and only its arrow tells.
 */
export function localEdges(graph) {
  const { from, to } = graph.edges;
  const local = new LocalEdges(graph.items.length);
  const forks = forksOf(graph);
  const orders = boxOrders(graph, forks);
  for (const [e, fork] of forks.entries()) {
    if (!fork) continue;
    const order = orders.get(fork.group);
    const back = order !== undefined && order.get(fork.lower.box) < order.get(fork.upper.box);
    addEdge(local, fork, { from: from[e], to: to[e], back });
  }
  return local.groups;
}

/** One autograd edge, in the group in which its ends part and in those around either end. */
function addEdge(local, { group, upper, lower }, edge) {
  const [from, to] = edge.back ? [lower, upper] : [upper, lower];
  const mark = edge.back ? "~" : "";
  local.add(group, from.box, to.box, edge, mark);
  let port = `${to.box}${mark}`;
  for (let k = from.inside - 1; k >= 0; k--) {
    port = `out|${port}`;
    local.add(from.chain[k], (k ? from.chain[k - 1] : from.node).index, port, edge);
  }
  port = `${from.box}${mark}`;
  for (let k = to.inside - 1; k >= 0; k--) {
    port = `in|${port}`;
    local.add(to.chain[k], port, (k ? to.chain[k - 1] : to.node).index, edge);
  }
}

/**
 * For each edge the innermost group around both ends, and of each end the box in that group, by index; null within one
 * box. `chain` are the groups around an end, the innermost first, of which the first `inside` lie in its box.
 */
function forksOf(graph) {
  const { from, to } = graph.edges;
  const chains = new Map(); // of each group, up to the root
  const around = ({ parent }) => {
    if (!chains.has(parent)) chains.set(parent, chainOf(parent));
    return chains.get(parent);
  };
  return Array.from(from, (_, e) => {
    const u = graph.list[from[e]];
    const v = graph.list[to[e]];
    const above = around(u);
    const below = around(v);
    let i = above.length - 1;
    let j = below.length - 1;
    while (i > 0 && j > 0 && above[i - 1] === below[j - 1]) {
      i--;
      j--;
    }
    const a = (i ? above[i - 1] : u).index;
    const b = (j ? below[j - 1] : v).index;
    if (a === b) return null;
    const upper = { node: u, chain: above, inside: i, box: a };
    return { group: above[i], upper, lower: { node: v, chain: below, inside: j, box: b } };
  });
}

function chainOf(group) {
  const chain = [];
  for (let g = group; g; g = g.parent) chain.push(g);
  return chain;
}

/** For groups whose boxes may lie on a circle: the order of the boxes from top to bottom. In all others each edge leads down. */
function boxOrders(graph, forks) {
  const first = (index) => graph.items[index].nodes?.[0].index ?? index;
  const edges = new Map();
  for (const fork of forks) if (fork && first(fork.lower.box) < first(fork.upper.box)) edges.set(fork.group, []);
  if (!edges.size) return edges;
  for (const fork of forks) if (fork) edges.get(fork.group)?.push(fork);
  return new Map([...edges].map(([group, own]) => [group, boxOrder(own, first)]));
}

/** Boxes after all that lead to them; where a circle leaves none, the one that runs first. */
function boxOrder(edges, first) {
  const after = new Map();
  const pending = new Map();
  for (const { upper, lower } of edges) {
    for (const { box } of [upper, lower]) {
      if (after.has(box)) continue;
      after.set(box, []);
      pending.set(box, 0);
    }
    after.get(upper.box).push(lower.box);
    pending.set(lower.box, pending.get(lower.box) + 1);
  }
  const boxes = [...after.keys()].sort((a, b) => first(a) - first(b));
  const free = boxes.filter((box) => !pending.get(box));
  const order = new Map();
  let next = 0;
  while (order.size < boxes.length) {
    while (!free.length && order.has(boxes[next])) next++;
    const box = free.pop() ?? boxes[next];
    if (order.has(box)) continue;
    order.set(box, order.size);
    for (const other of after.get(box)) {
      pending.set(other, pending.get(other) - 1);
      if (!pending.get(other)) free.push(other);
    }
  }
  return order;
}
