import assert from "node:assert/strict";
import test from "node:test";
import { graph, ops, part, source } from "./packed.mjs";

const { unpack } = await source("columns.js");
const { composition, differs, ENCODINGS, markPath, strongest } = await source("encode.js");
const { FLAGS, heldBy } = await source("drawable.js");
const { plain } = await source("families.js");
const { Graph } = await source("graph.js");
const { Code, statement } = await source("code.js");
const { Arranger } = await source("arrange.js");
const { Scene } = await source("scene.js");
const { LOD } = await source("lod.js");
const { inPlainWords } = await source("reasons.js");

const names = (g, query) => g.search(query).map((id) => g.nodes.get(id).name);

test("a part is read wherever in a buffer it lies", () => {
  const raw = part("mlp");
  const shifted = new Uint8Array(raw.length + 3);
  shifted.set(raw, 3);
  const there = unpack(new DataView(shifted.buffer, 3, raw.length));
  assert.deepEqual([...there.columns.id], [...unpack(raw).columns.id]);
  assert.throws(() => unpack(new Uint8Array(16)), /not a packed capture/);
});

test("modules become nested groups, innermost last", () => {
  const g = graph("blocks4");
  assert.equal(g.groups.get("layers").children.length, 4);
  assert.equal(g.groups.get("layers.2").cls, "Block");
  assert.equal(g.groups.get("layers.2.mlp.up").parent, g.groups.get("layers.2.mlp"));
  assert.equal(g.root.nodes.length, g.list.length);
  for (const group of g.groups.values()) {
    assert.equal(group.nodes.length, group.own.length + group.children.reduce((n, c) => n + c.nodes.length, 0));
  }
});

test("blocks built alike fold into one stack", () => {
  const g = graph("blocks4");
  assert.equal(g.groups.get("layers").stack, 4);
  assert.equal(g.stack, g.groups.get("layers"));
  assert.equal(g.groups.get("layers.0").stack, 0);
});

test("a block that is a little different does not stop the others from folding", () => {
  const g = graph("uneven"); // the record of blocks4, and layers.0 without its last node
  assert.equal(g.groups.get("layers").stack, 4);
  assert.deepEqual(
    g.groups.get("layers").odd.map((c) => c.name),
    ["0"],
  );
  // Here all blocks have the same nodes, but from the last that runs gradients go on to two embeddings.
  assert.deepEqual(
    graph("blocks4")
      .groups.get("layers")
      .odd.map((c) => c.name),
    ["0"],
  );
});

test("a module that its gradient leaves and comes back to is cut into parts", () => {
  const g = graph("again");
  assert.deepEqual([...g.groups.keys()].sort(), ["", "a", "a.0", "a@2", "a@2.0", "b", "b.0", "b@2", "b@2.0"]);
  assert.deepEqual([g.groups.get("a@2").part, g.groups.get("a@2").parts, g.groups.get("a@2").module], [2, 2, "a"]);
  assert.equal(g.groups.get("a@2.0").module, "a.0");
  assert.equal(g.groups.get("a@2.0").cls, "Block");
  assert.equal(g.root.nodes.length, g.list.length);
});

test("two lists of modules called in turn stay whole, and an arrow that leads up closes the circle", () => {
  const g = graph("twice");
  assert.deepEqual([...g.groups.keys()].sort(), ["", "a", "a.0", "a.1", "b", "b.0", "b.1"]);
  for (const open of [[], ["a"], ["b"], ["a", "b"], ["a", "b", "a.0", "b.1"]]) {
    const s = new Scene(g, new Arranger(g).scene(g.openFlags(new Set(open)), 0));
    const heads = [...s.arrow].map((arrow, e) => ({
      arrow,
      points: s.points.subarray(s.pointsAt[e], s.pointsAt[e + 1]),
    }));
    for (const { points } of heads)
      for (let k = 3; k < points.length; k += 2) assert.ok(points[k] >= points[k - 2] - 1e-6, "routes lead down");
    if (!open.length) assert.deepEqual(heads.map(({ arrow }) => arrow).sort(), [1, 1, 1, 2]);
    assert.ok(heads.some(({ arrow }) => arrow === 2) || open.length > 1);
  }
});

