"""What of an nsys capture may be in a copy: the known columns of nsys's own tables."""

from __future__ import annotations

import enum
from typing import NamedTuple

import polars as pl

from gpusight.sharing.leak_report import Category


class SharedColumnKind(enum.Enum):
    """What a column holds."""

    WHOLE = "whole"
    REAL = "real"
    TIME = "time"
    """Nanoseconds from the capture's origin; shifted where that is the clock's."""
    THREAD = "thread"
    """A global thread or process id: machine, process and thread in one number."""
    PID = "pid"
    """The operating system's number of a process."""
    STRING = "string"
    """The id of a text in StringIds."""
    TEXT = "text"
    GONE = "gone"
    """Left empty in the copy: the column reveals more than times and sizes."""


class TextRole(enum.Enum):
    """What a text is, and so what becomes of it."""

    KERNEL = "kernel"
    RANGE = "range"
    CALL = "call"
    """A call of CUDA or one of its libraries."""
    SYSTEM = "system call"
    OVERHEAD = "overhead"
    """What the profiler did."""
    METRIC = "metric"
    HARDWARE = "hardware"
    """What its maker calls it."""


class SharedColumn(NamedTuple):
    """What is done to one column."""

    kind: SharedColumnKind
    role: TextRole | None = None
    category: Category | None = None
    """Of a column that is left empty."""
    empty: type[pl.DataType] = pl.Int64
    """What such a column would hold."""


_W, _T, _R = (
    SharedColumn(SharedColumnKind.WHOLE),
    SharedColumn(SharedColumnKind.TIME),
    SharedColumn(SharedColumnKind.REAL),
)
_THREAD, _PID = SharedColumn(SharedColumnKind.THREAD), SharedColumn(SharedColumnKind.PID)


def _whole(names: str) -> dict[str, SharedColumn]:
    return dict.fromkeys(names.split(), _W)


def _string(role: TextRole) -> SharedColumn:
    return SharedColumn(SharedColumnKind.STRING, role)


def _text(role: TextRole) -> SharedColumn:
    return SharedColumn(SharedColumnKind.TEXT, role)


def _remove_columns(
    category: Category, names: str, empty: type[pl.DataType] = pl.Int64
) -> dict[str, SharedColumn]:
    return dict.fromkeys(
        names.split(), SharedColumn(SharedColumnKind.GONE, category=category, empty=empty)
    )


_SPAN = {"start": _T, "end": _T}
_GPU_WORK = {
    **_SPAN,
    **_whole("deviceId contextId greenContextId streamId correlationId"),
    "globalPid": _THREAD,
}
_CALL = {**_SPAN, "eventClass": _W, "globalTid": _THREAD}
_OWNER = {**_whole("hwId vmId deviceId contextId streamId"), "processId": _PID}
_IN_SEGMENT = {"timestamp": _T, "globalTid": _THREAD, **_whole("gpu segmentGroup segmentId")}
_CHAIN = _remove_columns(Category.CODE, "callchainId")

