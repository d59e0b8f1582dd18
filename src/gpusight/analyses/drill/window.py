"""Runs of launches that hold every wanted kernel: arithmetic on positions, without a capture.

A sequence has a number for each launch that the profiler's filter matches: which of the wanted
kernels it is, or -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Part = tuple[int, int]
    """First and last-plus-one position."""


@dataclass(frozen=True, slots=True)
class Window:
    """A run of consecutive launches."""

    first: int
    count: int
    part: int
    """Which of the parts it lies in."""


def shortest_window(keys: Ints, wanted: int, parts: Sequence[Part]) -> Window | None:
    """Find the shortest run inside one part that holds 0 to `wanted` - 1; the first of equals."""
    best: Window | None = None
    for number, (first, after) in enumerate(parts):
        found = _shortest(keys[first:after], wanted)
        if found is not None and (best is None or found[1] < best.count):
            best = Window(first + found[0], found[1], number)
        if best is not None and best.count == wanted:
            break
    return best


def _shortest(keys: Ints, wanted: int) -> Part | None:
    """Give the first position and the length of the shortest run that holds all."""
    positions = np.arange(len(keys))
    begin = np.full(len(keys), len(keys), dtype=np.int64)
    for key in range(wanted):
        # Where the last one was, at every position: a run that ends here must begin there.
        latest = np.maximum.accumulate(np.where(keys == key, positions, -1))
        begin = np.minimum(begin, latest)
    length = np.where(begin >= 0, positions - begin + 1, len(keys) + 1)
    if not len(length) or length.min() > len(keys):
        return None
    last = int(np.argmin(length))
    return int(begin[last]), int(length[last])


def sure_length(keys: Ints, wanted: int) -> int | None:
    """Say how many launches hold every wanted one wherever they begin.

    The sequence is taken to go round: whole steps, of which more come before and after. None where
    a wanted one is missing.
    """
    longest = 0
    for key in range(wanted):
        at = np.flatnonzero(keys == key)
        if not len(at):
            return None
        longest = max(longest, int(np.diff(at, append=at[0] + len(keys)).max()))
    return longest
