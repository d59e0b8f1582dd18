"""Copies of nsys captures without what tells about the machine, its users and their data.

Whatever the form of the capture, its tables are read as nsys's SQLite export names them, and those
columns of them are written to a new file that `nsys_schema` lists. What is not listed there stays
behind: other tables and columns, blobs, texts that nothing refers to, pages that SQLite had freed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.sharing.nsys_about import About
from gpusight.sharing.nsys_rows import pieces_of
from gpusight.sharing.nsys_schema import ENUMS, KNOWN, Kind, Role
from gpusight.sharing.nsys_session import session_values
from gpusight.sharing.nsys_survey import Survey, with_names_only
from gpusight.sharing.nsys_texts import Texts
from gpusight.sharing.nsys_write import ParquetSink, SqliteSink
from gpusight.sharing.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpusight.readers.nsys.raw import RawTables
    from gpusight.sharing.nsys_schema import Column
    from gpusight.sharing.nsys_write import Sink
    from gpusight.sharing.report import Found, Options


class NsysCleaner:
    """Knows nsys captures: SQLite, Parquet, Arrow and native reports."""

    def __init__(self, raw: RawTables, to: str = "sqlite") -> None:
        self._raw = raw
        self._to = to

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What copies may be called."""
        return (f".{self._to}",)

    def look(self, options: Options) -> Found:
        """Say what the capture holds, and what would become of it."""
        return _Copy(self._raw, options).counted()

    def write(self, output: Path, options: Options, *, name: str = "") -> Found:
        """Write the copy; its form was chosen before, whatever its `name`."""
        del name
        sink: Sink = SqliteSink(output) if self._to == "sqlite" else ParquetSink(output)
        return _Copy(self._raw, options).counted(sink)


class _Copy:
    """One walk through a capture."""

    def __init__(self, raw: RawTables, options: Options) -> None:
        self._raw = raw
        self._tally = Tally()
        self._texts = Texts(options, self._tally)
        self._survey = Survey(raw, self._texts, self._tally)
        self._about = About(raw, self._survey, self._tally)

    def counted(self, sink: Sink | None = None) -> Found:
        """Go through the capture, write what may be seen of it, and say what was found."""
        for table, rows in (*self._about.tables(), *self._named()):
            if sink is not None and rows.height:
                sink.add(table, rows)
        for category, where, value in session_values(self._raw):
            self._about.hide(category, where, value)
        if sink is not None:
            self._write_known(sink)
            sink.close()
        return self._tally.found(self._raw.notes())

    def _named(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """Give the texts that are referred to, and the threads, whose names are texts too."""
        roles = self._survey.strings
        threads, names = self._about.threads(max(roles, default=0) + 1)
        yield "ThreadNames", threads
        if not {"id", "value"} <= self._raw.columns("StringIds"):
            yield "StringIds", names
            return
        known = (
            self._raw.read("StringIds", ["id", "value"])
            .drop_nulls("id")
            .unique("id", keep="first", maintain_order=True)
        )
        used = known.get_column("id").is_in(list(roles))
        named = known.get_column("id").is_in(self._about.thread_names())
        self._about.unused(known.filter(~used & ~named).get_column("value"))
        rows = known.filter(used).drop_nulls("value")
        cleaned = [self._texts.clean(text, roles[number]) for number, text in rows.iter_rows()]
        rows = rows.with_columns(value=pl.Series(cleaned, dtype=pl.String))
        yield "StringIds", pl.concat([rows, names]).sort("id")

    def _write_known(self, sink: Sink) -> None:
        for table in sorted(self._raw.tables() & KNOWN.keys()):
            columns = {n: c for n, c in KNOWN[table].items() if n in self._raw.columns(table)}
            if self._raw.is_empty(table):
                continue
            # Columns that are left empty need not be read; any one tells how many rows there are.
            wanted = [n for n, c in columns.items() if c.kind is not Kind.GONE] or list(columns)[:1]
            for rows in pieces_of(self._raw, table, wanted):
                sink.add(table, self._cleaned(table, columns, rows))
        for table, words in ENUMS.items():
            schema = {"id": pl.Int64, "name": pl.String, "label": pl.String}
            sink.add(table, pl.DataFrame(words, schema=schema, orient="row"))

    def _cleaned(self, table: str, columns: dict[str, Column], rows: pl.DataFrame) -> pl.DataFrame:
        named = with_names_only(table, rows)
        return pl.DataFrame([self._column(n, column, named) for n, column in columns.items()])

    def _column(self, name: str, column: Column, rows: pl.DataFrame) -> pl.Series:
        if column.kind is Kind.GONE:
            return pl.Series(name, [None], dtype=column.empty).new_from_index(0, rows.height)
        values = rows.get_column(name)
        if column.kind is Kind.TEXT:
            return self._text(values, column.role or Role.RANGE)
        if column.kind is Kind.REAL:
            return values.cast(pl.Float64, strict=False)
        whole = values.cast(pl.Int64, strict=False)
        if column.kind is Kind.TIME:
            return self._survey.shifted(whole).alias(name)
        if column.kind is Kind.THREAD:
            return self._survey.renumbered(whole).alias(name)
        return self._survey.pid(whole).alias(name) if column.kind is Kind.PID else whole

    def _text(self, values: pl.Series, role: Role) -> pl.Series:
        return self._texts.clean_all(values.cast(pl.String), role).alias(values.name)
