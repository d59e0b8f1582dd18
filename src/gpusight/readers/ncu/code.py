"""The code that launches ran: source files in the report, lines of instructions, addresses."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import polars as pl

from gpusight.readers.ncu.container import Span
from gpusight.readers.ncu.cubin import CubinError, read_lines
from gpusight.readers.paths import shown_file
from gpusight.readers.protobuf.wire import NUMBER, children, fields, integer, parse, signed, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.readers.protobuf.wire import Message

_REFERENCE, _CUBIN, _REVISION, _FILES, _SYMBOLS = 1, 4, 6, 8, 9
_HALF = 16
_Row: TypeAlias = "tuple[int, str, int, str | None, int]"
"""A row of `code_lines`."""


class _Piece(NamedTuple):
    """One message about a binary; several may speak of the same."""

    reference: int
    revision: int
    """Compute capability that it was made for, in two halves."""
    spans: dict[int, Span]
    """Where its larger fields lie."""


class Code:
    """The binaries of a report, by their number in it."""

    def __init__(self, data: memoryview, sources: Sequence[Span]) -> None:
        self._data = data
        self._sources = sources

    @cached_property
    def _pieces(self) -> list[_Piece]:
        return [self._piece(span) for span in self._sources]

    def _piece(self, span: Span) -> _Piece:
        """Find the fields of a message; its cubin may have a hundred megabytes."""
        numbers: dict[int, int] = {}
        spans: dict[int, Span] = {}
        for number, start, end in fields(self._data, *span):
            if start == NUMBER:
                numbers[number] = signed(end)
            else:
                spans[number] = Span(start, end)
        return _Piece(numbers.get(_REFERENCE, 0), numbers.get(_REVISION, 0), spans)

    def _message(self, piece: _Piece, field: int) -> Message:
        span = piece.spans.get(field)
        return {} if span is None else parse(self._data[span.start : span.end])

    @cached_property
    def numbers(self) -> dict[int, int]:
        """Numbers of binaries, by what results refer to them with."""
        found = dict.fromkeys(piece.reference for piece in self._pieces)
        return {reference: number for number, reference in enumerate(found)}

    @cached_property
    def addresses(self) -> dict[tuple[int, str], int]:
        """Where functions lay, by reference and name."""
        return {
            (piece.reference, text(symbol, 1) or ""): integer(symbol, 2) or 0
            for piece in self._pieces
            for symbol in children(self._message(piece, _SYMBOLS), 1)
        }

    def capability(self, reference: int | None) -> tuple[int, int] | None:
        """Give the compute capability that a binary was made for."""
        for piece in self._pieces:
            if piece.reference == reference and piece.revision:
                return piece.revision >> _HALF, piece.revision & ((1 << _HALF) - 1)
        return None

    def files(self) -> pl.DataFrame:
        """Give the table `source_files`."""
        rows = [
            (self.numbers[piece.reference], shown_file(text(file, 1) or ""), text(file, 2))
            for piece in self._pieces
            for file in children(self._message(piece, _FILES), 1)
        ]
        schema = {"binary": pl.Int64, "path": pl.String, "content": pl.String}
        return pl.DataFrame(rows, schema=schema, orient="row").unique(maintain_order=True)

    def lines(self) -> pl.DataFrame:
        """Give the table `code_lines`."""
        rows = [row for found in self._read_lines for row in found if isinstance(row, tuple)]
        schema = {
            "binary": pl.Int64, "function": pl.String, "offset": pl.Int64, "path": pl.String,
            "line": pl.Int64,
        }  # fmt: skip
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        return frame.sort("binary", "function", "offset", maintain_order=True)

    def problems(self) -> list[str]:
        """Say of which binaries the lines cannot be read."""
        return [row for found in self._read_lines for row in found if isinstance(row, str)]

    @cached_property
    def _read_lines(self) -> list[list[_Row] | list[str]]:
        """Read the lines of every binary; a text where that cannot be done."""
        return [self._lines(piece) for piece in self._pieces]

    def _lines(self, piece: _Piece) -> list[_Row] | list[str]:
        cubin = piece.spans.get(_CUBIN)
        if cubin is None:
            return []
        number = self.numbers[piece.reference]
        try:
            found = read_lines(self._data[cubin.start : cubin.end])
        except CubinError as error:
            return [f"the source lines of a binary cannot be read: {error}"]
        return [(number, n.function, n.offset, shown_file(n.file), n.line) for n in found]
