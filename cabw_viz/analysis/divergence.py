"""What a search for the first divergence comes to."""

from __future__ import annotations

from cabw_viz.analysis.drawing import file_and_line
from cabw_viz.record.divergence import BETWEEN, Difference, Divergence, DivergenceRow, NonFinite
from cabw_viz.record.kinds import GOOD, SEVERITY, Verdict

BEFORE, AFTER = 4, 2
"""How many rows around a step at fault are shown with it."""
SHOWN = 24
"""How many rows are shown where a table cannot be paged."""
LARGEST = 8
"""How many are shown where no step is at fault."""
NAMED = 5
"""How many further steps at fault are named in a sentence."""


def ok(divergence: Divergence) -> bool:
    """Whether gradients were compared, and no step makes a difference, or a NaN on one side, of what agrees."""
    return divergence.compared > 0 and not divergence.culprits and not _one_sided(divergence)


def _one_sided(divergence: Divergence) -> bool:
    """Whether a NaN or an infinity begins at a step on one side only.

    The step need not be at fault alone: one that is judged by an eager run of it may make the same NaN there.
    """
    return any(each.side != "both" for each in divergence.nonfinite)


def drifts(divergence: Divergence) -> bool:
    """Whether gradients are apart by more than the tolerance although no step is at fault: roundings add up."""
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
    sentence = f"First divergence: {place_of(first)}. Of gradients that agree it makes {_difference(own)}."
    others = [divergence.rows[index] for index in divergence.culprits[1:]]
    if others:
        named = ", ".join(_short(row) for row in others[:NAMED])
        more = f" and {len(others) - NAMED:,} more" if len(others) > NAMED else ""
        sentence += f" So {'does' if len(others) == 1 else 'do'} {named}{more}."
    return sentence


def _short(row: DivergenceRow) -> str:
    return f"{row.name} (#{row.number})" if row.kind in BETWEEN else f"#{row.number} {row.name}"


def _agreement(divergence: Divergence) -> str:
    counted = ", ".join(f"{count:,} {verdict}" for verdict, count in counts(divergence).items())
    sentence = f"No divergence: {divergence.compared:,} gradients were compared at {len(divergence.rows):,} steps"
    if _one_sided(divergence):
        return (
            f"{divergence.compared:,} gradients were compared at {len(divergence.rows):,} steps ({counted}). No step "
            "alone makes a difference of what agrees, but a NaN or an infinity begins where the other side has none."
        )
    if drifts(divergence):
        return f"{sentence} ({counted}). They drift apart by rounding, but no step makes more of it than it should."
    return f"{sentence} ({counted})."


def _difference(own: Difference) -> str:
    texts: dict[Verdict, str] = {
        "nonfinite": f"some that are not finite ({own.note})",
        "missing": "none where the reference has some",
        "unexpected": "some where the reference has none",
        "metadata": f"some of another kind ({own.note})",
    }
    if own.verdict in texts:
        return texts[own.verdict]
    return f"some that are off by {own.max_rel_err or 0.0:.2g} of the largest element"


def counts(divergence: Divergence) -> dict[Verdict, int]:
    """How many steps have each verdict on what flows out, or in where nothing flows out; from harmless to worst."""
    seen = [row.out or row.into for row in divergence.rows]
    verdicts = [each.verdict for each in seen if each is not None]
    return {verdict: verdicts.count(verdict) for verdict in SEVERITY if verdict in verdicts}


SIDES = {"reference": "in the reference", "candidate": "in the replay", "both": "on both sides"}


def nonfinite_text(divergence: Divergence, found: NonFinite) -> str:
    """Which step makes the first NaN or infinity of one side, and of what."""
    row = divergence.rows[found.row]
    into = "; ".join(map(str, found.into)) or "not seen"
    return f"First NaN or infinity {SIDES[found.side]}: {place_of(row)}. What flows in: {into}; out: {found.out}."


def shown_rows(divergence: Divergence) -> list[int]:
    """Indices of the rows to show where not all can be.

    Those at fault or that make a NaN, with what stands around them; without any, the largest differences that are none
    of a fault.
    """
    wanted = [*divergence.culprits, *(each.row for each in divergence.nonfinite)]
    if not wanted:
        return sorted(sorted(_rounding(divergence), key=lambda index: -_own(divergence.rows[index]))[:LARGEST])
    picked: set[int] = set()
    for index in wanted:
        around = set(range(max(0, index - BEFORE), min(len(divergence.rows), index + AFTER + 1)))
        if len(picked | around) > SHOWN:
            break
        picked |= around
    return sorted(picked)


def _rounding(divergence: Divergence) -> list[int]:
    """The rows that are not the same to the last bit if the same flows in."""
    return [index for index, row in enumerate(divergence.rows) if row.own is not None and row.own.verdict != "bitwise"]


def _own(row: DivergenceRow) -> float:
    return 0.0 if row.own is None or row.own.max_rel_err is None else row.own.max_rel_err
