"""The one mapping from nsys's export schema, of any version, to the tables of a trace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.naming.name_parts import demangle_if_mangled
from gpusight.readers.nsys import column_rules as rules
from gpusight.readers.nsys import nsys_machine, raw_tables
from gpusight.readers.nsys.column_rules import (
    DEVICE,
    GPU_ACTIVITY,
    ON_DEVICE,
    ON_THREAD,
    TIMES,
    RawColumnRule,
    RawTablePart,
    coalesce,
    column,
    computed,
    constant,
    flag,
    process,
    renamed,
    string,
    word_for_number,
)
from gpusight.readers.nsys.raw_tables import Ends, RowFilter
from gpusight.readers.tables import encode_names, file_name, strip_api_version

if TYPE_CHECKING:
    from collections.abc import Iterator


def _callchains(raw: str, source: str, number: RawColumnRule | None = None) -> RawTablePart:
    return RawTablePart(
        raw,
        {
            "source": constant(source, "id"),
            "callchain": number or column("id"),
            "depth": column("stackDepth"),
            "symbol": string("symbol", demangle_if_mangled),
            "module": string("module", file_name),
            "kernel_mode": flag("kernelMode"),
            "unresolved": flag("unresolved"),
            "address": column("originalIP"),
        },
    )


def _library_calls(raw: str, api: str) -> RawTablePart:
    return RawTablePart(
        raw,
        {
            **TIMES,
            **ON_THREAD,
            "name": string("nameId", strip_api_version),
            "symbol": string("nameId"),
            "api": constant(api, "nameId"),
        },
    )


_OPENMP_KINDS = (
    *("CANCEL", "CRITICAL_SECTION", "DISPATCH", "FLUSH", "LOCK_DESTROY", "LOCK_INIT", "MASTER"),
    *("MUTEX_RELEASED", "MUTEX_WAIT", "PARALLEL", "REDUCTION", "SYNC_REGION", "SYNC_REGION_WAIT"),
    *("TASK", "TASK_CREATE", "TASK_SCHEDULE", "THREAD", "WORKSHARE"),
)
# What traced the events, their category, and their raw tables. `OPENMP_EVENTS`, `OPENACC_EVENTS`
# are our names for those of a report, whose kind is not decoded.
_TRACED = (
    ("MPI", "collectives", ("MPI_COLLECTIVES_EVENTS",)),
    ("MPI", "p2p", ("MPI_P2P_EVENTS",)),
    ("MPI", "start-wait", ("MPI_START_WAIT_EVENTS",)),
    ("MPI", "other", ("MPI_OTHER_EVENTS",)),
    ("UCX", "calls", ("UCP_SUBMIT_EVENTS", "UCP_PROGRESS_EVENTS", "UCP_EVENTS")),
    ("OpenMP", "regions", ("OPENMP_EVENTS", *(f"OPENMP_EVENT_KIND_{k}" for k in _OPENMP_KINDS))),
    (
        "OpenACC",
        "regions",
        (
            "OPENACC_EVENTS",
            *(f"CUPTI_ACTIVITY_KIND_OPENACC_{k}" for k in ("DATA", "LAUNCH", "OTHER")),
        ),
    ),
    ("OpenGL", "calls", ("OPENGL_API",)),
    ("OpenGL", "markers", ("KHR_DEBUG_EVENTS",)),
    ("Vulkan", "calls", ("VULKAN_API",)),
    ("Vulkan", "markers", ("VULKAN_DEBUG_API",)),
    ("Direct3D 11", "calls", ("DX11_API",)),
    ("Direct3D 11", "markers", ("D3D11_PIX_DEBUG_API",)),
    ("Direct3D 12", "calls", ("DX12_API",)),
    ("Direct3D 12", "markers", ("D3D12_PIX_DEBUG_API",)),
    ("OpenXR", "calls", ("OPENXR_API",)),
    ("OpenCL", "calls", ("OPENCL_API",)),
    ("video", "Decoder", ("NVVIDEO_DECODER_API",)),
    ("video", "Encoder", ("NVVIDEO_ENCODER_API",)),
    ("video", "JPEG", ("NVVIDEO_JPEG_API",)),
)
_WORKLOADS = ("OPENGL_WORKLOAD", "VULKAN_WORKLOAD", "DX12_WORKLOAD")
"""Raw tables of what graphics libraries ran on a GPU."""
_SOURCES = tuple(dict.fromkeys(source for source, _, _ in _TRACED))
_IN_TEXT = ("MPI", "UCX", "markers")


def _traced_ranges() -> Iterator[RawTablePart]:
    """Return the parts of `ranges` that are calls and regions of other libraries than CUDA."""
    for source, category, raw_names in _TRACED:
        if source == "OpenACC":
            name = RawColumnRule(rules.openacc_name, ("nameId",), ("srcFile", "lineNo"))
        elif source in _IN_TEXT or category in _IN_TEXT:
            name = string("textId", fallback=string("nameId"))
        else:
            name = string("nameId", fallback=string("textId"))
        columns = {
            **TIMES,
            **ON_THREAD,
            "name": name,
            "kind": constant("push_pop", "start"),
            "domain": constant(source, "start"),
            # Negative numbers are no domains of NVTX.
            "domain_key": constant(-1 - _SOURCES.index(source), "start"),
            "category": constant(category, "start"),
            "source": constant(source, "start"),
            "open": RawColumnRule(lambda _, raw: raw.get_column("start").is_null(), ("start",)),
        }
        # Of OpenGL, ranges on the GPU are in the table too; a wait has a row for each request.
        only = (
            RowFilter("eventClass", (raw_tables.KHR_RANGE,)) if raw_names[0][:3] == "KHR" else None
        )
        once = ("start", "end", "globalTid", "textId") if category == "start-wait" else ()
        for raw in raw_names:
            yield RawTablePart(raw, columns, only, once=once)


_OS_CALLCHAIN = pl.when(pl.col("callchainId") != 0).then("callchainId")
"""Chains of OS calls count from 1, where 0 is none; those of API calls from 0."""
_CUDA_CALLCHAIN = pl.col("id") - pl.col("id").min().clip(0, 1)
"""Older versions number these chains from 1, and refer to them from 0."""
_KERNEL_RULES: dict[str, RawColumnRule] = {
    **GPU_ACTIVITY,
    "name": replace(string("demangledName", demangle_if_mangled), fallback=rules.OTHER_NAME),
    "base_name": string("shortName", rules.base_name),
    "mangled_name": string("mangledName"),
    "recorded_name": string("demangledName"),
    **renamed(grid_x="gridX", grid_y="gridY", grid_z="gridZ"),
    **renamed(block_x="blockX", block_y="blockY", block_z="blockZ"),
    **renamed(cluster_x="clusterX", cluster_y="clusterY", cluster_z="clusterZ"),
    "registers_per_thread": column("registersPerThread"),
    **renamed(static_shared_bytes="staticSharedMemory", dynamic_shared_bytes="dynamicSharedMemory"),
    "shared_bytes": computed(
        pl.col("staticSharedMemory") + pl.col("dynamicSharedMemory"),
        *("staticSharedMemory", "dynamicSharedMemory"),
    ),
    "executed_shared_bytes": column("sharedMemoryExecuted"),
    **renamed(local_per_thread_bytes="localMemoryPerThread", local_total_bytes="localMemoryTotal"),
    **renamed(launch_type="launchType", cache_config="cacheConfig"),
    **renamed(grid="gridId", graph_node="graphNodeId", graph="graphId"),
}

PARTS: dict[str, tuple[RawTablePart, ...]] = {
    "kernels": (RawTablePart("CUPTI_ACTIVITY_KIND_KERNEL", _KERNEL_RULES, ends=Ends.NEEDED),),
    "copies": (
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            {
                **GPU_ACTIVITY,
                "bytes": column("bytes"),
                "kind": word_for_number("copyKind", raw_tables.COPY_KINDS),
                "src_kind": word_for_number("srcKind", raw_tables.MEMORY_KINDS),
                "dst_kind": word_for_number("dstKind", raw_tables.MEMORY_KINDS),
                **renamed(src_device="srcDeviceId", dst_device="dstDeviceId"),
                "migration_cause": word_for_number("migrationCause", raw_tables.MIGRATION_CAUSES),
                **renamed(copy_count="copyCount", virtual_address="virtualAddress"),
                "graph_node": column("graphNodeId"),
            },
            ends=Ends.NEEDED,
        ),
    ),
    "memsets": (
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            {
                **GPU_ACTIVITY,
                **renamed(bytes="bytes", value="value"),
                "memory_kind": word_for_number("memKind", raw_tables.MEMORY_KINDS),
                "graph_node": column("graphNodeId"),
            },
            ends=Ends.NEEDED,
        ),
    ),
    "graph_launches": (
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            {**GPU_ACTIVITY, **renamed(graph="graphId", graph_exec="graphExecId")},
            ends=Ends.NEEDED,
        ),
    ),
    "syncs": (
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            {
                **GPU_ACTIVITY,
                "kind": RawColumnRule(rules.sync_kind, ("syncType",), ("deprecatedSyncType",)),
                "event": column("eventId"),
            },
            ends=Ends.NEEDED,
        ),
    ),
    "event_records": (
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
            {**ON_DEVICE, **renamed(event="eventId", event_sync="eventSyncId")},
        ),
    ),
    "graph_nodes": (
        RawTablePart(
            "CUDA_GRAPH_NODE_EVENTS",
            {
                **TIMES,
                **ON_THREAD,
                "name": string("nameId", strip_api_version),
                **renamed(graph_node="graphNodeId", original_node="originalGraphNodeId"),
            },
        ),
    ),
    "api_calls": (
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            {
                **TIMES,
                **ON_THREAD,
                "name": string("nameId", strip_api_version),
                "symbol": string("nameId"),
                "api": string("nameId", lambda s: "runtime" if s.startswith("cuda") else "driver"),
                **renamed(correlation="correlationId", return_value="returnValue"),
                "callchain": column("callchainId"),
            },
        ),
        _library_calls("CUDNN_EVENTS", "cudnn"),
        _library_calls("CUBLAS_EVENTS", "cublas"),
    ),
    "ranges": (
        RawTablePart(
            "NVTX_EVENTS",
            {
                "start_ns": column("start"),
                "end_ns": RawColumnRule(rules.range_end, ("start", "end", "eventType")),
                "name": RawColumnRule(rules.range_name, (), ("text", "textId")),
                "kind": word_for_number("eventType", raw_tables.RANGE_KINDS),
                "domain": RawColumnRule(rules.range_domain, ("globalTid", "domainId")),
                "domain_key": column("domainId"),
                "category": RawColumnRule(
                    rules.range_category, ("globalTid", "domainId", "category"), ("textId",)
                ),
                "open": RawColumnRule(rules.range_is_open, ("start", "end", "eventType")),
                **ON_THREAD,
                "end_thread": column("endGlobalTid"),
                "range": column("rangeId"),
                "record": RawColumnRule(rules.range_record, (), rules.TRACED_AS_NVTX),
                "source": RawColumnRule(rules.range_source, rules.TRACED_AS_NVTX),
                "color": column("color"),
                "payload_int": coalesce("int64Value", "uint64Value", "int32Value", "uint32Value"),
                "payload_real": coalesce("doubleValue", "floatValue"),
                "payload_text": RawColumnRule(
                    rules.range_payload_text, ("jsonText",), ("jsonTextId",)
                ),
            },
            only=RowFilter("eventType", tuple(raw_tables.RANGE_KINDS), or_unknown=True),
            ends=Ends.OPEN,
        ),
        *_traced_ranges(),
    ),
    "gpu_ranges": tuple(
        RawTablePart(
            raw,
            {
                **TIMES,
                "name": string("nameId"),
                "kind": constant("workload", "start"),
                "device": column("gpu"),
                "process": process("globalTid"),
            },
        )
        for raw in _WORKLOADS
    ),
    "os_calls": (
        RawTablePart(
            "OSRT_API",
            {
                **TIMES,
                **ON_THREAD,
                "name": string("nameId"),
                **renamed(return_value="returnValue", nesting="nestingLevel"),
                "callchain": computed(_OS_CALLCHAIN, "callchainId"),
            },
            only=RowFilter("eventClass", (raw_tables.OS_CALL,), or_unknown=True),
        ),
    ),
    "cpu_samples": (
        RawTablePart(
            "COMPOSITE_EVENTS",
            {
                **renamed(time_ns="start", cpu="cpu", cycles="cpuCycles", state="threadState"),
                **ON_THREAD,
                "callchain": column("id"),
            },
        ),
    ),
    "thread_switches": (
        RawTablePart(
            "SCHED_EVENTS",
            {
                **renamed(time_ns="start", cpu="cpu"),
                "scheduled_in": flag("isSchedIn"),
                **ON_THREAD,
            },
        ),
    ),
    "callchains": (
        _callchains("SAMPLING_CALLCHAINS", "cpu_samples"),
        _callchains("OSRT_CALLCHAINS", "os_calls"),
        _callchains("CUDA_CALLCHAINS", "api_calls", computed(_CUDA_CALLCHAIN, "id")),
    ),
    "memory_events": (
        RawTablePart(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            {
                **ON_DEVICE,
                **renamed(time_ns="start", address="address", bytes="bytes"),
                "operation": word_for_number("memoryOperationType", raw_tables.MEMORY_OPERATIONS),
                "memory_kind": word_for_number("memKind", raw_tables.MEMORY_KINDS),
                "variable": RawColumnRule(lambda _, raw: encode_names(raw["name"]), ("name",)),
            },
        ),
    ),
    "page_faults": (
        RawTablePart(
            "CUDA_UM_CPU_PAGE_FAULT_EVENTS",
            {
                **renamed(start_ns="start", address="address"),
                "side": constant("cpu", "start"),
                "process": process("globalPid"),
                "module": string("module", file_name),
                "symbol": string("CpuInstruction", demangle_if_mangled),
                "source_file": string("sourceFile", file_name),
                "source_line": column("sourceLine"),
            },
        ),
        RawTablePart(
            "CUDA_UM_GPU_PAGE_FAULT_EVENTS",
            {
                **TIMES,
                "side": constant("gpu", "start"),
                "device": DEVICE,
                "process": process("globalPid"),
                **renamed(address="address", faults="numberOfPageFaults"),
                "access": word_for_number("faultAccessType", raw_tables.ACCESS_KINDS),
            },
        ),
    ),
    "gpu_metrics": (
        RawTablePart(
            "GPU_METRICS",
            {
                "time_ns": column("timestamp"),
                # The lowest byte of a metric's type is the GPU that it was sampled on.
                "device": computed(pl.col("typeId") & 0xFF, "typeId"),
                "metric": RawColumnRule(
                    lambda context, raw: nsys_machine.metric_names(context.raw, raw),
                    ("typeId", "metricId"),
                ),
                "value": RawColumnRule(rules.metric_value, ("value",)),
            },
        ),
    ),
    "overheads": (
        RawTablePart("PROFILER_OVERHEAD", {**TIMES, **ON_THREAD, "name": string("nameId")}),
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_OVERHEAD", {**TIMES, **ON_THREAD, "name": string("nameId")}
        ),
    ),
    "diagnostics": (
        RawTablePart(
            "DIAGNOSTIC_EVENT",
            {
                "time_ns": column("timestamp"),
                "severity": word_for_number("severity", raw_tables.SEVERITIES),
                "text": computed(pl.col("text").str.replace_all(rules.HOMES, "~"), "text"),
            },
        ),
    ),
}
