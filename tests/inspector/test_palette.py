"""The browser's copy of the table of looks, and what the table must cover."""

import re
from typing import get_args

from cabw_viz.analysis.families import BACKGROUND, FAMILIES
from cabw_viz.record.kinds import AutogradKind, Verdict
from cabw_viz.record.options import COLORS
from cabw_viz.views.inspector import bundle
from cabw_viz.views.inspector.browser_palette import MODULE, browser_palette
from cabw_viz.views.palette import ENCODINGS, FAMILY_TONES, VERDICT_LOOKS

CLASSES = [each for encoding in ENCODINGS.values() for each in encoding.classes]


def test_the_browsers_copy_is_written_from_the_table():
    assert MODULE.read_text("utf-8") == browser_palette(), "run: python -m cabw_viz.views.inspector.browser_palette"


def test_every_colour_and_every_verdict_has_a_look():
    assert sorted(ENCODINGS) == sorted(COLORS)
    assert set(VERDICT_LOOKS) == set(get_args(Verdict))
    assert len({look.mark for look in VERDICT_LOOKS.values()}) == len(VERDICT_LOOKS)


def test_every_family_and_every_kind_has_a_class():
    assert tuple(each.key for each in ENCODINGS["family"].classes) == FAMILIES == tuple(FAMILY_TONES)
    assert set(get_args(AutogradKind)) <= {each.key for each in ENCODINGS["kind"].classes}


def test_families_in_the_background_are_so_in_both():
    assert {each.key for each in ENCODINGS["family"].classes if each.background} == BACKGROUND


def test_the_browser_knows_every_token_and_every_mark():
    style, encode = bundle.STYLE.read_text("utf-8"), (bundle.SOURCES / "encode.js").read_text("utf-8")
    assert {each.token for each in CLASSES} <= set(re.findall(r"--([a-z0-9-]+):", style))
    marks = {each.mark for each in CLASSES} | {look.browser_mark for look in VERDICT_LOOKS.values()}
    assert marks <= {*re.findall(r'case "(\w+)":', encode), "bar1", "bar2", "bar3"}


def test_the_limits_of_a_scale_fall_from_the_strongest_class_on():
    for encoding in ENCODINGS.values():
        limits = [each.limit for each in encoding.classes if each.limit is not None]
        assert limits == sorted(limits, reverse=True)
