"""Finds event names that contain a text, and the next event of a name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.name_patterns import matcher
from gpusight.errors import UsageError
from gpusight.naming.kernel_names import unique_short_names
from gpusight.viewer.event_details import KINDS

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace


_NAMED_BY = {
    "kernels": "name",
    "ranges": "name",
    "cpu_ops": "name",
    "api_calls": "name",
    "python_calls": "name",
    "os_calls": "name",
    "copies": "kind",
    "gpu_ranges": "name",
    "collectives": "name",
    "syncs": "kind",
    "overheads": "name",
}
"""Tables that are searched, and the column that names their events."""
_WILD = frozenset("*?[")
_MAX_QUERY_CHARS = 500
_MAX_NAME_CHARS = 2_000
"""What a glob looks at, as elsewhere."""
_REASON = re.compile(r"^(?:regex )?error: (.+?)\.?$", re.MULTILINE)
"""Where the message of a refused regular expression has the reason."""
_MAX_LABELLED = 20_000
"""Kernels that are also found by their readable labels; making labels takes a while."""


@dataclass(frozen=True, slots=True)
class NamedEvents:
    """Events of one name."""

    table: str
    kind: str
    """What one of them is, as `EventDescription.kind`."""
    name: str
    code: int
    """Physical code of the name in its column, for `next_event`."""
    count: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found."""

    query: str
    groups: tuple[NamedEvents, ...]
    """Those with most time first."""
    total: int
    """Names that matched, of which `groups` are the first."""


def search(trace: Trace, query: str, limit: int = 50) -> SearchResult:
    """Find the names that hold a text, or that a glob or a regular expression (`/…/`) matches.

    Capitals do not matter but in regular expressions. Kernels are also found by their readable
    labels. Raises UsageError for what is no regular expression.
    """
    if not query.strip() or len(query) > _MAX_QUERY_CHARS:
        return SearchResult(query, (), 0)
    parts = [_matching(trace, table, query) for table in _NAMED_BY if trace.has(table)]
    names = pl.concat([pl.DataFrame(schema=_FOUND), *parts])
    order = {"total_ns": True, "count": True, "name": False, "table": False}
    first = names.sort(list(order), descending=list(order.values())).head(limit)
    groups = [
        NamedEvents(table, KINDS[table], name, code, count, total_ns)
        for table, code, count, total_ns, name in first.iter_rows()
    ]
    return SearchResult(query, tuple(groups), names.height)


def next_event(trace: Trace, table: str, code: int, time_ns: int, direction: int) -> int | None:
    """Return the row of the next event of a name that starts after a time, or before it.

    After the last one comes the first again. None where the name does not occur.
    """
    if table not in _NAMED_BY:
        raise UsageError(f"no names in {table!r}", hint=f"tables are {', '.join(_NAMED_BY)}")
    if not trace.has(table):
        return None
    frame = trace.table(table, ["start_ns", _NAMED_BY[table]])
    rows = np.flatnonzero(frame[_NAMED_BY[table]].to_physical().to_numpy() == code)
    if not len(rows):
        return None
    starts = frame["start_ns"].to_numpy()[rows]
    if direction > 0:
        at = int(np.searchsorted(starts, time_ns, side="right"))
    else:
        at = int(np.searchsorted(starts, time_ns, side="left")) - 1
    return int(rows[at % len(rows)])


_FOUND = {
    "table": pl.String,
    "code": pl.UInt32,
    "count": pl.Int64,
    "total_ns": pl.Int64,
    "name": pl.String,
}


def _matching(trace: Trace, table: str, query: str) -> pl.DataFrame:
    """Return the names of a table that a query means, with how often and how long they occur."""
    totals = _totals(trace, table)
    column = trace.table(table, [_NAMED_BY[table]]).to_series()
    totals = totals.with_columns(
        pl.lit(table).alias("table"),
        pl.Series("name", names_of(column), pl.String).gather(totals["code"]),
    )
    hit = _hits(totals["name"], query)
    if table == "kernels" and totals.height <= _MAX_LABELLED:
        short = unique_short_names(names_of(column))
        labels = pl.Series([short[name] for name in totals["name"]], dtype=pl.String)
        hit |= _hits(labels, query)
    return totals.filter(hit).select(list(_FOUND))


def _totals(trace: Trace, table: str) -> pl.DataFrame:
    """Sum up the events of each name: `code`, `count`, `total_ns`."""
    column = _NAMED_BY[table]

    def compute() -> pl.DataFrame:
        return (
            trace.table(table, ["start_ns", "end_ns", column])
            .select(
                pl.col(column).to_physical().cast(pl.UInt32).alias("code"),
                (pl.col("end_ns") - pl.col("start_ns")).alias("ns"),
            )
            .group_by("code")
            .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("ns").sum().alias("total_ns"))
            .sort("code")
        )

    return trace.derive(f"name-totals-{table}-1", compute)


def _hits(names: pl.Series, query: str) -> pl.Series:
    """Return which names a query means; a regular expression is `/…/` or `regex:…`."""
    if query.startswith("regex:"):
        return _search(names, query.removeprefix("regex:"))
    if len(query) > 2 and query.startswith("/") and query.endswith("/"):
        return _search(names, query[1:-1])
    lower = names.str.to_lowercase()
    hit = lower.str.contains(query.lower(), literal=True)
    # What looks like a glob may be part of a name, as in `float*`: then it counts as it stands.
    if _WILD.intersection(query):
        matches = matcher(query.lower())
        globbed = [matches(name) is not None for name in lower.str.slice(0, _MAX_NAME_CHARS)]
        hit |= pl.Series(globbed, dtype=pl.Boolean)
    return hit


def _search(names: pl.Series, regex: str) -> pl.Series:
    """Search names by a regular expression, without backtracking."""
    try:
        return names.str.contains(regex)
    except pl.exceptions.ComputeError as error:
        *_, why = _REASON.findall(str(error)) or [""]
        raise UsageError(f"{regex!r} is not a regular expression to search for", why=why) from error
