"""Puts together what a screen shows of some lines: slices, sums of what is narrower, points."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gpusight.analyses.timeline.window import Bins, Points, Slices, Window
from gpusight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analyses.timeline.line import Line
    from gpusight.analyses.timeline.samples import Samples
    from gpusight.analyses.timeline.strip import Events
    from gpusight.analyses.timeline.window import Ints

MOST_BINS = 8_192
"""No screen is wider."""
_FARTHEST_NS = 1 << 62


@dataclass(frozen=True)
class Stretch:
    """A stretch of time, cut into bins."""

    start_ns: int
    end_ns: int
    bins: int

    @classmethod
    def of(cls, start_ns: int, end_ns: int, bins: int) -> Stretch:
        """Check what was asked for; there are no more bins than nanoseconds."""
        if not 1 <= bins <= MOST_BINS:
            raise UsageError(f"{bins} bins cannot be shown", hint=f"ask for 1 to {MOST_BINS:,}")
        if not -_FARTHEST_NS <= start_ns < end_ns <= _FARTHEST_NS:
            raise UsageError(
                f"no stretch of time from {start_ns} to {end_ns} ns",
                hint="its end must come after its start, both within 146 years",
            )
        return cls(start_ns, end_ns, min(bins, end_ns - start_ns))

    @property
    def least_ns(self) -> int:
        """How long an event must be to be drawn alone: as long as a bin is wide."""
        return -(-(self.end_ns - self.start_ns) // self.bins)

    @cached_property
    def edges(self) -> Ints:
        """Where the bins begin, and where the last one ends."""
        whole, rest = divmod(self.end_ns - self.start_ns, self.bins)
        number = np.arange(self.bins + 1, dtype=np.int64)
        # Bin times length could wrap around, so the remainder is shared out apart.
        return self.start_ns + number * whole + number * rest // self.bins


@dataclass
class Screen:
    """A window while it is put together, line by line."""

    stretch: Stretch
    lines: list[tuple[str, int]] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    _labels: dict[str, int] = field(default_factory=dict)
    _slices: list[Slices] = field(default_factory=list)
    _bins: list[Bins] = field(default_factory=list)
    _points: list[Points] = field(default_factory=list)

    def show_events(self, line: Line, source: Events, number: int) -> None:
        """Show one line of events as the line that was added last; `number` is its own number."""
        stretch = self.stretch
        at = line.slices(stretch.start_ns, stretch.end_ns, stretch.least_ns)
        if len(at):
            table, row = source.where(number, at)
            label = self._numbered(*source.labels(number, at))
            colour = line.colour[at].astype(np.int64)
            shown = Slices(
                self._here(at), line.start_ns[at], line.end_ns[at], table, row, label, colour
            )
            self._slices.append(shown)
        sums = line.bins(stretch.edges, stretch.least_ns)
        self._bins.append(
            Bins(self._here(sums.bin), sums.bin, sums.busy_ns, sums.count, sums.colour)
        )

    def show_values(self, samples: Samples) -> None:
        """Show one line of a series as the line that was added last."""
        number, low, high, mean = samples.bins(self.stretch.edges)
        self._points.append(Points(self._here(number), number, low, high, mean))

    def window(self) -> Window:
        """Give everything that was put together."""
        stretch = self.stretch
        return Window(
            stretch.start_ns,
            stretch.end_ns,
            stretch.bins,
            tuple(self.lines),
            tuple(self.pending),
            tuple(self._labels),
            Slices(**_joined(Slices, self._slices)),
            Bins(**_joined(Bins, self._bins)),
            Points(**_joined(Points, self._points)),
        )

    def _here(self, values: NDArray[np.generic]) -> Ints:
        return np.full(len(values), len(self.lines) - 1, np.int64)

    def _numbered(self, which: Ints, texts: list[str]) -> Ints:
        """Number texts among all labels of the window."""
        labels = self._labels
        return np.array([labels.setdefault(t, len(labels)) for t in texts], np.int64)[which]


def _joined(kind: type[Any], parts: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Put the columns of several parts below each other; without parts they have no rows."""
    joined = {}
    for column in fields(kind):
        nothing = np.empty(0, np.float64 if column.name in _REAL else np.int64)
        joined[column.name] = np.concatenate([nothing, *(getattr(p, column.name) for p in parts)])
    return joined


_REAL = ("low", "high", "mean")
