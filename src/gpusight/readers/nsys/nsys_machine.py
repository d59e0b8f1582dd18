"""The machine of an nsys capture: GPUs, processes, threads, streams, versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from gpusight.readers.nsys import raw_tables
from gpusight.readers.nsys.raw_tables import MISSING, RowFilter, process_of
from gpusight.readers.tables import DEVICE_LIMITS, as_column, encode_names, file_name
from gpusight.recording.debug_settings import debug_settings, debug_variables
from gpusight.trace.schema import DEVICES
from gpusight.trace.schema_columns import ColumnKind
from gpusight.trace.trace import Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpusight.readers.nsys.nsys_source import NsysSource
    from gpusight.readers.nsys.raw_tables import RawTables, StringTable


USED_RAW_TABLES = frozenset(
    {
        "ANALYSIS_DETAILS",
        "EXPORT_META_DATA",
        "META_DATA_EXPORT",
        "PROCESSES",
        "StringIds",
        "TARGET_INFO_CUDA_DEVICE",
        "TARGET_INFO_CUDA_GPU",
        "TARGET_INFO_CUDA_STREAM",
        "TARGET_INFO_GPU",
        "TARGET_INFO_GPU_METRICS",
        "TARGET_INFO_NVTX_CUDA_STREAM",
        "TARGET_INFO_SESSION_START_TIME",
        "TARGET_INFO_SYSTEM_ENV",
        "ThreadNames",
    }
)
"""Raw tables that are read here."""

IGNORED_PREFIXES = (
    "ANALYSIS_FILE",
    "ENUM_",
    "GENERIC_EVENT_",
    "META_DATA_CAPTURE",
    "NVTX_PAYLOAD_",
    "ProcessStreams",
    "TARGET_INFO_",
    "UnwindMethodType",
)
"""Starts of names of raw tables that hold no events: command lines, output files, words."""


class TargetTable(NamedTuple):
    """A small table of the trace that needs more than renamed columns."""

    raw: tuple[str, ...]
    """Any of these is enough."""
    build: Callable[[NsysSource], pl.DataFrame]

    def has(self, capture: NsysSource) -> bool:
        """Return whether the capture has one of the raw tables, with rows."""
        return any(not capture.raw.is_empty(table) for table in self.raw)


class _StackTable(TargetTable):
    """A table of Python stacks, which are in payloads of NVTX events."""

    def has(self, capture: NsysSource) -> bool:
        """Return whether the capture has such stacks."""
        return not capture.python_stacks.samples.is_empty()


def meta(raw: RawTables, notes: list[str]) -> Meta:
    """Collect what is known about the capture as a whole."""
    facts = raw_tables.SYSTEM_FACTS
    export = dict(
        _facts(raw, "META_DATA_EXPORT", _EXPORT_FACTS)
        or _facts(raw, "EXPORT_META_DATA", _EXPORT_FACTS)
    )
    rows = _facts(raw, "TARGET_INFO_SYSTEM_ENV", (*facts, raw_tables.ENVIRONMENT))
    system = {facts[name]: value for name, value in rows if value and name in facts}
    variables = ";".join(value for name, value in rows if name == raw_tables.ENVIRONMENT)
    environ = debug_variables(variables)
    product, cuda = export.get("EXPORT_PRODUCT_NAME"), system.get("cuda_version")
    if cuda is not None and cuda.isdigit():
        cuda = f"{int(cuda) // 1000}.{int(cuda) % 1000 // 10}"
    return Meta(
        path=str(raw.path),
        source=raw.source,
        # `gpusight record` writes the layout of nsys too.
        tool=product if product and product.startswith("gpusight") else "Nsight Systems",
        tool_version=export.get("EXPORT_PRODUCT_VERSION"),
        schema_version=export.get("EXPORT_SCHEMA_VERSION"),
        start_utc_ns=_first_int(raw, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
        duration_ns=_first_int(raw, "ANALYSIS_DETAILS", "duration"),
        driver_version=system.get("driver_version"),
        cuda_version=cuda,
        os=system.get("os"),
        cpu=system.get("cpu"),
        debug_settings=tuple(f"{name}: {why}" for name, why in debug_settings(environ).items()),
        notes=(*raw.notes(), *notes),
    )


_EXPORT_FACTS = ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")


def _facts(raw: RawTables, table: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    if not {"name", "value"} <= raw.columns(table):
        return []
    return raw.read(table, ["name", "value"], RowFilter("name", names)).drop_nulls().rows()


def _first_int(raw: RawTables, table: str, column: str) -> int | None:
    if column not in raw.columns(table) or raw.is_empty(table):
        return None
    value = raw.read(table, [column]).get_column(column).max()
    return int(value) if isinstance(value, int) else None


_MIN_MEMORY_BYTES = 1 << 24
"""No GPU has so few bytes: a smaller number counts mebibytes."""

# GPUs --------------------------------------------------------------------------------------------

# Column -> its spellings in raw tables: TARGET_INFO_GPU, then TARGET_INFO_CUDA_GPU of 2020.
_GPU_COLUMNS = {
    "bus": ("busLocation",),
    "chip": ("chipName",),
    "compute_major": ("computeMajor", "computeCapabilityMajor"),
    "compute_minor": ("computeMinor", "computeCapabilityMinor"),
    "sm_count": ("smCount", "numMultiprocessors"),
    "clock_hz": ("clockRate", "coreClockRate"),
    "memory_bytes": ("totalMemory", "globalMemorySize"),
    "memory_bandwidth": ("memoryBandwidth", "globalMemoryBandwidth"),
    "l2_bytes": ("l2CacheSize",),
    "copy_engines": ("asyncEngines", "numMemcpyEngines"),
    "max_threads_per_block": ("maxThreadsPerBlock",),
    "max_warps_per_sm": ("maxWarpsPerSm", "maxWarpsPerMultiprocessor"),
    "max_blocks_per_sm": ("maxBlocksPerSm", "maxBlocksPerMultiprocessor"),
    "max_registers_per_sm": ("maxRegistersPerSm", "maxRegistersPerMultiprocessor"),
    "max_shared_per_sm_bytes": ("maxShmemPerSm", "maxSharedMemoryPerMultiprocessor"),
    "max_shared_per_block_bytes": ("maxShmemPerBlock", "maxSharedMemoryPerBlock"),
    "max_shared_optin_bytes": ("maxShmemPerBlockOptin",),
}


def _devices(capture: NsysSource) -> pl.DataFrame:
    frames = [_gpu_rows(capture.raw, t) for t in ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU")]
    described = pl.concat([f for f in frames if f is not None])
    # 2020 exports describe a GPU in both tables, each with columns that the other lacks.
    merged = described.group_by("device", maintain_order=True).agg(
        pl.all().exclude("device").drop_nulls().first()
    )
    columns = [as_column(c, merged.get_column(c.name)) for c in DEVICES.columns]
    return pl.DataFrame(columns).sort("device")


def _gpu_rows(raw: RawTables, table: str) -> pl.DataFrame | None:
    if raw.is_empty(table):
        return None
    available = raw.columns(table)
    key = next((c for c in ("id", "deviceId") if c in available), "id")
    raw_names = {
        column: next((spelling for spelling in spellings if spelling in available), column)
        for column, spellings in _GPU_COLUMNS.items()
    }
    types: dict[str, type[pl.DataType]] = {"name": pl.String, key: pl.Int64, "vmId": pl.Int64}
    for column, spelling in raw_names.items():
        is_name = DEVICES.column(column).kind is ColumnKind.NAME
        types[spelling] = pl.String if is_name else pl.Int64
    rows = _read_as(raw, table, types).with_row_index("row")
    return rows.select(
        device=pl.col(key).fill_null(pl.col("row").cast(pl.Int64)),
        name=pl.col("name").fill_null("unknown GPU"),
        host=pl.col("vmId").fill_null(0).rank("dense").cast(pl.Int64) - 1,
        **{column: _in_base_unit(spelling) for column, spelling in raw_names.items()},
    )


def _read_as(raw: RawTables, table: str, types: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    """Read columns as these types; missing columns and values of other types are null.

    SQLite takes any type in any column, and exporters differ in what they write and declare.
    """
    available = [column for column in types if column in raw.columns(table)]
    if available:
        rows = raw.read(table, available)
    else:
        rows = pl.DataFrame({"row": pl.int_range(raw.row_count(table), eager=True)})
    return rows.with_columns(
        pl.lit(None).alias(column) for column in types if column not in available
    ).select(pl.col(column).cast(dtype, strict=False) for column, dtype in types.items())


def _in_base_unit(column: str) -> pl.Expr:
    """Exports of 2020 count in kHz, kB/s and, the oldest, MiB; a bandwidth of 0 is unknown."""
    value = pl.col(column)
    if column in {"coreClockRate", "globalMemoryBandwidth"}:
        return pl.when(value > 0).then(value * 1000)
    if column == "globalMemorySize":
        return pl.when(value < _MIN_MEMORY_BYTES).then(value * (1 << 20)).otherwise(value)
    return value


def renamed_devices(capture: NsysSource) -> pl.DataFrame:
    """List where a process's CUDA device number is not the GPU's: CUDA_VISIBLE_DEVICES renames."""
    raw, table = capture.raw, "TARGET_INFO_CUDA_DEVICE"
    none = pl.DataFrame(schema={"process": pl.Int64, "cuda": pl.Int64, "device": pl.Int64})
    if raw.is_empty(table) or not {"gpuId", "cudaId", "pid"} <= raw.columns(table):
        return none
    gpu = pl.col("gpuId")  # outside of the limits it is no GPU's number
    types = dict.fromkeys(("gpuId", "cudaId", "pid"), pl.Int64)
    rows = _read_as(raw, table, types).filter(
        gpu.is_between(*DEVICE_LIMITS) & (gpu != pl.col("cudaId"))
    )
    if rows.is_empty():
        return none
    keys = _processes(capture).select("process", "pid")
    renamed = rows.join(keys, on="pid").select("process", cuda="cudaId", device="gpuId")
    return renamed.unique(["process", "cuda"], keep="first", maintain_order=True)


# Processes, threads, streams ---------------------------------------------------------------------


def _processes(capture: NsysSource) -> pl.DataFrame:
    keys = [
        process_of(capture.owners(table, column)).alias("process")
        for table, column in (
            ("PROCESSES", "globalPid"),
            ("ThreadNames", "globalTid"),
            ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
            ("NVTX_EVENTS", "globalTid"),
        )
    ]
    frame = pl.DataFrame({"process": pl.concat(keys).unique().sort()}).filter(
        pl.col("process")
        != (raw_tables.NO_PROCESS // raw_tables.PROCESS_SHIFT) & raw_tables.PROCESS_MASK
    )
    names = _process_names(capture.raw, capture.strings)
    frame = frame.join(names, on="process", how="left", maintain_order="left")
    host = (pl.col("process") // (raw_tables.PID_MASK + 1)).rank("dense").cast(pl.Int64) - 1
    return frame.select(
        "process",
        pid=pl.col("process") & raw_tables.PID_MASK,
        host=host,
        name=encode_names(frame.get_column("name")),
    )


def _process_names(raw: RawTables, strings: StringTable) -> pl.DataFrame:
    """Name processes from their own table, or from their main thread in captures without it."""
    if {"globalPid", "name"} <= raw.columns("PROCESSES"):
        rows = _read_as(raw, "PROCESSES", {"globalPid": pl.Int64, "name": pl.String}).drop_nulls()
        owner, text = rows.get_column("globalPid"), rows.get_column("name")
    elif {"globalTid", "nameId"} <= raw.columns("ThreadNames"):
        types = dict.fromkeys(("globalTid", "nameId"), pl.Int64)
        rows = _read_as(raw, "ThreadNames", types).filter(
            (pl.col("globalTid") & raw_tables.PID_MASK)
            == ((pl.col("globalTid") // raw_tables.PROCESS_SHIFT) & raw_tables.PID_MASK)
        )
        owner, text = rows.get_column("globalTid"), strings.texts(rows.get_column("nameId"))
    else:
        return pl.DataFrame(schema={"process": pl.Int64, "name": pl.String})
    short = pl.Series("name", [file_name(t) if t else t for t in text.to_list()], dtype=pl.String)
    return pl.DataFrame({"process": process_of(owner), "name": short}).unique(
        "process", keep="first", maintain_order=True
    )


def _threads(capture: NsysSource) -> pl.DataFrame:
    raw, frames = capture.raw, []
    if {"globalTid", "nameId"} <= raw.columns("ThreadNames"):
        types = dict.fromkeys(("globalTid", "nameId", "priority"), pl.Int64)
        named = _read_as(raw, "ThreadNames", types).drop_nulls("globalTid")
        text = capture.strings.texts(named.get_column("nameId"))
        frames.append(named.select(pl.col("globalTid").alias("thread"), "priority", name=text))
    frames += [
        pl.DataFrame({"thread": capture.owners(table, "globalTid")})
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
    ]
    empty = pl.DataFrame(schema={"thread": pl.Int64, "name": pl.String, "priority": pl.Int64})
    rows = pl.concat([empty, *frames], how="diagonal")
    rows = rows.unique("thread", keep="first", maintain_order=True).sort("thread")
    return rows.select(
        "thread",
        process=process_of(rows.get_column("thread")),
        tid=pl.col("thread") & raw_tables.PID_MASK,
        name=encode_names(rows.get_column("name")),
        priority="priority",
    )


def _streams(capture: NsysSource) -> pl.DataFrame:
    raw, table = capture.raw, "TARGET_INFO_CUDA_STREAM"
    wanted = ("streamId", "hwId", "vmId", "processId", "contextId", "priority")
    rows = _read_as(raw, table, dict.fromkeys(wanted, pl.Int64))
    keys = rows.with_columns(
        process=pl.col("hwId") * (1 << 32) + pl.col("vmId") * (1 << 24) + pl.col("processId")
    ).drop_nulls(["process", "streamId"])
    owner, named = ["processId", "contextId", "streamId"], "TARGET_INFO_NVTX_CUDA_STREAM"
    types = dict.fromkeys(owner, pl.Int64) | {"name": pl.String}
    names = pl.DataFrame(schema=types)
    if raw.columns(named) >= types.keys():
        names = _read_as(raw, named, types).unique(owner, keep="first", maintain_order=True)
    joined = keys.join(names, on=owner, how="left", maintain_order="left")
    # A priority is a signed 32-bit number that some versions store unsigned.
    priority = pl.when(pl.col("priority") >= 1 << 31).then(pl.col("priority") - (1 << 32))
    return joined.select(
        "process",
        context="contextId",
        stream="streamId",
        priority=priority.otherwise("priority"),
        name=encode_names(joined.get_column("name")),
    )


# GPU metrics -------------------------------------------------------------------------------------


def metric_names(raw: RawTables, samples: pl.DataFrame) -> pl.Series:
    """Name the metric of every sampled value."""
    columns = ["typeId", "metricId", "metricName"]
    if not raw.columns("TARGET_INFO_GPU_METRICS").issuperset(columns):
        return encode_names(pl.Series([MISSING])).new_from_index(0, samples.height)
    types = dict.fromkeys(columns[:2], pl.Int64) | {"metricName": pl.String}
    names = _read_as(raw, "TARGET_INFO_GPU_METRICS", types).unique(columns[:2], keep="first")
    names = names.with_columns(name=encode_names(names.get_column("metricName")))
    joined = samples.join(names, on=columns[:2], how="left", maintain_order="left")
    return joined.get_column("name")


TABLES: dict[str, TargetTable] = {
    "devices": TargetTable(("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU"), _devices),
    "processes": TargetTable(
        ("PROCESSES", "ThreadNames", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"),
        _processes,
    ),
    "threads": TargetTable(("ThreadNames", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"), _threads),
    "streams": TargetTable(("TARGET_INFO_CUDA_STREAM",), _streams),
    "stack_samples": _StackTable((), lambda capture: capture.python_stacks.samples),
    "stack_frames": _StackTable((), lambda capture: capture.python_stacks.frames),
}
