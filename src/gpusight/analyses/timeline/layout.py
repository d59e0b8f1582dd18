"""Which line each event stands on: worked out once for a capture, then found again.

Events are numbered through their tables, one after the other. Those of a group, such as a stream or
a thread, are put on as many lines as it takes for no two of a line to overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.timeline.pack import pack
from gpusight.model.ordering import number, stable_argsort

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gpusight.analyses.timeline.window import Ints
    from gpusight.model.trace import Trace

EVENT = "event"
"""Column with the number of an event."""
_OF_LINE = ("line", "first", "count", "busy_ns", "start_ns", "end_ns")
_UNKNOWN = np.iinfo(np.int64).min
_FEW = 1 << 22
"""Combinations of keys that are counted rather than sorted."""


@dataclass(frozen=True, slots=True)
class Group:
    """Events that belong together, such as those of a stream, on one or several lines."""

    keys: dict[str, int | None]
    """What tells it from other groups."""
    first: int
    """Number of its outermost line; the others follow."""
    lines: int
    events: int
    busy_ns: int
    """Durations of its events, summed."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Events of some tables, line by line."""

    event: NDArray[np.uint32]
    """Numbers of the events, those of a line together and in order of start."""
    lines: pl.DataFrame
    """A row for each line: the keys of its group, `line` (0 the outermost of the group), `first`
    (position in `event`), `count`, `busy_ns`, `start_ns` and `end_ns`."""

    def groups(self) -> list[Group]:
        """Give the groups, in the order of their keys."""
        first = np.flatnonzero(self.lines["line"].to_numpy() == 0)
        lines = np.diff(first, append=self.lines.height)
        rows = self.lines.drop(_OF_LINE)[first].to_dicts()
        sums = [np.add.reduceat(self.lines[c].to_numpy(), first) for c in ("count", "busy_ns")]
        return [
            Group(keys, *map(int, numbers))
            for keys, *numbers in zip(rows, first, lines, *sums, strict=True)
        ]


def kept(trace: Trace, name: str, make: Callable[[], Layout]) -> Layout:
    """Give a layout, from the cache where it is there; making a large one takes a second."""
    frame = trace.derive(f"timeline-{name}-1", lambda: _as_cells(make()))
    lines = pl.DataFrame({c: frame[c][0] for c in frame.columns if c != EVENT})
    return Layout(frame[EVENT][0].to_numpy(), lines)


def _as_cells(layout: Layout) -> pl.DataFrame:
    """Put columns of different lengths into one frame, as what is kept is a frame."""
    columns = [pl.Series(EVENT, layout.event), *layout.lines.get_columns()]
    return pl.DataFrame({column.name: [column] for column in columns})


def lay_out(events: pl.DataFrame, keys: Sequence[str], *, packed: bool = True) -> Layout:
    """Lay out events: `event`, `start_ns`, `end_ns`, and whole numbers that tell groups apart.

    Groups come in the order of their keys, unknown ones first. Unless `packed`, a group is one
    line, as samples are.
    """
    start, end = times(events)
    group, named = _groups(events, keys)
    line = pack(start, end, group) if packed else np.zeros(len(group), np.int32)
    strip, first_strip = _strips(group, line, named.height)
    order = _in_order(start, strip)
    event = events[EVENT].to_numpy()[order].astype(np.uint32, copy=False)
    measured = _measured(start, end, order, np.bincount(strip, minlength=first_strip[-1]))
    of = np.repeat(np.arange(named.height), np.diff(first_strip))
    lines = named[of].with_columns(
        pl.Series("line", np.arange(len(of)) - first_strip[of], pl.Int64), *measured
    )
    return Layout(event, lines)


def times(events: pl.DataFrame) -> tuple[Ints, Ints]:
    """Give when events begin and end; one that would end before it begins is an instant."""
    start, end = (events[c].to_numpy() for c in ("start_ns", "end_ns"))
    if bool((end < start).any()):
        end = np.maximum(start, end)
    return start, end


def _groups(events: pl.DataFrame, keys: Sequence[str]) -> tuple[Ints, pl.DataFrame]:
    """Number the groups in the order of their keys, and give the keys of each."""
    codes = np.zeros(events.height, np.int64)
    for key in keys:
        numbers = number(events[key].fill_null(_UNKNOWN))
        if (several := int(numbers.max(initial=0)) + 1) > 1:
            codes = _renumbered(codes * several + numbers)
    first = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # written backwards: the first row stays
    return codes, events.select(keys)[first]


def _renumbered(codes: Ints) -> Ints:
    """Number codes from 0 in their order, without those that do not occur."""
    if int(codes.max(initial=0)) >= _FEW:
        return np.unique(codes, return_inverse=True)[1]
    occurs = np.bincount(codes) > 0
    numbers: Ints = (np.cumsum(occurs) - 1)[codes]
    return numbers


def _strips(group: Ints, line: NDArray[np.int32], groups: int) -> tuple[Ints, Ints]:
    """Number the lines of all groups, one group after the other; and say where each begins."""
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
    """Say of each line where it begins, how many events it has, and their times."""
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
