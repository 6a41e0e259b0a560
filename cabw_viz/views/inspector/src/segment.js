/** A row of buttons of which one is on: arrow keys go from one to the next. */
import { h } from "./dom.js";

export function segment(label, options, value, changed) {
  const el = h("div.cabw-seg", { role: "radiogroup", "aria-label": label });
  const mark = (v) => {
    for (const b of el.children) {
      b.setAttribute("aria-checked", String(b.dataset.value === v));
      b.tabIndex = b.dataset.value === v ? 0 : -1;
    }
    if (![...el.children].some((b) => !b.tabIndex)) el.firstChild.tabIndex = 0;
  };
  for (const [v, text] of options) {
    const b = h(
      "button",
      {
        role: "radio",
        onclick: () => {
          mark(v);
          changed(v);
        },
      },
      text,
    );
    b.dataset.value = v;
    el.append(b);
  }
  el.addEventListener("keydown", (e) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!by) return;
    const all = [...el.children];
    const to = all[(all.indexOf(e.target) + by + all.length) % all.length];
    e.preventDefault();
    to.focus();
    to.click();
  });
  mark(value);
  el.mark = mark;
  return el;
}
