"""Everything about one event, in the words that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.timeline.details import details
from gpusight.errors import MissingDataError
from gpusight.render.cells import show
from gpusight.web.answers import (
    LONGEST_TEXT,
    EventDetails,
    Link,
    ShownFact,
    ShownSection,
    safe,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.analyses.timeline.details import Details
    from gpusight.analyses.timeline.timeline import Timeline
    from gpusight.model.trace import Trace
    from gpusight.result import Fact


def event_details(
    timeline: Timeline, table: str, row: int, reports: Sequence[Trace]
) -> EventDetails:
    """Tell everything about one event; `reports` are what Nsight Compute measured."""
    found = _details(timeline.trace, table, row, reports)
    spot = timeline.spot(table, row)
    if spot is None:
        raise MissingDataError(f"no track shows row {row:,} of {table}")
    linked = ((link.relation, timeline.spot(link.table, link.row)) for link in found.links)
    return EventDetails(
        spot=safe(spot),
        kind=found.kind,
        title=shown(found.title, LONGEST_TEXT),
        sections=tuple(ShownSection(one.title, _facts(one.facts)) for one in found.sections),
        links=tuple(Link(how, safe(place)) for how, place in linked if place is not None),
    )


def _details(trace: Trace, table: str, row: int, reports: Sequence[Trace]) -> Details:
    """Give the details with the counters of the report that tells most of the event."""
    told = [details(trace, table, row, report=report) for report in reports or (None,)]
    return max(told, key=lambda one: sum(len(section.facts) for section in one.sections))


def _facts(facts: Iterable[Fact]) -> tuple[ShownFact, ...]:
    return tuple(
        ShownFact(one.label, shown(show(one.value, one.fmt), LONGEST_TEXT), one.meaning)
        for one in facts
    )
