"""MetaLookups of deleted metadata by compiler functions and passes: found, answered as ever, and then over."""

from __future__ import annotations

import copy
import operator
import pickle
from collections import Counter

import pytest
import torch
from torch._dynamo import compiled_autograd
from torch.fx.passes.shape_prop import ShapeProp

import cabw_viz
from cabw_viz.record.model import Touch
from cabw_viz.tracing.deleted_meta import DELETED, MetaLookups
from tests.test_corpus import identity, on_the_version_read


@pytest.fixture
def lookups_not_noted(monkeypatch):
    """The mutation: no lookup is noted."""
    monkeypatch.setattr(MetaLookups, "note", lambda self, key, ordinal: None)


def session_under(compiler, times=1, **options):
    """The session of a backward under the user's own compiler function; whatever the call raises is left out."""
    x = torch.arange(12.0).reshape(3, 4).requires_grad_()
    with compiled_autograd._enable(compiler), cabw_viz.capture({"x": x}, **options) as session:
        for _ in range(times):
            x.grad = None
            try:
                (x.tanh() * 2).sum().backward()
            except (KeyError, ZeroDivisionError):
                continue
    return session


def tanh_of(graph):
    """The node of TanhBackward0's call."""
    (found,) = [node for node in graph.graph.nodes if "TanhBackward0" in str(node.target)]
    return found


def in_meta(meta, key):
    return key in meta


LOOKUPS = {
    "get": (lambda meta, key: meta.get(key), None),
    "get with a default": (lambda meta, key: meta.get(key, 7), 7),
    "index": (lambda meta, key: meta[key], KeyError),
    "in": (in_meta, False),
    "operator": (operator.contains, False),
    "pop": (lambda meta, key: meta.pop(key), KeyError),
    "pop with a default": (lambda meta, key: meta.pop(key, 7), 7),
    "setdefault": (lambda meta, key: meta.setdefault(key, 7), 7),
}


def answer(look, meta, key):
    try:
        return look(meta, key)
    except KeyError as error:
        return KeyError if error.args == (key,) else error


def check_lookup(look, expected, key):
    answers = []

    def compiler(graph):
        answers.append(answer(look, tanh_of(graph).meta, key))
        return graph

    record = session_under(compiler)[0].record
    assert answers == [expected]
    (touch,) = record.touches
    assert (touch.phase, touch.attribute, touch.by, touch.count) == ("graph_pass", key, "pass", 1)
    assert record.graph_nodes[touch.node].target == "ops.TanhBackward0"
    assert record.by_number[touch.autograd_node].name == "TanhBackward0"
    return touch.where


@pytest.mark.parametrize("key", DELETED)
@pytest.mark.parametrize("way", LOOKUPS)
def test_a_lookup_is_found_and_answered_as_ever(way, key):
    look, expected = LOOKUPS[way]
    where = check_lookup(look, expected, key)
    if look is not operator.contains:  # whose caller is `answer`
        assert where == f"{__file__}:{look.__code__.co_firstlineno + (look is in_meta)}"


@pytest.mark.parametrize("way", LOOKUPS)
def test_with_the_watching_off_the_check_fails(way, lookups_not_noted):
    with pytest.raises((AssertionError, ValueError)):
        check_lookup(*LOOKUPS[way], "val")


def test_every_lookup_counts():
    def compiler(graph):
        for _ in range(3):
            for node in graph.graph.nodes:
                node.meta.get("val")
        return graph

    record = session_under(compiler)[0].record
    assert [touch.node for touch in record.touches] == [node.ordinal for node in record.graph_nodes]
    assert {touch.count for touch in record.touches} == {3}
    assert [touch.autograd_node for touch in record.touches] == [node.autograd_node for node in record.graph_nodes]


def test_other_keys_are_nobodys_business():
    def compiler(graph):
        for node in graph.graph.nodes:
            node.meta.get("stack_trace")
            node.meta.get("other")
            node.meta["mine"] = node.meta.pop("other", 3)
            assert node.meta["mine"] == 3
            with pytest.raises(TypeError):
                _ = [] in node.meta
        return graph

    assert session_under(compiler)[0].record.touches == ()


