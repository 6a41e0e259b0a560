"""Runs of a step: several calls in a row in one mode, from the state in which the first run began."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.replay.steps.observing import CallResult, observe
from cabw_viz.replay.steps.parameter_state import ParameterState
from cabw_viz.replay.steps.step_plan import EAGER_STEP, Plan, StepFactory, StepMode, Variant
from cabw_viz.runtime.random_state import RandomState

T = TypeVar("T")


class StepRunner:
    """Runs the steps of a plan, each run from the same state.

    Args:
        plan: what to run, and how often.
        random: the random numbers with which each run begins.
    """

    def __init__(self, plan: Plan, random: RandomState) -> None:
        self.plan = plan
        self._random = random
        self._start: dict[str, torch.Tensor] | None = None
        self._own_backwards: list[bool | None] = [None] * plan.repeats
        self._at_accumulation = False

    def reference(self, variant: Variant) -> list[CallResult]:
        """The calls of the step in eager. Those of the first variant decide how all further runs are observed.

        Raises:
            CabwError: the step ran and left neither a gradient nor a result.
        """
        results = self.run(EAGER_STEP, self.plan.factory, variant, _copy)
        if variant == self.plan.variants[0]:
            if not self._at_accumulation and any(each.raised or each.without_gradient for each in results):
                results = self._clearing(results, variant)
            self._own_backwards = [result.own_backward for result in results]
        _check_results(results)
        return results

    def _clearing(self, results: list[CallResult], variant: Variant) -> list[CallResult]:
        """The calls, observed at accumulation too if that shows more: the step clears `.grad` itself."""
        self._at_accumulation = True
        closer = self.run(EAGER_STEP, self.plan.factory, variant, _copy)
        self._at_accumulation = any(each.cleared for each in closer)
        return closer if self._at_accumulation else results

    def run(
        self, mode: StepMode, factory: StepFactory, variant: Variant, outcome: Callable[[int, CallResult], T]
    ) -> list[T]:
        """Call a step several times in a row, from the state in which the first run began; the outcome of each call."""
        torch_adapter.reset_dynamo()
        self._random.restore()
        step = factory(variant)
        state = ParameterState(step)
        outcomes = []
        try:
            if self._start is None:
                self._start = state.values()
            state.load(self._start)
            self._random.restore()
            function = mode.prepare(step)
            for index, own_backward in enumerate(self._own_backwards):
                with mode.context():
                    result = observe(
                        step, function, self.plan.backward, own_backward, at_accumulation=self._at_accumulation
                    )
                outcomes.append(outcome(index, result))
        finally:
            state.restore()
        return outcomes


@contextmanager
def captured_call(plan: Plan, call: int, capture: Callable[[Any], AbstractContextManager[T]]) -> Iterator[T]:
    """Run a step up to a call, and that call inside of a capture; a context that gives what the capture gave.

    At its end parameters, buffers, `.grad`, training flags, optimizers and random numbers are as before.

    Args:
        plan: of the comparison.
        call: the index of the call to capture.
        capture: returns the context for the call, given the step's parameters.
    """
    random = RandomState()
    step = plan.factory(plan.variants[0])
    state = ParameterState(step)
    try:
        for _ in range(call):
            observe(step, step.function, plan.backward, None)
        with capture(step.params) as session:
            observe(step, step.function, plan.backward, None)
        yield session
    finally:
        state.restore()
        random.restore()
        torch_adapter.reset_dynamo()


def _copy(_: int, result: CallResult) -> CallResult:
    return result.copy()


def _check_results(calls: list[CallResult]) -> None:
    if any(call.raised or any(kind in ("gradient", "result") for kind, _ in call.values) for call in calls):
        return
    raise CabwError(
        "the step left no gradient in any of the parameters",
        expected="a loss that needs a gradient of them, or a step that calls backward itself",
        try_="compare(step, model), where step() returns the loss of that very model",
    )
