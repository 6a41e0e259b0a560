"""Reads the package's imports and says where they break the architecture.

Nothing is imported: every file is parsed, and every import in it counts, wherever it stands (in a function, under
`if TYPE_CHECKING`). Four things are looked for: an arrow against the flow, a cycle between modules, a cycle between
folders, and a private name of torch outside the adapter. `check` returns all of them, as text with file and line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "cabw_viz"

ADAPTER = "torch_adapter"
"""The one part that may use torch's private names."""

MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "record": frozenset({"errors"}),
    ADAPTER: frozenset({"errors", "record"}),
    "runtime": frozenset({"errors", "record", ADAPTER}),
    "numerics": frozenset({"errors", "record", ADAPTER, "runtime"}),
    "nonfinite": frozenset({"errors", "record", ADAPTER, "runtime"}),
    "tracing": frozenset({"errors", "record", ADAPTER, "runtime"}),
    "replay": frozenset({"errors", "record", ADAPTER, "runtime", "numerics"}),
    "analysis": frozenset({"errors", "record"}),
    "views": frozenset({"errors", "record", "analysis"}),
    "surfaces": frozenset(
        {"errors", "record", ADAPTER, "runtime", "numerics", "nonfinite", "tracing", "replay", "analysis", "views"}
    ),
    "testing": frozenset({"errors", "surfaces"}),
    "__init__": frozenset({"errors", "surfaces", "testing"}),
    "__main__": frozenset({"surfaces"}),
}
"""What each part of the package may import of the others; a part may always import itself. No part may import the
package's own `__init__`, which stands at the end of the flow."""

_FRONT_END = frozenset({"IPython", "ipywidgets", "anywidget", "traitlets", "transformers"})
_TABLES_AND_PICTURES = frozenset({"pandas", "graphviz", "jinja2"})

MUST_NOT_LOAD: dict[str, frozenset[str]] = {
    "errors": _FRONT_END | _TABLES_AND_PICTURES | {"torch", "numpy"},
    "record": _FRONT_END | _TABLES_AND_PICTURES | {"torch", "numpy"},
    "analysis": _FRONT_END | _TABLES_AND_PICTURES | {"torch"},
    ADAPTER: _FRONT_END | _TABLES_AND_PICTURES,
    "runtime": _FRONT_END | _TABLES_AND_PICTURES,
    "numerics": _FRONT_END | _TABLES_AND_PICTURES,
    "nonfinite": _FRONT_END | _TABLES_AND_PICTURES,
    "tracing": _FRONT_END | _TABLES_AND_PICTURES,
    "replay": _FRONT_END | _TABLES_AND_PICTURES,
    "views": _FRONT_END | {"torch"},
    "surfaces": frozenset(),
    "testing": _FRONT_END | _TABLES_AND_PICTURES,
    "__init__": _FRONT_END | _TABLES_AND_PICTURES | {"torch"},
    "__main__": frozenset({"torch"}),
}
"""Other packages that a part must not import, not even late."""

_BY_NAME = frozenset({"getattr", "setattr", "hasattr", "delattr"})


@dataclass(frozen=True)
class Import:
    """One name that one file imports, `from torch import fx` being `torch.fx`."""

    target: str
    line: int


@dataclass(frozen=True)
class Module:
    """One parsed file."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def part(self) -> str:
        """`record` for `cabw_viz.record.model`, `__init__` for the package itself."""
        return self.name.split(".")[1] if "." in self.name else "__init__"

    def at(self, line: int, text: str) -> str:
        return f"{self.path.name}:{line} ({self.name}): {text}"


def check(root: Path) -> list[str]:
    """All breaches in the package below `root`, the folder that holds `cabw_viz`."""
    modules = {module.name: module for module in parse(root)}
    breaches: list[str] = []
    for module in modules.values():
        breaches += _against_the_flow(module)
        if module.part != ADAPTER:
            breaches += _private_torch_names(module)
    return [*breaches, *_cycles(modules), *_folder_cycles(modules)]


def parse(root: Path) -> Iterator[Module]:
    """Every file of the package."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield Module(name, path, ast.parse(path.read_text("utf-8"), str(path)))


# ------------------------------------------------------------------------------------------------------------ the flow


def _against_the_flow(module: Module) -> Iterator[str]:
    if module.part not in MAY_IMPORT:
        yield module.at(1, f"`{module.part}` has no place in the flow; give it one in tests/architecture.py")
        return
    for found in imports(module):
        first, *rest = found.target.split(".")
        if first != PACKAGE:
            if first in MUST_NOT_LOAD[module.part]:
                yield module.at(found.line, f"{module.part} must not import {first}")
            continue
        part = rest[0] if rest and rest[0] in MAY_IMPORT else "__init__"
        if part != module.part and part not in MAY_IMPORT[module.part]:
            yield module.at(found.line, f"{module.part} must not import {part} ({found.target})")


