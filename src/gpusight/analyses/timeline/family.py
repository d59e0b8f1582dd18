"""Events of some tables laid out on lines: what stands where, and what it looks like."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gpusight.analyses.timeline.layout import times
from gpusight.analyses.timeline.line import Line

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl
    from numpy.typing import NDArray

    from gpusight.analyses.timeline.layout import Layout
    from gpusight.analyses.timeline.looks import Look
    from gpusight.analyses.timeline.window import Ints
    from gpusight.model.trace import Trace

    _Events: TypeAlias = NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Part:
    """A table whose rows are events."""

    table: str
    start_ns: Ints
    end_ns: Ints
    look: Look

    @classmethod
    def of(cls, trace: Trace, table: str, look: Look) -> Part:
        """Take the times of a table."""
        return cls(table, *times(trace.table(table, ["start_ns", "end_ns"])), look)

    def __len__(self) -> int:
        """Count its rows."""
        return len(self.start_ns)


@dataclass(frozen=True, eq=False)
class Family:
    """Events that are laid out together; lines are numbered as in the layout."""

    layout: Layout
    parts: tuple[Part, ...]
    """At least one; none without rows."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(part.table for part in self.parts)

    @property
    def lines(self) -> pl.DataFrame:
        """What is known of each line."""
        return self.layout.lines

    def line(self, number: int) -> Line:
        """Build what answers about one line."""
        events = self._events(number)
        colour = np.empty(len(events), np.uint8)
        for part, at, rows in self._split(events):
            colour[at] = part.look.colours(rows)
        return Line.of(self._starts(events), self._ends(events), colour)

    def where(self, number: int, positions: Ints) -> tuple[Ints, Ints]:
        """Give the table (a position in `tables`) and the row of events of a line."""
        events = self._events(number)[positions]
        table = np.searchsorted(self._firsts, events, side="right") - 1
        return table, events.astype(np.int64) - self._firsts[table]

    def times(self, number: int, positions: Ints) -> tuple[Ints, Ints]:
        """Give when events of a line begin and end."""
        events = self._events(number)[positions]
        return self._starts(events), self._ends(events)

    def labels(self, number: int, positions: Ints) -> tuple[Ints, list[str]]:
        """Give the distinct short names of events of a line, and which of them each one has."""
        events = self._events(number)[positions]
        which = np.zeros(len(events), np.int64)
        texts: list[str] = []
        for part, at, rows in self._split(events):
            position, names = part.look.labels(rows)
            which[at] = position + len(texts)
            texts += names
        return which, texts

    def find(self, table: str, row: int) -> tuple[int, int] | None:
        """Give the line of a row and its position on it; None where no line shows it."""
        code = self.tables.index(table)
        if not 0 <= row < len(self.parts[code]):
            return None
        start_ns, event = int(self.parts[code].start_ns[row]), row + int(self._firsts[code])
        low, begins = self._first_from(start_ns), self._bounds[:-1]
        for number in np.flatnonzero(low < self._bounds[1:]).tolist():
            if self.layout.event[low[number]] == event:
                return number, int(low[number] - begins[number])
        # It stands behind others of its line that begin with it, as instants may.
        high = self._first_from(start_ns + 1)
        for number in np.flatnonzero(high > low + 1).tolist():
            found = np.flatnonzero(self.layout.event[low[number] : high[number]] == event)
            if len(found):
                return number, int(low[number] + found[0] - begins[number])
        return None

    def _first_from(self, time_ns: int) -> Ints:
        """Give the first place in each line where an event begins at a time or later.

        All lines are bisected side by side: there may be thousands of them.
        """
        low, high = self._bounds[:-1].copy(), self._bounds[1:].copy()
        while len(apart := np.flatnonzero(low < high)):
            middle = (low[apart] + high[apart]) // 2
            early = self._starts(self.layout.event[middle]) < time_ns
            low[apart[early]] = middle[early] + 1
            high[apart[~early]] = middle[~early]
        return low

    @cached_property
    def _bounds(self) -> Ints:
        """Where each line begins among the events, and where the last one ends."""
        return np.append(self.lines["first"].to_numpy(), len(self.layout.event))

    @cached_property
    def _firsts(self) -> Ints:
        """Number of the first event of each table."""
        return np.cumsum([0, *(len(part) for part in self.parts[:-1])])

    def _events(self, number: int) -> _Events:
        return self.layout.event[self._bounds[number] : self._bounds[number + 1]]

    def _starts(self, events: _Events) -> Ints:
        if len(self.parts) == 1:
            return self.parts[0].start_ns[events]
        times = np.empty(len(events), np.int64)
        for part, at, rows in self._split(events):
            times[at] = part.start_ns[rows]
        return times

    def _ends(self, events: _Events) -> Ints:
        if len(self.parts) == 1:
            return self.parts[0].end_ns[events]
        times = np.empty(len(events), np.int64)
        for part, at, rows in self._split(events):
            times[at] = part.end_ns[rows]
        return times

    def _split(self, events: _Events) -> Iterator[tuple[Part, Ints | slice, _Events]]:
        """Give for each table which of the events stand in it, and their rows there."""
        if len(self.parts) == 1:
            yield self.parts[0], slice(None), events
            return
        for part, first in zip(self.parts, self._firsts.astype(np.uint32), strict=True):
            at = np.flatnonzero((events >= first) & (events < first + len(part)))
            if len(at):
                yield part, at, events[at] - first
