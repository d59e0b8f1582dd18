"""`gpusight drill`: from a timeline to the counters of the kernels worth looking at."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import open_capture, progress
from gpusight.cli.output import chosen_format, keep_inputs, present, write_to
from gpusight.errors import DOCS_URL, UsageError
from gpusight.render.cell_text import safe_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gpusight.analysis.drill.drill_result import DrillResult

SUMMARY = "profile the kernels that matter with ncu, and explain them"
DESCRIPTION = (
    "Selects the kernels that take most time after warm-up and prints the Nsight Compute command "
    "that profiles a few launches of each. Skips kernels at the roofline, communication and small "
    "kernels. --run runs the command, joins the report with the timeline, and shows what limits "
    "each kernel and what a fix saves per step. A report recorded elsewhere follows the capture. "
    f"How launches are counted: {DOCS_URL}/drill.md"
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
        help="the timeline (nsys, torch.profiler, CUPTI, JAX) or key_averages text, then ncu "
        "reports of the same program",
    )
    options.add_selection(parser)
    options.add_focus(parser)
    group = parser.add_argument_group("kernels")
    group.add_argument(
        "--top",
        type=options.number,
        default=TOP,
        metavar="N",
        help=f"number of kernels; 0 for all that matter (default: {TOP})",
    )
    options.add_kernel(group, "these kernels, even if they seem not worth it")
    _add_measuring(parser)
    # --top means kernels here, not rows.
    group = parser.add_argument_group("output")
    group.add_argument(
        "--format",
        choices=options.TABLE_FORMATS,
        help="output format (default: by the extension of -o, else table)",
    )
    options.add_widths(group)
    group.add_argument("-o", "--output", metavar="FILE", help="write to this file; replaces it")


def _cut_program_off(parser: argparse.ArgumentParser) -> None:
    """Keep what follows `--` from the parser, which would take it for further files."""
    parse = parser.parse_known_args

    def parse_before(
        args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = list(args or ())
        at = words.index("--") if "--" in words else len(words)
        parsed, unknown = parse(words[:at], namespace)
        parsed.program = words[at + 1 :]
        return parsed, unknown

    parser.parse_known_args = parse_before  # type: ignore[method-assign, assignment]


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("profiling")
    group.add_argument(
        "--level",
        choices=LEVELS,
        default=LEVELS[0],
        help="how much ncu collects per launch (default: quick)",
    )
    group.add_argument(
        "--run",
        dest="run_it",  # `run` is what the parser calls
        action="store_true",
        help="profile the program after `--` now, stop it when done, and show the result; without "
        "this, only print the command",
    )
    group.add_argument(
        "--report",
        metavar="REPORT",
        help="name of the report (default: the script's name)",
    )
    group.add_argument("--overwrite", action="store_true", help="overwrite an existing report")
    group.add_argument(
        "--rank",
        default="all",
        metavar="N[,N]|all",
        help="profile only these ranks of a distributed run (default: all)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    args.file = args.files[0]
    chosen_format(args)  # before a program runs for a file that could not be written
    keep_inputs(args, args.files)
    if args.run_it and not args.program:
        raise UsageError("--run needs a program", hint="… --run -- python train.py")
    # A running program has the terminal to itself.
    with progress(f"reading {Path(args.file).name}", quiet=args.quiet or args.run_it):
        trace, *reports = (open_capture(file, args) for file in args.files)
        result = gs.drill(
            trace,
            reports=reports,
            top=args.top,
            kernel=args.kernel,
            level=args.level,
            program=args.program or None,
            run=args.run_it,
            report=args.report,
            overwrite=args.overwrite,
            rank=args.rank,
            cache=not args.no_cache,
            announce=None if args.quiet else _announce,
            **options.part(args),
        )
    args.top = None  # it means kernels here, not rows
    present(result, args, look={"rows_advice": "--format json has all"})
    return result.answer.exit_code


def _announce(drill: DrillResult) -> None:
    """Show what is run before it runs."""
    for command in drill.commands:
        # Not wrapped: it is a command to copy.
        write_to(sys.stderr, f"gpusight drill: $ {safe_text(shlex.join(command.argv))}\n")
    sys.stderr.flush()
