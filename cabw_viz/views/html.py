"""Sessions, captures and comparisons as HTML: one function for each fragment.

Every text from models, code or file names goes through `_text`, the one place that escapes.
Drawings come from `dot`, tables from pandas, which escape on their own.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import get_args

from cabw_viz.analysis import divergence as divergence_of
from cabw_viz.analysis import missing as missing_of
from cabw_viz.analysis import nonfinite as nonfinite_of
from cabw_viz.analysis import parity, steps
from cabw_viz.analysis.drawing import call_title, file_and_line, problem_of
from cabw_viz.record.comparison import Comparison
from cabw_viz.record.coverage import coverage_text
from cabw_viz.record.divergence import Divergence
from cabw_viz.record.kinds import Outcome
from cabw_viz.record.missing import MissingGradients
from cabw_viz.record.model import CaptureRecord, Event
from cabw_viz.record.nonfinite import NonFiniteSearch
from cabw_viz.record.options import Level
from cabw_viz.record.results import NO_RESULTS, CaptureData, Results
from cabw_viz.record.steps import StepMatrix
from cabw_viz.record.untraced import graph_words
from cabw_viz.record.wording import counted, run_words
from cabw_viz.views import divergence_table as views_of_divergence
from cabw_viz.views import missing_table as views_of_missing
from cabw_viz.views.error_picture import error_picture
from cabw_viz.views.nonfinite_table import nonfinite_styler
from cabw_viz.views.outline import outline
from cabw_viz.views.parity_table import parity_styler
from cabw_viz.views.render import GraphView, graph_view
from cabw_viz.views.steps_table import matrix_styler
from cabw_viz.views.steps_text import facts, finding_lines
from cabw_viz.views.text import in_line

BOXES_SHOWN = 400
"""What shows itself draws no more boxes than this together: the pictures are stored with the notebook."""

PROSE_SHOWN = 300
"""PyTorch's messages can be half a page; `cap.error` and `session.events` have them in full."""

ROWS_SHOWN = 100
"""A session with more different rows of events shows the first and last of them."""

OUTCOME_MARKS: dict[Outcome, str] = {"captured": "●", "cache_hit": "○", "failed": "✗", "bypassed": "–"}
EVENT_HEADINGS = ("call", "function", "where", "outcome", "capture", "ms", "reason")


# ------------------------------------------------------------------------------------------------------ whole fragments


def session_html(events: Iterable[Event], captures: Sequence[CaptureData], level: Level = "module") -> str:
    """A session: what became of each backward call, and its captures, the last one opened."""
    events = list(events)
    views = _drawn([graph_view(record, level, results=results) for record, results in captures])
    bodies = [
        _folded(_capture_title(index, record), _capture_body(record, results, view), opened=index == len(captures) - 1)
        for index, ((record, results), view) in enumerate(zip(captures, views, strict=True))
    ]
    return _fragment(_session_title(events), _event_table(events), *bodies)


def capture_html(record: CaptureRecord, results: Results = NO_RESULTS, level: Level = "module") -> str:
    """A capture: its title, its drawing, and its outline folded away."""
    (view,) = _drawn([graph_view(record, level, results=results)])
    return _fragment(f"<p>{_record_title(record)}</p>", _capture_body(record, results, view))


def parity_html(comparison: Comparison) -> str:
    """A comparison: its outcome, what was compared with what, a coloured row for each gradient, a picture of errors."""
    if not comparison.rows:
        return _fragment(_verdict(comparison), _comparison_facts(comparison))
    table = _scrolled(parity_styler(comparison).to_html())
    picture = _scrolled(error_picture(comparison)) if any(row.verdict != "bitwise" for row in comparison.rows) else ""
    return _fragment(_verdict(comparison), _comparison_facts(comparison), table, picture)


def picture_html(svg: str) -> str:
    """A picture, as wide as it is."""
    return _fragment(_scrolled(svg))


def _scrolled(content: str) -> str:
    return f'<div class="cabw-scroll">{content}</div>'


