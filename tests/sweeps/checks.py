"""What must hold for a case, and how each is judged.

`check_case` makes the backward twice without the package (eager's own gradients, and whether they come again), once
under PyTorch's compiled autograd alone (what is wrong there is PyTorch's own), and once in a capture.
"""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch._dynamo import compiled_autograd

import cabw_viz
from cabw_viz.record.kinds import GOOD
from cabw_viz.surfaces.capture import Capture
from tests.faults import planted
from tests.sweeps.cases import Case, NotACase, Program, in_float64, program

Outcome = Literal["held", "refused", "said", "not judged", "pytorch", "failed"]
"""Held; refused with a CabwError; the report itself says that it does not hold, or cannot be judged; not judged here,
since there is nothing to judge by; PyTorch's own; failed."""

CHECKS = (
    "harmless",
    "captured",
    "parity bitwise",
    "divergence silent",
    "float64 parity",
    "float64 divergence",
    "lowered to the bit",
    "audit",
    "fault seen by parity",
    "fault charged by divergence",
)
SAID = "the report says so"
FAULT = 1.5
"""The factor of the planted fault: no rounding, in any dtype."""


@dataclass
class Report:
    """What became of the checks of a case."""

    case: Case
    outcomes: dict[str, tuple[Outcome, str]] = field(default_factory=dict)
    """Check: outcome, and the reason where it did not hold."""
    skipped: str = ""
    """Why the case is none; then there are no outcomes."""

    def as_json(self) -> dict[str, Any]:
        """Plain data for a line of JSON."""
        return asdict(self)


