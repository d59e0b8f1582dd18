"""Pictures: axes, drawing in every format, and names that must not get out of their place."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import pytest

from gpusight.analysis.memory.memory_usage import memory
from gpusight.errors import GpusightError, UsageError
from gpusight.render.cell_text import safe_text
from gpusight.render.charts.chart_frame import NARROW, WIDE, axis_scale, lay_out_figure, unit_of
from gpusight.render.charts.draw_chart import draw
from gpusight.render.charts.figure import (
    ChartAxis,
    DotSeries,
    Figure,
    LevelLine,
    LineSeries,
    PointLabel,
    SeriesTone,
    ShadedBand,
    StackPart,
    StackSeries,
    StripChart,
)
from gpusight.render.charts.usage_charts import memory_figure
from gpusight.render.result_view import CHART_FORMATS
from gpusight.results import Composite, Fmt
from tests.render.hostile import HOSTILE
from tests.shared import DATA, opened
from tests.traces import Rows, build_trace

SVG = "{http://www.w3.org/2000/svg}"
X, Y = ChartAxis("time", Fmt.TIME), ChartAxis("", Fmt.BYTES)
NOT_TEXT = ("png", "pdf")


def figure(**changes: Any) -> Figure:
    """Make a figure with one of everything."""
    parts: dict[str, Any] = {
        "title": "Memory of GPU 0",
        "subtitle": "run.json.gz",
        "x": X,
        "y": Y,
        "series": (
            StackSeries(
                "in use",
                (0, 1e6, 2e6),
                (StackPart("a", (1e9, 2e9, 0)), StackPart("b", (0, 5e8, 1e9))),
            ),
            LineSeries(
                "reserved", (0, 2e6), (3e9, 3e9), SeriesTone.STRONG, steps=True, dashed=True
            ),
            DotSeries("kernels", (5e5, 1.5e6), (1e9, 2e9), ("first", "second")),
        ),
        "bands": (ShadedBand(0, 1e6, "step 1"), ShadedBand(1e6, 2e6, "step 2")),
        "rules": (LevelLine(3.5e9, "memory of the GPU"),),
        "marks": (
            PointLabel(1e6, 2.5e9, "peak 2.5 GB", (("aten::mm", "2 GB"), ("other", "0.5 GB"))),
        ),
    }
    return Figure(**{**parts, **changes})


def hostile_figure() -> Figure:
    names = HOSTILE[:-1]
    parts = tuple(StackPart(name, (float(n), 1.0)) for n, name in enumerate(names))
    return figure(
        title=names[0] + names[1],
        subtitle=names[1],
        x=ChartAxis(names[1], Fmt.TIME),
        series=(
            StackSeries("in use", (0.0, 1.0), parts),
            LineSeries("_hidden $x$ " + names[1], (0.0, 1.0), (1.0, 2.0)),
            DotSeries(names[1], (0.5,), (1.0,), (names[1],)),
        ),
        bands=(ShadedBand(0, 1, names[1]),),
        rules=(LevelLine(1.0, names[1]),),
        marks=(PointLabel(0.5, 1.0, names[1], tuple((name, name) for name in names)),),
    )


# Axes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "low", "high", "labels"),
    [
        (Y, 0, 3.6e9, ["0 GB", "1 GB", "2 GB", "3 GB"]),
        (Y, 0, 1.4e6, ["0.00 MB", "0.25 MB", "0.50 MB", "0.75 MB", "1.00 MB"]),
        (X, 0, 83.6e6, ["0 ms", "20 ms", "40 ms", "60 ms", "80 ms"]),
        (X, 90e9, 91e9, ["90.0 s", "90.2 s", "90.4 s", "90.6 s", "90.8 s", "91.0 s"]),
        (ChartAxis("", Fmt.SHARE), 0, 1, ["0%", "20%", "40%", "60%", "80%", "100%"]),
        (ChartAxis("", Fmt.COUNT), 0, 4000, ["0", "1,000", "2,000", "3,000", "4,000"]),
        (
            ChartAxis("", Fmt.RATE, log=True),
            1e8,
            2e12,
            ["100 MB/s", "1 GB/s", "10 GB/s", "100 GB/s"],
        ),
        (ChartAxis("", Fmt.REAL, log=True), 0.01, 10, ["0.01", "0.1", "1", "10"]),
    ],
)
def test_ticks_are_round_and_in_one_unit(
    axis: ChartAxis, low: float, high: float, labels: list[str]
) -> None:
    result = [tick.label for tick in axis_scale(axis, low, high).ticks(5)]
    assert result[: len(labels)] == labels
    assert len(result) <= 7


@pytest.mark.parametrize(
    ("largest", "unit"), [(0, "B"), (999, "B"), (1000, "kB"), (4e9, "GB"), (1e30, "PB")]
)
def test_an_axis_has_the_unit_of_its_largest_value(largest: float, unit: str) -> None:
    assert unit_of(Fmt.BYTES, largest)[1] == unit


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("low", "high"), [(0, 0), (5, 5), (3, 1), (0, 1e-9), (0, 1e300)])
def test_an_axis_always_has_a_length(low: float, high: float, log: bool) -> None:
    fitted = axis_scale(ChartAxis("", Fmt.COUNT, log=log), low, high)
    assert fitted.high > fitted.low
    assert 0 <= fitted.place(fitted.low) < fitted.place(fitted.high) <= 1 + 1e-9
    assert len(fitted.ticks(5)) <= 101


def test_values_from_zero_down_have_no_place_on_decades() -> None:
    dots = (DotSeries("d", (0.0, 1.0, 100.0), (-1.0, 0.0, 10.0)),)
    axes = {"x": ChartAxis("", Fmt.REAL, log=True), "y": ChartAxis("", Fmt.REAL, log=True)}
    frame = lay_out_figure(figure(series=dots, bands=(), rules=(), marks=(), **axes), WIDE)
    assert (frame.across.low, frame.across.high) == (1.0, 100.0)
    assert frame.up.low == 10.0


def test_x_and_y_must_agree() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        figure(series=(LineSeries("l", (1.0, 2.0), (1.0,)),))


# Layout -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_the_legend_lies_above_the_plot_and_inside_the_picture(size: Any) -> None:
    frame = lay_out_figure(figure(), size)
    assert [key.text for key in frame.keys] == ["b", "a", "reserved", "kernels"]
    assert all(key.y < frame.top for key in frame.keys)
    assert all(0 <= key.x < size.width for key in frame.keys)
    assert 0 < frame.left < frame.right <= size.width
    assert frame.top + 100 < frame.bottom < size.height


def test_only_as_many_bands_are_named_as_have_room() -> None:
    bands = tuple(ShadedBand(i * 2e4, (i + 1) * 2e4, f"step {i}") for i in range(100))
    frame = lay_out_figure(figure(bands=bands), WIDE)
    named = list(frame.band_names)
    assert 3 < len(named) < 30
    places = [x for _, x in named]
    assert places == sorted(places)


# Formats ------------------------------------------------------------------------------------------


def without_order(data: bytes) -> list[bytes]:
    """Give page and fonts of a PDF, whose objects vl-convert numbers in any order."""
    streams = sorted(re.findall(rb"stream\n.*?endstream", data, re.DOTALL))
    assert bool(streams) == data.startswith(b"%PDF")
    return streams or [data]


@pytest.mark.parametrize("form", CHART_FORMATS)
@pytest.mark.parametrize("make", [figure, hostile_figure])
def test_every_format_is_drawn_the_same_every_time(form: str, make: Any) -> None:
    if form in NOT_TEXT:
        pytest.importorskip("vl_convert")
    first = draw(make(), form)
    start = {"svg": b"<svg", "html": b"<!DOCTYPE html>", "png": b"\x89PNG", "pdf": b"%PDF"}[form]
    assert first.startswith(start)
    assert without_order(first) == without_order(draw(make(), form))


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UsageError, match="no picture format 'gif'"):
        draw(figure(), "gif")


@pytest.mark.parametrize("form", NOT_TEXT)
def test_without_the_converter_the_remedy_is_named(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(GpusightError, match=r"pip install 'gpusight\[pictures\]'") as caught:
        draw(figure(), form)
    assert "\n" not in str(caught.value)
    assert draw(figure(), "svg")
    assert draw(figure(), "html")


def test_the_converter_is_loaded_only_to_convert() -> None:
    code = (
        "import sys, gpusight.render.charts.chart_page, gpusight.render.charts.draw_chart, "
        "gpusight.render.charts.usage_charts, gpusight.cli.commands.memory; "
        "sys.exit('vl_convert' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def png_size(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_a_png_is_twice_as_fine_as_the_svg_and_at_least_as_wide_as_a_wide_one() -> None:
    pytest.importorskip("vl_convert")
    assert png_size(draw(figure(), "png")) == (2 * WIDE.width, 2 * WIDE.height)
    narrow = StripChart("t", ChartAxis("", Fmt.TIME, low=0.0, high=1.0), (), width=520.0)
    assert png_size(draw(narrow, "png"))[0] == 2 * WIDE.width


@pytest.mark.parametrize("form", NOT_TEXT)
def test_letters_need_no_font_of_the_machine(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vl_convert = pytest.importorskip("vl_convert")
    given: list[str] = []
    convert = getattr(vl_convert, f"svg_to_{form}")

    def converted(svg: str, **settings: Any) -> bytes:
        given.append(svg)
        return bytes(convert(svg, **settings))

    monkeypatch.setattr(vl_convert, f"svg_to_{form}", converted)
    assert draw(figure(title="one"), form) != draw(figure(title="two"), form)
    assert "font-family:'Liberation Sans', sans-serif" in given[0]  # comes with vl-convert
    assert "prefers-color-scheme" not in given[0]  # paper is light


def test_a_pdf_holds_its_fonts() -> None:
    pytest.importorskip("vl_convert")
    assert b"LiberationSans" in draw(figure(), "pdf")


def test_svg_shows_what_the_figure_says() -> None:
    root = ET.fromstring(draw(figure(), "svg"))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    for expected in ("Memory of GPU 0", "run.json.gz", "a", "reserved", "step 1", "peak 2.5 GB"):
        assert expected in texts
    assert "0 GB" in texts
    assert {"1.0 ms", "1 ms"} & set(texts)
    assert len([e for e in root.iter(f"{SVG}path") if "fill-" in e.get("class", "")]) == 2
    assert [e.text for e in root.iter(f"{SVG}title")] == ["first", "second"]


def test_steps_hold_their_value_until_the_next() -> None:
    stepped = figure(
        series=(LineSeries("l", (0.0, 1e6), (0.0, 1e9), steps=True),), marks=(), rules=()
    )
    straight = figure(series=(LineSeries("l", (0.0, 1e6), (0.0, 1e9)),), marks=(), rules=())

    def path(drawn: Figure) -> str:
        lines = re.findall(r'class="line-0" d="(M[^"]*)"', draw(drawn, "svg").decode())
        return str(lines[-1])

    assert re.fullmatch(r"M[\d.]+ [\d.]+H[\d.]+V[\d.]+", path(stepped))
    assert re.fullmatch(r"M[\d.]+ [\d.]+L[\d.]+ [\d.]+", path(straight))


# Hostile names ------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would make of a page: its elements, scripts and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        inside = self.tags[-1][0] if self.tags else ""
        (self.scripts if inside == "script" and data.strip() else self.texts).append(data)


def test_names_stay_text_in_svg() -> None:
    drawn = draw(hostile_figure(), "svg").decode()
    root = ET.fromstring(drawn)
    assert safe_text(HOSTILE[1]) in [element.text for element in root.iter(f"{SVG}text")]
    assert {element.tag for element in root.iter()} <= {
        SVG + tag for tag in ("svg", "style", "rect", "text", "path", "line", "circle", "title")
    }
    assert not {"\x1b", "\x9b", "\u202e"} & set(drawn)


def test_names_stay_text_in_a_page() -> None:
    page = Page(draw(hostile_figure(), "html").decode())
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 2
    assert "b" not in tags
    data, script = page.scripts
    shown = json.loads(data)
    assert [row["name"] for row in shown["series"]][:2] == ["in use", "_hidden $x$ " + HOSTILE[1]]
    assert shown["marks"][0]["rows"][1] == [HOSTILE[1], HOSTILE[1]]
    assert "</script" not in data
    assert "<!--" not in data
    assert "innerHTML" not in script


def test_only_the_pages_own_script_may_run() -> None:
    page = Page(draw(figure(), "html").decode())
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def test_a_page_needs_nothing_else() -> None:
    text = draw(figure(), "html").decode()
    assert "://" not in text
    assert "@import" not in text
    assert not [a for _, a in Page(text).tags if "src" in a or "href" in a]
    assert "prefers-color-scheme: dark" in text


def test_pointing_shows_values_as_tables_do() -> None:
    data = json.loads(Page(draw(figure(), "html").decode()).scripts[0])
    rows = {row["name"]: row for row in data["series"]}
    assert list(rows) == ["in use", "reserved", "b", "a"]
    assert rows["in use"]["values"] == ["1.000 GB", "2.500 GB", "1.000 GB"]
    assert rows["b"]["zero"] == rows["b"]["values"][0] == "0 B"
    assert data["xs"][rows["in use"]["x"]] == [0, 1e6, 2e6]
    assert data["labels"] == ["0 ns", "1.000 ms", "2.000 ms"]
    assert data["marks"][0]["rows"] == [["aten::mm", "2 GB"], ["other", "0.5 GB"]]


# Memory -------------------------------------------------------------------------------------------


def events(*rows: tuple[int, int, int, int]) -> Rows:
    """Make events of (time, address, bytes, total); what is negative is given back."""
    return [
        {
            "time_ns": time,
            "address": address,
            "bytes": abs(size),
            "operation": "allocation" if size > 0 else "deallocation",
            "allocator": "framework",
            "allocated_bytes": total,
            "reserved_bytes": 2000,
        }
        for time, address, size, total in rows
    ]


def memory_of(rows: Rows, **tables: Rows) -> Composite:
    result = memory(build_trace({"path": "/home/me/run.json.gz"}, memory_events=rows, **tables))
    assert isinstance(result, Composite)
    return result


STEPS: Rows = [{"start_ns": i * 10, "end_ns": i * 10 + 9, "name": f"step_{i}"} for i in range(3)]


def test_memory_is_a_stack_of_holders_under_what_is_reserved() -> None:
    rows = events((1, 1, 900, 1000), (12, 2, 500, 1500), (15, 2, -500, 1000))
    drawn = memory_figure(memory_of(rows, ranges=STEPS))
    stack, line = drawn.series
    assert isinstance(stack, StackSeries)
    assert isinstance(line, LineSeries)
    assert stack.steps
    assert (stack.parts[0].name, stack.parts[0].tone) == (
        "allocated before the capture",
        SeriesTone.PALE,
    )
    assert [sum(values) for values in zip(*(p.y for p in stack.parts), strict=True)] == [
        100, 1000, 1500, 1000, 1000,
    ]  # fmt: skip
    assert set(line.y) == {2000}
    assert [(b.start, b.end, b.label) for b in drawn.bands][1] == (10, 19, "step 1")
    assert (drawn.marks[0].x, drawn.marks[0].y) == (12, 1500)
    assert drawn.marks[0].label == "peak 1.500 kB at 12 ns"
    assert sum(float(size.split()[0]) for _, size in drawn.marks[0].detail if "kB" in size) > 1
    assert drawn.subtitle.startswith("run.json.gz · growth")


def test_what_is_reserved_far_beyond_the_peak_is_only_said() -> None:
    drawn = memory_figure(memory_of(events((1, 1, 50, 60))))
    assert [type(series) for series in drawn.series] == [StackSeries]
    assert "reserved 2.000 kB, above the axis" in drawn.subtitle


def test_a_peak_near_the_gpus_memory_shows_that_limit() -> None:
    tables: dict[str, Rows] = {"devices": [{"device": 0, "memory_bytes": 2500}]}
    near = memory_figure(memory_of(events((1, 1, 2000, 2000)), **tables))
    assert near.rules == (LevelLine(2500.0, "GPU memory: 2.500 kB"),)
    far = memory_figure(memory_of(events((1, 1, 100, 100)), **tables))
    assert far.rules == ()


@pytest.mark.parametrize("form", ["svg", "html"])
@pytest.mark.parametrize(
    "name", ["gpt_small_forward.json.gz", "memory_snapshot.pickle", "dataload.sqlite"]
)
def test_captures_are_drawn(name: str, form: str) -> None:
    result = memory(opened(DATA / name))
    assert isinstance(result, Composite)
    drawn = draw(memory_figure(result), form, result=result).decode()
    assert result.title in drawn
    assert "peak " in drawn
    assert len(drawn) < 1_500_000
