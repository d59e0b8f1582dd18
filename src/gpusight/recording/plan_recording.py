"""Plans how to record a program: which tool, its command line, and where the captures go."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.errors import RecordError
from gpusight.recording import capture_names
from gpusight.recording.choose_tool import (
    ToolChoice,
    choose,
    chosen_stacks_hz,
    is_recorder_injected,
)
from gpusight.recording.debug_settings import debug_settings
from gpusight.recording.inside.environment import (
    CUPTI,
    PACE,
    PROFILER_API,
    SURROUNDED,
    TORCH,
    VARIABLE,
    ProcessRank,
    RecorderPlan,
    current_rank,
    disagreement,
)
from gpusight.recording.ncu_command import filter_for, ncu_command
from gpusight.recording.nsys_command import nsys_command
from gpusight.recording.programs import (
    CONTAINERS,
    ProgramInfo,
    ProgramKind,
    inspect_program,
    per_rank,
)
from gpusight.recording.request import RecordRequest, Tool
from gpusight.recording.tools import ToolCommand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.pace import Pace

SITE = Path(__file__).parent / "inside" / "site"
"""First in the program's PYTHONPATH: our sitecustomize."""
INJECTED = ("PYTHONPATH", VARIABLE)
"""The variables that bring our recorder into the program."""
_RECORDERS = {Tool.TORCH: TORCH, Tool.CUPTI: CUPTI, Tool.NSYS: PROFILER_API, Tool.NCU: PROFILER_API}
PACE_LIMIT_S = 120.0
"""How long `--pace` runs a program without a profiler, before that is given up."""


@dataclass(frozen=True)
class RecordingPlan:
    """What will be run, and what comes of it."""

    request: RecordRequest
    choice: ToolChoice
    command: ToolCommand
    own: Path
    """The path of this process's captures without their suffix; its rank is part of it."""
    suffix: str
    rank: ProcessRank | None
    notes: tuple[str, ...] = ()
    has_others: bool = False
    """Other ranks run in parallel, and a launcher may end them if this process fails."""
    plain: ToolCommand | None = None
    """Runs the program without a profiler, to measure its pace."""
    pace: Pace | None = None
    """Known from an earlier run."""
    starts_ranks: bool = False
    """The program is a launcher, below which all ranks are recorded."""

    @property
    def leads(self) -> bool:
        """Return whether this process prints for all ranks of the run."""
        chosen = self.request.ranks.chosen
        return self.rank is None or self.rank.rank == (min(chosen) if chosen else 0)


def plan_recording(
    request: RecordRequest, environ: Mapping[str, str] | None = None, *, dry_run: bool = False
) -> RecordingPlan | None:
    """Plan how to record a program; runs and writes nothing.

    None: the request selects other ranks than this process, whose program runs unprofiled. In a
    dry run, the plan may be for an nsys or ncu that is not installed here.
    """
    environ = os.environ if environ is None else environ
    program = inspect_program(request.program, environ)
    rank = current_rank(environ)
    if rank is not None and not rank.is_one_of_several:
        rank = None
    has_others = rank is not None or "TORCHELASTIC_RUN_ID" in environ
    chosen = request.ranks.chosen
    if program.is_launcher and chosen is not None:
        rank = None  # a launcher below us, such as a torchrun on every node, has ranks of its own
    if rank is not None and rank.world is not None and chosen and min(chosen) >= rank.world:
        raise RecordError(
            f"--rank {request.ranks} is not among the {rank.world} ranks of this run",
            hint="ranks are counted from 0",
        )
    if not request.ranks.include(None if rank is None else rank.rank):
        return None
    choice = choose(request, program, environ, dry_run=dry_run)
    is_inside = choice.is_inside
    if is_inside and program.is_launcher:
        rank = None  # each process below knows its own
    number = None if rank is None else rank.rank
    suffix = choice.tool.suffix
    if choice.tool is Tool.NSYS:  # older versions have another
        suffix = _tool_command(request, choice, Path("x")).produces.name.removeprefix("x")
    base = _base(request, choice.tool, suffix, number, environ)
    own = capture_names.with_rank(base, number)
    command = _command(request, choice, program, base if is_inside else own, rank, environ)
    notes = [*choice.notes, *command.notes, *_launcher_notes(request, choice.tool, program, rank)]
    notes += filter(None, [disagreement(environ)])
    notes += [f"{setting} is set: {effect}" for setting, effect in debug_settings(environ).items()]
    plain = None
    if request.pace:
        plain = _plain_command(request, program, environ)
        notes.append(
            "the program runs twice: first without a profiler, until its steps are timed or for "
            f"{PACE_LIMIT_S:.0f} s at most"
        )
    return RecordingPlan(
        request, choice, command, own, suffix, rank, tuple(notes), has_others, plain,
        starts_ranks=rank is None and program.is_launcher,
    )  # fmt: skip