def imports(module: Module) -> Iterator[Import]:
    """Every import of the file, also by `importlib.import_module("…")`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _source_of(node, module)
            yield from (Import(f"{source}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
            yield from (
                Import(a.value, node.lineno)
                for a in node.args[:1]
                if isinstance(a, ast.Constant) and isinstance(a.value, str)
            )


def _source_of(node: ast.ImportFrom, module: Module) -> str:
    """The module that a `from … import` names, dots resolved."""
    if not node.level:
        return node.module or ""
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{node.module}" if node.module else package


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


# -------------------------------------------------------------------------------------------------------------- cycles


def _cycles(modules: dict[str, Module]) -> Iterator[str]:
    """One line for each module that lies on a cycle of imports that was not reported yet."""
    arrows = {name: sorted(_imported_modules(module, modules)) for name, module in modules.items()}
    reported: set[str] = set()
    for start in sorted(modules):
        way = _way_back(start, arrows)
        if way and not reported.intersection(way):
            reported.update(way)
            yield "cycle of imports: " + " -> ".join([*way, start])


def _folder_cycles(modules: dict[str, Module]) -> Iterator[str]:
    """One line for each cycle between subfolders of a part, or between them and files beside them.

    Each subfolder is taken as a whole, so that it can be read, or moved, without those that import it.
    """
    arrows = {name: _imported_modules(module, modules) for name, module in modules.items()}
    parents = (name.split(".")[:length] for name in modules for length in range(2, name.count(".") + 1))
    folders = set(map(".".join, parents))
    for folder in sorted(folders):
        children = _arrows_between_children(folder, arrows)
        reported: set[str] = set()
        for start in sorted(children):
            way = _way_back(start, {child: sorted(targets) for child, targets in children.items()})
            if not folders.isdisjoint(way) and not reported.intersection(way):
                reported.update(way)
                yield "cycle of folders: " + " -> ".join([*way, start])


def _arrows_between_children(folder: str, arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Which files and subfolders of a folder import which others of it."""
    depth = folder.count(".") + 2

    def child_of(name: str) -> str:
        return ".".join(name.split(".")[:depth]) if name.startswith(f"{folder}.") else ""

    children: dict[str, set[str]] = {child: set() for name in arrows if (child := child_of(name))}
    for name, targets in arrows.items():
        if child := child_of(name):
            children[child] |= {child_of(target) for target in targets} - {child, ""}
    return children


def _imported_modules(module: Module, modules: dict[str, Module]) -> set[str]:
    found = set()
    for item in imports(module):
        target = item.target
        while target and target not in modules:  # `cabw_viz.record.model.Edge` is a name in a module
            target = target.rpartition(".")[0]
        if target and target != module.name:
            found.add(target)
    return found


def _way_back(start: str, arrows: dict[str, list[str]]) -> list[str]:
    """The shortest way from `start` to itself; empty where there is none."""
    ways = [[start]]
    seen = set()
    while ways:
        way = ways.pop(0)
        for target in arrows[way[-1]]:
            if target == start:
                return way
            if target not in seen:
                seen.add(target)
                ways.append([*way, target])
    return []


# ----------------------------------------------------------------------------------------------- torch's private names


def _private_torch_names(module: Module) -> Iterator[str]:
    """Private names reached by import, by attribute, or by name (`getattr(torch.autograd, "_x")`)."""
    for found in imports(module):
        if _is_private(found.target):
            yield module.at(found.line, f"private name of torch outside {ADAPTER}: {found.target}")
        elif found.target.startswith("torch.") and found.target.endswith(".*"):
            yield module.at(found.line, f"`from {found.target[:-2]} import *` hides which names of torch are used")
    known = _torch_aliases(module)
    for node in ast.walk(module.tree):
        path = None
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):  # the shortest private chain, reported once
            path = _torch_path(node, known)
        elif isinstance(node, ast.Call) and _called(node) in _BY_NAME and len(node.args) >= 2:
            holder, name = _torch_path(node.args[0], known), node.args[1]
            if holder and isinstance(name, ast.Constant):
                path = f"{holder}.{name.value}"
        if path and _is_private(path):
            yield module.at(node.lineno, f"private name of torch outside {ADAPTER}: {path}")


def _torch_aliases(module: Module) -> dict[str, str]:
    """Names of the file that stand for torch or something in it: `{"fx": "torch.fx"}`."""
    known: dict[str, str] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    known[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and _source_of(node, module).split(".")[0] == "torch":
            known.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in ast.walk(module.tree):  # `engine = torch.autograd`
        if isinstance(node, ast.Assign) and (path := _torch_path(node.value, known)):
            known.update({target.id: path for target in node.targets if isinstance(target, ast.Name)})
    return known


def _torch_path(node: ast.expr, known: dict[str, str]) -> str | None:
    """`torch.autograd.graph` for the expression that means it; None for anything else."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        holder = _torch_path(node.value, known)
        return f"{holder}.{node.attr}" if holder else None
    return None


def _is_private(path: str) -> bool:
    first, *rest = path.split(".")
    return first == "torch" and any(name.startswith("_") and not name.endswith("__") for name in rest)
