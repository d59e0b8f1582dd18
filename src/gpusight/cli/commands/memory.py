"""`gpusight memory`: memory in use over time, who held it at the peak, and whether it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options, picture_output
from gpusight.render.charts.draw_chart import CHART_FORMATS

if TYPE_CHECKING:
    import argparse

    from gpusight.results import Composite, Result

SUMMARY = "memory in use over time, and who held it at the peak"
DESCRIPTION = (
    "How much GPU memory was in use and reserved, the peak and everyone who held a part of it "
    "(operator, module, line of code), the largest blocks, and whether memory grows from step to "
    "step. Reads torch.profiler traces with profile_memory=True, CUDA memory snapshots of PyTorch, "
    "JAX .xplane.pb profiles, and nsys captures with --cuda-memory-usage=true. With -o and a name "
    "that ends in .svg, .html, .png or .pdf it draws memory over time."
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
    options.add_output(parser, formats=(*options.TABLE_FORMATS, *CHART_FORMATS))
    parser.add_argument(
        "--timeline",
        action="store_true",
        help="show the points of the picture in tables too; JSON and CSV always have them",
    )


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight.analysis.memory.memory_usage import memory
    from gpusight.cli.capture_input import answer

    result = answer(args, lambda trace: memory(trace, options.selection(args)))
    return picture_output.present_picture(result, args, _draw, _shown)


def _draw(result: Composite, form: str) -> bytes:
    from gpusight.render.charts.draw_chart import draw_result

    return draw_result(result, form)


def _shown(result: Result, args: argparse.Namespace) -> Result:
    """Leave the many points of the timeline out of what people read."""
    from gpusight.cli.output import chosen_format
    from gpusight.render.charts.draw_chart import without_points
    from gpusight.results import Composite

    read = chosen_format(args) in {"table", "markdown"} and not args.timeline
    return without_points(result) if isinstance(result, Composite) and read else result
