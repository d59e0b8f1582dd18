"""Details of one event of the timeline: `details(trace, "kernels", 17)`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import sites_of
from gpusight.analysis.kernel_behavior import kinds_of
from gpusight.analysis.occupancy.launch_occupancy import timeline_launches, with_answers
from gpusight.analysis.selection import EVERYTHING, GPU_WORK
from gpusight.errors import UsageError
from gpusight.naming.kernel_names import unique_short_names
from gpusight.results import Composite, Fact, Field, Fmt, TableResult
from gpusight.trace.schema import TABLES
from gpusight.trace.schema_gpu import BLOCK, GRID
from gpusight.viewer.event_facts import (
    PLACE,
    DetailColumn,
    DetailSection,
    EventLink,
    causes_of_call,
    causes_of_work,
    facts_of,
    measured_facts,
    place_facts,
    same_name_section,
    section,
    time_section,
)
from gpusight.viewer.related_events import (
    TraceExcerpt,
    around,
    calls_of,
    children,
    forward_ops,
    innermost,
    launched_by_call,
    launched_inside,
    positions,
    stream_neighbors,
    thread_neighbors,
    values_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpusight.trace.trace import Trace
    from gpusight.viewer.event_facts import EventCauses
    from gpusight.viewer.related_events import LaunchedWork


MAX_LAUNCHED_SHOWN = 20
"""Launched GPU activities that are linked."""
_NESTED = {"ranges": "in range", "cpu_ops": "in operator", "python_calls": "in Python call"}
"""Tables whose events lie within each other, and what those around an event are to it."""
_HOST_PLURALS = {
    "syncs": "waits",
    "collectives": "collectives",
    "ranges": "ranges",
    "gpu_ranges": "ranges",
}
"""What several events of one name are called, where not calls."""
_SHOWN: dict[str, tuple[DetailColumn, ...]] = {
    "api_calls": (
        DetailColumn("api", "Library", Fmt.TEXT),
        DetailColumn("return_value", "Returned", Fmt.ID),
    ),
    "ranges": (
        DetailColumn("domain", "Domain", Fmt.TEXT),
        DetailColumn("category", "Category", Fmt.TEXT),
        DetailColumn("kind", "Kind", Fmt.TEXT),
        DetailColumn("payload_int", "Payload", Fmt.ID),
        DetailColumn("payload_real", "Payload", Fmt.REAL),
        DetailColumn("payload_text", "Payload", Fmt.TEXT),
    ),
    "cpu_ops": (
        DetailColumn("shapes", "Input shapes", Fmt.TEXT),
        DetailColumn("types", "Input types", Fmt.TEXT),
        DetailColumn("concrete", "Input values", Fmt.TEXT),
        DetailColumn("flops", "Operations", Fmt.COUNT),
        DetailColumn("sequence", "Autograd sequence", Fmt.ID),
    ),
    "os_calls": (DetailColumn("return_value", "Returned", Fmt.ID),),
    "syncs": (DetailColumn("kind", "Waits for", Fmt.TEXT), DetailColumn("event", "Event", Fmt.ID)),
    "gpu_ranges": (DetailColumn("kind", "Kind", Fmt.TEXT),),
    "collectives": (
        DetailColumn("side", "Side", Fmt.TEXT),
        DetailColumn("group", "Group", Fmt.TEXT),
        DetailColumn("group_description", "Called", Fmt.TEXT),
        DetailColumn("group_size", "Ranks", Fmt.COUNT),
        DetailColumn("dtype", "Type", Fmt.TEXT),
        DetailColumn("in_bytes", "Bytes sent", Fmt.BYTES),
        DetailColumn("out_bytes", "Bytes received", Fmt.BYTES),
    ),
}
"""Columns that are shown as they are."""
_PLACE = ("device", "context", "stream", "thread", "process", "correlation")
_MAX_AROUND = 8


def host_sections(
    trace: Trace, table: str, row: int, causes: EventCauses | None, launched: LaunchedWork | None
) -> Iterator[DetailSection]:
    """Return all that is known of an event of the host, or of a wait or annotation."""
    columns = _SHOWN.get(table, ())
    place = [c for c in _PLACE if c in TABLES[table].column_names]
    values = values_of(trace, table, row, [*(column.column for column in columns), *place])
    facts = [fact for fact in facts_of(table, values, columns) if fact.value != ""]
    yield from section("About", [*facts, *_open(trace, table, row)])
    if launched is not None and (len(launched) or table != "api_calls"):
        yield from section("Launched GPU work", _work_facts(launched))
    if table in _NESTED:
        count = children(trace, table, row)
        meaning = "Direct children of the same kind and thread"
        inside = Fact("children", "Children", count, Fmt.COUNT, meaning)
        yield from section("Inside", [inside])
    yield from section("Cause", _site_facts(trace, table, row, causes))
    yield from section("Location", place_facts(trace, values))
    plural = _HOST_PLURALS.get(table, "calls")
    yield from same_name_section(trace, table, _named_by(table), row, plural)


def host_links(
    trace: Trace, table: str, row: int, causes: EventCauses | None, launched: LaunchedWork | None
) -> Iterator[EventLink]:
    """Return what surrounds an event of the host, what it launched, and its neighbors."""
    if causes is not None:
        yield from (link for link in causes.links() if link[1:] != (table, row))
    elif "thread" in TABLES[table].column_names:
        yield from _surroundings(trace, table, row)
    yield from _requesting_call(trace, table, row)
    if launched is not None:
        for other, launched_row in (
            launched.frame.select("table", "row").head(MAX_LAUNCHED_SHOWN).iter_rows()
        ):
            yield EventLink("launched", other, launched_row)
    if "thread" in TABLES[table].column_names:
        before, after = thread_neighbors(trace, table, row)
        if before is not None:
            yield EventLink("previous on thread", table, before)
        if after is not None:
            yield EventLink("next on thread", table, after)


def _surroundings(trace: Trace, table: str, row: int) -> Iterator[EventLink]:
    """Return what was open around an event on its thread, its own kind first."""
    start, thread = trace.table(table, ["start_ns", "thread"]).row(row)
    if table in _NESTED:
        yield from (
            EventLink(_NESTED[table], table, outer)
            for outer in around(trace, table, row)[:_MAX_AROUND]
        )
    if table == "cpu_ops" and trace.has(table, "forward_thread"):
        forward = forward_ops(trace)[row]
        yield from () if forward is None else (EventLink("forward operator", table, forward),)
    for other, relation in _NESTED.items():
        inner = innermost(trace, other, start, thread) if other != table else None
        if inner is not None:
            yield EventLink(relation, other, inner)


def launched_of(trace: Trace, table: str, row: int) -> LaunchedWork | None:
    """Find the GPU work that an event of the host launched; None for what launches nothing."""
    if table == "api_calls":
        return launched_by_call(trace, row)
    if table == "ranges" and trace.table("ranges", ["kind"])["kind"][row] == "mark":
        return None
    names_ops = table == "cpu_ops" and any(trace.has(work, "op") for work in GPU_WORK)
    knows_launches = table in _NESTED and (names_ops or trace.has("api_calls", "correlation"))
    return launched_inside(trace, table, row) if knows_launches else None


def host_title(trace: Trace, table: str, row: int) -> str:
    """Name an event as the capture does."""
    return str(trace.table(table, [_named_by(table)]).row(row)[0])


def _named_by(table: str) -> str:
    return "kind" if table == "syncs" else "name"


def _open(trace: Trace, table: str, row: int) -> Iterator[Fact]:
    """Note that a range was never closed: it ends with the capture."""
    if table == "ranges" and trace.has(table, "open") and trace.table(table, ["open"])["open"][row]:
        yield Fact(
            "open", "Never closed", value=True, fmt=Fmt.FLAG, meaning="Ends with the capture"
        )


def _work_facts(launched: LaunchedWork) -> list[Fact]:
    if not len(launched):
        return [Fact("work", "GPU activities", 0, Fmt.COUNT, "Kernels, copies, memsets and graphs")]
    first, last = launched.frame["start_ns"].min(), launched.frame["end_ns"].max()
    return [
        Fact(
            "work", "GPU activities", len(launched), Fmt.COUNT, "Kernels, copies, memsets, graphs"
        ),
        Fact("gpu_ns", "GPU time", launched.busy_ns, Fmt.TIME, "Sum of their durations"),
        Fact("first_ns", "First starts", first, Fmt.TIME, "From the capture's origin"),
        Fact("last_ns", "Last ends", last, Fmt.TIME, "From the same origin"),
    ]


def _site_facts(trace: Trace, table: str, row: int, causes: EventCauses | None) -> Iterator[Fact]:
    if causes is not None:
        yield from causes.facts()
    elif table == "os_calls" and trace.has(table, "callchain"):
        site = sites_of(trace, table, pl.Series([row]))[0]
        yield Fact("site", "Call site", site, Fmt.TEXT, "Line of code that it comes from")


def _requesting_call(trace: Trace, table: str, row: int) -> Iterator[EventLink]:
    """Find the call and the operator that a wait, a collective or an annotation names."""
    columns = TABLES[table].column_names
    if table in ("api_calls", *_NESTED):
        return
    if "correlation" in columns:
        keys = values_of(trace, table, row, ["process", "correlation"])
        for call in calls_of(trace, keys["process"], keys["correlation"] or None)[:1]:
            yield EventLink("launched by", "api_calls", int(call))
    if "op" in columns and (op := values_of(trace, table, row, ["op"])["op"]):
        for op_row in positions(trace.table("cpu_ops", ["op"]), pl.col("op") == op)[:1]:
            yield EventLink("operator", "cpu_ops", int(op_row))


_KERNEL = (
    DetailColumn("registers_per_thread", "Registers per thread", Fmt.COUNT),
    DetailColumn("static_shared_bytes", "Static shared memory", Fmt.BYTES),
    DetailColumn("dynamic_shared_bytes", "Dynamic shared memory", Fmt.BYTES),
    DetailColumn("local_per_thread_bytes", "Local memory per thread", Fmt.BYTES),
)
_COPY = (
    DetailColumn("bytes", "Bytes", Fmt.BYTES),
    DetailColumn("src_kind", "From", Fmt.TEXT),
    DetailColumn("dst_kind", "To", Fmt.TEXT),
    DetailColumn("src_device", "From GPU", Fmt.ID),
    DetailColumn("dst_device", "To GPU", Fmt.ID),
    DetailColumn("copy_count", "Copies batched", Fmt.COUNT),
    DetailColumn("migration_cause", "Migration cause", Fmt.TEXT),
)
_MEMSET = (
    DetailColumn("bytes", "Bytes", Fmt.BYTES),
    DetailColumn("value", "Value", Fmt.ID),
    DetailColumn("memory_kind", "Memory", Fmt.TEXT),
)
_GRAPH = (DetailColumn("graph_exec", "Instantiation", Fmt.ID),)
_ARGUMENTS = {"copies": _COPY, "memsets": _MEMSET, "graph_launches": _GRAPH}
_GRAPHS = (DetailColumn("graph", "Graph", Fmt.ID), DetailColumn("graph_node", "Graph node", Fmt.ID))
_TITLES = {"kernels": "Launch", "copies": "Copy", "memsets": "Memset", "graph_launches": "Graph"}
_CLUSTER = ("cluster_x", "cluster_y", "cluster_z")
_TIMES = ("start_ns", "end_ns", *PLACE)
_COLUMNS = {
    "kernels": (
        *_TIMES,
        *("name", *GRID, *BLOCK, *_CLUSTER),
        *(one.column for one in (*_KERNEL, *_GRAPHS)),
        *("shared_bytes", "executed_shared_bytes", "occupancy"),
    ),
    "copies": (*_TIMES, "graph_node", *(one.column for one in _COPY)),
    "memsets": (*_TIMES, "graph_node", *(one.column for one in _MEMSET)),
    "graph_launches": (*_TIMES, "graph", *(one.column for one in _GRAPH)),
}
"""What is read of each table, in one go: also what the occupancy is computed from."""
_NAMED_BY = {"kernels": "name", "copies": "kind"}
_WORK_PLURALS = {"kernels": "launches", "copies": "copies of this direction"}


def work_title(trace: Trace, table: str, row: int) -> str:
    """Name a GPU activity as the capture does."""
    if table not in _NAMED_BY:
        return {"memsets": "Memset", "graph_launches": "CUDA graph"}[table]
    return str(trace.table(table, [_NAMED_BY[table]]).row(row)[0])


def work_sections(
    trace: Trace, table: str, row: int, causes: EventCauses, report: Trace | None
) -> Iterator[DetailSection]:
    """Return all that is known of a GPU activity."""
    values = values_of(trace, table, row, _COLUMNS[table])
    arguments = (
        _kernel_facts(trace, row, values) if table == "kernels" else _bytes_moved(table, values)
    )
    yield from section(_TITLES[table], arguments)
    yield from section("Cause", [*_waiting(trace, values, causes), *causes.facts()])
    graphs = facts_of(table, values, [column for column in _GRAPHS if column.column in values])
    yield from section("Location", [*place_facts(trace, values), *graphs])
    if table in _NAMED_BY:
        yield from same_name_section(trace, table, _NAMED_BY[table], row, _WORK_PLURALS[table])
    if table == "kernels" and report is not None and report.has("profiles"):
        yield from section("Nsight Compute", measured_facts(trace, row, report))


def work_links(trace: Trace, table: str, row: int, causes: EventCauses) -> Iterator[EventLink]:
    """Return what launched a GPU activity, and what its stream ran before and after."""
    yield from causes.links()
    before, after = stream_neighbors(trace, table, row)
    if before is not None:
        yield EventLink("previous on stream", *before)
    if after is not None:
        yield EventLink("next on stream", *after)


def _kernel_facts(trace: Trace, row: int, values: dict[str, Any]) -> Iterator[Fact]:
    (name,) = kinds_of(trace, [values["name"]])
    labels = unique_short_names(names_of(trace.table("kernels", ["name"])["name"]))
    short_name = labels.get(name.raw, name.short)
    yield Fact("short_name", "Kernel", short_name, Fmt.NAME, "Short name, unique in the capture")
    yield Fact(
        "category", "Category", name.category, Fmt.TEXT, "What it computes, by its name or behavior"
    )
    precision = None if name.precision == "unknown" else name.precision
    yield Fact("precision", "Precision", precision, Fmt.TEXT, "What the arithmetic runs in")
    yield Fact("tensor_core", "Tensor Cores", name.tensor_core, Fmt.FLAG, "From the kernel name")
    yield _size("grid", "Grid", [values[c] for c in GRID], "Blocks in x, y and z")
    yield _size("block", "Block", [values[c] for c in BLOCK], "Threads of a block in x, y and z")
    cluster = [values[c] for c in _CLUSTER]
    if all(cluster) and cluster != [1, 1, 1]:
        yield _size("cluster", "Cluster", cluster, "Blocks of a cluster in x, y and z")
    yield from facts_of("kernels", values, _KERNEL)
    if values["static_shared_bytes"] is None and values["dynamic_shared_bytes"] is None:
        yield from facts_of(
            "kernels", values, (DetailColumn("shared_bytes", "Shared memory", Fmt.BYTES),)
        )
    yield from _occupancy(trace, row, values["occupancy"])


def _size(key: str, label: str, sides: list[int | None], meaning: str) -> Fact:
    text = None if None in sides else " × ".join(f"{side:,}" for side in sides)
    return Fact(key, label, text, Fmt.TEXT, meaning)


def _occupancy(trace: Trace, row: int, estimated: float | None) -> Iterator[Fact]:
    """Return the theoretical occupancy and its limiters; else what the profiler estimated."""
    excerpt = TraceExcerpt(trace, {"kernels": np.array([row])}).trace
    launches = timeline_launches(excerpt, EVERYTHING, None)
    occupancy = with_answers(launches).row(0, named=True)
    meaning = "Resident warps per SM, of the maximum"
    if occupancy["computed"] is None:
        estimate = "Estimated by the profiler"
        yield Fact("occupancy", "Estimated occupancy", estimated, Fmt.SHARE, estimate)
        return
    yield Fact("occupancy", "Theoretical occupancy", occupancy["computed"], Fmt.SHARE, meaning)
    yield Fact(
        "limiters",
        "Limited by",
        occupancy["limiters"],
        Fmt.TEXT,
        "Resource that limits blocks per SM",
    )
    block_slots = (occupancy["blocks"] or 0) * (occupancy["sm_count"] or 0)
    waves = (
        occupancy["grid_blocks"] / block_slots if block_slots and occupancy["grid_blocks"] else None
    )
    fmt = Fmt.SHARE if waves is not None and waves < 1 else Fmt.REAL
    yield Fact("waves", "Waves", waves, fmt, "Waves per SM")


def _bytes_moved(table: str, values: dict[str, Any]) -> Iterator[Fact]:
    """Return what a copy or a memset moved, and how fast; of a graph what it is."""
    yield from facts_of(table, values, _ARGUMENTS[table])
    length_ns = values["end_ns"] - values["start_ns"]
    size = values.get("bytes")
    rate = size * 1e9 / length_ns if size and length_ns else None
    yield Fact("rate", "Bandwidth", rate, Fmt.RATE, "Bytes by duration")


def _waiting(trace: Trace, values: dict[str, Any], causes: EventCauses) -> Iterator[Fact]:
    """Return how long work was queued; within a graph it waits for other work."""
    if "call" not in causes.rows:
        return
    columns = ["start_ns", "end_ns"]
    call_start_ns, call_end_ns = trace.table("api_calls", columns).row(causes.rows["call"])
    if not causes.in_graph:
        queued_ns = max(0, values["start_ns"] - call_end_ns)
        meaning = "From the launch call's return to the start on the GPU"
        yield Fact("queued_ns", "Queued", queued_ns, Fmt.TIME, meaning)
    meaning = "Duration of the launch call on the host"
    yield Fact("launch_ns", "Launch call", call_end_ns - call_start_ns, Fmt.TIME, meaning)


KINDS = {
    "kernels": "Kernel",
    "copies": "Copy",
    "memsets": "Memset",
    "graph_launches": "CUDA graph",
    "syncs": "Sync",
    "api_calls": "API call",
    "ranges": "Range",
    "gpu_ranges": "GPU range",
    "cpu_ops": "Operator",
    "python_calls": "Python call",
    "collectives": "Collective",
    "os_calls": "OS call",
    "overheads": "Profiler overhead",
}
"""Tables whose events can be looked at, and what one of them is called."""


@dataclass(frozen=True, slots=True)
class EventDescription:
    """All that is known of one event."""

    table: str
    row: int
    kind: str
    """What it is, one of `KINDS`."""
    title: str
    """Its whole name."""
    sections: tuple[DetailSection, ...]
    links: tuple[EventLink, ...]
    """Events that belong to it, those that it comes from first."""


def event_details(
    trace: Trace, table: str, row: int, *, report: Trace | None = None
) -> EventDescription:
    """Describe an event; `report` holds counters of the same program's kernels."""
    if table not in KINDS:
        raise UsageError(f"no events in {table!r}", hint=f"tables are {', '.join(KINDS)}")
    rows = trace.row_count(table)
    if not 0 <= row < rows:
        raise UsageError(f"no row {row} in {table}", hint=f"it has {rows:,} rows")
    times = time_section(*trace.table(table, ["start_ns", "end_ns"]).row(row))
    if table in GPU_WORK:
        causes = causes_of_work(trace, table, row)
        return EventDescription(
            table,
            row,
            KINDS[table],
            work_title(trace, table, row),
            (*times, *work_sections(trace, table, row, causes, report)),
            tuple(work_links(trace, table, row, causes)),
        )
    made_for = causes_of_call(trace, row) if table == "api_calls" else None
    launched = launched_of(trace, table, row)
    return EventDescription(
        table,
        row,
        KINDS[table],
        host_title(trace, table, row),
        (*times, *host_sections(trace, table, row, made_for, launched)),
        tuple(host_links(trace, table, row, made_for, launched)),
    )


