"""Memcpys: their direction, kind of memory and exposed time, and changes that hide them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.gpu_schedule import CallKind
from gpusight.analysis.ledger.ledger_entries import COMMUNICATION, COPY, label_work
from gpusight.analysis.replay.changes import ASYNC_COPY_NS, own_stream, without_waiting
from gpusight.analysis.replay.simulation import LatencyBase, put
from gpusight.naming.host_names import is_collective
from gpusight.rules.context import memoize
from gpusight.rules.finding import Evidence
from gpusight.rules.formatting import called_from, largest, summed_locations
from gpusight.rules.rule import Threshold
from gpusight.trace.intervals import Intervals, clip, coverage, subtract
from gpusight.units import format_bytes, format_time

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.rules.context import RuleContext
    from gpusight.rules.rule import FindingLocation
    from gpusight.trace.intervals import Ints


MIN_COPY_BYTES = Threshold(
    65_536,
    "bytes; smaller copies from pageable memory do not block the caller, and any copy of that size "
    "takes a few microseconds",
)
MIN_DELAY_NS = Threshold(
    10_000,
    "ns that a kernel starts later than its launch and its stream explain, to count as a wait",
)
BIDIRECTIONAL_RATE = Threshold(
    0.92,
    "share of its rate that a copy keeps while another runs in the other direction: both use the "
    "host's memory; 0.91 to 0.93 were measured",
)
_RIGHT_BEHIND_NS = 50_000
"""A synchronization within this time after a copy call waits for the copy."""
HOST_WAYS = ("h2d", "d2h")
DIRECTION_NAMES = {"h2d": "H2D", "d2h": "D2H", "p2p": "peer-to-peer", "unified": "unified memory"}
"""Direction of copies in texts."""


def copies(context: RuleContext) -> pl.DataFrame:
    """Return the copies: rows of `RuleContext.ops` with three more columns.

    `way` (as in the ledger: h2d, d2h, p2p, d2d, unified, …), `pageable` (null where it was not
    recorded) and `exposed_ns`, the time in which no kernel ran.
    """
    rows = context.ops.filter(pl.col("kind") == "copy")
    labels = label_work(context.schedule)
    code = labels.of_op[rows["op"].to_numpy()]
    ways = [label.entry.removeprefix(f"{COPY}/") for label in labels.known]
    pageable = [None if k.memory is None else k.memory == "pageable" for k in labels.known]
    return rows.with_columns(
        pl.col("bytes").fill_null(0),
        pl.Series("way", ways, pl.String).gather(code),
        pl.Series("pageable", pageable, pl.Boolean).gather(code),
        pl.Series("exposed_ns", not_covered(rows, computing(context)), pl.Int64),
    )


def not_in_graphs(context: RuleContext) -> Ints:
    """Return the calls that copy from or to pageable memory: no graph can be captured with them.

    The host writes such memory anew in each step, and PyTorch refuses to capture these copies.
    """
    rows = copies(context).filter(pl.col("pageable"), pl.col("call").is_not_null())
    calls: Ints = rows["call"].unique().to_numpy()
    return calls


def computing(context: RuleContext, *, or_copying: bool = False) -> dict[int, Intervals]:
    """Return the times in which each GPU computes; communication does not count.

    With `or_copying` also those in which it copies: what is left is `communication` of the ledger.
    """
    computes = pl.col("kind").is_in(["kernel", "graph"]) & (
        pl.col("category").fill_null("other") != COMMUNICATION
    )
    copies = pl.col("kind").is_in(["copy", "memset"]) & or_copying
    return _spans_by_device(context.ops.filter(computes | copies))


def _spans_by_device(rows: pl.DataFrame) -> dict[int, Intervals]:
    return {
        int(device): Intervals.from_arrays(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())
        for (device,), part in rows.group_by("device")
    }


def not_covered(rows: pl.DataFrame, covers: dict[int, Intervals]) -> Ints:
    """Measure how much of each activity lies outside the spans of its GPU."""
    start_ns, end_ns = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    device = rows["device"].to_numpy()
    outside_ns: Ints = end_ns - start_ns
    for number, spans in covers.items():
        own = np.flatnonzero(device == number)
        outside_ns[own] -= coverage(spans, start_ns[own], end_ns[own])
    return outside_ns


@dataclass(frozen=True, slots=True)
class CopyTotals:
    """Totals of the copies of one direction, in the sample."""

    way: str
    count: int
    bytes: int
    ns: int
    exposed_ns: int
    size: float
    """Median bytes of a copy."""

    @property
    def name(self) -> str:
        """The direction in texts."""
        return DIRECTION_NAMES[self.way]

    def text(self, context: RuleContext) -> str:
        """Describe the copies: `2 H2D copies per step of 134.2 MB, 29.1 ms each`."""
        mean = format_time(self.ns / self.count, digits=3)
        copies = context.count_per_step(self.count, f"{self.name} copy")
        return f"{copies} of {format_bytes(self.size)}, {mean} each"

    def evidence(self, context: RuleContext) -> tuple[Evidence, ...]:
        """Return the evidence: time, rate, exposed time, bytes and count."""
        way, name = self.way, self.name
        rate = self.bytes * 1e9 / max(1, self.ns)
        alone = f"{name} copy time without overlap"
        return (
            context.evidence(f"{way}_ns", self.ns, "ns", f"{name} copy time"),
            Evidence(f"{way}_rate", rate, "byte/s", f"{name} bandwidth"),
            context.evidence(f"{way}_exposed_ns", self.exposed_ns, "ns", alone),
            context.evidence(f"{way}_bytes", self.bytes, "byte", f"{name} bytes copied"),
            context.evidence(f"{way}_count", self.count, "", f"{name} copies"),
        )


def copy_evidence(context: RuleContext, moved: list[CopyTotals]) -> tuple[Evidence, ...]:
    """Return the evidence of all directions, metric by metric."""
    by_metric = zip(*(totals.evidence(context) for totals in moved), strict=True)
    return tuple(evidence for metric in by_metric for evidence in metric)


def by_way(rows: pl.DataFrame) -> list[CopyTotals]:
    """Add copies up by direction, the one that is exposed longest first."""
    sums = rows.group_by("way", maintain_order=True).agg(
        pl.len().alias("count"),
        pl.col("bytes").sum(),
        pl.col("duration_ns").sum(),
        pl.col("exposed_ns").sum(),
        pl.col("bytes").median().alias("size"),
    )
    ordered = sums.sort("exposed_ns", "duration_ns", descending=True, maintain_order=True)
    return [CopyTotals(*row) for row in ordered.iter_rows()]


@dataclass(frozen=True, slots=True)
class ExposedTime:
    """Time of the sample in which some activity ran on a GPU and nothing computed there."""

    device: int
    ns: int


def most_exposed(
    context: RuleContext, rows: pl.DataFrame, covers: dict[int, Intervals]
) -> ExposedTime:
    """Find the GPU on which these activities ran longest outside of the spans that cover them."""
    window = context.schedule.start_ns, context.schedule.end_ns
    exposed = [
        ExposedTime(device, subtract(clip(spans, *window), covers.get(device, _EMPTY)).length_ns)
        for device, spans in sorted(_spans_by_device(rows).items())
    ]
    return max(exposed, key=lambda time: time.ns, default=ExposedTime(0, 0))


_EMPTY = Intervals.empty()


def copy_origins(
    context: RuleContext, rows: pl.DataFrame, ns: str = "duration_ns"
) -> tuple[FindingLocation, ...]:
    """Return where copies come from: lines, operators, ranges, else the calls that made them."""
    names = context.calls.select("call", pl.col("name").alias("api"))
    return largest(*called_from(context, rows, ns).values()) or largest(
        summed_locations(rows.join(names, on="call", how="left"), "call", "api", ns)
    )


def pinned_in_place(rows: pl.DataFrame) -> Change:
    """Let the copy calls return at once; the copies stay in their streams."""
    calls = rows["call"].drop_nulls().unique().to_numpy()

    def change(program: ReplayProgram) -> ReplayProgram:
        own = np.minimum(program.own_ns[calls], ASYNC_COPY_NS)
        return without_waiting(calls)(program.changed(own_ns=put(program.own_ns, calls, own)))

    return change


@memoize
def exchanged_calls(context: RuleContext) -> list[int]:
    """Return the calls that copy what a collective on the CPU, as of MPI, sends or has received.

    These are the last copies to the host that a thread made before it, and the first copies to the
    GPU after it.
    """
    trace, calls = context.trace, context.schedule.calls
    ranges = trace.table("ranges", ["start_ns", "thread", "name"])
    codes = [code for code, name in enumerate(names_of(ranges["name"])) if is_collective(name)]
    ranges = ranges.filter(pl.col("name").to_physical().is_in(codes))
    keys = np.array([thread for _, thread in context.schedule.threads], np.int64)
    exchanged = np.zeros(len(calls), np.bool_)
    effects = (CallKind.LAUNCH, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET)
    acting = np.flatnonzero(np.isin(calls.kind, effects))
    to_host = context.ops.filter(pl.col("direction") == "Device-to-Host")["call"].drop_nulls()
    is_copy, sends = calls.kind == CallKind.COPY, np.zeros(len(calls), np.bool_)
    sends[to_host.to_numpy()] = True
    for (thread,), part in ranges.group_by("thread"):
        own = acting[keys[calls.thread[acting]] == thread]
        # A collective between a call and the one before it ends a run of copies.
        at = np.unique(np.searchsorted(calls.start_ns[own], part["start_ns"].to_numpy()))
        ends = np.zeros(len(own) + 1, np.bool_)
        ends[at] = True
        run = np.cumsum(ends[:-1] | ~is_copy[own])
        before, after = run[at[at > 0] - 1], run[at[at < len(own)]]
        exchanged[own] |= is_copy[own] & sends[own] & np.isin(run, before)
        exchanged[own] |= is_copy[own] & ~sends[own] & np.isin(run, after)
    return np.flatnonzero(exchanged).tolist()


def exchange_advice(context: RuleContext, rows: pl.DataFrame) -> str:
    """Return advice where most of these copies are for collectives on the CPU; else nothing."""
    exchanged = rows.filter(pl.col("call").is_in(exchanged_calls(context)))
    if 2 * int(exchanged["duration_ns"].sum()) <= int(rows["duration_ns"].sum()):
        return ""
    return (
        "A collective on the CPU sends or has received this data. CUDA-aware MPI and NCCL take GPU "
        "pointers and need no copy through host memory; otherwise pin the buffers."
    )


def overlap_copies(context: RuleContext, rows: pl.DataFrame) -> tuple[Change, ...]:
    """Overlap copies with everything else, each direction on its own stream.

    Neither the copy calls nor synchronizations right after them block their threads. Copies to the
    GPU and to the host then run at the same time, each a little slower. What a collective on the
    CPU sends or has received stays where it is.
    """
    rows = rows.filter(~pl.col("call").is_in(exchanged_calls(context)).fill_null(value=False))
    ways = rows.partition_by("way", maintain_order=True)
    host = rows.filter(pl.col("way").is_in(HOST_WAYS))
    ops = host["op"].to_numpy()
    device = host["device"].to_numpy()
    way = host["way"].replace_strict({w: n for n, w in enumerate(HOST_WAYS)}, return_dtype=pl.Int64)
    side = np.stack((device, way.to_numpy()))

    def both_ways(program: ReplayProgram) -> ReplayProgram:
        # As much of each direction overlaps as the other one has, after earlier changes.
        total_ns = np.zeros((int(device.max(initial=0)) + 1, len(HOST_WAYS)), np.int64)
        np.add.at(total_ns, tuple(side), program.duration_ns[ops])
        shared = total_ns.min(axis=1)[device] / np.maximum(total_ns[tuple(side)], 1)
        longer = program.duration_ns[ops] * (1 + shared * (1 / BIDIRECTIONAL_RATE.value - 1))
        return program.changed(duration_ns=put(program.duration_ns, ops, longer.astype(np.int64)))

    # Synchronizations that only wait for the copy call before them.
    calls = rows["call"].drop_nulls().unique().to_numpy()
    all_calls = context.schedule.calls
    order = np.argsort(all_calls.host_thread, kind="stable")
    before, after = order[:-1], order[1:]
    syncs: Ints = after[
        np.isin(before, calls)
        & (all_calls.host_thread[before] == all_calls.host_thread[after])
        & (all_calls.kind[after] == CallKind.SYNC)
        & (all_calls.start_ns[after] - all_calls.end_ns[before] <= _RIGHT_BEHIND_NS)
    ]
    return (
        both_ways,
        *(own_stream(part["op"].to_numpy()) for part in ways),
        not_waiting_for(context, rows),
        without_waiting(syncs),
    )


def not_waiting_for(context: RuleContext, rows: pl.DataFrame) -> Change:
    """Remove delays of other activities that only `rows` explain.

    A replay knows dependencies from events, and from activities that began just when others ended.
    Beyond these, an activity that was launched long before, in a free stream, and that began after
    a time in which nothing but `rows` ran, is assumed to have waited for them.
    """
    covers = computing(context)
    alone = {
        device: subtract(spans, covers.get(device, _EMPTY))
        for device, spans in _spans_by_device(rows).items()
    }
    others = context.ops.filter(~pl.col("op").is_in(rows["op"].implode()))
    ops, start = others["op"].to_numpy(), others["start_ns"].to_numpy()

    def waited(ns: Ints) -> Ints:
        delay_ns = np.where(ns > MIN_DELAY_NS.value, ns, 0)
        spans = others.select(
            "device", pl.Series("start_ns", start - delay_ns), pl.Series("end_ns", start)
        )
        waited_ns: Ints = delay_ns - not_covered(spans, alone)
        return waited_ns

    def change(program: ReplayProgram) -> ReplayProgram:
        gap, latency = program.stream_gap_ns[ops], program.latency_ns[ops]
        called = program.latency_base[ops] == LatencyBase.CALL_END
        return program.changed(
            stream_gap_ns=put(program.stream_gap_ns, ops, gap - waited(gap)),
            latency_ns=put(
                program.latency_ns, ops, np.where(called, latency - waited(latency), latency)
            ),
        )

    return change
