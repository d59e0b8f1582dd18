"""Time that ranks wait for each other, and the step time of a job if some of them were faster.

No clocks are compared. All ranks leave a collective at nearly the same moment, so the rank that is
in it for the shortest time arrived last: its duration is the transfer, the rest of the others'
durations is their wait. Between two collectives of all ranks, a rank's own time is what passed
without its exposed waits; the job takes as long as the rank with the longest own time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpusight.analysis.ranks.collective_table import CPU_OPERATION
from gpusight.analysis.ranks.match_collectives import other_ranks
from gpusight.analysis.ranks.pipeline_replay import pipeline_replay
from gpusight.naming.collective_names import POINT_TO_POINT

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.ranks.match_collectives import MatchedCollectives
    from gpusight.analysis.ranks.pipeline_replay import PipelineReplay
    from gpusight.analysis.ranks.rank_digest import RankDigest
    from gpusight.trace.intervals import Ints


_BLOCKING_SHARE = 0.5
"""A collective blocks if nothing else runs for this part of it: what follows depends on it."""


@dataclass(frozen=True)
class CollectiveWaits:
    """How long ranks (columns) waited in collectives (rows), and for whom."""

    matched: MatchedCollectives

    @cached_property
    def duration_ns(self) -> Ints:
        """How long each rank was in each collective.

        One on the CPU is called before the GPU has the data: a rank arrives when its GPU is done,
        and only the exposed time counts.
        """
        on_cpu = np.array([key.source == CPU_OPERATION for key in self.matched.keys], np.bool_)
        exposed = np.minimum(self.matched.exposed_ns, self.matched.duration_ns)
        durations: Ints = np.where(on_cpu[:, None], exposed, self.matched.duration_ns)
        return durations

    @cached_property
    def transfer_ns(self) -> Ints:
        """The shortest duration of each collective: that of the rank that arrived last."""
        longest = np.iinfo(np.int64).max
        durations = np.where(self.matched.present, self.duration_ns, longest)
        shortest: Ints = durations.min(axis=1, initial=longest)
        return shortest

    @cached_property
    def last(self) -> Ints:
        """The rank that arrived last."""
        longest = np.iinfo(np.int64).max
        durations = np.where(self.matched.present, self.duration_ns, longest)
        if not len(self.matched):
            return np.empty(0, np.int64)
        last: Ints = durations.argmin(axis=1)
        return last

    @cached_property
    def wait_ns(self) -> Ints:
        """How long each rank waited, exposed or hidden."""
        waits = self.duration_ns - self.transfer_ns[:, None]
        return np.where(self.matched.present, waits, 0)

    @cached_property
    def exposed_transfer_ns(self) -> Ints:
        """The transfer is the end of a collective; work that overlaps hides the start of it."""
        exposed: Ints = np.minimum(self.matched.exposed_ns, self.transfer_ns[:, None])
        return np.where(self.matched.present, exposed, 0)

    @cached_property
    def exposed_wait_ns(self) -> Ints:
        """The rest of the exposed time."""
        exposed: Ints = np.where(self.matched.present, self.matched.exposed_ns, 0)
        return exposed - self.exposed_transfer_ns


class MissingWaits(NamedTuple):
    """Waits of one rank for ranks whose captures are missing."""

    step: Ints
    start_ns: Ints
    wait_ns: Ints


def waits_for_missing(
    digests: Sequence[RankDigest], waits: CollectiveWaits
) -> tuple[MissingWaits, ...]:
    """Return, by rank, what collectives with missing ranks take longer than equal ones elsewhere.

    Equal ones are those of the same kind and size that several ranks have, or else the shortest.
    """
    numbers = {digest.rank for digest in digests}
    usual = _usual_transfers(waits)
    found = []
    for place, digest in enumerate(digests):
        table = digest.collectives
        alone = np.ones(len(table), np.bool_)
        alone[waits.matched.row[waits.matched.present[:, place], place]] = False
        rows = [
            row
            for row in np.flatnonzero(alone).tolist()
            if table.step[row] is not None and other_ranks(digest, row) - numbers
        ]
        keys = [(table.keys[table.key[row]].kind, table.keys[table.key[row]].bytes) for row in rows]
        exposed = [table.exposed_ns[row] for row in rows]
        shortest: dict[Any, int] = {}
        for key, ns in zip(keys, exposed, strict=True):
            shortest[key] = min(ns, shortest.get(key, ns))
        wait = [
            max(0, ns - int(usual.get(key, shortest[key])))
            for key, ns in zip(keys, exposed, strict=True)
        ]
        # The exposed part of a collective is its end, and the wait the beginning of that.
        start = [table.end_ns[row] - ns for row, ns in zip(rows, exposed, strict=True)]
        steps = [table.step[row] or 0 for row in rows]
        found.append(MissingWaits(*(np.array(column, np.int64) for column in (steps, start, wait))))
    return tuple(found)


def _usual_transfers(waits: CollectiveWaits) -> dict[tuple[str, int | None], float]:
    times: dict[tuple[str, int | None], list[int]] = {}
    for key, ns in zip(waits.matched.keys, waits.transfer_ns.tolist(), strict=True):
        for kind in POINT_TO_POINT if key.kind in POINT_TO_POINT else (key.kind,):
            times.setdefault((kind, key.bytes), []).append(ns)
    return {key: float(np.median(own)) for key, own in times.items()}


@dataclass(frozen=True)
class OwnTimes:
    """Time of segments (rows) that each rank (columns) needs itself, without its exposed waits."""

    own_ns: Ints
    step: Ints
    """Number of the step of each segment."""
    segment: Ints
    """The segment that each matched collective is part of; -1 for none."""
    pipeline: PipelineReplay | None = None
    """Where ranks send to each other, not the slowest rank of a segment decides."""
    missing: tuple[MissingWaits, ...] = ()
    """Waits for missing ranks, by rank: no part of its own time."""

    @cached_property
    def steps(self) -> Ints:
        """Numbers of the steps, in order."""
        return np.unique(self.step)

    @cached_property
    def job_ns(self) -> float:
        """Simulated time per step: the slowest rank of each segment decides."""
        return self.simulate(())

    def simulate(self, as_median: Collection[int]) -> float:
        """Return the time per step if these ranks were as fast as the median of the others."""
        return self.job_ns_of(self._changed(as_median))

    def job_ns_of(self, own_ns: Ints) -> float:
        """Return the time per step if ranks needed these times."""
        if self.pipeline is None:
            return float(own_ns.max(axis=1, initial=0).sum()) / max(1, len(self.steps))
        now, then = (times.sum(axis=0).astype(np.float64) for times in (self.own_ns, own_ns))
        return self.pipeline.step_ns(then / np.maximum(1.0, now))

    def _changed(self, as_median: Collection[int]) -> Ints:
        if not as_median:
            return self.own_ns
        others = [r for r in range(self.own_ns.shape[1]) if r not in as_median]
        if not others:
            return self.own_ns
        usual = np.median(self.own_ns[:, others], axis=1).astype(np.int64)
        changed = self.own_ns.copy()
        for rank in as_median:
            changed[:, rank] = np.minimum(changed[:, rank], usual)
        return changed

    def saved_ns(self, rank: int, candidates: Collection[int]) -> float:
        """Return what making a rank as fast as the median saves per step.

        The mean of what it saves alone, and after the other candidates: two ranks that are equally
        late save nothing alone.
        """
        rest = [other for other in candidates if other != rank]
        alone = self.job_ns - self.simulate([rank])
        after = self.simulate(rest) - self.simulate([*rest, rank])
        return (alone + after) / 2

    @cached_property
    def late_ns(self) -> Ints:
        """How much longer than the median of the others each rank needed, by step (rows)."""
        ranks = self.own_ns.shape[1]
        late = np.zeros_like(self.own_ns)
        for rank in range(ranks):
            others = np.delete(self.own_ns, rank, axis=1)
            usual = np.median(others, axis=1) if ranks > 1 else self.own_ns[:, rank]
            late[:, rank] = np.maximum(0, self.own_ns[:, rank] - usual)
        by_step = np.zeros((len(self.steps), ranks), np.int64)
        np.add.at(by_step, np.searchsorted(self.steps, self.step), late)
        return by_step


def own_times(digests: Sequence[RankDigest], waits: CollectiveWaits) -> OwnTimes:
    """Cut the steps of a job at the collectives that all ranks wait in, and measure own times."""
    bounds = _bounds(waits)
    missing = waits_for_missing(digests, waits)
    if len(bounds) or len(waits.matched) or waits_of_host(digests):
        own = _between(digests, waits, bounds) if len(bounds) else _of_steps(digests, waits)
        own = _without(own, missing, waits.matched.end_ns[bounds])
        replay = pipeline_replay(digests, waits.matched, waits.transfer_ns, missing)
        return replace(own, pipeline=replay, missing=missing)
    # Nothing shows that the ranks wait for each other: the slowest one may hold up nobody.
    nothing = np.empty(0, np.int64)
    return OwnTimes(np.zeros((0, len(digests)), np.int64), nothing, nothing)


def _without(own: OwnTimes, missing: Sequence[MissingWaits], ends_ns: Ints) -> OwnTimes:
    """Take waits for missing ranks out of the segments, or steps, that they are in."""
    own_ns = own.own_ns.copy()
    ends_ns = ends_ns[len(ends_ns) - len(own_ns) :] if len(ends_ns) else ends_ns
    for rank, found in enumerate(missing):
        if len(ends_ns):
            at = np.searchsorted(ends_ns[:, rank], found.start_ns)
            inside = (at < len(own_ns)) & np.isin(found.step, own.steps)
        else:
            at = np.searchsorted(own.step, found.step)
            inside = np.isin(found.step, own.step)
        np.subtract.at(own_ns[:, rank], at[inside], found.wait_ns[inside])
    return replace(own, own_ns=np.maximum(0, own_ns))


def waits_of_host(digests: Sequence[RankDigest]) -> bool:
    """Return whether hosts wait for other processes where no rank has collectives.

    All but the last one to arrive wait.
    """
    if len(digests) < 2 or any(len(digest.collectives) for digest in digests):
        return False
    waiting = sum(any(step.wait_ns for step in digest.steps) for digest in digests)
    return waiting >= len(digests) - 1


def _bounds(waits: CollectiveWaits) -> Ints:
    """Return the collectives of all ranks that block, and the last one of each step."""
    matched = waits.matched
    steps = np.array([-1 if step is None else step for step in matched.step], np.int64)
    # A send does not hold up the sender, and a receiver works on while others compute.
    of_all = np.array([key.kind not in POINT_TO_POINT for key in matched.keys], np.bool_)
    whole = np.flatnonzero(of_all & matched.present.all(axis=1) & (steps >= 0))
    if not len(whole):
        return whole
    durations = np.maximum(1, matched.duration_ns[whole])
    share = np.median(matched.exposed_ns[whole] / durations, axis=1)
    blocking = whole[share >= _BLOCKING_SHARE]
    # Written in order, the last one of each step stays.
    last_of = dict(zip(steps[whole].tolist(), whole.tolist(), strict=True))
    return np.unique(np.append(blocking, list(last_of.values())))


def _between(digests: Sequence[RankDigest], waits: CollectiveWaits, bounds: Ints) -> OwnTimes:
    """Measure own times from collective to collective."""
    matched = waits.matched
    total = np.vstack(
        (np.zeros((1, len(digests)), np.int64), np.cumsum(waits.exposed_wait_ns, axis=0))
    )
    ends = matched.end_ns[bounds]
    own = np.diff(ends, axis=0) - np.diff(total[bounds + 1], axis=0)
    steps = [matched.step[at] or 0 for at in bounds]
    rows = np.arange(len(matched))
    segment = np.where(rows <= bounds[-1], np.searchsorted(bounds, rows), -1)
    starts = _starts(digests, matched, int(bounds[0]))
    if starts is None:
        # What the first one follows is not known: its step begins with it.
        segment = np.maximum(segment - 1, -1)
        return OwnTimes(np.maximum(0, own), np.array(steps[1:], np.int64), segment)
    head = ends[:1] - starts - total[bounds[:1] + 1]
    own = np.vstack((head, own))
    # What came before the first step is no part of it.
    segment[: bounds[0]] = np.where(_in_steps(matched)[: bounds[0]], segment[: bounds[0]], -1)
    return OwnTimes(np.maximum(0, own), np.array(steps, np.int64), segment)


def _in_steps(matched: MatchedCollectives) -> NDArray[np.bool_]:
    return np.array([step is not None for step in matched.step], np.bool_)


def _starts(digests: Sequence[RankDigest], matched: MatchedCollectives, first: int) -> Ints | None:
    """Return when each rank began the step of a collective; None where a capture lacks it."""
    starts = []
    for rank, digest in enumerate(digests):
        number = digest.collectives.step[matched.row[first, rank]]
        own = [step.start_ns for step in digest.steps if step.number == number]
        starts += own[:1]
    return np.array([starts], np.int64) if len(starts) == len(digests) else None


def _of_steps(digests: Sequence[RankDigest], waits: CollectiveWaits) -> OwnTimes:
    """Measure own times of whole steps, where no collective is one of all ranks.

    Where no collectives are known, the host's waits for other processes stand in for them.
    """
    by_number = [{step.number: step for step in digest.steps} for digest in digests]
    numbers = sorted(set.intersection(*(set(known) for known in by_number)))
    own = np.array(
        [[known[number].length_ns for known in by_number] for number in numbers], np.int64
    ).reshape(len(numbers), len(digests))
    segment = np.full(len(waits.matched), -1, np.int64)
    if len(waits.matched):
        places = {number: place for place, number in enumerate(numbers)}
        for at, step in enumerate(waits.matched.step):
            if step in places:
                segment[at] = places[step]
                own[places[step]] -= waits.exposed_wait_ns[at]
    else:
        waited = np.array(
            [[known[number].wait_ns for known in by_number] for number in numbers], np.int64
        ).reshape(own.shape)
        own -= waited - waited.min(axis=1, keepdims=True, initial=np.iinfo(np.int64).max)
    return OwnTimes(np.maximum(0, own), np.array(numbers, np.int64), segment)
