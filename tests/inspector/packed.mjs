/** The browser's modules, and graphs that Python has packed for these tests. */
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const sources = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../cabw_viz/views/inspector/src");
export const source = (name) => import(pathToFileURL(path.join(sources, name)));
export const part = (name, kind = "data") => fs.readFileSync(path.join(process.env.CABW_PACKED, `${name}.${kind}`));

const { Graph } = await source("graph.js");
export function graph(name) {
  const made = new Graph(part(name));
  made.setTouches(part(name, "touches"));
  made.setParity(part(name, "parity"));
  return made;
}
