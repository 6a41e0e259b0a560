"""Which hooks run again in a replay."""

from __future__ import annotations

from cabw_viz.record.kinds import HookKind
from cabw_viz.record.model import AutogradNode
from cabw_viz.record.options import HookPolicy


def follows_accumulation(node: AutogradNode | None, kind: HookKind) -> bool:
    """Whether a hook runs after a gradient was added to `.grad`, and is there for that `.grad` alone.

    A post-accumulate hook of the tensor, or a post-hook of the node that accumulates: optimizers that step in the
    backward. A replay accumulates nothing, so it has nothing to run them on.
    """
    return kind == "post_acc_grad_hook" or (kind == "post_hook" and node is not None and node.kind == "accumulate_grad")


def is_left_out(node: AutogradNode | None, kind: HookKind, hooks: HookPolicy) -> bool:
    """Whether a replay leaves out a hook.

    Args:
        node: the autograd node that carries it.
        kind: of the hook.
        hooks: what the user has chosen; unpacking saved tensors is part of the backward under each.
    """
    return follows_accumulation(node, kind) or (hooks != "run" and kind != "unpack_hook")
