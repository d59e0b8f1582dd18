"""Quantities: what analyses want to know of a launch, and the counters that tell it.

Profilers of different years and GPUs of different generations count the same thing under different
names. A `Quantity` lists the ways to have it, the best first; `measured` gives one row a launch
with a column for each quantity, null where the capture has none of its counters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpusight.model.trace import Trace

DURATION = "duration_ns"
SHARE = "share"
"""Unit of a quantity that is a fraction of 1."""
_MOST = 2.0**63


@dataclass(frozen=True, slots=True)
class Formula:
    """One way to have a quantity: the counters that it takes, and what is done with them."""

    metrics: tuple[str, ...]
    compute: Callable[[Sequence[pl.Expr]], pl.Expr]
    """From the counters' values, in the order of `metrics`."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something to know of a launch, whichever counters tell it."""

    key: str
    """Column that it becomes."""
    unit: str
    meaning: str
    formulas: tuple[Formula, ...]
    """Ways to have it, the best first."""
    section: str
    """Section of Nsight Compute that collects it: `--section SpeedOfLight`."""


def metric(name: str, scale: float = 1.0) -> Formula:
    """Take one counter, times something."""
    return Formula((name,), lambda values: values[0] * scale)


def percent(name: str) -> Formula:
    """Take a counter in percent as a fraction of 1."""
    return metric(name, 0.01)


def total(*names: str, scale: float = 1.0) -> Formula:
    """Add counters up; all must be there."""
    return Formula(names, lambda values: reduce(add, values) * scale)


def during(*rates: str) -> Formula:
    """Turn rates a second into amounts, by the duration of the launch."""
    return Formula(rates, lambda values: reduce(add, values) * pl.col(DURATION) * 1e-9)


def ratio(over: str, under: str, scale: float = 1.0) -> Formula:
    """Divide one counter by another; nothing by nothing is not known."""
    return Formula(
        (over, under),
        lambda values: pl.when(values[1] != 0).then(values[0] / values[1] * scale),
    )


def measured(
    trace: Trace, quantities: Iterable[Quantity], columns: Sequence[str] = ()
) -> pl.DataFrame:
    """Give one row for each profiled launch: `launch`, `duration_ns`, `columns`, quantities.

    `columns` are further columns of the table `profiles`. Rows are in the order of `profiles`.
    Every number is finite or null, so that nothing spreads from a failed measurement to a sum.
    """
    wanted = tuple(quantities)
    names = dict.fromkeys(m for q in wanted for f in q.formulas for m in f.metrics)
    keys = dict.fromkeys(("launch", DURATION, *columns))
    launches = trace.table("profiles", tuple(keys)).with_columns(_finite(pl.col(DURATION)))
    wide = launches.join(_wide(trace, list(names)), on="launch", how="left", maintain_order="left")
    return wide.select(*keys, *(_value(quantity).alias(quantity.key) for quantity in wanted))


def _wide(trace: Trace, names: list[str]) -> pl.DataFrame:
    """Give a column for each of these counters; null where a launch, or the capture, has none."""
    rows = trace.table("counters", ("launch", "metric", "value"))
    # A failed pass leaves NaN, a division by nothing infinity, and damage what nothing can count.
    rows = rows.with_columns(pl.when(pl.col("value").abs() < _MOST).then(pl.col("value")))
    metrics = rows.get_column("metric")
    assert isinstance(metrics.dtype, pl.Enum)
    known = set(metrics.dtype.categories)
    present = [name for name in names if name in known]
    chosen = rows.filter(metrics.is_in(present)).with_columns(pl.col("metric").cast(pl.String))
    wide = chosen.pivot(on="metric", index="launch", values="value", aggregate_function="first")
    missing = [n for n in names if n not in wide.columns]
    return wide.with_columns(pl.lit(None, pl.Float64).alias(name) for name in missing)


def _value(quantity: Quantity) -> pl.Expr:
    """Take the first formula that comes to a number."""
    return pl.coalesce(
        [_finite(f.compute([pl.col(m) for m in f.metrics])) for f in quantity.formulas]
    )


def _finite(value: pl.Expr) -> pl.Expr:
    return pl.when(value.is_finite()).then(value)