test("without modules all nodes lie side by side", () => {
  const g = graph("mlp");
  assert.equal(g.grouped, false);
  assert.deepEqual([...g.groups.keys()], [""]);
  assert.equal(g.root.own.length, g.list.length);
});

test("ancestors, descendants and the way to a parameter", () => {
  const g = graph("mlp");
  const { mark, up, down } = g.cone("n5");
  assert.deepEqual([up, down], [3, 4]);
  assert.equal(mark[5], 3);
  const way = g.path("n1", "n8");
  assert.deepEqual(
    [...way.on].map((on, i) => (on ? i : -1)).filter((i) => i >= 0),
    [1, 2, 5, 6, 7, 8],
  );
  assert.equal(way.count, 6);
});

test("search: words, all of which must be found, in names, kinds, modules, classes, parameters and lines", () => {
  const g = graph("blocks4");
  assert.equal(g.search("  "), null);
  assert.equal(names(g, "gelu").length, 4);
  assert.deepEqual(names(g, "layers.2 GELU"), ["GeluBackward0"]);
  assert.ok(names(g, "layernorm").length > 8);
  assert.equal(names(g, "model.py:41").length, 4);
  assert.equal(names(g, "step_41").length, 4);
  assert.deepEqual(names(g, "layers.1.mlp.up.bias"), ["AccumulateGrad"]);
  assert.equal(names(g, "accumulate_grad").length, names(g, "is:parameter").length);
  assert.deepEqual(g.search("#7"), [7]);
  assert.deepEqual(g.search("nowhere"), []);
});

test("search: flags", () => {
  const g = graph("blocks4");
  assert.deepEqual(g.search("is:touched"), [g.list.find((n) => n.initial).id]);
  assert.equal(g.search("is:differs").length, 2);
  assert.equal(g.search("is:read").length, g.list.length);
  assert.deepEqual(graph("hooked").search("has:hook"), [5, 7, 8]);
  assert.deepEqual(graph("failed").search("is:failed"), [5]);
  for (const flag of Object.keys(FLAGS)) assert.ok(Array.isArray(g.search(flag)), flag);
});

test("touches and parity may come later, and be replaced", () => {
  const g = new Graph(part("blocks4"));
  assert.equal(g.touched.length + g.wrong.length, 0);
  assert.equal(g.parity, null);
  g.setParity(part("blocks4", "parity"));
  assert.equal(g.wrong.length, 2);
  assert.ok(g.wrong.every((row) => differs(row.ref)));
  g.setParity(new Uint8Array(0));
  assert.equal(g.wrong.length, 0);
  assert.ok(g.list.every((n) => !n.compared));
});

test("a part of another capture is left alone", () => {
  const g = new Graph(part("blocks4"));
  g.data.capture = 1;
  g.setParity(part("blocks4", "parity"));
  assert.equal(g.parity, null);
});

test("every encoding gives every node one of its classes, and tells them apart without colour", () => {
  for (const name of ["blocks4", "kinds", "hooked", "hostile", "failed"]) {
    const g = graph(name);
    for (const encoding of Object.values(ENCODINGS)) {
      const counts = composition(encoding, g.list);
      assert.equal(counts.size, encoding.classes.length);
      assert.equal(
        [...counts.values()].reduce((a, b) => a + b, 0),
        g.list.length,
      );
      assert.ok(encoding.classes.some(([key]) => key === strongest(encoding, g.list)));
      assert.ok(encoding.classes.every(([, , , mark]) => markPath(mark, 5)[1].startsWith("M")));
    }
  }
  assert.deepEqual(
    graph("kinds").list.map((n) => n.family),
    ["loss", "custom", "compiled", "custom", "parameter", "parameter"],
  );
});

