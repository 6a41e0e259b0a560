"""What `cap.divergence()` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cabw_viz.analysis import divergence as analysis
from cabw_viz.record.divergence import Divergence, DivergenceRow, NonFinite
from cabw_viz.views import divergence_table as views
from cabw_viz.views.html import divergence_html

if TYPE_CHECKING:
    import pandas as pd


class DivergenceReport:
    """Where the gradients of a backward part from eager's: the step at fault, in a table in a notebook."""

    def __init__(self, divergence: Divergence) -> None:
        self.divergence = divergence
        """The plain data."""

    @property
    def ok(self) -> bool:
        """True only if gradients were compared, no step is at fault, and no NaN or infinity begins on one side only."""
        return analysis.ok(self.divergence)

    @property
    def first(self) -> DivergenceRow | None:
        """The first step whose inputs agree and whose outputs differ, by name, module and line; None of none."""
        return self.divergence.first

    @property
    def culprits(self) -> tuple[DivergenceRow, ...]:
        """All steps that make a difference of what agrees, in the order in which the graph runs."""
        return tuple(self.divergence.rows[index] for index in self.divergence.culprits)

    @property
    def nonfinite(self) -> tuple[NonFinite, ...]:
        """Where NaN or infinity begins, on each side that has any: the row of `.frame`, and the ranges of gradients."""
        return self.divergence.nonfinite

    @property
    def summary(self) -> str:
        """The outcome in words."""
        return " ".join(views.findings(self.divergence))

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each autograd node, and for each sum of gradients and hooks before it; see `verdict_own` first."""
        return views.divergence_frame(self.divergence)

    def __repr__(self) -> str:
        return views.divergence_text(self.divergence)

    def _repr_html_(self) -> str:
        return divergence_html(self.divergence)
