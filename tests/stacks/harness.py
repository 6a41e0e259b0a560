"""Trains a stack without the tool and with it, and says what differs.

`python -m tests.stacks.harness STACK FOLDER RANK MODE` is one process of a distributed stack; it writes what it has
seen to `FOLDER/RANK.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import cabw_viz
from cabw_viz.errors import CabwError
from tests.stacks.state import differences, state_of
from tests.stacks.table import STACKS, Training

STEPS = 5
CAPTURED = 1
"""The step that is captured; three more follow on those that look at it."""


def lower(capture: Any) -> None:
    lowered = capture.lower()
    lowered.gradients()
    lowered(*lowered.example_inputs())


CALLS: dict[str, Callable[[Any], Any]] = {
    "parity": lambda capture: capture.parity(),
    "parity in float64": lambda capture: capture.parity(dtype="float64"),
    "replay": lambda capture: capture.replay(),
    "divergence": lambda capture: capture.divergence(),
    "lower": lower,
    "audit": lambda capture: capture.audit(),
    "times": lambda capture: capture.times(1),
}

Call = Callable[[Any, Training], None]
"""What is done with a capture of a step, between its backward and the optimizer's step."""


def trained(name: str, call: Call | None) -> list[dict[str, Any]]:
    """The state after each step.

    Args:
        name: of the stack.
        call: what to do with the capture of step `CAPTURED`; None for a training without the tool.
    """
    training = STACKS[name].build()
    torch.manual_seed(1)
    states = []
    for index in range(STEPS):
        if training.optimizer is not None:
            training.optimizer.zero_grad()
        if call is not None and index == CAPTURED:
            with cabw_viz.capture(training.model, **STACKS[name].options) as session:
                loss = _backward(training, index)
            for capture in session:
                call(capture, training)
        else:
            loss = _backward(training, index)
        if training.optimizer is not None:
            training.optimizer.step()
        states.append({"loss": loss, **state_of(training.model, training.optimizer)})
    return states


def watched_faults(name: str) -> list[str]:
    """What goes wrong in a stack of which each step is watched without a trace; nothing where all is as without."""
    plain = trained(name, None)
    training = STACKS[name].build()
    options = {key: value for key, value in STACKS[name].options.items() if key != "run"}
    torch.manual_seed(1)
    states, faults = [], []
    for index in range(STEPS):
        if training.optimizer is not None:
            training.optimizer.zero_grad()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with cabw_viz.capture(training.model, trace=False, **options) as session:
                loss = _backward(training, index)
        faults += [f"warned: {each.message}" for each in caught if issubclass(each.category, cabw_viz.CabwWarning)]
        faults += [f"step {index}: {outcome}" for outcome in session.events["outcome"] if outcome == "failed"]
        if not len(session) or not all(capture._state.has_reference for capture in session):  # a test
            faults.append(f"step {index} was not watched: {session!r}")
        if training.optimizer is not None:
            training.optimizer.step()
        states.append({"loss": loss, **state_of(training.model, training.optimizer)})
    return [*faults, *differences_of(plain, states)]


def _backward(training: Training, index: int) -> float:
    with training.around():
        loss = training.loss(index)
        loss.backward()
    return loss.item()


class Observed:
    """Makes calls of a capture, and notes how each went and what it has changed."""

    def __init__(self, name: str) -> None:
        self.stack = STACKS[name]
        self.faults: list[str] = []
        self.outcomes: dict[str, str] = {}

    def make(self, calls: dict[str, Callable[[Any], Any]]) -> Call:
        """A call for `trained` that makes all of these, one behind the other."""

        def call(capture: Any, training: Training) -> None:
            for name, function in calls.items():
                before = state_of(training.model, training.optimizer, identity=True)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    self.outcomes[name] = outcome = _outcome(function, capture)
                after = state_of(training.model, training.optimizer, identity=True)
                self.faults += [f"{name} changed {each}" for each in differences(before, after)]
                self.faults += [
                    f"{name} warned: {each.message}"
                    for each in caught
                    if issubclass(each.category, cabw_viz.CabwWarning)
                ]
                self._check(name, outcome)

        return call

    def _check(self, name: str, outcome: str) -> None:
        refused = self.stack.refused.get(name, self.stack.refused.get("*", ""))
        is_expected = refused in outcome if refused else outcome == "ok"
        if not is_expected:
            self.faults.append(f"{name}: {outcome}, where {refused or 'ok'} was expected")


def _outcome(function: Callable[[Any], Any], capture: Any) -> str:
    try:
        result = function(capture)
    except CabwError as error:
        return f"refused: {error}"
    except Exception as error:  # noqa: BLE001  # any other error is a fault that the report names
        return f"raised {type(error).__name__}: {error}"
    return "ok" if getattr(result, "ok", True) else f"not in order: {result}"


def faults_of(name: str, calls: dict[str, Callable[[Any], Any]], *, apart: bool = False) -> list[str]:
    """What goes wrong in a stack; nothing where all is as without the tool.

    Args:
        name: of the stack.
        calls: the calls to make.
        apart: train anew for each call, instead of making all of them on one capture.
    """
    plain = trained(name, None)
    if differences_of(plain, trained(name, None)):
        return [f"{name} does not train the same twice: {differences_of(plain, trained(name, None))[0]}"]
    observed = Observed(name)
    for chosen in [{key: value} for key, value in calls.items()] if apart else [calls]:
        states = trained(name, observed.make(chosen))
        observed.faults += [f"after {', '.join(chosen)}: {each}" for each in differences_of(plain, states)]
    if not observed.outcomes:
        observed.faults.append("nothing was captured")
    return observed.faults


def differences_of(plain: list[dict[str, Any]], states: list[dict[str, Any]]) -> list[str]:
    """What differs between two trainings."""
    pairs = enumerate(zip(plain, states, strict=True))
    return [f"step {index}: {each}" for index, (one, other) in pairs for each in differences(one, other)]


# ----------------------------------------------------------------------------------------------- processes of their own


def faults_in_processes(name: str, folder: Path, mode: str, seconds: float = 120) -> list[str]:
    """`faults_of` a distributed stack, each rank in a process of its own, within a time limit.

    Args:
        name: of the stack.
        folder: an empty one.
        mode: `together`, `apart`, `watched` (see `watched_faults`) or `gradients` (see `local_gradient_faults`).
        seconds: after which all of them are killed.
    """
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.stacks.harness", name, str(folder)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), mode], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(STACKS[name].ranks)
    ]
    faults = []
    for rank, process in enumerate(processes):
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            for each in processes:
                each.kill()
            return [f"rank {rank} did not end within {seconds} s"]
        result = folder / f"{rank}.json"
        if not result.exists():
            return [f"rank {rank} ended with {process.returncode}: {output[-3000:]}"]
        faults += [f"rank {rank}: {each}" for each in json.loads(result.read_text())]
    return faults


def main(name: str, folder: str, rank: str, mode: str) -> None:
    """One rank."""
    import torch.distributed as dist

    from tests.stacks.local_gradients import local_gradient_faults

    store = dist.FileStore(f"{folder}/store", STACKS[name].ranks)
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=STACKS[name].ranks)
    if mode in ("gradients", "watched"):
        faults = local_gradient_faults(name) if mode == "gradients" else watched_faults(name)
    else:
        faults = faults_of(name, CALLS, apart=mode == "apart")
    dist.barrier()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(faults))
    sys.stdout.flush()
    os._exit(0)  # destroying a gloo group right behind a collective may never return


if __name__ == "__main__":
    main(*sys.argv[1:])
