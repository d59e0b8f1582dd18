"""Tables as every reader makes them: names, types, order and limits of columns; whole frames."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

import polars as pl

from gpusight.trace.schema import TABLES
from gpusight.trace.schema_columns import ColumnKind, TraceColumn
from gpusight.trace.trace import Meta, Outline, TraceSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self


NAMELESS = "[no name]"
"""Stands where a program gave no name."""
_MAX_INDEXED_SPAN, _MAX_SPAN_PER_ROW = 100_000, 4
"""Up to this, and so many ids per row more, a table indexed by id is cheaper than a hash join."""


def encode_names(texts: pl.Series) -> pl.Series:
    """Turn text into an Enum of the strings that occur, in order of appearance."""
    if len(texts) and texts.null_count() == len(texts):
        return pl.Series(texts.name, [None], dtype=pl.Enum([])).new_from_index(0, len(texts))
    categories = texts.drop_nulls().unique(maintain_order=True)
    return texts.cast(pl.Enum(categories))


def is_one_value(column: pl.Series) -> bool:
    """Return whether all rows have the same value: the process, GPU or stream of most captures."""
    return len(column) > 0 and not column.null_count() and column.min() == column.max()


def encode_codes(codes: pl.Series, words: dict[int, str], other: str = "Unknown") -> pl.Series:
    """Turn small numbers into the words for them."""
    used = codes.unique().drop_nulls()
    texts = pl.Series([words.get(code, other) for code in used.to_list()], dtype=pl.String)
    return gather_names(encode_names(texts), used, codes)


def first_name_of(columns: list[pl.Series]) -> pl.Series:
    """Take each row's name from the first column that has one."""
    merged = columns[-1]
    for column in reversed(columns[:-1]):
        if column.null_count() == 0:
            merged = column
        else:
            ours, others = _with_common_names([column, merged])
            merged = ours.zip_with(ours.is_not_null(), others)
    return merged


def _with_common_names(columns: list[pl.Series]) -> list[pl.Series]:
    known = [c.dtype.categories for c in columns if isinstance(c.dtype, pl.Enum)]
    common = pl.Enum(pl.concat(known).unique(maintain_order=True))
    return [column.cast(common) for column in columns]


def gather_names(names: pl.Series, used: pl.Series, ids: pl.Series) -> pl.Series:
    """Return the name of each row, from the names of the ids that occur."""
    if used.is_empty():
        return pl.Series([None], dtype=names.dtype).new_from_index(0, len(ids))
    if is_one_value(ids):
        return names.new_from_index(0, len(ids))
    low = used.min()
    span = int(used.max()) - int(low)  # type: ignore[arg-type]
    if span > _MAX_INDEXED_SPAN + _MAX_SPAN_PER_ROW * len(ids):
        lookup = pl.DataFrame({"id": used, "name": names})
        rows = pl.DataFrame({"id": ids}).join(lookup, on="id", how="left", maintain_order="left")
        return rows.get_column("name")
    offsets = pl.DataFrame({"offset": pl.int_range(span + 1, eager=True)}).join(
        pl.DataFrame({"offset": used - low, "row": pl.int_range(len(used), eager=True)}),
        on="offset",
        how="left",
        maintain_order="left",
    )
    by_offset = names.gather(offsets.get_column("row"))
    return by_offset.gather(ids - low if low else ids)


_UNKNOWN = frozenset({"", "?", "??"})
_LIBRARY = re.compile(r"^.*/(?:(?:site|dist)-packages|lib/python[\d.]+)/(?=[^/])")
_HOME = re.compile(r"^(?:.*/)?(?:home|users)/[^/]+(?=/)|^/root(?=/)", re.IGNORECASE)
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/|~")
_CUT = "..."
_FILE_AND_LINE = re.compile(r"(?P<file>.+)(?P<place>\(\d+\): .*)", re.DOTALL)


def file_name(path: str) -> str:
    """Return the file name of a path of either style: folders reveal users and machines."""
    return PureWindowsPath(PurePosixPath(path).name).name


def shown_file(path: str) -> str | None:
    """Shorten a path: from its package on in a library, else its last folder and its name.

    A path that the recorder already shortened to one below a package is unchanged.

    `.../site-packages/torch/nn/modules/linear.py` is `torch/nn/modules/linear.py`, a script in a
    home directory `~/train.py`. None if the recorder did not know the file.
    """
    if path in _UNKNOWN:
        return None
    text = path.replace("\\", "/")
    inside_library, matches = _LIBRARY.subn("", text)
    if matches:
        return inside_library
    names = _HOME.sub("~", text).split("/")
    if text.startswith(_CUT):  # the front of a path that was cut may be the rest of a home
        return names[-1] or None
    kept = names[-2:] if _ABSOLUTE.match(text) else names
    return "/".join(kept).strip("/") or None


def shown_frame(entry: str) -> str:
    """Shorten the path in a frame of a printed stack, such as `/srv/src/train.py(12): step`."""
    match = _FILE_AND_LINE.fullmatch(entry)
    if match is None:
        return entry
    return f"{shown_file(match['file']) or match['file']}{match['place']}"


_SUFFIX = re.compile(r"(?:_(?:ptsz|ptds|spt)|R\d{4})?(?:_v\d{1,6})?(?:_(?:ptsz|ptds))?$")


