"""Steps by ranges that repeat, whatever they are called.

On the thread whose ranges hold most launches, the outermost ranges are looked at; where they do not
repeat and one of them holds nearly everything, those inside it, and so on. What repeats is one name
(`forward`, `forward`, …) or a round of several (`forward`, `backward`, `optimizer`, …): a step
begins with the first of each round. Names are equal but for the numbers in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.attribution.nested import NONE, Nested
from gpusight.analyses.steps.names import closed_ranges, named_like
from gpusight.analyses.steps.period import find_period
from gpusight.analyses.steps.step import UNNAMED, Evidence, Steps, shortened

if TYPE_CHECKING:
    from gpusight.analyses.steps.period import Ints, Period
    from gpusight.model.trace import Trace

_DEEPEST = 16
_NEARLY_ALL = 0.6
"""Part of the launches that a range must hold to be looked into."""
_MOST = 0.5
"""Part of the launches that steps must hold, of all; and ranges, of a step."""
_SOME = 0.1
"""Part of a step's launches that is more than chance."""
_UNLIKE = 0.25
"""Part by which what a step launches may differ from the others."""
_AGAIN = 3
"""Ranges of one name that are enough; a round of several names is enough twice."""
_NAMED = 3
_OPERATOR = (
    r"^(?:(?:aten|prim|autograd|c10d?|cub|thrust)::|[nr]ccl|gloo:|cudnn|cublas|cusparse|cufft)|"
    r", (?:seq|op_id) = \d"
)
"""Ranges that the framework puts around each operator, and libraries around their calls."""


def repeated_steps(trace: Trace, work: pl.DataFrame) -> Steps | None:
    """Find steps by ranges that repeat; `work` is what `launched` gives of one process."""
    if not trace.has("ranges") or work.is_empty():
        return None
    process = work["process"][0]
    ranges = closed_ranges(trace).filter(
        pl.col("process").eq_missing(process), pl.col("end_ns") > pl.col("start_ns")
    )
    ranges = named_like(ranges, _OPERATOR, keep=False)
    level = _outermost(ranges, work["launch_ns"].to_numpy())
    if level is None:
        return None
    nested, at = level
    for _ in range(_DEEPEST):
        found = _steps(_rows(ranges, nested, at), work)
        if found is not None:
            return found
        held = _launches(nested.starts[at], nested.ends[at], work["launch_ns"].to_numpy())
        if not len(at) or held.max() < _NEARLY_ALL * work.height:
            return None
        at = np.flatnonzero(nested.outer == at[int(np.argmax(held))])
    return None


def _outermost(ranges: pl.DataFrame, times: Ints) -> tuple[Nested, Ints] | None:
    """Lay out the ranges of the thread whose outermost ones hold most launches."""
    if ranges.is_empty():
        return None
    every, top = _laid_out(ranges)
    rows = every.rows[top]
    held = pl.DataFrame(
        {
            "thread": ranges["thread"][rows],
            "row": rows,
            "held": _launches(every.starts[top], every.ends[top], times),
        }
    )
    threads = held.group_by("thread").agg(pl.col("held").sum(), pl.col("row").min())
    thread, most, _ = threads.sort("held", "row", descending=[True, False]).row(0)
    if not most:
        return None
    at = ranges.with_row_index("at").filter(pl.col("thread").eq_missing(thread))
    nested, top = _laid_out(at)
    moved = at["at"].cast(pl.Int64).to_numpy()[nested.rows]
    return Nested(moved, nested.starts, nested.ends, nested.threads, nested.known), top


def _laid_out(ranges: pl.DataFrame) -> tuple[Nested, Ints]:
    """Lay ranges out, and say which lie in no other of their thread."""
    start, end = (ranges[c].to_numpy() for c in ("start_ns", "end_ns"))
    nested = Nested.of(start, end, ranges["thread"])
    return nested, np.flatnonzero(nested.outer == NONE)


def _rows(ranges: pl.DataFrame, nested: Nested, at: Ints) -> pl.DataFrame:
    return ranges[nested.rows[at]].sort("start_ns", maintain_order=True)


def _launches(starts: Ints, ends: Ints, times: Ints) -> Ints:
    held: Ints = np.searchsorted(times, ends) - np.searchsorted(times, starts)
    return np.maximum(held, 0)


def _steps(level: pl.DataFrame, work: pl.DataFrame) -> Steps | None:
    """Make steps of ranges side by side, where they repeat and hold most of the work."""
    if level.height < 2:
        return None
    names = level["name"].cast(pl.String)
    family = names.str.replace_all(r"\d+", "#").rank("dense").cast(pl.Int64).to_numpy() - 1
    start, end = (level[c].to_numpy() for c in ("start_ns", "end_ns"))
    before = np.maximum(start - np.append(start[:1], end[:-1]), 0)
    period = find_period(family, before, np.ones(len(family), np.bool_))
    if period is None or (period.length == 1 and len(period.starts) < _AGAIN):
        return None
    times = work["launch_ns"].to_numpy()
    starts, ends = _bounds(start, end, period, times)
    if not _plausible(_launches(starts, ends, times), len(times)):
        return None
    first = period.starts[-len(starts) :]
    whole = np.array_equal(start[first], starts) and np.array_equal(end[first], ends)
    frame = level[first].select(
        (names[first] if whole else pl.lit(UNNAMED)).alias("name"),
        pl.int_range(pl.len()).alias("number"),
        pl.Series("start_ns", starts),
        pl.Series("end_ns", ends),
        "process",
        "thread",
    )
    return Steps.of(frame, _said(names, period), Evidence.REPEATED)


def _plausible(held: Ints, work: int) -> bool:
    """Tell whether steps hold most of the work, and most of them about as much as the others."""
    usual = float(np.median(held))
    alike = np.abs(held - usual) <= _UNLIKE * usual
    return bool(held.sum() >= _MOST * work and alike.mean() >= _NEARLY_ALL)


def _bounds(start: Ints, end: Ints, period: Period, times: Ints) -> tuple[Ints, Ints]:
    """Say when steps begin and end.

    Ranges of one name that hold most of the work are the steps themselves. Otherwise a step lasts
    until the next begins; unless work that belongs to one comes before the first range: then it
    ends with its last range, an optimizer's, and begins where the one before ended.
    """
    starts = start[period.starts]
    lasts = np.append(period.starts[1:], period.end) - 1
    closes = np.maximum.accumulate(end)[lasts]
    if period.length == 1 and _cover(starts, closes, times) >= _MOST:
        return starts, closes
    ends = np.append(starts[1:], closes[-1])
    usual = float(np.median(_launches(starts, ends, times)[:-1]))
    ahead = int(np.searchsorted(times, starts[0]))
    missing = round(usual) - int(_launches(starts[-1:], ends[-1:], times)[0])
    if missing < _SOME * usual or ahead < _MOST * missing:
        return starts, ends
    begins = int(times[max(0, ahead - missing)])
    return np.append(begins, closes[:-1]), closes


def _cover(starts: Ints, ends: Ints, times: Ints) -> float:
    """Measure the part of the launches, from the first range to the last, that is inside them."""
    between = _launches(starts[:1], ends[-1:], times)[0]
    return float(_launches(starts, ends, times).sum() / between) if between else 0.0


def _said(names: pl.Series, period: Period) -> str:
    whole = names[int(period.starts[0]) : int(period.starts[0]) + period.length]
    distinct = whole.unique(maintain_order=True)
    shown = ", ".join(repr(shortened(name)) for name in distinct[:_NAMED])
    more = " and more" if len(distinct) > _NAMED else ""
    return f"ranges that repeat: {shown}{more}"
