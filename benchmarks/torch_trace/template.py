"""Text with holes for the numbers that differ from one training step to the next.

A step of a run is written by filling the holes of each part of the file once: the text between them
never changes, which is what makes gigabytes cheap to write.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from benchmarks.torch_trace.recorder import Span

Numbers = npt.NDArray[np.int64]

PLAIN, THREE_DIGITS, NINE_DIGITS = "\0", "\1", "\2"
FORMATS = {"%": "%%", PLAIN: "%d", THREE_DIGITS: "%03d", NINE_DIGITS: "%09d"}
# What is known of a span in a step, in the order of the table that Clock.quantities makes.
START_US, START_REST, DURATION_US, DURATION_REST, RATE, RATE_REST = range(6)
PAUSE_NS = 20_000


class Clock:
    """Stretches the spans of one step differently in each, without changing what precedes what."""

    def __init__(self, spans: list[Span], moved_bytes: list[int]) -> None:
        starts, ends = [span.start for span in spans], [span.end for span in spans]
        times, position = np.unique(np.array([0, *starts, *ends]), return_inverse=True)
        self._gaps: Numbers = np.diff(times, prepend=0)
        self._starts, self._ends = np.split(position[1:], 2)
        self._bytes = np.array(moved_bytes, dtype=np.int64)

    def times(self, step: int) -> Numbers:
        """Give the moments of a step, in nanoseconds from its start."""
        position = np.arange(len(self._gaps), dtype=np.int64)
        mixed = (position * 2_654_435_761 + step * 40_503_001) >> 7
        return np.cumsum(self._gaps * (700 + mixed % 601) // 1000)

    def length(self, step: int) -> int:
        """Say how long a step takes, in nanoseconds."""
        return int(self.times(step)[-1]) + PAUSE_NS

    def quantities(self, step: int, origin_ns: int) -> Numbers:
        """Make the table of what is known of every span."""
        times = self.times(step)
        start = times[self._starts] + origin_ns
        duration = times[self._ends] - times[self._starts]
        divisor = np.maximum(duration, 1)
        rate, rest = np.divmod(self._bytes, divisor)
        parts = (*np.divmod(start, 1000), *np.divmod(duration, 1000))
        return np.concatenate((*parts, rate, rest * 1_000_000_000 // divisor))


@dataclass
class Template:
    """A part of the file, for one step."""

    count: int = 0
    _text: list[str] = field(default_factory=list)
    _span_holes: list[tuple[int, int, int]] = field(default_factory=list)
    _counter_holes: list[tuple[int, int, int]] = field(default_factory=list)
    _holes: int = 0

    def add(self, text: str) -> None:
        """Add text as it stands, with the marks of the holes that were just made."""
        self._text.append(text)

    def of_span(self, quantity: int, span: int, mark: str = PLAIN) -> str:
        """Make a hole for what is known of a span."""
        self._span_holes.append((self._holes, quantity, span))
        self._holes += 1
        return mark

    def counter(self, first: int, a_step: int) -> str:
        """Make a hole for a number that grows by the same amount each step."""
        self._counter_holes.append((self._holes, first, a_step))
        self._holes += 1
        return PLAIN

    def start(self, span: int) -> str:
        """Make the holes of a time stamp, in microseconds."""
        rest = THREE_DIGITS
        return f"{self.of_span(START_US, span)}.{self.of_span(START_REST, span, rest)}"

    def duration(self, span: int) -> str:
        """Make the holes of a duration, in microseconds."""
        rest = THREE_DIGITS
        return f"{self.of_span(DURATION_US, span)}.{self.of_span(DURATION_REST, span, rest)}"

    def rate(self, span: int) -> str:
        """Make the holes of a rate, in GB/s."""
        return f"{self.of_span(RATE, span)}.{self.of_span(RATE_REST, span, NINE_DIGITS)}"

    def filler(self, spans: int) -> Filler:
        """Finish the template."""
        text = "".join(self._text)
        for mark, form in FORMATS.items():
            text = text.replace(mark, form)
        of_span = np.array(self._span_holes, dtype=np.int64).reshape(-1, 3).T
        counters = np.array(self._counter_holes, dtype=np.int64).reshape(-1, 3).T
        where = of_span[1] * spans + of_span[2]
        return Filler(text, self._holes, of_span[0], where, counters)


@dataclass(frozen=True)
class Filler:
    """A finished template."""

    text: str
    holes: int
    span_holes: Numbers
    where: Numbers
    counters: Numbers

    def fill(self, step: int, quantities: Numbers) -> bytes:
        """Write the part for one step."""
        values = np.empty(self.holes, dtype=np.int64)
        values[self.span_holes] = quantities[self.where]
        position, first, a_step = self.counters
        values[position] = first + step * a_step
        return (self.text % tuple(values.tolist())).encode("ascii")
