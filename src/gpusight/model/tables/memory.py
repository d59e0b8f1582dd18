"""Tables of memory: what was taken, what is held, what faulted."""

from __future__ import annotations

from gpusight.model.tables.columns import (
    CALLCHAIN,
    CORRELATION,
    PROCESS,
    START,
    THREAD,
    Column,
    Kind,
    Table,
    int_column,
    name_column,
    time_column,
)

MEMORY_EVENTS = Table(
    "memory_events",
    "Memory taken or given back, by a driver or by the framework's own allocator",
    (
        time_column("time_ns", "When; 0 for memory held before the capture began"),
        int_column("device", "Key into `devices`; null for memory of the host"),
        int_column("context", "CUDA context"),
        int_column("stream", "CUDA stream, for stream-ordered allocation"),
        PROCESS,
        CORRELATION,
        name_column(
            "operation",
            "`allocation`, `deallocation`; in snapshots also `free_requested`, "
            "`segment_allocation`, `segment_deallocation`, `segment_map`, `segment_unmap`, "
            "`out_of_memory`, `snapshot`",
            required=True,
        ),
        name_column("memory_kind", "Kind of memory"),
        int_column("address", "Address"),
        int_column("bytes", "Size", "bytes", required=True),
        name_column("variable", "Name of a device variable"),
        name_column(
            "allocator", "`framework` when its own allocator handed it out; null for the driver"
        ),
        THREAD,
        int_column("allocated_bytes", "In use after it, as the framework counts", "bytes"),
        int_column("reserved_bytes", "Held from the driver after it, as it counts", "bytes"),
        CALLCHAIN,
    ),
)

MEMORY_BLOCKS = Table(
    "memory_blocks",
    "A block of the framework's GPU memory when a snapshot was taken",
    (
        int_column("device", "Key into `devices`", required=True),
        int_column("stream", "CUDA stream that its segment belongs to"),
        int_column("segment", "Address of the segment it is part of", required=True),
        int_column("segment_bytes", "Size of that segment", "bytes", required=True),
        name_column("segment_kind", "`small` or `large`: which pool"),
        Column("expandable", Kind.FLAG, "The segment can grow"),
        int_column("address", "Address", required=True),
        int_column("bytes", "Size", "bytes", required=True),
        int_column("requested_bytes", "What the program asked for", "bytes"),
        name_column("state", "`active`, `pending_free` or `inactive`", required=True),
        CALLCHAIN,
    ),
)

PAGE_FAULTS = Table(
    "page_faults",
    "A unified-memory page fault (CPU) or group of them (GPU)",
    (
        START,
        time_column("end_ns", "When a GPU group ended", required=False),
        name_column("side", "`cpu` or `gpu`", required=True),
        int_column("device", "Key into `devices`; null on the CPU side"),
        PROCESS,
        int_column("address", "Address that faulted"),
        int_column("faults", "Faults in the group"),
        name_column("module", "Binary the CPU was in, file name only"),
        name_column("symbol", "Function the CPU was in"),
        name_column("source_file", "Source file of that function, file name only"),
        int_column("source_line", "Line in that file"),
        name_column("access", "What a GPU wanted: `read`, `write`, `atomic` or `prefetch`"),
    ),
)
