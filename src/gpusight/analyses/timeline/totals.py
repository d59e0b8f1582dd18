"""Time of events by colour, summed up between any two of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.timeline.window import Ints

_COLOURS = 256
_LEAST_BLOCK = 64
_EXACT_NS = 1 << 53
"""Sums of whole numbers below this are exact in floating point, in which they are ten times as
fast."""
_AT_ONCE = 1 << 20
"""Events that are summed up in one go while the blocks are built."""


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """Sums by colour up to every so many events; what lies between is added up when asked.

    A full sum for each event and colour would take many times the events' own memory; this takes at
    most four bytes an event and is as exact.
    """

    start_ns: Ints
    end_ns: Ints
    colour: NDArray[np.uint8]
    codes: Ints
    """Colours that occur, rising; sums have a column for each."""
    column: Ints
    """For each of 256 colours, its column."""
    block: int
    """Events from one kept sum to the next."""
    kept_ns: Ints
    """Sums of all events before each block, by colour."""

    @classmethod
    def of(cls, start_ns: Ints, end_ns: Ints, colour: NDArray[np.uint8]) -> Totals:
        """Sum up events block by block."""
        codes = _present(colour)
        column = np.zeros(_COLOURS, np.int64)
        column[codes] = np.arange(len(codes))
        # Blocks of two events for each colour keep the sums at 8 / 2 bytes an event.
        block = max(_LEAST_BLOCK, 2 * len(codes))
        kept = np.zeros((-(-len(start_ns) // block) + 1, len(codes)), np.int64)
        made = cls(start_ns, end_ns, colour, codes, column, block, kept)
        for at in range(0, len(start_ns), _AT_ONCE):
            events = np.arange(at, min(at + _AT_ONCE, len(start_ns)))
            made._add(kept, events // block + 1, events)
        np.cumsum(kept, axis=0, out=kept)
        return made

    @property
    def nbytes(self) -> int:
        """Bytes that the sums take, without the events."""
        return self.kept_ns.nbytes

    def between(self, cuts: Ints) -> Ints:
        """Sum up the events from each cut to the next, by colour; cuts are positions and rise."""
        if cuts[-1] - cuts[0] <= len(cuts) * self.block:
            sums = np.zeros((len(cuts) - 1, len(self.codes)), np.int64)
            bins = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))
            return self._add(sums, bins, np.arange(cuts[0], cuts[-1]))
        blocks = cuts // self.block
        rest = cuts - blocks * self.block
        events = np.arange(rest.sum()) + np.repeat(cuts - np.cumsum(rest), rest)
        rows = np.repeat(np.arange(len(cuts)), rest)
        return np.diff(self._add(self.kept_ns[blocks], rows, events), axis=0)

    def _add(self, sums: Ints, rows: Ints, events: Ints) -> Ints:
        """Add the time of events to the rows of the sums that they belong to."""
        cells = rows * len(self.codes) + self.column[self.colour[events]]
        lengths, every = self.end_ns[events] - self.start_ns[events], sums.reshape(-1)
        # They do not overlap, so that all of them together are no longer than the line.
        if len(events) and int(self.end_ns[-1]) - int(self.start_ns[0]) < _EXACT_NS:
            every += np.bincount(cells, lengths, len(every)).astype(np.int64)
        else:
            np.add.at(every, cells, lengths)
        return sums


def _present(colour: NDArray[np.uint8]) -> Ints:
    """Give the colours that occur, rising."""
    seen = np.zeros(_COLOURS, np.bool_)
    seen[colour] = True
    return np.flatnonzero(seen)
