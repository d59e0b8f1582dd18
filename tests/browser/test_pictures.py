"""Pictures as pages in Chromium: nothing is logged or asked for, all can be read and reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import gpusight as gs
from gpusight.render.charts.draw_chart import draw_result
from gpusight.results import Composite
from gpusight.viewer.timeline_snapshot import timeline
from tests.browser.browsing import DESKTOP, PHONE, Scheme, barriers, watched
from tests.shared import DATA
from tests.traces import build_trace

CAPTURE = DATA / "dataload.sqlite"
HOSTILE = '</script></svg><img src=x onerror="window.broken=1"><b>'


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    trace = gs.open(CAPTURE, cache=False)
    answers = {
        "ledger": gs.ledger(trace),
        "timeline": gs.timeline(trace),
        "utilization": gs.utilization(trace),
    }
    return {name: one.save(folder / f"{name}.html") for name, one in answers.items()}


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
@pytest.mark.parametrize("name", ["ledger", "timeline", "utilization"])
def test_pages_are_quiet_and_open_to_everybody(
    browser: Browser, pages: dict[str, Path], name: str, size: tuple[int, int], scheme: Scheme
) -> None:
    with watched(browser, size, scheme) as visit:
        visit.page.goto(pages[name].as_uri())
        assert visit.page.locator("svg:visible").count() == 1
        assert barriers(visit.page) == []
        wide = visit.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= size[0]


def test_pointing_shows_the_values_of_the_document(
    browser: Browser, pages: dict[str, Path]
) -> None:
    document = json.loads(gs.utilization(CAPTURE).to_json())
    first = next(row for row in document["rows"] if row["section"] == "bins")
    with watched(browser) as visit:
        visit.page.goto(pages["utilization"].as_uri())
        picture = visit.page.locator("svg.wide")
        picture.focus()
        picture.press("ArrowRight")
        picture.press("ArrowLeft")
        shown = visit.page.locator(".tip").inner_text()
        assert f"{first['busy_share'] * 100:.1f}%" in shown


def test_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    named = [{"start_ns": 0, "end_ns": 1000, "name": HOSTILE}]
    trace = build_trace(kernels=named, ranges=named, threads=[{"thread": 11, "name": HOSTILE}])
    result = timeline(trace)
    assert isinstance(result, Composite)
    target = tmp_path / "page.html"
    target.write_bytes(draw_result(result, "html"))
    with watched(browser) as visit:
        visit.page.goto(target.as_uri())
        assert visit.page.evaluate("window.broken") is None
        assert visit.page.locator("img").count() == 0
        assert HOSTILE in visit.page.locator("svg.wide").text_content()  # type: ignore[operator]


def test_a_chart_in_a_notebook_is_alive_and_shut_in(browser: Browser, tmp_path: Path) -> None:
    named = [{"start_ns": 0, "end_ns": 1000, "name": HOSTILE}]
    trace = build_trace(kernels=named, ranges=named, threads=[{"thread": 11, "name": HOSTILE}])
    parts = [gs.utilization(CAPTURE), gs.Result(timeline(trace))]
    target = tmp_path / "notebook.html"
    shown = "\n".join(part._repr_mimebundle_()["text/html"] for part in parts)
    target.write_text(f'<!DOCTYPE html><html lang="en"><title>notebook</title><body>{shown}</body>')
    with watched(browser) as visit:
        visit.page.goto(target.as_uri())
        inside = visit.page.frame_locator("iframe").first
        picture = inside.locator("svg.wide")
        picture.focus()
        picture.press("ArrowRight")
        assert "%" in inside.locator(".tip").inner_text()
        frames = [frame for frame in visit.page.frames if frame != visit.page.main_frame]
        assert len(frames) == 2
        for frame in frames:
            assert frame.evaluate("window.origin") == "null"
            assert frame.evaluate("window.broken") is None
            assert not frame.evaluate("document.querySelector('main').scrollWidth > innerWidth")
