"""Where the time of each GPU went: each nanosecond counted exactly once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import first_known, lookup
from gpusight.analysis.gpu_schedule import NONE, CallKind, OpKind, ScheduleTiming
from gpusight.analysis.launch_index import stable_order
from gpusight.analysis.ledger.ledger_entries import (
    IDLE,
    ActivityPriority,
    EntryLabel,
    EntryLabels,
    IdleCause,
    label_work,
)
from gpusight.core import native
from gpusight.trace.intervals import distinct, search

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.ledger.host_threads import HostTime
    from gpusight.trace.intervals import Flags, Ints


_QUEUED_NS = 10_000
"""What was launched and still takes this long to start did not wait for the launch alone."""
_SLOW_LATENCIES = 3
"""Launches that take this many times the usual latency did not only take their way to the GPU."""
_MIN_SLOW_NS = 5_000
_MAX_USUAL_NS = 100_000
"""No launch takes this long on its way: what usually does waits for something."""


def measured_timing(schedule: GpuSchedule) -> ScheduleTiming:
    """Return the times of a schedule as they were measured."""
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
    """The GPU activity that the span counts for; `NONE` where nothing ran."""
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

    def part(self, first: int, after: int) -> DeviceSpans:
        """Return those at some positions, without copying them."""
        columns = (self.start_ns, self.end_ns, self.op, self.gap)
        return DeviceSpans(*(column[first:after] for column in columns))

    @property
    def idle(self) -> DeviceSpans:
        """Those in which nothing ran."""
        at = np.flatnonzero(self.gap >= 0)
        return DeviceSpans(self.start_ns[at], self.end_ns[at], self.op[at], self.gap[at])

    def cut(self, times: Ints) -> DeviceSpans:
        """Cut spans in two at these moments."""
        if not len(self):
            return self
        inside = distinct(times[(times > self.start_ns[0]) & (times < self.end_ns[-1])])
        after = search(self.start_ns, inside, side="right")
        new = self.start_ns[after - 1] < inside
        inside, after = inside[new], after[new]
        starts = np.insert(self.start_ns, after, inside)
        ends = np.append(starts[1:], self.end_ns[-1])
        op, gap = (np.insert(column, after, column[after - 1]) for column in (self.op, self.gap))
        return DeviceSpans(starts, ends, op, gap)


@dataclass(frozen=True)
class DeviceGaps:
    """Times in which nothing ran on a GPU, and what is known of the activity that ended them."""

    start_ns: Ints
    host_thread: Ints
    """Of the call that launched that activity, or of the last one before; `NONE` if not known."""
    launched_ns: Ints
    """When that call had returned; the end of the gap where no activity ended it."""
    queued: Flags
    """What passed from then on was more than the launch's way to the GPU."""
    op: Ints
    """The activity that ended the gap; `NONE` at the end of the window."""

    def spent(self, hosts: HostTime, idle: DeviceSpans) -> Ints:
        """Return the ns of each cause of idle spans, one row a span."""
        until = self.until(idle)
        spent = hosts.spent(self.host_thread[idle.gap], idle.start_ns, until)
        spent[np.arange(len(idle)), self.rest[idle.gap]] += idle.end_ns - until
        return spent

    def until(self, idle: DeviceSpans) -> Ints:
        """Return when the host had done its part, in each idle span."""
        until: Ints = np.clip(self.launched_ns[idle.gap], idle.start_ns, idle.end_ns)
        return until

    @property
    def rest(self) -> Ints:
        """The cause of what remains of each gap then."""
        return np.where(self.queued, int(IdleCause.QUEUED), int(IdleCause.LAUNCHING))


