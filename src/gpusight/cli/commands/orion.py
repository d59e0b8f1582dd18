"""`gpusight orion`: makes, checks and plots the kernel-info file of the Orion scheduler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import keep_warnings, open_capture, progress
from gpusight.cli.options import TABLE_FORMATS
from gpusight.cli.output import chosen_format, is_read, present, write_error, write_out
from gpusight.errors import CaptureMismatchError
from gpusight.render.cell_text import safe_text
from gpusight.render.result_view import CHART_FORMATS, Page, View

if TYPE_CHECKING:
    import argparse

    from gpusight.trace.trace import Trace


SUMMARY = "kernel-info files of the Orion scheduler"
DESCRIPTION = (
    "Kernel-info files of the Orion GPU scheduler: `build` makes one, `check` reads it as the "
    "scheduler does, `plot` draws utilization over time. "
    "`gpusight orion build --help` lists the options of `build`."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight orion build --ncu report.ncu-rep --model-type vision -o resnet",
    "gpusight orion build --ncu a.csv --ncu-raw raw.csv --model-type bert -o bert",
    "gpusight orion check resnet --num-kernels 68",
    "gpusight orion plot --ncu report.ncu-rep --nsys run.nsys-rep -o busy.html",
)
_BUILD = (
    "Make the file from an Nsight Compute report or its CSV exports: the SMs that each launch "
    "needs, whether it is compute-bound or memory-bound, its duration. The kernels of a "
    "convolution become one row. Reports what is merged and excluded."
)
_CHECK = (
    "Read a file as the scheduler does: split at commas, whole numbers and a duration after the "
    "name. Names every row that it cannot read, with its line; exit code 1 if there are any."
)
_PLOT = (
    "Lay a report over an Nsight Systems timeline of the same program: SM, compute and memory "
    "utilization over time and their averages, idle time counted as idle. With -o and a name that "
    "ends in .svg, .html, .png or .pdf it draws them; --format json or csv has the series."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = (
        options.Action("build", "make a kernel-info file", _BUILD, _declare_build),
        options.Action("check", "check a kernel-info file", _CHECK, _declare_check),
        options.Action("plot", "draw utilization over time", _PLOT, _declare_plot),
    )
    options.add_actions(parser, EXAMPLES, actions)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    actions = {"build": build_file, "check": check_file, "plot": plot}
    return actions[args.action](args)


def _declare_build(parser: argparse.ArgumentParser) -> None:
    _add_captures(parser, timeline_needed=False)
    _add_file(parser)
    _add_classes(parser)
    _add_limits(parser)
    _add_answer(parser)


def _declare_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the kernel-info file")
    parser.add_argument(
        "--num-kernels",
        type=options.number,
        metavar="N",
        help="rows that the job's num_kernels requires",
    )
    options.add_output(parser)


def _declare_plot(parser: argparse.ArgumentParser) -> None:
    _add_captures(parser, timeline_needed=True)
    _add_limits(parser)
    parser.add_argument(
        "--metric",
        choices=("sm", "compute", "memory"),
        help="draw only this one (default: all three)",
    )
    options.add_output(parser, formats=(*options.TABLE_FORMATS, *CHART_FORMATS))


def _add_captures(parser: argparse.ArgumentParser, *, timeline_needed: bool) -> None:
    group = parser.add_argument_group("what to read")
    group.add_argument(
        "--ncu", metavar="FILE", required=True, help="the report: .ncu-rep, or a CSV of ncu"
    )
    group.add_argument(
        "--ncu-raw",
        metavar="FILE",
        help="a second export of the same report (the raw page), which has more digits and "
        "counters; launches are joined by their numbers",
    )
    group.add_argument(
        "--nsys",
        metavar="FILE",
        required=timeline_needed,
        help="a timeline of the same program; its kernels are matched by name, shape and order",
    )
    group.add_argument(
        "--in", dest="within", metavar="RANGE", help="of the timeline, only what ran in this range"
    )
    group.add_argument(
        "--device", type=options.number, metavar="N", help="of the timeline, only this GPU"
    )


def _add_file(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the file")
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="where to write it, replacing what is there; - for standard output",
    )
    group.add_argument(
        "--model-type",
        choices=("vision", "bert", "transformer"),
        required=True,
        help="which kernels are merged: for transformer also split-K reduces",
    )
    group.add_argument(
        "--columns", type=int, choices=(5, 7), default=5, help="7 adds block and grid (default: 5)"
    )
    group.add_argument(
        "--durations",
        choices=("ncu", "nsys"),
        default="ncu",
        help="whose durations to write (default: ncu)",
    )
    group.add_argument(
        "--helpers",
        choices=("next", "own"),
        default="next",
        help="count kernels that finish a convolution to the `next` one, as the scheduler's own "
        "files do, or to their `own` (default: next)",
    )
    group.add_argument(
        "--intermediate",
        metavar="DIR",
        help="also write output_ncu_processed.csv, output_ncu_sms.csv and "
        "output_ncu_sms_roofline.csv there",
    )


def _add_classes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("SMs and classes")
    group.add_argument(
        "--compat",
        action="store_true",
        help="use the formulas of the original scripts: a V100, FP32 only",
    )
    group.add_argument(
        "--threshold",
        type=options.positive,
        metavar="FLOP/BYTE",
        help="arithmetic intensity above which a launch is bound by compute (default: the "
        "ridge point of its GPU; 9.72 with --compat)",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the GPU")
    group.add_argument(
        "--gpu", metavar="NAME", help="use this GPU's limits, not the report's: A100, sm_80"
    )
    for name, what, unit in (
        ("threads", "threads", "N"),
        ("blocks", "blocks", "N"),
        ("shmem", "bytes of shared memory", "BYTES"),
        ("regs", "registers", "N"),
    ):
        group.add_argument(
            f"--max-{name}-sm", type=options.count, metavar=unit, help=f"{what} that an SM holds"
        )


def _add_answer(parser: argparse.ArgumentParser) -> None:
    """Declare how the summary is shown: where the file goes is another matter."""
    group = parser.add_argument_group("summary")
    group.add_argument(
        "--format",
        choices=options.TABLE_FORMATS,
        default="table",
        help="how to write it (default: table)",
    )
    group.add_argument(
        "--top",
        type=options.number,
        metavar="N",
        help=f"rows of each table; 0 for all (default: {options.DEFAULT_TOP} in tables, else all)",
    )
    options.add_widths(group)


EXIT_BROKEN = 1
EXIT_REFUSED = 2
_FOR_PROGRAMS = frozenset({"rows", "launches", "series"})
"""Sections with a line for every row: JSON and CSV have them, tables do not."""


def build_file(args: argparse.Namespace) -> int:
    """Make a kernel-info file, and say what is in it."""
    _protect(args)
    output, args.output = args.output, None
    with progress(f"reading {Path(args.ncu).name}", quiet=args.quiet):
        ncu, raw, nsys = _open(args)
        try:
            result = gs.orion_build(
                ncu,
                raw=raw,
                nsys=nsys,
                out=None if output == "-" else output,
                intermediate=args.intermediate,
                model_type=args.model_type,
                columns=args.columns,
                compat=args.compat,
                threshold=args.threshold,
                durations=args.durations,
                helpers=args.helpers,
                **_limits(args),
            )
        except CaptureMismatchError as error:
            return _refuse(error, args)
        keep_warnings(args, *(trace for trace in (ncu, raw, nsys) if trace is not None))
    if output == "-":
        write_out(result.file_text)
        return 0
    code = present(_short(result) if is_read(args) else result, args)
    if chosen_format(args) == "table":
        name, rows = safe_text(output), result.file_text.count("\n") - 1
        write_out(
            f'\nWritten to {name}; in the job\'s configuration: "num_kernels": {rows}\n'
            f"Next: gpusight orion check {name} --num-kernels {rows}\n"
        )
    return code


def check_file(args: argparse.Namespace) -> int:
    """Check a kernel-info file; exit code 1 where the scheduler could not use it."""
    from gpusight.analysis.orion.orion_rows import problems

    result = gs.orion_check(args.file, args.num_kernels)
    if args.top is None:
        args.top = 0  # every broken row is named
    present(result, args)
    return EXIT_BROKEN if problems(result.answer) else 0


def plot(args: argparse.Namespace) -> int:
    """Draw utilization over time, or give its series."""
    _protect(args)
    drawn = chosen_format(args) in CHART_FORMATS
    with progress(f"reading {Path(args.nsys).name}", quiet=args.quiet):
        ncu, raw, nsys = _open(args)
        assert nsys is not None, "the parser requires it"
        try:
            result = gs.orion_plot(ncu, nsys, raw=raw, **_limits(args))
        except CaptureMismatchError as error:
            return _refuse(error, args)
        keep_warnings(args, *(trace for trace in (ncu, raw, nsys) if trace is not None))
    if not drawn:
        return present(_short(result) if is_read(args) else result, args)
    chosen: dict[str, Any] = {"only": f"{args.metric}_share"} if args.metric else {}
    present(result, args, **chosen)
    if args.output not in {None, "-"}:
        # The picture is in its file; the screen has its averages.
        args.output, args.format = None, "table"
        present(_short(result), args)
    return 0


def _open(args: argparse.Namespace) -> tuple[Trace, Trace | None, Trace | None]:
    """Open the report, its second export and the timeline, where they are given."""
    ncu = open_capture(args.ncu, args)
    raw, nsys = (open_capture(p, args) if p else None for p in (args.ncu_raw, args.nsys))
    return ncu, raw, nsys


def _protect(args: argparse.Namespace) -> None:
    """Refuse to write over what is read, before anything is done."""
    from gpusight.render.table_export import refuse_captures

    if args.output and args.output != "-":
        captures = [path for path in (args.ncu, args.ncu_raw, args.nsys) if path]
        refuse_captures(Path(args.output), captures)


def _limits(args: argparse.Namespace) -> dict[str, Any]:
    """Give the options of the GPU and of the part of the timeline."""
    names = ("gpu", "max_threads_sm", "max_blocks_sm", "max_shmem_sm", "max_regs_sm")
    return {name: getattr(args, name) for name in (*names, "within", "device")}


def _refuse(error: CaptureMismatchError, args: argparse.Namespace) -> int:
    """Show how captures differ that ought to be of one run."""
    args.output = None
    if args.format not in TABLE_FORMATS:
        args.format = "table"
    present(View(error.table), args)
    write_error(f"gpusight orion: {safe_text(error.what)}; nothing was written")
    return EXIT_REFUSED


def _short(result: Page) -> Page:
    """Leave out of tables what has a line for every launch."""
    kept = (s for s in result.answer.sections if s.command not in _FOR_PROGRAMS)
    return Page(replace(result.answer, sections=tuple(kept)))
