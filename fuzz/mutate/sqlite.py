"""SQLite databases: values, tables and schema by SQL, then pages, cells and header by bytes."""

from __future__ import annotations

import sqlite3
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fuzz.mutate.raw import SCRATCH, edit_bytes, int64, integer, pick, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

_HEADER_BYTES = 100
_HEADER_FIELDS = (  # offset and width: page size, versions, reserved, counts, schema, encoding
    (16, 2), (18, 1), (19, 1), (20, 1), (21, 1), (24, 4), (28, 4), (32, 4), (36, 4), (40, 4),
    (44, 4), (52, 4), (56, 4), (60, 4), (64, 4), (92, 4), (96, 4),
)  # fmt: skip
_PAGE_TYPES = (0, 2, 5, 10, 13)
_TYPES = ("INTEGER", "TEXT", "REAL", "BLOB", "", "NUMERIC", "JSON", "VARCHAR(9)")


def edit_sqlite(rng: Random, data: bytes) -> bytes:
    """Edit a database at one or two of its levels."""
    level = rng.random()
    if level < 0.7:
        data = _edit_by_sql(rng, data)
    if level > 0.6:
        data = pick(rng, _PAGE_EDITS)(rng, data)
    return data


def _edit_by_sql(rng: Random, data: bytes) -> bytes:
    with tempfile.TemporaryDirectory(prefix="gpusight-fuzz-", dir=SCRATCH) as folder:
        path = Path(folder) / "edited.sqlite"
        path.write_bytes(data)
        connection = sqlite3.connect(path, isolation_level=None)
        connection.text_factory = bytes
        try:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            for _ in range(rng.choice((1, 1, 2, 4))):
                _edit_table(rng, connection)
        finally:
            connection.close()
        return path.read_bytes()


def _edit_table(rng: Random, connection: sqlite3.Connection) -> None:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    tables = [name.decode("utf-8", "replace") for (name,) in rows]
    if not tables:
        return
    table = _quoted(rng.choice(tables))
    try:
        info = connection.execute(f"PRAGMA table_info({table})").fetchall()
        columns = [_quoted(row[1].decode("utf-8", "replace")) for row in info]
        if columns:
            pick(rng, _SQL_EDITS)(rng, connection, table, columns)
    except (sqlite3.Error, OverflowError):
        pass  # a statement that an earlier edit made impossible leaves the database as it was


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _value(rng: Random) -> object:
    number = int64(rng)
    odd = rng.choice((float(number), 1e300, -1e300, 0.5, float("inf"), None, rng.randbytes(5)))
    return rng.choice((number, number, odd, text(rng)))


