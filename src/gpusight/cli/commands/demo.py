"""`gpusight demo`: the tool at work on captures that come with it."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    from gpusight.cli.commands import Command

SUMMARY = "try gpusight on a bundled capture"
DESCRIPTION = (
    "Show what gpusight finds in a bundled capture, and what to try next. Needs no GPU. Two "
    "captures are of one program, a GPT in training: one by Nsight Systems, one by torch.profiler. "
    "The third is of six kernels, most of them written badly, by Nsight Compute."
)
EXAMPLES: tuple[str, ...] = ("gpusight demo", "gpusight demo torch", "gpusight demo ncu")
CAPTURES = {
    "nsys": "data/demo.sqlite",
    "torch": "data/demo.json.gz",
    "ncu": "data/demo.ncu-repz",
}
NEXT = {
    "nsys": (
        ("whatif DEMO --speedup matmul=4x --graph", "other changes, replayed"),
        ("ledger DEMO", "where every nanosecond went"),
        ("steps DEMO", "each step and its phases"),
        ("questions DEMO --model 4,12,512,64", "a training step in five answers"),
        ("summary DEMO", "kernels, ranges and copies on one screen"),
        ("kernels DEMO --top 10", "which kernels took the time"),
        ("ranges DEMO", "what launched them"),
        ("stats -r cuda_gpu_kern_sum DEMO", "a report of nsys stats"),
        ("export DEMO --to chrome -o demo.json", "a timeline for ui.perfetto.dev"),
        ("demo torch", "the same program, seen by torch.profiler"),
        ("demo ncu", "kernels, seen by Nsight Compute"),
    ),
    "torch": (
        ("summary DEMO", "where the time went, on one screen"),
        ("ops DEMO", "which operators took the time"),
        ("ops DEMO --by function", "which functions of the program did"),
        ("launches DEMO --top 10", "who launched what, in order"),
        ("flops DEMO", "how near to the GPU's peak"),
        ("memory DEMO", "who held the memory at its peak"),
        ("memory DEMO -o memory.html", "the same as a page with a picture"),
    ),
    "ncu": (
        ("kernels DEMO", "how busy each kernel kept the GPU"),
        ("roofline DEMO", "how near each came to its roof"),
        ("roofline DEMO -o roofline.html", "the same as a picture"),
        ("occupancy DEMO", "how many warps fit, and what limits them"),
        ("counters DEMO --source", "which lines of the kernels cost what"),
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
    """Do it; gives the exit code."""
    from importlib import resources

    from gpusight.errors import GpusightError

    resource = resources.files("gpusight").joinpath(CAPTURES[args.which])
    if not resource.is_file():
        raise GpusightError("the demo capture is not installed", hint="reinstall gpusight")
    with resources.as_file(resource) as path:
        return _show(args, str(path))


def _show(args: argparse.Namespace, path: str) -> int:
    from gpusight.cli.commands import diagnose
    from gpusight.cli.output import chosen_format, write_out

    code = diagnose.run(_as_asked_of(diagnose, path, args))
    if chosen_format(args) == "table" and not args.output:
        steps = [(command.replace("DEMO", "$DEMO"), why) for command, why in NEXT[args.which]]
        width = max(len(command) for command, _ in steps)
        lines = [f"  gpusight {command:{width}}  {why}\n" for command, why in steps]
        write_out(f"\nTry next:\n  DEMO={shlex.quote(path)}\n{''.join(lines)}")
    return code


def _as_asked_of(command: Command, path: str, args: argparse.Namespace) -> argparse.Namespace:
    """Give the command's own arguments with their defaults, and those given to the demo."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    given = parser.parse_args([path])
    return argparse.Namespace(**{**vars(given), **vars(args)})
