"""A Chrome trace of PyTorch as a `TraceSource`, with the facts about machine and job."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from gpusight.pace import METADATA_KEY, Pace
from gpusight.readers import chrome_source
from gpusight.readers.chrome_columns import process_labels, thread_key, thread_labels
from gpusight.readers.tables import (
    EPOCH_NS,
    as_table,
    concat_tables,
    time_order,
    within_limits,
)
from gpusight.readers.torch.torch_tables import LINKS, PARTS, EventColumnRule, EventTablePart
from gpusight.recording.inside.stack_sampler import METADATA_KEY as METADATA_OF_STACKS
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import Meta, Outline, TraceSource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpusight.readers.chrome_columns import EventRows
    from gpusight.readers.chrome_source import EventSorter, ScannedTrace


MACHINE_TABLES = frozenset(
    {"devices", "processes", "threads", "streams", "process_groups", "diagnostics"}
)
_HOST = (*chrome_source.HOST_KINDS, chrome_source.MEMORY)
_THREAD_LABEL = re.compile(r"^thread -?\d+ \((?P<name>.*)\)\s*$")
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


def _version(about: dict[str, Any]) -> str | None:
    cuda, hip = (_int(about.get(f"{name}_runtime_version")) for name in ("cuda", "hip"))
    if cuda:
        return f"{cuda // 1000}.{cuda % 1000 // 10}"
    if hip:
        return f"HIP {hip // 10**7}.{hip // 10**5 % 100}.{hip % 10**5}"
    return None


def _devices(events: EventSorter, about: dict[str, Any]) -> pl.DataFrame:
    described = [d for d in _list(about.get("deviceProperties")) if isinstance(d, dict)]
    numbers = [_int(properties.get("id")) for properties in described]
    rows = {
        number: _device(number, properties)
        for number, properties in zip(numbers, described, strict=True)
        if number is not None and 0 <= number < 1 << 20
    }
    used = {
        number
        for kind in chrome_source.GPU_WORK_KINDS
        for number, _ in events.of(kind).tracks
        if number >= 0
    }
    undescribed = used - rows.keys()
    if len(described) == len(used) == len(undescribed) == 1:
        # HIP describes the GPUs that a process sees but numbers them as the machine does.
        return pl.DataFrame([_device(undescribed.pop(), described[0])], schema=_DEVICE_SCHEMA)
    rows |= {number: _device(number, {}) for number in sorted(undescribed)}
    return pl.DataFrame(list(rows.values()), schema=_DEVICE_SCHEMA)


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


def _processes(events: EventSorter) -> pl.DataFrame:
    labels = process_labels(events.settings)
    pids = sorted({pid for kind in _HOST for pid, _ in events.of(kind).tracks})
    executables = [re.split(r"[/\\]", labels.get(pid, "").strip())[-1] or None for pid in pids]
    return pl.DataFrame(
        {"process": pids, "pid": pids, "name": executables},
        schema={"process": pl.Int64, "pid": pl.Int64, "name": pl.String},
    )


def _threads(events: EventSorter) -> pl.DataFrame:
    names = thread_labels(events.settings)
    tracks = {track for kind in _HOST for track in events.of(kind).tracks}
    schema = {"pid": pl.Int64, "tid": pl.Int64}
    pairs = pl.DataFrame(sorted(tracks), schema=schema, orient="row")
    labels = [names.get(key) for key in pairs.iter_rows()]
    labels = [_THREAD_LABEL.sub(r"\g<name>", text) if text else text for text in labels]
    return pl.DataFrame(
        {
            "thread": thread_key(pairs["pid"], pairs["tid"]),
            "process": pairs["pid"],
            "tid": pairs["tid"],
            "name": pl.Series(labels, dtype=pl.String),
        }
    ).unique("thread", keep="first", maintain_order=True)


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


def _pace(value: object) -> Pace | None:
    """Read the step time without a profiler; None where there is none, or it is damaged."""
    try:
        return Pace.from_values(value)
    except ValueError:
        return None


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


_DAY_NS = 86_400 * 10**9
_MAX_RECORDING_NS = 30 * _DAY_NS
"""No profiler records for longer."""
_TIMED_KINDS = (
    *chrome_source.HOST_KINDS,
    *chrome_source.GPU_WORK_KINDS,
    chrome_source.GPU_ANNOTATION,
    chrome_source.SYNC,
    chrome_source.OVERHEAD,
    chrome_source.MEMORY,
)


class TorchSource(TraceSource):
    """Builds tables from the events that were scanned in a PyTorch trace."""

    def __init__(self, path: Path, scanned: ScannedTrace) -> None:
        self.path = path
        self._scanned = scanned
        self._orders: dict[str, pl.Series | None] = {}
        self._out_of_range: dict[tuple[str, str], str] = {}

    @cached_property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        about, warnings = self._scanned.about, self._scanned.warnings
        if self.duration_ns > _MAX_RECORDING_NS:
            days = self.duration_ns // _DAY_NS
            warnings = (*warnings, f"the trace spans {days:,} days: some of its times are wrong")
        job = _dict(about.get("distributedInfo"))
        start_ns = (_int(about.get("baseTimeNanoseconds")) or 0) + self.origin_ns
        schema = _int(about.get("schemaVersion"))
        return Meta(
            path=str(self.path),
            source="torch-chrome",
            tool="torch.profiler",
            schema_version=None if schema is None else str(schema),
            start_utc_ns=start_ns if start_ns > EPOCH_NS else None,
            duration_ns=self.duration_ns,
            cuda_version=_version(about),
            rank=_int(job.get("rank")),
            world_size=_int(job.get("world_size")),
            backend=_text(job.get("backend")),
            pace=_pace(about.get(METADATA_KEY)),
            session=_text(_dict(about.get(METADATA_OF_STACKS)).get("session")),
            notes=self._scanned.notes,
            warnings=warnings,
        )

    def outline(self) -> Outline:
        """Return what is in the file."""
        tables = [t for t in TABLES if self.has(t)]
        return Outline(
            meta=self.meta,
            rows={t: self.row_count(t) for t in tables},
            columns={
                t: [c.name for c in TABLES[t].columns if self.has_column(t, c.name)] for t in tables
            },
        )

    def has(self, table: str) -> bool:
        """Return whether the table has rows."""
        return self.row_count(table) > 0

    def row_count(self, table: str) -> int:
        """Count rows."""
        if table in MACHINE_TABLES:
            return self._machine_tables[table].height
        return sum(rows.height for _, rows in self._parts(table))

    def has_column(self, table: str, column: str) -> bool:
        """Return whether the capture can fill this column."""
        if table in MACHINE_TABLES:
            frame = self._machine_tables[table]
            return column in frame.columns and frame[column].null_count() < frame.height
        return any(_fills(part.rules.get(column), rows) for part, rows in self._parts(table))

    def warnings(self) -> tuple[str, ...]:
        """Count values that were left out so far; `meta` counts events."""
        wrong = (
            f"{count:,} of {rows.height:,} {kind} events have no number as {key}"
            for kind, rows in self._scanned.events.rows.items()
            for key, count in rows.arguments.wrong.items()
        )
        return (*wrong, *self._out_of_range.values())

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read these columns; rows sorted by the table's time column, ties in file order."""
        if table in MACHINE_TABLES:
            return self._machine_tables[table].select(columns)
        frames = [self._load_part(table, part, rows, columns) for part, rows in self._parts(table)]
        if not frames:
            return pl.DataFrame([TABLES[table].column(c).empty() for c in columns])
        frame = frames[0] if len(frames) == 1 else concat_tables(frames)
        order = self._order(table)
        return frame if order is None else frame[order]

    def _parts(self, table: str) -> list[tuple[EventTablePart, EventRows]]:
        rows = self._scanned.events.rows
        return [(p, rows[p.kind]) for p in PARTS.get(table, ()) if p.kind in rows]

    def _load_part(
        self, table: str, part: EventTablePart, rows: EventRows, columns: Sequence[str]
    ) -> pl.DataFrame:
        rules = {c: part.rules.get(c) for c in columns}
        wanted = [a for rule in rules.values() if rule is not None for a in rule.arguments]
        arguments = iter(rows.arguments.columns(wanted, LINKS) if wanted else ())
        built = []
        for name, rule in rules.items():
            column = TABLES[table].column(name)
            if rule is None:
                built.append(column.nulls(rows.height))
                continue
            own = [next(arguments) for _ in rule.arguments]
            series, wrong = within_limits(column, rule.build(self, rows, own).alias(name))
            if wrong:  # implausible sizes and numbers
                instead = "count as 0" if column.required else "left out"
                self._out_of_range[part.kind, name] = (
                    f"{wrong:,} of {len(series):,} {part.kind} events have {name} out of range,"
                    f" {instead}"
                )
                series = series.fill_null(0) if column.required else series
            built.append(series)
        return pl.DataFrame(built)

    def _order(self, table: str) -> pl.Series | None:
        """Return the order of rows by time, ties in file order; None where they are in order."""
        if table not in self._orders:
            times = pl.concat([rows.start_ns for _, rows in self._parts(table)])
            self._orders[table] = time_order(times)
        return self._orders[table]

    @cached_property
    def _machine_tables(self) -> dict[str, pl.DataFrame]:
        """The tables about the machine and the job."""
        events, about = self._scanned.events, self._scanned.about
        kinds = chrome_source.GPU_WORK_KINDS
        streams = sorted({tid for kind in kinds for _, tid in events.of(kind).tracks})
        tables = {
            "devices": _devices(events, about),
            "processes": _processes(events),
            "threads": _threads(events),
            "streams": pl.DataFrame({"stream": streams}, schema={"stream": pl.Int64}),
            "process_groups": _process_groups(about),
            "diagnostics": _diagnostics(about),
        }
        return {name: as_table(name, frame) for name, frame in tables.items()}

    # What column rules need ----------------------------------------------------------------------

    @cached_property
    def host_process(self) -> int | None:
        """The only process of the host; None where there are several."""
        # A few frames of the interpreter's start are of process 0.
        host = (self._scanned.events.of(kind) for kind in chrome_source.HOST_KINDS)
        pids = {pid for rows in host for pid, _ in rows.tracks if pid}
        return pids.pop() if len(pids) == 1 else None

    @cached_property
    def origin_ns(self) -> int:
        """The time, on the file's own clock, from which the tables count."""
        timed = (self._scanned.events.of(kind) for kind in _TIMED_KINDS)
        return min((rows.first_ns for rows in timed if rows.height), default=0)

    @cached_property
    def duration_ns(self) -> int:
        """How long the trace lasts, from its first event to its last."""
        timed = (self._scanned.events.of(kind) for kind in _TIMED_KINDS)
        last = [rows.last_ns for rows in timed if rows.height]
        return max(last, default=self.origin_ns) - self.origin_ns


def _fills(rule: EventColumnRule | None, rows: EventRows) -> bool:
    if rule is None:
        return False
    keys = [key for argument in rule.arguments[:1] for key in argument.keys]
    return not keys or any(rows.arguments.mention(key) for key in keys)
