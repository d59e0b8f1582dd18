"""Events of a plane as columns, decoded a few megabytes at a time.

An event = { 1: kind, 2: offset, 3: duration, 4*: stat, 5: occurrences } and a stat = { 1: name,
2 … 7: value }. The first fields of all events of a batch are decoded together, then all second
ones, and so on, whatever the fields are and in whatever order: as many steps as the longest message
has fields, not as many as there are messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.readers.jax.batch import Batch
from gpusight.readers.jax.space import DOUBLE, INT, REFERENCE, TEXT, UINT
from gpusight.readers.protobuf import wire
from gpusight.readers.protobuf.sweep import Buffer
from gpusight.readers.protobuf.texts import text_column
from gpusight.readers.protobuf.wire import BYTES, FIXED32, FIXED64, VARINT, WireError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    from numpy.typing import NDArray

    from gpusight.readers.jax.space import Plane

    Ints: TypeAlias = NDArray[np.int64]
    Rows: TypeAlias = NDArray[np.int32]
    Words: TypeAlias = NDArray[np.uint64]
    Flags: TypeAlias = NDArray[np.bool_]

_BATCH_BYTES = 1 << 21
_MOST_BYTES = 1 << 31
_LEAST_BYTES = 6
"""An event that says what it is and when takes more, on average."""
_MOST_FIELDS = 1 << 12
"""Of one event; real ones stay far below."""
_LATEST_PS = 1 << 62
_LONGEST_PS = 30 * 86_400 * 10**12
"""No profiler records for longer than 30 days, so no event lasts longer."""
_LATEST_NS = 1 << 61


class Fields(NamedTuple):
    """Fields of many messages: whose, which, and the number in it or the bytes it spans."""

    row: Rows
    tag: NDArray[np.uint32]
    """Number and wire type, as protobuf packs them."""
    value: Words
    """The number, the bits of a floating-point one, or the length in bytes."""
    start: Rows

    def at(self, rows: Ints | Flags | slice) -> Fields:
        """Keep some of them."""
        return Fields(self.row[rows], self.tag[rows], self.value[rows], self.start[rows])

    def take(self, number: int, kind: int) -> Fields:
        """Keep one field of each message."""
        return self.at(np.flatnonzero(self.tag == number << 3 | kind))


class WireStats:
    """What the events of a batch carry besides their times, as protobuf holds it."""

    def __init__(self, buffer: Buffer, plane: Plane, owner: Rows, parts: Fields, n: int) -> None:
        self._buffer = buffer
        self._words = plane.words
        self._events = n
        numbers = parts.take(1, VARINT)
        number = np.zeros(len(owner), np.int64)
        number[numbers.row] = numbers.value.view(np.int64)
        name = plane.words.places(number)
        values = parts.at(np.flatnonzero(parts.tag != 1 << 3 | VARINT))
        self._owner = owner[values.row]
        self._sort(name[values.row], values)

    def _sort(self, name: Rows, values: Fields) -> None:
        """Put values of one name next to each other, so that finding one is finding a slice."""
        names = np.flatnonzero(np.bincount(name + 1)) - 1
        small = np.uint16 if len(names) < 1 << 16 else np.uint32
        rank = np.zeros(int(names.max(initial=-1)) + 2, small)
        rank[names + 1] = np.arange(len(names))
        ranks = rank[name + 1]
        order = np.argsort(ranks, kind="stable")
        bounds = np.searchsorted(ranks[order], np.arange(len(names) + 1))
        self._values = values.at(order)
        self._owner = self._owner[order]
        self._slices = {
            int(place): slice(int(lo), int(hi))
            for place, lo, hi in zip(names, bounds, bounds[1:], strict=False)
        }

    def has(self, *names: str) -> pl.Series:
        """Tell which events carry one of these stats."""
        found = np.zeros(self._events, np.bool_)
        for name in names:
            found[self._owner[self._slice(name)]] = True
        return pl.Series(found)

    def integers(self, name: str) -> pl.Series:
        """Give a whole number of each event, null where it has none."""
        column = _Column(self._events, np.int64)
        for form in (UINT, INT):
            rows, found = self._found(name, form, VARINT)
            column.put(rows, found.value.view(np.int64))
        return column.series(name)

    def reals(self, name: str) -> pl.Series:
        """Give a number of each event, null where it has none."""
        column = _Column(self._events, np.float64)
        rows, found = self._found(name, DOUBLE, FIXED64)
        column.put(rows, found.value.view(np.float64))
        for form in (UINT, INT):
            rows, found = self._found(name, form, VARINT)
            column.put(rows, found.value.view(np.int64))
        return column.series(name)

    def texts(self, name: str) -> pl.Series:
        """Give a text of each event by its place among the plane's words, null where none."""
        column = _Column(self._events, np.int32)
        rows, found = self._found(name, REFERENCE, VARINT)
        places = self._words.places(found.value.view(np.int64))
        column.put(rows[places >= 0], places[places >= 0])
        rows, found = self._found(name, TEXT, BYTES)
        if len(rows):
            column.put(rows, self._added(found))
        return column.series(name)

    def any_number(self) -> pl.Series:
        """Give a number that each event carries, by whatever name, as samples of counters do."""
        column = _Column(self._events, np.float64)
        for form, kind in ((DOUBLE, FIXED64), (UINT, VARINT), (INT, VARINT)):
            at = np.flatnonzero(self._values.tag == form << 3 | kind)
            bits = self._values.value[at]
            column.put(self._owner[at], bits.view(np.float64 if form == DOUBLE else np.int64))
        return column.series("value")

    def _slice(self, name: str) -> slice:
        place = self._words.find(name)
        return slice(0, 0) if place is None else self._slices.get(place, slice(0, 0))

    def _found(self, name: str, form: int, kind: int) -> tuple[Rows, Fields]:
        """Give the values of a stat that are stored in this form, and whose they are."""
        where = self._slice(name)
        values = self._values.at(where)
        fits = values.tag == form << 3 | kind
        return self._owner[where][fits], values if fits.all() else values.at(fits)

    def _added(self, found: Fields) -> Rows:
        """Put texts that stand in the events themselves among the plane's words."""
        start = found.start.astype(np.int64)
        texts = text_column(self._buffer, start, start + found.value.view(np.int64))
        places = {text: self._words.add(text) for text in texts.unique(maintain_order=True)}
        return texts.replace_strict(places, return_dtype=pl.Int32).to_numpy()


