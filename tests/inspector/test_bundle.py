"""The bundle has all sources, the bundler refuses what it does not understand, and a wheel holds the bundle."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from cabw_viz.views.inspector import bundle

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted(bundle.SOURCES.rglob("*.js"))
BUILT = "cabw_viz/views/inspector/inspector.js"


def joined(tmp_path: Path, **modules: str) -> str:
    """The bundle of modules, of which `main` is the entry."""
    for name, source in {"worker": "export const serve = 1;\n", **modules}.items():
        (tmp_path / f"{name}.js").write_text(source, "utf-8")
    return bundle.Bundler(tmp_path, ("main",)).bundle()


def test_every_source_is_in_the_bundle():
    text = bundle.inspector_script()
    names = {path.relative_to(bundle.SOURCES).with_suffix("").as_posix() for path in SOURCES}
    assert [name for name in names if f"const ${name.replace('/', '_')} = " not in text] == []


def test_imports_and_exports_of_every_form_that_is_understood(tmp_path):
    text = joined(
        tmp_path,
        main='import { A, b as c } from "./x.js";\nimport {\n  D,\n} from "./x.js";\n'
        "export async function render() {}\n",
        x="export const A = 1;\nexport function b() {}\nexport class D {}\nexport function* e() {}\n",
    )
    assert "const { A, b: c } = $x;" in text
    assert "const { D } = $x;" in text
    assert "return { A, b, D, e };" in text
    assert "\nasync function render() {}\nreturn { render };" in text
    assert not re.search(r"^\s*(import|export) (?!default \{ render \};$)", text, re.MULTILINE)


@pytest.mark.parametrize(
    "statement",
    [
        "export default class {}",
        'export { a } from "./x.js";',
        'export * from "./x.js";',
        'export * as x from "./x.js";',
        "export { a };",
        "export let a = 1;",
        "export var a = 1;",
        "export const a = 1,",
        "export const { a } = x;",
        'import "./x.js";',
        'import x from "./x.js";',
        'import * as x from "./x.js";',
        'import x, { a } from "./x.js";',
        'import { a } from "./x";',
        'import { a } from "x";',
        'import { a } from "https://example.org/x.js";',
        'import { a } from "./x.json" with { type: "json" };',
        "import { a } from './x.js';",
        'import { a, // of x\n  b } from "./x.js";',
        '  import { a } from "./x.js";',
        'const x = await import("./x.js");',
        "const here = import.meta.url;",
    ],
)
def test_other_imports_and_exports_are_refused(statement, tmp_path):
    start = re.escape(re.search(r"(import|export).*", statement)[0])
    with pytest.raises(ValueError, match=rf"main\.js:3: the bundler does not understand `{start}`; it understands"):
        joined(tmp_path, main=f"// The entry.\n\n{statement}\n", x="export const a = 1;\n")


def test_a_name_that_is_not_exported_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"main\.js imports `b`, which x\.js does not export"):
        joined(tmp_path, main='import { a, b } from "./x.js";\n', x="export const a = 1;\nconst b = 2;\n")


def test_a_circle_of_imports_is_refused(tmp_path):
    with pytest.raises(ValueError, match="in a circle: main > x > main"):
        joined(tmp_path, main='import { a } from "./x.js";\n', x='import { b } from "./main.js";\n')


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel made from a source distribution, as an installer makes it."""
    pytest.importorskip("hatchling", reason="the wheel is built with hatchling")
    folder = tmp_path_factory.mktemp("built")

    def build(root: Path, target: str) -> Path:
        command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
        subprocess.run(command, cwd=root, check=True, capture_output=True, timeout=120)
        return next(folder.glob("*.tar.gz" if target == "sdist" else "*.whl"))

    with tarfile.open(build(ROOT, "sdist")) as archive:
        archive.extractall(folder, filter="data")
    return build(next(path for path in folder.iterdir() if path.is_dir()), "wheel")


def test_a_wheel_holds_the_bundle_in_place_of_the_sources(wheel):
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(BUILT).decode() == bundle.inspector_script()
        assert [name for name in archive.namelist() if name.endswith((".js", ".mjs", ".json")) and name != BUILT] == []


def test_an_installed_wheel_reads_its_bundle(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = """if True:
        from cabw_viz.views.inspector import bundle, page
        print(bundle.BUILT, len(bundle.inspector_script()), bundle.inspector_script()[:8000] in page.page("", {}))
    """
    environment = {"PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert run.stdout.split() == [str(tmp_path / BUILT), str(len(bundle.inspector_script())), "True"], run.stderr


def test_nothing_parses_text_as_markup_or_code():
    """Names come from a user's model: they may only become text."""
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
