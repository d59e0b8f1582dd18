"""Source lines of kernels: binaries in the report, their DWARF line tables, source files."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import polars as pl

from gpusight.readers.name_columns import shown_file
from gpusight.readers.ncu.ncu_container import MessageSpan
from gpusight.readers.protobuf_wire import NUMBER, children, fields, integer, parse, signed, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.readers.protobuf_wire import Message


_EXTENDED, _COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE = 0, 1, 2, 3, 4
_ADD_CONSTANT, _FIXED_ADVANCE = 8, 9
_END, _SET_ADDRESS = 1, 2
_MAX_ROWS = 5_000_000


class LineTableError(ValueError):
    """The table of lines is not what DWARF says it must be."""


class LineRow(NamedTuple):
    """One row: an instruction and where it came from."""

    anchor: int
    """Where in the section the address stands that the function's own replaces."""
    offset: int
    """Bytes from there."""
    file: str
    line: int


class LineTable(NamedTuple):
    """The lines of one unit of compilation."""

    rows: list[LineRow]


def read_line_tables(section: bytes) -> list[LineTable]:
    """Run the programs of all units in the section."""
    reader = _Reader(section)
    tables = []
    while reader.at < len(section):
        tables.append(_unit(reader))
    return tables


class _Reader:
    """A place in the section, moving on as values are read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, size: int, *, signed: bool = False) -> int:
        """Read a number of so many bytes."""
        end = self.at + size
        if end > len(self.data):
            raise LineTableError("the table of lines is cut off")
        value = int.from_bytes(self.data[self.at : end], "little", signed=signed)
        self.at = end
        return value

    def varint(self) -> int:
        """Read an unsigned number of as many bytes as it needs."""
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise LineTableError("a number is longer than ten bytes")

    def signed_varint(self) -> int:
        """Read a signed number of as many bytes as it needs."""
        start = self.at
        value = self.varint()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def text(self) -> str:
        """Read a text up to its end mark."""
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise LineTableError("a name has no end")
        found = self.data[self.at : end].decode("utf-8", "replace")
        self.at = end + 1
        return found


@dataclass(frozen=True, slots=True)
class _Header:
    end: int
    step: int
    """Bytes that one unit of address stands for."""
    line_base: int
    line_range: int
    opcode_base: int
    operands: tuple[int, ...]
    """How many numbers follow each standard opcode."""
    files: tuple[str, ...]


def _unit(reader: _Reader) -> LineTable:
    header = _header(reader)
    machine = _Machine(header)
    while reader.at < header.end:
        machine.execute(reader)
    reader.at = header.end
    return LineTable(machine.rows)


def _header(reader: _Reader) -> _Header:
    length = reader.number(4)
    end = reader.at + length
    if end > len(reader.data):
        raise LineTableError("a unit reaches beyond the table of lines")
    version = reader.number(2)
    if not 2 <= version <= 4:
        raise LineTableError(f"lines are in DWARF {version}, which is not known here")
    program = reader.number(4) + reader.at
    step = reader.number(1)
    reader.number(1 if version < 4 else 2)  # marks of statements and VLIW, of no use here
    line_base = reader.number(1, signed=True)
    line_range, opcode_base = reader.number(1), reader.number(1)
    operands = tuple(reader.number(1) for _ in range(max(opcode_base - 1, 0)))
    files = _files(reader)
    reader.at = program
    if not line_range:
        raise LineTableError("the range of lines is zero")
    return _Header(end, step, line_base, line_range, opcode_base, operands, files)


def _files(reader: _Reader) -> tuple[str, ...]:
    """Read the tables of folders and files; file 0 is none."""
    folders = ["", *iter(reader.text, "")]
    files = [""]
    for name in iter(reader.text, ""):
        folder = reader.varint()
        reader.varint()  # time of change
        reader.varint()  # size
        inside = folders[folder] if folder < len(folders) else ""
        files.append(f"{inside}/{name}" if inside else name)
    return tuple(files)


class _Machine:
    """The registers of the line program, and the rows it has written."""

    def __init__(self, header: _Header) -> None:
        self._header = header
        self.rows: list[LineRow] = []
        self._reset()

    def _reset(self) -> None:
        self._anchor = -1
        self._offset = 0
        self._file = 1
        self._line = 1

    def execute(self, reader: _Reader) -> None:
        """Run one instruction."""
        opcode = reader.number(1)
        if opcode >= self._header.opcode_base:
            self._special(opcode)
        elif opcode == _EXTENDED:
            self._extended(reader)
        else:
            self._standard(opcode, reader)
        if len(self.rows) > _MAX_ROWS:
            raise LineTableError("there are too many lines")

    def _special(self, opcode: int) -> None:
        steps, line = divmod(opcode - self._header.opcode_base, self._header.line_range)
        self._offset += steps * self._header.step
        self._line += self._header.line_base + line
        self._write()

    def _extended(self, reader: _Reader) -> None:
        length = reader.varint()
        end = reader.at + length
        opcode = reader.number(1) if length else 0
        if opcode == _END:
            self._reset()
        elif opcode == _SET_ADDRESS:
            self._anchor = reader.at
            self._offset = reader.number(min(length - 1, 8))
        if end > len(reader.data):
            raise LineTableError("an instruction reaches beyond the table of lines")
        reader.at = end

    def _standard(self, opcode: int, reader: _Reader) -> None:
        if opcode == _COPY:
            self._write()
        elif opcode == _ADVANCE_PC:
            self._offset += reader.varint() * self._header.step
        elif opcode == _ADVANCE_LINE:
            self._line += reader.signed_varint()
        elif opcode == _SET_FILE:
            self._file = reader.varint()
        elif opcode == _ADD_CONSTANT:
            steps = (255 - self._header.opcode_base) // self._header.line_range
            self._offset += steps * self._header.step
        elif opcode == _FIXED_ADVANCE:
            self._offset += reader.number(2)
        else:
            for _ in range(self._header.operands[opcode - 1]):
                reader.varint()

    def _write(self) -> None:
        files = self._header.files
        name = files[self._file] if self._file < len(files) else ""
        self.rows.append(LineRow(self._anchor, self._offset, name, self._line))


_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LINES = ".debug_line"
_RELOCATIONS = {".rel.debug_line": struct.Struct("<QQ"), ".rela.debug_line": struct.Struct("<QQq")}
_TEXT = ".text."


class _Section(NamedTuple):
    name: str
    offset: int
    size: int


class CubinError(ValueError):
    """The bytes are no cubin whose lines we can read."""


@dataclass(frozen=True, slots=True)
class CodeLine:
    """One instruction and the line it came from."""

    function: str
    offset: int
    file: str
    line: int


def read_lines(cubin: memoryview) -> list[CodeLine]:
    """Give the lines of all functions; none when the cubin was compiled without them."""
    try:
        sections = {s.name: s for s in _sections(cubin)}
        if _LINES not in sections:
            return []
        functions = dict(_functions(cubin, sections))
        tables = read_line_tables(_bytes(cubin, sections[_LINES]))
        return list(_lines(tables, functions))
    except (struct.error, IndexError, OverflowError, LineTableError) as error:
        raise CubinError(str(error)) from error


def _lines(tables: list[LineTable], functions: dict[int, str]) -> Iterator[CodeLine]:
    for table in tables:
        for row in table.rows:
            function = functions.get(row.anchor)
            if function is not None:
                yield CodeLine(function, row.offset, row.file, row.line)


def _sections(cubin: memoryview) -> Iterator[_Section]:
    if bytes(cubin[: len(_MAGIC)]) != _MAGIC:
        return  # code in another form, such as PTX, has no table of lines
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [_SECTION_HEADER.unpack_from(cubin, table + i * size) for i in range(count)]
    names = headers[names_at][4] if headers else 0
    for header in headers:
        yield _Section(_text(cubin, names + header[0]), header[4], header[5])


def _functions(cubin: memoryview, sections: dict[str, _Section]) -> Iterator[tuple[int, str]]:
    """Give the name of the function at each place in the line table that waits for an address."""
    symbols, texts = sections.get(".symtab"), sections.get(".strtab")
    if symbols is None or texts is None:
        return
    for name, form in _RELOCATIONS.items():
        section = sections.get(name)
        if section is None:
            continue
        usable = section.size - section.size % form.size
        for place, info, *_ in form.iter_unpack(_part(cubin, section.offset, usable)):
            at = symbols.offset + (info >> 32) * _SYMBOL.size
            yield place, _text(cubin, texts.offset + _SYMBOL.unpack_from(cubin, at)[0])


def _part(cubin: memoryview, start: int, size: int) -> memoryview:
    if start + size > len(cubin):
        raise LineTableError("a section reaches beyond the binary")
    return cubin[start : start + size]


def _bytes(cubin: memoryview, section: _Section) -> bytes:
    return bytes(_part(cubin, section.offset, section.size))


def _text(cubin: memoryview, at: int, limit: int = 1 << 16) -> str:
    found = bytes(cubin[at : at + limit])
    return found.partition(b"\0")[0].decode("utf-8", "replace").removeprefix(_TEXT)


_REFERENCE, _CUBIN, _REVISION, _FILES, _SYMBOLS = 1, 4, 6, 8, 9
_HALF = 16
_Row: TypeAlias = "tuple[int, str, int, str | None, int]"
"""A row of `code_lines`."""


class _BinaryMessage(NamedTuple):
    """One message about a binary; several may speak of the same."""

    reference: int
    revision: int
    """Compute capability that it was made for, in two halves."""
    spans: dict[int, MessageSpan]
    """Where its larger fields lie."""


class ReportBinaries:
    """The binaries of a report, by their number in it."""

    def __init__(self, data: memoryview, sources: Sequence[MessageSpan]) -> None:
        self._data = data
        self._sources = sources

    @cached_property
    def _pieces(self) -> list[_BinaryMessage]:
        return [self._piece(span) for span in self._sources]

    def _piece(self, span: MessageSpan) -> _BinaryMessage:
        """Find the fields of a message; its cubin may have a hundred megabytes."""
        numbers: dict[int, int] = {}
        spans: dict[int, MessageSpan] = {}
        for number, start, end in fields(self._data, *span):
            if start == NUMBER:
                numbers[number] = signed(end)
            else:
                spans[number] = MessageSpan(start, end)
        return _BinaryMessage(numbers.get(_REFERENCE, 0), numbers.get(_REVISION, 0), spans)

    def _message(self, piece: _BinaryMessage, field: int) -> Message:
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

    def _lines(self, piece: _BinaryMessage) -> list[_Row] | list[str]:
        cubin = piece.spans.get(_CUBIN)
        if cubin is None:
            return []
        number = self.numbers[piece.reference]
        try:
            found = read_lines(self._data[cubin.start : cubin.end])
        except CubinError as error:
            return [f"the source lines of a binary cannot be read: {error}"]
        return [(number, n.function, n.offset, shown_file(n.file), n.line) for n in found]
