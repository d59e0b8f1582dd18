"""From a timeline to counters of its kernels: plans the runs, records them, joins the results."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.analysis.drill.drill_kernels import COMMAND, DrillSelection, pick_kernels
from gpusight.analysis.drill.drill_result import DrillResult, measured_launches_of
from gpusight.analysis.drill.launch_anchors import AnchorSupport
from gpusight.analysis.drill.launch_plan import pick_totals, plan_launches, plan_totals, request_of
from gpusight.analysis.gpu_time import window_headline
from gpusight.analysis.kernel_summary import graph_notes
from gpusight.errors import RecordError, UsageError
from gpusight.recording import capture_names
from gpusight.recording import ncu_command as options
from gpusight.recording.ncu_command import filter_for, ncu_command
from gpusight.recording.plan_recording import plan_recording
from gpusight.recording.programs import ProgramKind, inspect_program
from gpusight.recording.record_program import record
from gpusight.recording.request import Tool
from gpusight.recording.tools import InstalledTool, ToolVersion, find_tool
from gpusight.results import NotApplicable
from gpusight.rules.diagnosis import DiagnoseOptions, JoinedDiagnosis, diagnose_captures
from gpusight.rules.registry import kernel_rules
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpusight.analysis.drill.drill_result import DrillOptions
    from gpusight.recording.plan_recording import RecordingPlan
    from gpusight.recording.record_program import Recording
    from gpusight.recording.request import RecordRequest
    from gpusight.recording.tools import ToolCommand
    from gpusight.trace.trace import Trace


NEWEST = InstalledTool(Tool.NCU, Path("ncu"), ToolVersion(2025, 3, 1))
"""The version that commands are for where none is installed."""
STAND_IN = ("python", "your_script.py")
OF_REPORT = ("the report: ", "the report ")
"""Prefix of the notes of a joined diagnosis that are about the report."""
_MIN_BUSY_SHARE = 0.5
"""Share of the window with kernels running, below which they are not the bottleneck."""
_HANGS = (
    "a communication kernel was selected: kernel replay hangs, as other ranks do not take part; "
    "use gpusight record with --tool-option --replay-mode=application"
)


@dataclass(frozen=True)
class PlannedDrill:
    """A plan, and the recordings that carry it out."""

    drill: DrillResult
    recordings: tuple[RecordingPlan, ...] = ()


@dataclass(frozen=True)
class MeasuredDrill:
    """A plan with the results of its recordings."""

    drill: DrillResult
    joined: tuple[JoinedDiagnosis, ...] = ()
    """One for each report."""
    exit_code: int = 0
    """Of the program, where it ran."""


def drill(
    trace: Trace,
    question: DrillOptions,
    *,
    open_report: Callable[[Path], Trace],
    reports: Sequence[Trace] = (),
    run: bool = False,
    announce: Callable[[DrillResult], None] | None = None,
) -> MeasuredDrill | NotApplicable:
    """Plan what to measure; then measure it, or join reports that were recorded elsewhere.

    `announce` is called with the plan before it runs.
    """
    if run and (reports or question.program is None):
        what = "--run cannot be combined with reports" if reports else "--run needs a program"
        raise UsageError(what, hint="gpusight drill FILE --run -- python train.py")
    planned = plan_drill(trace, question, os.environ)
    if isinstance(planned, NotApplicable):
        return replace(planned, reason="; ".join((planned.reason, *trace.warnings)))
    planned = replace(planned, drill=planned.drill.with_warnings(trace.warnings))
    if reports:
        return join_reports(trace, planned.drill, question, reports)
    if not run:
        return MeasuredDrill(planned.drill)
    if announce is not None:
        announce(planned.drill)
    return measure(trace, planned, question, open_report)


def plan_drill(
    trace: Trace, question: DrillOptions, environ: Mapping[str, str]
) -> PlannedDrill | NotApplicable:
    """Choose kernels, count launches, and build the commands, without running them."""
    installed = find_tool(Tool.NCU)
    tool = installed or NEWEST
    support = AnchorSupport(
        process_scope=tool.spelling(options.NVTX_SCOPE) is not None,
        injectable=installed is not None and _injectable(question.program, environ),
    )
    drill = _drill(trace, question, support)
    if isinstance(drill, NotApplicable):
        return drill
    requests = _requests(drill, question, tool)
    recordings: list[RecordingPlan] = []
    if question.program is not None and installed is not None:
        recordings = [plan for r in requests if (plan := plan_recording(r, environ)) is not None]
    commands = [r.command for r in recordings] or [_command(r, tool) for r in requests]
    planned = replace(
        drill,
        commands=tuple(commands),
        tool=str(tool),
        installed=installed is not None,
        program=question.program,
        notes=tuple(dict.fromkeys((*drill.notes, *(n for c in commands for n in c.notes)))),
    )
    return PlannedDrill(planned, tuple(recordings))


def measure(
    trace: Trace,
    planned: PlannedDrill,
    question: DrillOptions,
    open_report: Callable[[Path], Trace],
) -> MeasuredDrill:
    """Run the program as planned, and join the reports with the timeline."""
    if not planned.recordings:
        raise _nothing_to_run(planned)
    recorded: list[Recording] = []
    for plan in planned.recordings:
        recorded.append(record(plan))
        if not recorded[-1].paths:
            raise recorded[-1].failure()
        if recorded[-1].exit_code:
            break
    paths = [path for recording in recorded for path in recording.paths]
    if trace.has("kernels"):
        reports = [open_report(path) for path in paths]
        drilled = join_reports(trace, planned.drill, question, reports)
    else:  # a table of totals has no launches to join with
        see = tuple(f"profiled: gpusight diagnose {shlex.quote(str(path))}" for path in paths)
        drilled = MeasuredDrill(replace(planned.drill, notes=(*planned.drill.notes, *see)))
    return replace(drilled, exit_code=recorded[-1].exit_code)


def _nothing_to_run(planned: PlannedDrill) -> RecordError | UsageError:
    if planned.drill.plan is None:
        return UsageError("no kernel is worth profiling", hint="select one: --kernel NAME")
    return RecordError(
        "ncu is not installed",
        hint="leave --run out, and run the printed command on a machine with ncu; see also: "
        "gpusight doctor",
    )


def join_reports(
    trace: Trace, drill: DrillResult, question: DrillOptions, reports: Sequence[Trace]
) -> MeasuredDrill:
    """Add the measured launches of the chosen kernels, and their diagnosis."""
    if not trace.has("kernels"):
        raise UsageError(
            "a table of totals cannot be joined with a report",
            hint="use gpusight diagnose REPORT, or a timeline",
        )
    drill = replace(drill, measured=measured_launches_of(trace, drill.chosen, reports))
    request = DiagnoseOptions(
        selection=question.selection,
        steps=question.steps,
        window=question.window,
        warmup=question.warmup,
    )
    results = [diagnose_captures([trace, report], request) for report in reports]
    reasons = [result.reason for result in results if isinstance(result, NotApplicable)]
    joined = tuple(result for result in results if isinstance(result, JoinedDiagnosis))
    notes = (*drill.notes, *_missing(drill), *reasons, *_joined_notes(joined))
    return MeasuredDrill(replace(drill, notes=tuple(dict.fromkeys(notes))), joined)


def _joined_notes(joined: Sequence[JoinedDiagnosis]) -> list[str]:
    """Return the notes on reports, and what to fix before any kernel."""
    notes = [n for diagnosis in joined for n in diagnosis.notes if n.startswith(OF_REPORT)]
    for diagnosis in joined[:1]:
        rules = kernel_rules()
        same = {rules[f.rule].timeline_rule for f in diagnosis.report.findings if f.rule in rules}
        others = (f for f in diagnosis.timeline.findings if f.rule not in same)
        first = next(others, None)
        most_ns = max((kernel.saved_ns for kernel in diagnosis.kernels), default=0.0)
        if first is not None and (first.recoverable_ns or 0) > most_ns:
            share = format_share(first.share)
            whole = "step" if diagnosis.timeline.steps else "window"
            notes.append(
                f"a fix outside the kernels saves more ({share} of the {whole}): {first.title}"
            )
    return notes


def _missing(drill: DrillResult) -> list[str]:
    """Return notes on kernels that were planned but not measured."""
    notes = []
    for kernel in drill.missing:
        other = drill.measured[kernel.group].other_shapes if drill.measured else 0
        why = f", only {other:,} with another grid or block" if other else ""
        notes.append(f"no launch of {kernel.short_name} was profiled{why}")
    return notes


# Planning -----------------------------------------------------------------------------------------


def _injectable(program: tuple[str, ...] | None, environ: Mapping[str, str]) -> bool:
    if program is None:
        return False
    facts = inspect_program(program, environ)
    is_python = facts.kind is ProgramKind.PYTHON or facts.is_launcher
    return is_python and facts.deaf_flag is None


def _drill(
    trace: Trace, question: DrillOptions, support: AnchorSupport
) -> DrillResult | NotApplicable:
    if not trace.has("kernels") and trace.has("op_totals"):
        return _drill_totals(trace, question)
    picked = pick_kernels(
        trace,
        question.selection,
        top=question.top,
        kernel=question.kernel,
        steps=question.steps,
        time=question.window,
        warmup=question.warmup,
    )
    if isinstance(picked, NotApplicable):
        return picked
    planned = plan_launches(picked, support)
    named = window_headline(
        trace,
        question.selection,
        steps=question.steps,
        window=question.window,
        warmup=question.warmup,
    )
    if named is not None and named.step_ns:
        picked = replace(picked, window_ns=round(named.step_ns * named.steps))
    return DrillResult(
        kernels=picked.kernels,
        plan=planned,
        level=question.level,
        steps=len(picked.focus.steps),
        window_ns=picked.window_ns,
        kernel_ns=picked.time_ns,
        meta={
            "capture": trace.meta.path,
            "headline": None if named is None else named.document(),
        },
        notes=(*picked.notes, *_plan_notes(picked, question), *(planned.notes if planned else ())),
    )


def _drill_totals(trace: Trace, question: DrillOptions) -> DrillResult | NotApplicable:
    if question.selection or question.steps or question.window:
        reason = "totals cannot be split by range, GPU, process, steps or time"
        return NotApplicable(COMMAND, reason, "use a timeline")
    picked = pick_totals(trace, top=question.top, kernel=question.kernel)
    if isinstance(picked, NotApplicable):
        return picked
    kernels, notes = picked
    planned = plan_totals(kernels)
    return DrillResult(
        kernels,
        planned,
        question.level,
        kernel_ns=sum(k.time_ns for k in kernels),
        meta={"capture": trace.meta.path},
        notes=(*notes, *(planned.notes if planned else ())),
    )


def _plan_notes(picked: DrillSelection, question: DrillOptions) -> list[str]:
    notes = list(graph_notes(picked.trace))
    if notes:
        notes.append("ncu also counts kernels inside graphs: launch counts may be off by those")
    busy = picked.time_ns / max(1, picked.window_ns)
    if busy < _MIN_BUSY_SHARE and not question.selection.within:
        share = format_share(busy)
        notes.append(f"kernels run only {share} of the time: run gpusight diagnose FILE first")
    if not picked.chosen:
        notes.append("no kernel is worth profiling; --kernel NAME selects one anyway")
    if any(kernel.category == "communication" for kernel in picked.chosen):
        notes.append(_HANGS)
    processes = picked.trace.table("kernels", ["process"])["process"].drop_nulls().n_unique()
    if processes > 1:
        notes.append(
            f"{processes} processes launch kernels, and launches are counted in one: profile only "
            "that rank (--rank)"
        )
    return notes


def _requests(
    drill: DrillResult, question: DrillOptions, tool: InstalledTool
) -> list[RecordRequest]:
    runs = drill.plan.runs if drill.plan else ()
    return [
        request_of(
            run,
            tool,
            question.program or STAND_IN,
            question.level,
            output=_output(question, number, len(runs)),
            ranks=question.ranks,
            overwrite=question.overwrite,
        )
        for number, run in enumerate(runs)
    ]


def _output(question: DrillOptions, number: int, runs: int) -> Path | None:
    """Name the report of a run; of several, each by its number."""
    if runs == 1:
        return question.output
    base = _report_path(question.output, question.program or STAND_IN)
    stem = base.name.removesuffix(Tool.NCU.suffix)
    numbered = base.with_name(f"{stem}-{number + 1}")
    is_chosen = question.output is not None and not question.output.is_dir()
    return numbered if is_chosen else capture_names.free_base(numbered, Tool.NCU.suffix, None)


def _report_path(output: Path | None, program: tuple[str, ...]) -> Path:
    """Name a report after the program, unless `output` is a name and not a folder."""
    default = Path(capture_names.default_name(program))
    if output is None:
        return default
    return output / default if output.is_dir() else output


def _command(request: RecordRequest, tool: InstalledTool) -> ToolCommand:
    """Build the command for another machine, or for a program that is not known yet."""
    output = _report_path(request.output, request.program)
    kernels = filter_for(request)
    return ncu_command(
        tool, request.program, output, kernels, request.level, request.extra,
        overwrite=request.overwrite,
    )  # fmt: skip
