"""A capture and every later call leave the training of every stack as it is, to the bit."""

import pytest
import torch

from tests.stacks.harness import CALLS, differences_of, faults_in_processes, faults_of, trained, watched_faults
from tests.stacks.state import state_of
from tests.stacks.table import STACKS

ALONE = [name for name, stack in STACKS.items() if not stack.ranks]
QUICK = {"ddp_python_reducer", "fsdp1", "fsdp2", "fsdp2_half_two_ranks", "tensor_parallel"}
"""Distributed stacks that `make test` runs: one of each kind, and two processes once."""
DISTRIBUTED = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.models)
    for name, stack in STACKS.items()
    if stack.ranks
]


@pytest.mark.parametrize("name", ALONE)
def test_a_stack_trains_as_without_the_tool(name):
    assert faults_of(name, CALLS) == []


@pytest.mark.parametrize("name", ALONE)
def test_a_stack_trains_as_without_the_tool_where_each_step_is_watched(name):
    assert watched_faults(name) == []


@pytest.mark.models
@pytest.mark.parametrize("name", [name for name, stack in STACKS.items() if stack.ranks])
def test_a_distributed_stack_trains_as_without_the_tool_where_each_step_is_watched(name, tmp_path):
    assert faults_in_processes(name, tmp_path, "watched") == []


@pytest.mark.models
@pytest.mark.parametrize("name", ALONE)
def test_each_call_alone_changes_nothing(name):
    assert faults_of(name, CALLS, apart=True) == []


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_a_distributed_stack_trains_as_without_the_tool(name, tmp_path):
    assert faults_in_processes(name, tmp_path, "together") == []


@pytest.mark.models
@pytest.mark.parametrize("name", [name for name, stack in STACKS.items() if stack.ranks])
def test_each_call_alone_changes_nothing_of_a_distributed_stack(name, tmp_path):
    assert faults_in_processes(name, tmp_path, "apart") == []


@pytest.mark.parametrize(
    "name",
    [
        "fsdp2_half",
        *(pytest.param(name, marks=pytest.mark.models) for name in ("fsdp1", "fsdp1_two_ranks", "fsdp2_two_ranks")),
    ],
)
def test_a_replay_gives_the_unsharded_gradients_before_they_are_reduced(name, tmp_path):
    assert faults_in_processes(name, tmp_path, "gradients") == []


# ---------------------------------------------------------------------------------------------- the harness itself


def flip_a_bit(training):
    training.model[0].weight.data.view(torch.int32)[3, 2] ^= 1


def swap_a_parameter(training):
    training.model[3].weight = torch.nn.Parameter(training.model[3].weight.detach().clone())


def resize_a_storage(training):
    training.model[3].bias.untyped_storage().resize_(1024)


def set_an_attribute(training):
    training.model[2].calls += 1


def replace_a_gradient(training):
    training.model[0].bias.grad = training.model[0].bias.grad.clone()


def move_a_buffer(training):
    training.model[2].average.data.add_(1)


def draw_a_random_number(_):
    torch.rand(())


@pytest.mark.parametrize(
    "change",
    [flip_a_bit, swap_a_parameter, resize_a_storage, set_an_attribute, replace_a_gradient, move_a_buffer,
     draw_a_random_number],
    ids=lambda change: change.__name__,
)  # fmt: skip
def test_a_call_that_changes_something_is_reported(change, monkeypatch):
    """Planted behind a call: by the comparison around it, and where it matters by the steps that follow."""
    trainings = []
    build = STACKS["norm_and_counters"].build

    def spy():
        trainings.append(build())
        return trainings[-1]

    monkeypatch.setitem(STACKS, "norm_and_counters", type(STACKS["norm_and_counters"])(spy))
    faults = faults_of("norm_and_counters", {"replay": lambda capture: (capture.replay(), change(trainings[-1]))})
    assert any(fault.startswith("replay changed") for fault in faults)
    matters = change not in (swap_a_parameter, resize_a_storage, replace_a_gradient)
    assert any(fault.startswith("after replay: step") for fault in faults) or not matters


def test_trainings_that_are_the_same_have_no_differences():
    first, second = trained("norm_and_counters", None), trained("norm_and_counters", None)
    assert differences_of(first, second) == []
    second[2]["loss"] += 1e-9
    assert [each.partition(":")[0] for each in differences_of(first, second)] == ["step 2"]


def test_the_state_says_where_memory_is_gone():
    layer = torch.nn.Linear(2, 2)
    layer.weight.untyped_storage().resize_(0)
    assert state_of(layer)[".weight"]["bits"] == "freed"
