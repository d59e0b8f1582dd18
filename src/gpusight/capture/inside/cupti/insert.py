"""Which column of which table each field of a record goes to.

A row is put in as CUPTI has it; what differs (the origin of time, numbers for kinds of memory) is
changed in SQL on the way, which is faster than a Python expression a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.capture.inside.cupti import layouts
from gpusight.capture.inside.cupti.layouts import LAYOUTS

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
class Insert:
    """How records of one kind become rows of one table; `{name}` stands for a field."""

    table: str
    columns: Mapping[str, str]
    only: str = "1"

    @property
    def is_work(self) -> bool:
        """Tell whether a row left out is work that had not ended."""
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
_CALL = {
    "function": "{cbid}",
    **_TIMES,
    "thread": "{thread_of}",
    "correlation": "{correlation}",
    "result": "{result}",
}

INSERTS: dict[int, Insert] = {
    layouts.KERNEL: Insert(
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
    layouts.MEMCPY: Insert(
        "CUPTI_ACTIVITY_KIND_MEMCPY", {**_COPY, "copyCount": "{copy_count}"}, _COMPLETE
    ),
    layouts.MEMCPY_PEER: Insert(
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
    layouts.MEMSET: Insert(
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
    layouts.SYNCHRONIZATION: Insert(
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
    layouts.CUDA_EVENT: Insert(
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
    layouts.MEMORY: Insert(
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
    layouts.RUNTIME: Insert("calls", {"class": "0", **_CALL}, _COMPLETE),
    layouts.DRIVER: Insert("calls", {"class": "1", **_CALL}, _COMPLETE),
    layouts.MARKER: Insert(
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
    layouts.MARKER_DATA: Insert(
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
    layouts.OVERHEAD: Insert(
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
    layouts.NAME: Insert(
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
    layouts.CONTEXT: Insert(
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
    layouts.STREAM: Insert(
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
    layouts.DEVICE: Insert(
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
