/** A long list that has DOM only for the rows in sight. */
import { h } from "./dom.js";

const SPARE = 10;

/**
 * `make(i)` builds row i, which is `height` pixels tall. `scroller()` is what scrolls it; where the list is not on the
 * page yet, the first rows are there and the rest follows.
 */
export function virtualList({ count, height, make, scroller, className = "", role = "list" }) {
  const list = h(`div.cabw-window${className}`, { role, style: `height:${count * height}px` });
  const rows = new Map();
  const put = (from, to) => {
    for (const [i, el] of rows) {
      if (i >= from && i < to) continue;
      if (el.contains(el.getRootNode().activeElement)) continue; // the focus must not fall off the page
      el.remove();
      rows.delete(i);
    }
    for (let i = from; i < to; i++) {
      if (rows.has(i)) continue;
      const place = { role: "listitem", "aria-posinset": String(i + 1), "aria-setsize": String(count) };
      const el = h("div", role === "list" ? place : null, make(i));
      el.style.top = `${i * height}px`;
      rows.set(i, el);
      const after = list.children[i - from];
      list.insertBefore(el, after ?? null);
    }
  };
  const paint = () => {
    const box = scroller();
    if (!list.isConnected || !box) return;
    const above = box.getBoundingClientRect().top - list.getBoundingClientRect().top;
    const from = Math.max(0, Math.min(count, Math.floor(above / height) - SPARE));
    put(from, Math.min(count, from + Math.ceil(box.clientHeight / height) + 2 * SPARE));
  };
  const follow = () => {
    const box = scroller();
    const on = () => (list.isConnected ? paint() : box.removeEventListener("scroll", on));
    box.addEventListener("scroll", on, { passive: true });
    paint();
  };
  put(0, Math.min(count, 2 * SPARE));
  requestAnimationFrame(() => list.isConnected && follow());
  return list;
}
