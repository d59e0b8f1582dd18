"""Steps without ranges: what the host launches, over and over again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.launches import held_tables
from gpusight.analyses.schedule.kinds import kind_of
from gpusight.analyses.schedule.schedule import CallKind
from gpusight.analyses.select import GPU_WORK
from gpusight.analyses.statistics import names_of
from gpusight.analyses.steps.period import find_period
from gpusight.analyses.steps.step import UNNAMED, Evidence, Steps
from gpusight.units import format_count

if TYPE_CHECKING:
    from gpusight.analyses.steps.period import Ints, Period
    from gpusight.model.trace import Trace

    _Columns = dict[str, tuple[str, ...]]

_SHORTEST_NS = 100_000
"""What repeats faster than this is a loop inside a step rather than a step."""
_MOST = 0.5
_NEARLY_ALL = 0.8
"""Part of the GPU work that steps must hold, with and without a wait in them."""
_OFTEN = 3
_LONG = 20
"""Repetitions that are enough, unless what repeats is this long."""
_SHAPE = ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]
_CODE: _Columns = {
    "kernels": ("name", *_SHAPE),
    "copies": ("kind", "bytes"),
    "graph_launches": ("graph",),
}
_VAGUE: _Columns = {"kernels": ("name",), "copies": ("kind",), "graph_launches": ("graph",)}


def periodic_steps(trace: Trace, work: pl.DataFrame) -> Steps | None:
    """Find steps by the order in which a process launches work and waits for it.

    `work` is what `launched` gives of that process and, where it uses several, one GPU.
    """
    if work.height < 2:
        return None
    for columns in (_CODE, _VAGUE):
        found = _steps(_launches(trace, work, columns), work["process"][0])
        if found is not None:
            return found
    return None


def _launches(trace: Trace, work: pl.DataFrame, columns: _Columns) -> pl.DataFrame:
    """List launches and waits in order, each with a code of what it is."""
    parts = [_waits(trace, work)]
    for number, table in enumerate(GPU_WORK):
        if table not in held_tables(trace, GPU_WORK):
            continue
        mine = work.filter(pl.col("table") == number)
        told = trace.table(table, list(columns.get(table, ())) or ["device"])
        key = told[mine["row"]].hash_rows(seed=number).alias("key")
        place = mine.select("launch_ns", "end_ns", "thread", *_flags(table))
        parts.append(place.with_columns(key))
    every = pl.concat(parts).sort("launch_ns", maintain_order=True)
    return every.with_columns((pl.col("key").rank("dense").cast(pl.Int64) - 1).alias("code"))


def _flags(table: str | None) -> list[pl.Expr]:
    """Say whether something may open a step, computes, is a graph; None for a wait."""
    computes = table in {"kernels", "graph_launches"}
    flags = {
        "opens": table is not None,
        "computes": computes,
        "graph": table in {None, "graph_launches"},
    }
    return [pl.lit(value).alias(name) for name, value in flags.items()]


def _waits(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """List the calls of the process that wait for the GPU."""
    calls = trace.table("api_calls", ["start_ns", "end_ns", "thread", "process", "name"])
    waits = [n for n, name in enumerate(names_of(calls["name"])) if kind_of(name) is CallKind.SYNC]
    processes = work["process"].unique().implode()
    return calls.filter(
        pl.col("name").to_physical().is_in(waits), pl.col("process").is_in(processes)
    ).select(
        pl.col("start_ns").alias("launch_ns"),
        "end_ns",
        "thread",
        *_flags(None),
        pl.col("name").to_physical().cast(pl.UInt64).alias("key"),
    )


def _steps(launches: pl.DataFrame, process: int | None) -> Steps | None:
    times = launches["launch_ns"].to_numpy()
    before = np.diff(times, prepend=times[0])
    period = find_period(launches["code"].to_numpy(), before, launches["opens"].to_numpy())
    if period is None:
        return None
    ends = _ends(launches, period)
    took = np.median(ends - times[period.starts])
    if took < _SHORTEST_NS or not _plausible(launches, period):
        return None
    count = len(ends) - _unended(times[period.starts], ends)
    frame = launches[period.starts].select(
        pl.lit(UNNAMED).alias("name"),
        pl.int_range(pl.len()).alias("number"),
        pl.col("launch_ns").alias("start_ns"),
        pl.Series("end_ns", ends),
        pl.lit(process, pl.Int64).alias("process"),
        "thread",
    )
    graphs = bool(launches["graph"][int(period.starts[0]) : period.end].all())
    how, evidence = _said(launches, period, graphs=graphs)
    return Steps.of(frame[:count], how, evidence)


def _said(launches: pl.DataFrame, period: Period, *, graphs: bool) -> tuple[str, Evidence]:
    inside = launches["opens"][int(period.starts[0]) : period.end]
    each = round(int(inside.sum()) / len(period.starts))
    if graphs:
        return "launches of CUDA graphs, which repeat", Evidence.GRAPHS
    what = "one kernel" if each == 1 else f"the same {format_count(each)} pieces of GPU work"
    return f"{what}, launched over and over", Evidence.PERIODIC


def _plausible(launches: pl.DataFrame, period: Period) -> bool:
    """Tell steps from a loop inside of one: they hold most work, and kernels, often enough."""
    inside = launches[int(period.starts[0]) : period.end]
    work, held = int(launches["opens"].sum()), int(inside["opens"].sum())
    # Layers follow each other without a wait, and what is around them is part of the step too.
    least = _MOST if held < inside.height else _NEARLY_ALL
    often = len(period.starts) >= _OFTEN or period.length >= _LONG
    return often and held >= least * work and bool(inside["computes"].any())


def _ends(launches: pl.DataFrame, period: Period) -> Ints:
    """Say when periods end: where the next begins, the last with the work that it launched."""
    times = launches["launch_ns"].to_numpy()
    done = int(launches["end_ns"][int(period.starts[-1]) : period.end].max())  # type: ignore[arg-type]
    if period.end < len(times):
        done = min(done, int(times[period.end]))
    return np.append(times[period.starts[1:]], max(done, int(times[period.end - 1]) + 1))


def _unended(starts: Ints, ends: Ints) -> int:
    """Count 1 where the end of the last step was not seen: what the host did before the next."""
    took = ends - starts
    return int(len(took) > _OFTEN and took[-1] < _NEARLY_ALL * np.median(took[:-1]))
