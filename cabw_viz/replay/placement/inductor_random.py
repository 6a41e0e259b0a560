"""The random numbers that Inductor's kernels draw on the CPU, drawn again.

Inductor keeps one seed for each draw, and a backward that recomputes a dropout draws its mask again from the seed. The
operators that stand for this in a graph (`prims.inductor_random`) draw other numbers when they are called in eager:
theirs is a formula for tracing alone (torch/_inductor/inductor_prims.py). A kernel draws from Philox 4x32-10, with the
seed as key and the position of the element as counter (`normalized_rand_cpu` and others in
torch/csrc/inductor/cpp_prefix.h, ATen/core/PhiloxRNGEngine.h).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.model import CaptureRecord

_BITS = 0xFFFFFFFF
_KEY_STEP = 0x9E3779B9
_OTHER_KEY_STEP = 0xBB67AE85
_FACTOR, _OTHER_FACTOR = 0xD2511F53, 0xCD9E8D57
_ROUNDS = 10


def _philox(seed: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first two words of 32 bits at each of the positions 0 to count - 1: int64, shape (count,)."""
    key, other_key = seed & _BITS, 0
    first = torch.arange(count, device=seed.device)
    second = third = fourth = torch.zeros_like(first)
    for _ in range(_ROUNDS):
        one, other = first * _FACTOR, third * _OTHER_FACTOR  # modulo 2**64
        first, second, third, fourth = (
            ((other >> 32) & _BITS) ^ second ^ key,
            other & _BITS,
            ((one >> 32) & _BITS) ^ fourth ^ other_key,
            one & _BITS,
        )
        key, other_key = (key + _KEY_STEP) & _BITS, (other_key + _OTHER_KEY_STEP) & _BITS
    return first, second


def _uniform(words: torch.Tensor) -> torch.Tensor:
    return (words & 0x7FFFFFFF).to(torch.float32) * 4.6566127342e-10


def _random(size: Sequence[int], seed: torch.Tensor, mode: str, **_: object) -> torch.Tensor:
    """`prims.inductor_random`: float32, uniform in [0, 1) or normal."""
    first, second = _philox(seed, math.prod(size))
    if mode == "rand":
        return _uniform(first).reshape(tuple(size))
    radius = (1 - _uniform(first)).log().to(torch.float64) * -2.0
    angle = (1 - _uniform(second)).to(torch.float64) * (2.0 * math.pi)
    return (radius.sqrt() * angle.cos()).to(torch.float32).reshape(tuple(size))


def _randint(low: int, high: int, size: Sequence[int], seed: torch.Tensor) -> torch.Tensor:
    """`prims.inductor_randint`: int64 from low to high - 1, from an unsigned number of 64 bits."""
    first, second = _philox(seed, math.prod(size))
    span = high - low
    rest = second % span
    for _ in range(32):  # there is no unsigned remainder of 64 bits
        rest = _sum_modulo(rest, rest, span)
    return (_sum_modulo(rest, first % span, span) + low).reshape(tuple(size))


def _sum_modulo(one: torch.Tensor, other: torch.Tensor, span: int) -> torch.Tensor:
    """The remainder of a sum of two remainders, which may exceed int64."""
    return torch.where(one >= span - other, one - (span - other), one + other)


def _seeds(count: int, device: torch.device) -> torch.Tensor:
    """`prims.inductor_seeds`, as `RandomSeeds` in torch/_inductor/ir.py draws them."""
    limits = torch.iinfo(torch.int64)
    return torch.randint(limits.min, limits.max, [count], device=device)


_DRAWS: Mapping[str, Callable[..., torch.Tensor]] = {
    "prims.inductor_random.default": _random,
    "prims.inductor_randint.default": _randint,
    "prims.inductor_seeds.default": _seeds,
}


def draw_of(target: Any) -> Callable[..., torch.Tensor] | None:
    """What draws the numbers of a graph node's target as Inductor's kernels do; None for any other target."""
    return _DRAWS.get(str(target)) if torch_adapter.is_operator(target) else None


def drawn(draw: Callable[..., torch.Tensor], args: Sequence[Any], options: Mapping[str, Any], dtype: Any) -> Any:
    """The numbers of one draw, below modes: rounded or changed, a number would fall on the other side of a threshold.

    Args:
        draw: as `draw_of` returns it.
        args: of the call.
        options: of the call.
        dtype: of the result, where that is floating point; None for float32.
    """
    is_plain = all(type(each) is torch.Tensor for each in args if isinstance(each, torch.Tensor))
    with torch_adapter.below_modes() if is_plain else nullcontext():
        numbers = draw(*args, **options)
        return numbers.to(dtype) if dtype is not None and numbers.is_floating_point() else numbers


def draw_as_inductor(graph: torch.fx.GraphModule) -> None:
    """Replace the operators of a graph that is to be compiled by another backend than Inductor."""
    for node in graph.graph.nodes:
        node.target = draw_of(node.target) or node.target
    graph.recompile()


def check_draws(record: CaptureRecord, graph: torch.fx.GraphModule) -> None:
    """Refuse a graph whose run has drawn numbers on an accelerator, where kernels draw in another way.

    Raises:
        CabwError: names the graph node.
    """
    devices = {row.device for row in record.inputs if not row.device.startswith("cpu")}
    for node, row in zip(graph.graph.nodes, record.graph_nodes, strict=True):
        if devices and draw_of(node.target) is not None:
            raise CabwError(
                f"graph node {row.name} stands for random numbers that Inductor's kernels have drawn on "
                f"{min(devices)}; they cannot be drawn again",
                expected="random numbers drawn on the CPU, or by PyTorch's own generators",
                try_="torch._inductor.config.fallback_random = True, with which compiled code draws as eager code does",
            )
