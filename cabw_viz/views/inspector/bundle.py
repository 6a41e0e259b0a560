"""Joins the browser modules into the one that anywidget loads: `python -m cabw_viz.views.inspector.bundle`.

A bundler would want Node to install the package, so there is none: each module becomes a function that returns its
exports, and an import takes them out of what that returned. The text of the layout worker is read off these same
functions, so no code is there twice.
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE / "src"
BUNDLE = HERE / "inspector.js"
STYLE = HERE / "inspector.css"

ENTRY = ("main", "shim")
"""Whose exports stand at the bundle's end, for a page that it is pasted into; anywidget takes the default export."""

WORKER = "worker"
"""The module that the layout worker serves."""

WORKER_SOURCE = "bundle"
"""The module that is written here: it holds the worker's text."""

_IMPORT = re.compile(r'^import (\{[^}]*\}) from "(\.[\w./]+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?:async )?(?:class|function|const) (\w+)", re.MULTILINE)


def bundle() -> str:
    """The bundle's text."""
    modules = [_scoped(name) for name in _ordered(ENTRY)]
    names = "\n".join(f"const {{ {', '.join(_exports(name))} }} = {_variable(name)};" for name in ENTRY)
    head = "/* Made by `python -m cabw_viz.views.inspector.bundle` from src/: change it there. */"
    return "\n".join([head, *modules, names, "export default { render };\n"])


def _ordered(entries: tuple[str, ...]) -> list[str]:
    """The modules that these need, each after all that it imports."""
    order: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ValueError(f"modules import each other in a circle: {' > '.join([*above, name])}")
        if name in order:
            return
        for imported in _imports(name):
            visit(imported, (*above, name))
        order.append(name)

    for entry in entries:
        visit(entry, ())
    return order


def _imports(name: str) -> list[str]:
    if name == WORKER_SOURCE:
        return [WORKER]
    return [_resolved(name, path) for _, path in _IMPORT.findall(_source(name))]


def _resolved(name: str, path: str) -> str:
    """The module that `path` means in module `name`: both by their place below src/, without `.js`."""
    target = (SOURCES / f"{name}.js").parent / f"{path}.js"
    return target.resolve().relative_to(SOURCES.resolve()).with_suffix("").as_posix()


def _source(name: str) -> str:
    if name == WORKER_SOURCE:
        return _worker_source()
    return (SOURCES / f"{name}.js").read_text("utf-8")


def _worker_source() -> str:
    """A module whose function gives the text of the worker: the functions of the modules it needs, as they stand."""
    names = ", ".join(f'["{_variable(name)}", {_variable(name)}_]' for name in _ordered((WORKER,)))
    return (
        "export function workerSource() {\n"
        f"const parts = [{names}];\n"
        "return parts.map(([name, f]) => `const ${name} = (${f})();`).join('\\n')"
        f" + '\\n{_variable(WORKER)}.serve(self);';\n"
        "}\n"
    )


def _variable(name: str) -> str:
    return "$" + name.replace("/", "_")


def _exports(name: str) -> list[str]:
    return [str(found) for found in _EXPORT.findall(_source(name))]


def _scoped(name: str) -> str:
    """One module as a function: its imports take from what other functions returned, its exports are returned."""

    def taken(found: re.Match[str]) -> str:
        return f"const {found[1]} = {_variable(_resolved(name, found[2]))};"

    text = _IMPORT.sub(taken, _source(name))
    text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
    variable, exports = _variable(name), ", ".join(_exports(name))
    return f"const {variable}_ = () => {{\n{text}return {{ {exports} }};\n}};\nconst {variable} = {variable}_();"


if __name__ == "__main__":
    BUNDLE.write_text(bundle(), "utf-8")
