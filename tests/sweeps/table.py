"""The outcomes of a sweep as Markdown: how many of how many, and what did not hold."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import torch

from tests.sweeps.cases import DTYPES, Case
from tests.sweeps.checks import CHECKS, Report
from tests.sweeps.exceptions import explanation

MOST_NAMES = 12
MOST_CHARACTERS = 160


def unexplained(reports: Sequence[Report]) -> list[tuple[Case, str, str]]:
    """Case, check and reason of each failure that is in no list."""
    return [row for row in _failures(reports) if not explanation(*row)]


def markdown(reports: Sequence[Report]) -> str:
    """The table of all checks, and the exceptions."""
    return "\n\n".join(filter(None, (_counts(reports), _explained(reports), _refusals(reports), _failed(reports))))


def _counts(reports: Sequence[Report]) -> str:
    columns = [(kind, dtype) for kind in ("operator", "module", "model") for dtype in DTYPES]
    cases = {column: [r for r in reports if (r.case.kind, r.case.dtype) == column and r.outcomes] for column in columns}
    columns = [column for column in columns if cases[column]]
    lines = [
        f"torch {torch.__version__.split('+')[0]}; held / judged, and in brackets refused by name",
        "",
        "| check | " + " | ".join(f"{kind}s, {dtype}" for kind, dtype in columns) + " |",
        "|---|" + "---:|" * len(columns),
        "| names | " + " | ".join(str(len({r.case.name for r in cases[c]})) for c in columns) + " |",
        "| cases | " + " | ".join(str(len(cases[c])) for c in columns) + " |",
    ]
    rows = [f"| {check} | " + " | ".join(_cell(cases[c], check) for c in columns) + " |" for check in CHECKS]
    return "\n".join(lines + rows)


def _cell(reports: Sequence[Report], check: str) -> str:
    counts = Counter(r.outcomes[check][0] for r in reports if check in r.outcomes)
    judged = counts["held"] + counts["failed"] + counts["pytorch"] + counts["said"]
    if not judged and not counts["refused"]:
        return "–"
    return f"{counts['held']} / {judged}" + (f" ({counts['refused']})" if counts["refused"] else "")


def _explained(reports: Sequence[Report]) -> str:
    groups: dict[tuple[str, str], set[str]] = defaultdict(set)
    for report in reports:
        for check, (outcome, reason) in report.outcomes.items():
            if outcome == "pytorch":
                groups[check, f"PyTorch's own: {_kind(reason)}"].add(report.case.name)
            elif outcome in ("said", "not judged"):
                groups[check, _kind(reason)].add(report.case.name)
            elif outcome == "failed" and (why := explanation(report.case, check, reason)):
                groups[check, why].add(report.case.name)
    return _list("Not held, and why:", groups)


def _refusals(reports: Sequence[Report]) -> str:
    groups: dict[tuple[str, str], set[str]] = defaultdict(set)
    for report in reports:
        for check, (outcome, reason) in report.outcomes.items():
            if outcome == "refused":
                groups[check, _kind(reason)].add(report.case.name)
    return _list("Refused by name:", groups)


def _failed(reports: Sequence[Report]) -> str:
    rows = [f"- {case}, {check}: {reason}" for case, check, reason in unexplained(reports)]
    return "\n".join(["Failed:", "", *rows]) if rows else "Nothing else failed."


def _failures(reports: Sequence[Report]) -> Iterator[tuple[Case, str, str]]:
    for report in reports:
        for check, (outcome, reason) in report.outcomes.items():
            if outcome == "failed":
                yield report.case, check, reason


def _kind(reason: str) -> str:
    """A reason without what is particular to one case."""
    alone = reason.partition("; compiled autograd alone ")
    if alone[1]:
        return f"compiled autograd alone {alone[2]}"
    sentence = re.sub(r" \(#\d+\)|, graph node \w+", "", reason.rsplit(" raised ", maxsplit=1)[-1])
    return textwrap.shorten(sentence, MOST_CHARACTERS, placeholder=" …")


def _list(heading: str, groups: dict[tuple[str, str], set[str]]) -> str:
    if not groups:
        return ""
    lines = [heading, ""]
    for (check, why), members in sorted(groups.items()):
        some = sorted(members)
        rest = f" and {len(some) - MOST_NAMES} more" if len(some) > MOST_NAMES else ""
        lines.append(f"- {check}: {why} ({', '.join(some[:MOST_NAMES])}{rest})")
    return "\n".join(lines)
