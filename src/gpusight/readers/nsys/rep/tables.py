"""`RepTables`: a native report as the tables of nsys's own SQLite export."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import polars as pl

from gpusight.errors import UsageError
from gpusight.readers.nsys.rep import fields
from gpusight.readers.nsys.rep.container import Container
from gpusight.readers.nsys.rep.info import InfoTables
from gpusight.readers.nsys.rep.metrics import metric_types
from gpusight.readers.nsys.rep.passes import run_pass, table_columns
from gpusight.readers.protobuf.wire import WireError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from typing_extensions import Self

    from gpusight.readers.nsys.raw import Only
    from gpusight.readers.nsys.rep.events import Census

_EVENT_TABLES = frozenset(
    {*fields.BY_NAME, *fields.CHAINS_BY_NAME, "GPU_METRICS"},
)
_ALWAYS_SMALL = frozenset({"DIAGNOSTIC_EVENT", "PROCESSES"})
"""Tables of a few rows that nearly everyone asks for: decoded while counting, to save a pass."""
_OVERHEAD_TYPE_SINCE = (2025, 5, 2)


class RepTables:
    """The tables of one `.nsys-rep` or `.qdrep` file, decoded when asked for and then kept.

    Decoding goes through the whole file: `preload` the tables that will be needed together.
    Raises `DamagedCaptureError` when the file contradicts itself, now or in any later call.
    """

    source = "nsys-rep"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._container = Container(path)
        self.path = self._container.path
        self._tables: dict[str, pl.DataFrame] = {}
        self._census: Census | None = None
        with self._checked():
            self._types = metric_types(self._container.raw.header)
            self._info = InfoTables(self._container, self._types)

    def __enter__(self) -> Self:
        """Use as a context manager to give the file back at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the file back."""
        self.close()

    def close(self) -> None:
        """Give the file back; tables already decoded stay readable."""
        self._container.close()

    @property
    def version(self) -> str:
        """Version of the nsys that recorded the file."""
        return self._container.version

    def preload(self, tables: Iterable[str]) -> None:
        """Decode these tables in one pass over the file; those it does not have are ignored."""
        wanted = frozenset(tables) & _EVENT_TABLES - self._tables.keys()
        if not wanted:
            return
        self._run(wanted)

    def tables(self) -> frozenset[str]:
        """Name every table that has rows."""
        with self._checked():
            small = {name for name in self._info.names if self._info.read(name).height}
        return frozenset(small | {name for name in _EVENT_TABLES if self._has_events(name)})

    def columns(self, table: str) -> frozenset[str]:
        """Name the columns of a table; none when there is no such table."""
        if table in _EVENT_TABLES:
            return frozenset(table_columns(table)) if self._has_events(table) else frozenset()
        return frozenset(self._small(table).columns)

    def row_count(self, table: str, only: Only | None = None) -> int:
        """Count the rows of a table, or those of some; 0 when there is no such table."""
        if only is not None:
            return 0 if self.is_empty(table) else self.read(table, [only.column], only).height
        if table in self._tables:
            return self._tables[table].height
        if table not in _EVENT_TABLES:
            return self._small(table).height
        if not self._has_events(table):
            return 0
        if table in fields.CHAINS_BY_NAME:
            return self._read(table).height
        if table == "GPU_METRICS":
            counts = self._counts().generic
            kinds = [self._types[number] for number in counts if number in self._types]
            return sum(counts[kind.type_id] * len(kind.fields) for kind in kinds if kind.is_metrics)
        return self._counts().rows[table]

    def is_empty(self, table: str, only: Only | None = None) -> bool:
        """Tell whether a table has no rows, or none of those; costs a pass over the file, once."""
        if only is not None:
            return self.row_count(table, only) == 0
        if table in _EVENT_TABLES:
            return not self._has_events(table)
        return not self._small(table).height

    def read(
        self,
        table: str,
        columns: Sequence[str],
        only: Only | None = None,
        *,
        marked: bool = False,
    ) -> pl.DataFrame:
        """Read these columns in file order; `only` leaves out rows."""
        del marked  # every value has the type of its field
        frame = self._read(table) if table in _EVENT_TABLES else self._small(table)
        needed = [*columns, only.column] if only is not None else columns
        unknown = [column for column in needed if column not in frame.columns]
        if unknown:
            raise UsageError(f"{self.path}: table {table} has no column {', '.join(unknown)}")
        if only is not None:
            nothing = pl.col(only.column).is_null() & only.or_unknown
            frame = frame.filter(pl.col(only.column).is_in(only.values) | nothing)
        return frame.select(columns)

    def warnings(self) -> list[str]:
        """Name tables that were not read: none."""
        return []

    def notes(self) -> list[str]:
        """Say what of the file this reader does not decode."""
        census = self._counts()
        notes = []
        for payload, count in sorted(census.unknown_payloads.items()):
            what = fields.NOT_EXPORTED.get(payload, f"events of unknown kind {payload}")
            notes.append(f"{count} {what} are not decoded")
        for number, count in sorted(census.unknown_classes.items()):
            if number not in fields.CLASSES_WITHOUT_TABLE:
                notes.append(f"{count} trace events of unknown class {number} are not decoded")
        other = sum(
            count
            for number, count in census.generic.items()
            if number not in self._types or not self._types[number].is_metrics
        )
        if other:
            notes.append(f"{other} generic events that are not GPU metrics are not decoded")
        return notes

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """Turn any contradiction in the bytes into the error that names the way out."""
        try:
            yield
        except WireError as error:
            raise self._container.damaged(str(error)) from error

    def _run(self, wanted: frozenset[str]) -> None:
        count = self._census is None
        if count:
            wanted |= _ALWAYS_SMALL - self._tables.keys()
        with self._checked():
            result = run_pass(self._container, wanted, self._types, count=count)
        if result.census is not None:
            self._census = result.census
        for name, frame in result.tables.items():
            self._tables[name] = self._fit_version(name, frame)

    def _fit_version(self, name: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Put one field under the name that the version of the file gives it."""
        if name != "PROFILER_OVERHEAD":
            return frame
        newer = _version_numbers(self.version) >= _OVERHEAD_TYPE_SINCE
        unused = "returnValue" if newer else "overheadType"
        return frame.with_columns(pl.lit(None, pl.Int64).alias(unused))

    def _counts(self) -> Census:
        if self._census is None:
            self._run(frozenset())
        assert self._census is not None
        return self._census

    def _has_events(self, table: str) -> bool:
        if table == "GPU_METRICS":
            counts = self._counts().generic
            return any(n in self._types and self._types[n].is_metrics for n in counts)
        return self._counts().rows[table] > 0

    def _read(self, table: str) -> pl.DataFrame:
        self.preload([table])
        return self._tables[table]

    def _small(self, table: str) -> pl.DataFrame:
        if table not in self._info.names:
            return pl.DataFrame()
        with self._checked():
            return self._info.read(table)


def _version_numbers(version: str) -> tuple[int, ...]:
    numbers = version.partition("-")[0].split(".")
    return tuple(int(number) for number in numbers if number.isdecimal())