test("graph nodes are grouped by autograd node and module, and found by either", () => {
  const g = ops("blocks4");
  const gelu = g.autograd.list.find((n) => n.name === "GeluBackward0");
  const group = g.item(gelu.key);
  assert.equal(group.owner, gelu);
  assert.equal(group.parent.module, gelu.module);
  assert.deepEqual(
    g.nodesOf(gelu.key).map((op) => op.base),
    [gelu, gelu],
  );
  assert.deepEqual(
    g.search(`#${gelu.id}`),
    group.nodes.map((op) => op.id),
  );
  assert.equal(g.search("validate_outputs gelu").length, 4);
  assert.equal(g.item("n99999"), undefined);
  assert.equal(g.item(undefined), undefined);
  // Colours and marks: what is known of the autograd node stands at its call, families at every graph node.
  for (const encoding of Object.values(ENCODINGS)) {
    const counts = composition(encoding, g.list);
    assert.equal(
      [...counts.values()].reduce((a, b) => a + b, 0),
      g.list.length,
    );
  }
  assert.equal(heldBy(g.list), heldBy(g.autograd.list));
});

test("an only graph node stands for its autograd node", () => {
  const g = ops("mlp");
  const alone = g.list.filter((op) => op.base && !op.parent.owner);
  assert.ok(alone.length > 0);
  for (const op of alone) {
    assert.equal(g.item(op.base.key), op);
    assert.equal(op.tag, op.base.tag);
  }
});

test("what is selected is found at another level", async () => {
  const { translated, levelFor } = await source("levels.js");
  const f = ops("again");
  const base = f.autograd;
  const op = f.list.find((one) => one.base);
  assert.equal(translated(op.key, f, base), op.base.key);
  assert.equal(translated(op.base.key, base, f), op.base.key);
  assert.equal(translated("g:a@2.0", base, f) !== "", true);
  assert.equal(translated("", base, f), "");
  assert.equal(translated("g:nowhere", base, f), "");
  assert.deepEqual(
    ["f1", "a1", "n1", "g:x"].map((key) => levelFor(key, "module")),
    ["fx", "aten", "module", "module"],
  );
});

test("operators are read as autograd names them", async () => {
  const { familyOfOperator, operatorOf } = await source("families.js");
  const families = {
    mm: "matmul",
    addmm: "matmul",
    convolution_backward: "matmul",
    native_layer_norm_backward: "norm",
    _softmax_backward_data: "norm",
    view: "view",
    t: "view",
    _unsafe_view: "view",
    gelu_backward: "pointwise",
    mul: "pointwise",
    sum: "pointwise",
    nll_loss_backward: "loss",
    embedding_dense_backward: "loss",
    tanh: "pointwise",
  };
  for (const [name, family] of Object.entries(families)) assert.equal(familyOfOperator(name), family, name);
  assert.equal(operatorOf("aten.mm.default"), "mm");
  assert.equal(operatorOf("ops.AddmmBackward0"), "AddmmBackward0");
  assert.equal(operatorOf("validate_outputs"), "validate_outputs");
});

test("a word of a query is no property of every object", () => {
  assert.deepEqual(graph("blocks4").search("constructor"), []);
  assert.deepEqual(graph("blocks4").search("__proto__"), []);
});

test("a storage is counted once", () => {
  const g = graph("blocks4");
  const [gelu] = g.list.filter((n) => n.name === "GeluBackward0");
  assert.equal(heldBy([gelu]), 393216);
  assert.equal(heldBy([gelu, gelu]), 393216);
  assert.equal(heldBy([]), 0);
});

test("names are fit for one line", () => {
  assert.equal(plain("a\u202eb\nc\u0000"), "a·b·c·");
  for (const n of graph("hostile").list) assert.ok(!/[\n\u202e]/.test(n.label));
});

