"""`gpusight diagnose`: what holds each kernel up, and what a fix would give back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

    from gpusight.findings.kernels.diagnosis import Diagnosis
    from gpusight.result import NotApplicable

SUMMARY = "what holds each kernel up, and what a fix would give back"
DESCRIPTION = (
    "Sixteen rules over the hardware counters of each kernel: uncoalesced accesses, bank "
    "conflicts, low occupancy and its limit, divergence, small grids, tails, atomics, FP64, "
    "spills, idle tensor cores, cache misses, and what a kernel is bound by. Each finding has its "
    "evidence, the estimated gain and how it was estimated, and code to paste; kernels are ranked "
    "by the time that fixes give back over the report, with Nsight Compute's own rule results "
    "beside. Reads Nsight Compute reports and CSVs; docs/kernel-rules.md explains every rule."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight diagnose report.ncu-rep",
    "gpusight diagnose report.ncu-rep --kernel '*gemm*' --details 0",
    "gpusight diagnose report.ncu-rep --lines",
    "gpusight diagnose report.ncu-rep --rule bank-conflict,uncoalesced-access",
    "gpusight diagnose report.ncu-rep -o diagnosis.html",
    "gpusight diagnose report.ncu-rep --format json",
)
FORMATS = (*options.FORMATS, "html")
DETAILS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    group = parser.add_argument_group("which kernels, which rules")
    options.add_kernel(group)
    options.add_launch(group)
    group.add_argument(
        "--rule",
        type=options.names,
        action="extend",
        default=[],
        metavar="RULE[,RULE]",
        help="ask only these rules, such as bank-conflict",
    )
    group.add_argument(
        "--lines",
        action="store_true",
        help="name the source lines of each finding; needs SourceCounters in the report and a "
        "program compiled with -lineinfo",
    )
    group.add_argument(
        "--details",
        type=options.number,
        metavar="N",
        help=f"kernels that are explained; 0 for all (default: {DETAILS}, in HTML all)",
    )
    options.add_output(parser, formats=FORMATS)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight.result import NotApplicable

    diagnosis = _diagnosis(args)
    form = _format(args)
    if isinstance(diagnosis, NotApplicable):
        return _refused(diagnosis, form, args)
    if form == "table" and not args.output and _colored(args):
        _draw(diagnosis, args)
    else:
        from gpusight.cli.output import emit

        emit([_text(diagnosis, form, args)], args)
    return 0


def _diagnosis(args: argparse.Namespace) -> Diagnosis | NotApplicable:
    from pathlib import Path

    from gpusight.cli.progress import progress
    from gpusight.cli.running import open_capture
    from gpusight.findings.kernels.diagnosis import diagnose
    from gpusight.result import NotApplicable

    with progress(f"reading {Path(args.file).name}", quiet=args.quiet):
        trace = open_capture(args.file, args)
        selection = options.selection(args)
        found = diagnose(
            trace,
            selection,
            kernel=args.kernel,
            launches=args.launch,
            rules=args.rule,
            lines=args.lines,
        )
        if isinstance(found, NotApplicable):
            return found
        return found.with_warnings(trace.meta.warnings)


def _format(args: argparse.Namespace) -> str:
    """Give the format asked for, or the one that the output file's name implies."""
    from pathlib import Path

    from gpusight.cli.output import chosen_format

    if not args.format and args.output and Path(args.output).suffix.lower() in {".html", ".htm"}:
        return "html"
    return chosen_format(args)


def _refused(absent: NotApplicable, form: str, args: argparse.Namespace) -> int:
    from gpusight.cli.output import present
    from gpusight.cli.pictures import to_screen

    if form != "json":
        to_screen(args)
    return present(absent, args)


def _colored(args: argparse.Namespace) -> bool:
    import sys

    from gpusight.render.terminal import wants_color

    return not args.no_color and wants_color(sys.stdout)


def _draw(diagnosis: Diagnosis, args: argparse.Namespace) -> None:
    import sys

    from gpusight.cli.output import look_of
    from gpusight.render.diagnosis.text import print_text

    print_text(diagnosis, look_of(args, bars=True), sys.stdout, details=_details(args))


def _details(args: argparse.Namespace, default: int = DETAILS) -> int:
    return default if args.details is None else int(args.details)


def _text(diagnosis: Diagnosis, form: str, args: argparse.Namespace) -> str:
    if form == "json":
        from gpusight.render.json import encode

        return encode(diagnosis.document(limit=args.top))
    if form == "csv":
        from gpusight.render.csv import to_csv
        from gpusight.render.diagnosis.tables import every_finding

        return to_csv(every_finding(diagnosis), limit=args.top)
    if form == "markdown":
        from gpusight.render.diagnosis.markdown import to_document

        return to_document(diagnosis, limit=_top(args), details=_details(args))
    if form == "html":
        from gpusight.render.diagnosis.html import to_page

        return to_page(diagnosis, limit=args.top or 0, details=_details(args, 0))
    from gpusight.cli.output import look_of
    from gpusight.render.diagnosis.text import to_text

    return to_text(diagnosis, look_of(args), details=_details(args))


def _top(args: argparse.Namespace) -> int:
    return options.DEFAULT_TOP if args.top is None else int(args.top)
