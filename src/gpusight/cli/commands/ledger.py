"""`gpusight ledger`: where the time went, every nanosecond in one entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options, picture_output
from gpusight.render.charts.draw_chart import CHART_FORMATS

if TYPE_CHECKING:
    import argparse

    from gpusight.analysis.ledger.ledger_report import LedgerReport
    from gpusight.results import NotApplicable

SUMMARY = "where the time went, every nanosecond in one entry"
DESCRIPTION = (
    "Splits the time of each GPU without overlap or remainder: computing by kind of kernel, moving "
    "data, communicating, and idle by why: queued, synchronising, allocating, launching, input, "
    "framework, other host work, the profiler, unknown. Idle time is explained by what the thread "
    "that launched the next piece of work did meanwhile, with the ranges, operators, calls and "
    "lines of code that it spent most on. Of the steps of the program, without warm-up, unless "
    "asked otherwise. With -o and a name that ends in .svg, .html, .png or .pdf it draws a bar for "
    "each GPU, and its steps."
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
    options.add_output(parser, formats=(*options.TABLE_FORMATS, *CHART_FORMATS))
    parser.add_argument(
        "--by-step",
        action="store_true",
        help="show a table of every step too; JSON and CSV always have them",
    )


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight.analysis.ledger.ledger_tables import ledger_lines_table as lines
    from gpusight.analysis.ledger.ledger_tables import ledger_page as page
    from gpusight.cli.output import chosen_format, emit, present
    from gpusight.results import NotApplicable

    report = _report(args)
    picture = picture_output.picture_format(args)
    if isinstance(report, NotApplicable):
        if picture is not None:
            picture_output.to_screen(args)
        return present(report, args)
    if picture is not None:
        from gpusight.render.ledger_view import draw_ledger

        picture_output.emit_picture(draw_ledger(report, picture), picture, args)
        return 0
    form = chosen_format(args)
    if form == "json":
        from gpusight.render.csv_json import encode_json as encode

        emit([encode(report.document())], args)
        return 0
    return present(lines(report) if form == "csv" else page(report, by_step=args.by_step), args)


def _report(args: argparse.Namespace) -> LedgerReport | NotApplicable:
    from pathlib import Path

    from gpusight.analysis.ledger.ledger_report import ledger_report
    from gpusight.cli.capture_input import open_capture, progress, warnings_of
    from gpusight.results import NotApplicable, with_warnings

    with progress(f"reading {Path(args.file).name}", quiet=args.quiet):
        trace = open_capture(args.file, args)
        found = ledger_report(trace, options.selection(args), **options.focus(args))
        if isinstance(found, NotApplicable):
            absent = with_warnings(found, warnings_of(args, trace))
            assert isinstance(absent, NotApplicable)
            return absent
        return found.with_warnings(warnings_of(args, trace))
