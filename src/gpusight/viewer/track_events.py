"""Events of tables laid out on lines: which line each stands on, and how lines are packed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from gpusight.core import native
from gpusight.trace.intervals import number, stable_argsort
from gpusight.viewer.level_of_detail import EventLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace
    from gpusight.viewer.track_style import EventStyle

    _Events: TypeAlias = NDArray[np.uint32]


_FITTED_EVENTS = 12_000_000
"""Events looked at while lines are fitted, each as often as it occurs: a bound on the time."""


def pack(start_ns: Ints, end_ns: Ints, groups: Ints) -> NDArray[np.int32]:
    """Return each event the line that it is drawn on, 0 the outermost, whatever their order.

    Events of a group nest: a line is how many others are open where the event begins, and the
    longer of two that begin together is the outer one, of equals the first given. Instants take a
    line but do not hold it. Events that cross others take the lowest line that is free. Where many
    hundreds cross at once, those beyond take the line that was freed last, which is as few lines
    but may leave a gap below them. No event is left out.
    """
    start, end = np.asarray(start_ns, np.int64), np.asarray(end_ns, np.int64)
    order = _outer_first(start, end, np.asarray(groups, np.int64))
    lines = np.empty(len(start), np.int32)
    bounds = np.flatnonzero(np.diff(np.asarray(groups)[order])) + 1
    for events in np.split(order, bounds):
        first, last = start[events], end[events]
        nested = native.nested_lines(first, last)
        lines[events] = _lines(first, last) if nested is None else nested
    return lines


def _outer_first(start: Ints, end: Ints, groups: Ints) -> Ints:
    """Order by group, then start, the longer first among equal starts, else as given."""
    if bool((start[1:] >= start[:-1]).all()):
        order = stable_argsort(groups)
        first, last = start[order], end[order]
        if not bool(((first[1:] == first[:-1]) & (last[1:] > last[:-1])).any()):
            return order
    return np.lexsort((-end, start, groups))


def _lines(start: Ints, end: Ints) -> Ints:
    """Return the lines of one group, whose events are in order.

    Where events nest, how many are open is the line. Only from where some cross others is a line
    fitted, which leaves smaller tangles for the next round.
    """
    lines = np.zeros(len(start), np.int64)
    unplaced, examined = np.arange(len(start)), 0
    while bool((start[unplaced[1:]] < end[unplaced[:-1]]).any()):
        if examined > _FITTED_EVENTS:
            lines[unplaced] += _dealt(start[unplaced], end[unplaced])
            break
        examined += len(unplaced)
        height = _open_before(start[unplaced], end[unplaced])
        crossed = _crossed_at(start[unplaced], end[unplaced], height)
        lines[unplaced] += np.minimum(height, crossed)
        unplaced = unplaced[height >= crossed]
        unplaced = np.delete(unplaced, _fill_line(start[unplaced], end[unplaced]))
        lines[unplaced] += 1
    return lines


def _open_before(start: Ints, end: Ints) -> Ints:
    """Count for each event those before it that have not ended when it begins."""
    lasting = end > start
    begun: Ints = np.cumsum(lasting) - lasting
    ended = np.searchsorted(np.sort(end[lasting]), start, side="right")
    open_before: Ints = begun - ended
    return open_before


def _turns(start: Ints, end: Ints, height: Ints) -> tuple[Ints, Ints]:
    """Return the events in the order of height and time in which they begin and in which they end.

    How many are open rises and falls, and at any height it does so in turn: the k-th of the first
    raises it from where the k-th of the second lowers it to. Where events nest they are the same.
    """
    lasting = np.flatnonzero(end > start)
    closing = lasting[::-1][np.argsort(end[lasting][::-1], kind="stable")]
    lowered = height.copy()
    begun = np.searchsorted(start[lasting], end[closing], side="left")
    lowered[closing] = begun - np.arange(1, len(closing) + 1)
    if len(lasting) < len(start):
        # What ends at an instant began before it, and so stands before it already.
        closing = np.argsort(end, kind="stable")
    return stable_argsort(height), closing[stable_argsort(lowered[closing])]


def _crossed_at(start: Ints, end: Ints, height: Ints) -> Ints:
    """Return for each event the lowest height at which events cross in its stretch without a pause.

    Where none do, it is more than any height.
    """
    up, down = _turns(start, end, height)
    reached = np.maximum.accumulate(end)
    stretch = np.cumsum(np.append(True, start[1:] >= reached[:-1])) - 1
    lowest = np.full(int(stretch[-1]) + 1, len(start))
    crossing = up[up != down]
    np.minimum.at(lowest, stretch[crossing], height[crossing])
    of_stretch: Ints = lowest[stretch]
    return of_stretch


def _fill_line(start: Ints, end: Ints) -> Ints:
    """Fill a line: the first event, then each time the first that begins when it has ended.

    Steps to the next event are doubled, so that a line of any length takes few of them.
    """
    count = len(start)
    chain = np.arange(min(count, 1))
    step = np.maximum(np.searchsorted(start, end, side="left"), np.arange(1, count + 1))
    step = np.append(step, count)
    while True:
        further = step[chain]
        further = further[further < count]
        chain = np.append(chain, further)
        if 2 * len(further) < len(chain) or not count:
            return chain
        step = step[step]


def _dealt(start: Ints, end: Ints) -> Ints:
    """Return each event the line freed last, or a new one where all are taken, in one sweep.

    An event takes the line of the one that lowered the count of open ones to where it raises it
    from. Following those back ends at an event for which that count was new, and is the line.
    """
    height = _open_before(start, end)
    up, down = _turns(start, end, height)
    before = np.arange(len(start))
    again = height[up[1:]] == height[up[:-1]]
    before[up[1:][again]] = down[:-1][again]
    while True:
        further = before[before]
        if np.array_equal(further, before):
            return height[before]
        before = further


EVENT = "event"
"""Column with the number of an event."""
_OF_LINE = ("line", "first", "count", "busy_ns", "start_ns", "end_ns")
_UNKNOWN = np.iinfo(np.int64).min
_MAX_COUNTED_KEYS = 1 << 22
"""Combinations of keys that are counted rather than sorted."""


@dataclass(frozen=True, slots=True)
class LineGroup:
    """Events that belong together, such as those of a stream, on one or several lines."""

    keys: dict[str, int | None]
    """What distinguishes it from other groups."""
    first: int
    """Number of its outermost line; the others follow."""
    lines: int
    events: int
    busy_ns: int
    """Durations of its events, summed."""


@dataclass(frozen=True, slots=True, eq=False)
class LineLayout:
    """Events of some tables, line by line."""

    event: NDArray[np.uint32]
    """Numbers of the events, those of a line together and in order of start."""
    lines: pl.DataFrame
    """A row for each line: the keys of its group, `line` (0 the outermost of the group), `first`
    (position in `event`), `count`, `busy_ns`, `start_ns` and `end_ns`."""

    def groups(self) -> list[LineGroup]:
        """Return the groups, in the order of their keys."""
        first = np.flatnonzero(self.lines["line"].to_numpy() == 0)
        lines = np.diff(first, append=self.lines.height)
        rows = self.lines.drop(_OF_LINE)[first].to_dicts()
        sums = [np.add.reduceat(self.lines[c].to_numpy(), first) for c in ("count", "busy_ns")]
        return [
            LineGroup(keys, *map(int, numbers))
            for keys, *numbers in zip(rows, first, lines, *sums, strict=True)
        ]


def kept(trace: Trace, name: str, make: Callable[[], LineLayout]) -> LineLayout:
    """Return a layout, from the cache where it is there; making a large one takes a second."""
    frame = trace.derive(f"timeline-{name}-1", lambda: _as_cells(make()))
    lines = pl.DataFrame({c: frame[c][0] for c in frame.columns if c != EVENT})
    return LineLayout(frame[EVENT][0].to_numpy(), lines)


def _as_cells(layout: LineLayout) -> pl.DataFrame:
    """Convert to one frame of columns of different lengths: the cache holds frames."""
    columns = [pl.Series(EVENT, layout.event), *layout.lines.get_columns()]
    return pl.DataFrame({column.name: [column] for column in columns})


def lay_out(events: pl.DataFrame, keys: Sequence[str], *, packed: bool = True) -> LineLayout:
    """Lay out events: `event`, `start_ns`, `end_ns`, and integers that identify groups.

    Groups come in the order of their keys, unknown ones first. Unless `packed`, a group is one
    line, as samples are.
    """
    start, end = times(events)
    group = _groups(events, keys)
    groups = int(group.max(initial=-1)) + 1
    number_of = events[EVENT].to_numpy()
    laid_out = native.group_lines(start, end, group, groups) if packed else None
    if laid_out is None:
        line = pack(start, end, group) if packed else np.zeros(len(group), np.int32)
        strip, first_strip = _strips(group, line, groups)
        order = _in_order(start, strip)
        event = number_of[order]
        measured = _measured(start, end, order, np.bincount(strip, minlength=first_strip[-1]))
        first_row = np.zeros(groups, np.int64)
        first_row[group[::-1]] = np.arange(len(group))[::-1]  # backwards: the first row stays
    else:
        first_row, first_strip, in_lines, *sums = laid_out
        event = number_of[in_lines]
        first = np.cumsum(sums[0]) - sums[0]
        columns = zip(_OF_LINE[1:], (first, *sums), strict=True)
        measured = [pl.Series(name, column) for name, column in columns]
    named = events.select(keys)[first_row]
    group_of_line = np.repeat(np.arange(groups), np.diff(first_strip))
    lines = named[group_of_line].with_columns(
        pl.Series("line", np.arange(len(group_of_line)) - first_strip[group_of_line], pl.Int64),
        *measured,
    )
    return LineLayout(event.astype(np.uint32, copy=False), lines)


def times(events: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return when events begin and end; one that would end before it begins is an instant."""
    start, end = (events[c].to_numpy() for c in ("start_ns", "end_ns"))
    if bool((end < start).any()):
        end = np.maximum(start, end)
    return start, end