def spans_of(
    schedule: GpuSchedule, timing: ScheduleTiming, labels: EntryLabels, device: int
) -> tuple[DeviceSpans, DeviceGaps]:
    """Cut the window of a GPU into spans."""
    own = _in_order(schedule, timing, labels, device)
    priorities = labels.priorities
    present = (own[priorities[own] == priority] for priority in ActivityPriority)
    layers = [layer for ops in present if len((layer := _Layer.of(timing, ops)).op)]
    edges = np.array([timing.start_ns, max(timing.start_ns, timing.end_ns)])
    cuts = distinct(edges, *(x.start_ns for x in layers), *(x.end_ns for x in layers))
    op = first_known(
        [layer.running(cuts[:-1]) for layer in layers] or [np.full(len(cuts) - 1, NONE)]
    )
    idle = op == NONE
    gap = np.where(idle, np.cumsum(idle) - 1, NONE)
    spans = DeviceSpans(cuts[:-1], cuts[1:], op, gap)
    return spans, _gaps(schedule, timing, own, cuts[:-1][idle], cuts[1:][idle])


def _in_order(
    schedule: GpuSchedule, timing: ScheduleTiming, labels: EntryLabels, device: int
) -> Ints:
    """Return the activities of a GPU in order of start; the order of rows decides nothing."""
    own = np.flatnonzero(schedule.ops.device == device)
    own = own[stable_order(timing.op_start_ns[own])]
    start = timing.op_start_ns[own]
    if not (start[1:] == start[:-1]).any():
        return own
    call = schedule.ops.call[own]
    issued = np.where(call == NONE, NONE, np.append(timing.call_end_ns, NONE)[call])
    keys = (issued, labels.order[own], timing.op_end_ns[own], start)
    return own[np.lexsort(keys)]


@dataclass(frozen=True)
class _Layer:
    """Activities of one priority; where two overlap, the one that started first keeps its time."""

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

    def running(self, times: Ints) -> Ints:
        """Return what runs at each time; `NONE` for nothing."""
        at = search(self.start_ns, times, side="right") - 1
        return np.where((at >= 0) & (times < self.end_ns[at]), self.op[at], NONE)


def _gaps(
    schedule: GpuSchedule, timing: ScheduleTiming, own: Ints, start: Ints, end: Ints
) -> DeviceGaps:
    """Find what ended each gap, who launched it and when."""
    calls, ops = schedule.calls, schedule.ops
    after = search(timing.op_start_ns[own], end, side="left")
    ended = after < len(own)
    op = np.where(ended, np.append(own, NONE)[np.minimum(after, len(own))], NONE)
    call = np.where(ended, ops.call[op] if len(ops) else NONE, NONE)
    # No call migrates managed memory, and none comes after the last activity: there, the thread
    # that launched last counts.
    unlaunched = ~ended | np.append(_migrations(schedule), False)[op]
    launching = own[ops.call[own] != NONE]
    before = search(timing.op_start_ns[launching], end, side="left") - 1
    last_call = np.append(ops.call[launching], NONE)[
        np.where(len(launching), np.maximum(before, 0), -1)
    ]
    call = np.where(unlaunched, last_call, call)
    known = call != NONE
    host_thread = np.where(known, calls.host_thread[call] if len(calls) else NONE, NONE)
    returned = np.where(known & ~unlaunched, timing.call_end_ns[call] if len(calls) else end, end)
    inside = _inside_graph(schedule, timing, own, call, start) & ended
    if len(ops):
        # What was carried over from before the window had been launched, whoever did it.
        returned = np.where(ended & ops.carried[op] | inside, np.minimum(returned, start), returned)
    waited = end - np.maximum(returned, start)
    usual_ns = min(_usual_latency_ns(schedule, timing, own), _MAX_USUAL_NS)
    slow = end - returned > max(_MIN_SLOW_NS, _SLOW_LATENCIES * usual_ns)
    queued = np.where(returned <= start, slow | (waited > _QUEUED_NS), slow & (waited > _QUEUED_NS))
    return DeviceGaps(start, host_thread, returned, queued | inside, op)


def _migrations(schedule: GpuSchedule) -> Flags:
    """Return which GPU activities are migrations of managed memory."""
    ops = schedule.ops
    copies = np.flatnonzero((ops.kind == OpKind.COPY) & (ops.call == NONE))
    migrations = np.zeros(len(ops), np.bool_)
    if len(copies):
        kinds = schedule.trace.table("copies", ["kind"])["kind"]
        unified = [c for c, name in enumerate(names_of(kinds)) if name.startswith("Unified")]
        migrations[copies] = kinds.to_physical().gather(ops.row[copies]).is_in(unified).to_numpy()
    return migrations


