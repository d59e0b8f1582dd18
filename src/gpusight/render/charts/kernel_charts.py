"""Kernels as charts.

The roofline, and the occupancy of other block sizes, registers or shared memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.errors import MissingDataError
from gpusight.render.cell_text import shorten_middle
from gpusight.render.charts.figure import (
    ChartAxis,
    DotSeries,
    Figure,
    LevelLine,
    LineSeries,
    PointLabel,
    SeriesTone,
    ShadedBand,
)
from gpusight.results import Fmt, TableResult
from gpusight.units import format_bytes, format_rate, format_real, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.results import Composite


_TERA = 1e12
_BOUNDS = {
    "memory": "memory-bound",
    "compute": "compute-bound",
    "latency": "latency-bound",
    None: "limiter unknown",
}
_LEVELS = {"dram": "DRAM", "l2": "L2", "l1": "L1"}
_NAME_WIDTH = 30
_MIN_RADIUS, _MAX_RADIUS = 4.0, 15.0
"""Radii of dots, in pixels, of kernels that take no time and all of it."""
_MAX_DECADES = 12
_ROOM = 2.5
"""Room around the dots, as a factor."""
_LEFT, _RIGHT, _BEYOND = 100.0, 20.0, 1000.0
"""How far from the ridge point the chart goes at least, and to the right at most, as factors."""
_SAME_HEIGHT = 1.02
_EDGE = " →"
_PANEL_DECADES = 1.5
"""Decades that the bandwidth axis has at least, so that it has ticks."""
_EXTRA_HEIGHT = 140.0


@dataclass(frozen=True, slots=True)
class _Roofs:
    """The rooflines of one GPU: FLOP/s by arithmetic, bytes/s by level."""

    compute: dict[str, float]
    memory: dict[str, float]

    @property
    def top(self) -> float | None:
        """The highest compute roofline."""
        return max(self.compute.values(), default=None)


def roofline_figure(result: Composite) -> Figure:
    """Draw the result of `gpusight roofline`; raises where no kernel can be drawn.

    Kernels without FLOPs have no arithmetic intensity: a panel of their own shows their DRAM
    bandwidth. Where all are without, there is only that panel.
    """
    rows, roof_rows, others = _of_one_gpu(result)
    named = roof_rows.rows(named=True)
    roofs = _Roofs(
        {r["roof"]: r["tflop_per_s"] * _TERA for r in named if r["kind"] == "compute"},
        {r["roof"]: r["bytes_per_s"] for r in named if r["kind"] == "memory"},
    )
    dots = rows.filter((pl.col("tflop_per_s") > 0) & (pl.col("dram_intensity") > 0))
    rest = rows.filter(_without_flops())
    # Reports of few counters have the share of the peak, but no bytes.
    rate = "dram_bytes_per_s" if rest["dram_bytes_per_s"].count() else "memory_share"
    moving = rest.drop_nulls(rate)
    has_roofs = rows.filter(pl.col("tflop_per_s") == 0).height and roofs.compute and roofs.memory
    if dots.is_empty() and moving.is_empty() and not has_roofs:
        raise MissingDataError(
            "no kernel can be drawn",
            why="the capture has no FLOP or DRAM byte counters, or its GPU is unknown",
            hint="see the notes of: gpusight roofline FILE",
        )
    x, y = _axes(dots, roofs)
    beyond = dots.filter(pl.col("dram_intensity") > (x.high or 0.0))["short_name"].to_list()
    total = float(dots["total_ns"].sum()) + float(moving["total_ns"].sum()) or 1.0
    facts = {fact.key: fact.value for fact in result.facts}
    parts = [
        facts.get("gpus"),
        PurePath(str(result.meta.get("path", ""))).name,
        "one dot per kernel, sized by time",
    ]
    return Figure(
        "Roofline",
        x,
        y,
        (*_lines(roofs, x), *_kernels(dots, total, x)),
        subtitle=" · ".join(filter(None, parts)),
        bands=_bands(dots, roofs, x),
        footnotes=tuple(_footnotes(rows, beyond, others, rate)),
        taller=_EXTRA_HEIGHT,
        panel=_bandwidth_panel(moving, rate, total, roofs) if moving.height else None,
    )


def _bandwidth_panel(moving: pl.DataFrame, rate: str, total: float, roofs: _Roofs) -> Figure:
    """Draw the DRAM bandwidth of kernels without FLOPs, below the peak."""
    if rate == "memory_share":
        title, fmt, peak, label = "DRAM bandwidth, % of peak", Fmt.SHARE, 1.0, "peak"
    else:
        title, fmt = "DRAM bandwidth, kernels without FLOPs", Fmt.RATE
        peak = roofs.memory.get("dram") or 0.0
        label = f"peak {format_rate(peak)}"
    low, high = _range([*(v for v in moving[rate].to_list() if v > 0), peak or 1.0])
    low = min(low, high / 10**_PANEL_DECADES)
    return Figure(
        "",
        ChartAxis("", Fmt.COUNT),
        ChartAxis(title, fmt, True, low, high),
        tuple(_kernels(moving, total, rate=rate)),
        rules=(LevelLine(peak, label),) if peak else (),
    )


def _without_flops() -> pl.Expr:
    """Match kernels with no FLOPs, and those whose FLOPs were not counted."""
    return pl.col("tflop_per_s").fill_null(0.0) == 0


def _of_one_gpu(result: Composite) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Give kernels and rooflines of the busiest GPU, and how many rows other GPUs have."""
    tables = {s.command: s.frame for s in result.sections if isinstance(s, TableResult)}
    rows = tables["launches"] if "launches" in tables else tables["kernels"]
    rows = rows.rename({"duration_ns": "total_ns"}, strict=False)
    first = rows["device"][0] if rows.height else None
    of_gpu = rows.filter(pl.col("device").eq_missing(pl.lit(first)))
    roofs = tables["roofs"] if "roofs" in tables else pl.DataFrame(schema={"device": pl.Int64})
    own = roofs.filter(pl.col("device").eq_missing(pl.lit(first)))
    return of_gpu, own, rows.height - of_gpu.height


