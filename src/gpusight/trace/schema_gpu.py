"""Tables of GPU activity (kernels, copies, memsets, syncs) and of hardware counters."""

from __future__ import annotations

from gpusight.trace.schema_columns import (
    CORRELATION,
    END,
    GPU_WORK_COLUMNS,
    GRAPH_NODE,
    OP,
    PROCESS,
    START,
    THREAD,
    ColumnKind,
    TraceColumn,
    TraceTable,
    int_column,
    name_column,
    real_column,
    time_column,
)

GRID = ("grid_x", "grid_y", "grid_z")
BLOCK = ("block_x", "block_y", "block_z")
"""Columns of the size of a launch, in blocks, and of a block, in threads."""

KERNELS = TraceTable(
    "kernels",
    "A kernel execution on a GPU",
    (
        *GPU_WORK_COLUMNS,
        name_column("name", "Kernel name with template arguments, demangled", required=True),
        name_column(
            "base_name", "Function name without namespace, template arguments or parameters"
        ),
        name_column("mangled_name", "Name as the compiler wrote it"),
        name_column(
            "recorded_name",
            "Name as the profiler prints it; mangled where it cannot demangle it, as of Julia",
        ),
        int_column("grid_x", "Blocks in x"),
        int_column("grid_y", "Blocks in y"),
        int_column("grid_z", "Blocks in z"),
        int_column("block_x", "Threads per block in x"),
        int_column("block_y", "Threads per block in y"),
        int_column("block_z", "Threads per block in z"),
        int_column("registers_per_thread", "Registers per thread"),
        int_column("static_shared_bytes", "Static shared memory per block", "bytes"),
        int_column("dynamic_shared_bytes", "Dynamic shared memory per block", "bytes"),
        int_column("shared_bytes", "Shared memory per block, static and dynamic", "bytes"),
        int_column(
            "executed_shared_bytes", "Shared memory per SM configured by the driver", "bytes"
        ),
        int_column("local_per_thread_bytes", "Local memory per thread", "bytes"),
        int_column("local_total_bytes", "Local memory of the launch", "bytes"),
        int_column(
            "launch_type", "CUPTI launch type: 0 regular, 1 cooperative on one GPU, 2 on several"
        ),
        int_column("cache_config", "CUPTI cache configuration"),
        int_column("grid", "Grid id given by CUPTI"),
        GRAPH_NODE,
        int_column("graph", "CUDA graph it ran in"),
        int_column("cluster_x", "Blocks per cluster in x"),
        int_column("cluster_y", "Blocks per cluster in y"),
        int_column("cluster_z", "Blocks per cluster in z"),
        real_column("blocks_per_sm", "Blocks per SM, computed by the profiler"),
        real_column("warps_per_sm", "Warps per SM, computed by the profiler"),
        real_column("occupancy", "Occupancy estimated by the profiler, from 0 to 1"),
    ),
)

COPIES = TraceTable(
    "copies",
    "A memcpy on a GPU, unified-memory migrations included",
    (
        *GPU_WORK_COLUMNS,
        int_column("bytes", "Bytes moved", "bytes", required=True),
        name_column("kind", "Direction, such as `Host-to-Device`", required=True),
        name_column("src_kind", "Kind of memory read: `Pageable`, `Pinned`, `Device`, …"),
        name_column("dst_kind", "Kind of memory written"),
        int_column("src_device", "Device read from, for peer copies"),
        int_column("dst_device", "Device written to, for peer copies"),
        int_column("copy_count", "Copies batched in this operation"),
        name_column("migration_cause", "Why unified memory moved"),
        int_column("virtual_address", "Address migrated"),
        GRAPH_NODE,
    ),
)

MEMSETS = TraceTable(
    "memsets",
    "A memset on a GPU",
    (
        *GPU_WORK_COLUMNS,
        int_column("bytes", "Bytes written", "bytes", required=True),
        int_column("value", "Value written"),
        name_column("memory_kind", "Kind of memory written"),
        GRAPH_NODE,
    ),
)

GRAPH_LAUNCHES = TraceTable(
    "graph_launches",
    "One execution of a whole CUDA graph (its kernels are not visible in such a trace)",
    (
        *GPU_WORK_COLUMNS,
        int_column("graph", "CUDA graph"),
        int_column("graph_exec", "Instantiation of the graph"),
    ),
)

SYNCS = TraceTable(
    "syncs",
    "A wait for the GPU, as CUPTI records it",
    (
        *GPU_WORK_COLUMNS,
        name_column("kind", "What the host waited for: event, stream, context", required=True),
        int_column("event", "CUDA event waited for"),
    ),
)

EVENT_RECORDS = TraceTable(
    "event_records",
    "A CUDA event recorded into a stream",
    (
        int_column("device", "Key into `devices`"),
        int_column("context", "CUDA context"),
        int_column("stream", "CUDA stream"),
        CORRELATION,
        PROCESS,
        int_column("event", "CUDA event"),
        int_column("event_sync", "Synchronization id of the event"),
    ),
)

GRAPH_NODES = TraceTable(
    "graph_nodes",
    "A node added to a CUDA graph",
    (
        START,
        END,
        THREAD,
        PROCESS,
        name_column("name", "API call that added it"),
        GRAPH_NODE,
        int_column("original_node", "Node it was cloned from"),
    ),
)

