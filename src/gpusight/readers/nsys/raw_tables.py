"""Raw tables of an nsys capture, in any of its four forms.

Their protocol, string ids, the words for CUPTI's numbers, and which rows count: values as declared,
inside their limits, ends after starts.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import polars as pl

from gpusight.readers.tables import (
    BYTE_LIMITS,
    DEVICE_LIMITS,
    MAX_DURATION_NS,
    TIME_LIMITS,
    encode_names,
    gather_names,
    is_inside,
    is_one_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from gpusight.readers.nsys.column_rules import RawTablePart


NOT_A_NUMBER = -(1 << 63)
"""Stands in a column of whole numbers for text, bytes or a fraction; null means no value."""

PAYLOADS = frozenset({"int64Value", "uint64Value", "int32Value", "uint32Value"})
"""Columns of programs' own numbers: any value may occur, so none can mark a wrong one."""


PAYLOAD_EVENTS = {
    "start": pl.Int64,
    "globalTid": pl.Int64,
    "category": pl.Int64,
    "domainId": pl.Int64,
    "binaryData": pl.Binary,
}
"""Columns of NVTX events with a binary payload."""


class RowFilter(NamedTuple):
    """Rows whose column has one of these values."""

    column: str
    values: tuple[int, ...] | tuple[str, ...]
    or_unknown: bool = False
    """Also rows whose column has no value, or none of the right type, so that they are counted."""


class RawTables(Protocol):
    """The tables of one nsys capture, under the names of nsys's own SQLite export.

    Its forms derive from it: what they need not do has a default here.
    """

    path: Path
    source: str
    """`nsys-sqlite`, `nsys-parquet`, `nsys-arrow` or `nsys-rep`."""

    def tables(self) -> frozenset[str]:
        """List every table of the capture."""
        ...

    def columns(self, table: str) -> frozenset[str]:
        """List the columns of a table; none if there is no such table."""
        ...

    def row_count(self, table: str, only: RowFilter | None = None) -> int:
        """Count the rows of a table, or those of some; 0 when there is no such table."""
        ...

    def is_empty(self, table: str, only: RowFilter | None = None) -> bool:
        """Return whether a table has no rows, or none of those, cheaply."""
        return self.row_count(table, only) == 0

    def read(
        self,
        table: str,
        columns: Sequence[str],
        only: RowFilter | None = None,
        *,
        marked: bool = False,
    ) -> pl.DataFrame:
        """Read these columns in file order; `only` leaves out rows while reading.

        Integers arrive as Int64, reals as Float64, text as String with invalid UTF-8 replaced. For
        what is not an integer among integers stands null, or `NOT_A_NUMBER` if requested.
        """
        ...

    def payloads(self) -> pl.DataFrame:
        """Return the NVTX events with a binary payload: the columns `PAYLOAD_EVENTS`.

        Exports put a header before each payload; reports have its schema in a column `schemaId`.
        """
        ...

    def close(self) -> None:
        """Close the file; what was read stays readable."""
        return

    def preload(self, tables: Sequence[str]) -> None:  # noqa: ARG002 - a default
        """Announce which tables will be read, so that one pass over the file serves them all."""
        return

    def notes(self) -> list[str]:
        """Return notes on what of the file is not decoded."""
        return []

    def warnings(self) -> list[str]:
        """Return warnings about tables that were not read."""
        return []


MISSING = "[name missing from capture]"


class StringTable:
    """The capture's string table, read once and only when a name is needed."""

    def __init__(self, raw: RawTables) -> None:
        self._raw = raw

    def texts(self, ids: pl.Series) -> pl.Series:
        """Look up the text of each id; null where the id is null or unknown."""
        frame = pl.DataFrame({"id": ids.cast(pl.Int64, strict=False)}).join(
            self._strings, on="id", how="left", maintain_order="left"
        )
        return frame.get_column("value")

    def names(self, ids: pl.Series, change: Callable[[str], str] | None = None) -> pl.Series:
        """Encode a column of ids as an Enum of the texts that occur, each passed through `change`.

        Null stays null; an id that the capture does not explain becomes `MISSING`.
        """
        used = ids.head(1) if is_one_value(ids) else ids.unique().drop_nulls()
        texts = self.texts(used).fill_null(MISSING)
        if change is not None:
            texts = pl.Series([change(t) for t in texts.to_list()], dtype=pl.String)
        return gather_names(encode_names(texts), used, ids)

    @cached_property
    def _strings(self) -> pl.DataFrame:
        if not {"id", "value"} <= self._raw.columns("StringIds"):
            return pl.DataFrame(schema={"id": pl.Int64, "value": pl.String})
        # A program that rewrites an export may store numbers as text, and text as numbers.
        rows = self._raw.read("StringIds", ["id", "value"]).select(
            pl.col("id").cast(pl.Int64, strict=False), pl.col("value").cast(pl.String)
        )
        return rows.unique("id", keep="first")