def _axes(dots: pl.DataFrame, roofs: _Roofs) -> tuple[ChartAxis, ChartAxis]:
    """Fit the axes to the dots and the ridge points."""
    bandwidth = roofs.memory.get("dram")
    placed = dots["dram_intensity"].to_list()
    ridges = [peak / bandwidth for peak in roofs.compute.values()] if bandwidth else placed
    # Without a compute roofline there is only the bandwidth panel.
    ridges = ridges or [1.0]
    low, high = _range([*placed, min(ridges) / _LEFT, max(ridges) * _RIGHT])
    high = min(high, max(ridges) * _BEYOND) if bandwidth else high
    reached = [*(dots["tflop_per_s"] * _TERA).to_list(), *roofs.compute.values()]
    bottom, top = _range(reached or [bandwidth or _TERA])
    if bandwidth:
        bottom = min(bottom, low * bandwidth)
    x = ChartAxis("arithmetic intensity (FLOP per DRAM byte)", Fmt.REAL, True, low, high)
    return x, ChartAxis("achieved FLOP/s", Fmt.REAL, log=True, low=bottom, high=top, unit="FLOP/s")


def _range(values: list[float]) -> tuple[float, float]:
    low, high = min(values) / _ROOM, max(values) * _ROOM
    return max(low, high / 10**_MAX_DECADES), high


def _lines(roofs: _Roofs, x: ChartAxis) -> Iterator[LineSeries]:
    """Draw the memory rooflines up to the highest compute roofline, and those to the right."""
    assert x.low is not None
    assert x.high is not None
    top = roofs.top
    bandwidth = roofs.memory.get("dram")
    for level, rate in roofs.memory.items():
        end = min(top / rate if top else x.high, x.high)
        if end > x.low:
            label = f"{_LEVELS[level]} {format_rate(rate)}"
            xs, ys = [x.low, end], [x.low * rate, end * rate]
            aside = level != "dram"
            if aside and bandwidth and top and rate == max(roofs.memory.values()):
                # The fastest cache's roofline goes on to where that of DRAM has the same height.
                xs.append(min(top / bandwidth, x.high))
                ys.append(end * rate)
            tone, place = (SeriesTone.QUIET, 0.3) if aside else (SeriesTone.STRONG, 0.5)
            yield LineSeries(
                level, tuple(xs), tuple(ys), tone, dashed=aside, label=label, label_at=place
            )
    for kinds, peak in _merge_equal_roofs(roofs.compute):
        start = max(peak / bandwidth if bandwidth else x.low, x.low)
        if start < x.high:
            label = f"{kinds} {format_real(peak / _TERA)} TFLOP/s"
            yield LineSeries(
                kinds, (start, x.high), (peak, peak), SeriesTone.STRONG, label=label, label_at=0.8
            )


def _merge_equal_roofs(compute: dict[str, float]) -> list[tuple[str, float]]:
    """Label rooflines of one height together: two lines there would look like one."""
    roofs: list[tuple[str, float]] = []
    for kind, peak in sorted(compute.items(), key=lambda roof: roof[1]):
        if roofs and peak <= roofs[-1][1] * _SAME_HEIGHT:
            roofs[-1] = (f"{roofs[-1][0]}, {kind}", roofs[-1][1])
        else:
            roofs.append((kind, peak))
    return roofs


