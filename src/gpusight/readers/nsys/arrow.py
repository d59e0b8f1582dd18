"""`nsys export --type arrow`: one file, one Arrow IPC stream a table, one after the other.

Arrow libraries stop at the first stream's end, so the boundaries and table names are found here:
every message says how long its body is, and the schema message names the table in its metadata.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from gpusight.errors import DamagedCaptureError

if TYPE_CHECKING:
    from pathlib import Path

CONTINUATION = b"\xff\xff\xff\xff"
_SCHEMA_MESSAGE = 1
_MESSAGE_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = 1, 2, 3
_SCHEMA_METADATA = 2


class Span(NamedTuple):
    """Where in a file one table's stream lies."""

    start: int
    end: int


class Flatbuffer(NamedTuple):
    """A table inside a FlatBuffers message."""

    data: bytes
    at: int

    def _field(self, index: int) -> int:
        """Position of a field's value; 0 when the field is absent."""
        vtable = self.at - int(struct.unpack_from("<i", self.data, self.at)[0])
        size = struct.unpack_from("<H", self.data, vtable)[0]
        slot = 4 + 2 * index
        offset = struct.unpack_from("<H", self.data, vtable + slot)[0] if slot < size else 0
        return self.at + offset if offset else 0

    def byte(self, index: int) -> int:
        """Give a field of one byte; 0 when absent."""
        at = self._field(index)
        return self.data[at] if at else 0

    def int64(self, index: int) -> int:
        """Give a field of eight bytes, signed; 0 when absent."""
        at = self._field(index)
        return int(struct.unpack_from("<q", self.data, at)[0]) if at else 0

    def follow(self, at: int) -> int:
        """Give the place that an offset points to."""
        return at + int(struct.unpack_from("<I", self.data, at)[0])

    def table(self, index: int) -> Flatbuffer | None:
        """Give a table within this one; None when absent."""
        at = self._field(index)
        return Flatbuffer(self.data, self.follow(at)) if at else None

    def text(self, index: int) -> str:
        """Give a text; empty when absent."""
        at = self._field(index)
        if not at:
            return ""
        at = self.follow(at)
        length = struct.unpack_from("<I", self.data, at)[0]
        return self.data[at + 4 : at + 4 + length].decode("utf-8", "replace")

    def structs(self, index: int, form: str) -> list[tuple[int, ...]]:
        """Give a vector of structs, each laid out as `struct` describes it."""
        at = self._field(index)
        if not at:
            return []
        at = self.follow(at)
        count = struct.unpack_from("<I", self.data, at)[0]
        data = self.data[at + 4 : at + 4 + struct.calcsize(form) * count]
        return list(struct.iter_unpack(form, data))

    def tables(self, index: int) -> list[Flatbuffer]:
        """Give a vector of tables."""
        at = self._field(index)
        if not at:
            return []
        at = self.follow(at)
        count = struct.unpack_from("<I", self.data, at)[0]
        if count > len(self.data):
            raise struct.error("vector longer than its message")
        return [Flatbuffer(self.data, self.follow(at + 4 + 4 * i)) for i in range(count)]


def find_streams(path: Path) -> dict[str, Span]:
    """Find each table's stream in the file."""
    spans: dict[str, Span] = {}
    size = path.stat().st_size
    with path.open("rb") as file:
        start, name = 0, ""
        while (at := file.tell()) < size:
            try:
                marker, length = file.read(4), struct.unpack("<i", file.read(4))[0]
                if marker != CONTINUATION or length < 0:
                    raise struct.error("no message where one should start")
                if length == 0:
                    if name:
                        spans[name] = Span(start, file.tell())
                    start, name = file.tell(), ""
                    continue
                metadata = file.read(length)
                message = Flatbuffer(metadata, struct.unpack_from("<I", metadata, 0)[0])
                name = _table_name(message) or name
                body = message.int64(_MESSAGE_BODY_LENGTH)
            except (struct.error, IndexError) as error:
                raise _damaged(path, at, error) from error
            if body < 0 or file.tell() + body > size:
                raise _damaged(path, at, "the file ends inside a table")
            file.seek(body, 1)
    if name:
        raise _damaged(path, size, "the file ends inside a table")
    return spans


def _table_name(message: Flatbuffer) -> str:
    schema = message.table(_MESSAGE_HEADER)
    if message.byte(_MESSAGE_TYPE) != _SCHEMA_MESSAGE or schema is None:
        return ""
    pairs = {pair.text(0): pair.text(1) for pair in schema.tables(_SCHEMA_METADATA)}
    return pairs.get("table_name", "")


def _damaged(path: Path, at: int, why: object) -> DamagedCaptureError:
    return DamagedCaptureError(
        f"{path} cannot be read as an nsys Arrow export",
        why=f"{why} (at byte {at:,})",
        hint="export the report again: nsys export --type arrow --force-overwrite true X.nsys-rep",
    )
