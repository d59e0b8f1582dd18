"""The timeline itself: what is drawn, and what mouse, keys and fingers do to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
import pytest
from playwright.sync_api import Browser, FloatRect, Page, Route, expect

import gpusight as gs
from gpusight.render.charts.chart_colors import color_of
from gpusight.units import format_time
from gpusight.viewer.timeline_view import ViewerTimeline
from gpusight.viewer.track_data import EventPosition
from tests.browser.browsing import PHONE, watched
from tests.shared import DATA

FORWARD = DATA / "gpt_small_forward.sqlite"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUSIGHT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        with gs.serve(FORWARD) as server:
            yield server.url


@pytest.fixture(scope="module")
def timeline() -> ViewerTimeline:
    return ViewerTimeline(gs.open(FORWARD, cache=False))


@pytest.fixture(scope="module")
def shared_page(browser: Browser, address: str) -> Iterator[Page]:
    with watched(browser, reduced_motion="reduce") as visit:
        visit.page.goto(address)
        ready(visit.page)
        yield visit.page


@pytest.fixture
def page(shared_page: Page) -> Page:
    """Give the page with everything in view, and nothing selected or marked."""
    shared_page.mouse.move(5, 5)
    shared_page.keyboard.press("Escape")
    shared_page.keyboard.press("0")
    ready(shared_page)
    return shared_page


def ready(page: Page) -> None:
    page.wait_for_timeout(60)  # a frame, and the moment that requests wait for
    expect(page.get_by_test_id("pane")).to_have_attribute("data-state", "ready", timeout=20_000)


def noted(page: Page, name: str) -> str | None:
    return page.get_by_test_id("pane").get_attribute(f"data-{name}")


def view(page: Page) -> tuple[int, int]:
    """Give the stretch of time that is shown."""
    return int(noted(page, "start-ns") or ""), int(noted(page, "end-ns") or "")


def span(page: Page) -> int:
    start, end = view(page)
    return end - start


def box(page: Page, name: str) -> FloatRect:
    box = page.get_by_test_id(name).first.bounding_box()
    assert box is not None
    return box


def x_of(page: Page, time_ns: float) -> float:
    """Say where on the screen a time is."""
    (start, end), area = view(page), box(page, "pane-canvas")
    return area["x"] + (time_ns - start) / (end - start) * area["width"]


def time_at(page: Page, x: float) -> float:
    (start, end), area = view(page), box(page, "pane-canvas")
    return start + (x - area["x"]) / area["width"] * (end - start)


def row(page: Page, key: str) -> FloatRect:
    """Give the box of a row's label, which is as high as its lines."""
    box = page.locator(f'[data-row="{key}"]').bounding_box()
    assert box is not None
    return box


@dataclass(frozen=True)
class Stream:
    """The stream with most GPU time and its kernels, in order of start."""

    key: str
    kernels: list[EventPosition]


@pytest.fixture(scope="module")
def stream(timeline: ViewerTimeline) -> Stream:
    key = next(track.key for track in timeline.tracks if track.kind == "stream")
    spots = [timeline.spot("kernels", row) for row in range(timeline.trace.row_count("kernels"))]
    own = [spot for spot in spots if spot is not None and spot.track == key]
    return Stream(key, sorted(own, key=lambda spot: spot.start_ns))


def zoom_to(page: Page, spot: EventPosition) -> None:
    """Zoom at an event until it is as wide as a hand."""
    y = row(page, spot.track)["y"] + 8
    while x_of(page, spot.end_ns) - x_of(page, spot.start_ns) < 90:
        page.mouse.move(x_of(page, (spot.start_ns + spot.end_ns) / 2), y)
        page.keyboard.press("w")
        page.wait_for_timeout(25)
    ready(page)


def longest(stream: Stream) -> EventPosition:
    return max(stream.kernels, key=lambda spot: spot.end_ns - spot.start_ns)


# What is drawn ----------------------------------------------------------------------------------


def pixel(page: Page, x: float, y: float) -> tuple[int, int, int]:
    """Read a pixel of the tracks at a place of the screen."""
    box = page.evaluate(
        """([x, y]) => {
            const canvas = document.querySelector("[data-testid=pane-canvas] canvas");
            const box = canvas.getBoundingClientRect();
            const ratio = canvas.width / box.width;
            const at = [Math.round((x - box.left) * ratio), Math.round((y - box.top) * ratio)];
            const copy = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
            copy.drawImage(canvas, ...at, 1, 1, 0, 0, 1, 1);
            return [...copy.getImageData(0, 0, 1, 1).data];
        }""",
        [x, y],
    )
    return (box[0], box[1], box[2])


