"""Parity: the gradients of a captured graph, run again, compared with those of the user's own run.

parity ── Replay.result: the graph run again at the target
   ├─ GradientPairs.row: one leaf, compared by a tolerance
   └─ final_rows: noise or fault, by further runs where that is needed
"""

from __future__ import annotations

from cabw_viz.record.comparison import Comparison
from cabw_viz.record.coverage import coverage_text, missed_names
from cabw_viz.replay.parity.descriptions import describe_graph, describe_run, hook_notes
from cabw_viz.replay.parity.gradient_pairs import GradientPairs, ParityOptions
from cabw_viz.replay.parity.judgement import final_rows
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
    captured.check_reference()
    result = replay.result()
    replay.release()  # the float64 run needs the memory
    pairs = GradientPairs(captured, options, result)
    rows = [pairs.row(index) for index in pairs.leaves]
    rows, noise_notes = final_rows(replay, options, rows, pairs)
    record, reference = captured.record, captured.state.reference
    graph, run = describe_graph(options.target, result), describe_run(record, (g.value for g in reference.values()))
    sides = (run, graph) if record.run == "eager" else (graph, run)
    notes = (*hook_notes(record, options.hooks), *pairs.notes, *noise_notes)
    missed, coverage = missed_names(record), coverage_text(record)
    return Comparison(*sides, tuple(rows), pairs.used.rows(), notes, missed, coverage)
