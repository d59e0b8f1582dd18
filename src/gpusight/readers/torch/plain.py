"""Columns out of lists of dictionaries that a file of unknown origin holds."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

    Row: TypeAlias = dict[str, Any]


class MisfitError(Exception):
    """The data is not shaped as it should be; the message says what."""


@contextmanager
def no_collecting() -> Iterator[None]:
    """Hold Python's search for unreachable objects, which millions of reachable ones make long."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def rows_of(value: Any, what: str) -> list[Row]:
    """Take a list of dictionaries for what it is; nothing at all is an empty one."""
    if value is None:
        return []
    if type(value) is not list or set(map(type, value)) - {dict}:
        raise MisfitError(f"{what} are not a list of dictionaries")
    return value


def check_total(lists: Iterable[Any], limit: int, what: str) -> None:
    """Refuse lists of more than `limit` entries in all: they must be the same one many times."""
    if sum(len(entries) for entries in lists if type(entries) is list) > limit:
        raise MisfitError(f"{what} are the same over and over")


def integers(rows: Sequence[Row], key: str, *, required: bool = False) -> pl.Series:
    """Make a column of whole numbers; null where a row has none."""
    values = [row.get(key) for row in rows]
    if set(map(type, values)) - {int, type(None)}:
        raise MisfitError(f"'{key}' is not a whole number everywhere")
    try:
        column = pl.Series(key, values, dtype=pl.Int64)
    except (OverflowError, TypeError, pl.exceptions.PolarsError):
        raise MisfitError(f"'{key}' is beyond 64 bits") from None
    return _complete(column, required=required)


def texts(rows: Sequence[Row], key: str, *, required: bool = False) -> pl.Series:
    """Make a column of texts; null where a row has none."""
    values = [row.get(key) for row in rows]
    if set(map(type, values)) - {str, type(None)}:
        raise MisfitError(f"'{key}' is not a text everywhere")
    words = {value: as_text(value) for value in set(values) if value is not None}
    column = pl.Series(key, [words.get(value) for value in values], dtype=pl.String)
    return _complete(column, required=required)


def _complete(column: pl.Series, *, required: bool) -> pl.Series:
    if required and column.null_count():
        raise MisfitError(f"{column.null_count()} entries have no '{column.name}'")
    return column


def as_text(value: Any) -> str:
    """Give a text without halves of surrogate pairs, which no encoding takes; else an empty one."""
    if type(value) is not str:
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
