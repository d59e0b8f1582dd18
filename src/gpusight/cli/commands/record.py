"""`gpusight record`: run a program under a profiler."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gpusight.cli import options

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.recording.record_program import Recording, RecordingPlan
    from gpusight.recording.request import RecordRequest
    from gpusight.recording.tools import ToolCommand

SUMMARY = "run a program and record what it does on the GPU"
DESCRIPTION = (
    "Runs a program under nsys, ncu, CUPTI or torch.profiler, with the options that the installed "
    "version takes, and says where the capture is. The program is not changed; its input, output, "
    "signals and exit code are its own (2 where it went well and nothing was recorded, but not "
    "in a rank of several, whose launcher would end the others). Below mpirun, srun or torchrun "
    "only the chosen ranks are recorded, each into a file of its own; the others run untouched. "
    "Everything after `--`, or from the first word that is no option, is the program."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight record -- python train.py --epochs 1",
    "gpusight record --steps 10:12 --memory -o runs/ -- python train.py",
    "gpusight record --range forward --stop -- ./solver input.cfg",
    "gpusight record --with torch --python-stacks -- python train.py",
    "gpusight record --with ncu --kernel '*gemm*' --launch-count 5 -- python train.py",
    "gpusight record --tool-option=--trace=cuda,nvtx,cudnn -- python train.py",
    "gpusight record --rank 0 -- torchrun --nproc-per-node 8 train.py",
    "gpusight record --dry-run --gpu-metrics -- python train.py",
)
TOOLS = ("auto", "nsys", "ncu", "torch", "cupti")
LEVELS = ("quick", "detail", "full")
EXIT_FAILED = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    # What belongs to the program may begin like options of ours.
    parser.allow_abbrev = False
    parser.usage = "gpusight record [options] [--] PROGRAM [ARGUMENT ...]"
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="what to run, with arguments"
    )
    parser.add_argument(
        "--with",
        dest="tool",
        choices=TOOLS,
        default="auto",
        help="what records: nsys (a timeline), ncu (counters of kernels), torch (torch.profiler), "
        "cupti (a timeline, through the libcupti that the program's Python finds); auto, the "
        "default, is nsys, else cupti, else torch",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the capture's name, or a folder for it; %%h stands for the machine, %%q{VARIABLE} "
        "for a variable (default: the script's name, in the current folder)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace captures that exist")
    _add_when(parser)
    _add_what(parser)
    _add_ncu(parser)
    _add_showing(parser)


def _add_when(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("when to record")
    group.add_argument(
        "--range",
        metavar="NAME[@DOMAIN]",
        help="while this NVTX range is open, the first time",
    )
    group.add_argument(
        "--steps",
        metavar="A:B",
        help="these steps of a Python program, counted from 0, both ends included: 3:7, 5 or 3: "
        "(steps are what gs.step() tells, else those of the first torch optimizer)",
    )
    group.add_argument("--delay", type=options.positive, metavar="S", help="after so many seconds")
    group.add_argument("--duration", type=options.positive, metavar="S", help="for so many seconds")
    group.add_argument(
        "--stop", action="store_true", help="end the program once that part is recorded"
    )
    group.add_argument(
        "--rank",
        default="all",
        metavar="N[,N]|all",
        help="only these ranks of a distributed run (default: all)",
    )


def _add_what(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to record besides")
    group.add_argument("--memory", action="store_true", help="GPU memory in use")
    group.add_argument(
        "--gpu-metrics", action="store_true", help="hardware counters along the timeline (nsys)"
    )
    group.add_argument(
        "--python-stacks", action="store_true", help="Python call stacks (nsys, torch)"
    )
    group.add_argument(
        "--graph-nodes",
        action="store_true",
        help="the kernels inside CUDA graphs one by one, not each graph as a whole (nsys; cupti "
        "and torch always do)",
    )


def _add_ncu(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which kernels, with ncu")
    options.add_kernel(group)
    group.add_argument(
        "--launch-skip", type=options.number, metavar="N", help="leave out so many launches first"
    )
    group.add_argument(
        "--launch-count", type=options.count, metavar="N", help="at most so many launches"
    )
    group.add_argument(
        "--level", choices=LEVELS, help="how much to measure of each (default: quick)"
    )


def _add_showing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how")
    group.add_argument(
        "--tool-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="an option for nsys or ncu itself, after an equals sign; may be repeated",
    )
    group.add_argument(
        "--dry-run", action="store_true", help="print the command line, and run nothing"
    )
    group.add_argument(
        "--format", choices=("text", "json"), help="how --dry-run prints it (default: text)"
    )
    group.add_argument(
        "--summary",
        metavar="FILE",
        help="write what came of it to this JSON file; replaces it; "
        "of several ranks, each has a file with its rank in the name",
    )


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    import os

    from gpusight.recording.launch_program import exec_program
    from gpusight.recording.record_program import plan_recording, record

    request = _request(args)
    plan = plan_recording(request)
    if args.dry_run:
        return _show_plan(request, plan, args)
    if plan is None:
        exec_program(request.program, os.environ)
    _check_writing(plan, args)
    _announce(plan, args)
    done = record(plan)
    return _report(plan, done, args)


def _check_writing(plan: RecordingPlan, args: argparse.Namespace) -> None:
    """Refuse places that take no files before the program runs for an hour."""
    from pathlib import Path

    from gpusight.errors import RecordError
    from gpusight.recording.capture_names import prepare_folder
    from gpusight.sniff import refuse_capture

    prepare_folder(plan.own.parent)
    if args.summary:
        target = Path(args.summary)
        refuse_capture(target, None)
        if not target.parent.is_dir():
            raise RecordError(
                f"cannot write to {target.parent}",
                why="it is no folder",
                hint="make it, or choose another --summary",
            )
        if not target.exists():
            prepare_folder(target.parent)


def _request(args: argparse.Namespace) -> RecordRequest:
    from gpusight.errors import UsageError
    from gpusight.recording.parse_request import make_request

    if args.format and not args.dry_run:
        raise UsageError("--format says how --dry-run prints", hint="for scripts: --summary FILE")
    if args.level and args.tool != "ncu":
        raise UsageError("--level says how much ncu measures", hint="add --with ncu")
    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    return make_request(
        words,
        tool=args.tool,
        output=args.output,
        range=args.range,
        steps=args.steps,
        delay_s=args.delay,
        duration_s=args.duration,
        memory=args.memory,
        gpu_metrics=args.gpu_metrics,
        python_stacks=args.python_stacks,
        graph_nodes=args.graph_nodes,
        rank=args.rank,
        stop=args.stop,
        overwrite=args.overwrite,
        kernel=args.kernel,
        launch_skip=args.launch_skip,
        launch_count=args.launch_count,
        level=args.level or LEVELS[0],
        tool_options=args.tool_option,
    )


def _show_plan(request: RecordRequest, plan: RecordingPlan | None, args: argparse.Namespace) -> int:
    import json
    import shlex

    from gpusight.cli.output import write_out
    from gpusight.render.cell_text import safe_text

    if args.format == "json":
        write_out(json.dumps(_plan_document(request, plan), indent=2) + "\n")
        return 0
    line = shlex.join(request.program) if plan is None else str(plan.command)
    write_out(safe_text(line) + "\n")
    if plan is not None:
        _say_choice(plan, args)
    return 0


def _plan_document(request: RecordRequest, plan: RecordingPlan | None) -> dict[str, Any]:
    if plan is None:
        return {"recorded": False, "command": list(request.program), "environment": {}}
    return {
        "recorded": True,
        "tool": plan.choice.tool.value,
        "version": plan.choice.version,
        "why": plan.choice.why,
        "rank": None if plan.rank is None else plan.rank.rank,
        "command": list(plan.command.argv),
        "environment": dict(plan.command.environment),
        "capture": str(plan.own) + plan.suffix,
        "notes": list(plan.notes),
    }


def _announce(plan: RecordingPlan, args: argparse.Namespace) -> None:
    """Show what is run; of many ranks one speaks."""
    if plan.leads:
        _say_choice(plan, args)
        if not args.quiet:
            _say(plan, f"$ {_short(plan.command)}")


def _short(command: ToolCommand) -> str:
    """Write a command line for people; the variables of our own recorder only by name."""
    import shlex

    from gpusight.recording.record_program import INJECTED

    own = [f"{name}=…" for name in command.environment if name in INJECTED]
    others = {name: text for name, text in command.environment.items() if name not in INJECTED}
    variables = [*own, *(f"{name}={shlex.quote(text)}" for name, text in others.items())]
    return " ".join([*variables, shlex.join(command.argv)])


def _say_choice(plan: RecordingPlan, args: argparse.Namespace) -> None:
    if args.quiet:
        return
    name = " ".join(filter(None, (plan.choice.tool.value, plan.choice.version)))
    _say(plan, f"recording with {name} ({plan.choice.why})")
    for note in plan.notes:
        _say(plan, note)


def _report(plan: RecordingPlan, done: Recording, args: argparse.Namespace) -> int:
    """Say what was written and what to type next; gives the exit code."""
    code = done.exit_code
    if args.summary and not _summarised(plan, done, args.summary) and not plan.has_others:
        code = code or EXIT_FAILED
    if not done.paths:
        error = done.failure()
        if code == 0 and not plan.has_others:
            raise error
        _say(plan, str(error))
        return code
    for path, fault in done.damaged.items():
        _say(plan, f"error: {path} was written, but is not a capture ({fault})")
    if not args.quiet:
        _say_written(plan, done)
    return code or (EXIT_FAILED if done.damaged and not plan.has_others else 0)


def _say_written(plan: RecordingPlan, done: Recording) -> None:
    from gpusight.units import format_bytes

    for path in (*done.paths, *done.memory_snapshots):
        _say(plan, f"wrote {path} ({format_bytes(path.stat().st_size)})")
    if done.exit_code:
        _say(plan, f"the program ended with exit code {done.exit_code}")
    if plan.leads:
        _say(plan, f"next: {_next(done)}")


def _next(done: Recording) -> str:
    """Give the command to type; without a GPU torch has recorded operators, and no kernels."""
    import shlex

    from gpusight.recording.choose_tool import has_gpu
    from gpusight.recording.request import Tool

    command = "ops" if done.tool is Tool.TORCH and not has_gpu() else "diagnose"
    name = str(done.path)
    return f"gpusight {command} {shlex.quote(f'./{name}' if name.startswith('-') else name)}"


def _say(plan: RecordingPlan, text: str) -> None:
    import sys

    from gpusight.cli.output import write_error
    from gpusight.render.cell_text import safe_text

    rank = "" if plan.rank is None else f"rank {plan.rank.rank}: "
    write_error(f"gpusight: {rank}{safe_text(text)}")
    sys.stderr.flush()


def _summarised(plan: RecordingPlan, done: Recording, target: str) -> bool:
    """Write the summary; False where that fails, which must not hide what was recorded."""
    from pathlib import Path

    from gpusight.errors import GpusightError

    path = Path(target)
    if plan.rank is not None and (path.is_file() or not path.exists()):
        path = path.with_name(f"{path.stem}.rank{plan.rank.rank}{path.suffix}")
    try:
        _write_summary(done, path)
    except GpusightError as error:
        _say(plan, f"error: {error}")
        return False
    return True


def _write_summary(done: Recording, target: Path) -> None:
    import json

    from gpusight.cli.output import write_file

    document = {
        "tool": None if done.tool is None else done.tool.value,
        "version": done.version,
        "command": list(done.command.argv),
        "captures": [{"path": str(p), "bytes": p.stat().st_size} for p in done.paths],
        "memory_snapshots": [str(path) for path in done.memory_snapshots],
        "exit_code": done.exit_code,
        "seconds": done.seconds,
        "notes": list(done.notes),
        "why_nothing": None if done.why_nothing is None else done.why_nothing[0],
    }
    write_file(target, [json.dumps(document, indent=2) + "\n"])
