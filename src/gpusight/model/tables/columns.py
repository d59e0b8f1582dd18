"""What tables and columns are, and the columns that several tables share."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import polars as pl


class Kind(enum.Enum):
    """What a column holds, which decides its Polars type."""

    TIME = "time"
    INT = "int"
    REAL = "real"
    FLAG = "flag"
    NAME = "name"
    TEXT = "text"


_DTYPES: dict[Kind, pl.DataType] = {
    Kind.TIME: pl.Int64(),
    Kind.INT: pl.Int64(),
    Kind.REAL: pl.Float64(),
    Kind.FLAG: pl.Boolean(),
    Kind.TEXT: pl.String(),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, kind, unit and what it means."""

    name: str
    kind: Kind
    meaning: str
    unit: str = ""
    required: bool = False
    """Never null in any row of any capture."""
    derived: bool = False
    """Computed from other columns of the table, for whichever reader filled those."""

    @property
    def type_name(self) -> str:
        """The Polars type as the documentation prints it."""
        return "Enum" if self.kind is Kind.NAME else str(_DTYPES[self.kind])

    def empty(self) -> pl.Series:
        """Make a column of this type without rows."""
        return pl.Series(self.name, [], dtype=self.dtype_for([]))

    def nulls(self, rows: int) -> pl.Series:
        """Make a column of this type that holds nothing but nulls."""
        return pl.Series(self.name, [None], dtype=self.dtype_for([])).new_from_index(0, rows)

    def dtype_for(self, categories: list[str]) -> pl.DataType:
        """Give the Polars type; `categories` are the strings of a name column."""
        return pl.Enum(categories) if self.kind is Kind.NAME else _DTYPES[self.kind]

    def accepts(self, dtype: pl.DataType) -> bool:
        """Tell whether a series of this Polars type may stand in this column."""
        if self.kind is Kind.NAME:
            return isinstance(dtype, pl.Enum)
        return dtype == _DTYPES[self.kind]


@dataclass(frozen=True, slots=True)
class Table:
    """One table: what a row is, and its columns; rows are sorted by the first time column."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def sort_column(self) -> str | None:
        """The time by which rows are sorted, for tables that have one."""
        return next((c.name for c in self.columns if c.kind is Kind.TIME), None)

    def column(self, name: str) -> Column:
        """Look a column up by name; raises KeyError."""
        return next(c for c in self.columns if c.name == name)

    @property
    def column_names(self) -> tuple[str, ...]:
        """All column names, in order."""
        return tuple(c.name for c in self.columns)


def time_column(name: str, meaning: str, *, required: bool = True) -> Column:
    """Declare a time in nanoseconds."""
    return Column(name, Kind.TIME, meaning, "ns", required=required)


def int_column(name: str, meaning: str, unit: str = "", *, required: bool = False) -> Column:
    """Declare a whole number."""
    return Column(name, Kind.INT, meaning, unit, required=required)


def real_column(name: str, meaning: str, unit: str = "", *, required: bool = False) -> Column:
    """Declare a real number."""
    return Column(name, Kind.REAL, meaning, unit, required=required)


def derived_column(name: str, meaning: str) -> Column:
    """Declare a number computed from other columns."""
    return Column(name, Kind.INT, meaning, derived=True)


def name_column(name: str, meaning: str, *, required: bool = False) -> Column:
    """Declare a dictionary-encoded text."""
    return Column(name, Kind.NAME, meaning, required=required)


START = time_column("start_ns", "When it began")
END = time_column("end_ns", "When it ended")
PROCESS = int_column("process", "Key into `processes`")
THREAD = int_column("thread", "Key into `threads`")
CORRELATION = int_column(
    "correlation", "Links GPU work to the API call that issued it, per process"
)
RETURN = int_column("return_value", "What the call returned")
CALLCHAIN = int_column("callchain", "Key into `callchains`; null when none was taken")
OP = int_column("op", "Key into `cpu_ops`: the operator that caused it, where the profiler says so")

GPU_WORK_COLUMNS = (
    START,
    END,
    int_column("device", "Key into `devices`", required=True),
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
