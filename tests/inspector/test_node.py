"""Runs the tests of the browser's modules in Node, where there is one, on records packed by Python."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cabw_viz.views.inspector import columns, findings
from tests import records
from tests.inspector.blocks import results_of, transformer

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
    made |= {"uneven": uneven(), "chain": records.chain(2000), "wide": wide(2000), "twice": twice()}
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


def twice():
    """Two lists of modules called in turn: `a.0`, `b.0`, `a.1`, `b.1`, each of two nodes."""
    b = records.Backward()
    b.node("GraphRoot", (0, 1, 0), kind="graph_root", inputs=0)
    for number in range(1, 9):
        b.node("SinBackward0", (0, number + 1, 0))
    b.leaf("w", shape=(2,))
    record = b.record()
    homes = ["", "b.1", "b.1", "a.1", "a.1", "b.0", "b.0", "a.0", "a.0", ""]
    nodes = [
        replace(n, module=m, module_class="Block" if m else "")
        for n, m in zip(record.autograd_nodes, homes, strict=True)
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
