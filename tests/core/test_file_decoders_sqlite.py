"""Tables decoded from the pages of a database are those that SQLite gives."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusight.core.library import core_status
from gpusight.errors import GpusightError
from gpusight.readers.nsys import sqlite_pages
from gpusight.readers.nsys.raw_tables import RowFilter
from gpusight.readers.nsys.sqlite_export import SqliteTables

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.skipif(
    core_status().library is None, reason=f"no compiled core: {core_status().reason}"
)
COLUMNS = ["start", "value", "text", "kind"]
SCHEMA = "start INTEGER, value REAL, text TEXT, kind INTEGER"
WHOLE = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-2, 2),
    st.sampled_from([127, 128, -129, 1 << 23, 1 << 31, 1 << 40, 1 << 47]),
)
ROWS = st.lists(
    st.tuples(
        WHOLE,
        st.one_of(st.none(), st.floats(), st.integers(-(1 << 60), 1 << 60)),
        st.one_of(
            st.none(),
            st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20),
            st.integers(0, 20_000).map(lambda n: "long" * n),
        ),
        WHOLE,
    ),
    max_size=60,
)


def write(path: Path, rows: Sequence[Any], *statements: str, schema: str = SCHEMA) -> Path:
    """Write an export with a table `t` of these rows."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        db.execute(f"CREATE TABLE t ({schema})")
        db.execute("BEGIN")
        if rows:
            db.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
        db.execute("COMMIT")
    return path


def decoded(
    path: Path, columns: Sequence[str] = COLUMNS, only: RowFilter | None = None
) -> pl.DataFrame | None:
    """Read `t` with the core."""
    tables = SqliteTables(path)
    types = {column: tables._affinity("t", column) for column in columns}
    return tables._pages.read("t", types, only)


def reference(
    path: Path, columns: Sequence[str] = COLUMNS, only: RowFilter | None = None
) -> pl.DataFrame:
    """Read `t` with SQLite."""
    tables = SqliteTables(path)
    tables._pages.read = lambda *_: None  # type: ignore[method-assign]
    return tables.read("t", columns, only)


def check(path: Path, columns: Sequence[str] = COLUMNS, only: RowFilter | None = None) -> None:
    """Compare the two."""
    found, expected = decoded(path, columns, only), reference(path, columns, only)
    assert found is not None
    if expected.height:  # without rows, ADBC has no type for reals
        assert found.schema == expected.schema
        assert found.equals(expected, null_equal=True)
    assert found.height == expected.height


@given(rows=ROWS, page_size=st.sampled_from([512, 1024, 4096, 65536]), vacuum=st.integers(0, 2))
def test_rows_of_every_kind(tmp_path: Path, rows: Any, page_size: int, vacuum: int) -> None:
    pragmas = (f"PRAGMA page_size = {page_size}", f"PRAGMA auto_vacuum = {vacuum}")
    path = write(tmp_path / "x.sqlite", rows, *pragmas)
    check(path)
    check(path, ["text"])
    check(path, ["start"], RowFilter("kind", (0, 1)))
    check(path, ["kind", "value"], RowFilter("kind", (-1, 127), or_unknown=True))


