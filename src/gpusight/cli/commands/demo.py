"""`gpusight demo`: diagnose a bundled capture."""

from __future__ import annotations

import shlex
from importlib import resources
from typing import TYPE_CHECKING

from gpusight.cli import options
from gpusight.cli.output import chosen_format, write_out
from gpusight.errors import GpusightError

if TYPE_CHECKING:
    import argparse

SUMMARY = "try gpusight on a bundled capture"
DESCRIPTION = (
    "Diagnose a bundled capture and list commands to try next. Needs no GPU. Two captures are of "
    "GPT training, one by Nsight Systems, one by torch.profiler. The third is an Nsight Compute "
    "report of six kernels, most of them slow on purpose."
)
EXAMPLES: tuple[str, ...] = ("gpusight demo", "gpusight demo torch", "gpusight demo ncu")
CAPTURES = {
    "nsys": "data/demo.sqlite",
    "torch": "data/demo.json.gz",
    "ncu": "data/demo.ncu-repz",
}
NEXT = {
    "nsys": (
        ("whatif DEMO --speedup matmul=4x", "simulate a change"),
        ("ledger DEMO", "GPU time by cause"),
        ("steps DEMO", "each step and its phases"),
        ("questions DEMO --model 4,12,512,64", "a step in five answers"),
        ("summary DEMO", "everything on one screen"),
        ("kernels DEMO --top 10", "kernels by time"),
        ("ranges DEMO", "ranges with their GPU time"),
        ("stats -r cuda_gpu_kern_sum DEMO", "a report of nsys stats"),
        ("export DEMO --to chrome -o demo.json", "for ui.perfetto.dev"),
        ("demo torch", "the same in torch.profiler"),
        ("demo ncu", "kernels in Nsight Compute"),
    ),
    "torch": (
        ("summary DEMO", "where the time goes, on one screen"),
        ("ops DEMO", "operators by time"),
        ("ops DEMO --by function", "the same by function of your code"),
        ("launches DEMO --top 10", "kernel launches in order"),
        ("flops DEMO", "achieved vs. peak FLOP/s"),
        ("memory DEMO", "allocations at peak memory"),
        ("memory DEMO -o memory.html", "the same as a page with a picture"),
    ),
    "ncu": (
        ("kernels DEMO", "kernels by time"),
        ("roofline DEMO", "kernels on the roofline"),
        ("roofline DEMO -o roofline.html", "the same as a picture"),
        ("occupancy DEMO", "occupancy and its limiter"),
        ("counters DEMO --source", "metrics per source line"),
        ("counters DEMO --metrics '*hit_rate*'", "any counter, by name"),
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
    """Run the command; returns the exit code."""
    resource = resources.files("gpusight").joinpath(CAPTURES[args.which])
    if not resource.is_file():
        raise GpusightError("the demo capture is not installed", hint="reinstall gpusight")
    with resources.as_file(resource) as path:
        return _show(args, str(path))


def _show(args: argparse.Namespace, path: str) -> int:
    from gpusight.cli.commands import diagnose

    code = diagnose.run(options.arguments_of(diagnose, [path], args))
    if chosen_format(args) == "table" and not args.output:
        steps = [(command.replace("DEMO", "$DEMO"), why) for command, why in NEXT[args.which]]
        width = max(len(command) for command, _ in steps)
        lines = [f"  gpusight {command:{width}}  {why}\n" for command, why in steps]
        write_out(f"\nTry next:\n  DEMO={shlex.quote(path)}\n{''.join(lines)}")
    return code
