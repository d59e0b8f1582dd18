"""Where the time of each GPU went: each nanosecond counted exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.attribution.call_sites import first_known
from gpusight.analysis.gpu_schedule import NONE, CallKind, ScheduleTiming, build_schedule
from gpusight.analysis.ledger.idle_causes import HostTime, host_time
from gpusight.analysis.ledger.ledger_entries import (
    IDLE,
    EntryLabels,
    EntryRank,
    IdleCause,
    label_work,
)
from gpusight.trace.intervals import distinct

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


_QUEUED_NS = 10_000
"""What was launched and still takes this long to begin did not wait for the launch alone."""
_SLOW = 3
"""Launches that take this many times the usual did not only take their way to the GPU."""
_LEAST_LATENCY_NS = 5_000


def measured_timing(schedule: GpuSchedule) -> ScheduleTiming:
    """Give the times of a schedule as they were measured."""
    ops, calls = schedule.ops, schedule.calls
    return ScheduleTiming(
        ops.start_ns,
        ops.end_ns,
        calls.start_ns,
        calls.end_ns,
        schedule.start_ns,
        schedule.end_ns,
    )


@dataclass(frozen=True)
class DeviceSpans:
    """Spans of the window of one GPU, in order, without gaps."""

    start_ns: Ints
    end_ns: Ints
    op: Ints
    """The piece of work that the span counts for; `NONE` where nothing ran."""
    gap: Ints
    """Number of the gap that an idle span is part of; `NONE` where something ran."""

    def __len__(self) -> int:
        """Count them."""
        return len(self.start_ns)

    @property
    def length_ns(self) -> Ints:
        """How long each one is."""
        lengths: Ints = self.end_ns - self.start_ns
        return lengths

    @property
    def idle(self) -> DeviceSpans:
        """Those in which nothing ran."""
        at = np.flatnonzero(self.gap >= 0)
        return DeviceSpans(self.start_ns[at], self.end_ns[at], self.op[at], self.gap[at])

    def cut(self, times: Ints) -> DeviceSpans:
        """Cut spans in two at these moments."""
        if not len(self):
            return self
        inside = times[(times > self.start_ns[0]) & (times < self.end_ns[-1])]
        starts = distinct(self.start_ns, inside)
        at = np.searchsorted(self.start_ns, starts, side="right") - 1
        ends = np.append(starts[1:], self.end_ns[-1])
        return DeviceSpans(starts, ends, self.op[at], self.gap[at])


@dataclass(frozen=True)
class DeviceGaps:
    """Times in which nothing ran on a GPU, and what is known of the work that ended them."""

    start_ns: Ints
    lane: Ints
    """Of the call that launched that work, or of the last one before; `NONE` if not known."""
    launched_ns: Ints
    """When that call had returned; the end of the gap where no work ended it."""
    queued: NDArray[np.bool_]
    """What passed from then on was more than the launch's way to the GPU."""
    op: Ints
    """The work that ended the gap; `NONE` at the end of the window."""

    def spent(self, hosts: HostTime, idle: DeviceSpans) -> Ints:
        """Give the ns of each cause of idle spans, one row a span."""
        until = self.until(idle)
        spent = hosts.spent(self.lane[idle.gap], idle.start_ns, until)
        spent[np.arange(len(idle)), self.rest(idle)] += idle.end_ns - until
        return spent

    def until(self, idle: DeviceSpans) -> Ints:
        """Give when the host had done its part, in each idle span."""
        until: Ints = np.clip(self.launched_ns[idle.gap], idle.start_ns, idle.end_ns)
        return until

    def rest(self, idle: DeviceSpans) -> Ints:
        """Give the cause of what is left of each idle span then."""
        return np.where(self.queued[idle.gap], int(IdleCause.QUEUED), int(IdleCause.LAUNCHING))


def spans_of(
    schedule: GpuSchedule, timing: ScheduleTiming, labels: EntryLabels, device: int
) -> tuple[DeviceSpans, DeviceGaps]:
    """Cut the window of a GPU into spans."""
    own = _in_order(schedule, timing, labels, device)
    ranks = labels.ranks
    layers = [_Layer.of(timing, own[ranks[own] == rank]) for rank in EntryRank]
    edges = np.array([timing.start_ns, max(timing.start_ns, timing.end_ns)])
    cuts = distinct(edges, *(edge for one in layers for edge in one.edges))
    op = first_known([one.running(cuts[:-1]) for one in layers])
    idle = op == NONE
    gap = np.where(idle, np.cumsum(idle) - 1, NONE)
    spans = DeviceSpans(cuts[:-1], cuts[1:], op, gap)
    return spans, _gaps(schedule, timing, own, cuts[:-1][idle], cuts[1:][idle])