def check_case(case: Case) -> Report:
    """Run every check of a case."""
    report = Report(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            subject = program(case)
            eager = subject.backward()
        except NotACase as reason:
            report.skipped = str(reason)
            return report
        except Exception as error:  # noqa: BLE001  # whatever an operator of PyTorch raises in eager
            report.skipped = f"eager raises {_sentence(error)}"
            return report
        try:
            _check_program(report, subject, eager)
        finally:
            torch._dynamo.reset()
    return report


def _check_program(report: Report, subject: Program, eager: dict[str, torch.Tensor]) -> None:
    outcomes = report.outcomes
    alone = PyTorchAlone(subject, eager)
    is_rounding = consists_of_rounding(report.case, eager)
    comes_again = same_bits(subject.backward(), eager)
    before = _state(subject)  # of random numbers too: each run begins with the same
    gradients, session = _captured(subject)
    if not comes_again:
        outcomes["harmless"] = ("not judged", "eager gives other gradients each time")
    elif isinstance(gradients, Exception):
        outcomes["harmless"] = ("failed", f"the captured call raised {_sentence(gradients)}")
    elif not same_bits(gradients, eager):
        outcomes["harmless"] = ("failed", "other gradients than without a capture")
    elif _state(subject) != before:
        outcomes["harmless"] = ("failed", "leaves or random numbers changed")
    else:
        outcomes["harmless"] = ("held", "")
    events = session.events
    if len(session) != 1 or events["outcome"].tolist()[-1] != "captured" or session[0].error is not None:
        reason = str(events["reason"].iloc[-1]).splitlines()[0] if len(events) else "no event"
        outcomes["captured"] = ("pytorch", alone.error) if alone.error else ("failed", reason)
        session.close()
        return
    outcomes["captured"] = ("held", "")
    _check_capture(outcomes, session[0], alone, comes_again=comes_again)
    is_right = outcomes.get("parity bitwise") == outcomes.get("divergence silent") == ("held", "")
    if is_right and not is_rounding:
        _check_fault(outcomes, session[0])
    if outcomes["harmless"][0] == "held" and _state(subject) != before:
        outcomes["harmless"] = ("failed", "a later call changed leaves or random numbers")
    session.close()


def _captured(subject: Program) -> tuple[dict[str, torch.Tensor] | Exception, Any]:
    with cabw_viz.capture(subject.subject) as session:
        try:
            gradients: dict[str, torch.Tensor] | Exception = subject.backward()
        except Exception as error:  # noqa: BLE001  # reported: eager has not raised
            gradients = error
    return gradients, session


def _check_capture(
    outcomes: dict[str, tuple[Outcome, str]], capture: Capture, alone: PyTorchAlone, *, comes_again: bool
) -> None:
    if not comes_again:
        return
    dtypes = {leaf.dtype for leaf in alone.program.leaves.values()}
    outcomes["parity bitwise"] = alone.judged(_attempt(lambda: _parity_words(capture.parity(), bitwise=True)))
    outcomes["divergence silent"] = _attempt(lambda: _divergence_words(capture.divergence()))
    if dtypes <= {torch.float32, torch.complex64, torch.bfloat16}:
        outcomes["float64 parity"] = _attempt(lambda: _parity_words(capture.parity(dtype="float64"), bitwise=False))
        outcomes["float64 divergence"] = _attempt(lambda: _divergence_words(capture.divergence(dtype="float64")))
    outcomes["lowered to the bit"] = _attempt(lambda: _lowered_words(capture))
    outcomes["audit"] = _attempt(lambda: "" if len(capture.audit().columns) else "no columns")


def _attempt(check: Callable[[], str]) -> tuple[Outcome, str]:
    """The outcome of a check that returns what is wrong, or nothing."""
    try:
        wrong = check()
    except cabw_viz.CabwError as error:
        return "refused", _first_line(error.seen)
    except Exception as error:  # noqa: BLE001  # an exception that is not the package's own is what is looked for
        return "failed", f"raised {_sentence(error)}"
    if wrong.startswith(SAID):
        return "said", wrong
    return ("failed", wrong) if wrong else ("held", "")


def _parity_words(report: Any, *, bitwise: bool) -> str:
    verdicts = report.frame["verdict"].value_counts().to_dict()
    right = set(verdicts) <= {"bitwise"} if bitwise else report.ok
    if right and len(report.frame):
        return ""
    wrong = set(report.frame["verdict"]) - GOOD
    if wrong == {"not_judged"}:
        return f"{SAID}: not judged, {report.worst.note}"
    return f"{verdicts}"


def _divergence_words(report: Any) -> str:
    if report.ok:
        return ""
    row = report.first
    return report.summary if row is None else f"charges {row.name}: {'' if row.own is None else row.own.verdict}"


def _lowered_words(capture: Capture) -> str:
    graph = capture.lower()
    lowered, replayed = graph.gradients(), capture.replay()
    return "" if graph.inexact or same_bits(lowered, replayed) else "other bits than the replay"


# ------------------------------------------------------------------------------------------------------ planted faults


def _check_fault(outcomes: dict[str, tuple[Outcome, str]], capture: Capture) -> None:
    """Plant a factor into one autograd node of the graph, and look whether parity and divergence see it.

    Whether the fault shows at all is measured on the gradients of a replay.
    """
    node = _node_for_fault(capture)
    if node is None:
        return
    try:
        right = capture.replay()
    except cabw_viz.CabwError as error:
        outcomes["fault seen by parity"] = ("refused", _first_line(error.seen))
        return
    name = capture.record.graph_nodes[node].name
    with planted(name, lambda gradient: gradient * FAULT):
        wrong = capture.replay()
        if any(_are_apart(right[leaf], wrong[leaf]) for leaf in right):
            outcomes["fault seen by parity"] = _attempt(lambda: "passes" if capture.parity().ok else "")
            outcomes["fault charged by divergence"] = _attempt(lambda: _charge_words(capture, node))


def _charge_words(capture: Capture, node: int) -> str:
    report, number = capture.divergence(), capture.record.graph_nodes[node].autograd_node
    if report.ok:
        return "passes"
    if report.first is None or report.first.number != number:
        return f"charges {report.first.name if report.first else 'nobody'}"
    return ""


def _node_for_fault(capture: Capture) -> int | None:
    """A built-in autograd node's call, by its index among the graph nodes; the middle one of all."""
    calls = [
        index
        for index, node in enumerate(capture.record.graph_nodes)
        if node.kind == "autograd_function" or node.target.startswith("ops.")
    ]
    return calls[len(calls) // 2] if calls else None


def _are_apart(right: torch.Tensor, wrong: torch.Tensor) -> bool:
    """Whether two gradients differ by a tenth or more of the largest finite element, and that can be judged at all."""
    right, wrong = (_plain(t).to(torch.complex128) for t in (right, wrong))
    finite = right.abs().isfinite() & wrong.abs().isfinite()
    if right.shape != wrong.shape or not bool(finite.any()):
        return False
    scale, smallest = float(right[finite].abs().max()), 1e-30
    return scale > smallest and float((right - wrong)[finite].abs().max()) > scale / 10


# ---------------------------------------------------------------------------------------------------- PyTorch by itself


class PyTorchAlone:
    """The same backward under PyTorch's compiled autograd, without the package; made when first needed."""

    def __init__(self, subject: Program, eager: dict[str, torch.Tensor]) -> None:
        self.program = subject
        self._eager = eager
        self._result: dict[str, torch.Tensor] | str | None = None

    @property
    def error(self) -> str:
        """What it raises; empty where it runs."""
        result = self._run()
        return result if isinstance(result, str) else ""

    def judged(self, outcome: tuple[Outcome, str]) -> tuple[Outcome, str]:
        """An outcome, as PyTorch's own where its compiled autograd does not give eager's bits either."""
        if outcome[0] == "held":
            return outcome
        result = self._run()
        if isinstance(result, str):
            return "pytorch", f"{outcome[1]}; compiled autograd alone raises {result}"
        if not same_bits(result, self._eager):
            return "pytorch", f"{outcome[1]}; compiled autograd alone differs from eager"
        return outcome

    def _run(self) -> dict[str, torch.Tensor] | str:
        if self._result is None:
            try:
                with compiled_autograd._enable(lambda graph: graph):
                    self._result = self.program.backward()
            except Exception as error:  # noqa: BLE001  # whatever the trace or the run raises
                self._result = _sentence(error)
            finally:
                for leaf in self.program.leaves.values():
                    leaf.grad = None
                compiled_autograd.reset()
        return self._result


# ----------------------------------------------------------------------------------------------------------------- bits


def consists_of_rounding(case: Case, eager: dict[str, torch.Tensor]) -> bool:
    """Whether a gradient should be zero, by eager in float64, and is nothing but rounding: no fault shows there."""
    exact = in_float64(case)
    return any(_are_apart(exact[name], eager[name]) for name in exact.keys() & eager.keys())


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of gradients are equal bit for bit, NaN and signed zeros included."""
    return one.keys() == other.keys() and all(_bits(one[name]) == _bits(other[name]) for name in one)


def _bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        tensor = tensor.detach()
        parts = [tensor.coalesce().indices(), tensor.coalesce().values()] if tensor.is_sparse else [tensor.to_dense()]
        return tuple(map(_bits, parts))
    data = _plain(tensor).flatten().view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tuple(tensor.shape), hashlib.sha256(data).hexdigest()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return dense.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)  # a ZeroTensor has no memory


def _state(subject: Program) -> tuple[Any, ...]:
    """Everything of the user's that nothing may change: leaves, buffers and random numbers."""
    buffers: Iterable[torch.Tensor] = subject.subject.buffers() if isinstance(subject.subject, torch.nn.Module) else ()
    tensors = [*subject.leaves.values(), *buffers]
    state = np.random.get_state()  # the global generator is what is looked at
    numbers = (torch.get_rng_state().numpy().tobytes(), random.getstate(), state[1].tobytes(), state[2])
    return [(_bits(t), t.requires_grad, t.grad) for t in tensors], numbers


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {_first_line(str(error))}"


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")[:300]
