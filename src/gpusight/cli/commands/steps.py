"""`gpusight steps`: each step: time, GPU busy, phases, outliers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import present

if TYPE_CHECKING:
    import argparse

SUMMARY = "each step: time, GPU busy, phases, outliers"
DESCRIPTION = (
    "Every step of the program (training or inference iteration): duration, GPU busy time, how far "
    "the GPU runs behind the host, outliers; and GPU work by phase: forward, backward, optimizer, "
    "data, communication. Steps are found by numbered ranges (`step_3`, `ProfilerStep#5`), "
    "repeated ranges, or repeated GPU work. Warm-up steps are listed but excluded from the "
    "totals; `--warmup` includes them."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight steps run.nsys-rep",
    "gpusight steps trace.json.gz --steps 3-7",
    "gpusight steps run.sqlite --in forward --format json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    return present(analyze(gs.steps, args, **options.part(args)), args)
