"""`gpusight launches`: GPU work in order of time, with what launched it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

    from gpusight.analysis.selection import Selection
    from gpusight.results import Result
    from gpusight.trace.trace import Trace

SUMMARY = "GPU work in order of time, with what launched it"
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
    from gpusight.analysis.launch_list import list_launches as launches
    from gpusight.cli.capture_input import run_analysis

    def analysis(trace: Trace, selection: Selection) -> Result:
        return launches(trace, selection, kernel=args.kernel)

    return run_analysis(args, analysis)
