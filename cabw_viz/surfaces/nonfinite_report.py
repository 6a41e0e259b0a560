"""What `cap.nonfinite()` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cabw_viz.analysis import nonfinite as analysis
from cabw_viz.record.nonfinite import NonFiniteOrigin, NonFiniteSearch
from cabw_viz.views import nonfinite_table as views
from cabw_viz.views.html import nonfinite_html

if TYPE_CHECKING:
    import pandas as pd


class NonFiniteReport:
    """Where the NaN and infinities of a backward begin: a table in a notebook."""

    def __init__(self, search: NonFiniteSearch) -> None:
        self.search = search
        """The plain data."""

    @property
    def ok(self) -> bool:
        """True only if gradients were looked at, and neither they nor the loss hold NaN or infinity."""
        return analysis.ok(self.search)

    @property
    def first(self) -> NonFiniteOrigin | None:
        """The earliest cause, by name, module and line; None where there is none, or nothing shows it."""
        return self.search.first

    @property
    def origins(self) -> tuple[NonFiniteOrigin, ...]:
        """All places where NaN or infinity begins: those of the forward, then those of the backward in its order."""
        return self.search.origins

    @property
    def summary(self) -> str:
        """The outcome in words, the loss first."""
        return analysis.summary(self.search)

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each of `origins`, with the range of what flowed in."""
        return views.nonfinite_frame(self.search)

    def __repr__(self) -> str:
        return views.nonfinite_text(self.search)

    def _repr_html_(self) -> str:
        return nonfinite_html(self.search)
