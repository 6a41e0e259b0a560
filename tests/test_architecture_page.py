"""docs/architecture.md and CONTRIBUTING.md name files and definitions that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")
SOURCES = [path for suffix in ("py", "js") for path in (ROOT / "cabw_viz").rglob(f"*.{suffix}")]
FILES = [
    f"/{path.relative_to(ROOT).as_posix()}" for path in (*SOURCES, *ROOT.glob("tests/*.py"), *ROOT.glob("docs/*.md"))
]
WORDS = {word for path in SOURCES for word in re.findall(r"\w+", path.read_text("utf-8"))}

NOT_OURS = {"output_size", "nodes_of", "noqa", "gpu", "CONTRIBUTING", "torch", "py", "js", "md"}
"""Examples of names, a pytest marker, parts of file names."""


def quoted(page):
    """What stands between backticks in the text, code blocks left out."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return sorted(set(re.findall(r"`([^`\n]+)`", text)))


@pytest.mark.parametrize("page", PAGES)
def test_a_file_that_is_named_exists(page):
    names = [text for text in quoted(page) if re.fullmatch(r"[\w./-]+\.(?:py|js|md)", text)]
    assert names
    named = {name: any(file.endswith(f"/{name}") for file in FILES) or (ROOT / name).is_file() for name in names}
    assert [name for name, exists in named.items() if not exists] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_folder_that_is_named_exists(page):
    folders = [text for text in quoted(page) if re.fullmatch(r"[\w/-]+/", text)]
    assert folders
    assert [
        name for name in folders if not (ROOT / name).is_dir() and not any(f"/{name}" in file for file in FILES)
    ] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_definition_that_is_named_exists(page):
    names = {part for text in quoted(page) if re.fullmatch(r"[A-Za-z_][\w.]+", text) for part in text.split(".")}
    assert names
    assert sorted(names - WORDS - NOT_OURS) == []
