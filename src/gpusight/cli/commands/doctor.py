"""`gpusight doctor`: what this machine can record with."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import progress
from gpusight.cli.output import present, write_error
from gpusight.render.cell_text import safe_text

if TYPE_CHECKING:
    from gpusight.recording.doctor.machine import Checkup

SUMMARY = "what this machine can record with, and how to fix what is missing"
DESCRIPTION = (
    "Check GPUs and driver, every nsys and ncu, CUPTI and PyTorch in the Python of your program, "
    "permissions, container and WSL limits, and disk space. List for each profiler whether it can "
    "record here, and how to fix what is missing. Nothing is changed. The output has no host name, "
    "user name or environment values."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight doctor",
    "gpusight doctor --python /opt/venv/bin/python",
    "gpusight doctor --require nsys,ncu --format json",
)
TOOLS = ("nsys", "ncu", "torch", "cupti")
EXIT_NOT_ABLE = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the Python that runs your program (default: the one that `python` starts)",
    )
    parser.add_argument(
        "--require",
        type=_tools,
        default=[],
        metavar="TOOL[,TOOL]",
        help=f"exit with code 1 unless these can record here without limits: {', '.join(TOOLS)}",
    )
    options.add_output(parser)


def _tools(text: str) -> list[str]:
    tools = options.names(text)
    unknown = [name for name in tools if name not in TOOLS]
    if unknown or not tools:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of tools; tools are {', '.join(TOOLS)}"
        )
    return tools


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from gpusight.recording.capture_names import absolute

    absolute(Path())  # a deleted one cannot be checked
    with progress("checking this machine", quiet=args.quiet):
        result = gs.doctor(python=args.python)
    args.top = args.top or 0
    present(result, args)
    return _gate(result.answer, args)


def _gate(checkup: Checkup, args: argparse.Namespace) -> int:
    """Print which required tools cannot record without limits; returns the exit code."""
    from gpusight.recording.doctor.machine import Ability
    from gpusight.recording.request import Tool

    verdicts = [checkup.verdict(Tool(name)) for name in args.require]
    unfit = [verdict for verdict in verdicts if verdict.can is not Ability.YES]
    for verdict in unfit:
        verdict_text = f"{verdict.tool.value} can record here: {verdict.can.value}"
        write_error(f"gpusight doctor: {verdict_text}; {safe_text('; '.join(verdict.why))}")
    return EXIT_NOT_ABLE if unfit else 0
