"""The outcome of a search for the first divergence."""

from __future__ import annotations

from cabw_viz.analysis.drawing import file_and_line
from cabw_viz.record.divergence import BETWEEN, Difference, Divergence, DivergenceRow, NonFinite
from cabw_viz.record.kinds import GOOD, SEVERITY, Verdict
from cabw_viz.record.wording import counted

BEFORE, AFTER = 4, 2
"""How many rows around a step at fault are shown with it."""
SHOWN = 24
"""How many rows are shown where a table cannot be paged."""
LARGEST = 8
"""How many rows are shown where no step is at fault."""
NAMED = 5
"""How many further steps at fault are named in a sentence."""


def ok(divergence: Divergence) -> bool:
    """Whether gradients were compared and judged, no step is at fault, no NaN or infinity begins on one side alone."""
    return (
        divergence.compared > 0
        and not divergence.culprits
        and not _one_sided(divergence)
        and not not_judged(divergence)
    )


def _one_sided(divergence: Divergence) -> bool:
    """Whether a NaN or an infinity begins at a step on one side only, and not for want of range of a coarser dtype.

    That step need not be at fault: an eager run of it alone may make the same NaN.
    """
    return any(
        each.side != "both" and not _is_judged_good(divergence.rows[each.row].own) for each in divergence.nonfinite
    )


def _is_judged_good(own: Difference | None) -> bool:
    return own is not None and own.verdict == "within_noise"


def not_judged(divergence: Divergence) -> int:
    """How many steps give other gradients than eager, beyond a tolerance, and could not be judged by themselves.

    Behind a step at fault there is nothing to judge.
    """
    if divergence.culprits:
        return 0
    return sum(
        (row.own is None and _is_off(row.out)) or (row.own is not None and row.own.verdict == "not_judged")
        for row in divergence.rows
    )


def drifts(divergence: Divergence) -> bool:
    """Whether gradients differ by more than the tolerance although no step is at fault: roundings add up."""
    return ok(divergence) and any(_is_off(row.into) or _is_off(row.out) for row in divergence.rows)


def _is_off(difference: Difference | None) -> bool:
    return difference is not None and difference.verdict not in GOOD


def place_of(row: DivergenceRow) -> str:
    """A step's number, name, module and line: `#5 MulBackward0 in layers.0 (call 2), model.py:12`."""
    place = _short(row)
    if row.module:
        place += f" in {row.module}" + (f" (call {row.visit + 1})" if row.visit else "")
    return place + (f", {file_and_line(str(row.line))}" if row.line is not None else "")


def summary(divergence: Divergence) -> str:
    """The outcome in one sentence, or two."""
    if not divergence.compared:
        return "No gradients were compared, so nothing is shown."
    first = divergence.first
    if first is None:
        return _agreement(divergence)
    own = first.own
    assert own is not None  # that is why it is the first
    sentence = f"First divergence: {place_of(first)}. {_difference_in_words(first, own)}."
    others = [divergence.rows[index] for index in divergence.culprits[1:]]
    if others:
        named = ", ".join(_short(row) for row in others[:NAMED])
        more = f" and {len(others) - NAMED:,} more" if len(others) > NAMED else ""
        sentence += f" Also diverging on {'its' if len(others) == 1 else 'their'} own: {named}{more}."
    return sentence


def _short(row: DivergenceRow) -> str:
    return f"{row.name} (#{row.number})" if row.kind in BETWEEN else f"#{row.number} {row.name}"


def _agreement(divergence: Divergence) -> str:
    verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in counts(divergence).items())
    sentence = f"No divergence: {divergence.compared:,} gradients were compared at {len(divergence.rows):,} steps"
    if _one_sided(divergence):
        return (
            f"{divergence.compared:,} gradients were compared at {len(divergence.rows):,} steps ({verdicts}). No step "
            "alone is at fault, but a NaN or an infinity begins where the other side has none."
        )
    unknown = not_judged(divergence)
    if unknown:
        return (
            f"{divergence.compared:,} gradients were compared at {len(divergence.rows):,} steps ({verdicts}). No step "
            f"is known to be at fault, but {counted(unknown, 'step')} could not be judged: the notes say why."
        )
    if drifts(divergence):
        return f"{sentence} ({verdicts}). They drift apart by rounding; no step adds more than rounding explains."
    return f"{sentence} ({verdicts})."


