"""The tables of a CUPTI capture (Nsight Systems' schema 3.20), and the field of each column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.recording.inside.cupti_library import (
    CONTEXT,
    CUDA_EVENT,
    DEVICE,
    DRIVER,
    KERNEL,
    LAYOUTS,
    MARKER,
    MARKER_DATA,
    MEMCPY,
    MEMCPY_PEER,
    MEMORY,
    MEMSET,
    NAME,
    OVERHEAD,
    RUNTIME,
    STREAM,
    SYNCHRONIZATION,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


VM = 1
"""nsys counts machines from 1."""
TID_MASK = (1 << 24) - 1
OVERHEADS = {
    0x10000: "CUPTI: Buffer flush",
    0x20000: "CUPTI: Instrumentation",
    0x30000: "CUPTI: Resource Management",
    0x70000: "CUPTI: Activity Buffer Request",
    0x80000: "CUPTI: UVM Activity Init",
}
"""Time that CUPTI itself took. Others (compiling, loading functions) are the program's own."""
_COMPLETE = "{start} > 0 AND {end} >= {start}"
"""What the GPU had not finished at the end has no end."""
_THREAD = 2
_LOCAL_POOL = 1


@dataclass(frozen=True)
class TableInsert:
    """How records of one kind become rows of one table; `{name}` stands for a field."""

    table: str
    columns: Mapping[str, str]
    only: str = "1"

    @property
    def is_work(self) -> bool:
        """Return whether a row that is left out is GPU activity that had not ended."""
        return self.only == _COMPLETE and self.table != "calls"

    def statement(self, kind: int, constants: Mapping[str, str]) -> str:
        """Write the statement; its parameters are the fields of the kind's layout."""
        names = {**constants, **LAYOUTS[kind].parameters}
        if "thread" in names:
            names["thread_of"] = names["thread_of"].format(thread=names["thread"])
        values = ", ".join(value.format_map(names) for value in self.columns.values())
        only = self.only.format_map(names)
        return f"INSERT INTO {self.table} ({', '.join(self.columns)}) SELECT {values} WHERE {only}"


_TIMES = {"start": "{start} - {origin}", "end": "{end} - {origin}"}
_ON_GPU = {
    **_TIMES,
    "deviceId": "{device}",
    "contextId": "{context}",
    "streamId": "{stream}",
    "correlationId": "{correlation}",
    "globalPid": "{pid}",
}
_NODE = {"graphNodeId": "nullif({graph_node}, 0)"}


def _kind_of_memory(name: str) -> str:
    """CUPTI begins with unknown; nsys ends with it."""
    return f"({{{name}}} + 7) % 8"


_COPY = {
    **_ON_GPU,
    "bytes": "{bytes}",
    "copyKind": "{copy_kind}",
    "srcKind": _kind_of_memory("src_kind"),
    "dstKind": _kind_of_memory("dst_kind"),
    **_NODE,
}
_CALL_COLUMNS = {
    "function": "{cbid}",
    **_TIMES,
    "thread": "{thread_of}",
    "correlation": "{correlation}",
    "result": "{result}",
}

