"""What of a PyTorch trace is copied: the known keys, and how their values are written."""

from __future__ import annotations

import enum

from gpusight.sharing.leak_report import Category


class ValueRule(enum.Enum):
    """How values of a key are written."""

    NUMBERS = "numbers"
    """Numbers, truth values and lists of them, as they stand."""
    QUOTED = "quoted"
    """The same, which some versions write as text."""
    TIME = "time"
    """A point in time: counted from a new origin where the clock shows the date."""
    WORD = "word"
    """A text of the profiler's own; any other is hashed."""
    TYPES = "types"
    """Names of PyTorch's types; others are emptied."""
    CONCRETE = "concrete"
    """Arguments of operators: whole numbers and truth values, which are sizes and switches."""
    KERNEL = "kernel"
    """The name of a kernel."""
    GROUP = "group"
    """The name of a group of processes: one that everybody's jobs use; any other is hashed."""
    TRACK = "track"
    """A number, or the label of a track that stands for one."""


EVENT: dict[str, ValueRule] = {
    "pid": ValueRule.TRACK,
    "tid": ValueRule.TRACK,
    "ts": ValueRule.TIME,
    "dur": ValueRule.QUOTED,
    "id": ValueRule.QUOTED,
    "bp": ValueRule.WORD,
    "s": ValueRule.WORD,
}
"""Keys of events besides `ph`, `cat`, `name` and `args`."""

_NUMBERS = (
    "External id", "external id", "Record function id", "Ev Idx", "Sequence number",
    "Fwd thread id", "correlation", "cbid", "cid", "stream", "device", "context", "Device",
    "Device Id", "Device Type", "Bytes", "Addr", "Total Reserved", "Total Allocated", "grid",
    "block", "registers per thread", "shared memory", "blocks per SM", "warps per SM",
    "est. achieved occupancy %", "memory bandwidth (GB/s)", "graph id", "graph node id",
    "Python id", "Python parent id", "Python module id", "Group size", "In msg nelems",
    "Out msg nelems", "In msg size", "Out msg size", "Global rank start", "Global rank stride",
    "Rank", "Op count", "Trace iteration", "wait_on_stream", "wait_on_cuda_event_record_corr_id",
    "wait_on_cuda_event_id", "num_warps", "num_stages", "flops", "Flops", "FLOPs", "sort_index",
    "Input Dims", "Input dims", "Input Strides", "Output dims", "priority",
)  # fmt: skip
_QUOTED = ("bytes", "In split size", "Out split size", "Process Group Ranks", "finished")
_WORD_KEYS = (
    "Collective name", "dtype", "kind", "cuda_sync_kind", "kernel_backend", "scope", "Trace name",
)  # fmt: skip

ARGUMENTS: dict[str, ValueRule] = {
    **dict.fromkeys(_NUMBERS, ValueRule.NUMBERS),
    **dict.fromkeys(_QUOTED, ValueRule.QUOTED),
    **dict.fromkeys(_WORD_KEYS, ValueRule.WORD),
    "Input type": ValueRule.TYPES,
    "Output type": ValueRule.TYPES,
    "Concrete Inputs": ValueRule.CONCRETE,
    "kernel": ValueRule.KERNEL,
    "kernel_name": ValueRule.KERNEL,
    "Process Group Name": ValueRule.GROUP,
    "Process Group Description": ValueRule.GROUP,
}
"""Keys of `args`."""

REMOVED_ARGUMENTS: dict[str, Category] = {
    "Call stack": Category.CODE,
    "Module Hierarchy": Category.CODE,
    "kernel_hash": Category.CODE,
    "kernel_file": Category.FILE_PATHS,
    "kernel_kwargs": Category.VALUES,
    "Input names": Category.VALUES,
    "Output names": Category.VALUES,
    "Extra arguments": Category.VALUES,
    "src": Category.VALUES,
    "dst": Category.VALUES,
    "queued": Category.CAPTURE_TIME,
    "external ts": Category.CAPTURE_TIME,
}
"""Keys of `args` that we know and leave behind, and what they tell."""

TOP_NUMBERS = frozenset(
    {
        "schemaVersion", "record_shapes", "with_stack", "with_flops", "with_modules",
        "profile_memory", "cupti_version", "cuda_runtime_version", "cuda_driver_version",
        "hip_runtime_version", "hip_driver_version", "roctracer_version", "rocprofiler_version",
        "rocprofiler-sdk_version",
    }
)  # fmt: skip
"""Keys beside the events that hold numbers."""

REMOVED_TOP: dict[str, Category] = {
    "traceName": Category.FILE_PATHS,
    "baseTimeNanoseconds": Category.CAPTURE_TIME,
    "host_name": Category.HOST_NAMES,
    "hostname": Category.HOST_NAMES,
    "username": Category.USER_NAMES,
    "tw_user": Category.USER_NAMES,
    "trace_id": Category.HARDWARE_IDS,
    "INFO": Category.PROGRAM_OUTPUT,
    "WARNING": Category.PROGRAM_OUTPUT,
    "ERROR": Category.PROGRAM_OUTPUT,
}
"""Keys beside the events that we know and leave behind."""

DEVICE_NUMBERS = frozenset(
    {
        "id", "totalGlobalMem", "computeMajor", "computeMinor", "maxThreadsPerBlock",
        "maxThreadsPerMultiprocessor", "regsPerBlock", "regsPerMultiprocessor", "warpSize",
        "sharedMemPerBlock", "sharedMemPerMultiprocessor", "sharedMemPerBlockOptin", "numSms",
        "multiProcessorCount", "maxSharedMemoryPerMultiProcessor", "clockRate", "memoryClockRate",
        "memoryBusWidth", "l2CacheSize",
    }
)  # fmt: skip
"""What the description of a GPU may hold besides its name."""

JOB_NUMBERS = frozenset({"rank", "world_size", "pg_count", "nccl_version"})
GROUP_NUMBERS = frozenset({"pg_size", "group_count", "ranks"})
"""What is said of the job and of its groups in numbers."""

CATEGORIES = frozenset(
    {
        "cpu_op", "user_annotation", "gpu_user_annotation", "kernel", "concurrent_kernel",
        "gpu_memcpy", "memcpy", "gpu_memset", "memset", "cuda_runtime", "runtime", "cuda_driver",
        "driver", "xpu_runtime", "xpu_driver", "hip_runtime", "cuda_sync", "python_function",
        "overhead", "trace", "operator", "cpu_instant_event", "ac2g", "fwdbwd", "async",
    }
)  # fmt: skip
"""Categories as profilers write them; others that the reader places get the name of their kind."""
