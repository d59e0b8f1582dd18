"""`gpusight compare`: what changed between two captures, by how much, how surely, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusight.cli import options
from gpusight.render.charts.draw_chart import CHART_FORMATS as PICTURES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from gpusight.comparison.comparison_result import Comparison
    from gpusight.render.table_layout import TableOptions
    from gpusight.results import NotApplicable

SUMMARY = "before and after: what changed, by how much, how surely, and why"
DESCRIPTION = (
    "Compares captures of a program before and after a change, nsys or torch.profiler alike: the "
    "step time with its interval, where the time of a step went on either side, and the kernels, "
    "ranges, API calls, copies and findings that changed, with the reasons in sentences. Kernels "
    "are matched by name, or by their place where names changed. Several captures a side are "
    "repeats: only what they agree on is claimed. docs/compare.md explains it. With -o and a name "
    "that ends in .html it writes a page, with .svg, .png or .pdf the step as a waterfall."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight compare before.nsys-rep after.nsys-rep",
    "gpusight compare base_r*.sqlite --vs new_r*.sqlite",
    "gpusight compare 'base/*.json.gz' 'new/*.json.gz' -o compare.html",
    "gpusight compare baseline.json run.nsys-rep --format markdown",
)
_FORMATS = (*options.TABLE_FORMATS, *PICTURES)
_LISTS = ("kernels", "ranges", "api_calls", "copies", "ledger", "between", "phases", "findings")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file",
        metavar="BEFORE AFTER",
        nargs="*",
        help="a capture (nsys, torch.profiler, JAX), a folder or quoted glob of repeats, or a file "
        "of `gpusight baseline save`; with --vs all of these are before",
    )
    parser.add_argument(
        "--vs",
        nargs="+",
        action="extend",
        default=[],
        metavar="AFTER",
        help="captures after the change, where either side has several",
    )
    group = parser.add_argument_group("what counts as a change")
    group.add_argument(
        "--least-effect",
        type=options.percent,
        metavar="P%",
        help="smaller changes are none (default: 2%%)",
    )
    group.add_argument(
        "--confidence",
        type=options.percent,
        metavar="P%",
        help="of the intervals (default: 95%%)",
    )
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_output(parser, formats=_FORMATS)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight.cli.output import present
    from gpusight.cli.picture_output import to_screen
    from gpusight.results import NotApplicable

    form = _format(args)
    found = _compared(args)
    if not isinstance(found, NotApplicable):
        _write(found, form, args)
        return 0
    if form != "json":
        to_screen(args)
    return present(found, args)


def _format(args: argparse.Namespace) -> str:
    """Give the format asked for, or the one that the output file's name implies."""
    from pathlib import Path

    from gpusight.cli.output import chosen_format
    from gpusight.cli.picture_output import picture_format

    if not args.format and args.output and Path(args.output).suffix.lower() == ".htm":
        return "html"
    return picture_format(args) or chosen_format(args)


def _compared(args: argparse.Namespace) -> Comparison | NotApplicable:
    from gpusight.cli.capture_input import read_sides
    from gpusight.comparison.compare_digests import compare
    from gpusight.comparison.inputs import side_inputs as side_meant
    from gpusight.comparison.significance import CONFIDENCE
    from gpusight.comparison.significance import MIN_EFFECT as LEAST
    from gpusight.results import NotApplicable

    old, new = map(side_meant, _sides(args))
    _keep_captures([*old.paths, *new.paths], args)
    args.file, args.vs = str(old.paths[0]), [str(path) for path in new.paths]
    sides = read_sides(old, new, args)
    if isinstance(sides, NotApplicable):
        return sides
    return compare(
        *sides,
        confidence=CONFIDENCE if args.confidence is None else args.confidence,
        least=LEAST if args.least_effect is None else args.least_effect,
    )


def _sides(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Tell which of the words are before, and which after."""
    from gpusight.errors import UsageError

    if args.vs and args.file:
        return args.file, args.vs
    if len(args.file) == 2 and not args.vs:
        return args.file[:1], args.file[1:]
    if len(args.file) > 2:
        raise UsageError(
            f"nothing tells which of {len(args.file)} captures are before and which after",
            hint="put --vs between them: gpusight compare a_1 a_2 --vs b_1 b_2",
        )
    raise UsageError("two sides are needed", hint="gpusight compare BEFORE AFTER")


def _keep_captures(paths: Sequence[Path], args: argparse.Namespace) -> None:
    """Refuse, before anything is read, to write over what is read."""
    from pathlib import Path

    from gpusight.sniff import refuse_capture

    if args.output and args.output != "-":
        for path in paths:
            refuse_capture(Path(args.output), str(path))


def _write(found: Comparison, form: str, args: argparse.Namespace) -> None:
    import sys

    from gpusight.cli.output import emit, is_colored

    if form in PICTURES and form != "html":
        from gpusight.cli.picture_output import emit_picture
        from gpusight.render.charts.draw_chart import draw
        from gpusight.render.charts.ledger_charts import waterfall

        emit_picture(draw(waterfall(found), form), form, args)
    elif form == "table" and not args.output and is_colored(args):
        from gpusight.render.comparison_text import print_comparison as print_text

        print_text(found, _look(args, bars=True), sys.stdout, hints=_hints(args))
    else:
        emit([_text(found, form, args)], args)


def _text(found: Comparison, form: str, args: argparse.Namespace) -> str:
    if form == "json":
        from gpusight.render.csv_json import encode_json as encode

        return encode(_document(found, args.top))
    if form == "csv":
        from gpusight.render.comparison_view import as_table
        from gpusight.render.csv_json import to_csv

        return to_csv(as_table(found), limit=args.top)
    if form == "markdown":
        from gpusight.render.comparison_text import comparison_to_markdown as to_document

        return to_document(found, limit=args.top)
    if form == "html":
        from gpusight.render.html.comparison_page import comparison_to_page as to_page

        return to_page(found, limit=args.top)
    from gpusight.render.comparison_text import comparison_to_text as to_text

    return to_text(found, _look(args), hints=_hints(args))


def _document(found: Comparison, top: int | None) -> dict[str, Any]:
    told = found.document()
    return told | {key: told[key][:top] for key in _LISTS if top and key in told}


def _look(args: argparse.Namespace, *, bars: bool = False) -> TableOptions:
    """Give how tables are to look; without --top they have the rows that changed enough."""
    from dataclasses import replace

    from gpusight.cli.output import look_of

    return replace(look_of(args, bars=bars), limit=args.top)


def _hints(args: argparse.Namespace) -> tuple[str, ...]:
    """Say what to type next."""
    import shlex
    from pathlib import Path

    from gpusight.comparison.baseline_file import is_baseline

    gate = "gpusight gate lets CI fail when it becomes slower (docs/gate.md)"
    after = args.vs[0]
    if is_baseline(Path(after)):  # a summary, which nothing more can be asked of
        return (gate,)
    return (f"gpusight diagnose {shlex.quote(after)} says what holds it back now", gate)
