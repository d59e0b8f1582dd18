"""`gpusight utilization`: GPU utilization over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import is_read, present
from gpusight.render.result_view import CHART_FORMATS

if TYPE_CHECKING:
    import argparse


SUMMARY = "GPU utilization over time"
DESCRIPTION = (
    "GPU utilization over time, in bins: the share of compute, copies, communication and idle time "
    "of each GPU, and how many kernels start. Includes sampled GPU metrics (SMs, Tensor Cores, "
    "DRAM) where the capture has them. With -o and a name that ends in .svg, .html, .png or .pdf "
    "it draws a chart."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight utilization run.nsys-rep",
    "gpusight utilization run.nsys-rep -o busy.svg",
    "gpusight utilization trace.json.gz --bins 50 --format csv",
    "gpusight utilization run.sqlite --window 0s- --device 0",
)
_ON_SCREEN = 20
"""Bins that fit on a screen."""
_ELSEWHERE = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser)
    options.add_output(parser, formats=(*options.TABLE_FORMATS, *CHART_FORMATS))
    parser.add_argument(
        "--bins",
        type=options.count,
        metavar="N",
        help=f"number of equal bins (default: {_ON_SCREEN} in tables, else {_ELSEWHERE})",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from gpusight.render.charts.draw_chart import without_points

    bins = args.bins or (_ON_SCREEN if is_read(args) else _ELSEWHERE)
    result = analyze(gs.utilization, args, bins=bins, **options.part(args))
    return present(gs.Page(without_points(result.answer)) if is_read(args) else result, args)
