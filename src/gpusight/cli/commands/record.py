"""`gpusight record`: run a program under a profiler."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusight.cli import options
from gpusight.cli.output import write_error, write_file, write_out
from gpusight.errors import GpusightError, RecordError, UsageError
from gpusight.render.cell_text import safe_text
from gpusight.sniff import refuse_capture
from gpusight.units import format_bytes, format_time

if TYPE_CHECKING:
    from gpusight.recording.collect_stacks import StackFiles
    from gpusight.recording.plan_recording import RecordingPlan
    from gpusight.recording.record_program import Recording
    from gpusight.recording.request import RecordRequest

SUMMARY = "run a program and record a GPU profile"
DESCRIPTION = (
    "Run a program under nsys, ncu, CUPTI or torch.profiler, with options that fit the installed "
    "version, and print the path of the capture. Of a PyTorch program, some steps are recorded: "
    "after a warm-up, steps are timed without the profiler, then steps are recorded, then the "
    "program goes on. The time without the profiler, the pace, is stored in the capture. Programs "
    "without steps that can be counted are recorded as a whole: a short one that has ended before "
    "that was known runs again. Input, output, signals and exit "
    "code of the program are unchanged. The exit code is 2 if the program succeeds but nothing is "
    "recorded (never for one rank of several). Under mpirun, srun or torchrun, each selected rank "
    "writes its own file; the other ranks run unprofiled. The program starts after `--`, or at the "
    "first word that is not an option."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight record -- python train.py --epochs 1",
    "gpusight record --stop -- python train.py",
    "gpusight record --whole -- python short.py",
    "gpusight record --steps 10-12 --memory -o runs/ -- python train.py",
    "gpusight record --range forward --stop -- ./solver input.cfg",
    "gpusight record --stacks-threads all -- python train.py",
    "gpusight record --with torch --python-stacks -- python train.py",
    "gpusight record --with ncu --kernel '*gemm*' --launch-count 5 -- ./app",
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
        "program",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM",
        help="the program to run, with its arguments",
    )
    parser.add_argument(
        "--with",
        dest="tool",
        choices=TOOLS,
        default="auto",
        help="the profiler: nsys (timeline), ncu (kernel metrics), torch (torch.profiler) or cupti "
        "(timeline, with the libcupti of the program's Python); auto, the default, uses nsys, or "
        "else cupti, or else torch",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="name of the capture, or its folder; %%h is the host name, %%q{VARIABLE} a "
        "variable (default: the script's name, in the current folder)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace existing captures")
    _add_when(parser)
    _add_what(parser)
    _add_stacks(parser)
    _add_ncu(parser)
    _add_showing(parser)


def _add_when(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("when to record")
    group.add_argument(
        "--range",
        metavar="NAME[@DOMAIN]",
        help="only the first execution of this NVTX range",
    )
    group.add_argument(
        "--steps",
        metavar="A-B",
        help="only these steps of a Python program, counted from 0, both ends included: 3-7, 5 or "
        "3: (steps are counted by gs.step(), or else by the first torch optimizer)",
    )
    group.add_argument(
        "--whole", action="store_true", help="the whole program instead of some of its steps"
    )
    group.add_argument(
        "--warmup",
        type=options.number,
        metavar="N",
        help="warm-up steps before anything is timed (default: until step times settle)",
    )
    group.add_argument(
        "--timed",
        type=options.number,
        metavar="N",
        help="steps timed without the profiler, before the recorded ones (default: 10 or more; 0 "
        "for none)",
    )
    group.add_argument(
        "--recorded",
        type=options.count,
        metavar="N",
        help="steps to record (default: 10 or more)",
    )
    group.add_argument(
        "--pace",
        action="store_true",
        help="run the program twice: first without a profiler, to time its steps, until that is "
        "done or for two minutes",
    )
    group.add_argument("--delay", type=options.positive, metavar="S", help="start after S seconds")
    group.add_argument(
        "--duration", type=options.positive, metavar="S", help="stop after S seconds"
    )
    group.add_argument(
        "--stop", action="store_true", help="stop the program when the recording is done"
    )
    group.add_argument(
        "--rank",
        default="all",
        metavar="N[,N]|all",
        help="only these ranks of a distributed run (default: all)",
    )


def _add_what(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what else to record")
    group.add_argument("--memory", action="store_true", help="GPU memory usage")
    group.add_argument(
        "--gpu-metrics", action="store_true", help="sampled GPU hardware metrics (nsys)"
    )
    group.add_argument(
        "--shapes", action="store_true", help="input shapes of operators, for FLOPs (torch)"
    )
    group.add_argument(
        "--python-stacks", action="store_true", help="Python call stacks (nsys, torch)"
    )
    group.add_argument(
        "--graph-nodes",
        action="store_true",
        help="single kernels of CUDA graphs instead of whole graphs (nsys; cupti and torch always "
        "do)",
    )


def _add_stacks(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Python stacks, sampled in the program (not ncu)")
    group.add_argument(
        "--stacks",
        nargs="?",
        type=options.number,
        const=True,
        metavar="HZ",
        help="sample the stacks of Python threads, 50 to 500 times a second, so that idle GPU time "
        "has a line of code (default: 200, for Python programs); less often where it costs more "
        "than 2%% of a core. In a window, only the recorded steps are sampled",
    )
    group.add_argument(
        "--no-stacks",
        action="store_const",
        const=0,
        dest="stacks",
        help="sample no stacks",
    )
    group.add_argument(
        "--stacks-threads",
        choices=("launching", "all"),
        default="launching",
        help="threads that launch GPU work and the main thread (default), or all",
    )


def _add_ncu(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("kernels (ncu)")
    options.add_kernel(group)
    group.add_argument(
        "--launch-skip", type=options.number, metavar="N", help="skip the first N launches"
    )
    group.add_argument(
        "--launch-count", type=options.count, metavar="N", help="profile at most N launches"
    )
    group.add_argument(
        "--level", choices=LEVELS, help="how many metrics to collect (default: quick)"
    )


def _add_showing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("command line")
    group.add_argument(
        "--tool-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="an option passed to nsys or ncu, after an equals sign; repeatable",
    )
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="print the command line without running it; nsys or ncu need not be installed",
    )
    group.add_argument(
        "--format", choices=("text", "json"), help="how --dry-run prints it (default: text)"
    )
    group.add_argument(
        "--summary",
        metavar="FILE",
        help="write a summary to this JSON file, replacing it; each rank writes its own file, with "
        "the rank in the name",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from gpusight.recording.launch_program import exec_program
    from gpusight.recording.plan_recording import plan_recording
    from gpusight.recording.record_program import record_planned

    request = _request(args)
    plan = plan_recording(request, dry_run=args.dry_run)
    if args.dry_run:
        return _show_plan(request, plan, args)
    if plan is None:
        exec_program(request.program, os.environ)
    _check_writing(plan, args)
    plan, done = record_planned(plan, lambda each: _announce(each, args))
    return _report(plan, done, args)


def _check_writing(plan: RecordingPlan, args: argparse.Namespace) -> None:
    """Refuse places that take no files before the program runs for an hour."""
    from gpusight.recording.capture_names import prepare_folder

    prepare_folder(plan.own.parent)
    if args.summary:
        target = Path(args.summary)
        refuse_capture(target, None)
        if not target.parent.is_dir():
            raise RecordError(
                f"cannot write to {target.parent}",
                why="it is not a folder",
                hint="create it, or choose another --summary",
            )
        if not target.exists():
            prepare_folder(target.parent)


def _request(args: argparse.Namespace) -> RecordRequest:
    from gpusight.recording.parse_request import make_request

    if args.format and not args.dry_run:
        raise UsageError("--format needs --dry-run", hint="for scripts: --summary FILE")
    if args.level and args.tool != "ncu":
        raise UsageError("--level needs ncu", hint="add --with ncu")
    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    return make_request(
        words,
        tool=args.tool,
        output=args.output,
        range=args.range,
        steps=args.steps,
        delay_s=args.delay,
        duration_s=args.duration,
        whole=args.whole,
        warmup=args.warmup,
        timed=args.timed,
        recorded=args.recorded,
        pace=args.pace,
        memory=args.memory,
        gpu_metrics=args.gpu_metrics,
        shapes=args.shapes,
        python_stacks=args.python_stacks,
        graph_nodes=args.graph_nodes,
        stacks=args.stacks,
        stacks_threads=args.stacks_threads,
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

    document: dict[str, Any] = {
        "recorded": False,
        "command": list(request.program),
        "environment": {},
    }
    if plan is not None:
        document = {
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
    if args.format == "json":
        write_out(json.dumps(document, indent=2) + "\n")
        return 0
    line = shlex.join(request.program) if plan is None else str(plan.command)
    write_out(safe_text(line) + "\n")
    if plan is not None:
        _print_choice(plan, args)
    return 0


def _announce(plan: RecordingPlan, args: argparse.Namespace) -> None:
    """Print the command, with variables of our own recorder without values.

    Of several ranks, only one prints.
    """
    from gpusight.recording.plan_recording import INJECTED

    if not plan.leads or args.quiet:
        return
    _print_choice(plan, args)
    environment = plan.command.environment
    own = [f"{name}=…" for name in environment if name in INJECTED]
    others = [f"{n}={shlex.quote(text)}" for n, text in environment.items() if n not in INJECTED]
    _print_status(plan, f"$ {' '.join([*own, *others, shlex.join(plan.command.argv)])}")


def _print_choice(plan: RecordingPlan, args: argparse.Namespace) -> None:
    if args.quiet:
        return
    name = " ".join(filter(None, (plan.choice.tool.value, plan.choice.version)))
    _print_status(plan, f"recording with {name} ({plan.choice.why})")
    for note in plan.notes:
        _print_status(plan, note)


def _report(plan: RecordingPlan, done: Recording, args: argparse.Namespace) -> int:
    """Print what was written and the next command; returns the exit code."""
    code = done.exit_code
    if args.summary and not _summarized(plan, done, args.summary) and not plan.has_others:
        code = code or EXIT_FAILED
    if not done.paths:
        error = done.failure()
        if code == 0 and not plan.has_others:
            raise error
        _print_status(plan, str(error))
        return code
    for path, fault in done.damaged.items():
        _print_status(plan, f"error: {path} was written, but is not a capture ({fault})")
    if not args.quiet:
        _print_written(plan, done)
    return code or (EXIT_FAILED if done.damaged and not plan.has_others else 0)


def _print_written(plan: RecordingPlan, done: Recording) -> None:
    """Print the captures, the pace and the next command."""
    from gpusight.pace import WHOLE_PROGRAM

    for path in (*done.paths, *done.memory_snapshots):
        _print_status(plan, f"wrote {path} ({format_bytes(path.stat().st_size)})")
    _print_stacks(plan, done.stacks)
    pace = done.pace
    if pace is not None and pace.step_source == WHOLE_PROGRAM:
        _print_status(plan, f"without a profiler the program took {format_time(pace.mean_ns)}")
    elif pace is not None:
        steps = f"{pace.steps} steps, spread {pace.spread:.0%}"
        _print_status(plan, f"{format_time(pace.mean_ns)}/step without the profiler ({steps})")
    if done.exit_code:
        _print_status(plan, f"the program ended with exit code {done.exit_code}")
    if plan.leads:
        chosen = plan.request.ranks.chosen
        several = plan.rank is not None or plan.starts_ranks
        all_ranks = several and (chosen is None or len(chosen) > 1)
        _print_status(plan, f"next: {_next(done, all_ranks=all_ranks)}")


def _print_stacks(plan: RecordingPlan, stacks: StackFiles) -> None:
    late = f", {stacks.late:,} of them late" if stacks.late else ""
    for path in stacks.paths:
        _print_status(plan, f"wrote {path} ({format_bytes(path.stat().st_size)})")
    if stacks.paths:
        _print_status(plan, f"{stacks.samples:,} samples of Python stacks{late}")
    if stacks.lowest_hz is not None:
        _print_status(plan, f"stacks: the rate fell to {stacks.lowest_hz:.0f} Hz to cost less")
    for note in stacks.notes:
        _print_status(plan, note)


def _next(done: Recording, *, all_ranks: bool = False) -> str:
    """Return the next command: of several ranks, that for all of them.

    Without a GPU there is nothing to diagnose, but host time by line, or by operator of torch.
    """
    from gpusight.recording.choose_tool import has_gpu
    from gpusight.recording.request import Tool

    command = "diagnose"
    if not has_gpu() and (done.tool is Tool.TORCH or not all_ranks):  # else the GPUs are elsewhere
        without_stacks = "ops" if done.tool is Tool.TORCH else "info"
        command = "hotspots" if done.stacks.paths else without_stacks
    name = str(done.path)
    if all_ranks and command == "diagnose":
        # The names of all ranks differ in the number only; one report may have them all.
        folder, _, file = name.rpartition("/")
        pattern = re.sub(r"\.rank\d+", ".rank*", file, count=1)
        name, command = f"{folder}/{pattern}" if folder else pattern, "ranks"
    return f"gpusight {command} {shlex.quote(f'./{name}' if name.startswith('-') else name)}"


def _print_status(plan: RecordingPlan, text: str) -> None:
    rank = "" if plan.rank is None else f"rank {plan.rank.rank}: "
    write_error(f"gpusight record: {rank}{safe_text(text)}")
    sys.stderr.flush()


def _summarized(plan: RecordingPlan, done: Recording, target: str) -> bool:
    """Write the summary; returns False on failure, which must not hide the capture."""
    import json

    path = Path(target)
    if plan.rank is not None and (path.is_file() or not path.exists()):
        path = path.with_name(f"{path.stem}.rank{plan.rank.rank}{path.suffix}")
    document = {
        "tool": None if done.tool is None else done.tool.value,
        "version": done.version,
        "command": list(done.command.argv),
        "captures": [{"path": str(p), "bytes": p.stat().st_size} for p in done.paths],
        "memory_snapshots": [str(path) for path in done.memory_snapshots],
        "stacks": [str(path) for path in done.stacks.paths],
        "exit_code": done.exit_code,
        "seconds": done.seconds,
        "notes": list(done.notes),
        "pace": None if done.pace is None else asdict(done.pace),
        "recorded_steps": done.recorded_steps,
        "why_nothing": None if done.why_nothing is None else done.why_nothing[0],
    }
    try:
        write_file(path, [json.dumps(document, indent=2) + "\n"])
    except GpusightError as error:
        _print_status(plan, str(error))
        return False
    return True
