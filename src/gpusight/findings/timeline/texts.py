"""How rules speak of amounts: by step where steps are known, else by the judged part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.findings.timeline.rule import Where
from gpusight.units import format_count, format_time

if TYPE_CHECKING:
    from gpusight.findings.timeline.timeline import Timeline

MOST_PLACES = 5
"""Places that a finding names."""


def of_each_step(timeline: Timeline, ns: float) -> str:
    """Say how much of a step a time is: `10.1 ms of each 12.5 ms step`."""
    step = format_time(timeline.length_ns / timeline.per_step)
    if not timeline.steps:
        return f"{format_time(ns)} of {step}"
    return f"{format_time(ns / timeline.steps)} of each {step} step"


def by_step(timeline: Timeline, amount: str) -> str:
    """Say of what an amount is, one that was divided by `Timeline.per_step`: `14 a step`."""
    return f"{amount} a step" if timeline.steps else amount


def times(timeline: Timeline, count: int) -> str:
    """Say how often: `3 times a step`, `once`."""
    often = count / timeline.per_step
    often = round(often, 1) if often < 10 else round(often)
    text = "once" if often == 1 else f"{format_count(often)} times"
    return by_step(timeline, text)


def places(rows: pl.DataFrame, kind: str, column: str, ns: str = "duration_ns") -> list[Where]:
    """Sum rows by a column that names places, the largest first; rows without a name are left."""
    found = (
        rows.filter(pl.col(column).is_not_null())
        .group_by(pl.col(column).cast(pl.String).alias("name"), maintain_order=True)
        .agg(pl.col(ns).sum().alias("ns"), pl.len().alias("count"))
        .sort("ns", descending=True, maintain_order=True)
        .head(MOST_PLACES)
    )
    return [Where(kind, name, float(spent), count) for name, spent, count in found.iter_rows()]


def largest(*groups: list[Where]) -> tuple[Where, ...]:
    """Choose the places to name: the largest of each kind in turn, then the largest of all."""
    firsts = [group[0] for group in groups if group]
    others = sorted((w for group in groups for w in group[1:]), key=lambda w: -(w.ns or 0))
    chosen = (firsts + others)[:MOST_PLACES]
    return tuple(sorted(chosen, key=lambda w: -(w.ns or 0)))
