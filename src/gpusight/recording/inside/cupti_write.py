"""Recorded buffers to a SQLite file that our reader and `nsys stats` read."""

from __future__ import annotations

import datetime as dt
import functools
import re
import sqlite3
import struct
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusight._version import __version__
from gpusight.recording.inside.cupti_library import DRIVER_CALLS, KIND_NAMES, RUNTIME_CALLS
from gpusight.recording.inside.cupti_tables import (
    ENUMS,
    INSERTS,
    OVERHEADS,
    SCHEMA_VERSION,
    TABLES,
    TID_MASK,
    VM,
    WORKING,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from gpusight.recording.inside.cupti_buffers import BufferWalker, CuptiBuffers, StringIds
    from gpusight.recording.inside.cupti_library import Cupti


_RUNTIME_NOISE = re.compile(
    r"_*cuda(Get|Set(Device|DoubleFor)|Peek|Occupancy|FuncGet|FuncSet|DeviceGet(?!GraphMem)|"
    r"DeviceCanAccess|DriverGet|RuntimeGet|PointerGet|PushCall|PopCall|StreamGet|StreamIs|"
    r"StreamQuery|EventQuery|EventElapsed|ThreadExchange|CtxResetPersisting|Choose|"
    r"CreateChannelDesc|KernelSetAttribute|LibraryGet)"
)
_DRIVER_WORK = re.compile(
    r"cu(Launch|Memcpy|Memset|MemAlloc|MemFree|MemHost|MemCreate|MemRelease|MemMap|MemUnmap|"
    r"MemAddress|MemPrefetch|MemPool(Create|Destroy|Trim)|CtxSynchronize|CtxCreate|CtxDestroy|"
    r"Stream(Synchronize|WaitEvent|Create|Destroy|BeginCapture|EndCapture|WaitValue|WriteValue|"
    r"BatchMemOp|AddCallback|AttachMem)|Event(Record|Synchronize|Create|Destroy)|"
    r"Graph(Launch|Instantiate|Upload|ExecUpdate)|ModuleLoad|ModuleUnload|LibraryLoad|"
    r"LibraryUnload|Link|ProfilerStart|ProfilerStop|ArrayCreate|Array3DCreate|Init$)"
)
_LAST_FUNCTION = 4000
_MISSES = 32
"""Numbers without a name in a row, after which there are no more functions."""
_DRIVER = 1


def is_wanted(domain: int, name: str) -> bool:
    """Return whether a call of this function is worth a row of its own."""
    if domain == RUNTIME_CALLS:
        return _RUNTIME_NOISE.match(name) is None
    return _DRIVER_WORK.match(name) is not None


def unwanted_functions(cupti: Cupti) -> list[tuple[int, int]]:
    """List the functions that need not be recorded, each with its domain."""
    unwanted = []
    for domain in (RUNTIME_CALLS, DRIVER_CALLS):
        missed = 0
        for function in range(1, _LAST_FUNCTION):
            name = cupti.function_name(domain, function)
            missed = 0 if name else missed + 1
            if missed > _MISSES:
                break
            if name and not is_wanted(domain, name):
                unwanted.append((domain, function))
    return unwanted


class _Call(NamedTuple):
    kind: int
    function: int
    start: int
    end: int
    thread: int
    correlation: int
    result: int
    has_work: int


_ORDERED = """
SELECT class, function, start, end, thread, calls.correlation, result,
       work.correlation IS NOT NULL
FROM calls LEFT JOIN work ON work.correlation = calls.correlation
ORDER BY thread, start, end DESC, class
"""
_WORK = """
INSERT OR IGNORE INTO work SELECT correlationId FROM {table} WHERE correlationId IS NOT NULL
"""
_WORK_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUDA_GPU_MEMORY_USAGE_EVENTS",
)
_INSERT = """
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME
(start, end, eventClass, globalTid, correlationId, nameId, returnValue) VALUES (?,?,?,?,?,?,?)
"""


def write_calls(database: sqlite3.Connection, cupti: Cupti, texts: StringIds) -> None:
    """Put the calls that matter into the capture's own table."""
    database.execute("CREATE TEMP TABLE work (correlation INTEGER PRIMARY KEY)")
    for table in _WORK_TABLES:
        database.execute(_WORK.format(table=table))
    calls = map(_Call._make, database.execute(_ORDERED))
    database.executemany(_INSERT, _wanted_calls(calls, cupti, texts))


