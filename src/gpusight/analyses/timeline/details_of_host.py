"""What is known of an event of the host: a call, an operator, a range, a line of Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.ledger.chains import sites_of
from gpusight.analyses.select import GPU_WORK
from gpusight.analyses.timeline.details_common import among_its_like, place_facts
from gpusight.analyses.timeline.details_excerpt import (
    calls_of,
    forward_ops,
    positions,
    values_of,
)
from gpusight.analyses.timeline.details_kin import (
    around,
    children,
    innermost,
    launched_by_call,
    launched_inside,
    thread_neighbours,
)
from gpusight.analyses.timeline.details_parts import Link, Shown, facts_of, section
from gpusight.model.schema import TABLES
from gpusight.result import Fact, Fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analyses.timeline.details_causes import Causes
    from gpusight.analyses.timeline.details_kin import Launched
    from gpusight.analyses.timeline.details_parts import Section
    from gpusight.model.trace import Trace

MOST_LAUNCHED = 20
"""Pieces of launched work that are linked."""
_NESTED = {"ranges": "in range", "cpu_ops": "in operator", "python_calls": "in Python call"}
"""Tables whose events lie within each other, and what those around an event are to it."""
_LIKE = {"syncs": "waits", "collectives": "collectives", "ranges": "ranges", "gpu_ranges": "ranges"}
"""What several events of one name are called, where not calls."""
_SHOWN: dict[str, tuple[Shown, ...]] = {
    "api_calls": (
        Shown("api", "Library", Fmt.TEXT),
        Shown("return_value", "Returned", Fmt.ID),
    ),
    "ranges": (
        Shown("domain", "Domain", Fmt.TEXT),
        Shown("category", "Category", Fmt.TEXT),
        Shown("kind", "Kind", Fmt.TEXT),
        Shown("payload_int", "Payload", Fmt.ID),
        Shown("payload_real", "Payload", Fmt.REAL),
        Shown("payload_text", "Payload", Fmt.TEXT),
    ),
    "cpu_ops": (
        Shown("shapes", "Sizes of inputs", Fmt.TEXT),
        Shown("types", "Types of inputs", Fmt.TEXT),
        Shown("concrete", "Values of inputs", Fmt.TEXT),
        Shown("flops", "Operations", Fmt.COUNT),
        Shown("sequence", "Autograd number", Fmt.ID),
    ),
    "os_calls": (Shown("return_value", "Returned", Fmt.ID),),
    "syncs": (Shown("kind", "Waits for", Fmt.TEXT), Shown("event", "Event", Fmt.ID)),
    "gpu_ranges": (Shown("kind", "Kind", Fmt.TEXT),),
    "collectives": (
        Shown("side", "Side", Fmt.TEXT),
        Shown("group", "Group", Fmt.TEXT),
        Shown("group_description", "Called", Fmt.TEXT),
        Shown("group_size", "Ranks", Fmt.COUNT),
        Shown("dtype", "Type", Fmt.TEXT),
        Shown("in_bytes", "Bytes given", Fmt.BYTES),
        Shown("out_bytes", "Bytes received", Fmt.BYTES),
    ),
}
"""Columns that are shown as they are."""
_PLACE = ("device", "context", "stream", "thread", "process", "correlation")
_MOST_AROUND = 8


def host_sections(
    trace: Trace, table: str, row: int, causes: Causes | None, launched: Launched | None
) -> Iterator[Section]:
    """Give all that is known of an event of the host, or of a wait or annotation."""
    shown = _SHOWN.get(table, ())
    place = [c for c in _PLACE if c in TABLES[table].column_names]
    values = values_of(trace, table, row, [*(one.column for one in shown), *place])
    told = [fact for fact in facts_of(table, values, shown) if fact.value != ""]
    yield from section("About", [*told, *_open(trace, table, row)])
    if launched is not None and (len(launched) or table != "api_calls"):
        yield from section("Launched on the GPU", _work_facts(launched))
    yield from section("Inside", _inside(trace, table, row))
    yield from section("Cause", _site_facts(trace, table, row, causes))
    yield from section("Place", place_facts(trace, values))
    what = _LIKE.get(table, "calls")
    yield from among_its_like(trace, table, _named_by(table), row, what)


def host_links(
    trace: Trace, table: str, row: int, causes: Causes | None, launched: Launched | None
) -> Iterator[Link]:
    """Give what surrounds an event of the host, what it launched, and its neighbours."""
    if causes is not None:
        yield from (link for link in causes.links() if link[1:] != (table, row))
    elif "thread" in TABLES[table].column_names:
        yield from _surroundings(trace, table, row)
    yield from _asked_by(trace, table, row)
    if launched is not None:
        for other, at in launched.frame.select("table", "row").head(MOST_LAUNCHED).iter_rows():
            yield Link("launched", other, at)
    if "thread" in TABLES[table].column_names:
        before, after = thread_neighbours(trace, table, row)
        if before is not None:
            yield Link("previous on the thread", table, before)
        if after is not None:
            yield Link("next on the thread", table, after)


def _surroundings(trace: Trace, table: str, row: int) -> Iterator[Link]:
    """Give what was open around an event on its thread, its own kind first."""
    start, thread = trace.table(table, ["start_ns", "thread"]).row(row)
    if table in _NESTED:
        yield from (
            Link(_NESTED[table], table, outer) for outer in around(trace, table, row)[:_MOST_AROUND]
        )
    if table == "cpu_ops" and trace.has(table, "forward_thread"):
        forward = forward_ops(trace)[row]
        yield from () if forward is None else (Link("forward operator", table, forward),)
    for other, relation in _NESTED.items():
        inner = innermost(trace, other, start, thread) if other != table else None
        if inner is not None:
            yield Link(relation, other, inner)


def launched_of(trace: Trace, table: str, row: int) -> Launched | None:
    """Find the GPU work that an event of the host launched; None for what launches nothing."""
    if table == "api_calls":
        return launched_by_call(trace, row)
    if table == "ranges" and trace.table("ranges", ["kind"])["kind"][row] == "mark":
        return None
    named = table == "cpu_ops" and any(trace.has(work, "op") for work in GPU_WORK)
    told = table in _NESTED and (named or trace.has("api_calls", "correlation"))
    return launched_inside(trace, table, row) if told else None


def host_title(trace: Trace, table: str, row: int) -> str:
    """Name an event as the capture does."""
    return str(trace.table(table, [_named_by(table)]).row(row)[0])


def _named_by(table: str) -> str:
    return "kind" if table == "syncs" else "name"


def _open(trace: Trace, table: str, row: int) -> Iterator[Fact]:
    """Say that a range was never closed: its end is then that of the capture."""
    if table == "ranges" and trace.has(table, "open") and trace.table(table, ["open"])["open"][row]:
        yield Fact(
            "open", "Never closed", value=True, fmt=Fmt.FLAG, meaning="Ends with the capture"
        )


def _work_facts(launched: Launched) -> list[Fact]:
    if not len(launched):
        return [Fact("work", "Pieces of work", 0, Fmt.COUNT, "Kernels, copies, fills and graphs")]
    first, last = launched.frame["start_ns"].min(), launched.frame["end_ns"].max()
    return [
        Fact("work", "Pieces of work", len(launched), Fmt.COUNT, "Kernels, copies, fills, graphs"),
        Fact("gpu_ns", "GPU time", launched.busy_ns, Fmt.TIME, "Durations of them, summed"),
        Fact("first_ns", "First starts", first, Fmt.TIME, "From the capture's origin"),
        Fact("last_ns", "Last ends", last, Fmt.TIME, "From the same origin"),
    ]


def _inside(trace: Trace, table: str, row: int) -> Iterator[Fact]:
    if table in _NESTED:
        count = children(trace, table, row)
        meaning = "Events of the same kind and thread that nothing else in it holds"
        yield Fact("children", "Directly inside", count, Fmt.COUNT, meaning)


def _site_facts(trace: Trace, table: str, row: int, causes: Causes | None) -> Iterator[Fact]:
    if causes is not None:
        yield from causes.facts()
    elif table == "os_calls" and trace.has(table, "callchain"):
        site = sites_of(trace, table, pl.Series([row]))[0]
        yield Fact("site", "Call site", site, Fmt.TEXT, "Line of code that it comes from")


def _asked_by(trace: Trace, table: str, row: int) -> Iterator[Link]:
    """Find the call and the operator that a wait, a collective or an annotation names."""
    columns = TABLES[table].column_names
    if table in ("api_calls", *_NESTED):
        return
    if "correlation" in columns:
        named = values_of(trace, table, row, ["process", "correlation"])
        for call in calls_of(trace, named["process"], named["correlation"] or None)[:1]:
            yield Link("launched by", "api_calls", int(call))
    if "op" in columns and (op := values_of(trace, table, row, ["op"])["op"]):
        for at in positions(trace.table("cpu_ops", ["op"]), pl.col("op") == op)[:1]:
            yield Link("operator", "cpu_ops", int(at))
