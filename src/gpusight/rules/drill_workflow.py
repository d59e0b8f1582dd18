"""From a timeline to the counters of its kernels.

Plans the runs, records them, joins the results.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.analysis.drill.drill_kernels import COMMAND, DrillChoice, DrillSelection, pick_kernels
from gpusight.analysis.drill.drill_result import DrillResult, measured_launches_of
from gpusight.analysis.drill.launch_anchors import AnchorSupport
from gpusight.analysis.drill.launch_plan import pick_totals, plan_launches, plan_totals, request_of
from gpusight.analysis.kernel_summary import graph_notes
from gpusight.errors import RecordError, UsageError
from gpusight.recording import capture_names
from gpusight.recording import ncu_command as options
from gpusight.recording.ncu_command import filter_for, ncu_command
from gpusight.recording.programs import ProgramKind, inspect_program
from gpusight.recording.record_program import plan_recording, record
from gpusight.recording.request import Tool
from gpusight.recording.tools import InstalledTool, ToolVersion, find_tool
from gpusight.results import NotApplicable
from gpusight.rules.diagnosis import DiagnoseOptions, JoinedDiagnosis, diagnose_captures
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpusight.analysis.drill.drill_result import DrillOptions
    from gpusight.recording.record_program import Recording, RecordingPlan
    from gpusight.recording.request import RecordRequest
    from gpusight.recording.tools import ToolCommand
    from gpusight.trace.trace import Trace


NEWEST = InstalledTool(Tool.NCU, Path("ncu"), ToolVersion(2025, 3, 1))
"""What commands are written for where there is none."""
STAND_IN = ("python", "your_script.py")
OF_REPORT = "the report: "
"""How notes of a joined diagnosis begin that are about the report."""
_IDLE = 0.5
"""Part of the window that kernels take, below which they are not what holds the program up."""
_HANGS = (
    "a kernel that communicates was asked for: replayed alone, it waits for ranks that do not "
    "come; measure with --tool-option --replay-mode=application under gpusight record instead"
)


@dataclass(frozen=True)
class PlannedDrill:
    """An answer, and what would be run for it."""

    drill: DrillResult
    recordings: tuple[RecordingPlan, ...] = ()


@dataclass(frozen=True)
class MeasuredDrill:
    """An answer with what was measured."""

    drill: DrillResult
    joined: tuple[JoinedDiagnosis, ...] = ()
    """One for each report."""
    exit_code: int = 0
    """Of the program, where it was run."""


def drill(
    trace: Trace,
    question: DrillOptions,
    *,
    open_report: Callable[[Path], Trace],
    reports: Sequence[Trace] = (),
    run: bool = False,
    announce: Callable[[DrillResult], None] | None = None,
) -> MeasuredDrill | NotApplicable:
    """Plan what to measure; then measure it, or look at reports that were made elsewhere.

    `announce` hears what will be run before it is.
    """
    if run and (reports or question.program is None):
        what = "reports were given, and a run asked for" if reports else "no program was given"
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
    """Choose kernels, count launches, and write the commands; runs nothing."""
    tool = _tool(question, environ)
    drill = _drill(trace, question, tool.means)
    if isinstance(drill, NotApplicable):
        return drill
    requests = _requests(drill, question, tool.installed)
    recordings: list[RecordingPlan] = []
    if question.program is not None and tool.here:
        recordings = [found for r in requests if (found := plan_recording(r, environ)) is not None]
    commands = [r.command for r in recordings] or [_command(r, tool.installed) for r in requests]
    told = replace(
        drill,
        commands=tuple(commands),
        tool=str(tool.installed),
        installed=tool.here,
        program=question.program,
        notes=tuple(dict.fromkeys((*drill.notes, *(n for c in commands for n in c.notes)))),
    )
    return PlannedDrill(told, tuple(recordings))


def measure(
    trace: Trace,
    planned: PlannedDrill,
    question: DrillOptions,
    open_report: Callable[[Path], Trace],
) -> MeasuredDrill:
    """Run the program as planned, and join what was measured with the timeline."""
    if not planned.recordings:
        raise _nothing_to_run(planned)
    done = _recorded(planned.recordings)
    paths = [path for one in done for path in one.paths]
    if trace.has("kernels"):
        reports = [open_report(path) for path in paths]
        drilled = join_reports(trace, planned.drill, question, reports)
    else:  # a table of totals has no launches to join with
        see = tuple(f"measured: gpusight diagnose {shlex.quote(str(path))}" for path in paths)
        drilled = MeasuredDrill(replace(planned.drill, notes=(*planned.drill.notes, *see)))
    return replace(drilled, exit_code=done[-1].exit_code)


def _recorded(recordings: Sequence[RecordingPlan]) -> list[Recording]:
    """Run one after the other, up to one that failed or was interrupted."""
    done: list[Recording] = []
    for one in recordings:
        done.append(record(one))
        if not done[-1].paths:
            raise done[-1].failure()
        if done[-1].exit_code:
            break
    return done


def _nothing_to_run(planned: PlannedDrill) -> RecordError | UsageError:
    if planned.drill.plan is None:
        return UsageError("no kernel is worth measuring", hint="ask for one: --kernel NAME")
    return RecordError(
        "ncu is needed and none runs here",
        hint="run the command without --run, and paste what it prints where ncu is; "
        "or see: gpusight doctor",
    )


def join_reports(
    trace: Trace, drill: DrillResult, question: DrillOptions, reports: Sequence[Trace]
) -> MeasuredDrill:
    """Return which of the chosen kernels reports hold, and what is wrong with them."""
    if not trace.has("kernels"):
        raise UsageError(
            "a table of totals cannot be joined with a report",
            hint="see the report: gpusight diagnose REPORT, or give a timeline",
        )
    held = measured_launches_of(trace, drill.chosen, reports)
    asked = DiagnoseOptions(selection=question.selection)
    found = [diagnose_captures([trace, report], asked) for report in reports]
    absent = [one.reason for one in found if isinstance(one, NotApplicable)]
    joined = tuple(one for one in found if isinstance(one, JoinedDiagnosis))
    told = replace(drill, measured=held)
    notes = (*drill.notes, *_missing(told), *absent, *_of_joined(joined))
    return MeasuredDrill(replace(told, notes=tuple(dict.fromkeys(notes))), joined)


def _of_joined(joined: Sequence[JoinedDiagnosis]) -> list[str]:
    """Repeat what is said of reports, and what should be mended before any kernel."""
    notes = [note for one in joined for note in one.notes if note.startswith(OF_REPORT)]
    for one in joined[:1]:
        first = one.timeline.findings[0] if one.timeline.findings else None
        most = max((kernel.saved_ns for kernel in one.kernels), default=0.0)
        if first is not None and (first.recoverable_ns or 0) > most:
            share = format_share(first.share)
            notes.append(f"more than any kernel gives back ({share}): {first.title}")
    return notes


def _missing(drill: DrillResult) -> list[str]:
    """Name what was to be measured and was not."""
    notes = []
    for kernel in drill.missing:
        other = drill.measured[kernel.group].other_shapes if drill.measured else 0
        why = f", but for {other:,} of another grid or block" if other else ""
        notes.append(f"no launch of {kernel.short_name} was measured{why}")
    return notes


# Planning -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tool:
    """The Nsight Compute that commands are for."""

    installed: InstalledTool
    here: bool
    means: AnchorSupport


def _tool(question: DrillOptions, environ: Mapping[str, str]) -> _Tool:
    found = find_tool(Tool.NCU)
    installed = found or NEWEST
    scope = installed.spelling(options.NVTX_SCOPE) is not None
    inject = found is not None and _injectable(question.program, environ)
    return _Tool(
        installed, found is not None, AnchorSupport(process_scope=scope, injectable=inject)
    )


def _injectable(program: tuple[str, ...] | None, environ: Mapping[str, str]) -> bool:
    if program is None:
        return False
    known = inspect_program(program, environ)
    python = known.kind is ProgramKind.PYTHON or known.is_launcher
    return python and known.deaf_flag is None


def _drill(
    trace: Trace, question: DrillOptions, means: AnchorSupport
) -> DrillResult | NotApplicable:
    if not trace.has("kernels") and trace.has("op_totals"):
        return _of_totals(trace, question)
    picked = pick_kernels(trace, question.selection, top=question.top, kernel=question.kernel)
    if isinstance(picked, NotApplicable):
        return picked
    planned = plan_launches(picked, means)
    return DrillResult(
        kernels=picked.kernels,
        plan=planned,
        level=question.level,
        steps=len(picked.focus.steps),
        window_ns=picked.window_ns,
        kernel_ns=picked.time_ns,
        meta={"capture": trace.meta.path},
        notes=(*picked.notes, *_notes(picked, question), *(planned.notes if planned else ())),
    )


def _of_totals(trace: Trace, question: DrillOptions) -> DrillResult | NotApplicable:
    if question.selection:
        reason = "totals cannot be divided by range, GPU or process"
        return NotApplicable(COMMAND, reason, "give a timeline")
    found = pick_totals(trace, top=question.top, kernel=question.kernel)
    if isinstance(found, NotApplicable):
        return found
    kernels, notes = found
    chosen = tuple(k for k in kernels if k.verdict is DrillChoice.CHOSEN)
    return DrillResult(
        kernels,
        plan_totals(chosen),
        question.level,
        kernel_ns=sum(k.time_ns for k in kernels),
        meta={"capture": trace.meta.path},
        notes=notes,
    )


def _notes(picked: DrillSelection, question: DrillOptions) -> list[str]:
    notes = list(graph_notes(picked.trace))
    if notes:
        notes.append("ncu counts kernels inside graphs too: launches may be missed by those")
    busy = picked.time_ns / max(1, picked.window_ns)
    if busy < _IDLE and not question.selection.within:
        share = format_share(busy)
        notes.append(f"kernels run for {share} of the time: see first gpusight diagnose FILE")
    if not picked.chosen:
        notes.append("no kernel is worth measuring; --kernel NAME asks for one all the same")
    if any(kernel.category == "communication" for kernel in picked.chosen):
        notes.append(_HANGS)
    processes = picked.trace.table("kernels", ["process"])["process"].drop_nulls().n_unique()
    if processes > 1:
        notes.append(
            f"{processes} processes launch kernels: launches are counted in one; measure that rank "
            "alone (--rank), or start ncu for it alone"
        )
    return notes


def _requests(
    drill: DrillResult, question: DrillOptions, installed: InstalledTool
) -> list[RecordRequest]:
    runs = drill.plan.runs if drill.plan else ()
    return [
        request_of(
            run,
            installed,
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
    base = _report(question.output, question.program or STAND_IN)
    stem = base.name.removesuffix(Tool.NCU.suffix)
    named = base.with_name(f"{stem}-{number + 1}")
    is_chosen = question.output is not None and not question.output.is_dir()
    return named if is_chosen else capture_names.free_base(named, Tool.NCU.suffix, None)


def _report(given: Path | None, program: tuple[str, ...]) -> Path:
    """Name a report after the program, unless it was given a name and not just a folder."""
    default = Path(capture_names.default_name(program))
    if given is None:
        return default
    return given / default if given.is_dir() else given


def _command(request: RecordRequest, installed: InstalledTool) -> ToolCommand:
    """Write the command for another machine, or for a program that is not known yet."""
    output = _report(request.output, request.program)
    chosen = filter_for(request)
    return ncu_command(
        installed, request.program, output, chosen, request.level, request.extra,
        overwrite=request.overwrite,
    )  # fmt: skip
