"""Tables of a SQLite export decoded from the pages of the file by the compiled core.

It decodes what a sound database holds, several times faster than SQLite. For everything else it
gives None (a damaged tree, values of mixed types, UTF-16, tables without row ids, a value that only
the schema knows, no compiled core), and SQLite reads the table, with its own errors.
"""

from __future__ import annotations

import operator
import os
import re
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.core.file_decoders import (
    BYTES,
    REAL,
    WHOLE,
    ArrowColumn,
    SqliteFile,
    SqliteFilter,
    SqliteLeaves,
    SqliteRows,
    sqlite_columns,
    sqlite_leaves,
    sqlite_rows,
)
from gpusight.core.library import core_library
from gpusight.readers.file_blocks import reading_bytes
from gpusight.readers.nsys.raw_tables import decode_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from io import FileIO
    from pathlib import Path

    from gpusight.readers.nsys.raw_tables import RowFilter


_SLICE_BYTES = 1 << 23
"""Of pages that are decoded at a time."""
_WORKERS = 4
_FEW = 0.5
"""Where less than this part of the rows counts, the others are not decoded at all."""
_NO_TEXT = pl.Series([None], dtype=pl.String)
_HEADER_BYTES, _MIN_PAGE_BYTES = 100, 512
_UTF8 = 1
_DESCENDING = re.compile(r"\bDESC\b", re.IGNORECASE)
_TYPES = {"INTEGER": WHOLE, "REAL": REAL, "TEXT": BYTES}
_LAYOUT = (
    "SELECT m.name, m.rootpage, m.sql, p.cid, p.name, p.type, p.pk,"
    " p.hidden OR p.dflt_value IS NOT NULL"
    " FROM sqlite_master m, pragma_table_xinfo(m.name) p WHERE m.type = 'table'"
)


@dataclass
class _TableLayout:
    root: int
    """The page at which the tree of its rows begins."""
    ordinals: dict[str, int] = field(default_factory=dict)
    """Of each column, where its value is in a record; -1 for the row id."""
    special: set[str] = field(default_factory=set)
    """Columns that are computed, or have a default that records may leave out."""


class SqlitePages:
    """The pages of one database file."""

    def __init__(self, path: Path, rows: Callable[[str], list[tuple[Any, ...]]]) -> None:
        """Read `path`; `rows` runs a query with few results."""
        self._path = path
        self._rows = rows
        self._leaves: dict[str, SqliteLeaves | None] = {}

    def read(
        self, table: str, types: dict[str, str], only: RowFilter | None
    ) -> pl.DataFrame | None:
        """Read columns of these affinities in file order."""
        wanted = dict(types)
        if only is not None:
            if not all(isinstance(value, int) for value in only.values):
                return None
            if wanted.setdefault(only.column, "INTEGER") != "INTEGER":
                return None
        frame = self._decoded(table, wanted, only)
        if frame is None or only is None:
            return frame
        return _rows_kept(frame, frame.select(_keeps(only)).to_series()).select(*types)

    def _decoded(
        self, table: str, types: dict[str, str], only: RowFilter | None
    ) -> pl.DataFrame | None:
        """Decode columns of all rows; those that do not count may be missing."""
        with self._path.open("rb", buffering=0) as opened:
            file, layout = _header(opened), self._layout_of(table, types)
            if file is None or layout is None:
                return None
            if table not in self._leaves:
                self._leaves[table] = sqlite_leaves(file, layout.root)
            leaves = self._leaves[table]
            if leaves is None:
                return None

            if only is not None and _keeps_few(file, leaves, layout, only):
                frame = _read_table(file, leaves, layout, types, in_place=False, only=only)
                if frame is not None:
                    return frame
            frame = _read_table(file, leaves, layout, types, in_place=True)
            if frame is None:
                frame = _read_table(file, leaves, layout, types, in_place=False)
            return frame

    def _layout_of(self, table: str, types: dict[str, str]) -> _TableLayout | None:
        """Return how a table is stored, if the core can decode these columns of it."""
        if core_library() is None or not types:
            return None
        layout = self._layouts.get(table)
        return None if layout is None or layout.special & types.keys() else layout

    @cached_property
    def _layouts(self) -> dict[str, _TableLayout]:
        layouts: dict[str, _TableLayout] = {}
        keys: dict[str, list[tuple[str, str]]] = {}
        unclear = set()
        for name, root, sql, place, column, declared, key, special in self._rows(_LAYOUT):
            table = layouts.setdefault(name, _TableLayout(root or 0))
            if table.root != root or len(table.ordinals) != place:
                unclear.add(name)  # a schema that describes it twice
            table.ordinals[column] = place
            if special:
                table.special.add(column)
            if key:
                keys.setdefault(name, []).append((column, declared))
            if key and _DESCENDING.search(sql):  # then it need not be the row id
                unclear.add(name)
        for name, found in keys.items():
            if len(found) == 1 and found[0][1].upper() == "INTEGER":
                layouts[name].ordinals[found[0][0]] = -1
        spelled = Counter(name.lower() for name in layouts)
        unclear |= {name for name in layouts if spelled[name.lower()] > 1}
        return {n: t for n, t in layouts.items() if n not in unclear and t.root > 1}


def _keeps(only: RowFilter) -> pl.Expr:
    """Compare with each of the few values: looking them up in a set takes ten times as long."""
    column = pl.col(only.column)
    is_kept = reduce(operator.or_, (column == value for value in only.values), pl.lit(value=False))
    return is_kept.fill_null(value=only.or_unknown)


