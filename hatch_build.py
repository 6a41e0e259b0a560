"""Puts the inspector's JavaScript, joined, into the wheel in place of its sources."""

from __future__ import annotations

import runpy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("cabw_viz", "views", "inspector")


class InspectorBuildHook(BuildHookInterface):
    """Joins the modules; an editable install joins them when it first needs them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the bundle to a wheel that is no editable one."""
        if version == "editable":
            return
        bundler = runpy.run_path(str(Path(self.root) / FOLDER / "bundle.py"))["Bundler"]
        self._folder = TemporaryDirectory()
        built = Path(self._folder.name, "inspector.js")
        built.write_text(bundler(Path(self.root) / FOLDER / "src").bundle(), "utf-8")
        build_data["force_include"][str(built)] = (FOLDER / built.name).as_posix()

    def finalize(self, version: str, *_: Any) -> None:
        """Remove what was written for the wheel."""
        if version != "editable":
            self._folder.cleanup()
