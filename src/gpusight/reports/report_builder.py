"""From captures to a report: every analysis runs once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpusight.analysis.capture_info import device_names, info
from gpusight.analysis.copy_summary import copies
from gpusight.analysis.gpu_utilization import DEFAULT_BINS, utilization
from gpusight.analysis.hotspots.stack_times import hotspots
from gpusight.analysis.kernel_summary import kernels
from gpusight.analysis.ledger.ledger_report import accounting, ledger_report
from gpusight.analysis.memory.memory_usage import memory
from gpusight.analysis.occupancy.kernel_occupancy import occupancy
from gpusight.analysis.profiler_correction import without_profiler
from gpusight.analysis.ranks.aligned_ranks import AlignedTrace
from gpusight.analysis.roofline.roofline_report import roofline
from gpusight.analysis.selection import EVERYTHING, GPU_WORK
from gpusight.analysis.steps.step_report import steps
from gpusight.analysis.steps.step_window import step_window, with_window
from gpusight.comparison.build_digest import make_digest
from gpusight.comparison.compare_digests import compare
from gpusight.errors import UsageError
from gpusight.open_job import ranks_added
from gpusight.reports.range_tree import range_tree
from gpusight.reports.report_contents import (
    DEFAULT_REQUEST,
    CaptureFacts,
    MeasuredReport,
    ProgramReport,
    Report,
    ReportRequest,
    build_headline,
    collect_limitations,
    facts_of,
)
from gpusight.results import NotApplicable, TableResult
from gpusight.rules.context import preload_tables
from gpusight.rules.diagnosis import (
    DiagnoseOptions,
    KernelReportDiagnosis,
    TimelineDiagnosis,
    diagnose_captures,
)
from gpusight.rules.process_sections import worst_of
from gpusight.sniff import encodable_text
from gpusight.viewer.timeline_snapshot import timeline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gpusight.analysis.ledger.accounting import Accounting
    from gpusight.analysis.selection import Selection
    from gpusight.comparison.comparison_result import Comparison
    from gpusight.comparison.digest import Digest
    from gpusight.results import Composite
    from gpusight.rules.diagnosis import JoinedDiagnosis
    from gpusight.trace.trace import Trace


_UNKNOWN = "unknown"
"""Prefix of the name of an unknown GPU."""
_MIN_BINS, _ALL_BINS = 50, 3_200
"""Parts of the time that utilization is drawn in: of each GPU, and of all together."""


def build_report(
    traces: Sequence[Trace],
    request: ReportRequest = DEFAULT_REQUEST,
    *,
    base: Sequence[Digest] = (),
) -> Report:
    """Analyze a timeline, reports of its kernels, or such reports alone.

    `base` are captures before a change, summed up; then the report also has a comparison.
    """
    captured, reports = _split_captures(traces)
    if captured is not None:
        preload_tables(captured)
    about = [info(trace) for trace in (*(() if captured is None else (captured,)), *reports)]
    program = None if captured is None else _program(captured, about[0], request)
    measured = tuple(
        _measured(report, summary, (captured, program), request)
        for report, summary in zip(reports, about[-len(reports) :] if reports else (), strict=True)
    )
    ranks = captured.source.job if isinstance(captured, AlignedTrace) else None
    comparison: Comparison | NotApplicable | None = None
    if base:
        # As in every comparison, a job is compared by its first rank, and what all ranks show.
        first = captured.source.parts[0].trace if isinstance(captured, AlignedTrace) else captured
        digest = make_digest(first or reports[0], request.selection, **_focus(request))
        if ranks is not None and not isinstance(digest, NotApplicable):
            digest = ranks_added(digest, ranks, PurePath(traces[0].meta.path).name)
        comparison = digest if isinstance(digest, NotApplicable) else compare(list(base), [digest])
    parts: list[tuple[str, Any]] = []
    if program is not None:
        parts += [
            ("Findings", program.diagnosis),
            ("Ledger", program.ledger),
            ("Steps", program.steps),
            ("Timeline", program.timeline),
            ("Utilization", program.utilization),
            ("Kernels", program.kernels),
            ("Ranges", program.ranges),
            ("Copies", program.copies),
            ("Memory", program.memory),
            ("Occupancy", program.occupancy),
        ]
    for report in measured:
        parts += [
            (f"Findings of {report.about.file}", report.diagnosis),
            (f"Roofline of {report.about.file}", report.roofline),
            (f"Occupancy of {report.about.file}", report.occupancy),
        ]
    parts.append(("Comparison", comparison))
    if ranks is not None:
        parts.append(("Ranks", ranks))
    return Report(
        title=request.title or encodable_text(PurePath(traces[0].meta.path).name),
        headline=build_headline(program, measured),
        program=program,
        measured=measured,
        comparison=comparison,
        limitations=collect_limitations(parts, about),
        warnings=tuple(dict.fromkeys(w for trace in traces for w in trace.warnings)),
        ranks=ranks,
    )


def _split_captures(traces: Sequence[Trace]) -> tuple[Trace | None, list[Trace]]:
    """Split the timeline from the reports of profiled kernels, in whatever order they are given."""
    reports = [trace for trace in traces if trace.has("profiles")]
    others = [trace for trace in traces if not trace.has("profiles")]
    if len(others) > 1:
        raise UsageError(
            f"{len(others)} timelines were given",
            hint="a report takes one; compare with another: --compare BASE",
        )
    if not traces:
        raise UsageError("no capture was given", hint="gpusight report CAPTURE -o report.html")
    return (others[0] if others else None), reports


def _focus(request: ReportRequest) -> dict[str, Any]:
    return {"steps": request.steps, "window": request.window, "warmup": request.warmup}


def _about(trace: Trace, summary: Composite, gpus: Sequence[str | None]) -> CaptureFacts:
    facts = facts_of(summary)
    return CaptureFacts(
        file=encodable_text(PurePath(trace.meta.path).name),
        tool=facts["tool"],
        gpus=tuple(name for name in gpus if name and not name.startswith(_UNKNOWN)),
        started=facts.get("start_utc") or "",
        duration_ns=facts.get("duration_ns"),
    )


# A program ----------------------------------------------------------------------------------------


def _program(trace: Trace, summary: Composite, request: ReportRequest) -> ProgramReport:
    selection = request.selection
    focus = _focus(request)
    captured, trace = trace, without_profiler(trace, selection.process)
    # These account for the same time, which is worked out once, and let go of after them.
    known = _accounting(trace, selection, focus)
    diagnosis = diagnose_captures(
        [captured], DiagnoseOptions(selection=selection, known=known, **focus)
    )
    assert isinstance(diagnosis, (TimelineDiagnosis, NotApplicable)), "a timeline was given"
    if isinstance(diagnosis, TimelineDiagnosis) and "processes" in diagnosis.meta:
        # Everything else is about the process that the diagnosis shows.
        rank = worst_of(diagnosis.meta["processes"])
        selection = replace(diagnosis.selection, rank=rank)
        trace = without_profiler(captured, selection.process)
        known = _accounting(trace, selection, focus)
    windowed, _ = with_window(trace, selection, **focus)
    account = ledger_report(trace, selection, **focus, known=known)
    snapshot = timeline(trace, selection, **focus, known=known)
    del known
    counted = steps(trace, selection, **focus)
    gpus: list[str | None] = list(device_names(trace).values())
    bins = DEFAULT_BINS
    if not isinstance(account, NotApplicable):
        gpus = [device.name for device in account.devices]
        # The more GPUs, the more coarsely utilization is drawn.
        bins = min(DEFAULT_BINS, max(_MIN_BINS, _ALL_BINS // len(gpus)))
    step_names: list[str] = []
    if not isinstance(counted, NotApplicable):
        assert isinstance(counted.sections[0], TableResult), "the answer has a table of steps"
        step_names = counted.sections[0].frame["name"].to_list()
    return ProgramReport(
        about=_about(trace, summary, gpus),
        diagnosis=diagnosis,
        ledger=account,
        steps=counted,
        timeline=snapshot,
        utilization=utilization(trace, selection, bins=bins, **focus),
        kernels=kernels(trace, windowed),
        ranges=range_tree(trace, windowed, steps=step_names),
        hotspots=hotspots(trace, selection, **focus),
        copies=copies(trace, windowed),
        memory=memory(trace, windowed),
        occupancy=occupancy(trace, windowed),
    )


def _accounting(trace: Trace, selection: Selection, focus: dict[str, Any]) -> Accounting | None:
    """Give what the time that the report is about is accounted with, for all who need it."""
    if not any(trace.has(table) for table in GPU_WORK):
        return None
    chosen = step_window(trace, selection, **focus)
    return None if isinstance(chosen, NotApplicable) else accounting(trace, selection, chosen)


# Profiled kernels ---------------------------------------------------------------------------------


def _measured(
    trace: Trace,
    summary: Composite,
    timeline_of: tuple[Trace | None, ProgramReport | None],
    request: ReportRequest,
) -> MeasuredReport:
    alone = timeline_of[0] is None
    selection = request.selection if alone else EVERYTHING
    focus = _focus(request) if alone else {}
    diagnosis = diagnose_captures([trace], DiagnoseOptions(selection=selection, **focus))
    assert isinstance(diagnosis, (KernelReportDiagnosis, NotApplicable)), "a report was given"
    return MeasuredReport(
        about=_about(trace, summary, list(device_names(trace).values())),
        diagnosis=_joined(diagnosis, trace, timeline_of),
        kernels=kernels(trace, selection),
        roofline=roofline(trace, selection),
        occupancy=occupancy(trace, selection),
    )


def _joined(
    diagnosis: KernelReportDiagnosis | NotApplicable,
    trace: Trace,
    timeline_of: tuple[Trace | None, ProgramReport | None],
) -> KernelReportDiagnosis | JoinedDiagnosis | NotApplicable:
    """Weight profiled kernels by their time in the timeline, where there is one."""
    captured, program = timeline_of
    if isinstance(diagnosis, NotApplicable) or captured is None or program is None:
        return diagnosis
    if isinstance(program.diagnosis, NotApplicable):
        return diagnosis
    from gpusight.rules.kernel_diagnosis import join_diagnoses

    selection = program.diagnosis.selection
    corrected = without_profiler(captured, selection.process)
    return join_diagnoses(program.diagnosis, diagnosis, (corrected, trace), selection)