def _wanted_calls(
    calls: Iterator[_Call], cupti: Cupti, texts: StringIds
) -> Iterator[tuple[int, ...]]:
    @functools.cache
    def name_and_wanted(kind: int, function: int) -> tuple[int, bool]:
        domain = DRIVER_CALLS if kind == _DRIVER else RUNTIME_CALLS
        name = cupti.function_name(domain, function)
        if name is None:
            return texts.number(f"{'cu' if kind == _DRIVER else 'cuda'}[{function}]"), True
        return texts.number(name), is_wanted(domain, name)

    runtime: _Call | None = None
    for call in calls:
        name, wanted = name_and_wanted(call.kind, call.function)
        keep = wanted or bool(call.has_work)
        if call.kind != _DRIVER:
            runtime = call
        elif runtime and runtime.thread == call.thread and call.end <= runtime.end:
            keep = bool(call.has_work) and not runtime.has_work
        if keep:
            row = (call.start, call.end, call.kind, call.thread, call.correlation, name)
            yield (*row, call.result)


_INSTANT, _START, _END = 1, 2, 4
_PROCESS = 1
_MARK, _PUSH_POP, _START_END, _DOMAIN = 34, 59, 60, 75
_DOUBLE, _UINT64, _INT64 = 0, 1, 4

_MARKERS_ORDERED = """
SELECT markers.id, time, markers.flags, object, thread, name, coalesce(domain, 0),
       CASE WHEN data.flags & 2 THEN color END, nullif(category, 0), payload_kind, payload
FROM markers LEFT JOIN marker_data AS data ON data.id = markers.id
ORDER BY time, markers.rowid
"""
_MARKERS_INSERT = """
INSERT INTO NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid,
endGlobalTid, domainId, uint64Value, int64Value, doubleValue)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, (SELECT value FROM StringIds WHERE id = ?7), ?8, ?9, ?10, ?11, ?12,
?13
"""


class _Marker(NamedTuple):
    id: int
    time: int
    flags: int
    object: int
    thread: int
    name: int
    domain: int
    color: int | None
    category: int | None
    payload_kind: int | None
    payload: int | None


def write_ranges(database: sqlite3.Connection, main_thread: int) -> None:
    """Put ranges and marks into the capture's own table; `StringIds` must be filled."""
    # Number domains as nsys does: 0 is the default one, others are announced by name.
    query = "SELECT DISTINCT domain FROM markers WHERE domain > 0 ORDER BY rowid"
    numbers = {text: number for number, (text,) in enumerate(database.execute(query), 1)}
    for text, number in numbers.items():
        row = (0, None, _DOMAIN, None, None, None, text, main_thread, None, number, *_NO_PAYLOAD)
        database.execute(_MARKERS_INSERT, row)
    domains = numbers | {0: 0}
    markers = map(_Marker._make, database.execute(_MARKERS_ORDERED))
    database.executemany(_MARKERS_INSERT, _ranges(markers, domains))


def _ranges(markers: Iterator[_Marker], domains: dict[int, int]) -> Iterator[tuple[Any, ...]]:
    opened: dict[int, _Marker] = {}
    stacks: dict[tuple[int, int], list[int]] = {}
    for marker in markers:
        if marker.flags & _INSTANT:
            yield _row(marker, domains, _MARK)
        elif marker.flags & _START:
            opened[marker.id] = marker
            stacks.setdefault((marker.thread, marker.domain), []).append(marker.id)
        elif marker.flags & _END and marker.id in opened:
            start = opened.pop(marker.id)
            stack = stacks[start.thread, start.domain]
            on_top = stack[-1] == marker.id
            stack.remove(marker.id)
            nested = on_top and marker.thread == start.thread and start.object != _PROCESS
            yield _row(start, domains, _PUSH_POP if nested else _START_END, marker)
    for start in opened.values():  # still open when recording ended
        yield _row(start, domains, _START_END if start.object == _PROCESS else _PUSH_POP)


def _row(
    marker: _Marker, domains: dict[int, int], event: int, end: _Marker | None = None
) -> tuple[Any, ...]:
    return (
        marker.time,
        end.time if end else None,
        event,
        marker.id if event == _START_END else None,
        marker.category,
        marker.color,
        marker.name,
        marker.thread,
        end.thread if end and event == _START_END else None,
        domains[marker.domain],
        *_payload(marker),
    )


_NO_PAYLOAD = (None, None, None)


def _payload(marker: _Marker) -> tuple[int | None, int | None, float | None]:
    """Return the payload as unsigned, signed or real. A zero looks like no payload."""
    if not marker.payload:
        return _NO_PAYLOAD
    if marker.payload_kind == _DOUBLE:
        (real,) = struct.unpack("=d", struct.pack("=q", marker.payload))
        return None, None, real
    if marker.payload_kind == _UINT64:
        return marker.payload, None, None
    return (None, marker.payload, None) if marker.payload_kind == _INT64 else _NO_PAYLOAD


# ruff: noqa: S608 - statements are made of names and numbers that stand in these modules