def _bands(dots: pl.DataFrame, roofs: _Roofs, x: ChartAxis) -> tuple[ShadedBand, ...]:
    """Label the sides of the ridge point."""
    bandwidth = roofs.memory.get("dram")
    kinds = dots.drop_nulls("arithmetic").group_by("arithmetic").agg(pl.col("total_ns").sum())
    kinds = kinds.sort("total_ns", "arithmetic", descending=[True, False])
    first = kinds["arithmetic"].to_list()[:1]
    peak = roofs.compute.get(first[0] if first else "fp32") or roofs.top
    if x.low is None or x.high is None or not bandwidth or not peak:
        return ()
    ridge = min(max(peak / bandwidth, x.low), x.high)
    return (
        ShadedBand(x.low, ridge, "memory roofline"),
        ShadedBand(ridge, x.high, "compute roofline"),
    )


def _kernels(
    dots: pl.DataFrame, total: float, x: ChartAxis | None = None, *, rate: str = ""
) -> Iterator[DotSeries]:
    """Draw kernels by limiter; a class without any keeps its color.

    Without an x axis they are those without FLOPs, and y is the column `rate`.
    """
    for bound, name in _BOUNDS.items():
        rows = dots.filter(pl.col("bound").eq_missing(pl.lit(bound, pl.String)))
        kernels = rows.rows(named=True)
        yield DotSeries(
            name,
            tuple(rows["dram_intensity"].to_list() if x else [0.0] * rows.height),
            tuple((rows["tflop_per_s"] * _TERA if x else rows[rate]).to_list()),
            tuple(row["short_name"] for row in kernels),
            sizes=tuple(_size((row["total_ns"] or 0) / total) for row in kernels),
            names=tuple(_name(row, x) for row in kernels),
            details=tuple(tuple(_detail(row, flops=x is not None)) for row in kernels),
        )


def _name(row: dict[str, Any], x: ChartAxis | None) -> str:
    beyond = x is not None and row["dram_intensity"] > (x.high or 0.0)
    return shorten_middle(row["short_name"], _NAME_WIDTH) + (_EDGE if beyond else "")


def _size(share: float) -> float:
    return _MIN_RADIUS + (_MAX_RADIUS - _MIN_RADIUS) * math.sqrt(min(max(share, 0.0), 1.0))


def _detail(row: dict[str, Any], *, flops: bool) -> Iterator[tuple[str, str]]:
    launches = f", {row['calls']:,} launches" if row.get("calls", 1) > 1 else ""
    yield "time", f"{format_time(row['total_ns'])} ({format_share(row['share'])}{launches})"
    if flops:
        yield "achieved", f"{format_real(row['tflop_per_s'])} TFLOP/s"
        if row["arithmetic"]:
            yield "arithmetic", row["arithmetic"] + (" (estimated)" if row["estimated"] else "")
        for level, text in _LEVELS.items():
            if row[f"{level}_intensity"] is not None:
                moved = format_bytes(row[f"{level}_bytes"])
                yield f"FLOP/byte of {text}", f"{format_real(row[f'{level}_intensity'])} ({moved})"
    if row["dram_bytes_per_s"] is not None:
        of_peak = f" ({format_share(row['memory_share'])} of peak)" if row["memory_share"] else ""
        yield "DRAM bandwidth", f"{format_rate(row['dram_bytes_per_s'])}{of_peak}"
    elif row["memory_share"] is not None:
        yield "DRAM bandwidth", f"{format_share(row['memory_share'])} of peak"
    if row["bound"]:
        yield "bound by", row["bound"] + (f": {row['limit']}" if row["limit"] else "")
    yield "% of roofline", format_share(row["roof_share"])
    yield "launch", f"grid {row['grid']}, block {row['block']}"


def _footnotes(rows: pl.DataFrame, beyond: list[str], others: int, rate: str) -> Iterator[str]:
    """List what the chart leaves out: kernels without counters, or on other GPUs."""
    if beyond:
        yield f"{_EDGE.strip()} at the edge: higher arithmetic intensity than shown"
    if rows.height and not rows["tflop_per_s"].count():
        yield "FLOPs were not counted: profile with ncu --set roofline"
    elif rows.height and not rows["tflop_per_s"].max():
        yield "No kernel executes FLOPs: DRAM bandwidth only"
    left_out = pl.when(_without_flops()).then(pl.col(rate).is_null())
    unknown = rows.filter(left_out.otherwise(pl.col("dram_intensity").is_null()))
    if unknown.height:
        share = format_share(float(unknown["share"].sum()))
        yield f"Not shown for lack of counters: {_count(unknown.height)} ({share} of the time)"
    if others:
        yield f"Not shown, on other GPUs: {_count(others)}; --device N draws another"


