"""How the rows of a table look on a timeline: their colours, and the short names on slices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import polars as pl

from gpusight.analyses.timeline.colours import possible
from gpusight.model.kernel_names import classify

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gpusight.analyses.timeline.colours import Codes
    from gpusight.analyses.timeline.window import Ints

    Rows: TypeAlias = NDArray[np.integer[Any]]

MOST_CHARACTERS = 120
"""No slice is wide enough for more."""


class Look(Protocol):
    """What a table's rows look like; asked only about rows that a screen shows."""

    def colours(self, rows: Rows) -> Codes:
        """Give the colour of each row, as positions in `COLOURS`."""
        ...

    def labels(self, rows: Rows) -> tuple[Ints, list[str]]:
        """Give the distinct short names of rows, and the position of each row's own among them."""
        ...


@dataclass(frozen=True)
class Named:
    """Rows that have a name, which decides what they look like."""

    names: pl.Series
    """Dictionary-encoded; never null."""
    paint: Callable[[pl.Series], Codes]
    """Gives the colour of each name that the column can hold."""
    shorten: Callable[[str], str]

    def colours(self, rows: Rows) -> Codes:
        """Look the colours up by name."""
        return self._colours[self._codes[rows]]

    def labels(self, rows: Rows) -> tuple[Ints, list[str]]:
        """Shorten the names of these rows, each once."""
        used, position = np.unique(self._codes[rows], return_inverse=True)
        return position, [self.shorten(text) for text in self._texts.gather(used)]

    @cached_property
    def _codes(self) -> Rows:
        codes: Rows = self.names.to_physical().to_numpy()
        return codes

    @cached_property
    def _texts(self) -> pl.Series:
        return possible(self.names)

    @cached_property
    def _colours(self) -> Codes:
        return self.paint(self.names)


@dataclass(frozen=True)
class Counted:
    """Rows that are told by what they do and a number: a copy and its bytes, a graph and its id."""

    words: pl.Series
    """Dictionary-encoded, such as `Host-to-Device`; never null."""
    numbers: pl.Series
    show: Callable[[int | None], str]
    """Writes such a number down; empty for one that is not known."""
    paint: Callable[[pl.Series], Codes]

    def colours(self, rows: Rows) -> Codes:
        """Look the colours up by what is done."""
        return self._named.colours(rows)

    def labels(self, rows: Rows) -> tuple[Ints, list[str]]:
        """Say what is done and the number, such as `HtoD 4.194 MB`."""
        kind, words = self._named.labels(rows)
        shown = pl.DataFrame({"kind": kind, "number": self.numbers.gather(rows)})
        distinct = shown.unique(maintain_order=True)
        texts = [f"{words[kind]} {self.show(number)}".strip() for kind, number in distinct.rows()]
        found = shown.join(
            distinct.with_row_index("position"),
            on=["kind", "number"],
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        return found["position"].to_numpy().astype(np.int64), texts

    @cached_property
    def _named(self) -> Named:
        return Named(self.words, self.paint, direction)


def kernel(name: str) -> str:
    """Shorten a kernel's name to what it does."""
    return one_line(classify(name).short)


def direction(kind: str) -> str:
    """Shorten `Host-to-Device` to `HtoD`; what is no direction stays as it is."""
    around, between, target = kind.partition("-to-")
    *before, origin = around.split() or [""]
    if not between or not origin or not target:
        return one_line(kind)
    return one_line(" ".join((*before, f"{origin[0]}to{target[0]}")))


def one_line(text: str) -> str:
    """Put a text on one line, of no more characters than are ever shown."""
    line = " ".join(text[: 4 * MOST_CHARACTERS].split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"


def always(word: str, rows: int) -> pl.Series:
    """Give a column that says the same in every row, for tables whose rows have no name."""
    return pl.Series([word], dtype=pl.Enum([word])).new_from_index(0, rows)