def decode_text(raw: pl.Series) -> pl.Series:
    """Turn bytes into text, replacing what is not UTF-8."""
    if raw.dtype != pl.Binary:  # no rows: ADBC then has no type to report
        return pl.Series(raw.name, [], dtype=pl.String)
    try:
        return raw.cast(pl.String)
    except pl.exceptions.PolarsError:
        distinct = raw.unique()
        texts = [None if v is None else v.decode("utf-8", "replace") for v in distinct.to_list()]
        lookup = pl.DataFrame({"raw": distinct, "text": pl.Series(texts, dtype=pl.String)})
        rows = pl.DataFrame({"raw": raw}).join(
            lookup, on="raw", how="left", maintain_order="left", nulls_equal=True
        )
        return rows.get_column("text").alias(raw.name)


COPY_KINDS = {
    0: "Unknown",
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
MEMORY_KINDS = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
    7: "Unknown",
}
MIGRATION_CAUSES = {
    0: "unknown",
    1: "user prefetch",
    2: "page fault",
    3: "speculative prefetch",
    4: "eviction",
    5: "access counters",
}
ACCESS_KINDS = {0: "unknown", 1: "read", 2: "write", 3: "atomic", 4: "prefetch"}
SYNC_KINDS = {0: "unknown", 1: "event", 2: "stream waits for event", 3: "stream", 4: "context"}
MEMORY_OPERATIONS = {0: "allocation", 1: "deallocation"}
SEVERITIES = {0: "information", 1: "information", 2: "warning", 3: "error", 4: "information"}
RANGE_KINDS = {34: "mark", 59: "push_pop", 60: "start_end", 70: "push_pop", 71: "start_end"}

OS_CALL = 27
"""Class of a call; 31 and 32 mark when the profiler began and stopped watching."""

NVTX_CATEGORY, NVTX_MARK, NVTX_DOMAIN = 33, 34, 75
KHR_RANGE = 62
"""Class of a range of OpenGL on the host; 63 is one on the GPU."""

PROCESS_SHIFT = 1 << 24
"""A global thread id over this is its process: machine, virtual machine and pid, in 40 bits."""
PROCESS_MASK = (1 << 40) - 1
PID_MASK = (1 << 24) - 1
NO_PROCESS = -144_115_188_075_855_872
THREE_BYTES = 1 << 24
FOREVER = 1 << 60
"""No capture lasts this long: a later end marks a range that was never closed."""

# TARGET_INFO_SYSTEM_ENV also holds host and user: only these rows and the next one are ever read.
SYSTEM_FACTS = {
    "NvDriverVersion": "driver_version",
    "CudaDriverVersion": "cuda_version",
    "OsDescription": "os",
    "CpuDescription": "cpu",
}
ENVIRONMENT = "DeviceEnvironment"
"""Variables as `NAME=value;NAME=value`; only settings for debugging are kept of them."""


