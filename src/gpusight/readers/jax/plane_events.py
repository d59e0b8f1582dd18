"""Events of a plane as columns, decoded and sorted a few megabytes at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import polars as pl

from gpusight.readers import protobuf_wire
from gpusight.readers.jax.xspace import DOUBLE, INT, REFERENCE, TEXT, UINT
from gpusight.readers.protobuf_columns import MessageBuffer, text_column
from gpusight.readers.protobuf_wire import BYTES, FIXED32, FIXED64, VARINT, WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from gpusight.readers.jax.xspace import XPlane
    from gpusight.trace.intervals import Ints

    Rows: TypeAlias = NDArray[np.int32]
    Words: TypeAlias = NDArray[np.uint64]
    Flags: TypeAlias = NDArray[np.bool_]


class EventStats(Protocol):
    """What the events of a batch carry besides their times; null where an event does not."""

    def has(self, *names: str) -> pl.Series:
        """Tell which events carry one of these stats."""
        ...

    def integers(self, name: str) -> pl.Series:
        """Give a whole number of each event."""
        ...

    def reals(self, name: str) -> pl.Series:
        """Give a number of each event."""
        ...

    def texts(self, name: str) -> pl.Series:
        """Give a text of each event by its place among the plane's words."""
        ...

    def any_number(self) -> pl.Series:
        """Give a number that each event carries, by whatever name, as samples of counters do."""
        ...


class EventBatch(NamedTuple):
    """Some events of a plane, in file order."""

    events: pl.DataFrame
    """`line` and `kind`, by their places in the plane, and times. The kind is -1 where the plane
    does not name it, and where the event is a mere count, which has no time."""
    stats: EventStats


_BATCH_BYTES = 1 << 21
_MAX_BATCH_BYTES = 1 << 31
_MIN_EVENT_BYTES = 6
"""An event that says what it is and when takes more, on average."""
_MAX_FIELDS = 1 << 12
"""Of one event; real ones stay far below."""
_MAX_TIME_PS = 1 << 62
_LONGEST_PS = 30 * 86_400 * 10**12
"""No profiler records for longer than 30 days, so no event lasts longer."""
_MAX_TIME_NS = 1 << 61


class MessageFields(NamedTuple):
    """Fields of many messages: whose, which, and the number in it or the bytes it spans."""

    row: Rows
    tag: NDArray[np.uint32]
    """Number and wire type, as protobuf packs them."""
    value: Words
    """The number, the bits of a floating-point one, or the length in bytes."""
    start: Rows

    def at(self, rows: Ints | Flags | slice) -> MessageFields:
        """Keep some of them."""
        return MessageFields(self.row[rows], self.tag[rows], self.value[rows], self.start[rows])

    def take(self, number: int, kind: int) -> MessageFields:
        """Keep one field of each message."""
        return self.at(np.flatnonzero(self.tag == number << 3 | kind))


class WireStats:
    """What the events of a batch carry besides their times, as protobuf holds it."""

    def __init__(
        self, buffer: MessageBuffer, plane: XPlane, owner: Rows, parts: MessageFields, n: int
    ) -> None:
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

    def _sort(self, name: Rows, values: MessageFields) -> None:
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

    def _found(self, name: str, form: int, kind: int) -> tuple[Rows, MessageFields]:
        """Give the values of a stat that are stored in this form, and whose they are."""
        where = self._slice(name)
        values = self._values.at(where)
        fits = values.tag == form << 3 | kind
        return self._owner[where][fits], values if fits.all() else values.at(fits)

    def _added(self, found: MessageFields) -> Rows:
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


def batches(data: memoryview, plane: XPlane, origins: Ints) -> Iterator[EventBatch]:
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
        if hi - lo > _BATCH_BYTES // _MIN_EVENT_BYTES:
            raise WireError("its events are too short to be any")
        yield _decode(data, plane, marks[lo:hi], line[lo:hi], origins)
        lo = hi


def _decode(data: memoryview, plane: XPlane, marks: Ints, line: Rows, origins: Ints) -> EventBatch:
    first = int(marks[0])
    _, last = protobuf_wire.read_span(data, int(marks[-1]) + 1, len(data))
    if last - first >= _MAX_BATCH_BYTES:
        raise WireError("an event is larger than any is")
    buffer = MessageBuffer([bytes(data[first:last])])
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
    return EventBatch(events, _stats(buffer, plane, parts, n))


def _stats(buffer: MessageBuffer, plane: XPlane, parts: MessageFields, n: int) -> WireStats:
    held = parts.take(4, BYTES)
    start = held.start.astype(np.int64)
    inner = split(buffer, start, start + held.value.view(np.int64))
    return WireStats(buffer, plane, held.row, inner, n)


