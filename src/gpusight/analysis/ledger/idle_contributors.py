"""Ranges, operators, calls and lines of code behind each cause of idle time."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import (
    NONE,
    NestedIntervals,
    PythonCalls,
    optional,
    sites_of,
)
from gpusight.analysis.gpu_schedule import OpKind
from gpusight.analysis.kernel_summary import distinct_short_names
from gpusight.analysis.ledger.host_threads import LaunchThreads
from gpusight.analysis.ledger.idle_causes import HostRangesByThread
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.trace.intervals import search

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.ledger.device_ledger import DeviceAccount
    from gpusight.analysis.ledger.host_threads import HostTime
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


MAX_CONTRIBUTORS = 5
"""Contributors of a kind that are listed for an entry."""
_DIGITS = r"\d+"
_COPIES = {"Host-to-Device": "H2D copy", "Device-to-Host": "D2H copy"}
RECORD = r"(?s),? (?:seq|op_id|sizes|input_op_ids) = .*$"
"""What PyTorch writes behind the name of an operator when it emits ranges."""


@dataclass(frozen=True, slots=True)
class IdleContributor:
    """Something that was open while a GPU had nothing to do."""

    kind: str
    """`range`, `op`, `api call`, `os call`, `call site`; or `next`, what ended the gap."""
    name: str
    ns: int
    count: int
    """Stretches of idle time that it was open in."""

    def document(self) -> dict[str, Any]:
        """Return it as plain objects."""
        return asdict(self)


@dataclass(frozen=True)
class IdleStretches:
    """Idle time in stretches of one cause."""

    cause: Ints
    host_thread: Ints
    start_ns: Ints
    end_ns: Ints
    op: Ints
    """The activity that ended the gap; `NONE` at the end of the window."""
    sample_ns: Ints
    """When to look what was open: in the middle, or at the launch where that is the cause."""


class IdleContributors:
    """Finds what was open while GPUs of a schedule had nothing to do."""

    def __init__(self, schedule: GpuSchedule, hosts: HostTime) -> None:
        self._schedule = schedule
        self._trace = schedule.trace
        self._host_threads = LaunchThreads(schedule)
        self._ranges = HostRangesByThread(self._trace, self._host_threads)
        self._pieces = hosts.pieces

    def of(self, account: DeviceAccount) -> dict[str, tuple[IdleContributor, ...]]:
        """Return the largest contributors of each idle entry of a GPU, kind by kind."""
        stretches = self.stretches(account)
        by_entry: dict[str, list[IdleContributor]] = {}
        for kind, names in self._open_names(stretches):
            for cause, name, ns, count in _largest(stretches, names).iter_rows():
                contributor = IdleContributor(kind, name, ns, count)
                by_entry.setdefault(IdleCause(cause).entry, []).append(contributor)
        return {entry: tuple(contributors) for entry, contributors in by_entry.items()}

    # Stretches --------------------------------------------------------------------------------

    def stretches(self, account: DeviceAccount) -> IdleStretches:
        """Cut idle time where the host went from one thing to another."""
        idle, gaps = account.spans.idle, account.gaps
        host_thread, until = gaps.host_thread[idle.gap], gaps.until(idle)
        host = self._host_stretches(host_thread, idle.start_ns, until, gaps.op[idle.gap])
        at = np.flatnonzero(until < idle.end_ns)
        op = gaps.op[idle.gap][at]
        call = self._schedule.ops.call[op]
        launched = self._schedule.calls.start_ns[call] if len(self._schedule.calls) else until[at]
        rest = IdleStretches(
            gaps.rest[idle.gap][at],
            host_thread[at],
            until[at],
            idle.end_ns[at],
            op,
            np.where(call != NONE, launched, until[at]),
        )
        return IdleStretches(
            *(
                np.concatenate((getattr(host, field.name), getattr(rest, field.name)))
                for field in fields(IdleStretches)
            )
        )

    def _host_stretches(self, host_thread: Ints, start: Ints, end: Ints, op: Ints) -> IdleStretches:
        """Cut what the host was late by into stretches of one cause."""
        piece_thread, piece_start, piece_end, cause = self._pieces
        axis, known = self._host_threads.axis, np.flatnonzero((host_thread != NONE) & (start < end))
        begin, stop = (axis.at(host_thread[known], t[known]) for t in (start, end))
        first = search(axis.at(piece_thread, piece_end), begin, side="right")
        after = search(axis.at(piece_thread, piece_start), stop, side="left")
        count = np.maximum(after - first, 0)
        at = known[np.repeat(np.arange(len(known)), count)]
        piece = np.arange(len(at)) - np.repeat(np.cumsum(count) - count - first, count)
        lost = np.flatnonzero((host_thread == NONE) & (start < end))
        begun = np.append(np.maximum(piece_start[piece], start[at]), start[lost])
        ended = np.append(np.minimum(piece_end[piece], end[at]), end[lost])
        return IdleStretches(
            np.append(cause[piece], np.full(len(lost), int(IdleCause.UNKNOWN))),
            np.append(host_thread[at], host_thread[lost]),
            begun,
            ended,
            np.append(op[at], op[lost]),
            begun + (ended - begun) // 2,
        )

    # What was open ----------------------------------------------------------------------------

    def _open_names(self, stretches: IdleStretches) -> list[tuple[str, pl.Series]]:
        """Return the name of what was open in each stretch, by kind; null for nothing."""
        known = stretches.host_thread != NONE
        times, trace = stretches.sample_ns, self._trace
        position = self.positions(stretches)
        threads = self._threads(position, known, {})
        range_threads = self._threads(position, known, self._ranges.stand_in)
        ranges, call = self._ranges.frame, self._calls(stretches, known)
        open_range = _innermost(ranges, times, range_threads)
        op, os_call = (
            _innermost(trace.table(table, ["start_ns", "end_ns", "thread"]), times, threads)
            for table in ("cpu_ops", "os_calls")
        )
        return [
            ("range", _families(ranges["name"].gather(optional(open_range)))),
            ("op", _names(trace, "cpu_ops", op)),
            ("api call", _names(trace, "api_calls", call)),
            ("os call", _names(trace, "os_calls", os_call)),
            ("call site", _sites(trace, times, threads, {"api_calls": call, "os_calls": os_call})),
            ("next", self._op_names(stretches.op)),
        ]

    def positions(self, stretches: IdleStretches) -> Ints:
        """Return the thread behind each stretch: a position in `GpuSchedule.threads`.

        0 where none is known.
        """
        known = stretches.host_thread != NONE
        if not known.any():
            return np.zeros(len(known), np.int64)
        host_thread = np.where(known, stretches.host_thread, self._host_threads.numbers[0])
        return self._host_threads.threads_at(host_thread, stretches.sample_ns)

    def _threads(self, position: Ints, known: Any, stand_in: dict[int, int]) -> pl.Series:
        keys = [stand_in.get(at, thread) for at, (_, thread) in enumerate(self._schedule.threads)]
        column = pl.Series(keys, dtype=pl.Int64)
        return column.gather(optional(np.where(known, position, NONE)))

    def _calls(self, stretches: IdleStretches, known: Any) -> Ints:
        """Return the row of the API call that each stretch lies in; `NONE` for none."""
        calls, order, axis = self._schedule.calls, self._host_threads.order, self._host_threads.axis
        if not len(order):
            return np.full(len(stretches.host_thread), NONE, np.int64)
        places = axis.at(stretches.host_thread, stretches.sample_ns)
        at = search(axis.at(calls.host_thread, calls.start_ns)[order], places, side="right") - 1
        call = order[np.maximum(at, 0)]
        inside = known & (at >= 0) & (places < axis.at(calls.host_thread[call], calls.end_ns[call]))
        return np.where(inside, calls.row[call], NONE)

    def _op_names(self, op: Ints) -> pl.Series:
        """Name the activities that ended the gaps."""
        ops, trace = self._schedule.ops, self._trace
        if not len(ops):
            return pl.Series([None], dtype=pl.String).new_from_index(0, len(op))
        kind = np.where(op >= 0, ops.kind[op], NONE)
        rows = optional(np.where(kind == OpKind.KERNEL, ops.row[op], NONE))
        names = trace.table("kernels", ["name"])["name"]
        short = distinct_short_names(names)
        kernels = short.gather(names.to_physical().gather(rows))
        others = pl.Series(["copy", "memset", "CUDA graph"], dtype=pl.String)
        named = kernels.zip_with(kernels.is_not_null(), others.gather(optional(kind - 1)))
        copies = optional(np.where(kind == OpKind.COPY, ops.row[op], NONE))
        direction = trace.table("copies", ["kind"])["kind"].gather(copies).cast(pl.String)
        copied = direction.replace_strict(_COPIES, default=None, return_dtype=pl.String)
        return copied.zip_with(copied.is_not_null(), named)


def _largest(stretches: IdleStretches, names: pl.Series) -> pl.DataFrame:
    """Add up by cause and name, and keep the most expensive names of each cause."""
    frame = pl.DataFrame(
        {"cause": stretches.cause, "name": names, "ns": stretches.end_ns - stretches.start_ns}
    )
    return (
        frame.drop_nulls("name")
        .group_by("cause", "name")
        .agg(pl.col("ns").sum(), pl.len().cast(pl.Int64).alias("count"))
        .with_columns(pl.col("name").cast(pl.String))
        .sort(["cause", "ns", "name"], descending=[False, True, False])
        .group_by("cause", maintain_order=True)
        .head(MAX_CONTRIBUTORS)
    )


def _innermost(frame: pl.DataFrame, times: Ints, threads: pl.Series) -> Ints:
    """Return the row of the last event of the thread that had started and was open still."""
    nested = NestedIntervals.of(
        frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy(), frame["thread"]
    )
    return nested.rows_at(nested.innermost(times, threads))


def _names(trace: Trace, table: str, rows: Ints) -> pl.Series:
    return trace.table(table, ["name"])["name"].gather(optional(rows))


def _sites(trace: Trace, times: Ints, threads: pl.Series, calls: dict[str, Ints]) -> pl.Series:
    """Return the line of code: of Python where it was recorded, else of the call's stack."""
    if trace.has("python_calls"):
        _, own, frame = PythonCalls(trace).at(times, threads)
        rows = np.where(own >= 0, own, frame)
        return _names(trace, "python_calls", rows).cast(pl.String)
    sites = pl.Series([None], dtype=pl.String).new_from_index(0, len(times))
    for table, rows in calls.items():
        if trace.has(table, "callchain"):
            of_table = sites_of(trace, table, optional(rows))
            sites = sites.zip_with(sites.is_not_null(), of_table)
    return sites


def families(names: pl.Series) -> pl.Series:
    """Write each name as one of those that only differ by numbers: `step_#`."""
    return names.str.replace(RECORD, "").str.replace_all(_DIGITS, "#")


def _families(names: pl.Series) -> pl.Series:
    """Write names that only differ by numbers as one, where several of them occur."""
    used = names.to_physical().unique().drop_nulls().sort()
    texts = pl.Series(names_of(names), dtype=pl.String).gather(used)
    several = pl.col("plain").n_unique().over("family") > 1
    shown = pl.DataFrame(
        {"plain": texts.str.replace(RECORD, ""), "family": families(texts)}
    ).select(pl.when(several).then("family").otherwise("plain"))
    at = used.search_sorted(names.to_physical().fill_null(0)).set(names.is_null(), None)
    return shown.to_series().gather(at)
