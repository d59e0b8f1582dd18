"""The tables of a trace, declared once: every column's type, unit and meaning.

Times are nanoseconds from the capture's origin. Names are dictionary-encoded (`Kind.NAME`: a Polars
Enum of the strings that occur). A column that the capture cannot fill is null throughout, and
`Trace.has(table, column)` says so without reading it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import polars as pl


class Kind(enum.Enum):
    """What a column holds, which decides its Polars type."""

    TIME = "time"
    INT = "int"
    REAL = "real"
    FLAG = "flag"
    NAME = "name"
    TEXT = "text"


_DTYPES: dict[Kind, pl.DataType] = {
    Kind.TIME: pl.Int64(),
    Kind.INT: pl.Int64(),
    Kind.REAL: pl.Float64(),
    Kind.FLAG: pl.Boolean(),
    Kind.TEXT: pl.String(),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, kind, unit and what it means."""

    name: str
    kind: Kind
    meaning: str
    unit: str = ""
    required: bool = False
    """Never null in any row of any capture."""
    derived: bool = False
    """Computed from other columns of the table, for whichever reader filled those."""

    @property
    def type_name(self) -> str:
        """The Polars type as the documentation prints it."""
        return "Enum" if self.kind is Kind.NAME else str(_DTYPES[self.kind])

    def empty(self) -> pl.Series:
        """Make a column of this type without rows."""
        return pl.Series(self.name, [], dtype=self.dtype_for([]))

    def nulls(self, rows: int) -> pl.Series:
        """Make a column of this type that holds nothing but nulls."""
        return pl.Series(self.name, [None], dtype=self.dtype_for([])).new_from_index(0, rows)

    def dtype_for(self, categories: list[str]) -> pl.DataType:
        """Give the Polars type; `categories` are the strings of a name column."""
        return pl.Enum(categories) if self.kind is Kind.NAME else _DTYPES[self.kind]

    def accepts(self, dtype: pl.DataType) -> bool:
        """Tell whether a series of this Polars type may stand in this column."""
        if self.kind is Kind.NAME:
            return isinstance(dtype, pl.Enum)
        return dtype == _DTYPES[self.kind]