def test_a_kernel_is_drawn_where_it_ran_in_the_color_of_its_kind(
    page: Page, stream: Stream, timeline: ViewerTimeline
) -> None:
    spot = longest(stream)
    zoom_to(page, spot)
    window = timeline.window([stream.key], spot.start_ns, spot.end_ns, 10)
    [code] = {int(code) for code in window.slices.color}
    rgb = tuple(bytes.fromhex(color_of(timeline.colors[code]).light[1:]))
    middle = row(page, stream.key)["y"] + 3
    left, right = x_of(page, spot.start_ns), x_of(page, spot.end_ns)
    assert [pixel(page, x, middle) == rgb for x in (left + 3, (left + right) / 2, right - 4)] == [
        True,
        True,
        True,
    ]
    gap = timeline.pick(stream.key, 0, spot.end_ns + 1, 0)
    if gap is None:  # nothing ran right after it
        assert pixel(page, right + 1, middle) != rgb


def test_what_is_there_is_drawn_while_finer_data_is_under_way(page: Page, stream: Stream) -> None:
    zoom_to(page, longest(stream))
    waiting: list[Route] = []
    page.route("**/window?*", lambda route: waiting.append(route))
    page.keyboard.press("s")
    page.keyboard.press("0")
    page.wait_for_timeout(100)
    spot = stream.kernels[len(stream.kernels) // 2]
    foot = row(page, stream.key)["y"] + 20
    colors = {pixel(page, x_of(page, spot.start_ns) + off, foot) for off in range(-3, 4)}
    assert colors - {(255, 255, 255)}
    page.unroute("**/window?*")
    for route in waiting:
        route.continue_()
    ready(page)


def test_every_track_has_its_name_beside_it(page: Page, timeline: ViewerTimeline) -> None:
    labels = page.get_by_test_id("pane-row-track")
    shown = {label.get_attribute("data-row") for label in labels.all()}
    assert shown == {track.key for track in timeline.tracks}


def test_everything_is_shown_with_a_little_room(page: Page, timeline: ViewerTimeline) -> None:
    start, end = view(page)
    assert start <= timeline.start_ns < timeline.end_ns <= end
    assert end - start == pytest.approx((timeline.end_ns - timeline.start_ns) * 1.02, rel=1e-3)


# Moving -----------------------------------------------------------------------------------------


def test_the_wheel_with_ctrl_zooms_at_the_pointer(page: Page) -> None:
    area, before = box(page, "pane-canvas"), span(page)
    x = area["x"] + area["width"] * 0.7
    page.mouse.move(x, area["y"] + 60)
    time_ns = time_at(page, x)
    page.keyboard.down("Control")
    for _ in range(3):
        page.mouse.wheel(0, -120)
        page.wait_for_timeout(30)
    page.keyboard.up("Control")
    ready(page)
    assert span(page) < before * 0.8
    assert time_at(page, x) == pytest.approx(time_ns, abs=span(page) / 500)


def test_w_a_s_and_d_move_as_they_do_elsewhere(page: Page) -> None:
    whole = view(page)
    page.keyboard.press("w")
    page.keyboard.press("w")
    ready(page)
    close = view(page)
    assert whole[0] < close[0] < close[1] < whole[1]
    page.keyboard.press("d")
    ready(page)
    later = view(page)
    assert later[0] > close[0]
    assert later[1] - later[0] == pytest.approx(close[1] - close[0], abs=2)
    page.keyboard.press("a")
    ready(page)
    assert view(page) == pytest.approx(close, abs=2)
    page.keyboard.press("s")
    ready(page)
    assert span(page) > close[1] - close[0]


def test_a_key_that_is_held_moves_smoothly_until_let_go(browser: Browser, address: str) -> None:
    with watched(browser) as visit:
        visit.page.goto(address)
        ready(visit.page)
        spans = [span(visit.page)]
        visit.page.keyboard.down("w")
        for _ in range(4):
            visit.page.wait_for_timeout(100)
            spans.append(span(visit.page))
        visit.page.keyboard.up("w")
        ready(visit.page)
        rested = span(visit.page)
        visit.page.wait_for_timeout(150)
        assert sorted(spans, reverse=True) == spans
        assert spans[-1] < spans[0] / 1.5
        assert span(visit.page) == rested


def test_dragging_takes_the_time_along(page: Page) -> None:
    page.keyboard.press("w")
    page.keyboard.press("w")
    ready(page)
    area = box(page, "pane-canvas")
    x, y = area["x"] + 400, area["y"] + 300
    time_ns = time_at(page, x)
    drag(page, (x, y), (x - 120, y))
    ready(page)
    assert time_at(page, x - 120) == pytest.approx(time_ns, abs=span(page) / 400)


def drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=3)
    page.mouse.up()


