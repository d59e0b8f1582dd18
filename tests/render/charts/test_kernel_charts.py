"""The roofline's picture: axes in decades, roofs, dots, names that do not lie on each other."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from itertools import combinations
from typing import Any

import pytest

from gpusight.analysis.roofline.roofline_report import roofline
from gpusight.cli.main import main
from gpusight.errors import MissingDataError
from gpusight.render.cell_text import safe_text
from gpusight.render.charts.chart_frame import (
    NARROW,
    WIDE,
    axis_scale,
    lay_out_figure,
    size_of,
    unit_of,
)
from gpusight.render.charts.chart_labels import LabelBox, dot_names, line_labels
from gpusight.render.charts.draw_chart import draw
from gpusight.render.charts.figure import ChartAxis, DotSeries, Figure, LineSeries
from gpusight.render.charts.kernel_charts import roofline_figure
from gpusight.render.result_view import CHART_FORMATS
from gpusight.results import Composite, Fmt
from gpusight.trace.trace import Trace
from tests.render.charts.test_draw_chart import without_order
from tests.render.hostile import HOSTILE
from tests.shared import SHARED, needs_shared, opened
from tests.traces import build_trace

SVG = "{http://www.w3.org/2000/svg}"
FLOPS = ChartAxis("FLOP/s reached", Fmt.REAL, log=True, unit="FLOP/s")
SM_ROOF = {
    "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained": 5000.0,
    "sm__cycles_elapsed.avg.per_second": 1e9,
}
DRAM_ROOF = {
    "dram__bytes.sum.peak_sustained": 1000.0,
    "dram__cycles_elapsed.avg.per_second": 1e9,
}
L2_ROOF = {
    "derived__lts__lts2xbar_bytes.sum.peak_sustained": 4000.0,
    "lts__cycles_elapsed.avg.per_second": 1e9,
}


def launch(flops: float | None, moved: float, **more: float) -> dict[str, float]:
    fma = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
    counted = {} if flops is None else {fma: flops / 2}
    return {**SM_ROOF, **DRAM_ROOF, **counted, "dram__bytes.sum": moved, **more}


def trace_of(kernels: dict[str, dict[str, float]], **profile: Any) -> Trace:
    """Make a report of kernels of 10 µs."""
    return build_trace(
        {"path": "/home/me/run.ncu-rep"},
        devices=[{"name": "NVIDIA H200"}, {"name": "NVIDIA A100"}],
        profiles=[
            {"launch": n, "kind": "kernel", "name": name, "duration_ns": 10_000.0, **profile}
            for n, name in enumerate(kernels)
        ],
        counters=[
            {"launch": n, "metric": metric, "value": value}
            for n, counters in enumerate(kernels.values())
            for metric, value in counters.items()
        ],
    )


def answer(trace: Trace, **options: Any) -> Composite:
    result = roofline(trace, **options)
    assert isinstance(result, Composite)
    return result


def picture(kernels: dict[str, dict[str, float]]) -> Figure:
    return roofline_figure(answer(trace_of(kernels)))


def typical() -> dict[str, dict[str, float]]:
    return {
        "gemm": launch(8e7, 1e6, **L2_ROOF),
        "scale": launch(1e6, 8e6),
        "tiny": launch(1e6, 1e6),
        "copy": launch(0, 9e6),
    }


def test_the_unit_of_an_axis_has_a_prefix() -> None:
    labels = [tick.label for tick in axis_scale(FLOPS, 1e8, 5e13).ticks(7)]
    assert labels[:3] == ["100 MFLOP/s", "1 GFLOP/s", "10 GFLOP/s"]
    assert labels[-1] == "10 TFLOP/s"
    shares = axis_scale(ChartAxis("", Fmt.SHARE, log=True), 2e-4, 2.5).ticks(5)
    assert [tick.label for tick in shares] == ["0.1%", "1%", "10%", "100%"]
    rates = axis_scale(ChartAxis("", Fmt.RATE, log=True), 1.5e11, 4e12).ticks(5)
    assert [tick.label for tick in rates] == ["200 GB/s", "500 GB/s", "1 TB/s", "2 TB/s"]
    assert unit_of(Fmt.REAL, 0.5, "FLOP/s") == (1.0, "FLOP/s")
    assert unit_of(Fmt.REAL, 1e40, "FLOP/s")[1] == "EFLOP/s"


def test_kernels_lie_under_their_roofs() -> None:
    drawn = picture(typical())
    lines = {s.name: s for s in drawn.series if isinstance(s, LineSeries)}
    assert list(lines) == ["dram", "l2", "fp32"]
    assert not lines["dram"].dashed
    assert lines["l2"].dashed
    assert lines["fp32"].label == "fp32 10.00 TFLOP/s"
    # The slope of DRAM ends where the flat roof begins: 10¹³ FLOP/s at 10 FLOP a byte.
    assert (lines["dram"].x[-1], lines["dram"].y[-1]) == (10.0, 1e13)
    assert lines["fp32"].x[0] == 10.0
    dots = {s.name.partition(":")[0]: s for s in drawn.series if isinstance(s, DotSeries)}
    assert dots["compute-bound"].x == pytest.approx((80.0,))
    assert dots["compute-bound"].y == pytest.approx((8e12,))
    assert dots["memory-bound"].names == ("scale",)
    assert dots["latency-bound"].names == ("tiny",)
    for series in dots.values():
        for x, y in zip(series.x, series.y, strict=True):
            assert y <= min(1e13, x * 1e12) * 1.001


def test_roofs_of_one_height_share_a_line() -> None:
    tensor = {
        f"sm__ops_path_tensor_src_{kind}_dst_fp32_sparsity_off.sum{form}": value
        for kind in ("bf16", "fp16")
        for form, value in ((".peak_sustained", 80_000.0), ("", 4e7))
    }
    drawn = picture({"gemm": launch(0, 1e6, **tensor)})
    labels = [s.label for s in drawn.series if isinstance(s, LineSeries)]
    assert labels == [
        "DRAM 1.000 TB/s", "fp32 10.00 TFLOP/s", "tensor bf16, tensor fp16 80.00 TFLOP/s",
    ]  # fmt: skip


def panel_of(drawn: Figure) -> Figure:
    assert drawn.panel is not None
    return drawn.panel


def dots_of(figure: Figure) -> dict[str, DotSeries]:
    """Give the series that each kernel of a plot is in."""
    return {name: s for s in figure.series if isinstance(s, DotSeries) for name in s.labels}


def test_kernels_without_flops_are_on_a_bandwidth_axis_of_their_own() -> None:
    drawn = picture(typical())
    panel = panel_of(drawn)
    assert set(dots_of(panel)) == {"copy"}
    assert set(dots_of(drawn)) == {"gemm", "scale", "tiny"}
    memory = dots_of(panel)["copy"]
    assert memory.name == "memory-bound"
    assert memory.y == pytest.approx((9e11,))
    assert dict(memory.details[0])["DRAM bandwidth"] == "900.0 GB/s (90.0% of peak)"
    assert "achieved" not in dict(memory.details[0])
    assert [(rule.y, rule.label) for rule in panel.rules] == [(1e12, "peak 1.000 TB/s")]
    assert drawn.footnotes == ()
    uncounted = picture({"gemm": launch(8e7, 1e6), "odd": launch(None, 1e6), "idle": launch(0, 0)})
    assert set(dots_of(panel_of(uncounted))) == {"odd", "idle"}
    unknown = picture({"gemm": launch(8e7, 1e6), "odd": {**SM_ROOF, **DRAM_ROOF}})
    assert unknown.panel is None
    assert unknown.footnotes == ("Not shown for lack of counters: 1 kernel (50.0% of the time)",)


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_a_roofline_without_dots_is_left_out(size: Any) -> None:
    figure = picture({"copy": launch(0, 9e6), "fill": launch(0, 1e6)})
    assert figure.footnotes == ("No kernel executes FLOPs: DRAM bandwidth only",)
    frame = lay_out_figure(figure, size_of(figure, size))
    assert frame.plots == [frame.panel]
    assert frame.panel is not None
    assert frame.panel.start == frame.start
    assert "arithmetic intensity" not in draw(figure, "svg").decode()
    both = picture(typical())
    assert len(lay_out_figure(both, size_of(both, size)).plots) == 2


def test_a_report_without_bytes_shows_shares_of_the_dram_peak() -> None:
    busy = {"dram__throughput.avg.pct_of_peak_sustained_elapsed": 44.0}
    drawn = picture({"copy": {**SM_ROOF, **DRAM_ROOF, **busy}})
    panel = panel_of(drawn)
    assert panel.y.label == "DRAM bandwidth, % of peak"
    assert dots_of(panel)["copy"].y == pytest.approx((0.44,))
    assert dict(dots_of(panel)["copy"].details[0])["DRAM bandwidth"] == "44.0% of peak"
    assert drawn.footnotes == ("FLOPs were not counted: profile with ncu --set roofline",)


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_dots_and_names_of_the_panel_cover_nothing(size: Any) -> None:
    # Six kernels of nearly one bandwidth, and some far below.
    moved = [8e6 + 1e4 * n for n in range(6)] + [5e3, 5.1e3, 1.0]
    figure = picture(
        {
            "gemm": launch(8e7, 1e6),
            **{f"a_copy_kernel_with_a_long_name_{n}": launch(0, b) for n, b in enumerate(moved)},
        }
    )
    frame = lay_out_figure(figure, size_of(figure, size))
    panel = frame.panel
    assert panel is not None
    # Beside the roofline, or below it on a narrow screen.
    assert panel.left > frame.right if size is WIDE else panel.top > frame.bottom
    rims = [
        (panel.x(x), panel.y(y), s.radius(n))
        for s in panel.figure.series
        if isinstance(s, DotSeries)
        for n, (x, y) in enumerate(zip(s.x, s.y, strict=True))
    ]
    assert len(rims) == len(moved)
    for (x0, y0, r0), (x1, y1, r1) in combinations(rims, 2):
        assert math.hypot(x0 - x1, y0 - y1) >= r0 + r1
    names = dot_names(panel)
    assert len(names) == (9 if size is WIDE else 7)
    assert not any(a.box.meets(b.box) for a, b in combinations(names, 2))
    for name in names:
        assert max(x + r for x, _, r in rims) < name.box.left
        assert name.box.left + name.box.width <= panel.right + 1
        assert panel.top <= name.box.top <= name.box.top + name.box.height <= panel.bottom + 1e-6


def test_a_class_keeps_its_color_but_only_those_there_are_in_the_legend() -> None:
    frame = lay_out_figure(picture({"scale": launch(1e6, 8e6), "tiny": launch(1e6, 1e6)}), WIDE)
    slots = {key.text.partition(":")[0]: key.slot for key in frame.keys}
    assert slots == {"memory-bound": "0", "latency-bound": "2"}


def test_what_lies_far_to_the_right_stays_at_the_edge() -> None:
    drawn = picture({"spin": launch(8e7, 8.0), "scale": launch(1e6, 8e6)})
    spin = next(s for s in drawn.series if isinstance(s, DotSeries) and "spin" in s.labels)
    assert spin.names == ("spin →",)
    assert drawn.x.high == 10.0 * 1000
    assert drawn.footnotes[0].startswith("→ at the edge")


def test_bigger_dots_take_more_time() -> None:
    trace = trace_of(typical())
    profiles = trace.table("profiles").to_dicts()
    profiles[0]["duration_ns"] = 90_000.0
    counters = trace.table("counters").to_dicts()
    devices = trace.table("devices").to_dicts()
    slow = build_trace(devices=devices, profiles=profiles, counters=counters)
    sizes = {
        label: series.radius(number)
        for series in roofline_figure(answer(slow)).series
        if isinstance(series, DotSeries)
        for number, label in enumerate(series.labels)
    }
    assert sizes["gemm"] > sizes["scale"] == sizes["tiny"] >= 4


def test_only_one_gpu_is_drawn() -> None:
    trace = trace_of({"scale": launch(1e6, 8e6), "tiny": launch(1e6, 1e6)})
    profiles = trace.table("profiles").to_dicts()
    profiles[1].update(device=1, duration_ns=1.0)
    both = build_trace(
        devices=trace.table("devices").to_dicts(),
        profiles=profiles,
        counters=trace.table("counters").to_dicts(),
    )
    assert "launches ran on 2 GPUs" in " ".join(answer(both).notes)
    drawn = roofline_figure(answer(both))
    assert drawn.footnotes == ("Not shown, on other GPUs: 1 kernel; --device N draws another",)


def test_launches_are_drawn_too() -> None:
    drawn = roofline_figure(answer(trace_of(typical()), launches=True))
    assert len(dots_of(drawn)) + len(dots_of(panel_of(drawn))) == 4


def test_nothing_to_place_is_said() -> None:
    with pytest.raises(MissingDataError, match="no kernel can be drawn"):
        picture({"odd": {**SM_ROOF, "sm__throughput.avg.pct_of_peak_sustained_elapsed": 50.0}})
    assert set(dots_of(panel_of(picture({"copy": launch(0, 9e6)})))) == {"copy"}


# Names --------------------------------------------------------------------------------------------


def crowd(count: int = 40) -> Figure:
    """Put many kernels into a small part of the picture."""
    return picture(
        {f"kernel_number_{n}": launch(1e6 * (1 + n % 7 / 4), 1e6 + 3e4 * n) for n in range(count)}
    )


def boxes(figure: Figure, size: Any) -> tuple[list[LabelBox], list[LabelBox]]:
    frame = lay_out_figure(figure, size)
    rims = [
        LabelBox(frame.x(x) - r, frame.y(y) - r, 2 * r, 2 * r)
        for dots in figure.series
        if isinstance(dots, DotSeries)
        for n, (x, y) in enumerate(zip(dots.x, dots.y, strict=True))
        for r in (dots.radius(n),)
    ]
    return [name.box for name in dot_names(frame)], rims


@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("figure", [crowd(), picture(typical())], ids=["crowd", "typical"])
def test_names_lie_neither_on_each_other_nor_on_dots(figure: Figure, size: Any) -> None:
    names, rims = boxes(figure, size_of(figure, size))
    frame = lay_out_figure(figure, size_of(figure, size))
    assert names
    assert not any(a.meets(b) for a, b in combinations(names, 2))
    assert not any(name.meets(rim) for name in names for rim in rims)
    for box in names:
        assert frame.left <= box.left <= box.left + box.width <= frame.right
        assert frame.top <= box.top <= box.top + box.height <= frame.bottom


def test_of_kernels_with_one_name_the_largest_is_named() -> None:
    trace = trace_of({"a": launch(1e6, 1e6), "b": launch(2e6, 1e6), "c": launch(3e6, 1e6)})
    profiles = [
        {**row, "name": "same", "grid_x": n} for n, row in enumerate(trace.profiles.to_dicts())
    ]
    alike = build_trace(
        devices=trace.table("devices").to_dicts(),
        profiles=profiles,
        counters=trace.table("counters").to_dicts(),
    )
    figure = roofline_figure(answer(alike))
    assert [name.text for name in dot_names(lay_out_figure(figure, WIDE))] == ["same"]


def test_labels_follow_the_slope_of_their_lines() -> None:
    frame = lay_out_figure(picture(typical()), WIDE)
    angles = {label.text.split()[0]: label.angle for label in line_labels(frame)}
    assert angles["fp32"] == 0
    assert -90 < angles["DRAM"] < 0
    assert angles["DRAM"] == pytest.approx(angles["L2"], abs=0.01)


# Formats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", CHART_FORMATS)
def test_every_format_is_drawn_the_same_every_time(form: str) -> None:
    if form in {"png", "pdf"}:
        pytest.importorskip("vl_convert")
    result = answer(trace_of(typical()))
    first, second = (draw(roofline_figure(result), form, result=result) for _ in range(2))
    assert without_order(first) == without_order(second)


def test_svg_says_what_is_there() -> None:
    root = ET.fromstring(draw(picture(typical()), "svg"))
    texts = {element.text for element in root.iter(f"{SVG}text")}
    assert {"Roofline", "gemm", "scale", "tiny", "DRAM 1.000 TB/s", "1 TFLOP/s"} <= texts
    assert {"memory roofline", "compute roofline"} <= texts
    assert {"DRAM bandwidth, kernels without FLOPs", "copy", "peak 1.000 TB/s"} <= texts
    assert any("NVIDIA H200 · run.ncu-rep" in (text or "") for text in texts)
    titles = [element.text or "" for element in root.iter(f"{SVG}title")]
    gemm = next(title for title in titles if title.startswith("gemm\n"))
    assert "achieved: 8.000 TFLOP/s" in gemm
    assert "% of roofline: 80.0%" in gemm
    assert root.get("height") == f"{WIDE.height + 140:g}"


def test_pointing_at_a_dot_tells_all_about_it() -> None:
    page = draw(picture(typical()), "html").decode()
    data = json.loads(re.findall(r'id="figure-data">(.*?)</script>', page)[0])
    assert data["series"] == []
    marks = {mark["label"]: dict(mark["rows"]) for mark in data["marks"]}
    assert marks["gemm"]["time"] == "10.00 µs (25.0%)"
    assert marks["gemm"]["FLOP/byte of DRAM"] == "80.00 (1.000 MB)"
    assert marks["gemm"]["bound by"] == "compute: fp32"
    assert marks["gemm"]["% of roofline"] == "80.0%"
    # Every dot has its target in the wide and in the narrow picture, and no second tooltip.
    numbers = [int(n) for n in re.findall(r'data-mark="(\d+)"', page)]
    assert sorted(numbers) == sorted([*range(len(marks))] * 2)
    assert "<title>gemm" not in page


def test_hostile_names_stay_text() -> None:
    kernels = {name: launch(1e6 * (n + 1), 1e6) for n, name in enumerate(HOSTILE) if name}
    result = answer(trace_of(kernels))
    svg = draw(roofline_figure(result), "svg").decode()
    page = draw(roofline_figure(result), "html", result=result).decode()
    ET.fromstring(svg)
    for text in (svg, page):
        assert not {"\x1b", "\x9b", "\u202e"} & set(text)
    assert page.count("<script") == 2
    data = re.findall(r'id="figure-data">(.*?)</script>', page, re.DOTALL)[0]
    assert "<" not in data
    assert safe_text(data) == data


def test_the_command_draws(tmp_path: Any, capsys: Any) -> None:
    report = tmp_path / "no.csv"
    report.write_text("a,b\n1,2\n")
    assert main(["roofline", str(report), "-o", str(tmp_path / "x.svg")]) == 2
    assert not (tmp_path / "x.svg").exists()
    assert "Traceback" not in capsys.readouterr().err


@needs_shared
@pytest.mark.parametrize("form", ["svg", "html"])
def test_a_report_is_drawn(form: str, tmp_path: Any) -> None:
    path = SHARED / "ncu" / "kernels_full.ncu-rep.xz"
    out = tmp_path / f"roofline.{form}"
    assert main(["roofline", str(path), "-o", str(out), "--quiet", "--no-cache"]) == 0
    text = out.read_text(encoding="utf-8")
    for expected in ("fma_heavy →", "divergent", "fp64 33.", "DRAM 4.8", "copy_coalesced"):
        assert expected in text
    result = answer(opened(path))
    assert draw(roofline_figure(result), "svg").startswith(b"<svg")
