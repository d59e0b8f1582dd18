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
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from gpusight.readers.jax.xspace import XPlane
    from gpusight.trace.intervals import Flags, Ints

    Details: TypeAlias = Mapping[str, int | float | str | None]
    Rows: TypeAlias = NDArray[np.int32]
    Words: TypeAlias = NDArray[np.uint64]


class EventStats(Protocol):
    """The stats of a batch of events, as columns; null where an event lacks the stat."""

    def has(self, *names: str) -> pl.Series:
        """Return which events carry one of these stats."""
        ...

    def integers(self, name: str) -> pl.Series:
        """Return the integers of a stat."""
        ...

    def reals(self, name: str) -> pl.Series:
        """Return the numbers of a stat."""
        ...

    def texts(self, name: str) -> pl.Series:
        """Return the texts of a stat, as indices into the plane's words."""
        ...

    def any_number(self) -> pl.Series:
        """Return the number of any stat of an event: samples of counters carry just one."""
        ...


class EventBatch(NamedTuple):
    """Some events of a plane, in file order."""

    events: pl.DataFrame
    """`line` and `kind`, as indices into the plane, and times. The kind is -1 where the plane does
    not name it, and where the event only counts others and has no time."""
    stats: EventStats


_BATCH_BYTES = 1 << 21
_MAX_BATCH_BYTES = 1 << 31
_MIN_EVENT_BYTES = 6
"""An event with kind and time takes more, on average."""
_MAX_FIELDS = 1 << 12
"""Of one event; real ones stay far below."""
_MAX_TIME_PS = 1 << 62
_MAX_DURATION_PS = 30 * 86_400 * 10**12
"""No profiler records for longer than 30 days, so no event lasts longer."""
_MAX_TIME_NS = 1 << 61


class MessageFields(NamedTuple):
    """Fields of many messages: message, tag, and the number or the span of bytes."""

    row: Rows
    tag: NDArray[np.uint32]
    """Number and wire type, as protobuf packs them."""
    value: Words
    """The number, the bits of a floating-point one, or the length in bytes."""
    start: Rows

    def at(self, rows: Ints | Flags | slice) -> MessageFields:
        """Select some of them."""
        return MessageFields(self.row[rows], self.tag[rows], self.value[rows], self.start[rows])

    def take(self, number: int, kind: int) -> MessageFields:
        """Select one field of each message."""
        return self.at(np.flatnonzero(self.tag == number << 3 | kind))


class _WireStats(EventStats):
    """Decoded from protobuf."""

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
        name = name[values.row]
        # Values are sorted by name, so that those of one name are a slice.
        names = np.flatnonzero(np.bincount(name + 1)) - 1
        small = np.uint16 if len(names) < 1 << 16 else np.uint32
        rank = np.zeros(int(names.max(initial=-1)) + 2, small)
        rank[names + 1] = np.arange(len(names))
        ranks = rank[name + 1]
        order = np.argsort(ranks, kind="stable")
        bounds = np.searchsorted(ranks[order], np.arange(len(names) + 1))
        self._values = values.at(order)
        self._owner = owner[values.row][order]
        self._slices = {
            int(place): slice(int(lo), int(hi))
            for place, lo, hi in zip(names, bounds, bounds[1:], strict=False)
        }

    def has(self, *names: str) -> pl.Series:
        has_stat = np.zeros(self._events, np.bool_)
        for name in names:
            has_stat[self._owner[self._slice(name)]] = True
        return pl.Series(has_stat)

    def integers(self, name: str) -> pl.Series:
        return self._numbers(name, self._slice(name), np.int64, UINT, INT)

    def reals(self, name: str) -> pl.Series:
        return self._numbers(name, self._slice(name), np.float64, DOUBLE, UINT, INT)

    def texts(self, name: str) -> pl.Series:
        column = _Column(self._events, np.int32)
        rows, values = self._values_of(self._slice(name), REFERENCE, VARINT)
        places = self._words.places(values.value.view(np.int64))
        column.put(rows[places >= 0], places[places >= 0])
        rows, values = self._values_of(self._slice(name), TEXT, BYTES)
        if len(rows):  # texts stored in the events themselves
            start = values.start.astype(np.int64)
            texts = text_column(self._buffer, start, start + values.value.view(np.int64))
            added = {text: self._words.add(text) for text in texts.unique(maintain_order=True)}
            column.put(rows, texts.replace_strict(added, return_dtype=pl.Int32).to_numpy())
        return column.series(name)

    def any_number(self) -> pl.Series:
        return self._numbers("value", slice(None), np.float64, DOUBLE, UINT, INT)

    def _numbers(
        self, name: str, where: slice, dtype: type[np.int64 | np.float64], *forms: int
    ) -> pl.Series:
        column = _Column(self._events, dtype)
        for form in forms:
            is_real = form == DOUBLE
            rows, values = self._values_of(where, form, FIXED64 if is_real else VARINT)
            column.put(rows, values.value.view(np.float64 if is_real else np.int64))
        return column.series(name)

    def _slice(self, name: str) -> slice:
        place = self._words.find(name)
        return slice(0, 0) if place is None else self._slices.get(place, slice(0, 0))

    def _values_of(self, where: slice, form: int, kind: int) -> tuple[Rows, MessageFields]:
        """Return the values of a slice that are stored in this form, and their events."""
        values = self._values.at(where)
        fits = values.tag == form << 3 | kind
        return self._owner[where][fits], values if fits.all() else values.at(fits)


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
    origin = origins[line]
    untimed = (offset < -_MAX_TIME_PS) | (offset > _MAX_TIME_PS)
    untimed |= (origin < -_MAX_TIME_NS) | (origin > _MAX_TIME_NS)
    untimed |= (duration < 0) | (duration > _MAX_DURATION_PS)
    untimed &= kind >= 0
    plane.untimed += int(np.count_nonzero(untimed))
    kind[untimed] = -1
    # Both ends are rounded, so that nested events stay nested; unusable times may overflow.
    events = pl.DataFrame(
        {
            "line": line,
            "kind": kind,
            "start_ns": origin + (offset + 500) // 1000,
            "end_ns": origin + (offset + duration + 500) // 1000,
        }
    )
    stats = parts.take(4, BYTES)
    start = stats.start.astype(np.int64)
    inner = split(buffer, start, start + stats.value.view(np.int64))
    return EventBatch(events, _WireStats(buffer, plane, stats.row, inner, n))


