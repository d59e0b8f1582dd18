"""Pages in the machine's own Chromium, watched: what they log, what they ask for, how usable."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP, PHONE = (1440, 900), (390, 844)
Scheme = Literal["light", "dark"]


@dataclass
class Watched:
    """A page, with everything that it logged, threw and asked for."""

    page: Page
    said: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and exceptions that nobody caught."""
    asked: list[str] = field(default_factory=list)
    """Addresses of all requests."""

    def heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.said.append(message.text)

    def threw(self, error: Error) -> None:
        self.said.append(str(error))

    def sent(self, request: Request) -> None:
        self.asked.append(request.url)

    def left_the_machine(self) -> list[str]:
        """Give the addresses asked for that are neither of this machine nor inside the page."""
        own = {"127.0.0.1", "localhost", "::1"}
        return [
            url
            for url in self.asked
            if urlsplit(url).scheme not in {"file", "data", "blob", "about"}
            and urlsplit(url).hostname not in own
        ]


@contextmanager
def watched(
    browser: Browser,
    size: tuple[int, int] = DESKTOP,
    scheme: Scheme = "light",
    **options: Any,
) -> Iterator[Watched]:
    """Open an empty page; at the end it must have logged nothing and asked nobody else."""
    context: BrowserContext = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, **options
    )
    seen = Watched(context.new_page())
    seen.page.on("console", seen.heard)
    seen.page.on("pageerror", seen.threw)
    seen.page.on("request", seen.sent)
    try:
        yield seen
        assert seen.said == []
        assert seen.left_the_machine() == []
    except BaseException:
        describe(seen)
        raise
    finally:
        context.close()


STATE = """async () => ({
  address: location.href,
  panes: [...document.querySelectorAll("[data-testid=pane]")].map((pane) => ({ ...pane.dataset })),
  draws: await new Promise((done) => {
    setTimeout(done, 2000, false);
    requestAnimationFrame(() => done(true));
  }),
})"""
"""Where a page is, and whether the browser draws it at all."""


def describe(seen: Watched) -> None:
    """Log where a page stands, for the report of the test that failed on it."""
    log = logging.getLogger(__name__)
    log.error("console: %s", seen.said)
    try:
        log.error("page: %s", seen.page.evaluate(STATE))
    except Error as gone:
        log.error("page: %s", gone)


def barriers(page: Page) -> list[str]:
    """Give what axe finds that keeps people out, one line each."""
    only = {"resultTypes": ["violations"]}  # spares the page the description of all that is well
    found = Axe().run(page, options=only).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {node['target']} {node.get('failureSummary', '')}"
        for one in found
        for node in one["nodes"]
    ]
