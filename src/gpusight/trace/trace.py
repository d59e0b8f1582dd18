"""An opened capture: lazy tables in the shape that `gpusight.trace.schema` declares."""

from __future__ import annotations

import time
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec
import polars as pl

from gpusight.errors import DamagedCaptureError, UsageError
from gpusight.pace import Pace  # noqa: TC001 - msgspec reads the annotation
from gpusight.trace.schema import TABLES

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Self

    from gpusight.trace.schema_columns import TraceTable


PathLike: TypeAlias = "str | os.PathLike[str]"
Capture: TypeAlias = "Trace | PathLike"
"""An opened capture, or its path."""
_MIN_KEEP_S = 0.02
"""What is computed faster than this need not outlive the process."""
_KEPT_BYTES_A_SECOND = 200_000_000
"""Nor need what is computed faster than it is written."""


RANKS = "ranks"
"""`Meta.source` of the captures of several ranks as one: GPUs and processes have the numbers of
ranks."""
NO_RANK = "not of one rank"
"""What the name of a GPU there ends in that no rank has alone."""


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a capture as a whole. Holds no command line or host name.

    Of its environment, it holds settings for debugging alone.
    """

    path: str
    source: str
    """Form of the file, such as `nsys-sqlite`."""
    tool: str
    """Program that captured it, such as `Nsight Systems`."""
    tool_version: str | None = None
    schema_version: str | None = None
    start_utc_ns: int | None = None
    duration_ns: int | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    os: str | None = None
    cpu: str | None = None
    rank: int | None = None
    """Number of the process in a distributed job."""
    world_size: int | None = None
    """Processes in that job."""
    backend: str | None = None
    """Library its processes communicate through, such as `nccl`."""
    pace: Pace | None = None
    """Step time without a profiler, where the recorder measured it."""
    debug_settings: tuple[str, ...] = ()
    """Settings that make programs slow, such as `CUDA_LAUNCH_BLOCKING=1`, each with its effect."""
    clocks_locked: bool | None = None
    """Whether Nsight Compute locked the clocks of the GPU; None where the file does not say."""
    session: str | None = None
    """Which run of `gpusight record` made it."""
    notes: tuple[str, ...] = ()
    """What of the file was not decoded, or was read by other means."""
    warnings: tuple[str, ...] = ()
    """Why the file is incomplete; every result repeats it."""


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """What a source knows before any column is loaded: what it is, its tables and columns."""

    meta: Meta
    rows: dict[str, int]
    """Rows of each table that has some."""
    columns: dict[str, list[str]]
    """Columns of each of them that the capture fills."""


class TraceSource(Protocol):
    """What a reader provides. A source never changes the file it reads.

    Sources derive from it: what they need not do has a default here.
    """

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        ...

    def outline(self) -> Outline | None:
        """Return what is in the file, if knowing that takes a pass over all of it; else None."""
        return None

    def has(self, table: str) -> bool:
        """Return whether the table has rows, without reading them."""
        ...

    def has_column(self, table: str, column: str) -> bool:
        """Return whether the capture can fill this column."""
        ...

    def row_count(self, table: str) -> int:
        """Count rows without reading them."""
        ...

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read these columns; rows sorted by the table's time column, ties in file order."""
        ...

    def prepare(self, tables: Iterable[str]) -> None:  # noqa: ARG002 - a default
        """Announce which tables will be read, so that one pass over the file serves them all."""
        return

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about rows and values left out so far; tables read later may add more."""
        return ()

    def close(self) -> None:
        """Close the file; what was read stays readable."""
        return


class FrameStore(Protocol):
    """Where frames derived from a large capture outlive the process."""

    def holds(self, table: str, columns: Sequence[str]) -> bool:
        """Return whether all these columns are kept."""
        ...

    def recall(self, key: str) -> pl.DataFrame | None:
        """Find a frame kept under this key."""
        ...

    def remember(self, key: str, frame: pl.DataFrame) -> None:
        """Keep a frame."""
        ...

    def flush(self) -> None:
        """Wait until everything is kept."""
        ...

    def notes(self) -> tuple[str, ...]:
        """Return why frames were not found or could not be kept."""
        ...


class Trace:
    """An opened capture: `trace.kernels`, `trace.ranges`, … are Polars frames, read when used."""

    def __init__(self, source: TraceSource, memory: FrameStore | None = None) -> None:
        self._source = source
        self._memory = memory
        self._has: dict[str, bool] = {}
        self._loaded: dict[str, pl.DataFrame] = {}
        self._derived: dict[str, pl.DataFrame] = {}
        self.pace: str | float | None = None
        """Step time without a profiler as the user gave it: `28.6ms`, nanoseconds, or `off`."""
        self.stored_pace: Pace | None = None
        """The step time without a profiler from a file that the recorder wrote next to it."""
        self.views: dict[str, Trace] = {}
        """Captures made from this one, such as the one without the profiler's overhead."""

    def __enter__(self) -> Self:
        """Use as a context manager to close it at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the file once the cache is written; tables read stay usable."""
        if self._memory is not None:
            self._memory.flush()
        self._source.close()

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        return self._source.meta

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why answers may be wrong or incomplete; complete only once an analysis has read."""
        notes = () if self._memory is None else self._memory.notes()
        return tuple(dict.fromkeys((*self.losses, *notes)))

    @property
    def losses(self) -> tuple[str, ...]:
        """What is missing from the capture: the warnings without those of the cache."""
        # Sorted: they come in the order in which tables are read, from the file or from the cache.
        return tuple(dict.fromkeys((*self.meta.warnings, *sorted(self._source.warnings()))))

    def has(self, table: str, column: str | None = None) -> bool:
        """Return whether the capture has a table (or fills a column), without reading it."""
        if column is not None:
            _known_columns(_known(table), (column,))
            derived = TABLES[table].column(column).derived
            return self.has(table) and (derived or self._source.has_column(table, column))
        _known(table)
        # Analyses call this for every GPU or step, and a source may have to look into the file.
        if table not in self._has:
            self._has[table] = self._source.has(table)
        return self._has[table]

    def row_count(self, table: str) -> int:
        """Count the rows of a table without reading them."""
        _known(table)
        loaded = self._loaded.get(table)
        return self._source.row_count(table) if loaded is None else loaded.height

    def prepare(self, *tables: str) -> None:
        """Announce which tables will be used; some readers then need fewer passes."""
        self._source.prepare([t for t in tables if self.has(t)])

    def read_together(self, *reads: Mapping[str, Sequence[str]]) -> None:
        """Read these columns of these tables, each table in one pass, for `table` to return.

        Reading a table is one pass over the file, whether for one column or for ten. What several
        analyses read may be given, each with its own columns of a table.
        """
        columns: dict[str, dict[str, None]] = {}
        for read in reads:
            for name, names in read.items():
                columns.setdefault(name, {}).update(dict.fromkeys(names))
        # Cached columns cost nothing to read one at a time, or not at all.
        kept = self._memory.holds if self._memory is not None else lambda *_: False
        wanted = {name: [*names] for name, names in columns.items() if not kept(name, [*names])}
        self._source.prepare(wanted)
        for name, names in wanted.items():
            if self.has(name):
                self.table(name, names)

    def table(self, name: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Read a table, or only some of its columns. What was read before is not read again."""
        table = _known(name)
        wanted = table.column_names if columns is None else _known_columns(table, columns)
        loaded = self._loaded.get(name)
        missing = [c for c in wanted if loaded is None or c not in loaded.columns]
        if missing:
            stored = [c for c in missing if not table.column(c).derived]
            if stored:
                # A column in one chunk is handed to NumPy without a copy.
                self._extend(name, self._source.load(name, stored).rechunk())
            if len(stored) < len(missing):
                self._extend(name, self.derive(f"{name}-nesting-1", lambda: self._nesting(name)))
        loaded = self._loaded[name]
        # Read thousands of times by analyses: `select` would plan a query each time.
        return pl.DataFrame([loaded.get_column(c) for c in wanted])

    def derive(self, key: str, compute: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """Compute something from the tables once, and find it again, in this process or the next.

        `key` names what is computed and the version of how; the capture is part of it already.
        """
        if key not in self._derived:
            frame = self._memory.recall(key) if self._memory is not None else None
            if frame is None:
                started = time.perf_counter()
                frame = compute()
                elapsed_s = time.perf_counter() - started
                min_s = max(_MIN_KEEP_S, frame.estimated_size() / _KEPT_BYTES_A_SECOND)
                if self._memory is not None and elapsed_s > min_s:
                    self._memory.remember(key, frame)
            self._derived[key] = frame
        return self._derived[key]

    def _nesting(self, name: str) -> pl.DataFrame:
        # NumPy costs a tenth of a second to import, which most commands need not pay.
        from gpusight.trace import intervals

        if name == "ranges":
            return pl.DataFrame(intervals.nest_ranges(self.table(name, intervals.RANGES_NEED)))
        return pl.DataFrame(intervals.nest_calls(self.table(name, intervals.CALLS_NEED)))

    def _extend(self, name: str, columns: pl.DataFrame) -> None:
        loaded = self._loaded.get(name)
        self._loaded[name] = columns if loaded is None else loaded.hstack(columns)

    def __getattr__(self, name: str) -> pl.DataFrame:
        """Return a whole table as an attribute."""
        if name in TABLES:
            return self.table(name)
        raise AttributeError(f"a Trace has no table or attribute {name!r}")

    def __dir__(self) -> list[str]:
        """List the tables and the methods, for completion."""
        return [*super().__dir__(), *TABLES]

    def __repr__(self) -> str:
        """Return the capture, and the tables that have rows."""
        rows = ", ".join(f"{table}: {self.row_count(table):,}" for table in self._tables)
        return f"<Trace {self.meta.path} ({self.meta.tool}) {rows}>"

    def _repr_html_(self) -> str:
        """Return the same as a table, for a notebook."""
        meta = self.meta
        facts = {
            "Capture": meta.path,
            "Tool": " ".join(filter(None, (meta.tool, meta.tool_version))),
            **{
                f"<code>{table}</code>": f"{self.row_count(table):,} rows" for table in self._tables
            },
        }
        rows = (f"<tr><th>{label}</th><td>{_html(text)}</td></tr>" for label, text in facts.items())
        return f"<table>{''.join(rows)}</table>"

    @property
    def _tables(self) -> list[str]:
        return [table for table in TABLES if self.has(table)]

    def validate(self) -> None:
        """Check every table against the schema; raises DamagedCaptureError at the first fault."""
        for name in TABLES:
            if self.has(name):
                check_table(name, self.table(name))


def _html(text: str) -> str:
    """Escape a text of the capture, control characters too."""
    return escape(text if text.isprintable() else ascii(text)[1:-1])


def check_table(name: str, frame: pl.DataFrame) -> None:
    """Check one table: columns, types, required values, order, no interval running backwards."""
    table = _known(name)
    if tuple(frame.columns) != table.column_names:
        raise DamagedCaptureError(f"table {name}", why=f"columns are {frame.columns}")
    for column in table.columns:
        series = frame.get_column(column.name)
        if not column.accepts(series.dtype):
            raise DamagedCaptureError(f"{name}.{column.name}", why=f"type is {series.dtype}")
        if column.required and series.null_count():
            raise DamagedCaptureError(
                f"{name}.{column.name}", why=f"{series.null_count()} of {len(series)} rows are null"
            )
    key = table.sort_column
    if key is not None and not frame.get_column(key).is_sorted():
        raise DamagedCaptureError(f"table {table.name}", why=f"rows are not sorted by {key}")
    if {"start_ns", "end_ns"} <= set(frame.columns):
        backwards = frame.filter(pl.col("end_ns") < pl.col("start_ns")).height
        if backwards:
            raise DamagedCaptureError(
                f"table {table.name}", why=f"{backwards} rows end before they start"
            )


def _known(name: str) -> TraceTable:
    if name not in TABLES:
        raise UsageError(f"no table {name!r}", hint=f"tables are {', '.join(TABLES)}")
    return TABLES[name]


def _known_columns(table: TraceTable, columns: Sequence[str]) -> tuple[str, ...]:
    for column in columns:
        if column not in table.column_names:
            raise UsageError(
                f"no column {column!r} in {table.name}",
                hint=f"columns are {', '.join(table.column_names)}",
            )
    return tuple(columns)


TIMES = ("start_ns", "end_ns", "time_ns")
"""Columns that hold moments of the capture."""


class MoveTimes(Protocol):
    """Moves the times of a table."""

    def __call__(self, table: str, columns: Sequence[str]) -> pl.DataFrame | None:
        """Return these columns moved, in the order of the rows; None where the table stays."""
        ...


class MovedSource(TraceSource):
    """Serves the tables of a trace with moved times, in the order of those."""

    def __init__(self, trace: Trace, move: MoveTimes) -> None:
        self.trace = trace
        self._move = move
        self._orders: dict[str, pl.Series | None] = {}

    @cached_property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        return self.trace.meta

    def has(self, table: str) -> bool:
        """Return whether the table has rows."""
        return self.trace.has(table)

    def has_column(self, table: str, column: str) -> bool:
        """Return whether the capture can fill this column."""
        return self.trace.has(table, column)

    def row_count(self, table: str) -> int:
        """Count rows."""
        return self.trace.row_count(table)

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read these columns, times moved, in order of the moved start."""
        frame = self.trace.table(table, columns)
        times = [column for column in columns if column in TIMES]
        moved = self._move(table, times) if times else None
        order = self._order(table, moved)
        frame = frame if moved is None else frame.with_columns(moved)
        return frame if order is None else frame[order]

    def _order(self, table: str, moved: pl.DataFrame | None = None) -> pl.Series | None:
        """Return the rows of a table in order of time; None where that does not change.

        `moved` are times of the table that are moved already.
        """
        if table not in self._orders:
            key = TABLES[table].sort_column
            if key is not None and (moved is None or key not in moved.columns):
                moved = self._move(table, [key])
            times = None if moved is None or key is None else moved[key]
            stays = times is None or times.is_sorted()
            self._orders[table] = None if times is None or stays else times.arg_sort()
        return self._orders[table]

    def recorded_row(self, table: str, row: int) -> int:
        """Return the row of the trace that a row of a moved table is."""
        order = self._order(table)
        return row if order is None else int(order[row])

    def prepare(self, tables: Iterable[str]) -> None:
        """Announce which tables will be read."""
        self.trace.prepare(*tables)

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about rows and values left out so far."""
        return self.trace.losses
