"""Runs the tests of the browser's modules in Node, where there is one, on records packed by Python."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.analysis.module_tree import module_tree
from cabw_viz.views.inspector import columns, findings
from cabw_viz.views.render import graph_view
from tests import records
from tests.inspector.blocks import results_of, transformer
from tests.module_models import MODELS, capture_of_model

AS_CAPTURED = Path(__file__).parent
NODE = shutil.which("node")
OLDEST = 20


def version() -> int:
    text = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout
    return int(text.removeprefix("v").split(".")[0])


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    made = {name: make() for name, make in records.SAMPLES.items()}
    made |= {f"blocks{layers}": transformer(layers) for layers in (4, 40, 80)}
    made |= {"uneven": uneven(), "chain": records.chain(2000), "wide": wide(2000)}
    made |= {"twice": in_modules("b.1 b.1 a.1 a.1 b.0 b.0 a.0 a.0"), "again": in_modules("b.0 b.0 a.0 a.0 " * 2)}
    for name, record in made.items():
        results = results_of(record, 2)
        (folder / f"{name}.data").write_bytes(columns.pack_graph(record))
        (folder / f"{name}.touches").write_bytes(findings.pack_touches(record, results))
        (folder / f"{name}.parity").write_bytes(findings.pack_parity(record, results.comparison))
        (folder / f"{name}.code").write_bytes(columns.pack_code(record))
        (folder / f"{name}.aten").write_bytes(columns.pack_lowered(record, results))
    return folder


def wide(count):
    """One node that feeds very many leaves."""
    b = records.Backward()
    b.node("GraphRoot", (0, 1, 0), kind="graph_root", inputs=0)
    b.node("CatBackward0", *[(i, i + 2, 0) for i in range(count)])
    for index in range(count):
        b.leaf(f"w{index}", shape=(2,))
    return b.record()


def uneven():
    """Four blocks, of which the first has a node less, as where a model's input needs no gradient."""
    record = transformer(4)
    last = [n for n in record.autograd_nodes if n.module.startswith("layers.0")][-1]
    return replace(record, autograd_nodes=tuple(n for n in record.autograd_nodes if n is not last))


def in_modules(modules):
    """A chain of eight nodes between the root and a leaf, in modules as given."""
    b = records.Backward()
    b.node("GraphRoot", (0, 1, 0), kind="graph_root", inputs=0)
    for number in range(1, 9):
        b.node("SinBackward0", (0, number + 1, 0))
    b.leaf("w", shape=(2,))
    record = b.record()
    nodes = [
        replace(n, module=m, module_class="Block" if m else "")
        for n, m in zip(record.autograd_nodes, ["", *modules.split(), ""], strict=True)
    ]
    return replace(record, autograd_nodes=tuple(nodes))


@pytest.mark.skipif(NODE is None, reason="needs Node; try: apt-get install nodejs")
@pytest.mark.parametrize("name", sorted(path.name for path in AS_CAPTURED.glob("*.test.mjs")))
def test_in_node(name, packed):
    if version() < OLDEST:
        pytest.skip(f"needs Node {OLDEST} or newer")
    command = [NODE, "--experimental-default-type=module", "--test", str(AS_CAPTURED / name)]
    environment = {**os.environ, "CABW_PACKED": str(packed), "NODE_NO_WARNINGS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


class Turns(nn.Module):
    """Two submodules, called in turn."""

    def __init__(self, times):
        super().__init__()
        self.a, self.b, self.times = nn.Linear(4, 4), nn.Linear(4, 4), times

    def forward(self, x):
        for _ in range(self.times):
            x = self.b(self.a(x))
        return x


def turns(times):
    model = Turns(times)
    with cabw_viz.capture(model) as session:
        model(torch.randn(2, 4)).sum().backward()
    return session[0].record


def groups_of(tree):
    """Each group by its key: class, part, parts, and nodes."""
    return {g.key: [g.cls, g.part, g.parts, g.nodes] for g in tree.groups if g.path}


@pytest.mark.skipif(NODE is None, reason="needs Node; try: apt-get install nodejs")
def test_the_browser_has_the_groups_of_the_drawing(tmp_path):
    made = {name: capture_of_model(name).record for name in MODELS} | {"turns2": turns(2), "turns6": turns(6)}
    made |= {"blocks": transformer(12), "uneven": uneven(), "again": in_modules("b.0 b.0 a.0 a.0 " * 2)}
    for name, record in made.items():
        (tmp_path / f"{name}.data").write_bytes(columns.pack_graph(record))
    command = [NODE, "--experimental-default-type=module", str(AS_CAPTURED / "groups.mjs"), *made]
    environment = {**os.environ, "CABW_PACKED": str(tmp_path), "NODE_NO_WARNINGS": "1"}
    seen = json.loads(subprocess.run(command, capture_output=True, check=True, env=environment, timeout=120).stdout)
    for name, record in made.items():
        assert seen[name] == groups_of(module_tree(record)), name
    assert seen["turns6"].keys() == {"a", "b"}  # too many parts: two boxes, as cap.graph(depth=1) draws them
    assert seen["turns2"].keys() == {"a", "a@2", "b", "b@2"}
    for name in ("turns2", "turns6", "again"):
        boxes = graph_view(made[name], depth=1).drawing.boxes
        outermost = {g.key: set(g.nodes) for g in module_tree(made[name]).root.modules}
        assert sorted(map(sorted, outermost.values())) == sorted(sorted(b.nodes) for b in boxes if b.kind == "group")
