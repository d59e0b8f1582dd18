"""`gpusight report`: everything about a capture as one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "everything about a capture in one HTML file"
DESCRIPTION = (
    "Writes one file that needs nothing else, no network and no gpusight, and opens in any "
    "browser: the step time and what fixing the three largest findings would make of it, the "
    "ledger, the findings with evidence and code to paste, kernels, ranges as a flame chart, "
    "phases, copies, memory, what Nsight Compute measured, and what could not be told. It names "
    "the capture's file, but no folder, machine or person. docs/report.md explains it."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight report run.nsys-rep -o report.html",
    "gpusight report run.nsys-rep kernels.ncu-rep -o report.html",
    "gpusight report after.json.gz --compare before.json.gz -o report.html",
    "gpusight report report.ncu-rep --title 'Attention, version 3' > report.html",
)
_PAGES = ("", ".html", ".htm", ".xhtml", ".txt")
"""What the name of a page may end in; others promise another kind of file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser, nargs="+")
    parser.add_argument(
        "--compare",
        nargs="+",
        action="extend",
        default=[],
        metavar="BASE",
        help="also say what changed since these: captures before a change, which are repeats, or a "
        "file of `gpusight baseline save`",
    )
    parser.add_argument(
        "--title", default="", metavar="TEXT", help="what to call it (default: the file's name)"
    )
    options.add_selection(parser)
    options.add_focus(parser)
    parser.add_argument_group("output").add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write to this file; replaces it (default: standard output, if that is no terminal)",
    )


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from pathlib import Path

    from gpusight import api
    from gpusight.cli.capture_input import open_capture, progress, read_digests
    from gpusight.cli.output import emit
    from gpusight.comparison.inputs import side_inputs

    _check_place(args)
    base = read_digests(side_inputs(args.compare), args) if args.compare else ()
    with progress(f"reading {Path(args.file[0]).name}", quiet=args.quiet):
        traces = [open_capture(file, args) for file in args.file]
        result = api.report(
            *traces,
            compare=base,
            title=args.title,
            **options.selection(args),
            **options.focus(args),
        )
    args.file = args.file[0]
    emit([result.to_html()], args)
    return 0


def _check_place(args: argparse.Namespace) -> None:
    """Refuse, before anything is read, what could not be written or must not be."""
    import sys
    from pathlib import Path

    from gpusight.errors import UsageError
    from gpusight.sniff import refuse_capture

    if args.output is None and sys.stdout.isatty():
        raise UsageError("a report is a page, which needs a file", hint="add: -o report.html")
    if args.output in (None, "-"):
        return
    target = Path(args.output)
    for capture in (*args.file, *args.compare):
        refuse_capture(target, capture)
    if target.suffix.lower() not in _PAGES:
        hint = "add: -o report.html; pictures and tables: gpusight ledger, kernels, memory, …"
        raise UsageError(f"a report is HTML, not {target.suffix}", hint=hint)