PRODUCT = "gpusight record, CUPTI"
"""What our reader shows as the tool, before the version."""
_STREAM_OBJECT, _THREAD_OBJECT = 5, 2
_INFORMATION, _WARNING = 1, 2


@dataclass(frozen=True)
class RecordedActivity:
    """Everything that a capture is written from."""

    cupti: Cupti
    walker: BufferWalker
    texts: StringIds
    buffers: CuptiBuffers
    process: int
    start_ns: int
    end_ns: int
    start_utc_ns: int
    facts: Mapping[str, str]
    process_name: str
    thread_names: Mapping[int, str]
    thread_ids: Mapping[int, int] | None = None
    """POSIX thread ids to the system's; None: records have the system's."""
    warnings: list[str] = field(default_factory=list)

    @property
    def global_pid(self) -> int:
        """The process as nsys numbers it: machine, process, no thread."""
        return VM << 48 | self.process << 24

    def global_tid(self, thread: int) -> int:
        """Number a thread as nsys does."""
        if self.thread_ids is not None:
            thread = self.thread_ids.get(thread, thread)
        return self.global_pid | thread & TID_MASK


def write_capture(recorded: RecordedActivity, path: Path) -> dict[str, int]:
    """Write a new file; returns how many rows each table has."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        # The file gets its name once it is complete: a crash loses it, journal or not.
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute("BEGIN")
        _create(database)
        _write(database, recorded)
        counts = _drop_empty(database)
        database.execute("COMMIT")
        return counts


def _create(database: sqlite3.Connection) -> None:
    for table, columns in TABLES.items():
        database.execute(f"CREATE TABLE {table} ({columns})")
    for table, columns in WORKING.items():
        database.execute(f"CREATE TEMP TABLE {table} ({columns})")
    for table, labels in ENUMS.items():
        database.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT, label TEXT)")
        rows = ((number, label, label) for number, label in enumerate(labels))
        database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)


def _write(database: sqlite3.Connection, recorded: RecordedActivity) -> None:
    overheads = [(kind, recorded.texts.number(name)) for kind, name in OVERHEADS.items()]
    database.executemany("INSERT INTO overheads VALUES (?, ?)", overheads)
    _write_texts(database, recorded.texts)
    _write_records(database, recorded)
    _complete_devices(database, recorded)
    write_calls(database, recorded.cupti, recorded.texts)
    write_ranges(database, recorded.global_tid(recorded.process))
    _write_names(database, recorded)
    _write_facts(database, recorded)
    _write_texts(database, recorded.texts)


def _write_texts(database: sqlite3.Connection, texts: StringIds) -> None:
    database.executemany("INSERT OR IGNORE INTO StringIds VALUES (?, ?)", texts.items())


def _write_records(database: sqlite3.Connection, recorded: RecordedActivity) -> None:
    own = recorded.global_pid
    database.create_function("thread_of", 1, recorded.global_tid, deterministic=True)
    direct = f"({own} | ({{thread}} & {TID_MASK}))"  # much faster than a call of Python
    constants = {
        "origin": str(recorded.start_ns),
        "pid": str(own),
        "os_pid": str(recorded.process),
        "main_thread": str(recorded.global_tid(recorded.process)),
        "thread_of": direct if recorded.thread_ids is None else "thread_of({thread})",
    }
    statements = {kind: insert.statement(kind, constants) for kind, insert in INSERTS.items()}
    unfinished: Counter[int] = Counter()
    for buffer in recorded.buffers.contents():
        for layout, rows in recorded.walker.rows(buffer):
            inserted = database.executemany(statements[layout.kind], rows).rowcount
            if INSERTS[layout.kind].is_work:
                unfinished[layout.kind] += len(rows) - inserted
    recorded.warnings.extend(
        f"{count} {KIND_NAMES[kind]} had not ended when recording did and are left out"
        for kind, count in unfinished.items()
        if count
    )


def _complete_devices(database: sqlite3.Connection, recorded: RecordedActivity) -> None:
    """Find the device of what CUPTI only names a context for; list devices once each."""
    database.execute(
        "CREATE TEMP TABLE contexts AS SELECT contextId, min(deviceId) AS deviceId FROM ("
        "SELECT contextId, deviceId FROM TARGET_INFO_CUDA_CONTEXT_INFO UNION ALL "
        "SELECT DISTINCT contextId, deviceId FROM CUPTI_ACTIVITY_KIND_KERNEL UNION ALL "
        "SELECT DISTINCT contextId, deviceId FROM CUPTI_ACTIVITY_KIND_MEMCPY) GROUP BY contextId"
    )
    for table in ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"):
        device = f"SELECT deviceId FROM contexts WHERE contexts.contextId = {table}.contextId"
        database.execute(f"UPDATE {table} SET deviceId = coalesce(({device}), deviceId)")
    for table, key in (
        ("TARGET_INFO_GPU", "id"),
        ("TARGET_INFO_CUDA_CONTEXT_INFO", "contextId"),
        ("TARGET_INFO_CUDA_STREAM", "contextId, streamId"),
    ):
        once = f"SELECT min(rowid) FROM {table} GROUP BY {key}"
        database.execute(f"DELETE FROM {table} WHERE rowid NOT IN ({once})")
    database.execute(
        "INSERT INTO TARGET_INFO_CUDA_DEVICE SELECT id, id, ? FROM TARGET_INFO_GPU",
        (recorded.process,),
    )


def _write_names(database: sqlite3.Connection, recorded: RecordedActivity) -> None:
    """Name threads and streams: as the program did through NVTX, else as the system does."""
    threads = {recorded.global_tid(tid): name for tid, name in recorded.thread_names.items()}
    rows: list[tuple[int, int, int, int, str]] = database.execute(
        "SELECT object, thread, context, stream, value FROM names JOIN StringIds ON id = name"
    ).fetchall()
    threads |= {thread: name for kind, thread, _, _, name in rows if kind == _THREAD_OBJECT}
    database.executemany(
        "INSERT INTO ThreadNames (nameId, globalTid) VALUES (?, ?)",
        [(recorded.texts.number(name), thread) for thread, name in threads.items()],
    )
    streams = {
        (context, stream): name for kind, _, context, stream, name in rows if kind == _STREAM_OBJECT
    }
    database.executemany(
        f"INSERT INTO TARGET_INFO_NVTX_CUDA_STREAM SELECT ?3, 0, {VM}, {recorded.process}, "
        "coalesce((SELECT deviceId FROM contexts WHERE contextId = ?1), 0), ?1, ?2",
        [(*stream, name) for stream, name in streams.items()],
    )


def _write_facts(database: sqlite3.Connection, recorded: RecordedActivity) -> None:
    _insert(database, "PROCESSES", [(recorded.global_pid, recorded.process, recorded.process_name)])
    environment = (
        (VM << 48, "CurrentState", name, 0, value) for name, value in recorded.facts.items()
    )
    _insert(database, "TARGET_INFO_SYSTEM_ENV", environment)
    start = dt.datetime.fromtimestamp(recorded.start_utc_ns // 10**9, dt.timezone.utc)
    utc = f"{start:%Y-%m-%dT%H:%M:%S}"
    _insert(database, "TARGET_INFO_SESSION_START_TIME", [(recorded.start_utc_ns, utc, utc)])
    duration_ns = recorded.end_ns - recorded.start_ns
    _insert(database, "ANALYSIS_DETAILS", [(VM << 48, duration_ns, 0, duration_ns)])
    _insert(database, "DIAGNOSTIC_EVENT", _messages(recorded, duration_ns))
    major, minor, micro = SCHEMA_VERSION.split(".")
    about = {
        "EXPORT_PRODUCT_NAME": PRODUCT,
        "EXPORT_PRODUCT_VERSION": recorded.cupti.version,
        "EXPORT_SCHEMA_VERSION": SCHEMA_VERSION,
        "EXPORT_SCHEMA_VERSION_MAJOR": major,
        "EXPORT_SCHEMA_VERSION_MINOR": minor,
        "EXPORT_SCHEMA_VERSION_MICRO": micro,
    }
    _insert(database, "META_DATA_EXPORT", about.items())


def _messages(recorded: RecordedActivity, at_ns: int) -> Iterable[tuple[Any, ...]]:
    cupti = recorded.cupti
    texts = [(_INFORMATION, f"Recorded by gpusight {__version__} with CUPTI {cupti.version}.")]
    if cupti.dropped:
        lost = f"CUPTI dropped {cupti.dropped} records (buffers full): counts are too low"
        texts.append((_WARNING, lost))
    if recorded.buffers.lost_bytes:
        lost = f"{recorded.buffers.lost_bytes} bytes of CUPTI's records could not be read"
        texts.append((_WARNING, lost))
    texts += [(_WARNING, warning) for warning in recorded.warnings]
    return [(at_ns, 1, 1, severity, text, recorded.global_pid) for severity, text in texts]


def _insert(database: sqlite3.Connection, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    for row in rows:
        marks = ", ".join("?" * len(row))
        database.execute(f"INSERT INTO {table} VALUES ({marks})", row)


def _drop_empty(database: sqlite3.Connection) -> dict[str, int]:
    """Leave out tables without rows, as nsys does; a reader then knows that there is nothing."""
    counts = {}
    for table in TABLES:
        (counts[table],) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
        if not counts[table]:
            database.execute(f"DROP TABLE {table}")
    return counts
