/** What passes search, filter and selection, for each item; worked out once for a change and not for each frame. */
import { ENCODINGS } from "./encode.js";

/**
 * How many nodes of each item pass filter and search (kept), how many of these lie on the ways of the selection too
 * (reached), how many were found (hits). All null where nothing is searched, filtered or selected.
 */
export function reachOf({ graph, filter, cone, way, hits: ids, colour }) {
  if (!ids && !filter.size && !cone) return { graph, cone, way, kept: null, reached: null, hits: null };
  const encoding = ENCODINGS[colour];
  const on = way?.on || cone?.mark;
  const isMatch = ids && new Uint8Array(graph.list.length);
  const kept = new Uint32Array(graph.items.length);
  const reached = new Uint32Array(graph.items.length);
  const matches = ids && new Uint32Array(graph.items.length);
  for (const id of ids ?? []) isMatch[graph.nodes.get(id).index] = 1;
  for (const node of graph.list) {
    const i = node.index;
    if ((filter.size && !filter.has(encoding.of(node))) || (ids && !isMatch[i])) continue;
    kept[i] = 1;
    if (!on || on[i]) reached[i] = 1;
    if (ids) matches[i] = 1;
  }
  for (const counts of [kept, reached, matches]) if (counts) addUp(graph, counts);
  return { graph, cone, way, kept, reached, hits: matches };
}

/** Adds the counts of nodes up into their groups, the innermost first. */
function addUp(graph, counts) {
  for (const g of graph.inner) for (const item of g.own) counts[g.index] += counts[item.index];
  for (const g of graph.inner) if (g.parent) counts[g.parent.index] += counts[g.index];
}
