"""What ran in a window, as arrays: GPU activities and the API calls that issued them.

`build_schedule` makes them from a trace; threads that hand work to each other count as one.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import is_named, kept, names_of
from gpusight.analysis.launch_index import KeyIndex
from gpusight.analysis.steps.step_list import frame_of
from gpusight.core import native
from gpusight.trace.part_of_trace import PartOfTrace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.trace.intervals import Flags
    from gpusight.trace.intervals import Ints as Ints  # the rules import it from here
    from gpusight.trace.trace import Trace


NONE = -1
"""Stands for no row, no call, no activity."""


class CallKind(enum.IntEnum):
    """What an API call does, as far as time is concerned."""

    LAUNCH = 0
    """Launches a kernel."""
    GRAPH = 1
    """Launches a whole graph."""
    COPY = 2
    MEMSET = 3
    SYNC = 4
    """Waits for a device, a stream or an event."""
    ALLOCATE = 5
    FREE = 6
    RECORD = 7
    """Records an event into a stream."""
    WAIT_EVENT = 8
    """Lets a stream wait for an event; the host does not wait."""
    OTHER = 9
    MARK = 10
    """No call: where a step begins or ends."""


class OpKind(enum.IntEnum):
    """Table that a GPU activity is a row of."""

    KERNEL = 0
    COPY = 1
    MEMSET = 2
    GRAPH = 3

    @property
    def table(self) -> str:
        """Name of the table."""
        return ("kernels", "copies", "memsets", "graph_launches")[self]


@dataclass(frozen=True, slots=True)
class GpuOps:
    """GPU activities in order of start, one entry of each array per activity."""

    start_ns: Ints
    end_ns: Ints
    device: Ints
    stream_id: Ints
    """Number of its stream, counted over all processes and contexts."""
    call: Ints
    """Position in `GpuSchedule.calls` of the call that issued it; `NONE` where not known."""
    kind: Ints
    """`OpKind`."""
    row: Ints
    """Row in the table of its kind."""
    carried: Flags
    """Issued before the window began, so that its call is not in `GpuSchedule.calls`."""

    def __len__(self) -> int:
        """Count them."""
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class ApiCalls:
    """API calls that are not inside another call, and step marks, in order of start."""

    start_ns: Ints
    end_ns: Ints
    host_thread: Ints
    """Number of the thread that drives it; calls of one host thread never overlap.

    Where a thread hands work to another and waits for it (autograd), the calls of the second are
    in the host thread of the first.
    """
    thread: Ints
    """Thread that it ran on: a position in `GpuSchedule.threads`."""
    kind: Ints
    """`CallKind`."""
    row: Ints
    """Row in `api_calls`; `NONE` for marks."""

    def __len__(self) -> int:
        """Count them."""
        return len(self.start_ns)


@dataclass(frozen=True)
class GpuSchedule:
    """What ran in a window."""

    trace: Trace
    start_ns: int
    end_ns: int
    ops: GpuOps
    """Activities that ran in the window: issued in it, or before it and not yet done."""
    calls: ApiCalls
    threads: tuple[tuple[int, int], ...]
    """Process and thread keys of the trace."""

    @property
    def length_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns

    @cached_property
    def before_calls(self) -> Ints:
        """End of the previous call of each call's host thread; the window's start for the first."""
        order = np.argsort(self.calls.host_thread, kind="stable")
        host_thread, end = self.calls.host_thread[order], self.calls.end_ns[order]
        before = np.concatenate(([self.start_ns], end[:-1]))[: len(order)]
        before[np.flatnonzero(host_thread[1:] != host_thread[:-1]) + 1] = self.start_ns
        ended = np.empty_like(end)
        ended[order] = before
        ended.setflags(write=False)
        return ended


@dataclass(frozen=True, slots=True)
class ScheduleTiming:
    """When everything of a schedule began and ended: as measured, or as a replay gives it."""

    op_start_ns: Ints
    op_end_ns: Ints
    call_start_ns: Ints
    call_end_ns: Ints
    start_ns: int
    end_ns: int


_VENDOR = r"^(?:cu|cuda|hip|hipExt|mu|musa)"
_KINDS = (
    (CallKind.GRAPH, re.compile(rf"{_VENDOR}GraphLaunch")),
    (CallKind.LAUNCH, re.compile(rf"{_VENDOR}(?:Module|Ext|Multi)?Launch(?!HostFunc)")),
    (CallKind.SYNC, re.compile(rf"{_VENDOR}(?:Device|Stream|Event|Ctx|Context|Thread)Synchronize")),
    (CallKind.COPY, re.compile(rf"{_VENDOR}Memcpy")),
    (CallKind.MEMSET, re.compile(rf"{_VENDOR}Memset")),
    (CallKind.RECORD, re.compile(rf"{_VENDOR}EventRecord")),
    (CallKind.WAIT_EVENT, re.compile(rf"{_VENDOR}StreamWaitEvent")),
    (
        CallKind.FREE,
        re.compile(rf"{_VENDOR}(?:Mem)?(?:Free|HostFree|HostUnregister|Unmap|Release|AddressFree)"),
    ),
    (
        CallKind.ALLOCATE,
        re.compile(
            rf"{_VENDOR}(?:Mem)?"
            r"(?:Malloc|Alloc|HostAlloc|HostRegister|HostMalloc|Create$|Map$|AddressReserve"
            r"|SetAccess|PoolCreate)"
        ),
    ),
)
HOST_FUNCTION = re.compile(rf"{_VENDOR}LaunchHostFunc")
"""Enqueues a host function in a stream: how JAX learns that work is done."""


def kind_of(name: str) -> CallKind:
    """Classify an API call by its name."""
    return next((kind for kind, names in _KINDS if names.search(name)), CallKind.OTHER)


_SILENCE_NS = 50_000
"""Shortest silence of a thread that counts: a hand-over itself takes some microseconds."""
_MIN_COVERED_SHARE = 0.5
"""Share of the silence that the other thread must fill."""
_MIN_HANDED_SHARE = 0.5
"""Share of the other thread's calls that must lie in such silences."""
_MAX_THREADS = 48
"""Threads that are compared, those with the most calls first."""
_LAUNCHES = (CallKind.LAUNCH, CallKind.GRAPH)


