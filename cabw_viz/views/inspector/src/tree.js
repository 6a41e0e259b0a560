/**
 * The tree of modules over the nodes of a graph. A group is drawn as one box, so no gradient may leave a group and come
 * back to it: where that happens (a module called twice, two lists of modules called in turn) the group is cut into the
 * parts that run one after the other, `mlp`, `mlp@2`, `mlp@3`.
 */
export function treeOf({ nodes, moduleOf, segments, classOf, edgeFrom, edgeTo, name }) {
  const groups = new Map();
  const buckets = new Uint32Array(nodes.length); // of each node in the group at hand; one array for all groups, for speed
  const root = make("", name, "", null);

  function make(path, shown, module, parent) {
    let key = path;
    for (let n = 2; groups.has(key); n++) key = `${path}@${n}`;
    const group = { key: "g:" + key, path: key, name: shown, module, cls: classOf.get(module) || "", parent };
    Object.assign(group, { depth: parent ? parent.depth + 1 : 0, children: [], own: [], nodes: [], part: 0, parts: 0 });
    parent?.children.push(group);
    groups.set(key, group);
    return group;
  }

  const todo = [[root, nodes, Uint32Array.from(edgeFrom, (_, e) => e)]];
  while (todo.length) {
    const [group, members, edges] = todo.pop();
    group.nodes = members;
    const { order, inside, scattered } = divide(group, members, moduleOf, segments, buckets);
    if (!order.length) continue;
    const cyclic = scattered ? tangled(order.length, crossing(edges, edgeFrom, edgeTo, buckets)) : null;
    const within = edgesWithin(order.length, edges, edgeFrom, edgeTo, buckets);
    // Worked out before any child is divided: the buckets are then those of the child.
    const parts = order.map((_, b) => (cyclic?.[b] ? runsOf(members, buckets, b + 1, cyclic) : [inside[b]]));
    order.forEach((segment, b) => {
      const path = group.path ? `${group.path}.${segment}` : segment;
      const module = group.module ? `${group.module}.${segment}` : segment;
      const runs = parts[b];
      runs.forEach((run, k) => {
        const child = make(k ? `${path}@${k + 1}` : path, segment, module, group);
        if (runs.length > 1) Object.assign(child, { part: k + 1, parts: runs.length });
        todo.push([child, run, runs.length > 1 ? only(within[b], run, edgeFrom, edgeTo) : within[b]]);
      });
    });
  }
  for (const group of groups.values()) finish(group);
  return { root, groups };
}

/**
 * Sets `own` of a group, and says for each other member which child it goes to (from 1; 0 is the group's own). Where no
 * child is scattered, each runs in one stretch, and no gradient can leave it and come back.
 */
function divide(group, members, moduleOf, segments, buckets) {
  const order = [];
  const inside = [];
  const known = new Map();
  let before = 0;
  let scattered = false;
  for (const node of members) {
    const module = moduleOf[node.index];
    const segment = module ? segments[module - 1][group.depth] : undefined;
    let bucket = 0;
    if (segment === undefined) {
      node.parent = group;
      group.own.push(node);
    } else {
      bucket = known.get(segment) ?? 0;
      if (!bucket) {
        known.set(segment, (bucket = order.push(segment)));
        inside.push([]);
      } else if (bucket !== before) scattered = true;
      inside[bucket - 1].push(node);
    }
    buckets[node.index] = before = bucket;
  }
  return { order, inside, scattered };
}

/** The group's edges within each child. */
function edgesWithin(children, edges, from, to, buckets) {
  const within = Array.from({ length: children }, () => []);
  for (const e of edges) {
    const b = buckets[from[e]];
    if (b && b === buckets[to[e]]) within[b - 1].push(e);
  }
  return within;
}

/** The ends of the group's other edges: children from 0, the group's own nodes below 0. */
function crossing(edges, from, to, buckets) {
  const pairs = [];
  for (const e of edges) {
    const a = buckets[from[e]];
    const b = buckets[to[e]];
    if (!a || a !== b) pairs.push(a ? a - 1 : -1 - from[e], b ? b - 1 : -1 - to[e]);
  }
  return pairs;
}

/** Which children lie on a cycle, or between two: what is left when sources, and then sinks, are taken away one after the other. */
function tangled(children, crossing) {
  const number = new Map();
  const id = (v) => (v >= 0 ? v : (number.get(v) ?? number.set(v, children + number.size).get(v)));
  const pairs = crossing.map(id);
  const count = children + number.size;
  const left = new Uint8Array(count).fill(1);
  for (const [start, end] of [
    [0, 1],
    [1, 0],
  ]) {
    const degree = new Uint32Array(count);
    const next = Array.from({ length: count }, () => []);
    for (let i = 0; i < pairs.length; i += 2) {
      const a = pairs[i + start];
      const b = pairs[i + end];
      if (!left[a] || !left[b]) continue;
      degree[b]++;
      next[a].push(b);
    }
    const free = [];
    for (let v = 0; v < count; v++) if (left[v] && !degree[v]) free.push(v);
    while (free.length) {
      const v = free.pop();
      left[v] = 0;
      for (const w of next[v]) if (!--degree[w]) free.push(w);
    }
  }
  return left.some(Boolean) ? left : null;
}

/** A child's nodes in the stretches in which they run, undisturbed by others that are tangled up with it. */
function runsOf(members, buckets, bucket, cyclic) {
  const runs = [];
  let before = 0;
  for (const node of members) {
    const b = buckets[node.index];
    const counts = b === 0 || cyclic[b - 1];
    if (b === bucket) {
      if (before !== bucket) runs.push([]);
      runs.at(-1).push(node);
    }
    if (counts) before = b;
  }
  return runs;
}

function only(edges, nodes, from, to) {
  const inside = new Set(nodes.map((n) => n.index));
  return edges.filter((e) => inside.has(from[e]) && inside.has(to[e]));
}

/**
 * Order of the children, and whether they are blocks built alike that may be drawn as one stack: of one class, and most of
 * one size, for the first block of a model often lacks the way to an input that needs no gradient. `odd` are the others.
 */
function finish(group) {
  const { children } = group;
  children.sort((a, b) => a.nodes[0].index - b.nodes[0].index);
  const sizes = new Map();
  for (const { nodes } of children) sizes.set(nodes.length, (sizes.get(nodes.length) ?? 0) + 1);
  const [usual, many] = [...sizes].reduce((a, b) => (b[1] > a[1] ? b : a), [0, 0]);
  const alike = new Set(children.map((c) => c.cls)).size === 1 && many >= 0.75 * children.length;
  group.stack = !group.own.length && children.length > 2 && alike ? children.length : 0;
  group.odd = group.stack ? children.filter((c) => c.nodes.length !== usual) : [];
}
