"""`gpusight launches`: GPU work in order of time, with what launched it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "kernels and copies in order, with what launched them"
DESCRIPTION = (
    "Every kernel, copy and fill in order of time: how long after its launch it began, and the API "
    "call, operator, range, module and line of Python that it came from, as far as the capture "
    "tells."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight launches trace.json.gz --kernel '*softmax*'",
    "gpusight launches run.nsys-rep --in forward --wide --top 0",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    group = parser.add_argument_group("which work")
    options.add_kernel(group, "only work of this name")
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight import api
    from gpusight.cli.capture_input import ask
    from gpusight.cli.output import present

    return present(ask(api.launches, args, kernel=args.kernel, **options.selection(args)), args)
