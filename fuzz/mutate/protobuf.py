"""Protobuf messages as trees, and the containers around them: nsys reports, ncu reports, XSpaces.

A message is a list of fields in file order. An edit descends into fields whose bytes parse as a
message, and writes correct lengths on the way back, so that it reaches the code behind the framing;
byte edits of the whole file cover the framing itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import lz4.block

from fuzz.mutate.raw import edit_bytes, integer, packed, text
from gpusight.readers.protobuf_wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    WireError,
    read_span,
    read_varint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

Value: TypeAlias = "int | bytes | list[Field]"
_MASK = 2**64 - 1


@dataclass
class Field:
    """One field: a number, bytes, or the fields of a message."""

    number: int
    kind: int
    value: Value


def parse(data: bytes, depth: int = 0) -> list[Field]:
    """Split a message into its fields, and so many levels of messages in it; raises WireError."""
    fields: list[Field] = []
    at, end = 0, len(data)
    while at < end:
        tag, at = read_varint(data, at, end)
        kind, value = tag & 7, b""
        if tag < 8:
            raise WireError("field 0")
        if kind == VARINT:
            number, at = read_varint(data, at, end)
            fields.append(Field(tag >> 3, kind, number))
            continue
        if kind == BYTES:
            start, at = read_span(data, at, end)
            value = data[start:at]
        elif kind in (FIXED64, FIXED32):
            width = 8 if kind == FIXED64 else 4
            value, at = data[at : at + width], at + width
            if len(value) < width:
                raise WireError("cut off")
        else:
            raise WireError("wire type")
        fields.append(Field(tag >> 3, kind, _inner(value, depth) if kind == BYTES else value))
    return fields


def _inner(data: bytes, depth: int) -> Value:
    """Read bytes as a message where they are one, and not a text that happens to parse."""
    if depth == 0 or not data or (data.isascii() and data.decode().isprintable()):
        return data
    try:
        return parse(data, depth - 1)
    except WireError:
        return data


def varint(value: int) -> bytes:
    """Write a number; negative ones as 64 bits."""
    value &= _MASK
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def write(fields: list[Field]) -> bytes:
    """Write a message."""
    out = bytearray()
    for field in fields:
        out += varint(field.number << 3 | field.kind)
        if isinstance(field.value, int):
            out += varint(field.value)
            continue
        data = write(field.value) if isinstance(field.value, list) else field.value
        out += (varint(len(data)) if field.kind == BYTES else b"") + data
    return bytes(out)


# Edits of messages --------------------------------------------------------------------------------

_DEEPEST = 10


def edit_message(rng: Random, data: bytes) -> bytes:
    """Edit a message at one to five places; bytes that are no message are edited as bytes."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        data = _edit_once(rng, data, _DEEPEST)
    return data


def _edit_once(rng: Random, data: bytes, depth: int) -> bytes:
    try:
        fields = parse(data)
    except WireError:
        return edit_bytes(rng, data)
    edit_fields(rng, fields, depth)
    return write(fields)


def edit_fields(rng: Random, fields: list[Field], depth: int = _DEEPEST) -> None:
    """Edit one field of a message, or one of the message in it."""
    if not fields:
        return
    at = rng.randrange(len(fields))
    value = fields[at].value
    if isinstance(value, bytes) and _is_message(value) and depth and rng.random() < 0.85:
        fields[at] = replace(fields[at], value=_edit_once(rng, value, depth - 1))
    else:
        rng.choice(_FIELD_EDITS)(rng, fields, at)


def _is_message(data: bytes) -> bool:
    return bool(data) and isinstance(_inner(data, 1), list)


def _drop(_: Random, fields: list[Field], at: int) -> None:
    del fields[at]


def _double(rng: Random, fields: list[Field], at: int) -> None:
    fields[at:at] = [fields[at]] * rng.choice((1, 1, 2, 30))


def _swap(rng: Random, fields: list[Field], at: int) -> None:
    other = rng.randrange(len(fields))
    fields[at], fields[other] = fields[other], fields[at]


def _renumber(rng: Random, fields: list[Field], at: int) -> None:
    number = rng.choice((fields[at].number + rng.choice((1, -1)), rng.randrange(1, 120), 2**28))
    fields[at] = replace(fields[at], number=max(1, number))


def _retype(rng: Random, fields: list[Field], at: int) -> None:
    kind = rng.choice((VARINT, BYTES, FIXED64, FIXED32, 3, 4, 6))
    value: Value = (
        integer(rng) if kind == VARINT else rng.randbytes({FIXED64: 8, FIXED32: 4}.get(kind, 5))
    )
    fields[at] = Field(fields[at].number, kind, value)


