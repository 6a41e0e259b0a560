/** What the backward's nodes hold until they have run, by module. */
import { h, shape } from "../dom.js";
import { bytes } from "../encode.js";
import { heldBy } from "../drawable.js";
import { virtualList } from "../list.js";
import { empty, fold, heading, link, meter, place } from "../parts.js";

const ROW = 26;
const LARGEST = 8;

export function memoryPanel(inspector) {
  const { graph } = inspector;
  const total = heldBy(graph.list);
  if (!total)
    return h(
      "div.cabw-pad",
      null,
      h("h2", null, "Memory"),
      empty(
        graph.columns.saved_field.length
          ? "The tensors that this backward saved are all parameters or buffers."
          : "No node of this backward is known to save a tensor.",
      ),
    );
  const open = inspector.panels.state("open in memory", () => new Set([""]));
  const bytesOf = inspector.panels.state("bytes by group", () => bytesByGroup(graph));
  const rows = rowsOf(graph.root, open, bytesOf);
  return h(
    "div",
    null,
    h(
      "div.cabw-pad.cabw-tight",
      null,
      h("h2", null, `${bytes(total)} held until this backward has run`),
      h(
        "p.muted",
        null,
        "Tensors saved by autograd nodes, each storage counted once. Parameters and buffers are left out.",
      ),
    ),
    graph.grouped
      ? [
          h(
            "div.cabw-row.cabw-cols.cabw-memory",
            null,
            h("span", null, "Module"),
            h("span"),
            h("span.num", null, "Held"),
          ),
          virtualList({
            count: rows.length,
            height: ROW,
            make: (i) => line(inspector, rows[i], open, bytesOf),
            scroller: () => inspector.panels.body,
          }),
        ]
      : null,
    h("div.cabw-pad", null, heading("Largest saved tensors"), largest(inspector)),
  );
}

const bytesByGroup = (graph) => new Map([...graph.groups.values()].map((g) => [g, heldBy(g.nodes)]));

/** [group, depth] of each row: the open ones with what is in them, the largest first; blocks in their own order. */
function rowsOf(root, open, bytesOf) {
  const rows = [];
  const todo = [[root, 0]];
  while (todo.length) {
    const [g, depth] = todo.pop();
    rows.push([g, depth]);
    if (!open.has(g.path)) continue;
    const order = g.stack ? (a, b) => Number(a.name) - Number(b.name) : (a, b) => bytesOf.get(b) - bytesOf.get(a);
    todo.push(
      ...g.children
        .slice()
        .sort(order)
        .reverse()
        .map((c) => [c, depth + 1]),
    );
  }
  return rows;
}

function line(inspector, [g, depth], open, bytesOf) {
  const step = () => {
    if (!open.delete(g.path)) open.add(g.path);
    inspector.refreshPanel();
  };
  return h(
    "div.cabw-row.cabw-memory",
    {
      "data-key": g.parent ? g.key : undefined,
      "aria-current": inspector.selection === g.key ? "true" : undefined,
    },
    h(
      "span.cabw-member",
      { style: `padding-left:${Math.min(depth, 12) * 14}px` },
      g.children.length ? fold(open.has(g.path), g.name, step) : h("i.cabw-fold"),
      h(
        "button.cabw-link.cabw-plain",
        { onclick: () => (g.parent ? inspector.reveal(g.key) : inspector.select("")) },
        g.part > 1 ? `${g.name} (${g.part})` : g.name,
        h("span.muted", null, g.cls && g.cls !== g.name ? `  ${g.cls}` : ""),
      ),
    ),
    meter(bytesOf.get(g) / bytesOf.get(inspector.graph.root), "var(--q3)"),
    h("span.num", null, bytes(bytesOf.get(g))),
  );
}

function largest(inspector) {
  const { graph } = inspector;
  const { saved_bytes: size, saved_storage: storage, saved_shared: shared, saved_at: at } = graph.columns;
  const seen = new Set();
  const best = [];
  for (let i = 0; i < graph.list.length; i++) {
    for (let k = at[i]; k < at[i + 1]; k++) {
      if (
        shared[k] ||
        (best.length === LARGEST && size[k] <= best[LARGEST - 1][2]) ||
        (storage[k] && seen.has(storage[k]))
      )
        continue;
      seen.add(storage[k]);
      best.push([graph.list[i], k - at[i], size[k]]);
      best.sort((a, b) => b[2] - a[2]);
      best.length = Math.min(LARGEST, best.length);
    }
  }
  return h(
    "table",
    null,
    h(
      "tbody",
      null,
      best.map(([n, k]) => {
        const s = graph.savedOf(n.index)[k];
        return h(
          "tr",
          null,
          h("td", null, link(inspector, n.key, `${n.label} #${n.id}`), h("div.muted", null, place(inspector, n))),
          h("td.mono", null, s.field),
          h("td", null, shape(s.shape)),
          h("td.num", null, bytes(s.bytes)),
        );
      }),
    ),
  );
}
