"""What lies in a selected stretch of time: GPU utilization, kinds of work, top kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.capture_info import device_names
from gpusight.analysis.gpu_schedule import OpKind
from gpusight.analysis.ledger.ledger_entries import GRAPH
from gpusight.errors import UsageError
from gpusight.naming.kernel_names import unique_short_names
from gpusight.trace.intervals import Intervals
from gpusight.viewer.track_style import CODES, COLORS, MEMSET, by_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace
    from gpusight.viewer.timeline_view import ViewerTimeline
    from gpusight.viewer.track_style import ColorCodes


_MAX_KERNELS = 20
_WORDS = {OpKind.KERNEL: "name", OpKind.COPY: "kind"}
"""Columns with the kind of work of a row, where a table holds several."""
_ALWAYS = {OpKind.MEMSET: MEMSET, OpKind.GRAPH: GRAPH}


@dataclass(frozen=True, slots=True)
class KindMeasures:
    """Work of one color on a GPU; overlapping events each count."""

    key: str
    """As in `ViewerTimeline.colors`: `compute/matmul`, `copy/h2d`, …"""
    ns: int
    """Time inside the stretch."""
    count: int
    """GPU activities that touch it."""


@dataclass(frozen=True, slots=True)
class DeviceMeasures:
    """What a GPU did in the stretch."""

    device: int
    name: str
    """Such as `NVIDIA H200`; empty where unknown."""
    busy_ns: int
    """Time in which at least one stream had work running."""
    by: tuple[KindMeasures, ...]
    """Those with most time first."""


@dataclass(frozen=True, slots=True)
class KernelMeasures:
    """All launches of one kernel in the stretch, on any GPU."""

    name: str
    count: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class SelectionMeasures:
    """The numbers of a stretch of time."""

    start_ns: int
    end_ns: int
    devices: tuple[DeviceMeasures, ...]
    """Every GPU that worked at all, whether in the stretch or not."""
    kernels: tuple[KernelMeasures, ...]
    """The 20 with most time in it."""


def measure(timeline: ViewerTimeline, start_ns: int, end_ns: int) -> SelectionMeasures:
    """Add up what ran from `start_ns` to `end_ns`; of what runs across an end, the part inside."""
    if end_ns <= start_ns:
        raise UsageError("a time range must end after it starts")
    trace = timeline.trace
    work = [_work(trace, kind, start_ns, end_ns) for kind in OpKind if trace.has(kind.table)]
    names = device_names(trace)
    used = pl.concat([trace.table(kind.table, ["device"])["device"].unique() for kind in OpKind])
    devices = tuple(_device(d, names.get(d) or "", work) for d in used.unique().sort())
    return SelectionMeasures(start_ns, end_ns, devices, _kernels(trace, work))


class _Work(NamedTuple):
    """The rows of a table that touch the stretch, cut to it."""

    kind: OpKind
    row: Ints
    device: Ints
    start_ns: Ints
    end_ns: Ints
    color: ColorCodes


def _work(trace: Trace, kind: OpKind, start_ns: int, end_ns: int) -> _Work:
    frame = trace.table(kind.table, ["start_ns", "end_ns", "device"])
    start, end, device = (frame[c].to_numpy() for c in frame.columns)
    # Rows are in order of start, so that none from here on touches the stretch.
    started = int(np.searchsorted(start, end_ns))
    row = np.flatnonzero((end[:started] > start_ns) | (start[:started] >= start_ns))
    inside = (np.maximum(start[row], start_ns), np.minimum(end[row], end_ns))
    return _Work(kind, row, device[row], *inside, _colors(trace, kind, row))


def _colors(trace: Trace, kind: OpKind, row: Ints) -> ColorCodes:
    if kind in _ALWAYS:
        return np.full(len(row), CODES[_ALWAYS[kind]], np.uint8)
    words = trace.table(kind.table, [_WORDS[kind]]).to_series()
    colors: ColorCodes = by_entry(trace, kind, _WORDS[kind])[words.to_physical().to_numpy()[row]]
    return colors


def _device(device: int, name: str, work: Iterable[_Work]) -> DeviceMeasures:
    columns_by_table = [_of_device(table_work, device) for table_work in work]
    start, end, color = (np.concatenate(columns) for columns in zip(*columns_by_table, strict=True))
    busy = Intervals.from_arrays(start, end)
    ns, count = _summed(color, end - start, len(COLORS))
    kinds = [
        KindMeasures(COLORS[code], int(ns[code]), int(count[code])) for code in _most(ns, count)
    ]
    return DeviceMeasures(device, name, busy.length_ns, tuple(kinds))


def _of_device(table_work: _Work, device: int) -> tuple[Ints, Ints, ColorCodes]:
    rows = slice(None) if bool((table_work.device == device).all()) else table_work.device == device
    return table_work.start_ns[rows], table_work.end_ns[rows], table_work.color[rows]


def _kernels(trace: Trace, work: Sequence[_Work]) -> tuple[KernelMeasures, ...]:
    """Return the kernels with most time."""
    if not work or work[0].kind is not OpKind.KERNEL:
        return ()
    names = trace.table("kernels", ["name"])["name"]
    texts, kernels = names_of(names), work[0]
    ns, count = _summed(
        names.to_physical().to_numpy()[kernels.row], kernels.end_ns - kernels.start_ns, len(texts)
    )
    top = _most(ns, count)[:_MAX_KERNELS]
    return tuple(KernelMeasures(texts[code], int(count[code]), int(ns[code])) for code in top)


def _summed(codes: Ints | ColorCodes, lengths: Ints, most: int) -> tuple[Ints, Ints]:
    """Add up lengths by code, and count them."""
    # Sums of whole numbers are exact in floating point up to 104 days of nanoseconds.
    ns = np.bincount(codes, lengths, most).astype(np.int64)
    return ns, np.bincount(codes, minlength=most)


def _most(ns: Ints, count: Ints) -> Ints:
    """Return the codes that occur, those with most time first, then those with most events."""
    used = np.flatnonzero(count)
    return used[np.lexsort((-count[used], -ns[used]))]


class TimedEvent(NamedTuple):
    """An event of the timeline that touches a stretch of time."""

    table: str
    row: int
    name: str
    start_ns: int
    end_ns: int


_NAMED_BY = {"kernels": "name", "copies": "kind", "api_calls": "name", "ranges": "name"}
_NAMED_BY |= {"cpu_ops": "name", "syncs": "kind", "os_calls": "name"}
"""Tables whose events `longest_events` lists, and the columns that name them."""


def longest_events(trace: Trace, start_ns: int, end_ns: int, most: int) -> list[TimedEvent]:
    """Give the events that cover most of a stretch of time, on the GPU or the host."""
    events: list[tuple[int, TimedEvent]] = []
    for table, column in _NAMED_BY.items():
        if not trace.has(table):
            continue
        names = names_of(trace.table(table, [column])[column]) if table == "kernels" else ()
        shown = unique_short_names(names)
        touching = (
            trace.table(table, ["start_ns", "end_ns", column])
            .with_row_index("row")
            .filter((pl.col("start_ns") < end_ns) & (pl.col("end_ns") > start_ns))
            .with_columns(
                inside=pl.min_horizontal("end_ns", pl.lit(end_ns))
                - pl.max_horizontal("start_ns", pl.lit(start_ns))
            )
            .top_k(most, by="inside")
        )
        events += [
            (inside, TimedEvent(table, row, shown.get(name, name or ""), start, end))
            for row, start, end, name, inside in touching.iter_rows()
        ]
    events.sort(key=lambda pair: (-pair[0], pair[1].table, pair[1].row))
    return [event for _, event in events[:most]]