def _groups(events: pl.DataFrame, keys: Sequence[str]) -> Ints:
    """Number the groups in the order of their keys."""
    codes: Ints | None = None
    for key in keys:
        column = events[key]
        if column.null_count() in (0, len(column)) and column.min() == column.max():
            continue  # all events have the same
        numbers = number(column.fill_null(_UNKNOWN))
        several = int(numbers.max(initial=0)) + 1
        codes = numbers if codes is None else _renumbered(codes * several + numbers)
    return np.zeros(events.height, np.int64) if codes is None else codes


def _renumbered(codes: Ints) -> Ints:
    """Number codes from 0 in their order, without those that do not occur."""
    if int(codes.max(initial=0)) >= _MAX_COUNTED_KEYS:
        return np.unique(codes, return_inverse=True)[1]
    occurs = np.bincount(codes) > 0
    numbers: Ints = (np.cumsum(occurs) - 1)[codes]
    return numbers


def _strips(group: Ints, line: NDArray[np.int32], groups: int) -> tuple[Ints, Ints]:
    """Number the lines of all groups, one group after the other; and return where each starts."""
    most = np.full(groups, -1, np.int64)
    np.maximum.at(most, group, line)
    first = np.append(np.int64(0), np.cumsum(most + 1))
    strip: Ints = first[group] + line
    return strip, first