def test_many_pages_with_gaps_and_rows_deleted(tmp_path: Path) -> None:
    rows = [(i, i / 3, f"name {i % 7}" * (i % 50), i % 5) for i in range(20_000)]
    path = write(tmp_path / "x.sqlite", rows, "PRAGMA page_size = 512")
    check(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DELETE FROM t WHERE start % 3 = 0 OR start BETWEEN 5000 AND 20000")
        db.execute("INSERT INTO t SELECT -start, value, text, kind FROM t WHERE kind = 1")
    check(path)


@pytest.mark.parametrize(
    ("change", "in_place"),
    [
        ("SELECT 1", True),
        ("UPDATE t SET kind = NULL WHERE start % 3 = 0", True),
        ("DELETE FROM t WHERE start = 19999", True),
        ("DELETE FROM t WHERE start = 10000", False),
        ("DELETE FROM t WHERE start = 0", False),
        ("INSERT INTO t (rowid, start) VALUES (0, 7)", False),
    ],
)
def test_numbers_are_decoded_in_place_where_row_ids_count_from_1(
    tmp_path: Path, change: str, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(i, i / 3, f"name {i % 7}", i % 5) for i in range(20_000)]
    path = write(tmp_path / "x.sqlite", rows, "PRAGMA page_size = 512")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(change)
    monkeypatch.setattr(sqlite_pages, "_SLICE_BYTES", 100_000)
    tried, read = [], sqlite_pages._read_table

    def recorded(*args: Any, **kwargs: Any) -> pl.DataFrame | None:
        frame = read(*args, **kwargs)
        tried.append((kwargs["in_place"], frame is not None))
        return frame

    monkeypatch.setattr(sqlite_pages, "_read_table", recorded)
    check(path)
    assert tried == ([(True, True)] if in_place else [(True, False), (False, True)])


@pytest.mark.parametrize("or_unknown", [True, False])
@pytest.mark.parametrize("values", [(3,), (3, 1 << 40), (0, 1, 2, 4)])
def test_rows_that_do_not_count_are_not_decoded_where_they_are_most(
    tmp_path: Path, values: tuple[int, ...], or_unknown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [None if i % 11 == 0 else 1 << 40 if i % 1000 == 7 else i % 5 for i in range(20_000)]
    rows = [(i, i / 3, f"name {i % 7}" * (i % 40), kind) for i, kind in enumerate(kinds)]
    path = write(tmp_path / "x.sqlite", rows, "PRAGMA page_size = 512")
    monkeypatch.setattr(sqlite_pages, "_SLICE_BYTES", 100_000)
    filtered, read = [], sqlite_pages._read_table

    def recorded(*args: Any, **kwargs: Any) -> pl.DataFrame | None:
        filtered.append(kwargs.get("only"))
        return read(*args, **kwargs)

    monkeypatch.setattr(sqlite_pages, "_read_table", recorded)
    only = RowFilter("kind", values, or_unknown)
    check(path, ["start", "text"], only)
    check(path, ["kind", "value"], only)
    few = len(values) < 4
    assert filtered[0] == (only if few else None)


def test_rows_that_count_and_follow_each_other_are_not_copied(tmp_path: Path) -> None:
    rows = [(i, 0.5, "a", 75 if i < 10 else 59) for i in range(1000)]
    path = write(tmp_path / "x.sqlite", rows)
    check(path, COLUMNS, RowFilter("kind", (59,)))
    check(path, COLUMNS, RowFilter("kind", (75, 59)))
    check(path, COLUMNS, RowFilter("kind", (1,)))


@pytest.mark.parametrize("kind", [1.5, "text", b"x"], ids=repr)
def test_a_kind_that_is_no_whole_number_is_left_to_sqlite(tmp_path: Path, kind: Any) -> None:
    rows: list[Any] = [(i, 0.5, "a", i % 5) for i in range(3000)]
    rows[2900] = (2900, 0.5, "a", kind)
    path = write(tmp_path / "x.sqlite", rows, "PRAGMA page_size = 512")
    assert decoded(path, ["start"], RowFilter("kind", (3,))) is None


def test_text_without_a_value_takes_no_part_in_decoding(tmp_path: Path) -> None:
    rows = [(i, 0.5, None if i < 30_000 else "late", 1) for i in range(30_100)]
    path = write(tmp_path / "x.sqlite", rows, "PRAGMA page_size = 512")
    check(path, ["text"])
    check(path, ["start", "text"], RowFilter("start", tuple(range(9))))


def test_row_ids_under_another_name(tmp_path: Path) -> None:
    rows = [(i * 7, 0.0, "a", i) for i in range(-20, 3000)]
    schema = "start INTEGER PRIMARY KEY, value REAL, text TEXT, kind INTEGER"
    check(write(tmp_path / "x.sqlite", rows, schema=schema))
    descending = schema.replace("KEY", "KEY DESC")
    assert decoded(write(tmp_path / "y.sqlite", rows, schema=descending)) is None
    assert decoded(write(tmp_path / "z.sqlite", rows, schema=schema + ") WITHOUT ROWID --")) is None


def test_columns_added_later(tmp_path: Path) -> None:
    path = write(tmp_path / "x.sqlite", [(1, 2.0, "a", 3)])
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE t ADD COLUMN later INTEGER")
        db.execute("ALTER TABLE t ADD COLUMN other INTEGER DEFAULT 7")
    check(path, ["later", "kind"])
    assert decoded(path, ["other"]) is None
    assert reference(path, ["other"]).to_series().to_list() == [7]


@pytest.mark.parametrize(
    "row", [("text", 1.0, "a", 1), (1.5, 1.0, "a", 1), (b"", 1.0, "a", 1)], ids=repr
)
def test_values_of_another_type_are_left_to_sqlite(tmp_path: Path, row: Any) -> None:
    path = write(tmp_path / "x.sqlite", [(1, 1.0, "a", 1), row])
    assert decoded(path) is None
    check(path, ["value", "text", "kind"])


def test_other_encodings_are_left_to_sqlite(tmp_path: Path) -> None:
    path = write(tmp_path / "x.sqlite", [(1, 1.0, "a", 1)], "PRAGMA encoding = 'UTF-16le'")
    assert decoded(path) is None


def test_a_file_without_content(tmp_path: Path) -> None:
    check(write(tmp_path / "x.sqlite", []))


def sound(path: Path) -> bytes:
    """Write a table with overflow pages and several levels."""
    rows = [(i, i / 7, "text" * (i % 400), i % 3) for i in range(400)]
    return write(path, rows, "PRAGMA page_size = 512").read_bytes()


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_left_to_sqlite(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "x.sqlite"
    content, chance = bytearray(sound(path)), random.Random(seed)
    for _ in range(chance.choice([1, 1, 1, 4, 30])):
        page = chance.randrange(1, len(content) // 512) * 512
        where = page + (chance.randrange(512) if seed % 2 else chance.randrange(24))
        content[where] = chance.choice([0, 1, 5, 13, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    path.write_bytes(content)
    try:
        found = decoded(path)
    except GpusightError:  # of the schema
        return
    if found is not None:
        assert found.equals(reference(path), null_equal=True)


def test_pages_that_refer_to_each_other_are_left_to_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    content = bytearray(sound(path))
    with closing(sqlite3.connect(path)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()
    content[(root - 1) * 512 + 8 : (root - 1) * 512 + 12] = root.to_bytes(4, "big")
    path.write_bytes(content)
    assert decoded(path) is None


def test_a_file_that_is_cut_off_meanwhile_is_left_to_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    content = sound(path)
    tables = SqliteTables(path)
    assert tables._pages._layouts
    path.write_bytes(content[: len(content) // 2])
    assert tables._pages.read("t", {"start": "INTEGER"}, None) is None
