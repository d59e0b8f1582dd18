"""`gpusight orion`: kernel-info files of the Orion scheduler, made, checked and drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options
from gpusight.render.pictures import FORMATS

if TYPE_CHECKING:
    import argparse

SUMMARY = "make and check the kernel-info file of the Orion scheduler"
DESCRIPTION = (
    "The file by which the Orion GPU scheduler knows the kernels of a job: `build` makes it, "
    "`check` reads it as the scheduler does, `plot` draws utilisation over time. "
    "`gpusight orion build --help` shows the options of one."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight orion build --ncu report.ncu-rep --model-type vision -o resnet",
    "gpusight orion build --ncu a.csv --ncu-raw raw.csv --model-type bert -o bert",
    "gpusight orion check resnet --num-kernels 68",
    "gpusight orion plot --ncu report.ncu-rep --nsys run.nsys-rep -o busy.html",
)
_BUILD = (
    "Make the file from an Nsight Compute report or its CSV exports: the SMs that each launch "
    "needs, whether it is bound by arithmetic or by memory, its duration. The kernels of a "
    "convolution become one row. Says what was merged and left out."
)
_CHECK = (
    "Read a file as the scheduler does: split at commas, whole numbers and a duration after the "
    "name. Names every row that it cannot read, with its line; exit code 1 if there are any."
)
_PLOT = (
    "Lay a report over an Nsight Systems timeline of the same program: SM, compute and memory "
    "utilisation over time and their averages, idle time counted as idle. With -o and a name that "
    "ends in .svg, .html, .png or .pdf it draws them; --format json or csv gives the series."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = (
        options.Action("build", "make a kernel-info file", _BUILD, _declare_build),
        options.Action("check", "check a kernel-info file", _CHECK, _declare_check),
        options.Action("plot", "draw utilisation over time", _PLOT, _declare_plot),
    )
    options.add_actions(parser, EXAMPLES, actions)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight.cli import orion

    actions = {"build": orion.build_file, "check": orion.check_file, "plot": orion.plot}
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
        help="rows that the job's num_kernels asks for",
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
    options.add_output(parser, formats=(*options.FORMATS, *FORMATS))


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
        help="arithmetic intensity above which a launch is bound by compute (default: where the "
        "roofs of its GPU meet; 9.72 with --compat)",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the GPU")
    group.add_argument(
        "--gpu", metavar="NAME", help="take this GPU's limits, not the report's: A100, sm_80"
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
        choices=options.FORMATS,
        default="table",
        help="how to write it (default: table)",
    )
    group.add_argument(
        "--top",
        type=options.number,
        metavar="N",
        help=f"rows of each table; 0 for all (default: {options.DEFAULT_TOP} in tables, else all)",
    )
    group.add_argument(
        "--wide", action="store_true", help="show whole names and every field, however wide"
    )
