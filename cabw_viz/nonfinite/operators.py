"""What each forward op and each backward formula can make of finite numbers, by the name of its autograd node.

Read in tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp of torch 2.13. An op that stands in
no table here is not known, and whatever it makes is said not to be known.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"(\w+?)Backward(\d*)(Auto\w+)?$")


def op_of(name: str) -> str:
    """`NativeLayerNorm` for `NativeLayerNormBackward0`; the name itself for what is no such node."""
    match = _NAME.match(name)
    return match[1] if match else name


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PASSING = _names(
    """
    View UnsafeView ReshapeAlias T Transpose Permute Expand Squeeze Unsqueeze Slice Select Split
    SplitWithSizes Unbind Chunk Cat Stack Clone Alias AsStrided Relu Abs Neg Clamp ClampMin ClampMax
    Hardtanh MaxPool2DWithIndices MaxPool3DWithIndices MaxPool1D AdaptiveMaxPool2D Index IndexSelect Gather
    Embedding Repeat Flip Roll Tril Triu Max Min Amax Amin Sort Topk Unfold Maximum Minimum Take Diagonal
    Movedim Detach Threshold MaskedSelect Copy SliceCopy NarrowCopy ReflectionPad2D ReplicationPad2D
    UnsafeSplit UnsafeChunk Swapaxes Real Imag ViewAsReal ViewAsComplex Unflatten Pad AccumulateGrad
    """
)
"""Ops whose result holds elements of what they take, their magnitudes, or zeros."""

RESHAPING = _names(
    """
    View UnsafeView ReshapeAlias T Transpose Permute Expand Squeeze Unsqueeze Clone Alias
    """
)
"""Of these, those whose result holds every element of what they take."""

BOUNDED = {
    "Tanh": 1.0,
    "Sigmoid": 1.0,
    "Softmax": 1.0,
    "Sin": 1.0,
    "Cos": 1.0,
    "Erf": 1.0,
    "Hardsigmoid": 1.0,
    "Atan": 2.0,
}
"""Ops whose result of finite numbers is never larger than this."""

NEVER_LARGER = _names("Gelu Silu Elu LeakyRelu Hardswish Mish AvgPool2D AdaptiveAvgPool2D Mean")
"""Ops whose result of finite numbers is never larger than twice what they take."""

PLACING = _names(
    """
    MaskedFill Where IndexFill Fill Scatter IndexPut ConstantPadNd MaskedScatter Add Sub Tril Triu Copy
    CopySlices
    """
)
"""Ops that put given numbers in place: a negative infinity of theirs is a mask, and no fault."""

GROWING = _names(
    """
    Mul Add Sub Rsub Mm Addmm Bmm Baddbmm Addbmm Addmv Addr Mv Dot Linear Convolution
    ConvolutionOverrideable MkldnnConvolution Sum Mean Cumsum Exp Expm1 Exp2 Sinh Cosh Square Addcmul
    MseLoss L1Loss SmoothL1Loss HuberLoss Prod ToCopy Softplus NllLoss Logsumexp Lerp NativeDropout Einsum
    Trapz Bilinear ConvTranspose Cumprod Trace Addmm Sspaddmm Cross Outer Inner Tensordot Vdot MaskedFill
    Where IndexFill IndexAdd IndexPut Scatter ScatterAdd Softmax LogSoftmax Gelu Silu Elu LeakyRelu
    Hardswish Mish AvgPool2D AdaptiveAvgPool2D EmbeddingBag UpsampleNearest2D UpsampleBilinear2D CopySlices
    Fill ConstantPadNd BinaryCrossEntropyWithLogits
    """
) | frozenset(BOUNDED)
"""Ops that add, multiply and take exponentials: of finite numbers they make infinity by overflow alone, and NaN only
of infinities."""

BACKWARD_GROWING = (PASSING | GROWING) - _names(
    "Prod Cumprod Clamp BinaryCrossEntropyWithLogits Elu Mish Softplus Lerp"
) | _names("Rsqrt Reciprocal AccumulateGrad TanhBackward SigmoidBackward")
"""Backward formulas that add and multiply what flows in and what is saved, which is finite: overflow alone makes
infinity. `Rsqrt` and `Reciprocal` multiply with their saved results."""

POLES: dict[str, tuple[str, tuple[float, ...]]] = {
    "Div": ("other", (0.0,)),
    "Log": ("self", (0.0,)),
    "Log2": ("self", (0.0,)),
    "Log10": ("self", (0.0,)),
    "Log1P": ("self", (-1.0,)),
    "Sqrt": ("result", (0.0,)),
    "Pow": ("self", (0.0,)),
    "Asin": ("self", (-1.0, 1.0)),
    "Acos": ("self", (-1.0, 1.0)),
    "Atanh": ("self", (-1.0, 1.0)),
    "Acosh": ("self", (1.0,)),
    "Xlogy": ("other", (0.0,)),
}
"""Backward formulas that divide: the saved field by which, and where in it that divides by zero."""

ROOTS = _names("Sqrt Pow Asin Acos Acosh")
"""Of these, those whose derivative is infinite there as that of a root is."""

FUSED_SOFTMAX = _names(
    """
    Softmax SafeSoftmax ScaledDotProductFlashAttentionForCpu ScaledDotProductEfficientAttention
    ScaledDotProductFlashAttention ScaledDotProductCudnnAttention
    """
)
"""Ops with a softmax in them: over a row of negative infinities they make NaN."""

DOMAINS = {"Log": 0.0, "Log2": 0.0, "Log10": 0.0, "Log1P": -1.0}
"""Ops that make negative infinity of this number in their saved `self`, and NaN of what is below."""
