"""Ranks by step: how late each was and what it did, and the latest step as an aligned timeline.

Everything is made of digests: a job whose traces stay on a cluster has its pictures too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.ranks.match_collectives import ABSENT, clock_offsets
from gpusight.analysis.ranks.rank_replay import waits_of_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.ranks.match_collectives import MatchedCollectives
    from gpusight.analysis.ranks.rank_clocks import RankClock
    from gpusight.analysis.ranks.rank_digest import RankDigest
    from gpusight.analysis.ranks.rank_replay import CollectiveWaits, OwnTimes
    from gpusight.trace.intervals import Ints


RANK_STEP_SCHEMA = {
    "rank": pl.Int64,
    "step": pl.Int64,
    "step_ns": pl.Int64,
    "late_ns": pl.Int64,
    "wait_ns": pl.Int64,
    "transfer_ns": pl.Int64,
    "compute_ns": pl.Int64,
    "copy_ns": pl.Int64,
    "idle_ns": pl.Int64,
}
"""Columns of `steps_by_rank`: how much later than the median of the others a rank was (null where
that is not known), and the parts of its step."""


def steps_by_rank(
    digests: Sequence[RankDigest], numbers: Sequence[int], waits: CollectiveWaits, own: OwnTimes
) -> pl.DataFrame:
    """Return a row per rank and step, in this order; `numbers` are the ranks of the digests."""
    compared = {int(step): place for place, step in enumerate(own.steps)}
    wait_of = _waits_by_step(digests, waits, own)
    stands_in = waits_of_host(digests)
    rows = []
    for rank, digest in enumerate(digests):
        for step in digest.steps:
            at = compared.get(step.number)
            exposed_ns = step.collective_ns + (step.wait_ns if stands_in else 0)
            wait_ns = wait_of.get((rank, step.number))
            wait_ns = None if wait_ns is None else min(wait_ns, exposed_ns)
            rows.append(
                (
                    numbers[rank],
                    step.number,
                    step.length_ns,
                    None if at is None or len(digests) < 2 else int(own.late_ns[at, rank]),
                    wait_ns,
                    exposed_ns - (wait_ns or 0),
                    step.compute_ns,
                    step.copy_ns,
                    step.idle_ns - (step.wait_ns if stands_in else 0),
                )
            )
    return pl.DataFrame(rows, schema=RANK_STEP_SCHEMA, orient="row")


def _waits_by_step(
    digests: Sequence[RankDigest], waits: CollectiveWaits, own: OwnTimes
) -> dict[tuple[int, int], int]:
    """Return the exposed wait of each rank in each step; nothing where no wait is known."""
    waits_ns: dict[tuple[int, int], int] = {}
    if waits_of_host(digests):
        by_number = [{step.number: step.wait_ns for step in digest.steps} for digest in digests]
        for number in set.intersection(*(set(known) for known in by_number)):
            least = min(known[number] for known in by_number)
            for rank, known in enumerate(by_number):
                waits_ns[rank, number] = known[number] - least
        return waits_ns
    exposed = waits.exposed_wait_ns
    for at, step in enumerate(waits.matched.step):
        if step is None:
            continue
        for rank in np.flatnonzero(waits.matched.present[at]).tolist():
            waits_ns[rank, step] = waits_ns.get((rank, step), 0) + int(exposed[at, rank])
    for rank, found in enumerate(own.missing):
        for step, wait_ns in zip(found.step.tolist(), found.wait_ns.tolist(), strict=True):
            waits_ns[rank, step] = waits_ns.get((rank, step), 0) + wait_ns
    return waits_ns


# The latest step ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankSpan:
    """A collective of one rank: it waits, then it transfers; times from the start of the window."""

    collective: int
    """The same number on all ranks that run it; -1 where it is on no other one."""
    kind: str
    start_ns: int
    transfer_start_ns: int
    end_ns: int


@dataclass(frozen=True)
class RankRow:
    """One rank in the window."""

    rank: int
    step_start_ns: int
    step_end_ns: int
    spans: tuple[RankSpan, ...]


@dataclass(frozen=True)
class StepTimeline:
    """A step of all ranks on one clock."""

    step: int
    rank: int
    """The rank that was latest in it."""
    late_ns: int
    length_ns: int
    error_ns: float | None
    """95% error of the alignment; None where only ends of collectives were aligned."""
    rows: tuple[RankRow, ...]


def step_timeline(
    digests: Sequence[RankDigest],
    numbers: Sequence[int],
    waits: CollectiveWaits,
    own: OwnTimes,
    clocks: Sequence[RankClock],
) -> StepTimeline | None:
    """Align the step in which a rank was latest; None where nothing aligns the ranks."""
    matched = waits.matched
    if len(digests) < 2 or not len(own.steps) or not len(matched):
        return None
    place, latest = divmod(int(own.late_ns.argmax()), own.late_ns.shape[1])
    step = int(own.steps[place])
    aligned = AlignedClocks(digests, matched, clocks)
    bounds = [_bounds(digest, step) for digest in digests]
    if not all(bounds):
        return None
    begins, ends = (
        [int(aligned.times(rank, [b[side]])[0]) for rank, b in enumerate(bounds) if b]
        for side in (0, 1)
    )
    origin = min(begins)
    joined = {
        (rank, int(row)): at
        for at in range(len(matched))
        for rank, row in enumerate(matched.row[at].tolist())
        if row != ABSENT
    }
    rows = []
    for rank, digest in enumerate(digests):
        spans = _spans(digest, rank, step, aligned, joined, waits.transfer_ns, origin)
        rows.append(RankRow(numbers[rank], begins[rank] - origin, ends[rank] - origin, spans))
    furthest = max((s.end_ns for row in rows for s in row.spans), default=0)
    length = max(*(end - origin for end in ends), furthest)
    late_ns = int(own.late_ns[place, latest])
    return StepTimeline(step, numbers[latest], late_ns, length, aligned.error_ns, tuple(rows))


def _bounds(digest: RankDigest, number: int) -> tuple[int, int] | None:
    return next(((s.start_ns, s.end_ns) for s in digest.steps if s.number == number), None)


def _spans(
    digest: RankDigest,
    rank: int,
    step: int,
    aligned: AlignedClocks,
    joined: dict[tuple[int, int], int],
    transfer_ns: Ints,
    origin: int,
) -> tuple[RankSpan, ...]:
    table = digest.collectives
    rows = [row for row, number in enumerate(table.step) if number == step]
    starts, ends = (
        aligned.times(rank, [times[row] for row in rows]) - origin
        for times in (table.start_ns, table.end_ns)
    )
    spans = []
    for row, start, end in zip(rows, starts.tolist(), ends.tolist(), strict=True):
        at = joined.get((rank, row), -1)
        split = start if at < 0 else max(start, end - int(transfer_ns[at]))
        spans.append(RankSpan(at, table.keys[table.key[row]].kind, start, split, end))
    return tuple(sorted(spans, key=lambda span: span.start_ns))


class AlignedClocks:
    """Times of all ranks on the clock of the first one, as exactly as the captures allow."""

    def __init__(
        self,
        digests: Sequence[RankDigest],
        matched: MatchedCollectives,
        clocks: Sequence[RankClock],
    ) -> None:
        known = [d.start_utc_ns for d in digests]
        one_file = len({digest.file for digest in digests}) == 1
        self._clocks = list(clocks) if all(np.isfinite(c.offset_ns) for c in clocks) else []
        utc = [start or 0 for start in known]
        self._origin = [0 if one_file else start - min(utc) for start in utc]
        self._offsets: NDArray[np.int64] = np.zeros(len(digests), np.int64)
        if not self._clocks and len(matched):
            self._origin = [0] * len(digests)
            self._offsets = clock_offsets(matched.present, matched.end_ns)
        elif not self._clocks and not one_file and None in known:
            # Nothing else is common: the first steps begin together.
            self._origin = [0] * len(digests)
            first = [digest.steps[0].start_ns if digest.steps else 0 for digest in digests]
            self._offsets = np.array(first, np.int64) - first[0]
        self.how = self._how(one_file=one_file, matched=bool(len(matched)), utc=None not in known)

    def _how(self, *, one_file: bool, matched: bool, utc: bool) -> str:
        if self._clocks:
            return "collectives"
        if matched:
            return "ends of collectives, without an error"
        if one_file:
            return "one capture"
        return "time of day of the captures" if utc else "start of the first step"

    @property
    def error_ns(self) -> float | None:
        """The largest 95% error of a rank; None where it is not known."""
        return max((clock.error_ns for clock in self._clocks), default=None)

    def times(self, rank: int, own_ns: Sequence[int] | Ints) -> Ints:
        """Convert times of a rank (its position) to the common clock."""
        moved = np.asarray(own_ns, np.int64) + self._origin[rank]
        if self._clocks:
            return self._clocks[rank].to_reference(moved)
        aligned: Ints = moved - self._offsets[rank]
        return aligned
