"""Arrow and Parquet files as bytes: where streams lie, and how large a file is decompressed."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusight.errors import DamagedCaptureError
from gpusight.readers.protobuf_wire import WireError, read_varint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO


CONTINUATION = b"\xff\xff\xff\xff"
_SCHEMA_MESSAGE = 1
_MESSAGE_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = 1, 2, 3
_SCHEMA_METADATA = 2


class StreamSpan(NamedTuple):
    """Byte range of one table's stream in a file."""

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
        """Return a field of one byte; 0 when absent."""
        at = self._field(index)
        return self.data[at] if at else 0

    def int64(self, index: int) -> int:
        """Return a field of eight bytes, signed; 0 when absent."""
        at = self._field(index)
        return int(struct.unpack_from("<q", self.data, at)[0]) if at else 0

    def follow(self, at: int) -> int:
        """Return the position that an offset points to."""
        return at + int(struct.unpack_from("<I", self.data, at)[0])

    def table(self, index: int) -> Flatbuffer | None:
        """Return a table within this one; None when absent."""
        at = self._field(index)
        return Flatbuffer(self.data, self.follow(at)) if at else None

    def _vector(self, index: int) -> tuple[int, int]:
        """Return position and length of a vector; 0 and 0 when absent."""
        at = self._field(index)
        if not at:
            return 0, 0
        at = self.follow(at)
        return at + 4, struct.unpack_from("<I", self.data, at)[0]

    def text(self, index: int) -> str:
        """Return a text; empty when absent."""
        at, length = self._vector(index)
        return self.data[at : at + length].decode("utf-8", "replace")

    def structs(self, index: int, form: str) -> list[tuple[int, ...]]:
        """Return a vector of structs, each laid out as `struct` describes it."""
        at, count = self._vector(index)
        return list(struct.iter_unpack(form, self.data[at : at + struct.calcsize(form) * count]))

    def tables(self, index: int) -> list[Flatbuffer]:
        """Return a vector of tables."""
        at, count = self._vector(index)
        if count > len(self.data):
            raise struct.error("vector longer than its message")
        return [Flatbuffer(self.data, self.follow(at + 4 * i)) for i in range(count)]


def find_streams(path: Path) -> dict[str, StreamSpan]:
    """Find each table's stream in the file."""
    spans: dict[str, StreamSpan] = {}
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
                        spans[name] = StreamSpan(start, file.tell())
                    start, name = file.tell(), ""
                    continue
                metadata = file.read(length)
                message = Flatbuffer(metadata, struct.unpack_from("<I", metadata, 0)[0])
                schema = message.table(_MESSAGE_HEADER)
                if message.byte(_MESSAGE_TYPE) == _SCHEMA_MESSAGE and schema is not None:
                    about = {p.text(0): p.text(1) for p in schema.tables(_SCHEMA_METADATA)}
                    name = about.get("table_name") or name
                body = message.int64(_MESSAGE_BODY_LENGTH)
            except (struct.error, IndexError) as error:
                raise _damaged(path, at, error) from error
            if body < 0 or file.tell() + body > size:
                raise _damaged(path, at, "the file ends inside a table")
            file.seek(body, 1)
    if name:
        raise _damaged(path, size, "the file ends inside a table")
    return spans


def _damaged(path: Path, at: int, why: object) -> DamagedCaptureError:
    return DamagedCaptureError(
        f"{path} cannot be read as an nsys Arrow export",
        why=f"{why} (at byte {at:,})",
        hint="export the report again: nsys export --type arrow --force-overwrite true X.nsys-rep",
    )


# Parquet: numbers of the fields that locate pages (parquet.thrift).
_ROW_GROUPS, _CHUNKS, _CHUNK = 4, 1, 3
_PACKED_BYTES, _FIRST_PAGE, _DICTIONARY = 7, 9, 11
_PAGE_INFLATED, _PAGE_PACKED = 2, 3
_HEADER_BYTES = 1 << 16
"""No header of a page is longer: its statistics are short."""
_MAX_DEPTH = 16

# Arrow: numbers of the fields of a message.
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_FILE_MAGIC = b"ARROW1\0\0"
_FOOTER_END_BYTES, _FOOTER_BLOCKS = 10, (2, 3)
"""After the footer come its length and `ARROW1`; these of its fields list batches."""


def parquet_bytes(path: Path) -> int:
    """Add up the decompressed bytes of a Parquet file's pages; raise WireError if it is none."""
    total = 0
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(4), "little")
        if length + 8 > size:
            raise WireError("its footer lies outside the file")
        file.seek(size - 8 - length)
        footer, _ = _struct(file.read(length), 0)
        try:
            for group in footer.get(_ROW_GROUPS, ()):
                for chunk in group.get(_CHUNKS, ()):
                    total += _chunk_bytes(file, chunk.get(_CHUNK) or {}, size)
        except (AttributeError, TypeError) as error:
            raise WireError("its footer has a field of another type") from error
    return total


