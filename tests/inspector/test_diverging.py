"""The first divergence in the inspector: of records made up, and of a fault planted in a real backward."""

import math

import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.record.divergence import Difference, Divergence, DivergenceRow, NonFinite, Range
from cabw_viz.record.results import Results
from cabw_viz.views.inspector.page import inspector_page
from tests.inspector.blocks import audited, transformer

pytest.importorskip("playwright")

from tests.inspector.opened import chromium, inspected

pytestmark = pytest.mark.browser

SAME = Difference("bitwise", 0.0, 0.0)
OFF = Difference("mismatch", 1e-4, 2e-3)


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


def judged(record, first, *, into=SAME, own=OFF, kind="builtin", name=""):
    """A divergence at the node `first`: those above it agree, and it and all below it differ."""
    rows = []
    for node in record.autograd_nodes:
        bad = node.number > first
        here = node.number == first
        if here and kind != "builtin":
            rows.append(DivergenceRow(first, kind, name, node.module, into=into, out=own, own=own))
        below = OFF if bad or (here and kind != "builtin") else SAME
        rows.append(
            DivergenceRow(
                node.number, "builtin", node.name, node.module, 0, node.line,
                into=below, out=OFF if bad or here else SAME, own=own if here and kind == "builtin" else SAME,
            )
        )  # fmt: skip
    return Divergence("your own eager run", "the graph run again", tuple(rows), (first,), compared=2 * len(rows))


@pytest.fixture
def opened(browser, tmp_path):
    def show(record, divergence, state=""):
        path = tmp_path / "divergence.html"
        path.write_text(
            inspector_page("divergence", [(record, Results(divergence=divergence, execution=audited(record)))]), "utf-8"
        )
        return inspected(browser, path, state=state)

    return show


def test_the_panel_leads_to_the_node_at_fault(opened):
    record = transformer(3)
    gelu = [n for n in record.autograd_nodes if n.name == "GeluBackward0"][1]
    with opened(record, judged(record, gelu.number)) as found:
        assert f"Gradients part at GeluBackward0 #{gelu.number}" in found.panel
        found.tab("Parity")
        assert "Parity has not been computed" in found.panel
        assert f"First divergence: GeluBackward0 #{gelu.number}" in found.panel
        assert "off by 2.0e-3 of the largest element" in found.panel
        found.page.locator(".cabw-finding", has_text="First divergence").click()
        found.settle()
        assert found.selection == f"n{gelu.number}"
        found.tab("Node")
        fault = "It has inputs that match eager and an output that does not: 2.0e-3 relative, 1.0e-4 absolute."
        assert fault in found.panel
        assert "0, 2.0e-3 relative" in found.panel
        assert "gradients part first at GeluBackward0" in found.page.locator(".cabw-status").inner_text()


def test_diverging_nodes_are_found_and_coloured(opened):
    record = transformer(3)
    first = next(n.number for n in record.autograd_nodes if n.name == "GeluBackward0")
    with opened(record, judged(record, first), "#color_by=parity") as found:
        found.page.locator(".cabw-search input").fill("diverging")
        found.settle()
        wrong = [n for n in record.autograd_nodes if n.number >= first]
        assert found.page.locator(".cabw-search output").inner_text().startswith(f"{len(wrong)} of ")
        found.page.get_by_label("Next match").click()
        found.settle()
        assert found.selection == f"n{first}"
        assert found.page.locator(".cabw-chip", has_text="First divergence").inner_text().endswith("1")
        chip = found.page.locator(".cabw-chip", has_text="Differs, ≥ 1e-3")
        assert chip.inner_text().endswith(str(len(wrong) - 1))


@pytest.mark.parametrize("kind", ["gradient_sum", "hook"])
def test_a_sum_or_a_hook_is_told_from_the_node_that_it_stands_at(opened, kind):
    record = transformer(2)
    name = {"gradient_sum": "sum into AddBackward0, input 0", "hook": "hook <b>double</b> of AddBackward0"}[kind]
    first = next(n.number for n in record.autograd_nodes if n.name == "AddBackward0")
    with opened(record, judged(record, first, kind=kind, name=name)) as found:
        found.tab("Parity")
        assert f"First divergence: {name}" in found.panel
        found.do(f"i.reveal('n{first}'); i.openTab('node')")
        assert f"The {name} has inputs that match eager" in found.panel
        assert found.page.locator(".cabw-body b", has_text="double").count() == 0


def test_where_nan_begins_is_told_with_the_ranges(opened):
    record = transformer(1)
    rows = judged(record, 3, own=Difference("nonfinite", note="NaN in the replay")).rows
    found_at = NonFinite("candidate", 3, (Range(-1.5, 2.0),), Range(-math.inf, math.nan))
    divergence = Divergence("a", "b", rows, (3,), (found_at,), compared=9)
    with opened(record, divergence) as found:
        found.tab("Parity")
        assert "nonfinite" in found.panel
        made = found.page.locator(".cabw-finding", has_text="First NaN or infinity in the replay")
        assert "-1.5 to 2" in made.inner_text()
        made.click()
        found.settle()
        assert found.selection == "n3"


def test_no_divergence_is_said(opened):
    record = transformer(1)
    rows = tuple(
        DivergenceRow(n.number, "builtin", n.name, into=SAME, out=SAME, own=SAME) for n in record.autograd_nodes
    )
    with opened(record, Divergence("a", "b", rows, compared=20), "#color_by=parity") as found:
        found.tab("Parity")
        assert "No divergence" in found.panel
        assert found.page.locator(".cabw-chip", has_text="Bitwise equal").inner_text().endswith(str(len(rows)))
        found.page.locator(".cabw-search input").fill("diverging")
        found.settle()
        assert found.page.locator(".cabw-search output").inner_text() == "no match"


class Swish(torch.autograd.Function):
    """Its backward is right in the user's run, and a little off when the graph runs again."""

    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(x)
        return gradient * (sigmoid + x * sigmoid * (1 - sigmoid)) * Swish.factor


def test_a_fault_planted_in_a_real_backward(browser, tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.c(torch.tanh(self.b(Swish.apply(self.a(x)))))

    torch.manual_seed(0)
    model = Net()
    with cabw_viz.capture(model) as session:
        model(torch.randn(5, 4)).square().sum().backward()
    Swish.factor = 1.01
    session[0].divergence()
    session[0].parity()
    Swish.factor = 1.0
    path = session.to_html(tmp_path / "fault.html")
    with inspected(browser, path, state="#color_by=parity") as found:
        name, number = found.do("return [i.graph.first.name, i.graph.first.id]")
        assert name == "SwishBackward"
        below = found.do("i.select(i.graph.first.key); return i.graph.list.filter((n, k) => i.cone.mark[k] & 2)"
                         ".map((n) => n.parameter).filter(Boolean)")  # fmt: skip
        assert set(below) == {"a.weight", "a.bias"}
        assert found.do("return i.graph.wrong.map((row) => row.name)") == found.do(
            "return i.graph.parameters.filter((row) => row.name.startsWith('a.')).map((row) => row.name)"
        )
        assert number == next(n.number for n in session[0].record.autograd_nodes if n.name == "SwishBackward")
