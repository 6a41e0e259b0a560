import assert from "node:assert/strict";
import test from "node:test";
import { graph, ops, source } from "./packed.mjs";

const { layered } = await source("layout.js");
const { Arranger } = await source("arrange.js");
const { Scene } = await source("scene.js");

/** Every set of open groups worth looking at. */
function* openings(g) {
  const all = [...g.groups.keys()].filter(Boolean);
  yield ["closed", []];
  yield ["all", all];
  for (const path of all.slice(0, 6)) yield [path, all.filter((p) => path.startsWith(p))];
  yield ["all but one", all.filter((p) => p !== all[0] && !p.startsWith(`${all[0]}.`))];
}

function scene(g, open, aspect = 0) {
  return new Scene(g, new Arranger(g).scene(g.openFlags(new Set(open)), aspect));
}

function overlaps(s) {
  const boxes = Array.from(s.leaves, (i) => s.view(i)).sort((a, b) => a.y - b.y);
  let count = 0;
  for (let i = 0; i < boxes.length; i++) {
    for (let j = i + 1; j < boxes.length && boxes[j].y < boxes[i].y + boxes[i].h; j++) {
      if (boxes[i].x < boxes[j].x + boxes[j].w && boxes[j].x < boxes[i].x + boxes[i].w) count++;
    }
  }
  return count;
}

function upward(s) {
  let count = 0;
  for (let e = 0; e < s.arrow.length; e++) {
    const p = s.points.subarray(s.pointsAt[e], s.pointsAt[e + 1]);
    for (let i = 3; i < p.length; i += 2) if (p[i] < p[i - 2] - 1e-3) count++;
  }
  return count;
}

for (const name of [
  "mlp",
  "hooked",
  "copy_slices",
  "kinds",
  "failed",
  "hostile",
  "chain",
  "wide",
  "twice",
  "blocks4",
  "blocks40",
]) {
  test(`${name}: no boxes overlap, and every edge runs down`, () => {
    const g = graph(name);
    for (const [what, open] of openings(g)) {
      const s = scene(g, open);
      assert.equal(overlaps(s), 0, `${what}: overlaps`);
      assert.equal(upward(s), 0, `${what}: edges that run up`);
    }
  });

  test(`${name}: every node is shown once, or stands for its group`, () => {
    const g = graph(name);
    for (const [, open] of openings(g)) {
      const s = scene(g, open);
      for (const node of g.list) assert.equal(s.homeOf(node), g.shown(node, new Set(open)));
    }
  });
}

for (const name of ["mlp", "hooked", "copy_slices", "kinds", "hostile", "twice", "blocks4"]) {
  for (const letter of ["f", "a"]) {
    test(`${name}, ${letter}: graph nodes do not overlap, and every edge runs down`, () => {
      const g = ops(name, letter);
      for (const [what, open] of openings(g)) {
        const s = scene(g, open);
        assert.equal(overlaps(s), 0, `${what}: overlaps`);
        assert.equal(upward(s), 0, `${what}: edges that run up`);
        for (const node of g.list) assert.equal(s.homeOf(node), g.shown(node, new Set(open)));
      }
    });
  }
}

test("progress is reported, and grows to one", () => {
  const g = ops("blocks40");
  const shares = [];
  const now = performance.now;
  let clock = 0;
  performance.now = () => (clock += 200); // so that every step is worth telling
  try {
    new Arranger(g).scene(g.openFlags(g.all()), 0, (share) => shares.push(share));
  } finally {
    performance.now = now;
  }
  assert.ok(shares.length > 100);
  assert.ok(shares.every((s, i) => s <= 1 && s >= (shares[i - 1] ?? 0)));
  assert.equal(shares.at(-1), 1);
});

test("every edge between shown items is drawn", () => {
  const g = graph("blocks4");
  for (const [, open] of openings(g)) {
    const s = scene(g, open);
    const drawn = new Set();
    for (let i = 0; i < s.pairs.length; i += 2) drawn.add(`${s.pairs[i]} ${s.pairs[i + 1]}`);
    const { from, to } = g.edges;
    for (let e = 0; e < from.length; e++) {
      if (s.home[from[e]] === s.home[to[e]]) continue;
      assert.ok(drawn.has(`${from[e]} ${to[e]}`), `${from[e]} to ${to[e]}`);
    }
  }
});