def _base(
    request: RecordRequest, tool: Tool, suffix: str, rank: int | None, environ: Mapping[str, str]
) -> Path:
    """Choose the capture's path without rank and suffix; raises where it is taken."""
    default = capture_names.default_name(request.program)
    if request.output is None:
        return capture_names.free_base(Path(default), suffix, rank)
    output = Path(capture_names.expand(str(request.output), environ))
    if output.is_dir():
        return capture_names.free_base(output / default, suffix, rank)
    base = capture_names.base_of(output, tool)
    capture_names.refuse_taken(
        capture_names.with_rank(base, rank), suffix, overwrite=request.overwrite
    )
    return base


def _command(
    request: RecordRequest,
    choice: ToolChoice,
    program: ProgramInfo,
    output: Path,
    rank: ProcessRank | None,
    environ: Mapping[str, str],
) -> ToolCommand:
    tool = choice.tool
    produces = output.with_name(output.name + tool.suffix)
    if choice.is_inside:
        command = ToolCommand(request.program, produces)
    elif rank is None and program.is_launcher and request.ranks.chosen is not None:
        return ToolCommand(per_rank(request, program, tool, produces), produces)
    else:
        command = _tool_command(request, choice, output)
    hz = chosen_stacks_hz(request, choice, program)
    plan = _recorder_plan(request, choice, output, hz)
    if not is_recorder_injected(request, choice):
        if hz is None:
            return command
        plan = RecorderPlan(
            SURROUNDED,
            plan.output,
            ranks=plan.ranks,
            stacks_hz=hz,
            stacks_threads=request.stacks_threads,
        )
    injected = _injection(plan, environ)
    return replace(command, environment={**command.environment, **injected})


def _plain_command(
    request: RecordRequest, program: ProgramInfo, environ: Mapping[str, str]
) -> ToolCommand:
    """Return what runs the program without a profiler, and times its steps if it has some."""
    if program.kind is ProgramKind.BINARY or program.deaf_flag is not None:
        return ToolCommand(request.program, Path())
    plan = RecorderPlan(
        PACE, "", window=True, warmup=request.warmup, timed=request.timed or None, stop=True
    )
    return ToolCommand(request.program, Path(), _injection(plan, environ))


def _tool_command(request: RecordRequest, choice: ToolChoice, output: Path) -> ToolCommand:
    assert choice.installed is not None
    if choice.tool is Tool.NSYS:
        return nsys_command(
            choice.installed, request, output, request.program, windowed=choice.windowed
        )
    launches = filter_for(request)
    # Other commands know kernels by their whole name, template arguments too. A pattern for its
    # beginning means the function, since that name begins with a return type and namespaces.
    if not (request.kernel or "^").startswith("^"):
        launches = replace(launches, base="demangled")
    return ncu_command(
        choice.installed,
        request.program,
        output,
        launches,
        request.level,
        request.extra,
        overwrite=request.overwrite,
    )


def _recorder_plan(
    request: RecordRequest, choice: ToolChoice, output: Path, stacks_hz: float | None
) -> RecorderPlan:
    steps, ranks = request.steps, request.ranks.chosen
    return RecorderPlan(
        recorder=_RECORDERS[choice.tool],
        output=str(capture_names.absolute(output)),
        first_step=None if steps is None else steps.first,
        last_step=None if steps is None else steps.last,
        window=choice.windowed,
        warmup=request.warmup,
        timed=request.timed,
        recorded=request.recorded,
        range_name=request.range_name,
        delay_s=request.delay_s,
        duration_s=request.duration_s,
        ranks=None if ranks is None else tuple(sorted(ranks)),
        memory=request.memory,
        shapes=request.shapes,
        python_stacks=request.python_stacks,
        stacks_hz=stacks_hz,
        stacks_threads=request.stacks_threads,
        stop=request.stop and choice.tool is not Tool.NSYS,  # nsys ends the program itself
        overwrite=request.overwrite,
    )


def _injection(plan: RecorderPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables through which our recorder gets into the program's Python."""
    path = os.pathsep.join(filter(None, [str(SITE), environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, VARIABLE: plan.to_text()}


def _launcher_notes(
    request: RecordRequest, tool: Tool, program: ProgramInfo, rank: ProcessRank | None
) -> list[str]:
    if program.word in CONTAINERS:
        return [f"{program.word} runs the program in a container: use gpusight record inside it"]
    if rank is not None or not program.is_launcher or tool not in (Tool.NSYS, Tool.NCU):
        return []
    if request.ranks.chosen is not None:
        return [f"{program.word} starts gpusight in every rank, which records {request.ranks}"]
    return [
        (
            f"{tool.value} records all processes that {program.word} starts into one report; "
            f"for one report per rank, start gpusight record from {program.word}"
        )
    ]
