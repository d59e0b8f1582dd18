"""`gpusight ranges`: ranges of the program: host time and the GPU work inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "NVTX ranges and annotations: host time and GPU time"
DESCRIPTION = (
    "Every NVTX range or annotation, grouped by name: how often, how long on the host, and the "
    "GPU work that it launched."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight ranges run.nsys-rep",
    "gpusight ranges run.sqlite --format json",
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

    return present(ask(api.ranges, args, **options.selection(args)), args)
