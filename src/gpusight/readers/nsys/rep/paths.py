"""Paths to fields (`101.10`, `7:text`) and reading them for many messages at once.

`fields` explains the notation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from gpusight.readers.protobuf.sweep import Cursor, Found, Spans
from gpusight.readers.protobuf.texts import text_column
from gpusight.readers.protobuf.wire import FIXED32, FIXED64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from gpusight.readers.protobuf.sweep import Buffer, Int64, Rows

    Numbers: TypeAlias = NDArray[np.int64] | NDArray[np.float64]

Tree: TypeAlias = "dict[int, Tree | str]"
"""Field number -> kind of the field, or the fields wanted of the message in it."""


def leaves(path: str) -> list[str]:
    """List the fields that a path reads."""
    path = path.removeprefix("pid ")
    return [leaf for leaf in path.split("|") if leaf and not leaf.startswith("=")]


class PathSet:
    """The fields to read from one kind of message."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.leaves = sorted({leaf for path in paths for leaf in leaves(path)})
        self.tree: Tree = {}
        for leaf in self.leaves:
            _grow(self.tree, leaf)


def read_columns(buffer: Buffer, start: Int64, end: Int64, paths: PathSet) -> pl.DataFrame:
    """Decode these fields of all messages: one column a path, none for a field that none has."""
    reader = _Reader(buffer, len(start))
    reader.read(start, end, paths.tree, slice(None), "")
    columns = reader.columns
    columns.setdefault("#", pl.Series(np.arange(len(start), dtype=np.int64)))
    return pl.DataFrame(columns)


def column_expression(path: str, available: list[str]) -> pl.Expr | None:
    """Say how to get a table's column from decoded fields; None when there is nothing to get."""
    if path.startswith("="):
        return pl.lit(int(path[1:]), pl.Int64)
    found = [leaf for leaf in leaves(path) if leaf in available]
    if not found:
        return None
    value = pl.coalesce(found) if len(found) > 1 else pl.col(found[0])
    if path.startswith("pid "):
        return (value // (1 << 24)) & 0xFFFFFF
    return value


class _Reader:
    """Collects the columns of one `read_columns`."""

    def __init__(self, buffer: Buffer, height: int) -> None:
        self._buffer = buffer
        self._height = height
        self.columns: dict[str, pl.Series] = {}

    def read(self, start: Int64, end: Int64, tree: Tree, rows: Rows, prefix: str) -> None:
        """Read the fields of `tree` from the messages that belong to these rows."""
        cursor = Cursor(self._buffer, start, end)
        for number, kind in sorted(tree.items(), key=lambda item: item[0]):
            if isinstance(kind, dict):
                spans = cursor.spans(number)
                if spans is not None:
                    inner = _compose(rows, spans.rows)
                    self.read(spans.start, spans.end, kind, inner, f"{prefix}{number}.")
            else:
                self._read_leaf(cursor, number, kind, rows, prefix)

    def _read_leaf(self, cursor: Cursor, number: int, kind: str, rows: Rows, prefix: str) -> None:
        found: Found | Spans | None
        if kind == "":
            found = cursor.integers(number)
        elif kind in _REAL_KINDS:
            found = cursor.reals(number, _REAL_KINDS[kind])
        else:
            found = cursor.spans(number)
        if found is None:
            return
        rows = _compose(rows, found.rows)
        if isinstance(found, Found):
            column = self._number_column(rows, found.values)
        elif kind == ":text":
            column = self._text_column(rows, found)
        else:
            column = self._number_column(rows, np.ones(len(found.start), np.int64))
        self.columns[f"{prefix}{number}{kind}"] = column

    def _number_column(self, rows: Rows, values: Numbers) -> pl.Series:
        if isinstance(rows, slice):
            return pl.Series(values)
        full = np.zeros(self._height, values.dtype)
        full[rows] = values
        present = np.zeros(self._height, np.bool_)
        present[rows] = True
        frame = pl.DataFrame({"value": full, "present": present})
        return frame.select(pl.when("present").then("value")).to_series()

    def _text_column(self, rows: Rows, spans: Spans) -> pl.Series:
        texts = text_column(self._buffer, spans.start, spans.end)
        if isinstance(rows, slice):
            return texts
        place = np.full(self._height, -1, np.int64)
        place[rows] = np.arange(len(rows), dtype=np.int64)
        index = pl.Series(place)
        return texts.gather(index.set(index < 0, None))


_REAL_KINDS = {":f64": FIXED64, ":f32": FIXED32}


def _compose(outer: Rows, inner: Rows) -> Rows:
    """Turn rows counted among `outer` into rows of the whole."""
    if isinstance(inner, slice):
        return outer
    return inner if isinstance(outer, slice) else outer[inner]


def _grow(tree: Tree, leaf: str) -> None:
    name, colon, kind = leaf.partition(":")
    *parents, number = (int(part) for part in name.split("."))
    for parent in parents:
        branch = tree.setdefault(parent, {})
        assert isinstance(branch, dict), f"{leaf}: field {parent} is read both as message and value"
        tree = branch
    tree[number] = colon + kind
