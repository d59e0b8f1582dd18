"""Records a program: plans how, runs it, and says what came of it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.capture import names
from gpusight.capture.choose import Choice, choose, is_injected
from gpusight.capture.claims import claimed
from gpusight.capture.command import Command
from gpusight.capture.inside.outputs import STARTED_VARIABLE
from gpusight.capture.inside.plan import CUPTI, PROFILER_API, TORCH, VARIABLE, Plan
from gpusight.capture.launch import SIGNALLED, Ended, run
from gpusight.capture.ncu import Filter, filter_for, ncu_command
from gpusight.capture.nsys import nsys_command
from gpusight.capture.outcome import Snapshot, why_nothing
from gpusight.capture.programs import CONTAINERS, Program, look_at
from gpusight.capture.ranks import Rank, current_rank, disagreement
from gpusight.capture.request import Request, Tool
from gpusight.capture.spread import per_rank
from gpusight.errors import RecordError
from gpusight.evidence import why_not_recorded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

SITE = Path(__file__).parent / "inside" / "site"
"""What the program's Python looks into first: our sitecustomize."""
INJECTED = ("PYTHONPATH", VARIABLE)
"""The variables that bring our recorder into the program."""
_RECORDERS = {Tool.TORCH: TORCH, Tool.CUPTI: CUPTI, Tool.NSYS: PROFILER_API, Tool.NCU: PROFILER_API}
_ENDING = (signal.SIGINT, 9, signal.SIGTERM)
"""Signals by which a program is stopped; SIGKILL has no name on Windows."""


@dataclass(frozen=True)
class RecordingPlan:
    """What will be run, and what comes of it."""

    request: Request
    choice: Choice
    command: Command
    own: Path
    """The path of this process's captures without their suffix; its rank is part of it."""
    suffix: str
    rank: Rank | None
    notes: tuple[str, ...] = ()
    has_others: bool = False
    """Others run beside this process, and a launcher may end them if this one fails."""

    @property
    def leads(self) -> bool:
        """Tell whether this process speaks for all ranks of the run."""
        chosen = self.request.ranks.chosen
        return self.rank is None or self.rank.rank == (min(chosen) if chosen else 0)


@dataclass(frozen=True)
class Recording:
    """What a recording left: the captures (ranks in order), how it was made, how it ended."""

    paths: tuple[Path, ...]
    tool: Tool | None
    """None: this process's rank was not chosen, and its program ran untouched."""
    version: str | None
    command: Command
    exit_code: int
    """The program's; 0 where `--stop` ended it."""
    seconds: float
    notes: tuple[str, ...] = ()
    why_nothing: tuple[str, str] | None = None
    """Where there is no capture: the reason, and what to do."""
    damaged: Mapping[Path, str] = field(default_factory=dict)
    """Files that are there and are no captures, and why."""

    @property
    def memory_snapshots(self) -> tuple[Path, ...]:
        """Histories of the GPU's memory that torch left beside its traces."""
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
        """Give the error that says that nothing was recorded."""
        why, hint = self.why_nothing or ("", "")
        return RecordError("nothing was recorded", why=why, hint=hint)


def plan_recording(
    request: Request, environ: Mapping[str, str] | None = None
) -> RecordingPlan | None:
    """Work out how a program would be recorded; runs and writes nothing.

    None: the request chooses other ranks than this process's, whose program runs untouched.
    """
    environ = os.environ if environ is None else environ
    program = look_at(request.program, environ)
    rank = _own_rank(request, program, environ)
    _refuse_absent_ranks(request, rank)
    if not request.ranks.include(None if rank is None else rank.rank):
        return None
    choice = choose(request, program, environ)
    return _planned(request, choice, program, rank, environ)


def _own_rank(request: Request, program: Program, environ: Mapping[str, str]) -> Rank | None:
    """Give this process's rank, where others run beside it and the choice of ranks is about them.

    A launcher below us, such as a torchrun on every node, has ranks of its own.
    """
    rank = current_rank(environ)
    chosen_below = program.is_launcher and request.ranks.chosen is not None
    return None if rank is None or not rank.is_one_of_several or chosen_below else rank


