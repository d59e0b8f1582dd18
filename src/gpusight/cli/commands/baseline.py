"""`gpusight baseline`: captures summarized in a small file, so that CI needs no old captures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import read_digests
from gpusight.cli.output import is_read, present, write_out
from gpusight.errors import UsageError
from gpusight.render.cell_text import safe_text
from gpusight.render.result_view import BaselineView

if TYPE_CHECKING:
    import argparse

SUMMARY = "save captures as a small file for compare and gate"
DESCRIPTION = (
    "A baseline summarizes captures, tens of kilobytes each, so that `compare` and `gate` need no "
    "old captures: step times, ledger, kernels, ranges, API calls, copies, peak memory and "
    "findings, by blocks of steps. It contains names of kernels, ranges and the capture's file, "
    "but no folders, host names or command lines. `save` writes one, `show` prints its contents."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight baseline save run_1.nsys-rep run_2.nsys-rep -o perf/base.json",
    "gpusight baseline save 'runs/*.sqlite' --steps 5-50",
    "gpusight baseline show perf/baseline.json",
)
DEFAULT_FILE = "baseline.json"
_SAVE = (
    "Summarize captures in one file. Use three to five repeats of a program: they measure the "
    "run-to-run variation. An existing baseline is replaced, any other file is not."
)
_SHOW = "Show the captures of a baseline, and the metrics that `gate --max` can limit."
_CAPTURES = (
    "captures of one program (nsys, torch.profiler, JAX), folders or quoted globs of them; a "
    "baseline adds its captures"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = (
        options.Action("save", "summarize captures in a file", _SAVE, _declare_save),
        options.Action("show", "show the contents of a baseline", _SHOW, _declare_show),
    )
    options.add_actions(parser, EXAMPLES, actions)


def _declare_save(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="CAPTURE", nargs="+", help=_CAPTURES)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default=DEFAULT_FILE,
        help=f"where to write the baseline (default: {DEFAULT_FILE}); replaces a baseline only",
    )
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser)
    group = parser.add_argument_group("summary")
    group.add_argument(
        "--format",
        choices=options.TABLE_FORMATS,
        default="table",
        help="output format of the summary (default: table)",
    )
    group.add_argument(
        "--top", type=options.number, metavar="N", help="rows of each table; 0 for all"
    )
    options.add_widths(group)


def _declare_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="+", help="baselines")
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    return {"save": _save, "show": _show}[args.action](args)


def _save(args: argparse.Namespace) -> int:
    from gpusight.comparison.baseline_file import check_baseline_output
    from gpusight.comparison.gate_limits import limits_above_noise
    from gpusight.comparison.inputs import side_inputs
    from gpusight.render.terminal_text import (
        command_lines,
        plain_lines,
        screen_width,
        wrapped_lines,
    )

    if args.output == "-":
        raise UsageError("a baseline is written to a file", hint=f"add -o {DEFAULT_FILE}")
    path, args.output = Path(args.output), None
    check_baseline_output(path)  # before the captures are read, which takes long
    result = gs.baseline(read_digests(side_inputs(args.file), args), path)
    # The metrics are left to `show`.
    brief: dict[str, Any] = {"metrics": False} if is_read(args) else {}
    code = present(result, args, **brief)
    if args.format == "table":
        limits, noise = limits_above_noise(result.digests)
        options_text = " ".join(f"--max {limit}" for limit in limits)
        command = f"gpusight gate --baseline {safe_text(str(path))} {options_text} CAPTURE…"
        why = plain_lines(wrapped_lines(f"limits above the {noise}", screen_width(), ""))
        following = "\n".join(command_lines(command, screen_width(), "next: "))
        write_out(f"\n{why}{following}\n")
    return code


def _show(args: argparse.Namespace) -> int:
    from gpusight.comparison.baseline_file import Baseline, load_baseline

    paths = [Path(name) for name in args.file]
    digests = tuple(digest for path in paths for digest in load_baseline(path))
    size = sum(path.stat().st_size for path in paths)
    return present(BaselineView(Baseline(digests, ", ".join(args.file), size)), args)