def _inside_graph(
    schedule: GpuSchedule, timing: ScheduleTiming, own: Ints, call: Ints, start: Ints
) -> Flags:
    """Return which gaps lie between two activities of one graph: its launch had taken effect."""
    if not len(schedule.calls):
        return np.zeros(len(call), np.bool_)
    graph: Flags = (call != NONE) & (schedule.calls.kind[call] == CallKind.GRAPH)
    if not graph.any():
        return graph
    calls = schedule.ops.call[own]
    first_start = np.full(len(schedule.calls) + 1, np.iinfo(np.int64).max)
    first_start[calls[::-1]] = timing.op_start_ns[own][::-1]  # written backwards: the first stays
    inside: Flags = graph & (first_start[call] < start)
    return inside


def _usual_latency_ns(schedule: GpuSchedule, timing: ScheduleTiming, own: Ints) -> float:
    """Return the median time from the end of a launch to what waited for nothing else."""
    if not len(own):
        return 0.0
    ops = schedule.ops
    by_stream = own[stable_order(ops.stream_id[own])]
    stream, end = ops.stream_id[by_stream], timing.op_end_ns[by_stream]
    free = np.append(np.iinfo(np.int64).min, end[:-1])
    free[np.append(True, np.diff(stream) != 0)[: len(free)]] = np.iinfo(np.int64).min
    call = ops.call[by_stream]
    called = call != NONE
    returned = timing.call_end_ns[call[called]]
    latency = (timing.op_start_ns[by_stream[called]] - returned)[returned >= free[called]]
    return float(np.median(np.maximum(latency, 0))) if len(latency) else 0.0


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """A part of an entry: what its kernels compute in, or what kind of memory its copies met."""

    ns: int
    precision: str | None = None
    tensor_core: bool | None = None
    memory: str | None = None

    def document(self) -> dict[str, Any]:
        """Return it as plain objects; copies have no precision, kernels no memory."""
        if self.memory is not None:
            return {"memory": self.memory, "ns": self.ns}
        return {"precision": self.precision, "tensor_core": self.tensor_core, "ns": self.ns}


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One line of the ledger: where part of a window went."""

    entry: str
    """Such as `compute/matmul`, `copy/h2d`, `communication`, `idle/input`."""
    ns: int
    share: float | None
    """Part of the window; None where that has no length."""
    parts: tuple[LedgerPart, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as plain objects."""
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
        """Return it as plain objects."""
        return {"device": self.device, "entries": [e.document() for e in self.entries]}


@dataclass(frozen=True)
class Ledger:
    """The ledgers of all GPUs that worked in a window."""

    start_ns: int
    end_ns: int
    devices: tuple[DeviceLedger, ...]

    def document(self) -> dict[str, Any]:
        """Return it as plain objects."""
        return {
            "window": {"start_ns": self.start_ns, "end_ns": self.end_ns},
            "devices": [device.document() for device in self.devices],
        }


