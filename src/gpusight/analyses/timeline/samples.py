"""A value over time, asked for its lowest, highest and mean in any bins."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpusight.analyses.timeline.reducer import Reducer

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from gpusight.analyses.timeline.window import Ints, Reals


class SampleBins(NamedTuple):
    """Values bin by bin; bins of which nothing is known are left out."""

    bin: Ints
    low: Reals
    high: Reals
    mean: Reals


class Samples:
    """Values at moments that rise.

    A value either holds until the next one, as the memory in use does, or tells of the time since
    the one before, as counters do that are read out again and again.
    """

    def __init__(self, times_ns: Ints, values: NDArray[Any], *, holds: bool) -> None:
        self.times_ns = times_ns
        self.values = values
        self.holds = holds
        self._low = Reducer.of(np.minimum, np.inf, values)
        self._high = Reducer.of(np.maximum, -np.inf, values)
        lasts = np.diff(times_ns).astype(np.float64)
        self._sum = Reducer.of(np.add, 0.0, values[:-1] * lasts if holds else values)

    @classmethod
    def of(cls, times_ns: Ints, values: NDArray[Any], holds: bool) -> Samples:
        """Take samples in order of time; what is no finite number is no sample."""
        times, values = np.asarray(times_ns, np.int64), np.asarray(values)
        if len(times) != len(values):
            raise ValueError("times_ns and values must be of equal length")
        if bool((times[1:] < times[:-1]).any()):
            raise ValueError("samples must be in order of time")
        known = np.isfinite(values)
        if not bool(known.all()):
            times, values = times[known], values[known]
        return cls(times, values, holds=holds)

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.times_ns)

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps, the arrays it was given among them."""
        sums = self._sum.values.nbytes if self.holds else 0
        blocks = sum(one.blocks.nbytes for one in (self._low, self._high, self._sum))
        return self.times_ns.nbytes + self.values.nbytes + sums + blocks

    def bins(self, edges: Ints) -> SampleBins:
        """Give the values in the bins between the edges.

        Where values hold, a bin begins with the one that holds at its start, and its mean is
        weighed by time. Otherwise its mean is that of the samples in it; a bin without any has the
        value before it if another sample follows, and else is left out.
        """
        cuts = np.searchsorted(self.times_ns, edges, side="left")
        found = self._held(edges, cuts) if self.holds else self._sampled(cuts)
        known = np.flatnonzero(np.isfinite(found[0]))
        return SampleBins(known, *(column[known] for column in found))

    def _sampled(self, cuts: Ints) -> tuple[Reals, Reals, Reals]:
        """Give lowest, highest and mean of the samples from each cut to the next."""
        none = np.flatnonzero((cuts[1:] == cuts[:-1]) & (cuts[1:] > 0) & (cuts[1:] < len(self)))
        first, after = cuts[:-1].copy(), cuts[1:]
        first[none] -= 1
        mean = self._sum.over(first, after) / np.maximum(after - first, 1)
        return self._low.over(first, after), self._high.over(first, after), mean

    def _held(self, edges: Ints, cuts: Ints) -> tuple[Reals, Reals, Reals]:
        """Give lowest, highest and mean of what holds from each edge to the next."""
        begun = np.searchsorted(self.times_ns, edges[:-1], side="right")
        first = np.maximum(np.minimum(cuts[:-1], begun - 1), 0)
        after = np.maximum(cuts[1:], begun)
        mean = np.zeros(len(after))
        some = np.flatnonzero(after)
        held = np.maximum(begun[some] - 1, 0)
        mean[some] = self._mean(edges[:-1][some], edges[1:][some], held, after[some] - 1)
        return self._low.over(first, after), self._high.over(first, after), mean

    def _mean(self, start: Ints, end: Ints, held: Ints, last: Ints) -> Reals:
        """Weigh values by how long they hold: from the one at the start up to the last."""
        start = np.maximum(start, self.times_ns[held])
        one = held == last
        until = self.times_ns[np.where(one, held, held + 1)]
        total = self.values[held] * (until - start).astype(np.float64)
        total += self._sum.over(np.minimum(held + 1, last), last)
        total += self.values[last] * (end - self.times_ns[last]).astype(np.float64)
        mean: Reals = np.where(one, self.values[held], total / np.maximum(end - start, 1))
        return mean
