"""`cabw-viz demo`: the backward of GPT-2, captured, drawn, and compared with eager. Nothing is downloaded."""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from cabw_viz.errors import CabwError
from cabw_viz.record.options import Level
from cabw_viz.surfaces.capture import Capture
from cabw_viz.surfaces.parity_report import ParityReport
from cabw_viz.surfaces.session import Session, capture
from cabw_viz.views import html
from cabw_viz.views.render import GraphView

WIDTH, HEADS = 128, 4
ROWS, LENGTH = 4, 64
"""Four pieces of text, each of 64 bytes; a byte is a token."""

SEED = 0
TITLE = "The backward of GPT-2"
PICTURES: dict[Level, tuple[str, ...]] = {
    "module": (".dot", ".svg", ".png"),
    "autograd": (".dot", ".svg", ".png"),
    "fx": (".dot", ".svg"),
}
"""What is drawn. All but the DOT text needs Graphviz's program."""


def run(folder: Path, layers: int = 4) -> None:
    """Capture, print outline and parity table, and write pictures and tables to a folder.

    Raises:
        CabwError: `transformers` is not installed, or the folder cannot be written to.
    """
    start = time.perf_counter()
    folder = _new_folder(folder)
    model, session = capture_backward(layers)
    cap = session[0]
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"GPT-2 as transformers defines it: {layers} layers, {WIDTH} wide, {count:,} parameters, random weights")
    print(f"Text: {ROWS} x {LENGTH} bytes of Python's json package\n")
    print(cap, end="\n\n")
    report = cap.parity()
    print(report, end="\n\n")
    with _os_error_as_cabw_error(folder):
        problems = _draw_levels(cap, folder)
        _write_tables(session, report, folder)
    print(f"Written to {folder}{os.sep}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    for problem in problems:
        print(f"\n{problem}")
    seconds = time.perf_counter() - start
    print(
        f"\nThis took {seconds:.1f} s, {cap.record.seconds:.1f} s of it to trace {len(cap.record.graph_nodes):,} nodes."
    )


def capture_backward(layers: int) -> tuple[torch.nn.Module, Session]:
    """The model after its backward, dropout on, and the session that saw it; the same every time."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = build(layers)
        with capture(model) as session:
            loss(model, text()).backward()  # type: ignore[no-untyped-call]  # torch has no types for it
    return model, session


def build(layers: int) -> torch.nn.Module:
    """GPT-2 for training, small, with weights drawn at random.

    Raises:
        CabwError: `transformers` is not installed, or `layers` is below 1.
    """
    if layers < 1:
        raise CabwError(f"a GPT-2 with {layers} layers was asked for", expected="1 or more", try_="--layers 4")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise CabwError(
            f"the demo's model comes from the package transformers, which could not be imported: {error}",
            expected="transformers 4.50 or newer; its definition of GPT-2 is used, no weights are fetched",
            try_="pip install 'cabw_viz[examples]'",
        ) from error
    config = GPT2Config(
        vocab_size=256,
        n_positions=LENGTH,
        n_embd=WIDTH,
        n_layer=layers,
        n_head=HEADS,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    model: torch.nn.Module = GPT2LMHeadModel(config).train()
    return model


def text() -> torch.Tensor:
    """Bytes of a text that comes with Python."""
    source = inspect.getsource(json).encode()[: ROWS * LENGTH]
    return torch.tensor(list(source)).view(ROWS, LENGTH)


def loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The cross entropy of each byte, predicted from those before it."""
    logits = model(input_ids=tokens).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _new_folder(folder: Path) -> Path:
    with _os_error_as_cabw_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _os_error_as_cabw_error(folder: Path) -> Iterator[None]:
    """Raise an OSError about a folder as a CabwError."""
    try:
        yield
    except OSError as error:
        raise CabwError(
            f"{folder} cannot be written to: {error.strerror or error}",
            expected="a folder, or a name for a new one",
            try_="--output DIR",
        ) from error


def _draw_levels(cap: Capture, folder: Path) -> list[str]:
    """Draw every level; returns the errors that kept pictures from being drawn, each once."""
    paths = [(level, folder / f"{level}{suffix}") for level, suffixes in PICTURES.items() for suffix in suffixes]
    problems = dict.fromkeys(_save_error(cap.graph(level), path) for level, path in paths)
    return [problem for problem in problems if problem]


def _save_error(view: GraphView, path: Path) -> str:
    """Save a picture; returns the error if it could not be saved."""
    try:
        view.save(path)
    except CabwError as error:
        return str(error)
    return ""


def _write_tables(session: Session, report: ParityReport, folder: Path) -> None:
    cap = session[0]
    parity = html.parity_html(report.comparison)
    report.frame.to_csv(folder / "parity.csv", index=False)
    cap.nodes.to_csv(folder / "nodes.csv")
    session.to_html(folder / "inspector.html")
    for name, content in {
        "parity.html": html.page_html(f"{TITLE}: parity with eager", parity),
        "session.html": html.page_html(TITLE, session.html(), parity),
        "outline.txt": cap.outline(full=True) + "\n",
    }.items():
        (folder / name).write_text(content, "utf-8")
