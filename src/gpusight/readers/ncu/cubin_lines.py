"""Source lines of kernels: binaries in the report, their DWARF line tables, source files."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from gpusight.readers.ncu.ncu_container import MessageSpan
from gpusight.readers.protobuf_wire import NUMBER, children, fields, integer, parse, signed, text
from gpusight.readers.tables import shown_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.readers.protobuf_wire import Message


_EXTENDED, _COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE = 0, 1, 2, 3, 4
_ADD_CONSTANT, _FIXED_ADVANCE = 8, 9
_END, _SET_ADDRESS = 1, 2
_MAX_ROWS = 5_000_000


class CubinError(ValueError):
    """The bytes are not a cubin whose line table can be read."""


class LineRow(NamedTuple):
    """One row of the DWARF line table: an instruction and its source line."""

    anchor: int
    """Position in the section of the address that the function's own replaces."""
    offset: int
    """Bytes from there."""
    file: str
    line: int


def read_line_tables(section: bytes) -> Iterator[LineRow]:
    """Run the line programs of all compilation units in the section."""
    reader = _Reader(section)
    while reader.at < len(section):
        header = _header(reader)
        machine = _Machine(header)
        while reader.at < header.end:
            machine.execute(reader)
        reader.at = header.end
        yield from machine.rows


