"""The committed bundle is what the sources make, and the sources keep to their rules."""

import re

from cabw_viz.views.inspector import bundle

SOURCES = sorted(bundle.SOURCES.rglob("*.js"))


def test_the_committed_bundle_is_made_of_the_sources():
    made = bundle.bundle()
    assert bundle.BUNDLE.read_text("utf-8") == made, "run: python -m cabw_viz.views.inspector.bundle"


def test_every_source_is_in_the_bundle():
    text = bundle.bundle()
    names = {path.relative_to(bundle.SOURCES).with_suffix("").as_posix() for path in SOURCES}
    assert [name for name in names if f"const ${name.replace('/', '_')} = " not in text] == []


def test_nothing_parses_text_as_markup_or_code():
    """Names come from somebody's model: they may only become text."""
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|DOMParser"
    )
    found = [f"{path.name}: {match[0]}" for path in SOURCES for match in forbidden.finditer(path.read_text("utf-8"))]
    assert found == []


def test_nothing_is_fetched_from_elsewhere():
    asks = re.compile(r"\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|https?://(?!www\.w3\.org/2000/svg)|import\(")
    assert [f"{p.name}: {m[0]}" for p in SOURCES for m in asks.finditer(p.read_text("utf-8"))] == []
    style = bundle.STYLE.read_text("utf-8")
    assert "url(" not in style
    assert "@import" not in style


def test_the_style_reaches_nothing_but_the_inspector():
    """Its own classes begin with cabw-; whatever else a rule is for, it is for that inside of one of these."""
    style = re.sub(r"/\*.*?\*/", "", bundle.STYLE.read_text("utf-8"), flags=re.DOTALL)
    selectors = [s.strip() for s in re.findall(r"([^{}]+)\{", style) if not s.strip().startswith("@")]
    parts = [part.strip() for selector in selectors for part in re.split(r",(?![^(]*\))", selector)]
    assert len(parts) > 100
    assert [part for part in parts if ".cabw-" not in part.split(" ")[0]] == []


def test_modules_are_small():
    assert [
        f"{path.name}: {len(path.read_text().splitlines())}"
        for path in SOURCES
        if len(path.read_text().splitlines()) > 360
    ] == []
