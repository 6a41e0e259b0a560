/**
 * The trait `expanded`: the paths of open groups; where most are open "*" and, with a "!", the highest closed ones. With
 * thousands of groups the paths would otherwise cross the wire at each click.
 */
const FEW = 100;

export function fold(expanded, graph) {
  if (expanded.size < FEW || expanded.size * 2 < graph.groups.size) return [...expanded];
  const closed = [];
  for (const g of graph.groups.values()) {
    if (!g.parent || expanded.has(g.path)) continue;
    if (!g.parent.parent || expanded.has(g.parent.path)) closed.push(`!${g.path}`);
  }
  return ["*", ...closed];
}

export function unfold(list, graph) {
  if (list[0] !== "*") return new Set(list);
  const closed = new Set(list.slice(1).map((path) => path.slice(1)));
  const open = new Set();
  const todo = [...graph.root.children];
  while (todo.length) {
    const g = todo.pop();
    if (closed.has(g.path)) continue;
    open.add(g.path);
    todo.push(...g.children);
  }
  return open;
}