def test_a_key_that_somebody_has_set_is_theirs():
    def compiler(graph):
        first, second, third, fourth, *_ = graph.graph.nodes
        first.meta["val"] = 1
        second.meta.update(val=2)
        third.meta |= {"val": 3}
        assert [n.meta["val"] for n in (first, second, third)] == [1, 2, 3]
        assert "val" in first.meta
        assert first.meta.pop("val") == 1
        del second.meta["val"]
        third.meta.clear()
        assert [n.meta.get("val") for n in (first, second, third)] == [None] * 3
        fourth.meta.setdefault("val", 4)  # looks first
        fourth.meta.setdefault("val", 5)
        return graph

    (touch,) = session_under(compiler)[0].record.touches
    assert (touch.attribute, touch.node, touch.count) == ("val", 3, 1)


def test_a_pass_that_computes_the_shapes_itself_looks_up_nothing():
    def compiler(graph):
        def run(*args):
            with torch.no_grad():
                ShapeProp(graph).run(*args)
            shapes.append(tanh_of(graph).meta.get("tensor_meta"))
            return graph(*args)

        return run

    shapes = []
    record = session_under(compiler)[0].record
    assert record.failure is None
    assert shapes[0] is not None
    assert record.touches == ()


def test_a_lookup_when_the_compiled_function_runs_is_found():
    def compiler(graph):
        def run(*args):
            tanh_of(graph).meta.get("val")
            return graph(*args)

        return run

    session = session_under(compiler, times=3)
    (touch,) = session[0].record.touches
    assert list(session.events["outcome"]) == ["captured", "cache_hit", "cache_hit"]
    assert touch.count == 1  # the later calls are hits of the cache: nothing is captured there
    assert touch.where.startswith(__file__)


def test_what_was_looked_up_before_the_compiler_raised_is_kept():
    def compiler(graph):
        tanh_of(graph).meta["val"]

    session = session_under(compiler)
    record = session[0].record
    assert session.events["outcome"][0] == "failed"
    assert record.failure.type == "KeyError"
    (touch,) = record.touches
    assert record.graph_nodes[touch.node].target == "ops.TanhBackward0"


def test_what_was_looked_up_before_the_run_raised_is_kept():
    def compiler(graph):
        def run(*args):
            tanh_of(graph).meta.get("val")
            raise ZeroDivisionError

        return run

    record = session_under(compiler)[0].record
    assert record.failure.type == "ZeroDivisionError"
    assert [touch.attribute for touch in record.touches] == ["val"]


def test_printing_a_graph_is_a_lookup_of_pytorchs():
    def compiler(graph):
        graph.print_readable(print_output=False)
        return graph

    record = session_under(compiler)[0].record
    assert {touch.attribute for touch in record.touches} == set(DELETED)
    assert {touch.where.rpartition(":")[0] for touch in record.touches} == {"torch/fx/graph.py"}
    assert {touch.node for touch in record.touches} >= {
        node.ordinal for node in record.graph_nodes if node.op != "output"
    }


def deepcopied(graph):
    return copy.deepcopy(graph).graph


def node_copied(graph):
    made, values = torch.fx.Graph(), {}
    for node in graph.graph.nodes:
        values[node] = made.node_copy(node, values.__getitem__)
    return made


def graph_copied(graph):
    made = torch.fx.Graph()
    made.output(made.graph_copy(graph.graph, {}))
    return made


def module_made_anew(graph):
    return torch.fx.GraphModule(graph, graph_copied(graph)).graph


def transformed(graph):
    return torch.fx.Transformer(graph).transform().graph


COPIES = [deepcopied, node_copied, graph_copied, module_made_anew, transformed]


@pytest.mark.parametrize("copied", COPIES)
def test_copying_a_graph_is_no_lookup(copied):
    kept = []

    def compiler(graph):
        made = copied(graph)
        kept.extend(Counter(node.meta.get("stack_trace") for node in g.nodes) for g in (made, graph.graph))
        return graph

    assert session_under(compiler)[0].record.touches == ()
    assert kept[0] <= kept[1]  # the output may be another
    assert kept[0].total() >= kept[1].total() - 1


