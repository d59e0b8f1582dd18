"""A stretch of time as a chart: the tracks of a timeline as strips below each other."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.ledger.ledger_entries import COMPUTE
from gpusight.naming.kernel_patterns import CATEGORIES
from gpusight.render.cell_text import shorten_middle
from gpusight.render.charts.figure import (
    ChartAxis,
    ChartStrip,
    ShadedBand,
    StackPart,
    StackSeries,
    StripAxis,
    StripCells,
    StripChart,
    StripHeading,
    StripPlot,
)
from gpusight.results import Fmt, TableResult
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.charts.figure import StripChartRow
    from gpusight.results import Composite


_HEIGHT, _LEDGER, _SERIES = 15.0, 18.0, 46.0
"""Pixels of a line of events, of the ledger, and of values over time."""
_LEVELS = 15
"""Heights that a column of short events may have."""
_MIN_LEVEL = 2
"""The lowest of them: marks take no time, but were there."""
_MAX_KEYS = 20
_MAX_BANDS = 60
"""More steps than this would be a pattern, not bands."""
_ORDER = ("compute", "copy", "communication", "idle", "api", "overhead")
"""Groups of colors in the legend; others are chosen by name, and mean nothing."""
_CATEGORY_WORDS = {
    **{f"{COMPUTE}/{category}": category for category in CATEGORIES},
    "compute/copy": "copy kernels",
    "compute/other": "other kernels",
    "compute/graph": "CUDA graphs",
    "overhead": "profiler overhead",
}
"""What colors are called, where that is not how they are written."""
_MAX_TITLED_EVENTS, _MAX_TITLE_CHARACTERS = 800, 72
"""Events with a tooltip, and letters of their names there."""
_SERIES_COLORS = {"memory": "compute/normalization", "metric": "compute/matmul"}
_PERCENT = 100.0


def timeline_figure(result: Composite) -> StripChart:
    """Draw the answer of `gpusight timeline`."""
    drawing = _TimelineDrawing(result)
    start, end = result.meta["start_ns"], result.meta["end_ns"]
    return StripChart(
        result.title + (f": {drawing.facts['what']}" if "what" in drawing.facts else ""),
        ChartAxis(f"time since {format_time(start)}", Fmt.TIME, low=0.0, high=float(end - start)),
        (*drawing.rows(), StripAxis()),
        subtitle=drawing.subtitle,
        legend=tuple(drawing.legend()),
        bands=tuple(drawing.bands()),
        footnotes=tuple(drawing.footnotes()),
    )


class _TimelineDrawing:
    """An excerpt being turned into rows."""

    def __init__(self, result: Composite) -> None:
        self.facts = {fact.key: fact.value for fact in result.facts}
        self._result = result
        self._start: int = result.meta["start_ns"]
        tables = {s.command: s.frame for s in result.sections if isinstance(s, TableResult)}
        self._tracks = tables["tracks"].filter("drawn")
        self._slices = self._clipped(tables["slices"])
        self._sums = _join_bins(tables["sums"], self._start)
        self._points = tables["points"]

    @property
    def subtitle(self) -> str:
        """Name the file, and how long the excerpt is."""
        name = PurePath(str(self._result.meta.get("path", ""))).name
        return " · ".join(filter(None, (name, format_time(self.facts["length_ns"]))))

    def rows(self) -> Iterator[StripChartRow]:
        """Draw every track, below what it belongs to."""
        about: tuple[str, str | None] | None = None
        for track in self._tracks.iter_rows(named=True):
            owner = (track["group"], track["thread"])
            if owner != about:
                about = owner
                yield StripHeading(owner[1] or owner[0], owner[0] if owner[1] else "")
            yield from self._track(track)

    def _track(self, track: dict[str, Any]) -> Iterator[StripChartRow]:
        if track["busy_ns"] is None:
            yield from self._series(track)
            return
        height = _LEDGER if track["kind"] == "ledger" else _HEIGHT
        for line in range(track["lines"]):
            cells = self._cells(track, line)
            if cells is not None:
                is_first = line == 0
                yield ChartStrip(
                    track["name"] if is_first else "", cells, height, 4 if is_first else 1
                )

    def _cells(self, track: dict[str, Any], line: int) -> StripCells | None:
        """Give short events as columns, and over them those that stand alone."""
        own = (pl.col("track") == track["track"]) & (pl.col("line") == line)
        sums, slices = self._sums.filter(own), self._slices.filter(own)
        if sums.is_empty() and slices.is_empty():
            return None
        nothing = ("",) * sums.height
        # The last word of a ledger entry is the most specific, where there is no room for all.
        brief = slices["category"].str.split("/").list.last() if track["kind"] == "ledger" else None
        return StripCells(
            (*sums["from"], *slices["from"]),
            (*sums["to"], *slices["to"]),
            (*sums["category"], *slices["category"]),
            parts=(*sums["part"], *(1.0,) * slices.height),
            labels=(*nothing, *slices["name"]),
            brief=() if brief is None else (*nothing, *brief),
            titles=(*nothing, *slices["title"]),
        )

    def _series(self, track: dict[str, Any]) -> Iterator[StripChartRow]:
        """Draw values over time, as the mean of each bin."""
        own = self._points.filter(track=track["track"], line=0).sort("start_ns")
        if own.is_empty():
            return
        name, percent = track["name"], track["unit"] == "%"
        values = tuple(value / _PERCENT if percent else value for value in own["mean"])
        fmt = Fmt.SHARE if percent else Fmt.BYTES if track["unit"] == "bytes" else Fmt.REAL
        most = max(values)
        axis = ChartAxis("", fmt, low=0.0, high=max(most, 1.0) if percent else most or 1.0)
        x = tuple(float(t - self._start) for t in own["start_ns"])
        part = StackPart(name, values, color=_SERIES_COLORS[track["kind"]])
        yield StripHeading("", name)
        yield StripPlot(axis, (StackSeries(name, x, (part,), steps=True),), _SERIES, name)

    def legend(self) -> Iterator[tuple[str, str]]:
        """Name the colors that mean something: work first, and what takes most time."""
        both = [
            frame.select("category", (pl.col("to") - pl.col("from")).alias("ns"))
            for frame in (self._slices, self._sums)
        ]
        sums = pl.concat(both).group_by("category").agg(pl.col("ns").sum())
        shown = sums.sort(["ns", "category"], descending=[True, False])["category"].to_list()
        known = [category for category in shown if _group(category) in _ORDER][:_MAX_KEYS]
        for category in sorted(
            known, key=lambda category_name: _ORDER.index(_group(category_name))
        ):
            yield category, _CATEGORY_WORDS.get(category, category.replace("/", ": "))

    def bands(self) -> Iterator[ShadedBand]:
        """Shade every other step; of a single one the time around it."""
        end = float(self._result.meta["end_ns"] - self._start)
        steps = [self._band(step) for step in self._result.meta["steps"]]
        inside = [band for band in steps if band.start > 0 and band.end < end]
        if len(inside) != 1:
            yield from steps if len(steps) <= _MAX_BANDS else ()
            return
        (only,) = inside
        yield from (ShadedBand(0.0, only.start), only, ShadedBand(only.end, end))

    def _band(self, step: dict[str, Any]) -> ShadedBand:
        start, end = (max(0.0, step[key] - self._start) for key in ("start_ns", "end_ns"))
        return ShadedBand(start, end, f"step {step['number']}")

    def footnotes(self) -> Iterator[str]:
        """Explain how short events are drawn, and what is left out."""
        if self._sums.height:
            narrow = format_time(self.facts["narrow_ns"])
            yield (
                f"Events shorter than {narrow} are aggregated: the height of a column is the busy "
                "share, its color the largest category."
            )
        for note in self._result.notes:
            if "drawn" in note:
                yield f"{note[:1].upper()}{note[1:]}."

    def _clipped(self, slices: pl.DataFrame) -> pl.DataFrame:
        """Give events from the excerpt's start on, and words for the longest."""
        end = self._result.meta["end_ns"] - self._start
        begin, took = pl.col("start_ns") - self._start, pl.col("duration_ns")
        slices = slices.with_columns(
            begin.clip(0, end).cast(pl.Float64).alias("from"),
            (begin + took).clip(0, end).cast(pl.Float64).alias("to"),
        )
        least = slices["duration_ns"].sort(descending=True)[:_MAX_TITLED_EVENTS].min() or 0
        titles = [
            f"{shorten_middle(name, _MAX_TITLE_CHARACTERS)}: {format_time(ns)}"
            if ns >= least
            else ""
            for name, ns in slices.select("name", "duration_ns").iter_rows()
        ]
        return slices.with_columns(pl.Series("title", titles, pl.String))


def _group(category: str) -> str:
    return category.partition("/")[0]


def _join_bins(sums: pl.DataFrame, start_ns: int) -> pl.DataFrame:
    """Join neighboring bins that look alike: the same color, as tall to a pixel."""
    # Where an event that stands alone takes the rest of a bin, what is left of it is what counts.
    level = (pl.col("busy_ns") / pl.col("free_ns") * _LEVELS).ceil().fill_nan(_MIN_LEVEL)
    begin = (pl.col("start_ns") - start_ns).cast(pl.Float64)
    columns = sums.with_columns(
        (level.clip(_MIN_LEVEL, _LEVELS) / _LEVELS).alias("part"),
        begin.alias("from"),
        (begin + pl.col("duration_ns")).alias("to"),
    )
    own = ["track", "line", "category", "part"]
    follows = pl.all_horizontal(
        *(pl.col(name) == pl.col(name).shift(1) for name in own),
        pl.col("from") == pl.col("to").shift(1),
    )
    run = (~follows.fill_null(value=False)).cum_sum().alias("run")
    return (
        columns.with_columns(run)
        .group_by("run", *own, maintain_order=True)
        .agg(pl.col("from").first(), pl.col("to").last())
    )
