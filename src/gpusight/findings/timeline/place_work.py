"""GPU work that a finding names: by kernel, or by the range, operator, module or line behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.schedule.schedule import OpKind
from gpusight.analyses.steps.step import shortened
from gpusight.findings.timeline.place_events import CANDIDATES, none, spellings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.findings.timeline.rule import Where
    from gpusight.findings.timeline.timeline import Timeline

_COLUMNS = {
    "kernel": "label",
    "range": "range",
    "operator": "operator",
    "module": "module",
    "site": "site",
}
"""Column of `Timeline.ops` that each kind of place stands in."""
_CHAIN = " → "
"""What stands between the kernels of a chain, which may have lost their `elementwise`."""
_APART = 8
"""Pieces of other work between two of a run, at most."""


def runs(timeline: Timeline, which: pl.Expr) -> pl.DataFrame:
    """Find some work, what follows each other in a stream as one; its weight is its time."""
    return _joined(timeline, _in_queues(timeline, which))


def runs_named(timeline: Timeline, which: pl.Expr, where: Iterable[Where]) -> pl.DataFrame:
    """Find the work of it that agrees with most of what places say."""
    work = _in_queues(timeline, which)
    score = _score(work, where)
    most = score.max(initial=0)
    # What agrees in little may be anything, such as another kernel of the same range.
    chosen = work.filter(pl.Series(2 * score > most)) if most else work.clear()
    return _joined(timeline, chosen)


def _in_queues(timeline: Timeline, which: pl.Expr) -> pl.DataFrame:
    """Give some work, one stream after the other, with its `place` among all work of the stream."""
    marked = timeline.ops.with_columns(which.alias("meant"))
    every = marked.sort("queue", "start_ns", maintain_order=True).with_row_index("place")
    return every.filter("meant")


def _score(ops: pl.DataFrame, where: Iterable[Where]) -> Ints:
    """Count for each piece of work the kinds of places that it agrees with."""
    names: dict[str, set[str]] = {}
    for place in where:
        if place.kind in _COLUMNS:
            names.setdefault(place.kind, set()).update(_parts(place))
    score = np.zeros(ops.height, np.int64)
    for kind, wanted in names.items():
        column = ops[_COLUMNS[kind]].cast(pl.String)
        meant = [
            spelled.is_in(list(wanted)).fill_null(value=False) for spelled in spellings(column)
        ]
        score += np.any([one.to_numpy() for one in meant], axis=0)
    return score


def _parts(place: Where) -> list[str]:
    """Give the names that a place stands for: of a chain each of its kernels."""
    parts = place.name.split(_CHAIN)
    if place.kind != "kernel" or len(parts) == 1:
        return [place.name]
    return [*parts, *(f"elementwise {part}" for part in parts)]


def groups(timeline: Timeline, number: Ints) -> pl.DataFrame:
    """Find work that belongs together: what has the same number, by position; below 0 is none."""
    numbered = timeline.ops.with_columns(pl.Series("run", number, pl.Int64))
    return _summed(timeline, numbered.filter(pl.col("run") >= 0))


def _joined(timeline: Timeline, chosen: pl.DataFrame) -> pl.DataFrame:
    """Make one stretch of work that follows each other in its stream and step."""
    apart = (
        (pl.col("place").cast(pl.Int64).diff() > _APART + 1)
        | (pl.col("queue").diff() != 0)
        | pl.col("step").ne_missing(pl.col("step").shift())
    )
    run = apart.fill_null(value=True).cum_sum().alias("run")
    return _summed(timeline, chosen.with_columns(run))


def _summed(timeline: Timeline, chosen: pl.DataFrame) -> pl.DataFrame:
    """Make one stretch of each `run`."""
    if chosen.is_empty():
        return none()
    longest = pl.col("duration_ns").arg_max()
    merged = chosen.group_by("run", maintain_order=True).agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.col("duration_ns").sum().alias("weight_ns"),
        pl.col("label").get(longest).cast(pl.String).alias("name"),
        pl.col("op").get(longest),
        (pl.len() - 1).cast(pl.Int64).alias("others"),
    )
    return _described(timeline, merged)


def _described(timeline: Timeline, merged: pl.DataFrame) -> pl.DataFrame:
    """Name stretches by their longest piece of work; what is one piece can be pointed at."""
    ops, at = timeline.schedule.ops, merged["op"].to_numpy()
    tables = pl.Series([kind.table for kind in OpKind], dtype=pl.String)
    short = {name: shortened(name) for name in merged["name"].unique()}
    name, alone = pl.col("name").replace(short), pl.col("others") == 0
    return merged.select(
        "start_ns",
        "end_ns",
        pl.col("weight_ns").cast(pl.Int64),
        pl.when(alone).then(name).otherwise(pl.format("{} and {} more,", name, "others")),
        pl.when(alone).then(pl.lit(tables.gather(ops.kind[at]))).alias("table"),
        pl.when(alone).then(pl.lit(pl.Series(ops.row[at], dtype=pl.Int64))).alias("row"),
    ).select(list(CANDIDATES))
