"""`gpusight whatif`: how long a step would take if something were different."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "predicted step time after a change"
DESCRIPTION = (
    "Replays the steps of a capture with changes: kernels faster or gone, synchronisations that "
    "return at once, launches as CUDA graphs, copies beside the computation, or the fix of a rule. "
    "Host threads keep their own work, GPU work keeps its order and dependencies, so a change that "
    "only uncovers the next bottleneck gets only what it gives. Any number of changes, applied in "
    "the order given: shows what each gives back alone and after those before it, and where the "
    "time goes then."
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
    group = parser.add_argument_group("what is different")
    for verb, (metavar, text) in _OPTIONS.items():
        group.add_argument(
            f"--{verb}",
            # One list for all of them: changes are applied in the order given.
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
        help="what the host launches between two waits becomes one launch of a CUDA graph",
    )
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_output(parser)


def _change(verb: str, text: str) -> tuple[str, str]:
    return verb, text


_SPEEDUP = (
    "N times faster: a category of kernels (matmul, elementwise, …), kernels, copies, host, "
    "'kernel:GLOB', or 'range:GLOB' for the GPU work launched in ranges"
)
_REMOVE = (
    "gone: sync (nothing waits for the GPU), input, alloc, copies, overhead (the profiler's), "
    "a category of kernels, 'kernel:GLOB', or 'range:GLOB' with its host work"
)
_FUSE = "one kernel instead of several where that is possible: elementwise, optimizer, attention"
_OVERLAP = "beside the computation, nothing waits for it: copies or communication"
_APPLY = "the fix of these rules of diagnose, as far as they find something"
_PRECISION = (
    "matrix products and convolutions that run in FP32 without tensor cores run on those: tf32, or "
    "bf16 or fp16 with the casts that autocast adds"
)
_OPTIONS = {
    "speedup": ("WHAT=Nx", _SPEEDUP),
    "precision": ("FORMAT", _PRECISION),
    "remove": ("WHAT", _REMOVE),
    "fuse": ("WHAT", _FUSE),
    "overlap": ("WHAT", _OVERLAP),
    "apply": ("RULE[,RULE]", _APPLY),
}


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight import api
    from gpusight.cli.capture_input import ask
    from gpusight.cli.output import present

    changes = [
        (verb, target)
        for verb, text in args.changes
        for target in (options.names(text) if verb == "apply" else [text])
    ]
    chosen = {**options.selection(args), **options.focus(args)}
    return present(ask(api.whatif, args, verb="replaying", changes=changes, **chosen), args)