def _numbers(parts: MessageFields, number: int, n: int) -> Ints:
    found = parts.take(number, VARINT)
    values = np.zeros(n, np.int64)
    values[found.row] = found.value.view(np.int64)
    return values


def _untimed(offset: Ints, duration: Ints, origin: Ints) -> Flags:
    """Tell which events have no time that a clock could show, or no duration that is one."""
    late = (offset < -_MAX_TIME_PS) | (offset > _MAX_TIME_PS)
    late |= (origin < -_MAX_TIME_NS) | (origin > _MAX_TIME_NS)
    return late | (duration < 0) | (duration > _LONGEST_PS)


def _nanoseconds(offset: Ints, duration: Ints, origin: Ints) -> tuple[Ints, Ints]:
    """Round both ends of each event to nanoseconds, so that what nests still does.

    Those of events without a usable time overflow, and nobody looks at them.
    """
    end = offset + duration
    return origin + (offset + 500) // 1000, origin + (end + 500) // 1000


def split(buffer: MessageBuffer, start: Ints, end: Ints) -> MessageFields:
    """Take messages apart into their fields; those of one message stay in order."""
    rounds: list[MessageFields] = []
    row = np.flatnonzero(start < end).astype(np.int32)
    at, end = start[row], end[row]
    while len(row):
        if len(rounds) == _MAX_FIELDS:
            raise WireError("an event has too many fields")
        found, after = _next_fields(buffer, row, at)
        if (after > end).any():
            raise WireError("a field reaches beyond its event")
        rounds.append(found)
        more = np.flatnonzero(after < end)
        row, at, end = row[more], after[more], end[more]
    return MessageFields(*map(np.concatenate, zip(_NOTHING, *rounds, strict=True)))


_NOTHING = MessageFields(
    np.zeros(0, np.int32), np.zeros(0, np.uint32), np.zeros(0, np.uint64), np.zeros(0, np.int32)
)


def _next_fields(buffer: MessageBuffer, row: Rows, at: Ints) -> tuple[MessageFields, Ints]:
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
    return MessageFields(row, tag.astype(np.uint32), value, start.astype(np.int32)), after


def _mixed_values(buffer: MessageBuffer, kind: Words, start: Ints) -> tuple[Words, Ints]:
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


EVENT_COLUMNS = ("line", "kind", "start_ns", "end_ns")
"""What every event has: its line and its kind, by their places in the plane, and its times."""
_FIRST, _LONGEST = 5, 60
_SCHEMA: dict[str, type[pl.DataType]] = {
    "line": pl.Int32,
    "kind": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}


def enumerated(names: Iterable[str]) -> str:
    """List names for a note, the first few of many."""
    ordered = sorted(set(names))
    first = ", ".join(repr(name[:_LONGEST]) for name in ordered[:_FIRST])
    return first + (f" and {len(ordered) - _FIRST:,} more" if len(ordered) > _FIRST else "")


class PlaneTables(NamedTuple):
    """What was read of one plane, and what there is to say about it."""

    tables: dict[str, pl.DataFrame]
    notes: list[str]


class KeptEvents:
    """What is kept of each sort of event until all are decoded: no more than will be needed."""

    def __init__(
        self, wanted: Mapping[str, Sequence[str]], types: Mapping[str, type[pl.DataType]]
    ) -> None:
        self._wanted = wanted
        self._types: dict[str, type[pl.DataType]] = {**_SCHEMA, **types}
        self._frames: dict[str, list[pl.DataFrame]] = {}

    def sort_out(self, events: pl.DataFrame) -> None:
        """Keep events by what their column `sort` says they are; none of what nobody wants."""
        for rows in events.partition_by("sort"):
            sort = str(rows["sort"][0])
            self.keep(sort, rows.select(self._wanted.get(sort, ("line",))))

    def keep(self, sort: str, events: pl.DataFrame) -> None:
        """Keep some more events of one sort."""
        self._frames.setdefault(sort, []).append(events)

    def take(self, sort: str) -> pl.DataFrame:
        """Hand over all events of one sort, so that they are not kept twice."""
        frames = self._frames.pop(sort, None)
        if frames is None:
            return pl.DataFrame(schema={c: self._types[c] for c in self._wanted[sort]})
        return pl.concat(frames)

    def count(self, sort: str) -> int:
        """Count the events of one sort."""
        return sum(frame.height for frame in self._frames.get(sort, ()))

    def lines(self, sort: str) -> set[int]:
        """Name the lines that events of one sort are on."""
        return {line for frame in self._frames.get(sort, ()) for line in frame["line"].unique()}
