"""Finds the records in a buffer."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from gpusight.capture.inside.cupti.layouts import LAYOUTS, Layout, Reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpusight.capture.inside.cupti.library import Cupti

_WORD = 4
_ALIGNMENT = 8


class Walker:
    """Takes buffers apart.

    Records follow each other without gaps; how long one of a kind is, the library says once.
    """

    def __init__(self, cupti: Cupti) -> None:
        self._cupti = cupti
        self._words: dict[int, int] = {}
        self._readers: dict[int, Reader] = {}

    def rows(self, buffer: bytearray) -> Iterator[tuple[Layout, list[tuple[Any, ...]]]]:
        """Give the rows of each kind that we read, in the order of the buffer."""
        for kind, places in self.places(buffer)[0].items():
            if kind in self._readers:
                row = self._readers[kind].row
                yield LAYOUTS[kind], [row(buffer, place) for place in places]

    def places(self, buffer: bytearray) -> tuple[dict[int, list[int]], int]:
        """List where the records of each kind begin, and where what can be read ends."""
        words = memoryview(buffer)[: len(buffer) // _ALIGNMENT * _ALIGNMENT].cast("I")
        places: dict[int, list[int]] = {}
        sizes, at, end = self._words, 0, len(words)
        while at < end:
            kind = words[at]
            size = sizes.get(kind) or self._learn(kind, buffer, at)
            if not size:
                break
            known = places.get(kind)
            if known is None:
                places[kind] = [at * _WORD]
            else:
                known.append(at * _WORD)
            at += size
        return places, at * _WORD

    def _learn(self, kind: int, buffer: bytearray, at: int) -> int:
        """Ask how long a record of this kind is, in words; 0 where nobody knows."""
        start = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        size = self._cupti.record_size(start, len(buffer), at * _WORD)
        if not size or size % _ALIGNMENT or kind == 0:
            return 0
        self._words[kind] = size // _WORD
        if kind in LAYOUTS:
            self._readers[kind] = LAYOUTS[kind].reader(size)
        return self._words[kind]
