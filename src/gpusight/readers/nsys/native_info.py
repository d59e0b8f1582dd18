"""The small tables of a native report: strings, threads, devices, session, environment, options."""

from __future__ import annotations

import contextlib
import struct
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import polars as pl

from gpusight.readers.nsys.raw_tables import ENVIRONMENT
from gpusight.readers.protobuf_wire import (
    Message,
    WireError,
    child,
    children,
    integer,
    parse,
    signed,
    text,
    wrapped,
)
from gpusight.recording.debug_settings import debug_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpusight.readers.nsys.native_container import NsysContainer
    from gpusight.readers.nsys.native_events import MetricTypes


Row: TypeAlias = "dict[str, int | str | None]"

# Clocks of files up to 2025, as numbered in the system information.
_CAPTURE, _SYSTEM, _SESSION, _UTC, _LOCAL = 1, 3, 7, 9, 10
# Clocks of later files, as numbered in the section "Time Conversion Data".
_SYSTEM_CLOCK, _UTC_CLOCK, _SESSION_CLOCK, _SYSTEM_AT_START = 7, 11, 14, 15

_NS = 1_000_000_000
_LAST_SECOND = 253402300799  # of the year 9999, where datetime ends


def session_start(system: Message, conversions: bytes) -> list[Row]:
    """Return the row of TARGET_INFO_SESSION_START_TIME; none if the file does not have it."""
    start = _from_offsets(system) or _from_conversions(conversions)
    if start is None:
        return []
    utc_ns, local_ns = start
    times = {"utcTime": _clock_text(utc_ns), "localTime": _clock_text(local_ns)}
    return [{"utcEpochNs": utc_ns, **times}]


def _from_offsets(system: Message) -> tuple[int, int | None] | None:
    """t[a] = t[b] + offset, for pairs of clocks; chained from the session clock to UTC."""
    offsets: dict[tuple[int, int], int] = {}
    for entry in children(child(system, 16), 1):
        a, b, offset = integer(entry, 1), integer(entry, 2), text(entry, 5)
        if a is not None and b is not None and offset is not None:
            # Reports of Jetson have texts that are no number for clocks that it lacks.
            with contextlib.suppress(ValueError):
                offsets[a, b] = wrapped(int(offset))  # signed, or unsigned and wrapped below zero
    steps = ((_SYSTEM, _UTC), (_CAPTURE, _SYSTEM), (_SESSION, _CAPTURE))
    if any(step not in offsets for step in steps):
        return None
    utc = wrapped(-sum(offsets[step] for step in steps))
    zone = offsets.get((_UTC, _LOCAL))
    return utc, None if zone is None else wrapped(utc - zone)


def _from_conversions(data: bytes) -> tuple[int, int | None] | None:
    """Read pairs of times of two clocks, which files from 2026 on hold instead."""
    message = parse(data)
    kinds = {clock.get(1, [b""])[0]: integer(clock, 2) for clock in children(child(message, 1), 1)}
    matching: dict[tuple[int | None, int | None], tuple[int, int]] = {}
    for entry in children(child(message, 2), 1):
        pair = (kinds.get(entry.get(1, [b""])[0]), kinds.get(entry.get(2, [b""])[0]))
        for point in children(entry, 3)[:1]:
            times = child(point, 1)
            matching[pair] = (_time(times, 1), _time(times, 2))
    utc = matching.get((_UTC_CLOCK, _SYSTEM_CLOCK))
    start = matching.get((_SYSTEM_AT_START, _SESSION_CLOCK))
    if utc is None or start is None:
        return None
    return wrapped(utc[0] + start[0] - utc[1]), None


def _time(message: Message, number: int) -> int:
    value = message.get(number, [0])[0]
    if isinstance(value, bytes):
        return struct.unpack("<q", value)[0] if len(value) == 8 else 0
    return signed(value)