def assign_host_threads(
    thread: Ints, process: Ints, kind: Ints, start_ns: Ints, end_ns: Ints
) -> Ints:
    """Return the host thread of each call; calls are in order of start.

    `thread` counts from 0, `process` is that of each thread.
    """
    host_thread = thread.copy()
    counts = np.bincount(thread)
    busiest = np.argsort(-counts, kind="stable")[:_MAX_THREADS]
    rows = {int(t): np.flatnonzero(thread == t) for t in busiest if counts[t]}
    # A thread that marks steps, else the first, comes first.
    rows = dict(sorted(rows.items(), key=lambda item: int(item[1][0])))
    launching = [t for t, own in rows.items() if np.isin(kind[own], _LAUNCHES).any()]
    # A thread that only pins memory or watches hands nothing over, however long it is silent.
    givers = (*_LAUNCHES, CallKind.MARK)
    giving = [t for t, own in rows.items() if np.isin(kind[own], givers).any()]
    taken: set[int] = set()
    for giver in giving:
        for taker in launching:
            if giver in taken or taker in taken or taker == giver:
                continue
            if process[taker] == process[giver]:
                inside = _handed_over(rows[giver], rows[taker], kind, start_ns, end_ns)
                if np.count_nonzero(inside) >= _MIN_HANDED_SHARE * len(inside):
                    # A single hand-over may be too short or too slow to show. Left on a thread of
                    # its own, it would seem to follow host work as long as all steps before it.
                    inside |= _in_turn(rows[giver], rows[taker], start_ns, end_ns)
                    host_thread[rows[taker][inside]] = giver
                    taken.add(taker)
    return host_thread


def _handed_over(giver: Ints, taker: Ints, kind: Ints, start_ns: Ints, end_ns: Ints) -> Flags:
    """Return which calls of `taker` lie in silences of `giver` that they explain."""
    inside = np.zeros(len(taker), np.bool_)
    stops, resumes = end_ns[giver[:-1]], start_ns[giver[1:]]
    silent = resumes - stops >= _SILENCE_NS
    stops, resumes = stops[silent], resumes[silent]
    first = np.searchsorted(start_ns[taker], stops)
    after = np.searchsorted(start_ns[taker], resumes)
    filled_at_all = after > first
    stops, resumes, first, after = (a[filled_at_all] for a in (stops, resumes, first, after))
    if not len(first):
        return inside
    starts, ends = start_ns[taker], end_ns[taker]
    # `taker` must be silent before `giver` stops, and done when it resumes.
    before = np.where(first > 0, ends[np.maximum(first - 1, 0)], stops)
    filled = ends[after - 1] - starts[first]
    launches = np.concatenate(([0], np.cumsum(np.isin(kind[taker], _LAUNCHES))))
    holds = (
        (before <= stops)
        & (ends[after - 1] <= resumes)
        & (filled >= _MIN_COVERED_SHARE * (resumes - stops))
        & (launches[after] > launches[first])
    )
    edges = np.zeros(len(taker) + 1, np.int64)
    np.add.at(edges, first[holds], 1)
    np.add.at(edges, after[holds], -1)
    return np.cumsum(edges[:-1]) > 0


