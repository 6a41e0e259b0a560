/** Prints the groups of packed graphs as the browser has them: class, part, parts and nodes of each, by its key. */
import { part as packed, source } from "./packed.mjs";

const { Graph } = await source("graph.js");
const groupsOf = (name) =>
  [...new Graph(packed(name)).groups.values()]
    .filter((group) => group.parent)
    .map(({ path, cls, part, parts, nodes }) => [path, [cls, part, parts, nodes.map((node) => node.id)]]);
const names = process.argv.slice(2);
console.log(JSON.stringify(Object.fromEntries(names.map((name) => [name, Object.fromEntries(groupsOf(name))]))));
