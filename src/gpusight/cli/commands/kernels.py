"""`gpusight kernels`: GPU kernels by the time they took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "GPU kernels by the time they took"
DESCRIPTION = (
    "Every kernel that ran on a GPU, grouped by name: launches, total, mean and extreme "
    "times, and its share of all kernel time."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight kernels run.nsys-rep --top 10",
    "gpusight kernels run.sqlite --in forward --format csv -o kernels.csv",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight.analyses.kernels import kernels
    from gpusight.cli.running import run_analysis

    return run_analysis(args, kernels)
