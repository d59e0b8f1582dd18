"""A report in Chromium, opened from disk: quiet, alone, usable by mouse, keyboard and reader."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import gpusight as gs
from tests.browser.browsing import DESKTOP, PHONE, PageVisit, Scheme, barriers, watched
from tests.reports.training_programs import EVIL, training
from tests.shared import DATA


@pytest.fixture(scope="module")
def training_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of a program whose kernel and range have the worst of names, against a base."""
    folder = tmp_path_factory.mktemp("report")
    trace = training(4, gemm=EVIL, forward=EVIL)
    view = gs.report(trace, compare=training(4, meta={"path": "base.sqlite"}))
    return view.save(folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def measured_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("measured")
    captures = (DATA / "torch_checkpoint.json.gz", DATA / "thrice.ncu-rep.xz")
    return gs.report(*captures).save(folder / "report.html").as_uri()


@pytest.fixture
def visit(browser: Browser, training_page: str) -> Iterator[PageVisit]:
    with watched(browser) as visit:
        visit.page.goto(training_page)
        yield visit


def kernels(page: Page) -> Locator:
    return page.locator("table.kernels tbody tr:visible")


def overflow(page: Page) -> int:
    root = "document.documentElement"
    return int(page.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))


# A file of its own --------------------------------------------------------------------------------


def test_nothing_is_asked_for_but_the_file_itself(visit: PageVisit, training_page: str) -> None:
    visit.page.wait_for_timeout(100)
    assert visit.requests == [training_page]
    expect(visit.page).to_have_title("run.sqlite · gpusight report")


def test_hostile_names_stay_text(visit: PageVisit) -> None:
    page = visit.page
    page.locator("table.kernels summary").first.click()
    page.locator(".flame [data-node]").nth(2).hover()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.get_by_text("bold", exact=True).count() == 0
    shown = page.locator("#ranges .tree").inner_text()
    assert "</script><img src=x onerror=" in shown
    assert "\\u202e" in shown


def test_without_script_everything_is_there_to_be_read(
    browser: Browser, training_page: str
) -> None:
    with watched(browser, java_script_enabled=False) as visit:
        visit.page.goto(training_page)
        assert kernels(visit.page).count() == 2
        expect(visit.page.locator("#ranges .tree summary").first).to_be_visible()
        expect(visit.page.locator("#contents")).to_be_visible()
        expect(visit.page.locator("#ledger .stack").first).to_be_visible()
        assert visit.page.locator("thead button, .search, .copy").count() == 0


def test_the_ledger_on_the_page_is_that_of_the_command(visit: PageVisit) -> None:
    entries = gs.ledger(training(4)).to_dict()["devices"][0]["entries"]
    rows = visit.page.locator("tr[data-entry]")
    shown = sorted(int(row.get_attribute("data-ns") or 0) for row in rows.all())
    assert shown == sorted(entry["ns"] for entry in entries)


# Usable -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_no_barrier_and_no_overflow(
    browser: Browser, training_page: str, scheme: Scheme, size: tuple[int, int]
) -> None:
    with watched(browser, size, scheme) as visit:
        visit.page.goto(training_page)
        assert overflow(visit.page) == 0
        assert barriers(visit.page) == []


def test_no_barrier_where_kernels_were_measured(browser: Browser, measured_page: str) -> None:
    with watched(browser) as visit:
        visit.page.goto(measured_page)
        assert barriers(visit.page) == []
        expect(visit.page.locator("#occupancy-1")).to_be_visible()


def test_colors_can_be_chosen(visit: PageVisit) -> None:
    page = visit.page
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    button = page.locator(".theme-button")
    button.click()
    assert page.evaluate(ground) == light
    button.click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(ground) != light
    line = page.locator("#memory .picture svg.wide .grid").first
    assert line.evaluate("e => getComputedStyle(e).stroke") == "rgb(43, 50, 59)"


def test_on_a_phone_the_contents_are_a_menu(browser: Browser, training_page: str) -> None:
    with watched(browser, PHONE) as visit:
        page = visit.page
        page.goto(training_page)
        expect(page.locator("#contents")).to_be_hidden()
        page.get_by_role("button", name="Open the contents").click()
        page.locator("#contents").get_by_text("Kernels").click()
        expect(page.locator("#contents")).to_be_hidden()
        expect(page.locator("#kernels h2")).to_be_in_viewport()


