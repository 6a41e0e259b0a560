"""PyTorch itself does with each workload what the workload says; all tests of ours build on that.

What a workload expects was read off torch 2.13. On another version the comparison with eager would be a test of
PyTorch, so it is left out there.
"""

import sys
from dataclasses import replace

import pytest
import torch
from torch._dynamo import compiled_autograd

from tests import corpus
from tests.corpus import assert_same, first_difference, load, observe

on_the_version_read = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."),
    reason=f"the workloads' expectations are those of torch 2.13, and this is {torch.__version__}",
)


def identity(graph):
    return graph


def compiled(params):
    return compiled_autograd._enable(identity)


ROUNDED = {"gs_jacfwd_half": torch.float16}
"""Those in which sums in another order round otherwise, and the dtype."""

DIFFERS = {
    "cs_two_threads_inside_together": "step 0: gradients['w']['values']: 64 of 64 values differ",
    "hook_queue_callback": "step 0: results['callback']: 1 items against 0",
    "kind_fsdp2_one_rank": "step 0: gradients['0.weight']: torch.float32 tensor (4, 4) against None",
    "kind_sparse_mm_both_sparse": "step 0: gradients['a']['coalesced']: False against True",
}
"""Where those that silently differ do so first."""


def test_all_workloads_are_there():
    assert len(corpus.NAMES) + len(corpus.GARBAGE) >= 88
    assert set(corpus.SHORTENED) <= set(corpus.NAMES)
    assert {name for name in corpus.NAMES if load(name).expect.startswith("differs: ")} == set(DIFFERS)


@pytest.mark.parametrize("name", [*corpus.NAMES, *corpus.GARBAGE])
def test_a_workload_describes_itself(name):
    workload = load(name)
    assert workload.name == name
    assert workload.point
    assert workload.expect == "parity" or workload.expect.startswith(("raises: ", "differs: ", "rounding: "))


@pytest.mark.parametrize("name", corpus.NAMES)
def test_eager_is_the_same_each_time(name):
    assert_same(observe(name), observe(name))


@on_the_version_read
@pytest.mark.parametrize("name", corpus.NAMES)
def test_compiled_autograd_does_what_is_expected(name):
    expect = load(name).expect
    eager, ours = observe(name), observe(name, around=compiled)
    if expect == "parity":
        assert eager.raised is None
        assert_same(eager, ours)
    elif expect.startswith("raises: "):
        assert ours.raised is not None
        assert expect.removeprefix("raises: ") in ours.raised
    elif name in ROUNDED:
        assert_rounding(eager, ours, ROUNDED[name])
    else:
        assert ours.raised is None
        assert first_difference(eager, ours).startswith(DIFFERS[name])


def assert_rounding(eager, ours, dtype):
    """Gradients differ by a few units in the last place of their largest element, and nothing else does."""
    for one, other in zip(eager.steps, ours.steps, strict=True):
        assert (one.raised, other.raised) == (None, None)
        assert one.gradients.keys() == other.gradients.keys()
        for name, gradient in one.gradients.items():
            assert gradient.description == other.gradients[name].description
            values, others = gradient.values["values"].double(), other.gradients[name].values["values"].double()
            assert (values - others).abs().max() <= 4 * torch.finfo(dtype).eps * values.abs().max()


@on_the_version_read
@pytest.mark.parametrize("scope", ["step", "backward"])
def test_it_does_not_matter_what_compiled_autograd_is_switched_on_around(scope):
    """One with a compiled forward, one that raises, one that differs; all were tried once."""
    for name in ("aot_graph_breaks_reuse", "fn_compiled_aot", "hook_queue_callback"):
        assert_same(observe(name, around=compiled), observe(name, around=compiled, scope=scope))


@pytest.mark.models
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", corpus.SHORTENED)
def test_the_full_length_behaves_as_the_short_one(name):
    assert_same(observe(load(name, full=True), steps=1), observe(load(name, full=True), steps=1, around=compiled))


# -------------------------------------------------------------------------------------------------- loading, isolation


