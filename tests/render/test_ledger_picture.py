"""The ledger as a picture: its bars and numbers are those of the document."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.analysis.ledger.ledger_report import LedgerReport, ledger_report
from gpusight.readers.open import open_trace
from gpusight.render.charts.draw_chart import CHART_FORMATS, draw
from gpusight.render.charts.figure import ChartStrip, StripChart, StripHeading, StripLegend
from gpusight.render.charts.ledger_charts import ledger_figure
from gpusight.render.charts.strip_chart import lay_out_strip_chart
from gpusight.units import format_share, format_time
from tests.render.boards import rows_of, svg_of, texts_of
from tests.shared import DATA
from tests.traces import Row, build_trace

US = 1_000


def report(trace: Any, **options: Any) -> LedgerReport:
    found = ledger_report(trace, **options)
    assert isinstance(found, LedgerReport)
    return found


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


def keys(board: StripChart) -> dict[str, tuple[str, ...]]:
    return {key.colour: key.values for row in rows_of(board, StripLegend) for key in row.keys}


@pytest.mark.parametrize("name", ["dataload.sqlite", "healthy.json.gz", "graph.sqlite"])
def test_numbers_are_those_of_the_document(name: str) -> None:
    found = report(open_trace(DATA / name, cache=False))
    document = found.document()
    shown = keys(ledger_figure(found))
    for entry in document["devices"][0]["entries"]:
        a_step = entry["ns"] / document["meta"]["steps"]
        assert shown[entry["entry"]] == (format_time(a_step), format_share(entry["share"]))
    assert set(shown) - {""} == {entry["entry"] for entry in document["devices"][0]["entries"]}


def test_the_bar_is_the_mean_step_and_holds_every_entry() -> None:
    found = report(open_trace(DATA / "dataload.sqlite", cache=False))
    whole, *steps = rows_of(ledger_figure(found), ChartStrip)
    window = found.ledger.end_ns - found.ledger.start_ns
    assert whole.cells.x[0] == 0
    assert whole.cells.ends[-1] == pytest.approx(window / 10)
    assert whole.cells.x[1:] == whole.cells.ends[:-1]
    assert "idle/input" in whole.cells.colours
    assert [strip.name for strip in steps] == [f"step {n}" for n in range(10)]
    for strip, step in zip(steps, found.document()["steps"], strict=True):
        ns = {e["entry"]: e["ns"] for e in step["devices"][0]["entries"]}
        lengths = {
            colour: end - start
            for colour, start, end in zip(
                strip.cells.colours, strip.cells.x, strip.cells.ends, strict=True
            )
        }
        assert lengths == pytest.approx(ns)


def test_without_steps_it_is_the_window() -> None:
    trace = build_trace(kernels=[{"start_ns": 0, "end_ns": 60, "name": "sgemm"}])
    board = ledger_figure(report(trace))
    assert board.title == "Where the time went"
    assert keys(board) == {"": ("60 ns", "100.0%"), "compute/matmul": ("60 ns", "100.0%")}
    assert len(rows_of(board, ChartStrip)) == 1


def test_groups_head_their_entries_and_stand_in_the_order_of_the_bar() -> None:
    (table,) = rows_of(ledger_figure(steps_of(100, 100, 100)), StripLegend)
    assert [(key.name, key.heads) for key in table.keys] == [
        ("computing", True),
        ("matmul", False),
        ("idle", True),
        ("unknown", False),
    ]
    assert table.headings == ("a step", "share")


def test_many_steps_are_averaged_and_none_is_lost() -> None:
    found = steps_of(*([100, 200] * 125))
    board = ledger_figure(found)
    _, *steps = rows_of(board, ChartStrip)
    assert len(steps) == 100
    assert sum(strip.cells.ends[-1] for strip in steps) / 100 == pytest.approx(150 * US, rel=0.02)
    assert any("250 in all" in note for note in board.footnotes)
    assert [strip.name for strip in steps if strip.name] == ["250 steps"]


def test_a_long_step_does_not_press_the_others_together() -> None:
    board = ledger_figure(steps_of(*[100] * 20, 9_000))
    assert board.x.high is not None
    assert board.x.high < 2_000 * US
    assert any("beyond the picture, the longest to 9.000 ms" in note for note in board.footnotes)


@pytest.mark.parametrize(("gpus", "legends"), [(1, 1), (4, 4), (8, 1)])
def test_few_gpus_have_a_legend_each(gpus: int, legends: int) -> None:
    board = ledger_figure(steps_of(100, 100, gpus=gpus))
    assert [row.text for row in rows_of(board, StripHeading)] == [f"GPU {n}" for n in range(gpus)]
    assert len(rows_of(board, StripLegend)) == legends
    assert any("mean of the 8 GPUs" in note for note in board.footnotes) == (gpus == 8)


@pytest.mark.parametrize("form", CHART_FORMATS)
def test_it_is_drawn_in_every_format(form: str) -> None:
    if form in {"png", "pdf"}:
        pytest.importorskip("vl_convert")
    board = ledger_figure(steps_of(100, 120, 110))
    start = {"svg": b"<svg", "html": b"<!DOCTYPE html>", "png": b"\x89PNG", "pdf": b"%PDF"}[form]
    assert draw(board, form).startswith(start)


def test_texts_stay_in_the_picture_at_any_width() -> None:
    board = ledger_figure(report(open_trace(DATA / "dataload.sqlite", cache=False)))
    for width in (390, 560, 1040):
        painting = lay_out_strip_chart(board, width)
        assert painting.size.width == width
        assert 0 < painting.left < painting.right < width
    assert svg_of(board).get("width") == "560"
    shown = texts_of(board)
    assert "input 80.9%" in shown
    assert {"computing", "idle", "a step", "share", "mean"} <= set(shown)
