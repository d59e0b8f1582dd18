"""`gpusight compare`: what changed between two captures, by how much, and why."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import open_capture, read_digests, side_paces, typed_part
from gpusight.cli.output import chosen_format, keep_inputs, present
from gpusight.errors import DOCS_URL, UnknownProcessError, UsageError
from gpusight.render.result_view import CHART_FORMATS

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


SUMMARY = "two captures: what changed, by how much, and why"
DESCRIPTION = (
    "Compares captures of a program before and after a change, from nsys or torch.profiler: step "
    "time with its confidence interval, and the largest changes of the ledger, kernels and "
    "findings. --details adds the explanation and every table: metrics, ledger, phases, kernels, "
    "ranges, API calls, copies and findings. Kernels are matched by name, or by position where "
    "names changed. Several captures per side are repeats and show the run-to-run variation; "
    "captures of one folder that are named by rank (`rank0`, `rank1`, …) are one job: waits for "
    "other ranks and stragglers are compared, too. "
    "-o FILE.html writes a page; .svg, .png and .pdf a waterfall chart. "
    f"Method: {DOCS_URL}/compare.md"
)
EXAMPLES: tuple[str, ...] = (
    "gpusight compare before.nsys-rep after.nsys-rep",
    "gpusight compare base_r*.sqlite --vs new_r*.sqlite",
    "gpusight compare 'base/*.json.gz' 'new/*.json.gz' -o compare.html",
    "gpusight compare baseline.json run.nsys-rep --format markdown",
)
_FORMATS = (*options.TABLE_FORMATS, *CHART_FORMATS)


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
    group = parser.add_argument_group("significance")
    group.add_argument(
        "--least-effect",
        type=options.percent,
        metavar="P%",
        help="ignore smaller changes (default: 2%%)",
    )
    group.add_argument(
        "--confidence",
        type=options.percent,
        metavar="P%",
        help="confidence of the intervals (default: 95%%)",
    )
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser, sides="BEFORE,AFTER")
    options.add_output(parser, formats=_FORMATS)
    parser.add_argument(
        "--details",
        action="store_true",
        help="add the explanation, notes and every table (also with --top, --wide, --full-names; "
        "always in other formats)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from gpusight.comparison.inputs import side_inputs
    from gpusight.comparison.significance import CONFIDENCE, MIN_EFFECT

    form = chosen_format(args)
    before, after = map(side_inputs, _sides(args))
    before_pace, after_pace = side_paces(args, before, after)
    keep_inputs(args, [*before.paths, *after.paths])
    shown = {}
    if form == "table":
        details = args.details or args.top is not None or args.wide or args.full_names
        hint = _next_command(args, after.paths[0], after_pace, details=details)
        shown = {"details": details, "hints": (hint,) if hint else ()}
    args.file, args.vs = str(before.paths[0]), [str(path) for path in after.paths]
    try:
        digests = read_digests(before, args, before_pace), read_digests(after, args, after_pace)
    except UnknownProcessError as error:
        raise _of_other_captures(error, [*before.paths, *after.paths], args) from error
    result = gs.compare(
        *digests,
        confidence=CONFIDENCE if args.confidence is None else args.confidence,
        least=MIN_EFFECT if args.least_effect is None else args.least_effect,
    )
    # Without --top, tables have the rows that changed enough.
    return present(result, args, look={"limit": args.top}, **shown)


def _of_other_captures(
    error: UnknownProcessError, paths: list[Path], args: argparse.Namespace
) -> UnknownProcessError:
    """Say which captures do have the process that one lacks."""
    from gpusight.analysis.selection import ResolvedSelection, Selection
    from gpusight.comparison.baseline_file import is_baseline

    def has_process(path: Path) -> bool:
        try:
            ResolvedSelection(open_capture(str(path), args), Selection(process=args.process))
        except UnknownProcessError:
            return False
        return True

    having = [path.name for path in paths if not is_baseline(path) and has_process(path)]
    if not having:
        return error
    why = f"only {', '.join(having)} has it; a program gets another PID in each run"
    hint = f"{error.hint}; --process takes a name of both too"
    return UnknownProcessError(error.what, why=why, hint=hint)


def _sides(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Split the arguments into before and after."""
    if args.vs and args.file:
        return args.file, args.vs
    if len(args.file) == 2 and not args.vs:
        return args.file[:1], args.file[1:]
    if len(args.file) > 2:
        raise UsageError(
            f"{len(args.file)} captures, but no --vs to separate before and after",
            hint="put --vs between them: gpusight compare a_1 a_2 --vs b_1 b_2",
        )
    raise UsageError("two sides are needed", hint="gpusight compare BEFORE AFTER")


def _next_command(args: argparse.Namespace, after: Path, pace: str | None, *, details: bool) -> str:
    """Give the next command, ready to paste; before the arguments are replaced by paths."""
    from gpusight.comparison.baseline_file import is_baseline
    from gpusight.comparison.inputs import side_inputs
    from gpusight.open_job import jobs_among

    if not details:
        sides = [*args.file, *(["--vs", *args.vs] if args.vs else [])]
        return f"gpusight compare {shlex.join([*sides, *typed_part(args)])} --details"
    new = args.vs or args.file[1:]
    if any(len(captures) > 1 for captures in jobs_among(side_inputs(new).paths)):
        return f"gpusight ranks {shlex.join(new)}"
    if is_baseline(after):  # a summary, which cannot be diagnosed
        return ""
    return f"gpusight diagnose {shlex.join([str(after), *typed_part(args, pace)])}"
