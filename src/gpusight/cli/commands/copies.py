"""`gpusight copies`: memory copies and fills: bytes, time, bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "memcpys and memsets: bytes, time, bandwidth"
DESCRIPTION = (
    "Memory copies and fills by direction and kind of memory: how many, how many bytes, how "
    "long, how fast."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight copies run.nsys-rep",
    "gpusight copies run.sqlite --device 0",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight import api
    from gpusight.cli.capture_input import ask
    from gpusight.cli.output import present

    return present(ask(api.copies, args, **options.selection(args)), args)
