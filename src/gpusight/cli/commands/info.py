"""`gpusight info`: what a capture holds and how complete it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight import __version__
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import present
from gpusight.errors import UsageError
from gpusight.render.result_view import Page
from gpusight.results import Composite, Fact, Fmt

if TYPE_CHECKING:
    import argparse


SUMMARY = "what a capture holds, and whether it is complete"
DESCRIPTION = (
    "Tool, GPUs, duration and tables of a capture, and what is missing or was dropped. Shows no "
    "environment, command line, host or user name."
)
EXAMPLES: tuple[str, ...] = ("gpusight info run.nsys-rep", "gpusight info --build")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser, nargs="?")
    parser.add_argument(
        "--build",
        action="store_true",
        help="show this installation instead: version, and whether the compiled core runs or "
        "NumPy does (GPUSIGHT_CORE=numpy forces NumPy)",
    )
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if args.build and args.file is not None:
        raise UsageError("--build", why="describes gpusight, and takes no FILE")
    if args.build:
        return present(_build(), args)
    if args.file is None:
        raise UsageError("FILE is missing", hint="name a capture; --build describes gpusight")
    return present(analyze(gs.info, args), args)


def _build() -> Page:
    """Describe this installation."""
    import platform

    from gpusight.core.library import LIBRARY, core_status

    status = core_status()
    runs = "NumPy" if status.library is None else "compiled"
    facts = [
        Fact("version", "Version", __version__, Fmt.TEXT, "Version of gpusight"),
        Fact("python", "Python", platform.python_version(), Fmt.TEXT, "Version of Python"),
        Fact("core", "Core", runs, Fmt.TEXT, "What runs the loops that decide speed"),
    ]
    if status.library is None:
        facts.append(Fact("reason", "Because", status.reason, Fmt.TEXT, "Why it is not compiled"))
    else:
        compiler = Fact("compiler", "Compiler", status.compiler, Fmt.TEXT, "What compiled it")
        facts += [compiler, Fact("library", "Library", str(LIBRARY), Fmt.TEXT, "Its file")]
    return Page(Composite("info", "This installation of gpusight", tuple(facts), ()))