def _planned(
    request: Request,
    choice: Choice,
    program: Program,
    rank: Rank | None,
    environ: Mapping[str, str],
) -> RecordingPlan:
    suffix = _suffix(request, choice)
    is_inside = choice.tool in (Tool.TORCH, Tool.CUPTI)
    if is_inside and program.is_launcher:
        rank = None  # each process below knows its own
    number = None if rank is None else rank.rank
    base = _base(request, choice.tool, suffix, number, environ)
    own = names.with_rank(base, number)
    told = base if is_inside else own
    command = _command(request, choice, program, told, rank, environ)
    odd = disagreement(environ)
    notes = (*choice.notes, *command.notes, *_launcher_notes(request, choice.tool, program, rank))
    notes = notes if odd is None else (*notes, odd)
    others = _has_others(environ)
    return RecordingPlan(request, choice, command, own, suffix, rank, notes, others)


def _has_others(environ: Mapping[str, str]) -> bool:
    """Tell whether a launcher started this process; torchrun makes much of a lone one, too."""
    rank = current_rank(environ)
    return (rank is not None and rank.is_one_of_several) or "TORCHELASTIC_RUN_ID" in environ


def _refuse_absent_ranks(request: Request, rank: Rank | None) -> None:
    chosen = request.ranks.chosen
    if rank is None or rank.world is None or chosen is None:
        return
    if min(chosen) >= rank.world:
        raise RecordError(
            f"--rank {request.ranks} is not among the {rank.world} ranks of this run",
            hint="ranks are counted from 0",
        )


def _suffix(request: Request, choice: Choice) -> str:
    """Give what the capture's name ends in; older versions of nsys have another."""
    if choice.tool is not Tool.NSYS:
        return choice.tool.suffix
    trial = _tool_command(request, choice, Path("x"))
    return trial.produces.name.removeprefix("x")


def _base(
    request: Request, tool: Tool, suffix: str, rank: int | None, environ: Mapping[str, str]
) -> Path:
    """Choose the capture's path without rank and suffix; raises where it is taken."""
    default = names.default_name(request.program)
    if request.output is None:
        return names.free_base(Path(default), suffix, rank)
    given = Path(names.expand(str(request.output), environ))
    if given.is_dir():
        return names.free_base(given / default, suffix, rank)
    base = names.base_of(given, tool)
    names.refuse_taken(names.with_rank(base, rank), suffix, overwrite=request.overwrite)
    return base


def _command(
    request: Request,
    choice: Choice,
    program: Program,
    told: Path,
    rank: Rank | None,
    environ: Mapping[str, str],
) -> Command:
    tool = choice.tool
    produces = told.with_name(told.name + tool.suffix)
    if tool in (Tool.TORCH, Tool.CUPTI):
        command = Command(request.program, produces)
    elif rank is None and program.is_launcher and request.ranks.chosen is not None:
        return Command(per_rank(request, program, tool, produces), produces)
    else:
        command = _tool_command(request, choice, told)
    if not is_injected(request, tool):
        return command
    return replace(
        command, environment={**command.environment, **_injection(request, tool, told, environ)}
    )


def _tool_command(request: Request, choice: Choice, output: Path) -> Command:
    assert choice.installed is not None
    if choice.tool is Tool.NSYS:
        return nsys_command(choice.installed, request, output, request.program)
    return ncu_command(
        choice.installed,
        request.program,
        output,
        _filter(request),
        request.level,
        request.extra,
        overwrite=request.overwrite,
    )


def _filter(request: Request) -> Filter:
    """Choose launches by the name that other commands know kernels by.

    That is the whole one, template arguments too; a pattern for its beginning means the function,
    since the whole one begins with a return type and namespaces.
    """
    chosen = filter_for(request)
    by_function = (request.kernel or "^").startswith("^")
    return chosen if by_function else replace(chosen, base="demangled")


