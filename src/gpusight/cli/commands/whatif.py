"""`gpusight whatif`: the predicted step time after a change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "predicted step time after a change"
DESCRIPTION = (
    "Simulates the steps of a capture with changes: faster or removed kernels, no blocking syncs, "
    "CUDA graphs, copies overlapped with compute, or the fix of a rule. The simulation keeps host "
    "work, GPU order and dependencies, so a change that only exposes the next bottleneck saves "
    "little. Shows what each saves alone and after those before it (incremental), the same total "
    "in any order, the predicted step time and its breakdown."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight whatif run.nsys-rep --speedup matmul=4x",
    "gpusight whatif run.nsys-rep --remove sync --graph",
    "gpusight whatif trace.json.gz --speedup 'kernel:*gemm*=2x' --fuse elementwise",
    "gpusight whatif run.sqlite --precision bf16 --fuse optimizer",
    "gpusight whatif run.sqlite --apply input-starved,launch-bound --format json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    group = parser.add_argument_group("changes")
    for verb, (metavar, text) in _OPTIONS.items():
        group.add_argument(
            f"--{verb}",
            # One list for all of them: savings are incremental in the order given.
            dest="changes",
            action="append",
            default=[],
            type=partial(_change, verb),
            metavar=metavar,
            help=text,
        )
    group.add_argument(
        "--graph",
        dest="changes",
        action="append_const",
        const=("graph", ""),
        help="launch all work between two synchronizations as one CUDA graph",
    )
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser)
    options.add_output(parser)


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


def run(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from gpusight import api
    from gpusight.cli.capture_input import analyze
    from gpusight.cli.output import present

    changes = [
        (verb, target)
        for verb, text in args.changes
        for target in (options.names(text) if verb == "apply" else [text])
    ]
    chosen = {**options.selection(args), **options.focus(args)}
    return present(analyze(api.whatif, args, verb="simulating", changes=changes, **chosen), args)