INSERTS: dict[int, TableInsert] = {
    KERNEL: TableInsert(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        {
            **_ON_GPU,
            "demangledName": "{name}",
            "shortName": "{name}",
            "mangledName": "{name}",
            "launchType": "{launch_type} + 1",
            "cacheConfig": "{cache} >> 4",
            "registersPerThread": "{registers}",
            "gridX": "{grid_x}",
            "gridY": "{grid_y}",
            "gridZ": "{grid_z}",
            "blockX": "{block_x}",
            "blockY": "{block_y}",
            "blockZ": "{block_z}",
            "staticSharedMemory": "{static}",
            "dynamicSharedMemory": "{dynamic}",
            "localMemoryPerThread": "{local}",
            "localMemoryTotal": "coalesce({local_total_long}, {local_total})",
            "gridId": "{grid}",
            "sharedMemoryExecuted": "{shared_executed}",
            **_NODE,
            "sharedMemoryLimitConfig": "{shared_limit}",
            "graphId": "nullif({graph}, 0)",
            "clusterX": "nullif({cluster_x}, 0)",
            "clusterY": "nullif({cluster_y}, 0)",
            "clusterZ": "nullif({cluster_z}, 0)",
        },
        _COMPLETE,
    ),
    MEMCPY: TableInsert(
        "CUPTI_ACTIVITY_KIND_MEMCPY", {**_COPY, "copyCount": "{copy_count}"}, _COMPLETE
    ),
    MEMCPY_PEER: TableInsert(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        {
            **_COPY,
            "srcDeviceId": "{src_device}",
            "srcContextId": "{src_context}",
            "dstDeviceId": "{dst_device}",
            "dstContextId": "{dst_context}",
        },
        _COMPLETE,
    ),
    MEMSET: TableInsert(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        {
            **_ON_GPU,
            "value": "{value}",
            "bytes": "{bytes}",
            "memKind": _kind_of_memory("memory_kind"),
            **_NODE,
        },
        _COMPLETE,
    ),
    SYNCHRONIZATION: TableInsert(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        {
            **{k: v for k, v in _ON_GPU.items() if k != "deviceId"},
            "deviceId": "0",
            "syncType": "{type}",
            "eventId": "{event}",
            "eventSyncId": "{event_sync}",
        },
        _COMPLETE,
    ),
    CUDA_EVENT: TableInsert(
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
        {
            "deviceId": "0",
            "contextId": "{context}",
            "streamId": "{stream}",
            "correlationId": "{correlation}",
            "globalPid": "{pid}",
            "eventId": "{event}",
            "eventSyncId": "{event_sync}",
        },
    ),
    MEMORY: TableInsert(
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        {
            "start": "max({time} - {origin}, 0)",
            "globalPid": "{pid}",
            "deviceId": "{device}",
            "contextId": "{context}",
            "address": "{address}",
            "pc": "{pc}",
            "bytes": "{bytes}",
            "memKind": _kind_of_memory("memory_kind"),
            "memoryOperationType": "{operation} - 1",
            "name": "(SELECT value FROM StringIds WHERE id = {name})",
            "correlationId": "{correlation}",
            "streamId": "nullif({stream}, 4294967295)",
            **{
                column: f"CASE WHEN {{pool}} = {_LOCAL_POOL} THEN {{{value}}} END"
                for column, value in (
                    ("localMemoryPoolAddress", "pool_address"),
                    ("localMemoryPoolReleaseThreshold", "pool_threshold"),
                    ("localMemoryPoolSize", "pool_size"),
                    ("localMemoryPoolUtilizedSize", "pool_used"),
                )
            },
        },
        "{operation} IN (1, 2)",
    ),
    RUNTIME: TableInsert("calls", {"class": "0", **_CALL_COLUMNS}, _COMPLETE),
    DRIVER: TableInsert("calls", {"class": "1", **_CALL_COLUMNS}, _COMPLETE),
    MARKER: TableInsert(
        "markers",
        {
            "id": "{id}",
            "time": "{time} - {origin}",
            "flags": "{flags}",
            "object": "{object}",
            "thread": "{thread_of}",
            "name": "{name}",
            "domain": "{domain}",
        },
        "{time} > 0",
    ),
    MARKER_DATA: TableInsert(
        "marker_data",
        {
            "id": "{id}",
            "flags": "{flags}",
            "payload_kind": "{payload_kind}",
            "payload": "{payload}",
            "color": "{color}",
            "category": "{category}",
        },
    ),
    OVERHEAD: TableInsert(
        "PROFILER_OVERHEAD",
        {
            **_TIMES,
            "globalTid": f"CASE WHEN {{object}} = {_THREAD} THEN {{thread_of}} "
            "ELSE {main_thread} END",
            "nameId": "(SELECT id FROM overheads WHERE overhead = {overhead})",
            "returnValue": "0",
        },
        f"{_COMPLETE} AND {{overhead}} IN ({', '.join(map(str, OVERHEADS))})",
    ),
    NAME: TableInsert(
        "names",
        {
            "object": "{object}",
            "context": "{thread}",
            "stream": "{stream}",
            "thread": "{thread_of}",
            "name": "{name}",
        },
        "{name} > 0",
    ),
    CONTEXT: TableInsert(
        "TARGET_INFO_CUDA_CONTEXT_INFO",
        {
            "nullStreamId": "{null_stream}",
            "hwId": "0",
            "vmId": str(VM),
            "processId": "{os_pid}",
            "deviceId": "{device}",
            "contextId": "{context}",
            "parentContextId": "{parent}",
            "isGreenContext": "{green}",
        },
    ),
    STREAM: TableInsert(
        "TARGET_INFO_CUDA_STREAM",
        {
            "streamId": "{stream}",
            "hwId": "0",
            "vmId": str(VM),
            "processId": "{os_pid}",
            "contextId": "{context}",
            "priority": "{priority}",
            "flag": "{flag}",
        },
    ),
    DEVICE: TableInsert(
        "TARGET_INFO_GPU",
        {
            "vmId": str(VM << 48),
            "id": "{id}",
            "name": "(SELECT value FROM StringIds WHERE id = {name})",
            "l2CacheSize": "{l2}",
            "totalMemory": "{memory}",
            "memoryBandwidth": "{bandwidth} * 1000",
            "clockRate": "{clock} * 1000",
            "smCount": "{sms}",
            "uuid": "lower(hex({uuid}))",
            "cuDevice": "{id}",
            "constantMemory": "{constant}",
            "maxRegistersPerBlock": "{max_registers_block}",
            "maxShmemPerBlock": "{max_shared_block}",
            "maxShmemPerSm": "{max_shared_sm}",
            "maxRegistersPerSm": "{max_registers_sm}",
            "threadsPerWarp": "{warp}",
            "asyncEngines": "{copy_engines}",
            "maxWarpsPerSm": "{max_warps}",
            "maxBlocksPerSm": "{max_blocks}",
            "maxThreadsPerBlock": "{max_threads}",
            "maxBlockDimX": "{block_x}",
            "maxBlockDimY": "{block_y}",
            "maxBlockDimZ": "{block_z}",
            "maxGridDimX": "{grid_x}",
            "maxGridDimY": "{grid_y}",
            "maxGridDimZ": "{grid_z}",
            "computeMajor": "{major}",
            "computeMinor": "{minor}",
            "smMajor": "{major}",
            "smMinor": "{minor}",
        },
    ),
}

