"""`gpusight launches`: kernels and copies in order of time, with what launched them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import present

if TYPE_CHECKING:
    import argparse

SUMMARY = "kernels and copies in order, with what launched them"
DESCRIPTION = (
    "Every kernel, memcpy and memset in order of time: delay from its launch, and the API call, "
    "operator, range, module and Python line that launched it, where the capture has them."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight launches trace.json.gz --kernel '*softmax*'",
    "gpusight launches run.nsys-rep --in forward --wide --top 0",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    options.add_focus(parser)
    group = parser.add_argument_group("filter")
    options.add_kernel(group, "only activities of this name")
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    return present(
        analyze(gs.launches, args, kernel=args.kernel, **options.part(args)),
        args,
    )
