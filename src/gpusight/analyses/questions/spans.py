"""Ranges of the host, and which of them was open when a kernel was launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.statistics import names_of
from gpusight.analyses.steps.names import closed_ranges

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from gpusight.model.trace import Trace

    _Read = TypeVar("_Read", str, int)

_NOBODY = -1
"""Stands for a process or thread that the capture does not name."""


def named_ranges(trace: Trace, read: Callable[[str], _Read | None]) -> pl.DataFrame:
    """Give the ranges whose names `read` makes something of: it, `name`, times, who opened it."""
    ranges = closed_ranges(trace)
    codes, names = ranges["name"].to_physical(), names_of(ranges["name"])
    made = {code: read(names[code]) for code in codes.unique().drop_nulls()}
    known = [(code, value) for code, value in made.items() if value is not None]
    told = pl.DataFrame(known, schema=["code", "read"], orient="row") if known else _NOTHING
    return (
        ranges.with_columns(codes.cast(pl.Int64).alias("code"))
        .join(told.cast({"code": pl.Int64}), on="code", maintain_order="left")
        .with_columns(pl.col("name").cast(pl.String))
        .select("read", "name", "start_ns", "end_ns", "process", "thread")
    )


_NOTHING = pl.DataFrame(schema={"code": pl.Int64, "read": pl.String})


def outermost(spans: pl.DataFrame) -> pl.DataFrame:
    """Leave out spans that lie inside another one of their thread; order of start."""
    ordered = spans.sort("start_ns", -pl.col("end_ns"), maintain_order=True)
    reached = pl.col("end_ns").cum_max().shift(1).over("process", "thread")
    return ordered.filter((pl.col("start_ns") >= reached).fill_null(value=True))


def hold(spans: pl.DataFrame, times: pl.DataFrame, when: str) -> pl.Series:
    """Give the position of the span that each moment lies in; null for none.

    A moment belongs to the span open in its process, whichever thread opened it; where spans of a
    process overlap, to the one of its own thread.
    """
    by = "thread" if _overlap(spans) else "process"
    placed = spans.with_row_index("held").select(
        pl.col("held").cast(pl.Int64),
        pl.col("start_ns").alias("when"),
        pl.col("end_ns").alias("until"),
        pl.col(by).fill_null(_NOBODY),
    )
    moments = times.select(pl.col(when).alias("when"), pl.col(by).fill_null(_NOBODY))
    if by == "process" and moments[by].n_unique() == 1 and (moments[by] == _NOBODY).all():
        placed = placed.with_columns(pl.lit(_NOBODY, pl.Int64).alias(by))
    found = (
        moments.with_row_index("at")
        .sort("when")
        .join_asof(
            placed.sort("when"), on="when", by=by, strategy="backward", check_sortedness=False
        )
        .sort("at")
    )
    return found.select(pl.when(pl.col("when") < pl.col("until")).then("held").alias("held"))[
        "held"
    ]


def _overlap(spans: pl.DataFrame) -> bool:
    reached = pl.col("end_ns").cum_max().shift(1).over("process")
    late = spans.sort("start_ns").select((pl.col("start_ns") < reached).any())
    return bool(late.item())
