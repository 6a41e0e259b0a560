"""Which of a node's gradients a hook on a tensor sees: the tensor's own `output_nr`."""

from __future__ import annotations

import pytest
import torch

import cabw_viz


@pytest.mark.parametrize("run", ["eager", "compiled"])
def test_a_hook_sees_the_gradient_of_its_tensor(run):
    weight = torch.randn(6, 4, requires_grad=True)
    wanted = {}
    with cabw_viz.capture({"weight": weight}, run=run) as session:
        loss = 0.0
        for name, parts in {"unbind": weight.sin().unbind(), "chunk": (weight * 2).chunk(3)}.items():
            for place in (2, 0):

                def hook(grad):
                    return grad * 1.0

                hook.__qualname__ = f"{name} {place}"
                wanted[hook.__qualname__] = parts[place].output_nr
                parts[place].register_hook(hook)
            # Two gradients from one node for each part: where they come from does not tell them apart.
            loss = loss + torch.stack(list(parts)).prod()
        loss.backward()
    hooks = [hook for node in session[0].record.autograd_nodes for hook in node.hooks]
    assert {hook.name: hook.input for hook in hooks} == wanted
    assert len(set(wanted.values())) == 2
    drawing = session[0].graph("autograd").drawing
    for node in session[0].record.autograd_nodes:
        for place, hook in enumerate(node.hooks):
            box = f"n{node.number}_hook_{place}"
            (into,) = [arrow for arrow in drawing.arrows if arrow.target == box]
            assert f"to input {hook.input} of {node.name}" in into.tooltip


def test_a_hook_on_a_node_sees_all_of_them():
    weight = torch.randn(4, requires_grad=True)
    with cabw_viz.capture({"weight": weight}) as session:
        out = weight.sin()
        out.grad_fn.register_prehook(lambda grads: grads)
        out.sum().backward()
    (hook,) = [hook for node in session[0].record.autograd_nodes for hook in node.hooks]
    assert (hook.kind, hook.input) == ("pre_hook", None)
