"""Parity: the gradients of a captured graph, run again, compared with those of the user's own run.

parity ── Replay.result: the graph run again at the target
   ├─ GradientPairs.row: one leaf, compared by a tolerance
   └─ final_rows: noise or fault, by further runs where that is needed
"""

from __future__ import annotations

from collections.abc import Sequence

from cabw_viz.errors import CabwError
from cabw_viz.record.comparison import Comparison
from cabw_viz.record.model import CaptureRecord, Hook
from cabw_viz.record.options import HookPolicy
from cabw_viz.record.wording import counted
from cabw_viz.replay.parity.descriptions import describe_graph, describe_run
from cabw_viz.replay.parity.gradient_pairs import GradientPairs, ParityOptions
from cabw_viz.replay.parity.noise_runs import final_rows
from cabw_viz.replay.replay import Replay
from cabw_viz.runtime.capture_state import Captured


def parity(captured: Captured, options: ParityOptions | None = None) -> Comparison:
    """Compare the captured graph, run again, with the user's own run.

    After an eager run the reference is that run. A compiled run is itself what is in question: there the graph
    run again is the reference. Inside the user's own compiler nothing can be watched, so `.grad` after the call
    is compared with `.grad` before it plus the graph's gradient.

    Args:
        captured: the capture.
        options: hooks as for `replay`; tolerances, instead of torch.testing's; where the graph runs, in which dtype,
            under which backend; whether errors against a float64 run are wanted (`auto`: where not all is equal to
            the last bit); further measures.

    Raises:
        CabwError: there is no reference, or the graph cannot be run again there.
    """
    options = (options or ParityOptions()).checked()
    replay = Replay(captured, options.target, options.hooks)
    check_reference(captured)
    result = replay.result()
    pairs = GradientPairs(captured, options, result)
    rows = [pairs.row(index) for index in pairs.leaves]
    rows, noise_notes = final_rows(replay, options, rows, pairs)
    record, reference = captured.record, captured.state.reference
    graph, run = describe_graph(options.target, result), describe_run(record, (g.value for g in reference.values()))
    sides = (run, graph) if record.run == "eager" else (graph, run)
    notes = (*hook_notes(record, options.hooks), *pairs.notes(), *noise_notes)
    return Comparison(*sides, tuple(rows), pairs.used.rows(), notes)


def check_reference(captured: Captured) -> None:
    """Raise a CabwError where the user's own run left nothing to compare with."""
    record, state = captured.record, captured.state
    if state.has_reference:
        return
    if record.failure is not None:
        raise CabwError(
            f"the run of this backward raised {record.failure}",
            expected="a backward that ends",
            try_="cap.error and session.events",
        )
    if state.reference_error:
        raise CabwError(
            f"the gradients of your own run could not be kept: {state.reference_error}",
            expected="a run whose gradients can be copied",
            try_='cabw_viz.capture(..., gradients="leaves"), and a report to the authors of cabw_viz',
        )
    raise CabwError(
        'the session was captured with gradients="none", so no reference was kept',
        expected="gradients of the user's own run",
        try_='cabw_viz.capture(..., gradients="leaves")',
    )


def _accumulate_hooks(record: CaptureRecord) -> list[Hook]:
    return [hook for node in record.autograd_nodes if node.kind == "accumulate_grad" for hook in node.hooks]


def hook_notes(record: CaptureRecord, hooks: HookPolicy) -> Sequence[str]:
    """What a reader of a comparison must know about hooks, and about leaves where there are none."""
    kinds = [hook.kind for node in record.autograd_nodes for hook in node.hooks]
    post_accumulate, unpack = kinds.count("post_acc_grad_hook"), kinds.count("unpack_hook")
    retained = kinds.count("cpp_tensor_pre_hook")
    others = len(kinds) - post_accumulate - unpack - retained
    notes = []
    if record.run == "user" and any(hook.kind.startswith("post") for hook in _accumulate_hooks(record)):
        notes.append("hooks that follow an accumulation may have changed .grad before it was read")
    if others:
        notes.append(f"in the replay {counted(others, 'hook')} {'ran again' if hooks == 'run' else 'did not run'}")
    if unpack:
        notes.append(f"in the replay {counted(unpack, 'saved-tensor hook')} unpacked again")
    if retained:
        notes.append(f"in the replay {counted(retained, 'gradient')} kept by retain_grad() stayed as it was")
    if post_accumulate:
        notes.append(f"in the replay {counted(post_accumulate, 'post-accumulate hook')} did not run")
    if not record.leaves:
        notes.append("this backward computes the gradient of no leaf")
    return notes
