"""Records a program as planned, and reports its captures, or why there is none."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.errors import RecordError
from gpusight.output_files import write_file
from gpusight.pace import SECOND_RUN, WHOLE_PROGRAM, Pace, sidecar_path
from gpusight.recording import capture_names
from gpusight.recording.capture_names import family, name_lock
from gpusight.recording.collect_stacks import StackFiles, collect_stacks
from gpusight.recording.doctor.environment_checks import CounterAccess, counters
from gpusight.recording.doctor.machine import Machine
from gpusight.recording.inside.environment import (
    REPORT_VARIABLE,
    STARTED_VARIABLE,
    SURROUNDED,
    VARIABLE,
    RecorderPlan,
)
from gpusight.recording.inside.stack_sampler import SESSION_VARIABLE
from gpusight.recording.launch_program import SIGNALLED, ProgramExit, run_program
from gpusight.recording.plan_recording import PACE_LIMIT_S, RecordingPlan, plan_recording
from gpusight.recording.request import RecordRequest, Tool
from gpusight.recording.tools import ToolCommand
from gpusight.sniff import why_not_recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

_AGAIN_LIMIT_S = 300.0
"""A program that ran longer is not run again unasked."""
_ENDING = (signal.SIGINT, 9, signal.SIGTERM)
"""Signals by which a program is stopped; SIGKILL has no name on Windows."""


@dataclass(frozen=True)
class WindowReport:
    """What one process of the program noted of its window."""

    steps: int = 0
    """How many it ran, as far as it counted."""
    recorded_steps: int = 0
    pace: Pace | None = None
    whole_because: str | None = None
    """Why everything was recorded instead of some steps."""
    mostly_missed: bool = False
    """Recording began when most of the program's time on the GPU was over."""

    @classmethod
    def read(cls, path: Path) -> Iterator[WindowReport]:
        """Read what all processes noted."""
        with contextlib.suppress(FileNotFoundError):  # none had anything to note
            for line in path.read_text(encoding="utf-8").splitlines():
                facts = json.loads(line)
                pace = None if facts["pace"] is None else Pace.from_text(facts["pace"])
                yield cls(
                    facts["steps"],
                    facts["recorded_steps"],
                    pace,
                    facts["whole_because"],
                    facts.get("mostly_missed", False),
                )


def why_nothing(
    request: RecordRequest,
    tool: Tool,
    base: Path,
    ended: ProgramExit,
    damaged: Mapping[Path, str] | None = None,
    window: WindowReport | None = None,
) -> tuple[str, str]:
    """Return why a run left no capture, as far as that is known, and what to do."""
    for path, fault in (damaged or {}).items():
        return (
            f"{path} was written, but is not a capture ({fault})",
            "see the messages above; is the disk full?",
        )
    stream = base.with_name(base.name + ".qdstrm")
    if tool is Tool.NSYS and stream.exists():
        return (
            f"nsys left {stream} unfinished: the nsys importer did not start",
            "find what is missing: gpusight doctor",
        )
    never_came = _never_came(request, ended, window)
    if never_came is not None and ended.code != 0:
        return f"{never_came[0]}; it ended with exit code {ended.code}", never_came[1]
    if never_came is not None:
        return never_came
    if ended.code != 0:
        return _why_failed(tool, ended)
    if tool is Tool.NCU and counters(Machine()) is CounterAccess.CLOSED:
        return (
            "no permission to read GPU performance counters (ERR_NVGPUCTRPERM)",
            "how to allow it: gpusight doctor",
        )
    return _MEANINGS[tool]


def _why_failed(tool: Tool, ended: ProgramExit) -> tuple[str, str]:
    """Describe a failure; whether nsys or ncu refused to start the program is not known."""
    if ended.signalled or ended.code - SIGNALLED in set(signal.Signals):
        return f"the program was stopped (exit code {ended.code})", ""
    if tool in (Tool.NSYS, Tool.NCU):
        return (
            f"{tool.value} or the program failed with exit code {ended.code}",
            "see the messages above, or run the program without gpusight record",
        )
    return (
        f"the program ended with exit code {ended.code}",
        "run it without gpusight record to see why",
    )


