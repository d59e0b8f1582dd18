"""From a capture to its digest: the window of `diagnose`, summarized step by step."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import polars as pl

from gpusight.analysis import capture_completeness
from gpusight.analysis.capture_info import device_names
from gpusight.analysis.corrected_trace import correction_of
from gpusight.analysis.gpu_schedule import build_schedule
from gpusight.analysis.kernel_summary import graph_notes
from gpusight.analysis.launch_index import launched, of_process
from gpusight.analysis.ledger.device_ledger import account
from gpusight.analysis.ledger.idle_causes import host_time
from gpusight.analysis.profiler_correction import without_profiler
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.replay.changes import set_duration
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, ResolvedSelection
from gpusight.analysis.steps.step_window import step_spans, step_window
from gpusight.comparison.digest import Digest, DigestFinding, StepBlocks, rounded, rounded_parts
from gpusight.comparison.digest_rows import (
    api_rows,
    copy_rows,
    cut,
    kernel_rows,
    memory_peak,
    phase_series,
    plain,
    plain_texts,
    range_rows,
)
from gpusight.results import NotApplicable
from gpusight.rules.context import busiest_process, preload_tables, sample_steps
from gpusight.rules.engine import run_timeline_rules
from gpusight.rules.registry import timeline_rules
from gpusight.rules.timeline_diagnosis import gpu_processes, sample_notes
from gpusight.sniff import encodable_text
from gpusight.units import exact_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analysis.ledger.device_ledger import DeviceAccount
    from gpusight.analysis.selection import Selection
    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.trace.intervals import Reals
    from gpusight.trace.trace import Trace


_Part = TypeVar("_Part")

COMMAND = "compare"
UNKNOWN_GPU = "unknown GPU"
_MIN_WORK = 0.01
"""Of the work of the busiest GPU: a stray copy does not make a GPU one that the program uses."""
_GRAPHS = GPU_WORK.index("graph_launches")
_TIMELINES = "a timeline is needed: nsys, a torch.profiler trace, or a JAX profile"
_WITHOUT_TIMELINE = {
    "profiles": "an Nsight Compute report has",
    "op_totals": "printed totals have",
    "memory_blocks": "a memory snapshot has",
}


@dataclass(frozen=True)
class _StepWork:
    """The summarized part of a capture, and the process whose steps these are."""

    trace: Trace
    selection: Selection
    focus: StepWindow
    process: int | None
    blocks: StepBlocks
    work: pl.DataFrame
    """GPU work launched in the window, as `StepBlocks.launched` returns it."""


def make_digest(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> Digest | NotApplicable:
    """Summarize a capture; the keywords choose the window, as in `step_window`."""
    digest = _made_digest(trace, selection, steps=steps, window=window, warmup=warmup)
    return digest.after_losses(trace.losses) if isinstance(digest, NotApplicable) else digest


def _made_digest(
    trace: Trace,
    selection: Selection,
    *,
    steps: str | None,
    window: tuple[int | None, int | None] | None,
    warmup: bool,
) -> Digest | NotApplicable:
    if not any(trace.has(table) for table in GPU_WORK):
        for table, what in _WITHOUT_TIMELINE.items():
            if trace.has(table):
                return NotApplicable(COMMAND, f"{what} no timeline", _TIMELINES)
        return NotApplicable(COMMAND, "no GPU work in the capture", advice_for(trace.meta).gpu)
    trace = without_profiler(trace, selection.process)
    preload_tables(trace)
    focus = step_window(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(focus, NotApplicable):
        return replace(focus, command=COMMAND)
    steps_work = _step_work(trace, selection, focus)
    if steps_work.work.is_empty():
        what = "the steps launch no GPU work" if focus.steps else "no GPU work ran in the window"
        return NotApplicable(COMMAND, what, advice_for(trace.meta).gpu)
    if not steps_work.blocks.duration_ns.sum():
        return NotApplicable(COMMAND, "the steps take no time", "--window A-B chooses another time")
    return _digest(steps_work, scope_of(selection, steps=steps, window=window, warmup=warmup))


def scope_of(
    selection: Selection,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> str:
    """Write the selected part as options; empty where everything is selected.

    A process given by its number is `--process ID`: every run has another.
    """
    options = []
    if selection.within is not None:
        options.append(f"--in {shlex.quote(selection.within.strip())}")
    if selection.device is not None:
        options.append(f"--device {selection.device}")
    if selection.process is not None:
        name = selection.process.strip()
        options.append(f"--process {'ID' if name.isdecimal() else shlex.quote(name)}")
    if steps is not None:
        options.append(f"--steps {shlex.quote(''.join(steps.split()).lower())}")
    if window is not None:
        ends = ("" if end_ns is None else exact_time(end_ns) for end_ns in window)
        options.append(f"--window {'-'.join(ends)}")
    if warmup:
        options.append("--warmup")
    return cut(encodable_text(" ".join(options)))


def _step_work(trace: Trace, selection: Selection, focus: StepWindow) -> _StepWork:
    process = busiest_process(trace, focus, selection)
    work = of_process(launched(trace), process)
    are_ranges = False  # where steps are the selected ranges, nothing outside of them counts
    if selection.within is not None and focus.steps:
        starts = set(ResolvedSelection(trace, selection).matching_ranges["start_ns"])
        are_ranges = all(step.start_ns in starts for step in focus.steps)
    blocks = StepBlocks.of(focus, work, apart=not are_ranges)
    if selection.device is not None:
        work = work.filter(pl.col("device") == selection.device)
    return _StepWork(trace, selection, focus, process, blocks, blocks.launched(work))


def _digest(of: _StepWork, scope: str) -> Digest:
    trace, focus, blocks = of.trace, of.focus, of.blocks
    correction = correction_of(trace)
    # Where the profiler did not slow the steps down, their times are those of the capture.
    pace = correction.pace if correction is not None and correction.overhead.event_ns else None
    ledgers = _ledgers(of)
    by_step = np.stack(list(ledgers.steps.values()))
    step_ns, durations_ns = rounded(blocks.mean(by_step.sum(axis=0))), blocks.duration_ns
    # Rounded to whole numbers that sum to those of the blocks.
    entries = zip(ledgers.steps, rounded_parts(blocks.mean(by_step), step_ns), strict=True)
    if blocks.known and blocks.apart:  # as `steps` shows them, time between steps included
        begun, done = step_spans(trace, blocks.steps)
        durations_ns = done - begun
    kernels = kernel_rows(trace, blocks, of.work)
    phases = phase_series(trace, blocks, of.work)
    ranges = range_rows(trace, blocks, of.process, launched_by=of.work["thread"])
    api = api_rows(trace, blocks, of.process)
    peak = memory_peak(trace, of.selection)
    diagnosed = _diagnosed(of)
    findings = diagnosed.findings
    parts: dict[str, object] = {"phases": phases, "ranges": ranges, "api": api}
    parts |= {"memory_peak": peak, "findings": findings}
    # Calls that issue GPU work, up to the start of the next step each.
    spans = list(zip(blocks.from_ns.tolist(), blocks.until_ns.tolist(), strict=True))
    issued = capture_completeness.issued_work(trace, spans, of.process)
    launch_calls = issued[capture_completeness.KERNELS].calls if issued else None
    lost = capture_completeness.lost_sources(trace, issued)
    return Digest(
        label=encodable_text(PurePath(trace.meta.path).name),
        tool=plain(" ".join(filter(None, (trace.meta.tool, trace.meta.tool_version)))),
        gpus=ledgers.gpus,
        steps=len(focus.steps),
        steps_left_out=len(focus.left_out),
        steps_found=plain(focus.how),
        blocks=tuple(blocks.sizes.tolist()),
        step_ns=step_ns,
        between_ns=blocks.between_ns(),
        median_ns=float(np.median(durations_ns)),
        min_ns=float(durations_ns.min()),
        max_ns=float(durations_ns.max()),
        recorded_step_ns=focus.recorded_step_ns,
        pace_steps=0 if pace is None else pace.steps,
        pace_spread=0.0 if pace is None else pace.spread,
        is_estimate=focus.is_estimate,
        stddev_ns=float(durations_ns.std(ddof=1)) if len(durations_ns) > 1 else None,
        ledger={name: series for name, series in entries if any(series)},
        kernel_ns=kernels.kernel_ns,
        phases=_known(phases, {}),
        kernels=kernels.rows,
        order=kernels.order,
        ranges=_known(ranges, ()),
        api=_known(api, ()),
        copies=copy_rows(trace, blocks, of.work),
        memory_peak=_known(peak, {}),
        findings=_known(findings, ()),
        missing=_missing(of, parts, lost),
        notes=plain_texts((*_digest_notes(of), *ledgers.notes, *diagnosed.notes)),
        launch_calls=None if launch_calls is None else round(launch_calls / len(blocks.steps), 3),
        processes=gpu_processes(trace),
        lost={key: plain(reason) for key, reason in lost.items()},
        not_evaluated={rule: plain(reason) for rule, reason in diagnosed.not_evaluated.items()},
        host_step_ns=diagnosed.host_step_ns,
        reported_losses=plain_texts(capture_completeness.reported_losses(trace)),
        scope=scope,
        process=focus.process,
    )


class _Ledgers(NamedTuple):
    """The ledger of each step; means over GPUs."""

    gpus: tuple[str, ...]
    steps: dict[str, Reals]
    """By entry, one value per step. They sum to the window."""
    notes: list[str]


def _ledgers(of: _StepWork) -> _Ledgers:
    """Account for the window, step by step, on the GPUs that the process used."""
    schedule = build_schedule(of.trace, of.focus.start_ns, of.focus.end_ns, process=of.process)
    by_device = of.work.group_by("device").agg(pl.col("ns").sum()).sort("device")
    is_used = by_device["ns"] >= _MIN_WORK * by_device["ns"].max()  # type: ignore[operator]
    used, unused = (by_device.filter(rows)["device"].to_list() for rows in (is_used, ~is_used))
    accounts = [a for a in account(schedule, host_time(of.trace, schedule)) if a.device in used]
    names = device_names(of.trace)
    notes = []
    if len(used) > 1:
        notes.append(
            f"kernels, copies and phases are summed over {len(used)} GPUs, the ledger is their mean"
        )
    if unused:
        numbers = ", ".join(map(str, unused))
        notes.append(f"GPU {numbers} is nearly unused: excluded from the ledger")
    return _Ledgers(
        tuple(plain(names.get(a.device) or UNKNOWN_GPU) for a in accounts),
        _mean_by_step(accounts, of),
        notes,
    )


def _mean_by_step(accounts: Sequence[DeviceAccount], of: _StepWork) -> dict[str, Reals]:
    """Average entries over GPUs, step by step."""
    blocks = of.blocks
    entries: dict[str, Reals] = {}
    for of_gpu in accounts:
        in_step = of_gpu.between(blocks.begun_ns, blocks.done_ns).T
        after = of_gpu.between(*blocks.pauses).T
        total = in_step.sum(axis=-1)
        if blocks.apart:
            window = np.array([[of.focus.start_ns], [of.focus.end_ns]], np.int64)
            total = of_gpu.between(*window)[0]
        rows = blocks.scaled(in_step.astype(np.float64), after.astype(np.float64), total)
        for name, row in zip(of_gpu.names, rows, strict=True):
            entries[name] = entries.get(name, 0) + row / len(accounts)
    return entries


def _known(part: _Part | NotApplicable, otherwise: _Part) -> _Part:
    return otherwise if isinstance(part, NotApplicable) else part


def _missing(of: _StepWork, parts: dict[str, object], lost: dict[str, str]) -> dict[str, str]:
    """Return the parts that the capture does not have, and why."""
    missing = {key: p.reason for key, p in parts.items() if isinstance(p, NotApplicable)}
    missing |= lost
    if (of.work["table"] == _GRAPHS).any():
        missing["kernels"] = "CUDA graphs were traced as a whole: their kernels are unknown"
    if not of.focus.steps:
        why = of.focus.no_steps or "no complete step in the window"
        missing["steps"] = why + of.focus.suggestions
    ranges = parts["ranges"]
    if isinstance(ranges, tuple) and any(row.gpu_ns is None for row in ranges):
        missing["ranges_gpu"] = "the capture does not link API calls to GPU work"
    return {key: plain(reason) for key, reason in missing.items()}


class _Diagnosed(NamedTuple):
    """What `diagnose` finds, and what the host alone needs for a step."""

    findings: tuple[DigestFinding, ...] | NotApplicable
    notes: tuple[str, ...] = ()
    not_evaluated: Mapping[str, str] = {}
    """Rules that lacked data, and why."""
    host_step_ns: float | None = None


def _diagnosed(of: _StepWork) -> _Diagnosed:
    if of.selection.within is not None:
        return _Diagnosed(NotApplicable(COMMAND, "findings are of whole steps, not of a range"))
    timeline = sample_steps(of.trace, of.focus, of.selection)
    if not len(timeline.schedule.ops):
        return _Diagnosed(NotApplicable(COMMAND, "no GPU work ran in the window"))
    diagnosis = run_timeline_rules(timeline, timeline_rules().values())
    steps = max(1, len(of.focus.steps))
    findings = tuple(
        DigestFinding(
            rule=finding.rule,
            title=plain(finding.title),
            step_ns=None if finding.saved_ns is None else finding.saved_ns / steps,
            share=None if finding.saved_ns is None else finding.saved_ns / of.focus.length_ns,
            confidence=finding.confidence.value,
            alone_ns=finding.step_ns,
            in_plan=finding.in_plan,
        )
        for finding in diagnosis.findings
    )
    notes = tuple(sample_notes(timeline, of.selection))
    host_step_ns = None
    if len(timeline.schedule.calls):  # without API calls the simulation knows no host
        # Simulate a step whose GPU work takes no time: what remains is what the host needs.
        ops = np.arange(len(timeline.schedule.ops), dtype=np.int64)
        idle_gpu = timeline.replay.run(set_duration(ops, np.zeros_like(ops)))
        unchanged_ns = max(1, timeline.replay.unchanged.total_ns)
        host_step_ns = timeline.step_ns * idle_gpu.total_ns / unchanged_ns
    return _Diagnosed(findings, notes, diagnosis.lacking_data, host_step_ns)


def _digest_notes(of: _StepWork) -> tuple[str, ...]:
    notes = [*of.trace.warnings, *of.focus.notes, *graph_notes(of.trace, of.focus.time)]
    selection = of.selection
    if selection.within is not None:
        notes.append(f"only the range {selection.within}")
        if not of.blocks.apart and of.focus.steps:
            notes.append("time between these ranges is excluded")
    if selection.device is not None:
        notes.append(f"only GPU {selection.device}; GPU times of ranges are of all GPUs")
    if selection.process is not None:
        notes.append(f"only the process {selection.process}")
    return tuple(notes)
