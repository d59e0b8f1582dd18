"""`gpusight kernels`: GPU kernels by total time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import present

if TYPE_CHECKING:
    import argparse

SUMMARY = "GPU kernels by total time"
DESCRIPTION = (
    "GPU kernels grouped by name: launches, total, mean, minimum and maximum time, and the share "
    "of all kernel time. For an Nsight Compute report also by launch shape, with SM and memory "
    "throughput, occupancy, registers, shared memory and waves."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight kernels run.nsys-rep --top 10",
    "gpusight kernels run.sqlite --in forward --format csv -o kernels.csv",
    "gpusight kernels report.ncu-rep --launches",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    options.add_focus(parser)
    parser.add_argument(
        "--launches",
        action="store_true",
        help="list every launch of an Nsight Compute report, the longest first",
    )
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    result = analyze(
        gs.kernels,
        args,
        every_launch=args.launches,
        **options.part(args),
    )
    return present(result, args)