@dataclass(frozen=True, slots=True)
class Table:
    """One table: what a row is, and its columns; rows are sorted by the first time column."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def sort_column(self) -> str | None:
        """The time by which rows are sorted, for tables that have one."""
        return next((c.name for c in self.columns if c.kind is Kind.TIME), None)

    def column(self, name: str) -> Column:
        """Look a column up by name; raises KeyError."""
        return next(c for c in self.columns if c.name == name)

    @property
    def column_names(self) -> tuple[str, ...]:
        """All column names, in order."""
        return tuple(c.name for c in self.columns)


def _time(name: str, meaning: str, *, required: bool = True) -> Column:
    return Column(name, Kind.TIME, meaning, "ns", required=required)


def _int(name: str, meaning: str, unit: str = "", *, required: bool = False) -> Column:
    return Column(name, Kind.INT, meaning, unit, required=required)


def _name(name: str, meaning: str, *, required: bool = False) -> Column:
    return Column(name, Kind.NAME, meaning, required=required)


_START = _time("start_ns", "When it began")
_END = _time("end_ns", "When it ended")
_PROCESS = _int("process", "Key into `processes`")
_THREAD = _int("thread", "Key into `threads`")
_CORRELATION = _int("correlation", "Links GPU work to the API call that issued it, per process")
_RETURN = _int("return_value", "What the call returned")
_CALLCHAIN = _int("callchain", "Key into `callchains`; null when none was taken")

_GPU_WORK = (
    _START,
    _END,
    _int("device", "Key into `devices`", required=True),
    _int("context", "CUDA context"),
    _int("green_context", "CUDA green context"),
    _int("stream", "CUDA stream"),
    _CORRELATION,
    _PROCESS,
)
_GRAPH_NODE = _int("graph_node", "CUDA graph node it ran as; null outside node-level graph traces")

KERNELS = Table(
    "kernels",
    "A kernel execution on a GPU",
    (
        *_GPU_WORK,
        _name("name", "Kernel name with template arguments, demangled", required=True),
        _name("base_name", "Function name without namespace, template arguments or parameters"),
        _name("mangled_name", "Name as the compiler wrote it"),
        _int("grid_x", "Blocks in x"),
        _int("grid_y", "Blocks in y"),
        _int("grid_z", "Blocks in z"),
        _int("block_x", "Threads a block in x"),
        _int("block_y", "Threads a block in y"),
        _int("block_z", "Threads a block in z"),
        _int("registers_per_thread", "Registers of each thread"),
        _int("static_shared_bytes", "Shared memory fixed at compile time, a block", "bytes"),
        _int("dynamic_shared_bytes", "Shared memory asked for at launch, a block", "bytes"),
        _int("executed_shared_bytes", "Shared memory the driver configured, an SM", "bytes"),
        _int("local_per_thread_bytes", "Local memory of each thread", "bytes"),
        _int("local_total_bytes", "Local memory of the launch", "bytes"),
        _int("launch_type", "CUPTI launch type: 0 regular, 1 cooperative on one GPU, 2 on several"),
        _int("cache_config", "CUPTI cache configuration"),
        _int("grid", "Grid id given by CUPTI"),
        _GRAPH_NODE,
        _int("graph", "CUDA graph it ran in"),
        _int("cluster_x", "Blocks a cluster in x"),
        _int("cluster_y", "Blocks a cluster in y"),
        _int("cluster_z", "Blocks a cluster in z"),
    ),
)

COPIES = Table(
    "copies",
    "A memory copy done by a GPU, unified-memory migrations included",
    (
        *_GPU_WORK,
        _int("bytes", "Bytes moved", "bytes", required=True),
        _name("kind", "Direction, such as `Host-to-Device`", required=True),
        _name("src_kind", "Kind of memory read: `Pageable`, `Pinned`, `Device`, …"),
        _name("dst_kind", "Kind of memory written"),
        _int("src_device", "Device read from, for peer copies"),
        _int("dst_device", "Device written to, for peer copies"),
        _int("copy_count", "Copies batched in this operation"),
        _name("migration_cause", "Why unified memory moved"),
        _int("virtual_address", "Address migrated"),
        _GRAPH_NODE,
    ),
)

MEMSETS = Table(
    "memsets",
    "A memory fill done by a GPU",
    (
        *_GPU_WORK,
        _int("bytes", "Bytes written", "bytes", required=True),
        _int("value", "Value written"),
        _name("memory_kind", "Kind of memory written"),
        _GRAPH_NODE,
    ),
)

GRAPH_LAUNCHES = Table(
    "graph_launches",
    "One execution of a whole CUDA graph (its kernels are not visible in such a trace)",
    (
        *_GPU_WORK,
        _int("graph", "CUDA graph"),
        _int("graph_exec", "Instantiation of the graph"),
    ),
)

SYNCS = Table(
    "syncs",
    "A wait for the GPU, as CUPTI records it",
    (
        *_GPU_WORK,
        _name("kind", "What was waited for: event, stream, context", required=True),
        _int("event", "CUDA event waited for"),
    ),
)

EVENT_RECORDS = Table(
    "event_records",
    "A CUDA event recorded into a stream",
    (
        _int("device", "Key into `devices`"),
        _int("context", "CUDA context"),
        _int("stream", "CUDA stream"),
        _CORRELATION,
        _PROCESS,
        _int("event", "CUDA event"),
        _int("event_sync", "Synchronisation id of the event"),
    ),
)

GRAPH_NODES = Table(
    "graph_nodes",
    "A node added to a CUDA graph",
    (
        _START,
        _END,
        _THREAD,
        _PROCESS,
        _name("name", "API call that added it"),
        _GRAPH_NODE,
        _int("original_node", "Node it was cloned from"),
    ),
)

API_CALLS = Table(
    "api_calls",
    "A call of a CUDA library by the host",
    (
        _START,
        _END,
        _name("name", "Function name without version suffix", required=True),
        _name("symbol", "Function name as recorded, such as `cudaLaunchKernel_v7000`"),
        _name("api", "`runtime`, `driver`, `cudnn` or `cublas`"),
        _THREAD,
        _PROCESS,
        _CORRELATION,
        _RETURN,
        _CALLCHAIN,
    ),
)

RANGES = Table(
    "ranges",
    "An NVTX range, mark or other annotation by the program",
    (
        _START,
        _time("end_ns", "When it ended; the end of the capture for a range never closed"),
        _name("name", "Text given by the program", required=True),
        _name("kind", "`push_pop`, `start_end` or `mark`", required=True),
        _name("domain", "NVTX domain; empty for the default one"),
        _int("domain_key", "NVTX domain number, per process"),
        _name("category", "NVTX category"),
        Column("open", Kind.FLAG, "Never closed in the capture"),
        _THREAD,
        _int("end_thread", "Thread that closed a start/end range"),
        _PROCESS,
        _int("range", "Id given by NVTX to start/end ranges"),
        _int("record", "Number of the record in the capture, from 1"),
        _int("color", "ARGB"),
        _int("payload_int", "Integer payload"),
        Column("payload_real", Kind.REAL, "Floating-point payload"),
        Column("payload_text", Kind.TEXT, "Structured payload as JSON text"),
        Column(
            "depth",
            Kind.INT,
            "Push/pop ranges open around it on its thread and domain",
            derived=True,
        ),
        Column(
            "parent",
            Kind.INT,
            "Row of the innermost push/pop range around it; null at the top",
            derived=True,
        ),
    ),
)

OS_CALLS = Table(
    "os_calls",
    "A call of the operating system's runtime (libc, pthread)",
    (
        _START,
        _END,
        _name("name", "Function", required=True),
        _THREAD,
        _PROCESS,
        _RETURN,
        _int("nesting", "Calls open around it"),
        _CALLCHAIN,
    ),
)

CPU_SAMPLES = Table(
    "cpu_samples",
    "A sample of what a CPU was executing",
    (
        _time("time_ns", "When it was taken"),
        _int("cpu", "CPU number"),
        _THREAD,
        _PROCESS,
        _int("cycles", "CPU cycles since the sample before", "cycles"),
        _int("state", "Thread state as recorded"),
        _CALLCHAIN,
    ),
)

THREAD_SWITCHES = Table(
    "thread_switches",
    "A thread was put on or taken off a CPU",
    (
        _time("time_ns", "When"),
        _int("cpu", "CPU number"),
        Column("scheduled_in", Kind.FLAG, "Put on the CPU rather than taken off"),
        _THREAD,
        _PROCESS,
    ),
)

CALLCHAINS = Table(
    "callchains",
    "One frame of a call chain, innermost first",
    (
        _name("source", "`cpu_samples`, `os_calls` or `api_calls`: whose `callchain` it is"),
        _int("callchain", "Which chain", required=True),
        _int("depth", "0 is the innermost frame", required=True),
        _name("symbol", "Function"),
        _name("module", "Binary, file name only"),
        Column("kernel_mode", Kind.FLAG, "Ran inside the operating system"),
        Column("unresolved", Kind.FLAG, "No symbol was found"),
        _int("address", "Instruction address"),
    ),
)

MEMORY_EVENTS = Table(
    "memory_events",
    "GPU memory taken or given back",
    (
        _time("time_ns", "When; 0 for memory held before the capture began"),
        _int("device", "Key into `devices`"),
        _int("context", "CUDA context"),
        _int("stream", "CUDA stream, for stream-ordered allocation"),
        _PROCESS,
        _CORRELATION,
        _name("operation", "`allocation` or `deallocation`", required=True),
        _name("memory_kind", "Kind of memory"),
        _int("address", "Address"),
        _int("bytes", "Size", "bytes", required=True),
        _name("variable", "Name of a device variable"),
    ),
)

PAGE_FAULTS = Table(
    "page_faults",
    "A unified-memory page fault (CPU) or group of them (GPU)",
    (
        _START,
        _time("end_ns", "When a GPU group ended", required=False),
        _name("side", "`cpu` or `gpu`", required=True),
        _int("device", "Key into `devices`; null on the CPU side"),
        _PROCESS,
        _int("address", "Address that faulted"),
        _int("faults", "Faults in the group"),
        _name("module", "Binary the CPU was in, file name only"),
        _name("symbol", "Function the CPU was in"),
        _name("source_file", "Source file of that function, file name only"),
        _int("source_line", "Line in that file"),
        _name("access", "What a GPU wanted: `read`, `write`, `atomic` or `prefetch`"),
    ),
)

GPU_METRICS = Table(
    "gpu_metrics",
    "A hardware counter sampled along the timeline",
    (
        _time("time_ns", "When"),
        _int("device", "Key into `devices`"),
        _name("metric", "Metric name", required=True),
        Column("value", Kind.REAL, "Value: a percentage where the name says so", required=True),
    ),
)

OVERHEADS = Table(
    "overheads",
    "Time the profiler itself took on a thread",
    (
        _START,
        _END,
        _name("name", "What it did", required=True),
        _THREAD,
        _PROCESS,
    ),
)

DEVICES = Table(
    "devices",
    "A GPU",
    (
        _int("device", "Key: the GPU's number in the capture", required=True),
        _name("name", "Marketing name", required=True),
        _int("host", "Which machine of the capture, from 0"),
        _name("bus", "PCI bus location"),
        _name("chip", "Chip name"),
        _int("compute_major", "Compute capability, major"),
        _int("compute_minor", "Compute capability, minor"),
        _int("sm_count", "Streaming multiprocessors"),
        _int("clock_hz", "Highest SM clock", "Hz"),
        _int("memory_bytes", "Memory", "bytes"),
        _int("memory_bandwidth", "Peak memory bandwidth", "bytes/s"),
        _int("l2_bytes", "L2 cache", "bytes"),
        _int("copy_engines", "Copy engines"),
        _int("max_threads_per_block", "Limit"),
        _int("max_warps_per_sm", "Limit"),
        _int("max_blocks_per_sm", "Limit"),
        _int("max_registers_per_sm", "Limit"),
        _int("max_shared_per_sm_bytes", "Limit", "bytes"),
        _int("max_shared_per_block_bytes", "Limit without opt-in", "bytes"),
        _int("max_shared_optin_bytes", "Limit a block, with opt-in", "bytes"),
    ),
)

PROCESSES = Table(
    "processes",
    "A process seen by the profiler",
    (
        _int("process", "Key", required=True),
        _int("pid", "The operating system's number", required=True),
        _int("host", "Which machine of the capture, from 0"),
        _name("name", "Executable, file name only"),
    ),
)

THREADS = Table(
    "threads",
    "A thread seen by the profiler",
    (
        _int("thread", "Key", required=True),
        _PROCESS,
        _int("tid", "The operating system's number", required=True),
        _name("name", "Thread name"),
        _int("priority", "Scheduling priority"),
    ),
)

STREAMS = Table(
    "streams",
    "A CUDA stream",
    (
        _PROCESS,
        _int("context", "CUDA context"),
        _int("stream", "CUDA stream", required=True),
        _int("priority", "Priority; lower runs first"),
        _name("name", "Name given through NVTX"),
    ),
)

DIAGNOSTICS = Table(
    "diagnostics",
    "What the profiler said about the capture itself",
    (
        _time("time_ns", "When", required=False),
        _name("severity", "`information`, `warning` or `error`", required=True),
        Column("text", Kind.TEXT, "Message", required=True),
    ),
)

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
        OS_CALLS,
        CPU_SAMPLES,
        THREAD_SWITCHES,
        CALLCHAINS,
        MEMORY_EVENTS,
        PAGE_FAULTS,
        GPU_METRICS,
        OVERHEADS,
        DEVICES,
        PROCESSES,
        THREADS,
        STREAMS,
        DIAGNOSTICS,
    )
}