def _in_order(start: Ints, strip: Ints) -> Ints:
    """Order by line, then by start; what is in order of start need not be sorted again."""
    if bool((start[1:] >= start[:-1]).all()):
        return stable_argsort(strip)
    by_time = np.argsort(start, kind="stable")
    return by_time[stable_argsort(strip[by_time])]


def _measured(start: Ints, end: Ints, order: Ints, count: Ints) -> list[pl.Series]:
    """Compute for each line its first event, number of events, and times."""
    bounds = np.concatenate(([0], np.cumsum(count)))
    ran = np.concatenate(([0], np.cumsum((end - start)[order])))
    last = np.maximum(bounds[1:] - 1, 0)
    return [
        pl.Series("first", bounds[:-1]),
        pl.Series("count", count),
        pl.Series("busy_ns", ran[bounds[1:]] - ran[bounds[:-1]]),
        pl.Series("start_ns", start[order[np.minimum(bounds[:-1], last)]]),
        pl.Series("end_ns", end[order[last]]),
    ]


@dataclass(frozen=True, eq=False)
class TrackTable:
    """A table whose rows are events."""

    table: str
    start_ns: Ints
    end_ns: Ints
    style: EventStyle

    @classmethod
    def of(cls, trace: Trace, table: str, style: EventStyle) -> TrackTable:
        """Take the times of a table."""
        return cls(table, *times(trace.table(table, ["start_ns", "end_ns"])), style)

    def __len__(self) -> int:
        """Count its rows."""
        return len(self.start_ns)


