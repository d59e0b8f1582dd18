"""Tables of what the host did."""

from __future__ import annotations

from gpusight.model.tables.columns import (
    CALLCHAIN,
    CORRELATION,
    END,
    OP,
    PROCESS,
    RETURN,
    START,
    THREAD,
    Column,
    Kind,
    Table,
    derived_column,
    int_column,
    name_column,
    real_column,
    time_column,
)

API_CALLS = Table(
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

RANGES = Table(
    "ranges",
    "An NVTX range, mark or other annotation by the program",
    (
        START,
        time_column("end_ns", "When it ended; the end of the capture for a range never closed"),
        name_column("name", "Text given by the program", required=True),
        name_column("kind", "`push_pop`, `start_end` or `mark`", required=True),
        name_column("domain", "NVTX domain; empty for the default one"),
        int_column("domain_key", "NVTX domain number, per process"),
        name_column("category", "NVTX category"),
        Column("open", Kind.FLAG, "Never closed in the capture"),
        THREAD,
        int_column("end_thread", "Thread that closed a start/end range"),
        PROCESS,
        int_column("range", "Id given by NVTX to start/end ranges"),
        int_column("record", "Number of the record in the capture, from 1"),
        int_column("color", "ARGB"),
        int_column("payload_int", "Integer payload"),
        real_column("payload_real", "Floating-point payload"),
        Column("payload_text", Kind.TEXT, "Structured payload as JSON text"),
        derived_column("depth", "Push/pop ranges open around it on its thread and domain"),
        derived_column("parent", "Row of the innermost push/pop range around it; null at the top"),
    ),
)

CPU_OPS = Table(
    "cpu_ops",
    "An operator of the framework (`aten::mm`, an autograd node) run by the host",
    (
        START,
        END,
        name_column("name", "Operator", required=True),
        THREAD,
        PROCESS,
        int_column("op", "Key: what GPU work and API calls name as their `op`"),
        int_column("sequence", "Autograd's number, the same for an operator and its backward"),
        int_column(
            "forward_thread", "Autograd's number of the forward thread; above 0 in a backward"
        ),
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

PYTHON_CALLS = Table(
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

OP_TOTALS = Table(
    "op_totals",
    "Totals of an operator or kernel, as torch.profiler printed them (`key_averages`)",
    (
        name_column("name", "Operator or kernel; cut off where the table cut it", required=True),
        name_column("side", "`host` for an operator, `gpu` for a kernel, copy or GPU annotation"),
        int_column("calls", "How often", required=True),
        int_column("self_cpu_ns", "Host time in itself", "ns"),
        int_column("cpu_ns", "Host time with what it called", "ns"),
        int_column("self_gpu_ns", "GPU time of the work it launched itself", "ns"),
        int_column("gpu_ns", "GPU time with what it called", "ns"),
        int_column("self_cpu_bytes", "Host memory taken in itself, net", "bytes"),
        int_column("cpu_bytes", "Host memory taken with what it called, net", "bytes"),
        int_column("self_gpu_bytes", "GPU memory taken in itself, net", "bytes"),
        int_column("gpu_bytes", "GPU memory taken with what it called, net", "bytes"),
        int_column("flops", "Floating-point operations counted"),
        name_column("shapes", "Sizes of the inputs, as JSON, when grouped by them"),
        name_column("stack", "Python frames, innermost first, split by `;`, when grouped by them"),
    ),
)

COLLECTIVES = Table(
    "collectives",
    "A communication among ranks, as the host issued it or as its kernel ran",
    (
        START,
        END,
        name_column("name", "Collective: `allreduce`, `_allgather_base`, `send`, …", required=True),
        name_column("side", "`host` or `gpu`", required=True),
        int_column("device", "Key into `devices`; null on the host side"),
        int_column("stream", "CUDA stream; null on the host side"),
        THREAD,
        PROCESS,
        CORRELATION,
        OP,
        name_column("group", "Process group"),
        name_column("group_description", "What the program calls the group"),
        int_column("group_size", "Ranks in the group"),
        name_column("ranks", "Ranks of the group, as JSON; shortened where the profiler did so"),
        name_column("dtype", "Type of the elements"),
        int_column("in_elements", "Elements given", "elements"),
        int_column("out_elements", "Elements received", "elements"),
        int_column("in_bytes", "Bytes given", "bytes"),
        int_column("out_bytes", "Bytes received", "bytes"),
    ),
)

OS_CALLS = Table(
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

CPU_SAMPLES = Table(
    "cpu_samples",
    "A sample of what a CPU was executing",
    (
        time_column("time_ns", "When it was taken"),
        int_column("cpu", "CPU number"),
        THREAD,
        PROCESS,
        int_column("cycles", "CPU cycles since the sample before", "cycles"),
        int_column("state", "Thread state as recorded"),
        CALLCHAIN,
    ),
)

THREAD_SWITCHES = Table(
    "thread_switches",
    "A thread was put on or taken off a CPU",
    (
        time_column("time_ns", "When"),
        int_column("cpu", "CPU number"),
        Column("scheduled_in", Kind.FLAG, "Put on the CPU rather than taken off"),
        THREAD,
        PROCESS,
    ),
)

CALLCHAINS = Table(
    "callchains",
    "One frame of a call chain, innermost first",
    (
        name_column("source", "Table whose `callchain` it is: `cpu_samples`, `memory_events`, …"),
        int_column("callchain", "Which chain", required=True),
        int_column("depth", "0 is the innermost frame", required=True),
        name_column("symbol", "Function"),
        name_column("module", "Binary, file name only"),
        Column("kernel_mode", Kind.FLAG, "Ran inside the operating system"),
        Column("unresolved", Kind.FLAG, "No symbol was found"),
        int_column("address", "Instruction address"),
        name_column("file", "Source file"),
        int_column("line", "Line in that file"),
    ),
)

OVERHEADS = Table(
    "overheads",
    "Time the profiler itself took on a thread",
    (
        START,
        END,
        name_column("name", "What it did", required=True),
        THREAD,
        PROCESS,
    ),
)
