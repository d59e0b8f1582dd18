"""Events of a plane, sorted out batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PLACE = ("line", "kind", "start_ns", "end_ns")
"""What every event has: its line and its kind, by their places in the plane, and its times."""
_FIRST, _LONGEST = 5, 60
_SCHEMA: dict[str, type[pl.DataType]] = {
    "line": pl.Int32,
    "kind": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}


def enumerated(names: Iterable[str]) -> str:
    """List names for a note, the first few of many."""
    ordered = sorted(set(names))
    first = ", ".join(repr(name[:_LONGEST]) for name in ordered[:_FIRST])
    return first + (f" and {len(ordered) - _FIRST:,} more" if len(ordered) > _FIRST else "")


class PlaneTables(NamedTuple):
    """What was read of one plane, and what there is to say about it."""

    tables: dict[str, pl.DataFrame]
    notes: list[str]


class Kept:
    """What is kept of each sort of event until all are decoded: no more than will be needed."""

    def __init__(
        self, wanted: Mapping[str, Sequence[str]], types: Mapping[str, type[pl.DataType]]
    ) -> None:
        self._wanted = wanted
        self._types: dict[str, type[pl.DataType]] = {**_SCHEMA, **types}
        self._frames: dict[str, list[pl.DataFrame]] = {}

    def sort_out(self, events: pl.DataFrame) -> None:
        """Keep events by what their column `sort` says they are; none of what nobody wants."""
        for rows in events.partition_by("sort"):
            sort = str(rows["sort"][0])
            self.keep(sort, rows.select(self._wanted.get(sort, ("line",))))

    def keep(self, sort: str, events: pl.DataFrame) -> None:
        """Keep some more events of one sort."""
        self._frames.setdefault(sort, []).append(events)

    def take(self, sort: str) -> pl.DataFrame:
        """Hand over all events of one sort, so that they are not kept twice."""
        frames = self._frames.pop(sort, None)
        if frames is None:
            return pl.DataFrame(schema={c: self._types[c] for c in self._wanted[sort]})
        return pl.concat(frames)

    def count(self, sort: str) -> int:
        """Count the events of one sort."""
        return sum(frame.height for frame in self._frames.get(sort, ()))

    def lines(self, sort: str) -> set[int]:
        """Name the lines that events of one sort are on."""
        return {line for frame in self._frames.get(sort, ()) for line in frame["line"].unique()}
