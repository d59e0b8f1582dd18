"""Which allocation each release ends: the blocks of memory and when they were held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]

BEFORE = -1
"""Stands for the event that took a block of which only the end was recorded."""


@dataclass(frozen=True)
class Blocks:
    """Blocks of memory, held after event `began` until event `ended`."""

    bytes: Ints
    began: Ints
    """Number of the event that took it; BEFORE when it was held from the start."""
    ended: Ints
    """Number of the event that gave it back; the count of events when none did."""
    row: Ints
    """Row of `memory_events` that took it; -1 when there is none."""
    state: Ints
    """Row of `memory_blocks` that shows it, for blocks known only from there; else -1."""

    def __len__(self) -> int:
        """Count the blocks."""
        return len(self.bytes)

    def held_after(self, event: int) -> Ints:
        """Number the blocks that were held right after an event (BEFORE: from the start)."""
        held: Ints = np.flatnonzero((self.began <= event) & (self.ended > event))
        return held

    def chosen(self, numbers: Ints) -> Blocks:
        """Give some of the blocks, by number."""
        return Blocks(
            self.bytes[numbers],
            self.began[numbers],
            self.ended[numbers],
            self.row[numbers],
            self.state[numbers],
        )

    def with_held(self, sizes: Ints, state: Ints, events: int) -> Blocks:
        """Add blocks that were held from the first event to the last."""
        none = np.full(len(sizes), BEFORE)
        return Blocks(
            np.concatenate((self.bytes, sizes)),
            np.concatenate((self.began, none)),
            np.concatenate((self.ended, np.full(len(sizes), events))),
            np.concatenate((self.row, none)),
            np.concatenate((self.state, state)),
        )

    def from_event(self, first: int) -> Blocks:
        """Forget the first events: what they took was held from the start."""
        kept = self.chosen(np.flatnonzero(self.ended >= first))
        began, ended = np.maximum(kept.began - first, BEFORE), kept.ended - first
        return Blocks(kept.bytes, began, ended, kept.row, kept.state)


def pair(rows: Ints, taken: Flags, sizes: Ints, address: Ints, process: Ints) -> Blocks:
    """Pair each allocation with the next event at its address, in the order of the events.

    `rows` are the events' numbers in `memory_events`. Where an address is taken twice in a row, the
    release between was lost: the first block ends when the second begins. A release that comes
    first at its address ends a block that was held from the start.
    """
    count = len(rows)
    several = count and np.ptp(process)
    order = np.lexsort((address, process)) if several else np.argsort(address, kind="stable")
    same = (address[order][1:] == address[order][:-1]) & (process[order][1:] == process[order][:-1])
    following = np.full(count, count)
    following[order[:-1][same]] = order[1:][same]
    first = np.ones(count, dtype=np.bool_)
    first[order[1:][same]] = False
    begun, early = np.flatnonzero(taken), np.flatnonzero(first & ~taken)
    return Blocks(
        sizes[np.concatenate((begun, early))],
        np.concatenate((begun, np.full(len(early), BEFORE))),
        np.concatenate((following[begun], early)),
        np.concatenate((rows[begun], np.full(len(early), -1))),
        np.full(len(begun) + len(early), -1),
    )


def changes(blocks: Blocks, events: int) -> Ints:
    """Give by how many bytes each event changed what is held."""
    delta = np.zeros(events, dtype=np.int64)
    begins, ends = blocks.began > BEFORE, blocks.ended < events
    # No event takes two blocks, nor gives two back: plain indexing adds everything up.
    delta[blocks.began[begins]] += blocks.bytes[begins]
    delta[blocks.ended[ends]] -= blocks.bytes[ends]
    return delta
