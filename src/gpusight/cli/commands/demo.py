"""`gpusight demo`: the tool at work on captures that come with it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "the tool at work on small captures that come with it"
DESCRIPTION = (
    "Show the summary of a bundled capture, and what to try next. Needs no GPU. Both captures are "
    "of one program, a GPT in training: one by Nsight Systems, one by torch.profiler."
)
EXAMPLES: tuple[str, ...] = ("gpusight demo", "gpusight demo torch")
CAPTURES = {"nsys": "data/demo.sqlite", "torch": "data/demo.json.gz"}
NEXT = {
    "nsys": (
        ("kernels DEMO --top 10", "which kernels took the time"),
        ("ranges DEMO", "what launched them"),
        ("copies DEMO", "what was moved, and how fast"),
        ("kernels DEMO --in forward", "the forward pass only"),
        ("stats -r cuda_gpu_kern_sum DEMO", "a report of nsys stats"),
        ("export DEMO --to chrome -o demo.json", "a timeline for ui.perfetto.dev"),
        ("demo torch", "the same program, seen by torch.profiler"),
    ),
    "torch": (
        ("ops DEMO", "which operators took the time"),
        ("ops DEMO --by call-site", "which lines of the program did"),
        ("launches DEMO --top 10", "who launched what, in order"),
        ("flops DEMO", "how near to the GPU's peak"),
        ("memory DEMO", "who held the memory at its peak"),
        ("memory DEMO -o memory.html", "the same as a page with a picture"),
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "which",
        nargs="?",
        choices=tuple(CAPTURES),
        default="nsys",
        help="the profiler whose capture to show (default: nsys)",
    )
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from importlib import resources

    from gpusight.errors import GpusightError

    resource = resources.files("gpusight").joinpath(CAPTURES[args.which])
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
        steps = [(command.replace("DEMO", "$DEMO"), why) for command, why in NEXT[args.which]]
        width = max(len(command) for command, _ in steps)
        lines = [f"  gpusight {command:{width}}  {why}\n" for command, why in steps]
        write_out(f"\nTry next:\n  DEMO={shlex.quote(path)}\n{''.join(lines)}")
    return code
