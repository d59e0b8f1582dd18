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
class PageVisit:
    """A page, with everything that it logged, threw and asked for."""

    page: Page
    console: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and exceptions that nobody caught."""
    requests: list[str] = field(default_factory=list)
    """Addresses of all requests."""

    def on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.console.append(message.text)

    def on_error(self, error: Error) -> None:
        self.console.append(str(error))

    def on_request(self, request: Request) -> None:
        self.requests.append(request.url)

    def left_the_machine(self) -> list[str]:
        """Give the addresses asked for that are neither of this machine nor inside the page."""
        own = {"127.0.0.1", "localhost", "::1"}
        return [
            url
            for url in self.requests
            if urlsplit(url).scheme not in {"file", "data", "blob", "about"}
            and urlsplit(url).hostname not in own
        ]


@contextmanager
def watched(
    browser: Browser,
    size: tuple[int, int] = DESKTOP,
    scheme: Scheme = "light",
    **options: Any,
) -> Iterator[PageVisit]:
    """Open an empty page; at the end it must have logged nothing and asked nobody else."""
    context: BrowserContext = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, **options
    )
    visit = PageVisit(context.new_page())
    visit.page.on("console", visit.on_console)
    visit.page.on("pageerror", visit.on_error)
    visit.page.on("request", visit.on_request)
    try:
        yield visit
        assert visit.console == []
        assert visit.left_the_machine() == []
    except BaseException:
        describe(visit)
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


def describe(visit: PageVisit) -> None:
    """Log where a page stands, for the report of the test that failed on it."""
    log = logging.getLogger(__name__)
    log.error("console: %s", visit.console)
    try:
        log.error("page: %s", visit.page.evaluate(STATE))
    except Error as gone:
        log.error("page: %s", gone)


def barriers(page: Page) -> list[str]:
    """Give what axe finds that keeps people out, one line each."""
    only = {"resultTypes": ["violations"]}  # spares the page the description of all that is well
    violations = Axe().run(page, options=only).response["violations"]
    return [
        f"{rule['id']} ({rule['impact']}): {node['target']} {node.get('failureSummary', '')}"
        for rule in violations
        for node in rule["nodes"]
    ]