_LINK_FIELDS = (
    Field("relation", "Relation", Fmt.TEXT, "What the event is to this one"),
    Field("id", "Event", Fmt.TEXT, "Table and row, as `gpusight explain FILE` takes it"),
    Field("name", "Name", Fmt.NAME, "Name of the event"),
)
_EVENT_ID = re.compile(r"([a-z_]{1,40}):(\d{1,12})")


def event_of_id(text: str) -> tuple[str, int] | None:
    """Read the id of an event, such as `kernels:17`; None for anything else."""
    match = _EVENT_ID.fullmatch(text)
    return (match[1], int(match[2])) if match and match[1] in KINDS else None


def event_page(trace: Trace, table: str, row: int) -> Composite:
    """Lay out an event for a screen: facts, and the events that belong to it."""
    event = event_details(trace, table, row)
    links = [
        {
            "relation": link.relation,
            "id": f"{link.table}:{link.row}",
            "name": _title(trace, link.table, link.row),
        }
        for link in event.links
    ]
    schema = {field.key: pl.String for field in _LINK_FIELDS}
    related = TableResult("related", "Related", _LINK_FIELDS, pl.DataFrame(links, schema=schema))
    facts = tuple(
        replace(fact, key=f"{section.title}_{fact.key}".lower().replace(" ", "_"))
        for section in event.sections
        for fact in section.facts
    )
    return Composite("explain", f"{event.kind} {table}:{row}, {event.title}", facts, (related,))


def _title(trace: Trace, table: str, row: int) -> str:
    if table in GPU_WORK:
        return work_title(trace, table, row)
    return host_title(trace, table, row)