def _window_missed(ended: ProgramExit, window: WindowReport | None) -> bool:
    """Return whether the program ended before the steps came that were to be recorded."""
    if window is None or window.whole_because is not None:
        return False
    return window.steps > 0 or ended.code == 0


def _never_came(
    request: RecordRequest, ended: ProgramExit, window: WindowReport | None
) -> tuple[str, str] | None:
    """Return what was waited for; None where recording was to begin at once."""
    if window is not None and _window_missed(ended, window):
        why = f"the program ran {window.steps} steps, too few to warm up, time and record"
        if not window.steps:
            why = "no steps were counted, and recording did not start"
        return why, f"record all of it: gpusight record --whole -- {shlex.join(request.program)}"
    if request.steps is not None:
        return (
            (
                f"step {request.steps.first} was not recorded: the program ran fewer steps or "
                "none, or recording did not start (see above)"
            ),
            "steps are counted by gs.step(), or else by the first torch optimizer",
        )
    if request.range_name is not None:
        return (
            f"the range {request.range_name} never started",
            "record without --range, then list the names: gpusight ranges FILE",
        )
    if request.delay_s is not None and ended.seconds <= request.delay_s:
        return (
            f"the program ran for {ended.seconds:.1f} s, less than --delay {request.delay_s:g}",
            "use a shorter --delay",
        )
    return None


_MEANINGS = {
    Tool.NSYS: ("nsys wrote no report", "see its messages above, or run: gpusight doctor"),
    Tool.NCU: (
        "no kernel matched, so Nsight Compute profiled nothing",
        "check --kernel, --launch-skip, and that the program uses the GPU",
    ),
    Tool.TORCH: (
        "no Python process wrote a capture",
        (
            "see the messages above; the program must use torch, and must not end with os._exit or "
            "SIGKILL"
        ),
    ),
    Tool.CUPTI: (
        "no Python process wrote a capture",
        (
            "see the messages above; the program must use CUDA, and must not end with os._exit or "
            "SIGKILL"
        ),
    ),
}
"""What it means when everything went well and still there is no capture."""


@dataclass(frozen=True)
class Recording:
    """What a recording left: the captures (ranks in order), how it was made, how it ended."""

    paths: tuple[Path, ...]
    tool: Tool | None
    """None: this process's rank was not chosen, and its program ran untouched."""
    version: str | None
    command: ToolCommand
    exit_code: int
    """The program's; 0 where `--stop` ended it."""
    seconds: float
    notes: tuple[str, ...] = ()
    why_nothing: tuple[str, str] | None = None
    """Where there is no capture: the reason, and what to do."""
    damaged: Mapping[Path, str] = field(default_factory=dict)
    """Files that are there and are no captures, and why."""
    pace: Pace | None = None
    """The step time without the profiler, where it was measured; of several ranks, of one."""
    recorded_steps: int | None = None
    """How many steps were recorded; None: not counted."""
    missed_window: bool = False
    """Nothing or little was recorded because the program had no steps, or too few."""
    stacks: StackFiles = field(default_factory=StackFiles)
    """What was sampled of its Python stacks."""

    @property
    def memory_snapshots(self) -> tuple[Path, ...]:
        """GPU memory histories that torch wrote next to its traces."""
        stems = (path.with_name(path.name.removesuffix(Tool.TORCH.suffix)) for path in self.paths)
        beside = (stem.with_name(f"{stem.name}.memory.pickle") for stem in stems)
        return tuple(path for path in beside if path.exists())

    @property
    def path(self) -> Path:
        """The capture, of several that of the lowest rank."""
        if not self.paths:
            raise self.failure()
        return self.paths[0]

    def __fspath__(self) -> str:
        """Let it stand for its capture: `gs.diagnose(gs.record("python train.py"))`."""
        return str(self.path)

    def failure(self) -> RecordError:
        """Return the error that nothing was recorded."""
        why, hint = self.why_nothing or ("", "")
        if self.missed_window and self.exit_code:
            hint = "; ".join(filter(None, (hint, "--whole records from the start")))
        return RecordError("nothing was recorded", why=why, hint=hint)


