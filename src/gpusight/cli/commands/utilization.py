"""`gpusight utilization`: how busy each GPU was over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusight.cli import options
from gpusight.render.charts.draw_chart import CHART_FORMATS

if TYPE_CHECKING:
    import argparse


SUMMARY = "GPU utilization over time"
DESCRIPTION = (
    "Cuts the time into bins and says for each GPU and bin how much of it went into computing, "
    "moving data, communicating and idling, with the ledger's priorities, and how many kernels "
    "began. Where GPU metrics were sampled, SMs, tensor cores and DRAM beside it. Of the steps of "
    "the program, without warm-up, unless asked otherwise. With -o and a name that ends in .svg, "
    ".html, .png or .pdf it draws that over time. Also spelled utilization."
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
    options.add_output(parser, formats=(*options.TABLE_FORMATS, *CHART_FORMATS))
    parser.add_argument(
        "--bins",
        type=options.count,
        metavar="N",
        help="cut the time into so many equal parts "
        f"(default: {_ON_SCREEN} in tables, else {_ELSEWHERE})",
    )


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight import api
    from gpusight.cli.capture_input import ask
    from gpusight.cli.output import is_read, present
    from gpusight.render.charts.draw_chart import without_points

    bins = args.bins or (_ON_SCREEN if is_read(args) else _ELSEWHERE)
    chosen: dict[str, Any] = {**options.selection(args), **options.focus(args)}
    result = ask(api.utilization, args, bins=bins, **chosen)
    return present(api.Page(without_points(result.answer)) if is_read(args) else result, args)
