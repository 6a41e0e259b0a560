"""The files around the package: what they mention, and whether they agree with each other."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PLACES = re.compile(r"(?<![\w.~-])/(?:work|opt|root)/(?!\.\.\.)|\.\.[/]shared\b")
"""Folders of one machine, which mean nothing on another."""


def _texts() -> Iterator[tuple[Path, str]]:
    """All files that git keeps or would keep, where they are text."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so there is no telling which files belong to the project")
    for name in sorted(filter(None, listed.stdout.split("\0"))):
        data = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b""
        if b"\0" not in data:
            yield Path(name), data.decode("utf-8", "replace")


def test_no_file_mentions_a_folder_of_one_machine():
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in _texts()
        for number, line in enumerate(text.splitlines(), 1)
        if PLACES.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("see ..{}shared/design.md", True),
        ("File {}work/main/x.py", True),
        ('"{}opt/wheels"', True),
        ("tests{}workloads", False),
        ("https:{}{}example.org{}work{}x", False),
        ("~{}opt{}x", False),
    ],
)
def test_a_folder_of_one_machine_would_be_found(line, found):
    assert bool(PLACES.search(line.replace("{}", "/"))) is found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins() -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines())
    return {_normal(line.split("==")[0]): line for line in lines if line}


def test_constraints_are_plain_versions():
    """No path of one machine, no build such as `+cpu` that the public index does not have."""
    for line in _pins().values():
        assert re.fullmatch(r'[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*(; python_version >= "3\.\d+")?', line), line


def test_constraints_pin_everything_that_the_project_asks_for():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = project["dependencies"] + [need for extra in project["optional-dependencies"].values() for need in extra]
    names = {_normal(re.split(r"[^A-Za-z0-9._-]", need)[0]) for need in asked}
    assert names - set(_pins()) == set()


def test_the_version_is_the_packages_own():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" in pyproject["project"]["dynamic"]
    version_file = ROOT / pyproject["tool"]["hatch"]["version"]["path"]
    assert re.search(r'^__version__ = "\d+\.\d+\.\d+"$', version_file.read_text("utf-8"), re.MULTILINE)


def test_ci_can_be_run():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_tools_of_the_javascript_are_pinned_without_a_lock_file():
    """A lock file names the registry that it was made from."""
    package = json.loads((ROOT / "package.json").read_text("utf-8"))
    assert package["private"]
    assert [tool for tool, version in package["devDependencies"].items() if not re.fullmatch(r"[\d.]+", version)] == []
    assert [str(name) for name, _ in _texts() if name.name == "package-lock.json" or "node_modules" in name.parts] == []
