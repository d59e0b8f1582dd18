"""What a PyTorch trace says about the machine, the job and itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from gpusight.model.trace import Meta
from gpusight.readers.chrome import kinds
from gpusight.readers.chrome.labels import process_labels, thread_labels
from gpusight.readers.chrome.rows import thread_key
from gpusight.readers.frames import EPOCH_NS

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.readers.chrome.kinds import Sorter

TABLES = frozenset({"devices", "processes", "threads", "streams", "process_groups", "diagnostics"})
_HOST = (*kinds.HOST_KINDS, kinds.MEMORY)
_THREAD_LABEL = re.compile(r"thread -?\d+ \((?P<name>.*)\)\s*$")
_DEVICE_KEYS = {
    "compute_major": ("computeMajor",),
    "compute_minor": ("computeMinor",),
    "sm_count": ("numSms", "multiProcessorCount"),
    "memory_bytes": ("totalGlobalMem",),
    "max_threads_per_block": ("maxThreadsPerBlock",),
    "max_registers_per_sm": ("regsPerMultiprocessor",),
    "max_shared_per_sm_bytes": ("sharedMemPerMultiprocessor", "maxSharedMemoryPerMultiProcessor"),
    "max_shared_per_block_bytes": ("sharedMemPerBlock",),
    "max_shared_optin_bytes": ("sharedMemPerBlockOptin",),
}

_DEVICE_SCHEMA = {
    "device": pl.Int64,
    "name": pl.String,
    "max_warps_per_sm": pl.Int64,
    **dict.fromkeys(_DEVICE_KEYS, pl.Int64),
}


def meta(path: Path, about: dict[str, Any], origin_ns: int, duration_ns: int) -> Meta:
    """Sum up what is known about the trace as a whole."""
    job = _dict(about.get("distributedInfo"))
    base = _int(about.get("baseTimeNanoseconds")) or 0
    start = base + origin_ns
    schema = _int(about.get("schemaVersion"))
    return Meta(
        path=str(path),
        source="torch-chrome",
        tool="torch.profiler",
        schema_version=None if schema is None else str(schema),
        start_utc_ns=start if start > EPOCH_NS else None,
        duration_ns=duration_ns,
        cuda_version=_version(about),
        rank=_int(job.get("rank")),
        world_size=_int(job.get("world_size")),
        backend=_text(job.get("backend")),
    )


def _version(about: dict[str, Any]) -> str | None:
    cuda, hip = (_int(about.get(f"{name}_runtime_version")) for name in ("cuda", "hip"))
    if cuda:
        return f"{cuda // 1000}.{cuda % 1000 // 10}"
    if hip:
        return f"HIP {hip // 10**7}.{hip // 10**5 % 100}.{hip % 10**5}"
    return None


def tables(events: Sorter, about: dict[str, Any]) -> dict[str, pl.DataFrame]:
    """Make the small tables."""
    return {
        "devices": _devices(events, about),
        "processes": _processes(events),
        "threads": _threads(events),
        "streams": _streams(events),
        "process_groups": _process_groups(about),
        "diagnostics": _diagnostics(about),
    }


def _devices(events: Sorter, about: dict[str, Any]) -> pl.DataFrame:
    described = [d for d in _list(about.get("deviceProperties")) if isinstance(d, dict)]
    rows = {number: _device(number, d) for d in described if (number := _device_id(d)) is not None}
    used = {
        number
        for kind in kinds.GPU_WORK_KINDS
        for number in events.of(kind).pid.unique()
        if number >= 0
    }
    strange = used - rows.keys()
    if len(described) == len(used) == len(strange) == 1:
        # HIP describes the GPUs that a process sees but numbers its work by those of the machine.
        return pl.DataFrame([_device(strange.pop(), described[0])], schema=_DEVICE_SCHEMA)
    rows |= {number: _device(number, {}) for number in sorted(strange)}
    return pl.DataFrame(list(rows.values()), schema=_DEVICE_SCHEMA)


def _device_id(properties: dict[str, Any]) -> int | None:
    number = _int(properties.get("id"))
    return number if number is not None and 0 <= number < 1 << 20 else None


def _device(number: int, properties: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        column: next((v for key in keys if (v := _int(properties.get(key))) is not None), None)
        for column, keys in _DEVICE_KEYS.items()
    }
    threads, warp = (
        _int(properties.get(key)) for key in ("maxThreadsPerMultiprocessor", "warpSize")
    )
    row["max_warps_per_sm"] = threads // warp if threads and warp else None
    return {"device": number, "name": _text(properties.get("name")) or "", **row}


def _processes(events: Sorter) -> pl.DataFrame:
    names = process_labels(events.settings)
    seen = sorted({pid for kind in _HOST for pid in events.of(kind).pid.unique()})
    return pl.DataFrame(
        {"process": seen, "pid": seen, "name": [_executable(names.get(p)) for p in seen]},
        schema={"process": pl.Int64, "pid": pl.Int64, "name": pl.String},
    )


def _executable(name: str | None) -> str | None:
    return None if name is None else re.split(r"[/\\]", name.strip())[-1] or None


def _threads(events: Sorter) -> pl.DataFrame:
    names = thread_labels(events.settings)
    kinds_of_host = [events.of(kind) for kind in _HOST]
    tracks = [pl.DataFrame({"pid": rows.pid, "tid": rows.tid}) for rows in kinds_of_host]
    seen = pl.concat(tracks).unique().sort("pid", "tid")
    labels = [_thread_name(names.get(key)) for key in seen.iter_rows()]
    return pl.DataFrame(
        {
            "thread": thread_key(seen["pid"], seen["tid"]),
            "process": seen["pid"],
            "tid": seen["tid"],
            "name": pl.Series(labels, dtype=pl.String),
        }
    ).unique("thread", keep="first", maintain_order=True)


def _thread_name(label: str | None) -> str | None:
    if label is None:
        return None
    match = _THREAD_LABEL.match(label)
    return match["name"] if match else label


def _streams(events: Sorter) -> pl.DataFrame:
    tracks = [events.of(kind).tid for kind in kinds.GPU_WORK_KINDS]
    return pl.DataFrame({"stream": pl.concat(tracks).unique().sort()})


def _process_groups(about: dict[str, Any]) -> pl.DataFrame:
    groups = _list(_dict(about.get("distributedInfo")).get("pg_config"))
    rows = [
        {
            "group": _text(group.get("pg_name")) or str(place),
            "description": _text(group.get("pg_desc")),
            "backend": _text(group.get("backend_config") or group.get("backend_type")),
            "size": _int(group.get("pg_size") or group.get("group_count")),
            "ranks": _json(group.get("ranks")),
        }
        for place, group in enumerate(groups)
        if isinstance(group, dict)
    ]
    columns = dict.fromkeys(("group", "description", "backend", "ranks"), pl.String)
    return pl.DataFrame(rows, schema={**columns, "size": pl.Int64}, orient="row")


def _diagnostics(about: dict[str, Any]) -> pl.DataFrame:
    rows = [
        (severity, str(text))
        for key, severity in (("WARNING", "warning"), ("ERROR", "error"))
        for text in _list(about.get(key))
    ]
    return pl.DataFrame(rows, schema={"severity": pl.String, "text": pl.String}, orient="row")


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _int(value: object) -> int | None:
    """Read a whole number that fits a column, however it is written."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1 << 62 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
