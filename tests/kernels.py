"""Where kernels and servers that tests start find this package, and where they write."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent


def environment(private: Path) -> dict[str, str]:
    """The environment of a kernel or server that finds this package, and writes nothing outside of `private`."""
    names = {f"JUPYTER_{kind}_DIR": kind for kind in ("CONFIG", "DATA", "RUNTIME")}
    names |= {f"JUPYTERLAB_{kind}_DIR": kind for kind in ("SETTINGS", "WORKSPACES")}
    folders = {name: private / kind.lower() for name, kind in (names | {"IPYTHONDIR": "ipython"}).items()}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **{name: str(folder) for name, folder in folders.items()}, "PYTHONPATH": path}
