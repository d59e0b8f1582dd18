"""What several rules measure of a timeline, measured once."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.findings.timeline.timeline import Timeline

_Measured = TypeVar("_Measured")


def once(measure: Callable[[Timeline], _Measured]) -> Callable[[Timeline], _Measured]:
    """Keep what a function gives of a timeline for as long as the timeline lives."""
    done: WeakKeyDictionary[Timeline, _Measured] = WeakKeyDictionary()

    @wraps(measure)
    def measured(timeline: Timeline) -> _Measured:
        if timeline not in done:
            done[timeline] = measure(timeline)
        return done[timeline]

    return measured
