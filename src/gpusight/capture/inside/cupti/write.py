"""Recorded buffers to a SQLite file that our reader and `nsys stats` read."""

# ruff: noqa: S608 - statements are made of names and numbers that stand in these modules

from __future__ import annotations

import datetime as dt
import itertools
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpusight._version import __version__
from gpusight.capture.inside.cupti.calls import write_calls
from gpusight.capture.inside.cupti.insert import INSERTS, OVERHEADS, TID_MASK, VM, WORKING
from gpusight.capture.inside.cupti.layouts import KIND_NAMES
from gpusight.capture.inside.cupti.markers import write_ranges
from gpusight.capture.inside.cupti.schema import ENUMS, SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gpusight.capture.inside.cupti.buffers import Buffers
    from gpusight.capture.inside.cupti.library import Cupti
    from gpusight.capture.inside.cupti.texts import Texts
    from gpusight.capture.inside.cupti.walk import Walker

PRODUCT = "gpusight record, CUPTI"
"""What our reader shows as the tool, before the version."""
_STREAM_OBJECT, _THREAD_OBJECT = 5, 2
_INFORMATION, _WARNING = 1, 2


@dataclass(frozen=True)
class Recorded:
    """Everything that a capture is written from."""

    cupti: Cupti
    walker: Walker
    texts: Texts
    buffers: Buffers
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


def write_capture(recorded: Recorded, path: Path) -> dict[str, int]:
    """Write a new file, and say how many rows each table has."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        # The file gets its name once it is whole: a crash loses it, journal or not.
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


def _write(database: sqlite3.Connection, recorded: Recorded) -> None:
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


def _write_texts(database: sqlite3.Connection, texts: Texts) -> None:
    database.executemany("INSERT OR IGNORE INTO StringIds VALUES (?, ?)", texts.items())


def _write_records(database: sqlite3.Connection, recorded: Recorded) -> None:
    own = recorded.global_pid
    database.create_function("thread_of", 1, recorded.global_tid, deterministic=True)
    direct = f"({own} | ({{thread}} & {TID_MASK}))"
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
            put = database.executemany(statements[layout.kind], rows).rowcount
            if INSERTS[layout.kind].is_work:
                unfinished[layout.kind] += len(rows) - put
    recorded.warnings.extend(
        f"{count} {KIND_NAMES[kind]} had not ended when recording did and are left out"
        for kind, count in unfinished.items()
        if count
    )


def _complete_devices(database: sqlite3.Connection, recorded: Recorded) -> None:
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


def _write_names(database: sqlite3.Connection, recorded: Recorded) -> None:
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
        [(*place, name) for place, name in streams.items()],
    )


def _write_facts(database: sqlite3.Connection, recorded: Recorded) -> None:
    _insert(database, "PROCESSES", [(recorded.global_pid, recorded.process, recorded.process_name)])
    environment = (
        (VM << 48, "CurrentState", name, 0, value) for name, value in recorded.facts.items()
    )
    _insert(database, "TARGET_INFO_SYSTEM_ENV", environment)
    begun = dt.datetime.fromtimestamp(recorded.start_utc_ns // 10**9, dt.timezone.utc)
    at = f"{begun:%Y-%m-%dT%H:%M:%S}"
    _insert(database, "TARGET_INFO_SESSION_START_TIME", [(recorded.start_utc_ns, at, at)])
    lasted = recorded.end_ns - recorded.start_ns
    _insert(database, "ANALYSIS_DETAILS", [(VM << 48, lasted, 0, lasted)])
    _insert(database, "DIAGNOSTIC_EVENT", _messages(recorded, lasted))
    _insert(database, "META_DATA_EXPORT", _about(recorded))


def _messages(recorded: Recorded, at_ns: int) -> Iterable[tuple[Any, ...]]:
    cupti = recorded.cupti
    texts = [(_INFORMATION, f"Recorded by gpusight {__version__} with CUPTI {cupti.version}.")]
    if cupti.dropped:
        lost = f"CUPTI dropped {cupti.dropped} records for want of space: counts are too low"
        texts.append((_WARNING, lost))
    if recorded.buffers.lost_bytes:
        lost = f"{recorded.buffers.lost_bytes} bytes of CUPTI's records could not be read"
        texts.append((_WARNING, lost))
    texts += [(_WARNING, warning) for warning in recorded.warnings]
    return [(at_ns, 1, 1, severity, text, recorded.global_pid) for severity, text in texts]


def _about(recorded: Recorded) -> list[tuple[str, str]]:
    major, minor, micro = SCHEMA_VERSION.split(".")
    return [
        ("EXPORT_PRODUCT_NAME", PRODUCT),
        ("EXPORT_PRODUCT_VERSION", recorded.cupti.version),
        ("EXPORT_SCHEMA_VERSION", SCHEMA_VERSION),
        ("EXPORT_SCHEMA_VERSION_MAJOR", major),
        ("EXPORT_SCHEMA_VERSION_MINOR", minor),
        ("EXPORT_SCHEMA_VERSION_MICRO", micro),
    ]


def _insert(database: sqlite3.Connection, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    rows = iter(rows)
    first = next(rows, None)
    if first is not None:
        places = ", ".join("?" * len(first))
        database.executemany(
            f"INSERT INTO {table} VALUES ({places})", itertools.chain([first], rows)
        )


def _drop_empty(database: sqlite3.Connection) -> dict[str, int]:
    """Leave out tables without rows, as nsys does; a reader then knows that there is nothing."""
    counts = {}
    for table in TABLES:
        (counts[table],) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
        if not counts[table]:
            database.execute(f"DROP TABLE {table}")
    return counts
