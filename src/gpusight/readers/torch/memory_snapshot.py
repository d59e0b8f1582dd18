"""CUDA memory snapshots of PyTorch: `torch.cuda.memory._dump_snapshot("snapshot.pickle")`."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.file_blocks import FileBlocks
from gpusight.readers.tables import FrameSource, encode_names, shown_file
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
    from collections.abc import Iterable, Iterator, Sequence
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
"""Actions that have another name in the tables; the others keep theirs."""
_STATES = {
    "active_allocated": "active",
    "active_pending_free": "pending_free",
    "active_awaiting_free": "pending_free",
}
_MAX_TIME_US = 1 << 52
"""More than a century from now; beyond, it is no time."""


def events_of(traces: Sequence[Sequence[Row]], chains: CallChains) -> pl.DataFrame:
    """Build `memory_events` from the history of each device; `time_us` is still as recorded."""
    frames = [
        pl.DataFrame(
            {
                "time_us": times(rows),
                "operation": texts(rows, "action", required=True).replace(_OPERATIONS),
                "stream": integers(rows, "stream"),
                "address": integers(rows, "addr"),
                "bytes": integers(rows, "size", required=True),
                "callchain": chains.numbers("memory_events", (row.get("frames") for row in rows)),
            }
        ).with_columns(
            device=pl.lit(device, dtype=pl.Int64),
            allocator=pl.lit("framework"),
            memory_kind=pl.lit("Device"),
        )
        for device, rows in enumerate(traces)
    ]
    return pl.concat(frames)


def times(rows: Sequence[Row]) -> pl.Series:
    """Return when each entry was recorded, in µs; one without a time takes its neighbor's."""
    column = integers(rows, "time_us")
    if column.is_between(-_MAX_TIME_US, _MAX_TIME_US).not_().any():
        raise UnexpectedDataError("'time_us' is no time")
    return column.fill_null(strategy="forward").fill_null(strategy="backward")


def blocks_of(segments: Sequence[Row], chains: CallChains, limit: int) -> pl.DataFrame:
    """Build `memory_blocks` from all segments, refusing more than `limit` of them."""
    check_total((segment.get("blocks") for segment in segments), limit, "the blocks of segments")
    by_segment = [rows_of(segment.get("blocks"), "blocks") for segment in segments]
    counts = pl.Series([len(blocks) for blocks in by_segment], dtype=pl.Int64)
    blocks = [block for own in by_segment for block in own]
    histories = [_latest(block) for block in blocks]
    owner = pl.int_range(counts.len(), eager=True).repeat_by(counts).explode().drop_nulls()
    stacks = (b.get("frames", h.get("frames")) for b, h in zip(blocks, histories, strict=True))
    requested = integers(blocks, "requested_size")
    frame = pl.DataFrame(
        {
            "owner": owner,
            "address": integers(blocks, "address"),
            "bytes": integers(blocks, "size", required=True),
            "requested_bytes": requested.zip_with(
                requested.is_not_null(), integers(histories, "real_size")
            ),
            "state": texts(blocks, "state", required=True).replace(_STATES),
            "callchain": chains.numbers("memory_blocks", stacks),
        }
    )
    # Older versions leave the address of a block to be computed.
    before = pl.col("bytes").cum_sum().over("owner") - pl.col("bytes")
    is_idle = pl.col("state") == "inactive"
    return (
        frame.hstack(_segment_columns(segments).select(pl.all().gather(owner)))
        .with_columns(
            address=pl.col("address").fill_null(pl.col("segment") + before),
            # The last use of an inactive block does not matter now.
            requested_bytes=pl.when(~is_idle).then("requested_bytes"),
        )
        .drop("owner")
    )


def _latest(block: Row) -> Row:
    """Return the newest entry of the history that blocks have in PyTorch 1.12 and 1.13."""
    history = block.get("history")
    if type(history) is not list or not history:
        return {}
    return rows_of(history[:1], "histories")[0]


def _segment_columns(segments: Sequence[Row]) -> pl.DataFrame:
    flags = (segment.get("is_expandable") for segment in segments)
    expandable = [flag if type(flag) is bool else None for flag in flags]
    return pl.DataFrame(
        {
            "device": integers(segments, "device", required=True),
            "stream": integers(segments, "stream"),
            "segment": integers(segments, "address", required=True),
            "segment_bytes": integers(segments, "total_size", required=True),
            "segment_kind": texts(segments, "segment_type"),
            "expandable": pl.Series(expandable, dtype=pl.Boolean),
        }
    )