WORKING = {
    "calls": "class INTEGER, function INTEGER, start INTEGER, end INTEGER, thread INTEGER, "
    "correlation INTEGER, result INTEGER",
    "markers": "id INTEGER, time INTEGER, flags INTEGER, object INTEGER, thread INTEGER, "
    "name INTEGER, domain INTEGER",
    "marker_data": "id INTEGER PRIMARY KEY ON CONFLICT REPLACE, flags INTEGER, "
    "payload_kind INTEGER, payload INTEGER, color INTEGER, category INTEGER",
    "names": "object INTEGER, context INTEGER, stream INTEGER, thread INTEGER, name INTEGER",
    "overheads": "overhead INTEGER PRIMARY KEY, id INTEGER",
}
"""Temporary tables for what takes more than one record to understand."""


SCHEMA_VERSION = "3.20.3"

_WORK = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, "
    "correlationId INTEGER, globalPid INTEGER"
)

TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_WORK}, demangledName INTEGER NOT NULL, "
    "shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER, "
    "registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, "
    "gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, "
    "blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, "
    "dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL, "
    "localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, "
    "graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER, graphId INTEGER, clusterX INTEGER, "
    "clusterY INTEGER, clusterZ INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_WORK}, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, "
    "deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER, "
    "srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER, "
    "graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_WORK}, value INTEGER NOT NULL, bytes INTEGER NOT NULL, "
    "graphNodeId INTEGER, memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_WORK}, deprecatedSyncType INTEGER, "
    "syncType INTEGER NOT NULL, eventId INTEGER NOT NULL, eventSyncId INTEGER",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "eventId INTEGER NOT NULL, eventSyncId INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, "
    "nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, "
    "rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, "
    "endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, "
    "int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, "
    "floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start INTEGER NOT NULL, globalPid INTEGER NOT NULL, "
    "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, address INTEGER NOT NULL, "
    "pc INTEGER NOT NULL, bytes INTEGER NOT NULL, memKind INTEGER NOT NULL, "
    "memoryOperationType INTEGER NOT NULL, name TEXT, correlationId INTEGER, streamId INTEGER, "
    "localMemoryPoolAddress INTEGER, localMemoryPoolReleaseThreshold INTEGER, "
    "localMemoryPoolSize INTEGER, localMemoryPoolUtilizedSize INTEGER, "
    "importedMemoryPoolAddress INTEGER, importedMemoryPoolProcessId INTEGER",
    "PROFILER_OVERHEAD": "start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, "
    "nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL",
    "DIAGNOSTIC_EVENT": "timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, "
    "source INTEGER NOT NULL, severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "TARGET_INFO_GPU": "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, "
    "isDiscrete INTEGER, l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, "
    "clockRate INTEGER, smCount INTEGER, uuid TEXT, chipName TEXT, cuDevice INTEGER, "
    "constantMemory INTEGER, maxIPC INTEGER, maxRegistersPerBlock INTEGER, "
    "maxShmemPerBlock INTEGER, maxShmemPerSm INTEGER, maxRegistersPerSm INTEGER, "
    "threadsPerWarp INTEGER, asyncEngines INTEGER, maxWarpsPerSm INTEGER, "
    "maxBlocksPerSm INTEGER, maxThreadsPerBlock INTEGER, maxBlockDimX INTEGER, "
    "maxBlockDimY INTEGER, maxBlockDimZ INTEGER, maxGridDimX INTEGER, maxGridDimY INTEGER, "
    "maxGridDimZ INTEGER, computeMajor INTEGER, computeMinor INTEGER, smMajor INTEGER, "
    "smMinor INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL",
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId INTEGER NOT NULL, hwId INTEGER NOT NULL, "
    "vmId INTEGER NOT NULL, processId INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, parentContextId INTEGER, isGreenContext INTEGER",
    "TARGET_INFO_CUDA_STREAM": "streamId INTEGER NOT NULL, hwId INTEGER NOT NULL, "
    "vmId INTEGER NOT NULL, processId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
    "priority INTEGER NOT NULL, flag INTEGER NOT NULL",
    "TARGET_INFO_NVTX_CUDA_STREAM": "name TEXT NOT NULL, hwId INTEGER NOT NULL, "
    "vmId INTEGER NOT NULL, processId INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, streamId INTEGER NOT NULL",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT NOT NULL, "
    "name TEXT NOT NULL, nameEnum INTEGER NOT NULL, value TEXT NOT NULL",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "ANALYSIS_DETAILS": "globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, "
    "startTime INTEGER NOT NULL, stopTime INTEGER NOT NULL",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
}

