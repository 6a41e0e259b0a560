/**
 * The tree of modules over the nodes of a graph. A group is drawn as one box, so no gradient may leave a group and come
 * back to it: where that happens (a module called twice, two lists of modules called in turn) the group is cut into the
 * parts that run one after the other, `mlp`, `mlp@2`, `mlp@3`.
 */
export function treeOf({ nodes, paths, classes, edgeFrom, edgeTo, name }) {
  const groups = new Map();
  const classOf = new Map(paths.map((path, i) => [path, classes[i]]));
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

  const segments = new Map(paths.map((path) => [path, path.split(".")]));
  const all = Array.from(edgeFrom, (_, e) => e);
  const todo = [[root, nodes, all]];
  while (todo.length) {
    const [group, members, edges] = todo.pop();
    group.nodes = members;
    const { buckets, order, inside } = divide(group, members, segments);
    if (!order.length) continue;
    const { within, crossing } = sort(edges, edgeFrom, edgeTo, buckets);
    const cyclic = order.length > 1 ? tangled(order.length, crossing) : null;
    order.forEach((segment, b) => {
      const runs = cyclic?.[b] ? runsOf(members, buckets, b + 1, cyclic) : [inside[b]];
      const path = group.path ? `${group.path}.${segment}` : segment;
      const module = group.module ? `${group.module}.${segment}` : segment;
      runs.forEach((run, k) => {
        const child = make(k ? `${path}@${k + 1}` : path, segment, module, group);
        if (runs.length > 1) Object.assign(child, { part: k + 1, parts: runs.length });
        const own = within[b] ?? [];
        todo.push([child, run, runs.length > 1 ? only(own, run, edgeFrom, edgeTo) : own]);
      });
    });
  }
  for (const group of groups.values()) finish(group);
  return { root, groups };
}

/** Sets `own` of a group, and says for each other member which child it goes to (from 1; 0 is the group's own). */
function divide(group, members, segments) {
  const buckets = new Map();
  const order = [];
  const inside = [];
  const known = new Map();
  for (const node of members) {
    const segment = node.module ? segments.get(node.module)[group.depth] : undefined;
    if (segment === undefined) {
      node.parent = group;
      group.own.push(node);
      continue;
    }
    let bucket = known.get(segment);
    if (!bucket) {
      known.set(segment, (bucket = order.push(segment)));
      inside.push([]);
    }
    inside[bucket - 1].push(node);
    buckets.set(node.index, bucket);
  }
  return { buckets, order, inside };
}

/** The group's edges: those within each child, and those between members, the group's own nodes numbered after the children. */
function sort(edges, from, to, buckets) {
  const within = [];
  const crossing = [];
  for (const e of edges) {
    const a = buckets.get(from[e]);
    const b = buckets.get(to[e]);
    if (a && a === b) (within[a - 1] ??= []).push(e);
    else crossing.push(a ? a - 1 : -1 - from[e], b ? b - 1 : -1 - to[e]);
  }
  return { within, crossing };
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
    const b = buckets.get(node.index) ?? 0;
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

/** Order of the children, and whether they are blocks built alike that may be drawn as one stack. */
function finish(group) {
  group.children.sort((a, b) => a.nodes[0].index - b.nodes[0].index);
  const builds = new Set(group.children.map((c) => `${c.cls} ${c.nodes.length}`));
  group.stack = !group.own.length && group.children.length > 2 && builds.size === 1 ? group.children.length : 0;
}
