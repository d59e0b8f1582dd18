"""`gpusight ops`: operators of the framework: their own time on the CPU and the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "operators, modules or source lines by CPU and GPU time"
DESCRIPTION = (
    "Every operator of the framework (`aten::mm`, an autograd node, an annotation) with the times "
    "that PyTorch's `key_averages` prints: in itself and with what it called, on the host and for "
    "the GPU work it launched. By module or call site instead, where Python calls were recorded. "
    "Two things differ from what PyTorch prints: waits, which it adds to CUDA time when "
    "`enable_cuda_sync_events` is on, are not GPU work here; and an asynchronous `nccl` range "
    "keeps its own time on the host, which it prints as 0."
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
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight import api
    from gpusight.cli.capture_input import ask
    from gpusight.cli.output import present

    return present(ask(api.ops, args, by=args.by, **options.selection(args)), args)
