"""What stands behind an event of the timeline: `details(trace, "kernels", 17)`.

Facts are formatted by whoever shows them. What the capture cannot tell is left out, never shown as
zero. The answer takes a moment on captures of any size, as only the rows are looked at that bear on
the event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.analyses.select import GPU_WORK
from gpusight.analyses.timeline.details_causes import causes_of_call, causes_of_work
from gpusight.analyses.timeline.details_common import time_section
from gpusight.analyses.timeline.details_of_host import (
    host_links,
    host_sections,
    host_title,
    launched_of,
)
from gpusight.analyses.timeline.details_of_work import work_links, work_sections, work_title
from gpusight.analyses.timeline.details_parts import Link, Section
from gpusight.errors import UsageError

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

__all__ = ["KINDS", "Details", "Link", "Section", "details"]

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
class Details:
    """All that is known of one event."""

    table: str
    row: int
    kind: str
    """What it is, one of `KINDS`."""
    title: str
    """Its whole name."""
    sections: tuple[Section, ...]
    links: tuple[Link, ...]
    """Events that belong to it, those that it comes from first."""


def details(trace: Trace, table: str, row: int, *, report: Trace | None = None) -> Details:
    """Say what is known of an event; `report` holds counters of the same program's kernels."""
    _check(trace, table, row)
    times = time_section(*trace.table(table, ["start_ns", "end_ns"]).row(row))
    if table in GPU_WORK:
        causes = causes_of_work(trace, table, row)
        return Details(
            table,
            row,
            KINDS[table],
            work_title(trace, table, row),
            (*times, *work_sections(trace, table, row, causes, report)),
            tuple(work_links(trace, table, row, causes)),
        )
    made_for = causes_of_call(trace, row) if table == "api_calls" else None
    launched = launched_of(trace, table, row)
    return Details(
        table,
        row,
        KINDS[table],
        host_title(trace, table, row),
        (*times, *host_sections(trace, table, row, made_for, launched)),
        tuple(host_links(trace, table, row, made_for, launched)),
    )


def _check(trace: Trace, table: str, row: int) -> None:
    if table not in KINDS:
        raise UsageError(f"no events in {table!r}", hint=f"tables are {', '.join(KINDS)}")
    rows = trace.row_count(table)
    if not 0 <= row < rows:
        raise UsageError(f"no row {row} in {table}", hint=f"it has {rows:,} rows")
