"""CUDA memory snapshots of PyTorch: `torch.cuda.memory._dump_snapshot("snapshot.pickle")`.

One holds the blocks that the caching allocator has at that moment and, where history was recorded,
what it did before. `torch.cuda.memory_snapshot()`, pickled, is a list of the segments alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.model.trace import Meta
from gpusight.readers.blocks import Blocks
from gpusight.readers.frames import FrameSource
from gpusight.readers.torch.chains import Chains
from gpusight.readers.torch.plain import MisfitError, check_total, no_collecting, rows_of
from gpusight.readers.torch.snapshot_tables import blocks_of, events_of, ranges_of
from gpusight.readers.torch.unpickle import check_start, load_plain
from gpusight.units import format_bytes, format_count

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.model.trace import TraceSource
    from gpusight.readers.torch.plain import Row

_HEAD_BYTES = 1 << 14
_PARTS = ("segments", "device_traces", "allocator_settings", "external_annotations")
_SEGMENT_KEY = "total_size"
_MAX_DEVICES = 4096
_UNKNOWN_GPU = "unknown GPU"
_NO_HISTORY = (
    "it holds no history, only what was held at the end; "
    "torch.cuda.memory._record_memory_history() records one"
)
_UNIX_TIMES_US = range(10**15, 1 << 52)
"""From the year 2001 on; smaller numbers count from something else."""


@dataclass(frozen=True)
class _Snapshot:
    segments: list[Row]
    traces: list[list[Row]]
    annotations: list[Row]
    size_bytes: int


def snapshot_source(path: Path) -> TraceSource:
    """Open a memory snapshot; it is read when the first question is asked."""
    head = next(iter(Blocks(path)), b"")[:_HEAD_BYTES]
    check_start(path, head)
    if not any(word.encode() in head for word in (*_PARTS, _SEGMENT_KEY)):
        raise _not_a_snapshot(path)
    return FrameSource(partial(_read, path))


def _read(path: Path) -> tuple[Meta, dict[str, pl.DataFrame]]:
    try:
        with no_collecting():
            pickled = load_plain(path)
            return _converted(path, _recognised(path, pickled.value, pickled.size_bytes))
    except MisfitError as misfit:
        raise DamagedCaptureError(
            f"{path} is not laid out as a memory snapshot", why=str(misfit)
        ) from None


def _not_a_snapshot(path: Path) -> NotACaptureError:
    return NotACaptureError(
        f"{path} is a pickle, but not of a CUDA memory snapshot",
        hint="write one with: torch.cuda.memory._dump_snapshot(path)",
    )


def _recognised(path: Path, value: Any, size_bytes: int) -> _Snapshot:
    if type(value) is list and value and type(value[0]) is dict and _SEGMENT_KEY in value[0]:
        value = {"segments": value}
    if type(value) is not dict or not value.keys() & set(_PARTS[:2]):
        raise _not_a_snapshot(path)
    traces = value.get("device_traces") or []
    if type(traces) is not list or len(traces) > _MAX_DEVICES:
        raise MisfitError("it has no list of histories, one for each device")
    check_total(traces, size_bytes, "the histories of devices")
    return _Snapshot(
        rows_of(value.get("segments"), "segments"),
        [rows_of(trace, "histories") for trace in traces],
        rows_of(value.get("external_annotations"), "annotations"),
        size_bytes,
    )


def _converted(path: Path, snapshot: _Snapshot) -> tuple[Meta, dict[str, pl.DataFrame]]:
    chains = Chains()
    events = events_of(snapshot.traces or [[]], chains)
    for trace in snapshot.traces:  # by far the most of the file, and needed no more
        trace.clear()
    blocks = blocks_of(snapshot.segments, chains, snapshot.size_bytes)
    for sizes in (events["bytes"], blocks["bytes"]):
        if int((sizes < 0).sum()):
            raise MisfitError("some sizes are negative")
    ranges, strays = ranges_of(snapshot.annotations)
    callchains = chains.table()
    begin, end = _span(events, ranges)
    notes = (*_history_notes(events, blocks), *_stray_notes(strays))
    meta = Meta(
        path=str(path),
        source="torch-snapshot",
        tool="PyTorch memory snapshot",
        start_utc_ns=begin * 1000 if begin is not None and begin in _UNIX_TIMES_US else None,
        duration_ns=None if begin is None or end is None else (end - begin) * 1000,
        notes=notes,
    )
    return meta, {
        "memory_events": _timed(events, begin),
        "memory_blocks": blocks,
        "callchains": callchains,
        "ranges": _as_ranges(ranges, begin, end),
        "devices": _devices(events, blocks),
    }


def _span(events: pl.DataFrame, ranges: pl.DataFrame) -> tuple[int | None, int | None]:
    """Find the first and the last moment recorded, in microseconds."""
    columns = (events["time_us"], ranges["start_us"], ranges["end_us"])
    moments = pl.concat([column.rename("us") for column in columns])
    low, high = moments.min(), moments.max()
    return (low, high) if isinstance(low, int) and isinstance(high, int) else (None, None)


def _timed(events: pl.DataFrame, begin: int | None) -> pl.DataFrame:
    """Count times from the first; events of versions that record none are numbered instead."""
    recorded = (pl.col("time_us") - (begin or 0)) * 1000
    number = pl.int_range(pl.len(), dtype=pl.Int64).over("device")
    return events.with_columns(time_ns=recorded.fill_null(number)).drop("time_us")


def _as_ranges(ranges: pl.DataFrame, begin: int | None, end: int | None) -> pl.DataFrame:
    start, last = begin or 0, pl.lit(end, dtype=pl.Int64)
    return ranges.select(
        "name",
        "record",
        "domain_key",
        start_ns=(pl.col("start_us").fill_null(start) - start) * 1000,
        end_ns=(pl.col("end_us").fill_null(last).fill_null(start) - start) * 1000,
        kind=pl.lit("push_pop"),
        domain=pl.lit(""),
        open=pl.col("end_us").is_null(),
    )


def _devices(events: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    seen = pl.concat([events["device"], blocks["device"]]).unique().sort()
    return pl.DataFrame({"device": seen}).with_columns(name=pl.lit(_UNKNOWN_GPU))


def _history_notes(events: pl.DataFrame, blocks: pl.DataFrame) -> tuple[str, ...]:
    if events.is_empty():
        return (_NO_HISTORY,)
    notes = []
    if events.get_column("time_us").null_count():
        notes.append("this version of PyTorch records no times: events are numbered in their order")
    if events.get_column("callchain").null_count() == events.height:
        notes.append("its history was recorded without stacks")
    earlier = _held_before(events, blocks)
    if earlier.height:
        size = format_bytes(int(earlier.get_column("bytes").sum()))
        notes.append(
            f"its history does not reach back to the start: {format_count(earlier.height)} blocks "
            f"({size}) were allocated before its first event"
        )
    return tuple(notes)


def _held_before(events: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """Find what was held when the history began: freed in it or held still, not taken in it."""
    place = ["device", "address"]
    used = events.filter(
        pl.col("operation").is_in(["allocation", "deallocation", "free_requested"])
    ).unique(place, keep="first")
    freed = used.filter(pl.col("operation") != "allocation")
    held = blocks.filter(pl.col("state") != "inactive").join(used, on=place, how="anti")
    return pl.concat([freed.select(*place, "bytes"), held.select(*place, "bytes")])


def _stray_notes(strays: int) -> tuple[str, ...]:
    if not strays:
        return ()
    return (f"{format_count(strays)} ends of annotations have no start in the snapshot",)
