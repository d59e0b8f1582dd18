"""The page of `gpusight serve`: what it says equals what the commands say, and it goes there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qs, urlsplit

import polars as pl
import pytest
from playwright.sync_api import Browser, Page, Response, Route, expect

import gpusight as gs
from gpusight.cli.main import main
from gpusight.units import format_share, format_time
from tests.browser.browsing import PHONE, PageVisit, Scheme, barriers, watched
from tests.shared import DATA
from tests.traces import build_trace

DATALOAD = DATA / "dataload.sqlite"
FORWARD = DATA / "gpt_small_forward.sqlite"
MS = 1_000_000
EVIL = "</script><img src=x onerror=\"window.hurt='yes'\"><b>bold</b>"
"""A name that would leave its mark, were it ever markup."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a capture of ten judged steps is served, for all tests that only look."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUSIGHT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        with gs.serve(DATALOAD) as server:
            yield server.url


@contextmanager
def opened(
    browser: Browser, address: str, scheme: Scheme = "light", **options: Any
) -> Iterator[Page]:
    """Open the page and wait until everything on it is worked out."""
    with watched(browser, scheme=scheme, **options) as visit:
        visit.page.goto(address)
        settle(visit)
        yield visit.page


def settle(visit: PageVisit) -> None:
    expect(visit.page.locator("main[aria-busy=false]")).to_be_attached()
    for pane in visit.page.get_by_test_id("pane").all():
        expect(pane).to_have_attribute("data-state", "ready")
    expect(visit.page.locator("#body-findings .busy")).to_have_count(0, timeout=20_000)


