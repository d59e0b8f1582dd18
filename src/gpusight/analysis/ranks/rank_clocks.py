"""Clocks between ranks, from the collectives that they share: offset, drift, jumps, and the error.

All ranks leave a collective at nearly the same moment, so the difference of two ends is that of two
clocks, except for one bias: a rank that waited notices the end later than the one that arrived last
(the one with the shortest duration). Samples in which one rank was last are biased one way, those
in which the other was last the other way; the fit takes the middle. Where one rank is always last,
the bias cannot be separated from the offset, and the stated error is as large as the bias may be.
No rank can leave before all have arrived: that bounds offsets, and exposes wrongly matched events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpusight.analysis.ranks.clock_fit import MIN_SAMPLES, ClockFit, Floats, fit_clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BIAS_ASYMMETRY = 0.1
"""How differently two ranks may notice the end of a collective: part of the bias, in the error."""
_MAX_BIAS_SHARE = 0.5
"""The bias is at most this part of the shortest collective: a transfer goes there and back."""
_UNBIASED_SHARE = 0.8
"""Part of the samples in which a third rank was last: then the few others move no robust fit."""
_WAITER_SKEW_SHARE = 0.1
"""Where always the same third rank is last, two waiting ranks may leave one after the other, as the
neighbors of a ring do: by this part of the shortest collective, in the error."""
_MAX_SAMPLES = 1500
"""Collectives of a pair that are fitted, evenly chosen: more do not improve the fit."""
_TIE_NS = 500.0
"""Durations that differ by less do not show who was last."""


@dataclass(frozen=True, slots=True)
class RankClockJump:
    """A moment at which a clock was set."""

    time_ns: int
    """On the clock of the reference rank: the first collective after it."""
    size_ns: float
    error_ns: float


@dataclass(frozen=True, slots=True)
class RankClock:
    """How far the clock of a rank is ahead of that of the reference rank."""

    rank: int
    reference: int
    offset_ns: float
    """In the middle of the collectives that both share; NaN where nothing connects them."""
    drift_ppm: float
    error_ns: float
    """Half-width of the 95% interval of the offset, the largest one of the capture."""
    jumps: tuple[RankClockJump, ...]
    collectives: int
    """Collectives that the fit is based on."""
    ignored: int
    """Collectives that no clock explains: a rank leaves before another one arrives."""
    notice_ns: float
    """How much later a waiting rank notices the end."""
    one_sided: bool
    """One of both ranks is always last, so that `error_ns` is wide."""
    _path: tuple[_Link, ...] = ()

    def offset_at(self, times_ns: npt.ArrayLike) -> Floats:
        """Return the offset at these times of the reference clock."""
        times = np.asarray(times_ns)
        return sum((link.offset_at(times) for link in self._path), np.zeros(times.shape))

    def error_at(self, times_ns: npt.ArrayLike) -> Floats:
        """Return the half-width of the 95% interval at these times of the reference clock."""
        times = np.asarray(times_ns)
        return sum((link.error_at(times) for link in self._path), np.zeros(times.shape))

    def to_reference(self, times_ns: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Convert times of this rank's clock to the clock of the reference rank."""
        own = np.asarray(times_ns, np.int64)
        there = own
        for _ in range(2):  # the drift over one offset is far below a nanosecond after two rounds
            there = own - np.rint(self.offset_at(there)).astype(np.int64)
        return there

    def document(self) -> dict[str, object]:
        """Return an entry of `clocks` in the JSON of `gpusight ranks`; null where unknown."""
        known = bool(np.isfinite(self.offset_ns))
        return {
            "rank": self.rank,
            "offset_ns": round(self.offset_ns) if known else None,
            "drift_ppm": round(self.drift_ppm, 4) if known else None,
            "error_ns": round(self.error_ns) if known else None,
            "jumps": [
                {"time_ns": jump.time_ns, "size_ns": round(jump.size_ns)} for jump in self.jumps
            ],
        }