def _in_turn(giver: Ints, taker: Ints, start_ns: Ints, end_ns: Ints) -> Flags:
    """Return which calls of `taker` run while `giver` is in none."""
    begun = np.searchsorted(start_ns[giver], end_ns[taker])
    open_until_ns = end_ns[giver[np.maximum(begun - 1, 0)]]
    alone: Flags = (begun == 0) | (open_until_ns <= start_ns[taker])
    return alone


_CUDA = ("runtime", "driver")
STREAM_KEY = ["device", "process", "context", "stream"]
"""Columns that identify a stream."""
_OP_COLUMNS = ["start_ns", "end_ns", *STREAM_KEY, "correlation"]
_CALL_COLUMNS = ["start_ns", "end_ns", "name", "api", "thread", "process", "correlation"]


def build_schedule(
    trace: Trace,
    start_ns: int,
    end_ns: int,
    *,
    process: int | None = None,
    marks: pl.DataFrame | None = None,
) -> GpuSchedule:
    """Lay out what ran from `start_ns` to `end_ns`, of one process or of all.

    `marks` are moments of threads that the schedule keeps, such as those of `step_marks`.
    """
    rows = _call_rows(trace, process, start_ns, end_ns)
    calls, threads = _api_calls(kept(rows, rows["outer"]), marks)
    activities = _activities(trace, process, start_ns, end_ns)
    issuer = _issuing_calls(trace, activities, rows, calls)
    start, end, device, stream_id, kind, row = (
        activities[name].cast(pl.Int64).to_numpy()
        for name in ("start_ns", "end_ns", "device", "stream_id", "kind", "row")
    )
    carried = (issuer == _ELSEWHERE) | ((issuer == NONE) & (start < start_ns))
    call = np.where(issuer >= 0, issuer, NONE)
    ops = GpuOps(start, end, device, stream_id, call, kind, row, carried)
    return GpuSchedule(trace, start_ns, end_ns, ops, calls, threads)


def step_marks(steps: Sequence[TraceStep]) -> pl.DataFrame:
    """Return the starts and ends of steps: `start_ns`, `process` and `thread` of each moment."""
    moments = pl.concat_list("start_ns", "end_ns").alias("start_ns")
    marks = frame_of(steps).select(moments, pl.col("process", "thread").fill_null(NONE))
    return marks.explode("start_ns")


