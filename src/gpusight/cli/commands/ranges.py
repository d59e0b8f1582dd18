"""`gpusight ranges`: NVTX ranges and annotations: host time and GPU time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import present

if TYPE_CHECKING:
    import argparse

SUMMARY = "NVTX ranges and annotations: host time and GPU time"
DESCRIPTION = (
    "NVTX ranges and annotations grouped by name: count, time on the host, and the GPU work "
    "launched inside."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight ranges run.nsys-rep",
    "gpusight ranges run.sqlite --format json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    return present(analyze(gs.ranges, args, **options.part(args)), args)