@dataclass(frozen=True, slots=True)
class _Link:
    """The clock of one rank against another, with whole origins: epoch times exceed a float."""

    fit: ClockFit
    origin_ns: int
    """Of the times of the fit, on the clock of the nearer rank."""
    base_ns: int
    """Added to what the fit gives."""
    shift_ns: float
    bias_ns: float
    ignored: int
    one_sided: bool
    span: tuple[float, float]

    def offset_at(self, times: npt.NDArray[np.generic]) -> Floats:
        return self.base_ns + self.shift_ns + self.fit.at(self._own(times)).reshape(times.shape)

    def error_at(self, times: npt.NDArray[np.generic]) -> Floats:
        return self.bias_ns + self.fit.error_at(self._own(times)).reshape(times.shape)

    def _own(self, times: npt.NDArray[np.generic]) -> Floats:
        relative: Floats = (times - self.origin_ns).astype(np.float64)
        return relative.ravel()


def rank_clocks(
    start_ns: npt.ArrayLike,
    end_ns: npt.ArrayLike,
    present: npt.ArrayLike | None = None,
    *,
    ranks: Sequence[int] | None = None,
    reference: int = 0,
) -> list[RankClock]:
    """Estimate the clock of every rank from matched collectives.

    `start_ns` and `end_ns` are `[collective, rank]`, each column on that rank's own clock; whole
    numbers with a mask `present`, or floats with NaN where a rank has no such event. `reference` is
    a column. Ranks without enough shared collectives are reached through others.
    """
    samples = _Samples.of(start_ns, end_ns, present)
    count = samples.present.shape[1]
    names = list(range(count)) if ranks is None else list(ranks)
    if len(names) != count or not 0 <= reference < count:
        raise ValueError("one rank per column is needed, and the reference among them")
    paths = _paths(samples, reference)
    return [_clock(names, rank, reference, paths.get(rank), samples) for rank in range(count)]


