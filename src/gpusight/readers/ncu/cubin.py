"""Which source line each instruction of a cubin was compiled from.

A cubin is an ELF file. Compiled with `-lineinfo` it has a table of lines in DWARF's form, without
the rest of DWARF, so no library for debug information opens it. Addresses in that table are filled
in at loading: relocations name the function that a run of lines belongs to.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpusight.readers.ncu.line_table import LineTable, LineTableError, read_line_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

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