def _clock_text(epoch_ns: int | None) -> str | None:
    if epoch_ns is None or not 0 <= epoch_ns // _NS <= _LAST_SECOND:
        return None
    moment = datetime.fromtimestamp(epoch_ns // _NS, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S")


_NAMES = {
    13: "CpuDescription",
    205: "NvDriverVersion",
    605: "OsDescription",
    611: "CudaDriverVersion",
}

_ENVIRONMENT = 610


def system_env(system: Message) -> list[Row]:
    """Return the rows of TARGET_INFO_SYSTEM_ENV that are decoded.

    Of the environment, variables with debug settings are kept, if there are any.
    """
    rows: list[Row] = []
    for machine in children(system, 1):
        owner = {"globalVid": integer(machine, 3), "devStateName": text(machine, 1)}
        for prop in children(child(machine, 2), 1):
            number = integer(prop, 1) or 0
            kept = debug_variables(text(prop, 2) or "") if number == _ENVIRONMENT else {}
            if kept:
                value = ";".join(f"{name}={own}" for name, own in kept.items())
                rows.append({**owner, "name": ENVIRONMENT, "nameEnum": number, "value": value})
            if number in _NAMES:
                value = text(prop, 2) or ""
                rows.append({**owner, "name": _NAMES[number], "nameEnum": number, "value": value})
    return rows


Columns: TypeAlias = "dict[str, int | str]"
"""Column -> field number; `:N` for a text field, an empty text for a column that stays NULL."""

_GPU: Columns = {
    "id": 1,
    "name": ":2",
    "busLocation": ":3",
    "isDiscrete": 4,
    "l2CacheSize": 10,
    "totalMemory": 11,
    "memoryBandwidth": 12,
    "clockRate": 13,
    "smCount": 14,
    "pwGpuId": 9,
    "uuid": ":5",
    "luid": 6,
    "chipName": ":7",
    "cuDevice": 15,
    "ctxswDevPath": ":16",
    "ctrlDevPath": ":17",
    "revision": 21,
    "nodeMask": 22,
    "constantMemory": 23,
    "maxIPC": 24,
    "maxRegistersPerBlock": 25,
    "maxShmemPerBlock": 26,
    "maxShmemPerBlockOptin": 27,
    "maxShmemPerSm": 28,
    "maxRegistersPerSm": 29,
    "threadsPerWarp": 30,
    "asyncEngines": 31,
    "maxWarpsPerSm": 32,
    "maxBlocksPerSm": 33,
    "maxThreadsPerBlock": 34,
    "maxBlockDimX": 35,
    "maxBlockDimY": 36,
    "maxBlockDimZ": 37,
    "maxGridDimX": 38,
    "maxGridDimY": 39,
    "maxGridDimZ": 40,
    "computeMajor": 41,
    "computeMinor": 42,
    "smMajor": 43,
    "smMinor": 44,
}
_CUDA_DEVICE: Columns = {"gpuId": 1, "cudaId": 2, "pid": 3, "uuid": ":5", "numMultiprocessors": 6}
_OWNER: Columns = {"hwId": 2, "vmId": 3, "processId": 4}
_TARGET_TABLES: dict[str, tuple[int, Columns]] = {
    "TARGET_INFO_NVTX_CUDA_DEVICE": (
        11,
        {"name": ":1", "hwId": 2, "vmId": 3, "pid": 4, "deviceId": 5},
    ),
    "TARGET_INFO_NVTX_CUDA_STREAM": (
        13,
        {"name": ":1"} | _OWNER | {"deviceId": 5, "contextId": 6, "streamId": 7},
    ),
    "TARGET_INFO_CUDA_CONTEXT_INFO": (
        14,
        {"nullStreamId": 1}
        | _OWNER
        | {"deviceId": 5, "contextId": 6, "parentContextId": 7, "isGreenContext": 8},
    ),
    "TARGET_INFO_CUDA_STREAM": (
        15,
        {"streamId": 1} | _OWNER | {"contextId": 5, "priority": 6, "flag": 7},
    ),
}
_THREAD: Columns = {"nameId": 2, "priority": 3, "globalTid": 4}
_STREAM_FILE: Columns = {"globalPid": 1, "filenameId": 2, "contentId": 3}
_SOURCE: Columns = {"sourceId": 1, "nameId": 3, "timeSourceId": 2}
_SCHEMA: Columns = {
    "domainId": 9,
    "schemaId": 1,
    "name": ":5",
    "type": 2,
    "flags": "",
    "payloadSize": 6,
    "alignTo": "",
}
_SCHEMA_ENTRY: Columns = {
    "flags": "",
    "type": 1,
    "name": ":7",
    "description": "",
    "arrayOrUnionDetail": "",
    "offset": 3,
}


def _row(message: Message, columns: Columns) -> Row:
    row: Row = {}
    for column, source in columns.items():
        if isinstance(source, int):
            row[column] = integer(message, source)
        else:
            row[column] = text(message, int(source[1:])) if source else None
    return row


def _frame(rows: Iterable[Row]) -> pl.DataFrame:
    rows = list(rows)
    if not rows:
        return pl.DataFrame()
    schema = {name: pl.String if name in _TEXTS else pl.Int64 for name in rows[0]}
    return pl.DataFrame(rows, schema=schema)


_TEXTS = frozenset(
    {"name", "busLocation", "uuid", "chipName", "ctxswDevPath", "ctrlDevPath", "value"}
    | {"filename", "utcTime", "localTime", "devStateName", "typeName", "metricName", "description"}
)


class InfoTables:
    """Builds each small table when it is first read."""

    def __init__(self, container: NsysContainer, types: MetricTypes) -> None:
        self._container = container
        self._types = types
        self._tables: dict[str, pl.DataFrame] = {}
        self._builders = self._table_builders()

    @property
    def names(self) -> frozenset[str]:
        """Every table that this class can build, whether or not it has rows."""
        return frozenset(self._builders)

    def read(self, name: str) -> pl.DataFrame:
        """Build a table; empty when the file has nothing for it."""
        if name not in self._tables:
            self._tables[name] = self._builders[name]()
        return self._tables[name]

    def _table_builders(self) -> dict[str, Callable[[], pl.DataFrame]]:
        raw = self._container.raw
        builders: dict[str, Callable[[], pl.DataFrame]] = {
            "StringIds": lambda: pl.DataFrame(
                {"value": pl.Series(self.strings(), dtype=pl.String)}
            ).select(pl.int_range(pl.len()).alias("id"), "value"),
            "ProcessStreams": lambda: _frame(
                _row(m, _STREAM_FILE) for m in children(self._string_block, 2)
            ),
            "ANALYSIS_FILE": self._analysis_files,
            "ThreadNames": lambda: _frame(_row(m, _THREAD) for m in children(raw.threads, 1)),
            "TARGET_INFO_GPU": lambda: _frame(
                {"vmId": integer(machine, 1), **_row(gpu, _GPU)}
                for machine in children(raw.target, 1)
                for gpu in children(child(machine, 2), 7)
            ),
            "TARGET_INFO_CUDA_DEVICE": lambda: _frame(
                _row(device, _CUDA_DEVICE)
                for machine in children(raw.target, 1)
                for device in children(child(machine, 2), 9)
            ),
            "TARGET_INFO_SYSTEM_ENV": lambda: _frame(system_env(raw.system)),
            "TARGET_INFO_SESSION_START_TIME": lambda: _frame(
                session_start(raw.system, self._container.section("Time Conversion Data"))
            ),
            "ANALYSIS_DETAILS": self._analysis_details,
            "META_DATA_EXPORT": self._product,
            "GENERIC_EVENT_SOURCES": self._generic_sources,
            "GENERIC_EVENT_TYPES": lambda: _frame(
                {"typeId": kind.type_id, "sourceId": kind.source_id, "nameId": kind.name_id}
                for kind in self._used_types().values()
            ),
            "GENERIC_EVENT_TYPE_FIELDS": self._generic_fields,
            "TARGET_INFO_GPU_METRICS": self._metrics,
            "NVTX_PAYLOAD_SCHEMAS": lambda: self._payload_schemas()[0],
            "NVTX_PAYLOAD_SCHEMA_ENTRIES": lambda: self._payload_schemas()[1],
        }
        for name, (number, columns) in _TARGET_TABLES.items():
            builders[name] = lambda number=number, columns=columns: _frame(  # type: ignore[misc]
                _row(message, columns) for message in children(raw.target, number)
            )
        return builders

    def strings(self) -> list[str]:
        """All texts that ids refer to."""
        texts = self._string_block.get(1, [])
        if len(texts) != (integer(self._container.raw.header, 3) or 0):
            raise WireError("it does not hold as many strings as it names")
        return [t.decode("utf-8", "replace") for t in texts if isinstance(t, bytes)]

    @cached_property
    def _string_block(self) -> Message:
        return parse(self._container.inflate(self._container.raw.string_block))

    def _analysis_files(self) -> pl.DataFrame:
        streams = self.read("ProcessStreams")
        if not streams.height:
            return streams
        names = self.read("StringIds").rename({"id": "filenameId", "value": "filename"})
        files = streams.with_row_index("id").join(
            names, on="filenameId", how="left", maintain_order="left"
        )
        return files.select(pl.col("id").cast(pl.Int64), "filename", "contentId", "globalPid")

    def _analysis_details(self) -> pl.DataFrame:
        system = self._container.raw.system
        start, stop = integer(system, 17), integer(system, 18)
        if start is None or stop is None:
            return pl.DataFrame()
        vm = integer(child(system, 1), 3)
        times = {"duration": wrapped(stop - start), "startTime": start, "stopTime": stop}
        return _frame([{"globalVid": vm, **times}])

    def _product(self) -> pl.DataFrame:
        """Name the product as an export would; the version is that of the recording nsys."""
        version = self._container.version.partition("-")[0]
        return _frame(
            [
                {"name": "EXPORT_PRODUCT_NAME", "value": "NVIDIA Nsight Systems"},
                {"name": "EXPORT_PRODUCT_VERSION", "value": version},
            ]
        )

    def _used_types(self) -> MetricTypes:
        return self._types if self._container.raw.generic_event_count else {}

    def _generic_sources(self) -> pl.DataFrame:
        used = {kind.source_id for kind in self._used_types().values()}
        rows = (_row(m, _SOURCE) for m in children(self._container.raw.header, 13))
        return _frame(row for row in rows if row["sourceId"] in used)

    def _generic_fields(self) -> pl.DataFrame:
        return _frame(
            {
                "typeId": kind.type_id,
                "fieldIdx": index,
                "fieldNameId": field.name_id,
                "offset": field.offset,
                "size": field.size,
                "type": field.kind,
            }
            for kind in self._used_types().values()
            for index, field in enumerate(kind.fields)
        )

    def _metrics(self) -> pl.DataFrame:
        kinds = [kind for kind in self._used_types().values() if kind.is_metrics]
        if not kinds:
            return pl.DataFrame()
        texts = dict(enumerate(self.strings()))
        return _frame(
            {
                "typeId": kind.type_id,
                "sourceId": kind.source_id,
                "typeName": texts.get(kind.name_id),
                "metricId": index,
                "metricName": texts.get(field.name_id),
            }
            for kind in kinds
            for index, field in enumerate(kind.fields)
        )

    def _payload_schemas(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        block = self._container.raw.schema_block
        if block is None:
            return pl.DataFrame(), pl.DataFrame()
        schemas: list[Row] = []
        entries: list[Row] = []
        for process in children(parse(self._container.inflate(block)), 3):
            for schema in children(process, 2):
                row, fields = _row(schema, _SCHEMA), children(schema, 4)
                schemas.append(row | {"numEntries": len(fields)})
                key: Row = {"domainId": row["domainId"], "schemaId": row["schemaId"]}
                for index, entry in enumerate(fields):
                    entries.append(key | {"idx": index} | _row(entry, _SCHEMA_ENTRY))
        return _frame(schemas), _frame(entries)
