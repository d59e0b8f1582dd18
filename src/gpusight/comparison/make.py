"""From a capture to its digest: the time that `diagnose` looks at, summed up step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import polars as pl

from gpusight.analyses import completeness
from gpusight.analyses.advice import advice_for
from gpusight.analyses.kernels import graph_notes
from gpusight.analyses.select import EVERYTHING, GPU_WORK, Scope
from gpusight.analyses.steps.focus import NO_STEPS
from gpusight.analyses.steps.launched import launched, of_process
from gpusight.comparison.blocks import Blocks, rounded
from gpusight.comparison.digest import Digest, Found
from gpusight.comparison.make_calls import api_rows, range_rows
from gpusight.comparison.make_kernels import kernel_rows
from gpusight.comparison.make_ledger import account_for, summing_to
from gpusight.comparison.make_work import copy_rows, memory_peak, phase_series
from gpusight.comparison.naming import plain, plain_texts
from gpusight.comparison.scope import scope_of
from gpusight.evidence import encodable
from gpusight.findings.timeline.diagnosis import (
    chosen_rules,
    gpu_processes,
    judged_time,
    judging_notes,
)
from gpusight.findings.timeline.judge import judge
from gpusight.findings.timeline.part import busiest_process, judged_part, read
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from gpusight.analyses.select import Selection
    from gpusight.analyses.steps.focus import Focus
    from gpusight.model.trace import Trace

_Part = TypeVar("_Part")

COMMAND = "compare"
_GRAPHS = GPU_WORK.index("graph_launches")
_TIMELINES = "a timeline is needed: nsys, a torch.profiler trace, or a JAX profile"


@dataclass(frozen=True)
class _Asked:
    """A capture, the part of it that is summed up, and the process whose steps these are."""

    trace: Trace
    selection: Selection
    focus: Focus
    process: int | None
    blocks: Blocks
    work: pl.DataFrame
    """GPU work that the steps launched, as `Blocks.launched` gives it."""
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
    read(trace)
    focus = judged_time(trace, selection, steps=steps, window=window, warmup=warmup)
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


def _asked(trace: Trace, selection: Selection, focus: Focus) -> _Asked:
    process = busiest_process(trace, focus, selection)
    work = of_process(launched(trace), process)
    blocks = Blocks.of(focus, work, apart=not _are_ranges(trace, selection, focus))
    if selection.device is not None:
        work = work.filter(pl.col("device") == selection.device)
    every = blocks.launched(work)
    own = every.filter(~pl.col("after"))
    return _Asked(trace, selection, focus, process, blocks, own, every)


def _are_ranges(trace: Trace, selection: Selection, focus: Focus) -> bool:
    """Tell whether the steps are the ranges asked for: then nothing outside of them counts."""
    if selection.within is None or not focus.steps:
        return False
    asked = set(Scope(trace, selection).matching_ranges["start_ns"])
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
    lost = completeness.lost(trace, issued)
    return Digest(
        label=encodable(PurePath(trace.meta.path).name),
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
        notes=plain_texts((*_notes(asked), *shared.notes, *judging)),
        launch_calls=_launch_calls(issued, blocks),
        processes=gpu_processes(trace),
        lost={key: plain(reason) for key, reason in lost.items()},
        not_evaluated={rule: plain(reason) for rule, reason in not_evaluated.items()},
        reported_losses=plain_texts(completeness.reported_losses(trace)),
        scope=scope,
    )


def _issued(asked: _Asked) -> dict[str, completeness.Issued]:
    """Count the calls of the steps that issue GPU work, up to the start of the next step each."""
    starts = (step.start_ns for step in asked.blocks.steps)
    spans = list(zip(starts, asked.blocks.until_ns.tolist(), strict=True))
    return completeness.issued(asked.trace, spans, asked.process)


def _launch_calls(issued: dict[str, completeness.Issued], blocks: Blocks) -> float | None:
    if not issued:
        return None
    return round(issued[completeness.KERNELS].calls / len(blocks.steps), 3)


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
) -> tuple[tuple[Found, ...] | NotApplicable, tuple[str, ...], dict[str, str]]:
    """Give the findings of `diagnose`, what to know about them, and rules that lacked data."""
    if asked.selection.within is not None:
        return NotApplicable(COMMAND, "they are of whole steps, not of a range"), (), {}
    timeline = judged_part(asked.trace, asked.focus, asked.selection)
    if not len(timeline.schedule.ops):
        return NotApplicable(COMMAND, "no GPU work ran in the window"), (), {}
    judgement = judge(timeline, chosen_rules(()))
    found = tuple(
        Found(
            rule=one.rule,
            title=plain(one.title),
            step_ns=one.step_ns,
            share=one.share,
            confidence=one.confidence.value,
        )
        for one in judgement.findings
    )
    return found, tuple(judging_notes(timeline, asked.selection)), judgement.lacking_data


def _notes(asked: _Asked) -> tuple[str, ...]:
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
