"""The one mapping from nsys's export schema, of any version, to the tables of a trace."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import polars as pl

from gpusight.readers.name_columns import (
    demangle_names,
    encode_codes,
    encode_names,
    file_name,
    first_name_of,
    strip_api_version,
)
from gpusight.readers.nsys import raw_tables
from gpusight.readers.nsys.raw_tables import RowFilter

if TYPE_CHECKING:
    from gpusight.readers.nsys.raw_tables import StringTable


class NsysContext(Protocol):
    """What rules may ask of the capture as a whole."""

    strings: StringTable

    def only_device(self) -> int | None:
        """Give the key of the capture's only GPU; None where it tells of none, or of several."""
        ...

    def device_of(self, process: pl.Series, cuda_device: pl.Series) -> pl.Series:
        """Turn a process's CUDA device number into the capture's device key."""
        ...

    def metric_names(self, samples: pl.DataFrame) -> pl.Series:
        """Name the metric of every sampled value."""
        ...

    def end_of_capture(self) -> int:
        """The time at which an open range is cut."""
        ...

    def domain_names(self, process: pl.Series, domain: pl.Series) -> pl.Series:
        """Name NVTX domains."""
        ...

    def category_names(self, process: pl.Series, domain: pl.Series, key: pl.Series) -> pl.Series:
        """Name NVTX categories."""
        ...


class Ends(enum.Enum):
    """What it means that a row has no end, or one in the far future."""

    NEEDED = "needed"
    """The row cannot be used: GPU work is recorded once it has ended."""
    LOST = "lost"
    """A call that was running when the capture stopped: counts as an instant, with a warning."""
    OPEN = "open"
    """A range that was never closed: reaches to the end of the capture."""


ROW = "@row"
"""Column with the number of a raw row in its table, from 1; there when `record` is asked for."""

Build = Callable[[NsysContext, pl.DataFrame], pl.Series]


@dataclass(frozen=True, slots=True)
class RawColumnRule:
    """How one model column is made from raw columns."""

    build: Build
    needs: tuple[str, ...]
    """Without these there is no value."""
    likes: tuple[str, ...] = ()
    """Read too when the capture has them."""
    instead: RawColumnRule | None = None
    """What makes an honest value where the capture lacks what this one needs."""
    says: str = ""
    """Of a rule that stands in: what a reader must know of its values."""
    holds: Callable[[NsysContext], bool] = lambda _: True
    """Tells whether the rule is right for this capture."""


@dataclass(frozen=True)
class RawTablePart:
    """One raw table's contribution to a model table."""

    raw: str
    rules: dict[str, RawColumnRule]
    only: RowFilter | None = None
    """Which raw rows count; all when absent."""
    ends: Ends = Ends.LOST


# Rules ------------------------------------------------------------------------------------------


def _column(name: str) -> RawColumnRule:
    return RawColumnRule(lambda _, raw: raw.get_column(name), (name,))


def _word_for_number(name: str, words: dict[int, str]) -> RawColumnRule:
    return RawColumnRule(lambda _, raw: encode_codes(raw.get_column(name), words), (name,))


def _string(name: str, change: Callable[[str], str] | None = None) -> RawColumnRule:
    return RawColumnRule(
        lambda context, raw: context.strings.names(raw.get_column(name), change), (name,)
    )


def _inline_text(name: str) -> RawColumnRule:
    return RawColumnRule(lambda _, raw: encode_names(raw.get_column(name)), (name,))


def _flag(name: str) -> RawColumnRule:
    return RawColumnRule(lambda _, raw: raw.get_column(name).cast(pl.Boolean), (name,))


def _constant(word: str, needs: str) -> RawColumnRule:
    series = encode_names(pl.Series([word]))
    return RawColumnRule(lambda _, raw: series.new_from_index(0, raw.height), (needs,))


