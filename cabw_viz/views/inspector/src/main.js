/**
 * The module that anywidget loads. `model` holds the traits; selection, expanded, level, color_by and query are two-way.
 * In a saved file `shim.js` stands in for the kernel.
 */
import { Inspector } from "./inspector.js";

/** Draws the inspector of a model into an element; returns a function that takes it away. */
export function render({ model, el }) {
  const start = () => Object.assign(el, { inspector: new Inspector(model, el) });
  const restart = () => {
    el.inspector.dispose();
    start();
  };
  start();
  model.on("change:data", restart); // another capture: everything is read anew
  return () => {
    model.off("change:data", restart);
    el.inspector.dispose();
  };
}