def _chunk_bytes(file: IO[bytes], chunk: dict[int, Any], size: int) -> int:
    """Add up the pages of a column by their own headers, which decompression follows."""
    first, dictionary = chunk.get(_FIRST_PAGE, 0), chunk.get(_DICTIONARY, 0)
    at = min(first, dictionary) if dictionary else first
    end = at + chunk.get(_PACKED_BYTES, 0)
    if not 0 <= at <= end <= size:
        raise WireError("a column lies outside the file")
    total = 0
    while at < end:
        file.seek(at)
        header, used = _struct(file.read(min(_HEADER_BYTES, end - at)), 0)
        packed, inflated = header.get(_PAGE_PACKED, 0), header.get(_PAGE_INFLATED, 0)
        if packed < 0 or inflated < 0:
            raise WireError("a page has an impossible size")
        total += inflated
        at += used + packed
    return total


# Thrift, as far as Parquet uses it ---------------------------------------------------------------


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Read a struct of Thrift's compact protocol: its fields by number, and where it ends."""
    if depth > _MAX_DEPTH:
        raise WireError("its description nests too deep")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head, at = _byte(data, at)
        if not head:
            return fields, at
        kind, delta = head & 0x0F, head >> 4
        if delta:
            number += delta
        else:
            number, at = _integer(data, at)
        fields[number], at = _value(data, at, kind, depth)


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return _byte(data, at)
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        length, at = read_varint(data, at, len(data))
        return None, at + length
    if kind in (9, 10):
        return _list(data, at, depth)
    if kind == 12:
        return _struct(data, at, depth + 1)
    raise WireError("its description holds something unknown")


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    head, at = _byte(data, at)
    count, kind = head >> 4, head & 0x0F
    if count == 15:
        count, at = read_varint(data, at, len(data))
    if count > len(data):
        raise WireError("a list is longer than its file")
    values = []
    for _ in range(count):
        if kind in (1, 2):  # in lists, a truth value takes a byte
            value, at = _byte(data, at)
        else:
            value, at = _value(data, at, kind, depth)
        values.append(value)
    return values, at


def _byte(data: bytes, at: int) -> tuple[int, int]:
    if at >= len(data):
        raise WireError("its description is cut off")
    return data[at], at + 1


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = read_varint(data, at, len(data))
    return value >> 1 ^ -(value & 1), at


# Arrow -------------------------------------------------------------------------------------------


def arrow_bytes(path: Path, start: int = 0, end: int | None = None) -> int:
    """Add up the decompressed bytes of an Arrow file or stream; raise WireError if it is none."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END) if end is None else end
        file.seek(start)
        is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        try:
            messages = _file_batches(file, size) if is_file else _stream_messages(file, start, size)
            return sum(_message_bytes(file, at, size) for at in messages)
        except (struct.error, IndexError) as error:
            raise WireError(f"a message in it is damaged ({error})") from error


def _file_batches(file: IO[bytes], size: int) -> Iterator[int]:
    """Yield the positions of the batches of a file, from its footer."""
    file.seek(max(0, size - _FOOTER_END_BYTES))
    length = int.from_bytes(file.read(4), "little")
    if length > size:
        raise WireError("its footer lies outside the file")
    file.seek(size - _FOOTER_END_BYTES - length)
    data = file.read(length)
    footer = Flatbuffer(data, struct.unpack_from("<I", data, 0)[0])
    for number in _FOOTER_BLOCKS:
        for offset, _, _ in footer.structs(number, "<qi4xq"):
            yield offset


def _stream_messages(file: IO[bytes], at: int, size: int) -> Iterator[int]:
    """Yield the positions of the messages of a stream, by their lengths."""
    while at + 8 <= size:
        file.seek(at)
        if file.read(4) != CONTINUATION:
            return
        length = int.from_bytes(file.read(4), "little", signed=True)
        if length <= 0:
            return
        yield at
        message = _message(file, at, size)
        at += 8 + length + max(0, message.int64(_MESSAGE_BODY_LENGTH))


def _message(file: IO[bytes], at: int, size: int) -> Flatbuffer:
    """Read the message at a position; leave the file where its body begins."""
    if not 0 <= at < size:
        raise WireError("a message lies outside the file")
    file.seek(at)
    length = int.from_bytes(file.read(4), "little", signed=True)
    if length == -1:  # the mark in front of the length, which old files do not have
        length = int.from_bytes(file.read(4), "little", signed=True)
    if not 0 <= length <= size - file.tell():
        raise WireError("it ends inside a message")
    data = file.read(length)
    return Flatbuffer(data, struct.unpack_from("<I", data, 0)[0])


def _message_bytes(file: IO[bytes], at: int, size: int) -> int:
    message = _message(file, at, size)
    body, body_bytes = file.tell(), message.int64(_MESSAGE_BODY_LENGTH)
    if not 0 <= body_bytes <= size - body:
        raise WireError("it ends inside a table")
    kind, batch = message.byte(_MESSAGE_TYPE), message.table(_MESSAGE_HEADER)
    if kind == _DICTIONARY_BATCH and batch is not None:
        batch = batch.table(1)
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH) or batch is None:
        return body_bytes
    buffers = batch.structs(_BATCH_BUFFERS, "<qq")
    # Polars allocates the length of a buffer before it reads it, and aborts if that fails.
    if any(offset < 0 or not 0 <= length <= body_bytes - offset for offset, length in buffers):
        raise WireError("a buffer lies outside its message")
    if batch.table(_BATCH_COMPRESSION) is None:
        return body_bytes
    total = 0
    for offset, length in buffers:
        if length:  # its decompressed length comes first; -1 if it is not compressed
            file.seek(body + offset)
            total += max(0, int.from_bytes(file.read(8), "little", signed=True))
    return total