EVENTS: dict[str, dict[str, SharedColumn]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": {
        **_GPU_WORK,
        **dict.fromkeys(("demangledName", "shortName", "mangledName"), _string(TextRole.KERNEL)),
        **_whole(
            "launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ "
            "staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId "
            "sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone "
            "qmdPreexitDone qmdLastCtaDone graphId clusterX clusterY clusterZ "
            "clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters "
            "sharedMemoryRequestedPercentage"
        ),
        **_remove_columns(Category.VALUES, "tensorSizeMinusOneElements", pl.String),
    },
    "CUPTI_ACTIVITY_KIND_MEMCPY": {
        **_GPU_WORK,
        **_whole(
            "bytes copyKind deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId "
            "dstContextId migrationCause graphNodeId virtualAddress copyCount"
        ),
    },
    "CUPTI_ACTIVITY_KIND_MEMSET": {
        **_GPU_WORK,
        **_whole("value bytes graphNodeId memKind"),
    },
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": {
        **_GPU_WORK,
        **_whole("deprecatedSyncType syncType eventId eventSyncId"),
    },
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": {
        **_whole("deviceId contextId greenContextId streamId correlationId eventId eventSyncId"),
        "timestamp": _T,
        "globalPid": _THREAD,
    },
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": {**_GPU_WORK, **_whole("graphId graphExecId")},
    "CUPTI_ACTIVITY_KIND_RUNTIME": {
        **_CALL,
        **_whole("correlationId returnValue"),
        "nameId": _string(TextRole.CALL),
        **_CHAIN,
    },
    "CUPTI_ACTIVITY_KIND_OVERHEAD": {
        **_CALL,
        **_whole("correlationId overheadType"),
        "nameId": _string(TextRole.OVERHEAD),
    },
    "CUDNN_EVENTS": {**_CALL, "nameId": _string(TextRole.CALL)},
    "CUBLAS_EVENTS": {**_CALL, "nameId": _string(TextRole.CALL)},
    "CUDA_GRAPH_NODE_EVENTS": {
        **_CALL,
        **_whole("graphNodeId originalGraphNodeId"),
        "nameId": _string(TextRole.CALL),
    },
    "CUDA_GRAPH_EVENTS": {
        **_CALL,
        **_whole("graphId originalGraphId graphExecId"),
        "nameId": _string(TextRole.CALL),
    },
    "NVTX_EVENTS": {
        **_SPAN,
        **_whole("eventType rangeId category color domainId"),
        "text": _text(TextRole.RANGE),
        "textId": _string(TextRole.RANGE),
        "globalTid": _THREAD,
        "endGlobalTid": _THREAD,
        **_remove_columns(
            Category.VALUES, "uint64Value int64Value uint32Value int32Value jsonTextId"
        ),
        **_remove_columns(Category.VALUES, "doubleValue floatValue", pl.Float64),
        **_remove_columns(Category.VALUES, "jsonText binaryData", pl.String),
    },
    "OSRT_API": {
        **_CALL,
        **_whole("nestingLevel correlationId"),
        "nameId": _string(TextRole.SYSTEM),
        **_remove_columns(Category.VALUES, "returnValue argumentsId"),
        **_CHAIN,
    },
    "COMPOSITE_EVENTS": {
        "start": _T,
        **_whole("id cpu threadState cpuCycles"),
        "globalTid": _THREAD,
    },
    "SCHED_EVENTS": {
        "start": _T,
        **_whole("cpu isSchedIn threadState threadBlock"),
        "globalTid": _THREAD,
    },
    "CUDA_GPU_MEMORY_USAGE_EVENTS": {
        "start": _T,
        "globalPid": _THREAD,
        **_whole(
            "deviceId contextId address bytes memKind memoryOperationType correlationId streamId "
            "localMemoryPoolAddress localMemoryPoolReleaseThreshold localMemoryPoolSize "
            "localMemoryPoolUtilizedSize importedMemoryPoolAddress"
        ),
        "importedMemoryPoolProcessId": _PID,
        **_remove_columns(Category.CODE, "pc"),
        **_remove_columns(Category.CODE, "name", pl.String),
    },
    "CUDA_GPU_MEMORY_POOL_EVENTS": {
        "start": _T,
        "globalPid": _THREAD,
        **_whole(
            "deviceId address operationType poolType correlationId minBytesToKeep "
            "localMemoryPoolReleaseThreshold localMemoryPoolSize localMemoryPoolUtilizedSize"
        ),
    },
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": {
        "start": _T,
        "globalPid": _THREAD,
        "address": _W,
        **_remove_columns(
            Category.CODE,
            "originalFaultPc CpuInstruction module unresolvedFaultPc sourceFile sourceLine",
        ),
    },
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": {
        **_SPAN,
        "globalPid": _THREAD,
        **_whole("deviceId address numberOfPageFaults faultAccessType"),
    },
    "GPU_METRICS": {
        **_remove_columns(Category.CAPTURE_TIME, "rawTimestamp"),
        "timestamp": _T,
        **_whole("typeId metricId value"),
    },
    "PROFILER_OVERHEAD": {
        **_SPAN,
        "globalTid": _THREAD,
        "nameId": _string(TextRole.OVERHEAD),
        **_whole("returnValue correlationId overheadType"),
    },
    "GPU_MEMORY_BUDGET_EVENTS": {**_IN_SEGMENT, "newBudget": _W},
    "GPU_MEMORY_USAGE_EVENTS": {**_IN_SEGMENT, "newUsage": _W},
    "TOTAL_BYTES_RESIDENT_IN_SEGMENT_EVENTS": {**_IN_SEGMENT, "totalBytesResident": _W},
}
"""Tables with a row for each event."""

