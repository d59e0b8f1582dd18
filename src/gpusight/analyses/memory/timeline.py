"""Memory over time, as few points as a picture needs, with who held it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.memory.blocks import BEFORE, changes
from gpusight.analyses.memory.peak import HELD_BEFORE, NOT_RECORDED
from gpusight.analyses.memory.view import allocated_at, reserved_at, thin
from gpusight.result import Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analyses.memory.blocks import Ints
    from gpusight.analyses.memory.history import History
    from gpusight.analyses.memory.view import Points, View

TIMELINE_FIELDS = (
    Field("time_ns", "Time", Fmt.TIME, "When"),
    Field("allocated_bytes", "In use", Fmt.BYTES, "In use from then on"),
    Field("reserved_bytes", "Reserved", Fmt.BYTES, "Held from the driver; null when not recorded"),
    Field(
        "held_bytes",
        "By holder",
        Fmt.BYTES,
        "In use by each of `meta.timeline_holders`, in their order; they sum to what is in use",
        shown=False,
    ),
)
REST = "everything else"
_MOST_HOLDERS = 5
_LEAST_SHARE = 0.02


def timeline(view: View, holders: pl.Series | None, peak: TableResult | None) -> TableResult:
    """Thin a view out; `holders` names who took each block, `peak` is the table of them."""
    points = thin(view)
    allocated, reserved = allocated_at(view.history, points), reserved_at(view.history, points)
    names: list[str] = []
    held: list[Ints] = []
    if holders is not None and peak is not None:
        names = _largest(peak)
        held = [_level(view.history, holders, name, points) for name in names]
        rest = allocated - sum(held, np.zeros_like(allocated))
        if rest.any() or not names:
            names, held = [*names, REST], [*held, rest]
    frame = pl.DataFrame(
        {
            "time_ns": points.times,
            "allocated_bytes": allocated,
            "reserved_bytes": pl.Series(
                reserved if reserved is not None else [None] * len(points), dtype=pl.Int64
            ),
            "held_bytes": _lists(held, len(points)),
        }
    )
    return TableResult(
        "timeline", "Memory over time", TIMELINE_FIELDS, frame, meta={"timeline_holders": names}
    )


def _largest(peak: TableResult) -> list[str]:
    """Name what was held before, then the largest holders at the peak."""
    shown = peak.frame.filter(pl.col("share") >= _LEAST_SHARE)["holder"].to_list()
    first = [HELD_BEFORE] if HELD_BEFORE in shown else []
    others = [name for name in shown if name not in {HELD_BEFORE, NOT_RECORDED}]
    return [*first, *others[:_MOST_HOLDERS]]


def _level(history: History, holders: pl.Series, name: str, points: Points) -> Ints:
    """Follow what one holder had."""
    assert history.blocks is not None, "nobody can be named without blocks"
    mine = history.blocks.chosen(np.flatnonzero((holders == name).to_numpy()))
    start = int(mine.bytes[mine.began == BEFORE].sum())
    if name == HELD_BEFORE:
        start += max(history.unlisted_start, 0)
    levels = start + np.cumsum(changes(mine, len(history)))
    return np.append(levels, start)[points.events]


def _lists(columns: Sequence[Ints], rows: int) -> pl.Series:
    if not columns:
        return pl.Series([None] * rows, dtype=pl.List(pl.Int64))
    table = np.stack(columns, axis=1)
    return pl.Series(table, dtype=pl.Array(pl.Int64, len(columns))).cast(pl.List(pl.Int64))