def build_ledger(
    schedule: GpuSchedule, hosts: HostTime, timing: ScheduleTiming | None = None
) -> Ledger:
    """Count each nanosecond of a schedule exactly once, with measured or simulated times."""
    times = timing or measured_timing(schedule)
    accounts = account(schedule, hosts, times)
    return Ledger(times.start_ns, times.end_ns, tuple(device.ledger for device in accounts))


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
        return ledger_of(self.device, self.totals)

    @cached_property
    def totals(self) -> dict[EntryLabel | IdleCause, int]:
        """The ns of each label and cause that holds any."""
        whole_window = np.zeros(len(self.spans), np.int64)
        sums = self._sums(self.spans, whole_window, 1)[0].tolist()
        counted = zip((*self.labels.known, *IdleCause), sums, strict=True)
        return {what: ns for what, ns in counted if ns}

    def inside(self, start_ns: int, end_ns: int) -> DeviceAccount:
        """Return the spans of a part of the window."""
        spans = self.spans.cut(np.array([start_ns, end_ns]))
        first, after = (int(np.searchsorted(spans.start_ns, t)) for t in (start_ns, end_ns))
        return replace(self, spans=spans.part(first, after))

    @property
    def names(self) -> tuple[str, ...]:
        """Every entry that the GPU may have, in the order of the ledger's priorities."""
        known = sorted(self.labels.known, key=lambda label: label.priority)
        return (
            *dict.fromkeys(label.entry for label in known),
            *(cause.entry for cause in IdleCause),
        )

    def between(self, starts: Ints, ends: Ints) -> Ints:
        """Return the ns of parts of the window (rows) by entry (columns, as `names`).

        Parts are in order of start and do not overlap.
        """
        spans = self.spans.cut(np.concatenate((starts, ends)))
        at = search(starts, spans.start_ns, side="right") - 1
        inside = (at >= 0) & (spans.start_ns < np.append(ends, 0)[at])
        sums = self._sums(spans, np.where(inside, at, len(starts)), len(starts) + 1)[:-1]
        numbers = {name: number for number, name in enumerate(self.names)}
        entries = [*(label.entry for label in self.labels.known), *(c.entry for c in IdleCause)]
        by_entry = np.zeros((len(starts), len(numbers)), np.int64)
        for column, entry in enumerate(entries):
            by_entry[:, numbers[entry]] += sums[:, column]
        return by_entry

    def _sums(self, spans: DeviceSpans, part: Ints, parts: int) -> Ints:
        """Add spans up, by the part they belong to (rows) and what they count for (columns)."""
        gaps, labels = self.gaps, self.labels
        compiled = native.ledger_sums(
            self.hosts.moments,
            (gaps.host_thread, gaps.launched_ns, gaps.rest),
            (spans.start_ns, spans.end_ns, lookup(labels.of_op, spans.op), spans.gap, part),
            len(labels.known),
            parts,
        )
        return self._summed(spans, part, parts) if compiled is None else compiled

    def _summed(self, spans: DeviceSpans, part: Ints, parts: int) -> Ints:
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


def account(
    schedule: GpuSchedule,
    hosts: HostTime,
    timing: ScheduleTiming | None = None,
    devices: Iterable[int] | None = None,
) -> list[DeviceAccount]:
    """Cut the window of every GPU that worked into spans, ready to be summed; or of some GPUs."""
    times = timing or measured_timing(schedule)
    labels = label_work(schedule)
    accounts = []
    for device in pl.Series(schedule.ops.device).unique().sort() if devices is None else devices:
        spans, gaps = spans_of(schedule, times, labels, int(device))
        accounts.append(DeviceAccount(int(device), spans, gaps, labels, hosts))
    return accounts


def ledger_of(device: int, totals: Mapping[EntryLabel | IdleCause, int]) -> DeviceLedger:
    """Make the ledger of a GPU of the ns of labels and causes."""
    labels = [what for what in totals if isinstance(what, EntryLabel)]
    parts: dict[str, list[LedgerPart]] = {}
    for label in sorted(labels, key=lambda label: label.priority):
        part = LedgerPart(totals[label], label.precision, label.tensor_core, label.memory)
        parts.setdefault(label.entry, []).append(part)
    for cause in IdleCause:
        if cause in totals:
            parts[cause.entry] = [LedgerPart(totals[cause])]
    total_ns = sum(totals.values())
    entries = (_entry(name, of_entry, total_ns) for name, of_entry in parts.items())
    return DeviceLedger(device, tuple(entries))


def _entry(name: str, parts: list[LedgerPart], total_ns: int) -> LedgerEntry:
    """Make one entry, the largest part first; parts without information are left out."""
    ns = sum(part.ns for part in parts)
    shown = any(part.precision or part.memory for part in parts)
    ordered = sorted(parts, key=lambda part: -part.ns) if shown else ()
    return LedgerEntry(name, ns, ns / total_ns if total_ns else None, tuple(ordered))
