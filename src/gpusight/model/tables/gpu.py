"""Tables of what GPUs did."""

from __future__ import annotations

from gpusight.model.tables.columns import (
    CORRELATION,
    END,
    GPU_WORK_COLUMNS,
    GRAPH_NODE,
    OP,
    PROCESS,
    START,
    THREAD,
    Column,
    Kind,
    Table,
    int_column,
    name_column,
    real_column,
    time_column,
)

KERNELS = Table(
    "kernels",
    "A kernel execution on a GPU",
    (
        *GPU_WORK_COLUMNS,
        name_column("name", "Kernel name with template arguments, demangled", required=True),
        name_column(
            "base_name", "Function name without namespace, template arguments or parameters"
        ),
        name_column("mangled_name", "Name as the compiler wrote it"),
        int_column("grid_x", "Blocks in x"),
        int_column("grid_y", "Blocks in y"),
        int_column("grid_z", "Blocks in z"),
        int_column("block_x", "Threads a block in x"),
        int_column("block_y", "Threads a block in y"),
        int_column("block_z", "Threads a block in z"),
        int_column("registers_per_thread", "Registers of each thread"),
        int_column("static_shared_bytes", "Shared memory fixed at compile time, a block", "bytes"),
        int_column("dynamic_shared_bytes", "Shared memory asked for at launch, a block", "bytes"),
        int_column("shared_bytes", "Shared memory a block, static and dynamic together", "bytes"),
        int_column("executed_shared_bytes", "Shared memory the driver configured, an SM", "bytes"),
        int_column("local_per_thread_bytes", "Local memory of each thread", "bytes"),
        int_column("local_total_bytes", "Local memory of the launch", "bytes"),
        int_column(
            "launch_type", "CUPTI launch type: 0 regular, 1 cooperative on one GPU, 2 on several"
        ),
        int_column("cache_config", "CUPTI cache configuration"),
        int_column("grid", "Grid id given by CUPTI"),
        GRAPH_NODE,
        int_column("graph", "CUDA graph it ran in"),
        int_column("cluster_x", "Blocks a cluster in x"),
        int_column("cluster_y", "Blocks a cluster in y"),
        int_column("cluster_z", "Blocks a cluster in z"),
        real_column("blocks_per_sm", "Blocks of the launch for each SM, as the profiler computed"),
        real_column("warps_per_sm", "Warps of the launch for each SM, as the profiler computed"),
        real_column("occupancy", "Occupancy that the profiler estimated, from 0 to 1"),
    ),
)

COPIES = Table(
    "copies",
    "A memory copy done by a GPU, unified-memory migrations included",
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

MEMSETS = Table(
    "memsets",
    "A memory fill done by a GPU",
    (
        *GPU_WORK_COLUMNS,
        int_column("bytes", "Bytes written", "bytes", required=True),
        int_column("value", "Value written"),
        name_column("memory_kind", "Kind of memory written"),
        GRAPH_NODE,
    ),
)

GRAPH_LAUNCHES = Table(
    "graph_launches",
    "One execution of a whole CUDA graph (its kernels are not visible in such a trace)",
    (
        *GPU_WORK_COLUMNS,
        int_column("graph", "CUDA graph"),
        int_column("graph_exec", "Instantiation of the graph"),
    ),
)

SYNCS = Table(
    "syncs",
    "A wait for the GPU, as CUPTI records it",
    (
        *GPU_WORK_COLUMNS,
        name_column("kind", "What was waited for: event, stream, context", required=True),
        int_column("event", "CUDA event waited for"),
    ),
)

EVENT_RECORDS = Table(
    "event_records",
    "A CUDA event recorded into a stream",
    (
        int_column("device", "Key into `devices`"),
        int_column("context", "CUDA context"),
        int_column("stream", "CUDA stream"),
        CORRELATION,
        PROCESS,
        int_column("event", "CUDA event"),
        int_column("event_sync", "Synchronisation id of the event"),
    ),
)

GRAPH_NODES = Table(
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

GPU_RANGES = Table(
    "gpu_ranges",
    "An annotation, module or operator laid over the GPU work it caused",
    (
        START,
        END,
        name_column("name", "Text given by the program", required=True),
        name_column("kind", "`annotation`, `module` or `operator`"),
        int_column("device", "Key into `devices`"),
        int_column("stream", "CUDA stream"),
        PROCESS,
        OP,
    ),
)

GPU_METRICS = Table(
    "gpu_metrics",
    "A hardware counter sampled along the timeline",
    (
        time_column("time_ns", "When"),
        int_column("device", "Key into `devices`"),
        name_column("metric", "Metric name", required=True),
        Column("value", Kind.REAL, "Value: a percentage where the name says so", required=True),
    ),
)
