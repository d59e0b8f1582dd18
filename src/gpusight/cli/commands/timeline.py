"""`gpusight timeline`: a time window, track by track, as a table or a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import is_read, present
from gpusight.render.result_view import CHART_FORMATS

if TYPE_CHECKING:
    import argparse


SUMMARY = "one step, or any time window, as a picture"
DESCRIPTION = (
    "Show a time window of the timeline: the ledger of each GPU, its streams, ranges, operators "
    "and CUDA API calls. The default is the median step with a margin on both sides; --steps, "
    "--window and --in select another. The table has the events and the busy time of each track; "
    "-o with .svg, .html, .png or .pdf draws it. Events too narrow to see are merged, which keeps "
    "pictures small. For the whole capture: gpusight serve."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight timeline run.nsys-rep -o step.svg",
    "gpusight timeline run.nsys-rep --steps 5 --tracks ledger,stream -o step.pdf",
    "gpusight timeline trace.json.gz --window 1.20s-1.25s -o excerpt.html",
    "gpusight timeline run.sqlite --in forward",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser)
    group = parser.add_argument_group("tracks")
    group.add_argument(
        "--tracks",
        type=options.names,
        default=[],
        metavar="A,B,…",
        help="kinds (ledger, stream, graphs, ranges, ops, python, api, syncs, os, metric, memory), "
        "keys from the table, globs of keys such as 'gpu0/*', or all (default: ledger, streams, "
        "ranges, ops and api of the busiest GPUs and threads)",
    )
    options.add_output(parser, formats=(*options.TABLE_FORMATS, *CHART_FORMATS))


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from gpusight.render.charts.draw_chart import without_points

    result = analyze(gs.timeline, args, tracks=args.tracks, **options.part(args))
    return present(gs.Page(without_points(result.answer)) if is_read(args) else result, args)
