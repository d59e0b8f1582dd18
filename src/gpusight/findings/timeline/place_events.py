"""Events of the host that a finding names: ranges, operators, calls, lines of Python, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.ledger.contributors import RECORD, families
from gpusight.analyses.statistics import names_of
from gpusight.analyses.steps.step import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.findings.timeline.rule import Where
    from gpusight.findings.timeline.timeline import Timeline
    from gpusight.model.trace import Trace

CANDIDATES = {
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "weight_ns": pl.Int64,
    "name": pl.String,
    "table": pl.String,
    "row": pl.Int64,
}
"""Columns of stretches that may be shown.

The time of each that the finding is about decides, its weight, unless it has a column `telling`.
"""
_TABLES = {
    "range": ("ranges",),
    "operator": ("cpu_ops", "ranges"),
    "call": ("api_calls", "os_calls", "overheads"),
    "site": ("python_calls",),
    "module": ("python_calls",),
}
"""Where events of each kind of place are found."""


def none() -> pl.DataFrame:
    """Give no candidates."""
    return pl.DataFrame(schema=CANDIDATES)


def host_events(
    timeline: Timeline, where: Iterable[Where], window: tuple[int, int] | None = None
) -> pl.DataFrame:
    """Find the events that places name in the judged part, or in another window."""
    schedule = timeline.schedule
    start_ns, end_ns = window or (schedule.start_ns, schedule.end_ns)
    processes = sorted({process for process, _ in schedule.threads})
    found = [none()]
    for place in where:
        for table in _TABLES.get(place.kind, ()):
            events = _named(timeline.trace, table, place.name, start_ns, end_ns)
            # What the profiler did on its own account is of no process that ran.
            kept = events if table == "overheads" else _of_processes(events, processes)
            found.append(kept.select(list(CANDIDATES)))
    if not timeline.trace.has("python_calls"):
        found.append(_from_calls(timeline, [w for w in where if w.kind == "site"]))
    return pl.concat(found)


def _named(trace: Trace, table: str, name: str, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Give the events of a name, or of names that it writes as one (`layer #`), in a window.

    Of those that reach out of it the part inside.
    """
    frame = trace.table(table, ["start_ns", "end_ns", "name", "process"])
    codes = codes_of(frame["name"], name)
    if not codes:
        return _described(frame.clear(), table, name)
    high = int(np.searchsorted(frame["start_ns"].to_numpy(), end_ns, side="left"))
    touching = frame.with_row_index("row")[:high].filter(
        pl.col("name").to_physical().is_in(codes),
        pl.col("end_ns") > start_ns,
        pl.col("end_ns") > pl.col("start_ns"),
    )
    inside = pl.col("start_ns", "end_ns").clip(start_ns, end_ns)
    return _described(touching.with_columns(inside), table, name)


def _described(events: pl.DataFrame, table: str, name: str) -> pl.DataFrame:
    row = pl.col("row").cast(pl.Int64) if "row" in events.columns else pl.lit(None, pl.Int64)
    return events.with_columns(
        (pl.col("end_ns") - pl.col("start_ns")).alias("weight_ns"),
        pl.lit(shortened(name)).alias("name"),
        pl.lit(table).alias("table"),
        row.alias("row"),
    )


def codes_of(names: pl.Series, wanted: str) -> list[int]:
    """Find the codes of the names that a place means."""
    texts = pl.Series(names_of(names), dtype=pl.String)
    for spelled in spellings(texts):
        codes = (spelled == wanted).arg_true().to_list()
        if codes:
            return codes
    return []


def spellings(texts: pl.Series) -> tuple[pl.Series, ...]:
    """Give the ways in which rules write a name, the surest first."""
    plain = texts.str.replace(RECORD, "")
    return texts, plain, texts.str.replace_all(r"\d+", "#"), families(texts)


def _of_processes(events: pl.DataFrame, processes: Sequence[int]) -> pl.DataFrame:
    own = pl.col("process").is_null() | pl.col("process").is_in(list(processes))
    return events.filter(own) if processes else events


def _from_calls(timeline: Timeline, sites: Sequence[Where]) -> pl.DataFrame:
    """Find the API calls that were made from lines of code, where Python was not recorded."""
    if not sites or not timeline.trace.has("api_calls"):
        return none()
    names = [site.name for site in sites]
    return of_calls(timeline, timeline.calls.filter(pl.col("site").is_in(names)), "site")


def of_calls(timeline: Timeline, calls: pl.DataFrame, *named_by: str) -> pl.DataFrame:
    """Make candidates of rows of `Timeline.calls`, named by the first of these columns known."""
    rows = timeline.schedule.calls.row[calls["call"].to_numpy()]
    return calls.select(
        "start_ns",
        "end_ns",
        pl.col("duration_ns").alias("weight_ns"),
        pl.coalesce(pl.col(named_by).cast(pl.String)).alias("name"),
        pl.lit("api_calls").alias("table"),
        pl.Series("row", rows, pl.Int64),
    )