_COPY_KINDS = (
    "Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host",
    "Array-to-Array", "Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host",
    "Peer-to-Peer",
)  # fmt: skip
_MEMORY_KINDS = (
    "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static",
    "Unknown",
)  # fmt: skip
ENUMS: dict[str, tuple[str, ...]] = {
    "ENUM_CUDA_MEMCPY_OPER": _COPY_KINDS,
    "ENUM_CUDA_MEM_KIND": _MEMORY_KINDS,
    "ENUM_CUDA_DEV_MEM_EVENT_OPER": ("Allocation", "Deallocation"),
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": (
        "Unknown",
        "Regular",
        "Coop Single Device",
        "Coop Multi Device",
    ),
    "ENUM_CUDA_FUNC_CACHE_CONFIG": ("None", "Shared", "L1", "Equal"),
    "ENUM_CUDA_SHARED_MEM_LIMIT_CONFIG": ("Default", "Opt in"),
    "ENUM_CUPTI_SYNC_TYPE": (
        "Unknown",
        "Event sync",
        "Stream wait sync",
        "Stream sync",
        "Context sync",
    ),
    "ENUM_CUPTI_STREAM_TYPE": (
        "Unknown stream type",
        "Default stream",
        "Non-blocking stream",
        "Null stream",
    ),
    "ENUM_DIAGNOSTIC_SEVERITY_LEVEL": ("Unknown", "Info", "Warning", "Error", "Verbose"),
}
"""Tables of words that `nsys stats` looks up."""
