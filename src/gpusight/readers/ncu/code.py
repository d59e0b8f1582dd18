"""The code that launches ran: source files in the report, lines of instructions, addresses."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from gpusight.readers.ncu.cubin import CubinError, read_lines
from gpusight.readers.paths import shown_file
from gpusight.readers.protobuf.wire import child, children, fields, integer, parse, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.readers.ncu.container import Span
    from gpusight.readers.protobuf.wire import Message

_REFERENCE, _CUBIN, _REVISION, _FILES, _SYMBOLS = 1, 4, 6, 8, 9
_HALF = 16


class _Piece(NamedTuple):
    """One message about a binary; several may speak of the same."""

    reference: int
    cubin: Span | None
    small: Message
    """All of its fields but the cubin."""


class Code:
    """The binaries of a report, by their number in it."""

    def __init__(self, data: memoryview, sources: Sequence[Span]) -> None:
        self._data = data
        self._sources = sources
        self.problems: list[str] = []
        """What of it could not be read."""

    @cached_property
    def _pieces(self) -> list[_Piece]:
        return [self._piece(span) for span in self._sources]

    def _piece(self, span: Span) -> _Piece:
        """Read a message without its cubin, which may have a hundred megabytes."""
        small = bytearray()
        cubin = None
        at = span.start
        for number, start, end in fields(self._data, *span):
            if number == _CUBIN and start >= 0:
                cubin = type(span)(start, end)
                small += self._data[at : start - _prefix(end - start)]
                at = end
        small += self._data[at : span.end]
        message = parse(bytes(small))
        return _Piece(integer(message, _REFERENCE) or 0, cubin, message)

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
            for symbol in children(child(piece.small, _SYMBOLS), 1)
        }

    def capability(self, reference: int | None) -> tuple[int, int] | None:
        """Give the compute capability that a binary was made for."""
        for piece in self._pieces:
            revision = integer(piece.small, _REVISION)
            if piece.reference == reference and revision:
                return revision >> _HALF, revision & ((1 << _HALF) - 1)
        return None

    def files(self) -> pl.DataFrame:
        """Give the table `source_files`."""
        rows = [
            (self.numbers[piece.reference], shown_file(text(file, 1) or ""), text(file, 2))
            for piece in self._pieces
            for file in children(child(piece.small, _FILES), 1)
        ]
        schema = {"binary": pl.Int64, "path": pl.String, "content": pl.String}
        return pl.DataFrame(rows, schema=schema, orient="row").unique(maintain_order=True)

    def lines(self) -> pl.DataFrame:
        """Give the table `code_lines`."""
        rows = [row for piece in self._pieces for row in self._lines(piece)]
        schema = {
            "binary": pl.Int64, "function": pl.String, "offset": pl.Int64, "path": pl.String,
            "line": pl.Int64,
        }  # fmt: skip
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        return frame.sort("binary", "function", "offset", maintain_order=True)

    def has_lines(self) -> bool:
        """Tell whether any binary was compiled with its lines, without reading them all."""
        return any(next(self._lines(piece), None) is not None for piece in self._pieces)

    def _lines(self, piece: _Piece) -> Iterator[tuple[int, str, int, str | None, int]]:
        if piece.cubin is None:
            return
        try:
            found = read_lines(self._data[piece.cubin.start : piece.cubin.end])
        except CubinError as error:
            self.problems.append(f"the lines of a binary cannot be read: {error}")
            return
        number = self.numbers[piece.reference]
        for line in found:
            yield number, line.function, line.offset, shown_file(line.file), line.line


def _prefix(size: int) -> int:
    """Measure tag and length in front of a field of this size."""
    return 1 + max(1, (size.bit_length() + 6) // 7)
