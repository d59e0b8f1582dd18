"""`gpusight memory`: GPU memory over time, the peak, and growth per step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import is_read, present
from gpusight.render.result_view import CHART_FORMATS

if TYPE_CHECKING:
    import argparse


SUMMARY = "GPU memory over time, and what allocated it at the peak"
DESCRIPTION = (
    "GPU memory in use and reserved, the peak by allocation site (operator, module, line of "
    "code), the largest blocks, and growth from step to step. Reads torch.profiler traces with "
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
        "--blocks",
        action="store_true",
        help="also list the largest blocks at the peak one by one; JSON and CSV always have them",
    )
    parser.add_argument(
        "--timeline",
        action="store_true",
        help="also show memory over time as a table; JSON and CSV always have it",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    result = analyze(gs.memory, args, **options.part(args))
    if is_read(args):
        left_out = {name for name in ("blocks", "timeline") if not getattr(args, name)}
        sections = tuple(s for s in result.answer.sections if s.command not in left_out)
        result = gs.Page(replace(result.answer, sections=sections))
    return present(result, args)
