"""The bottlenecks of a timeline, ranked by the time that fixes save."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.capture_completeness import lost_sources, reported_losses
from gpusight.analysis.capture_gpus import names_of_used
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, GPU_WORK
from gpusight.analysis.steps.step_window import step_window
from gpusight.results import NotApplicable
from gpusight.rules.context import preload_tables, sample_steps, whole_ledger
from gpusight.rules.diagnosis_results import COMMAND, ReplayFacts, TimelineDiagnosis
from gpusight.rules.engine import MAX_REPLAY_ERROR, run_timeline_rules
from gpusight.rules.patterns.program_start import without_start
from gpusight.rules.registry import select_rules, timeline_rules
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.ledger.device_ledger import Accounting
    from gpusight.analysis.selection import Selection
    from gpusight.analysis.steps.step_window import StepWindow
    from gpusight.rules.context import RuleContext
    from gpusight.rules.rule import TimelineRule
    from gpusight.trace.trace import Trace


def diagnose_timeline(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    rules: Sequence[str] = (),
    extra_rules: Sequence[TimelineRule] = (),
    known: Accounting | None = None,
) -> TimelineDiagnosis | NotApplicable:
    """Ask every rule, or only `rules`, what holds the program back.

    `known` is taken where it is of the judged time, rather than worked out again.
    """
    asked = select_rules(timeline_rules() | {rule.id: rule for rule in extra_rules}, rules)
    preload_tables(trace)
    focus = diagnosed_window(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(focus, NotApplicable):
        return replace(focus, command=COMMAND)
    context = sample_steps(trace, focus, selection)
    if not len(context.schedule.ops):
        hint = advice_for(trace.meta).gpu
        return NotApplicable(COMMAND, "no GPU work ran in the window", hint)
    results = run_timeline_rules(context, asked.values())
    return TimelineDiagnosis(
        focus=focus,
        findings=results.findings,
        clean=results.clean,
        not_applicable={rule: verdict.reason for rule, verdict in results.not_applicable.items()},
        covered=results.covered,
        ledger=whole_ledger(focus, context, selection, known),
        replay=ReplayFacts(context.replay.error, context.steps, context.length_ns),
        meta=_meta(trace, context),
        rules=asked,
        incomplete=(*lost_sources(trace, context.issued).values(), *reported_losses(trace)),
        notes=(*focus.notes, *sample_notes(context, selection)),
    )


def diagnosed_window(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> StepWindow | NotApplicable:
    """Choose the time to judge: as `step_window` does, without the start of a program."""
    focus = step_window(trace, selection, steps=steps, window=window, warmup=warmup)
    asked = window is not None or selection.within is not None or warmup
    return focus if asked or isinstance(focus, NotApplicable) else without_start(trace, focus)


def _meta(trace: Trace, context: RuleContext) -> dict[str, Any]:
    return {
        "path": trace.meta.path,
        "tool": trace.meta.tool,
        "gpu": names_of_used(trace, context.ops["device"].unique()),
        "device": context.device,
    }


def sample_notes(context: RuleContext, selection: Selection) -> list[str]:
    """Say which part was judged, and how well the replay reproduces it."""
    notes = []
    if context.part:
        where = "from the middle of the window, and scaled"
        notes.append(f"findings were judged on {context.part} {where}")
    if context.replay.error > MAX_REPLAY_ERROR:
        error = format_share(context.replay.error)
        notes.append(
            f"the replay misses the measured time by {error}: times given back are uncertain"
        )
    processes = gpu_processes(context.trace)
    if processes > 1 and selection.process is None:
        notes.append(
            f"{processes} processes used GPUs: the one with the most GPU work was judged; "
            "--process chooses another"
        )
    return notes


def gpu_processes(trace: Trace) -> int:
    """Count the processes that used a GPU."""
    seen = [trace.table(table, ["process"]) for table in GPU_WORK if trace.has(table)]
    return pl.concat(seen)["process"].drop_nulls().n_unique()
