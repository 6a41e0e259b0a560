"""`cabw_viz.compare`: a user's whole steps, run in several ways, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cabw_viz.analysis import steps
from cabw_viz.analysis.steps import Finding
from cabw_viz.errors import CabwError
from cabw_viz.record.steps import StepMatrix
from cabw_viz.replay.steps.comparison import compare_steps
from cabw_viz.replay.steps.step_plan import CompareArguments, plan_of
from cabw_viz.surfaces.parity_report import ParityReport
from cabw_viz.views import html, steps_table
from cabw_viz.views.steps_text import finding_lines, matrix_text

if TYPE_CHECKING:
    import pandas as pd
    import torch

BACKENDS = ("eager", "compiled_autograd", "aot_eager")


def compare(  # noqa: PLR0913  # every one of these is a choice of its own, and given by its name
    step: Callable[..., Any],
    params: torch.nn.Module | Mapping[str, torch.Tensor] | None = None,
    *,
    backward: Callable[[Any], Any] | None = None,
    devices: Sequence[str | torch.device] | None = None,
    dtypes: Sequence[str | torch.dtype] | None = None,
    backends: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] = BACKENDS,
    against: Mapping[str, Any] | None = None,
    repeats: int = 3,
    rtol: float | None = None,
    atol: float | None = None,
) -> ParityMatrix:
    """Run a whole step, forward and backward, in several ways, and compare each with the uncompiled step.

    Each run begins with the same parameters, buffers, training flags and random numbers (Python's, NumPy's,
    torch's), the same attributes of modules (numbers, texts, tensors, and lists and dicts of these), and the same
    optimizers of its parameters, schedulers and gradient scalers. It calls the step `repeats` times in a row, `.grad`
    being None before each call; the state goes on from call to call, as in training. Afterwards all of these are as
    they were, whatever was raised, and so are other modules and leaves that the step reaches. Generators of the step's
    own and other Python state are not restored; let a function build the step where it has any. Dynamo's compiled code
    in this process is dropped, so that no run uses that of another. Inductor is set to draw the random numbers that
    eager draws (`fallback_random`).

    The reference is the step in eager: what `torch.compile` made in it runs uncompiled. It is run twice; what the two
    runs differ by is eager's own noise, and what they differ by beyond rounding is `not_reproducible` in every run. A
    step that has compiled parts of its own is also run `as_is`, and its backward through compiled autograd is compared
    with that. Where a step sets `.grad` to None itself, gradients are read when they have been accumulated.

    A value agrees if each element is off by no more than `rtol` times its own size plus `atol` times the largest
    element. A value outside of that is judged by rounding: eager is run thrice more, every result that a gradient
    depends on being changed in its last bit, and a value that is off by no more than a few times what that does is
    `within_noise`. So a gradient that should be zero, and consists of rounding, raises no alarm, and each of the others
    is judged by its own precision. Where the changes turn over a choice that the forward makes (the index of a largest
    element), and a gradient becomes another, it is `not_judged`.

    Args:
        step: a function without arguments. It returns the loss, alone, first in a tuple or as `loss` in a mapping,
            and `.backward()` is called on that; or it makes the backward itself. What else it returns is compared too.
            Without `params` it is a function that builds: it returns a pair, step and params, and is called anew for
            each run.
        params: a module, or leaf tensors by name. Tensors that need no gradient count as buffers.
        backward: called with what the step returned, instead of `.backward()`; what it returns is compared too.
        devices: where to run, such as `["cpu", "cuda"]`; `auto` is the accelerator. The first is the reference's; each
            other's eager run is compared with that, and all its other runs with its own eager run. Needs a function
            that builds, with an argument `device`. It should draw its data on the CPU: other devices draw otherwise.
        dtypes: in what to run, in the same way; needs an argument `dtype`. The values of parameters and buffers are
            those of the first dtype. With a finer dtype among them, eager's noise contains its rounding.
        backends: `eager` (once more, against itself), `compiled_autograd`, or what `torch.compile` takes as backend:
            a name or a function.
        against: steps of your own by name: `{"mine": torch.compile(step)}`; with parameters of its own, a pair
            `(other_step, other_params)`; where `step` builds, another function that builds. The step itself, given
            here, is run as it is, with the compiled parts it may have.
        repeats: how many calls in a row; a first call alone may be wrong, or only later ones.
        rtol: relative tolerance; with `atol`, instead of torch.testing's for the dtype, whose `atol` is taken to be no
            less than its `rtol`.
        atol: tolerance in units of the largest element.

    Raises:
        CabwError: an argument is not one of these, a device or backend is not here, or the step leaves nothing to
            compare. What a run raises is no exception of this, but stands in its column.
    """
    arguments = CompareArguments(step, params, backward, devices, dtypes, backends, against or {}, repeats, rtol, atol)
    return ParityMatrix(compare_steps(plan_of(arguments)))


class ParityMatrix:
    """Whole steps compared, parameters by runs: a heat map in a notebook, plain text elsewhere."""

    def __init__(self, matrix: StepMatrix) -> None:
        self.matrix = matrix
        """The plain data."""

    @property
    def ok(self) -> bool:
        """True only if no run raised and every value of every call agrees, by a tolerance or eager's own noise."""
        return steps.all_ok(self.matrix)

    @property
    def worst(self) -> Finding | None:
        """The value with the worst verdict and, of those, the largest error: `.run`, `.call`, `.row`."""
        return steps.worst(self.matrix)

    @property
    def summary(self) -> str:
        """The outcome in one sentence."""
        return steps.summary(self.matrix)

    @property
    def runs(self) -> tuple[str, ...]:
        """The names of the runs."""
        return tuple(run.name for run in self.matrix.runs)

    @property
    def frame(self) -> pd.DataFrame:
        """Parameters by runs: the worst verdict of all calls, `raises`, or `none` where there is nothing to judge."""
        return steps_table.matrix_frame(self.matrix)

    @property
    def details(self) -> pd.DataFrame:
        """A row for each value of each call: errors, eager's noise, the first wrong element on both sides."""
        return steps_table.details_frame(self.matrix)

    @property
    def raised(self) -> dict[str, str]:
        """The first exception of each run that raised one, by the run's name."""
        errors = {run.name: next(iter(steps.raised(run)), "") for run in self.matrix.runs}
        return {name: text for name, text in errors.items() if text}

    @property
    def differences(self) -> list[str]:
        """A sentence for each value that differs and each exception, worst first."""
        return finding_lines(self.matrix)

    def __getitem__(self, run: str) -> ParityReport:
        return self.report(run)

    def report(self, run: str, call: int | None = None) -> ParityReport:
        """One run by its name: the worst of all calls, or one call.

        Raises:
            CabwError: there is no such run or call.
        """
        step_run = next((each for each in self.matrix.runs if each.name == run), None)
        if step_run is None or (call is not None and call not in range(self.matrix.repeats)):
            names = ", ".join(map(repr, self.runs))
            raise CabwError(
                f"there is no run {run!r}" if step_run is None else f"run {run!r} has no call {call}",
                expected=f"one of {names}, and a call from 0 to {self.matrix.repeats - 1}",
            )
        return ParityReport(steps.report(self.matrix, step_run, call))

    def __repr__(self) -> str:
        return matrix_text(self.matrix)

    def _repr_html_(self) -> str:
        return html.matrix_html(self.matrix)
