"""What is known of a piece of GPU work: a kernel, a copy, a fill, a whole graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.launch_columns import BLOCK, GRID
from gpusight.analyses.occupancy.answers import with_answers
from gpusight.analyses.occupancy.launches import timeline_launches
from gpusight.analyses.select import EVERYTHING
from gpusight.analyses.timeline.details_common import PLACE, among_its_like, place_facts
from gpusight.analyses.timeline.details_excerpt import Excerpt, values_of
from gpusight.analyses.timeline.details_kin import stream_neighbours
from gpusight.analyses.timeline.details_measured import measured_facts
from gpusight.analyses.timeline.details_parts import Link, Shown, facts_of, section
from gpusight.model.kernel_names import classify
from gpusight.result import Fact, Fmt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpusight.analyses.timeline.details_causes import Causes
    from gpusight.analyses.timeline.details_parts import Section
    from gpusight.model.trace import Trace

_KERNEL = (
    Shown("registers_per_thread", "Registers a thread", Fmt.COUNT),
    Shown("static_shared_bytes", "Static shared memory", Fmt.BYTES),
    Shown("dynamic_shared_bytes", "Dynamic shared memory", Fmt.BYTES),
    Shown("local_per_thread_bytes", "Local memory a thread", Fmt.BYTES),
)
_COPY = (
    Shown("bytes", "Bytes", Fmt.BYTES),
    Shown("src_kind", "From", Fmt.TEXT),
    Shown("dst_kind", "To", Fmt.TEXT),
    Shown("src_device", "From GPU", Fmt.ID),
    Shown("dst_device", "To GPU", Fmt.ID),
    Shown("copy_count", "Copies batched", Fmt.COUNT),
    Shown("migration_cause", "Moved because of", Fmt.TEXT),
)
_FILL = (
    Shown("bytes", "Bytes", Fmt.BYTES),
    Shown("value", "Value", Fmt.ID),
    Shown("memory_kind", "Memory", Fmt.TEXT),
)
_GRAPH = (Shown("graph_exec", "Instantiation", Fmt.ID),)
_ARGUMENTS = {"copies": _COPY, "memsets": _FILL, "graph_launches": _GRAPH}
_GRAPHS = (Shown("graph", "Graph", Fmt.ID), Shown("graph_node", "Graph node", Fmt.ID))
_TITLES = {"kernels": "Launch", "copies": "Copy", "memsets": "Fill", "graph_launches": "Graph"}
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
    "memsets": (*_TIMES, "graph_node", *(one.column for one in _FILL)),
    "graph_launches": (*_TIMES, "graph", *(one.column for one in _GRAPH)),
}
"""What is read of each table, in one go: also what the occupancy is computed from."""
_NAMED_BY = {"kernels": "name", "copies": "kind"}
_LIKE = {"kernels": "launches", "copies": "copies of this direction"}


def work_title(trace: Trace, table: str, row: int) -> str:
    """Name a piece of work as the capture does."""
    if table not in _NAMED_BY:
        return {"memsets": "Memset", "graph_launches": "CUDA graph"}[table]
    return str(trace.table(table, [_NAMED_BY[table]]).row(row)[0])


def work_sections(
    trace: Trace, table: str, row: int, causes: Causes, report: Trace | None
) -> Iterator[Section]:
    """Give all that is known of a piece of work."""
    values = values_of(trace, table, row, _COLUMNS[table])
    asked = _kernel_facts(trace, row, values) if table == "kernels" else _moved(table, values)
    yield from section(_TITLES[table], asked)
    yield from section("Cause", [*_waiting(trace, values, causes), *causes.facts()])
    yield from section("Place", [*place_facts(trace, values), *_graph_facts(table, values)])
    if table in _NAMED_BY:
        yield from among_its_like(trace, table, _NAMED_BY[table], row, _LIKE[table])
    if table == "kernels" and report is not None and report.has("profiles"):
        yield from section("Measured with counters", measured_facts(trace, row, report))


def work_links(trace: Trace, table: str, row: int, causes: Causes) -> Iterator[Link]:
    """Give who caused a piece of work, and what its stream did before and after."""
    yield from causes.links()
    before, after = stream_neighbours(trace, table, row)
    if before is not None:
        yield Link("previous on the stream", *before)
    if after is not None:
        yield Link("next on the stream", *after)


def _kernel_facts(trace: Trace, row: int, values: dict[str, Any]) -> Iterator[Fact]:
    name = classify(values["name"])
    yield Fact("short_name", "Kernel", name.short, Fmt.NAME, "Readable label made from the name")
    yield Fact("category", "Category", name.category, Fmt.TEXT, "What it computes, by its name")
    precision = None if name.precision == "unknown" else name.precision
    yield Fact("precision", "Precision", precision, Fmt.TEXT, "What the arithmetic runs in")
    yield Fact("tensor_core", "Tensor cores", name.tensor_core, Fmt.FLAG, "Told by the name")
    yield _size("grid", "Grid", [values[c] for c in GRID], "Blocks in x, y and z")
    yield _size("block", "Block", [values[c] for c in BLOCK], "Threads of a block in x, y and z")
    cluster = [values[c] for c in _CLUSTER]
    if all(cluster) and cluster != [1, 1, 1]:
        yield _size("cluster", "Cluster", cluster, "Blocks of a cluster in x, y and z")
    yield from facts_of("kernels", values, _KERNEL)
    if values["static_shared_bytes"] is None and values["dynamic_shared_bytes"] is None:
        yield from facts_of("kernels", values, (Shown("shared_bytes", "Shared memory", Fmt.BYTES),))
    yield from _occupancy(trace, row, values["occupancy"])


def _size(key: str, label: str, sides: list[int | None], meaning: str) -> Fact:
    text = None if None in sides else " × ".join(f"{side:,}" for side in sides)
    return Fact(key, label, text, Fmt.TEXT, meaning)


def _occupancy(trace: Trace, row: int, estimated: float | None) -> Iterator[Fact]:
    """Say how many warps fit an SM and what limits them; else what the profiler thought."""
    part = Excerpt(trace, {"kernels": np.array([row])}).trace
    launches = timeline_launches(part, EVERYTHING, None)
    found = with_answers(launches).row(0, named=True)
    meaning = "Warps that fit an SM, of those that it can hold"
    if found["computed"] is None:
        estimate = "Warps on an SM of those that fit, as the profiler estimated"
        yield Fact("occupancy", "Estimated occupancy", estimated, Fmt.SHARE, estimate)
        return
    yield Fact("occupancy", "Theoretical occupancy", found["computed"], Fmt.SHARE, meaning)
    yield Fact("limiters", "Limited by", found["limiters"], Fmt.TEXT, "What keeps more blocks off")
    places = (found["blocks"] or 0) * (found["sm_count"] or 0)
    waves = found["grid_blocks"] / places if places and found["grid_blocks"] else None
    fmt = Fmt.SHARE if waves is not None and waves < 1 else Fmt.REAL
    yield Fact("waves", "Waves", waves, fmt, "Times that the grid fills the GPU")


def _moved(table: str, values: dict[str, Any]) -> Iterator[Fact]:
    """Give what a copy or a fill moved, and how fast; of a graph what it is."""
    yield from facts_of(table, values, _ARGUMENTS[table])
    length_ns = values["end_ns"] - values["start_ns"]
    moved = values.get("bytes")
    rate = moved * 1e9 / length_ns if moved and length_ns else None
    yield Fact("rate", "Bandwidth", rate, Fmt.RATE, "Bytes over the time it took")


def _graph_facts(table: str, values: dict[str, Any]) -> list[Fact]:
    return facts_of(table, values, [one for one in _GRAPHS if one.column in values])


def _waiting(trace: Trace, values: dict[str, Any], causes: Causes) -> Iterator[Fact]:
    """Say how long work waited once it was launched; within a graph it waits for other work."""
    if "call" not in causes.rows:
        return
    columns = ["start_ns", "end_ns"]
    begun, returned = trace.table("api_calls", columns).row(causes.rows["call"])
    if not causes.in_graph:
        waited = max(0, values["start_ns"] - returned)
        meaning = "From the launch's return to the start on the GPU; 0 where it began before that"
        yield Fact("queued_ns", "Queued", waited, Fmt.TIME, meaning)
    meaning = "Time that the host was inside the call"
    yield Fact("launch_ns", "Launch call", returned - begun, Fmt.TIME, meaning)
