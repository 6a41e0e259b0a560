/** The browser's modules, and graphs that Python has packed for these tests. */
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const sources = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../cabw_viz/views/inspector/src");
export const source = (name) => import(pathToFileURL(path.join(sources, name)));
export const part = (name, kind = "data") => fs.readFileSync(path.join(process.env.CABW_PACKED, `${name}.${kind}`));

const { Code } = await source("code.js");
const { Graph } = await source("graph.js");
const { OpsGraph } = await source("ops.js");

/** The graph nodes of a record at level fx ("f") or aten ("a"). */
export function ops(name, letter = "f") {
  const base = graph(name);
  return new OpsGraph(base, new Code(base, part(name, letter === "f" ? "code" : "aten")), letter);
}
export function graph(name) {
  const made = new Graph(part(name));
  made.setTouches(part(name, "touches"));
  made.setParity(part(name, "parity"));
  return made;
}
