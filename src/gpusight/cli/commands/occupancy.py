"""`gpusight occupancy`: how many warps an SM holds, what limits it, and what would raise it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight import units
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import chosen_format, is_read, present
from gpusight.errors import UsageError
from gpusight.render.result_view import CHART_FORMATS
from gpusight.results import TableResult

if TYPE_CHECKING:
    from gpusight.render.result_view import Page

SUMMARY = "theoretical and achieved occupancy, and its limiter"
DESCRIPTION = (
    "Theoretical and achieved occupancy of each kernel, its limiter (block size, registers, shared "
    "memory, barriers), and the smallest change that raises it. Reads Nsight Compute reports and "
    "CSVs; for timelines (nsys, torch.profiler), theoretical occupancy only. Without FILE it is a "
    "calculator: --gpu, --block, --regs, --shmem. With -o and a name that ends in .svg, .html, "
    ".png or .pdf it draws the occupancy of other block sizes, registers or shared memory."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight occupancy report.ncu-rep",
    "gpusight occupancy report.ncu-rep --kernel 'gemm*' -o occupancy.html",
    "gpusight occupancy --gpu A100 --block 256 --regs 64 --shmem 16384",
    "gpusight occupancy --gpu sm_90 --block 256 --over registers -o o.png",
)
_SHARED_UNITS = {"": 1.0, **dict.fromkeys(("k", "kb", "kib"), 1024.0)}
"""Sizes of shared memory are binary in CUDA's documents: 48 KB are 49152 bytes."""
_MAX_SHARED_BYTES = 1e12
_OVER = ("block", "registers", "shared-memory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser, nargs="?")
    options.add_selection(parser)
    options.add_focus(parser)
    group = parser.add_argument_group("kernel")
    options.add_kernel(group, "only kernels of this name, with details of the longest one")
    group.add_argument(
        "--gpu",
        metavar="GPU",
        help="for this GPU: a name such as A100 or 'RTX 4090', or sm_80; with FILE, instead of the "
        "captured one",
    )
    group.add_argument(
        "--block",
        type=options.number,
        metavar="N",
        help="without FILE: threads per block (default: 256)",
    )
    group.add_argument(
        "--regs",
        type=options.number,
        metavar="N",
        help="without FILE: registers per thread (default: 32)",
    )
    group.add_argument(
        "--shmem",
        type=_bytes,
        metavar="BYTES",
        help="without FILE: shared memory per block; 48K is 49152 (default: 0)",
    )
    group.add_argument(
        "--barriers", type=options.number, metavar="N", help="without FILE: barriers per block"
    )
    group.add_argument(
        "--over",
        choices=_OVER,
        default=_OVER[0],
        help="what the chart varies (default: block, the block size)",
    )
    options.add_output(parser, formats=(*options.TABLE_FORMATS, *CHART_FORMATS))


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    read = is_read(args)
    drawn = not read and chosen_format(args) in CHART_FORMATS
    result = _calculated(args) if args.file is None else _of_capture(args, closely=drawn)
    if read and not args.wide:
        result = _brief(result)
    return present(result, args, **({"over": args.over} if drawn else {}))


def _calculated(args: argparse.Namespace) -> Page:
    if args.gpu is None:
        raise UsageError(
            "occupancy needs a capture or a GPU",
            hint="pass FILE, or: --gpu A100 --block 256 --regs 64 --shmem 16384",
        )
    for name in ("kernel", "within", "device", "process"):
        if getattr(args, name) is not None:
            option = "--in" if name == "within" else f"--{name}"
            raise UsageError(f"{option} chooses from a capture", hint="pass FILE as well")
    return gs.occupancy_of(
        args.gpu,
        256 if args.block is None else args.block,
        32 if args.regs is None else args.regs,
        args.shmem or 0,
        barriers=args.barriers,
    )


def _of_capture(args: argparse.Namespace, *, closely: bool) -> Page:
    for name in ("block", "regs", "shmem", "barriers"):
        if getattr(args, name) is not None:
            raise UsageError(
                f"--{name} describes a kernel without a capture",
                hint=f"leave FILE out, or leave --{name} out",
            )
    chosen = {"kernel": args.kernel, "gpu": args.gpu, "closely": closely}
    return analyze(gs.occupancy, args, **chosen, **options.part(args))


def _brief(result: Page) -> Page:
    """Show people the block sizes that they choose from; documents hold all of them."""
    from gpusight.analysis.occupancy.block_occupancy import usual_sizes

    sections = (
        usual_sizes(section)
        if isinstance(section, TableResult) and section.command == "block_sizes"
        else section
        for section in result.answer.sections
    )
    return type(result)(replace(result.answer, sections=tuple(sections)))


def _bytes(text: str) -> int:
    amount = units.parse_amount(text)
    count = None if amount is None or amount.sign else amount.scaled(_SHARED_UNITS)
    if count is None or not count.is_integer() or count >= _MAX_SHARED_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 16384 or 16K")
    return int(count)
