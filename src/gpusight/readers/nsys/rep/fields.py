"""Which field of which event becomes which column: the whole map, as data.

A path names a field inside an event's payload: `3` is field 3, `101.10` field 10 of the message in
field 101. Without a suffix the field is an integer; `:text` is text, `:f64` and `:f32` are floating
point, `:any` says 1 where the field is present. `a|b` takes b where a is absent, `=8` is the
constant 8, `pid 2` the process id inside the global id in field 2, and an empty path is a column
that nsys's own export leaves NULL for such events.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpusight.readers.nsys.rep.paths import PathSet

NVTX, SAMPLE, SCHED, CUDA, TRACE = 102, 104, 106, 107, 108
MODULE, DIAGNOSTIC, PROCESS, MEMORY = 109, 110, 113, 123
CPU_FAULT, GPU_FAULT, MEMORY_POOL = 124, 125, 129

NOT_EXPORTED = {MODULE: "mapped modules"}
"""Payloads that nsys's own SQLite export leaves out as well."""

CLASSES_WITHOUT_TABLE = frozenset({6, 7, 8, 9, 10, 11, 68, 69, 102})
"""Trace events that only mark the start and end of tracing, or JIT cache use: no table."""


@dataclass(frozen=True)
class EventTable:
    """A table with one row for each event of a payload, or for those of some classes."""

    name: str
    payload: int
    columns: dict[str, str]
    class_path: str = ""
    classes: frozenset[int] = frozenset()
    texts: frozenset[str] = frozenset()
    """Text columns among those with an empty path."""
    id_column: str = ""
    """Column that numbers events through the whole file."""
    first_number: int = 1
    numbered: str = ""
    """Path that an event must have to get such a number; empty: every event gets one."""
    unnumbered: int | None = None
    """What the events without a number get."""
    required: str = ""
    """Column without which the row is left out."""
    paths: PathSet = field(init=False)

    def __post_init__(self) -> None:
        """Collect the fields that the table is made of."""
        object.__setattr__(self, "paths", PathSet([*self.columns.values(), self.numbered]))


@dataclass(frozen=True)
class ChainTable:
    """A table with one row for each call-chain frame of the events of another table."""

    name: str
    events: str
    frames: int
    """Field of the event that holds its frames."""


_GPU_WORK = {
    "start": "1",
    "end": "2",
    "deviceId": "4",
    "contextId": "5",
    "greenContextId": "9",
    "streamId": "6",
    "correlationId": "3",
    "globalPid": "8",
}
_CALL = {"start": "1", "end": "2", "eventClass": "6", "globalTid": "13", "nameId": "7"}


def _gpu_table(name: str, kind: int, columns: dict[str, str], drop: str = "") -> EventTable:
    common = {column: path for column, path in _GPU_WORK.items() if column not in drop.split()}
    name = f"CUPTI_ACTIVITY_KIND_{name}"
    return EventTable(name, CUDA, common | columns, "7", frozenset({kind}))


def _call_table(name: str, classes: set[int], columns: dict[str, str]) -> EventTable:
    return EventTable(name, TRACE, columns, "6", frozenset(classes))


