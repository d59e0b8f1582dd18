"""The tables of a trace, each declared once: host, memory and machine here, GPU in `schema_gpu`."""

from __future__ import annotations

from gpusight.trace.schema_columns import (
    CALLCHAIN,
    CORRELATION,
    END,
    OP,
    PROCESS,
    RETURN,
    START,
    THREAD,
    ColumnKind,
    TraceColumn,
    TraceTable,
    derived_column,
    int_column,
    name_column,
    real_column,
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

API_CALLS = TraceTable(
    "api_calls",
    "A call of a CUDA library by the host",
    (
        START,
        END,
        name_column("name", "Function name without version suffix", required=True),
        name_column("symbol", "Function name as recorded, such as `cudaLaunchKernel_v7000`"),
        name_column("api", "`runtime`, `driver`, `cudnn` or `cublas`"),
        THREAD,
        PROCESS,
        CORRELATION,
        RETURN,
        CALLCHAIN,
        OP,
    ),
)

RANGES = TraceTable(
    "ranges",
    "An NVTX range, mark or other annotation by the program; a call or region of MPI, OpenMP, …",
    (
        START,
        time_column("end_ns", "End time; the end of the capture for a range never ended"),
        name_column("name", "Text given by the program", required=True),
        name_column("kind", "`push_pop`, `start_end` or `mark`", required=True),
        name_column("domain", "NVTX domain; empty for the default one; else as `source`"),
        int_column("domain_key", "NVTX domain number, per process"),
        name_column(
            "source",
            "Null for annotations by the program; else what was traced: `MPI`, `UCX`, `OpenMP`, "
            "`OpenACC`, `OpenGL`, `Vulkan`, `Direct3D 11`, `Direct3D 12`, `video`, …",
        ),
        name_column("category", "NVTX category"),
        TraceColumn("open", ColumnKind.FLAG, "Not ended in the capture"),
        THREAD,
        int_column("end_thread", "Thread that ended a start/end range"),
        PROCESS,
        int_column("range", "Id given by NVTX to start/end ranges"),
        int_column("record", "Number of the record in the capture, from 1"),
        int_column("color", "ARGB"),
        int_column("payload_int", "Integer payload"),
        real_column("payload_real", "Floating-point payload"),
        TraceColumn("payload_text", ColumnKind.TEXT, "Structured payload as JSON text"),
        derived_column("depth", "Push/pop ranges open around it on its thread and domain"),
        derived_column("parent", "Row of the innermost push/pop range around it; null at the top"),
    ),
)

CPU_OPS = TraceTable(
    "cpu_ops",
    "An operator of the framework (`aten::mm`, an autograd node) run by the host",
    (
        START,
        END,
        name_column("name", "Operator", required=True),
        THREAD,
        PROCESS,
        int_column("op", "Key: `op` of GPU work and API calls"),
        int_column(
            "sequence", "Autograd sequence number, the same for an operator and its backward"
        ),
        int_column("forward_thread", "Autograd forward thread number; above 0 in a backward"),
        name_column("shapes", "Sizes of the inputs, as JSON"),
        name_column("strides", "Strides of the inputs, as JSON"),
        name_column("types", "Types of the inputs, as JSON"),
        name_column("concrete", "Values of the inputs that are numbers, as JSON"),
        int_column("flops", "Floating-point operations that the profiler counted"),
        name_column("stack", "Python frames, innermost first, split by `;` (older traces)"),
        derived_column("depth", "Operators open around it on its thread"),
        derived_column("parent", "Row of the innermost operator around it; null at the top"),
    ),
)

PYTHON_CALLS = TraceTable(
    "python_calls",
    "A call of a Python function or module, recorded with stacks",
    (
        START,
        END,
        name_column(
            "name", "`file(line): function`, `nn.Module: Class_n` or a built-in", required=True
        ),
        THREAD,
        PROCESS,
        int_column("call", "Number of the call"),
        int_column("parent_call", "Number of the call around it"),
        derived_column("depth", "Python calls open around it on its thread"),
        derived_column("parent", "Row of the innermost Python call around it; null at the top"),
    ),
)

OP_TOTALS = TraceTable(
    "op_totals",
    "Totals of an operator or kernel, as torch.profiler printed them (`key_averages`)",
    (
        name_column("name", "Operator or kernel; cut off where the table cut it", required=True),
        name_column("side", "`host` for an operator, `gpu` for a kernel, copy or GPU annotation"),
        int_column("calls", "How often", required=True),
        int_column("self_cpu_ns", "Self host time", "ns"),
        int_column("cpu_ns", "Total host time", "ns"),
        int_column("self_gpu_ns", "Self GPU time", "ns"),
        int_column("gpu_ns", "Total GPU time", "ns"),
        int_column("self_cpu_bytes", "Self host memory allocated, net", "bytes"),
        int_column("cpu_bytes", "Total host memory allocated, net", "bytes"),
        int_column("self_gpu_bytes", "Self GPU memory allocated, net", "bytes"),
        int_column("gpu_bytes", "Total GPU memory allocated, net", "bytes"),
        int_column("flops", "Floating-point operations counted"),
        name_column("shapes", "Sizes of the inputs, as JSON, when grouped by them"),
        name_column("stack", "Python frames, innermost first, split by `;`, when grouped by them"),
    ),
)

COLLECTIVES = TraceTable(
    "collectives",
    "A communication among ranks, as the host issued it or as its kernel ran",
    (
        START,
        END,
        name_column("name", "Collective: `allreduce`, `_allgather_base`, `send`, …", required=True),
        name_column("side", "`host` or `gpu`", required=True),
        name_column(
            "library",
            "`gloo`, `mpi` or `ucc` where the host itself runs it; null where the host issues it",
        ),
        int_column("device", "Key into `devices`; null on the host side"),
        int_column("stream", "CUDA stream; null on the host side"),
        THREAD,
        PROCESS,
        CORRELATION,
        OP,
        name_column("group", "Process group"),
        name_column("group_description", "Name given by the program"),
        int_column("group_size", "Ranks in the group"),
        name_column("ranks", "Ranks of the group, as JSON; shortened where the profiler did so"),
        int_column("sequence", "Number of the collective in its group"),
        int_column("peer", "Rank that it sends to or receives from; null for all of a group"),
        name_column("dtype", "Type of the elements"),
        int_column("in_elements", "Elements sent", "elements"),
        int_column("out_elements", "Elements received", "elements"),
        int_column("in_bytes", "Bytes sent", "bytes"),
        int_column("out_bytes", "Bytes received", "bytes"),
    ),
)

OS_CALLS = TraceTable(
    "os_calls",
    "A call of the operating system's runtime (libc, pthread)",
    (
        START,
        END,
        name_column("name", "Function", required=True),
        THREAD,
        PROCESS,
        RETURN,
        int_column("nesting", "Calls open around it"),
        CALLCHAIN,
    ),
)

CPU_SAMPLES = TraceTable(
    "cpu_samples",
    "A CPU sample",
    (
        time_column("time_ns", "Time of the sample"),
        int_column("cpu", "CPU number"),
        THREAD,
        PROCESS,
        int_column("cycles", "CPU cycles since the previous sample", "cycles"),
        int_column("state", "Thread state as recorded"),
        CALLCHAIN,
    ),
)

THREAD_SWITCHES = TraceTable(
    "thread_switches",
    "A thread was scheduled on or off a CPU",
    (
        time_column("time_ns", "When"),
        int_column("cpu", "CPU number"),
        TraceColumn("scheduled_in", ColumnKind.FLAG, "Scheduled on the CPU (otherwise off)"),
        THREAD,
        PROCESS,
    ),
)

CALLCHAINS = TraceTable(
    "callchains",
    "One frame of a call chain, innermost first",
    (
        name_column("source", "Table whose `callchain` it is: `cpu_samples`, `memory_events`, …"),
        int_column("callchain", "Which chain", required=True),
        int_column("depth", "0 is the innermost frame", required=True),
        name_column("symbol", "Function"),
        name_column("module", "Binary, file name only"),
        TraceColumn("kernel_mode", ColumnKind.FLAG, "Ran inside the operating system"),
        TraceColumn("unresolved", ColumnKind.FLAG, "No symbol was found"),
        int_column("address", "Instruction address"),
        name_column("file", "Source file"),
        int_column("line", "Line in that file"),
    ),
)

STACK_SAMPLES = TraceTable(
    "stack_samples",
    "The stack of a host thread at one time, sampled or recorded with an event",
    (
        time_column("time_ns", "Time of the sample, on the clock of the capture"),
        PROCESS,
        THREAD,
        int_column("stack", "Key into `stack_frames`", required=True),
        int_column("weight_ns", "Time it stands for; 0 for an event", "ns"),
        int_column("late_ns", "How much later than planned it was taken", "ns"),
        name_column(
            "source",
            "`gpusight`, `nsys-cpu`, `nsys-cuda-backtrace`, `nsys-osrt-backtrace`, `nsys-python`, "
            "`torch-stack`, `folded`, `speedscope` or `perf`",
            required=True,
        ),
    ),
)

STACK_FRAMES = TraceTable(
    "stack_frames",
    "One frame of a stack of `stack_samples`, innermost first",
    (
        int_column("stack", "Which stack", required=True),
        int_column("depth", "0 is the innermost frame", required=True),
        name_column("file", "Source file as recorded, home directories as `~`"),
        int_column("line", "Line that runs, in that file"),
        name_column("function", "Function, with its class where known"),
        name_column("module", "Python module (`torch.nn.modules.linear`), or binary, name only"),
        name_column("kind", "`python` or `native`"),
        TraceColumn("is_library", ColumnKind.FLAG, "Of a library, not of the program itself"),
    ),
)

OVERHEADS = TraceTable(
    "overheads",
    "Profiler overhead on a thread",
    (
        START,
        END,
        name_column("name", "Kind of overhead", required=True),
        THREAD,
        PROCESS,
    ),
)

MEMORY_EVENTS = TraceTable(
    "memory_events",
    "Memory allocated or freed, by the driver or by the framework's allocator",
    (
        time_column("time_ns", "Time; 0 for memory allocated before the capture started"),
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
        name_column("allocator", "`framework` for its own allocator; null for the driver"),
        THREAD,
        int_column(
            "allocated_bytes", "Memory in use after it, as counted by the framework", "bytes"
        ),
        int_column(
            "reserved_bytes",
            "Memory reserved from the driver after it, as counted by the framework",
            "bytes",
        ),
        CALLCHAIN,
    ),
)

MEMORY_BLOCKS = TraceTable(
    "memory_blocks",
    "A block of the framework's GPU memory in a memory snapshot",
    (
        int_column("device", "Key into `devices`", required=True),
        int_column("stream", "CUDA stream that its segment belongs to"),
        int_column("segment", "Address of the segment it is part of", required=True),
        int_column("segment_bytes", "Size of that segment", "bytes", required=True),
        name_column("segment_kind", "`small` or `large`: which pool"),
        TraceColumn("expandable", ColumnKind.FLAG, "The segment can grow"),
        int_column("address", "Address", required=True),
        int_column("bytes", "Size", "bytes", required=True),
        int_column("requested_bytes", "Size requested by the program", "bytes"),
        name_column("state", "`active`, `pending_free` or `inactive`", required=True),
        CALLCHAIN,
    ),
)

PAGE_FAULTS = TraceTable(
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
        int_column("max_shared_per_block_bytes", "Limit per block without opt-in", "bytes"),
        int_column("max_shared_optin_bytes", "Limit per block with opt-in", "bytes"),
    ),
)

PROCESSES = TraceTable(
    "processes",
    "A process seen by the profiler",
    (
        int_column("process", "Key", required=True),
        int_column("pid", "Number in the operating system", required=True),
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
        int_column("tid", "Number in the operating system", required=True),
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
        name_column("description", "Name given by the program"),
        name_column("backend", "Library: `nccl`, `gloo`, …"),
        int_column("size", "Ranks in the group"),
        name_column("ranks", "Ranks, as JSON"),
    ),
)

DIAGNOSTICS = TraceTable(
    "diagnostics",
    "Messages of the profiler about the capture",
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
        STACK_SAMPLES,
        STACK_FRAMES,
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
