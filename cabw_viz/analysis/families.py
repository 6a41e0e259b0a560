"""What work an autograd node does, told by its kind and its name: matrix products, norms, views and so on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal, get_args

from cabw_viz.record.kinds import AutogradKind
from cabw_viz.record.model import AutogradNode

Family = Literal["matmul", "norm", "pointwise", "loss", "custom", "compiled", "hook", "check", "view", "parameter"]
"""`hook` and `check` are nodes of the captured graph alone."""

FAMILIES: tuple[Family, ...] = get_args(Family)

FAMILY_OF_KIND: dict[AutogradKind, Family] = {
    "graph_root": "loss",
    "custom_function": "custom",
    "cpp_function": "custom",
    "aot_backward": "compiled",
    "copy_slices": "view",
    "accumulate_grad": "parameter",
}
"""Of PyTorch's own nodes the name tells; those here are told by their kind."""

_VIEWS = (
    "View|UnsafeView|Transpose|T|Permute|Expand|Clone|Copy|Split|SplitWithSizes|Reshape|ReshapeAlias|Slice|Select|"
    "Squeeze|Unsqueeze|Alias|AsStrided|Cat|Stack|ToCopy|Unbind|Detach|Unfold|Narrow|Flatten|Unflatten|NewZeros|"
    "NewEmpty|Zeros|ZerosLike|Empty|EmptyLike|EmptyStrided|Full|FullLike|NewEmptyStrided|LiftFreshCopy"
)
FAMILY_OF_NAME: dict[Family, str] = {
    "matmul": r"^(Addmm|Mm|Bmm|Baddbmm|Addbmm|Mv|Dot|.*Conv.*|Linear|.*Attention.*)",
    "norm": r"(Norm|Softmax)",
    "loss": r"(Loss|Embedding|Gather|Index)",
    "view": rf"^({_VIEWS})(Backward|$)",
}
"""Regular expressions that JavaScript reads alike; the first that matches counts, and `pointwise` where none does."""


def family_of(node: AutogradNode) -> Family:
    """The family of an autograd node."""
    family = FAMILY_OF_KIND.get(node.kind)
    if family is not None:
        return family
    return next((family for family, name in FAMILY_OF_NAME.items() if re.search(name, node.name)), "pointwise")


BACKGROUND: frozenset[Family] = frozenset({"check", "view", "parameter"})
"""A group has the colour of one of these only where it has no other nodes: a linear layer is a product, although most
of its nodes are views and accumulations."""


def family_of_group(nodes: Iterable[AutogradNode]) -> Family:
    """The family of most of some nodes, see `BACKGROUND`; of two as common, the one that stands first in `FAMILIES`."""
    counts = Counter(map(family_of, nodes))
    foreground = [family for family in FAMILIES if counts[family] and family not in BACKGROUND]
    return max(foreground or FAMILIES, key=lambda family: counts[family])
