"""Which field of which event becomes which column, as data, and reading fields by their path."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from gpusight.readers.protobuf_columns import (
    ByteSpans,
    FieldValues,
    MessageCursor,
    bytes_column,
    text_column,
)
from gpusight.readers.protobuf_wire import FIXED32, FIXED64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.readers.protobuf_columns import Int64, MessageBuffer, Rows
    from gpusight.trace.intervals import Ints, Reals

    Numbers: TypeAlias = Ints | Reals


Tree: TypeAlias = "dict[int, Tree | str]"
"""Field number -> kind of the field, or the fields wanted of the message in it."""


def leaves(path: str) -> list[str]:
    """List the fields that a path reads."""
    path = path.removeprefix("pid ")
    return [leaf for leaf in path.split("|") if leaf and not leaf.startswith("=")]


class PathSet:
    """The fields to read from one kind of message."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.leaves = sorted({leaf for path in paths for leaf in leaves(path)})
        self.tree: Tree = {}
        for leaf in self.leaves:
            name, colon, kind = leaf.partition(":")
            *parents, number = (int(part) for part in name.split("."))
            branch = self.tree
            for parent in parents:
                inner = branch.setdefault(parent, {})
                assert isinstance(inner, dict), f"{leaf}: {parent} is read as message and as value"
                branch = inner
            branch[number] = colon + kind


def read_columns(buffer: MessageBuffer, start: Int64, end: Int64, paths: PathSet) -> pl.DataFrame:
    """Decode these fields of all messages: one column a path, none for a field that none has."""
    reader = _Reader(buffer, len(start))
    reader.read(start, end, paths.tree, slice(None), "")
    columns = reader.columns
    columns.setdefault("#", pl.Series(np.arange(len(start), dtype=np.int64)))
    return pl.DataFrame(columns)