class _Reader:
    """A position in the section that advances as values are read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, size: int, *, signed: bool = False) -> int:
        """Read a number of `size` bytes."""
        end = self.at + size
        if end > len(self.data):
            raise CubinError("the table of lines is cut off")
        value = int.from_bytes(self.data[self.at : end], "little", signed=signed)
        self.at = end
        return value

    def varint(self) -> int:
        """Read an unsigned LEB128 number."""
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise CubinError("a number is longer than ten bytes")

    def signed_varint(self) -> int:
        """Read a signed LEB128 number."""
        start = self.at
        value = self.varint()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def text(self) -> str:
        """Read a zero-terminated string."""
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise CubinError("a name has no end")
        string = self.data[self.at : end].decode("utf-8", "replace")
        self.at = end + 1
        return string


@dataclass(frozen=True, slots=True)
class _Header:
    end: int
    step: int
    """Minimum instruction length in bytes."""
    line_base: int
    line_range: int
    opcode_base: int
    operands: tuple[int, ...]
    """Number of operands of each standard opcode."""
    files: tuple[str, ...]


def _header(reader: _Reader) -> _Header:
    length = reader.number(4)
    end = reader.at + length
    if end > len(reader.data):
        raise CubinError("a unit reaches beyond the table of lines")
    version = reader.number(2)
    if not 2 <= version <= 4:
        raise CubinError(f"lines are in DWARF {version}, which is not known here")
    program = reader.number(4) + reader.at
    step = reader.number(1)
    reader.number(1 if version < 4 else 2)  # statement flags and VLIW operations, not used
    line_base = reader.number(1, signed=True)
    line_range, opcode_base = reader.number(1), reader.number(1)
    operands = tuple(reader.number(1) for _ in range(max(opcode_base - 1, 0)))
    files = _files(reader)
    reader.at = program
    if not line_range:
        raise CubinError("the range of lines is zero")
    return _Header(end, step, line_base, line_range, opcode_base, operands, files)


def _files(reader: _Reader) -> tuple[str, ...]:
    """Read the tables of directories and files; file 0 does not exist."""
    folders = ["", *iter(reader.text, "")]
    files = [""]
    for name in iter(reader.text, ""):
        folder = reader.varint()
        reader.varint()  # modification time
        reader.varint()  # size
        inside = folders[folder] if folder < len(folders) else ""
        files.append(f"{inside}/{name}" if inside else name)
    return tuple(files)


class _Machine:
    """The registers of the line program, and the rows it has emitted."""

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
        header = self._header
        opcode = reader.number(1)
        if opcode >= header.opcode_base:
            steps, line = divmod(opcode - header.opcode_base, header.line_range)
            self._offset += steps * header.step
            self._line += header.line_base + line
            self._emit()
        elif opcode == _EXTENDED:
            self._extended(reader)
        else:
            self._standard(opcode, reader)
        if len(self.rows) > _MAX_ROWS:
            raise CubinError("there are too many lines")

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
            raise CubinError("an instruction reaches beyond the table of lines")
        reader.at = end

    def _standard(self, opcode: int, reader: _Reader) -> None:
        if opcode == _COPY:
            self._emit()
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

    def _emit(self) -> None:
        files = self._header.files
        name = files[self._file] if self._file < len(files) else ""
        self.rows.append(LineRow(self._anchor, self._offset, name, self._line))


_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LINES = ".debug_line"
_RELOCATIONS = {".rel.debug_line": struct.Struct("<QQ"), ".rela.debug_line": struct.Struct("<QQq")}
_MAX_NAME_BYTES = 1 << 16


class _Section(NamedTuple):
    offset: int
    size: int


def read_lines(cubin: memoryview) -> list[tuple[str, LineRow]]:
    """Return the line rows of all functions; none when compiled without line information."""
    try:
        sections = _sections(cubin)
        if _LINES not in sections:
            return []
        functions = dict(_functions(cubin, sections))
        rows = read_line_tables(bytes(_part(cubin, *sections[_LINES])))
        return [(functions[row.anchor], row) for row in rows if row.anchor in functions]
    except (struct.error, IndexError, OverflowError) as error:
        raise CubinError(str(error)) from error


def _sections(cubin: memoryview) -> dict[str, _Section]:
    if bytes(cubin[: len(_MAGIC)]) != _MAGIC:
        return {}  # code in another form, such as PTX, has no line table
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [_SECTION_HEADER.unpack_from(cubin, table + i * size) for i in range(count)]
    names = headers[names_at][4] if headers else 0
    return {_text(cubin, names + header[0]): _Section(header[4], header[5]) for header in headers}


def _functions(cubin: memoryview, sections: dict[str, _Section]) -> Iterator[tuple[int, str]]:
    """Yield each position in the line table that is relocated, and the name of its function."""
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
        raise CubinError("a section reaches beyond the binary")
    return cubin[start : start + size]


def _text(cubin: memoryview, at: int) -> str:
    text = bytes(cubin[at : at + _MAX_NAME_BYTES])
    return text.partition(b"\0")[0].decode("utf-8", "replace").removeprefix(".text.")


_REFERENCE, _CUBIN, _REVISION, _FILES, _SYMBOLS = 1, 4, 6, 8, 9


class _BinaryMessage(NamedTuple):
    """One message about a binary; several may be about the same."""

    reference: int
    revision: int
    """Compute capability that it was compiled for: major and minor, 16 bits each."""
    spans: dict[int, MessageSpan]
    """Positions of its larger fields."""


class ReportBinaries:
    """The binaries of a report, by their number in it."""

    def __init__(self, data: memoryview, sources: Sequence[MessageSpan]) -> None:
        self._data = data
        self._sources = sources

    @cached_property
    def _messages(self) -> list[_BinaryMessage]:
        """The fields of each message, not decoded: a cubin may have a hundred megabytes."""
        messages = []
        for source in self._sources:
            numbers: dict[int, int] = {}
            spans: dict[int, MessageSpan] = {}
            for number, start, end in fields(self._data, *source):
                if start == NUMBER:
                    numbers[number] = signed(end)
                else:
                    spans[number] = MessageSpan(start, end)
            messages.append(
                _BinaryMessage(numbers.get(_REFERENCE, 0), numbers.get(_REVISION, 0), spans)
            )
        return messages

    def _entries(self, binary: _BinaryMessage, field: int) -> list[Message]:
        span = binary.spans.get(field)
        return [] if span is None else children(parse(self._data[span.start : span.end]), 1)

    @cached_property
    def numbers(self) -> dict[int, int]:
        """Numbers of binaries, by the reference that results hold."""
        references = dict.fromkeys(binary.reference for binary in self._messages)
        return {reference: number for number, reference in enumerate(references)}

    @cached_property
    def addresses(self) -> dict[tuple[int, str], int]:
        """Addresses of functions, by reference and name."""
        return {
            (binary.reference, text(symbol, 1) or ""): integer(symbol, 2) or 0
            for binary in self._messages
            for symbol in self._entries(binary, _SYMBOLS)
        }

    def capability(self, reference: int | None) -> tuple[int, int] | None:
        """Return the compute capability that a binary was compiled for."""
        for binary in self._messages:
            if binary.reference == reference and binary.revision:
                return binary.revision >> 16, binary.revision & 0xFFFF
        return None

    def files(self) -> pl.DataFrame:
        """Return the table `source_files`."""
        rows = [
            (self.numbers[binary.reference], shown_file(text(file, 1) or ""), text(file, 2))
            for binary in self._messages
            for file in self._entries(binary, _FILES)
        ]
        schema = {"binary": pl.Int64, "path": pl.String, "content": pl.String}
        return pl.DataFrame(rows, schema=schema, orient="row").unique(maintain_order=True)

    def lines(self) -> pl.DataFrame:
        """Return the table `code_lines`."""
        schema = {
            "binary": pl.Int64, "function": pl.String, "offset": pl.Int64, "path": pl.String,
            "line": pl.Int64,
        }  # fmt: skip
        frame = pl.DataFrame(self._lines_and_problems[0], schema=schema, orient="row")
        return frame.sort("binary", "function", "offset", maintain_order=True)

    def problems(self) -> list[str]:
        """Return why the lines of some binaries cannot be read."""
        return self._lines_and_problems[1]

    @cached_property
    def _lines_and_problems(self) -> tuple[list[tuple[int, str, int, str | None, int]], list[str]]:
        lines, problems = [], []
        for binary in self._messages:
            cubin = binary.spans.get(_CUBIN)
            if cubin is None:
                continue
            number = self.numbers[binary.reference]
            try:
                lines += [
                    (number, function, row.offset, shown_file(row.file), row.line)
                    for function, row in read_lines(self._data[cubin.start : cubin.end])
                ]
            except CubinError as error:
                problems.append(f"source lines of a binary cannot be read: {error}")
        return lines, problems
