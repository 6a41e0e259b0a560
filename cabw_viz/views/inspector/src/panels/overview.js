/** What stands in the Node panel without a selection: findings before facts, each a link; or what a search found. */
import { h, number, plural, sentence } from "../dom.js";
import { bytes, duration, error, timed } from "../encode.js";
import { heldBy, NAMED } from "../drawable.js";
import { virtualList } from "../list.js";
import { inPlainWords } from "../reasons.js";
import { ALARM, empty, facts, finding, heading, kindMark, place, title, linkProps } from "../parts.js";
import { taskForm } from "../task.js";

const ROW = 26;
const CALM = "var(--muted)";

/** What a search found, as a list; the canvas shows the same hits in place. */
export function matches(inspector) {
  const ids = inspector.hits;
  if (!ids.length) {
    const words = NAMED.flatMap((flag) => [h("code", null, flag), ", "]);
    return h(
      "div.cabw-pad",
      null,
      h("h2", null, "No match"),
      empty(
        "Every word must occur in a node's name, kind, module, class, parameter or source line. ",
        words,
        h("code", null, "#307"),
        " work too.",
      ),
    );
  }
  const make = (i) => {
    const n = inspector.drawn.nodes.get(ids[i]);
    return h(
      "button.cabw-row.cabw-match",
      linkProps(inspector, n.key),
      kindMark(n, 11),
      h("span", null, n.label),
      h("span.muted", null, n.parameter || n.module || ""),
      h("span.muted", null, n.base ? `#${n.base.id}` : ""),
    );
  };
  return h(
    "div",
    null,
    h(
      "div.cabw-pad.cabw-tight",
      null,
      h(
        "h2",
        null,
        plural(ids.length, "match", "matches"),
        h("span.muted.cabw-light", null, `  of ${number(inspector.drawn.nodes.size)} nodes`),
      ),
    ),
    virtualList({ count: ids.length, height: ROW, make, scroller: () => inspector.panels.body }),
  );
}

export function overview(inspector) {
  const { graph } = inspector;
  const { data } = graph;
  return h(
    "div.cabw-pad",
    null,
    h(
      "h2",
      null,
      data.failure ? "This backward failed" : graph.nodes.size ? "What this backward shows" : "Nothing was captured",
    ),
    data.failure ? failureFinding(inspector) : null,
    graph.nodes.size
      ? [
          nonfiniteFindings(inspector),
          parityFinding(inspector),
          touchFindings(inspector),
          memoryFinding(inspector),
          timeFinding(inspector),
        ]
      : null,
    callFindings(inspector),
    graph.nodes.size
      ? [
          heading("Capture"),
          facts([
            ["Call", data.title],
            ["Model", data.model],
            ["Ran", data.way],
            ["Autograd nodes", number(graph.nodes.size)],
            ...(data.traced ? traceFacts(data) : [["Graph", "none: watched without a trace"]]),
            ["PyTorch", data.torch],
            ["Other gradients", data.coverage],
            ["Forward lines", data.lines_off && `none: ${data.lines_off}`],
          ]),
          h("p.muted.cabw-hint", null, "Select a node or a group to see it here."),
        ]
      : null,
  );
}

const traceFacts = (data) => [
  ["Graph nodes", `${number(data.graph_nodes)}, of them ${number(data.plumbing)} plumbing`],
  ["Inputs", `${plural(data.inputs, "tensor")}, ${plural(data.sizes, "size")}`],
  ["Traced in", `${data.seconds.toFixed(2)} s`],
];

function failureFinding(inspector) {
  const { data } = inspector.graph;
  const node = inspector.graph.nodes.get(data.failed_at);
  return finding(inspector, {
    icon: "cross",
    head: node ? `Stopped at ${title(node)}` : data.traced ? "The trace stopped" : "The backward raised",
    text: sentence(data.failure),
    onclick: () => node && inspector.reveal(node.key),
  });
}

/** Where NaN and infinity begin, the earliest cause first. */
function nonfiniteFindings(inspector) {
  const { nonfinite } = inspector.graph;
  if (!nonfinite) return null;
  if (!nonfinite.origins.length) {
    const head = nonfinite.ok ? "No NaN or infinity" : "NaN or infinity";
    return finding(inspector, {
      icon: nonfinite.ok ? "equal" : "bang",
      colour: nonfinite.ok ? CALM : ALARM,
      head,
      text: nonfinite.summary,
    });
  }
  return nonfinite.origins.slice(0, 5).map(([id, where, text], i) =>
    finding(inspector, {
      icon: "bang",
      head: `NaN or infinity ${i ? "also begins" : "begins"} at ${where}`,
      text: i ? text : nonfinite.summary,
      onclick: () => inspector.reveal(`n${id}`),
    }),
  );
}