_GPU_IDS = {
    **_remove_columns(Category.HARDWARE_IDS, "luid pwGpuId"),
    **_remove_columns(
        Category.HARDWARE_IDS, "busLocation uuid ctxswDevPath ctrlDevPath pciBusId", pl.String
    ),
}
_GPU_SIZES = _whole(
    "vmId id deviceId isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount "
    "cuDevice revision nodeMask constantMemory maxIPC maxRegistersPerBlock maxShmemPerBlock "
    "maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp asyncEngines "
    "maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ "
    "maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor smMajor smMinor "
    "globalMemoryBandwidth globalMemorySize constantMemorySize numThreadsPerWarp coreClockRate "
    "numMemcpyEngines numMultiprocessors maxWarpsPerMultiprocessor maxBlocksPerMultiprocessor "
    "maxSharedMemoryPerBlock computeCapabilityMajor computeCapabilityMinor "
    "maxSharedMemoryPerMultiprocessor maxRegistersPerMultiprocessor"
)

MACHINE: dict[str, dict[str, SharedColumn]] = {
    "TARGET_INFO_GPU": {
        **_GPU_SIZES,
        "name": _text(TextRole.HARDWARE),
        "chipName": _text(TextRole.HARDWARE),
        **_GPU_IDS,
    },
    "TARGET_INFO_CUDA_GPU": {
        **_GPU_SIZES,
        "name": _text(TextRole.HARDWARE),
        "pid": _PID,
        **_GPU_IDS,
    },
    "TARGET_INFO_CUDA_DEVICE": {
        **_whole("gpuId cudaId numMultiprocessors"),
        "pid": _PID,
        **_remove_columns(Category.HARDWARE_IDS, "uuid", pl.String),
    },
    "TARGET_INFO_CUDA_CONTEXT_INFO": {
        **_OWNER,
        **_whole("nullStreamId parentContextId isGreenContext"),
    },
    "TARGET_INFO_CUDA_NULL_STREAM": _OWNER,
    "TARGET_INFO_CUDA_STREAM": {**_OWNER, **_whole("priority flag")},
    "TARGET_INFO_NVTX_CUDA_STREAM": {**_OWNER, "name": _text(TextRole.RANGE)},
    "TARGET_INFO_NVTX_CUDA_DEVICE": {
        **_whole("hwId vmId deviceId"),
        "pid": _PID,
        "name": _text(TextRole.RANGE),
    },
    "TARGET_INFO_GPU_METRICS": {
        **_whole("typeId sourceId metricId"),
        "typeName": _text(TextRole.METRIC),
        "metricName": _text(TextRole.METRIC),
    },
    "ANALYSIS_DETAILS": {
        **_whole("globalVid duration"),
        **_remove_columns(Category.CAPTURE_TIME, "startTime stopTime"),
    },
}
"""Tables that describe the machine, the session and the counters."""

KNOWN = {**EVENTS, **MACHINE}

