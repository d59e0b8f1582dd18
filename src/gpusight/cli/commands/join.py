"""`gpusight join`: the kernels of a timeline with what Nsight Compute measured of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import present
from gpusight.sniff import refuse_capture

if TYPE_CHECKING:
    import argparse

SUMMARY = "kernels of a timeline with their ncu metrics"
DESCRIPTION = (
    "The time of each kernel from a timeline, with its share of the roofline from an Nsight "
    "Compute report of the same program. Kernels are matched by name, grid, block and order. A "
    "report of one step or of some kernels represents all launches of the same kernel and shape. "
    "Launches without a match are listed with the reason."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight join run.nsys-rep report.ncu-rep",
    "gpusight join trace.json.gz report.ncu-rep --in 'ProfilerStep#3'",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file", metavar="TIMELINE", help="the timeline: a capture of nsys, torch.profiler or JAX"
    )
    parser.add_argument("report", metavar="REPORT", help="the Nsight Compute report: .ncu-rep, CSV")
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if args.output and args.output != "-":
        refuse_capture(Path(args.output), args.report)
    return present(analyze(gs.join, args, args.report, **options.part(args)), args)
