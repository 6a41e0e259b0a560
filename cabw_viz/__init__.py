"""Makes the backward pass of PyTorch models visible and checkable.

Importing the package imports no torch and patches nothing; the public names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cabw_viz.errors import CabwError, CabwWarning

if TYPE_CHECKING:
    from cabw_viz.surfaces.notebook import load_ipython_extension, unload_ipython_extension
    from cabw_viz.surfaces.session import capture

__version__ = "0.1.0"
__all__ = ["CabwError", "CabwWarning", "capture", "load_ipython_extension", "unload_ipython_extension"]

_HOMES = {
    "capture": "cabw_viz.surfaces.session",
    "load_ipython_extension": "cabw_viz.surfaces.notebook",
    "unload_ipython_extension": "cabw_viz.surfaces.notebook",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
