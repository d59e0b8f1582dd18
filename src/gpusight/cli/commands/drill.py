"""`gpusight drill`: from a timeline to the counters of the kernels worth looking at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gpusight.analysis.drill.drill_result import DrillOptions, DrillResult
    from gpusight.render.table_layout import TableOptions
    from gpusight.results import NotApplicable
    from gpusight.rules.drill_workflow import MeasuredDrill

SUMMARY = "which kernels to measure, how ncu hits them, and what it shows in terms of a step"
DESCRIPTION = (
    "Picks the kernels that take most time after warm-up, leaves out those that are at their roof "
    "already, communicate or are too small to matter, works out the filters with which Nsight "
    "Compute measures a few launches of them and no others, and prints the command. --run runs "
    "it, joins the report with the timeline, and shows what holds each kernel up and what that "
    "costs a step. A report that was made elsewhere can be given behind the capture. "
    "docs/drill.md explains how launches are counted."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight drill run.nsys-rep",
    "gpusight drill run.nsys-rep --run -- python train.py",
    "gpusight drill trace.json.gz --top 5 --level full -- python train.py",
    "gpusight drill run.nsys-rep --kernel 'gemm|conv' --run -- ./solver input.cfg",
    "gpusight drill run.nsys-rep --in attention --format json",
    "gpusight drill key_averages.txt",
    "gpusight drill run.nsys-rep report.ncu-rep",
)
LEVELS = ("quick", "detail", "full")
TOP = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    _cut_program_off(parser)
    parser.usage = "gpusight drill [options] FILE [REPORT ...] [--run] [-- PROGRAM ...]"
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="the timeline (nsys, torch.profiler, CUPTI, JAX) or key_averages text; behind it, "
        "reports of ncu that were made of the same program",
    )
    _add_choice(parser)
    _add_measuring(parser)
    _add_output(parser)


def _cut_program_off(parser: argparse.ArgumentParser) -> None:
    """Keep what follows `--` from the parser, which would take it for further files."""
    parse = parser.parse_known_args

    def parse_before(
        args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = list(args or ())
        at = words.index("--") if "--" in words else len(words)
        found, unknown = parse(words[:at], namespace)
        found.program = words[at + 1 :]
        return found, unknown

    parser.parse_known_args = parse_before  # type: ignore[method-assign, assignment]


def _add_choice(parser: argparse.ArgumentParser) -> None:
    options.add_selection(parser)
    group = parser.add_argument_group("which kernels")
    group.add_argument(
        "--top",
        type=options.number,
        default=TOP,
        metavar="N",
        help=f"so many; 0 for all that matter (default: {TOP})",
    )
    options.add_kernel(group, "these, even if they seem not worth it")


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measuring")
    group.add_argument(
        "--level",
        choices=LEVELS,
        default=LEVELS[0],
        help="how much ncu measures of each launch (default: quick)",
    )
    group.add_argument(
        "--run",
        dest="run_it",  # `run` is what the parser calls
        action="store_true",
        help="measure the program that follows `--` now, end it when that is done, and show the "
        "result; without this, the command for it is printed",
    )
    group.add_argument(
        "--report",
        metavar="REPORT",
        help="name of the report that is written (default: the script's name)",
    )
    group.add_argument("--overwrite", action="store_true", help="replace a report that exists")
    group.add_argument(
        "--rank",
        default="all",
        metavar="N[,N]|all",
        help="measure only these ranks of a distributed run (default: all)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    # --top means kernels here, not rows.
    group = parser.add_argument_group("output")
    group.add_argument(
        "--format",
        choices=options.TABLE_FORMATS,
        help="how to write the answer (default: table, or what the name given to -o ends in)",
    )
    group.add_argument(
        "--wide", action="store_true", help="show whole names and every field, however wide"
    )
    group.add_argument("-o", "--output", metavar="FILE", help="write to this file; replaces it")


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight.cli.output import present
    from gpusight.results import NotApplicable

    args.file = args.files[0]
    _check_output(args)
    found = _answered(_question(args), args)
    args.top = None
    if isinstance(found, NotApplicable):
        return present(found, args)
    _show(found, args)
    return found.exit_code


def _check_output(args: argparse.Namespace) -> None:
    """Refuse a file that could not be written, before a program runs for it."""
    from pathlib import Path

    from gpusight.cli.output import chosen_format
    from gpusight.sniff import refuse_capture

    chosen_format(args)
    if args.output and args.output != "-":
        for file in args.files:
            refuse_capture(Path(args.output), file)


def _question(args: argparse.Namespace) -> DrillOptions:
    from gpusight.analysis.drill.drill_result import DrillOptions as Question

    return Question.of(
        selection=options.selection(args),
        top=args.top,
        kernel=args.kernel,
        level=args.level,
        program=_program(args),
        output=args.report,
        rank=args.rank,
        overwrite=args.overwrite,
    )


def _program(args: argparse.Namespace) -> list[str] | None:
    from gpusight.errors import UsageError

    if args.run_it and not args.program:
        raise UsageError("--run names no program", hint="… --run -- python train.py")
    words: list[str] = args.program
    return words or None


def _answered(question: DrillOptions, args: argparse.Namespace) -> MeasuredDrill | NotApplicable:
    from pathlib import Path

    from gpusight.cli.capture_input import open_capture, progress
    from gpusight.rules.drill_workflow import drill

    # A running program has the terminal to itself.
    with progress(f"reading {Path(args.file).name}", quiet=args.quiet or args.run_it):
        trace, *reports = (open_capture(file, args) for file in args.files)
        return drill(
            trace,
            question,
            open_report=lambda path: open_capture(str(path), args),
            reports=reports,
            run=args.run_it,
            announce=None if args.quiet else _announce,
        )


def _announce(drill: DrillResult) -> None:
    """Show what is run before it runs."""
    import shlex
    import sys

    from gpusight.cli.output import write_error
    from gpusight.render.cell_text import safe_text

    for command in drill.commands:
        write_error(f"gpusight: $ {safe_text(shlex.join(command.argv))}")
    sys.stderr.flush()


def _show(found: MeasuredDrill, args: argparse.Namespace) -> None:
    import sys

    from gpusight.analysis.drill.drill_result import drill_page as page
    from gpusight.cli.output import chosen_format, emit, is_colored, write_out
    from gpusight.render import drill_view as render
    from gpusight.render.terminal_tables import print_colored

    form = chosen_format(args)
    if form == "table" and not args.output and is_colored(args):
        look = _look(args, bars=True)
        print_colored(page(found.drill), look, sys.stdout)
        write_out(render.after_page(found, look))
    else:
        emit([_text(found, form, args)], args)


def _text(found: MeasuredDrill, form: str, args: argparse.Namespace) -> str:
    from gpusight.render import drill_view as render

    if form == "json":
        from gpusight.render.csv_json import encode_json as encode

        return encode(render.document(found))
    if form == "csv":
        from gpusight.analysis.drill.drill_result import kernel_table
        from gpusight.render.csv_json import to_csv

        return to_csv(kernel_table(found.drill))
    if form == "markdown":
        return render.as_markdown(found, limit=options.DEFAULT_TOP)
    return render.as_text(found, _look(args))


def _look(args: argparse.Namespace, *, bars: bool = False) -> TableOptions:
    from dataclasses import replace

    from gpusight.cli.output import look_of

    return replace(look_of(args, bars=bars), rows_advice="--format json has all")
