"""`gpusight api`: CUDA API calls by total time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import present

if TYPE_CHECKING:
    import argparse

SUMMARY = "CUDA API calls by total time"
DESCRIPTION = (
    "Calls of the CUDA runtime, driver and libraries, grouped by name: count, total, mean and "
    "maximum time."
)
EXAMPLES: tuple[str, ...] = ("gpusight api run.nsys-rep",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    return present(analyze(gs.api_calls, args, **options.part(args)), args)
