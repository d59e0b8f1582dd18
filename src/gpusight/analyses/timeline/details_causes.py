"""What an event was done for: the call, operator, range and line of Python behind it, as links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.attribution.attribute import (
    causes_of_calls,
    causes_of_rows,
    names_of_causes,
)
from gpusight.analyses.ledger.chains import sites_of
from gpusight.analyses.timeline.details_excerpt import excerpt_of_call, excerpt_of_work
from gpusight.analyses.timeline.details_kin import around
from gpusight.analyses.timeline.details_parts import Link
from gpusight.result import Fact, Fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analyses.timeline.details_excerpt import Excerpt
    from gpusight.model.trace import Trace

_LINKS = (
    ("call", "api_calls", "launched by"),
    ("op", "cpu_ops", "operator"),
    ("forward_op", "cpu_ops", "forward operator"),
    ("range", "ranges", "in range"),
    ("forward_range", "ranges", "forward in range"),
    ("module", "python_calls", "module"),
    ("call_site", "python_calls", "called from"),
)
"""Columns of an attribution, the tables that they point into, and what to call that."""
_MOST_AROUND = 8
"""Ranges around a range that are linked."""


@dataclass(frozen=True)
class Causes:
    """Who caused an event; rows are those of the whole capture."""

    rows: dict[str, int]
    """By column of an `Attribution`; those that are not known are left out."""
    site: str | None
    """The line of code that it comes from."""
    in_graph: bool
    ranges: tuple[int, ...]
    """Ranges around the innermost one, from the inside out."""

    def links(self) -> Iterator[Link]:
        """Give the causes as links, the nearest first."""
        for column, table, relation in _LINKS:
            if column in self.rows:
                yield Link(relation, table, self.rows[column])
            if column == "range":
                yield from (Link("in range", table, row) for row in self.ranges[:_MOST_AROUND])

    def facts(self) -> Iterator[Fact]:
        """Give what is known of them and is no event of its own."""
        yield Fact("site", "Call site", self.site, Fmt.TEXT, "Line of code that it comes from")


def causes_of_work(trace: Trace, table: str, row: int) -> Causes:
    """Say who caused a piece of GPU work."""
    excerpt = excerpt_of_work(trace, table, row)
    part = excerpt.trace
    return _told(trace, excerpt, part, causes_of_rows(part, table, pl.Series([0])))


def causes_of_call(trace: Trace, row: int) -> Causes:
    """Say what an API call was made for."""
    excerpt = excerpt_of_call(trace, row)
    part = excerpt.trace
    return _told(trace, excerpt, part, causes_of_calls(part, pl.Series([0])))


def _told(trace: Trace, excerpt: Excerpt, part: Trace, causes: pl.DataFrame) -> Causes:
    found = causes.row(0, named=True)
    rows = {
        column: excerpt.original(table, found[column])
        for column, table, _ in _LINKS
        if found[column] is not None
    }
    site = names_of_causes(part, causes)["call_site"][0]
    if site is None and "call" in rows and trace.has("api_calls", "callchain"):
        site = sites_of(trace, "api_calls", pl.Series([rows["call"]]))[0]
    if rows.get("range") == rows.get("forward_range"):
        rows.pop("forward_range", None)
    outer = tuple(around(trace, "ranges", rows["range"])) if "range" in rows else ()
    return Causes(rows, site, bool(found["in_graph"]), outer)