def _in_order(
    schedule: GpuSchedule, timing: ScheduleTiming, labels: EntryLabels, device: int
) -> Ints:
    """Give the work of a GPU in order of start; the order of rows decides nothing."""
    own = np.flatnonzero(schedule.ops.device == device)
    own = own[np.argsort(timing.op_start_ns[own], kind="stable")]
    start = timing.op_start_ns[own]
    if not (start[1:] == start[:-1]).any():
        return own
    call = schedule.ops.call[own]
    issued = np.where(call == NONE, NONE, np.append(timing.call_end_ns, NONE)[call])
    keys = (issued, labels.order[own], timing.op_end_ns[own], start)
    return own[np.lexsort(keys)]


@dataclass(frozen=True)
class _Layer:
    """Work of one rank; where pieces overlap, the one that began first keeps its time."""

    start_ns: Ints
    end_ns: Ints
    op: Ints

    @classmethod
    def of(cls, timing: ScheduleTiming, ops: Ints) -> _Layer:
        start = np.clip(timing.op_start_ns[ops], timing.start_ns, timing.end_ns)
        end = np.clip(timing.op_end_ns[ops], timing.start_ns, timing.end_ns)
        reached = np.maximum.accumulate(end)
        start[1:] = np.maximum(start[1:], reached[:-1])
        kept = start < end
        return cls(start[kept], end[kept], ops[kept])

    @property
    def edges(self) -> tuple[Ints, Ints]:
        return self.start_ns, self.end_ns

    def running(self, times: Ints) -> Ints:
        """Give what runs at each time; `NONE` for nothing."""
        if not len(self.op):
            return np.full(len(times), NONE, np.int64)
        at = np.searchsorted(self.start_ns, times, side="right") - 1
        return np.where((at >= 0) & (times < self.end_ns[at]), self.op[at], NONE)


def _gaps(
    schedule: GpuSchedule, timing: ScheduleTiming, own: Ints, start: Ints, end: Ints
) -> DeviceGaps:
    """Find what ended each gap, who launched it and when."""
    calls, ops = schedule.calls, schedule.ops
    after = np.searchsorted(timing.op_start_ns[own], end, side="left")
    ended = after < len(own)
    op = np.where(ended, np.append(own, NONE)[np.minimum(after, len(own))], NONE)
    call = np.where(ended, ops.call[op] if len(ops) else NONE, _last_call(schedule, own))
    known = call != NONE
    lane = np.where(known, calls.lane[call] if len(calls) else NONE, NONE)
    returned = np.where(known & ended, timing.call_end_ns[call] if len(calls) else end, end)
    inside = _inside_graph(schedule, timing, own, call, start) & ended
    if len(ops):
        # Work carried over from before the window had been launched, whoever did it.
        returned = np.where(ended & ops.carried[op] | inside, np.minimum(returned, start), returned)
    waited = end - np.maximum(returned, start)
    slow = end - returned > max(_LEAST_LATENCY_NS, _SLOW * _usual_latency(schedule, timing, own))
    queued = np.where(returned <= start, slow | (waited > _QUEUED_NS), slow & (waited > _QUEUED_NS))
    return DeviceGaps(start, lane, returned, queued | inside, op)


def _inside_graph(
    schedule: GpuSchedule, timing: ScheduleTiming, own: Ints, call: Ints, start: Ints
) -> NDArray[np.bool_]:
    """Tell which gaps lie between two pieces of work of one graph: its launch had begun to act."""
    if not len(schedule.calls):
        return np.zeros(len(call), np.bool_)
    calls = schedule.ops.call[own]
    began = np.full(len(schedule.calls) + 1, np.iinfo(np.int64).max)
    began[calls[::-1]] = timing.op_start_ns[own][::-1]  # written backwards: the first stays
    graph = schedule.calls.kind[call] == CallKind.GRAPH
    inside: NDArray[np.bool_] = (call != NONE) & graph & (began[call] < start)
    return inside


def _last_call(schedule: GpuSchedule, own: Ints) -> int:
    """Give the last call that launched work for the GPU."""
    called = schedule.ops.call[own]
    called = called[called != NONE]
    return int(called[-1]) if len(called) else NONE


