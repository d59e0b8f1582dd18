"""The ranges and the API calls of a digest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.advice import advice_for
from gpusight.analyses.projection import project_ranges
from gpusight.analyses.statistics import names_of
from gpusight.analyses.steps.names import CLOSED
from gpusight.comparison.blocks import ranked, rounded
from gpusight.comparison.digest import Calls
from gpusight.comparison.naming import NO_NAME, family, plain
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.comparison.blocks import Blocks, Floats, Ints
    from gpusight.model.trace import Trace

MOST_NAMES = 200
"""Names of ranges, and of calls, that stand alone."""
_WHEN = ["start_ns", "end_ns", "name", "process"]
_WRAPS = 0.9
"""Part of a step from which on a range in it is nothing but the step again."""
_MOSTLY = 0.9


def range_rows(
    trace: Trace, blocks: Blocks, process: int | None, *, launched_by: pl.Series
) -> tuple[Calls, ...] | NotApplicable:
    """Sum ranges up by family, those with most host time first.

    A range that begins between steps and holds the next one, such as an epoch, is left out: it is
    no part of a step. `launched_by` are the threads that launched GPU work: where none is known, it
    cannot be told in which ranges that was.
    """
    if not trace.has("ranges"):
        called = advice_for(trace.meta).ranges_name
        return NotApplicable("ranges", f"the capture has no {called}")
    frame = trace.table("ranges", [*_WHEN, "thread", "kind", "open"])
    projected = project_ranges(trace)
    if isinstance(projected, NotApplicable) or launched_by.is_null().all():
        frame = frame.with_columns(pl.lit(None, pl.Int64).alias("work_ns"))
    else:
        frame = frame.with_columns(projected.frame["work_ns"])
    inside = _without_epochs(blocks.begun_in(_of(process, frame.filter(CLOSED))), blocks)
    inside = inside.with_columns(_outer(inside, blocks))
    return _summed(inside, family(pl.Series(names_of(frame["name"]), dtype=pl.String)), blocks)


def _without_epochs(ranges: pl.DataFrame, blocks: Blocks) -> pl.DataFrame:
    """Leave out what begins between steps, on their thread, and holds the next one."""
    later = [step.end_ns for step in (*blocks.steps[1:], *blocks.following)]
    if not later:
        return ranges
    ends = np.array([*later, np.iinfo(np.int64).max], np.int64)
    holds = pl.col("end_ns") >= pl.Series(ends[ranges["step"].to_numpy()])
    return ranges.filter(~(pl.col("after") & holds & _on_thread(blocks)))


def _on_thread(blocks: Blocks) -> pl.Expr:
    """Tell what is on the thread of the steps; anything may be where that is not known."""
    thread = blocks.steps[0].thread
    return pl.lit(True) if thread is None else pl.col("thread").eq_missing(thread)


def _outer(ranges: pl.DataFrame, blocks: Blocks) -> pl.Series:
    """Give the time of ranges that lie in no other on the thread of the steps; else 0."""
    took = np.array([step.end_ns - step.start_ns for step in blocks.steps], np.int64)
    wraps = ~pl.col("after") & (pl.col("ns") >= _WRAPS * pl.Series(took[ranges["step"].to_numpy()]))
    # In order of start, and of those that start together the longest first.
    before = pl.col("end_ns").cum_max().shift(1).over("step", "thread")
    outer = (
        ranges.with_row_index("at")
        .filter(_on_thread(blocks) & ~wraps)
        .sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
        .filter(before.is_null() | (pl.col("start_ns") >= before))
    )
    found = np.zeros(ranges.height, np.int64)
    found[outer["at"].to_numpy()] = outer["ns"].to_numpy()
    return pl.Series("outer_ns", found)


def api_rows(
    trace: Trace, blocks: Blocks, process: int | None
) -> tuple[Calls, ...] | NotApplicable:
    """Sum API calls up by name, those with most time first."""
    if not trace.has("api_calls"):
        called = advice_for(trace.meta).calls_name
        return NotApplicable("api", f"the capture has no {called}")
    frame = trace.table("api_calls", _WHEN)
    texts = pl.Series(names_of(frame["name"]), dtype=pl.String)
    return _summed(blocks.begun_in(_of(process, frame)), texts, blocks)


def _of(process: int | None, frame: pl.DataFrame) -> pl.DataFrame:
    """Keep the events of a process; those that name none may be anyone's."""
    if process is None:
        return frame
    return frame.filter((pl.col("process") == process) | pl.col("process").is_null())


def _summed(events: pl.DataFrame, texts: pl.Series, blocks: Blocks) -> tuple[Calls, ...]:
    """Add events up by what `texts` call their names; the rest is a row without a name."""
    if events.is_empty():
        return ()
    known = texts.unique().sort()
    of_name = known.search_sorted(texts).cast(pl.Int64)
    code = of_name.gather(events["name"].to_physical()).to_numpy()
    groups = ranked(code, events["ns"].to_numpy(), MOST_NAMES)
    host = blocks.sums(events, groups.code, "ns", groups.count)
    calls = blocks.sums(events, groups.code, None, groups.count)
    gpu = _gpu(events, groups.code, groups.count, blocks)
    outer = _mostly_outer(events, groups.code, groups.count)
    names = [plain(name) or NO_NAME for name in known.gather(groups.groups)] + [""]
    return tuple(
        Calls(
            name=names[at],
            calls=rounded(calls[at], 3),
            host_ns=rounded(host[at]),
            gpu_ns=None if gpu is None else rounded(gpu[at]),
            outer=bool(outer[at]) and at < len(groups.groups),
        )
        for at in range(groups.count)
    )


def _gpu(events: pl.DataFrame, code: Ints, count: int, blocks: Blocks) -> Floats | None:
    """Add up the GPU work launched inside; None where it is not known."""
    if "work_ns" not in events.columns or events["work_ns"].null_count():
        return None
    return blocks.sums(events, code, "work_ns", count)


def _mostly_outer(events: pl.DataFrame, code: Ints, count: int) -> NDArray[np.bool_]:
    """Tell of which groups most time lies in no other range."""
    if "outer_ns" not in events.columns:
        return np.zeros(count, np.bool_)
    outer, whole = (np.bincount(code, events[c].to_numpy(), count) for c in ("outer_ns", "ns"))
    most: NDArray[np.bool_] = (outer >= _MOSTLY * whole) & (outer > 0)
    return most