_KERNEL = {
    "demangledName": "101.1",
    "shortName": "101.2",
    "mangledName": "101.3",
    "launchType": "101.24",
    "cacheConfig": "101.23",
    "registersPerThread": "101.21",
    "gridX": "101.10",
    "gridY": "101.11",
    "gridZ": "101.12",
    "blockX": "101.13",
    "blockY": "101.14",
    "blockZ": "101.15",
    "staticSharedMemory": "101.16",
    "dynamicSharedMemory": "101.17",
    "localMemoryPerThread": "101.18",
    "localMemoryTotal": "101.19",
    "gridId": "101.20",
    "sharedMemoryExecuted": "101.22",
    "graphNodeId": "101.27",
    "sharedMemoryLimitConfig": "101.28",
    "graphId": "101.29",
    "clusterX": "101.31",
    "clusterY": "101.32",
    "clusterZ": "101.33",
    "clusterSchedulingPolicy": "101.34",
    "maxPotentialClusterSize": "101.35",
    "maxActiveClusters": "101.36",
}
_MEMCPY = {
    "bytes": "102.1",
    "copyKind": "102.2",
    "deprecatedSrcId": "",
    "srcKind": "102.4",
    "dstKind": "102.5",
    "srcDeviceId": "102.6",
    "srcContextId": "102.7",
    "dstDeviceId": "102.8",
    "dstContextId": "102.9",
    "migrationCause": "102.10",
    "graphNodeId": "102.11",
    "virtualAddress": "102.12",
    "copyCount": "102.16",
}
_NVTX = {
    "start": "2",
    "end": "10",
    "eventType": "1",
    "rangeId": "4",
    "category": "5",
    "color": "6",
    "text": "7:text",
    "globalTid": "9",
    "endGlobalTid": "11",
    "textId": "12",
    "domainId": "13",
    "uint64Value": "8.1",
    "int64Value": "8.2",
    "doubleValue": "8.3:f64",
    "uint32Value": "8.4",
    "int32Value": "8.5",
    "floatValue": "8.6:f32",
    "jsonTextId": "",
    "jsonText": "",
    "binaryData": "",
}
_MEMORY = {
    "start": "1",
    "globalPid": "5",
    "deviceId": "3",
    "contextId": "4",
    "address": "6",
    "pc": "7",
    "bytes": "8",
    "memKind": "9",
    "memoryOperationType": "10",
    "name": "11:text",
    "correlationId": "12",
    "streamId": "15",
    "localMemoryPoolAddress": "13.1",
    "localMemoryPoolReleaseThreshold": "13.2",
    "localMemoryPoolSize": "13.3",
    "localMemoryPoolUtilizedSize": "13.4",
    "importedMemoryPoolAddress": "",
    "importedMemoryPoolProcessId": "",
}
_MEMORY_POOL = {
    "start": "1",
    "globalPid": "5",
    "deviceId": "6",
    "address": "7",
    "operationType": "2",
    "poolType": "3",
    "correlationId": "4",
    "minBytesToKeep": "8",
    "localMemoryPoolReleaseThreshold": "9.10",
    "localMemoryPoolSize": "9.9",
    "localMemoryPoolUtilizedSize": "9.11",
}
_OSRT = _CALL | {"returnValue": "8", "nestingLevel": "20", "callchainId": ""}

