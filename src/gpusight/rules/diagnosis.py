"""Which diagnosis a capture gets: of its kernels, of its timeline, or of both joined."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight import units
from gpusight.analysis.join.launch_matching import NEEDS, ORDER, cover, in_launch_order
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from gpusight.rules.diagnosis_results import JoinedDiagnosis, TimedKernel
from gpusight.rules.registry import KERNEL_RULES, TIMELINE_RULES
from gpusight.rules.rule import KernelRule, TimelineRule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analysis.ledger.device_ledger import Accounting
    from gpusight.analysis.selection import Selection
    from gpusight.rules.diagnosis_results import (
        AnyDiagnosis,
        KernelGroup,
        KernelReportDiagnosis,
        TimelineDiagnosis,
    )
    from gpusight.rules.rule import Rule
    from gpusight.trace.trace import Trace


_OF_REPORTS = {"kernel": "--kernel", "launches": "--launch", "lines": "--lines"}
_OF_TIMELINES = {"steps": "--steps", "window": "--window", "warmup": "--warmup"}


@dataclass(frozen=True)
class DiagnoseOptions:
    """What is asked of a capture, or of a timeline and a report of the same program."""

    selection: Selection = EVERYTHING
    rules: Sequence[str] = ()
    """Only these, by their names."""
    kernel: str | None = None
    launches: Sequence[int] = ()
    lines: bool = False
    steps: str | None = None
    window: tuple[int | None, int | None] | None = None
    warmup: bool = False
    extra_rules: Sequence[Rule] = ()
    known: Accounting | None = None
    """What was worked out of a timeline before, which is taken where it is of the judged time."""


def diagnose_captures(
    traces: Sequence[Trace], options: DiagnoseOptions
) -> AnyDiagnosis | NotApplicable:
    """Say what holds a program or its kernels back."""
    if len(traces) not in (1, 2):
        what = f"{len(traces)} captures were given"
        raise UsageError(what, hint="give one, or a timeline and an Nsight Compute report")
    diagnosis = (
        _of_one(traces[0], options) if len(traces) == 1 else _of_two(traces[0], traces[1], options)
    )
    if isinstance(diagnosis, NotApplicable):
        return diagnosis
    return diagnosis.with_warnings([w for trace in traces for w in trace.warnings])


def _of_one(
    trace: Trace, options: DiagnoseOptions
) -> KernelReportDiagnosis | TimelineDiagnosis | NotApplicable:
    if trace.has("profiles"):
        _refuse(options, _OF_TIMELINES, "a report of measured launches has no steps")
        return _of_report(trace, options)
    _refuse(options, _OF_REPORTS, "the capture is a timeline, not an Nsight Compute report")
    return _of_timeline(trace, options)


def _of_two(
    first: Trace, second: Trace, options: DiagnoseOptions
) -> JoinedDiagnosis | NotApplicable:

    report, timeline = (second, first) if second.has("profiles") else (first, second)
    if timeline.has("profiles") or not report.has("profiles"):
        kind = "reports of measured launches" if report.has("profiles") else "timelines"
        hint = "give a timeline (nsys, torch.profiler, JAX) and an Nsight Compute report"
        raise UsageError(f"both captures are {kind}", hint=hint)
    for_timeline, for_report = _for_each(options)
    of_program = _of_timeline(timeline, for_timeline)
    if isinstance(of_program, NotApplicable):
        return of_program
    of_kernels = _of_report(report, for_report)
    if isinstance(of_kernels, NotApplicable):
        return of_kernels
    return join_diagnoses(of_program, of_kernels, (timeline, report), options.selection)


def _of_report(trace: Trace, options: DiagnoseOptions) -> KernelReportDiagnosis | NotApplicable:
    from gpusight.rules.kernel_diagnosis import diagnose_kernels

    return diagnose_kernels(
        trace,
        options.selection,
        kernel=options.kernel,
        launches=options.launches,
        rules=options.rules,
        extra_rules=[rule for rule in options.extra_rules if isinstance(rule, KernelRule)],
        lines=options.lines,
    )


def _of_timeline(trace: Trace, options: DiagnoseOptions) -> TimelineDiagnosis | NotApplicable:
    from gpusight.rules.timeline_diagnosis import diagnose_timeline

    return diagnose_timeline(
        trace,
        options.selection,
        steps=options.steps,
        window=options.window,
        warmup=options.warmup,
        rules=options.rules,
        extra_rules=[rule for rule in options.extra_rules if isinstance(rule, TimelineRule)],
        known=options.known,
    )


def _for_each(options: DiagnoseOptions) -> tuple[DiagnoseOptions, DiagnoseOptions]:
    """Divide the names of rules: for the timeline, for the report; `small-grid` is in both."""
    own = {rule.id for rule in options.extra_rules if isinstance(rule, KernelRule)}
    of_kernels = own | KERNEL_RULES.keys()
    of_report = [name for name in options.rules if name in of_kernels]
    others = [name for name in options.rules if name in TIMELINE_RULES or name not in of_kernels]
    report = replace(options, rules=of_report, selection=EVERYTHING)
    return replace(options, rules=others), report


def _refuse(options: DiagnoseOptions, inapplicable: Mapping[str, str], why: str) -> None:
    """Refuse what has no meaning for a capture, rather than let it have no effect."""
    given = [option for name, option in inapplicable.items() if getattr(options, name)]
    if given:
        raise UsageError(f"{given[0]} does not apply", why=why)


def join_diagnoses(
    timeline: TimelineDiagnosis,
    report: KernelReportDiagnosis,
    traces: tuple[Trace, Trace],
    selection: Selection = EVERYTHING,
) -> JoinedDiagnosis:
    """Weigh the kernels of a report by their time in the window of a timeline; `traces` in order.

    A kernel of the timeline is told by the measured launch of its name, grid and block. Only the
    GPU that was judged counts.
    """
    focus = timeline.focus
    inside = _with_measured_launch(*traces, selection).filter(
        pl.col("start_ns").is_between(focus.start_ns, focus.end_ns, "left"),
        # The window is of one GPU; those of several would sum to more than it.
        pl.col("device").is_null() | (pl.col("device") == timeline.meta.get("device")),
    )
    kernels = _timed(report.groups, inside)
    covered, every = (
        float(frame["time_ns"].sum()) for frame in (inside.drop_nulls("launch"), inside)
    )
    notes = (*report.notes, *_notes(report, kernels, covered, every))
    all_notes = (*timeline.notes, *(f"the report: {note}" for note in notes))
    return JoinedDiagnosis(replace(timeline, notes=all_notes), report, kernels)


def _with_measured_launch(timeline: Trace, report: Trace, selection: Selection) -> pl.DataFrame:
    """Give the kernels of a timeline with the number of the measured launch that tells of each."""
    columns = list(dict.fromkeys((*NEEDS, *ORDER, "start_ns", "end_ns", "device")))
    kernels = in_launch_order(ResolvedSelection(timeline, selection).gpu("kernels", columns))
    measured = report.table("profiles", ["launch", "kind", *NEEDS])
    measured = measured.filter(pl.col("kind").cast(pl.String) == "kernel")
    row = cover(kernels.select(NEEDS), measured.select(NEEDS)).right
    launches = measured.select("launch").with_row_index("row").cast(pl.Int64)
    return kernels.select(
        "start_ns",
        "device",
        (pl.col("end_ns") - pl.col("start_ns")).alias("time_ns"),
        pl.Series("row", row),
    ).join(launches, on="row", how="left", maintain_order="left")


def _timed(groups: Sequence[KernelGroup], kernels: pl.DataFrame) -> tuple[TimedKernel, ...]:
    """Add up by group what the kernels took that its launches tell of."""
    by_launch = kernels.group_by("launch").agg(pl.col("time_ns").sum(), pl.len().alias("calls"))
    sums = {launch: (time, calls) for launch, time, calls in by_launch.iter_rows()}
    timed = []
    for group in groups:
        own = [sums.get(kernel.launch, (0, 0)) for kernel in group.kernels]
        time, calls = sum(ns for ns, _ in own), sum(count for _, count in own)
        if calls:
            timed.append(TimedKernel(group, calls, float(time)))
    return tuple(sorted(timed, key=lambda k: (-k.saved_ns, -k.time_ns)))


def _notes(
    report: KernelReportDiagnosis, kernels: Sequence[TimedKernel], covered: float, every: float
) -> list[str]:
    if not kernels:
        return ["it measured no kernel of the timeline: are they of the same program?"]
    notes = []
    if every and covered < every:
        share = units.format_share(covered / every)
        notes.append(f"it tells of {share} of the kernel time in the window")
    unused = len(report.groups) - len(kernels)
    if unused:
        notes.append(f"{unused:,} of its kernels take no time in the window: not shown")
    return notes
