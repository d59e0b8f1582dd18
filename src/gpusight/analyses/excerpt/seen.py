"""What a window shows, as tables that name their tracks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.excerpt.fields import POINT_FIELDS, SLICE_FIELDS, SUM_FIELDS
from gpusight.analyses.timeline.screen import Stretch
from gpusight.model.intervals import Intervals, coverage
from gpusight.result import TableResult

if TYPE_CHECKING:
    from gpusight.analyses.timeline.window import Ints, Window
    from gpusight.result import Field


@dataclass(frozen=True)
class Seen:
    """A window without the lines that lie too deep."""

    window: Window
    colours: tuple[str, ...]
    deepest: int
    """Lines of a track that are kept."""

    @property
    def items(self) -> int:
        """Count the events and sums that there are to be drawn."""
        every = (self.window.slices.line, self.window.bin_sums.line)
        return sum(int(self._is_kept[lines].sum()) for lines in every)

    def totals(self) -> dict[str, tuple[int, int]]:
        """Give the events of each track, and the time that its outermost line takes."""
        window = self.window
        slices, sums = window.slices, window.bin_sums
        clipped = np.minimum(slices.end_ns, window.end_ns) - np.maximum(
            slices.start_ns, window.start_ns
        )
        count = len(window.lines)
        events = _added(slices.line, np.ones(len(slices.line)), count)
        events += _added(sums.line, sums.count, count)
        busy = _added(slices.line, clipped, count) + _added(sums.line, sums.busy_ns, count)
        found: dict[str, tuple[int, int]] = {}
        for (key, line), happened, ns in zip(window.lines, events, busy, strict=True):
            before = found.get(key, (0, 0))
            found[key] = (before[0] + int(happened), int(ns) if line == 0 else before[1])
        return found

    def sections(self) -> tuple[TableResult, ...]:
        """Give what is drawn: events alone, sums of shorter ones, and values of series."""
        return (
            _table("slices", "Events drawn alone", SLICE_FIELDS, self._slices),
            _table("sums", "Sums of shorter events", SUM_FIELDS, self._sums),
            _table("points", "Values", POINT_FIELDS, self._points),
        )

    @property
    def _slices(self) -> pl.DataFrame:
        slices = self.window.slices
        at = np.flatnonzero(self._is_kept[slices.line])
        labels = pl.Series(self.window.labels, dtype=pl.String)
        return self._of(slices.line[at]).with_columns(
            pl.Series("start_ns", slices.start_ns[at], pl.Int64),
            pl.Series("duration_ns", (slices.end_ns - slices.start_ns)[at], pl.Int64),
            self._category(slices.colour[at]),
            labels.gather(slices.label[at]).alias("name"),
        )

    @property
    def _sums(self) -> pl.DataFrame:
        sums = self.window.bin_sums
        at = np.flatnonzero(self._is_kept[sums.line])
        edges = self._edges
        return self._of(sums.line[at]).with_columns(
            pl.Series("start_ns", edges[sums.bin[at]], pl.Int64),
            pl.Series("duration_ns", np.diff(edges)[sums.bin[at]], pl.Int64),
            pl.Series("free_ns", self._free_ns()[at], pl.Int64),
            pl.Series("busy_ns", sums.busy_ns[at], pl.Int64),
            pl.Series("events", sums.count[at], pl.Int64),
            self._category(sums.colour[at]),
        )

    def _free_ns(self) -> Ints:
        """Give the time of each bin that no slice of its line takes."""
        slices, sums = self.window.slices, self.window.bin_sums
        start, end = self._edges[sums.bin], self._edges[sums.bin + 1]
        free: Ints = end - start
        for line in np.flatnonzero(np.bincount(sums.line)):
            at, own = np.flatnonzero(sums.line == line), np.flatnonzero(slices.line == line)
            alone = Intervals.from_arrays(slices.start_ns[own], slices.end_ns[own])
            free[at] -= coverage(alone, start[at], end[at])
        return free

    @property
    def _points(self) -> pl.DataFrame:
        points = self.window.points
        return self._of(points.line).with_columns(
            pl.Series("start_ns", self._edges[points.bin], pl.Int64),
            *(
                pl.Series(name, getattr(points, name), pl.Float64)
                for name in ("low", "high", "mean")
            ),
        )

    def _of(self, line: Ints) -> pl.DataFrame:
        keys = pl.Series([key for key, _ in self.window.lines], dtype=pl.String)
        numbers = pl.Series([number for _, number in self.window.lines], dtype=pl.Int64)
        return pl.DataFrame({"track": keys.gather(line), "line": numbers.gather(line)})

    def _category(self, colour: Ints) -> pl.Series:
        return pl.Series(self.colours, dtype=pl.String).gather(colour).alias("category")

    @cached_property
    def _is_kept(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.array([number < self.deepest for _, number in self.window.lines], np.bool_)

    @cached_property
    def _edges(self) -> Ints:
        window = self.window
        return Stretch.of(window.start_ns, window.end_ns, window.bins).edges


def _added(line: Ints, values: np.ndarray[tuple[int], np.dtype[np.generic]], count: int) -> Ints:
    # Sums of whole numbers are exact in floating point up to 104 days of nanoseconds.
    return np.bincount(line, values, count).astype(np.int64)


def _table(command: str, title: str, fields: tuple[Field, ...], frame: pl.DataFrame) -> TableResult:
    return TableResult(command, title, fields, frame.select(field.key for field in fields))
