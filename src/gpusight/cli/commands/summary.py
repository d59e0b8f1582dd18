"""`gpusight summary`: one screen: where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import present

if TYPE_CHECKING:
    import argparse

SUMMARY = "one screen: where the time goes"
DESCRIPTION = (
    "One screen: GPU busy share, and the top kernels, ranges, API calls and copies. Covers the "
    "steps without warm-up, like every command; `--window all` is the whole capture."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight summary run.nsys-rep",
    "gpusight summary run.sqlite --in 'step_*'",
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
    return present(analyze(gs.summary, args, **options.part(args)), args)