def _numbers(parts: MessageFields, number: int, n: int) -> Ints:
    field = parts.take(number, VARINT)
    values = np.zeros(n, np.int64)
    values[field.row] = field.value.view(np.int64)
    return values


def split(buffer: MessageBuffer, start: Ints, end: Ints) -> MessageFields:
    """Split messages into their fields; those of one message stay in order."""
    rounds: list[MessageFields] = []
    row = np.flatnonzero(start < end).astype(np.int32)
    at, end = start[row], end[row]
    while len(row):
        if len(rounds) == _MAX_FIELDS:
            raise WireError("an event has too many fields")
        round_fields, after = _next_fields(buffer, row, at)
        if (after > end).any():
            raise WireError("a field reaches beyond its event")
        rounds.append(round_fields)
        more = np.flatnonzero(after < end)
        row, at, end = row[more], after[more], end[more]
    return MessageFields(*map(np.concatenate, zip(_NOTHING, *rounds, strict=True)))


_NOTHING = MessageFields(
    np.zeros(0, np.int32), np.zeros(0, np.uint32), np.zeros(0, np.uint64), np.zeros(0, np.int32)
)


def _next_fields(buffer: MessageBuffer, row: Rows, at: Ints) -> tuple[MessageFields, Ints]:
    """Decode the field at each position; return also where the next one begins."""
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
    """Decode numbers, some of a fixed width; return also where each ends."""
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
"""Columns of every event: its line and kind, as indices into the plane, and its times."""
_MAX_NAMES, _MAX_NAME_CHARS = 5, 60
_SCHEMA: dict[str, type[pl.DataType]] = {
    "line": pl.Int32,
    "kind": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}


def enumerated(names: Iterable[str]) -> str:
    """List names for a note, the first few of many."""
    ordered = sorted(set(names))
    more = len(ordered) - _MAX_NAMES
    first = ", ".join(repr(name[:_MAX_NAME_CHARS]) for name in ordered[:_MAX_NAMES])
    return first + (f" and {more:,} more" if more > 0 else "")


def details_of(text: str) -> dict[str, str]:
    """Split the packed text of a stat, `regs:32 static_shared:0 grid:4,1,1 …`."""
    details = (word.partition(":") for word in text.split())
    return {name: value for name, _, value in details}


def details_by_row(
    places: pl.Series, words: Sequence[str], parse: Callable[[str], Details], schema: pl.Schema
) -> pl.DataFrame:
    """Parse each distinct text once, and return the details of every row's text."""
    used = places.drop_nulls().unique().to_list()
    rows = [{"place": place, **parse(words[place])} for place in used]
    known = pl.DataFrame(rows, schema={"place": places.dtype, **schema})
    joined = places.to_frame("place").join(known, on="place", how="left", maintain_order="left")
    return joined.drop("place")


class PlaneTables(NamedTuple):
    """The tables of one plane, and notes about it."""

    tables: dict[str, pl.DataFrame]
    notes: list[str]


class KeptEvents:
    """The events of each sort until all are decoded; only the columns that will be needed."""

    def __init__(
        self, wanted: Mapping[str, Sequence[str]], types: Mapping[str, type[pl.DataType]]
    ) -> None:
        self._wanted = wanted
        self._types: dict[str, type[pl.DataType]] = {**_SCHEMA, **types}
        self._frames: dict[str, list[pl.DataFrame]] = {}

    def sort_out(self, events: pl.DataFrame) -> None:
        """Keep events by their column `sort`."""
        for rows in events.partition_by("sort"):
            sort = str(rows["sort"][0])
            self.keep(sort, rows.select(self._wanted.get(sort, ("line",))))

    def keep(self, sort: str, events: pl.DataFrame) -> None:
        """Keep some more events of one sort."""
        self._frames.setdefault(sort, []).append(events)

    def take(self, sort: str) -> pl.DataFrame:
        """Return all events of one sort and forget them, so that they are not kept twice."""
        frames = self._frames.pop(sort, None)
        if frames is None:
            return pl.DataFrame(schema={c: self._types[c] for c in self._wanted[sort]})
        return pl.concat(frames)

    def count(self, sort: str) -> int:
        """Count the events of one sort."""
        return sum(frame.height for frame in self._frames.get(sort, ()))

    def lines(self, sort: str) -> set[int]:
        """Return the lines that events of one sort are on."""
        return {line for frame in self._frames.get(sort, ()) for line in frame["line"].unique()}
