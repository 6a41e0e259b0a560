/** Small helpers to build DOM. Children are nodes or text: nothing here ever parses markup. */
import { markPath } from "./encode.js";

export function h(spec, props, ...children) {
  const [tagName, ...classes] = spec.split(".");
  const el = document.createElement(tagName || "div");
  if (classes.length) el.className = classes.join(" ");
  for (const [key, value] of Object.entries(props || {})) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
    else if (key === "style") el.style.cssText = value;
    else if (key in el && !key.startsWith("aria")) el[key] = value;
    else el.setAttribute(key, value);
  }
  el.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return el;
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(d, { size = 14, colour = "currentColor", how = "stroke", box = "0 0 16 16", width = 1.5 } = {}) {
  const el = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  for (const [k, v] of Object.entries({ width: size, height: size, viewBox: box, "aria-hidden": "true", fill: "none" }))
    el.setAttribute(k, v);
  path.setAttribute("d", d);
  path.setAttribute(how, colour);
  if (how === "stroke") {
    path.setAttribute("stroke-width", width);
    path.setAttribute("stroke-linecap", "round");
    path.setAttribute("stroke-linejoin", "round");
  }
  el.append(path);
  return el;
}

export function mark(name, colour, size = 12) {
  const [how, d] = markPath(name, 5);
  return svg(d, { size, colour, how, box: "-7 -7 14 14", width: 2 });
}

export const ICON = {
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10ZM10.6 10.6 14 14",
  up: "M4 10l4-4 4 4",
  down: "M4 6l4 4 4-4",
  close: "M4.5 4.5l7 7M11.5 4.5l-7 7",
  plus: "M8 3.5v9M3.5 8h9",
  minus: "M3.5 8h9",
  fit: "M2.5 6V2.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10",
  captured: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 10A2 2 0 1 0 8 6a2 2 0 0 0 0 4Z",
  hit: "M3 8.5l3.2 3.2L13 5",
  failed: "M4 4l8 8M12 4l-8 8",
  bypassed: "M3 8h10",
  right: "M6 4l4 4-4 4",
};

/** A button that is a picture. */
export const iconButton = (icon, label, onclick) =>
  h("button.cabw-icon", { onclick, title: label, "aria-label": label }, svg(ICON[icon]));

export const number = (n) => n.toLocaleString("en-US");
export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;
/** A sentence of bounded length that ends with a whole word. */
export const sentence = (text, most = 600) =>
  text.length <= most ? text : `${text.slice(0, most).replace(/\s\S*$/, "")}…`;
export const shape = (s) => (s.length ? s.join(" × ") : "scalar");