def divergence_html(divergence: Divergence) -> str:
    """A search for the first divergence: what was found, the rows that matter, what was compared with what."""
    mark, css = {"ok": ("✓", "ok"), "nonfinite": ("!", "alarm")}.get(divergence_of.mark(divergence), ("✗", "alarm"))
    first, *more = views_of_divergence.findings(divergence)
    left = len(divergence.rows) - len(divergence_of.shown_rows(divergence))
    row_count = len(divergence.rows) - left
    table = views_of_divergence.divergence_styler(divergence).to_html() if row_count else ""
    return _fragment(
        f"<p>{_span(css, f'{mark} {_text(first)}')}</p>",
        *(f"<p>{_text(text)}</p>" for text in more),
        _scrolled(table),
        f'<p class="cabw-muted">… {left:,} more rows: <code>.frame</code></p>' if left and row_count else "",
        f'<p class="cabw-muted">{"<br>".join(map(_prose, views_of_divergence.facts(divergence)))}</p>',
    )


def nonfinite_html(search: NonFiniteSearch) -> str:
    """Where NaN and infinity begin: the outcome, a table of the places, and what was not looked at."""
    mark, css = ("✓", "ok") if nonfinite_of.ok(search) else ("✗", "alarm")
    first, *more = nonfinite_of.findings(search)
    table = nonfinite_styler(search).to_html() if search.origins else ""
    return _fragment(
        f"<p>{_span(css, f'{mark} {_text(first)}')}</p>",
        _scrolled(table),
        *(f'<p class="cabw-muted">{_text(text)}</p>' for text in more),
    )


def missing_html(missing: MissingGradients) -> str:
    """What got no gradient: a sentence for each reason, and the table."""
    mark, css = ("✗", "alarm") if missing.rows else ("✓", "ok")
    if missing.parameters is None and not missing.rows:
        mark, css = "", "muted"
    table = views_of_missing.missing_styler(missing).to_html() if missing.rows else ""
    return _fragment(
        f"<p>{_span(css, f'{mark} {_text(missing_of.summary(missing))}'.strip())}</p>",
        *(f"<p>{_text(text)}</p>" for text in missing_of.sentences(missing)),
        _scrolled(table),
        *(f'<p class="cabw-muted">{_prose(note)}</p>' for note in missing.notes),
    )


def matrix_html(matrix: StepMatrix) -> str:
    """Whole steps compared: the outcome, the heat map, what differs, and what was run."""
    mark, css = ("✓", "ok") if steps.all_ok(matrix) else ("✗", "alarm")
    table = matrix_styler(matrix).to_html() if steps.labels(matrix) else ""
    differences = "<br>".join(_text(line) for line in finding_lines(matrix))
    return _fragment(
        f"<p>{_span(css, f'{mark} {_prose(steps.summary(matrix))}')}</p>",
        _scrolled(table),
        f"<p>{differences}</p>" if differences else "",
        f'<p class="cabw-muted">{"<br>".join(map(_prose, facts(matrix)))}</p>',
    )


