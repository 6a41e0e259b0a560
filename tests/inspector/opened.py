"""A saved inspector in a headless browser, and the ways in which a person uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser import CHROMIUM_FLAGS
from tests.conftest import find_chromium

INSPECTOR = "document.querySelector('#app').inspector"
TABS = ("Node", "Metadata", "Parity", "Memory", "Misses", "Code")
POINT = """key => {
  const i = %s, b = i.scene.box(key), r = i.tree.getBoundingClientRect();
  const [x, y] = i.renderer.toScreen(b.x + b.w / 2, b.y + Math.min(b.h / 2, 14));
  return [x + r.left, y + r.top];
}"""


@dataclass
class Inspected:
    """A page that shows an inspector, with what went wrong on it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def get(self, what: str) -> Any:
        """A property of the inspector."""
        return self.page.evaluate(f"() => {INSPECTOR}.{what}")

    def do(self, code: str) -> Any:
        """Runs code with the inspector as `i`, and waits until the picture stands still."""
        found = self.page.evaluate(f"() => {{ const i = {INSPECTOR}; {code} }}")
        self.settle()
        return found

    def settle(self) -> None:
        self.page.wait_for_timeout(60)
        self.page.wait_for_function(f"!{INSPECTOR}.picture.layout.waiting && !{INSPECTOR}.camera.moves")
        self.page.wait_for_timeout(280)  # motion takes 200 ms

    def where(self, key: str) -> list[float]:
        """Where an item is on the page."""
        return list(self.page.evaluate(POINT % INSPECTOR, key))

    def click(self, key: str) -> None:
        self.page.mouse.click(*self.where(key))
        self.settle()

    def double_click(self, key: str) -> None:
        self.page.mouse.dblclick(*self.where(key))
        self.settle()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.settle()

    def tab(self, name: str) -> None:
        self.page.locator(".cabw-tabs button", has_text=name).click()
        self.page.wait_for_timeout(60)

    @property
    def panel(self) -> str:
        return self.page.locator(".cabw-body").inner_text()

    @property
    def selection(self) -> str:
        return str(self.get("selection"))

    @property
    def expanded(self) -> set[str]:
        return set(self.page.evaluate(f"() => [...{INSPECTOR}.expanded]"))


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def inspected(
    browser: Browser, path: Path, *, state: str = "", dark: bool = False, width: int = 1100
) -> Iterator[Inspected]:
    """Opens a saved file; it must come up without an error and without asking for anything."""
    # Playwright's own polling evaluates text, which the page's policy forbids; a test of its own leaves the policy on.
    page = browser.new_page(
        viewport={"width": width, "height": 640}, color_scheme="dark" if dark else "light", bypass_csp=True
    )
    found = Inspected(page)
    page.on("pageerror", lambda error: found.errors.append(str(error)))
    page.on("console", lambda message: found.errors.append(message.text) if message.type == "error" else None)
    page.on(
        "request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else found.requests.append(r.url)
    )
    page.goto(path.resolve().as_uri() + state)
    page.wait_for_function("window.cabwTimes", timeout=60_000)
    try:
        yield found
        assert found.errors == []
        assert found.requests == []
    finally:
        page.close()
