"""What tables and columns are, and the columns that several tables share."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property

import polars as pl


class ColumnKind(enum.Enum):
    """What a column holds, which decides its Polars type."""

    TIME = "time"
    INT = "int"
    REAL = "real"
    FLAG = "flag"
    NAME = "name"
    TEXT = "text"


_DTYPES: dict[ColumnKind, pl.DataType] = {
    ColumnKind.TIME: pl.Int64(),
    ColumnKind.INT: pl.Int64(),
    ColumnKind.REAL: pl.Float64(),
    ColumnKind.FLAG: pl.Boolean(),
    ColumnKind.TEXT: pl.String(),
}


@dataclass(frozen=True, slots=True)
class TraceColumn:
    """One column: its name, kind, unit and what it means."""

    name: str
    kind: ColumnKind
    meaning: str
    unit: str = ""
    required: bool = False
    """Never null in any row of any capture."""
    derived: bool = False
    """Computed from other columns of the table, for whichever reader filled those."""

    @property
    def type_name(self) -> str:
        """The Polars type as the documentation prints it."""
        return "Enum" if self.kind is ColumnKind.NAME else str(_DTYPES[self.kind])

    def empty(self) -> pl.Series:
        """Make a column of this type without rows."""
        return pl.Series(self.name, [], dtype=self.dtype_for([]))

    def nulls(self, rows: int) -> pl.Series:
        """Make a column of this type that holds nothing but nulls."""
        return pl.Series(self.name, [None], dtype=self.dtype_for([])).new_from_index(0, rows)

    def dtype_for(self, categories: list[str]) -> pl.DataType:
        """Return the Polars type; `categories` are the strings of a name column."""
        return pl.Enum(categories) if self.kind is ColumnKind.NAME else _DTYPES[self.kind]

    def accepts(self, dtype: pl.DataType) -> bool:
        """Return whether a series of this Polars type fits this column."""
        if self.kind is ColumnKind.NAME:
            return isinstance(dtype, pl.Enum)
        return dtype == _DTYPES[self.kind]


@dataclass(frozen=True)
class TraceTable:
    """One table: what a row is, and its columns; rows are sorted by the first time column."""

    name: str
    meaning: str
    columns: tuple[TraceColumn, ...]

    @property
    def sort_column(self) -> str | None:
        """The time by which rows are sorted, for tables that have one."""
        return next((c.name for c in self.columns if c.kind is ColumnKind.TIME), None)

    def column(self, name: str) -> TraceColumn:
        """Look a column up by name."""
        return next(c for c in self.columns if c.name == name)

    @cached_property  # read each time that a table is
    def column_names(self) -> tuple[str, ...]:
        """All column names, in order."""
        return tuple(c.name for c in self.columns)


def time_column(name: str, meaning: str, *, required: bool = True) -> TraceColumn:
    """Declare a time in nanoseconds."""
    return TraceColumn(name, ColumnKind.TIME, meaning, "ns", required=required)


def int_column(name: str, meaning: str, unit: str = "", *, required: bool = False) -> TraceColumn:
    """Declare a whole number."""
    return TraceColumn(name, ColumnKind.INT, meaning, unit, required=required)


def real_column(name: str, meaning: str, unit: str = "", *, required: bool = False) -> TraceColumn:
    """Declare a real number."""
    return TraceColumn(name, ColumnKind.REAL, meaning, unit, required=required)


def derived_column(name: str, meaning: str) -> TraceColumn:
    """Declare a number computed from other columns."""
    return TraceColumn(name, ColumnKind.INT, meaning, derived=True)


def name_column(name: str, meaning: str, *, required: bool = False) -> TraceColumn:
    """Declare a dictionary-encoded text."""
    return TraceColumn(name, ColumnKind.NAME, meaning, required=required)


START = time_column("start_ns", "Start time")
END = time_column("end_ns", "End time")
PROCESS = int_column("process", "Key into `processes`")
THREAD = int_column("thread", "Key into `threads`")
CORRELATION = int_column(
    "correlation", "Links GPU work to the API call that issued it, per process"
)
RETURN = int_column("return_value", "What the call returned")
CALLCHAIN = int_column("callchain", "Key into `callchains`; null when none was recorded")
OP = int_column("op", "Key into `cpu_ops`: the operator that launched it, where recorded")

GPU_WORK_COLUMNS = (
    START,
    END,
    int_column("device", "Key into `devices`", required=True),
    int_column("cuda_device", "Number of the GPU in its process, which can differ from `device`"),
    int_column("context", "CUDA context"),
    int_column("green_context", "CUDA green context"),
    int_column("stream", "CUDA stream"),
    CORRELATION,
    PROCESS,
    OP,
)
GRAPH_NODE = int_column(
    "graph_node", "CUDA graph node it ran as; null outside node-level graph traces"
)
