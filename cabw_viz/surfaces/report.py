"""What `cap.parity()` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cabw_viz.analysis import parity
from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.views import html, tables

if TYPE_CHECKING:
    import pandas as pd


class ParityReport:
    """Gradients compared, one by one: a coloured table in a notebook, plain text elsewhere."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        """The plain data."""

    @property
    def ok(self) -> bool:
        """True only if there are gradients and every one is `bitwise` or `within_tolerance`."""
        return parity.ok(self.comparison)

    @property
    def worst(self) -> GradientComparison | None:
        """The row with the worst verdict, and of those the largest relative error; None without rows."""
        return parity.worst(self.comparison)

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each gradient: parameter, verdict, max_abs_err, max_rel_err, shape, dtype, and more."""
        return tables.parity_frame(self.comparison)

    def __repr__(self) -> str:
        return tables.parity_text(self.comparison)

    def _repr_html_(self) -> str:
        return html.parity_html(self.comparison)
