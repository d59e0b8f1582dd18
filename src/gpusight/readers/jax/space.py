"""The frame of an XSpace: its planes, their lines, and the names that events refer to.

An XSpace = { 1*: plane, 2*: error, 3*: warning, 4*: host name }. A plane is a device or the host
and names, once, everything that its events refer to by number. A line is a stream or a thread.
Events are many, so that here only the place of each is noted; `columns` decodes them together.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gpusight.readers.jax.naming import Names
from gpusight.readers.protobuf import wire
from gpusight.readers.protobuf.wire import BYTES, FIXED32, FIXED64, VARINT, WireError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    StatValue: TypeAlias = int | float | str

_EVENT_TAG = 4 << 3 | BYTES
_MOST_TEXT = 1 << 20
"""Names are shorter than this; what is longer is not a name and is cut."""
_MOST_PARTS, _MOST_LINES, _MOST_ENTRIES = 1 << 16, 1 << 18, 1 << 22
"""Parts of a profile, lines and all entries of a plane; real profiles stay far below."""

PLANE, ERROR, WARNING, HOSTNAME = 1, 2, 3, 4
DOUBLE, UINT, INT, TEXT, REFERENCE = 2, 3, 4, 5, 7
"""Fields of an XStat, one of which holds its value; in 6 are bytes that are not read."""


class Field(NamedTuple):
    """One field of a message: a number, or the bytes from `start` to `end`."""

    number: int
    kind: int
    value: int
    start: int
    end: int


@dataclass(slots=True)
class Line:
    """A stream of a device or a thread of the host."""

    id: int = 0
    name: str = ""
    timestamp_ns: int = 0
    events: int = 0


@dataclass(slots=True)
class Plane:
    """A device, the host, or facts about the profile."""

    name: str = ""
    lines: list[Line] = field(default_factory=list)
    marks: array[int] = field(default_factory=lambda: array("q"))
    """Where each event of its lines begins, line by line, with its tag."""
    kinds: Names = field(default_factory=Names)
    """What its events are called."""
    words: Names = field(default_factory=Names)
    """What its stats are called, and texts that stats refer to."""
    numbered_stats: list[tuple[int, StatValue]] = field(default_factory=list)
    stats: dict[str, StatValue] = field(default_factory=dict)
    """What is said about the plane as a whole."""
    left_out: int = 0
    """Events that were decoded but have no name, or are sums of others."""
    untimed: int = 0
    """Events left out because they have no usable time or duration."""


@dataclass(slots=True)
class Space:
    """Everything but the events themselves."""

    planes: list[Plane]
    errors: list[str]
    warnings: list[str]
    hostnames: list[str]


def read_space(data: memoryview) -> Space:
    """Read the frame; raises WireError where the bytes are no XSpace."""
    space = Space([], [], [], [])
    texts = {ERROR: space.errors, WARNING: space.warnings, HOSTNAME: space.hostnames}
    for part in parts(data):
        if part.kind != BYTES:
            continue
        if part.number == PLANE:
            space.planes.append(_read_plane(data, part.start, part.end))
        elif part.number in texts:
            texts[part.number].append(_text(data, part))
    return space


def parts(data: memoryview) -> Iterator[Field]:
    """Give the fields of the whole message: its planes, and texts about them."""
    for count, part in enumerate(fields(data, 0, len(data))):
        if count == _MOST_PARTS:
            raise WireError("it has more parts than any profile")
        yield part


def looks_like_plane(data: memoryview, start: int, end: int) -> bool:
    """Tell whether a message could be a plane, of which the end may be missing.

    Writers put number and name first: a plane has a name, and nothing strange before it.
    """
    try:
        for part in fields(data, start, end):
            if part.number == 2 and part.kind == BYTES:
                name = bytes(data[part.start : part.end]).decode()
                return bool(name) and name.isprintable()
            if (part.number, part.kind) != (1, VARINT):
                return False
    except (WireError, UnicodeDecodeError):
        pass
    return False


def fields(data: memoryview, at: int, end: int) -> Iterator[Field]:
    """Give the fields of one message in file order."""
    while at < end:
        tag, at = wire.read_varint(data, at, end)
        kind = tag & 7
        if kind == VARINT:
            value, at = wire.read_varint(data, at, end)
            yield Field(tag >> 3, kind, wire.signed(value), at, at)
            continue
        if kind == BYTES:
            start, at = wire.read_span(data, at, end)
        elif kind in (FIXED64, FIXED32):
            start, at = at, at + (8 if kind == FIXED64 else 4)
            if at > end:
                raise WireError("a fixed-width number is cut off")
        else:
            raise WireError(f"wire type {kind} does not exist")
        yield Field(tag >> 3, kind, 0, start, at)


def _read_plane(data: memoryview, start: int, end: int) -> Plane:
    plane = Plane()
    for count, part in enumerate(fields(data, start, end)):
        if count == _MOST_ENTRIES or len(plane.lines) == _MOST_LINES:
            raise WireError("a plane has more entries than any")
        if part.kind == BYTES:
            _read_entry(data, part, plane)
    for number, value in plane.numbered_stats:
        name = plane.words.of(number)
        if name:
            referred = isinstance(value, _Reference)
            plane.stats[name] = (plane.words.of(int(value)) or "") if referred else value
    return plane


def _read_entry(data: memoryview, part: Field, plane: Plane) -> None:
    if part.number == 2:
        plane.name = _text(data, part)
    elif part.number == 3:
        plane.lines.append(_read_line(data, part.start, part.end, plane.marks))
    elif part.number == 4:
        number, short, name = _read_names(data, part)
        plane.kinds.put(number, short or name)
    elif part.number == 5:
        number, _, name = _read_names(data, part)
        plane.words.put(number, name)
    elif part.number == 6:
        plane.numbered_stats.append(_read_stat(data, part.start, part.end))


def _read_line(data: memoryview, at: int, end: int, marks: array[int]) -> Line:
    """Read what a line says about itself, and note where its events are."""
    line = Line()
    before = len(marks)
    note = marks.append
    try:
        while at < end:
            if data[at] != _EVENT_TAG:
                at = _read_line_field(data, at, end, line)
                continue
            note(at)
            size = data[at + 1]
            if size < 0x80:
                at += 2 + size
            elif data[at + 2] < 0x80:
                at += 3 + (size & 0x7F | data[at + 2] << 7)
            else:
                _, at = wire.read_span(data, at + 1, end)
    except IndexError:
        at = end + 1
    if at > end:
        raise WireError("an event reaches beyond its line")
    line.events = len(marks) - before
    return line


def _read_line_field(data: memoryview, at: int, end: int, line: Line) -> int:
    part = next(fields(data, at, end))
    if part.kind == VARINT and part.number == 1:
        line.id = part.value
    elif part.kind == VARINT and part.number == 3:
        line.timestamp_ns = part.value
    elif part.kind == BYTES and part.number in (2, 11):
        line.name = _text(data, part) or line.name
    return part.end


def _read_names(data: memoryview, entry: Field) -> tuple[int, str, str]:
    """Read an entry of a map: its key, and the display name and name of the message in it."""
    key, short, name = 0, "", ""
    for part in fields(data, entry.start, entry.end):
        if part.number == 1 and part.kind == VARINT:
            key = part.value
        elif part.number == 2 and part.kind == BYTES:
            for inner in fields(data, part.start, part.end):
                if inner.number == 2 and inner.kind == BYTES:
                    name = _text(data, inner)
                elif inner.number == 4 and inner.kind == BYTES:
                    short = _text(data, inner)
    return key, short, name


class _Reference(int):
    """Number of the text that is the value."""


def _read_stat(data: memoryview, start: int, end: int) -> tuple[int, StatValue]:
    key: int = 0
    value: StatValue = 0
    for part in fields(data, start, end):
        if part.number == 1:
            key = part.value
        elif part.number == DOUBLE and part.kind == FIXED64:
            (value,) = struct.unpack("<d", data[part.start : part.end])
        elif part.number in (UINT, INT):
            value = part.value
        elif part.number == TEXT and part.kind == BYTES:
            value = _text(data, part)
        elif part.number == REFERENCE:
            value = _Reference(part.value)
    return key, value


def _text(data: memoryview, part: Field) -> str:
    end = min(part.end, part.start + _MOST_TEXT)
    return bytes(data[part.start : end]).decode("utf-8", "replace")
