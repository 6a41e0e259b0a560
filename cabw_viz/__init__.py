"""Makes the backward pass of PyTorch models visible and checkable.

Importing the package imports no torch and patches nothing; the public names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from types import ModuleType
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
        return _load(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_load(_HOMES[name]), name)


def _load(module: str) -> ModuleType:
    """Import a module of ours; a name that this torch lacks is an error of ours, with the version in it."""
    try:
        return import_module(module)
    except (AttributeError, ImportError) as error:
        if not _raised_by_adapter(error):
            raise
        raise CabwError(
            f"torch {version('torch')} lacks what cabw_viz reads of it ({error})",
            expected="torch 2.8 or newer, of a release that this cabw_viz knows",
            try_="pip install --upgrade 'torch>=2.8' cabw_viz",
        ) from error


def _raised_by_adapter(error: BaseException) -> bool:
    """Whether an import failed in the file that names torch's private parts."""
    frames, trace = set(), error.__traceback__
    while trace is not None:
        frames.add(trace.tb_frame.f_globals.get("__name__"))
        trace = trace.tb_next
    return f"{__name__}.torch_adapter" in frames


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