def process_of(global_id: pl.Series) -> pl.Series:
    """Take the process key out of a global thread or process id."""
    frame = pl.DataFrame({"id": global_id})
    return frame.select(
        (pl.col("id") // raw_tables.PROCESS_SHIFT) & raw_tables.PROCESS_MASK
    ).to_series()


def _process(name: str) -> RawColumnRule:
    return RawColumnRule(lambda _, raw: process_of(raw.get_column(name)), (name,))


def _end(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    """Take the end; a call whose end was lost is an instant."""
    del context
    start, end = raw.get_column("start"), raw.get_column("end")
    valid = (end < raw_tables.FOREVER).fill_null(value=False)
    return end if valid.all() else end.zip_with(valid, start)


def _device(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    device = raw.get_column("deviceId")
    if "globalPid" not in raw.columns:
        return device
    return context.device_of(process_of(raw.get_column("globalPid")), device)


def _only_device(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    """All work of a capture with one GPU ran on that."""
    return pl.Series([context.only_device()], dtype=pl.Int64).new_from_index(0, raw.height)


_ON_ONLY_DEVICE = RawColumnRule(
    _only_device,
    (),
    says="all of it counts for the only GPU",
    holds=lambda context: context.only_device() is not None,
)
_DEVICE = RawColumnRule(_device, ("deviceId",), ("globalPid",), instead=_ON_ONLY_DEVICE)
_TIMES = {"start_ns": _column("start"), "end_ns": RawColumnRule(_end, ("start", "end"))}
_ON_THREAD = {"thread": _column("globalTid"), "process": _process("globalTid")}
_ON_DEVICE = {
    "device": _DEVICE,
    "context": _column("contextId"),
    "stream": _column("streamId"),
    "correlation": _column("correlationId"),
    "process": _process("globalPid"),
}
_GPU_WORK = {
    "start_ns": _column("start"),
    "end_ns": RawColumnRule(_end, ("start", "end")),
    **_ON_DEVICE,
    "green_context": _column("greenContextId"),
}


def _api_of(symbol: str) -> str:
    return "runtime" if symbol.startswith("cuda") else "driver"


# Ranges ------------------------------------------------------------------------------------------


def _range_name(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    """Take inline text, else the registered string; an empty message has neither."""
    names = []
    if "text" in raw.columns:
        names.append(encode_names(raw.get_column("text")))
    if "textId" in raw.columns and raw.get_column("textId").null_count() < raw.height:
        names.append(context.strings.names(raw.get_column("textId")))
    return first_name_of([*names, encode_names(pl.Series([""])).new_from_index(0, raw.height)])


def _range_kind(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    del context
    return encode_codes(raw.get_column("eventType"), raw_tables.RANGE_KINDS)


def _is_open(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    """A range never closed has no end, or one in the far future."""
    del context
    return ~(_has_end(raw) | (raw.get_column("eventType") == raw_tables.NVTX_MARK))


def _has_end(raw: pl.DataFrame) -> pl.Series:
    end = raw.get_column("end")
    return ((end >= raw.get_column("start")) & (end < raw_tables.FOREVER)).fill_null(value=False)


def _range_end(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    closed = _has_end(raw)
    if closed.all():
        return raw.get_column("end")
    start = raw.get_column("start")
    last = pl.Series([context.end_of_capture()]).new_from_index(0, len(start))
    cut = start.zip_with(
        (raw.get_column("eventType") == raw_tables.NVTX_MARK) | (start > last), last
    )
    return raw.get_column("end").zip_with(closed, cut)


def _domain(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    return context.domain_names(process_of(raw.get_column("globalTid")), raw.get_column("domainId"))


def _category(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    domain = raw.get_column("domainId")
    return context.category_names(
        process_of(raw.get_column("globalTid")), domain, raw.get_column("category")
    )


_INT_PAYLOADS = ("int64Value", "uint64Value", "int32Value", "uint32Value")
_REAL_PAYLOADS = ("doubleValue", "floatValue")


def _coalesce(names: tuple[str, ...]) -> RawColumnRule:
    def build(_: NsysContext, raw: pl.DataFrame) -> pl.Series:
        return raw.select(pl.coalesce(n for n in names if n in raw.columns)).to_series()

    return RawColumnRule(build, names[:1], names[1:])


def _payload_text(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    text = raw.get_column("jsonText")
    if "jsonTextId" not in raw.columns:
        return text
    return text.zip_with(text.is_not_null(), context.strings.texts(raw.get_column("jsonTextId")))


# Frames of call chains ---------------------------------------------------------------------------


def _callchains(raw: str, source: str) -> RawTablePart:
    return RawTablePart(
        raw,
        {
            "source": _constant(source, "id"),
            "callchain": _column("id"),
            "depth": _column("stackDepth"),
            "symbol": _string("symbol", demangle_names),
            "module": _string("module", file_name),
            "kernel_mode": _flag("kernelMode"),
            "unresolved": _flag("unresolved"),
            "address": _column("originalIP"),
        },
    )


def _library_calls(raw: str, api: str) -> RawTablePart:
    return RawTablePart(
        raw,
        {
            **_TIMES,
            **_ON_THREAD,
            "name": _string("nameId", strip_api_version),
            "symbol": _string("nameId"),
            "api": _constant(api, "nameId"),
        },
    )


def _os_callchain(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    """Chains of OS calls count from 1, and 0 says that there is none; those of API calls from 0."""
    del context
    chain = raw.get_column("callchainId")
    return chain.set(chain == 0, None)


_HOMES = r"(?:/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s'\":;,]+|/root\b"


def _without_homes(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    """Replace home directories, which hold user names."""
    del context
    return raw.get_column("text").str.replace_all(_HOMES, "~")


def _metric_device(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    """The lowest byte of a metric's type is the GPU it was sampled on."""
    del context
    return raw.select(pl.col("typeId") & 0xFF).to_series()


def _metric_value(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    """Undo the sign that nsys's exports give to three-byte counters; none can be negative."""
    del context
    value = raw.get_column("value")
    signed = value < 0
    if signed.any():
        value = (value + raw_tables.THREE_BYTES).zip_with(signed, value)
    return value.cast(pl.Float64)


def _sync_kind(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    """Take the kind where newer exports of older reports put it."""
    del context
    kind = raw.get_column("syncType")
    if "deprecatedSyncType" in raw.columns:
        older = raw.get_column("deprecatedSyncType")
        kind = older.zip_with((kind == 0) & older.is_not_null(), kind)
    return encode_codes(kind, raw_tables.SYNC_KINDS, other="unknown")


def _shared(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    del context
    return raw.get_column("staticSharedMemory") + raw.get_column("dynamicSharedMemory")


def _other_name(context: NsysContext, raw: pl.DataFrame) -> pl.Series:
    """Take the linker's name, which says as much as a demangled one; else the short one."""
    names = [context.strings.names(raw.get_column("shortName"), _base_name)]
    if "mangledName" in raw.columns:
        names.insert(0, context.strings.names(raw.get_column("mangledName"), demangle_names))
    return first_name_of(names)


def _base_name(short: str) -> str:
    """Take the function's own name out of a linker's name, which `gpusight record` stores."""
    if not short.startswith("_Z"):
        return short
    from gpusight.naming.demangle import split  # slow to import, and seldom needed

    return split(demangle_names(short))[0].rsplit("::", 1)[-1]


_OTHER_NAME = RawColumnRule(
    _other_name, ("shortName",), ("mangledName",), says="kernels go by their other names"
)

# The tables --------------------------------------------------------------------------------------

_KERNEL_RULES: dict[str, RawColumnRule] = {
    **_GPU_WORK,
    "name": replace(_string("demangledName", demangle_names), instead=_OTHER_NAME),
    "base_name": _string("shortName", _base_name),
    "mangled_name": _string("mangledName"),
    "grid_x": _column("gridX"),
    "grid_y": _column("gridY"),
    "grid_z": _column("gridZ"),
    "block_x": _column("blockX"),
    "block_y": _column("blockY"),
    "block_z": _column("blockZ"),
    "registers_per_thread": _column("registersPerThread"),
    "static_shared_bytes": _column("staticSharedMemory"),
    "dynamic_shared_bytes": _column("dynamicSharedMemory"),
    "shared_bytes": RawColumnRule(_shared, ("staticSharedMemory", "dynamicSharedMemory")),
    "executed_shared_bytes": _column("sharedMemoryExecuted"),
    "local_per_thread_bytes": _column("localMemoryPerThread"),
    "local_total_bytes": _column("localMemoryTotal"),
    "launch_type": _column("launchType"),
    "cache_config": _column("cacheConfig"),
    "grid": _column("gridId"),
    "graph_node": _column("graphNodeId"),
    "graph": _column("graphId"),
    "cluster_x": _column("clusterX"),
    "cluster_y": _column("clusterY"),
    "cluster_z": _column("clusterZ"),
}

PARTS: dict[str, tuple[RawTablePart, ...]] = {
    "kernels": (RawTablePart("CUPTI_ACTIVITY_KIND_KERNEL", _KERNEL_RULES, ends=Ends.NEEDED),),
    "copies": (
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            {
                **_GPU_WORK,
                "bytes": _column("bytes"),
                "kind": _word_for_number("copyKind", raw_tables.COPY_KINDS),
                "src_kind": _word_for_number("srcKind", raw_tables.MEMORY_KINDS),
                "dst_kind": _word_for_number("dstKind", raw_tables.MEMORY_KINDS),
                "src_device": _column("srcDeviceId"),
                "dst_device": _column("dstDeviceId"),
                "copy_count": _column("copyCount"),
                "migration_cause": _word_for_number("migrationCause", raw_tables.MIGRATION_CAUSES),
                "virtual_address": _column("virtualAddress"),
                "graph_node": _column("graphNodeId"),
            },
            ends=Ends.NEEDED,
        ),
    ),
    "memsets": (
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            {
                **_GPU_WORK,
                "bytes": _column("bytes"),
                "value": _column("value"),
                "memory_kind": _word_for_number("memKind", raw_tables.MEMORY_KINDS),
                "graph_node": _column("graphNodeId"),
            },
            ends=Ends.NEEDED,
        ),
    ),
    "graph_launches": (
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            {**_GPU_WORK, "graph": _column("graphId"), "graph_exec": _column("graphExecId")},
            ends=Ends.NEEDED,
        ),
    ),
    "syncs": (
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            {
                **_GPU_WORK,
                "kind": RawColumnRule(_sync_kind, ("syncType",), ("deprecatedSyncType",)),
                "event": _column("eventId"),
            },
            ends=Ends.NEEDED,
        ),
    ),
    "event_records": (
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
            {**_ON_DEVICE, "event": _column("eventId"), "event_sync": _column("eventSyncId")},
        ),
    ),
    "graph_nodes": (
        RawTablePart(
            "CUDA_GRAPH_NODE_EVENTS",
            {
                **_TIMES,
                **_ON_THREAD,
                "name": _string("nameId", strip_api_version),
                "graph_node": _column("graphNodeId"),
                "original_node": _column("originalGraphNodeId"),
            },
        ),
    ),
    "api_calls": (
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            {
                **_TIMES,
                **_ON_THREAD,
                "name": _string("nameId", strip_api_version),
                "symbol": _string("nameId"),
                "api": _string("nameId", _api_of),
                "correlation": _column("correlationId"),
                "return_value": _column("returnValue"),
                "callchain": _column("callchainId"),
            },
        ),
        _library_calls("CUDNN_EVENTS", "cudnn"),
        _library_calls("CUBLAS_EVENTS", "cublas"),
    ),
    "ranges": (
        RawTablePart(
            "NVTX_EVENTS",
            {
                "start_ns": _column("start"),
                "end_ns": RawColumnRule(_range_end, ("start", "end", "eventType")),
                "name": RawColumnRule(_range_name, (), ("text", "textId")),
                "kind": RawColumnRule(_range_kind, ("eventType",)),
                "domain": RawColumnRule(_domain, ("globalTid", "domainId")),
                "domain_key": _column("domainId"),
                "category": RawColumnRule(_category, ("globalTid", "domainId", "category")),
                "open": RawColumnRule(_is_open, ("start", "end", "eventType")),
                **_ON_THREAD,
                "end_thread": _column("endGlobalTid"),
                "range": _column("rangeId"),
                "record": RawColumnRule(lambda _, raw: raw.get_column(ROW), ()),
                "color": _column("color"),
                "payload_int": _coalesce(_INT_PAYLOADS),
                "payload_real": _coalesce(_REAL_PAYLOADS),
                "payload_text": RawColumnRule(_payload_text, ("jsonText",), ("jsonTextId",)),
            },
            only=RowFilter("eventType", tuple(raw_tables.RANGE_KINDS), or_unknown=True),
            ends=Ends.OPEN,
        ),
    ),
    "os_calls": (
        RawTablePart(
            "OSRT_API",
            {
                **_TIMES,
                **_ON_THREAD,
                "name": _string("nameId"),
                "return_value": _column("returnValue"),
                "nesting": _column("nestingLevel"),
                "callchain": RawColumnRule(_os_callchain, ("callchainId",)),
            },
            only=RowFilter("eventClass", (raw_tables.OS_CALL,), or_unknown=True),
        ),
    ),
    "cpu_samples": (
        RawTablePart(
            "COMPOSITE_EVENTS",
            {
                "time_ns": _column("start"),
                "cpu": _column("cpu"),
                **_ON_THREAD,
                "cycles": _column("cpuCycles"),
                "state": _column("threadState"),
                "callchain": _column("id"),
            },
        ),
    ),
    "thread_switches": (
        RawTablePart(
            "SCHED_EVENTS",
            {
                "time_ns": _column("start"),
                "cpu": _column("cpu"),
                "scheduled_in": _flag("isSchedIn"),
                **_ON_THREAD,
            },
        ),
    ),
    "callchains": (
        _callchains("SAMPLING_CALLCHAINS", "cpu_samples"),
        _callchains("OSRT_CALLCHAINS", "os_calls"),
        _callchains("CUDA_CALLCHAINS", "api_calls"),
    ),
    "memory_events": (
        RawTablePart(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            {
                **_ON_DEVICE,
                "time_ns": _column("start"),
                "operation": _word_for_number("memoryOperationType", raw_tables.MEMORY_OPERATIONS),
                "memory_kind": _word_for_number("memKind", raw_tables.MEMORY_KINDS),
                "address": _column("address"),
                "bytes": _column("bytes"),
                "variable": _inline_text("name"),
            },
        ),
    ),
    "page_faults": (
        RawTablePart(
            "CUDA_UM_CPU_PAGE_FAULT_EVENTS",
            {
                "start_ns": _column("start"),
                "side": _constant("cpu", "start"),
                "process": _process("globalPid"),
                "address": _column("address"),
                "module": _string("module", file_name),
                "symbol": _string("CpuInstruction", demangle_names),
                "source_file": _string("sourceFile", file_name),
                "source_line": _column("sourceLine"),
            },
        ),
        RawTablePart(
            "CUDA_UM_GPU_PAGE_FAULT_EVENTS",
            {
                **_TIMES,
                "side": _constant("gpu", "start"),
                "device": _DEVICE,
                "process": _process("globalPid"),
                "address": _column("address"),
                "faults": _column("numberOfPageFaults"),
                "access": _word_for_number("faultAccessType", raw_tables.ACCESS_KINDS),
            },
        ),
    ),
    "gpu_metrics": (
        RawTablePart(
            "GPU_METRICS",
            {
                "time_ns": _column("timestamp"),
                "device": RawColumnRule(_metric_device, ("typeId",)),
                "metric": RawColumnRule(
                    lambda context, raw: context.metric_names(raw), ("typeId", "metricId")
                ),
                "value": RawColumnRule(_metric_value, ("value",)),
            },
        ),
    ),
    "overheads": (
        RawTablePart("PROFILER_OVERHEAD", {**_TIMES, **_ON_THREAD, "name": _string("nameId")}),
        RawTablePart(
            "CUPTI_ACTIVITY_KIND_OVERHEAD", {**_TIMES, **_ON_THREAD, "name": _string("nameId")}
        ),
    ),
    "diagnostics": (
        RawTablePart(
            "DIAGNOSTIC_EVENT",
            {
                "time_ns": _column("timestamp"),
                "severity": _word_for_number("severity", raw_tables.SEVERITIES),
                "text": RawColumnRule(_without_homes, ("text",)),
            },
        ),
    ),
}
