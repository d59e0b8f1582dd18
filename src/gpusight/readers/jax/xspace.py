"""The structure of an XSpace: its planes, their lines, and the names that events refer to."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.readers import protobuf_wire
from gpusight.readers.protobuf_wire import BYTES, FIXED32, FIXED64, VARINT, WireError
from gpusight.readers.tables import encode_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints

    StatValue: TypeAlias = int | float | str


class ReferencedNames:
    """Texts that are referred to by number; each distinct one also has an index, its place."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}
        self._by_number: dict[int, int] = {}

    def put(self, number: int, text: str) -> None:
        """Add a numbered text."""
        self._by_number[number] = self.add(text)

    def add(self, text: str) -> int:
        """Return the place of a text, adding it if it is new."""
        place = self._places.setdefault(text, len(self.texts))
        if place == len(self.texts):
            self.texts.append(text)
        return place

    def find(self, text: str) -> int | None:
        """Return the place of a text; None if it is unknown."""
        return self._places.get(text)

    def of(self, number: int) -> str | None:
        """Return the text of a number."""
        place = self._by_number.get(number)
        return None if place is None else self.texts[place]

    def places(self, numbers: Ints) -> NDArray[np.int32]:
        """Return the places of many numbers at once, -1 for unknown ones."""
        known, place = self._sorted
        if not len(known):
            return np.full(len(numbers), -1, np.int32)
        at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        return np.where(known[at] == numbers, place[at], np.int32(-1))

    @cached_property
    def _sorted(self) -> tuple[Ints, NDArray[np.int32]]:
        """The numbers in order, and the place of each; computed once all of them are known."""
        numbers = np.fromiter(self._by_number, np.int64, len(self._by_number))
        places = np.fromiter(self._by_number.values(), np.int32, len(self._by_number))
        order = np.argsort(numbers)
        return numbers[order], places[order]


def named(places: pl.Series, texts: Sequence[str], change: Callable[[str], str] = str) -> pl.Series:
    """Return the texts at these places as a column of names."""
    used = places.unique().to_numpy()
    names = encode_names(pl.Series([change(texts[place]) for place in used], dtype=pl.String))
    lookup = np.zeros(len(texts), np.uint32)
    lookup[used] = np.arange(len(used), dtype=np.uint32)
    return names.gather(pl.Series(lookup[places.to_numpy()])).alias("name")


_EVENT_TAG = 4 << 3 | BYTES
_MAX_TEXT_BYTES = 1 << 20
"""Names are shorter than this; longer texts are truncated."""
_MAX_PARTS, _MAX_LINES, _MAX_ENTRIES = 1 << 16, 1 << 18, 1 << 22
"""Parts of a profile, lines and all entries of a plane; real profiles stay far below."""

PLANE, ERROR, WARNING, HOSTNAME = 1, 2, 3, 4
DOUBLE, UINT, INT, TEXT, REFERENCE = 2, 3, 4, 5, 7
"""Fields of an XStat, one of which holds its value; field 6, bytes, is not read."""


class WireField(NamedTuple):
    """One field of a message: a number, or the bytes from `start` to `end`."""

    number: int
    kind: int
    value: int
    start: int
    end: int


@dataclass(slots=True)
class PlaneLine:
    """A stream of a device or a thread of the host."""

    id: int = 0
    name: str = ""
    timestamp_ns: int = 0
    events: int = 0


@dataclass(slots=True)
class XPlane:
    """A device, the host, or metadata of the profile."""

    name: str = ""
    lines: list[PlaneLine] = field(default_factory=list)
    marks: array[int] = field(default_factory=lambda: array("q"))
    """Position of each event's tag, line by line."""
    kinds: ReferencedNames = field(default_factory=ReferencedNames)
    """Names of its events."""
    words: ReferencedNames = field(default_factory=ReferencedNames)
    """Names of its stats, and texts that stats refer to."""
    numbered_stats: list[tuple[int, StatValue]] = field(default_factory=list)
    stats: dict[str, StatValue] = field(default_factory=dict)
    """Stats of the plane itself."""
    left_out: int = 0
    """Decoded events that have no name, or only count others."""
    untimed: int = 0
    """Events left out because they have no usable time or duration."""