def record_request(request: RecordRequest) -> Recording:
    """Record a program; raises where nothing was recorded, unless other ranks were requested."""
    plan = plan_recording(request)
    if plan is None:
        untouched = ToolCommand(request.program, Path())
        ended = run_command(untouched, request.program)
        return Recording((), None, None, untouched, ended.code, ended.seconds)
    done = record_planned(plan)[1]
    if not done.paths:
        raise done.failure()
    return done


def record_planned(
    plan: RecordingPlan, announce: Callable[[RecordingPlan], None] = lambda _: None
) -> tuple[RecordingPlan, Recording]:
    """Record; a program with too few steps runs again, and all of it is recorded.

    `announce` is called with each plan before it is run. Gives the last one.
    """
    announce(plan)
    done = record(plan)
    again = plan_again(plan, done)
    if again is None:
        return plan, done
    announce(again)
    return again, record(again)


def plan_again(plan: RecordingPlan, done: Recording) -> RecordingPlan | None:
    """Plan to record the whole program, where it had too few steps to choose some; else None.

    Not where the user chose the steps, other ranks wait for this one, the program failed, or it ran
    so long that it should not run twice unasked.
    """
    if not done.missed_window or done.exit_code or done.seconds > _AGAIN_LIMIT_S:
        return None
    if plan.has_others or plan.request.has_window_numbers or plan.request.stop:
        return None
    why, _ = done.why_nothing or ("most of the program was over before recording began", "")
    request = replace(plan.request, whole=True, pace=False, output=plan.own, overwrite=True)
    again = plan_recording(request)
    assert again is not None  # the same process as before
    note = f"{why}: the program runs again, and all of it is recorded (--whole)"
    pace = None if done.pace is None else replace(done.pace, how=SECOND_RUN)
    return replace(again, notes=(note, *again.notes), pace=pace)


def record(plan: RecordingPlan, environ: Mapping[str, str] | None = None) -> Recording:
    """Run a program as planned, and look at what came of it."""
    capture_names.prepare_folder(plan.own.parent)
    tool, installed = plan.choice.tool, plan.choice.installed
    outlives = tool is Tool.NSYS and plan.request.duration_s is not None
    locked: AbstractContextManager[None] = nullcontext()  # gpusight runs once more below
    if installed is None or plan.command.argv[0] == str(installed.path):
        locked = name_lock(plan.own.with_name(plan.own.name + plan.suffix))
    notes = list(plan.notes)
    with locked, tempfile.TemporaryDirectory(prefix="gpusight-record-") as folder:
        pace, command = plan.pace, _with_pace(plan.command, plan.pace)
        if plan.plain is not None:
            pace, why_none = _plain_pace(plan.plain, plan.request, Path(folder), environ)
            notes += filter(None, [why_none])
            command = _with_pace(command, pace)
        before = _times_and_sizes(plan.own, plan.suffix)
        report, session = Path(folder) / "report", secrets.token_hex(8)
        ended = run_command(
            command,
            plan.request.program,
            environ,
            may_outlive=outlives and not plan.request.stop,
            report=report,
            session=session,
        )
        faults = _faults_of_written(plan, before)
        windows = list(WindowReport.read(report))
    paths = tuple(path for path, fault in faults.items() if fault is None)
    damaged = {path: fault for path, fault in faults.items() if fault is not None}
    best = max(windows, key=lambda window: (window.recorded_steps, window.steps), default=None)
    window = (best or WindowReport()) if plan.choice.windowed else None
    nothing = None if paths else why_nothing(plan.request, tool, plan.own, ended, damaged, window)
    missed = nothing is not None and not damaged and _window_missed(ended, window)
    missed |= window is not None and window.mostly_missed
    code = 0 if paths and _was_stopped(plan, ended) else ended.code
    stacks = _written_beside(paths, command, session, pace)
    return Recording(
        paths,
        tool,
        plan.choice.version,
        plan.command,
        code,
        ended.seconds,
        tuple(notes),
        nothing,
        damaged,
        pace or (None if best is None else best.pace),
        None if best is None or best.whole_because is not None else best.recorded_steps,
        missed,
        stacks,
    )


