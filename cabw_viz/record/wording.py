"""Wording that the texts of several parts of the package share."""

from __future__ import annotations

from dataclasses import dataclass


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun: `1 hook`, `1,204 graph nodes`; `plural` where that is more than an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


@dataclass(frozen=True)
class RunWords:
    """How a captured call itself ran, in words."""

    ran: str
    """Of the call, in an outline: `run in eager`."""
    way: str
    """After "Ran", in the inspector: `in eager, as you made it`."""
    reference: str
    """As the side of a comparison: `your own eager run`."""


RUN_WORDS: dict[str, RunWords] = {
    "eager": RunWords("run in eager", "in eager, as you made it", "your own eager run"),
    "compiled": RunWords(
        "run compiled",
        "through compiled autograd",
        "the run itself, through compiled autograd (the captured graph as it is)",
    ),
    "user": RunWords(
        "run by the user's compiler", "through your own compiler", "the run itself, through your own compiler"
    ),
}


def run_words(run: str) -> RunWords:
    """The words for a `CaptureRecord.run`; the value itself where it is none of the known ones."""
    return RUN_WORDS.get(run, RunWords(run, run, run))