def _usual_latency(schedule: GpuSchedule, timing: ScheduleTiming, own: Ints) -> float:
    """Give the median time from the end of a launch to work that waited for nothing else."""
    ops = schedule.ops
    by_queue = own[np.argsort(ops.queue[own], kind="stable")]
    queue, end = ops.queue[by_queue], timing.op_end_ns[by_queue]
    free = np.append(np.iinfo(np.int64).min, end[:-1])
    free[np.append(True, np.diff(queue) != 0)[: len(free)]] = np.iinfo(np.int64).min
    call = ops.call[by_queue]
    called = call != NONE
    returned = timing.call_end_ns[call[called]]
    latency = (timing.op_start_ns[by_queue[called]] - returned)[returned >= free[called]]
    return float(np.median(np.maximum(latency, 0))) if len(latency) else 0.0


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """A part of an entry: what its kernels compute in, or what kind of memory its copies met."""

    ns: int
    precision: str | None = None
    tensor_core: bool | None = None
    memory: str | None = None

    def document(self) -> dict[str, Any]:
        """Give it as plain objects; copies have no precision, kernels no memory."""
        if self.memory is not None:
            return {"memory": self.memory, "ns": self.ns}
        return {"precision": self.precision, "tensor_core": self.tensor_core, "ns": self.ns}


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One line of the ledger."""

    entry: str
    """Such as `compute/matmul`, `copy/h2d`, `communication`, `idle/input`."""
    ns: int
    share: float | None
    """Part of the window; None where that has no length."""
    parts: tuple[LedgerPart, ...] = ()

    def document(self) -> dict[str, Any]:
        """Give it as plain objects."""
        parts = {"parts": [part.document() for part in self.parts]} if self.parts else {}
        return {"entry": self.entry, "ns": self.ns, "share": self.share} | parts


@dataclass(frozen=True, slots=True)
class DeviceLedger:
    """The ledger of one GPU."""

    device: int
    entries: tuple[LedgerEntry, ...]
    """Those that hold any time, in the order of the ledger's priorities; they sum to the window."""

    def ns(self, prefix: str) -> int:
        """Sum the entries of a name, or of a group: `idle`, `compute`, `compute/matmul`."""
        return sum(e.ns for e in self.entries if f"{e.entry}/".startswith(f"{prefix}/"))

    @property
    def busy_share(self) -> float:
        """The part of the window in which the GPU did anything."""
        return sum(e.share or 0.0 for e in self.entries if e.entry.partition("/")[0] != IDLE)

    def document(self) -> dict[str, Any]:
        """Give it as plain objects."""
        return {"device": self.device, "entries": [e.document() for e in self.entries]}


@dataclass(frozen=True)
class Ledger:
    """The ledgers of all GPUs that worked in a window."""

    start_ns: int
    end_ns: int
    devices: tuple[DeviceLedger, ...]

    def document(self) -> dict[str, Any]:
        """Give it as plain objects."""
        return {
            "window": {"start_ns": self.start_ns, "end_ns": self.end_ns},
            "devices": [device.document() for device in self.devices],
        }


def build_ledger(
    schedule: GpuSchedule, hosts: HostTime, timing: ScheduleTiming | None = None
) -> Ledger:
    """Account for every nanosecond of a schedule, as measured or as a replay gives its times."""
    accounts = account(schedule, hosts, timing)
    times = timing or measured_timing(schedule)
    return Ledger(times.start_ns, times.end_ns, tuple(one.ledger for one in accounts))