def ranges_of(annotations: Sequence[Row]) -> tuple[pl.DataFrame, int]:
    """Pair the starts and ends of annotations on each device; count those without a partner.

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
    """Numbers call chains by their lists of frames, which all must stay alive meanwhile."""

    def __init__(self) -> None:
        self._by_list: dict[int, int | None] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_frame: dict[int, int] = {}
        self._chains: dict[tuple[int, ...], int] = {}
        self._used: dict[str, set[int]] = {}
        self._frames: dict[tuple[str | None, str | None, int | None], int] = {}

    def numbers(self, source: str, lists: Iterable[Any]) -> pl.Series:
        """Return the chain of each list of frames; null where no stack was recorded."""
        known = self._by_list
        chains = []
        for frames in lists:
            key = id(frames)
            if key not in known:
                known[key] = self._number(frames)
            chains.append(known[key])
        used = self._used.setdefault(source, set())
        used.update(chain for chain in chains if chain is not None)
        return pl.Series("callchain", chains, dtype=pl.Int64)

    def _number(self, frames: Any) -> int | None:
        if not frames:
            return None
        if type(frames) is not list:
            raise UnexpectedDataError("the frames of a stack are not a list")
        ids = tuple(map(id, frames))
        number = self._by_frames.get(ids)
        if number is None:
            for key, frame in zip(ids, frames, strict=True):
                if key not in self._by_frame:
                    self._by_frame[key] = self._frame(frame)
            chain = tuple([self._by_frame[key] for key in ids])
            number = self._chains.setdefault(chain, len(self._chains) + 1)
            self._by_frames[ids] = number
        return number

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
        """Build the table `callchains` of all lists seen."""
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
_NO_HISTORY = (
    "it holds no history, only what was held at the end; "
    "torch.cuda.memory._record_memory_history() records one"
)
_UNIX_TIMES_US = range(10**15, 1 << 52)
"""From the year 2001 on; smaller numbers count from another origin."""


def snapshot_source(path: Path) -> TraceSource:
    """Open a memory snapshot; it is read when the first table is needed."""
    head = next(iter(FileBlocks(path)), b"")[:_HEAD_BYTES]
    check_start(path, head)
    if not any(word.encode() in head for word in (*_PARTS, _SEGMENT_KEY)):
        raise _not_a_snapshot(path)
    return FrameSource(partial(_read, path))


def _read(path: Path) -> tuple[Meta, dict[str, pl.DataFrame]]:
    try:
        with no_collecting():
            pickled = load_plain(path)
            return _converted(path, _parts(path, pickled.value), pickled.size_bytes)
    except UnexpectedDataError as error:
        raise DamagedCaptureError(
            f"{path} is not laid out as a memory snapshot", why=str(error)
        ) from None


def _not_a_snapshot(path: Path) -> NotACaptureError:
    return NotACaptureError(
        f"{path} is a pickle, but not of a CUDA memory snapshot",
        hint="write one with: torch.cuda.memory._dump_snapshot(path)",
    )


def _parts(path: Path, value: Any) -> Row:
    if type(value) is list and value and type(value[0]) is dict and _SEGMENT_KEY in value[0]:
        return {"segments": value}
    if type(value) is not dict or not value.keys() & set(_PARTS[:2]):
        raise _not_a_snapshot(path)
    return value


def _converted(path: Path, parts: Row, size_bytes: int) -> tuple[Meta, dict[str, pl.DataFrame]]:
    traces = parts.get("device_traces") or []
    if type(traces) is not list or len(traces) > _MAX_DEVICES:
        raise UnexpectedDataError("it has no list of histories, one for each device")
    check_total(traces, size_bytes, "the histories of devices")
    segments = rows_of(parts.get("segments"), "segments")
    histories = [rows_of(trace, "histories") for trace in traces]
    annotations = rows_of(parts.get("external_annotations"), "annotations")
    chains = CallChains()
    events = events_of(histories or [[]], chains)
    for history in histories:  # by far the most of the file, and no longer needed
        history.clear()
    blocks = blocks_of(segments, chains, size_bytes)
    for sizes in (events["bytes"], blocks["bytes"]):
        if int((sizes < 0).sum()):
            raise UnexpectedDataError("some sizes are negative")
    ranges, strays = ranges_of(annotations)
    begin, end = _span(events, ranges)
    notes = [*_history_notes(events, blocks)]
    if strays:
        notes.append(f"{format_count(strays)} ends of annotations have no start in the snapshot")
    devices = pl.concat([events["device"], blocks["device"]]).unique().sort()
    meta = Meta(
        path=str(path),
        source="torch-snapshot",
        tool="PyTorch memory snapshot",
        start_utc_ns=begin * 1000 if begin is not None and begin in _UNIX_TIMES_US else None,
        duration_ns=None if begin is None or end is None else (end - begin) * 1000,
        notes=tuple(notes),
    )
    return meta, {
        "memory_events": _timed(events, begin),
        "memory_blocks": blocks,
        "callchains": chains.table(),
        "ranges": _as_ranges(ranges, begin, end),
        "devices": devices.to_frame().with_columns(name=pl.lit("unknown GPU")),
    }


def _span(events: pl.DataFrame, ranges: pl.DataFrame) -> tuple[int | None, int | None]:
    """Return the first and the last time recorded, in microseconds."""
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


def _history_notes(events: pl.DataFrame, blocks: pl.DataFrame) -> Iterator[str]:
    if events.is_empty():
        yield _NO_HISTORY
        return
    if events.get_column("time_us").null_count():
        yield "this version of PyTorch records no times: events are numbered in their order"
    if events.get_column("callchain").null_count() == events.height:
        yield "its history was recorded without stacks"
    # Allocated before the history began: freed in it or still held, not allocated in it.
    place = ["device", "address"]
    used = events.filter(
        pl.col("operation").is_in(["allocation", "deallocation", "free_requested"])
    ).unique(place, keep="first")
    freed = used.filter(pl.col("operation") != "allocation")
    held = blocks.filter(pl.col("state") != "inactive").join(used, on=place, how="anti")
    count = freed.height + held.height
    if count:
        size = format_bytes(int(freed["bytes"].sum()) + int(held["bytes"].sum()))
        yield (
            f"its history does not reach back to the start: {format_count(count)} blocks "
            f"({size}) were allocated before its first event"
        )
