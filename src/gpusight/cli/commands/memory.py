"""`gpusight memory`: GPU memory over time, the peak, and growth per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options
from gpusight.render.charts.draw_chart import CHART_FORMATS

if TYPE_CHECKING:
    import argparse


SUMMARY = "GPU memory over time, and who held it at the peak"
DESCRIPTION = (
    "GPU memory in use and reserved, the peak and who holds it (operator, module, line of code), "
    "the largest blocks, and growth from step to step. Reads torch.profiler traces with "
    "profile_memory=True, CUDA memory snapshots of PyTorch, JAX .xplane.pb profiles, and nsys "
    "captures with --cuda-memory-usage=true. With -o and a name that ends in .svg, .html, .png or "
    ".pdf it draws a chart."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight memory trace.json.gz",
    "gpusight memory snapshot.pickle -o memory.html",
    "gpusight memory trace.json.gz --in 'ProfilerStep#3' -o memory.png",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_output(parser, formats=(*options.TABLE_FORMATS, *CHART_FORMATS))
    parser.add_argument(
        "--timeline",
        action="store_true",
        help="also show memory over time as a table; JSON and CSV always have it",
    )


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight import api
    from gpusight.cli.capture_input import ask
    from gpusight.cli.output import is_read, present
    from gpusight.render.charts.draw_chart import without_points

    result = ask(api.memory, args, **options.selection(args), **options.focus(args))
    if is_read(args) and not args.timeline:
        result = api.Page(without_points(result.answer))
    return present(result, args)