def _update(rng: Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> None:
    where = rng.choice(("1", "rowid = 1", "rowid % 2", "rowid % 3 = 0"))
    connection.execute(
        f"UPDATE {table} SET {rng.choice(columns)} = ? WHERE {where}", (_value(rng),)
    )


def _invalid_text(
    rng: Random, connection: sqlite3.Connection, table: str, columns: list[str]
) -> None:
    raw = rng.choice(("ff", "c3", "eda080", "00", "f09f98"))
    connection.execute(f"UPDATE {table} SET {rng.choice(columns)} = CAST(X'61{raw}' AS TEXT)")


def _shift(rng: Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> None:
    column, by = rng.choice(columns), int64(rng)
    connection.execute(f"UPDATE {table} SET {column} = {column} + ?", (by,))


def _copy_column(
    rng: Random, connection: sqlite3.Connection, table: str, columns: list[str]
) -> None:
    connection.execute(f"UPDATE {table} SET {rng.choice(columns)} = {rng.choice(columns)}")


def _delete(rng: Random, connection: sqlite3.Connection, table: str, _: list[str]) -> None:
    connection.execute(f"DELETE FROM {table} WHERE {rng.choice(('1', 'rowid = 1', 'rowid % 2'))}")


def _duplicate(rng: Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> None:
    key = connection.execute(f"PRAGMA table_info({table})").fetchall()
    plain = [name for name, row in zip(columns, key, strict=True) if not row[5]] or columns
    names = ", ".join(plain)
    for _ in range(rng.choice((1, 1, 6))):
        connection.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM {table}")


def _drop_table(_: Random, connection: sqlite3.Connection, table: str, __: list[str]) -> None:
    connection.execute(f"DROP TABLE {table}")


def _drop_column(
    rng: Random, connection: sqlite3.Connection, table: str, columns: list[str]
) -> None:
    connection.execute(f"ALTER TABLE {table} DROP COLUMN {rng.choice(columns)}")


def _rename_column(
    rng: Random, connection: sqlite3.Connection, table: str, columns: list[str]
) -> None:
    name = rng.choice((_quoted(text(rng)), rng.choice(columns).upper(), rng.choice(columns)))
    connection.execute(f"ALTER TABLE {table} RENAME COLUMN {rng.choice(columns)} TO {name}")


def _rename_table(rng: Random, connection: sqlite3.Connection, table: str, _: list[str]) -> None:
    name = rng.choice(
        (
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "NVTX_EVENTS",
            "StringIds",
            "OSRT_API",
            "GPU_METRICS",
            text(rng),
        )
    )
    connection.execute(f"ALTER TABLE {table} RENAME TO {_quoted(name)}")


def _add_column(rng: Random, connection: sqlite3.Connection, table: str, _: list[str]) -> None:
    name = rng.choice(("end", "textId", "graphNodeId", "globalTid", "value", text(rng)))
    kind = rng.choice((*_TYPES, "INTEGER DEFAULT 7", "INTEGER GENERATED ALWAYS AS (start) VIRTUAL"))
    connection.execute(f"ALTER TABLE {table} ADD COLUMN {_quoted(name)} {kind}")


def _retype(rng: Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> None:
    """Make the table anew with other declared types, or without row ids."""
    kinds = ", ".join(f"{name} {rng.choice(_TYPES)}" for name in columns)
    keyless = rng.random() < 0.3
    primary = f", PRIMARY KEY ({', '.join(columns)})) WITHOUT ROWID" if keyless else ")"
    connection.execute(f"CREATE TABLE remade_ ({kinds}{primary}")
    connection.execute(f"INSERT OR IGNORE INTO remade_ SELECT {', '.join(columns)} FROM {table}")
    connection.execute(f"DROP TABLE {table}")
    connection.execute(f"ALTER TABLE remade_ RENAME TO {table}")


def _as_view(rng: Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> None:
    """Put a view in the table's place; one kind grows without end."""
    connection.execute(f"ALTER TABLE {table} RENAME TO hidden_")
    names = ", ".join(columns)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT "
    grown = endless + ", ".join(f"i AS {name}" for name in columns) + " FROM n"
    connection.execute(
        f"CREATE VIEW {table} AS {rng.choice((f'SELECT {names} FROM hidden_', grown))}"
    )


def _schema_row(rng: Random, connection: sqlite3.Connection, table: str, _: list[str]) -> None:
    connection.execute("PRAGMA writable_schema = ON")
    change, value = rng.choice(
        (
            ("rootpage", integer(rng) % 2**31),
            ("rootpage", rng.randrange(1, 12)),
            ("type", rng.choice(("view", "index", "trigger", "", "table"))),
            ("name", text(rng)),
            ("sql", rng.choice(("", "CREATE TABLE x(a)", "CREATE TABLE y(a, a)", text(rng), None))),
        )
    )
    connection.execute(
        f"UPDATE sqlite_master SET {change} = ? WHERE name = ?", (value, table.strip('"'))
    )


_SqlEdit: TypeAlias = "Callable[[Random, sqlite3.Connection, str, list[str]], None]"
_SQL_EDITS: tuple[tuple[float, _SqlEdit], ...] = (
    (10, _update), (2, _invalid_text), (2, _shift), (2, _copy_column), (2, _delete),
    (2, _duplicate), (1, _drop_table), (2, _drop_column), (1, _rename_column), (1, _rename_table),
    (1, _add_column), (2, _retype), (1, _as_view), (1, _schema_row),
)  # fmt: skip


# Pages --------------------------------------------------------------------------------------------


def _edit_header(rng: Random, data: bytes) -> bytes:
    at, width = rng.choice(_HEADER_FIELDS)
    value = rng.choice((integer(rng), rng.randrange(8), 1 << rng.randrange(17)))
    return data[:at] + (value % (1 << 8 * width)).to_bytes(width, "big") + data[at + width :]


def _edit_page(rng: Random, data: bytes) -> bytes:
    """Edit the header, a cell pointer or a cell of one B-tree page."""
    size: int = struct.unpack(">H", data[16:18])[0]
    size = 65_536 if size == 1 else size
    if size < 512 or len(data) < size:
        return edit_bytes(rng, data)
    page = rng.randrange(len(data) // size)
    base = page * size
    start = base + (_HEADER_BYTES if page == 0 else 0)
    head = 12 if data[start] in (2, 5) else 8
    cells: int = struct.unpack(">H", data[start + 3 : start + 5])[0]
    slot = start + head + 2 * rng.randrange(max(1, min(cells, (size - head) // 2 - 60)))
    cell = base + int.from_bytes(data[slot : slot + 2], "big")
    pages = len(data) // size
    at, value = rng.choice(
        (
            (start, bytes([rng.choice(_PAGE_TYPES)])),
            (start + 1, rng.randbytes(2)),
            (start + 3, struct.pack(">H", rng.choice((0, cells + 1, cells * 2 % 65_536, 65_535)))),
            (start + 5, rng.randbytes(2)),
            (
                start + 8,
                struct.pack(">I", rng.choice((page + 1, rng.randrange(pages + 2), 2**32 - 1))),
            ),
            (slot, struct.pack(">H", rng.randrange(size + 1) % 65_536)),
            (
                cell,
                rng.choice(
                    (
                        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
                        b"\x81\x00",
                        b"\x00",
                        rng.randbytes(2),
                    )
                ),
            ),
            (cell + rng.randrange(12), rng.randbytes(1)),
            (
                cell + rng.randrange(60),
                rng.choice((b"\x00", b"\x06", b"\x07", b"\x0b", b"\xff\x7f")),
            ),
        )
    )
    return data[:at] + value + data[at + len(value) :]


_PAGE_EDITS: tuple[tuple[float, Callable[[Random, bytes], bytes]], ...] = (
    (2, _edit_header), (6, _edit_page), (2, edit_bytes),
)  # fmt: skip