REWRITTEN = frozenset(
    {
        "StringIds",
        "ThreadNames",
        "PROCESSES",
        "TARGET_INFO_SYSTEM_ENV",
        "META_DATA_EXPORT",
        "EXPORT_META_DATA",
        "DIAGNOSTIC_EVENT",
    }
)
"""Tables of which only parts are copied, each by rules of its own."""

LEFT_OUT = {
    "ANALYSIS_FILE": Category.PROGRAM_OUTPUT,
    "ProcessStreams": Category.PROGRAM_OUTPUT,
    "META_DATA_CAPTURE": Category.COMMAND_LINES,
    "CUDA_CALLCHAINS": Category.CODE,
    "OSRT_CALLCHAINS": Category.CODE,
    "SAMPLING_CALLCHAINS": Category.CODE,
    "MODULES": Category.CODE,
    "OSRT_FILE_ACCESS_DESCRIPTORS": Category.FILE_PATHS,
    "OSRT_FILE_ACCESS_EVENTS": Category.FILE_PATHS,
    "TARGET_INFO_SESSION_START_TIME": Category.CAPTURE_TIME,
    "TARGET_INFO_NIC_INFO": Category.NETWORK,
    "NIC_ID_MAP": Category.NETWORK,
    "NET_NIC_METRIC": Category.NETWORK,
    "NET_IB_SWITCH_METRIC": Category.NETWORK,
    "NET_IB_SWITCH_CONGESTION_EVENT": Category.NETWORK,
    "TARGET_INFO_NETWORK_DEVICES": Category.NETWORK,
    "NVTX_PAYLOAD_SCHEMAS": Category.PROGRAM_TEXTS,
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": Category.PROGRAM_TEXTS,
    "NVTX_PAYLOAD_ENUMS": Category.PROGRAM_TEXTS,
    "NVTX_PAYLOAD_ENUM_ENTRIES": Category.PROGRAM_TEXTS,
    "GENERIC_EVENTS": Category.VALUES,
    "GENERIC_EVENT_SOURCES": Category.UNKNOWN,
    "GENERIC_EVENT_TYPES": Category.UNKNOWN,
    "GENERIC_EVENT_TYPE_FIELDS": Category.UNKNOWN,
    "GENERIC_EVENT_DATA": Category.VALUES,
    "TARGET_INFO_PROCESSES": Category.PROCESSES,
}
"""Tables of nsys of which nothing is copied, and what they hold."""

ENUM_PREFIXES = ("ENUM_", "UnwindMethodType")
"""Starts of the names of tables that only explain numbers; those that tools need are ours."""

ENUMS: dict[str, tuple[tuple[int, str, str], ...]] = {
    "ENUM_CUDA_MEMCPY_OPER": tuple(
        (number, f"CUDA_MEMCPY_KIND_{name}", label)
        for number, (name, label) in enumerate(
            (
                ("UNKNOWN", "Unknown"),
                ("HTOD", "Host-to-Device"),
                ("DTOH", "Device-to-Host"),
                ("HTOA", "Host-to-Array"),
                ("ATOH", "Array-to-Host"),
                ("ATOA", "Array-to-Array"),
                ("ATOD", "Array-to-Device"),
                ("DTOA", "Device-to-Array"),
                ("DTOD", "Device-to-Device"),
                ("HTOH", "Host-to-Host"),
                ("PTOP", "Peer-to-Peer"),
                ("UVM_HTOD", "Unified Host-to-Device"),
                ("UVM_DTOH", "Unified Device-to-Host"),
                ("UVM_DTOD", "Unified Device-to-Device"),
            )
        )
    ),
    "ENUM_CUDA_MEM_KIND": tuple(
        (number, f"CUDA_MEMOPR_MEMORY_KIND_{label.upper().replace(' ', '_')}", label)
        for number, label in enumerate(
            (
                "Pageable",
                "Pinned",
                "Device",
                "Array",
                "Managed",
                "Device Static",
                "Managed Static",
                "Unknown",
            )
        )
    ),
}
"""The words that `nsys stats` looks up, as nsys itself stores them."""