# Accounts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeviceAccount:
    """The spans of one GPU with what they count for: what ledgers of any part are summed from."""

    device: int
    spans: DeviceSpans
    gaps: DeviceGaps
    labels: EntryLabels
    hosts: HostTime

    @cached_property
    def ledger(self) -> DeviceLedger:
        """The ledger of the whole window."""
        return DeviceLedger(self.device, self.entries())

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Give the entries of the whole window."""
        whole = np.zeros(len(self.spans), np.int64)
        return self._entries(self._sums(self.spans, whole, 1)[0])

    @property
    def names(self) -> tuple[str, ...]:
        """Every entry that the GPU may have, in the order of the ledger's priorities."""
        known = sorted(self.labels.known, key=lambda label: label.rank)
        return (
            *dict.fromkeys(label.entry for label in known),
            *(cause.entry for cause in IdleCause),
        )

    def between(self, starts: Ints, ends: Ints) -> Ints:
        """Give the ns of parts of the window (rows) by entry (columns, as `names`).

        Parts are in order of start and do not overlap.
        """
        spans = self.spans.cut(np.concatenate((starts, ends)))
        at = np.searchsorted(starts, spans.start_ns, side="right") - 1
        inside = (at >= 0) & (spans.start_ns < np.append(ends, 0)[at])
        sums = self._sums(spans, np.where(inside, at, len(starts)), len(starts) + 1)[:-1]
        numbers = {name: number for number, name in enumerate(self.names)}
        entries = [*(label.entry for label in self.labels.known), *(c.entry for c in IdleCause)]
        found = np.zeros((len(starts), len(numbers)), np.int64)
        for column, entry in enumerate(entries):
            found[:, numbers[entry]] += sums[:, column]
        return found

    def _sums(self, spans: DeviceSpans, part: Ints, parts: int) -> Ints:
        """Add spans up, by the part they belong to (rows) and what they count for (columns)."""
        columns = len(self.labels.known) + len(IdleCause)
        busy = np.flatnonzero(spans.gap < 0)
        key = part[busy] * columns + self.labels.of_op[spans.op[busy]]
        spent = self.gaps.spent(self.hosts, spans.idle)
        row, cause = np.nonzero(spent)
        idle_key = part[spans.gap >= 0][row] * columns + len(self.labels.known) + cause
        # Sums of whole numbers are exact in floating point up to 104 days of nanoseconds.
        sums = np.bincount(
            np.concatenate((key, idle_key)),
            np.concatenate((spans.length_ns[busy], spent[row, cause])),
            parts * columns,
        )
        return sums.astype(np.int64).reshape(parts, columns)

    def _entries(self, sums: Ints) -> tuple[LedgerEntry, ...]:
        """Make the entries of a row of sums."""
        total = int(sums.sum())
        known = self.labels.known
        groups: dict[str, list[LedgerPart]] = {}
        for at in sorted(np.flatnonzero(sums[: len(known)]), key=lambda at: known[at].rank):
            one = known[at]
            part = LedgerPart(int(sums[at]), one.precision, one.tensor_core, one.memory)
            groups.setdefault(one.entry, []).append(part)
        for cause in IdleCause:
            if spent := int(sums[len(known) + cause]):
                groups[cause.entry] = [LedgerPart(spent)]
        return tuple(_entry(name, parts, total) for name, parts in groups.items())


def account(
    schedule: GpuSchedule, hosts: HostTime, timing: ScheduleTiming | None = None
) -> list[DeviceAccount]:
    """Cut the window of every GPU that worked into spans, ready to be summed."""
    times = timing or measured_timing(schedule)
    labels = label_work(schedule)
    accounts = []
    for device in pl.Series(schedule.ops.device).unique().sort():
        spans, gaps = spans_of(schedule, times, labels, int(device))
        accounts.append(DeviceAccount(int(device), spans, gaps, labels, hosts))
    return accounts


def _entry(name: str, parts: Iterable[LedgerPart], total: int) -> LedgerEntry:
    """Make one entry; a part that says nothing more is left out."""
    every = sorted(parts, key=lambda part: -part.ns)
    ns = sum(part.ns for part in every)
    telling = any(part.precision or part.memory for part in every)
    return LedgerEntry(name, ns, ns / total if total else None, tuple(every) if telling else ())


@dataclass(frozen=True)
class Accounting:
    """A window of a capture; what is worked out of it is worked out when it is first asked for."""

    trace: Trace
    start_ns: int
    end_ns: int
    process: int | None = None
    """The only one that counts; None for all."""

    def or_known(self, known: Accounting | None) -> Accounting:
        """Give what was handed on, where it is of the same window."""
        return known if known is not None and known == self else self

    @cached_property
    def schedule(self) -> GpuSchedule:
        """The GPU work and the API calls of the window."""
        return build_schedule(self.trace, self.start_ns, self.end_ns, process=self.process)

    @cached_property
    def hosts(self) -> HostTime:
        """What each lane of the host did at every instant."""
        return host_time(self.trace, self.schedule)

    @cached_property
    def accounts(self) -> tuple[DeviceAccount, ...]:
        """The spans of every GPU that worked."""
        return tuple(account(self.schedule, self.hosts))

    @property
    def ledger(self) -> Ledger:
        """Where the time of every GPU went."""
        return Ledger(self.start_ns, self.end_ns, tuple(one.ledger for one in self.accounts))
