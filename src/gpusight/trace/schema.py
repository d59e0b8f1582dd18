"""The tables of a trace, each declared once; here the list of all, and those about the machine."""

from __future__ import annotations

from gpusight.trace.schema_columns import (
    PROCESS,
    ColumnKind,
    TraceColumn,
    TraceTable,
    int_column,
    name_column,
    time_column,
)
from gpusight.trace.schema_gpu import (
    CODE_LINES,
    COPIES,
    COUNTER_INSTANCES,
    COUNTERS,
    EVENT_RECORDS,
    GPU_METRICS,
    GPU_RANGES,
    GRAPH_LAUNCHES,
    GRAPH_NODES,
    KERNELS,
    MEMSETS,
    PROFILES,
    RULE_RESULTS,
    SOURCE_FILES,
    SYNCS,
)
from gpusight.trace.schema_host import (
    API_CALLS,
    CALLCHAINS,
    COLLECTIVES,
    CPU_OPS,
    CPU_SAMPLES,
    MEMORY_BLOCKS,
    MEMORY_EVENTS,
    OP_TOTALS,
    OS_CALLS,
    OVERHEADS,
    PAGE_FAULTS,
    PYTHON_CALLS,
    RANGES,
    THREAD_SWITCHES,
)

DEVICES = TraceTable(
    "devices",
    "A GPU",
    (
        int_column("device", "Key: the GPU's number in the capture", required=True),
        name_column("name", "Marketing name", required=True),
        int_column("host", "Which machine of the capture, from 0"),
        name_column("bus", "PCI bus location"),
        name_column("chip", "Chip name"),
        int_column("compute_major", "Compute capability, major"),
        int_column("compute_minor", "Compute capability, minor"),
        int_column("sm_count", "Streaming multiprocessors"),
        int_column("clock_hz", "Highest SM clock", "Hz"),
        int_column("memory_bytes", "Memory", "bytes"),
        int_column("memory_bandwidth", "Peak memory bandwidth", "bytes/s"),
        int_column("l2_bytes", "L2 cache", "bytes"),
        int_column("copy_engines", "Copy engines"),
        int_column("max_threads_per_block", "Limit"),
        int_column("max_warps_per_sm", "Limit"),
        int_column("max_blocks_per_sm", "Limit"),
        int_column("max_registers_per_sm", "Limit"),
        int_column("max_shared_per_sm_bytes", "Limit", "bytes"),
        int_column("max_shared_per_block_bytes", "Limit without opt-in", "bytes"),
        int_column("max_shared_optin_bytes", "Limit a block, with opt-in", "bytes"),
    ),
)

PROCESSES = TraceTable(
    "processes",
    "A process seen by the profiler",
    (
        int_column("process", "Key", required=True),
        int_column("pid", "The operating system's number", required=True),
        int_column("host", "Which machine of the capture, from 0"),
        name_column("name", "Executable, file name only"),
    ),
)

THREADS = TraceTable(
    "threads",
    "A thread seen by the profiler",
    (
        int_column("thread", "Key", required=True),
        PROCESS,
        int_column("tid", "The operating system's number", required=True),
        name_column("name", "Thread name"),
        int_column("priority", "Scheduling priority"),
    ),
)

STREAMS = TraceTable(
    "streams",
    "A CUDA stream",
    (
        PROCESS,
        int_column("context", "CUDA context"),
        int_column("stream", "CUDA stream", required=True),
        int_column("priority", "Priority; lower runs first"),
        name_column("name", "Name given through NVTX"),
    ),
)

PROCESS_GROUPS = TraceTable(
    "process_groups",
    "A group of ranks that communicate",
    (
        name_column("group", "Name", required=True),
        name_column("description", "What the program calls it"),
        name_column("backend", "Library: `nccl`, `gloo`, …"),
        int_column("size", "Ranks in the group"),
        name_column("ranks", "Ranks, as JSON"),
    ),
)

DIAGNOSTICS = TraceTable(
    "diagnostics",
    "What the profiler said about the capture itself",
    (
        time_column("time_ns", "When", required=False),
        name_column("severity", "`information`, `warning` or `error`", required=True),
        TraceColumn("text", ColumnKind.TEXT, "Message", required=True),
    ),
)


TABLES: dict[str, TraceTable] = {
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
