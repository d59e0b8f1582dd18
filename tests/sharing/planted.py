"""Secrets, put everywhere into a copy of a real nsys export."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl

from tests.sharing.spelled import secret, secrets_in, spellings


class Planted:
    """A capture full of secrets; `places` says where each of them is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places: dict[str, str] = {}

    def new(self, place: str) -> str:
        """Make the secret of a place."""
        text = secret(len(self.places))
        self.places[text] = place
        return text

    def found_in(self, copy: Path) -> set[str]:
        """Name the places whose secrets are in a copy, however they are spelled."""
        return {self.places[text] for text in secrets_in(contents(copy), self.places)}


def plant(original: Path, path: Path) -> Planted:
    """Copy an export and put a secret into every text column, and wherever else SQLite lets us."""
    shutil.copyfile(original, path)
    planted = Planted(path)
    with closing(sqlite3.connect(path)) as db:
        db.text_factory = bytes
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (raw,) in names:
            _fill(db, raw.decode(), planted)
        _add_foreign(db, planted)
        _add_unreferenced(db, planted)
        db.commit()
        _leave_in_free_pages(db, planted)
    return planted


def _fill(db: sqlite3.Connection, table: str, planted: Planted) -> None:
    """Append a secret to every text, put one in place of some numbers, and add a column."""
    columns = [
        (row[1].decode(), row[2].decode()) for row in db.execute(f'PRAGMA table_info("{table}")')
    ]
    for column, kind in columns:
        text = planted.new(f"{table}.{column}")
        if kind == "TEXT":
            update = f'UPDATE "{table}" SET "{column}" = coalesce("{column}", \'\') || ?'
            db.execute(update, (f" {text}",))
        elif not _is_needed(table, column):
            # One row's number becomes a text, another one's a blob: SQLite takes both.
            for number, value in ((1, text), (2, text.encode())):
                update = f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = {number}'
                db.execute(update, (value,))
    text = planted.new(f"{table}, foreign column")
    db.execute(f'ALTER TABLE "{table}" ADD COLUMN "{text}" TEXT DEFAULT \'{text}\'')


def _is_needed(table: str, column: str) -> bool:
    """Tell whether nothing could be read without the number: keys and times of events."""
    keys = column in ("id", "start", "end", "eventType", "number")
    return keys or column.endswith(("Id", "Name")) or table == "StringIds"


def _add_foreign(db: sqlite3.Connection, planted: Planted) -> None:
    for start in ("", "ENUM_", "TARGET_INFO_", "CUPTI_ACTIVITY_KIND_"):
        name, column = planted.new(f"foreign table {start}"), planted.new("foreign table, column")
        db.execute(f'CREATE TABLE "{start}{name}" (id INTEGER, "{column}" TEXT, data BLOB)')
        row = (planted.new("foreign text"), planted.new("foreign blob").encode("utf-16"))
        db.execute(f'INSERT INTO "{start}{name}" VALUES (1, ?, ?)', row)
    view, text = planted.new("view"), planted.new("text of a view")
    db.execute(f"CREATE VIEW \"{view}\" AS SELECT '{text}'")
    db.execute(f'CREATE INDEX "{planted.new("index")}" ON StringIds (value)')
    trigger, text = planted.new("trigger"), planted.new("text of a trigger")
    db.execute(f"CREATE TRIGGER \"{trigger}\" AFTER DELETE ON StringIds BEGIN SELECT '{text}'; END")


def _add_unreferenced(db: sqlite3.Connection, planted: Planted) -> None:
    last = db.execute("SELECT max(id) FROM StringIds").fetchone()[0]
    texts = (
        f"HOME=/home/me\0TOKEN={planted.new('environment of a process')}",
        f"/home/{planted.new('path')}/train.py",
        planted.new("symbol"),
    )
    for number, text in enumerate(texts, last + 1):
        db.execute("INSERT INTO StringIds (id, value) VALUES (?, ?)", (number, text))


def _leave_in_free_pages(db: sqlite3.Connection, planted: Planted) -> None:
    """Write pages and free them: SQLite leaves their bytes where they are."""
    db.execute("PRAGMA secure_delete = OFF")
    text = planted.new("free pages")
    db.execute("CREATE TABLE gone (text)")
    db.executemany("INSERT INTO gone VALUES (?)", [(text * 100,)] * 100)
    db.commit()
    db.execute("DROP TABLE gone")
    db.commit()
    assert text.encode() in planted.path.read_bytes()


def as_parquet(planted: Planted, folder: Path) -> None:
    """Write the tables of a planted export as a folder of Parquet files."""
    folder.mkdir()
    with closing(sqlite3.connect(planted.path)) as db:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            kinds = {row[1]: row[2] for row in db.execute(f'PRAGMA table_info("{name}")')}
            rows = db.execute(f'SELECT * FROM "{name}"').fetchall()
            columns = {
                column: _typed([row[at] for row in rows], kind)
                for at, (column, kind) in enumerate(kinds.items())
            }
            pl.DataFrame(columns).write_parquet(folder / f"{name}.parquet")


def _typed(values: list[object], kind: str) -> pl.Series:
    if kind == "BLOB":
        return pl.Series([v if isinstance(v, bytes) else None for v in values], dtype=pl.Binary)
    if kind == "TEXT":
        return pl.Series([None if v is None else str(v) for v in values], dtype=pl.String)
    return pl.Series([v if isinstance(v, int) else None for v in values], dtype=pl.Int64)


def contents(copy: Path) -> bytes:
    """Give all bytes of a copy; those of Parquet also as they are unpacked, and its file names."""
    if copy.is_file():
        return copy.read_bytes()
    parts = []
    for file in sorted(copy.iterdir()):
        frame = pl.read_parquet(file)
        parts += [file.name.encode(), file.read_bytes(), "\n".join(frame.columns).encode()]
        texts = frame.select(pl.col(pl.String)).get_columns()
        parts += ["\n".join(column.drop_nulls().to_list()).encode() for column in texts]
    return b"\0".join(parts)


def is_in(text: str, content: bytes) -> bool:
    """Look for a text in every spelling in which it could be read again."""
    return any(spelling in content for spelling in spellings(text))
