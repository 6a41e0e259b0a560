"""Every bound by which parity, divergence and whole steps tell rounding from faults: one table.

Each entry says what it bounds, where it is used, and what the evidence for it is. The documents docs/parity.md and
docs/divergence.md quote the values by these names; a test compares the two.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Limits(NamedTuple):
    """A bound for each of the three figures of a `Distance`."""

    largest: float
    mean_square: float
    systematic: float


class Choices(NamedTuple):
    """How far choices that turn over may take a gradient."""

    norm: float
    """Norm of the difference by norm of the gradient."""
    times: float
    """Times the measured noise."""


# -------------------------------------------------------------------------------------------------------------- units

HALF_UNIT = 1e-4
"""A spacing of numbers around 1 above it is that of half precision.

Used: parity (`Precision`) and divergence, to choose between the bounds below. Evidence: it separates float16 (9.8e-4),
bfloat16 (7.8e-3) and TF32 (9.8e-4) from float32 (1.2e-7).
"""

TF32_UNIT = 2.0**-10
"""The spacing of numbers around 1 in TF32.

Used: parity, for products and convolutions in single precision on CUDA. Evidence: the format has ten explicit bits.
"""

TOLERANCE_STEPS = 2
"""How many of its smallest steps a gradient of any dtype may differ by (`step_of`), beside the tolerance.

Used: every comparison of values by torch.testing's tolerance. Evidence: subnormal numbers (below 1e-38 in float32,
below 6e-5 in float16) are rounded by this step whatever their size; two sides that round once each are a step apart.
"""

SMALLEST_SIZE = 1e-100
"""Stands for zero as the size of a float64 gradient, so that distances in units of it stay finite.

Used: parity (`distance`). Evidence: far below every gradient that is not zero, and its square is still above zero.
"""

# ------------------------------------------------------------------------------------------- sums in other orders

SUMS = 32
"""How many times what rounding does to eager another kernel may be off, in single and double precision.

Used: whole steps, times the measured noise of eager; divergence, times the distance of the nearer side from float64.
Evidence: kernels sum in other orders; inductor's kernels on the CPU were off by up to 15 times as much as eager, in
batch norms after convolutions.
"""

HALF_SUMS = 4
"""The same for whole steps in half precision.

Evidence: kernels sum in single precision there, and the noise is known from few samples; 3.5 times were seen.
"""

# ------------------------------------------------------------------------------------------------------------- parity

FULL_LIMITS = Limits(32.0, 16.0, 16.0)
"""How many times what rounding does to the float64 run a right gradient may be off, in single and double precision.

Used: parity. Evidence: kernels sum in other orders; inductor was seen to be off by 15 times as much as eager.
"""

HALF_LIMITS = Limits(4.0, 4.0, 3.0)
"""The same in half precision and TF32.

Used: parity. Evidence: kernels sum in single precision there. Eager on the CPU came to at most 0.7 of these in GPT-2
and in convolutions with batch norms; a factor of 1.01 in one kind of node came to 4.6 and 6.0 times these in bfloat16.
"""

FLOORS = Limits(1 / 2, 1 / 4, 1 / 8)
"""What rounding does at least, in units of the precision that the reference computes in.

Used: parity, where the perturbed runs show less. Evidence: one rounding changes a number by up to half a unit.
"""

SYSTEMATIC_SPREAD = 3
"""How many times its expected size (mean square / sqrt(elements)) the mean of random roundings may be.

Used: parity, along the gradient. Evidence: three standard deviations.
"""

SMALLER_PERTURBATION = 2.0**-10
"""How much smaller the second of two perturbations is, by which noise is told from jumps.

Used: parity. Evidence: a thousandth of a rounding of float32 is still a million of float64's.
"""

LEAST_PERTURBATION = 2.0**-32
"""The least perturbation of a float64 run; what rounding in float64 does is measured by it, and scaled down.

Used: parity. Evidence: the smaller of the two perturbations is then still a thousand of float64's own roundings.
"""

PROPORTION = 2.0
"""By how much two perturbations may differ, once scaled, where rounding acts in proportion.

Used: parity, divergence. Evidence: over the workloads they differed by less than 1 percent, but for masks and indices,
where it was a factor of 30 and more.
"""

INPUT_RUNS = 2
"""How many float64 runs on changed inputs a parity makes where those with changed results do not settle it.

Used: parity; what they show excuses no more than `noise_limit`. Evidence: `ctc_loss` takes the exponential of
differences of a few hundred, so that it is off by 1e-5 in float32, and changed inputs show that.
"""

INSIDE_RATIO = 4.0
"""How many times more changed inputs must show than changed results, to be taken for rounding inside of operators.