def test_each_load_has_its_own_state():
    first, second = load("hook_accgrad_node_post"), load("hook_accgrad_node_post")
    with corpus.isolated():
        params, step = first.build()
        first.backward(step(), params)
    assert first.backward.__globals__["LOG"]
    assert second.backward.__globals__["LOG"] == []


def test_a_workload_leaves_the_process_as_it_was():
    before, random_state = torch._dynamo.config.optimize_ddp, torch.get_rng_state()
    observe("kind_ddp_python_reducer")
    assert torch._dynamo.config.optimize_ddp == before
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not [name for name in sys.modules if name.startswith("cabw_workloads.")]


def test_around_gets_the_parameters_and_is_entered_once_for_the_whole_run():
    seen = []

    def around(params):
        seen.append(sorted(params))
        return compiled(params)

    observe("aot_expand_as_unused_grad", around=around)
    assert seen == [["a", "b"]]


# ---------------------------------------------------------------------------------------------------------- comparing


def observed(value):
    return corpus.Observation("made_up", (corpus.Step(None, None, corpus.snapshot(value), {}, ""),))


class Tagged(torch.Tensor):
    pass


X = torch.arange(4.0).reshape(2, 2)
NAN = torch.tensor([float("nan"), 1.0])

SAME = [
    (X, X.clone()),
    (NAN, NAN.clone()),
    (torch.tensor(3), torch.tensor(3)),
    (torch.zeros(0, 3), torch.zeros(0, 3)),
    (torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64)),
    (X.to_sparse(), X.to_sparse()),
    ({"a": [1, (X, None)]}, {"a": [1, (X, None)]}),
    (float("nan"), float("nan")),
]

DIFFERENT = [
    (X, X.index_put((torch.tensor(1), torch.tensor(1)), torch.tensor(3.5)), "1 of 4 values differ, by at most 0.5"),
    (torch.zeros(2), -torch.zeros(2), "2 of 2 values differ, by at most 0"),
    (NAN, torch.tensor([0.0, 1.0]), "1 of 2 values differ, by at most nan"),
    (X, X.half(), "['dtype']: torch.float32 against torch.float16"),
    (X, X[:1], "['shape']: (2, 2) against (1, 2)"),
    (X, X.t().contiguous().t(), "['stride']: (2, 1) against (1, 2)"),
    (X, X.clone().requires_grad_(), "['requires_grad']: False against True"),
    (X, X.to_sparse(), "['layout']: torch.strided against torch.sparse_coo"),
    (X, X.as_subclass(Tagged), "['type']: 'Tensor' against 'Tagged'"),
    (X, None, "torch.float32 tensor (2, 2) against None"),
    ({"a": X}, {"b": X}, "keys ['a'] against ['b']"),
    ({"a": X, "b": X}, {"b": X, "a": X}, "keys ['a', 'b'] against ['b', 'a']"),
    ([X], [X, X], "1 items against 2"),
    ({"a": [1, 2]}, {"a": [1, 3]}, "results['a'][1]: 2 against 3"),
    (1, True, "1 against True"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_no_difference(one, other):
    assert first_difference(observed(one), observed(other)) is None


@pytest.mark.parametrize(("one", "other", "message"), DIFFERENT)
def test_a_difference_is_told_in_words(one, other, message):
    assert message in first_difference(observed(one), observed(other))
    with pytest.raises(AssertionError, match="made_up: step 0: results"):
        assert_same(observed(one), observed(other))


def test_an_exception_is_observed_without_its_addresses():
    def explode(loss, params):
        raise ValueError(f"no {object()!r}")

    workload = load("hook_intermediate_scale")
    broken = replace(workload, backward=explode)
    assert observe(broken).raised == "ValueError: no <object object at 0x…>"
    assert "step 0: raised: None against 'ValueError" in first_difference(observe(workload), observe(broken))


def test_a_gradient_that_changes_later_does_not_change_what_was_seen():
    value = X.clone()
    seen = observed(value)
    value.add_(1)
    assert first_difference(seen, observed(X)) is None


def test_an_unknown_type_is_refused_by_name():
    with pytest.raises(TypeError, match="cannot hold a object"):
        corpus.snapshot(object())
