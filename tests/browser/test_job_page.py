"""The pages of a job in Chromium: the timeline of all ranks, and the page of `gpusight ranks`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import gpusight as gs
from gpusight.open_job import open_job
from gpusight.trace.trace import Trace
from gpusight.web.server import Server
from gpusight.web.session import Opened, Session
from tests.analysis.ranks.jobs import MS, NONE, Delay, job_traces
from tests.browser.browsing import DESKTOP, PHONE, Scheme, barriers, watched


def traces() -> list[Trace | str | Path]:
    return [*job_traces(lambda rank, _: Delay(host_ns=3 * MS) if rank == 2 else NONE)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where a job of four ranks is served."""
    job = open_job(traces())
    with Server(Session([Opened("job", job.trace, owned=False, job=job)])) as server:
        server.start()
        yield server.url


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("ranks")
    return gs.ranks(traces()).save(folder / "ranks.html").as_uri()


def ready(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.get_by_test_id("pane")).to_have_attribute("data-state", "ready")
    expect(page.locator(".heat-grid .heat-cell").first).to_be_attached()


def test_the_heat_map_comes_first_and_leads_to_the_rank(browser: Browser, address: str) -> None:
    with watched(browser) as visit:
        page = visit.page
        ready(page, address)
        expect(page.get_by_role("tab", name="Ranks")).to_have_attribute("aria-selected", "true")
        groups = page.locator(".pane").get_by_text("Rank 2", exact=False)
        expect(groups.first).to_be_visible()
        page.get_by_role("gridcell", name="rank 2, step 7").click()
        pane = page.get_by_test_id("pane")
        expect(pane).to_have_attribute("data-selected", re.compile("kernels:"))
        expect(page.get_by_role("tab", name="Ranks")).to_have_attribute("aria-selected", "true")


def test_the_keyboard_moves_in_the_heat_map(browser: Browser, address: str) -> None:
    with watched(browser) as visit:
        page = visit.page
        ready(page, address)
        page.locator(".heat-grid .heat-cell").first.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        focused = "document.activeElement.getAttribute('aria-label')"
        assert str(page.evaluate(focused)).startswith("rank 1, step 1:")
        page.keyboard.press("Enter")
        pane = page.get_by_test_id("pane")
        expect(pane).to_have_attribute("data-selected", re.compile("kernels:"))
        page.get_by_role("button", name="Wait for other ranks").click()
        expect(page.get_by_role("button", name="Wait for other ranks")).to_be_focused()
        late = page.get_by_role("gridcell", name="rank 2, step 7")
        expect(late).to_have_attribute("data-level", "0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nobody_is_kept_out_of_the_timeline(
    browser: Browser, address: str, size: tuple[int, int], scheme: Scheme
) -> None:
    with watched(browser, size, scheme) as visit:
        ready(visit.page, address)
        visit.page.get_by_role("tab", name="Ranks").click()
        assert barriers(visit.page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_of_ranks_asks_nobody_and_keeps_nobody_out(
    browser: Browser, page_file: str, size: tuple[int, int], scheme: Scheme
) -> None:
    with watched(browser, size, scheme) as visit:
        page = visit.page
        page.goto(page_file)
        assert barriers(page) == []
        assert visit.requests == [page_file]
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
        first = page.locator("#heat-map figure").first
        expect(first).to_be_visible()
        page.get_by_text("Wait for other ranks", exact=True).last.click()
        expect(first).to_be_hidden()
        expect(page.locator("#heat-map figure").nth(1)).to_be_visible()
