"""`gpusight kernels`: GPU kernels by the time they took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "GPU kernels by total time"
DESCRIPTION = (
    "Every kernel that ran on a GPU, grouped by name: launches, total, mean and extreme "
    "times, and its share of all kernel time. Of a report of Nsight Compute also by launch shape, "
    "with how busy it kept the SMs and the memory, occupancy, registers, shared memory and waves."
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
    parser.add_argument(
        "--launches",
        action="store_true",
        help="list every launch of a report of Nsight Compute, the longest first",
    )
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight import api
    from gpusight.cli.capture_input import ask
    from gpusight.cli.output import present

    result = ask(api.kernels, args, every_launch=args.launches, **options.selection(args))
    return present(result, args)
