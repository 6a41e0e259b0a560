"""Joins the browser modules of src/ into the one module that anywidget loads.

A wheel holds the joined module, which hatch_build.py makes with this file; a checkout holds src/, which is joined when
it is first asked for. A bundler from npm would make Node a requirement of installing from a checkout. Here each module
becomes a function that returns its exports, and an import reads them from what that function returned. The text of the
layout worker is read off the same functions, so that no code is in the bundle twice.

This file imports nothing of the package: hatch_build.py runs it where the package's dependencies are not installed.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SOURCES = HERE / "src"
BUILT = HERE / "inspector.js"
STYLE = HERE / "inspector.css"

ENTRY = ("main", "shim")
"""The modules with the bundle's exports, for a page that contains it; anywidget uses the default export."""

WORKER = "worker"
"""The module that runs in the layout worker."""

WORKER_SOURCE = "worker_source"
"""The module that is written here: it holds the text of the worker."""

_IMPORT = re.compile(r'^import \{([\w$\s,]+)\} from "(\.{1,2}/[\w./-]+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*?|class|const) ([\w$]+)(?!.*,$)", re.MULTILINE)
_STATEMENT = re.compile(r"^[ \t]*(?:import|export)\b(?! *:).*|\bimport\s*[.(].*", re.MULTILINE)
_KNOWN = 'it understands only `import { a, b as c } from "./x.js";` and `export` before a const, function or class'


class Module(NamedTuple):
    """One file of src/, by its path below src/ without `.js`."""

    name: str
    source: str
    imports: tuple[str, ...]
    exports: tuple[str, ...]


@functools.cache
def inspector_script() -> str:
    """The browser module of the inspector: the built one of an installed wheel, or that of a checkout's src/."""
    return Bundler(SOURCES).bundle() if SOURCES.is_dir() else BUILT.read_text("utf-8")


class Bundler:
    """Joins the modules of a folder.

    bundle() > _ordered() > _module() > _statements()     each file is read once, and all of its imports are resolved
             > _scoped()                                  each module becomes a function

    Args:
        sources: the folder.
        entry: the modules with the exports of the bundle.

    Raises:
        ValueError: a module has an import or export in a form that is not understood, imports a name that is not
            exported, or modules import each other in a circle.
    """

    def __init__(self, sources: Path, entry: tuple[str, ...] = ENTRY) -> None:
        self._sources = sources
        self._entry = entry
        self._modules: dict[str, Module] = {}

    def bundle(self) -> str:
        """The text of the bundle."""
        modules = [self._scoped(module) for module in self._ordered(self._entry)]
        exports = "\n".join(
            f"const {{ {', '.join(self._module(name).exports)} }} = {_variable(name)};" for name in self._entry
        )
        head = "/* Made from the modules in src/ by bundle.py. */"
        return "\n".join([head, *modules, exports, "export default { render };\n"])

    def _ordered(self, entries: tuple[str, ...]) -> list[Module]:
        """The modules that these need, each after all that it imports."""
        order: dict[str, Module] = {}

        def visit(name: str, above: tuple[str, ...]) -> None:
            if name in above:
                raise ValueError(f"modules import each other in a circle: {' > '.join([*above, name])}")
            if name in order:
                return
            module = self._module(name)
            for imported in module.imports:
                visit(imported, (*above, name))
            order[name] = module

        for entry in entries:
            visit(entry, ())
        return list(order.values())

    def _module(self, name: str) -> Module:
        if name not in self._modules:
            worker = name == WORKER_SOURCE
            source = self._worker_source() if worker else (self._sources / f"{name}.js").read_text("utf-8")
            _check_statements(name, source)
            imports = [WORKER] if worker else [self._resolved(name, found[2]) for found in _IMPORT.finditer(source)]
            exports = [found[2] for found in _EXPORT.finditer(source)]
            self._modules[name] = Module(name, source, tuple(imports), tuple(exports))
        return self._modules[name]

    def _resolved(self, name: str, path: str) -> str:
        """The name of the module that `path` means in module `name`."""
        target = (self._sources / f"{name}.js").parent / f"{path}.js"
        return target.resolve().relative_to(self._sources.resolve()).with_suffix("").as_posix()

    def _worker_source(self) -> str:
        """A module whose function returns the text of the worker: the functions of the modules that it needs."""
        variables = [_variable(module.name) for module in self._ordered((WORKER,))]
        pairs = ", ".join(f'["{variable}", {variable}_]' for variable in variables)
        return (
            "export function workerSource() {\n"
            f"const parts = [{pairs}];\n"
            "return parts.map(([name, f]) => `const ${name} = (${f})();`).join('\\n')"
            f" + '\\n{_variable(WORKER)}.serve(self);';\n"
            "}\n"
        )

    def _scoped(self, module: Module) -> str:
        """One module as a function: an import reads what another function returned, and the exports are returned."""

        def read(statement: re.Match[str]) -> str:
            imported = self._module(self._resolved(module.name, statement[2]))
            names = [name.split() for name in statement[1].split(",") if name.strip()]
            for name, *_ in names:
                if name not in imported.exports:
                    raise ValueError(f"{module.name}.js imports `{name}`, which {imported.name}.js does not export")
            return f"const {{ {', '.join(': '.join(n[::2]) for n in names)} }} = {_variable(imported.name)};"

        text = _EXPORT.sub(r"\1 \2", _IMPORT.sub(read, module.source))
        variable, exports = _variable(module.name), ", ".join(module.exports)
        return f"const {variable}_ = () => {{\n{text}return {{ {exports} }};\n}};\nconst {variable} = {variable}_();"


def _check_statements(name: str, source: str) -> None:
    """Raise on the first import or export that would be left as it is."""
    for statement in _STATEMENT.finditer(source):
        start = statement.start()
        if not (_IMPORT.match(source, start) or _EXPORT.match(source, start)):
            line = source.count("\n", 0, start) + 1
            raise ValueError(f"{name}.js:{line}: the bundler does not understand `{statement[0].strip()}`; {_KNOWN}")


def _variable(name: str) -> str:
    return "$" + name.replace("/", "_")
