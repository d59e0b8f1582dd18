"""`gpusight report`: everything about a capture as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import open_capture, progress, read_digests
from gpusight.cli.output import emit
from gpusight.errors import DOCS_URL, UsageError
from gpusight.sniff import refuse_capture

if TYPE_CHECKING:
    import argparse

    from gpusight.trace.trace import Trace

SUMMARY = "everything about a capture in one HTML file"
DESCRIPTION = (
    "Write one self-contained HTML file that opens in any browser, offline: the step time and the "
    "plan of fixes, the ledger, the findings with evidence and code, kernels, ranges as a flame "
    "chart, phases, copies, memory, Nsight Compute metrics, and limitations. A folder with the "
    "captures of all ranks of a job adds the ranks: heat map, stragglers, clocks. It has the file "
    "name of the capture, but no folder, host or user name. "
    f"Docs: {DOCS_URL}/report.md"
)
EXAMPLES: tuple[str, ...] = (
    "gpusight report run.nsys-rep -o report.html",
    "gpusight report run.nsys-rep kernels.ncu-rep -o report.html",
    "gpusight report traces/ -o job.html",
    "gpusight report after.json.gz --compare before.json.gz -o report.html",
    "gpusight report report.ncu-rep --title 'Attention, version 3' > report.html",
)
_PAGES = ("", ".html", ".htm", ".xhtml", ".txt")
"""Extensions of a page."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser, nargs="+")
    parser.add_argument(
        "--compare",
        nargs="+",
        action="extend",
        default=[],
        metavar="BASE",
        help="also show what changed since these: captures from before a change (repeats), "
        "or a file of `gpusight baseline save`",
    )
    parser.add_argument(
        "--title", default="", metavar="TEXT", help="title of the page (default: the file name)"
    )
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser, sides="BASE,FILE with --compare")
    parser.add_argument_group("output").add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write to this file, replacing it (default: standard output, unless it is a terminal)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from gpusight.comparison.inputs import side_inputs
    from gpusight.open_job import is_job, open_job

    _check_output(args)
    base_pace, pace = options.paces(args)
    base = read_digests(side_inputs(args.compare), args, base_pace) if args.compare else ()
    with progress(f"reading {Path(args.file[0]).name}", quiet=args.quiet):
        if is_job(args.file):
            traces: list[Trace] = [open_job(args.file, cache=not args.no_cache).trace]
            traces[0].pace = pace
        else:
            traces = [open_capture(file, args, pace) for file in args.file]
        result = gs.report(
            *traces,
            compare=base,
            title=args.title,
            **options.part(args),
        )
    args.file = args.file[0]
    args.format = "html"  # whatever the file is called
    emit([result.to_html()], args)
    return 0


def _check_output(args: argparse.Namespace) -> None:
    """Refuse an output file that cannot or must not be written, before reading."""
    if args.output is None and sys.stdout.isatty():
        raise UsageError("a report is an HTML page and needs a file", hint="add: -o report.html")
    if args.output in (None, "-"):
        return
    target = Path(args.output)
    for capture in (*args.file, *args.compare):
        refuse_capture(target, capture)
    if target.suffix.lower() not in _PAGES:
        hint = "add: -o report.html; pictures and tables: gpusight ledger, kernels, memory, …"
        raise UsageError(f"a report is HTML, not {target.suffix}", hint=hint)
