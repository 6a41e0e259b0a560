"""Guards of symbolic sizes are evaluated, whatever function PyTorch writes; each op is that of the captured sizes."""

from __future__ import annotations

import inspect
import itertools
import math
import re

import pytest
import sympy
import torch
from torch import nn
from torch.utils._sympy import functions
from torch.utils._sympy.printers import ExprPrinter, PythonPrinter

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.numerics.compare import bitwise_equal
from cabw_viz.replay.lowering.guards import Expected, Guards, _compiled
from tests.captures import capture_of

A, B = sympy.symbols("s0 s77", positive=True, integer=True)
F = functions
SIZES = [(2, 3), (7, 2), (12, 5), (64, 64)]

EXPRESSIONS = {
    # the expression, and what it is by hand
    "FloorDiv": (F.FloorDiv(A, B), lambda a, b: a // b),
    "CleanDiv": (F.CleanDiv(A * B, B), lambda a, b: a),
    "CeilDiv": (F.CeilDiv(A, B), lambda a, b: -(-a // b)),
    "ModularIndexing": (F.ModularIndexing(A * 3, B, 5), lambda a, b: (a * 3 // b) % 5),
    "Mod": (F.Mod(A, B), lambda a, b: a % b),
    "PythonMod": (F.PythonMod(-A, B), lambda a, b: -a % b),
    "LShift": (F.LShift(A, B), lambda a, b: a << b),
    "RShift": (F.RShift(A * 64, B), lambda a, b: a * 64 >> b),
    "Max": (F.Max(A, B), max),
    "Min": (F.Min(A, B), min),
    "Pow": (A**3, lambda a, b: a**3),
    "PowByNatural": (F.PowByNatural(A, B), lambda a, b: a**b),
    "FloatPow": (F.FloatPow(F.ToFloat(A), F.ToFloat(B) / 8), lambda a, b: a ** (b / 8)),
    "FloatTrueDiv": (F.FloatTrueDiv(F.ToFloat(A), F.ToFloat(B)), lambda a, b: a / b),
    "IntTrueDiv": (F.IntTrueDiv(A, B), lambda a, b: a / b),
    "ToFloat": (F.ToFloat(A) - sympy.Float(1.0), lambda a, b: a - 1.0),
    "TruncToInt": (F.TruncToInt(F.IntTrueDiv(A, B)), lambda a, b: int(a / b)),
    "TruncToFloat": (F.TruncToFloat(F.IntTrueDiv(A, B)), lambda a, b: float(int(a / b))),
    "FloorToInt": (F.FloorToInt(F.IntTrueDiv(A, B)), lambda a, b: math.floor(a / b)),
    "CeilToInt": (F.CeilToInt(F.IntTrueDiv(A, B)), lambda a, b: math.ceil(a / b)),
    "floor": (sympy.floor(F.IntTrueDiv(A, B)), lambda a, b: math.floor(a / b)),
    "ceiling": (sympy.ceiling(F.IntTrueDiv(A, B)), lambda a, b: math.ceil(a / b)),
    "RoundToInt": (F.RoundToInt(F.IntTrueDiv(A, B)), lambda a, b: round(a / b)),
    "RoundDecimal": (F.RoundDecimal(F.IntTrueDiv(A, B), 2), lambda a, b: round(a / b, 2)),
    "Abs": (sympy.Abs(A - B), lambda a, b: abs(a - b)),
    "Identity": (F.Identity(A + B), lambda a, b: a + b),
    "Where": (F.Where(sympy.Lt(A, B), A, B), min),
    "Piecewise": (sympy.Piecewise((A, sympy.Lt(A, B)), (B, True)), min),
    "And": (sympy.And(sympy.Lt(A, B), sympy.Ne(A, 5)), lambda a, b: a < b and a != 5),
    "Or": (sympy.Or(sympy.Lt(A, B), sympy.Eq(A, 7)), lambda a, b: a < b or a == 7),
    "Not": (sympy.Not(sympy.And(sympy.Lt(A, B), sympy.Ne(A, 5))), lambda a, b: not (a < b and a != 5)),
    "Infinity": (sympy.Max(F.ToFloat(A) - sympy.oo, 0.0), lambda a, b: 0.0),
    "BitwiseFn_bitwise_and": (F.BitwiseFn_bitwise_and(A, B), lambda a, b: a & b),
    "BitwiseFn_bitwise_or": (F.BitwiseFn_bitwise_or(A, B), lambda a, b: a | b),
    "BitwiseFn_bitwise_xor": (F.BitwiseFn_bitwise_xor(A, B), lambda a, b: a ^ b),
    "IsNonOverlappingAndDenseIndicator": (
        F.IsNonOverlappingAndDenseIndicator(A, B, B, sympy.Integer(1)),
        lambda a, b: 1,
    ),
    **{
        name: (
            getattr(F, f"OpaqueUnaryFn_{name}")(F.ToFloat(A) / 100),
            lambda a, b, name=name: getattr(math, name)(a / 100),
        )
        for name in (
            "sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "exp", "log", "asinh", "log2",
        )
    },
}  # fmt: skip


def value(text, a, b):
    code, symbols = _compiled(text)
    assert set(symbols) <= {"s0", "s77"}, text
    return eval(code, torch_adapter.NAMES_IN_GUARDS, {"s0": a, "s77": b})  # noqa: S307  # of the printer's own text


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_what_the_printer_writes_has_its_value(name):
    expression, by_hand = EXPRESSIONS[name]
    text = torch_adapter.text_of(expression)
    for a, b in SIZES:
        found = value(text, a, b)
        assert not isinstance(found, sympy.Basic)
        assert found == pytest.approx(by_hand(a, b), rel=1e-12), text


def test_every_function_of_the_printer_and_of_pytorch_is_among_them():
    """One that a later PyTorch adds is missed here, and not by a user."""
    printed = {
        match[1]
        for printer in (ExprPrinter, PythonPrinter)
        for name, _ in inspect.getmembers(printer, inspect.isfunction)
        if (match := re.fullmatch(r"_print_(\w+)", name)) and name in {**vars(ExprPrinter), **vars(PythonPrinter)}
    }
    defined = {
        name
        for name, each in vars(functions).items()
        if isinstance(each, type) and issubclass(each, sympy.Function) and each.__module__ == functions.__name__
    }
    plain = {"Add", "Mul", "Relational", "Float", "NaN", "NegativeInfinity"}
    names = {name.removeprefix("OpaqueUnaryFn_") for name in printed | defined}
    assert names - set(EXPRESSIONS) - plain == set()


@pytest.mark.parametrize(
    ("first", "second"), [*itertools.combinations(["FloorDiv", "Mod", "ToFloat", "Max", "log2"], 2)]
)
def test_functions_inside_each_other(first, second):
    (one, one_by_hand), (other, other_by_hand) = EXPRESSIONS[first], EXPRESSIONS[second]
    text = torch_adapter.text_of(sympy.Le(one + 2 * other, 40))
    for a, b in SIZES:
        assert value(text, a, b) == (one_by_hand(a, b) + 2 * other_by_hand(a, b) <= 40)


def test_a_condition_with_a_function_whose_name_ends_in_a_digit_is_checked():
    """`log2` is no symbol: a condition on a symbol that no input has is left out."""
    expected = (Expected("inputs_0", "", ("s0",), ("1",), torch.float32, torch.device("cpu")),)
    guards = Guards(expected, ("math.log2(s0) == 3.0",))
    guards.check([torch.ones(8)])
    with pytest.raises(CabwError, match=r"a guard is violated, math\.log2\(inputs_0\.shape\[0\]\) == 3\.0: .* is 16"):
        guards.check([torch.ones(16)])


@pytest.mark.parametrize(
    ("condition", "reason"), [("s0 == 4", "the captured sizes violate"), ("nothing(s0)", "cannot evaluate")]
)
def test_a_guard_that_does_not_hold_as_captured_is_no_lowered_graph(condition, reason):
    expected = (Expected("inputs_0", "", ("s0",), ("1",), torch.float32, torch.device("cpu")),)
    if reason == "cannot evaluate":
        condition = "abs(s0, s0) == 1"
    with pytest.raises(CabwError, match=rf"(?s){reason}.*Try: cap\.lower\(symbolic=False\)"):
        Guards(expected, (condition,)).verify([torch.ones(8)])


SPREADS = {
    "std": lambda x: x.std(),
    "var": lambda x: x.var(),
    "biased": lambda x: x.std(unbiased=False),
    "along one": lambda x: x.var(dim=1).sum(),
    "with the mean": lambda x: torch.var_mean(x)[0],
    "standardised": lambda x: ((x - x.mean()) / x.std()).square().sum(),
}


@pytest.mark.parametrize("name", SPREADS)
def test_standard_deviations_at_other_sizes(name):
    torch.manual_seed(0)

    def capture(*shape):
        x = torch.randn(*shape, requires_grad=True)
        return capture_of({"x": x}, lambda: SPREADS[name](x)), x

    cap, x = capture(5, 6)
    lowered = cap.lower(symbolic=True)
    assert bitwise_equal(lowered.gradients()["x"], x.grad)
    for shape in ((2, 6), (5, 3), (9, 8)):
        other, x = capture(*shape)
        assert bitwise_equal(lowered.gradients(other)["x"], x.grad)


# -- each op as on the captured sizes ------------------------------------------------------------------------


def reshaped(batch, **options):
    """The gradient of a transposed tensor is reshaped: a view where a dimension is 1, and where strides allow it."""
    torch.manual_seed(0)
    linear, conv = nn.Linear(16, 16), nn.Conv2d(16, 16, 3, padding=1)
    x = torch.randn(batch, 64, 16)
    model = nn.ModuleList([linear, conv])
    cap = capture_of(model, lambda: conv(linear(x).transpose(-1, -2).reshape(batch, 16, 8, 8)).square().sum())
    return model, cap, cap.lower(**options)


def ops(lowered):
    return [str(node.target) for node in lowered.graph.nodes if torch_adapter.is_aten_call(node.target)]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_symbols_take_the_way_of_the_captured_sizes(batch, tied):
    model, cap, lowered = reshaped(batch, symbolic=True, tied=tied)
    for name, parameter in model.named_parameters():
        assert bitwise_equal(lowered.gradients()[name], parameter.grad), name
    assert ops(lowered) == ops(cap.lower())
    assert "aten.clone.default" not in ops(lowered)


def test_questions_that_are_left_open_copy_instead(monkeypatch):
    """What the policy prevents: PyTorch's own answers for symbols, under which `reshape` copies."""
    from torch.fx.experimental import _config

    def left_open(environment):
        return _config.patch(backed_size_oblivious=True)

    monkeypatch.setattr(torch_adapter, "decided_by_captured_sizes", left_open)
    _, _, lowered = reshaped(1, symbolic=True)
    assert "aten.clone.default" in ops(lowered)


def test_other_traces_keep_pytorchs_own_answers():
    """The policy is for one environment of symbols: a compilation in another thread has another."""
    from torch.fx.experimental import symbolic_shapes

    mine, other = torch_adapter.shape_env(), torch_adapter.shape_env()

    def size(environment):
        source = torch_adapter.named_source("x")
        symbol = torch_adapter.new_symbol(environment, 5, source)
        return torch_adapter.symbolic_size(environment, symbol, 5, source)

    original = symbolic_shapes._guard_or
    with torch_adapter.decided_by_captured_sizes(mine):
        assert symbolic_shapes.guard_or_false(size(mine) == 5) is True  # the captured size; PyTorch leaves it open
        assert symbolic_shapes.guard_or_false(size(other) == 5) is False
    assert symbolic_shapes._guard_or is original
    assert len(torch_adapter.guards_of(mine)) == 1
    assert torch_adapter.guards_of(other) == ()
