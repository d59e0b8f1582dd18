"""Folders of Parquet or Arrow tables, and files of Arrow streams: edits of frames and of bytes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import polars as pl

from fuzz.mutate.raw import REALS, edit_bytes, int64, pick, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from fuzz.formats import Files

_DTYPES = (
    pl.Int8, pl.Int32, pl.Int64, pl.UInt64, pl.Float32, pl.Float64, pl.String, pl.Boolean,
    pl.Binary, pl.Null, pl.Categorical, pl.Date, pl.Datetime("ns"), pl.Duration("us"),
    pl.Decimal(38, 2), pl.List(pl.Int64), pl.Struct({"a": pl.Int64}),
)  # fmt: skip
_PARQUET, _STREAM, _FOOTER_BYTES = b"PAR1", b"\xff\xff\xff\xff", 8


def edit_folder(rng: Random, files: Files) -> Files:
    """Edit a table of a folder, its file, or which tables there are."""
    files = dict(files)
    name = rng.choice(sorted(files))
    way = rng.random()
    if way < 0.55:
        files[name] = _edit_frame(rng, files[name])
    elif way < 0.93:
        files[name] = edit_file(rng, files[name])
    elif way < 0.96:
        del files[name]
    else:
        files[rng.choice(sorted(files))] = files[name]
    return files


def edit_file(rng: Random, data: bytes) -> bytes:
    """Edit the bytes of a file where its structure is: in the footer, or in the first messages."""
    if data.startswith(_PARQUET) and rng.random() < 0.6:
        size = int.from_bytes(data[-_FOOTER_BYTES:-4], "little")
        start = max(0, len(data) - _FOOTER_BYTES - size)
        footer = edit_bytes(rng, data[start:-_FOOTER_BYTES])
        return data[:start] + footer + len(footer).to_bytes(4, "little") + _PARQUET
    if rng.random() < 0.6:
        head = rng.randrange(16, 1200)
        return edit_bytes(rng, data[:head]) + data[head:]
    return edit_bytes(rng, data)


def _edit_frame(rng: Random, data: bytes) -> bytes:
    frame = read_table(data)
    for _ in range(rng.choice((1, 1, 2))):
        if frame.width:
            try:
                frame = pick(rng, _FRAME_EDITS)(rng, frame, rng.choice(frame.columns))
            except (pl.exceptions.PolarsError, OverflowError, TypeError):
                continue  # no such cast, or no such value in this type
    try:
        return write_table(frame, data)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return data


def read_table(data: bytes) -> pl.DataFrame:
    """Read a table in any of the three forms."""
    source = io.BytesIO(data)
    if data.startswith(_PARQUET):
        return pl.read_parquet(source)
    return pl.read_ipc_stream(source) if data.startswith(_STREAM) else pl.read_ipc(source)


def write_table(frame: pl.DataFrame, like: bytes) -> bytes:
    """Write a table in the form of another."""
    target = io.BytesIO()
    if like.startswith(_PARQUET):
        frame.write_parquet(target, compression="snappy")
    elif like.startswith(_STREAM):
        frame.write_ipc_stream(target, compat_level=pl.CompatLevel.oldest())
    else:
        frame.write_ipc(target)
    return target.getvalue()


def _cast(rng: Random, frame: pl.DataFrame, column: str) -> pl.DataFrame:
    return frame.with_columns(pl.col(column).cast(rng.choice(_DTYPES), strict=False))


def _set(rng: Random, frame: pl.DataFrame, column: str) -> pl.DataFrame:
    dtype = frame.schema[column]
    value = (
        text(rng) if dtype == pl.String else rng.choice(REALS) if dtype.is_float() else int64(rng)
    )
    rows = (
        pl.int_range(pl.len()) == rng.randrange(max(1, frame.height))
        if rng.random() < 0.7
        else pl.lit(value=True)
    )
    return frame.with_columns(
        pl.when(rows).then(pl.lit(value)).otherwise(pl.col(column)).cast(dtype).alias(column)
    )


def _null(rng: Random, frame: pl.DataFrame, column: str) -> pl.DataFrame:
    rows = pl.int_range(pl.len()) >= rng.randrange(max(1, frame.height))
    return frame.with_columns(pl.when(rows).then(None).otherwise(pl.col(column)).alias(column))


def _drop(_: Random, frame: pl.DataFrame, column: str) -> pl.DataFrame:
    return frame.drop(column)


def _rename(rng: Random, frame: pl.DataFrame, column: str) -> pl.DataFrame:
    return frame.rename({column: rng.choice((text(rng), column.lower(), "end", "globalTid"))})


def _rows(rng: Random, frame: pl.DataFrame, _: str) -> pl.DataFrame:
    return rng.choice((frame.head(0), frame.reverse(), pl.concat([frame] * 3)))


_FRAME_EDITS: tuple[tuple[float, Callable[[Random, pl.DataFrame, str], pl.DataFrame]], ...] = (
    (4, _cast), (6, _set), (2, _null), (2, _drop), (1, _rename), (1, _rows),
)  # fmt: skip
