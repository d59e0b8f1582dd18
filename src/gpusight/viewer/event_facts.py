"""The sections of event details: time, place, causes, and what ncu measured."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import sites_of
from gpusight.analysis.attribution.work_causes import (
    causes_of_calls,
    causes_of_rows,
    names_of_causes,
)
from gpusight.analysis.capture_info import device_names
from gpusight.analysis.counters import launch_quantities as q
from gpusight.analysis.counters.kernel_quantities import stall_name
from gpusight.analysis.counters.launch_quantities import DURATION, measured
from gpusight.analysis.join.launch_matching import NEEDS, ORDER, cover, in_launch_order
from gpusight.analysis.kernel_summary import SHAPE
from gpusight.analysis.roofline.roofline_points import roofline_points
from gpusight.results import Fact, Fmt
from gpusight.trace.schema import TABLES
from gpusight.units import format_count
from gpusight.viewer.related_events import (
    TraceExcerpt,
    around,
    excerpt_of_call,
    excerpt_of_work,
    peers,
    positions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpusight.trace.trace import Trace


class EventLink(NamedTuple):
    """An event that belongs to another one."""

    relation: str
    """What it is to that one: `launched by`, `in range`, `next on the stream`, …"""
    table: str
    row: int


@dataclass(frozen=True, slots=True)
class DetailSection:
    """Facts that belong together; none of them is empty."""

    title: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class DetailColumn:
    """A column of a table, and how to show it."""

    column: str
    label: str
    fmt: Fmt


def section(title: str, facts: Iterable[Fact]) -> tuple[DetailSection, ...]:
    """Make a section of the facts that are known; none where there is none."""
    known = tuple(fact for fact in facts if fact.value is not None)
    return (DetailSection(title, known),) if known else ()


def facts_of(table: str, values: Mapping[str, Any], columns: Sequence[DetailColumn]) -> list[Fact]:
    """Make facts of columns; meanings come from the schema."""
    facts = []
    for column in columns:
        key = column.column
        meaning = TABLES[table].column(key).meaning.replace("`", "")
        facts.append(Fact(key, column.label, values[key], column.fmt, meaning))
    return facts


PLACE = ("device", "context", "stream", "process", "correlation")
"""Columns of GPU work with where it ran."""


def time_section(start_ns: int, end_ns: int) -> tuple[DetailSection, ...]:
    """Return the times of an event; an instant has no duration and no end."""
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
    """Return the GPU, stream, context, thread and process of an event."""
    if (device := values.get("device")) is not None:
        name = device_names(trace).get(device)
        text = f"{device} ({name})" if name else str(device)
        yield Fact("device", "GPU", text, Fmt.TEXT, "GPU that it ran on")
    if values.get("stream") is not None:
        yield Fact("stream", "Stream", _stream(trace, values), Fmt.TEXT, "CUDA stream")
    yield Fact("context", "Context", values.get("context"), Fmt.ID, "CUDA context")
    if (thread := values.get("thread")) is not None:
        name_text = _named(trace, "threads", "thread", thread, "tid")
        yield Fact("thread", "Thread", name_text, Fmt.TEXT, "Thread that it ran on")
    if (process := values.get("process")) is not None:
        name_text = _named(trace, "processes", "process", process, "pid")
        yield Fact("process", "Process", name_text, Fmt.TEXT, "Process that it belongs to")
    number = values.get("correlation")
    yield Fact("correlation", "Correlation", number, Fmt.ID, "Links GPU work to its API call")


def _stream(trace: Trace, values: Mapping[str, Any]) -> str:
    """Return the number of a stream, with its name where the program gave one."""
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


def same_name_section(
    trace: Trace, table: str, column: str, row: int, plural: str
) -> tuple[DetailSection, ...]:
    """Compare an event with the others of its name, where there are any."""
    same_name = peers(trace, table, column, row)
    if same_name.count < 2:
        return ()
    start, end = trace.table(table, ["start_ns", "end_ns"]).row(row)
    count = format_count(same_name.count)
    ratio = None
    if same_name.median_ns:
        ratio = f"{_times((end - start) / same_name.median_ns)} × the median of {count} {plural}"
    position = format_count(same_name.longer + 1)
    rank = f"{position} of {count} by duration" if same_name.longer else f"longest of {count}"
    return section(
        "Compared with same-name events",
        [
            Fact(
                "against", "Duration", ratio, Fmt.TEXT, "Relative to the median of same-name events"
            ),
            Fact("median_ns", "Median", same_name.median_ns, Fmt.TIME, "Median duration"),
            Fact("rank", "Rank", rank, Fmt.TEXT, "Rank by duration"),
            Fact("total_ns", "Total", same_name.total_ns, Fmt.TIME, "Sum of their durations"),
        ],
    )


def _times(ratio: float) -> str:
    """Write a ratio to two digits."""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


_LINKS = (
    ("call", "api_calls", "launched by"),
    ("op", "cpu_ops", "operator"),
    ("forward_op", "cpu_ops", "forward operator"),
    ("range", "ranges", "in range"),
    ("forward_range", "ranges", "forward in range"),
    ("module", "python_calls", "module"),
    ("call_site", "python_calls", "called from"),
)
"""Columns of an attribution, the tables that they point into, and what to call that."""
_MAX_AROUND = 8
"""Ranges around a range that are linked."""


@dataclass(frozen=True)
class EventCauses:
    """What caused an event; rows are those of the whole capture."""

    rows: dict[str, int]
    """By column of an `Attribution`; unknown ones are left out."""
    site: str | None
    """The line of code that it comes from."""
    in_graph: bool
    ranges: tuple[int, ...]
    """Ranges around the innermost one, from the inside out."""

    def links(self) -> Iterator[EventLink]:
        """Return the causes as links, the nearest first."""
        for column, table, relation in _LINKS:
            if column in self.rows:
                yield EventLink(relation, table, self.rows[column])
            if column == "range":
                yield from (EventLink("in range", table, row) for row in self.ranges[:_MAX_AROUND])

    def facts(self) -> Iterator[Fact]:
        """Return what is known of them and is no event of its own."""
        yield Fact("site", "Call site", self.site, Fmt.TEXT, "Line of code that it comes from")


def causes_of_work(trace: Trace, table: str, row: int) -> EventCauses:
    """Find what launched a GPU activity."""
    excerpt = excerpt_of_work(trace, table, row)
    causes = causes_of_rows(excerpt.trace, {table: pl.Series([0])})
    return _causes_from(trace, excerpt, causes)


def causes_of_call(trace: Trace, row: int) -> EventCauses:
    """Find what an API call was made for."""
    excerpt = excerpt_of_call(trace, row)
    return _causes_from(trace, excerpt, causes_of_calls(excerpt.trace, pl.Series([0])))


def _causes_from(trace: Trace, excerpt: TraceExcerpt, causes: pl.DataFrame) -> EventCauses:
    cause = causes.row(0, named=True)
    rows = {
        column: excerpt.original(table, cause[column])
        for column, table, _ in _LINKS
        if cause[column] is not None
    }
    site = names_of_causes(excerpt.trace, causes)["call_site"][0]
    if site is None and "call" in rows and trace.has("api_calls", "callchain"):
        site = sites_of(trace, "api_calls", pl.Series([rows["call"]]))[0]
    if rows.get("range") == rows.get("forward_range"):
        rows.pop("forward_range", None)
    outer = tuple(around(trace, "ranges", rows["range"])) if "range" in rows else ()
    return EventCauses(rows, site, bool(cause["in_graph"]), outer)


_QUANTITIES = (
    (q.SM_SHARE, "SM throughput"),
    (q.MEMORY_SHARE, "Memory throughput"),
    (q.DRAM_SHARE, "DRAM throughput"),
    (q.OCCUPANCY, "Achieved occupancy"),
)
_STALL = re.compile(
    r"smsp__(?:average_warps_issue_stalled_(?P<of_warps>\w+)_per_issue_active\.ratio"
    r"|pcsamp_warps_issue_stalled_(?P<sampled>\w+?))"
)
_NO_STALLS = re.compile(r"(?:not_)?selected|\w+_not_issued")
"""Warps that issued or could have, and the samples of others counted again."""


def measured_facts(trace: Trace, row: int, report: Trace) -> list[Fact]:
    """Return what ncu measured for the matching launch of a kernel, if there is one."""
    launch, exact = _launches(trace, report).row(row)
    if launch is None:
        return []
    launch_trace = _excerpt(report, launch)
    values = measured(launch_trace, [quantity for quantity, _ in _QUANTITIES]).row(0, named=True)
    roofline = roofline_points(launch_trace).select("roof_share", "bound").row(0, named=True)
    how = "matched by launch order" if exact else "same name, grid and block"
    return [
        Fact("launch", "Profiled launch", launch, Fmt.ID, f"Its number in the report; {how}"),
        Fact("measured_ns", "Duration (ncu)", values[DURATION], Fmt.TIME, "Alone, cold caches"),
        *(Fact(f"measured_{quantity.key}", label, values[quantity.key], Fmt.SHARE, quantity.meaning)
          for quantity, label in _QUANTITIES),
        Fact("roof_share", "Of roofline", roofline["roof_share"], Fmt.SHARE, "1 is on it"),
        Fact("bound", "Bound by", roofline["bound"], Fmt.TEXT, "Compute, memory or latency"),
        *_top_stall(launch_trace),
    ]  # fmt: skip


def _launches(trace: Trace, report: Trace) -> pl.DataFrame:
    """Return for each kernel the matching measured launch, and whether matched by sequence."""
    return trace.derive(f"measured-launches-1-{_identity(report)}", lambda: _match(trace, report))


def _match(trace: Trace, report: Trace) -> pl.DataFrame:
    columns = list(dict.fromkeys((*NEEDS, *ORDER)))
    kernels = in_launch_order(trace.table("kernels", columns).with_row_index("row"))
    profiles = report.table("profiles", ["launch", "kind", *NEEDS])
    profiles = profiles.filter(pl.col("kind").cast(pl.String) == "kernel")
    matched = cover(kernels.select(NEEDS), profiles.select(NEEDS))
    profile_rows = pl.Series(matched.right).set(pl.Series(matched.right < 0), None)
    return (
        pl.DataFrame(
            {
                "row": kernels["row"],
                "launch": profiles["launch"].gather(profile_rows),
                "exact": matched.in_sequence,
            }
        )
        .sort("row")
        .drop("row")
    )


def _identity(report: Trace) -> str:
    """Hash what a report measured: its path may hold another one tomorrow."""
    frame = report.table("profiles", [DURATION, "name", *SHAPE])
    digest = hashlib.blake2b(digest_size=12)
    for text in (report.meta.path, *names_of(frame["name"])):
        digest.update(text.encode("utf-8", "surrogateescape"))
    for column in frame.with_columns(pl.col("name").to_physical()).get_columns():
        digest.update(column.fill_null(-1).to_numpy().tobytes())
    return digest.hexdigest()


def _excerpt(report: Trace, launch: int) -> Trace:
    """Take one launch of a report with its counters."""
    of_launch = pl.col("launch") == launch
    rows = {
        table: positions(report.table(table, ["launch"]), of_launch)
        for table in ("profiles", "counters", "counter_instances")
        if report.has(table)
    }
    return TraceExcerpt(report, rows).trace


def _top_stall(launch_trace: Trace) -> Iterator[Fact]:
    """Name what warps waited for most of the time that they were resident."""
    counted: dict[str, dict[str, float]] = {"of_warps": {}, "sampled": {}}
    for metric, value in launch_trace.table("counters", ["metric", "value"]).iter_rows():
        match = _STALL.fullmatch(metric)
        if match is not None and value:
            counted[str(match.lastgroup)][match[str(match.lastgroup)]] = value
    shares = counted["of_warps"] or counted["sampled"]
    waits = {reason: n for reason, n in shares.items() if not _NO_STALLS.fullmatch(reason)}
    if waits:
        reason, value = max(waits.items(), key=lambda wait: wait[1])
        text = stall_name(reason)
        yield Fact("stall", "Top stall reason", text, Fmt.TEXT, "Most frequent warp stall")
        total = sum(n for name, n in shares.items() if not name.endswith("_not_issued"))
        share = value / total
        yield Fact("stall_share", "Stall share", share, Fmt.SHARE, "Share of resident warp time")