function parityFinding(inspector) {
  const { graph } = inspector;
  const see = (key) => () => {
    inspector.setColour("parity");
    inspector.openTab(key ? "node" : "parity");
    if (key) inspector.reveal(key);
  };
  const { first, wrong, parameters } = graph;
  if (!graph.parity && !first)
    return graph.data.failure || !graph.data.traced
      ? null
      : finding(inspector, {
          icon: "ring",
          colour: CALM,
          head: "Parity has not been computed",
          text: inspector.model.get("kernel")
            ? "The Parity panel runs the graph again and compares."
            : "With a kernel: cap.parity()",
          onclick: () => inspector.openTab("parity"),
        });
  if (first)
    return finding(inspector, {
      icon: "flag",
      head: `Gradients part at ${title(first)}`,
      text: [
        place(inspector, first),
        "Its inputs agree with eager",
        parameters.length ? `${number(wrong.length)} of ${plural(parameters.length, "gradient")} differ` : null,
      ]
        .filter(Boolean)
        .map((words) => `${words}.`)
        .join(" "),
      onclick: see(first.key),
    });
  return finding(inspector, {
    icon: wrong.length ? "differ" : "equal",
    colour: wrong.length ? ALARM : CALM,
    head: wrong.length
      ? `${number(wrong.length)} of ${plural(parameters.length, "gradient")} differ`
      : `The gradients ${graph.parity.missed ? "that were compared " : ""}agree with eager`,
    text: wrong.length ? worst(wrong) : graph.parity.summary,
    onclick: see(),
  });
}

function worst(wrong) {
  const row = wrong.reduce((a, b) => (b.relative > a.relative ? b : a));
  return `The worst is ${row.name.slice(0, 200)}: ${row.verdict}, ${error(row.rel)} relative.`;
}

function touchFindings(inspector) {
  const { graph } = inspector;
  const see = (n) => () => {
    inspector.setColour("touches");
    inspector.reveal(n.key);
  };
  const shown = graph.touched.slice(0, 5).map((n) => {
    const text = n.initial
      ? `${plural(n.initial, "read")} of a dummy in the initial trace.`
      : `${plural(n.passes, "lookup")} of metadata that the graph does not hold.`;
    return finding(inspector, {
      icon: "bang",
      head: `Metadata touched at ${title(n)}`,
      text: [place(inspector, n), text].filter(Boolean).join(". "),
      onclick: see(n),
    });
  });
  if (graph.touched.length > 5)
    shown.push(h("p.muted", null, `${number(graph.touched.length - 5)} more in the Metadata panel.`));
  return shown;
}

function memoryFinding(inspector) {
  const { graph } = inspector;
  const total = heldBy(graph.list);
  if (!total) return null;
  const { stack } = graph;
  const each = stack && new Set(stack.children.map((c) => heldBy(c.nodes))).size === 1;
  const text = each
    ? `${bytes(heldBy(stack.children[0].nodes))} in each of the ${stack.stack} blocks of ${stack.path}.`
    : "By module, in the Memory panel.";
  const onclick = () => {
    inspector.setColour("bytes");
    inspector.openTab("memory");
  };
  return finding(inspector, {
    icon: "bar3",
    colour: "var(--q3)",
    head: `${bytes(total)} held for this backward`,
    text,
    onclick,
  });
}

/** Where the time goes; an offer to measure it, where the colour asks for it. */
function timeFinding(inspector) {
  const { graph } = inspector;
  if (!graph.times) {
    const form = inspector.colour === "time" || inspector.model.get("task")?.what === "times";
    return form
      ? h("div", null, heading("Time"), taskForm(inspector, "times", "The nodes have not been timed."))
      : null;
  }
  const slowest = graph.list.reduce((a, b) => (b.seconds > (a?.seconds ?? -1) ? b : a), null);
  if (!slowest) return null;
  return finding(inspector, {
    icon: "bar3",
    colour: "var(--q3)",
    head: `${duration(timed(graph.list))} in all nodes, the graph run op by op`,
    text: `The slowest is ${title(slowest)}, ${place(inspector, slowest)}: ${duration(slowest.seconds)}.`,
    onclick: () => {
      inspector.setColour("time");
      inspector.reveal(slowest.key);
    },
  });
}

function callFindings(inspector) {
  const { events, again, captures } = inspector.session;
  if (!events.length) return captures.length ? null : noCalls();
  const onclick = () => inspector.openTab("misses");
  if (!captures.length)
    return finding(inspector, {
      icon: "cross",
      head:
        events.length === 1
          ? "The one backward call was not captured"
          : `None of ${number(events.length)} backward calls was captured`,
      text: sentence(events.at(-1).reason),
      onclick,
    });
  const failures = events.filter((e) => e.outcome === "failed" || e.outcome === "bypassed");
  const watched = events.filter((e) => e.outcome === "watched").length;
  const once =
    events.length > 1 ? "No later backward call was captured again." : "The only backward call of the session.";
  const recaptures = again.length
    ? {
        head: `Captured again in ${number(again.length)} of ${plural(events.length - 1, "later call")}`,
        text: sentence(inPlainWords(again[0].reason)),
      }
    : { head: "Captured once", text: once };
  return [
    failures.length
      ? finding(inspector, {
          icon: "cross",
          head: `${plural(failures.length, "backward call")} failed or bypassed`,
          text: sentence(failures[0].reason),
          onclick,
        })
      : null,
    finding(inspector, { icon: "circle", colour: CALM, ...(watched ? watchedWords(watched) : recaptures), onclick }),
  ];
}

const watchedWords = (count) => ({
  head: `Watched ${count === 1 ? "once" : `${number(count)} times`}, without a trace`,
  text: "The Misses panel lists the calls.",
});

const noCalls = () =>
  empty(
    "No backward call was made in the block: call ",
    h("code", null, ".backward()"),
    " or ",
    h("code", null, "torch.autograd.grad"),
    " inside of it.",
  );
