"""Lines for events that lie within each other or overlap, so that those of one line do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpusight.model.ordering import stable_argsort

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.timeline.window import Ints

_FITTED_EVENTS = 12_000_000
"""Events looked at while lines are fitted, each as often as it is: a bound on how long it takes."""


def pack(start_ns: Ints, end_ns: Ints, groups: Ints) -> NDArray[np.int32]:
    """Give each event the line that it is drawn on, 0 the outermost, whatever their order.

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
        lines[events] = _lines(start[events], end[events])
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
    """Give the lines of one group, whose events are in order.

    Where events nest, how many are open is the line. Only from where some cross others is a line
    fitted, which leaves smaller tangles for the next round.
    """
    lines = np.zeros(len(start), np.int64)
    left, looked_at = np.arange(len(start)), 0
    while bool((start[left[1:]] < end[left[:-1]]).any()):
        if looked_at > _FITTED_EVENTS:
            lines[left] += _dealt(start[left], end[left])
            break
        looked_at += len(left)
        height = _open_before(start[left], end[left])
        crossed = _crossed_at(start[left], end[left], height)
        lines[left] += np.minimum(height, crossed)
        left = left[height >= crossed]
        left = np.delete(left, _one_line(start[left], end[left]))
        lines[left] += 1
    return lines


def _open_before(start: Ints, end: Ints) -> Ints:
    """Count for each event those before it that have not ended when it begins."""
    lasting = end > start
    begun: Ints = np.cumsum(lasting) - lasting
    ended = np.searchsorted(np.sort(end[lasting]), start, side="right")
    open_before: Ints = begun - ended
    return open_before


def _turns(start: Ints, end: Ints, height: Ints) -> tuple[Ints, Ints]:
    """Give the events in the order of height and time in which they begin and in which they end.

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
    """Give for each event the lowest height at which events cross in its stretch without a pause.

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


def _one_line(start: Ints, end: Ints) -> Ints:
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
    """Give each event the line freed last, or a new one where all are taken, in one sweep.

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
