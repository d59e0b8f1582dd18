"""The tables of a trace, declared once: every column's type, unit and meaning.

Times are nanoseconds from the capture's origin. Names are dictionary-encoded (`Kind.NAME`: a Polars
Enum of the strings that occur). A column that the capture cannot fill is null throughout, and
`Trace.has(table, column)` says so without reading it.
"""

from __future__ import annotations

from gpusight.model.tables.columns import Column, Kind, Table
from gpusight.model.tables.counters import (
    CODE_LINES,
    COUNTER_INSTANCES,
    COUNTERS,
    PROFILES,
    RULE_RESULTS,
    SOURCE_FILES,
)
from gpusight.model.tables.gpu import (
    COPIES,
    EVENT_RECORDS,
    GPU_METRICS,
    GPU_RANGES,
    GRAPH_LAUNCHES,
    GRAPH_NODES,
    KERNELS,
    MEMSETS,
    SYNCS,
)
from gpusight.model.tables.host import (
    API_CALLS,
    CALLCHAINS,
    COLLECTIVES,
    CPU_OPS,
    CPU_SAMPLES,
    OP_TOTALS,
    OS_CALLS,
    OVERHEADS,
    PYTHON_CALLS,
    RANGES,
    THREAD_SWITCHES,
)
from gpusight.model.tables.machine import (
    DEVICES,
    DIAGNOSTICS,
    PROCESS_GROUPS,
    PROCESSES,
    STREAMS,
    THREADS,
)
from gpusight.model.tables.memory import (
    MEMORY_BLOCKS,
    MEMORY_EVENTS,
    PAGE_FAULTS,
)

__all__ = ["TABLES", "Column", "Kind", "Table"]

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        KERNELS,
        COPIES,
        MEMSETS,
        GRAPH_LAUNCHES,
        SYNCS,
        EVENT_RECORDS,
        GRAPH_NODES,
        API_CALLS,
        RANGES,
        GPU_RANGES,
        CPU_OPS,
        PYTHON_CALLS,
        OP_TOTALS,
        COLLECTIVES,
        PROCESS_GROUPS,
        OS_CALLS,
        CPU_SAMPLES,
        THREAD_SWITCHES,
        CALLCHAINS,
        MEMORY_EVENTS,
        MEMORY_BLOCKS,
        PAGE_FAULTS,
        GPU_METRICS,
        PROFILES,
        COUNTERS,
        COUNTER_INSTANCES,
        RULE_RESULTS,
        SOURCE_FILES,
        CODE_LINES,
        OVERHEADS,
        DEVICES,
        PROCESSES,
        THREADS,
        STREAMS,
        DIAGNOSTICS,
    )
}
