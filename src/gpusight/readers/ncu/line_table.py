"""DWARF line tables, versions 2 to 4: a small program for a machine that writes rows of lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
