"""`gpusight hotspots`: idle GPU time, GPU time and host time by line of code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze, open_capture
from gpusight.cli.output import chosen_format, present
from gpusight.errors import UsageError
from gpusight.render.result_view import CHART_FORMATS

if TYPE_CHECKING:
    import argparse

SUMMARY = "idle GPU time by line of code; flame graphs"
DESCRIPTION = (
    "Which lines of your code leave the GPU idle, launch its work, and take host time. Each idle "
    "nanosecond of the ledger has the stack of the thread that launched what came next. Lines are "
    "those of your own code: what a library does counts for the line that called it. Needs stacks: "
    "`gpusight record` (of Python), `with_stack=True` of torch.profiler, or CPU samples and "
    "backtraces of nsys. `-o` with `.svg` or `.html` draws a flame graph, `.folded`, "
    "`.speedscope.json` and `.pb.gz` (pprof) are for other tools."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight hotspots run.sqlite",
    "gpusight hotspots trace.json.gz --by function --top 10",
    "gpusight hotspots trace.json.gz --by stack",
    "gpusight hotspots run.sqlite -o flame.html",
    "gpusight hotspots new.sqlite --vs old.sqlite -o flame.svg",
    "gpusight hotspots run.sqlite --of gpu -o run.speedscope.json",
)
_GROUPS = ("line", "function", "module", "package", "stack", "range")
_MEASURES = ("idle", "gpu", "host", "launches", "memory")
_STACKS = ("folded", "speedscope", "pprof")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    parser.add_argument(
        "--by",
        choices=_GROUPS,
        default="line",
        help="sum by line, function, module or package; stack is a tree of all frames, range one "
        "of NVTX ranges (default: line)",
    )
    parser.add_argument(
        "--all-frames",
        action="store_true",
        help="name the innermost line, also in a library, instead of your own",
    )
    parser.add_argument(
        "--of",
        choices=_MEASURES,
        default="idle",
        help="what a flame graph shows (default: idle)",
    )
    parser.add_argument("--vs", metavar="OTHER", help="color a flame graph by the change since it")
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser)
    options.add_output(parser, formats=(*options.TABLE_FORMATS, *CHART_FORMATS, *_STACKS))


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if args.vs and chosen_format(args) not in CHART_FORMATS:
        raise UsageError("--vs colors a flame graph", hint="add -o flame.svg, or .html, .png, .pdf")
    result = analyze(
        gs.hotspots,
        args,
        by=args.by,
        of=args.of,
        all_frames=args.all_frames,
        vs=open_capture(args.vs, args) if args.vs else None,
        **options.part(args),
    )
    return present(result, args)