def test_the_brush_of_the_overview_chooses_what_is_shown(page: Page) -> None:
    whole, strip = view(page), box(page, "pane-overview")
    y = strip["y"] + 20
    # All is in view: from an edge the brush is made smaller.
    drag(page, (strip["x"] + 1, y), (strip["x"] + strip["width"] / 2, y))
    ready(page)
    assert view(page)[0] == pytest.approx(sum(whole) / 2, rel=0.02)
    assert view(page)[1] == pytest.approx(whole[1], abs=2)


# Choosing ---------------------------------------------------------------------------------------


def test_a_click_selects_the_kernel_under_it(page: Page, stream: Stream) -> None:
    spot = longest(stream)
    zoom_to(page, spot)
    middle = x_of(page, (spot.start_ns + spot.end_ns) / 2)
    page.mouse.click(middle, row(page, stream.key)["y"] + 8)
    pane = page.get_by_test_id("pane")
    expect(pane).to_have_attribute("data-selected", f"kernels:{spot.row}")
    length = format_time(spot.end_ns - spot.start_ns)
    expect(page.get_by_test_id("pane-live")).to_contain_text(f"Selected {spot.name}, {length}")
    page.keyboard.press("m")
    expect(pane).to_have_attribute("data-mark-ns", f"{spot.start_ns}-{spot.end_ns}")
    page.keyboard.press("f")
    ready(page)
    assert span(page) == pytest.approx((spot.end_ns - spot.start_ns) / 0.7, rel=0.01)
    page.keyboard.press("Escape")
    expect(pane).not_to_have_attribute("data-selected", f"kernels:{spot.row}")


