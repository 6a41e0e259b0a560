"""The fixed words of the record."""

from typing import Literal

AutogradKind = Literal[
    "graph_root", "builtin", "custom_function", "cpp_function", "copy_slices", "aot_backward", "accumulate_grad"
]
"""What an autograd node is: the engine's root; a node of PyTorch's own; a Python `autograd.Function`; a C++ one;
an in-place write to a view; the backward of a compiled region; the accumulation into a leaf's `.grad`."""

GraphKind = Literal[
    "placeholder",  # inputs, sizes, scalars, hooks, packed_data
    "lifted_input",  # inputs[i]
    "lifted_size",  # sizes[i], and its unwrapping to an int
    "lifted_scalar",  # scalars[i]
    "lifted_object",  # hooks[i], packed_data[i]: a hook, the ctx of a custom Function, packed saved data
    "backward_call",  # the opaque call of an autograd node: ops.AddmmBackward0, call_backward
    "aot_op",  # an op of a compiled region's backward, pasted into the graph, with its prologue and epilogue
    "aten_op",  # an operator of the lowered graph
    "copy_slices_prologue",
    "copy_slices_epilogue",
    "validate_outputs",
    "gradient_sum",
    "hook",
    "unpack_hook",
    "accumulate_grad",
    "getitem",  # picks one result of a call
    "final_callbacks",
    "output",
    "other",  # an op that the trace recorded outside these, e.g. one that a hook-like caller ran on a dummy
]

PLUMBING: frozenset[GraphKind] = frozenset(
    {
        "placeholder",
        "lifted_input",
        "lifted_size",
        "lifted_scalar",
        "lifted_object",
        "getitem",
        "final_callbacks",
        "output",
    }
)
"""Graph nodes that carry values and compute nothing: about four in five. Views fold them unless asked not to."""

HookKind = Literal[
    "tensor_pre_hook", "cpp_tensor_pre_hook", "pre_hook", "post_hook", "post_acc_grad_hook", "unpack_hook"
]

Outcome = Literal["captured", "watched", "cache_hit", "failed", "bypassed"]
"""What became of a backward call: traced, and its graph kept; watched in eager under `trace=False`, without a graph; \
answered by an earlier graph; its trace failed; left alone."""

Verdict = Literal[
    "bitwise",
    "within_tolerance",
    "within_noise",
    "metadata",
    "unexpected",
    "not_judged",
    "not_reproducible",
    "mismatch",
    "missing",
    "nonfinite",
]

GOOD: frozenset[Verdict] = frozenset({"bitwise", "within_tolerance", "within_noise"})
"""The verdicts with which a comparison is in order."""

SEVERITY: tuple[Verdict, ...] = (
    "bitwise",
    "within_tolerance",
    "within_noise",  # outside the tolerance, and explained by rounding; docs/parity.md says how that is decided
    "metadata",
    "unexpected",
    "not_judged",  # rounding may have turned a choice over (an index, a mask), so that the sides computed two things
    "not_reproducible",  # runs of the same graph on the same inputs give different gradients, beyond rounding
    "mismatch",
    "missing",
    "nonfinite",
)
"""The verdicts from harmless to worst."""

Compared = Literal["gradient", "loss", "result", "buffer"]
"""What was compared: a gradient; a step's loss; another value that a step returned; a buffer after the step."""

Phase = Literal["initial_trace", "graph_pass", "execution"]
"""When metadata was read: on a dummy while the tracer ran; from a graph node's deleted `meta`; while the graph ran."""

Toucher = Literal["user", "tracer", "pass", "kernel"]
"""Which code read it: a frame of user code on the stack; PyTorch's own tracer; a compiler function or graph pass; C++
code below an op or a backward formula, with no Python frame in between."""

MissingReason = Literal[
    "requires_grad",  # it is False
    "not_leaf",  # it is computed from others, and keeps no `.grad`
    "inputs",  # this backward reaches it, and was asked for other inputs
    "only",  # a backward of the same forward gave it its gradient, and `only=` left that out
    "not_called",  # its module was not called in the forward of this loss
    "no_grad",  # its module was called, or it was used, under no_grad
    "inference_mode",
    "detached",  # the way to the loss passes what ends a history: detach, .data, an integer, a comparison, .item()
    "not_in_loss",  # it was used, and this loss does not depend on the result
    "not_used",  # its module was called, and used it in no operation
    "undefined",  # its node was reached, and got None for a gradient
    "set_to_none",  # it got a gradient, and `.grad` was set to None later
    "not_known",
    "zero",  # it has a gradient, which is zero everywhere
]
"""Why a parameter has no gradient."""
