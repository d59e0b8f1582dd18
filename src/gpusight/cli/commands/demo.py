"""`gpusight demo`: the tool at work on a capture that comes with it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "the tool at work on a small capture that comes with it"
DESCRIPTION = "Show the summary of a bundled capture, and what to try next. Needs no GPU."
EXAMPLES: tuple[str, ...] = ("gpusight demo",)
CAPTURE = "data/demo.sqlite"
NEXT = (
    ("kernels DEMO --top 10", "which kernels took the time"),
    ("ranges DEMO", "what launched them"),
    ("copies DEMO", "what was moved, and how fast"),
    ("kernels DEMO --in forward", "the forward pass only"),
    ("stats -r cuda_gpu_kern_sum DEMO", "a report of nsys stats"),
    ("export DEMO --to chrome -o demo.json", "a timeline for ui.perfetto.dev"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from importlib import resources

    from gpusight.errors import GpusightError

    resource = resources.files("gpusight").joinpath(CAPTURE)
    if not resource.is_file():
        raise GpusightError("the demo capture is not installed", hint="reinstall gpusight")
    with resources.as_file(resource) as path:
        return _show(args, str(path))


def _show(args: argparse.Namespace, path: str) -> int:
    from gpusight.analyses.select import Selection
    from gpusight.analyses.summary import summary
    from gpusight.cli.output import chosen_format, present, write_out
    from gpusight.cli.running import open_capture

    args.file = path
    code = present(summary(open_capture(path, args), Selection()), args)
    if chosen_format(args) == "table" and not args.output:
        width = max(len(command) for command, _ in NEXT)
        lines = [f"  gpusight {command:{width}}  {why}\n" for command, why in NEXT]
        write_out(
            f"\nTry next:\n  DEMO={shlex.quote(path)}\n{''.join(lines).replace('DEMO', '$DEMO')}"
        )
    return code
