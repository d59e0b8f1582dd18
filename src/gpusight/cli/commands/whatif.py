"""`gpusight whatif`: the predicted step time after a change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import present
from gpusight.errors import UsageError

if TYPE_CHECKING:
    import argparse

SUMMARY = "predicted step time after a change"
DESCRIPTION = (
    "Simulates the steps of a capture with changes: faster or removed kernels, no blocking syncs, "
    "CUDA graphs, copies overlapped with compute, or the fix of a rule. The simulation keeps host "
    "work, GPU order and dependencies, so a change that only exposes the next bottleneck saves "
    "little. Shows what each saves alone and after those before it (incremental), the same total "
    "in any order, the predicted step time and its breakdown. With `--ranks`, simulates all ranks "
    "of a job: without changes, each straggler as fast as the median rank."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight whatif run.nsys-rep --speedup matmul=4x",
    "gpusight whatif run.nsys-rep --remove sync --graph",
    "gpusight whatif trace.json.gz --speedup 'kernel:*gemm*=2x' --fuse elementwise",
    "gpusight whatif run.sqlite --precision bf16 --fuse optimizer",
    "gpusight whatif run.sqlite --apply input-starved,launch-bound --format json",
    "gpusight whatif --ranks trace.rank*.json.gz",
    "gpusight whatif --ranks traces/ --gradients bf16 --overlap communication",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser, nargs="?")
    group = parser.add_argument_group("changes")
    _add_changes(group, _OPTIONS)
    group.add_argument(
        "--graph",
        dest="changes",
        action="append_const",
        const=("graph", ""),
        help="launch all work between two synchronizations as one CUDA graph",
    )
    job = parser.add_argument_group("all ranks of a job")
    job.add_argument("--ranks", metavar="CAPTURE", nargs="+", help="captures of all ranks")
    _add_changes(job, _JOB_OPTIONS)
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser)
    options.add_output(parser)


def _add_changes(group: argparse._ArgumentGroup, verbs: dict[str, tuple[str, str]]) -> None:
    """Declare changes as one list for all of them: savings are incremental in the order given."""
    for verb, (metavar, text) in verbs.items():
        group.add_argument(
            f"--{verb}",
            dest="changes",
            action="append",
            default=[],
            type=partial(_change, verb),
            metavar=metavar,
            help=text,
        )


def _change(verb: str, text: str) -> tuple[str, str]:
    return verb, text


_SPEEDUP = (
    "make it N times faster: a kernel category (matmul, elementwise, …), kernels, copies, host, "
    "'kernel:GLOB', or 'range:GLOB' for the GPU work launched in ranges"
)
_REMOVE = (
    "remove it: sync (blocking syncs), input (data loading), alloc, copies, overhead (of the "
    "profiler), a kernel category, 'kernel:GLOB', or 'range:GLOB' with its host work"
)
_FUSE = "fuse kernels where possible: elementwise, optimizer, attention"
_OVERLAP = "overlap with compute: copies or communication"
_APPLY = "apply these fixes of diagnose, by rule or number"
_PRECISION = (
    "run FP32 GEMMs and convolutions on Tensor Cores: tf32, or bf16 or fp16 with the casts that "
    "autocast adds"
)
_OPTIONS = {
    "speedup": ("WHAT=Nx", _SPEEDUP),
    "precision": ("FORMAT", _PRECISION),
    "remove": ("WHAT", _REMOVE),
    "fuse": ("WHAT", _FUSE),
    "overlap": ("WHAT", _OVERLAP),
    "apply": ("FIX[,FIX]", _APPLY),
}
_JOB_OPTIONS = {
    "as-median": ("RANK", "this rank is as fast as the median of the others"),
    "gradients": ("FORMAT", "reduce gradients in bf16 or fp16 instead of FP32: half the bytes"),
    "bucket": ("SIZE", "reduce gradients in buckets of this size, such as 100MB"),
    "balance": ("WHAT", "ranks, stages or experts: their work evenly divided"),
}


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    changes = [
        (verb, target)
        for verb, text in args.changes
        for target in (options.names(text) if verb == "apply" else [text])
    ]
    if args.ranks is not None:
        _check_ranks(args)
        focus = options.focus(args)
        answer = gs.ranks_whatif(args.ranks, changes=changes, **focus, cache=not args.no_cache)
        return present(answer, args)
    if args.file is None:
        raise UsageError(
            "no capture is given", hint="write: gpusight whatif FILE, or --ranks FILE…"
        )
    of_job = [verb for verb, _ in changes if verb in _JOB_OPTIONS]
    if of_job:
        raise UsageError(
            f"--{of_job[0]} needs all ranks", hint="write: gpusight whatif --ranks FILE…"
        )
    chosen = options.part(args)
    return present(analyze(gs.whatif, args, verb="simulating", changes=changes, **chosen), args)


def _check_ranks(args: argparse.Namespace) -> None:
    """Refuse what selects a part of one capture."""
    if args.file is not None:
        raise UsageError(
            f"{args.file} and --ranks are given", hint="name all captures after --ranks"
        )
    chosen = [name for name, value in options.selection(args).items() if value is not None]
    if chosen:
        option = {"within": "in"}.get(chosen[0], chosen[0])
        raise UsageError(f"--{option} does not apply to --ranks")
