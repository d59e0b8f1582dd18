"""`gpusight ops`: framework operators by CPU and GPU time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "operators, modules or source lines by CPU and GPU time"
DESCRIPTION = (
    "Framework operators (`aten::mm`, autograd nodes, annotations) with the times of PyTorch's "
    "`key_averages`: self and total, on the CPU and on the GPU. By module or call site where the "
    "capture has Python calls. Two differences from PyTorch: sync events "
    "(`enable_cuda_sync_events`) do not count as CUDA time, and an asynchronous `nccl` range keeps "
    "its CPU time, which PyTorch prints as 0."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight ops trace.json.gz --top 10",
    "gpusight ops trace.json.gz --by shapes --in 'ProfilerStep#*'",
    "gpusight ops trace.json.gz --by call-site --format json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    parser.add_argument(
        "--by",
        choices=("name", "shapes", "module", "call-site"),
        default="name",
        help="what a row is: an operator, an operator with inputs of certain shapes, or the module "
        "or line of the user's Python that led to the GPU work (default: name)",
    )
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight import api
    from gpusight.cli.capture_input import ask
    from gpusight.cli.output import present

    return present(
        ask(api.ops, args, by=args.by, **options.selection(args), **options.focus(args)), args
    )
