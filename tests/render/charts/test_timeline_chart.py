"""An excerpt as a picture: rows as in the browser, small files, and names that stay text."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.analysis.selection import Selection
from gpusight.render.cell_text import safe_text
from gpusight.render.charts.draw_chart import draw
from gpusight.render.charts.figure import (
    ChartAxis,
    ChartStrip,
    StripCells,
    StripChart,
    StripHeading,
    StripPlot,
)
from gpusight.render.charts.strip_chart import BoxesMark, BoxMark, TextMark, lay_out_strip_chart
from gpusight.render.charts.timeline_chart import timeline_figure
from gpusight.results import Composite, Fmt
from gpusight.viewer.timeline_snapshot import timeline
from tests.render.charts.strip_charts import SVG, rows_of, svg_of, texts_of
from tests.render.hostile import HOSTILE
from tests.shared import DATA, opened
from tests.traces import Row, build_trace

US = 1_000


def us(start: int, end: int, name: str, **more: Any) -> Row:
    return {"start_ns": start * US, "end_ns": end * US, "name": name, **more}


def figure(trace: Any, selection: Selection | None = None, **options: Any) -> StripChart:
    result = timeline(trace, selection or Selection(), **options)
    assert isinstance(result, Composite), result
    return timeline_figure(result)


def small() -> Any:
    return build_trace(
        {"path": "/home/me/run.sqlite"},
        kernels=[us(20, 60, "sgemm", correlation=1), us(70, 90, "softmax", correlation=2)],
        ranges=[us(0, 100, "forward"), us(10, 50, "layer")],
        api_calls=[
            us(5, 10, "cudaLaunchKernel", correlation=1),
            us(62, 66, "cudaLaunchKernel", correlation=2),
        ],
        processes=[{"pid": 7, "name": "train"}],
        threads=[{"thread": 11, "tid": 8, "name": "main"}],
    )


def test_rows_stand_below_what_they_belong_to() -> None:
    chart = figure(small())
    shown = [
        row.text if isinstance(row, StripHeading) else row.name
        for row in chart.rows
        if isinstance(row, (StripHeading, ChartStrip))
    ]
    assert shown == [
        *("GPU 0", "Ledger", "Stream 7"),
        *("main (8)", "NVTX ranges", "", "CUDA calls"),
    ]
    assert rows_of(chart, StripHeading)[1].detail == "train (pid 7)"


def test_slices_are_where_the_events_are() -> None:
    strips = {strip.name: strip.cells for strip in rows_of(figure(small()), ChartStrip)}
    stream = strips["Stream 7"]
    assert list(stream.x) == [20_000, 70_000]
    assert list(stream.ends) == [60_000, 90_000]
    assert stream.colors == ("compute/matmul", "compute/softmax")
    assert [title.partition(": ")[2] for title in stream.titles] == ["40.00 µs", "20.00 µs"]
    assert strips["NVTX ranges"].labels == ("forward",)


def test_time_begins_at_the_excerpts_start() -> None:
    chart = figure(small(), window=(30_000, 80_000))
    assert (chart.x.low, chart.x.high) == (0, 50_000)
    assert chart.x.label == "time since 30.00 µs"
    stream = next(s.cells for s in rows_of(chart, ChartStrip) if s.name == "Stream 7")
    assert (list(stream.x), list(stream.ends)) == ([0, 40_000], [30_000, 50_000])


def test_the_legend_has_the_categories_that_are_shown() -> None:
    assert figure(small()).legend == (
        ("compute/matmul", "matmul"),
        ("compute/softmax", "softmax"),
        *(("idle/launching", "idle: launching"), ("idle/framework", "idle: framework")),
        ("api/launch", "api: launch"),
    )


def test_the_step_that_is_shown_stands_out() -> None:
    chart = figure(opened(DATA / "dataload.sqlite"))
    before, step, after = chart.bands
    assert (before.label, step.label, after.label) == ("", "step 7", "")
    assert (before.start, before.end, after.start) == (0, step.start, step.end)
    assert chart.title == "Timeline: step_7, the median of 10 steps"


def test_a_column_of_short_events_is_as_tall_as_the_part_that_they_take() -> None:
    trace = build_trace(kernels=[us(n * 4, n * 4 + 1, "sgemm") for n in range(10_000)])
    chart = figure(trace, tracks=["stream"])
    (strip,) = rows_of(chart, ChartStrip)
    assert set(strip.cells.parts) == {4 / 15}  # a quarter, as tall to a pixel
    assert sum(e - s for s, e in zip(strip.cells.x, strip.cells.ends, strict=True)) <= 40_000_000
    assert any("aggregated" in note for note in chart.footnotes)


def test_a_step_of_very_many_kernels_is_a_small_picture() -> None:
    names = [f"kernel_{n}<float>" for n in range(50)]
    kernels = [us(n * 5, n * 5 + 1 + n % 4, names[n % 50], stream=n % 4) for n in range(30_000)]
    ranges = [us(n * 100, n * 100 + 90, f"layer {n}") for n in range(1_500)]
    calls = [us(n * 5, n * 5 + 3, "cudaLaunchKernel") for n in range(10_000)]
    trace = build_trace(kernels=kernels, ranges=ranges, api_calls=calls)
    chart = figure(trace, tracks=["stream", "ranges", "api"])
    assert len(draw(chart, "svg")) < 300_000


def test_many_lines_of_labeled_slices_are_a_small_picture_too() -> None:
    ops = [
        us(n * 30 + depth, n * 30 + 29 - depth, f"at::native::some_rather_long_name_{n}_{depth}")
        for n in range(300)
        for depth in range(8)
    ]
    assert len(draw(figure(build_trace(cpu_ops=ops)), "svg")) < 300_000


def test_values_over_time_are_areas() -> None:
    metrics = [
        {"time_ns": n * US, "metric": "SMs Active [Throughput %]", "value": 25.0} for n in range(99)
    ]
    chart = figure(
        build_trace(kernels=[us(0, 100, "sgemm")], gpu_metrics=metrics), tracks=["metric"]
    )
    (plot,) = rows_of(chart, StripPlot)
    assert (plot.y.fmt, plot.y.high) == (Fmt.SHARE, 1.0)
    assert set(plot.series[0].parts[0].y) == {0.25}  # type: ignore[union-attr]


# Names --------------------------------------------------------------------------------------------


def hostile() -> StripChart:
    ranges = [us(n * 100, n * 100 + 99, name) for n, name in enumerate(HOSTILE[:-1])]
    trace = build_trace(
        {"path": f"/tmp/{HOSTILE[1]}"},
        ranges=ranges,
        kernels=[us(n * 100, n * 100 + 99, name) for n, name in enumerate(HOSTILE[:-1])],
        processes=[{"pid": 7, "name": HOSTILE[1]}],
        threads=[{"thread": 11, "tid": 8, "name": HOSTILE[0]}],
        devices=[{"name": HOSTILE[1]}],
    )
    return figure(trace)


def test_hostile_names_can_be_converted_too() -> None:
    pytest.importorskip("vl_convert")
    assert draw(hostile(), "png").startswith(b"\x89PNG")


def test_names_stay_text() -> None:
    drawn = draw(hostile(), "svg").decode()
    assert {element.tag for element in svg_of(hostile()).iter()} <= {
        SVG + tag for tag in ("svg", "style", "rect", "text", "path", "line", "title")
    }
    assert "<b>" not in drawn
    assert not {"\x1b", "\x9b", "\u202e"} & set(drawn)
    assert any(safe_text(HOSTILE[1]) in text for text in texts_of(hostile()))


# Cells --------------------------------------------------------------------------------------------


def chart_of(cells: StripCells) -> StripChart:
    return StripChart("t", ChartAxis("", Fmt.TIME, low=0.0, high=1000.0), (ChartStrip("s", cells),))


def test_labels_are_cut_to_what_fits_or_left_out() -> None:
    cells = StripCells(
        (0.0, 200.0, 290.0),
        (200.0, 290.0, 300.0),
        ("host/0", "host/1", "host/2"),
        labels=("short", "a label that is far too long", "no room"),
    )
    shown = [
        i.text
        for i in lay_out_strip_chart(chart_of(cells), 1040).marks
        if isinstance(i, TextMark) and i.on
    ]
    assert shown[0] == "short"
    assert shown[1].startswith("a label")
    assert shown[1].endswith("…")
    assert len(shown) == 2


def test_what_stands_for_a_label_is_written_instead_of_a_part_of_it() -> None:
    cells = StripCells(
        (0.0,), (60.0,), ("host/0",), labels=("matmul 12.5%",), brief=("12.5%",), titles=("t",)
    )
    shown = [
        i.text
        for i in lay_out_strip_chart(chart_of(cells), 1040).marks
        if isinstance(i, TextMark) and i.on
    ]
    assert shown == ["12.5%"]


def test_cells_that_say_nothing_are_drawn_together() -> None:
    n = 500
    cells = StripCells(
        tuple(float(i) for i in range(n)),
        tuple(i + 0.5 for i in range(n)),
        ("host/0",) * n,
        titles=("told",) * n,
    )
    marks = lay_out_strip_chart(chart_of(cells), 1040).marks
    assert [len(i.boxes) for i in marks if isinstance(i, BoxesMark)] == [n]
    assert not [i for i in marks if isinstance(i, BoxMark)]


def test_what_is_said_of_cells_must_be_of_all() -> None:
    with pytest.raises(ValueError, match="differ in number"):
        StripCells((0.0, 1.0), (1.0,), ("host/0",))