@dataclass(slots=True)
class XSpace:
    """Everything but the events themselves."""

    planes: list[XPlane]
    errors: list[str]
    warnings: list[str]
    hostnames: list[str]


def read_space(data: memoryview) -> XSpace:
    """Read everything but the events; raise WireError where the bytes are no XSpace."""
    space = XSpace([], [], [], [])
    texts = {ERROR: space.errors, WARNING: space.warnings, HOSTNAME: space.hostnames}
    for part in parts(data):
        if part.kind != BYTES:
            continue
        if part.number == PLANE:
            space.planes.append(_read_plane(data, part.start, part.end))
        elif part.number in texts:
            texts[part.number].append(_text(data, part))
    return space


def parts(data: memoryview) -> Iterator[WireField]:
    """Yield the fields of the whole message: its planes, errors, warnings and host names."""
    for count, part in enumerate(fields(data, 0, len(data))):
        if count == _MAX_PARTS:
            raise WireError("it has more parts than any profile")
        yield part


def looks_like_plane(data: memoryview, start: int, end: int) -> bool:
    """Return whether a message could be a plane, perhaps a truncated one.

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


def fields(data: memoryview, at: int, end: int) -> Iterator[WireField]:
    """Yield the fields of one message in file order."""
    while at < end:
        tag, at = protobuf_wire.read_varint(data, at, end)
        kind = tag & 7
        if kind == VARINT:
            value, at = protobuf_wire.read_varint(data, at, end)
            yield WireField(tag >> 3, kind, protobuf_wire.signed(value), at, at)
            continue
        if kind == BYTES:
            start, at = protobuf_wire.read_span(data, at, end)
        elif kind in (FIXED64, FIXED32):
            start, at = at, at + (8 if kind == FIXED64 else 4)
            if at > end:
                raise WireError("a fixed-width number is cut off")
        else:
            raise WireError(f"wire type {kind} does not exist")
        yield WireField(tag >> 3, kind, 0, start, at)


def _read_plane(data: memoryview, start: int, end: int) -> XPlane:
    plane = XPlane()
    for count, part in enumerate(fields(data, start, end)):
        if count == _MAX_ENTRIES or len(plane.lines) == _MAX_LINES:
            raise WireError("a plane has more entries than any")
        if part.kind == BYTES:
            _read_entry(data, part, plane)
    for number, value in plane.numbered_stats:
        name = plane.words.of(number)
        if name:
            is_reference = isinstance(value, _Reference)
            plane.stats[name] = (plane.words.of(int(value)) or "") if is_reference else value
    return plane


def _read_entry(data: memoryview, part: WireField, plane: XPlane) -> None:
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


def _read_line(data: memoryview, at: int, end: int, marks: array[int]) -> PlaneLine:
    """Read the fields of a line, and mark where its events are."""
    line = PlaneLine()
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
                _, at = protobuf_wire.read_span(data, at + 1, end)
    except IndexError:
        at = end + 1
    if at > end:
        raise WireError("an event reaches beyond its line")
    line.events = len(marks) - before
    return line


def _read_line_field(data: memoryview, at: int, end: int, line: PlaneLine) -> int:
    part = next(fields(data, at, end))
    if part.kind == VARINT and part.number == 1:
        line.id = part.value
    elif part.kind == VARINT and part.number == 3:
        line.timestamp_ns = part.value
    elif part.kind == BYTES and part.number in (2, 11):
        line.name = _text(data, part) or line.name
    return part.end


def _read_names(data: memoryview, entry: WireField) -> tuple[int, str, str]:
    """Read an entry of a map: its key, and display name and name of its message."""
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
    """Number of the text that is the value of a stat."""


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


def _text(data: memoryview, part: WireField) -> str:
    end = min(part.end, part.start + _MAX_TEXT_BYTES)
    return bytes(data[part.start : end]).decode("utf-8", "replace")
