"""`gpusight roofline`: kernels against the compute and memory rooflines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import present
from gpusight.render.result_view import CHART_FORMATS

if TYPE_CHECKING:
    import argparse


SUMMARY = "kernels against the compute and memory rooflines"
DESCRIPTION = (
    "Achieved FLOP/s and bandwidth of each kernel, arithmetic intensity, what limits it (compute, "
    "memory or latency), and the achieved share of the roofline. Reads Nsight Compute reports and "
    "CSVs. With -o and a name that ends in .svg, .html, .png or .pdf it draws the roofline."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight roofline report.ncu-rep",
    "gpusight roofline report.ncu-rep -o roofline.html",
    "gpusight roofline report.ncu-rep --kernel '*gemm*' --launches --wide",
    "gpusight roofline counters.csv --gpu 'RTX 3090'",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    group = parser.add_argument_group("kernels and GPU")
    options.add_kernel(group)
    group.add_argument(
        "--launches",
        action="store_true",
        help="one row per launch (default: one per kernel and launch shape)",
    )
    group.add_argument(
        "--gpu",
        metavar="NAME",
        help="use the peaks of this GPU, such as A100 or 'RTX 4090', if the capture has none",
    )
    options.add_output(parser, formats=(*options.TABLE_FORMATS, *CHART_FORMATS))


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    chosen = {"kernel": args.kernel, "every_launch": args.launches, "gpu": args.gpu}
    return present(analyze(gs.roofline, args, **chosen, **options.selection(args)), args)