def test_a_click_on_many_events_selects_one_of_them(
    page: Page, stream: Stream, timeline: ViewerTimeline
) -> None:
    spot = stream.kernels[len(stream.kernels) // 2]
    x = x_of(page, (spot.start_ns + spot.end_ns) / 2)
    within_ns = int(span(page) / box(page, "pane-canvas")["width"] * 5)
    page.mouse.click(x, row(page, stream.key)["y"] + 18)
    page.locator("[data-testid=pane][data-selected]").wait_for()
    table, number = (noted(page, "selected") or "").split(":")
    chosen = timeline.spot(table, int(number))
    assert chosen is not None
    assert chosen.track == stream.key
    assert chosen.start_ns - within_ns <= spot.end_ns
    assert chosen.end_ns + within_ns >= spot.start_ns


def test_full_stop_and_comma_go_from_event_to_event(page: Page, stream: Stream) -> None:
    spot = longest(stream)
    zoom_to(page, spot)
    middle = x_of(page, (spot.start_ns + spot.end_ns) / 2)
    page.mouse.click(middle, row(page, stream.key)["y"] + 8)
    pane = page.get_by_test_id("pane")
    expect(pane).to_have_attribute("data-selected", f"kernels:{spot.row}")
    starts = pl.Series([one.start_ns for one in stream.kernels])
    following = stream.kernels[int(starts.search_sorted(spot.start_ns)) + 1]
    page.keyboard.press(".")
    expect(pane).to_have_attribute("data-selected", f"kernels:{following.row}")
    start, end = view(page)
    assert start <= following.start_ns < following.end_ns <= end
    page.keyboard.press(",")
    expect(pane).to_have_attribute("data-selected", f"kernels:{spot.row}")


def test_the_pointer_is_told_what_it_is_on(page: Page, stream: Stream) -> None:
    spot = longest(stream)
    zoom_to(page, spot)
    y = row(page, stream.key)["y"] + 8
    page.mouse.move(x_of(page, (spot.start_ns + spot.end_ns) / 2), y)
    tooltip = page.locator(".pane-tooltip")
    expect(tooltip).to_contain_text(spot.name)
    expect(tooltip).to_contain_text(format_time(spot.end_ns - spot.start_ns))
    page.mouse.move(5, 5)
    expect(tooltip).to_be_hidden()


def test_on_the_ruler_the_step_is_told_whatever_is_scrolled_under_it(
    browser: Browser, address: str
) -> None:
    with watched(browser, (1200, 330)) as visit:
        visit.page.goto(address)
        ready(visit.page)
        info = visit.page.request.get(f"{address}api/captures/0").json()
        visit.page.get_by_test_id("pane-body").evaluate("body => body.scrollTop = 80")
        middle = sum(view(visit.page)) / 2
        [step] = [one for one in info["steps"] if one["start_ns"] <= middle < one["end_ns"]]
        visit.page.mouse.move(x_of(visit.page, middle), box(visit.page, "pane-ruler")["y"] + 30)
        tooltip = visit.page.locator(".pane-tooltip")
        expect(tooltip).to_contain_text(step["name"])
        expect(tooltip).to_contain_text(format_time(step["end_ns"] - step["start_ns"]))


# Measuring, folding, fingers --------------------------------------------------------------------


@pytest.mark.parametrize("where", ["pane-ruler", "pane-canvas"])
def test_a_drag_on_the_ruler_or_with_shift_marks_a_stretch(page: Page, where: str) -> None:
    strip = box(page, where)
    y = strip["y"] + 8
    one, other = strip["x"] + strip["width"] * 0.25, strip["x"] + strip["width"] * 0.5
    expected = [time_at(page, one), time_at(page, other)]
    if where == "pane-canvas":
        page.keyboard.down("Shift")
    drag(page, (other, y), (one, y))
    page.keyboard.up("Shift")
    marked = [int(end) for end in (noted(page, "mark-ns") or "").split("-")]
    assert marked == pytest.approx(expected, abs=span(page) / 400)


def test_folding_makes_a_track_one_thin_line(page: Page, timeline: ViewerTimeline) -> None:
    deep = max(timeline.tracks, key=lambda track: 0 if track.series else track.lines)
    label = page.locator(f'[data-row="{deep.key}"]')
    before = row(page, deep.key)["height"]
    label.click()
    expect(label).to_have_attribute("aria-expanded", "false")
    assert row(page, deep.key)["height"] < before / 2
    label.press("Enter")
    expect(label).to_have_attribute("aria-expanded", "true")
    assert row(page, deep.key)["height"] == before


def test_names_can_be_given_more_room(browser: Browser, address: str, stream: Stream) -> None:
    with watched(browser, reduced_motion="reduce") as visit:
        visit.page.goto(address)
        ready(visit.page)
        width, edge = box(visit.page, "pane-canvas")["width"], visit.page.locator(".pane-edge")
        area = edge.bounding_box()
        assert area is not None
        drag(visit.page, (area["x"] + 3, area["y"] + 200), (area["x"] + 103, area["y"] + 200))
        assert box(visit.page, "pane-canvas")["width"] == width - 100
        edge.press("ArrowLeft")
        assert box(visit.page, "pane-canvas")["width"] == width - 84
        visit.page.keyboard.press("0")
        ready(visit.page)
        spot = longest(stream)
        zoom_to(visit.page, spot)  # what is under the pointer is still what is drawn there
        middle = x_of(visit.page, (spot.start_ns + spot.end_ns) / 2)
        visit.page.mouse.click(middle, row(visit.page, stream.key)["y"] + 8)
        pane = visit.page.get_by_test_id("pane")
        expect(pane).to_have_attribute("data-selected", f"kernels:{spot.row}")
        visit.page.reload()
        ready(visit.page)
        assert box(visit.page, "pane-canvas")["width"] == width - 84


def test_two_fingers_zoom_and_a_tap_selects(browser: Browser, address: str, stream: Stream) -> None:
    with watched(browser, PHONE, has_touch=True, is_mobile=True) as visit:
        page = visit.page
        page.goto(address)
        ready(page)
        before = span(page)
        area = box(page, "pane-canvas")
        pinch(page, area["x"] + area["width"] / 2, area["y"] + 120)
        ready(page)
        assert span(page) < before / 2
        kernel = next(one for one in stream.kernels if view(page)[0] < one.start_ns < view(page)[1])
        page.touchscreen.tap(x_of(page, kernel.start_ns), row(page, stream.key)["y"] + 18)
        page.locator("[data-testid=pane][data-selected]").wait_for()


def pinch(page: Page, x: float, y: float) -> None:
    """Spread two fingers about a place."""
    touch = page.context.new_cdp_session(page)
    for apart in (15, 30, 50, 80, 100):
        points = [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
        kind = "touchStart" if apart == 15 else "touchMove"
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