def _possible_cause(row: DivergenceRow) -> str:
    """What makes a step of this kind give another result on the same gradients.

    Random numbers of torch's generators do not: each run begins with the state that they had.
    """
    if row.kind == "hook":
        return "A hook with a state of its own does so, or one that draws numbers outside of torch's generators"
    if row.kind in ("custom_function", "cpp_function"):
        return "A Function with a state of its own does so, or one that draws numbers outside of torch's generators"
    return "A race does so, a kernel that adds in no fixed order, or uninitialised memory"


def _difference_in_words(first: DivergenceRow, own: Difference) -> str:
    if own.verdict == "not_reproducible":
        size = "" if own.max_rel_err is None else f", off by {own.max_rel_err:.2g} (relative to the largest element)"
        return f"It is not reproducible: {own.note.rpartition('; ')[2]}{size}. {_possible_cause(first)}"
    words = f"Its inputs match eager; {_difference(own)}"
    if first.kind in ("hook", "custom_function") and own.verdict == "mismatch":
        return f"{words}. If it has a state of its own, it may be your own run that had another result"
    return words


def _difference(own: Difference) -> str:
    texts: dict[Verdict, str] = {
        "nonfinite": f"its output is not finite ({own.note})",
        "missing": "it has no output, and the reference has one",
        "unexpected": "it has an output, and the reference has none",
        "metadata": f"the metadata of its output differ ({own.note})",
    }
    if own.verdict in texts:
        return texts[own.verdict]
    return f"its output is off by {own.max_rel_err or 0.0:.2g} (relative to the largest element)"


def counts(divergence: Divergence) -> dict[Verdict, int]:
    """How many steps have each verdict, from harmless to worst: of their outputs, or inputs where they have none."""
    differences = [row.out or row.into for row in divergence.rows]
    verdicts = [difference.verdict for difference in differences if difference is not None]
    return {verdict: verdicts.count(verdict) for verdict in SEVERITY if verdict in verdicts}


SIDES = {"reference": "in the reference", "candidate": "in the replay", "both": "on both sides"}


def nonfinite_text(divergence: Divergence, nonfinite: NonFinite) -> str:
    """The step that makes the first NaN or infinity of one side, and the ranges of its inputs and output."""
    row = divergence.rows[nonfinite.row]
    into = "; ".join(map(str, nonfinite.into)) or "not seen"
    text = f"First NaN or infinity {SIDES[nonfinite.side]}: {place_of(row)}. Inputs: {into}; output: {nonfinite.out}."
    return f"{text} {NOT_A_DIFFERENCE}" if nonfinite.side == "both" else text


NOT_A_DIFFERENCE = "Both sides have it, so it is no difference; the forward may have made it: see cap.nonfinite()."


def mark(divergence: Divergence) -> str:
    """How the outcome is marked: `ok`; `alarm`; `nonfinite` where nothing differs, and both sides have a NaN."""
    if not ok(divergence):
        return "alarm"
    return "nonfinite" if divergence.nonfinite else "ok"


def shown_rows(divergence: Divergence) -> list[int]:
    """Indices of the rows to show where not all can be.

    The rows at fault or that make a NaN, with their neighbours; without any, the rows with the largest differences.
    """
    centers = [*divergence.culprits, *(each.row for each in divergence.nonfinite)]
    if not centers:
        return sorted(sorted(_rounding(divergence), key=lambda index: -_own(divergence.rows[index]))[:LARGEST])
    indices: set[int] = set()
    for center in centers:
        neighbours = set(range(max(0, center - BEFORE), min(len(divergence.rows), center + AFTER + 1)))
        if len(indices | neighbours) > SHOWN:
            break
        indices |= neighbours
    return sorted(indices)


def _rounding(divergence: Divergence) -> list[int]:
    """The rows whose outputs are not bitwise equal for the same inputs."""
    return [index for index, row in enumerate(divergence.rows) if row.own is not None and row.own.verdict != "bitwise"]


def _own(row: DivergenceRow) -> float:
    return 0.0 if row.own is None or row.own.max_rel_err is None else row.own.max_rel_err
