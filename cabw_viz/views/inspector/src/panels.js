/** The six panels. Each is a function of the inspector that returns DOM; each row leads back to the graph. */
import { h, number } from "./dom.js";
import { codePanel } from "./panels/code.js";
import { memoryPanel } from "./panels/memory.js";
import { metadataPanel } from "./panels/metadata.js";
import { missesPanel } from "./panels/misses.js";
import { nodePanel } from "./panels/node.js";
import { parityPanel } from "./panels/parity.js";

export const TABS = {
  node: ["Node", nodePanel],
  metadata: ["Metadata", metadataPanel],
  parity: ["Parity", parityPanel],
  memory: ["Memory", memoryPanel],
  misses: ["Misses", missesPanel],
  code: ["Code", codePanel],
};

const REACHED = "button, input, select, [tabindex]";
const said = (el) => [el.localName, el.dataset.key, el.getAttribute("aria-label") ?? el.textContent].join();

/** Remembers what has the focus among tabs and panel; what it returns gives the focus back to what is there instead. */
function focused(ins) {
  const { activeElement: at } = ins.el.getRootNode();
  if (at && ins.tabBar.contains(at)) return () => ins.tabBar.querySelector("[aria-selected=true]")?.focus();
  if (!at || at === ins.body || !ins.body.contains(at)) return () => {};
  const { key } = at.dataset;
  const name = said(at);
  return () => {
    const now = [...ins.body.querySelectorAll(REACHED)];
    const same = now.find((el) => said(el) === name) ?? now.find((el) => key && el.dataset.key === key);
    (same ?? ins.body).focus({ preventScroll: true }); // else the focus would fall off the page
  };
}

/** Builds the panel that is open, and the tabs above it. */
export function showPanel(ins) {
  const same = ins.shownTab === ins.tab && (ins.tab !== "node" || ins.shownFor === ins.selection);
  const top = same ? ins.body.scrollTop : 0;
  const counts = {
    metadata: [ins.graph.touched.length, "alarm"],
    parity: [ins.graph.wrong.length, "alarm"],
    misses: [ins.session.again.length, ""],
  };
  const tab = ([key, [label]]) =>
    h(
      "button",
      {
        role: "tab",
        "aria-selected": String(key === ins.tab),
        tabIndex: key === ins.tab ? 0 : -1,
        onclick: () => ins.openTab(key),
      },
      label,
      counts[key]?.[0]
        ? h(`span.cabw-count${counts[key][1] ? `.${counts[key][1]}` : ""}`, null, number(counts[key][0]))
        : null,
    );
  const focus = focused(ins);
  ins.tabBar.replaceChildren(...Object.entries(TABS).map(tab));
  ins.body.replaceChildren(TABS[ins.tab][1](ins));
  ins.body.scrollTop = top;
  focus();
  ins.shownTab = ins.tab;
  ins.shownFor = ins.selection;
}