def _clock(
    names: Sequence[int],
    rank: int,
    reference: int,
    path: tuple[_Link, ...] | None,
    samples: _Samples,
) -> RankClock:
    if path is None:
        nothing = float("nan")
        return RankClock(
            *(names[rank], names[reference], nothing, nothing, nothing, ()), 0, 0, 0.0, True
        )
    if not path:
        shared = int(samples.present[:, rank].sum())
        return RankClock(*(names[rank], names[reference], 0.0, 0.0, 0.0, ()), shared, 0, 0.0, False)
    jumps = [
        RankClockJump(link.origin_ns + round(time), size, error)
        for link in path
        for time, size, error in link.fit.jumps()
    ]
    last = path[-1]
    begin, end = (last.origin_ns + round(time) for time in last.span)
    ends = np.array([begin, end], np.int64)
    clock = RankClock(
        rank=names[rank],
        reference=names[reference],
        offset_ns=0.0,
        drift_ppm=1e6 * sum(link.fit.drift for link in path),
        error_ns=0.0,
        jumps=tuple(sorted(jumps, key=lambda jump: jump.time_ns)),
        collectives=min(link.fit.freedom for link in path),
        ignored=sum(link.ignored for link in path),
        notice_ns=last.fit.notice_ns,
        one_sided=any(link.one_sided for link in path),
        _path=path,
    )
    middle = np.array([begin + (end - begin) // 2], np.int64)
    return replace(
        clock,
        offset_ns=float(clock.offset_at(middle)[0]),
        error_ns=float(clock.error_at(ends).max()),
    )


@dataclass(frozen=True, slots=True)
class _Samples:
    """Starts and ends from the first event of each rank, as floats that are exact."""

    start: Floats
    end: Floats
    present: npt.NDArray[np.bool_]
    origins: tuple[int, ...]
    last: npt.NDArray[np.intp]
    """Who arrived last: the shortest duration."""
    shortest: Floats
    """That duration."""

    @classmethod
    def of(
        cls, start_ns: npt.ArrayLike, end_ns: npt.ArrayLike, mask: npt.ArrayLike | None
    ) -> _Samples:
        starts, ends = np.asarray(start_ns), np.asarray(end_ns)
        if starts.shape != ends.shape or starts.ndim != 2:
            raise ValueError("starts and ends of [collective, rank] are needed")
        if np.issubdtype(starts.dtype, np.floating):
            present = np.isfinite(starts) & np.isfinite(ends)
        else:
            present = np.ones(starts.shape, bool)
        if mask is not None:
            present &= np.asarray(mask, bool)
        whole_start = np.where(present, starts, 0).astype(np.int64)
        whole_end = np.where(present, ends, 0).astype(np.int64)
        origins = [
            int(whole_start[own, rank].min()) if own.any() else 0
            for rank, own in enumerate(present.T)
        ]
        start = np.where(present, whole_start - np.array(origins, np.int64), np.nan)
        end = np.where(present, whole_end - np.array(origins, np.int64), np.nan)
        duration = np.where(present, end - start, np.inf)
        last = duration.argmin(axis=1)
        return cls(start, end, present, tuple(origins), last, duration.min(axis=1))

    def shared(self, rank: int, other: int) -> npt.NDArray[np.intp]:
        """Return the collectives of both in order of time; of very many, an even choice."""
        both = np.flatnonzero(self.present[:, rank] & self.present[:, other])
        both = both[np.argsort(self.end[both, other], kind="stable")]
        if len(both) > _MAX_SAMPLES:
            both = both[np.linspace(0, len(both) - 1, _MAX_SAMPLES).astype(np.intp)]
        return both


def _paths(samples: _Samples, reference: int) -> Mapping[int, tuple[_Link, ...]]:
    """Connect each rank with the reference, directly where both share enough collectives."""
    present = samples.present.astype(np.int64)
    shared = present.T @ present
    paths: dict[int, tuple[_Link, ...]] = {reference: ()}
    reached = [reference]
    for near in reached:
        for rank in np.argsort(-shared[near], kind="stable"):
            if int(rank) in paths or shared[near, rank] < MIN_SAMPLES:
                continue
            link = _link(samples, int(rank), near)
            if link is not None:
                paths[int(rank)] = (*paths[near], link)
                reached.append(int(rank))
    return paths


def _link(samples: _Samples, rank: int, near: int) -> _Link | None:
    """Fit the clock of a rank against another one that both share collectives with."""
    both = samples.shared(rank, near)
    times, side = samples.end[both, near], _sides(samples, both, rank, near)
    differences = samples.end[both, rank] - times
    fit = fit_clock(times, differences, side)
    low, high = _causal_bounds(samples, both, rank, near, fit)
    tolerance = 3 * fit.noise_ns + abs(fit.notice_ns)
    possible = (low <= tolerance) & (high >= -tolerance)
    if possible.sum() < MIN_SAMPLES:
        return None
    ignored = int((~possible).sum())
    if ignored:
        both, times, side = both[possible], times[possible], side[possible]
        fit = fit_clock(times, differences[possible], side)
        low, high = _causal_bounds(samples, both, rank, near, fit)
    bias_ns = _BIAS_ASYMMETRY * abs(fit.notice_ns)
    shift_ns = 0.0
    shortest_ns = float(np.quantile(samples.shortest[both], 0.05))
    if np.bincount(samples.last[both]).max() > _UNBIASED_SHARE * len(both):
        bias_ns += _WAITER_SKEW_SHARE * shortest_ns
    one_sided = not fit.has_side and bool(np.mean(side == 0) < _UNBIASED_SHARE)
    if one_sided:
        bias_ns = _MAX_BIAS_SHARE * shortest_ns
        # Causality may allow less than that; the offset moves to the middle of what is possible.
        lowest, highest = max(float(low.max()), -bias_ns), min(float(high.min()), bias_ns)
        if lowest < highest:
            shift_ns, bias_ns = (lowest + highest) / 2, (highest - lowest) / 2
    return _Link(
        fit=fit,
        origin_ns=samples.origins[near],
        base_ns=samples.origins[rank] - samples.origins[near],
        shift_ns=shift_ns,
        bias_ns=bias_ns,
        ignored=ignored,
        one_sided=one_sided,
        span=(float(times[0]), float(times[-1])),
    )


def _sides(samples: _Samples, both: npt.NDArray[np.intp], rank: int, near: int) -> Floats:
    """Return +1 where the nearer rank was last, -1 where the other was, 0 where neither."""
    last = samples.last[both]
    side = np.where(last == near, 1.0, np.where(last == rank, -1.0, 0.0))
    own, other = (samples.end[both, each] - samples.start[both, each] for each in (rank, near))
    gap = np.abs(own - other)
    return np.where((side != 0) & (gap < _TIE_NS), 0.0, side)


def _causal_bounds(
    samples: _Samples, both: npt.NDArray[np.intp], rank: int, near: int, fit: ClockFit
) -> tuple[Floats, Floats]:
    """Return by how much each collective lets the offset differ from the fit, down and up."""
    offset = fit.at(samples.end[both, near])
    low = samples.start[both, rank] - samples.end[both, near] - offset
    high = samples.end[both, rank] - samples.start[both, near] - offset
    return low, high