def _injection(
    request: Request, tool: Tool, told: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """Give the variables through which our recorder gets into the program's Python."""
    steps, ranks = request.steps, request.ranks.chosen
    plan = Plan(
        recorder=_RECORDERS[tool],
        output=str(names.absolute(told)),
        first_step=None if steps is None else steps.first,
        last_step=None if steps is None else steps.last,
        range_name=request.range_name,
        delay_s=request.delay_s,
        duration_s=request.duration_s,
        ranks=None if ranks is None else tuple(sorted(ranks)),
        memory=request.memory,
        python_stacks=request.python_stacks,
        stop=request.stop and tool is not Tool.NSYS,  # nsys ends the program itself
        overwrite=request.overwrite,
    )
    before = environ.get("PYTHONPATH")
    path = os.pathsep.join([str(SITE), before] if before else [str(SITE)])
    return {"PYTHONPATH": path, VARIABLE: plan.to_text()}


def _launcher_notes(request: Request, tool: Tool, program: Program, rank: Rank | None) -> list[str]:
    if program.word in CONTAINERS:
        return [f"{program.word} runs the program elsewhere: use gpusight record inside instead"]
    if rank is not None or not program.is_launcher or tool not in (Tool.NSYS, Tool.NCU):
        return []
    if request.ranks.chosen is not None:
        return [f"{program.word} starts gpusight in every rank, which records {request.ranks}"]
    whole = f"{tool.value} records all processes that {program.word} starts into one report"
    return [f"{whole}; for one each, let {program.word} start gpusight record"]


def record_request(request: Request) -> Recording:
    """Record a program; raises where nothing was recorded, unless other ranks were asked for."""
    plan = plan_recording(request)
    if plan is None:
        untouched = Command(request.program, Path())
        ended = run_command(untouched, request.program)
        return Recording((), None, None, untouched, ended.code, ended.seconds)
    done = record(plan)
    if not done.paths:
        raise done.failure()
    return done


def record(plan: RecordingPlan, environ: Mapping[str, str] | None = None) -> Recording:
    """Run a program as planned, and look at what came of it."""
    names.prepare_folder(plan.own.parent)
    outlives = plan.choice.tool is Tool.NSYS and plan.request.duration_s is not None
    with _claimed(plan):
        before = Snapshot.take(plan.own, plan.suffix)
        ended = run_command(
            plan.command,
            plan.request.program,
            environ,
            may_outlive=outlives and not plan.request.stop,
        )
        written = {path: why_not_recorded(path) for path in before.written_since()}
    tool = plan.choice.tool
    paths = tuple(path for path, fault in written.items() if fault is None)
    damaged = {path: fault for path, fault in written.items() if fault is not None}
    nothing = None if paths else why_nothing(plan.request, tool, plan.own, ended, damaged)
    code = 0 if paths and _was_stopped(plan, ended) else ended.code
    return Recording(
        paths,
        tool,
        plan.choice.version,
        plan.command,
        code,
        ended.seconds,
        plan.notes,
        nothing,
        damaged,
    )


def _claimed(plan: RecordingPlan) -> AbstractContextManager[None]:
    """Keep the capture's name; where gpusight runs once more below, it is that one's to keep."""
    tool = plan.choice.installed
    if tool is not None and plan.command.argv[0] != str(tool.path):
        return nullcontext()
    return claimed(plan.own.with_name(plan.own.name + plan.suffix))


def _was_stopped(plan: RecordingPlan, ended: Ended) -> bool:
    """Tell whether the tool ended the program by a signal, as was asked for; nobody else did.

    Nsight Compute gives the number of that signal itself where others add 128 to it.
    """
    base = 0 if plan.choice.tool is Tool.NCU and ended.code < SIGNALLED else SIGNALLED
    return plan.request.stop and not ended.signalled and ended.code - base in _ENDING


def run_command(
    command: Command,
    program: tuple[str, ...],
    environ: Mapping[str, str] | None = None,
    *,
    may_outlive: bool = False,
) -> Ended:
    """Run a command in the foreground; signals that reach us go to `program` within it."""
    environ = {**(os.environ if environ is None else environ), **command.environment}
    if VARIABLE in command.environment:
        environ[STARTED_VARIABLE] = str(time.time_ns())
    return run(command.argv, environ, program, may_outlive=may_outlive)