def test_on_paper_findings_are_open_and_the_contents_are_gone(
    browser: Browser, measured_page: str
) -> None:
    with watched(browser, scheme="dark") as visit:
        page = visit.page
        page.goto(measured_page)
        assert page.locator("#findings .finding:not([open])").count() > 0
        page.emulate_media(media="print")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.locator("#findings .finding:not([open])").count() == 0
        expect(page.locator(".contents")).to_be_hidden()
        expect(page.locator(".search")).to_be_hidden()
        ink = page.evaluate("getComputedStyle(document.body).color")
        assert ink == "rgb(28, 33, 40)"  # dark letters, whatever the screen has


# Tables -------------------------------------------------------------------------------------------


def means(page: Page) -> list[float]:
    cells = page.locator("table.kernels tbody tr td:nth-child(6)").all()
    return [float(cell.get_attribute("data-v") or 0) for cell in cells]


def test_tables_are_sorted_by_any_column(visit: PageVisit) -> None:
    page = visit.page
    head = page.locator("table.kernels th", has_text="Mean")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert means(page) == [200_000.0, 100_000.0]
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert means(page) == [100_000.0, 200_000.0]
    page.locator("table.kernels th button", has_text="Category").click()
    assert page.locator("table.kernels th[aria-sort]").count() == 1


def test_kernels_are_searched_and_chosen_by_what_they_do(visit: PageVisit) -> None:
    page = visit.page
    field = page.get_by_role("searchbox", name="Search kernels")
    field.fill("ELEMENTWISE add")
    assert kernels(page).count() == 1
    expect(page.locator(".search output")).to_have_text("1 of 2 shown, 33.3% of kernel time")
    field.press("Escape")
    assert kernels(page).count() == 2
    chip = page.locator(".chips button", has_text="elementwise")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "true"
    assert kernels(page).count() == 1
    chip.press("Space")
    assert kernels(page).count() == 2


def test_a_finding_is_opened_by_its_link_and_its_code_is_copied(
    browser: Browser, measured_page: str
) -> None:
    with watched(browser) as visit:
        page = visit.page
        page.goto(measured_page)
        first = page.locator("#finding-1")
        first.evaluate("e => { e.open = false; }")
        page.locator(".gains a").first.click()
        expect(first.locator("pre").first).to_be_visible()
        button = first.locator(".code button").first
        button.click()
        expect(button).to_have_text("Copied")


# The flame chart ----------------------------------------------------------------------------------


def test_the_flame_chart_zooms_by_mouse(visit: PageVisit) -> None:
    page = visit.page
    boxes = page.locator(".flame [data-node]")
    assert boxes.count() == 4
    pointed = page.locator(".flame .pointed")
    boxes.nth(1).hover()
    expect(pointed).to_have_text("data host 1.600 ms · GPU 0 ns · 4 calls · 40.8% of total")
    boxes.nth(1).click()
    assert boxes.count() == 2  # the range, and what it lies in
    page.locator(".flame").get_by_role("button", name="Back").click()
    page.locator(".flame").get_by_role("button", name="Back").click()
    assert boxes.count() == 4
    page.locator(".flame").get_by_role("button", name="GPU work").click()
    assert boxes.count() == 3  # no GPU work was launched in `data`
    width = boxes.nth(1).locator("rect").evaluate("e => e.width.baseVal.value")
    whole = boxes.nth(0).locator("rect").evaluate("e => e.width.baseVal.value")
    assert width / whole == pytest.approx(200 / 350, rel=0.01)


def test_the_flame_chart_is_walked_by_keyboard(visit: PageVisit) -> None:
    page = visit.page
    chart = page.get_by_role("application")
    pointed = page.locator(".flame .pointed b")
    chart.focus()
    for key, name in (
        ("ArrowDown", "step_#"),
        ("ArrowDown", "data"),
        ("ArrowRight", EVIL[:9]),
        ("ArrowRight", "backward"),
        ("ArrowLeft", EVIL[:9]),
        ("ArrowLeft", "data"),
        ("ArrowUp", "step_#"),
    ):
        page.keyboard.press(key)
        expect(pointed).to_contain_text(name)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator(".flame [data-node]").count() == 2
    page.keyboard.press("Escape")
    assert page.locator(".flame [data-node]").count() == 4
    expect(pointed).to_have_text("step_#")


def test_pictures_answer_to_the_pointer_and_the_keys(visit: PageVisit) -> None:
    picture = visit.page.locator("#memory .picture")
    drawing = picture.locator("svg.wide")
    drawing.hover(position={"x": 500, "y": 200})
    expect(picture.locator(".tip")).to_be_visible()
    expect(picture.locator(".tip")).to_contain_text("B")
    visit.page.mouse.move(0, 0)
    expect(picture.locator(".tip")).to_be_hidden()
    drawing.focus()
    visit.page.keyboard.press("ArrowRight")
    expect(picture.locator(".tip")).to_be_visible()
