"""Python stacks in an nsys capture, of `--python-sampling` and `--python-backtrace`.

nsys writes them as binary payloads of NVTX marks. Schemas in the capture describe the payloads, so
that versions which lay them out differently are read alike.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from gpusight.readers.nsys import raw_tables
from gpusight.readers.nsys.raw_tables import MISSING, process_of
from gpusight.readers.tables import TIME_LIMITS, as_table, shown_file

if TYPE_CHECKING:
    import numpy as np

    from gpusight.readers.nsys.raw_tables import RawTables, StringTable


TABLES = ("stack_samples", "stack_frames")
DOMAINS = frozenset({"Python Backtrace", "Python Periodic Sampling"})
"""NVTX domains of the marks, in older and in newer versions of nsys."""
NOT_EXPORTED = (
    "Python stacks of nsys are not in this export: open the .nsys-rep, or export it with a newer "
    "nsys and --include-blobs=true"
)
_SCHEMAS = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_STRING, _SHORT, _LONG = 80, frozenset({5, 6, 15, 16}), frozenset({9, 10, 17, 18})
"""NVTX's numbers of the types of payload entries: a registered string, integers of 32, 64 bits."""
_HEADER_BYTES = 32
"""Exports put the domain, the schema, and two sizes before a payload, each in 64 bits."""
_EVENT_BASED = 2
"""The `Source` of a stack that a CUDA call triggered; 1 is a sample."""
_MAX_FRAME_BYTES = 4_096


class StackLayout(NamedTuple):
    """Where a payload has the frames of a stack, and why it was recorded."""

    frames_at: int
    frame: np.dtype[np.void]
    """`function`, `file` and `line` of a frame; those in a payload are innermost first."""
    source_at: int | None


@dataclass(frozen=True)
class PythonStacks:
    """The tables of stacks of an nsys capture."""

    samples: pl.DataFrame
    frames: pl.DataFrame
    unreadable: int = 0
    """Payloads that do not fit their schema."""


def read_python_stacks(raw: RawTables, strings: StringTable) -> PythonStacks:
    """Read all Python stacks; tables without rows where the capture has none."""
    layouts = _layouts(raw)
    payloads = raw.payloads() if layouts else pl.DataFrame()
    if payloads.is_empty():
        return _tables([], [], strings, 0)
    if "schemaId" not in payloads.columns:
        payloads = _without_header(payloads)
    samples: list[pl.DataFrame] = []
    frames: list[pl.DataFrame] = []
    unreadable = 0
    for (domain, schema), layout in layouts.items():
        own = payloads.filter((pl.col("domainId") == domain) & (pl.col("schemaId") == schema))
        size = own["binaryData"].bin.size() - layout.frames_at
        fits = (size > 0) & (size % layout.frame.itemsize == 0)
        fits &= own["start"].is_between(*TIME_LIMITS) & own["globalTid"].is_not_null()
        unreadable += own.height - int(fits.sum())
        own = own.filter(fits)
        distinct = own["binaryData"].unique(maintain_order=True)
        first = sum(part["stack"].n_unique() for part in frames)
        number = pl.DataFrame({"binaryData": distinct}).with_row_index("stack", offset=first)
        samples.append(_timed(own.join(number, on="binaryData", maintain_order="left"), layout))
        frames.append(_frames(distinct, layout, first))
    return _tables(samples, frames, strings, unreadable)


def _layouts(raw: RawTables) -> dict[tuple[int, int], StackLayout]:
    """Find the schemas whose entries include an array of frames: function, file and line."""
    if not {"domainId", "schemaId", "type", "name", "offset"} <= raw.columns(_SCHEMAS):
        return {}
    entries: dict[tuple[int, int], dict[str, tuple[int, int]]] = {}
    rows = raw.read(_SCHEMAS, ["domainId", "schemaId", "type", "name", "offset"])
    for domain, schema, kind, name, offset in rows.iter_rows():
        if None not in (domain, schema, kind, name):
            named = entries.setdefault((domain, schema), {})
            named.setdefault(name.lower(), (kind, offset or 0))
    layouts = {}
    for (domain, schema), named in entries.items():
        frames_type, frames_at = named.get("frames", (None, 0))
        frame = _frame_type(entries.get((domain, frames_type or 0), {}))
        if frame is not None and 0 <= frames_at <= _MAX_FRAME_BYTES:
            source_type, source_at = named.get("source", (None, 0))
            has_source = source_type is not None and 0 <= source_at <= frames_at - 4
            source = source_at if has_source else None
            layouts[domain, schema] = StackLayout(frames_at, frame, source)
    return layouts


