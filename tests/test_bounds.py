"""The table of bounds: the documents quote it as it is."""

import re
from pathlib import Path

import pytest
import torch

from cabw_viz.numerics import constants
from cabw_viz.numerics.tolerance import TOLERANCES

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ("parity.md", "divergence.md", "gradients.md")
NOT_QUOTED = {"TF32_UNIT", "SMALLEST_SIZE"}
"""These say how numbers are represented, and bound nothing."""


def quoted(page):
    """Name and numbers of each row `| `NAME` | value | …`."""
    rows = re.findall(r"^\| `([A-Z0-9_]+)` \| ([^|]+) \|", (DOCS / page).read_text("utf-8"), re.MULTILINE)
    return {name: tuple(map(float, value.split(","))) for name, value in rows}


@pytest.mark.parametrize("page", PAGES)
def test_a_document_quotes_the_bounds_as_they_are(page):
    table = quoted(page)
    assert len(table) > (0 if page == "gradients.md" else 5)
    for name, numbers in table.items():
        value = getattr(constants, name)
        assert numbers == (tuple(value) if isinstance(value, tuple) else (value,)), name


def test_every_bound_is_quoted():
    names = {name for name in vars(constants) if name.isupper()}
    assert names - NOT_QUOTED == {name for page in PAGES for name in quoted(page)}


@pytest.mark.parametrize("page", PAGES)
def test_a_bound_that_the_text_names_is_in_the_table(page):
    named = set(re.findall(r"`([A-Z0-9]+_[A-Z0-9_]+|SUMS)`", (DOCS / page).read_text("utf-8")))
    assert named <= set(quoted(page))


def test_half_precision_is_told_from_single_by_the_unit():
    half = {dtype for dtype in TOLERANCES if torch.finfo(dtype).eps > constants.HALF_UNIT}
    assert half == {torch.float16, torch.bfloat16, torch.complex32}
    assert constants.TF32_UNIT > constants.HALF_UNIT
