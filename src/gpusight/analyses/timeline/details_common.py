"""Facts that events of every kind have: when, where, and how they compare with their like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.devices import device_names
from gpusight.analyses.timeline.details_kin import peers
from gpusight.analyses.timeline.details_parts import section
from gpusight.result import Fact, Fmt
from gpusight.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from gpusight.analyses.timeline.details_parts import Section
    from gpusight.model.trace import Trace

PLACE = ("device", "context", "stream", "process", "correlation")
"""Columns of GPU work that say where it ran."""


def time_section(start_ns: int, end_ns: int) -> tuple[Section, ...]:
    """Say when something happened; what takes no time is a moment."""
    length = end_ns - start_ns
    return section(
        "Time",
        [
            Fact("duration_ns", "Duration", length or None, Fmt.TIME, "From its start to its end"),
            Fact("start_ns", "Start", start_ns, Fmt.TIME, "From the capture's origin"),
            Fact("end_ns", "End", end_ns if length else None, Fmt.TIME, "From the same origin"),
        ],
    )


def place_facts(trace: Trace, values: Mapping[str, Any]) -> Iterator[Fact]:
    """Say on which GPU, stream or thread something ran."""
    if (device := values.get("device")) is not None:
        name = device_names(trace).get(device)
        text = f"{device} ({name})" if name else str(device)
        yield Fact("device", "GPU", text, Fmt.TEXT, "GPU that it ran on")
    if values.get("stream") is not None:
        yield Fact("stream", "Stream", _stream(trace, values), Fmt.TEXT, "CUDA stream")
    yield Fact("context", "Context", values.get("context"), Fmt.ID, "CUDA context")
    if (thread := values.get("thread")) is not None:
        called = _named(trace, "threads", "thread", thread, "tid")
        yield Fact("thread", "Thread", called, Fmt.TEXT, "Thread that it ran on")
    if (process := values.get("process")) is not None:
        called = _named(trace, "processes", "process", process, "pid")
        yield Fact("process", "Process", called, Fmt.TEXT, "Process that it belongs to")
    number = values.get("correlation")
    yield Fact("correlation", "Correlation", number, Fmt.ID, "Links GPU work to its API call")


def _stream(trace: Trace, values: Mapping[str, Any]) -> str:
    """Give the number of a stream, with its name where the program gave one."""
    known = trace.table("streams", ["process", "context", "stream", "name"]).filter(
        pl.col("stream") == values["stream"],
        *(
            pl.col(c).is_null() | pl.col(c).eq_missing(pl.lit(values.get(c), pl.Int64))
            for c in ("process", "context")
        ),
    )
    names = known["name"].drop_nulls().to_list()
    return f"{values['stream']} ({names[0]})" if names else str(values["stream"])


def _named(trace: Trace, table: str, key: str, value: int, number: str) -> str | None:
    """Name a thread or process by its name and the operating system's number."""
    rows = trace.table(table, [key, number, "name"]).filter(pl.col(key) == value)
    if rows.is_empty():
        return None
    _, known, name = rows.row(0)
    return f"{name} ({known})" if name else str(known)


def among_its_like(
    trace: Trace, table: str, column: str, row: int, what: str
) -> tuple[Section, ...]:
    """Compare an event with the others of its name, where there are any."""
    like = peers(trace, table, column, row)
    if like.count < 2:
        return ()
    start, end = trace.table(table, ["start_ns", "end_ns"]).row(row)
    count = format_count(like.count)
    against = None
    if like.median_ns:
        against = f"{_times((end - start) / like.median_ns)} × the median of {count} {what}"
    place = format_count(like.longer + 1)
    rank = f"{place} of {count}, the longest first" if like.longer else f"longest of {count}"
    return section(
        "Among its like",
        [
            Fact("against", "Duration", against, Fmt.TEXT, "Compared with others of its name"),
            Fact("median_ns", "Median", like.median_ns, Fmt.TIME, "Half of them take no longer"),
            Fact("rank", "Rank", rank, Fmt.TEXT, "Place when sorted by duration"),
            Fact("total_ns", "All together", like.total_ns, Fmt.TIME, "Sum of their durations"),
        ],
    )


def _times(ratio: float) -> str:
    """Write how many times, to two digits."""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"