test("an edge over several rows bends around what is between", () => {
  const plan = layered({
    width: [100, 100, 100, 100],
    height: [20, 20, 20, 20],
    edges: [
      [0, 1],
      [1, 2],
      [2, 3],
      [0, 3],
    ],
  });
  const long = plan.routes[3];
  assert.ok(long.length > plan.routes[0].length, "has bends");
  for (let i = 0; i < long.length; i += 2) {
    for (const box of [1, 2]) {
      const inside =
        long[i] > plan.x[box] &&
        long[i] < plan.x[box] + 100 &&
        long[i + 1] > plan.y[box] &&
        long[i + 1] < plan.y[box] + 20;
      assert.ok(!inside, `point ${i / 2} lies on box ${box}`);
    }
  }
});

test("the ordering takes crossings away", () => {
  const plan = layered({
    width: [50, 50, 50, 50],
    height: [20, 20, 20, 20],
    edges: [
      [0, 3],
      [1, 2],
    ],
  });
  assert.ok((plan.x[0] - plan.x[1]) * (plan.x[3] - plan.x[2]) > 0, "the two edges do not cross");
});

test("a cycle, which no backward has, still ends in a picture", () => {
  const plan = layered({
    width: [50, 50, 50],
    height: [20, 20, 20],
    edges: [
      [0, 1],
      [1, 0],
      [1, 2],
    ],
  });
  assert.equal(plan.routes.length, 3);
  assert.ok(plan.x.every(Number.isFinite) && plan.y.every(Number.isFinite));
});

test("nothing, and a single box", () => {
  assert.equal(layered({ width: [], height: [], edges: [] }).routes.length, 0);
  const one = layered({ width: [50], height: [20], edges: [] });
  assert.deepEqual([...one.x, ...one.y], [0, 0]);
});

test("the same graph gives the same picture, whatever was opened before", () => {
  const g = graph("blocks4");
  const all = g.openFlags(new Set(g.groups.keys()));
  const none = g.openFlags(new Set());
  const arranger = new Arranger(g);
  const first = arranger.scene(all, 0);
  arranger.scene(none, 0);
  const again = arranger.scene(all, 0);
  const fresh = new Arranger(graph("blocks4")).scene(all, 0);
  for (const other of [again, fresh]) {
    assert.deepEqual([...other.place], [...first.place]);
    assert.deepEqual([...other.points], [...first.points]);
  }
});

test("blocks that are built alike look alike", () => {
  const g = graph("blocks4");
  const s = scene(g, g.groups.keys());
  const boxes = ["layers.1", "layers.2"].map((path) => s.box(`g:${path}`));
  assert.deepEqual([boxes[0].w, boxes[0].h], [boxes[1].w, boxes[1].h]);
});

test("a long spine is set in columns that lose nothing", () => {
  const g = graph("blocks40");
  const all = [...g.groups.keys()];
  const spine = scene(g, all);
  const wrapped = scene(g, all, 1.6);
  assert.ok(wrapped.columns > 3);
  assert.ok(wrapped.h < spine.h / 3);
  assert.equal(overlaps(wrapped), 0);
  assert.equal(
    new Set(Array.from(wrapped.leaves, (i) => wrapped.item[i])).size,
    new Set(Array.from(spine.leaves, (i) => spine.item[i])).size,
  );
});

test("time grows with size and not with its square", () => {
  const cost = (name) => {
    const g = graph(name);
    const flags = g.openFlags(new Set(g.groups.keys()));
    const best = [0, 1, 2, 3, 4].map(() => {
      const began = process.cpuUsage(); // of this process: the machine may be busy
      new Arranger(g).scene(flags, 0);
      return process.cpuUsage(began).user / 1000;
    });
    return Math.min(...best);
  };
  cost("blocks40"); // compiles the code
  const [half, whole] = [cost("blocks40"), cost("blocks80")];
  assert.ok(whole < 3.5 * half + 20, `${half.toFixed(1)} ms for half, ${whole.toFixed(1)} ms for all`);
});