GPU_RANGES = TraceTable(
    "gpu_ranges",
    "An annotation, module or operator, projected onto the GPU work it launched; or work of a "
    "graphics library",
    (
        START,
        END,
        name_column("name", "Text given by the program", required=True),
        name_column("kind", "`annotation`, `module`, `operator` or `workload`"),
        int_column("device", "Key into `devices`"),
        int_column("stream", "CUDA stream"),
        PROCESS,
        OP,
    ),
)

GPU_METRICS = TraceTable(
    "gpu_metrics",
    "A hardware counter sampled along the timeline",
    (
        time_column("time_ns", "When"),
        int_column("device", "Key into `devices`"),
        name_column("metric", "Metric name", required=True),
        TraceColumn(
            "value", ColumnKind.REAL, "Value; a percentage where the name ends in %", required=True
        ),
    ),
)


BETWEEN_STACKS = "; "
"""Stands between the ranges of several domains in `profiles.ranges`."""
LAUNCH = int_column("launch", "Key into `profiles`", required=True)
METRIC = name_column(
    "metric", "Metric name, as in current versions of Nsight Compute", required=True
)
_VALUE = real_column("value", "Value in base units; null for text")
_TEXT = TraceColumn("text", ColumnKind.TEXT, "Value, where it is text")

PROFILES = TraceTable(
    "profiles",
    "A launch profiled with hardware counters, serialized and possibly replayed",
    (
        int_column("launch", "Key: the profiler's number of the launch, from 0", required=True),
        name_column("kind", "`kernel`, `range`, `graph` or `command list`", required=True),
        name_column("name", "Kernel name with template arguments, demangled", required=True),
        name_column(
            "base_name", "Function name without namespace, template arguments or parameters"
        ),
        name_column("mangled_name", "Name as the compiler wrote it"),
        int_column("device", "Key into `devices`"),
        int_column("context", "CUDA context"),
        int_column("stream", "CUDA stream"),
        PROCESS,
        THREAD,
        int_column("grid_x", "Blocks in x"),
        int_column("grid_y", "Blocks in y"),
        int_column("grid_z", "Blocks in z"),
        int_column("block_x", "Threads per block in x"),
        int_column("block_y", "Threads per block in y"),
        int_column("block_z", "Threads per block in z"),
        real_column("duration_ns", "GPU time of the launch", "ns"),
        int_column("compute_major", "Compute capability of its GPU, major"),
        int_column("compute_minor", "Compute capability of its GPU, minor"),
        TraceColumn(
            "ranges",
            ColumnKind.TEXT,
            "NVTX ranges open at the launch, outermost first, as `domain:outer/inner`; "
            "the default domain has no name",
        ),
        int_column("binary", "Key into `source_files` and `code_lines`: its code"),
        int_column(
            "address",
            "Address of that code: `counter_instances.instance` of an instruction minus "
            "this is its `code_lines.offset`",
        ),
    ),
)

COUNTERS = TraceTable(
    "counters",
    "A metric or attribute of one launch",
    (
        LAUNCH,
        METRIC,
        _VALUE,
        _TEXT,
        name_column("unit", "Unit of the value: `byte`, `ns`, `%`, `inst/cycle`, …"),
        name_column("label", "Name of the metric in the file, where it differs"),
        int_column("instances", "Parts of the value in `counter_instances`; null for none"),
    ),
)

COUNTER_INSTANCES = TraceTable(
    "counter_instances",
    "One part of a counter: of an instruction, a unit, a moment or a kind of operation",
    (
        LAUNCH,
        METRIC,
        int_column(
            "instance",
            "What it is a part of: an instruction's address, a moment in nanoseconds, a number",
        ),
        name_column("key", "The same, where the profiler names it by a text"),
        _VALUE,
        _TEXT,
    ),
)

RULE_RESULTS = TraceTable(
    "rule_results",
    "Results of the profiler's own rules for a launch",
    (
        LAUNCH,
        name_column("rule", "The rule's identifier, such as `SOLBottleneck`", required=True),
        name_column("title", "Display name of the rule"),
        name_column("section", "Section of the report"),
        name_column("kind", "`ok`, `information`, `warning`, `error` or `optimization`"),
        TraceColumn("message", ColumnKind.TEXT, "Message of the profiler"),
        name_column("speedup_kind", "`global` for the whole launch, `local` for a part of it"),
        real_column("speedup_percent", "Speedup estimated by the profiler", "%"),
    ),
)

SOURCE_FILES = TraceTable(
    "source_files",
    "A source file that the capture contains or names",
    (
        int_column("binary", "Which code was compiled from it", required=True),
        TraceColumn("path", ColumnKind.TEXT, "Path when compiled, without the user's home"),
        TraceColumn("content", ColumnKind.TEXT, "Its text; null when the capture only names it"),
    ),
)

CODE_LINES = TraceTable(
    "code_lines",
    "Source line of a machine instruction",
    (
        int_column("binary", "Which code it is part of", required=True),
        name_column("function", "Kernel or device function, as the compiler wrote it"),
        int_column("offset", "Instruction, in bytes from the function's start", required=True),
        TraceColumn("path", ColumnKind.TEXT, "Source file, without the user's home"),
        int_column("line", "Line in it, from 1"),
    ),
)
