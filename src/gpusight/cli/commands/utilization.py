"""`gpusight utilisation`: how busy each GPU was over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options, picture_output
from gpusight.render.charts.draw_chart import CHART_FORMATS

if TYPE_CHECKING:
    import argparse

    from gpusight.results import Composite, Result


SUMMARY = "how busy each GPU was over time"
DESCRIPTION = (
    "Cuts the time into bins and says for each GPU and bin how much of it went into computing, "
    "moving data, communicating and idling, with the ledger's priorities, and how many kernels "
    "began. Where GPU metrics were sampled, SMs, tensor cores and DRAM beside it. Of the steps of "
    "the program, without warm-up, unless asked otherwise. With -o and a name that ends in .svg, "
    ".html, .png or .pdf it draws that over time. Also spelled utilization."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight utilisation run.nsys-rep",
    "gpusight utilisation run.nsys-rep -o busy.svg",
    "gpusight utilisation trace.json.gz --bins 50 --format csv",
    "gpusight utilisation run.sqlite --window 0s- --device 0",
)
_ON_SCREEN = 20
"""Bins that fit on a screen."""


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
        help=f"cut the time into so many equal parts (default: {_ON_SCREEN} in tables, else 400)",
    )


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight.analysis.gpu_utilization import DEFAULT_BINS as BINS
    from gpusight.analysis.gpu_utilization import utilization as utilisation
    from gpusight.cli.capture_input import answer

    bins = args.bins or (_ON_SCREEN if _is_read(args) else BINS)
    result = answer(
        args,
        lambda trace: utilisation(trace, options.selection(args), **options.focus(args), bins=bins),
    )
    return picture_output.present_picture(result, args, _draw, _shown)


def _is_read(args: argparse.Namespace) -> bool:
    """Tell whether people read the answer as a table."""
    from gpusight.cli.output import chosen_format

    if picture_output.picture_format(args) is not None:
        return False
    return chosen_format(args) in {"table", "markdown"}


def _draw(result: Composite, form: str) -> bytes:
    from gpusight.render.charts.draw_chart import draw_result

    return draw_result(result, form)


def _shown(result: Result, args: argparse.Namespace) -> Result:
    """Leave out of tables what only pictures and programs need."""
    from gpusight.render.charts.draw_chart import without_points
    from gpusight.results import Composite

    return without_points(result) if isinstance(result, Composite) and _is_read(args) else result
