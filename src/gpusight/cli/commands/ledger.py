"""`gpusight ledger`: GPU time by cause; each nanosecond is counted exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import is_read, present
from gpusight.render.result_view import CHART_FORMATS

if TYPE_CHECKING:
    import argparse

SUMMARY = "GPU time by cause: compute, copies, communication, idle"
DESCRIPTION = (
    "Split the time of each GPU by cause; each nanosecond is counted exactly once. Causes are "
    "compute (by kind of kernel), copies, communication, and idle time: queued, synchronizing, "
    "allocating, launching, input, framework, other host work, profiler, unknown. The cause of "
    "idle time is what the launching thread does meanwhile, with its top ranges, operators, calls "
    "and lines of code. With -o and a name that ends in .svg, .html, .png or .pdf it draws a chart."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight ledger run.nsys-rep",
    "gpusight ledger trace.json.gz --by-step",
    "gpusight ledger run.sqlite --steps 3-7 --format json",
    "gpusight ledger run.sqlite --in forward --device 0",
    "gpusight ledger run.nsys-rep -o ledger.svg",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser)
    options.add_output(parser, formats=(*options.TABLE_FORMATS, *CHART_FORMATS))
    parser.add_argument(
        "--by-step",
        action="store_true",
        help="also show a table of the steps; JSON and CSV always have them",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    result = analyze(gs.ledger, args, **options.part(args))
    return present(result, args, **({"by_step": args.by_step} if is_read(args) else {}))
