"""A headless Chromium, and what tests of pages ask it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The machine's own browser; skips where there is none.

    While it is open this thread has a running event loop, so tests beside it cannot use `asyncio.run`.
    """
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed (Debian's package: chromium)")
    with sync_playwright() as playwright:
        # A GPU process of its own, drawing in software, would take a third of the tests' CPU time.
        arguments = ["--disable-gpu", "--in-process-gpu"]
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


@dataclass
class Witness:
    """What a page asked for, and what went wrong in it."""

    urls: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, page: Page) -> Witness:
        witness = cls()
        page.on("request", lambda request: witness.urls.append(request.url))
        page.on("console", lambda message: witness.complaints.append(message.text))
        page.on("pageerror", lambda error: witness.complaints.append(str(error)))
        return witness


def tab_stops(page: Page) -> list[str]:
    """The ids, or else texts, of what Tab goes to, from the page's beginning."""
    page.evaluate(
        "document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')"
    )
    stops: list[str] = []
    while True:
        page.keyboard.press("Tab")
        stop = page.evaluate(
            "(({id, textContent, tagName}) => tagName === 'BODY' ? '' : id || textContent.trim())"
            "(document.activeElement)"
        )
        if not stop or (stops and stop == stops[0]):
            return stops
        stops.append(stop)