def json_of(capsys: pytest.CaptureFixture[str], command: str) -> Any:
    """Give what a command tells about the capture as JSON."""
    assert main([command, str(DATALOAD), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def view(page: Page, pane: int = 0) -> tuple[int, int]:
    """Give the stretch of time that a pane shows."""
    shown = page.get_by_test_id("pane").nth(pane)
    start, end = (shown.get_attribute(f"data-{side}-ns") for side in ("start", "end"))
    assert start is not None
    assert end is not None
    return int(start), int(end)


ARRIVED = """(before) => {
  const { startNs } = document.querySelector("[data-testid=pane]").dataset;
  const kept = /t=([0-9]+)-/.exec(location.hash);
  return kept && Math.abs(kept[1] - startNs) < 2 && Math.abs(startNs - before) > 1;
}"""
"""Whether a pane has left `before`, and the address keeps what it shows now."""


def resting_view(page: Page, pane: int = 0) -> tuple[int, int]:
    """Give the stretch that a pane shows once it has stopped moving."""
    before = None
    while before != (before := view(page, pane)):
        page.wait_for_timeout(120)
    return before


def tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=re.compile(f"^{name}")).click()


def mark(page: Page, share_from: float, share_to: float) -> None:
    """Drag along the ruler."""
    box = page.get_by_test_id("pane-ruler").first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 3
    page.mouse.move(box["x"] + box["width"] * share_from, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * share_to, y, steps=4)
    page.mouse.up()


# What the commands say --------------------------------------------------------------------------


def test_ledger_of_the_page_is_that_of_the_command(
    browser: Browser, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [device] = json_of(capsys, "ledger")["devices"]
    steps = json_of(capsys, "diagnose")["window"]["steps"]
    with opened(browser, address) as page:
        tab(page, "Ledger")
        shown = {
            row.get_attribute("data-key"): row.locator("td").all_inner_texts()
            for row in page.locator("#body-ledger .bar-row").all()
        }
        total = page.locator("#body-ledger tfoot td").all_inner_texts()
    entries = device["entries"]
    assert shown == {
        one["entry"]: [format_time(one["ns"] / steps), format_share(one["share"])]
        for one in entries
    }
    assert total == [format_time(sum(one["ns"] for one in entries) / steps), "100.0%"]


def test_findings_of_the_page_are_those_of_the_command(
    browser: Browser, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = json_of(capsys, "diagnose")
    steps = answer["window"]["steps"]
    plan = [finding for finding in answer["findings"] if finding["after_above_ns"] is not None]
    with opened(browser, address) as page:
        cards = page.locator("#body-findings .finding")
        shown = [
            (
                card.get_attribute("data-rule"),
                card.locator("h3").inner_text(),
                card.locator(".gain b").inner_text(),
                card.locator(".confidence").inner_text(),
            )
            for card in cards.all()
        ]
        headline = page.locator("#body-findings .headline").inner_text()
        code = cards.first.locator("pre").inner_text()
    assert shown == [
        (
            finding["rule"],
            f"{number}. " + finding["title"].replace("`", ""),
            f"Saves {format_time(finding['after_above_ns'] / steps, digits=3)}/step",
            f"{finding['confidence']} confidence",
        )
        for number, finding in enumerate(plan, 1)
    ]
    window = answer["window"]
    length = format_time(window["step_ns"], digits=3)
    assert headline == f"{length}/step, {window['steps']} steps evaluated"
    assert code.strip() == answer["findings"][0]["code"].strip()


# Going there ------------------------------------------------------------------------------------


def test_a_finding_goes_to_where_it_happens(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        before, _ = resting_view(page)
        findings = page.request.get(f"{address}api/captures/0/findings").json()["findings"]
        place = findings[0]["places"][2]
        page.locator(".finding").first.locator(".place").nth(2).click()
        page.wait_for_function(ARRIVED, arg=before, polling=100)
        start, end = view(page)
        assert start <= place["start_ns"] < place["end_ns"] <= end
        assert place["end_ns"] - place["start_ns"] > (end - start) / 3
        expect(page.locator("#live")).to_have_text(f"Showing {place['label']}")
        pane = page.get_by_test_id("pane").first
        assert pane.get_attribute("data-mark-ns") or pane.get_attribute("data-selected")
        page.reload()
        expect(pane).to_have_attribute("data-state", "ready")
        assert resting_view(page) == pytest.approx((start, end), abs=2)


def test_search_goes_from_one_occurrence_to_the_next(browser: Browser, address: str) -> None:
    with gs.open(DATALOAD) as trace:
        ranges = trace.table("ranges", ["name", "start_ns"])
    starts = ranges.filter(pl.col("name") == "backward")["start_ns"].sort().to_list()
    with opened(browser, address) as page:
        page.keyboard.press("/")
        page.keyboard.type("backward")
        option = page.get_by_role("option").filter(has_text="backward").first
        expect(option).to_contain_text(f"{len(starts)}×")
        selections = [selected(page, forward) for forward in (True, True, False)]
        rows = [starts.index(start) for start in selections]
        assert rows[1] == (rows[0] + 1) % len(starts)
        assert rows[2] == rows[0]
        page.keyboard.press("Escape")
        expect(page.locator("#query")).to_have_value("")


def selected(page: Page, forward: bool) -> int:
    """Press Enter in the search box and give when the event begins that it led to."""
    with page.expect_response("**/next?*") as answer:
        page.keyboard.press("Enter" if forward else "Shift+Enter")
    spot = answer.value.json()
    expect(page.locator("#body-selection h3")).to_have_text(spot["name"])
    chosen = f"{spot['table']}:{spot['row']}"
    expect(page.get_by_test_id("pane").first).to_have_attribute("data-selected", chosen)
    start, end = resting_view(page)
    assert start <= spot["start_ns"] <= end
    return int(spot["start_ns"])


def test_a_selected_range_is_measured(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        start, end = view(page)

        def is_final(response: Response) -> bool:
            """Return whether it is of the whole drag: a slow one is measured on the way too."""
            query = parse_qs(urlsplit(response.url).query)
            if not urlsplit(response.url).path.endswith("/measure"):
                return False
            length = float(query["end"][0]) - float(query["start"][0])
            return length == pytest.approx((end - start) / 2, rel=0.02)

        with page.expect_response(is_final) as answer:
            mark(page, 0.25, 0.75)
        measured = answer.value.json()
        length = measured["end_ns"] - measured["start_ns"]
        assert length == pytest.approx((end - start) / 2, rel=0.02)
        panel = page.locator("#body-measure")
        big = panel.locator(".big")
        assert float(big.get_attribute("data-ns") or 0) == pytest.approx(length, abs=2)
        [device] = measured["devices"]
        expect(panel.locator(".busy-line")).to_have_text(
            f"{format_share(device['busy_ns'] / length)} busy, {format_time(device['busy_ns'])}"
        )
        page.keyboard.press("Escape")
        expect(panel).to_contain_text("Visible range", ignore_case=True)


def test_help_names_every_color_that_has_a_meaning(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        page.keyboard.press("?")
        shown = page.locator("#help .legend dd span:not(.swatch)").all_inner_texts()
        palette = page.request.get(f"{address}api/captures").json()["palette"]
        meant = [
            key.rpartition("/")[2] for key in palette if not key.startswith(("host/", "heat/"))
        ]
        assert sorted(shown) == sorted(name for name in meant if name != "overhead")


# Several captures -------------------------------------------------------------------------------


def test_two_captures_move_together(browser: Browser) -> None:
    with gs.serve([DATALOAD, FORWARD]) as server, opened(browser, server.url) as page:
        expect(page.get_by_test_id("pane")).to_have_count(2)
        offset = first_step(page, server.url, 1) - first_step(page, server.url, 0)
        page.get_by_test_id("pane-canvas").first.hover()
        page.keyboard.press("w", delay=150)
        (start, end), other = resting_view(page), resting_view(page, 1)
        assert other == pytest.approx((start + offset, end + offset), abs=2)
        page.get_by_role("button", name="Linked").click()
        page.keyboard.press("d", delay=150)
        assert resting_view(page) != (start, end)
        assert resting_view(page, 1) == other
        tab(page, "Compare")
        expect(page.locator("#body-comparison .metrics tbody tr").first).to_be_visible(
            timeout=20_000
        )


def test_captures_without_steps_to_align_are_not_moved_out_of_sight(browser: Browser) -> None:
    short = build_trace(kernels=[{"start_ns": 1 * MS, "end_ns": 2 * MS, "name": "k"}])
    with gs.serve([DATALOAD, short]) as server, opened(browser, server.url) as page:
        linked = page.get_by_role("button", name="Linked")
        expect(linked).to_have_attribute("aria-pressed", "false")
        start, end = resting_view(page, 1)
        assert start <= 1 * MS < 2 * MS <= end
        linked.click()
        page.get_by_test_id("pane-canvas").first.hover()
        page.keyboard.press("d", delay=150)
        start, end = resting_view(page, 1)
        assert start < 2 * MS
        assert end > 1 * MS


def first_step(page: Page, address: str, capture: int) -> int:
    """Give when the first judged step of a capture begins."""
    info = page.request.get(f"{address}api/captures/{capture}").json()
    return int(next(step["start_ns"] for step in info["steps"] if not step["warmup"]))


def test_a_capture_that_fails_is_told_and_the_other_shown(browser: Browser, tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"SQLite format 3\x00" + bytes(84))
    with gs.serve([DATALOAD, broken]) as server, opened(browser, server.url) as page:
        expect(page.get_by_test_id("pane")).to_have_count(1)
        expect(page.locator("main [role=alert]")).to_contain_text("broken.sqlite could not be read")


# Names, people, screens -------------------------------------------------------------------------


def hostile() -> gs.Trace:
    """A capture in which everything that has a name has that one."""
    times = [{"start_ns": at * MS, "end_ns": (at + 1) * MS, "name": EVIL} for at in range(1, 4)]
    kernels = [{**one, "correlation": number} for number, one in enumerate(times)]
    calls = [{**one, "correlation": number} for number, one in enumerate(times)]
    return build_trace(
        devices=[{"name": EVIL}],
        processes=[{"process": 1, "name": EVIL}],
        kernels=kernels,
        ranges=times,
        api_calls=calls,
    )


def test_a_late_search_answer_does_not_open_the_list_again(browser: Browser, address: str) -> None:
    def delayed(route: Route) -> None:
        page.wait_for_timeout(150)
        route.continue_()

    with opened(browser, address) as page:
        page.route("**/search?*", delayed)
        page.keyboard.press("/")
        page.keyboard.type("backward")
        page.keyboard.press("Enter")  # before the search that typing starts
        expect(page.locator("#body-selection h3")).to_have_text("backward")
        page.wait_for_timeout(500)
        expect(page.locator(".results")).to_be_hidden()
        page.keyboard.type("x")
        page.get_by_test_id("pane-canvas").focus()  # away, with the answer on its way
        page.wait_for_timeout(500)
        expect(page.locator(".results")).to_be_hidden()


def test_hostile_names_stay_text(browser: Browser) -> None:
    with gs.serve(hostile()) as server, opened(browser, server.url) as page:
        page.keyboard.press("/")
        page.keyboard.type("<img")
        expect(page.get_by_role("option").first).to_contain_text(EVIL)
        page.keyboard.press("Enter")
        expect(page.locator("#body-selection h3")).to_have_text(EVIL)
        for name in ("Measure", "Ledger", "Findings", "Notes"):
            tab(page, name)
        page.wait_for_timeout(200)
        assert page.evaluate("window.hurt") is None
        assert page.locator("img, b:text-is('bold')").count() == 0


@pytest.mark.parametrize("scheme", get_args(Scheme))
def test_nothing_keeps_people_out(browser: Browser, address: str, scheme: Scheme) -> None:
    with opened(browser, address, scheme) as page:
        violations = barriers(page)
        tab(page, "Ledger")
        page.keyboard.press("/")
        page.keyboard.type("backward")
        expect(page.get_by_role("option").first).to_be_visible()
        violations += barriers(page)
        page.keyboard.press("Enter")
        expect(page.locator("#body-selection .facts").first).to_be_visible()
        page.get_by_test_id("pane-canvas").focus()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        violations += barriers(page)
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        violations += barriers(page)
    assert violations == []


def test_a_chosen_theme_is_remembered(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        button = page.get_by_role("button", name=re.compile("^Colors"))
        button.click()
        button.click()
        assert page.locator("html").get_attribute("data-theme") == "dark"
        page.reload()
        assert page.locator("html").get_attribute("data-theme") == "dark"


def test_a_telephone_shows_it_all_without_scrolling_sideways(
    browser: Browser, address: str
) -> None:
    with opened(browser, address, size=PHONE, has_touch=True) as page:
        for name in ("Findings", "Ledger", "Measure"):
            tab(page, name)
            body = page.get_by_role("tabpanel")
            expect(body).to_be_visible()
            assert body.evaluate("e => e.scrollWidth <= e.clientWidth")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert barriers(page) == []


def test_tabs_and_panel_obey_the_keyboard(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        page.get_by_role("tab", name=re.compile("^Findings")).focus()
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name="Selection")).to_be_focused()
        page.keyboard.press("End")
        expect(page.get_by_role("tab", selected=True)).to_have_text(re.compile("^Notes"))
        page.keyboard.press("p")
        expect(page.locator("#panel")).to_be_hidden()
        page.keyboard.press("p")
        expect(page.locator("#panel")).to_be_visible()


def test_a_selected_range_has_a_flame_graph(browser: Browser) -> None:
    """Of ranges, which this capture has; stacks look the same."""
    with gs.serve(DATALOAD) as server, opened(browser, server.url) as page:
        mark(page, 0.3, 0.7)
        page.get_by_role("button", name="Flame graph").click()
        dialog = page.get_by_role("dialog", name=re.compile("^Flame graph of"))
        expect(dialog.get_by_role("alert")).to_contain_text("record them with")
        dialog.get_by_label("by", exact=True).select_option("range")
        boxes = dialog.locator(".flame g")
        expect(boxes.first).to_be_visible()
        assert any("data" in text for text in dialog.locator(".flame text").all_text_contents())
        dialog.get_by_role("searchbox").fill("data")
        expect(dialog.locator("output")).to_contain_text("found")
        before = boxes.count()
        dialog.locator(".flame g.found").first.click()
        expect(dialog.get_by_role("button", name="Back")).to_be_enabled()
        assert boxes.count() <= before
        expect(dialog.get_by_role("button", name="Copy as text")).to_be_visible()
        dialog.get_by_label("on", exact=True).select_option(label="GPU 0 · NVIDIA H200")
        expect(boxes.first).to_be_visible()
        dialog.get_by_role("button", name="Close").click()
        expect(dialog).not_to_be_visible()