def _count(kernels: int) -> str:
    return f"{kernels:,} kernel" + ("" if kernels == 1 else "s")


_THEORETICAL = "theoretical"
_TOP = 1.08
"""A little over 100%, so that what lies there is not cut off."""
_UNITS = {"block": "threads", "registers": "registers"}
_SECTIONS = {
    "block": (
        "block_sizes",
        "block_threads",
        ChartAxis("threads per block", Fmt.COUNT, low=0, high=1056),
    ),
    "registers": ("registers", "registers", ChartAxis("registers per thread", Fmt.COUNT, low=0)),
    "shared-memory": (
        "shared_memory",
        "shared_bytes",
        ChartAxis("shared memory per block", Fmt.BYTES, low=0),
    ),
}


def occupancy_figure(result: Composite, over: str = "block") -> Figure:
    """Draw what an SM would hold if one thing were another; raises where that is unknown."""
    name, key, axis = _SECTIONS[over]
    section = next((s for s in result.sections if s.command == name), None)
    if not isinstance(section, TableResult):
        raise MissingDataError("the launch shape of no kernel is known")
    curve = _dots(section.frame, key) if over == "block" else _levels(section.frame, key)
    facts = {fact.key: fact.value for fact in result.facts}
    _, _, kernel = section.title.partition(": ")
    now = section.frame.filter(section.frame["current"])
    limit = _limit_words(now["limiters"][0]) if now.height else ""
    gpu = facts.get("gpu") or facts.get("gpus")
    return Figure(
        f"Occupancy of {kernel}" if kernel else result.title,
        axis,
        ChartAxis("", Fmt.SHARE, low=0, high=_TOP),
        (*curve, *_achieved(section, key)),
        subtitle=" · ".join(filter(None, (gpu, limit))),
        marks=_now(section, key, over),
    )


def _dots(frame: pl.DataFrame, key: str) -> tuple[LineSeries | DotSeries, ...]:
    """Draw a dot for each block size, colored by what limits it."""
    fits = frame.filter(frame["blocks"] > 0)
    line = LineSeries("theoretical occupancy", *_points(fits, key), SeriesTone.QUIET)
    groups = fits.group_by("limiters", maintain_order=True)
    return line, *(
        DotSeries(_limit_words(str(limit)), *_points(rows, key), _labels(rows, key))
        for (limit,), rows in groups
    )


def _points(rows: pl.DataFrame, key: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(map(float, rows[key].to_list())), tuple(rows[_THEORETICAL].to_list())


def _labels(rows: pl.DataFrame, key: str) -> tuple[str, ...]:
    wanted = rows.select(key, _THEORETICAL, "blocks").iter_rows()
    return tuple(
        f"{threads} threads: {format_share(share)}, {blocks} blocks per SM"
        for threads, share, blocks in wanted
    )


def _limit_words(limit: str) -> str:
    return "full" if limit == "none" else f"limited by {limit}"


def _levels(frame: pl.DataFrame, key: str) -> tuple[LineSeries, ...]:
    """Draw stairs: a row holds for all values down to the next row's."""
    rows = frame.sort(key)
    tops = [float(value) for value in rows[key].to_list()]
    x = (0.0, *tops)
    shares = rows[_THEORETICAL].to_list()
    return (LineSeries("theoretical occupancy", x, (*shares, shares[-1]), steps=True),)


def _now(section: TableResult, key: str, over: str) -> tuple[PointLabel, ...]:
    """Mark the kernel with its present launch shape."""
    now = section.frame.filter(section.frame["current"])
    if now.is_empty():
        return ()
    row = now.row(0, named=True)
    value = section.meta[key]  # a row of the stairs holds the largest value of its level
    shown = format_bytes(value) if over == "shared-memory" else f"{value} {_UNITS[over]}"
    detail = (("blocks per SM", str(row["blocks"])), ("limited by", row["limiters"]))
    label = f"{shown}: {format_share(row[_THEORETICAL])}"
    return (PointLabel(value, row[_THEORETICAL], label, detail),)


def _achieved(section: TableResult, key: str) -> tuple[DotSeries, ...]:
    achieved = section.meta.get("achieved")
    if achieved is None:
        return ()
    label = f"achieved {format_share(achieved)}"
    return (DotSeries("achieved", (float(section.meta[key]),), (achieved,), (label,)),)
