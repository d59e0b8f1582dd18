"""The ledger of a capture with its steps, and what idle time is made of: `gpusight ledger`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analyses.advice import advice_for
from gpusight.analyses.completeness import lost_work_notes
from gpusight.analyses.devices import device_names
from gpusight.analyses.kernels import graph_notes
from gpusight.analyses.ledger.accounting import Accounting
from gpusight.analyses.ledger.causes import IDLE, Cause
from gpusight.analyses.ledger.contributors import Contributor, Contributors
from gpusight.analyses.ledger.ledger import Account, DeviceLedger, Ledger
from gpusight.analyses.ledger.overlap import Overlap, overlap
from gpusight.analyses.schedule.schedule import NONE
from gpusight.analyses.select import EVERYTHING, GPU_WORK, Scope, Selection
from gpusight.analyses.steps.focus import Focus, focus
from gpusight.errors import UsageError
from gpusight.result import NotApplicable
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.analyses.schedule.schedule import Ints, Schedule
    from gpusight.analyses.steps.step import Step
    from gpusight.model.trace import Trace

COMMAND = "ledger"
_WORTH_SAYING = 0.05
"""The least part of the window that is worth a note."""
_EXPLAINED = {
    Cause.UNKNOWN: "for reasons that the capture does not show",
    Cause.PROFILER: "because the profiler itself was at work",
}


@dataclass(frozen=True)
class StepTimes:
    """The ledgers of the steps of one GPU, as a table."""

    steps: tuple[Step, ...]
    entries: tuple[str, ...]
    ns: Ints
    """A row for each step, a column for each entry; rows sum to the part inside the window."""

    def median_ns(self, entry: str) -> float | None:
        """Give what an entry takes in the median step."""
        if not self.steps:
            return None
        return float(np.median(self.ns[:, self.entries.index(entry)]))

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
        """Give the entries of each step as plain objects."""
        rows = self.lines.drop("step").to_dicts()
        bounds = np.cumsum(np.count_nonzero(self.ns, axis=1)).tolist()
        return [rows[first:after] for first, after in pairwise([0, *bounds])]


@dataclass(frozen=True)
class DeviceReport:
    """Everything that is told about one GPU."""

    ledger: DeviceLedger
    name: str | None
    overlap: Overlap
    contributors: Mapping[str, tuple[Contributor, ...]]
    steps: StepTimes

    def document(self) -> dict[str, Any]:
        """Give it as plain objects."""
        entries = [
            entry.document() | self._contributors(entry.entry) for entry in self.ledger.entries
        ]
        return {
            "device": self.ledger.device,
            "name": self.name,
            "entries": entries,
            "overlap": self.overlap.document(),
        }

    def _contributors(self, entry: str) -> dict[str, Any]:
        if not entry.startswith(f"{IDLE}/"):
            return {}
        return {"contributors": [c.document() for c in self.contributors.get(entry, ())]}


@dataclass(frozen=True)
class LedgerReport:
    """Where the time of a window went, for each GPU and step."""

    ledger: Ledger
    devices: tuple[DeviceReport, ...]
    focus: Focus
    meta: Mapping[str, Any]
    notes: tuple[str, ...]
    title: str = "Ledger"

    def with_warnings(self, warnings: Sequence[str]) -> LedgerReport:
        """Say first what is wrong with the capture."""
        return replace(self, notes=tuple(dict.fromkeys((*warnings, *self.notes))))

    def document(self) -> dict[str, Any]:
        """Give what `--format json` writes, as plain objects."""
        return {
            **self.ledger.document(),
            "devices": [device.document() for device in self.devices],
            "steps": list(self._steps()),
            "meta": dict(self.meta),
            "notes": list(self.notes),
        }

    def _steps(self) -> Iterable[dict[str, Any]]:
        entries = [dict(zip(d.steps.steps, d.steps.documents(), strict=True)) for d in self.devices]
        for step in self.focus.steps:
            yield {
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


class _Chosen(Scope):
    """A selection that can also say which process it is of."""

    @property
    def process(self) -> int | None:
        """The process chosen; None for all."""
        if self.processes is None:
            return None
        if len(self.processes) > 1:
            why = f"{len(self.processes)} processes are called {self.selection.process!r}"
            raise UsageError(
                "a ledger is of one process or of all", why=why, hint="give its number"
            )
        return self.processes[0]


def ledger_report(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    known: Accounting | None = None,
) -> LedgerReport | NotApplicable:
    """Account for every nanosecond of each GPU: the steps but warm-up, or what is asked for.

    `known` is taken where it is of that time, rather than worked out again.
    """
    if not any(trace.has(table) for table in GPU_WORK):
        hint = advice_for(trace.meta).gpu
        return NotApplicable(COMMAND, "the capture shows no GPU work", hint)
    chosen = focus(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(chosen, NotApplicable):
        return replace(chosen, command=COMMAND)
    made = accounting(trace, selection, chosen).or_known(known)
    schedule = made.schedule
    accounts = [one for one in made.accounts if selection.device in (None, one.device)]
    if not accounts:
        return NotApplicable(COMMAND, "no GPU work in what was selected")
    contributors = Contributors(schedule, made.hosts)
    names = device_names(trace)
    devices = tuple(
        _device(one, schedule, chosen, contributors, names.get(one.device)) for one in accounts
    )
    whole = Ledger(chosen.start_ns, chosen.end_ns, tuple(d.ledger for d in devices))
    meta = {"command": COMMAND, "path": trace.meta.path, "steps": len(chosen.steps)}
    meta |= {"steps_left_out": len(chosen.left_out), "steps_found": chosen.how}
    return LedgerReport(whole, devices, chosen, meta, _notes(trace, schedule, chosen, devices))


def accounting(trace: Trace, selection: Selection, chosen: Focus) -> Accounting:
    """Give what the ledger of a window is made of; nothing of it is worked out yet."""
    return Accounting(trace, chosen.start_ns, chosen.end_ns, _Chosen(trace, selection).process)


def _device(
    one: Account, schedule: Schedule, chosen: Focus, contributors: Contributors, name: str | None
) -> DeviceReport:
    return DeviceReport(
        one.ledger,
        name,
        overlap(schedule, one.labels, one.device),
        contributors.of(one),
        _step_times(one, _steps_of(schedule, one.device, chosen.steps)),
    )


def _steps_of(schedule: Schedule, device: int, steps: Iterable[Step]) -> list[Step]:
    """Give the steps of the processes that work on a GPU; all where that is not known."""
    calls = schedule.ops.call[schedule.ops.device == device]
    used = np.unique(schedule.calls.thread[calls[calls != NONE]])
    processes = {schedule.threads[at][0] for at in used}
    return [s for s in steps if not processes or s.process is None or s.process in processes]


def _step_times(one: Account, steps: list[Step]) -> StepTimes:
    """Split the time of a GPU by step; steps of one thread do not overlap, those of several may."""
    ns = np.zeros((len(steps), len(one.names)), np.int64)
    starts = np.array([step.start_ns for step in steps], np.int64)
    ends = np.array([step.end_ns for step in steps], np.int64)
    threads: dict[tuple[int | None, int | None], list[int]] = {}
    for number, step in enumerate(steps):
        threads.setdefault((step.process, step.thread), []).append(number)
    for at in threads.values():
        ns[at] = one.between(starts[at], ends[at])
    return StepTimes(tuple(steps), one.names, ns)


def _notes(
    trace: Trace, schedule: Schedule, chosen: Focus, devices: Sequence[DeviceReport]
) -> tuple[str, ...]:
    lost = lost_work_notes(trace, [(chosen.start_ns, chosen.end_ns)])
    notes = [*chosen.notes, *graph_notes(trace), *lost]
    if not len(schedule.calls):
        notes.append("no API calls in the window: why GPUs were idle cannot be told")
    else:
        notes += [note for device in devices for note in _idle_notes(device, len(devices) > 1)]
    return tuple(dict.fromkeys(notes))


def _idle_notes(device: DeviceReport, several: bool) -> Iterable[str]:
    """Say where idle time is not the program's doing, or cannot be explained."""
    which = f"GPU {device.ledger.device}" if several else "the GPU"
    window = max(sum(entry.ns for entry in device.ledger.entries), 1)
    for cause, why in _EXPLAINED.items():
        share = device.ledger.ns(cause.entry) / window
        if share > _WORTH_SAYING:
            yield f"{which} was idle for {format_share(share)} of the window {why}"