def strip_api_version(name: str) -> str:
    """Drop version and stream suffixes of an API call, CUDA's (`cuMemAlloc_v2`) and HIP's."""
    return _SUFFIX.sub("", name, count=1) or name


EPOCH_NS = 10**18
"""Larger times are nanoseconds since 1970 (10^18 ns was in 2001)."""

_LATEST = 1 << 61
"""Beyond any clock, the nanoseconds since 1970 included, and beyond any size in bytes."""
MAX_DURATION_NS = 30 * 86_400 * 10**9
"""No profiler records for longer than 30 days, so no event lasts longer."""
TIME_LIMITS, DEVICE_LIMITS, BYTE_LIMITS = (-_LATEST, _LATEST), (-(1 << 20), 1 << 20), (0, _LATEST)
_COUNT_LIMITS = (0, 1 << 32)
_COUNTS = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread")


class FrameSource(TraceSource):
    """Serves tables from frames that `read` builds when the first of them is used.

    A frame holds the columns that the file fills, in any order and any fitting type: text becomes
    an Enum, rows are sorted, columns that are missing are null.
    """

    def __init__(self, read: Callable[[], tuple[Meta, dict[str, pl.DataFrame]]]) -> None:
        self._read = read

    @classmethod
    def of(cls, meta: Meta, frames: dict[str, pl.DataFrame]) -> Self:
        """Serve frames that are there already."""
        return cls(lambda: (meta, frames))

    @cached_property
    def _contents(self) -> tuple[Meta, dict[str, pl.DataFrame]]:
        meta, frames = self._read()
        return meta, {t: as_table(t, f) for t, f in frames.items() if f.height}

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        return self._contents[0]

    def outline(self) -> Outline:
        """Return what is in the file."""
        meta, frames = self._contents
        return Outline(
            meta=meta,
            rows={t: f.height for t, f in frames.items()},
            columns={t: [c for c in f.columns if self.has_column(t, c)] for t, f in frames.items()},
        )

    def has(self, table: str) -> bool:
        """Return whether the table has rows."""
        return table in self._contents[1]

    def has_column(self, table: str, column: str) -> bool:
        """Return whether the capture can fill this column."""
        frame = self._contents[1].get(table)
        return (
            frame is not None
            and column in frame.columns
            and frame.get_column(column).null_count() < frame.height
        )

    def row_count(self, table: str) -> int:
        """Count rows."""
        frame = self._contents[1].get(table)
        return 0 if frame is None else frame.height

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return these columns."""
        frame = self._contents[1].get(table)
        if frame is None:
            return pl.DataFrame([TABLES[table].column(c).empty() for c in columns])
        return frame.select(columns)


def as_table(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame as the schema declares its table: types, order of columns and rows."""
    table = TABLES[name]
    unknown = set(frame.columns) - set(table.column_names)
    assert not unknown, f"{name} has no columns {unknown}"
    stored = [c for c in table.columns if not c.derived]
    full = pl.DataFrame(
        [as_column(c, frame.get_column(c.name)) for c in stored if c.name in frame.columns]
    )
    key = table.sort_column
    order = time_order(full.get_column(key)) if key in full.columns else None
    full = full if order is None else full[order]
    missing = [c.nulls(full.height) for c in stored if c.name not in full.columns]
    return full.hstack(missing).select([c.name for c in stored])


def as_column(column: TraceColumn, series: pl.Series) -> pl.Series:
    """Cast a series to the type that its column is declared with."""
    if column.kind is ColumnKind.NAME:
        return series if isinstance(series.dtype, pl.Enum) else encode_names(series.cast(pl.String))
    return series.cast(column.dtype_for([]))


def time_order(times: pl.Series) -> pl.Series | None:
    """Return the order of rows by time, ties in file order; None if they are sorted."""
    if times.is_sorted():
        return None
    frame = times.to_frame("time").with_row_index("row")
    return frame.sort("time", maintain_order=True).get_column("row")


def concat_tables(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate frames of the same columns, however their names are encoded."""
    columns = []
    for column in frames[0].columns:
        parts = [frame.get_column(column) for frame in frames]
        if isinstance(parts[0].dtype, pl.Enum):
            parts = _with_common_names(parts)
        columns.append(pl.concat(parts).alias(column))
    return pl.DataFrame(columns)


def limits_of(column: TraceColumn) -> tuple[int, int] | None:
    """Return the smallest and largest valid value of a column; None if any is valid."""
    if column.kind is ColumnKind.TIME:
        return TIME_LIMITS
    if column.name == "device":
        return DEVICE_LIMITS
    if column.unit == "bytes":
        return BYTE_LIMITS
    return _COUNT_LIMITS if column.name in _COUNTS else None


def within_limits(column: TraceColumn, series: pl.Series) -> tuple[pl.Series, int]:
    """Make values outside the limits null; return how many there were."""
    limits = limits_of(column)
    if limits is None or series.dtype != pl.Int64 or is_inside(series, *limits):
        return series, 0
    outside = ~series.is_between(*limits).fill_null(value=True)
    return series.set(outside, None), int(outside.sum())


def is_inside(series: pl.Series, low: float, high: float) -> bool:
    """Return whether all numbers lie within limits; False if there are none."""
    least, most = series.min(), series.max()
    if not isinstance(least, (int, float)) or not isinstance(most, (int, float)):
        return False
    return low <= least <= most <= high
