"""Names that a plane keeps once and that its events refer to by number."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.readers.names import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


class Names:
    """Texts that are referred to by number; each different one has a place, from 0, as well."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}
        self._by_number: dict[int, int] = {}

    def put(self, number: int, text: str) -> None:
        """Take a numbered text."""
        self._by_number[number] = self.add(text)

    def add(self, text: str) -> int:
        """Give the place of a text that may not be here yet."""
        place = self._places.setdefault(text, len(self.texts))
        if place == len(self.texts):
            self.texts.append(text)
        return place

    def find(self, text: str) -> int | None:
        """Give the place of a text, if it is here."""
        return self._places.get(text)

    def of(self, number: int) -> str | None:
        """Look a text up by its number."""
        place = self._by_number.get(number)
        return None if place is None else self.texts[place]

    def places(self, numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        """Give the places of many numbers at once, -1 for those that nothing is known of."""
        known, place = self._sorted
        if not len(known):
            return np.full(len(numbers), -1, np.int32)
        at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        return np.where(known[at] == numbers, place[at], np.int32(-1))

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The numbers in order, and the place of each; taken once all of them are here."""
        numbers = np.fromiter(self._by_number, np.int64, len(self._by_number))
        places = np.fromiter(self._by_number.values(), np.int32, len(self._by_number))
        order = np.argsort(numbers)
        return numbers[order], places[order]


def named(places: pl.Series, texts: Sequence[str], change: Callable[[str], str] = str) -> pl.Series:
    """Write out the names at these places."""
    used = places.unique().to_numpy()
    names = encode(pl.Series([change(texts[place]) for place in used], dtype=pl.String))
    lookup = np.zeros(len(texts), np.uint32)
    lookup[used] = np.arange(len(used), dtype=np.uint32)
    return names.gather(pl.Series(lookup[places.to_numpy()])).alias("name")