def page_html(title: str, *fragments: str) -> str:
    """A whole page that needs nothing else, made of fragments."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{_text(title)}</title>\n'
        f"<style>{_style('page')}</style>\n</head>\n<body>\n<h1>{_text(title)}</h1>\n"
        + "\n".join(fragments)
        + "\n</body>\n</html>\n"
    )


# --------------------------------------------------------------------------------------------------------------- leaves


def _text(text: str, limit: int = 500) -> str:
    """Any text, in one line and escaped."""
    return html.escape(in_line(text, limit))


def _prose(text: str) -> str:
    """One or several sentences, line breaks as blanks."""
    return _text(" ".join(text.split()), PROSE_SHOWN)


@cache
def _style(name: str) -> str:
    return Path(__file__).with_name(f"{name}.css").read_text("utf-8")


def _fragment(*parts: str) -> str:
    """Parts with the style they need; MathJax keeps out, so that a name with $ in it stays a name."""
    return f'<div class="cabw tex2jax_ignore mathjax_ignore"><style>{_style("html")}</style>{"".join(parts)}</div>'


def _span(css: str, content: str) -> str:
    return f'<span class="cabw-{css}">{content}</span>'


def _folded(title: str, content: str, *, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{title}</summary>{content}</details>"


# ------------------------------------------------------------------------------------------------------------- captures


def _record_title(record: CaptureRecord) -> str:
    facts = [
        run_words(record.run).ran,
        counted(len(record.autograd_nodes), "autograd node"),
        graph_words(record),
    ]
    title = _span("title", _text(call_title(record))) + _span("muted", _text(" · ".join(facts)))
    return title + (f" {_span('alarm', '✗ failed')}" if record.failure else "")


def _capture_title(index: int, record: CaptureRecord) -> str:
    return f"{_span('muted', f'[{index}]')} {_record_title(record)}"


def _capture_body(record: CaptureRecord, results: Results, view: GraphView | None) -> str:
    problem = f'<p class="cabw-alarm">{_prose(problem_of(record))}</p>' if record.failure else ""
    coverage = coverage_text(record, "no part of this graph")
    missed = f'<p class="cabw-muted">{_prose(coverage)}</p>' if coverage else ""
    return problem + missed + _drawing(view) + _folded("Outline", f"<pre>{html.escape(outline(record, results))}</pre>")


def _drawn(views: list[GraphView]) -> list[GraphView | None]:
    """The views whose pictures are shown, the last first, as far as BOXES_SHOWN allows; None for the others."""
    left, drawn = BOXES_SHOWN, list[GraphView | None]()
    for view in reversed(views):
        left -= len(view.drawing.boxes)
        drawn.append(view if left >= 0 else None)
    return drawn[::-1]


def _drawing(view: GraphView | None) -> str:
    if view is None:
        why = f"Not drawn here, where at most {BOXES_SHOWN} boxes are shown together"
        return f'<p class="cabw-muted">{why}: <code>.graph()</code> draws it.</p>'
    return f'<div class="cabw-drawing">{view.html()}</div>'


# --------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class _Row:
    """One event, or several in a row that differ in nothing but their number and time."""

    event: Event
    last: int | None
    count: int
    seconds: float

    @property
    def call(self) -> str:
        first = self.event.call.index
        if first is None:
            return f"× {self.count}" if self.count > 1 else ""
        return f"{first}" if self.last == first else f"{first} to {self.last}"


def _rows(events: Iterable[Event]) -> Iterator[_Row]:
    for _, group in groupby(events, _likeness):
        alike = list(group)
        yield _Row(alike[0], alike[-1].call.index, len(alike), sum(event.seconds for event in alike))


def _likeness(event: Event) -> tuple[object, ...]:
    call = event.call
    return event.outcome, event.reason, event.capture, call.function, call.where, call.index is None


def _session_title(events: Sequence[Event]) -> str:
    outcomes = Counter(event.outcome for event in events)
    counts = [f"{outcomes[outcome]:,} {outcome}" for outcome in get_args(Outcome) if outcomes[outcome]]
    title = _span("title", counted(len(events), "backward call"))
    return f"<p>{title}{_span('muted', ' · '.join(counts))}</p>"


def _event_table(events: Sequence[Event]) -> str:
    if not events:
        return ""
    rows = list(_rows(events))
    heads = "".join(f'<th class="{_column(name)}">{name}</th>' for name in EVENT_HEADINGS)
    body = [_event_row(row) for row in rows]
    if len(rows) > ROWS_SHOWN:
        more = f'<tr><td colspan="{len(EVENT_HEADINGS)}">… {len(rows) - ROWS_SHOWN:,} more: session.events</td></tr>'
        body = [*body[: ROWS_SHOWN // 2], more, *body[-ROWS_SHOWN // 2 :]]
    table = f'<table class="cabw-events"><thead><tr>{heads}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    return _scrolled(table)


def _column(name: str) -> str:
    return {"ms": "cabw-number", "reason": "cabw-reason"}.get(name, f"cabw-{name}")


def _event_row(row: _Row) -> str:
    event = row.event
    cells = (
        _text(row.call),
        _text(event.call.function),
        _text(file_and_line(event.call.where)),
        _text(f"{OUTCOME_MARKS[event.outcome]} {event.outcome}"),
        "" if event.capture is None else f"[{event.capture}]",
        f"{row.seconds * 1000:,.1f}",
        _prose(event.reason),
    )
    columns = zip(EVENT_HEADINGS, cells, strict=True)
    return "<tr>" + "".join(f'<td class="{_column(name)}">{cell}</td>' for name, cell in columns) + "</tr>"


# --------------------------------------------------------------------------------------------------------------- parity


def _verdict(comparison: Comparison) -> str:
    mark, css = ("✓", "ok") if parity.ok(comparison) else ("✗", "alarm")
    return f"<p>{_span(css, f'{mark} {_prose(parity.summary(comparison))}')}</p>"


def _comparison_facts(comparison: Comparison) -> str:
    facts = [f"candidate: {comparison.candidate}", f"reference: {comparison.reference}"]
    facts += [f"tolerance: {dtype} rtol={rtol:g} atol={atol:g}" for dtype, rtol, atol in comparison.tolerances]
    facts += [f"note: {note}" for note in comparison.notes]
    return f'<p class="cabw-muted">{"<br>".join(map(_prose, facts))}</p>'
