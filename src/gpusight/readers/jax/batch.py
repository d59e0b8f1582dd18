"""What the two forms of a JAX profile have in common: events of a plane, and what they carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import polars as pl


class Stats(Protocol):
    """What the events of a batch carry besides their times; null where an event does not."""

    def has(self, *names: str) -> pl.Series:
        """Tell which events carry one of these stats."""
        ...

    def integers(self, name: str) -> pl.Series:
        """Give a whole number of each event."""
        ...

    def reals(self, name: str) -> pl.Series:
        """Give a number of each event."""
        ...

    def texts(self, name: str) -> pl.Series:
        """Give a text of each event by its place among the plane's words."""
        ...

    def any_number(self) -> pl.Series:
        """Give a number that each event carries, by whatever name, as samples of counters do."""
        ...


class Batch(NamedTuple):
    """Some events of a plane, in file order."""

    events: pl.DataFrame
    """`line` and `kind`, by their places in the plane, and times. The kind is -1 where the plane
    does not name it, and where the event is a mere count, which has no time."""
    stats: Stats