def _call_rows(trace: Trace, process: int | None, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return the CUDA calls that ran in the window, and which are not inside another one."""
    frame = trace.table("api_calls", _CALL_COLUMNS).with_row_index("row")
    wanted = (frame["start_ns"] < end_ns) & (frame["end_ns"] > start_ns)
    wanted &= frame["api"].is_null() | is_named(frame["api"], _CUDA.__contains__)
    if process is not None:
        wanted &= frame["process"] == process
    frame = kept(frame, wanted)
    outer, around = outer_calls(frame)
    # Calls that run across an end of the window are cut there.
    return frame.with_columns(
        pl.Series("outer", outer, pl.Boolean),
        frame["row"].gather(around).alias("around"),
        pl.col("start_ns", "end_ns").clip(start_ns, end_ns),
    )


def outer_calls(calls: pl.DataFrame) -> tuple[Flags, Ints]:
    """Return which calls are not inside another one of their thread, and which one is around."""
    _, threads = number_rows(calls, ["process", "thread"])
    starts, ends = (calls[column].to_numpy() for column in ("start_ns", "end_ns"))
    return native.outer_calls(starts, ends, threads) or _outer_calls(starts, ends, threads)


def _outer_calls(starts: Ints, ends: Ints, threads: Ints) -> tuple[Flags, Ints]:
    """Return which calls are not inside another one of their thread, and which one is around."""
    frame = pl.DataFrame({"start_ns": starts, "end_ns": ends, "thread": threads})
    ended = pl.col("end_ns").cum_max().shift(1).over("thread")
    outer = (pl.col("start_ns") >= ended).fill_null(value=True).alias("outer")
    frame = frame.with_row_index("at").with_columns(outer)
    around = pl.when("outer").then("at").forward_fill().over("thread").cast(pl.Int64)
    return frame["outer"].to_numpy(), frame.select(around).to_series().to_numpy()


def number_rows(frame: pl.DataFrame, keys: Sequence[str]) -> tuple[pl.DataFrame, Ints]:
    """Return the distinct values of columns, in order of first appearance, and which each row has.

    Rows in a row often have the same: only where they change are they looked up.
    """
    changes = pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift(1)) for key in keys)
    at = frame.select(changes.alias("changes"))["changes"].to_numpy().copy()
    at[:1] = True
    first = np.flatnonzero(at)
    heads = frame.select(keys)[first]
    known = heads.unique(maintain_order=True)
    of_heads = heads.join(
        known.with_row_index("number"), on=keys, how="left", nulls_equal=True, maintain_order="left"
    )["number"]
    lengths = np.diff(np.append(first, frame.height))
    return known, np.repeat(of_heads.cast(pl.Int64).to_numpy(), lengths)


def _api_calls(
    calls: pl.DataFrame, marks: pl.DataFrame | None
) -> tuple[ApiCalls, tuple[tuple[int, int], ...]]:
    """Order calls and marks by start, and number their threads."""
    kinds = [int(kind_of(name)) for name in names_of(calls["name"])]
    codes = calls["name"].to_physical().to_numpy()
    calls = calls.select(
        "start_ns",
        "end_ns",
        pl.col("process", "thread").fill_null(NONE),
        pl.Series("kind", np.array(kinds, np.int64)[codes] if len(codes) else [], pl.Int64),
        pl.col("row").cast(pl.Int64),
    )
    nodes = calls
    if marks is not None and marks.height:
        moments = marks.with_columns(
            pl.col("start_ns").alias("end_ns"),
            pl.lit(int(CallKind.MARK), pl.Int64).alias("kind"),
            pl.lit(NONE, pl.Int64).alias("row"),
        )
        # A mark comes before the call that begins at the same moment.
        nodes = pl.concat([moments.select(calls.columns), calls])
    if not nodes["start_ns"].is_sorted():
        nodes = nodes[np.argsort(nodes["start_ns"].to_numpy(), kind="stable")]
    pairs, thread = number_rows(nodes, ["process", "thread"])
    start, end, kind, row = (nodes[c].to_numpy() for c in ("start_ns", "end_ns", "kind", "row"))
    processes = pairs["process"].to_numpy()
    host_thread = assign_host_threads(thread, processes, kind, start, end)
    ordered = ApiCalls(start, end, host_thread, thread, kind, row)
    return ordered, tuple(pairs.select("process", "thread").iter_rows())


def _activities(trace: Trace, process: int | None, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return the GPU activities that ran in the window, in order of start."""
    # Activities of no length count where they lie inside.
    ran = (pl.col("start_ns") < end_ns) & (
        (pl.col("end_ns") > start_ns) | (pl.col("start_ns") >= start_ns)
    )
    if process is not None:
        ran &= pl.col("process").is_null() | (pl.col("process") == process)
    parts = []
    for kind in OpKind:
        if trace.has(kind.table) or kind is OpKind.KERNEL:
            frame = trace.table(kind.table, _OP_COLUMNS).with_row_index("row")
            frame = kept(frame, frame.select(ran=ran)["ran"])
            parts.append(frame.with_columns(pl.lit(int(kind), pl.Int64).alias("kind")))
    ops = pl.concat(parts) if len(parts) == 1 else pl.concat(parts).sort("start_ns", "kind", "row")
    known, stream = number_rows(ops, STREAM_KEY)
    # Numbered in order of their keys.
    numbers = np.empty(known.height, np.int64)
    numbers[known.with_row_index("at").sort(STREAM_KEY)["at"]] = np.arange(known.height)
    return ops.with_columns(pl.Series("stream_id", numbers[stream]))


_ELSEWHERE = NONE - 1
"""Stands for a call that was made before the window."""


def _issuing_calls(trace: Trace, ops: pl.DataFrame, rows: pl.DataFrame, calls: ApiCalls) -> Ints:
    """Return the position in `calls` of the call that issued each activity.

    `NONE` where no call is known, `_ELSEWHERE` where the call is outside the window. `rows` also
    has the calls inside those.
    """
    index = KeyIndex(rows["process"], rows["correlation"])
    key = pl.when(pl.col("correlation") > 0).then("correlation")
    correlation = ops.select(key.alias("correlation"))["correlation"]
    call_row = index.find(ops["process"], correlation)
    positions = np.full(trace.row_count("api_calls") + 1, _ELSEWHERE, np.int64)
    no_mark = calls.row >= 0
    positions[calls.row[no_mark]] = np.flatnonzero(no_mark)
    around = rows["around"].cast(pl.Int64).fill_null(NONE).to_numpy()
    issuer = np.full(ops.height, NONE, np.int64)
    inside = np.flatnonzero(call_row >= 0)
    issuer[inside] = positions[around[call_row[inside]]]
    unmatched = np.flatnonzero((call_row < 0) & correlation.is_not_null().to_numpy())
    if isinstance(trace, PartOfTrace):
        issuer[unmatched] = _ELSEWHERE  # before the part; what no call is known of is rare
    elif len(unmatched) and trace.has("api_calls"):
        every = trace.table("api_calls", ["process", "correlation"])
        index = KeyIndex(every["process"], every["correlation"])
        known = index.find(ops["process"][unmatched], correlation[unmatched]) >= 0
        issuer[unmatched[known]] = _ELSEWHERE
    return issuer
