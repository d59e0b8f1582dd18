"""Use of a GPU over time as charts: memory, utilization, and SMs, compute and DRAM."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.errors import MissingDataError
from gpusight.render.charts.figure import (
    ChartAxis,
    Figure,
    LevelLine,
    LineSeries,
    PointLabel,
    SeriesTone,
    ShadedBand,
    StackPart,
    StackSeries,
    StripAxis,
    StripChart,
    StripHeading,
    StripPlot,
)
from gpusight.results import Fmt, NotApplicable, TableResult
from gpusight.units import format_bytes, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.charts.figure import Numbers, StripChartRow
    from gpusight.results import Composite


ALLOCATED = "in use"
RESERVED = "reserved"
_MAX_RESERVED_RATIO = 3.0
"""What is reserved beyond this many times the peak would press what is in use to the floor."""
_MIN_SHOWN_LIMIT_SHARE = 0.5
_MAX_MEMORY_BANDS = 400
_DETAIL_ROWS = 6


def memory_figure(result: Composite) -> Figure:
    """Draw the answer of `gpusight memory`."""
    facts = {fact.key: fact.value for fact in result.facts}
    points = _section(result, "timeline")
    assert points is not None, "the answer has a timeline"
    times = tuple(points["time_ns"].to_list())
    peak, when = facts["peak_bytes"], facts["peak_ns"]
    reserved = facts.get("reserved_max_bytes")
    shown = reserved is not None and reserved <= _MAX_RESERVED_RATIO * max(peak, 1)
    lines = []
    if shown:
        values = tuple(points["reserved_bytes"].to_list())
        lines = [LineSeries(RESERVED, times, values, SeriesTone.STRONG, steps=True, dashed=True)]
    label = f"peak {format_bytes(peak)} at {format_time(when)}"
    parts = [PurePath(str(result.meta.get("path", ""))).name]
    growth = facts.get("growth_per_step_bytes")
    if growth is not None:
        sign = "+" if growth > 0 else ""
        parts.append(f"growth {sign}{format_bytes(growth)}/step")
    if facts.get("reserved_max_bytes") is not None and not shown:
        parts.append(f"reserved {format_bytes(facts['reserved_max_bytes'])}, above the axis")
    return Figure(
        result.title + " over time",
        ChartAxis("time since capture start", Fmt.TIME, low=times[0], high=times[-1]),
        ChartAxis("", Fmt.BYTES, low=0),
        (_stack(times, points, result.meta.get("timeline_holders") or []), *lines),
        subtitle=" · ".join(filter(None, parts)),
        bands=_step_bands(result),
        rules=_limit(facts),
        marks=(PointLabel(when, peak, label, _holders(result)),),
    )


def _stack(times: tuple[float, ...], points: pl.DataFrame, names: list[str]) -> StackSeries:
    if len(names) < 2:
        part = StackPart(
            names[0] if names else ALLOCATED, tuple(points["allocated_bytes"].to_list())
        )
        return StackSeries(ALLOCATED, times, (part,), steps=True)
    columns = zip(*points["held_bytes"].to_list(), strict=True)
    parts = tuple(
        StackPart(name, tuple(max(v, 0) for v in values), _tone(name, position, len(names)))
        for position, (name, values) in enumerate(zip(names, columns, strict=True))
    )
    return StackSeries(ALLOCATED, times, parts, steps=True)


def _tone(name: str, position: int, count: int) -> SeriesTone:
    from gpusight.analysis.memory.memory_peak import HELD_BEFORE, REST

    if name == HELD_BEFORE and position == 0:
        return SeriesTone.PALE
    return SeriesTone.QUIET if name == REST and position == count - 1 else SeriesTone.SERIES


def _step_bands(result: Composite) -> tuple[ShadedBand, ...]:
    steps = _section(result, "steps")
    if steps is None or steps.height > _MAX_MEMORY_BANDS:
        return ()
    rows = steps.select("start_ns", "duration_ns", "number").iter_rows()
    return tuple(ShadedBand(start, start + length, f"step {n}") for start, length, n in rows)


def _limit(facts: dict[str, Any]) -> tuple[LevelLine, ...]:
    """Draw how much memory the GPU has, where the program came near it."""
    share = facts.get("peak_share")
    if not share or share < _MIN_SHOWN_LIMIT_SHARE:
        return ()
    limit = facts["peak_bytes"] / share
    return (LevelLine(limit, f"GPU memory: {format_bytes(limit)}"),)


def _holders(result: Composite) -> tuple[tuple[str, str], ...]:
    peak = _section(result, "peak")
    if peak is None:
        return ()
    rows = [
        (holder, format_bytes(size))
        for holder, size in peak.select("holder", "bytes").head(_DETAIL_ROWS).iter_rows()
    ]
    if peak.height > _DETAIL_ROWS:
        rest = format_bytes(int(peak["bytes"][_DETAIL_ROWS:].sum()))
        rows.append((f"{peak.height - _DETAIL_ROWS:,} more", rest))
    return tuple(rows)


def _section(result: Composite, name: str) -> pl.DataFrame | None:
    for section in result.sections:
        if section.command == name and isinstance(section, TableResult):
            return section.frame
        if section.command == name and isinstance(section, NotApplicable):
            return None
    return None


_GROUPS = {
    "compute": ("computing", "compute/matmul"),
    "copy": ("copies", "copy/h2d"),
    "communication": ("communicating", "communication"),
}
"""What the areas are called, and the colors that stand for all of a group."""
_LINES = ("compute/attention", "compute/elementwise", "copy/d2h", "copy/d2d", "idle/input")
"""Colors of what was sampled."""
_WIDTH = 760.0
_TALL, _LOW, _LOWEST = 150.0, 90.0, 56.0
"""Pixels of a plot: of a single GPU, of a few, of many."""
_MAX_LOW_PLOTS = 4
_MAX_UTILIZATION_BANDS = 400
_SHARE = ChartAxis("", Fmt.SHARE, low=0.0, high=1.0)


def utilization_figure(result: Composite) -> StripChart:
    """Draw the answer of `gpusight utilization`."""
    drawing = _UtilizationDrawing(result)
    start, end = (float(result.meta[key]) for key in ("start_ns", "end_ns"))
    return StripChart(
        "GPU utilization over time",
        ChartAxis("time since capture start", Fmt.TIME, low=start, high=end),
        (*drawing.rows(), StripAxis()),
        subtitle=drawing.subtitle,
        legend=drawing.legend,
        bands=tuple(drawing.bands()),
        footnotes=tuple(drawing.footnotes()),
        width=_WIDTH,
    )


class _UtilizationDrawing:
    """An answer being turned into rows."""

    def __init__(self, result: Composite) -> None:
        self._result = result
        self._facts = {fact.key: fact.value for fact in result.facts}
        self._tables = {s.command: s.frame for s in result.sections if isinstance(s, TableResult)}
        self._end: int = result.meta["end_ns"]
        bins = self._tables["bins"]
        self._shown = [group for group in _GROUPS if (bins[f"{group}_ns"] > 0).any()]
        self._metrics = self._tables.get("metrics")
        names = () if self._metrics is None else dict.fromkeys(self._metrics["metric"])
        self._colors = {str(n): _LINES[at % len(_LINES)] for at, n in enumerate(names)}

    @property
    def subtitle(self) -> str:
        """Summarize the chart in a line."""
        facts = self._facts
        parts = [PurePath(str(self._result.meta.get("path", ""))).name]
        parts.append(
            f"busy {format_share(facts['busy_share'])} of {format_time(facts['window_ns'])}"
        )
        if facts.get("longest_idle_ns"):
            at = format_time(facts["longest_idle_at_ns"])
            parts.append(f"longest idle {format_time(facts['longest_idle_ns'])} at {at}")
        return " · ".join(filter(None, parts))

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        """Name the areas, then the lines."""
        areas = [(_GROUPS[group][1], _GROUPS[group][0]) for group in self._shown]
        return (*areas, *((color, name) for name, color in self._colors.items()))

    def rows(self) -> Iterator[StripChartRow]:
        """Draw each GPU: what it did, and below that what it sampled."""
        gpus = self._tables["gpus"]
        height = _TALL if gpus.height == 1 else _LOW if gpus.height <= _MAX_LOW_PLOTS else _LOWEST
        for gpu in gpus.iter_rows(named=True):
            number = f"GPU {gpu['device']}"
            name = f"{number} · {gpu['name']}" if gpu["name"] else number
            yield StripHeading(name, f"busy {format_share(gpu['busy_share'])}")
            several = number if gpus.height > 1 else ""
            own = self._tables["bins"].filter(device=gpu["device"])
            x = (*own["start_ns"], self._end)
            parts = [
                StackPart(name, (*own[f"{group}_share"], own[f"{group}_share"][-1]), color=color)
                for group, (name, color) in _GROUPS.items()
                if group in self._shown
            ]
            yield StripPlot(
                _SHARE,
                (StackSeries("busy", tuple(map(float, x)), tuple(parts), steps=True),),
                height,
                several,
            )
            if lines := tuple(self._lines(gpu["device"])):
                yield StripHeading("", "GPU metrics (sampled)")
                yield StripPlot(_SHARE, lines, 0.6 * height, several)

    def _lines(self, device: int) -> Iterator[LineSeries]:
        if self._metrics is None:
            return
        for name, color in self._colors.items():
            own = self._metrics.filter(device=device, metric=name)
            if own.height:
                x = tuple(float(t) for t in own["start_ns"])
                yield LineSeries(name, x, tuple(own["share"]), steps=True, color=color)

    def bands(self) -> Iterator[ShadedBand]:
        """Shade every other step."""
        steps = self._tables.get("steps")
        if steps is None or steps.height > _MAX_UTILIZATION_BANDS:
            return
        for start, length, number in steps.select("start_ns", "duration_ns", "number").iter_rows():
            yield ShadedBand(float(start), float(start + length), f"step {number}")

    def footnotes(self) -> Iterator[str]:
        """Explain the steps of the areas."""
        yield (
            f"Values are means of {format_time(self._facts['bin_ns'])} each. Overlapping work "
            "counts as compute before copies before communication."
        )


_LABELS = {"sm_share": "SMs in use", "compute_share": "compute", "memory_share": "memory (DRAM)"}
_MAX_POINTS = 400
"""More stretches are averaged over so many equal steps of time, or the lines would be a blur."""


def orion_figure(result: Composite, *, only: str | None = None) -> Figure:
    """Draw the answer of `gpusight orion plot`; `only` names the one series to show."""
    facts = {fact.key: fact.value for fact in result.facts}
    points = next(
        s.frame for s in result.sections if isinstance(s, TableResult) and s.command == "series"
    )
    known = {key for key in _LABELS if points.filter(pl.col("kernels") > 0)[key].count()}
    if only is not None and only not in known:
        raise MissingDataError(
            f"the report has no utilization of {_LABELS[only]}",
            hint="collect it: ncu --section SpeedOfLight …",
        )
    keys = [key for key in _LABELS if key in known and only in (None, key)]
    x, values = _orion_steps(points, keys)
    origin = x[0]
    times = tuple(t - origin for t in x)
    averages = {key: facts[f"{key}_average"] for key in keys}
    named = {key: f"{_LABELS[key]}, {_level(averages[key])}" for key in values}
    (name, y), *rest = [(named[key], y) for key, y in values.items()]
    tone = SeriesTone.PALE if rest else SeriesTone.SERIES
    area = StackSeries(name, times, (StackPart(name, y, tone),), steps=True)
    return Figure(
        result.title,
        ChartAxis("time since the first kernel", Fmt.TIME, low=0, high=times[-1]),
        ChartAxis("", Fmt.SHARE, low=0, high=1.0),
        (area, *(LineSeries(name, times, y, steps=True) for name, y in rest)),
        subtitle=_orion_subtitle(facts, averaged=points.height > _MAX_POINTS),
        # Labels at the levels would stand on the data; the legend names them.
        rules=tuple(LevelLine(average, "") for average in averages.values() if average is not None),
    )


def _level(average: float | None) -> str:
    if average is None:
        return "unknown for some kernels, drawn as 0"
    return f"mean {format_share(average)}"


def _orion_subtitle(facts: dict[str, float], *, averaged: bool) -> str:
    window, busy = facts["window_ns"], facts["busy_ns"]
    share = format_share(busy / window if window else None)
    text = f"{format_time(window)}, GPU busy {share}; dotted: mean including idle time"
    if averaged:
        text += f"; each point is the mean of {format_time(window / _MAX_POINTS)}"
    if facts["unmeasured_ns"]:
        text += f"; {format_time(facts['unmeasured_ns'])} of kernels not profiled"
    return text


def _orion_steps(points: pl.DataFrame, keys: list[str]) -> tuple[Numbers, dict[str, Numbers]]:
    """Give where each stretch begins, with its values; the last point ends the last stretch."""
    points = points.with_columns(pl.col(keys).fill_null(0.0))
    frame = points if points.height <= _MAX_POINTS else _averaged(points, keys)
    x = (*frame["start_ns"].to_list(), frame["end_ns"][-1])
    return x, {key: (*frame[key].to_list(), frame[key][-1]) for key in keys}


def _averaged(points: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Average over equal steps of time, by the area under each line up to every edge."""
    import numpy as np

    start, end = points["start_ns"].to_numpy(), points["end_ns"].to_numpy()
    knots = np.append(start, end[-1]).astype(np.float64)
    edges = np.linspace(knots[0], knots[-1], _MAX_POINTS + 1)
    step = edges[1] - edges[0]
    columns = {}
    for key in keys:
        area = np.concatenate([[0.0], np.cumsum(points[key].to_numpy() * (end - start))])
        columns[key] = np.clip(np.diff(np.interp(edges, knots, area)) / step, 0, 1)
    return pl.DataFrame({"start_ns": edges[:-1], "end_ns": edges[1:], **columns})