def _frame_type(named: dict[str, tuple[int, int]]) -> np.dtype[np.void] | None:
    """Return how a frame lies in memory; None if the entries are not those of a frame."""
    import numpy as np  # few captures have such stacks, and it is slow to import

    function, file, line = (named.get(name, (0, -1)) for name in ("function", "file", "line"))
    if function[0] != _STRING or file[0] != _STRING or line[0] not in _SHORT | _LONG:
        return None
    offsets = [function[1], file[1], line[1]]
    formats = ["<i8", "<i8", "<i4" if line[0] in _SHORT else "<i8"]
    if min(offsets) < 0 or max(offsets) > _MAX_FRAME_BYTES:
        return None
    end = max(at + int(kind[2]) for at, kind in zip(offsets, formats, strict=True))
    return np.dtype(
        {
            "names": ["function", "file", "line"],
            "formats": formats,
            "offsets": offsets,
            "itemsize": -(-end // 8) * 8,  # a C struct that holds 64-bit handles
        }
    )


def _without_header(payloads: pl.DataFrame) -> pl.DataFrame:
    """Take the header off payloads of an export; exports to text have them in hexadecimal."""
    data = payloads["binaryData"]
    is_hex = data.cast(pl.String, strict=False).str.contains("^(?:[0-9A-Fa-f]{2}){32,}$")
    decoded = data.cast(pl.String, strict=False).str.decode("hex", strict=False)
    data = decoded.zip_with(is_hex.fill_null(value=False), data)
    words = data.bin.slice(8, 16)
    sized = payloads.with_columns(words.alias("words"), data.alias("payload"))
    sized = sized.filter(pl.col("words").bin.size() == 16)
    schema, size = (
        sized["words"].bin.slice(at, 8).bin.reinterpret(dtype=pl.Int64) for at in (0, 8)
    )
    return sized.select(
        "start",
        "globalTid",
        "category",
        "domainId",
        schema.alias("schemaId"),
        pl.col("payload").bin.slice(_HEADER_BYTES, size.clip(0, None)).alias("binaryData"),
    )


def _timed(own: pl.DataFrame, layout: StackLayout) -> pl.DataFrame:
    """Return `time_ns`, `process`, `thread`, `stack` and `weight_ns` of the stacks of a schema."""
    own = own.with_columns(
        process_of(own["globalTid"]).alias("process"),
        (pl.col("globalTid") & raw_tables.PID_MASK).alias("tid"),
    )
    pid = pl.col("process") & raw_tables.PID_MASK
    # nsys 2023 names its own thread, and numbers those of Python; the main thread is seen first.
    is_numbered = ~(pl.col("tid") == pid).any().over("process") & (pl.col("category") > 0)
    is_main = pl.col("category") == pl.col("category").min().over("process")
    base = pl.col("globalTid") - pl.col("tid")
    # Linux has no threads with numbers so high.
    unknown = base + raw_tables.PID_MASK - pl.col("category").clip(0, 1 << 20)
    thread = pl.when(is_numbered & is_main).then(base + pid).when(is_numbered).then(unknown)
    weight = pl.lit(None, pl.Int64)
    if layout.source_at is not None:
        source = own["binaryData"].bin.slice(layout.source_at, 4).bin.reinterpret(dtype=pl.UInt32)
        own = own.with_columns(source.alias("source"))
        weight = pl.when(pl.col("source") == _EVENT_BASED).then(pl.lit(0, pl.Int64))
    return own.select(
        pl.col("start").alias("time_ns"),
        "process",
        thread.otherwise("globalTid").alias("thread"),
        pl.col("stack").cast(pl.Int64),
        weight.alias("weight_ns"),
    )


def _frames(payloads: pl.Series, layout: StackLayout, first: int) -> pl.DataFrame:
    """Return `stack`, `depth` and the numbers in the frames of distinct payloads."""
    import numpy as np

    parts = payloads.bin.slice(layout.frames_at)
    counts = (parts.bin.size() // layout.frame.itemsize).to_numpy().astype(np.int64)
    rows = np.frombuffer(b"".join(parts.to_list()), layout.frame)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    return pl.DataFrame(
        {
            "stack": np.repeat(np.arange(len(counts)) + first, counts),
            "depth": np.arange(len(rows)) - starts,
            "function": rows["function"],
            "file": rows["file"],
            "line": rows["line"].astype(np.int64),
        },
        schema_overrides=dict.fromkeys(("stack", "depth", "function", "file"), pl.Int64),
    )


def _tables(
    samples: list[pl.DataFrame], frames: list[pl.DataFrame], strings: StringTable, unreadable: int
) -> PythonStacks:
    """Name what frames refer to, and make the tables of the trace."""
    timed = dict.fromkeys(("time_ns", "process", "thread", "stack", "weight_ns"), pl.Int64)
    numbers = dict.fromkeys(("stack", "depth", "function", "file", "line"), pl.Int64)
    sampled = pl.concat([pl.DataFrame(schema=timed), *samples])
    rows = pl.concat([pl.DataFrame(schema=numbers), *frames])
    line = pl.col("line")
    named = rows.with_columns(
        _texts(strings, rows["function"]).fill_null(MISSING).alias("function"),
        _files(_texts(strings, rows["file"])).alias("file"),
        pl.when(line.is_between(0, (1 << 31) - 1)).then(line),
        pl.lit("python").alias("kind"),
    )
    sampled = sampled.with_columns(pl.lit("nsys-python").alias("source"))
    return PythonStacks(
        as_table("stack_samples", sampled), as_table("stack_frames", named), unreadable
    )


def _texts(strings: StringTable, ids: pl.Series) -> pl.Series:
    """Look up names; nsys writes `<module>` as HTML does."""
    distinct = ids.unique()
    texts = [None if t is None else html.unescape(t) for t in strings.texts(distinct).to_list()]
    return ids.replace_strict(distinct, pl.Series(texts, dtype=pl.String), return_dtype=pl.String)


def _files(paths: pl.Series) -> pl.Series:
    distinct = paths.unique().drop_nulls()
    shown = pl.Series([shown_file(path) for path in distinct], dtype=pl.String)
    return paths.replace_strict(distinct, shown, default=None, return_dtype=pl.String)