def _rows_kept(frame: pl.DataFrame, kept: pl.Series) -> pl.DataFrame:
    """Leave out rows, without a copy where those that stay follow each other."""
    first, count = kept.arg_max() or 0, int(kept.sum())
    if count and kept.slice(first, count).all():
        return frame.slice(first, count)
    return frame.filter(kept)


def _keeps_few(
    file: SqliteFile, leaves: SqliteLeaves, layout: _TableLayout, only: RowFilter
) -> bool:
    """Guess, by the first slice, whether a filter leaves out most rows of a large table."""
    ranges = _ranges(file, leaves)
    place = layout.ordinals[only.column]
    if len(ranges) == 1 or place < 0:
        return False
    rows = sqlite_rows(file, leaves, ranges[0], [place], [WHOLE])
    if rows is None or rows.columns[0] is None:
        return False
    frame = pl.DataFrame({only.column: pl.Series(rows.columns[0])})
    return int(frame.select(_keeps(only).sum()).item()) < _FEW * rows.rows


def _read_table(
    file: SqliteFile,
    leaves: SqliteLeaves,
    layout: _TableLayout,
    types: dict[str, str],
    *,
    in_place: bool,
    only: RowFilter | None = None,
) -> pl.DataFrame | None:
    """Decode columns of all rows, or of those that count, slices of them at once.

    In place, numbers are written to where they stay, which only a table allows whose row ids count
    from 1: nobody has deleted rows.
    """
    places = [layout.ordinals[column] for column in types]
    kinds = [_TYPES[affinity] for affinity in types.values()]
    whole = sqlite_columns(file, leaves, kinds) if in_place else None
    if in_place and whole is None:
        return None

    kept = None
    if only is not None:
        values = tuple(value for value in only.values if isinstance(value, int))
        kept = SqliteFilter([*types].index(only.column), values, only.or_unknown)

    def decode(some: range) -> SqliteRows | None:
        return sqlite_rows(file, leaves, some, places, kinds, whole, kept)

    parts = _decode_slices(file, leaves, decode)
    if parts is None:
        return None
    rows = sum(part.rows for part in parts)
    columns: list[Sequence[tuple[ArrowColumn | None, int]]]
    columns = [*zip(*([(c, part.rows) for c in part.columns] for part in parts), strict=True)]
    if whole is not None:
        nulls = [sum(counts) for counts in zip(*(part.nulls for part in parts), strict=True)]
        texts = iter(columns)
        finished = whole.finished(nulls)
        columns = [next(texts) if c is None else ((c, rows),) for c in finished]
    named = zip(types.items(), columns, strict=True)
    return pl.DataFrame([_joined(name, affinity, column) for (name, affinity), column in named])


def _decode_slices(
    file: SqliteFile, leaves: SqliteLeaves, decode: Callable[[range], SqliteRows | None]
) -> list[SqliteRows] | None:
    """Decode all leaves, slices of them at once; None where one cannot be."""
    ranges = _ranges(file, leaves)
    with reading_bytes(leaves.leaves * file.page_size) as progress:

        def decode_slice(some: range) -> SqliteRows | None:
            rows = decode(some)
            progress.done_bytes += len(some) * file.page_size
            return rows

        if len(ranges) == 1:
            decoded = [decode_slice(ranges[0])]
        else:
            with ThreadPoolExecutor(min(_WORKERS, os.cpu_count() or 1)) as pool:
                decoded = list(pool.map(decode_slice, ranges))
    parts = [rows for rows in decoded if rows is not None]
    # Pages that many rows share would make the table many times the file.
    shared = sum(part.overflow_pages for part in parts) > file.pages
    return None if shared or len(parts) < len(decoded) else parts


def _joined(name: str, affinity: str, parts: Sequence[tuple[ArrowColumn | None, int]]) -> pl.Series:
    """Make one series of the parts of a column and their rows; no part is text without a value."""
    if all(part is None for part, _ in parts):
        return _NO_TEXT.alias(name).new_from_index(0, sum(rows for _, rows in parts))
    series = [
        (_NO_TEXT.new_from_index(0, rows) if part is None else pl.Series(part)).alias(name)
        for part, rows in parts
    ]
    if affinity == "TEXT":
        series = [part if part.dtype == pl.String else decode_text(part) for part in series]
    return series[0] if len(series) == 1 else pl.concat(series, rechunk=True)


def _ranges(file: SqliteFile, leaves: SqliteLeaves) -> list[range]:
    """Cut the leaves of a table into slices to decode at a time."""
    step = max(1, _SLICE_BYTES // file.page_size)
    return [range(i, min(i + step, leaves.leaves)) for i in range(0, leaves.leaves, step)]


def _header(opened: FileIO) -> SqliteFile | None:
    """Read the header of the file; None where SQLite has to read the file."""
    header = opened.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return None
    page_size, _, _, reserved = struct.unpack(">H3B", header[16:21])
    page_size = 65_536 if page_size == 1 else page_size
    changes, pages = struct.unpack(">2I", header[24:32])
    encoding, valid_for = (struct.unpack(">I", header[at : at + 4])[0] for at in (56, 92))
    if encoding != _UTF8 or page_size < _MIN_PAGE_BYTES:
        return None
    size = os.fstat(opened.fileno()).st_size
    if changes != valid_for or not pages:
        pages = size // page_size
    if not 1 <= pages <= size // page_size:
        return None
    return SqliteFile(opened.fileno(), pages, page_size, page_size - reserved)