class _Column:
    """Values of some events, null for the others."""

    def __init__(self, n: int, dtype: type[np.int32 | np.int64 | np.float64]) -> None:
        self._values = np.zeros(n, dtype)
        self._missing = np.ones(n, np.bool_)

    def put(self, rows: Rows, values: NDArray[np.int32 | np.int64 | np.float64]) -> None:
        self._values[rows] = values
        self._missing[rows] = False

    def series(self, name: str) -> pl.Series:
        return pl.Series(name, self._values).set(pl.Series(self._missing), None)


def batches(data: memoryview, plane: Plane, origins: Ints) -> Iterator[Batch]:
    """Decode the events of a plane; `origins` are the times that its lines count from."""
    marks = np.frombuffer(plane.marks, np.int64)
    if not plane.kinds.texts:
        plane.left_out += len(marks)
        return
    line = np.repeat(
        np.arange(len(plane.lines), dtype=np.int32), [line.events for line in plane.lines]
    )
    lo = 0
    while lo < len(marks):
        hi = int(np.searchsorted(marks, marks[lo] + _BATCH_BYTES))
        if hi - lo > _BATCH_BYTES // _LEAST_BYTES:
            raise WireError("its events are too short to be any")
        yield _decode(data, plane, marks[lo:hi], line[lo:hi], origins)
        lo = hi


def _decode(data: memoryview, plane: Plane, marks: Ints, line: Rows, origins: Ints) -> Batch:
    first = int(marks[0])
    _, last = wire.read_span(data, int(marks[-1]) + 1, len(data))
    if last - first >= _MOST_BYTES:
        raise WireError("an event is larger than any is")
    buffer = Buffer([bytes(data[first:last])])
    at = marks - first + 1
    length, size = buffer.varints(at)
    start = at + size
    parts = split(buffer, start, start + length.view(np.int64))
    n = len(marks)
    number, offset, duration = (_numbers(parts, number, n) for number in (1, 2, 3))
    kind = plane.kinds.places(number)
    kind[parts.take(5, VARINT).row] = -1
    plane.left_out += int(np.count_nonzero(kind < 0))
    untimed = _untimed(offset, duration, origins[line]) & (kind >= 0)
    plane.untimed += int(np.count_nonzero(untimed))
    kind[untimed] = -1
    start_ns, end_ns = _nanoseconds(offset, duration, origins[line])
    events = pl.DataFrame({"line": line, "kind": kind, "start_ns": start_ns, "end_ns": end_ns})
    return Batch(events, _stats(buffer, plane, parts, n))


