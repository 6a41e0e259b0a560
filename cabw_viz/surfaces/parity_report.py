"""What `cap.parity()` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cabw_viz.analysis import parity
from cabw_viz.errors import CabwError
from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.surfaces.svg_picture import SvgPicture
from cabw_viz.views import html, parity_table
from cabw_viz.views.depth_frame import standalone
from cabw_viz.views.error_picture import error_picture
from cabw_viz.views.files import path_named, write_file

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from pandas.io.formats.style import Styler

EXAMPLE = 'report.save("parity.csv")'


class ParityReport:
    """Gradients compared, one by one: a coloured table and a picture in a notebook, plain text elsewhere."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        """The plain data."""

    @property
    def ok(self) -> bool:
        """True only if there are gradients and every one is `bitwise`, `within_tolerance` or `within_noise`."""
        return parity.ok(self.comparison)

    @property
    def worst(self) -> GradientComparison | None:
        """The row with the worst verdict, and of those the largest relative error; None without rows."""
        return parity.worst(self.comparison)

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each gradient: `parameter`, `verdict`, the errors, `first` element that differs, and more.

        `max_abs_err`, `max_rel_err`; `reference_err` and `candidate_err` against a float64 run, NaN without one;
        further measures; `shape`, `dtype`, `elements`, `mismatched`; `first` with its two values, `reference` and
        `candidate`; `note`.
        """
        return parity_table.parity_frame(self.comparison)

    @property
    def styler(self) -> Styler:
        """The table as a notebook shows it, for pandas' own ways to render and export it."""
        return parity_table.parity_styler(self.comparison)

    def picture(self) -> SvgPicture:
        """The error of each gradient along the depth of the model; shows itself in a notebook."""
        words = f"errors of {len(self.comparison.rows)} gradients"
        return SvgPicture(error_picture(self.comparison), words, 'report.picture().save("errors.svg")')

    def save(self, path: str | Path) -> Path:
        """Write the report to a file: `.csv` has the frame, `.txt` the text, `.svg` the picture, `.html` all of it.

        Raises:
            CabwError: the name ends otherwise, or the file cannot be written.
        """
        makers = {
            ".csv": lambda: self.frame.to_csv(index=False),
            ".txt": lambda: f"{self!r}\n",
            ".svg": lambda: standalone(self.picture().svg),
            ".html": lambda: html.page_html("cabw_viz: parity", html.parity_html(self.comparison)),
        }
        target = path_named(path, EXAMPLE)
        make = makers.get(target.suffix.lower())
        if make is None:
            raise CabwError(
                f"a report cannot be saved as {target.suffix or target.name!r}",
                expected=", ".join(makers),
                try_=EXAMPLE,
            )
        return write_file(target, make(), EXAMPLE)

    def __repr__(self) -> str:
        return parity_table.parity_text(self.comparison)

    def _repr_html_(self) -> str:
        return html.parity_html(self.comparison)
