"""Several processes or GPUs in one capture: each is diagnosed, and the worst one comes first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.selection import GPU_WORK
from gpusight.naming.host_names import is_sleeping
from gpusight.results import NotApplicable
from gpusight.rules.context import preload_tables
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.analysis.ledger.device_ledger import DeviceLedger
    from gpusight.analysis.selection import Selection
    from gpusight.rules.diagnosis import TimelineDiagnosis
    from gpusight.trace.trace import Trace


MAX_DIAGNOSED = 8
"""Processes that are diagnosed, those with most GPU time first: as many as a machine has GPUs."""
MIN_GPU_SHARE = 0.1
"""Part of the GPU time of the busiest process that one must have to come first: a process that
launches three kernels is idle nearly always, and nobody waits for it."""
MIN_SAVED_SHARE = 0.01
"""Share of its window that the fixes of a process must save to come before an idle one."""


@dataclass(frozen=True, slots=True)
class GpuOwner:
    """A process that used GPUs."""

    pid: int
    name: str
    devices: tuple[int, ...]
    gpu_ns: int
    """Sum of the durations of its GPU work."""

    @property
    def label(self) -> str:
        """Such as `process 1234 (python), GPU 0`."""
        name = f" ({self.name})" if self.name else ""
        gpus = f", GPU {', '.join(map(str, self.devices))}" if self.devices else ""
        return f"process {self.pid}{name}{gpus}"


@dataclass(frozen=True, slots=True)
class DiagnosisSection:
    """A further process, or a further GPU of the process above it."""

    label: str
    option: str
    """What selects it on the command line, such as `--process 1234`."""
    owner: GpuOwner | None = None
    busy_share: float | None = None
    """Share of its window that its GPU is busy; of several GPUs, the one with most work."""
    diagnosis: TimelineDiagnosis | None = None
    """None for a GPU of a process that is diagnosed above, and where there is a `reason`."""
    reason: str = ""

    @property
    def first_title(self) -> str:
        """The title of the first finding; empty where nothing was diagnosed or found."""
        findings = () if self.diagnosis is None else self.diagnosis.findings
        return findings[0].title if findings else ""

    def summary(self, title: str | None = None) -> str:
        """Say it in one line: window, GPU busy, first finding, whose `title` may be shorter."""
        facts = []
        if self.diagnosis is not None:
            unit = "/step" if self.diagnosis.steps else ""
            facts.append(f"{format_time(self.diagnosis.step_ns, digits=3)}{unit}")
        if self.busy_share is not None:
            facts.append(f"GPU busy {format_share(self.busy_share)}")
        if self.reason:
            facts.append(self.reason)
        finding = ""
        if self.diagnosis is not None:
            first = self.first_title if title is None else title
            finding = f"; {first or 'no finding'}"
        return f"{self.label}: {', '.join(facts)}{finding}"

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        diagnosis = None if self.diagnosis is None else self.diagnosis.document()
        return {
            "label": self.label,
            "option": self.option,
            "pid": None if self.owner is None else self.owner.pid,
            "devices": None if self.owner is None else list(self.owner.devices),
            "gpu_ns": None if self.owner is None else self.owner.gpu_ns,
            "busy_share": self.busy_share,
            "reason": self.reason or None,
            "diagnosis": diagnosis,
        }


def diagnose_processes(
    trace: Trace,
    selection: Selection,
    diagnose: Callable[[Selection], TimelineDiagnosis | NotApplicable],
) -> TimelineDiagnosis | NotApplicable:
    """Diagnose each process that used a GPU; return the worst one, with the others as sections.

    Worst is whose fixes save most, of those with much GPU work. A selection of one process or
    range is diagnosed alone.
    """
    preload_tables(trace)
    alone = selection.process is not None or selection.within is not None
    owners = [] if alone else gpu_owners(trace, selection.device)
    if len(owners) < 2:
        diagnosis = diagnose(selection)
        if alone or isinstance(diagnosis, NotApplicable):
            return diagnosis
        return replace(diagnosis, sections=_further_gpus(diagnosis, selection))
    sections = [_section(owner, selection, diagnose) for owner in owners[:MAX_DIAGNOSED]]
    sections += [
        DiagnosisSection(o.label, f"--process {o.pid}", o, reason="not diagnosed: too many")
        for o in owners[MAX_DIAGNOSED:]
    ]
    sections.sort(key=lambda section: _badness(section, owners[0].gpu_ns), reverse=True)
    first = sections[0].diagnosis
    if first is None:  # no process has a window: the one with most GPU work has the reason
        return diagnose(selection)
    meta = {**first.meta, "processes": len(owners)}
    return replace(first, sections=tuple(sections[1:]), meta=meta)


def first_process(
    trace: Trace,
    selection: Selection,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> Selection:
    """Select the process that `diagnose` shows first, so that all commands are about the same one.

    Where one process used GPUs, or the selection names a process or a range, it does not change.
    """
    if selection.process is not None or selection.within is not None:
        return selection
    owners = gpu_owners(trace, selection.device)
    # Others cannot come first, and need no diagnosis.
    large = [owner for owner in owners if owner.gpu_ns >= MIN_GPU_SHARE * owners[0].gpu_ns]
    if len(owners) < 2:
        return selection

    def choose() -> pl.DataFrame:
        from gpusight.rules.timeline_diagnosis import diagnose_timeline

        pid = large[0].pid
        if len(large) > 1:
            diagnosis = diagnose_processes(
                trace,
                selection,
                lambda part: diagnose_timeline(
                    trace, part, steps=steps, window=window, warmup=warmup
                ),
            )
            if not isinstance(diagnosis, NotApplicable):
                pid = diagnosis.meta.get("process", pid)
        return pl.DataFrame({"pid": [pid]})

    key = f"first-process-1 {trace.pace} {selection.device} {steps} {window} {warmup}"
    pid = trace.derive(key, choose)["pid"][0]
    return replace(selection, process=str(pid), rank=worst_of(len(owners)))


def worst_of(processes: int) -> str:
    """Say why a process comes first: `worst of 2`."""
    return f"worst of {processes}"


def _section(
    owner: GpuOwner,
    selection: Selection,
    diagnose: Callable[[Selection], TimelineDiagnosis | NotApplicable],
) -> DiagnosisSection:
    answer = diagnose(replace(selection, process=str(owner.pid)))
    option = f"--process {owner.pid}"
    if isinstance(answer, NotApplicable):
        return DiagnosisSection(owner.label, option, owner, reason=answer.reason)
    answer = replace(answer, meta={**answer.meta, "process": owner.pid})
    evaluated = _evaluated(answer)
    busy = None if evaluated is None else evaluated.busy_share
    return DiagnosisSection(owner.label, option, owner, busy, answer)


def _evaluated(diagnosis: TimelineDiagnosis) -> DeviceLedger | None:
    devices = diagnosis.ledger.devices
    wanted = diagnosis.meta.get("device")
    return next((d for d in devices if d.device == wanted), devices[0] if devices else None)


def _badness(section: DiagnosisSection, most_gpu_ns: int) -> tuple[bool, bool, float, float]:
    """Order sections: diagnosed ones with much GPU work by what fixes save, then by idle time.

    Idle time in which the host waits does not count: another process may be what it waits for. A
    process that sleeps waits for none.
    """
    from gpusight.analysis.ledger.ledger_entries import IdleCause  # not for a list of processes

    gpu_ns = section.owner.gpu_ns if section.owner is not None else 0
    diagnosis = section.diagnosis
    if diagnosis is None:
        return False, False, 0.0, float(gpu_ns)
    length_ns = diagnosis.focus.length_ns
    idle_ns = (1.0 - (section.busy_share or 0.0)) * length_ns
    evaluated = _evaluated(diagnosis)
    waiting_ns = 0.0 if evaluated is None else evaluated.ns(IdleCause.WAITING.entry)
    places = (location for finding in diagnosis.fixes for location in finding.where)
    asleep_ns = max((p.ns or 0.0 for p in places if is_sleeping(p.name)), default=0.0)
    waiting_ns = max(0.0, waiting_ns - asleep_ns)
    saved_ns = sum(finding.saved_ns or 0.0 for finding in diagnosis.fixes)
    saved_ns = min(saved_ns, length_ns - waiting_ns)
    notable_ns = saved_ns if saved_ns >= MIN_SAVED_SHARE * length_ns else 0.0
    return True, gpu_ns >= MIN_GPU_SHARE * most_gpu_ns, notable_ns, idle_ns


def _further_gpus(
    diagnosis: TimelineDiagnosis, selection: Selection
) -> tuple[DiagnosisSection, ...]:
    """Return a section for each further GPU of one process, the least busy first."""
    if selection.device is not None:
        return ()
    others = [d for d in diagnosis.ledger.devices if d.device != diagnosis.meta.get("device")]
    return tuple(
        DiagnosisSection(f"GPU {d.device}", f"--device {d.device}", busy_share=d.busy_share)
        for d in sorted(others, key=lambda device: (device.busy_share, device.device))
    )


def gpu_owners(trace: Trace, device: int | None = None) -> Sequence[GpuOwner]:
    """List the processes that used GPUs, or one GPU, those with most GPU time first."""
    parts = [
        trace.table(table, ["process", "device", "start_ns", "end_ns"]).select(
            "process", "device", (pl.col("end_ns") - pl.col("start_ns")).alias("ns")
        )
        for table in GPU_WORK
        if trace.has(table)
    ]
    if not parts:
        return ()
    work = pl.concat(parts).drop_nulls("process")
    if device is not None:
        work = work.filter(pl.col("device") == device)
    by_process = work.group_by("process").agg(
        pl.col("ns").sum(), pl.col("device").drop_nulls().unique().sort()
    )
    names = trace.table("processes", ["process", "pid", "name"]).unique("process", keep="first")
    rows = by_process.join(names, on="process").sort("ns", "process", descending=[True, False])
    return [
        GpuOwner(row["pid"], row["name"] or "", tuple(row["device"]), row["ns"])
        for row in rows.iter_rows(named=True)
        if row["pid"] is not None
    ]
