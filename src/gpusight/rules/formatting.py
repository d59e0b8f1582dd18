"""How rules write amounts per step and name locations, and which framework they give advice for."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeVar

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.rules.finding import Evidence
from gpusight.rules.rule import FindingLocation
from gpusight.units import format_count, format_time

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.trace.trace import Trace


MAX_LOCATIONS_SHOWN = 5
_MAX_NAME_LENGTH = 40
"""Of a location within a sentence."""


def of_each_step(context: RuleContext, ns: float) -> str:
    """Format a time as a part of a step: `10.1 ms of each 12.5 ms step`."""
    step = format_time(context.length_ns / context.per_step)
    if not context.steps:
        return f"{format_time(ns)} of {step}"
    return f"{format_time(ns / context.steps)} of each {step} step"


def by_step(context: RuleContext, amount: str) -> str:
    """Add the unit to an amount that was divided by `RuleContext.per_step`: `14 a step`."""
    return f"{amount} a step" if context.steps else amount


def times_text(context: RuleContext, count: int) -> str:
    """Format a count: `3 times a step`, `once`."""
    times = count / context.per_step
    times = round(times, 1) if times < 10 else round(times)
    return by_step(context, "once" if times == 1 else f"{format_count(times)} times")


def step_evidence(
    context: RuleContext, metric: str, total: float, unit: str, meaning: str
) -> Evidence:
    """Return an amount of the sample as evidence, divided by its steps."""
    return Evidence(metric, float(total) / context.per_step, unit, by_step(context, meaning))


def summed_locations(
    rows: pl.DataFrame, kind: str, column: str, ns: str = "duration_ns"
) -> list[FindingLocation]:
    """Sum rows by a column of names, the largest first; rows without a name are dropped."""
    sums = (
        rows.filter(pl.col(column).is_not_null())
        .group_by(pl.col(column).cast(pl.String).alias("name"), maintain_order=True)
        .agg(pl.col(ns).sum().alias("ns"), pl.len().alias("count"))
        .sort("ns", descending=True, maintain_order=True)
        .head(MAX_LOCATIONS_SHOWN)
    )
    return [
        FindingLocation(kind, name, float(total), count) for name, total, count in sums.iter_rows()
    ]


def called_from(
    context: RuleContext, rows: pl.DataFrame, ns: str = "duration_ns"
) -> dict[str, list[FindingLocation]]:
    """Return where calls or GPU activities come from, by kind, the largest first."""
    rows = rows.with_columns(inner_range(context))
    return {kind: summed_locations(rows, kind, kind, ns) for kind in ("site", "operator", "range")}


def inner_range(context: RuleContext) -> pl.Expr:
    """Return the range of rows, without those of the steps themselves, which say nothing more."""
    steps = [step.name for step in context.focus.steps]
    name = pl.col("range").cast(pl.String)
    inner = pl.when(~name.is_in(steps)).then(name)
    family = inner.str.replace_all(r"\d+", "#")
    # Names that only differ by numbers are written as one: `layer #`.
    return pl.when(inner.n_unique().over(family) > 1).then(family).otherwise(inner).alias("range")


def named(where: tuple[FindingLocation, ...], *kinds: str, most: int = 2) -> str:
    """Name locations of some kinds within a sentence: "`data`, `collate` and `to`"."""
    # Of a long name, the beginning and the end tell most.
    half = _MAX_NAME_LENGTH // 2
    names = [w.name for w in where if w.kind in kinds][:most]
    *others, last = [
        f"`{n if len(n) <= _MAX_NAME_LENGTH else f'{n[:half]}…{n[1 - half :]}'}`" for n in names
    ] or [""]
    return f"{', '.join(others)} and {last}" if others else last


def largest(*groups: list[FindingLocation]) -> tuple[FindingLocation, ...]:
    """Choose the locations to show: the largest of each kind, then the largest of all."""
    firsts = [group[0] for group in groups if group]
    others = sorted((w for group in groups for w in group[1:]), key=lambda w: -(w.ns or 0))
    chosen = (firsts + others)[:MAX_LOCATIONS_SHOWN]
    return tuple(sorted(chosen, key=lambda w: -(w.ns or 0)))


# Frameworks ---------------------------------------------------------------------------------------


T = TypeVar("T")

_TORCH_KERNELS = ("at::native", "at_cuda_detail", "c10::", "triton_")
_TORCH_RANGES = ("aten::", "ProfilerStep", "autograd::", "Optimizer.step#")
_JAX_RANGES = ("XlaModule", "PjitFunction", "TSL:", "XlaLaunch")


class Framework(enum.Enum):
    """What the host program is written with."""

    TORCH = "PyTorch"
    JAX = "JAX"
    CUDA = "CUDA"
    """Calls CUDA itself, or through an unknown framework."""

    def choose(self, *, torch: T, cuda: T, jax: T | None = None) -> T:
        """Return the argument of this framework; for JAX that of CUDA where it has none."""
        if self is Framework.TORCH:
            return torch
        return jax if self is Framework.JAX and jax is not None else cuda


def framework_of(trace: Trace) -> Framework:
    """Detect the framework from the profiler, operators, kernels and ranges."""
    if trace.meta.source.startswith("jax"):
        return Framework.JAX
    if trace.has("cpu_ops") or trace.meta.source.startswith("torch"):
        return Framework.TORCH
    kernels, ranges = _names(trace, "kernels"), _names(trace, "ranges")
    if any(mark in name for name in kernels for mark in _TORCH_KERNELS):
        return Framework.TORCH
    if any(name.startswith(_TORCH_RANGES) for name in ranges):
        return Framework.TORCH
    if any(name.startswith(_JAX_RANGES) for name in ranges):
        return Framework.JAX
    return Framework.CUDA


def _names(trace: Trace, table: str) -> list[str]:
    return names_of(trace.table(table, ["name"])["name"]) if trace.has(table) else []
