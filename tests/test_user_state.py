"""What belongs to the user is as before after every later call: planted changes are reported, and put back."""

import gc
import random
import warnings
import weakref
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.errors import CabwError, CabwWarning
from cabw_viz.replay.user_state import tensor_state
from cabw_viz.surfaces.capture import Capture

CALLS = {
    "replay": lambda capture: capture.replay(),
    "parity": lambda capture: capture.parity(),
    "parity in float64": lambda capture: capture.parity(dtype="float64"),
    "divergence": lambda capture: capture.divergence(),
    "audit": lambda capture: capture.audit(),
    "times": lambda capture: capture.times(1),
}
RUN_THE_GRAPH = {"replay", "parity", "divergence", "audit", "times", "lower"}
"""Public methods of a capture that run or lower its graph."""

READ_THE_RECORD = {
    "error", "flow", "gradients", "graph", "has_state", "html", "inspect", "last_divergence", "last_parity", "memory",
    "missing", "nodes", "nonfinite", "outline", "record", "results", "to_html", "touches",
}  # fmt: skip


class Net(nn.Module):
    """A module with a buffer, attributes of several kinds, and a function in its backward that a test may replace."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.register_buffer("average", torch.zeros(4))
        self.steps, self.history, self.names = 0, [1], {"a": 1}
        self.table = torch.arange(3.0)

    def forward(self, x):
        hidden = self.first(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: self.during_backward(gradient))
        return self.second(hidden.tanh())

    def during_backward(self, gradient):
        """What the hook does; a test sets another on the class while a later call runs."""


def captured(net):
    torch.manual_seed(0)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    with cabw_viz.capture(net) as session:
        net(torch.randn(5, 3)).square().mean().backward()
    return session[0]


def flip_a_bit(net):
    net.first.weight.data.view(torch.int32)[1, 2] ^= 1


def write_in_place(net):
    with torch.no_grad():
        net.first.weight.add_(1)


def swap_a_parameter(net):
    net.second.weight = nn.Parameter(net.second.weight.detach().clone())


def resize_a_storage(net):
    net.second.bias.untyped_storage().resize_(0)


def assign_data(net):
    net.second.bias.data = torch.zeros(2)


def set_requires_grad(net):
    net.first.bias.requires_grad_(False)


def replace_a_gradient(net):
    net.first.bias.grad = torch.zeros(4)


def drop_a_gradient(net):
    net.first.bias.grad = None


def write_to_a_gradient(net):
    net.first.bias.grad.data.mul_(2)


def write_to_a_buffer(net):
    net.average.add_(1)


def replace_a_buffer(net):
    net.average = torch.ones(4)


def write_to_a_tensor_attribute(net):
    net.table.data[0] = 7


def set_an_attribute(net):
    net.steps += 1


def add_an_attribute(net):
    net.extra = 3


def delete_an_attribute(net):
    del net.steps


def append_to_a_list(net):
    net.history.append(2)


def change_a_dict(net):
    net.names["a"] = 2


def set_training(net):
    net.first.training = False


def replace_a_submodule(net):
    net.first = nn.Linear(3, 4)


def add_a_hook(net):
    net.register_forward_hook(lambda *_: None)


def change_the_class(net):
    net.first.__class__ = type("Other", (nn.Linear,), {})


def change_the_default_dtype(_):
    torch.set_default_dtype(torch.float64)


def change_dynamo(_):
    torch._dynamo.config.cache_size_limit = 77


def switch_anomaly_mode_on(_):
    torch.autograd.set_detect_anomaly(mode=True)


def use_deterministic_algorithms(_):
    torch.use_deterministic_algorithms(mode=True)


PLANTED = {
    flip_a_bit: "first.weight has other values",
    write_in_place: "first.weight has other values",
    swap_a_parameter: "second._parameters has other items ('weight')",
    resize_a_storage: "second.bias has a storage of another size",
    assign_data: "second.bias has other memory",
    set_requires_grad: "first.bias.requires_grad was True",
    replace_a_gradient: "first.bias.grad is another tensor",
    drop_a_gradient: "first.bias.grad is another tensor",
    write_to_a_gradient: "first.bias.grad has other values",
    write_to_a_buffer: "average has other values",
    replace_a_buffer: "_buffers has other items ('average')",
    write_to_a_tensor_attribute: "table has other values",
    set_an_attribute: "the attribute steps was set",
    add_an_attribute: "the attribute extra was set",
    delete_an_attribute: "the attribute steps was set",
    append_to_a_list: "history has other items (1)",
    change_a_dict: "names has other items ('a')",
    set_training: "the attribute first.training was set",
    replace_a_submodule: "_modules has other items ('first')",
    add_a_hook: "_forward_hooks has other items",
    change_the_class: "module first is a Other and was a Linear",
    change_the_default_dtype: "the default dtype changed",
    change_dynamo: "Dynamo's settings changed",
    switch_anomaly_mode_on: "anomaly detection changed",
    use_deterministic_algorithms: "deterministic algorithms changed",
}


def everything(net):
    """Every value, object and setting that a training step depends on, read by other means than the package's."""
    state = {"class": [type(module) for module in net.modules()], "modules": list(map(id, net.modules()))}
    for name, tensor in (*net.named_parameters(), *net.named_buffers(), ("table", net.table)):
        grad = tensor.grad
        state[name] = (
            id(tensor), tensor.untyped_storage()._cdata, tensor.untyped_storage().nbytes(), tensor._version,
            tensor.requires_grad, tensor.tolist(), id(grad), None if grad is None else grad.tolist(),
        )  # fmt: skip
    plain = {name: repr(value) for name, value in vars(net).items() if name in ("history", "names", "steps", "extra")}
    state |= {"attributes": plain, "training": [module.training for module in net.modules()]}
    state["hooks"] = [len(module._forward_hooks) for module in net.modules()]
    state["settings"] = (
        torch.get_default_dtype(), torch._dynamo.config.get_config_copy(), torch.is_anomaly_enabled(),
        torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    numpy_state = np.random.get_state()  # the one that hooks draw from
    state["random"] = (torch.get_rng_state().tolist(), random.getstate(), str(numpy_state))
    return state


@pytest.mark.parametrize("change", PLANTED, ids=lambda change: change.__name__)
def test_a_planted_change_is_reported_by_name_and_put_back(change, monkeypatch):
    net = Net()
    capture, before = captured(net), None
    before = everything(net)
    monkeypatch.setattr(Net, "during_backward", lambda self, _: change(self))
    with pytest.warns(CabwWarning, match="a fault of cabw_viz or of a hook") as warned:
        capture.replay()
    monkeypatch.undo()
    (message,) = [str(each.message) for each in warned if issubclass(each.category, CabwWarning)]
    assert PLANTED[change] in message
    assert everything(net) == before


@pytest.mark.parametrize("call", CALLS)
def test_every_call_is_guarded(call, monkeypatch):
    net = Net()
    capture = captured(net)
    before = everything(net)
    monkeypatch.setattr(Net, "during_backward", lambda self, _: set_an_attribute(self) or write_in_place(self))
    with pytest.warns(CabwWarning, match=r"first\.weight has other values"):
        CALLS[call](capture)
    monkeypatch.undo()
    assert everything(net) == before


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_raises_is_guarded(call, monkeypatch):
    net = Net()
    capture = captured(net)
    before = everything(net)

    def fail(self, _):
        set_an_attribute(self)
        raise ValueError("of the user's")

    monkeypatch.setattr(Net, "during_backward", fail)
    with pytest.warns(CabwWarning, match="steps was set"), pytest.raises(CabwError, match="of the user's"):
        CALLS[call](capture)
    monkeypatch.undo()
    assert everything(net) == before


def test_lowering_is_guarded(monkeypatch):
    net = Net()
    capture = captured(net)
    before = everything(net)
    monkeypatch.setattr(Net, "during_backward", lambda self, _: set_an_attribute(self))
    with pytest.warns(CabwWarning, match="steps was set"):
        lowered = capture.lower()
    monkeypatch.undo()
    assert everything(net) == before
    lowered.gradients()
    lowered(*lowered.example_inputs())
    assert everything(net) == before


def test_a_lowered_graph_is_guarded_when_it_is_called():
    net = Net()
    capture = captured(net)
    lowered = capture.lower()
    before = everything(net)
    with lowered.graph.inserting_before(lowered.graph.output_node()):
        lowered.graph.call_function(lambda: set_an_attribute(net))
    lowered.recompile()
    for call in (lowered.gradients, lambda: lowered(*lowered.example_inputs())):
        with pytest.warns(CabwWarning, match="steps was set"):
            call()
        assert everything(net) == before


@pytest.mark.parametrize("call", CALLS)
def test_nothing_is_reported_where_nothing_changed(call):
    net = Net()
    capture = captured(net)
    before = everything(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CALLS[call](capture)
    assert everything(net) == before


def test_random_numbers_that_a_hook_draws_are_put_back_in_silence(monkeypatch):
    net = Net()
    capture = captured(net)
    before = everything(net)

    def draw(*_):
        return torch.rand(3), random.random(), np.random.rand()  # as users do

    monkeypatch.setattr(Net, "during_backward", lambda self, _: draw() and None)
    capture.parity()
    assert everything(net) == before


def test_every_public_method_of_a_capture_is_known_to_run_the_graph_or_not():
    """A new method that runs the graph belongs into `CALLS`, and into the stacks' harness."""
    public = {name for name in vars(Capture) if not name.startswith("_")}
    assert public == RUN_THE_GRAPH | READ_THE_RECORD
    assert {call.partition(" ")[0] for call in CALLS} | {"lower"} == RUN_THE_GRAPH


def test_modules_that_the_block_calls_are_guarded_without_being_given(monkeypatch):
    net, teacher = Net(), Net()
    monkeypatch.setattr(Net, "during_backward", lambda self, _: None)
    with cabw_viz.capture() as session:
        (net(torch.ones(2, 3)) - teacher(torch.ones(2, 3)).detach()).square().sum().backward()
    before = everything(net), everything(teacher)
    monkeypatch.setattr(Net, "during_backward", lambda self, _: set_an_attribute(teacher))
    with pytest.warns(CabwWarning, match=r"\(Net\)\.steps was set"):
        session[0].replay()
    assert (everything(net), everything(teacher)) == before


def test_leaves_without_a_module_are_guarded():
    weight, calls = torch.ones(3, requires_grad=True), []

    def hook(_):
        if calls:
            weight.grad.data.add_(1)
        calls.append(1)

    with cabw_viz.capture({"weight": weight}) as session:
        product = weight * torch.arange(3.0)
        product.register_hook(hook)
        product.sum().backward()
    with pytest.warns(CabwWarning, match=r"a leaf \(3,\)\.grad has other values"):
        session[0].parity()
    assert weight.grad.tolist() == [0, 1, 2]


def test_beyond_the_bound_a_write_is_reported_as_one_that_stays(monkeypatch):
    monkeypatch.setattr(tensor_state, "COPIED_BYTES", 0)
    monkeypatch.setattr("cabw_viz.replay.user_state.guard.COPIED_BYTES", 0)
    net = Net()
    capture = captured(net)
    monkeypatch.setattr(Net, "during_backward", lambda self, _: write_in_place(self))
    with pytest.warns(CabwWarning, match=r"first\.weight was written to in place; its values could not be put back"):
        capture.replay()


def test_a_graph_without_python_code_copies_nothing(monkeypatch):
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    with cabw_viz.capture(net) as session:
        net(torch.randn(5, 3)).sum().backward()
    budgets = []
    monkeypatch.setattr(
        tensor_state.CopyBudget, "__init__", lambda self, left: budgets.append(left) or vars(self).update(left=left)
    )
    session[0].parity()
    assert set(budgets) == {0}


def test_what_follows_an_accumulation_does_not_run_again():
    """A post-hook of the node that accumulates is there for `.grad`, as an optimizer that steps in the backward is."""
    net, steps = nn.Linear(2, 1), []
    node = net.weight.expand_as(net.weight).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: steps.append(1))
    with cabw_viz.capture(net) as session:
        net(torch.ones(1, 2)).sum().backward()
    assert len(steps) == 1
    report = session[0].parity()
    session[0].divergence()
    session[0].replay(backend="aot_eager")
    session[0].lower()
    assert len(steps) == 1
    assert report.ok
    assert "in the replay 1 post-accumulate hook did not run" in str(report)


def test_a_guard_keeps_nothing_alive():
    net = Net()
    capture = captured(net)
    capture.parity()
    capture._release()
    reference = weakref.ref(net)
    del net
    gc.collect()
    assert reference() is None


def test_an_exception_that_is_kept_keeps_no_copies(monkeypatch):
    net = Net()
    capture = captured(net)

    def fail(self, _):
        raise ValueError("of the user's")

    monkeypatch.setattr(Net, "during_backward", fail)
    with pytest.raises(CabwError) as error:
        capture.parity()
    gc.collect()
    assert error.value.__traceback__ is not None
    assert not [each for each in gc.get_objects() if type(each) is tensor_state.PartState]


def test_containers_of_the_standard_library_are_compared(monkeypatch):
    net = Net()
    net.recent, net.seen = deque([1, 2]), {1}
    capture = captured(net)
    monkeypatch.setattr(Net, "during_backward", lambda self, _: self.seen.add(2) or self.recent.append(3))
    with pytest.warns(CabwWarning, match=r"recent has other items.*seen has other items"):
        capture.replay()
    assert net.recent == deque([1, 2])
    assert net.seen == {1}
