"""Tables of what the capture was made on, and of what the profiler said."""

from __future__ import annotations

from gpusight.model.tables.columns import (
    PROCESS,
    Column,
    Kind,
    Table,
    int_column,
    name_column,
    time_column,
)

DEVICES = Table(
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

PROCESSES = Table(
    "processes",
    "A process seen by the profiler",
    (
        int_column("process", "Key", required=True),
        int_column("pid", "The operating system's number", required=True),
        int_column("host", "Which machine of the capture, from 0"),
        name_column("name", "Executable, file name only"),
    ),
)

THREADS = Table(
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

STREAMS = Table(
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

PROCESS_GROUPS = Table(
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

DIAGNOSTICS = Table(
    "diagnostics",
    "What the profiler said about the capture itself",
    (
        time_column("time_ns", "When", required=False),
        name_column("severity", "`information`, `warning` or `error`", required=True),
        Column("text", Kind.TEXT, "Message", required=True),
    ),
)