@dataclass(frozen=True, eq=False)
class TrackEvents:
    """Events that are laid out together; lines are numbered as in the layout."""

    layout: LineLayout
    parts: tuple[TrackTable, ...]
    """At least one; none without rows."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(part.table for part in self.parts)

    def line(self, number: int) -> EventLine:
        """Build what answers about one line."""
        events = self._events(number)
        color = np.empty(len(events), np.uint8)
        for part, at, rows in self._split(events):
            color[at] = part.style.colors(rows)
        return EventLine.of(*self._times(events), color)

    def where(self, number: int, positions: Ints) -> tuple[Ints, Ints]:
        """Return the table (a position in `tables`) and the row of events of a line."""
        events = self._events(number)[positions]
        table = np.searchsorted(self._firsts, events, side="right") - 1
        return table, events.astype(np.int64) - self._firsts[table]

    def times(self, number: int, positions: Ints) -> tuple[Ints, Ints]:
        """Return when events of a line begin and end."""
        return self._times(self._events(number)[positions])

    def labels(self, number: int, positions: Ints) -> tuple[Ints, list[str]]:
        """Return the distinct short names of events of a line, and which of them each one has."""
        events = self._events(number)[positions]
        label_of = np.zeros(len(events), np.int64)
        texts: list[str] = []
        for part, at, rows in self._split(events):
            position, names = part.style.labels(rows)
            label_of[at] = position + len(texts)
            texts += names
        return label_of, texts

    def find(self, table: str, row: int) -> tuple[int, int] | None:
        """Return the line of a row and its position on it; None where no line shows it."""
        code = self.tables.index(table)
        if not 0 <= row < len(self.parts[code]):
            return None
        start_ns, event = int(self.parts[code].start_ns[row]), row + int(self._firsts[code])
        low, begins = self._first_from(start_ns), self._bounds[:-1]
        for line in np.flatnonzero(low < self._bounds[1:]).tolist():
            if self.layout.event[low[line]] == event:
                return line, int(low[line] - begins[line])
        # It stands behind others of its line that begin with it, as instants may.
        high = self._first_from(start_ns + 1)
        for line in np.flatnonzero(high > low + 1).tolist():
            hits = np.flatnonzero(self.layout.event[low[line] : high[line]] == event)
            if len(hits):
                return line, int(low[line] + hits[0] - begins[line])
        return None

    def _first_from(self, time_ns: int) -> Ints:
        """Return the first place in each line where an event begins at a time or later.

        All lines are bisected side by side: there may be thousands of them.
        """
        low, high = self._bounds[:-1].copy(), self._bounds[1:].copy()
        while len(apart := np.flatnonzero(low < high)):
            middle = (low[apart] + high[apart]) // 2
            early = self._times(self.layout.event[middle])[0] < time_ns
            low[apart[early]] = middle[early] + 1
            high[apart[~early]] = middle[~early]
        return low

    @cached_property
    def _bounds(self) -> Ints:
        """Where each line begins among the events, and where the last one ends."""
        return np.append(self.layout.lines["first"].to_numpy(), len(self.layout.event))

    @cached_property
    def _firsts(self) -> Ints:
        """Number of the first event of each table."""
        return np.cumsum([0, *(len(part) for part in self.parts[:-1])])

    def _events(self, number: int) -> _Events:
        return self.layout.event[self._bounds[number] : self._bounds[number + 1]]

    def _times(self, events: _Events) -> tuple[Ints, Ints]:
        if len(self.parts) == 1:
            return self.parts[0].start_ns[events], self.parts[0].end_ns[events]
        start, end = np.empty(len(events), np.int64), np.empty(len(events), np.int64)
        for part, at, rows in self._split(events):
            start[at], end[at] = part.start_ns[rows], part.end_ns[rows]
        return start, end

    def _split(self, events: _Events) -> Iterator[tuple[TrackTable, Ints | slice, _Events]]:
        """Return for each table which of the events stand in it, and their rows there."""
        if len(self.parts) == 1:
            yield self.parts[0], slice(None), events
            return
        for part, first in zip(self.parts, self._firsts.astype(np.uint32), strict=True):
            at = np.flatnonzero((events >= first) & (events < first + len(part)))
            if len(at):
                yield part, at, events[at] - first