def _stats(buffer: Buffer, plane: Plane, parts: Fields, n: int) -> WireStats:
    held = parts.take(4, BYTES)
    start = held.start.astype(np.int64)
    inner = split(buffer, start, start + held.value.view(np.int64))
    return WireStats(buffer, plane, held.row, inner, n)


def _numbers(parts: Fields, number: int, n: int) -> Ints:
    found = parts.take(number, VARINT)
    values = np.zeros(n, np.int64)
    values[found.row] = found.value.view(np.int64)
    return values


def _untimed(offset: Ints, duration: Ints, origin: Ints) -> Flags:
    """Tell which events have no time that a clock could show, or no duration that is one."""
    late = (offset < -_LATEST_PS) | (offset > _LATEST_PS)
    late |= (origin < -_LATEST_NS) | (origin > _LATEST_NS)
    return late | (duration < 0) | (duration > _LONGEST_PS)


def _nanoseconds(offset: Ints, duration: Ints, origin: Ints) -> tuple[Ints, Ints]:
    """Round both ends of each event to nanoseconds, so that what nests still does.

    Those of events without a usable time overflow, and nobody looks at them.
    """
    end = offset + duration
    return origin + (offset + 500) // 1000, origin + (end + 500) // 1000


def split(buffer: Buffer, start: Ints, end: Ints) -> Fields:
    """Take messages apart into their fields; those of one message stay in order."""
    rounds: list[Fields] = []
    row = np.flatnonzero(start < end).astype(np.int32)
    at, end = start[row], end[row]
    while len(row):
        if len(rounds) == _MOST_FIELDS:
            raise WireError("an event has too many fields")
        found, after = _next_fields(buffer, row, at)
        if (after > end).any():
            raise WireError("a field reaches beyond its event")
        rounds.append(found)
        more = np.flatnonzero(after < end)
        row, at, end = row[more], after[more], end[more]
    return Fields(*map(np.concatenate, zip(_NOTHING, *rounds, strict=True)))


_NOTHING = Fields(
    np.zeros(0, np.int32), np.zeros(0, np.uint32), np.zeros(0, np.uint64), np.zeros(0, np.int32)
)


def _next_fields(buffer: Buffer, row: Rows, at: Ints) -> tuple[Fields, Ints]:
    """Decode the field at each position; give also where the next one begins."""
    tag, size = buffer.varints(at)
    start = at + size
    kind = tag & np.uint64(7)
    counted = (kind == VARINT) | (kind == BYTES)
    if counted.all():
        value, size = buffer.varints(start)
        after = start + size
    else:
        value, after = _mixed_values(buffer, kind, start)
    spans = np.flatnonzero(kind == BYTES)
    if len(spans):
        if (value[spans] > buffer.size).any():
            raise WireError("a length points beyond its event")
        start[spans] = after[spans]
        after[spans] += value[spans].view(np.int64)
    return Fields(row, tag.astype(np.uint32), value, start.astype(np.int32)), after


def _mixed_values(buffer: Buffer, kind: Words, start: Ints) -> tuple[Words, Ints]:
    """Decode numbers, some of which have a fixed width; give also where each ends."""
    value, after = np.zeros(len(kind), np.uint64), start.copy()
    rows = np.flatnonzero((kind == VARINT) | (kind == BYTES))
    value[rows], size = buffer.varints(start[rows])
    after[rows] += size
    rows = np.flatnonzero(kind == FIXED64)
    value[rows] = buffer.words(start[rows])
    after[rows] += 8
    after[kind == FIXED32] += 4
    if ((kind == 3) | (kind == 4) | (kind > FIXED32)).any():
        raise WireError("a field has an impossible wire type")
    return value, after
