"""From a capture to its digest: the time that `diagnose` looks at, summed up step by step."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import polars as pl

from gpusight.analysis import capture_completeness
from gpusight.analysis.capture_gpus import device_names
from gpusight.analysis.gpu_schedule import build_schedule
from gpusight.analysis.kernel_summary import graph_notes
from gpusight.analysis.ledger.device_ledger import account
from gpusight.analysis.ledger.idle_causes import host_time
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, ResolvedSelection
from gpusight.analysis.steps.step_launches import launched, of_process
from gpusight.analysis.steps.step_window import NO_STEPS
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
from gpusight.rules.timeline_diagnosis import diagnosed_window, gpu_processes, sample_notes
from gpusight.sniff import encodable_text
from gpusight.units import exact_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpusight.analysis.ledger.device_ledger import DeviceAccount
    from gpusight.analysis.selection import Selection
    from gpusight.analysis.steps.step_window import StepWindow
    from gpusight.comparison.digest import Floats, Series
    from gpusight.trace.trace import Trace


def scope_of(
    selection: Selection,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> str:
    """Write what was chosen as options; empty where nothing was.

    A process given by its number is `--process ID`: every run has another.
    """
    return cut(encodable_text(" ".join(_options(selection, steps, window, warmup=warmup))))


def _options(
    selection: Selection,
    steps: str | None,
    window: tuple[int | None, int | None] | None,
    *,
    warmup: bool,
) -> Iterator[str]:
    if selection.within is not None:
        yield f"--in {shlex.quote(selection.within.strip())}"
    if selection.device is not None:
        yield f"--device {selection.device}"
    if selection.process is not None:
        name = selection.process.strip()
        yield f"--process {'ID' if name.isdecimal() else shlex.quote(name)}"
    if steps is not None:
        yield f"--steps {shlex.quote(''.join(steps.split()).lower())}"
    if window is not None:
        ends = ("" if end_ns is None else exact_time(end_ns) for end_ns in window)
        yield f"--window {'-'.join(ends)}"
    if warmup:
        yield "--warmup"


_LEAST_WORK = 0.01
"""Of the work of the busiest GPU: a stray copy does not make a GPU one that the program uses."""
NO_NAME = "unknown GPU"


@dataclass(frozen=True)
class SharedAccounts:
    """How the time of the steps, and between, was shared among entries; means over GPUs."""

    gpus: tuple[str, ...]
    steps: dict[str, Floats]
    """Mean a step by block, as is the next."""
    between: dict[str, Floats]
    notes: tuple[str, ...]


def summing_to(whole: Series, entries: dict[str, Floats]) -> dict[str, Series]:
    """Give whole numbers that sum to those of the blocks, for the entries that hold any time."""
    parts = rounded_parts(np.stack(list(entries.values())), whole)
    return {name: row for name, row in zip(entries, parts, strict=True) if any(row)}


def account_for(
    trace: Trace, focus: StepWindow, blocks: StepBlocks, process: int | None, work: pl.DataFrame
) -> SharedAccounts:
    """Say where the time of the steps went, and that between, on the GPUs the process used."""
    starts, ends = blocks.pauses
    end = max(focus.end_ns, int(blocks.done_ns[-1]), *ends.tolist()[-1:])
    schedule = build_schedule(trace, focus.start_ns, end, process=process)
    used, strayed = _used(work)
    accounts = [a for a in account(schedule, host_time(trace, schedule)) if a.device in used]
    names = device_names(trace)
    return SharedAccounts(
        tuple(plain(names.get(one.device) or NO_NAME) for one in accounts),
        _mean(accounts, lambda one: blocks.mean(one.between(blocks.begun_ns, blocks.done_ns).T)),
        _mean(accounts, lambda one: blocks.mean_after(one.between(starts, ends).T)),
        tuple(_notes(used, strayed)),
    )


def _used(work: pl.DataFrame) -> tuple[list[int], list[int]]:
    """Tell the GPUs that the program uses from those that hardly did anything."""
    by_device = work.group_by("device").agg(pl.col("ns").sum()).sort("device")
    enough = by_device["ns"] >= _LEAST_WORK * by_device["ns"].max()  # type: ignore[operator]
    return by_device.filter(enough)["device"].to_list(), by_device.filter(~enough)[
        "device"
    ].to_list()


def _mean(
    accounts: Sequence[DeviceAccount], means: Callable[[DeviceAccount], Floats]
) -> dict[str, Floats]:
    """Average entries over GPUs."""
    found: dict[str, Floats] = {}
    for one in accounts:
        for name, row in zip(one.names, means(one), strict=True):
            found[name] = found.get(name, 0) + row / len(accounts)
    return found


def _notes(used: Sequence[int], strayed: Sequence[int]) -> list[str]:
    notes = []
    if len(used) > 1:
        notes.append(
            f"kernels, copies and phases are summed over {len(used)} GPUs, the ledger is their mean"
        )
    if strayed:
        numbers = ", ".join(map(str, strayed))
        notes.append(f"hardly anything ran on GPU {numbers}: the ledger leaves it out")
    return notes


_Part = TypeVar("_Part")

COMMAND = "compare"
_GRAPHS = GPU_WORK.index("graph_launches")
_TIMELINES = "a timeline is needed: nsys, a torch.profiler trace, or a JAX profile"


@dataclass(frozen=True)
class _Asked:
    """A capture, the part of it that is summed up, and the process whose steps these are."""

    trace: Trace
    selection: Selection
    focus: StepWindow
    process: int | None
    blocks: StepBlocks
    work: pl.DataFrame
    """GPU work that the steps launched, as `StepBlocks.launched` gives it."""
    until_next: pl.DataFrame
    """The same with what was launched after a step, before the next one began."""


def make_digest(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> Digest | NotApplicable:
    """Sum a capture up; the keywords choose the time, as in `focus`."""
    if not any(trace.has(table) for table in GPU_WORK):
        return _no_timeline(trace)
    preload_tables(trace)
    focus = diagnosed_window(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(focus, NotApplicable):
        return replace(focus, command=COMMAND)
    asked = _asked(trace, selection, focus)
    if asked.work.is_empty():
        what = "the steps launch no GPU work" if focus.steps else "no GPU work ran in the window"
        return NotApplicable(COMMAND, what, advice_for(trace.meta).gpu)
    if not asked.blocks.took_ns.sum():
        return NotApplicable(COMMAND, "the steps take no time", "--window A-B chooses another time")
    return _digest(asked, scope_of(selection, steps=steps, window=window, warmup=warmup))


def _no_timeline(trace: Trace) -> NotApplicable:
    advice = advice_for(trace.meta)
    if trace.has("profiles"):
        return NotApplicable(COMMAND, "Nsight Compute measures kernels one by one", _TIMELINES)
    if trace.has("op_totals"):
        return NotApplicable(COMMAND, "printed totals have no times of single events", _TIMELINES)
    if trace.has("memory_blocks"):
        return NotApplicable(COMMAND, "a memory snapshot holds memory only", _TIMELINES)
    return NotApplicable(COMMAND, "the capture shows no GPU work", advice.gpu)


def _asked(trace: Trace, selection: Selection, focus: StepWindow) -> _Asked:
    process = busiest_process(trace, focus, selection)
    work = of_process(launched(trace), process)
    blocks = StepBlocks.of(focus, work, apart=not _are_ranges(trace, selection, focus))
    if selection.device is not None:
        work = work.filter(pl.col("device") == selection.device)
    every = blocks.launched(work)
    own = every.filter(~pl.col("after"))
    return _Asked(trace, selection, focus, process, blocks, own, every)


def _are_ranges(trace: Trace, selection: Selection, focus: StepWindow) -> bool:
    """Tell whether the steps are the ranges asked for: then nothing outside of them counts."""
    if selection.within is None or not focus.steps:
        return False
    asked = set(ResolvedSelection(trace, selection).matching_ranges["start_ns"])
    return all(step.start_ns in asked for step in focus.steps)


def _digest(asked: _Asked, scope: str) -> Digest:
    trace, focus, blocks = asked.trace, asked.focus, asked.blocks
    took = blocks.took_ns
    step_ns = rounded(blocks.mean(took))
    between_ns = blocks.between_ns()
    shared = account_for(trace, focus, blocks, asked.process, asked.work)
    kernels = kernel_rows(trace, blocks, asked.work)
    phases = phase_series(trace, blocks, asked.work)
    ranges = range_rows(trace, blocks, asked.process, launched_by=asked.work["thread"])
    api = api_rows(trace, blocks, asked.process)
    peak = memory_peak(trace, asked.selection)
    findings, judging, not_evaluated = _findings(asked)
    parts: dict[str, object] = {"phases": phases, "ranges": ranges, "api": api}
    parts |= {"memory_peak": peak, "findings": findings}
    issued = _issued(asked)
    lost = capture_completeness.lost_sources(trace, issued)
    return Digest(
        label=encodable_text(PurePath(trace.meta.path).name),
        tool=plain(" ".join(filter(None, (trace.meta.tool, trace.meta.tool_version)))),
        gpus=shared.gpus,
        steps=len(focus.steps),
        steps_left_out=len(focus.left_out),
        steps_found=plain(focus.how),
        blocks=tuple(blocks.sizes.tolist()),
        step_ns=step_ns,
        between_ns=between_ns,
        median_ns=float(np.median(took)),
        min_ns=float(took.min()),
        max_ns=float(took.max()),
        ledger=summing_to(step_ns, shared.steps),
        between=summing_to(between_ns, shared.between),
        kernel_ns=kernels.kernel_ns,
        phases=_known(phases, {}),
        kernels=kernels.rows,
        order=kernels.order,
        ranges=_known(ranges, ()),
        api=_known(api, ()),
        copies=copy_rows(trace, blocks, asked.until_next),
        memory_peak=_known(peak, {}),
        findings=_known(findings, ()),
        missing=_missing(asked, parts, lost),
        notes=plain_texts((*_digest_notes(asked), *shared.notes, *judging)),
        launch_calls=_launch_calls(issued, blocks),
        processes=gpu_processes(trace),
        lost={key: plain(reason) for key, reason in lost.items()},
        not_evaluated={rule: plain(reason) for rule, reason in not_evaluated.items()},
        reported_losses=plain_texts(capture_completeness.reported_losses(trace)),
        scope=scope,
    )


def _issued(asked: _Asked) -> dict[str, capture_completeness.IssuedWork]:
    """Count the calls of the steps that issue GPU work, up to the start of the next step each."""
    starts = (step.start_ns for step in asked.blocks.steps)
    spans = list(zip(starts, asked.blocks.until_ns.tolist(), strict=True))
    return capture_completeness.issued_work(asked.trace, spans, asked.process)


def _launch_calls(
    issued: dict[str, capture_completeness.IssuedWork], blocks: StepBlocks
) -> float | None:
    if not issued:
        return None
    return round(issued[capture_completeness.KERNELS].calls / len(blocks.steps), 3)


def _known(part: _Part | NotApplicable, otherwise: _Part) -> _Part:
    return otherwise if isinstance(part, NotApplicable) else part


def _missing(asked: _Asked, parts: dict[str, object], lost: dict[str, str]) -> dict[str, str]:
    """Say which parts the capture cannot tell, and why."""
    found = {key: p.reason for key, p in parts.items() if isinstance(p, NotApplicable)}
    found |= lost
    if (asked.work["table"] == _GRAPHS).any():
        found["kernels"] = "CUDA graphs were traced as wholes: their kernels are not known"
    if not asked.focus.steps:
        told = (n.removeprefix(NO_STEPS) for n in asked.focus.notes if n.startswith(NO_STEPS))
        found["steps"] = next(told, "no whole step lies in the window")
    ranges = parts["ranges"]
    if isinstance(ranges, tuple) and any(row.gpu_ns is None for row in ranges):
        found["ranges_gpu"] = "the capture does not tell which calls launched GPU work"
    return {key: plain(reason) for key, reason in found.items()}


def _findings(
    asked: _Asked,
) -> tuple[tuple[DigestFinding, ...] | NotApplicable, tuple[str, ...], dict[str, str]]:
    """Give the findings of `diagnose`, what to know about them, and rules that lacked data."""
    if asked.selection.within is not None:
        return NotApplicable(COMMAND, "they are of whole steps, not of a range"), (), {}
    timeline = sample_steps(asked.trace, asked.focus, asked.selection)
    if not len(timeline.schedule.ops):
        return NotApplicable(COMMAND, "no GPU work ran in the window"), (), {}
    judgement = run_timeline_rules(timeline, timeline_rules().values())
    found = tuple(
        DigestFinding(
            rule=one.rule,
            title=plain(one.title),
            step_ns=one.step_ns,
            share=one.share,
            confidence=one.confidence.value,
        )
        for one in judgement.findings
    )
    return found, tuple(sample_notes(timeline, asked.selection)), judgement.lacking_data


def _digest_notes(asked: _Asked) -> tuple[str, ...]:
    notes = [*asked.trace.warnings, *asked.focus.notes, *graph_notes(asked.trace)]
    chosen = asked.selection
    if chosen.within is not None:
        notes.append(f"only the time of the range {chosen.within}")
        if not asked.blocks.apart and asked.focus.steps:
            notes.append("what lies between these ranges does not count")
    if chosen.device is not None:
        notes.append(f"only GPU {chosen.device}; GPU times of ranges are of all GPUs")
    if chosen.process is not None:
        notes.append(f"only the process {chosen.process}")
    return tuple(notes)
