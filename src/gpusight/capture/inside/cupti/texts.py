"""Texts that records point to, and the numbers that they get in the capture."""

from __future__ import annotations

import ctypes
import itertools

_WORD = 8
"""Records begin, and addresses in them lie, at multiples of this."""


class Texts:
    """Numbers every text once, as `StringIds` has them; 0 is no text."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._unused = itertools.count(1)

    def number(self, text: str) -> int:
        """Give a text's number."""
        return self._of(text.encode("utf-8", "surrogateescape"))

    def keep(self, buffer: bytearray, places: list[int], offsets: tuple[int, ...]) -> None:
        """Replace the addresses of texts in these records by the texts' numbers.

        CUPTI promises the texts only until it has its buffer back, and the same address may hold
        another text later.
        """
        words, read, numbers = memoryview(buffer).cast("q"), ctypes.string_at, self._numbers
        for offset in offsets:
            for place in places:
                at = (place + offset) // _WORD
                address = words[at]
                if address:
                    text = read(address)
                    words[at] = numbers.get(text) or self._of(text)

    def items(self) -> list[tuple[int, str]]:
        """List all numbers and texts."""
        return [(number, text.decode("utf-8", "replace")) for text, number in self._numbers.items()]

    def _of(self, text: bytes) -> int:
        known = self._numbers.get(text)
        # Two threads may ask at once: the first to answer counts, and a number is lost.
        return known or self._numbers.setdefault(text, next(self._unused))
