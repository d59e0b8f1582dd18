"""GPU utilization as a picture: areas that are the bins, lines that are the samples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpusight.analysis.gpu_utilization import utilization
from gpusight.render.charts.draw_chart import draw
from gpusight.render.charts.figure import (
    LineSeries,
    StackSeries,
    StripChart,
    StripHeading,
    StripPlot,
)
from gpusight.render.charts.usage_charts import utilization_figure
from gpusight.render.result_view import CHART_FORMATS
from gpusight.results import Composite
from tests.render.charts.strip_charts import rows_of, texts_of
from tests.render.charts.test_draw_chart import Page
from tests.traces import Row, build_trace


def kernels(gpus: int) -> list[Row]:
    return [
        {"start_ns": n * 100, "end_ns": n * 100 + 50, "name": "sgemm", "device": gpu}
        for n in range(4)
        for gpu in range(gpus)
    ]


STEPS = [{"start_ns": n * 100, "end_ns": n * 100 + 100, "name": f"step_{n}"} for n in range(4)]
SAMPLES = [
    {"time_ns": time, "metric": name, "value": value}
    for name, value in (("SMs Active [Throughput %]", 50.0), ("Tensor Active [%]", 10.0))
    for time in range(0, 400, 10)
]


def figure(gpus: int = 1, **tables: Any) -> StripChart:
    trace = build_trace({"path": "/home/me/run.sqlite"}, kernels=kernels(gpus), **tables)
    result = utilization(trace, bins=8, steps="all" if "ranges" in tables else None)
    assert isinstance(result, Composite)
    return utilization_figure(result)


def test_areas_are_the_bins() -> None:
    (plot,) = rows_of(figure(ranges=STEPS), StripPlot)
    (stack,) = plot.series
    assert isinstance(stack, StackSeries)
    assert list(stack.x) == [*range(0, 400, 50), 400]
    (part,) = stack.parts
    assert (part.name, part.color) == ("computing", "compute/matmul")
    assert list(part.y) == [1, 0, 1, 0, 1, 0, 1, 0, 0]
    assert (plot.y.low, plot.y.high) == (0, 1)


def test_steps_are_bands() -> None:
    bands = figure(ranges=STEPS).bands
    assert [(band.start, band.end, band.label) for band in bands] == [
        (n * 100, n * 100 + 100, f"step {n}") for n in range(4)
    ]


def test_samples_are_lines_below() -> None:
    chart = figure(gpu_metrics=SAMPLES)
    _, below = rows_of(chart, StripPlot)
    lines = [line for line in below.series if isinstance(line, LineSeries)]
    assert [(line.name, set(line.y)) for line in lines] == [
        ("SMs Active", {0.5}),
        ("Tensor Active", {0.1}),
    ]
    assert [name for _, name in chart.legend] == ["computing", "SMs Active", "Tensor Active"]


def test_each_gpu_has_its_own_plot() -> None:
    chart = figure(8)
    assert [row.text for row in rows_of(chart, StripHeading)] == [f"GPU {n}" for n in range(8)]
    assert {plot.height for plot in rows_of(chart, StripPlot)} == {56.0}
    assert rows_of(figure(), StripPlot)[0].height > 100


def test_it_says_in_words_what_it_shows() -> None:
    chart = figure(ranges=STEPS)
    assert chart.subtitle == "run.sqlite · busy 50.0% of 400 ns · longest idle 50 ns at 50 ns"
    assert "/home" not in draw(chart, "svg").decode()
    assert {"GPU 0", "computing", "step 0", "100%"} <= set(texts_of(chart))


@pytest.mark.parametrize("form", CHART_FORMATS)
def test_it_is_drawn_in_every_format(form: str) -> None:
    if form in {"png", "pdf"}:
        pytest.importorskip("vl_convert")
    chart = figure(2, ranges=STEPS, gpu_metrics=SAMPLES)
    start = {"svg": b"<svg", "html": b"<!DOCTYPE html>", "png": b"\x89PNG", "pdf": b"%PDF"}[form]
    assert draw(chart, form).startswith(start)


def test_the_same_answer_gives_the_same_bytes() -> None:
    assert draw(figure(2), "html") == draw(figure(2), "html")
    pytest.importorskip("vl_convert")
    assert draw(figure(), "png") == draw(figure(), "png")


def test_pointing_shows_the_values_of_every_gpu() -> None:
    page = Page(draw(figure(2, ranges=STEPS), "html").decode())
    data = json.loads(page.scripts[0])
    assert [row["name"] for row in data["series"]] == ["GPU 0: busy", "GPU 1: busy"]
    assert data["series"][0]["values"][:2] == ["100.0%", "0.0%"]
    assert data["labels"][1] == "50 ns"