Used: parity. Evidence: 1.7 times where operators round once; 80 times and more in `ctc_loss`.
"""

INSIDE_DIRECTION = 1 / 8
"""Which part of what changed inputs show may be along the gradient: operators round inside in one direction, too.

Used: parity. Evidence: `ctc_loss` sums over time, and was off along the gradient by 0.8 of what changed inputs showed
in the mean square; the limits allow 16 times this.
"""

KERNEL_RUNS = 3
"""How many perturbed runs on the kernels of each side a parity makes where the perturbed float64 runs do not settle it.

Used: parity. Evidence: the bounds above were measured with these.
"""

# --------------------------------------------------------------------------------------------------------- divergence

CLOSER_LOOK = 1 / 2
"""A step's own difference above this many units is judged against float64, in half precision.

Used: divergence, in the Euclidean norm. Evidence: two sides that round once differ by a third of a unit or less, and
torch.testing's tolerance is several times that.
"""

HALF_RATIO = 3.0
"""How many times as far from float64 as the nearer side the farther one may be, in half precision.

Used: divergence. Evidence: kernels sum in single precision and round once, so both sides are about as far off.
"""

HALF_SLACK = 1 / 8
"""How many units the farther side may be off beyond that. Used: divergence, where the nearer side is almost exact."""

DTYPE_ROUNDINGS = 4
"""How many units of its dtype a replay in another dtype may be off.

Used: divergence. Evidence: saved tensors and gradients are rounded before the step, and its result after it.
"""

FACTOR_ELEMENTS = 32
"""From how many elements on a common factor is no rounding.

Used: divergence, in half precision. Evidence: in fewer elements roundings may look like a factor.
"""

FACTOR_SIZE = 1 / 2
"""A common factor differs from 1 by more than this many units. Used: divergence, in half precision."""

FACTOR_REMAINDER = 1 / 2
"""What a common factor leaves unexplained is less than this part of the difference. Used: as FACTOR_SIZE."""

SMALLER_CHANGE = 16
"""How many times smaller than a rounding the change is that shows whether a rounding makes a jump.

Used: divergence, with `PROPORTION`. Evidence: in a dtype coarser than float64 the smaller change is still many of
float64's roundings; `FINE_SIZE` has the other case.
"""

FINE_UNIT = 1e-12
"""In a dtype whose unit is below this, double precision shows no part of a rounding.

Used: divergence. Evidence: it separates float64 (2.2e-16) from float32 (1.2e-7).
"""

FINE_SIZE = 64
"""How many times as large as a rounding changes are made in such a dtype; what they do is divided by this.

Used: divergence. Evidence: a part of it, by `SMALLER_CHANGE`, is still four of float64's roundings.
"""

# -------------------------------------------------------------------------------------------------------- whole steps

EAGER_PERTURBATIONS = 3
"""How many perturbed eager runs a comparison of whole steps makes.

Used: whole steps. Evidence: in half precision one run alone may miss a ReLU that another turns over.
"""


HALF_CHOICES = Choices(1 / 4, 2)
"""How far choices that rounding turns over (the sides of ReLUs) may take a gradient in half precision, and no farther.

Used: whole steps, beyond `noise_limit`. Evidence: in a small transformer and a small net of convolutions in bfloat16,
with ReLUs, other kernels were off by up to 0.06 and 0.11 of the norm, and by no more than eager's own noise. In single
precision such a choice is rare, and nothing beyond `noise_limit` is excused.
"""

# ------------------------------------------------------------------------------------------------ sizes of gradients

FLOW_FACTOR = 1e4
"""A gradient that falls or rises by more than this on its way through a model is named.

Used: `cap.flow()`. Evidence: between modules, the largest gradient on its way changes by 96 at most in small GPT-2,
Llama, BERT and ResNet models as they are initialized, by 2.2e3 in an LSTM and by 3.2e3 in twelve linear layers with
tanh; chains of sigmoids, exploding weights and scaled blocks change it by 5e5 and more (tests/test_gradient_flow.py).
"""


def noise_limit(unit: float) -> float:
    """The largest difference that is called noise, in units of the gradient itself: the root of the precision.

    Used: whole steps; for a gradient that should be zero, in units of the largest gradient of all. Parity, where a
    choice was turned over, or rounding inside of operators explains it. Evidence: more than that shows a state or
    random numbers of the step's own, or a jump in a gradient, and would excuse any fault.
    """
    return math.sqrt(unit)
