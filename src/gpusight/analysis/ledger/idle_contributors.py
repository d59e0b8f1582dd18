"""Ranges, operators, calls and lines of code behind each cause of idle time."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property
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
    from collections.abc import Mapping

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.ledger.device_ledger import DeviceAccount, DeviceSpans
    from gpusight.analysis.ledger.host_threads import HostTime
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


MAX_CONTRIBUTORS = 5
"""Contributors of a kind that are listed for an entry."""
_SPANS_AT_ONCE = 1 << 18
"""Spans of a GPU that are looked at together."""
_MAX_CODES_PER_ROW = 4
"""Names are added up by their codes where there are at most so many for each row."""
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
        self._hosts = hosts

    def of(self, account: DeviceAccount) -> dict[str, tuple[IdleContributor, ...]]:
        """Return the largest contributors of each idle entry of a GPU, kind by kind."""
        return self.largest(self.sums(account))

    def sums(self, account: DeviceAccount) -> dict[str, list[pl.DataFrame]]:
        """Add up idle time by cause and what was open, kind by kind, in several frames."""
        sums: dict[str, list[pl.DataFrame]] = {}
        spans = account.spans
        # Part by part: names of all stretches at once would take more memory than the rest.
        for first in range(0, max(len(spans), 1), _SPANS_AT_ONCE):
            stretches = self.stretches(account, spans.part(first, first + _SPANS_AT_ONCE))
            for kind, names in self._open_names(stretches):
                sums.setdefault(kind, []).append(_summed(stretches, names))
        return sums

    def largest(
        self, sums: Mapping[str, list[pl.DataFrame]]
    ) -> dict[str, tuple[IdleContributor, ...]]:
        """Name the largest contributors of each idle entry among sums of the same capture."""
        by_entry: dict[str, list[IdleContributor]] = {}
        for kind, parts in sums.items():
            for cause, name, ns, count in _largest(self._named(kind, pl.concat(parts))).iter_rows():
                contributor = IdleContributor(kind, name, ns, count)
                by_entry.setdefault(IdleCause(cause).entry, []).append(contributor)
        return {entry: tuple(contributors) for entry, contributors in by_entry.items()}

    # Stretches --------------------------------------------------------------------------------

    def stretches(self, account: DeviceAccount, spans: DeviceSpans | None = None) -> IdleStretches:
        """Cut idle time, of some spans or of all, where the host went from one thing to another."""
        idle, gaps = (account.spans if spans is None else spans).idle, account.gaps
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
        _, piece_start, piece_end, cause = self._hosts.pieces
        axis, known = self._host_threads.axis, np.flatnonzero((host_thread != NONE) & (start < end))
        begin, stop = (axis.at(host_thread[known], t[known]) for t in (start, end))
        starts, ends = self._piece_places
        first = search(ends, begin, side="right")
        after = search(starts, stop, side="left")
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

    @cached_property
    def _piece_places(self) -> tuple[Ints, Ints]:
        """Where the pieces of host time begin and end, on the axis of all host threads."""
        thread, start, end, _ = self._hosts.pieces
        axis = self._host_threads.axis
        return axis.at(thread, start), axis.at(thread, end)

    # What was open ----------------------------------------------------------------------------

    def _open_names(self, stretches: IdleStretches) -> list[tuple[str, pl.Series]]:
        """Return what was open in each stretch, by kind, as a code or a text; null for nothing."""
        known = stretches.host_thread != NONE
        times = stretches.sample_ns
        position = self.positions(stretches)
        threads = self._threads(position, known, {})
        range_threads = self._threads(position, known, self._ranges.stand_in)
        call = self._calls(stretches, known)
        op, os_call = (self._innermost(t, times, threads) for t in ("cpu_ops", "os_calls"))
        rows = {
            "range": self._innermost("ranges", times, range_threads),
            "op": op,
            "api call": call,
            "os call": os_call,
        }
        sites = _sites(self._trace, times, threads, {"api_calls": call, "os_calls": os_call})
        return [
            *((k, self._names[k].to_physical().gather(optional(r))) for k, r in rows.items()),
            ("call site", sites),
            ("next", self._next_codes(stretches.op)),
        ]

    @cached_property
    def _ranges(self) -> HostRangesByThread:
        return HostRangesByThread(self._trace, self._host_threads)

    @cached_property
    def _names(self) -> dict[str, pl.Series]:
        """The names of the rows of what can be open, by kind."""
        tables = {"op": "cpu_ops", "api call": "api_calls", "os call": "os_calls"}
        names = {kind: self._trace.table(table, ["name"])["name"] for kind, table in tables.items()}
        return {"range": self._ranges.frame["name"], **names}

    def _innermost(self, table: str, times: Ints, threads: pl.Series) -> Ints:
        """Return the row of the last event of the thread that had started and was open still."""
        if table not in self._nested:
            is_range, columns = table == "ranges", ["start_ns", "end_ns", "thread"]
            frame = self._ranges.frame if is_range else self._trace.table(table, columns)
            self._nested[table] = NestedIntervals.of_table(frame)
        nested = self._nested[table]
        return nested.rows_at(nested.innermost(times, threads))

    @cached_property
    def _nested(self) -> dict[str, NestedIntervals]:
        return {}

    def _named(self, kind: str, sums: pl.DataFrame) -> pl.DataFrame:
        """Replace codes by texts."""
        if kind == "call site":
            return sums
        if kind == "next":
            texts = pl.concat([self._kernels, _OTHERS])
        else:
            names = self._names[kind]
            texts = pl.Series(names_of(names), dtype=pl.String)
            if kind == "range":
                texts = _families(texts, sums["name"])
        return sums.with_columns(texts.gather(sums["name"]).alias("name"))

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
        at = search(self._call_places, places, side="right") - 1
        call = order[np.maximum(at, 0)]
        inside = known & (at >= 0) & (places < axis.at(calls.host_thread[call], calls.end_ns[call]))
        return np.where(inside, calls.row[call], NONE)

    @cached_property
    def _call_places(self) -> Ints:
        """Where the calls begin on the axis of all host threads, in their order there."""
        calls, order = self._schedule.calls, self._host_threads.order
        return self._host_threads.axis.at(calls.host_thread[order], calls.start_ns[order])

    @cached_property
    def _kernels(self) -> pl.Series:
        """The short name of each kernel, by the code of its name."""
        return distinct_short_names(self._trace.table("kernels", ["name"])["name"])

    def _next_codes(self, op: Ints) -> pl.Series:
        """Number what ended the gaps: kernels by the code of their name, then `_OTHERS`."""
        ops, trace = self._schedule.ops, self._trace
        if not len(ops):
            return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(op))
        kind, row = (np.where(op >= 0, column[op], NONE) for column in (ops.kind, ops.row))
        kernel_names = trace.table("kernels", ["name"])["name"]
        others = len(names_of(kernel_names))
        code = np.where(kind >= 0, others + kind - 1, NONE)
        kernels, copies = (np.flatnonzero(kind == k) for k in (OpKind.KERNEL, OpKind.COPY))
        if len(kernels):
            code[kernels] = kernel_names.to_physical().gather(row[kernels]).to_numpy()
        if len(copies):
            kinds = trace.table("copies", ["kind"])["kind"]
            unknown = len(names_of(kinds))
            codes = kinds.to_physical().gather(row[copies]).cast(pl.Int64).fill_null(unknown)
            code[copies] = others + _copy_codes(kinds)[codes.to_numpy()]
        return optional(code)


_OTHERS = pl.Series(["copy", "memset", "CUDA graph", *_COPIES.values()], dtype=pl.String)
"""What can end a gap besides kernels: first in the order of `OpKind`."""


def _copy_codes(kinds: pl.Series) -> Ints:
    """Return the position in `_OTHERS` of each kind of copy by its code, and of an unknown one."""
    places = {kind: _OTHERS.len() - len(_COPIES) + at for at, kind in enumerate(_COPIES)}
    return np.array([*(places.get(kind, 0) for kind in names_of(kinds)), 0], np.int64)


def _summed(stretches: IdleStretches, names: pl.Series) -> pl.DataFrame:
    """Add up by cause and name."""
    cause, lengths = stretches.cause, stretches.end_ns - stretches.start_ns
    number: pl.DataType = pl.Int64()
    schema = {"cause": number, "name": names.dtype, "ns": number, "count": number}
    if names.null_count() == len(names):
        return pl.DataFrame(schema=schema)
    if names.null_count():
        known = names.is_not_null()
        at = np.flatnonzero(known.to_numpy())
        cause, lengths, names = cause[at], lengths[at], names.filter(known)
    highest = names.max() if names.dtype.is_integer() else None
    if not isinstance(highest, int) or highest > _MAX_CODES_PER_ROW * len(names):
        frame = pl.DataFrame({"cause": cause, "name": names, "ns": lengths})
        count = pl.len().cast(pl.Int64).alias("count")
        return frame.group_by("cause", "name").agg(pl.col("ns").sum(), count)
    keys = names.to_numpy().astype(np.int64) * len(IdleCause) + cause
    # Sums of whole numbers are exact in floating point up to 104 days of nanoseconds.
    ns, counts = np.bincount(keys, lengths), np.bincount(keys)
    at = np.flatnonzero(counts)
    sums = (at % len(IdleCause), at // len(IdleCause), ns[at].astype(np.int64), counts[at])
    return pl.DataFrame(dict(zip(schema, sums, strict=True)), schema=schema)


def _largest(sums: pl.DataFrame) -> pl.DataFrame:
    """Keep the most expensive names of each cause."""
    return (
        sums.group_by("cause", "name")
        .agg(pl.col("ns").sum(), pl.col("count").sum())
        .sort(["cause", "ns", "name"], descending=[False, True, False])
        .group_by("cause", maintain_order=True)
        .head(MAX_CONTRIBUTORS)
    )


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
        # A column of nothing but nulls is found at once, its rows are not.
        if trace.has(table, "callchain") and _has_values(trace.table(table, ["callchain"])):
            of_table = sites_of(trace, table, optional(rows))
            sites = sites.zip_with(sites.is_not_null(), of_table)
    return sites


def _has_values(column: pl.DataFrame) -> bool:
    return column.to_series().null_count() < column.height


def families(names: pl.Series) -> pl.Series:
    """Write each name as one of those that only differ by numbers: `step_#`."""
    return names.str.replace(RECORD, "").str.replace_all(_DIGITS, "#")


def _families(texts: pl.Series, codes: pl.Series) -> pl.Series:
    """Write names that only differ by numbers as one, where several of them occur."""
    used = codes.unique()
    of_used = texts.gather(used)
    several = pl.col("plain").n_unique().over("family") > 1
    shown = pl.DataFrame(
        {"plain": of_used.str.replace(RECORD, ""), "family": families(of_used)}
    ).select(pl.when(several).then("family").otherwise("plain"))
    return texts.scatter(used, shown.to_series())
