"""The ledger of a capture with its steps, overlap and idle contributors: `ledger`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.capture_completeness import lost_work_notes
from gpusight.analysis.capture_info import device_names
from gpusight.analysis.gpu_schedule import NONE, OpKind
from gpusight.analysis.gpu_time import RECORDED_OVERHEAD
from gpusight.analysis.kernel_summary import graph_notes
from gpusight.analysis.ledger.accounting import AccountedStretch, Accounting
from gpusight.analysis.ledger.device_ledger import DeviceLedger, Ledger, ledger_of
from gpusight.analysis.ledger.idle_contributors import IdleContributor, IdleContributors
from gpusight.analysis.ledger.ledger_entries import IDLE, ActivityPriority, EntryLabels, IdleCause
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, ResolvedSelection, Selection
from gpusight.analysis.steps.step_window import step_spans, step_window
from gpusight.analysis.steps.window_headline import StepWindow, headline_of
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from gpusight.trace.intervals import Intervals, intersect
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.ledger.device_ledger import DeviceAccount
    from gpusight.analysis.ledger.ledger_entries import EntryLabel
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class DeviceOverlap:
    """Time of one GPU in which several things ran."""

    kernels_ns: int
    """Two or more kernels."""
    copy_ns: int
    """Copies and memsets, with or without kernels."""
    copy_hidden_ns: int
    """Copies and memsets that overlap kernels that compute."""
    communication_ns: int
    """Communication, with or without other kernels."""
    communication_hidden_ns: int
    """Communication that overlaps kernels that compute."""

    def __add__(self, other: DeviceOverlap) -> DeviceOverlap:
        """Add that of another stretch of time."""
        return DeviceOverlap(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def document(self) -> dict[str, int]:
        """Return it as plain objects."""
        return asdict(self)


def device_overlap(
    schedule: GpuSchedule, labels: EntryLabels, device: int, span: tuple[int, int] | None = None
) -> DeviceOverlap:
    """Measure what overlaps on a GPU in the window of a schedule, or in a part of it."""
    ops, priorities = schedule.ops, labels.priorities
    own = ops.device == device
    window = span or (schedule.start_ns, schedule.end_ns)
    start, end = (np.clip(t, *window) for t in (ops.start_ns, ops.end_ns))

    def running(priority: ActivityPriority) -> Intervals:
        at = np.flatnonzero(own & (priorities == priority))
        return Intervals.from_arrays(start[at], end[at])

    compute, copies, communication = (running(priority) for priority in ActivityPriority)
    kernels = np.flatnonzero(own & np.isin(ops.kind, (OpKind.KERNEL, OpKind.GRAPH)))
    # Activities are in order of start: what of one lies before the end of an earlier one overlaps.
    reached = np.maximum.accumulate(end[kernels])[:-1]
    several = Intervals.from_arrays(start[kernels[1:]], np.minimum(end[kernels[1:]], reached))
    return DeviceOverlap(
        kernels_ns=several.length_ns,
        copy_ns=copies.length_ns,
        copy_hidden_ns=intersect(copies, compute).length_ns,
        communication_ns=communication.length_ns,
        communication_hidden_ns=intersect(communication, compute).length_ns,
    )


COMMAND = "ledger"
_ACTIVITY = ("start_ns", "end_ns", "device", "context", "stream", "process", "correlation")
READS = {
    "kernels": [*_ACTIVITY, "name"],
    "copies": [*_ACTIVITY, "kind", "bytes"],
    "memsets": [*_ACTIVITY],
    "api_calls": [
        *("start_ns", "end_ns", "name", "api", "thread", "process", "correlation", "callchain"),
        "return_value",
    ],
    "ranges": [
        *("start_ns", "end_ns", "name", "kind", "open", "thread", "process", "source"),
    ],
}
"""Columns of the large tables that a ledger and the correction before it need."""
_MIN_NOTED_SHARE = 0.05
"""The least part of the window that is worth a note."""
_NOTED_CAUSES = {
    IdleCause.UNKNOWN: "for unknown causes",
    IdleCause.PROFILER: f"due to {RECORDED_OVERHEAD}",
}


@dataclass(frozen=True)
class StepTimes:
    """The ledgers of the steps of one GPU, as a table."""

    steps: tuple[TraceStep, ...]
    entries: tuple[str, ...]
    ns: Ints
    """A row for each step, a column for each entry; of a window of steps, they sum to it."""

    @cached_property
    def lines(self) -> pl.DataFrame:
        """Every entry that holds time: `step` (its position), `entry`, `ns`, `share` of it."""
        step, entry = np.nonzero(self.ns)
        ns = self.ns[step, entry]
        return pl.DataFrame(
            {
                "step": step,
                "entry": pl.Series(self.entries, dtype=pl.String).gather(entry),
                "ns": ns,
                "share": ns / self.ns.sum(axis=1)[step],
            }
        )

    def documents(self) -> list[list[dict[str, Any]]]:
        """Return the entries of each step as plain objects."""
        rows = self.lines.drop("step").to_dicts()
        bounds = np.cumsum(np.count_nonzero(self.ns, axis=1)).tolist()
        return [rows[first:after] for first, after in pairwise([0, *bounds])]


@dataclass(frozen=True)
class DeviceLedgerReport:
    """The ledger of one GPU, with overlap, idle contributors and steps."""

    ledger: DeviceLedger
    name: str | None
    overlap: DeviceOverlap
    contributors: Mapping[str, tuple[IdleContributor, ...]]
    steps: StepTimes

    def document(self) -> dict[str, Any]:
        """Return it as plain objects."""
        entries = [entry.document() for entry in self.ledger.entries]
        for entry in entries:
            if entry["entry"].startswith(f"{IDLE}/"):
                contributors = self.contributors.get(entry["entry"], ())
                entry["contributors"] = [c.document() for c in contributors]
        return {
            "device": self.ledger.device,
            "name": self.name,
            "entries": entries,
            "overlap": self.overlap.document(),
        }


@dataclass(frozen=True)
class LedgerReport:
    """The time of a window by cause, for each GPU and step."""

    ledger: Ledger
    devices: tuple[DeviceLedgerReport, ...]
    focus: StepWindow
    meta: Mapping[str, Any]
    notes: tuple[str, ...]
    title: str = "Ledger"

    def document(self) -> dict[str, Any]:
        """Return what `--format json` writes, as plain objects."""
        document, focus = self.ledger.document(), self.focus
        if focus.steps:
            recorded_ns = focus.recorded_step_ns
            document["window"] |= {
                "step_ns": focus.step_ns,
                "recorded_step_ns": focus.step_ns if recorded_ns is None else recorded_ns,
                "estimate_ns": focus.estimate_ns,
            }
        entries = [dict(zip(d.steps.steps, d.steps.documents(), strict=True)) for d in self.devices]
        steps = [
            {
                "step": step.name,
                "number": step.number,
                "start_ns": step.start_ns,
                "end_ns": step.end_ns,
                "process": step.process,
                "devices": [
                    {"device": device.ledger.device, "entries": known[step]}
                    for device, known in zip(self.devices, entries, strict=True)
                    if step in known
                ],
            }
            for step in focus.steps
        ]
        return {
            **document,
            "devices": [device.document() for device in self.devices],
            "steps": steps,
            "meta": dict(self.meta),
            "notes": list(self.notes),
        }


def ledger_report(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    known: Accounting | None = None,
) -> LedgerReport | NotApplicable:
    """Split the time of each GPU by cause: the steps without warm-up, or what is selected.

    `known` is used where it is of that time, rather than computed again.
    """
    if not any(trace.has(table) for table in GPU_WORK):
        hint = advice_for(trace.meta).gpu
        return NotApplicable(COMMAND, "the capture shows no GPU work", hint)
    chosen = step_window(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(chosen, NotApplicable):
        return replace(chosen, command=COMMAND)
    sums, has_calls = _DeviceSums.of(
        trace, accounting(trace, selection, chosen).or_known(known), selection, chosen.steps
    )
    if not sums:
        return NotApplicable(COMMAND, "no GPU work in the selection")
    names = device_names(trace)
    devices = tuple(
        DeviceLedgerReport(
            ledger_of(device, of_device.totals),
            names.get(device),
            of_device.overlap,
            of_device.contributors,
            of_device.steps,
        )
        for device, of_device in sums.items()
    )
    ledger = Ledger(chosen.start_ns, chosen.end_ns, tuple(d.ledger for d in devices))
    meta = {"command": COMMAND, "path": trace.meta.path, "steps": len(chosen.steps)}
    meta |= {"steps_left_out": len(chosen.left_out), "steps_found": chosen.how}
    named = headline_of(chosen, {d.device: d.busy_share for d in ledger.devices})
    meta |= {"step_ns": named.step_ns, "window": named.text, "headline": named.document()}
    notes = _notes(trace, chosen, devices, has_calls=has_calls)
    return LedgerReport(ledger, devices, chosen, meta, notes)


def accounting(trace: Trace, selection: Selection, chosen: StepWindow) -> Accounting:
    """Return what the ledger of a window is made of; nothing of it is computed yet."""
    processes = ResolvedSelection(trace, selection).processes
    if processes is not None and len(processes) > 1:
        why = f"{len(processes)} processes are called {selection.process!r}"
        raise UsageError("a ledger covers one process or all", why=why, hint="pass its number")
    process = None if processes is None else processes[0]
    return Accounting(trace, chosen.start_ns, chosen.end_ns, process)


@dataclass
class _DeviceSums:
    """What is known of one GPU, added up stretch by stretch."""

    totals: Counter[EntryLabel | IdleCause] = field(default_factory=Counter)
    overlap: DeviceOverlap = field(default_factory=lambda: DeviceOverlap(0, 0, 0, 0, 0))
    contributors: dict[str, tuple[IdleContributor, ...]] = field(default_factory=dict)
    idle: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    """Sums of the contributors."""
    entries: dict[str, Ints] = field(default_factory=dict)
    """The ns of each entry, by step."""
    own: Sequence[TraceStep] = ()
    bounds: tuple[Ints, Ints] = (np.empty(0, np.int64), np.empty(0, np.int64))
    """When these steps begin and end."""

    @classmethod
    def of(
        cls, trace: Trace, made: Accounting, selection: Selection, steps: Sequence[TraceStep]
    ) -> tuple[dict[int, _DeviceSums], bool]:
        """Return what is known of each selected GPU, and whether the window has API calls."""
        sums: dict[int, _DeviceSums] = {}
        has_calls = False
        for stretch in made.stretches():
            has_calls |= bool(len(stretch.schedule.calls))
            contributors = IdleContributors(stretch.schedule, stretch.hosts)
            for account in stretch.accounts:
                if selection.device in (None, account.device):
                    own = sums.setdefault(account.device, cls())
                    own._add(trace, stretch, account, contributors, steps)
        for own in sums.values():
            own.contributors = contributors.largest(own.idle)
        return sums, has_calls

    @property
    def steps(self) -> StepTimes:
        """The ledgers of the steps."""
        columns = [*self.entries.values()]
        return StepTimes(tuple(self.own), tuple(self.entries), np.stack(columns, axis=1))

    def _add(
        self,
        trace: Trace,
        stretch: AccountedStretch,
        account: DeviceAccount,
        contributors: IdleContributors,
        steps: Sequence[TraceStep],
    ) -> None:
        span = stretch.start_ns, stretch.end_ns
        self.totals.update(account.totals)
        self.overlap += device_overlap(stretch.schedule, account.labels, account.device, span)
        for kind, parts in contributors.sums(account).items():
            self.idle.setdefault(kind, []).extend(parts)
        if not self.entries:
            self.own = _steps_on(stretch.schedule, account, steps)
            self.bounds = step_spans(trace, self.own) if self.own else self.bounds
        inside = account.between(*(np.clip(bound, *span) for bound in self.bounds))
        for entry, ns in zip(account.names, inside.T, strict=True):
            self.entries[entry] = self.entries.get(entry, 0) + ns


def _steps_on(
    schedule: GpuSchedule, account: DeviceAccount, steps: Iterable[TraceStep]
) -> list[TraceStep]:
    """Return the steps of the processes that use a GPU; all where these are not known."""
    calls = schedule.ops.call[schedule.ops.device == account.device]
    used = np.unique(schedule.calls.thread[calls[calls != NONE]])
    processes = {schedule.threads[at][0] for at in used}
    return [s for s in steps if not processes or s.process is None or s.process in processes]


def _notes(
    trace: Trace, chosen: StepWindow, devices: Sequence[DeviceLedgerReport], *, has_calls: bool
) -> tuple[str, ...]:
    lost = lost_work_notes(trace, [(chosen.host_start_ns, chosen.end_ns)])
    notes = [*chosen.notes, *graph_notes(trace, chosen.time), *lost]
    if not has_calls:
        notes.append("no API calls in the window: the causes of idle time are unknown")
        return tuple(dict.fromkeys(notes))
    for device in devices:
        gpu = f"GPU {device.ledger.device}" if len(devices) > 1 else "the GPU"
        window = max(sum(entry.ns for entry in device.ledger.entries), 1)
        for cause, why in _NOTED_CAUSES.items():
            share = device.ledger.ns(cause.entry) / window
            if share > _MIN_NOTED_SHARE:
                notes.append(f"{gpu} is idle {format_share(share)} of the window {why}")
    return tuple(dict.fromkeys(notes))
