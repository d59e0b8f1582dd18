"""`gpusight steps`: steps one by one: how long, how busy the GPU, how alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "each step: time, GPU busy, phases, outliers"
DESCRIPTION = (
    "Every step of the program (training, inference, an iteration): how long it took, how busy "
    "the GPU was, how far it ran behind, what is out of the ordinary; and how the GPU work divides "
    "into forward, backward, optimizer, data and communication. Steps are found by ranges that "
    "count (`step_3`, `ProfilerStep#5`), by ranges that repeat, or by GPU work that repeats "
    "itself. Warm-up is listed but does not count, unless `--warmup` or `--steps` says so."
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
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight import api
    from gpusight.cli.capture_input import ask
    from gpusight.cli.output import present

    return present(ask(api.steps, args, **options.selection(args), **options.focus(args)), args)