def column_expression(path: str, available: list[str]) -> pl.Expr | None:
    """Return how to get a table's column from decoded fields; None if no event has them."""
    if path.startswith("="):
        return pl.lit(int(path[1:]), pl.Int64)
    fields = [leaf for leaf in leaves(path) if leaf in available]
    if not fields:
        return None
    value = pl.coalesce(fields) if len(fields) > 1 else pl.col(fields[0])
    if path.startswith("pid "):
        return (value // (1 << 24)) & 0xFFFFFF
    return value


class _Reader:
    """Collects the columns of one `read_columns`."""

    def __init__(self, buffer: MessageBuffer, height: int) -> None:
        self._buffer = buffer
        self._height = height
        self.columns: dict[str, pl.Series] = {}

    def read(self, start: Int64, end: Int64, tree: Tree, rows: Rows, prefix: str) -> None:
        """Read the fields of `tree` from the messages that belong to these rows."""
        cursor = MessageCursor(self._buffer, start, end)
        for number, kind in sorted(tree.items(), key=lambda item: item[0]):
            if isinstance(kind, dict):
                spans = cursor.spans(number)
                if spans is not None:
                    inner = _compose(rows, spans.rows)
                    self.read(spans.start, spans.end, kind, inner, f"{prefix}{number}.")
            else:
                self._read_leaf(cursor, number, kind, rows, prefix)

    def _read_leaf(
        self, cursor: MessageCursor, number: int, kind: str, rows: Rows, prefix: str
    ) -> None:
        values: FieldValues | ByteSpans | None
        if kind == "":
            values = cursor.integers(number)
        elif kind in _REAL_KINDS:
            values = cursor.reals(number, _REAL_KINDS[kind])
        else:
            values = cursor.spans(number)
        if values is None:
            return
        rows = _compose(rows, values.rows)
        if isinstance(values, FieldValues):
            column = self._number_column(rows, values.values)
        elif kind in _SPAN_KINDS:
            column = self._span_column(rows, _SPAN_KINDS[kind](self._buffer, *values[1:]))
        else:
            column = self._number_column(rows, np.ones(len(values.start), np.int64))
        self.columns[f"{prefix}{number}{kind}"] = column

    def _number_column(self, rows: Rows, values: Numbers) -> pl.Series:
        if isinstance(rows, slice):
            return pl.Series(values)
        full = np.zeros(self._height, values.dtype)
        full[rows] = values
        present = np.zeros(self._height, np.bool_)
        present[rows] = True
        frame = pl.DataFrame({"value": full, "present": present})
        return frame.select(pl.when("present").then("value")).to_series()

    def _span_column(self, rows: Rows, values: pl.Series) -> pl.Series:
        if isinstance(rows, slice):
            return values
        positions = np.full(self._height, -1, np.int64)
        positions[rows] = np.arange(len(rows), dtype=np.int64)
        index = pl.Series(positions)
        return values.gather(index.set(index < 0, None))


_REAL_KINDS = {":f64": FIXED64, ":f32": FIXED32}
_SPAN_KINDS = {":text": text_column, ":bytes": bytes_column}


def _compose(outer: Rows, inner: Rows) -> Rows:
    """Turn rows counted among `outer` into rows of the whole."""
    if isinstance(inner, slice):
        return outer
    return inner if isinstance(outer, slice) else outer[inner]


NVTX, SAMPLE, SCHED, CUDA, TRACE = 102, 104, 106, 107, 108
MODULE, DIAGNOSTIC, PROCESS, MEMORY = 109, 110, 113, 123
CPU_FAULT, GPU_FAULT, MEMORY_POOL = 124, 125, 129

NOT_EXPORTED = {MODULE: "mapped modules"}
"""Payloads that nsys's own SQLite export leaves out as well."""

CLASSES_WITHOUT_TABLE = frozenset(
    {6, 7, 8, 9, 10, 11, 68, 69, 102}
    | {39, 40, 43, 44, 45, 46, 55, 56, 72, 73, 79, 80, 84, 85, 87, 88, 90, 91}
    | {99, 100, 105, 106, 109, 110}
)
"""Trace events that only mark the start and end of tracing, or JIT cache use: no table."""


@dataclass(frozen=True)
class EventTableFields:
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
class ChainTableFields:
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


def _gpu_table(name: str, kind: int, columns: dict[str, str], drop: str = "") -> EventTableFields:
    common = {column: path for column, path in _GPU_WORK.items() if column not in drop.split()}
    name = f"CUPTI_ACTIVITY_KIND_{name}"
    return EventTableFields(name, CUDA, common | columns, "7", frozenset({kind}))


def _call_table(name: str, classes: set[int], columns: dict[str, str]) -> EventTableFields:
    return EventTableFields(name, TRACE, columns, "6", frozenset(classes))


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

_LIBRARY_CLASSES = {
    "OPENGL_API": 2,
    "DX12_API": 41,
    "OPENACC_EVENTS": 48,
    "VULKAN_API": 53,
    "D3D12_PIX_DEBUG_API": 65,
    "VULKAN_DEBUG_API": 66,
    "DX11_API": 71,
    "D3D11_PIX_DEBUG_API": 75,
    "OPENMP_EVENTS": 78,
    "NVVIDEO_ENCODER_API": 83,
    "NVVIDEO_DECODER_API": 86,
    "NVVIDEO_JPEG_API": 89,
    "OPENCL_API": 98,
    "OPENXR_API": 104,
}

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
    EventTableFields(
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
    EventTableFields(
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
    # What other libraries did has more fields; those that all trace events have are enough.
    *(_call_table(name, {number}, _CALL) for name, number in _LIBRARY_CLASSES.items()),
    EventTableFields("NVTX_EVENTS", NVTX, _NVTX, texts=frozenset({"jsonText", "binaryData"})),
    EventTableFields("CUDA_GPU_MEMORY_USAGE_EVENTS", MEMORY, _MEMORY),
    EventTableFields("CUDA_GPU_MEMORY_POOL_EVENTS", MEMORY_POOL, _MEMORY_POOL),
    EventTableFields(
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
    EventTableFields(
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
    EventTableFields(
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
    EventTableFields(
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
    EventTableFields(
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
    EventTableFields(
        "PROCESSES",
        PROCESS,
        {"globalPid": "2", "pid": "pid 2", "name": "6:text|5:text"},
        required="name",
    ),
)

CHAIN_TABLES = (
    ChainTableFields("CUDA_CALLCHAINS", "CUPTI_ACTIVITY_KIND_RUNTIME", 15),
    ChainTableFields("OSRT_CALLCHAINS", "OSRT_API", 15),
    ChainTableFields("SAMPLING_CALLCHAINS", "COMPOSITE_EVENTS", 4),
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

NVTX_PAYLOADS = EventTableFields(
    "NVTX_PAYLOADS",
    NVTX,
    {
        **{name: _NVTX[name] for name in ("start", "globalTid", "category", "domainId")},
        "schemaId": "8.9.1",
        "binaryData": "8.9.2:bytes",
    },
    required="binaryData",
)
"""Our name for the binary payloads of NVTX events; no table of its own, so it is not counted."""

BY_NAME = {table.name: table for table in (*EVENT_TABLES, NVTX_PAYLOADS)}
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
