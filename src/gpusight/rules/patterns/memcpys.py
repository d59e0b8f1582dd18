"""Memcpys as rules see them: direction, kind of memory, and time that nothing hides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.gpu_schedule import CallKind
from gpusight.analysis.ledger.ledger_entries import COMMUNICATION, COPY, label_work
from gpusight.analysis.replay.changes import ASYNC_COPY_NS, own_stream, without_waiting
from gpusight.analysis.replay.simulation import LatencyBase, put
from gpusight.rules.finding import Evidence
from gpusight.rules.formatting import by_step, largest, summed_locations, times_text
from gpusight.rules.patterns.host_gaps import called_from
from gpusight.rules.rule import Threshold
from gpusight.trace.intervals import Intervals, clip, coverage, subtract
from gpusight.units import format_bytes, format_time

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import Ints
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.rules.context import RuleContext
    from gpusight.rules.rule import FindingLocation


MIN_COPY_BYTES = Threshold(
    65_536,
    "bytes; smaller copies from pageable memory do not hold the caller up, and any copy of that "
    "size takes a few microseconds",
)
MIN_DELAY_NS = Threshold(
    10_000, "ns that work begins later than its launch and its stream explain, to have waited"
)
BIDIRECTIONAL_RATE = Threshold(
    0.92,
    "part of its rate that a copy keeps while another one goes the other way: a link carries both, "
    "but they meet in the host's memory; 0.91 to 0.93 were seen",
)
_RIGHT_BEHIND_NS = 50_000
"""A synchronisation within this time after a call that copies is for the copy."""
HOST_WAYS = ("h2d", "d2h")
DIRECTION_NAMES = {
    "h2d": "to the GPU",
    "d2h": "to the host",
    "p2p": "between GPUs",
    "unified": "of unified memory",
}
"""Where copies go, in words."""


def copies(context: RuleContext) -> pl.DataFrame:
    """Give the copies: rows of `RuleContext.ops` with three more columns.

    `way` (as the ledger calls it: h2d, d2h, p2p, d2d, unified, …), `pageable` (null where the
    capture does not say) and `exposed_ns`, the time in which no kernel ran beside.
    """
    rows = context.ops.filter(pl.col("kind") == "copy")
    labels = label_work(context.schedule)
    code = labels.of_op[rows["op"].to_numpy()]
    ways = [one.entry.removeprefix(f"{COPY}/") for one in labels.known]
    kinds = [None if one.memory is None else one.memory == "pageable" for one in labels.known]
    return rows.with_columns(
        pl.col("bytes").fill_null(0),
        pl.Series("way", ways, pl.String).gather(code),
        pl.Series("pageable", kinds, pl.Boolean).gather(code),
        pl.Series("exposed_ns", not_covered(rows, computing(context)), pl.Int64),
    )


def computing(context: RuleContext) -> dict[int, Intervals]:
    """Give the times in which each GPU computes; communication does not count as that."""
    works = pl.col("kind").is_in(["kernel", "graph"]) & (
        pl.col("category").fill_null("other") != COMMUNICATION
    )
    return spans_by_device(context.ops.filter(works))


def spans_by_device(rows: pl.DataFrame) -> dict[int, Intervals]:
    """Unite the times of work, by GPU."""
    return {
        int(device): Intervals.from_arrays(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())
        for (device,), part in rows.group_by("device")
    }


def not_covered(rows: pl.DataFrame, covers: dict[int, Intervals]) -> Ints:
    """Measure how much of each piece of work lies outside the spans of its GPU."""
    left = (rows["end_ns"] - rows["start_ns"]).to_numpy().copy()
    device = rows["device"].to_numpy()
    for number, spans in covers.items():
        own = np.flatnonzero(device == number)
        starts, ends = (rows[c].to_numpy()[own] for c in ("start_ns", "end_ns"))
        left[own] -= coverage(spans, starts, ends)
    return left


@dataclass(frozen=True, slots=True)
class CopyTotals:
    """What copies of one direction add up to, in the judged part."""

    way: str
    count: int
    bytes: int
    ns: int
    exposed_ns: int
    size: float
    """Bytes of a copy, median."""

    @property
    def to(self) -> str:
        """Where to, in words."""
        return DIRECTION_NAMES[self.way]

    def said(self, context: RuleContext) -> str:
        """Say it in words: `134.2 MB to the GPU twice a step, 29.1 ms each`."""
        each = format_time(self.ns / self.count)
        return f"{format_bytes(self.size)} {self.to} {times_text(context, self.count)}, {each} each"

    def evidence(self, context: RuleContext) -> tuple[Evidence, ...]:
        """Give how often, how much and how fast."""
        per_step = context.per_step

        def one(what: str, value: float, unit: str, meaning: str) -> Evidence:
            return Evidence(f"{self.way}_{what}", value / per_step, unit, by_step(context, meaning))

        return (
            one("ns", self.ns, "ns", f"Time copying {self.to}"),
            Evidence(
                f"{self.way}_rate", self.bytes * 1e9 / max(1, self.ns), "byte/s", f"Rate {self.to}"
            ),
            one("exposed_ns", self.exposed_ns, "ns", f"Of that with no kernel beside, {self.to}"),
            one("bytes", self.bytes, "byte", f"Moved {self.to}"),
            one("count", self.count, "", f"Copies {self.to}"),
        )


def copy_evidence(context: RuleContext, moved: list[CopyTotals]) -> tuple[Evidence, ...]:
    """Give the evidence of all directions, what tells most first."""
    by_metric = zip(*(one.evidence(context) for one in moved), strict=True)
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
    """Time of the judged part in which work ran on a GPU and nothing computed there."""

    device: int
    ns: int


def most_exposed(context: RuleContext, rows: pl.DataFrame) -> ExposedTime:
    """Find the GPU on which work ran longest without anything computing beside it."""
    covers = computing(context)
    window = context.schedule.start_ns, context.schedule.end_ns
    found = [
        ExposedTime(device, subtract(clip(spans, *window), covers.get(device, _NOTHING)).length_ns)
        for device, spans in sorted(spans_by_device(rows).items())
    ]
    return max(found, key=lambda one: one.ns, default=ExposedTime(0, 0))


_NOTHING = Intervals.empty()


def copy_origins(
    context: RuleContext, rows: pl.DataFrame, ns: str = "duration_ns"
) -> tuple[FindingLocation, ...]:
    """Name where copies come from: lines, operators, ranges, else the calls that made them."""
    found = largest(*called_from(context, rows, ns).values())
    if found:
        return found
    names = context.calls.select("call", pl.col("name").alias("api"))
    return largest(summed_locations(rows.join(names, on="call", how="left"), "call", "api", ns))


def pinned_in_place(rows: pl.DataFrame) -> Change:
    """Let the calls that copy return at once; the copies stay where they are in their streams."""
    calls = rows["call"].drop_nulls().unique().to_numpy()

    def change(program: ReplayProgram) -> ReplayProgram:
        own = np.minimum(program.own_ns[calls], ASYNC_COPY_NS)
        return without_waiting(calls)(program.changed(own_ns=put(program.own_ns, calls, own)))

    return change


def overlap_copies(context: RuleContext, rows: pl.DataFrame) -> tuple[Change, ...]:
    """Let copies run beside the rest, those of each direction on a queue of their own.

    Neither the calls that copy nor synchronisations right behind them hold their threads. Copies to
    the GPU and to the host then run at once, each a little slower.
    """
    ways = rows.partition_by("way", maintain_order=True)
    return (
        _both_ways(rows),
        *(own_stream(part["op"].to_numpy()) for part in ways),
        not_waiting_for(context, rows),
        without_waiting(_right_behind(context, rows["call"].drop_nulls().unique().to_numpy())),
    )


def _both_ways(rows: pl.DataFrame) -> Change:
    """Let copies of a GPU that come to run beside those of the other direction take longer.

    As much of each direction does as the other one has, after what earlier changes left.
    """
    host = rows.filter(pl.col("way").is_in(HOST_WAYS))
    ops = host["op"].to_numpy()
    device = host["device"].to_numpy()
    way = host["way"].replace_strict({w: n for n, w in enumerate(HOST_WAYS)}, return_dtype=pl.Int64)
    side = np.stack((device, way.to_numpy()))

    def change(program: ReplayProgram) -> ReplayProgram:
        took = np.zeros((int(device.max(initial=0)) + 1, len(HOST_WAYS)), np.int64)
        np.add.at(took, tuple(side), program.duration_ns[ops])
        shared = took.min(axis=1)[device] / np.maximum(took[tuple(side)], 1)
        longer = program.duration_ns[ops] * (1 + shared * (1 / BIDIRECTIONAL_RATE.value - 1))
        return program.changed(duration_ns=put(program.duration_ns, ops, longer.astype(np.int64)))

    return change


def not_waiting_for(context: RuleContext, rows: pl.DataFrame) -> Change:
    """Let work that began late for no reason the capture shows not wait for this other work.

    A replay knows what waited for what from events, and from work that began just when other work
    ended. Where neither tells, work that was launched long before, in a stream that was free, and
    that began after a stretch in which nothing but `rows` ran, is taken to have waited for them.
    """
    covers = computing(context)
    alone = {
        device: subtract(spans, covers.get(device, _NOTHING))
        for device, spans in spans_by_device(rows).items()
    }
    others = context.ops.filter(~pl.col("op").is_in(rows["op"].implode()))
    ops, start = others["op"].to_numpy(), others["start_ns"].to_numpy()

    def waited(ns: Ints) -> Ints:
        late = np.where(ns > MIN_DELAY_NS.value, ns, 0)
        spans = others.select(
            "device", pl.Series("start_ns", start - late), pl.Series("end_ns", start)
        )
        found: Ints = late - not_covered(spans, alone)
        return found

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


def _right_behind(context: RuleContext, calls: Ints) -> Ints:
    """Find the synchronisations that only wait for what the call before them copied."""
    every = context.schedule.calls
    order = np.argsort(every.lane, kind="stable")
    before, after = order[:-1], order[1:]
    behind = (
        np.isin(before, calls)
        & (every.lane[before] == every.lane[after])
        & (every.kind[after] == CallKind.SYNC)
        & (every.start_ns[after] - every.end_ns[before] <= _RIGHT_BEHIND_NS)
    )
    found: Ints = after[behind]
    return found
