"""`gpusight report`: everything about a capture as one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gpusight.comparison.digest import Digest
    from gpusight.comparison.inputs import SideInputs
    from gpusight.reports.report_contents import Report
    from gpusight.results import NotApplicable

SUMMARY = "everything about a capture as one HTML file"
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
    from gpusight.cli.output import EXIT_NOT_APPLICABLE, emit, write_error
    from gpusight.render.table_layout import sentence
    from gpusight.results import NotApplicable

    _check_place(args)
    found = _gathered(args)
    if isinstance(found, NotApplicable):
        write_error(f"gpusight: report: {sentence(found)}")
        return EXIT_NOT_APPLICABLE
    from gpusight.render.html.report_page import to_page

    args.file = args.file[0]
    emit([to_page(found)], args)
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


def _gathered(args: argparse.Namespace) -> Report | NotApplicable:
    """Read the captures, then ask everything of them."""
    from pathlib import Path

    from gpusight.cli.capture_input import open_capture, progress
    from gpusight.reports.report_builder import build_report as gather
    from gpusight.reports.report_contents import ReportRequest as Asked
    from gpusight.results import NotApplicable

    base = _base(args)
    if isinstance(base, NotApplicable):
        return base
    asked = Asked(options.selection(args), title=args.title, **options.focus(args))
    with progress(f"reading {Path(args.file[0]).name}", quiet=args.quiet):
        return gather([open_capture(file, args) for file in args.file], asked, base=base)


def _base(args: argparse.Namespace) -> Sequence[Digest] | NotApplicable:
    """Sum up what the capture is compared with."""
    if not args.compare:
        return ()
    from gpusight.cli.capture_input import read_digests
    from gpusight.comparison.inputs import side_inputs as side_meant

    meant: SideInputs = side_meant(args.compare)
    return read_digests(meant, args)
