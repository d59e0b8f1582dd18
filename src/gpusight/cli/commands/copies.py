"""`gpusight copies`: memcpys and memsets: bytes, time, bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import present

if TYPE_CHECKING:
    import argparse

SUMMARY = "memcpys and memsets: bytes, time, bandwidth"
DESCRIPTION = (
    "Memcpys and memsets by direction (H2D, D2H, D2D, P2P) and kind of memory: count, bytes, time, "
    "bandwidth."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight copies run.nsys-rep",
    "gpusight copies run.sqlite --device 0",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    return present(analyze(gs.copies, args, **options.part(args)), args)
