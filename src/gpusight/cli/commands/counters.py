"""`gpusight counters`: what Nsight Compute measured, launch by metric."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight import units
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.output import is_read, present
from gpusight.render.cell_text import shorten_end

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from gpusight.results import TableResult

SUMMARY = "ncu metrics by launch or source line"
DESCRIPTION = (
    "Nsight Compute metrics: one row per launch and metric, in base units; with --wide one row per "
    "launch and one column per metric. Reads .ncu-rep reports and the CSV that ncu prints. Tables "
    "show the key metrics; JSON and CSV have all of them. --source sums per-instruction metrics by "
    "source line."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight counters report.ncu-rep --list",
    "gpusight counters report.ncu-rep --metrics 'dram__bytes*' --kernel '*gemm*'",
    "gpusight counters report.ncu-rep --wide --format csv -o counters.csv",
    "gpusight counters report.ncu-rep --source --kernel softmax",
)

_FORMS = ("list", "instances", "source", "wide")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    options.add_selection(parser)
    group = parser.add_argument_group("metrics")
    group.add_argument(
        "--metrics",
        nargs="+",
        action="extend",
        default=[],
        metavar="GLOB",
        help="only these metrics, after FILE: names, globs such as 'dram__*', any part of a name, "
        "regular expressions written /…/ or regex:…",
    )
    options.add_kernel(group)
    options.add_launch(group)
    options.add_output(parser)
    _add_forms(parser)


def _add_forms(parser: argparse.ArgumentParser) -> None:
    # Here a wide table is also one with a column for each metric.
    group = parser.add_argument_group("layout", conflict_handler="resolve")
    group.add_argument(
        "--wide",
        action="store_true",
        help="one row per launch, one column per metric; otherwise: full names",
    )
    forms = group.add_mutually_exclusive_group()
    forms.add_argument("--list", action="store_true", help="list the metrics with their units")
    forms.add_argument(
        "--instances",
        action="store_true",
        help="list metric instances: by instruction, unit, time or operation",
    )
    forms.add_argument(
        "--source",
        action="store_true",
        help="sum by source line: samples, instructions, stall reasons; or the given --metrics",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    read = is_read(args)
    form = next((name for name in _FORMS if getattr(args, name)), "tidy")
    chosen = {"kernel": args.kernel, "launches": args.launch, "brief": read and not args.metrics}
    result = analyze(
        gs.counters, args, form=form, metrics=args.metrics, **chosen, **options.selection(args)
    )
    table = result.answer
    return present(gs.View(_for_people(table, args) if read else _with_texts(table)), args)


def _for_people(result: TableResult, args: argparse.Namespace) -> TableResult:
    """Shorten kernels' names, and write each value with its unit."""
    from gpusight.analysis.counters.counter_tables import short_kernels

    full = args.wide or args.full_names
    if not full and not args.source and "kernel" in result.frame.columns:
        result = short_kernels(result)
    if not {"value", "unit"} <= set(result.frame.columns):
        return result
    return _with_units(result, None if full else _MAX_TEXT_WIDTH)


_MAX_TEXT_WIDTH = 20
"""Columns of the value of a text metric: lists of metrics would leave no room for the others."""


def _with_units(result: TableResult, max_width: int | None) -> TableResult:
    import polars as pl

    rows = result.frame.select("value", "text", "unit").iter_rows()
    cells = [
        _quantity(value, unit or "")
        if text is None
        else (text if max_width is None else shorten_end(text, max_width))
        for value, text, unit in rows
    ]
    frame = result.frame.with_columns(pl.Series("value", cells, pl.String)).drop("unit", "text")
    fields = tuple(f for f in result.fields if f.key not in {"unit", "text"})
    return replace(result, fields=fields, frame=frame)


def _quantity(value: float | None, unit: str) -> str:
    """Write a value with its unit, scaled where people would."""
    scaled: dict[str, Callable[[float | None], str]] = {
        "ns": units.format_time,
        "byte": units.format_bytes,
        "byte/s": units.format_rate,
    }
    if value is None or unit in scaled:
        return scaled.get(unit, units.format_real)(value)
    if unit == "hz":
        return f"{units.format_real(value / 1e6)} MHz"
    number = units.format_count(value)
    return f"{number} {unit}" if unit else number


def _with_texts(result: TableResult) -> TableResult:
    """Give one value for each row, a number or a text, as JSON and CSV can."""
    import polars as pl

    frame = result.frame
    if not {"value", "text"} <= set(frame.columns):
        return result
    if frame["text"].null_count() < frame.height:
        pairs = frame.select("value", "text").iter_rows()
        values = [value if text is None else text for value, text in pairs]
        frame = frame.with_columns(pl.Series("value", values, pl.Object))
    fields = tuple(f for f in result.fields if f.key != "text")
    return replace(result, fields=fields, frame=frame.select([f.key for f in fields]))
