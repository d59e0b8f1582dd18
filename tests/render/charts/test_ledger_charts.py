"""Charts of the ledger, and the waterfall of a comparison."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpusight.analysis.ledger.ledger_report import LedgerReport, ledger_report
from gpusight.comparison.comparison_result import Comparison, EntryChange
from gpusight.errors import UsageError
from gpusight.render.charts.chart_colors import slots
from gpusight.render.charts.chart_frame import (
    NARROW,
    WIDE,
    ChartSize,
    lay_out_figure,
    size_of,
    text_width,
)
from gpusight.render.charts.chart_labels import placed_bars
from gpusight.render.charts.draw_chart import draw
from gpusight.render.charts.figure import (
    BarSeries,
    ChartAxis,
    ChartStrip,
    Figure,
    StripChart,
    StripHeading,
    StripLegend,
)
from gpusight.render.charts.ledger_charts import ledger_figure, waterfall
from gpusight.render.charts.strip_chart import lay_out_strip_chart
from gpusight.render.result_view import CHART_FORMATS, ComparisonView
from gpusight.results import Fmt
from gpusight.units import format_share, format_time
from tests.render.charts.strip_charts import rows_of, svg_of, texts_of
from tests.render.test_comparison_text import LEDGER, change, comparison, hostile
from tests.shared import DATA, opened
from tests.traces import Row, build_trace

# The ledger as a picture: its bars and numbers are those of the document.


US = 1_000


def report(trace: Any, **options: Any) -> LedgerReport:
    result = ledger_report(trace, **options)
    assert isinstance(result, LedgerReport)
    return result


def steps_of(*lengths: int, gpus: int = 1) -> LedgerReport:
    """Account for steps of these lengths; a kernel runs in the second half of each."""
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    kernels: list[Row] = [
        {
            "start_ns": (start + length // 2) * US,
            "end_ns": (start + length) * US,
            "name": "sgemm",
            "device": gpu,
        }
        for start, length in zip(starts, lengths, strict=True)
        for gpu in range(gpus)
    ]
    ranges = [
        {"start_ns": start * US, "end_ns": (start + length) * US, "name": f"step_{n}"}
        for n, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]
    return report(build_trace(kernels=kernels, ranges=ranges), steps="all")


def keys(chart: StripChart) -> dict[str, tuple[str, ...]]:
    return {key.color: key.values for row in rows_of(chart, StripLegend) for key in row.keys}


@pytest.mark.parametrize("name", ["dataload.sqlite", "healthy.json.gz", "graph.sqlite"])
def test_numbers_are_those_of_the_document(name: str) -> None:
    result = report(opened(DATA / name))
    document = result.document()
    shown = keys(ledger_figure(result))
    for entry in document["devices"][0]["entries"]:
        a_step = entry["ns"] / document["meta"]["steps"]
        assert shown[entry["entry"]] == (format_time(a_step), format_share(entry["share"]))
    assert set(shown) - {""} == {entry["entry"] for entry in document["devices"][0]["entries"]}


def test_the_bar_is_the_mean_step_and_holds_every_entry() -> None:
    result = report(opened(DATA / "dataload.sqlite"))
    whole, *steps = rows_of(ledger_figure(result), ChartStrip)
    window = result.ledger.end_ns - result.ledger.start_ns
    assert whole.cells.x[0] == 0
    assert whole.cells.ends[-1] == pytest.approx(window / 10)
    assert whole.cells.x[1:] == whole.cells.ends[:-1]
    assert "idle/input" in whole.cells.colors
    assert [strip.name for strip in steps] == [f"step {n}" for n in range(10)]
    for strip, step in zip(steps, result.document()["steps"], strict=True):
        ns = {e["entry"]: e["ns"] for e in step["devices"][0]["entries"]}
        lengths = {
            color: end - start
            for color, start, end in zip(
                strip.cells.colors, strip.cells.x, strip.cells.ends, strict=True
            )
        }
        assert lengths == pytest.approx(ns)


def test_without_steps_it_is_the_window() -> None:
    trace = build_trace(kernels=[{"start_ns": 0, "end_ns": 60, "name": "sgemm"}])
    chart = ledger_figure(report(trace))
    assert chart.title == "Where the time goes"
    assert keys(chart) == {"": ("60 ns", "100.0%"), "compute/matmul": ("60 ns", "100.0%")}
    assert len(rows_of(chart, ChartStrip)) == 1


def test_groups_head_their_entries_and_stand_in_the_order_of_the_bar() -> None:
    (table,) = rows_of(ledger_figure(steps_of(100, 100, 100)), StripLegend)
    assert [(key.name, key.heads) for key in table.keys] == [
        ("computing", True),
        ("matmul", False),
        ("idle", True),
        ("unknown", False),
    ]
    assert table.headings == ("time/step", "share")


def test_many_steps_are_averaged_and_none_is_lost() -> None:
    result = steps_of(*([100, 200] * 125))
    chart = ledger_figure(result)
    _, *steps = rows_of(chart, ChartStrip)
    assert len(steps) == 100
    assert sum(strip.cells.ends[-1] for strip in steps) / 100 == pytest.approx(150 * US, rel=0.02)
    assert any("250 steps total" in note for note in chart.footnotes)
    assert [strip.name for strip in steps if strip.name] == ["250 steps"]


def test_a_long_step_does_not_press_the_others_together() -> None:
    chart = ledger_figure(steps_of(*[100] * 20, 9_000))
    assert chart.x.high is not None
    assert chart.x.high < 2_000 * US
    assert any("exceed the axis, the longest with 9.000 ms" in note for note in chart.footnotes)


@pytest.mark.parametrize(("gpus", "legends"), [(1, 1), (4, 4), (8, 1)])
def test_few_gpus_have_a_legend_each(gpus: int, legends: int) -> None:
    chart = ledger_figure(steps_of(100, 100, gpus=gpus))
    assert [row.text for row in rows_of(chart, StripHeading)] == [f"GPU {n}" for n in range(gpus)]
    assert len(rows_of(chart, StripLegend)) == legends
    assert any("mean of the 8 GPUs" in note for note in chart.footnotes) == (gpus == 8)


@pytest.mark.parametrize("form", CHART_FORMATS)
def test_it_is_drawn_in_every_format(form: str) -> None:
    if form in {"png", "pdf"}:
        pytest.importorskip("vl_convert")
    chart = ledger_figure(steps_of(100, 120, 110))
    start = {"svg": b"<svg", "html": b"<!DOCTYPE html>", "png": b"\x89PNG", "pdf": b"%PDF"}[form]
    assert draw(chart, form).startswith(start)


def test_texts_stay_in_the_picture_at_any_width() -> None:
    chart = ledger_figure(report(opened(DATA / "dataload.sqlite")))
    for width in (390, 560, 1040):
        laid_out = lay_out_strip_chart(chart, width)
        assert laid_out.size.width == width
        assert 0 < laid_out.left < laid_out.right < width
    assert svg_of(chart).get("width") == "560"
    shown = texts_of(chart)
    assert "input 80.9%" in shown
    assert {"computing", "idle", "time/step", "share", "mean"} <= set(shown)


# The waterfall of a comparison: it leads from one step to the other, whatever the entries.


def bars(figure: Figure) -> list[tuple[str, float, float, str]]:
    """Give row, start, end and label of each bar, from the top down."""
    result: list[tuple[float, float, float, str]] = []
    for series in figure.series:
        assert isinstance(series, BarSeries)
        for n, y in enumerate(series.y):
            result.append((y, series.x[n], series.ends[n], series.labels[n]))
    ordered = sorted(result, key=lambda bar: (-bar[0], bar[1]))
    return [(figure.y.names[round(y)], start, end, label) for y, start, end, label in ordered]


def test_bars_lead_from_before_to_after() -> None:
    drawn = bars(waterfall(comparison()))
    changes = [bar for bar in drawn if bar[0] not in {"before", "after", "95% interval"}]
    assert [name for name, *_ in changes] == [
        "compute/matmul",
        "compute/optimizer",
        "idle/framework",
        "idle/launching",
        "compute/elementwise",
        "other entries",
    ]
    assert changes[0][1] == pytest.approx(46.59e6)
    assert all(a[2] == pytest.approx(b[1]) for a, b in pairwise(changes))
    assert changes[-1][2] == pytest.approx(42.42e6)
    assert [label for *_, label in changes[:1]] == ["-28.2 ms"]
    assert changes[4][3] == "~+1.00 ms"


@pytest.mark.parametrize(("side", "total"), [("before", 46.59e6), ("after", 42.42e6)])
def test_either_step_is_made_of_its_kinds(side: str, total: float) -> None:
    parts = [bar for bar in bars(waterfall(comparison())) if bar[0] == side]
    assert parts[0][1] == 0
    assert all(a[2] == pytest.approx(b[1]) for a, b in pairwise(parts))
    assert parts[-1][2] == pytest.approx(total)
    assert [label for *_, label in parts if label] == [parts[-1][3]]


def test_kinds_keep_their_colors_when_others_are_missing() -> None:
    only = tuple(EntryChange(n, c, None) for n, c in LEDGER.items() if n.startswith("idle"))
    result = slots(waterfall(comparison(ledger=only)))
    assert result["idle"] == slots(waterfall(comparison()))["idle"] == "1"


def test_many_entries_are_joined_and_the_sum_holds() -> None:
    many = tuple(EntryChange(f"compute/k{n}", change(1.0, 2.0), None) for n in range(40))
    step = change(40.0, 80.0)
    metrics = (replace(comparison().metrics[0], change=step),)
    drawn = bars(waterfall(comparison(ledger=many, metrics=metrics)))
    other = next(bar for bar in drawn if bar[0] == "other entries")
    assert other[3] == "+30.0 ms"
    assert other[2] == pytest.approx(80e6)


def test_nothing_known_but_the_step_is_still_a_picture() -> None:
    bare = comparison(ledger=())
    rows = [row for row, *_ in bars(waterfall(bare))]
    assert rows == ["before", "after", "95% interval"]
    metric = replace(bare.metrics[0], change=replace(bare.step, before=0.0, low=None, high=None))
    assert draw(waterfall(replace(bare, metrics=(metric,))), "svg")


@pytest.mark.parametrize("made", [comparison(), hostile()])
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_labels_stay_in_the_picture(made: Comparison, size: ChartSize) -> None:
    figure = waterfall(made)
    frame = lay_out_figure(figure, size_of(figure, size))
    placed = list(placed_bars(frame))
    assert placed
    for bar in placed:
        wide = text_width(bar.text, 12)
        left = bar.text_at if bar.anchor == "start" else bar.text_at - wide
        assert left >= frame.left - 1 or not bar.text
        assert left + wide <= frame.size.width
        assert frame.top <= bar.top
        assert bar.top + bar.height <= frame.bottom


def test_svg_is_sound_whatever_the_names() -> None:
    root = ET.fromstring(draw(waterfall(hostile()), "svg"))
    assert not root.findall(".//{http://www.w3.org/2000/svg}b")
    titles = [bar.text for bar in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any("computing" in (title or "") for title in titles) or titles


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_other_forms_are_drawn_too(form: str, start: bytes) -> None:
    pytest.importorskip("vl_convert")
    assert draw(waterfall(hostile()), form).startswith(start)


def test_bars_may_stand_on_a_page_with_a_script() -> None:
    page = draw(waterfall(comparison()), "html").decode()
    assert "-28.2 ms" in page


def test_every_bar_needs_its_end() -> None:
    axes = ChartAxis("", Fmt.TIME), ChartAxis("", Fmt.TEXT)
    with pytest.raises(ValueError, match="differ in length"):
        Figure("t", *axes, (BarSeries("a", (0.0,), (), (0.0,)),))
    with pytest.raises(ValueError, match="differ in number"):
        Figure("t", *axes, (BarSeries("a", (0.0,), (1.0,), (0.0,), labels=("a", "b")),))


# In Python ----------------------------------------------------------------------------------------


def test_a_view_gives_parts_and_shows_itself() -> None:
    view = ComparisonView(comparison())
    assert view.step.delta == pytest.approx(-4.17e6)
    assert view.metrics["memory_peak"].missing == "no"
    assert view.ledger[0].entry == "compute/matmul"
    assert view.phases["optimizer"].after == 2e6
    assert (len(view.kernels), len(view.ranges), len(view.api_calls)) == (4, 1, 1)
    assert (len(view.copies), len(view.findings)) == (1, 2)
    assert view.explanation[0] in repr(view)
    assert "--top" not in repr(view)
    assert view.to_markdown().startswith("## Step time")
    assert view.to_csv().startswith("section,name")
    assert view._repr_html_().startswith("<img")
    assert json.loads(view.to_json())["verdict"]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("a.svg", b"<svg"),
        ("a.html", b"<!DOCTYPE html>"),
        ("a.HTM", b"<!DOCTYPE html>"),
        ("a.md", b"## Step time"),
        ("a.csv", b"section,name"),
        ("a.json", b"{"),
        ("a.txt", b"before  old.sqlite"),
    ],
)
def test_a_view_saves_itself(name: str, start: bytes, tmp_path: Path) -> None:
    path = ComparisonView(comparison()).save(tmp_path / name)
    assert path.read_bytes().startswith(start)


def test_a_view_never_writes_over_a_capture(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        ComparisonView(comparison()).save(tmp_path / "a.sqlite")