test("code: lines, the node of each, and what each reads", () => {
  const g = graph("mlp");
  const code = new Code(g, part("mlp", "code"));
  const own = code.linesOf(g.nodes.get(2));
  assert.ok(own.length >= 2);
  assert.ok(own.every((i) => code.nodeAt(i) === g.nodes.get(2)));
  assert.ok(own.every((i) => [...code.readsOf(i)].every((j) => j < i)));
  assert.deepEqual(statement("x = ops.Foo([y], 2)"), ["x", "ops.Foo", "([y], 2)"]);
  assert.deepEqual(statement("odd"), ["odd", "", ""]);
});

test("only what is in sight is visited, and every box is found where it lies", () => {
  const g = graph("blocks40");
  const s = new Scene(g, new Arranger(g).scene(g.openFlags(new Set(g.groups.keys())), 0));
  const some = s.visible(1000, 1600, -Infinity, Infinity);
  assert.ok(some.length > 0 && some.length < 60);
  for (const i of s.leaves.filter((_, k) => k % 97 === 0)) {
    const b = s.view(i);
    assert.ok(s.visible(b.y + 1, b.y + 2, b.x + 1, b.x + 2).some((other) => other.key === b.key));
  }
  assert.equal(
    s.frames(-Infinity, Infinity, -Infinity, Infinity, 1).every((b) => b.depth <= 1),
    true,
  );
});

test("levels of detail follow each other", () => {
  assert.ok(LOD.round < LOD.marks && LOD.marks < LOD.labels && LOD.labels <= LOD.headers);
});

test("arrow keys walk along edges, through closed groups", () => {
  const g = graph("blocks4");
  const s = new Scene(g, new Arranger(g).scene(g.openFlags(new Set(["layers"])), 0));
  assert.deepEqual([...s.next("g:layers.2", "down")], ["g:layers.1"]);
  assert.deepEqual([...s.next("g:layers.2", "up")], ["g:layers.3"]);
  assert.equal(s.end(1), "n0");
});

test("PyTorch's reasons in words", () => {
  const miss =
    "Cache miss due to new autograd node: torch::autograd::AccumulateGrad (NodeCall 9) with key size 33, previous key sizes=[22]";
  assert.match(inPlainWords(miss), /^AccumulateGrad #9 has another key/);
  assert.equal(inPlainWords("something else"), "something else");
});

test("what is open crosses the wire in few words", async () => {
  const { fold, unfold } = await source("expanded.js");
  const g = graph("blocks40");
  const all = new Set([...g.groups.keys()].filter(Boolean));
  assert.deepEqual(fold(all, g), ["*"]);
  assert.deepEqual(unfold(["*"], g), all);
  const but = new Set([...all].filter((p) => p !== "layers.5" && !p.startsWith("layers.5.")));
  assert.deepEqual(fold(but, g), ["*", "!layers.5"]);
  assert.deepEqual([...unfold(["*", "!layers.5"], g)].sort(), [...but].sort());
  assert.deepEqual(fold(new Set(["layers"]), g), ["layers"]);
  assert.deepEqual(unfold(["layers"], g), new Set(["layers"]));
});

test("search, filter and selection are counted into the groups", async () => {
  const { reachOf } = await source("reach.js");
  const g = graph("blocks4");
  const none = { graph: g, filter: new Set(), cone: null, way: null, hits: null, colour: "kind" };
  assert.equal(reachOf(none).kept, null);
  const found = reachOf({ ...none, hits: g.search("softmax") });
  assert.equal(found.hits[g.groups.get("layers").index], 4);
  assert.equal(found.hits[g.groups.get("layers.2.attn").index], 1);
  const both = reachOf({ ...none, hits: g.search("softmax"), filter: new Set(["matmul"]) });
  assert.equal(both.kept[g.root.index], 0);
  const cone = g.cone("g:layers.1");
  const reached = reachOf({ ...none, cone });
  assert.equal(reached.reached[g.root.index], cone.up + cone.down + g.groups.get("layers.1").nodes.length);
});
