"""What an nsys capture says about the machine: GPUs, processes, threads, streams, versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from gpusight.readers.frame_source import DEVICE_LIMITS
from gpusight.readers.name_columns import encode_names, file_name
from gpusight.readers.nsys import raw_tables
from gpusight.readers.nsys.raw_tables import MISSING, RowFilter, process_of
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
    """A small model table that needs more than renamed columns."""

    raw: tuple[str, ...]
    """Any of these is enough."""
    build: Callable[[NsysSource], pl.DataFrame]

    def has(self, raw: RawTables) -> bool:
        """Tell whether the capture has one of the raw tables, with rows."""
        return any(not raw.is_empty(table) for table in self.raw)


def meta(raw: RawTables, notes: list[str]) -> Meta:
    """Collect what is known about the capture as a whole."""
    export = _export_facts(raw)
    system = _system_facts(raw)
    cuda = system.get("cuda_version")
    return Meta(
        path=str(raw.path),
        source=raw.source,
        tool=_tool(export.get("EXPORT_PRODUCT_NAME")),
        tool_version=export.get("EXPORT_PRODUCT_VERSION"),
        schema_version=export.get("EXPORT_SCHEMA_VERSION"),
        start_utc_ns=_first_int(raw, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
        duration_ns=_first_int(raw, "ANALYSIS_DETAILS", "duration"),
        driver_version=system.get("driver_version"),
        cuda_version=_dotted_cuda(cuda) if cuda else None,
        os=system.get("os"),
        cpu=system.get("cpu"),
        notes=(*raw.notes(), *notes),
    )


_EXPORT_FACTS = ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
_GPUSIGHT = "gpusight"


def _tool(product: str | None) -> str:
    """Name what made the file: nsys, or `gpusight record`, which writes the same layout."""
    return product if product is not None and product.startswith(_GPUSIGHT) else "Nsight Systems"


def _export_facts(raw: RawTables) -> dict[str, str]:
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if {"name", "value"} <= raw.columns(table):
            wanted = RowFilter("name", _EXPORT_FACTS)
            rows = raw.read(table, ["name", "value"], wanted)
            return dict(rows.drop_nulls().iter_rows())
    return {}


def _system_facts(raw: RawTables) -> dict[str, str]:
    if not {"name", "value"} <= raw.columns("TARGET_INFO_SYSTEM_ENV"):
        return {}
    wanted = RowFilter("name", tuple(raw_tables.SYSTEM_FACTS))
    rows = raw.read("TARGET_INFO_SYSTEM_ENV", ["name", "value"], wanted)
    return {raw_tables.SYSTEM_FACTS[name]: value for name, value in rows.iter_rows() if value}


def _dotted_cuda(number: str) -> str:
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}" if number.isdigit() else number


def _first_int(raw: RawTables, table: str, column: str) -> int | None:
    if column not in raw.columns(table) or raw.is_empty(table):
        return None
    value = raw.read(table, [column]).get_column(column).max()
    return int(value) if isinstance(value, int) else None


_SMALLEST_MEMORY = 1 << 24
"""No GPU has so few bytes: a smaller number counts mebibytes."""

# GPUs --------------------------------------------------------------------------------------------

# Model column -> its spellings: TARGET_INFO_GPU, then TARGET_INFO_CUDA_GPU of 2020.
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
    columns = [
        encode_names(merged.get_column(c.name))
        if c.kind is ColumnKind.NAME
        else merged.get_column(c.name)
        for c in DEVICES.columns
    ]
    return pl.DataFrame(columns).sort("device")


def _gpu_rows(raw: RawTables, table: str) -> pl.DataFrame | None:
    if raw.is_empty(table):
        return None
    have = raw.columns(table)
    key = next((c for c in ("id", "deviceId") if c in have), "id")
    chosen = {m: next((s for s in spell if s in have), m) for m, spell in _GPU_COLUMNS.items()}
    types: dict[str, type[pl.DataType]] = {"name": pl.String, key: pl.Int64, "vmId": pl.Int64}
    for column, spelling in chosen.items():
        is_name = DEVICES.column(column).kind is ColumnKind.NAME
        types[spelling] = pl.String if is_name else pl.Int64
    rows = _read_as(raw, table, types).with_row_index("row")
    return rows.select(
        device=pl.col(key).fill_null(pl.col("row").cast(pl.Int64)),
        name=pl.col("name").fill_null("unknown GPU"),
        host=pl.col("vmId").fill_null(0).rank("dense").cast(pl.Int64) - 1,
        **{column: _in_base_unit(spelling) for column, spelling in chosen.items()},
    )


def _read_as(raw: RawTables, table: str, types: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    """Read columns as these types; one that the capture lacks, or holds otherwise, is null.

    SQLite takes any type in any column, and exporters differ in what they write and declare.
    """
    have = [column for column in types if column in raw.columns(table)]
    if not have:
        rows = pl.DataFrame({"row": pl.int_range(raw.row_count(table), eager=True)})
    else:
        rows = raw.read(table, have)
    return rows.select(
        (pl.col(column) if column in have else pl.lit(None)).cast(dtype, strict=False).alias(column)
        for column, dtype in types.items()
    )


def _in_base_unit(column: str) -> pl.Expr:
    """Exports of 2020 count in kHz, kB/s and, the oldest, MiB; a bandwidth of 0 is unknown."""
    value = pl.col(column)
    if column in {"coreClockRate", "globalMemoryBandwidth"}:
        return pl.when(value > 0).then(value * 1000)
    if column == "globalMemorySize":
        return pl.when(value < _SMALLEST_MEMORY).then(value * (1 << 20)).otherwise(value)
    return value


def renamed_devices(capture: NsysSource) -> pl.DataFrame:
    """List where a process's CUDA device number is not the GPU's: CUDA_VISIBLE_DEVICES renames."""
    raw, table = capture.raw, "TARGET_INFO_CUDA_DEVICE"
    if raw.is_empty(table) or not {"gpuId", "cudaId", "pid"} <= raw.columns(table):
        return pl.DataFrame(schema={"process": pl.Int64, "cuda": pl.Int64, "device": pl.Int64})
    gpu = pl.col("gpuId")  # what lies outside of the limits is the number of no GPU
    wanted = dict.fromkeys(("gpuId", "cudaId", "pid"), pl.Int64)
    rows = _read_as(raw, table, wanted).filter(
        gpu.is_between(*DEVICE_LIMITS) & (gpu != pl.col("cudaId"))
    )
    if rows.is_empty():
        return pl.DataFrame(schema={"process": pl.Int64, "cuda": pl.Int64, "device": pl.Int64})
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
        wanted = dict.fromkeys(("globalTid", "nameId"), pl.Int64)
        rows = _read_as(raw, "ThreadNames", wanted).filter(
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
        wanted = dict.fromkeys(("globalTid", "nameId", "priority"), pl.Int64)
        named = _read_as(raw, "ThreadNames", wanted).drop_nulls("globalTid")
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
    names = _stream_names(raw)
    joined = keys.join(
        names, on=["processId", "contextId", "streamId"], how="left", maintain_order="left"
    )
    # A priority is a signed 32-bit number that some versions store unsigned.
    priority = pl.when(pl.col("priority") >= 1 << 31).then(pl.col("priority") - (1 << 32))
    return joined.select(
        "process",
        context="contextId",
        stream="streamId",
        priority=priority.otherwise("priority"),
        name=encode_names(joined.get_column("name")),
    )


def _stream_names(raw: RawTables) -> pl.DataFrame:
    table, columns = "TARGET_INFO_NVTX_CUDA_STREAM", ["processId", "contextId", "streamId", "name"]
    if not raw.columns(table).issuperset(columns):
        return pl.DataFrame(schema=dict.fromkeys(columns[:3], pl.Int64) | {"name": pl.String})
    types = dict.fromkeys(columns[:3], pl.Int64) | {"name": pl.String}
    return _read_as(raw, table, types).unique(columns[:3], keep="first", maintain_order=True)


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
}
