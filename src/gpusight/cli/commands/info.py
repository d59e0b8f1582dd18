"""`gpusight info`: what a capture holds and how complete it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "what a capture holds, and whether it is complete"
DESCRIPTION = (
    "Tool, GPUs, duration and tables of a capture, and what is missing or was dropped. Shows no "
    "environment, command line, host or user name."
)
EXAMPLES: tuple[str, ...] = ("gpusight info run.nsys-rep",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight import api
    from gpusight.cli.capture_input import analyze
    from gpusight.cli.output import present

    return present(analyze(api.info, args), args)
