"""How rules write amounts (per step where steps are known), and which framework to advise on."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeVar

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.rules.rule import FindingLocation
from gpusight.units import format_count, format_time

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.trace.trace import Trace


MAX_LOCATIONS_SHOWN = 5
"""Places that a finding names."""


def of_each_step(context: RuleContext, ns: float) -> str:
    """Say how much of a step a time is: `10.1 ms of each 12.5 ms step`."""
    step = format_time(context.length_ns / context.per_step)
    if not context.steps:
        return f"{format_time(ns)} of {step}"
    return f"{format_time(ns / context.steps)} of each {step} step"


def by_step(context: RuleContext, amount: str) -> str:
    """Say of what an amount is, one that was divided by `RuleContext.per_step`: `14 a step`."""
    return f"{amount} a step" if context.steps else amount


def times_text(context: RuleContext, count: int) -> str:
    """Say how often: `3 times a step`, `once`."""
    often = count / context.per_step
    often = round(often, 1) if often < 10 else round(often)
    text = "once" if often == 1 else f"{format_count(often)} times"
    return by_step(context, text)


def summed_locations(
    rows: pl.DataFrame, kind: str, column: str, ns: str = "duration_ns"
) -> list[FindingLocation]:
    """Sum rows by a column that names places, the largest first; rows without a name are left."""
    found = (
        rows.filter(pl.col(column).is_not_null())
        .group_by(pl.col(column).cast(pl.String).alias("name"), maintain_order=True)
        .agg(pl.col(ns).sum().alias("ns"), pl.len().alias("count"))
        .sort("ns", descending=True, maintain_order=True)
        .head(MAX_LOCATIONS_SHOWN)
    )
    return [
        FindingLocation(kind, name, float(spent), count) for name, spent, count in found.iter_rows()
    ]


def largest(*groups: list[FindingLocation]) -> tuple[FindingLocation, ...]:
    """Choose the places to name: the largest of each kind in turn, then the largest of all."""
    firsts = [group[0] for group in groups if group]
    others = sorted((w for group in groups for w in group[1:]), key=lambda w: -(w.ns or 0))
    chosen = (firsts + others)[:MAX_LOCATIONS_SHOWN]
    return tuple(sorted(chosen, key=lambda w: -(w.ns or 0)))


T = TypeVar("T")

_TORCH_KERNELS = ("at::native", "at_cuda_detail", "c10::", "triton_")
_TORCH_RANGES = ("aten::", "ProfilerStep", "autograd::", "Optimizer.step#")
_JAX_RANGES = ("XlaModule", "PjitFunction", "TSL:", "XlaLaunch")


class Framework(enum.Enum):
    """What the host program is written with."""

    TORCH = "PyTorch"
    JAX = "JAX"
    CUDA = "CUDA"
    """Calls CUDA itself, or through something that cannot be told."""

    def choose(self, *, torch: T, cuda: T, jax: T | None = None) -> T:
        """Give what fits; for JAX what fits CUDA where nothing of its own is given."""
        if self is Framework.TORCH:
            return torch
        return jax if self is Framework.JAX and jax is not None else cuda


def framework_of(trace: Trace) -> Framework:
    """Tell the framework by the tool that made the capture, operators, kernels and ranges."""
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
