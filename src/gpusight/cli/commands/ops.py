"""`gpusight ops`: self and total time of framework operators on the CPU and the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import present

if TYPE_CHECKING:
    import argparse

SUMMARY = "operators, modules or source lines by CPU and GPU time"
DESCRIPTION = (
    "Each framework operator (`aten::mm`, an autograd node, an annotation) with the times that "
    "PyTorch's `key_averages` prints: self and total, on the CPU and on the GPU. With "
    "`with_stack=True` also a tree of modules by class and path, or the functions of your Python "
    "code. Lines need a capture with the line of each call; current PyTorch records only the "
    "line of each `def`, so functions are listed instead. "
    "Two differences from PyTorch: waits, which it adds to CUDA time with "
    "`enable_cuda_sync_events`, are not GPU work here; an asynchronous `nccl` range keeps its self "
    "CPU time, which PyTorch prints as 0."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight ops trace.json.gz --top 10",
    "gpusight ops trace.json.gz --by shapes --in 'ProfilerStep#*'",
    "gpusight ops trace.json.gz --by module",
    "gpusight ops trace.json.gz --by function --format json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    parser.add_argument(
        "--by",
        choices=("name", "shapes", "module", "function", "line"),
        default="name",
        help="group by operator name, operator and input shapes, module (as a tree), or by the "
        "function or line of your Python code that launched the work (default: name)",
    )
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    return present(analyze(gs.ops, args, by=args.by, **options.part(args)), args)