def process_of(global_id: pl.Series) -> pl.Series:
    """Take the process key out of a global thread or process id."""
    is_one = is_one_value(global_id)
    frame = pl.DataFrame({"id": global_id.head(1) if is_one else global_id})
    processes = frame.select((pl.col("id") // PROCESS_SHIFT) & PROCESS_MASK).to_series()
    return processes.new_from_index(0, len(global_id)) if is_one else processes


# Which rows count -------------------------------------------------------------------------------


class Ends(enum.Enum):
    """What it means that a row has no end, or one in the far future."""

    NEEDED = "needed"
    """The row cannot be used: GPU activity is recorded once it has ended."""
    LOST = "lost"
    """A call that was running when the capture stopped: counts as an instant, with a warning."""
    OPEN = "open"
    """A range that was never closed: reaches to the end of the capture."""


_SPARE_NS = 10**9
"""How much later than the end of the capture GPU activity may end, or a tenth of its length."""
_MAX_LATE_SHARE = 0.05
"""Part of the rows that start after the capture ended up to which they count as broken records."""
_TEXT_COLUMNS = frozenset({"text", "jsonText", "name"})
REAL_COLUMNS = frozenset({"doubleValue", "floatValue"})
"""Raw columns that hold something else than whole numbers."""
_START, _END, _KIND = "start", "end", "eventType"
_ANY = (NOT_A_NUMBER + 1, -NOT_A_NUMBER - 1)
_LIMITS = {
    "start": TIME_LIMITS,
    "end": TIME_LIMITS,
    "timestamp": TIME_LIMITS,
    "deviceId": DEVICE_LIMITS,
    "bytes": BYTE_LIMITS,
}
"""Least and greatest values of raw columns."""


class RowCheck(NamedTuple):
    """A raw column without which a row cannot be used, and the values that it may have."""

    column: str
    low: int
    high: int


@dataclass(frozen=True)
class CheckedRows:
    """Which rows of a raw table count."""

    rows: int
    """Rows that count."""
    mask: pl.Series | None = None
    """True for each that does; None where all do."""
    warnings: tuple[str, ...] = ()
    damage: str = ""
    """Why the table cannot be used at all."""

    def each_once(self, frame: pl.DataFrame) -> CheckedRows:
        """Let only the first of equal rows count."""
        first = frame.select(pl.struct(pl.all()).is_first_distinct()).to_series()
        mask = first if self.mask is None else first & self.mask
        return replace(self, rows=int(mask.sum()), mask=mask)

    def of(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows that count."""
        return frame if self.mask is None else frame.filter(self.mask)


def checks_of(columns: Iterable[str], latest_ns: int | None = None) -> tuple[RowCheck, ...]:
    """Return the checks of raw columns that required columns of a trace are made of.

    `latest_ns` is when the capture ended: no GPU activity can have ended much later.
    """
    limits = _LIMITS
    if latest_ns is not None and latest_ns > 0:
        late_ns = latest_ns + max(latest_ns // 10, _SPARE_NS)
        limits = _LIMITS | {_END: (TIME_LIMITS[0], min(late_ns, TIME_LIMITS[1]))}
    return tuple(RowCheck(name, *limits.get(name, _ANY)) for name in dict.fromkeys(columns))


def as_declared(frame: pl.DataFrame) -> pl.DataFrame:
    """Return raw columns with the types that nsys stores, whatever another program made of them."""

    def declared(series: pl.Series) -> pl.Series:
        if series.name in _TEXT_COLUMNS:
            return series.cast(pl.String)
        if series.name in REAL_COLUMNS:
            return series.cast(pl.Float64, strict=False)
        return series if series.dtype == pl.Int64 else whole_numbers(series)

    return pl.DataFrame([declared(series) for series in frame.get_columns()])


def whole_numbers(series: pl.Series) -> pl.Series:
    """Return whole numbers as Int64; other values become `NOT_A_NUMBER`, NaN becomes null."""
    if series.dtype.is_float():
        # Programs that rewrite an export turn integers with nulls into floats.
        series = series.fill_nan(None)
        fits = ((series == series.floor()) & (series.abs() < float(1 << 63))).fill_null(value=True)
        numbers = series.zip_with(fits, pl.Series([0.0], dtype=series.dtype)).cast(pl.Int64)
    elif series.dtype == pl.Null or series.dtype == pl.Boolean or series.dtype.is_integer():
        return series.cast(pl.Int64)
    else:
        numbers = pl.Series(series.name, [0], dtype=pl.Int64).new_from_index(0, len(series))
        fits = series.is_null()
        numbers = numbers.set(fits, None)
    wrong = None if series.name in PAYLOADS else NOT_A_NUMBER
    return numbers if fits.all() else numbers.set(~fits, wrong)


def without_wrong(frame: pl.DataFrame, table: str) -> tuple[pl.DataFrame, dict[str, str]]:
    """Make values that are not integers null; return a warning for each such column."""
    warnings = {}
    for series in frame.get_columns():
        if series.name in PAYLOADS:
            continue
        if series.dtype == pl.Int64 and series.min() == NOT_A_NUMBER:
            wrong = series == NOT_A_NUMBER
            count = int(wrong.sum())
            warnings[series.name] = (
                f"{table}: {count:,} of {len(series):,} values of {series.name}"
                f" {'is not an integer' if count == 1 else 'are not integers'}, left out"
            )
            frame = frame.with_columns(series.set(wrong.fill_null(value=False), None))
    return frame, warnings


def keep_rows(part: RawTablePart, frame: pl.DataFrame, checks: Sequence[RowCheck]) -> CheckedRows:
    """Return which rows of a part count; `frame` holds the columns of the checks."""
    checks, doubts = _with_plausible_end(part, frame, checks)
    if not frame.height or _all_count(frame, checks):
        return CheckedRows(frame.height, warnings=doubts)
    reasons = frame.select(_first_problem(part, frame, checks).alias("reason")).to_series()
    mask = reasons.is_null()
    left_out = frame.height - int(mask.sum())
    warnings = list(doubts)
    damage, counts = "", f"{left_out:,} of {frame.height:,} rows"
    if left_out:
        warnings.append(f"{part.raw}: {counts} left out: {_counted(reasons)}")
    warnings += _endless(part, frame.filter(mask))
    if left_out * 2 > frame.height:
        damage = f"{counts} cannot be used: {_counted(reasons)}"
    return CheckedRows(frame.height - left_out, mask if left_out else None, tuple(warnings), damage)


def _with_plausible_end(
    part: RawTablePart, frame: pl.DataFrame, checks: Sequence[RowCheck]
) -> tuple[Sequence[RowCheck], tuple[str, ...]]:
    """Drop the end of the capture as a limit, with a warning, where many rows are later than it.

    Then a clock is off, not a record broken.
    """
    end = next((check for check in checks if check.column == _END), None)
    if end is None:
        return checks, ()
    late = int((frame.get_column(_END) > end.high).sum())
    begun = int((frame.get_column(_START) > end.high).sum()) if _START in frame.columns else 0
    if late * 2 <= frame.height and begun <= _MAX_LATE_SHARE * frame.height:
        return checks, ()
    many = "most rows are" if late * 2 > frame.height else f"{late:,} of {frame.height:,} rows are"
    doubt = f"{part.raw}: {many} later than the end of the capture: some times are wrong"
    lifted = [check if check is not end else RowCheck(_END, *TIME_LIMITS) for check in checks]
    return lifted, (doubt,) if end.high < TIME_LIMITS[1] else ()


def _all_count(frame: pl.DataFrame, checks: Sequence[RowCheck]) -> bool:
    """Return, quickly, whether all rows pass the checks and end after they start."""
    for check in checks:
        series = frame.get_column(check.column)
        high = min(FOREVER - 1, check.high) if check.column == _END else check.high
        if series.null_count() or not is_inside(series, check.low, high):
            return False
    if not {_START, _END} <= {check.column for check in checks}:
        return True
    return is_inside(frame.get_column(_END) - frame.get_column(_START), 0, MAX_DURATION_NS)


def _first_problem(part: RawTablePart, frame: pl.DataFrame, checks: Sequence[RowCheck]) -> pl.Expr:
    """Return, for each row, the first reason why it cannot be used; null where it can be."""
    problem: pl.Expr = pl.lit(None, pl.String)
    for check in reversed(checks):
        if check.column == _END:
            problem = _problem_of_end(part, frame, check, problem)
            continue
        column = pl.col(check.column)
        problem = (
            pl.when(column.is_null() | (column == NOT_A_NUMBER))
            .then(pl.lit(f"no number as {check.column}"))
            .when(~column.is_between(check.low, check.high))
            .then(pl.lit(f"{check.column} out of range"))
            .otherwise(problem)
        )
    return problem


def _problem_of_end(
    part: RawTablePart, frame: pl.DataFrame, check: RowCheck, otherwise: pl.Expr
) -> pl.Expr:
    start, end = pl.col(_START), pl.col(_END)
    # A mark is an instant, whatever its end.
    mark = pl.col(_KIND) == NVTX_MARK if _KIND in frame.columns else pl.lit(value=False)
    needed = pl.lit(part.ends is Ends.NEEDED)
    return (
        pl.when(mark)
        .then(otherwise)
        .when((end == NOT_A_NUMBER) | (end.is_null() & needed))
        .then(pl.lit("no number as end"))
        .when(end.is_null() | ((end >= FOREVER) & ~needed))
        .then(otherwise)
        .when(end >= FOREVER)
        .then(pl.lit("end out of range"))
        .when(end < start)
        .then(pl.lit("end before they start"))
        .when(needed & (end > check.high))
        .then(pl.lit("an end after the capture ended"))
        .when(needed & (end == start) & (start <= 0))
        .then(pl.lit("no time, as the profiler could not measure it"))
        .when(end - start > MAX_DURATION_NS)
        .then(pl.lit("a duration over 30 days"))
        .otherwise(otherwise)
    )


def _counted(reasons: pl.Series) -> str:
    """Put reasons behind their counts: `1 has no number as end`, `2 end before they start`."""
    counts = reasons.drop_nulls().value_counts().sort("count", "reason", descending=[True, False])
    texts = []
    for reason, count in counts.rows():
        if reason == "end before they start":
            predicate = reason if count != 1 else "ends before it starts"
        else:
            predicate = f"{'has' if count == 1 else 'have'} {reason}"
        texts.append(f"{count:,} {predicate}")
    return ", ".join(texts)


def _endless(part: RawTablePart, frame: pl.DataFrame) -> list[str]:
    """Return a warning about calls without an end, which count as 0 ns."""
    if part.ends is not Ends.LOST or _END not in frame.columns:
        return []
    end = frame.get_column(_END)
    count = end.null_count() + int((end >= FOREVER).sum())
    if not count:
        return []
    have = "has no end and counts" if count == 1 else "have no end and count"
    return [f"{part.raw}: {count:,} of {frame.height:,} rows {have} as 0 ns"]
