/** Search: what was found, how many, and the steps from one to the next. */
import { number } from "./dom.js";

export function find(ins, query) {
  ins.hits = ins.drawn.search(query);
  ins.at = -1;
  ins.tell("query", query);
  ins.emphasise();
  counted(ins);
  if (ins.tab === "code" || (ins.tab === "node" && !ins.selection)) ins.refreshPanel();
}

export function step(ins, by) {
  if (!ins.hits?.length) return;
  ins.at = (ins.at + by + ins.hits.length) % ins.hits.length;
  ins.reveal(ins.drawn.letter + ins.hits[ins.at]);
  counted(ins);
}

function counted(ins) {
  const n = ins.hits?.length;
  const total = ins.drawn.nodes.size;
  ins.count.textContent =
    ins.hits === null
      ? ""
      : n
        ? ins.at >= 0
          ? `${number(ins.at + 1)} of ${number(n)}`
          : `${number(n)} of ${number(total)}`
        : "no match";
  ins.clearButton.hidden = ins.hits === null;
  for (const b of ins.steps) b.hidden = !n;
  ins.slash.hidden = ins.hits !== null;
}
