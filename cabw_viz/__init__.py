"""Makes the backward pass of PyTorch models visible and checkable.

Importing the package imports no torch and patches nothing; the public names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cabw_viz.errors import CabwError, CabwWarning

if TYPE_CHECKING:
    from cabw_viz import testing
    from cabw_viz.surfaces.notebook import load_ipython_extension, unload_ipython_extension
    from cabw_viz.surfaces.session import capture
    from cabw_viz.surfaces.step_report import compare

__version__ = "0.1.0"
__all__ = [
    "CabwError",
    "CabwWarning",
    "capture",
    "compare",
    "load_ipython_extension",
    "testing",
    "unload_ipython_extension",
]

_HOMES = {
    "capture": "cabw_viz.surfaces.session",
    "compare": "cabw_viz.surfaces.step_report",
    "load_ipython_extension": "cabw_viz.surfaces.notebook",
    "unload_ipython_extension": "cabw_viz.surfaces.notebook",
}
_MODULES = {"testing"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
