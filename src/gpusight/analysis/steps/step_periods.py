"""Finds periods in a sequence of activities: by places that come once in each of them.

A place is a code with its neighbors. Each kind of place that recurs cuts the sequence into
segments. Segments that hold the same codes are periods: the same numbers of them (a plain loop), or
the same kinds in other numbers (a solver that evaluates more often in one step than in another).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.trace.intervals import stable_argsort

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints

    Mask = NDArray[np.bool_]
    Floats = NDArray[np.float64]


_NEIGHBORS = ((), (-1,), (1, -2))
"""Offsets of the codes by which a place is recognized, added one level after the other."""
_DENSE = 8
_MAX_COUNTS = 20
_LONG_SEQUENCE = 1 << 17
"""Numbers of segments that are tried, those that most kinds of places suggest first; half as many
in a sequence this long."""
_MAX_LOOPS = 3
"""Loops with one number of segments that are tried."""
_NEAR = 0.1
"""Part by which two numbers of segments differ that are the same loop, cut at other places."""
_MIN_SPAN = 0.15
"""Part of the sequence that a loop must span: start-up and autotuning may come before it."""
_MAX_CELLS = 1 << 18
_MIN_COMPARED = 16
"""Codes that are counted, and segments, where there are too many for all."""
_MAX_LOOKED_AT = 1 << 14
"""Places of a segment whose order is compared."""
_MAX_ORDERED = 9
"""Pairs of segments whose order is compared."""
_ALIKE = 0.85
"""Part of its codes that a segment must share with a typical one."""
_MIN_ALIKE = 0.6
"""Part of the segments that must be alike; the others may have a tail."""
_MIN_WHOLE = 0.8
_MAJORITY = 0.5
_MAX_FOREIGN = 0.3
"""Part of a segment that may be of kinds that most segments do not have."""
_LONGER = 1.25
"""Times a typical segment: longer ones have a tail."""
_MIN_KINDS = 3
"""Kinds that segments of other lengths must have in common."""
_MIN_EXCHANGES = 5
_CHANCE = 0.05
_LONG = 20
"""Codes that are not the same by chance in another order."""


@dataclass(frozen=True)
class Activities:
    """A sequence of activities, in order; one entry per activity in every array."""

    codes: Ints
    """What it is, numbered from 0."""
    pauses: Ints
    """Host time before it."""
    opens: Mask
    """Whether a step may begin with it."""
    computes: Mask
    """Whether it is a kernel or a graph."""
    marks: Mask
    """Whether it is what steps have and layers do not: a wait, a copy from or to the host, an
    optimizer, a graph."""
    updates: Mask
    """Whether it belongs to an optimizer."""
    backward: Mask
    """Whether it belongs to a backward pass."""
    feeds: Mask
    """Whether it copies a batch to the GPU."""
    heavy: Mask
    """Whether it is a GEMM, a convolution or attention."""
    attends: Mask
    """Whether it is attention."""
    reads: Mask
    """Whether the host reads a result or waits for one."""
    resets: Mask
    """Whether it sets data up: a copy from the host, a memset, a fill, random numbers."""
    took: Ints
    """GPU time."""
    times: Ints
    """When the host launches it."""
    threads: Ints
    loads: Ints
    """Calls since the activity before it that load or link code."""

    @classmethod
    def plain(
        cls, codes: Ints, pauses: Ints | None = None, opens: Mask | None = None
    ) -> Activities:
        """Make activities of which nothing but an order is known."""
        no, yes = np.zeros(len(codes), np.bool_), np.ones(len(codes), np.bool_)
        ones = np.ones(len(codes), np.int64)
        numbered = np.unique(codes, return_inverse=True)[1].astype(np.int64)
        return cls(
            numbered,
            ones if pauses is None else pauses,
            yes if opens is None else opens,
            computes=yes, marks=yes, updates=no, backward=no, feeds=no, heavy=no, reads=no,
            attends=no, resets=no,
            took=ones, times=np.cumsum(ones), threads=0 * ones, loads=0 * ones,
        )  # fmt: skip

    def __len__(self) -> int:
        """Count the activities."""
        return len(self.codes)

    def since(self, position: int) -> Activities:
        """Return the activities from a position on."""
        parts = {f.name: getattr(self, f.name)[position:] for f in fields(self)}
        return Activities(**{**parts, "codes": _dense(parts["codes"])})

    def before(self, name: str) -> Ints:
        """Return the sum of an array, or the number of activities of a kind, before each place."""
        if name not in self._sums:
            self._sums[name] = np.append(0, np.cumsum(getattr(self, name)))
        return self._sums[name]

    @cached_property
    def kernel_codes(self) -> Mask:
        """Which codes are kernels or graphs."""
        kernels = np.zeros(int(self.codes.max()) + 1, np.bool_)
        kernels[self.codes[self.computes]] = True
        return kernels

    @cached_property
    def graphs(self) -> Mask:
        """Whether it is a graph: the only work besides optimizers that marks a step."""
        graphs: Mask = self.computes & self.marks & ~self.updates
        return graphs

    @cached_property
    def prepares(self) -> Mask:
        """Whether code is loaded before it, or it is the first launch of a kernel or graph."""
        first = np.zeros(len(self), np.bool_)
        first[np.unique(self.codes, return_index=True)[1]] = True
        prepares: Mask = (self.loads > 0) | (first & self.computes)
        return prepares

    @cached_property
    def _sums(self) -> dict[str, Ints]:
        return {}


@dataclass(frozen=True, eq=False)
class Period:
    """Where the periods of a sequence lie."""

    starts: Ints
    """Position of the first activity of each."""
    ends: Ints
    """Position after its last activity; what comes until the next is a tail."""
    length: int
    """Activities of a typical one; their mean where periods differ."""
    same_counts: bool
    """Whether periods hold the same numbers of activities of each kind, not only the same kinds."""
    coverage: float
    """Part of the sequence, by number or by GPU time, in periods that are alike."""
    coverage_after: float
    """The same from the first period on."""
    whole: Mask
    """Which periods have what a typical one has."""
    next_start: int
    """Position after the last period and its tail."""
    inner: Period | None = None
    """A loop inside each of them."""

    def moved(self, by: int) -> Period:
        """Return the same periods so many positions later."""
        inner = None if self.inner is None else self.inner.moved(by)
        starts, ends, next_start = self.starts + by, self.ends + by, self.next_start + by
        return replace(self, starts=starts, ends=ends, next_start=next_start, inner=inner)


# Candidates ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kinds:
    """Kinds of places, one entry per kind."""

    count: Ints
    variation: Floats
    """Of the distance from one to the next."""
    pause: Floats
    at: Ints
    """Position of its first place in `places`."""
    places: Ints

    @classmethod
    def of(cls, sequence: Activities, levels: list[Ints]) -> _Kinds:
        """Describe the kinds of all levels."""
        each = [_kinds(sequence, level) for level in levels]
        offsets = np.cumsum([0, *(len(k.places) for k in each[:-1])])
        at = np.concatenate([k.at + offset for k, offset in zip(each, offsets, strict=True)])
        names = ("count", "variation", "pause", "places")
        count, variation, pause, places = (
            np.concatenate([getattr(k, name) for k in each]) for name in names
        )
        return cls(count, variation, pause, at, places)

    @cached_property
    def first(self) -> Ints:
        """The first place of each kind."""
        first: Ints = self.places[self.at]
        return first

    @cached_property
    def last(self) -> Ints:
        """The last one."""
        last: Ints = self.places[self.at + self.count - 1]
        return last

    def places_of(self, kind: int) -> Ints:
        """Return the places of a kind."""
        at = int(self.at[kind])
        return self.places[at : at + int(self.count[kind])]

    def openings(self, kinds: Ints, number: int) -> tuple[int, ...]:
        """Choose the kinds of places with which periods may begin, the likeliest first."""
        first, count, pause = self.first[kinds], self.count[kinds], self.pause[kinds]
        # A step begins at the place that comes first and most often, or after the longest pause.
        earliest, paused = int(np.lexsort((first, -count))[0]), int(np.argmax(pause))
        chosen = [earliest, paused]
        if pause[paused] > 2 * pause[earliest]:
            chosen.reverse()
        # A copy of the start-up may look like one of each step: most kinds have none there.
        usual = np.flatnonzero(count == number)
        if len(usual):
            chosen.append(int(usual[np.argmin(first[usual])]))
        return tuple(kinds[list(dict.fromkeys(chosen))].tolist())


def periods_of(sequence: Activities) -> list[Period]:
    """List the loops of a sequence: for each number of segments the best places to cut it at."""
    levels = _places(sequence)
    kinds = _Kinds.of(sequence, levels)
    numbers, support = np.unique(kinds.count, return_counts=True)
    periods: list[Period] = []
    tried: list[int] = []
    for number in numbers[np.argsort(-support, kind="stable")].tolist():
        if any(abs(number - other) <= _NEAR * max(number, other) for other in tried):
            continue
        tried.append(number)
        own = np.flatnonzero(np.abs(kinds.count - number) <= _NEAR * number)
        for _ in range(_MAX_LOOPS):
            variation = kinds.variation[own]
            openings = kinds.openings(own[variation <= 2 * variation.min() + _NEAR], number)
            cut = [_period(sequence, kinds.places_of(kind)) for kind in openings]
            same = [p for p in cut if p is not None and _same_order(levels[-1], p)]
            if not same:
                break
            best = max(same, key=lambda p: (round(p.coverage, 1), p.same_counts, p.whole.sum()))
            periods.append(best)
            # As many repetitions of another loop may follow: layers of a pass, then batches.
            own = own[(kinds.last[own] <= best.starts[0]) | (kinds.first[own] >= best.next_start)]
            if not len(own):
                break
        if len(tried) == (_MAX_COUNTS if len(sequence) < _LONG_SEQUENCE else _MAX_COUNTS // 2):
            break
    return periods


def periods_around(sequence: Activities, inner: Period) -> list[Period]:
    """List the loops of a sequence in which each run of an inner loop is one activity.

    However many repetitions it has: texts end after other numbers of tokens.
    """
    starts, sizes = inner.starts, np.diff(np.append(inner.starts, inner.next_start))
    inside = inner.whole & (sizes >= inner.length)
    edges = np.zeros(len(sequence) + 1, np.int8)
    edges[starts[inside]] = 1
    edges[starts[inside] + inner.length] -= 1
    kept = np.cumsum(edges[:-1], dtype=np.int8) == 0
    follows = np.append(False, inside[:-1] & (sizes[:-1] == inner.length))
    runs = starts[inside & ~follows]
    if len(runs) < 2:
        return []
    kept[runs] = True
    # Start-up is no part of it: only as much before the first run as comes between others.
    own = starts[inside]
    before = own[np.searchsorted(own, runs[1:]) - 1]
    lead = int((runs[1:] - before).max()) - inner.length
    kept[: max(0, int(runs[0]) - lead)] = False
    kept[inner.next_start + lead :] = False
    positions = np.flatnonzero(kept)
    if len(positions) > _MAJORITY * len(sequence):
        return []
    parts = {f.name: getattr(sequence, f.name)[positions] for f in fields(sequence)}
    is_run = np.isin(positions, runs)
    codes = _dense(np.where(is_run, int(sequence.codes.max()) + 1, parts["codes"]))
    places = np.append(positions, min(len(sequence), inner.next_start + lead))
    took = np.diff(sequence.before("took")[places])
    computes = parts["computes"] | is_run
    short = Activities(**{**parts, "codes": codes, "took": took, "computes": computes})
    around = []
    for period in periods_of(short):
        if 2 * len(period.starts) > int(inside.sum()):
            continue  # the inner loop itself, with what comes after some of its repetitions
        own_starts, ends = positions[period.starts], places[period.ends]
        lengths = ends - own_starts
        length = int(np.median(lengths))
        same = period.same_counts and bool((np.abs(lengths - length) <= _NEAR * length).all())
        length = length if same else round(float(lengths.mean()))
        next_start = int(places[period.next_start])
        outer = Period(own_starts, ends, length, same, 0, 0, period.whole, next_start)
        around.append(covering(sequence, outer))
    return around


def exchanges(sequence: Activities) -> Period | None:
    """Cut where the host copies new input after it has read a result, whatever came between.

    A server answers requests of several kinds in any order. None where nearly each is of its own.
    """
    inputs = sequence.marks & sequence.resets & ~sequence.computes
    computes, reads = (np.flatnonzero(of) for of in (sequence.computes, sequence.reads))
    size = len(sequence)
    starts, last = [], -1
    for place in np.flatnonzero(inputs).tolist():
        if last < place:
            starts.append(place)
            last = _next(reads, _next(computes, place, size), size)
    fed = np.diff(np.append(0, np.cumsum(inputs))[[*starts, min(last, size)]])
    if len(starts) > 1 and (last == size or fed[-1] > fed[:-1].max()):
        last = starts.pop()  # another loop follows, which reads nothing or only at its end
    if len(starts) < _MIN_EXCHANGES:
        return None
    at = np.array(starts)
    last = min(size, max(last + 1, int(at[-1] + np.median(np.diff(at)))))
    ends = np.append(at[1:], last)
    trained = float(np.mean(np.diff(sequence.before("updates")[np.append(at, last)]) > 0))
    if 0 < trained < 1 or not _recur(sequence, at, ends):
        return None
    whole = np.ones(len(at), np.bool_)
    length = round(float((ends - at).mean()))
    return covering(sequence, Period(at, ends, length, False, 0, 0, whole, last))


def _next(places: Ints, place: int, after: int) -> int:
    at = int(np.searchsorted(places, place))
    return int(places[at]) if at < len(places) else after


def _recur(sequence: Activities, starts: Ints, ends: Ints) -> bool:
    """Return whether kernels of most segments are also in others, and in no order of segments.

    Where some have other kernels than most have, and these come only after a few of the others,
    they are the beginning of a longer loop.
    """
    codes = np.where(sequence.computes, sequence.codes, -1)
    pairs = _held(codes, starts, ends)
    pairs = pairs[:, pairs[1] >= 0]
    used = np.bincount(pairs[1], minlength=int(sequence.codes.max()) + 1)
    count = np.bincount(pairs[0], minlength=len(starts))
    common = np.bincount(pairs[0], used[pairs[1]] >= _MIN_KINDS, minlength=len(starts))
    if np.mean(common >= _MAJORITY * count) < _MIN_WHOLE:
        return False
    usual = used >= _MAJORITY * len(starts)
    own = np.bincount(pairs[0], usual[pairs[1]], minlength=len(starts))
    others = np.flatnonzero(own < _MAJORITY * usual.sum())
    if len(others) < _MIN_KINDS:
        return True
    # Unless by chance: others that are no closer to each other than this.
    least = int(np.diff(others).min()) - 1
    chance = (1 - len(others) / len(starts)) ** (least * (len(others) - 1))
    return bool(chance >= _CHANCE)


def _held(codes: Ints, starts: Ints, ends: Ints) -> Ints:
    """List which segments hold which codes: pairs of their numbers."""
    number = np.searchsorted(starts, np.arange(len(codes)), side="right") - 1
    inside = (number >= 0) & (np.arange(len(codes)) < ends[number])
    pairs: Ints = np.unique(np.stack((number[inside], codes[inside])), axis=1)
    return pairs


def holding(sequence: Activities, starts: Ints, ends: Ints) -> Floats:
    """Return the part of segments that hold each code."""
    codes = _held(sequence.codes, starts, ends)[1]
    return np.bincount(codes, minlength=int(sequence.codes.max()) + 1) / len(starts)


def _places(sequence: Activities) -> list[Ints]:
    """Number the kinds of places, with no, with one and with three neighbors on their threads."""
    codes, size = sequence.codes, len(sequence)
    alone = not len(sequence.threads) or bool((sequence.threads == sequence.threads[0]).all())
    order = None if alone else stable_argsort(sequence.threads)
    own, base = codes if order is None else codes[order], int(codes.max()) + 2
    levels, kind = [], own
    for offsets in _NEIGHBORS:
        for offset in offsets:
            pad = np.full(min(abs(offset), size), -1)
            neighbor = np.append(own[offset:], pad) if offset > 0 else np.append(pad, own)[:size]
            kind = _dense(kind * base + neighbor + 1)
        level = kind
        if order is not None:
            level = np.empty(size, np.int64)
            level[order] = kind
        levels.append(level)
    return levels


def _dense(keys: Ints) -> Ints:
    """Number distinct keys, from 0; few of them by a table, which is faster than sorting."""
    size = int(keys.max()) + 1
    if size <= _DENSE * len(keys):
        used = np.zeros(size, np.bool_)
        used[keys] = True
        return (np.cumsum(used) - 1)[keys]
    return pl.Series(keys).rank("dense").to_numpy().astype(np.int64) - 1


def _kinds(sequence: Activities, kind: Ints) -> _Kinds:
    """Describe the kinds of places that recur and may open a period."""
    opens = np.flatnonzero(sequence.opens)
    places = opens[stable_argsort(kind[opens])]
    first = np.flatnonzero(np.diff(kind[places], prepend=-1))
    count = np.diff(np.append(first, len(places)))
    recurs = count >= 2
    first, count = first[recurs], count[recurs]
    if not len(first):
        none = np.zeros(0)
        return _Kinds(count, none, none, first, places)
    last = places[first + count - 1]
    distance = np.diff(places, append=0).astype(np.float64)
    distance[first + count - 1] = 0
    bounds = np.stack((first, first + count - 1), axis=1).ravel()
    total = (last - places[first]).astype(np.float64)
    squares = np.add.reduceat(distance**2, bounds)[::2]
    mean = total / (count - 1)
    variation = np.sqrt(np.maximum(squares / (count - 1) - mean**2, 0)) / mean
    used = sequence.before("took")
    in_time = (used[last] - used[places[first]]) / max(1, int(used[-1]))
    share = np.maximum(total / len(sequence), in_time)
    span = np.minimum(share * count / (count - 1), 1.0)
    paused = np.append(0.0, np.cumsum(sequence.pauses[places], dtype=np.float64))
    pause = (paused[first + count] - paused[first]) / count
    kept = np.flatnonzero(span >= _MIN_SPAN)
    return _Kinds(count[kept], variation[kept], pause[kept], first[kept], places)


# Segments -----------------------------------------------------------------------------------------


def _period(sequence: Activities, places: Ints) -> Period | None:
    """Make periods of the segments between places, where these are alike."""
    period = _segments(sequence, places)
    if period is None or not period.same_counts:
        return period
    # Cut so that what is done every few periods comes after one, not in the middle.
    period = _turned(sequence, period, _before_tails(sequence.codes, period))
    # Begin where the first period does: a part of it before the first place and a part after the
    # last are a whole one.
    before = _same_before(sequence.codes, period.starts, period.length)
    after = len(sequence) - int(period.ends[-1])
    if before + after < (1 - _NEAR) * period.length:
        return period
    return _turned(sequence, period, before, more=1)


def _turned(sequence: Activities, period: Period, before: int, more: int = 0) -> Period:
    """Cut so much earlier, if that gives as many periods, or so many more."""
    if before < _NEAR * period.length:
        return period
    turned = np.append(period.starts, period.next_start) - before
    turned = turned[(turned >= 0) & (turned < len(sequence))]
    turned = turned[sequence.opens[turned]]
    other = _segments(sequence, turned) if len(turned) > 1 else None
    if other is None or len(other.starts) < len(period.starts) + more:
        return period
    return other


def _before_tails(codes: Ints, period: Period) -> int:
    """Return how much of a period comes after a tail in its middle; 0 for tails at the end."""
    length = period.length
    following = np.append(period.starts[1:], period.next_start)
    tailed = np.flatnonzero(following - period.starts > _LONGER * length)[:_MAX_ORDERED]
    usual = np.flatnonzero(following - period.starts == length)
    if not len(tailed) or not len(usual):
        return 0
    sample = codes[period.starts[usual[0]] :][:length]
    own = []
    for start in period.starts[tailed]:
        part = codes[start : start + length]
        own.append(int(np.argmin(part == sample[: len(part)])) or length)
    return length - int(np.median(own))


def _same_before(codes: Ints, starts: Ints, length: int) -> int:
    """Count the codes before the first place that also come before the second."""
    first, second = int(starts[0]), int(starts[1])
    reach = min(first, length)
    same = codes[first - reach : first][::-1] == codes[second - reach : second][::-1]
    share = np.cumsum(same) / np.arange(1, reach + 1)
    fits = np.flatnonzero((share >= _ALIKE) & same)
    if first == reach and _shared(codes, 0, second - reach, reach) >= _ALIKE:
        return reach
    return int(fits[-1]) + 1 if len(fits) else 0


def _shared(codes: Ints, first: int, other: int, length: int) -> float:
    """Return the part of the codes that two parts of the sequence share, in any order."""
    kinds = int(codes.max()) + 1
    counts = [np.bincount(codes[at : at + length], minlength=kinds) for at in (first, other)]
    return float(np.minimum(*counts).sum() / max(1, length))


def _segments(sequence: Activities, starts: Ints) -> Period | None:
    """Make periods of the segments between these places, as they are."""
    length = int(np.median(np.diff(starts)))
    starts = _with_earlier(sequence, starts, length)
    ends = np.append(starts[1:], min(int(starts[-1]) + length, len(sequence)))
    at, counts = _counts(sequence.codes, starts, ends)
    typical = np.median(counts, axis=0)
    totals = counts.sum(axis=1)
    shared = np.minimum(counts, typical).sum(axis=1)
    whole = shared >= _ALIKE * typical.sum()
    # Copies and waits around other kernels each time are not the same again.
    kernels = sequence.kernel_codes
    own = np.minimum(counts, typical)[:, kernels].sum(axis=1)
    computing = typical[kernels].sum()
    alike = whole & (shared >= _ALIKE * totals) & ((own > _MAJORITY * computing) | (computing == 0))
    # Of the last one, waits and copies may be missing: the program goes on with something else.
    whole[-1] |= bool(own[-1] >= _ALIKE * computing > 0)
    same_counts = bool(alike.mean() >= _MIN_ALIKE and whole.mean() >= _MIN_WHOLE and typical.any())
    same_counts &= bool(np.median(np.abs(np.diff(starts) - length)) <= 1 + _NEAR * length)
    if not same_counts:
        kept = (counts > 0).mean(axis=0) >= _MAJORITY
        ends[-1] = _last_end(sequence.codes, starts, kept)
        at, counts = _counts(sequence.codes, starts, ends)
        totals = counts.sum(axis=1)
        has = (counts[:, kept] > 0).sum(axis=1) >= _MIN_WHOLE * kept.sum()
        foreign = counts[:, ~kept].sum(axis=1) <= _MAX_FOREIGN * totals
        whole = has & foreign
        if kept.sum() < _MIN_KINDS or whole.mean() < _MIN_WHOLE:
            return None
    # A segment that was not compared is taken to be like the next one that was.
    nearest = np.searchsorted(at, np.arange(len(starts)))
    whole = whole[nearest]
    if same_counts:
        # What has less than half of a period is no other one: it was done after the one before.
        part = (shared < _MAJORITY * typical.sum())[nearest]
        if part[1:].any():
            return _segments(sequence, starts[~part | (np.arange(len(starts)) == 0)])
    # Segments at either end that are unlike the others are no periods of this loop.
    inside = slice(int(np.argmax(whole)), len(whole) - int(np.argmax(whole[::-1])))
    starts, ends, whole = starts[inside], ends[inside], whole[inside]
    next_start = int(ends[-1])
    if same_counts:
        ends = np.where(ends - starts > _LONGER * length, starts + length, ends)
        ends[-1] = starts[-1] + _typical_end(sequence.codes[starts[-1] : ends[-1]], typical)
    else:
        length = round(float((ends - starts).mean()))
    if len(starts) < 2:
        return None
    return covering(sequence, Period(starts, ends, length, same_counts, 0, 0, whole, next_start))


def covering(sequence: Activities, period: Period) -> Period:
    """Measure how much of the sequence whole periods cover, by number or by GPU time.

    By number of all activities and of kernels, whichever is less: where parameters are copied one
    by one there are many copies, and a pair of kernels may have large copies around it.
    """
    whole = float(period.whole.mean())
    shares = []
    for first in (0, int(period.starts[0])):
        parts = []
        for before in (np.arange(len(sequence) + 1), *map(sequence.before, ("computes", "took"))):
            inside = whole * int((before[period.ends] - before[period.starts]).sum())
            parts.append(inside / max(1, int(before[-1] - before[first])))
        shares.append(max(min(parts[0], parts[1]), parts[2]))
    return replace(period, coverage=shares[0], coverage_after=shares[1])


def _same_order(places: Ints, period: Period) -> bool:
    """Return whether places recur in the next period: what is random has the same codes only."""
    if period.length < _LONG:
        return True  # so few codes are not the same by chance
    count = len(period.starts) - 1
    recur = []
    most = _MAX_ORDERED if period.length < _MAX_LOOKED_AT else _MIN_KINDS
    for i in np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64)):
        earlier, other = (places[period.starts[j] : period.ends[j]] for j in (i, i + 1))
        recur.append(float(np.isin(earlier[:_MAX_LOOKED_AT], other).mean()))
    return float(np.median(recur)) >= _MAJORITY


def _counts(codes: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Count the codes of segments: of all, or of some where there are many or long ones."""
    kinds = int(codes.max()) + 1
    count = len(starts)
    typical = max(1, int(ends[-1] - starts[0]) // count)
    most = max(_MIN_COMPARED, _MAX_CELLS // max(kinds, typical))
    at = np.arange(count)
    if count > most:
        # At random: every tenth step may be one with an evaluation.
        chosen = np.random.default_rng(0).choice(count, most - 4, replace=False)
        at = np.unique(np.concatenate([chosen, [0, 1, count - 2, count - 1]]))
    cells = [np.bincount(codes[starts[i] : ends[i]], minlength=kinds) for i in at]
    return at, np.stack(cells)


def _with_earlier(sequence: Activities, starts: Ints, length: int) -> Ints:
    """Add the period before the first place, whose neighbors were others or none."""
    codes, first = sequence.codes, int(starts[0])
    before = first - length
    if before < 0 or first + length > len(codes) or codes[before] != codes[first]:
        return starts
    if not sequence.opens[before]:
        return starts
    same = _shared(codes, before, first, length)
    return np.append(before, starts) if same >= _ALIKE else starts


def with_earlier(sequence: Activities, period: Period) -> Period:
    """Add the periods right before the first one that are like it."""
    if not period.same_counts:
        return period
    starts = period.starts
    while len(more := _with_earlier(sequence, starts, period.length)) > len(starts):
        starts = more
    added = len(starts) - len(period.starts)
    return replace(
        period,
        starts=starts,
        ends=np.append(starts[1 : added + 1], period.ends),
        whole=np.append(np.ones(added, np.bool_), period.whole),
    )


def _typical_end(codes: Ints, typical: Floats) -> int:
    """Return how many of these codes come until the last one that a typical period has as well."""
    order = stable_argsort(codes)
    first = np.flatnonzero(np.diff(codes[order], prepend=-1))
    rank = np.empty(len(codes), np.int64)
    sizes = np.diff(np.append(first, len(codes)))
    rank[order] = np.arange(len(codes)) - np.repeat(first, sizes)
    own = np.flatnonzero(rank < typical[codes])
    return int(own[-1]) + 1 if len(own) else len(codes)


def _last_end(codes: Ints, starts: Ints, kept: Mask) -> int:
    """Return where the last of segments of other lengths ends: with kinds that others have too."""
    longest = int(np.diff(starts).max())
    start, end = int(starts[-1]), min(int(starts[-1]) + longest, len(codes))
    own = np.flatnonzero(kept[codes[start:end]])
    return start + (int(own[-1]) + 1 if len(own) else end - start)