def _times_and_sizes(base: Path, suffix: str) -> dict[Path, tuple[int, int]]:
    """Return when each capture of a name was written and its size, ranks in order."""
    states = {}
    for path in family(base, suffix):
        with contextlib.suppress(OSError):  # a broken link is no capture
            status = path.stat()
            states[path] = (status.st_mtime_ns, status.st_size)
    return states


def _faults_of_written(
    plan: RecordingPlan, before: Mapping[Path, tuple[int, int]]
) -> dict[Path, str | None]:
    """Return the captures that were written since, and why one is none; None where it is one."""
    after = _times_and_sizes(plan.own, plan.suffix)
    return {
        path: why_not_recorded(path)
        for path, (written_ns, size) in after.items()
        if before.get(path) != (written_ns, size) and size > 0
    }


def _written_beside(
    paths: tuple[Path, ...], command: ToolCommand, session: str, pace: Pace | None
) -> StackFiles:
    """Put stacks and pace next to the captures, which nsys and ncu do not write."""
    injected = None
    if VARIABLE in command.environment:
        injected = RecorderPlan.from_text(command.environment[VARIABLE])
    stacks = StackFiles()
    if injected is not None and injected.stacks_hz is not None:
        stacks = collect_stacks(Path(injected.output), session, paths)
    if pace is not None and (injected is None or injected.recorder == SURROUNDED):
        for path in paths:
            write_file(sidecar_path(path), f"{pace.to_text()}\n".encode())
    return stacks


def _plain_pace(
    plain: ToolCommand, request: RecordRequest, folder: Path, environ: Mapping[str, str] | None
) -> tuple[Pace | None, str | None]:
    """Run the program without a profiler; returns its pace, or why there is none."""
    report = folder / "plain"
    ended = run_command(plain, request.program, environ, report=report, limit_s=PACE_LIMIT_S)
    paces = [window.pace for window in WindowReport.read(report) if window.pace is not None]
    if paces:
        return replace(paces[0], how=SECOND_RUN), None
    if ended.code != 0:
        why = f"ended with exit code {ended.code}"
        if ended.seconds >= PACE_LIMIT_S:
            why = f"had no steps to time within {PACE_LIMIT_S:.0f} s"
        return None, f"no pace: without a profiler the program {why}"
    run_ns = ended.seconds * 1e9
    return Pace.of(run_ns, [run_ns], how=SECOND_RUN, source=WHOLE_PROGRAM), None


def _with_pace(command: ToolCommand, pace: Pace | None) -> ToolCommand:
    """Hand a pace to the recorder in the program, if there is one."""
    if pace is None or VARIABLE not in command.environment:
        return command
    plan = replace(RecorderPlan.from_text(command.environment[VARIABLE]), pace=pace.to_text())
    return replace(command, environment={**command.environment, VARIABLE: plan.to_text()})


def _was_stopped(plan: RecordingPlan, ended: ProgramExit) -> bool:
    """Return whether the tool ended the program by a signal, as requested; nobody else did.

    Nsight Compute returns the number of that signal itself where others add 128 to it.
    """
    base = 0 if plan.choice.tool is Tool.NCU and ended.code < SIGNALLED else SIGNALLED
    return plan.request.stop and not ended.signalled and ended.code - base in _ENDING


def run_command(
    command: ToolCommand,
    program: tuple[str, ...],
    environ: Mapping[str, str] | None = None,
    *,
    may_outlive: bool = False,
    report: Path | None = None,
    limit_s: float | None = None,
    session: str | None = None,
) -> ProgramExit:
    """Run a command in the foreground; signals that reach us go to `program` within it.

    `report`: where recorders in the program note what became of their windows. `session`: what
    ties captures to the stacks of the same run.
    """
    environ = {**(os.environ if environ is None else environ), **command.environment}
    if VARIABLE in command.environment:
        environ[STARTED_VARIABLE] = str(time.time_ns())
        if report is not None:
            environ[REPORT_VARIABLE] = str(report)
        if session is not None:
            environ[SESSION_VARIABLE] = session
    return run_program(command.argv, environ, program, may_outlive=may_outlive, limit_s=limit_s)
