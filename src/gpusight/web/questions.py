"""What a page asks about one capture: each question is a function of the capture and the query.

What a question needs is imported with it: the server answers sooner so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from gpusight.web.answers import safe, shown
from gpusight.web.query import FURTHEST_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.analyses.timeline.measure import MeasuredDevice, MeasuredKernel
    from gpusight.analyses.timeline.search import NamedEvents
    from gpusight.analyses.timeline.window import Spot
    from gpusight.model.trace import Trace
    from gpusight.web.query import Query
    from gpusight.web.served import Served

MOST_BINS = 8192
MOST_TRACKS = 1024
MOST_FOUND = 1000
LONGEST_KEY = 200
LONGEST_SEARCH = 500
_MOST_LINES = 1 << 16
_MOST_ROWS = 1 << 32
_Named = TypeVar("_Named", "NamedEvents", "MeasuredDevice", "MeasuredKernel")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about one capture."""

    served: Served
    query: Query
    reports: Sequence[Trace]
    """Nsight Compute reports of the same program."""


Question: TypeAlias = "Callable[[Asked], object]"
"""Gives what becomes JSON, or the bytes themselves."""


def info(asked: Asked) -> object:
    """Say what a page must know before it asks for events."""
    return asked.served.info


def window(asked: Asked) -> bytes:
    """Give what a screen shows of some tracks."""
    from gpusight.web.wire import encode_window

    start_ns, end_ns = asked.query.stretch()
    bins = asked.query.whole("bins", 1, MOST_BINS)
    keys = asked.query.names("tracks", MOST_TRACKS, LONGEST_KEY)
    answer = encode_window(asked.served.timeline.window(keys, start_ns, end_ns, bins))
    asked.served.seen.set()
    return answer


def pick(asked: Asked) -> Spot | None:
    """Give the event at a time on a line, or the nearest."""
    query = asked.query
    spot = asked.served.timeline.pick(
        query.text("track", LONGEST_KEY),
        query.whole("line", 0, _MOST_LINES),
        query.time("time"),
        query.whole("within", 0, FURTHEST_NS, default=0),
    )
    return None if spot is None else safe(spot)


def event(asked: Asked) -> object:
    """Tell everything about one event."""
    from gpusight.web.details import event_details

    table, row = asked.query.text("table", LONGEST_KEY), asked.query.whole("row", 0, _MOST_ROWS)
    return event_details(asked.served.timeline, table, row, asked.reports)


def search(asked: Asked) -> object:
    """Find names that hold a text."""
    from gpusight.analyses.timeline.search import search as find

    text = asked.query.text("q", LONGEST_SEARCH)
    limit = asked.query.whole("limit", 1, MOST_FOUND, default=50)
    found = find(asked.served.timeline.trace, text, limit)
    return replace(found, groups=tuple(map(_readable, found.groups)))


def following(asked: Asked) -> Spot | None:
    """Give the next event of a name, or the one before."""
    from gpusight.analyses.timeline.search import next_event

    query, timeline = asked.query, asked.served.timeline
    table = query.text("table", LONGEST_KEY)
    direction = query.whole("direction", -1, 1, default=1) or 1
    code, time_ns = query.whole("code", 0, _MOST_ROWS), query.time("time")
    row = next_event(timeline.trace, table, code, time_ns, direction)
    spot = None if row is None else timeline.spot(table, row)
    return None if spot is None else safe(spot)


def measure(asked: Asked) -> object:
    """Add up what lies in a stretch of time."""
    from gpusight.analyses.timeline.measure import measure as measured

    found = measured(asked.served.timeline, *asked.query.stretch())
    devices, kernels = tuple(map(_readable, found.devices)), tuple(map(_readable, found.kernels))
    return replace(found, devices=devices, kernels=kernels)


def findings(asked: Asked) -> object:
    """Say what holds the program back."""
    return asked.served.findings


def ledger(asked: Asked) -> object:
    """Say where the time went."""
    return asked.served.ledger


def _readable(named: _Named) -> _Named:
    """Give something whose name, out of a capture, is safe to show."""
    return replace(named, name=shown(named.name))


QUESTIONS: dict[str, Question] = {
    "": info,
    "/window": window,
    "/pick": pick,
    "/event": event,
    "/search": search,
    "/next": following,
    "/measure": measure,
    "/findings": findings,
    "/ledger": ledger,
}
"""Every question, by the end of its address."""
