"""A real JupyterLab in a real, headless Chromium, for tests marked `browser`.

Everything either of them writes goes to a temporary folder, and the server is gone at the end.
"""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.conftest import find_chromium
from tests.kernels import environment

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

SECONDS = 120
"""How long a server may take to answer, and a notebook to run."""

SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # else cells out of view are not on the page
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


@dataclass
class Lab:
    """A running server."""

    address: str
    token: str

    def url(self, path: str) -> str:
        return f"{self.address}/{path}{'&' if '?' in path else '?'}token={self.token}"


@dataclass
class Opened:
    """A page, with what went wrong on it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    """Requests to other hosts."""


@contextmanager
def jupyterlab(folder: Path, private: Path, *, theme: str = "JupyterLab Light") -> Iterator[Lab]:
    """Serves a folder; settings, kernels' files and history go to the folder `private`."""
    settings = {**SETTINGS, "apputils-extension/themes": {"theme": theme}}
    for name, values in settings.items():
        path = private / f"settings/@jupyterlab/{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    port, token = _free_port(), secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"]
    command += [f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True"]
    command += ["--JupyterNotebookApp.expose_app_in_browser=True"]  # Notebook 7, where it is installed, is served too
    with (private / "log").open("w") as log:
        server = subprocess.Popen(command, env=environment(private), stdout=log, stderr=log)
        try:
            lab = Lab(f"http://127.0.0.1:{port}", token)
            _await(lab, server, private / "log")
            yield lab
        finally:
            _end(server)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _await(lab: Lab, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + SECONDS
    while not _answers(lab):
        if time.monotonic() > end or server.poll() is not None:
            raise RuntimeError(f"JupyterLab did not come up:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


def _answers(lab: Lab) -> bool:
    try:
        urllib.request.urlopen(lab.url("api/status"), timeout=5).read()
    except OSError:
        return False
    return True


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ends the server, which ends its kernels."""
    server.terminate()
    try:
        server.wait(15)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@contextmanager
def browser(at: str, *, width: int = 1300, height: int = 950, dark: bool = False) -> Iterator[Opened]:
    """An empty page that may talk to one address."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        try:
            size: Any = {"width": width, "height": height}
            opened = Opened(chromium.new_page(viewport=size, color_scheme="dark" if dark else "light"))
            opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
            opened.page.on("request", lambda request: _note(request.url, at, opened.outside))
            opened.page.set_default_timeout(SECONDS * 1000)
            yield opened
        finally:
            chromium.close()


def _note(url: str, at: str, outside: list[str]) -> None:
    if not url.startswith((at, at.replace("http:", "ws:"), "data:", "blob:")):
        outside.append(url)


def run_notebook(page: Page, lab: Lab, name: str) -> list[dict[str, Any]]:
    """Opens a notebook in the page, runs all of it, and returns its cells. By commands: key strokes are flaky."""
    page.goto(lab.url(f"lab/tree/{name}?reset"))
    page.wait_for_function("window.jupyterapp")
    page.evaluate("async () => { await jupyterapp.restored }")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_function("jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'")
    page.evaluate("async () => { await jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.wait_for_function("jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'")
    notebook: dict[str, Any] = page.evaluate("() => jupyterapp.shell.currentWidget.context.model.toJSON()")
    return list(notebook["cells"])