@pytest.mark.parametrize("copied", [deepcopied, node_copied, graph_copied])
def test_a_lookup_in_a_copy_is_one_of_the_node_that_was_copied(copied):
    def compiler(graph):
        (node,) = [node for node in copied(graph).nodes if "TanhBackward0" in str(node.target)]
        node.meta.get("val")
        return graph

    record = session_under(compiler)[0].record
    (touch,) = record.touches
    assert record.graph_nodes[touch.node].target == "ops.TanhBackward0"


def test_metas_can_be_pickled_and_are_plain_dicts_then():
    found = []

    def compiler(graph):
        found.extend((pickle.loads(pickle.dumps(node.meta)), dict(node.meta)) for node in graph.graph.nodes)
        return graph

    assert session_under(compiler)[0].record.touches == ()
    assert all(type(back) is dict and back == own for back, own in found)


def test_a_deep_copy_of_a_meta_is_its_own():
    def compiler(graph):
        node = tanh_of(graph)
        node.meta["mine"] = inner = [1]
        made = copy.deepcopy(node.meta)
        inner.append(2)
        assert made["mine"] == [1]
        return graph

    assert session_under(compiler)[0].record.failure is None


def test_after_the_call_nothing_is_watched():
    graphs, metas = [], []

    def compiler(graph):
        metas.extend(node.meta for node in graph.graph.nodes)
        tanh_of(graph).meta["mine"] = 3
        graphs.extend([graph.graph, deepcopied(graph)])
        return graph

    session = session_under(compiler, times=2)
    own, copied = graphs
    assert {type(node.meta) for node in own.nodes} == {dict}
    assert [node.meta.get("mine") for node in own.nodes if "TanhBackward0" in str(node.target)] == [3]
    for meta in [*metas, *(node.meta for node in own.nodes), *(node.meta for node in copied.nodes)]:
        assert meta.get("val") is None
        assert "tensor_meta" not in meta
    assert session[0].record.touches == ()


def test_nodes_keep_the_dict_they_had(monkeypatch):
    before, graphs, watch = [], [], MetaLookups.watch

    def spying(self, graph):
        before.extend(node.meta for node in graph.nodes)
        watch(self, graph)

    def compiler(graph):
        graphs.append(graph.graph)
        return graph

    monkeypatch.setattr(MetaLookups, "watch", spying)
    session_under(compiler)
    assert [id(node.meta) for node in graphs[0].nodes] == [id(meta) for meta in before]


def test_without_the_tripwire_nobody_looks():
    types = set()

    def compiler(graph):
        types.update(type(node.meta) for node in graph.graph.nodes)
        tanh_of(graph).meta.get("val")
        return graph

    session = session_under(compiler, tripwire=False)
    assert types == {dict}
    assert session[0].record.touches == ()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_as_the_compiler_looks_up_nothing(backend):
    torch._dynamo.reset()
    session = session_under(lambda graph: torch.compile(graph, backend=backend))
    assert session[0].record.failure is None
    assert session[0].record.touches == ()


@on_the_version_read
def test_an_identity_compiler_looks_up_nothing():
    record = session_under(identity)[0].record
    assert record.touches == ()


def test_reads_of_both_phases_stand_in_their_order():
    x = torch.randn(3, requires_grad=True)

    def compiler(graph):
        next(iter(graph.graph.nodes)).meta.get("val")
        return graph

    with compiled_autograd._enable(compiler), cabw_viz.capture({"x": x}) as session:
        y = x.exp()
        y.register_hook(lambda g: g)
        y.sum().backward()
    touches = session[0].record.touches
    assert [touch.phase for touch in touches] == ["initial_trace"] * (len(touches) - 1) + ["graph_pass"]
    assert isinstance(touches[-1], Touch)
    assert touches[-1].autograd_node is None  # a placeholder belongs to none
