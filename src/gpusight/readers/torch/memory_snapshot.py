"""CUDA memory snapshots of PyTorch: `torch.cuda.memory._dump_snapshot("snapshot.pickle")`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.file_blocks import FileBlocks
from gpusight.readers.frame_source import FrameSource
from gpusight.readers.name_columns import encode_names, shown_file
from gpusight.readers.torch.unpickle import (
    UnexpectedDataError,
    as_text,
    check_start,
    check_total,
    integers,
    load_plain,
    no_collecting,
    rows_of,
    texts,
)
from gpusight.trace.trace import Meta
from gpusight.units import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gpusight.readers.torch.unpickle import Row
    from gpusight.trace.trace import TraceSource


_OPERATIONS = {
    "alloc": "allocation",
    "free": "deallocation",
    "free_completed": "deallocation",
    "segment_alloc": "segment_allocation",
    "segment_free": "segment_deallocation",
    "oom": "out_of_memory",
    "workspace_snapshot": "snapshot",
}
"""Actions that the model calls otherwise; the others keep their names."""
_STATES = {
    "active_allocated": "active",
    "active_pending_free": "pending_free",
    "active_awaiting_free": "pending_free",
}
_MAX_TIME_US = 1 << 52
"""A century and more from now; what lies beyond is no time."""


def events_of(traces: Sequence[Sequence[Row]], chains: CallChains) -> pl.DataFrame:
    """Make `memory_events` of the history of each device; `time_us` is still as recorded."""
    return pl.concat([_device_events(device, rows, chains) for device, rows in enumerate(traces)])


def _device_events(device: int, rows: Sequence[Row], chains: CallChains) -> pl.DataFrame:
    stacks = (row.get("frames") for row in rows)
    return pl.DataFrame(
        {
            "time_us": times(rows),
            "operation": texts(rows, "action", required=True).replace(_OPERATIONS),
            "stream": integers(rows, "stream"),
            "address": integers(rows, "addr"),
            "bytes": integers(rows, "size", required=True),
            "callchain": chains.numbers("memory_events", stacks),
        }
    ).with_columns(
        device=pl.lit(device, dtype=pl.Int64),
        allocator=pl.lit("framework"),
        memory_kind=pl.lit("Device"),
    )


def times(rows: Sequence[Row]) -> pl.Series:
    """Give when each entry was recorded, in µs; one without a time takes that of its neighbour."""
    column = integers(rows, "time_us")
    if column.is_between(-_MAX_TIME_US, _MAX_TIME_US).not_().any():
        raise UnexpectedDataError("'time_us' is no time")
    return column.fill_null(strategy="forward").fill_null(strategy="backward")


def blocks_of(segments: Sequence[Row], chains: CallChains, limit: int) -> pl.DataFrame:
    """Make `memory_blocks` of all segments, refusing more than `limit` of them."""
    check_total((segment.get("blocks") for segment in segments), limit, "the blocks of segments")
    parts = [rows_of(segment.get("blocks"), "blocks") for segment in segments]
    counts = pl.Series([len(part) for part in parts], dtype=pl.Int64)
    blocks = [block for part in parts for block in part]
    older = [_latest(block) for block in blocks]
    owner = pl.int_range(counts.len(), eager=True).repeat_by(counts).explode().drop_nulls()
    stacks = (b.get("frames", o.get("frames")) for b, o in zip(blocks, older, strict=True))
    requested = integers(blocks, "requested_size")
    own = pl.DataFrame(
        {
            "owner": owner,
            "address": integers(blocks, "address"),
            "bytes": integers(blocks, "size", required=True),
            "requested_bytes": requested.zip_with(
                requested.is_not_null(), integers(older, "real_size")
            ),
            "state": texts(blocks, "state", required=True).replace(_STATES),
            "callchain": chains.numbers("memory_blocks", stacks),
        }
    )
    return _with_segments(own, _segment_columns(segments).select(pl.all().gather(owner)))


def _latest(block: Row) -> Row:
    """Give the newest entry of a history that blocks kept in PyTorch 1.12 and 1.13."""
    history = block.get("history")
    if type(history) is not list or not history:
        return {}
    return rows_of(history[:1], "histories")[0]


def _segment_columns(segments: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "device": integers(segments, "device", required=True),
            "stream": integers(segments, "stream"),
            "segment": integers(segments, "address", required=True),
            "segment_bytes": integers(segments, "total_size", required=True),
            "segment_kind": texts(segments, "segment_type"),
            "expandable": _flags(segments, "is_expandable"),
        }
    )


def _flags(rows: Sequence[Row], key: str) -> pl.Series:
    values = [value if type(value := row.get(key)) is bool else None for row in rows]
    return pl.Series(key, values, dtype=pl.Boolean)


def _with_segments(blocks: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """Add what blocks have from their segment; older versions leave the address to be counted."""
    before = pl.col("bytes").cum_sum().over("owner") - pl.col("bytes")
    idle = pl.col("state") == "inactive"
    return (
        blocks.hstack(segments)
        .with_columns(
            address=pl.col("address").fill_null(pl.col("segment") + before),
            # What the block was last used for says nothing about it now.
            requested_bytes=pl.when(~idle).then("requested_bytes"),
        )
        .drop("owner")
    )


def ranges_of(annotations: Sequence[Row]) -> tuple[pl.DataFrame, int]:
    """Pair the starts and ends of annotations on each device; count those that have no partner.

    An annotation never closed has no end yet.
    """
    stages = texts(annotations, "stage").to_list()
    names = texts(annotations, "name").to_list()
    devices = integers(annotations, "device").to_list()
    when = times(annotations).to_list()
    ends: list[int | None] = [None] * len(annotations)
    opened: defaultdict[tuple[Any, Any], list[int]] = defaultdict(list)
    starts: list[int] = []
    strays = 0
    for at, stage in enumerate(stages):
        key = devices[at], names[at]
        if stage == "START":
            opened[key].append(at)
            starts.append(at)
        elif stage == "END" and opened[key]:
            first = opened[key].pop()
            ends[first] = max(when[at] or 0, when[first] or 0)
        else:
            strays += 1
    frame = pl.DataFrame(
        {
            "start_us": pl.Series([when[at] for at in starts], dtype=pl.Int64),
            "end_us": pl.Series([ends[at] for at in starts], dtype=pl.Int64),
            "name": pl.Series([names[at] or "" for at in starts], dtype=pl.String),
            "record": pl.Series([at + 1 for at in starts], dtype=pl.Int64),
            # They nest on each device, as NVTX ranges do in each domain.
            "domain_key": pl.Series([devices[at] for at in starts], dtype=pl.Int64),
        }
    )
    return frame, strays


class CallChains:
    """Numbers lists of frames, all of which exist before the first of them is given up."""

    def __init__(self) -> None:
        self._by_list: dict[int, int | None] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_frame: dict[int, int] = {}
        self._chains: dict[tuple[int, ...], int] = {}
        self._used: dict[str, set[int]] = {}
        self._frames: dict[tuple[str | None, str | None, int | None], int] = {}

    def numbers(self, source: str, lists: Iterable[Any]) -> pl.Series:
        """Give the chain of each list of frames; null where none was taken."""
        known = self._by_list
        found = []
        for frames in lists:
            key = id(frames)
            if key not in known:
                known[key] = self._number(frames)
            found.append(known[key])
        used = self._used.setdefault(source, set())
        used.update(number for number in found if number is not None)
        return pl.Series("callchain", found, dtype=pl.Int64)

    def _number(self, frames: Any) -> int | None:
        if not frames:
            return None
        if type(frames) is not list:
            raise UnexpectedDataError("the frames of a stack are not a list")
        same = tuple(map(id, frames))
        number = self._by_frames.get(same)
        if number is None:
            for key, frame in zip(same, frames, strict=True):
                if key not in self._by_frame:
                    self._by_frame[key] = self._frame(frame)
            number = self._by_frames[same] = self._chain(same)
        return number

    def _chain(self, frames: tuple[int, ...]) -> int:
        chain = tuple([self._by_frame[frame] for frame in frames])
        return self._chains.setdefault(chain, len(self._chains) + 1)

    def _frame(self, frame: Any) -> int:
        if type(frame) is not dict:
            raise UnexpectedDataError("a frame of a stack is not a dictionary")
        name, file, line = frame.get("name"), frame.get("filename"), frame.get("line")
        key = (
            as_text(name) or None,
            shown_file(as_text(file)),
            line if type(line) is int and 0 < line < 1 << 31 else None,
        )
        return self._frames.setdefault(key, len(self._frames))

    def table(self) -> pl.DataFrame:
        """Make the `callchains` of all lists seen."""
        frames = list(self._frames)
        at = pl.Series([f for chain in self._chains for f in chain], dtype=pl.UInt32)
        lengths = pl.Series([len(chain) for chain in self._chains], dtype=pl.Int64)
        chain = lengths.cum_count().cast(pl.Int64).repeat_by(lengths).explode()
        every = pl.DataFrame(
            {
                "callchain": chain,
                "depth": pl.int_ranges(lengths, eager=True).explode(),
                "symbol": _names([f[0] for f in frames]).gather(at),
                "file": _names([f[1] for f in frames]).gather(at),
                "line": pl.Series([f[2] for f in frames], dtype=pl.Int64).gather(at),
            }
        )
        sources = pl.Enum(list(self._used))
        listed = [
            every.filter(chain.is_in(sorted(used))).with_columns(source=pl.lit(source, sources))
            for source, used in self._used.items()
        ]
        return pl.concat(listed) if listed else every.clear()


def _names(texts: list[str | None]) -> pl.Series:
    return encode_names(pl.Series(texts, dtype=pl.String))


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
    head = next(iter(FileBlocks(path)), b"")[:_HEAD_BYTES]
    check_start(path, head)
    if not any(word.encode() in head for word in (*_PARTS, _SEGMENT_KEY)):
        raise _not_a_snapshot(path)
    return FrameSource(partial(_read, path))


def _read(path: Path) -> tuple[Meta, dict[str, pl.DataFrame]]:
    try:
        with no_collecting():
            pickled = load_plain(path)
            return _converted(path, _recognized(path, pickled.value, pickled.size_bytes))
    except UnexpectedDataError as misfit:
        raise DamagedCaptureError(
            f"{path} is not laid out as a memory snapshot", why=str(misfit)
        ) from None


def _not_a_snapshot(path: Path) -> NotACaptureError:
    return NotACaptureError(
        f"{path} is a pickle, but not of a CUDA memory snapshot",
        hint="write one with: torch.cuda.memory._dump_snapshot(path)",
    )


def _recognized(path: Path, value: Any, size_bytes: int) -> _Snapshot:
    if type(value) is list and value and type(value[0]) is dict and _SEGMENT_KEY in value[0]:
        value = {"segments": value}
    if type(value) is not dict or not value.keys() & set(_PARTS[:2]):
        raise _not_a_snapshot(path)
    traces = value.get("device_traces") or []
    if type(traces) is not list or len(traces) > _MAX_DEVICES:
        raise UnexpectedDataError("it has no list of histories, one for each device")
    check_total(traces, size_bytes, "the histories of devices")
    return _Snapshot(
        rows_of(value.get("segments"), "segments"),
        [rows_of(trace, "histories") for trace in traces],
        rows_of(value.get("external_annotations"), "annotations"),
        size_bytes,
    )


def _converted(path: Path, snapshot: _Snapshot) -> tuple[Meta, dict[str, pl.DataFrame]]:
    chains = CallChains()
    events = events_of(snapshot.traces or [[]], chains)
    for trace in snapshot.traces:  # by far the most of the file, and needed no more
        trace.clear()
    blocks = blocks_of(snapshot.segments, chains, snapshot.size_bytes)
    for sizes in (events["bytes"], blocks["bytes"]):
        if int((sizes < 0).sum()):
            raise UnexpectedDataError("some sizes are negative")
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