EVENT_TABLES = (
    _gpu_table("KERNEL", 3, _KERNEL),
    _gpu_table("MEMCPY", 1, _MEMCPY),
    _gpu_table(
        "MEMSET",
        2,
        {"value": "103.2", "bytes": "103.1", "graphNodeId": "103.3", "memKind": "103.4"},
    ),
    _gpu_table(
        "SYNCHRONIZATION",
        5,
        {
            "deprecatedSyncType": "",
            "syncType": "105.4|105.2",
            "eventId": "105.1",
            "eventSyncId": "105.3",
        },
    ),
    _gpu_table("CUDA_EVENT", 6, {"eventId": "106.1", "eventSyncId": "106.2"}, drop="start end"),
    _gpu_table("GRAPH_TRACE", 7, {"graphId": "107.1", "graphExecId": "107.2"}),
    EventTable(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        TRACE,
        _CALL | {"correlationId": "3", "returnValue": "8", "callchainId": ""},
        "6",
        frozenset({0, 1, 67}),
        id_column="callchainId",
        first_number=0,
        numbered="15:any",
    ),
    _call_table(
        "CUPTI_ACTIVITY_KIND_OVERHEAD",
        {103},
        _CALL | {"correlationId": "3", "overheadType": "=8"},
    ),
    EventTable(
        "OSRT_API",
        TRACE,
        _OSRT,
        "6",
        frozenset({27, 31, 32}),
        id_column="callchainId",
        numbered="15:any",
        unnumbered=0,
    ),
    _call_table(
        "PROFILER_OVERHEAD",
        {3},
        {
            "start": "1",
            "end": "2",
            "globalTid": "13",
            "nameId": "7",
            "returnValue": "8",
            "overheadType": "8",
        },
    ),
    _call_table("CUDNN_EVENTS", {28, 33, 34}, _CALL),
    _call_table("CUBLAS_EVENTS", {29, 35, 36}, _CALL),
    _call_table(
        "CUDA_GRAPH_NODE_EVENTS",
        {77},
        _CALL | {"graphNodeId": "33.1", "originalGraphNodeId": "33.2"},
    ),
    _call_table(
        "CUDA_GRAPH_EVENTS",
        {94, 95, 96},
        _CALL | {"graphId": "37.1|38.1", "originalGraphId": "38.2", "graphExecId": "37.2"},
    ),
    EventTable("NVTX_EVENTS", NVTX, _NVTX, texts=frozenset({"jsonText", "binaryData"})),
    EventTable("CUDA_GPU_MEMORY_USAGE_EVENTS", MEMORY, _MEMORY),
    EventTable("CUDA_GPU_MEMORY_POOL_EVENTS", MEMORY_POOL, _MEMORY_POOL),
    EventTable(
        "CUDA_UM_CPU_PAGE_FAULT_EVENTS",
        CPU_FAULT,
        {
            "start": "1",
            "globalPid": "2",
            "address": "3",
            "originalFaultPc": "4.8",
            "CpuInstruction": "4.1",
            "module": "4.2",
            "unresolvedFaultPc": "4.6",
            "sourceFile": "4.11",
            "sourceLine": "4.10",
        },
    ),
    EventTable(
        "CUDA_UM_GPU_PAGE_FAULT_EVENTS",
        GPU_FAULT,
        {
            "start": "1",
            "end": "2",
            "globalPid": "4",
            "deviceId": "3",
            "address": "5",
            "numberOfPageFaults": "6",
            "faultAccessType": "7",
        },
    ),
    EventTable(
        "COMPOSITE_EVENTS",
        SAMPLE,
        {
            "id": "",
            "start": "1",
            "cpu": "3",
            "threadState": "6",
            "globalTid": "11",
            "cpuCycles": "5.2",
        },
        id_column="id",
    ),
    EventTable(
        "SCHED_EVENTS",
        SCHED,
        {
            "start": "1",
            "cpu": "3",
            "isSchedIn": "4",
            "globalTid": "6",
            "threadState": "5",
            "threadBlock": "",
        },
    ),
    EventTable(
        "DIAGNOSTIC_EVENT",
        DIAGNOSTIC,
        {
            "timestamp": "1.1",
            "timestampType": "1.2",
            "source": "2",
            "severity": "3",
            "text": "4:text",
            "globalPid": "5",
        },
    ),
    EventTable(
        "PROCESSES",
        PROCESS,
        {"globalPid": "2", "pid": "pid 2", "name": "6:text|5:text"},
        required="name",
    ),
)

CHAIN_TABLES = (
    ChainTable("CUDA_CALLCHAINS", "CUPTI_ACTIVITY_KIND_RUNTIME", 15),
    ChainTable("OSRT_CALLCHAINS", "OSRT_API", 15),
    ChainTable("SAMPLING_CALLCHAINS", "COMPOSITE_EVENTS", 4),
)

FRAME_COLUMNS = {
    "symbol": "1",
    "module": "2",
    "kernelMode": "4",
    "thumbCode": "5",
    "unresolved": "6",
    "specialEntry": "7",
    "originalIP": "8",
    "unwindMethod": "9",
}
FRAME_PATHS = PathSet(FRAME_COLUMNS.values())
CHAIN_COLUMNS = ("id", *FRAME_COLUMNS, "stackDepth")

GPU_METRICS_COLUMNS = ("rawTimestamp", "timestamp", "typeId", "metricId", "value")

BY_NAME = {table.name: table for table in EVENT_TABLES}
CHAINS_BY_NAME = {table.name: table for table in CHAIN_TABLES}
CLASS_PATHS = {table.payload: table.class_path for table in EVENT_TABLES if table.class_path}
TABLES_OF_PAYLOAD = {
    payload: tuple(table for table in EVENT_TABLES if table.payload == payload)
    for payload in sorted({table.payload for table in EVENT_TABLES})
}
CHAINS_OF_PAYLOAD = {
    payload: tuple(chain for chain in CHAIN_TABLES if BY_NAME[chain.events].payload == payload)
    for payload in (TRACE, SAMPLE)
}
"""Chains of one payload lie in the same field."""
