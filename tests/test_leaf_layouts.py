"""Leaves of other layouts than strided: captured where PyTorch captures them, else plain data."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import cabw_viz
from tests.captures import session_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse .* tensor support is in beta", "ignore:The PyTorch API of nested"
)

LAYOUTS = {
    "csr": lambda dense: dense.to_sparse_csr(),
    "csc": lambda dense: dense.to_sparse_csc(),
    "bsr": lambda dense: dense.to_sparse_bsr((2, 2)),
    "bsc": lambda dense: dense.to_sparse_bsc((2, 2)),
    "coo": lambda dense: dense.to_sparse(),
}


def dense(tensor):
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def tensors(layout):
    torch.manual_seed(0)
    values = torch.randn(4, 6).relu()
    return LAYOUTS[layout](values).requires_grad_(), torch.randn(6, 2, requires_grad=True)


def product(a, b, layout):
    """A differentiable product where this layout has one; else its values."""
    return torch.sparse.mm(a, b).sum() if layout in ("csr", "coo") else a.to_dense().sin().sum() + b.sum()


@pytest.mark.parametrize(
    ("layout", "function"),
    # PyTorch itself accumulates into no .grad of the other layouts: they have no is_contiguous.
    [*((layout, "grad") for layout in LAYOUTS), ("csr", "backward"), ("coo", "backward")],
)
def test_a_sparse_leaf(layout, function):
    def gradients(a, b):
        loss = product(a, b, layout)
        if function == "grad":
            return torch.autograd.grad(loss, [a, b])
        loss.backward()
        return a.grad, b.grad

    expected = gradients(*tensors(layout))
    a, b = tensors(layout)
    with cabw_viz.capture({"a": a, "b": b}) as session:
        actual = gradients(a, b)
    for one, other in zip(actual, expected, strict=True):
        assert one.layout is other.layout
        assert torch.equal(dense(one), dense(other))
    (capture,) = session
    assert list(session.events["outcome"]) == ["captured"]
    assert sorted(leaf.label for leaf in capture.record.leaves) == ["a", "b"]
    assert capture.parity().ok
    for name, gradient in capture.replay().items():
        assert torch.equal(dense(gradient), dense(dict(zip("ab", expected, strict=True))[name]))


def jagged(*lengths):
    torch.manual_seed(0)
    return torch.nested.nested_tensor([torch.randn(length, 8) for length in lengths], layout=torch.jagged)


def assert_plain(value, where="record"):
    """Fails at the first value that is none of a record's own classes, a number, a text, or a sequence of these."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            assert_plain(getattr(value, field.name), f"{where}.{field.name}")
    elif type(value) is tuple:
        for index, item in enumerate(value):
            assert_plain(item, f"{where}[{index}]")
    else:
        assert value is None or type(value) in (int, float, str, bool), f"{where} is a {type(value)}"


def test_a_jagged_tensor_leaves_plain_data(tmp_path):
    net = nn.Linear(8, 8)
    x = jagged(3, 5).requires_grad_()
    session = session_of(net, lambda: net(x).sin().values().sum().backward())
    record = session[0].record
    assert_plain(record)
    (ragged,) = (leaf for leaf in record.leaves if leaf.shape == (2, -1, 8))
    assert ragged.names == ("leaf_0 (2, -1, 8)",)
    saved = [row for node in record.autograd_nodes for row in node.saved if row.shape == (2, -1, 8)]
    # eight values for each of 3 + 5 rows, and what the class keeps beside them: three offsets, minimum and maximum
    assert {row.bytes >= (3 + 5) * 8 * 4 for row in saved} == {True}
    page = session.to_html(tmp_path / "page.html").read_text("utf-8")
    assert "NestedGetValuesBackward0" in session[0].outline()
    assert len(page) > 1000
    session.inspect()
    assert session._repr_html_()


def test_the_walk_over_a_record_finds_what_is_not_plain():
    session = session_of(None, lambda: torch.ones(2, requires_grad=True).sum().backward())
    leaf = dataclasses.replace(session[0].record.leaves[0], shape=(jagged(1, 2).shape[1],))
    with pytest.raises(AssertionError, match=r"record\.leaves\[0\]\.shape\[0\] is a .*SymInt"):
        assert_plain(dataclasses.replace(session[0].record, leaves=(leaf,)))