def _change(rng: Random, fields: list[Field], at: int) -> None:
    field = fields[at]
    if isinstance(field.value, int):
        value: Value = rng.choice((integer(rng), field.value + rng.choice((1, -1, 1000, -1000))))
    elif field.kind == BYTES:
        content = field.value if isinstance(field.value, bytes) else b""
        value = rng.choice(
            (text(rng).encode("utf-8", "surrogatepass"), edit_bytes(rng, content), b"\xff\xfe")
        )
    else:
        value = rng.choice(
            (rng.randbytes(8), struct.pack("<d", float("nan")), struct.pack("<d", 1e300))
        )
        value = value[: 8 if field.kind == FIXED64 else 4]
    fields[at] = replace(field, value=value)


def _nest(rng: Random, fields: list[Field], at: int) -> None:
    field = fields[at]
    for _ in range(rng.choice((1, 3, 200))):
        field = Field(field.number, BYTES, write([field]))
    fields[at] = field


_FIELD_EDITS: tuple[Callable[[Random, list[Field], int], None], ...] = (
    _drop, _double, _swap, _renumber, _retype, _change, _change, _change, _change, _nest,
)  # fmt: skip


# XSpace -------------------------------------------------------------------------------------------


def edit_xspace(rng: Random, data: bytes) -> bytes:
    """Edit a profile of JAX."""
    return edit_bytes(rng, data) if rng.random() < 0.2 else edit_message(rng, data)


# Nsight Systems reports ---------------------------------------------------------------------------

_HEADER, _TRAILER, _MAGIC = b"NVIDIA Tegra Profiler Report ", b"U3w[END]", b"QDTEXT00"
_RAW, _OFFSETS = "Raw Sampling Data", "Sampling Data Offsets"


@dataclass
class NsysReport:
    """The parts of a report, events and strings inflated."""

    head: bytes
    """The header up to its dot, and what stands before the first section."""
    sections: dict[str, bytes]
    """Sections other than that of the events."""
    system: bytes
    header: bytes
    blocks: list[bytes]
    strings: bytes
    after: list[bytes]
    """Threads, target, as messages with their length."""
    schemas: bytes | None


@lru_cache(maxsize=64)
def read_nsys_report(data: bytes) -> NsysReport:
    """Take a valid report apart; do not change what it gives."""
    at = int.from_bytes(data[-16:-8], "little")
    spans = {}
    for entry in parse(data[at:-16], depth=1):
        assert isinstance(entry.value, list)
        fields = {f.number: f.value for f in entry.value}
        name, start, size = fields[1], fields.get(2, 0), fields.get(3, 0)
        assert isinstance(name, bytes)
        spans[name.decode()] = data[_int(start) : _int(start) + _int(size)]
    raw = spans.pop(_RAW)
    offsets = {f.number: f.value for f in parse(spans[_OFFSETS])}
    strings_at = len(_MAGIC) + _int(offsets.get(2, 0))
    system, at = _sized(raw, len(_MAGIC))
    header, at = _sized(raw, at)
    blocks = []
    while at < strings_at:
        block, at = _block(raw, at)
        blocks.append(block)
    strings, at = _block(raw, at)
    threads, at = _sized(raw, at)
    target, at = _sized(raw, at) if at < len(raw) else (None, at)
    schemas = _block(raw, at)[0] if at < len(raw) else None
    after = [threads] if target is None else [threads, target]
    head = data[: data.index(b".", len(_HEADER)) + 1]
    return NsysReport(head, spans, system, header, blocks, strings, after, schemas)


def write_nsys_report(report: NsysReport, codec: bytes | None = None) -> bytes:
    """Put a report together, every offset and length correct."""
    before = _with_length(report.system) + _with_length(report.header)
    before += b"".join(map(_pack, report.blocks))
    after = _pack(report.strings) + b"".join(map(_with_length, report.after))
    after += b"" if report.schemas is None else _pack(report.schemas)
    offsets = write([Field(1, BYTES, codec or b"lz4"), Field(2, VARINT, len(before))])
    sections = {**report.sections, _OFFSETS: offsets, _RAW: _MAGIC + before + after}
    out, directory = bytearray(report.head), []
    for name, content in sections.items():
        place = [
            Field(1, BYTES, name.encode()),
            Field(2, VARINT, len(out)),
            Field(3, VARINT, len(content)),
        ]
        directory.append(Field(1, BYTES, place))
        out += content
    return bytes(out) + write(directory) + struct.pack("<Q", len(out)) + _TRAILER


