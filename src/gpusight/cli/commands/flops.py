"""`gpusight flops`: achieved vs. peak FLOP/s."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import present

if TYPE_CHECKING:
    import argparse

SUMMARY = "achieved vs. peak FLOP/s, by operator"
DESCRIPTION = (
    "FLOPs and minimum bytes of GEMMs, convolutions, attention and embeddings, from the shapes "
    "that torch.profiler records (record_shapes=True): achieved TFLOP/s, share of peak, time "
    "above the roofline, and model FLOPs utilization (MFU) of the window and of each step."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight flops trace.json.gz",
    "gpusight flops trace.json.gz --by family --in 'ProfilerStep*'",
    "gpusight flops trace.json.gz --peak 312 --bandwidth 2039",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser)
    group = parser.add_argument_group("grouping and peaks")
    group.add_argument(
        "--by",
        choices=("shapes", "op", "family"),
        default="shapes",
        help="one row per operator and shape, per operator, or per family (default: shapes)",
    )
    group.add_argument(
        "--peak",
        type=options.positive,
        metavar="TFLOPS",
        help="peak TFLOP/s, instead of the one in the GPU table",
    )
    group.add_argument(
        "--bandwidth",
        type=options.positive,
        metavar="GB/S",
        help="memory bandwidth in GB/s, instead of the one in the GPU table",
    )
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    chosen = {"by": args.by, "peak": args.peak, "bandwidth": args.bandwidth}
    return present(analyze(gs.flops, args, **chosen, **options.part(args)), args)
