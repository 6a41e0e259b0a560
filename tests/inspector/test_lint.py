"""The linter of the browser's modules finds a part that changes another's fields."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ESLINT = ROOT / "node_modules" / ".bin" / "eslint"
NAME = "cabw_viz/views/inspector/src/planted.js"


@pytest.fixture
def lint():
    if not (shutil.which("node") and ESLINT.exists()):
        pytest.skip("needs node_modules; try: make lint-js")

    def run(statement: str) -> str:
        names = "inspector, picture, el"
        source = f"export function f({{ {names} }}) {{\n  {statement}\n  return [{names}];\n}}\n"
        command = [ESLINT, "--stdin", "--stdin-filename", NAME]
        return subprocess.run(command, input=source, cwd=ROOT, capture_output=True, text=True, check=False).stdout

    return run


@pytest.mark.parametrize(
    "statement",
    [
        "inspector.selection = 1;",
        "inspector.camera.view = 1;",
        "inspector.camera.view.x += 1;",
        "picture.wrapped ||= true;",
        "picture.count++;",
        "delete picture.scene;",
        "Object.assign(picture, { scene: null });",
        "Object.assign(inspector.renderer.state, { hover: null });",
        "inspector.task.latest.at = 0;",
    ],
)
def test_a_field_of_another_part_is_not_assigned(statement, lint):
    assert "A part changes its own fields" in lint(statement)


@pytest.mark.parametrize("statement", ["inspector.select(1);", 'el.textContent = "a";', "picture.pan(1);"])
def test_methods_and_elements_are_free(statement, lint):
    assert lint(statement) == ""