def edit_nsys_report(rng: Random, data: bytes) -> bytes:
    """Edit the framing, a block, or a message of a report."""
    if rng.random() < 0.25:
        return edit_bytes(rng, data)
    known = read_nsys_report(data)
    report = replace(
        known, sections=dict(known.sections), blocks=list(known.blocks), after=list(known.after)
    )
    for _ in range(rng.choice((1, 1, 2))):
        _edit_part(rng, report)
    out = write_nsys_report(report, rng.choice((b"zstd", b"")) if rng.random() < 0.02 else None)
    return edit_bytes(rng, out) if rng.random() < 0.05 else out


def _edit_part(rng: Random, report: NsysReport) -> None:
    part = rng.random()
    if part < 0.55 and report.blocks:
        at = rng.randrange(len(report.blocks))
        report.blocks[at] = edit_message(rng, report.blocks[at])
        if rng.random() < 0.1:
            report.blocks[at : at + 1] = [report.blocks[at]] * rng.choice((0, 2))
    elif part < 0.65:
        report.strings = edit_message(rng, report.strings)
    elif part < 0.75:
        report.header = edit_message(rng, report.header)
    elif part < 0.85:
        name = rng.choice([name for name in report.sections if name != _OFFSETS])
        report.sections[name] = edit_message(rng, report.sections[name])
    elif part < 0.95:
        at = rng.randrange(len(report.after))
        report.after[at] = edit_message(rng, report.after[at])
    else:
        report.system = edit_message(rng, report.system)


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    start, end = read_span(data, at, len(data))
    return data[start:end], end


def _block(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_varint(data, at, len(data))
    inflated, at = read_varint(data, at, len(data))
    content: bytes = lz4.block.decompress(data[at : at + size], uncompressed_size=inflated)
    return _sized(content, 0)[0], at + size


def _with_length(data: bytes) -> bytes:
    return varint(len(data)) + data


def _pack(data: bytes) -> bytes:
    data = _with_length(data)
    content: bytes = lz4.block.compress(data, store_size=False)
    return varint(len(content)) + varint(len(data)) + content


# Nsight Compute reports ---------------------------------------------------------------------------

_NVR = b"NVR\0"
_PAYLOAD_BYTES = 5


@dataclass
class NcuBlock:
    """A block of a report: its header without the size of the payload, and its messages."""

    header: list[Field]
    messages: list[bytes]


@lru_cache(maxsize=64)
def read_ncu_report(data: bytes) -> tuple[bytes, list[NcuBlock]]:
    """Take a valid report apart: the file header, and the blocks; do not change what it gives."""
    head, at = _word(data, len(_NVR))
    blocks = []
    while at < len(data):
        header, at = _word(data, at)
        fields = parse(header)
        size = sum(
            f.value for f in fields if f.number == _PAYLOAD_BYTES and isinstance(f.value, int)
        )
        blocks.append(
            NcuBlock(
                [f for f in fields if f.number != _PAYLOAD_BYTES], list(_words(data, at, at + size))
            )
        )
        at += size
    return head, blocks


def write_ncu_report(head: bytes, blocks: list[NcuBlock]) -> bytes:
    """Put a report together."""
    out = _NVR + struct.pack("<I", len(head)) + head
    for block in blocks:
        payload = b"".join(struct.pack("<I", len(m)) + m for m in block.messages)
        header = write([*block.header, Field(_PAYLOAD_BYTES, VARINT, len(payload))])
        out += struct.pack("<I", len(header)) + header + payload
    return out


def edit_ncu_report(rng: Random, data: bytes) -> bytes:
    """Edit the framing, a header or a message of a report; sometimes pack it."""
    if rng.random() < 0.3:
        out = edit_bytes(rng, data)
    else:
        head, known = read_ncu_report(data)
        blocks = [NcuBlock(list(block.header), list(block.messages)) for block in known]
        for _ in range(rng.choice((1, 1, 3))):
            block = rng.choice(blocks)
            if block.messages and rng.random() < 0.75:
                at = rng.randrange(len(block.messages))
                block.messages[at] = edit_message(rng, block.messages[at])
            else:
                edit_fields(rng, block.header)
        out = write_ncu_report(head, blocks)
    return packed(rng, out) if rng.random() < 0.1 else out


def _word(data: bytes, at: int) -> tuple[bytes, int]:
    size = int.from_bytes(data[at : at + 4], "little")
    return data[at + 4 : at + 4 + size], at + 4 + size


def _words(data: bytes, at: int, end: int) -> Iterator[bytes]:
    while at < end:
        message, at = _word(data, at)
        yield message
