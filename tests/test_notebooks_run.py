"""Every notebook runs from top to bottom, in an empty folder."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.kernels import environment

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))

SHOWN: dict[str, dict[str, tuple[str, ...]]] = {
    "01_first_backward": {
        "capture": ("1 captured",),
        "graph": ("<graph of backward at", "at level 'autograd'"),
        "graph-fx": ("<graph of backward at", "at level 'fx'"),
        "parity": ("All 6 gradients agree: 6 bitwise.",),
        "loop": ("captured", "cache_hit", "Cache miss due to new autograd node"),
        "views-parity": ("ran again", "1 bitwise"),
        "fault": ("2 of 6 gradients differ, worst 0.weight: 4 bitwise, 2 mismatch.",),
        "worst": ("False, '0.weight'",),
        "failed": ("1 failed", "NotImplementedError at GraphRoot"),
        "step": ("was changed in place", "True"),
        "transformer": ("1 captured", "gradients agree"),
        "transformer-graph": ("<graph of backward at", "at level 'module'"),
        "transformer-part": ("<graph of backward at", "at level 'module'"),
        "list": ("session", "(unnamed)"),
    },
    "02_metadata": {
        "clean": ("initial trace: 12 nodes, 0 touches",),
        "dirty": ("<graph of backward",),
        "dirty-table": ("storage_offset", "tracer", "AddmmBackward0"),
        "pass": ("graph_pass", "pass", "val"),
        "audit": ("aten.tanh_backward.default", "layout"),
        "lifted": ("exponent",),
        "lifted-proof": ("cache_hit", "PowBackward0"),
    },
    "03_divergence": {
        "clean": ("No divergence", "bitwise"),
        "parity": ("mismatch", "bitwise"),
        "found": ("First divergence: ", "TanhBackward0 in transformer.h.0.mlp.act, activations.py:"),
        "first": ("TanhBackward0 in transformer.h.0.mlp.act", "torch.tanh(", "off by 0.001"),
        "frame": ("TanhBackward0", "0.001"),
        "magic": ("No divergence",),
        "half": ("No divergence", "within_noise"),
        "nan": ("First NaN or infinity on both sides: ", "SqrtBackward0", "0.5 to 0.5; output: inf"),
        "memory": ("First divergence: ", "TanhBackward0", "fingerprints"),
    },
    "04_where_is_my_gradient": {
        "missing": ("teacher.weight", "gate.weight", "spare.weight", "dead.weight", "detach"),
        "missing-frame": ("no_grad", "detached", "not_called", "zero"),
        "vanishing": ("0.weight", "16.weight"),
        "forward": ("The loss is NaN. First in the forward: ", "ExpBackward0 in blocks.2", "overflow of float32"),
        "first": ("'ExpBackward0'", "'blocks.2'", "'weights = (self.linear(x)", "('overflow',)"),
        "magic": ("ExpBackward0 in blocks.2",),
        "divergence": ("No divergence", "Both sides have it", "see cap.nonfinite()"),
        "backward": ("nan", "First in the backward: ", "SqrtBackward0", "0 * inf"),
        "half": ("ToCopyBackward0", "overflow of float16", "65504"),
        "mask": ("No NaN or infinity", "SoftmaxBackward0", "a softmax over a row of nothing but -inf"),
    },
}
"""What must be seen under some cells, by the cells' ids."""


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


@pytest.fixture
def executed(tmp_path, monkeypatch):
    private, folder = tmp_path / "private", tmp_path / "folder"
    folder.mkdir()
    for name, value in environment(private).items():
        monkeypatch.setenv(name, value)

    def execute(path: Path) -> nbformat.NotebookNode:
        client = NotebookClient(read(path), timeout=300, resources={"metadata": {"path": str(folder)}})
        notebook = client.execute()
        assert not list(folder.iterdir()), "the notebook left files behind"
        return notebook

    return execute


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_outputs(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert not [cell.id for cell in cells if cell.outputs or cell.execution_count is not None]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, executed):
    cells = executed(path).cells
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
    texts = {cell.id: "\n".join(map(text_of, cell.get("outputs", ()))) for cell in cells}
    for name, parts in SHOWN.get(path.stem, {}).items():
        for part in parts:
            assert part in texts[name], name


def text_of(output: nbformat.NotebookNode) -> str:
    return output.text if output.output_type == "stream" else output.data["text/plain"]
