"""How much communication is hidden behind compute, why the rest is not, and who sends to whom.

Everything is per step, the mean of steps and of the ranks that take part.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpusight.analysis.ranks.exposed_reasons import REASONS
from gpusight.analysis.ranks.match_collectives import ABSENT, sender_and_receiver
from gpusight.naming.collective_names import POINT_TO_POINT
from gpusight.trace.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpusight.analysis.ranks.rank_digest import CollectiveKey, RankDigest
    from gpusight.analysis.ranks.rank_replay import CollectiveWaits
    from gpusight.trace.intervals import Ints


_MAX_NUMBERED = 16
"""Collectives of one kind and size in a step that are listed one by one."""


@dataclass(frozen=True)
class RankOverlap:
    """Communication of one rank, per step."""

    rank: int
    communication_ns: float
    """Time in which a collective runs."""
    exposed_ns: float
    """Of it, time in which neither compute nor copies run."""
    hidden_share: float | None
    """None without communication."""
    reasons: Mapping[str, float]


@dataclass(frozen=True)
class ExposedCollective:
    """A collective of the step on all ranks that run it; times are per step and rank."""

    kind: str
    bytes: int | None
    group: str | None
    """Process group; None where ranks run it in different ones."""
    number: int | None
    """Which one of its kind and size in a step, from 1; None where all are summed."""
    per_step: float
    duration_ns: float
    exposed_ns: float
    wait_ns: float | None
    """Of the exposed time, the wait for other ranks; None where no other rank shows it."""
    reason: str | None
    """Why most of the exposed time was not hidden; None where nothing is exposed."""
    reasons: Mapping[str, float]


@dataclass(frozen=True)
class RankPair:
    """Sends from one rank to another, per step."""

    source: int
    target: int
    per_step: float
    bytes: float | None
    transfer_ns: float
    """Mean time of a transfer, without waits."""
    source_wait_ns: float
    """Exposed wait of the sender for the receiver."""
    target_wait_ns: float
    """Exposed wait of the receiver for the sender."""


@dataclass(frozen=True)
class Communication:
    """Communication of a job."""

    ranks: tuple[RankOverlap, ...]
    collectives: tuple[ExposedCollective, ...]
    """Those with most exposed time first."""
    pairs: tuple[RankPair, ...]

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return {
            "ranks": [asdict(item) for item in self.ranks],
            "collectives": [asdict(item) for item in self.collectives],
            "pairs": [asdict(item) for item in self.pairs],
        }


def communication(digests: Sequence[RankDigest], waits: CollectiveWaits) -> Communication:
    """Summarize the communication of a job."""
    return Communication(
        tuple(map(_overlap, digests)), _collectives(digests, waits), _pairs(digests, waits)
    )


def _overlap(digest: RankDigest) -> RankOverlap:
    table = digest.collectives
    steps = max(1, len(digest.steps))
    inside = [row for row, step in enumerate(table.step) if step is not None]
    start, end = (np.array(times, np.int64)[inside] for times in (table.start_ns, table.end_ns))
    spans = Intervals.from_arrays(start, end)
    total_ns = float((spans.ends - spans.starts).sum()) / steps
    exposed_ns = min(total_ns, sum(table.exposed_ns[row] for row in inside) / steps)
    reasons = {
        reason: sum(table.reasons[reason][row] for row in inside) / steps
        for reason in REASONS
        if reason in table.reasons
    }
    hidden = 1 - exposed_ns / total_ns if total_ns else None
    return RankOverlap(digest.number, total_ns, exposed_ns, hidden, _largest_first(reasons))


def _largest_first(reasons: Mapping[str, float]) -> dict[str, float]:
    return {reason: ns for reason, ns in sorted(reasons.items(), key=lambda x: -x[1]) if ns > 0}


# By collective ------------------------------------------------------------------------------------


def _collectives(
    digests: Sequence[RankDigest], waits: CollectiveWaits
) -> tuple[ExposedCollective, ...]:
    sums: dict[tuple[Any, ...], _Sum] = defaultdict(_Sum)
    for place, digest in enumerate(digests):
        wait = _wait_of_rows(digest, place, waits)
        for row, key, number in _numbered(digest):
            sums[key.kind, key.bytes, number].add(place, digest, row, key, int(wait[row]))
    exposed = [each.result(*key) for key, each in sums.items()]
    return tuple(
        sorted(exposed, key=lambda c: (-c.exposed_ns, c.kind, c.bytes or 0, c.number or 0))
    )


def _numbered(digest: RankDigest) -> Iterator[tuple[int, CollectiveKey, int | None]]:
    """Yield the collectives of steps with their number among the equal ones of a step."""
    table = digest.collectives
    named = [(table.keys[k].kind, table.keys[k].bytes) for k in table.key]
    counts = Counter((step, name) for step, name in zip(table.step, named, strict=True))
    most: Counter[tuple[str, int | None]] = Counter()
    for (step, name), count in counts.items():
        if step is not None:
            most[name] = max(most[name], count)
    seen: Counter[Any] = Counter()
    for row, (step, name) in enumerate(zip(table.step, named, strict=True)):
        if step is None:
            continue
        seen[step, name] += 1
        number = seen[step, name] if most[name] <= _MAX_NUMBERED else None
        yield row, table.keys[table.key[row]], number


def _wait_of_rows(digest: RankDigest, place: int, waits: CollectiveWaits) -> Ints:
    wait = np.full(len(digest.collectives), ABSENT, np.int64)
    rows = waits.matched.row[:, place]
    here = waits.matched.present[:, place]
    wait[rows[here]] = waits.exposed_wait_ns[here, place]
    return wait


class _Sum:
    """Adds up one collective over steps and ranks."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self.groups: set[str | None] = set()
        self.count = self.duration_ns = self.exposed_ns = self.wait_ns = self.matched = 0
        self.reasons: Counter[str] = Counter()

    def add(
        self, place: int, digest: RankDigest, row: int, key: CollectiveKey, wait_ns: int
    ) -> None:
        table = digest.collectives
        self.steps[place] = max(1, len(digest.steps))
        self.groups.add(key.group)
        self.count += 1
        self.duration_ns += table.end_ns[row] - table.start_ns[row]
        self.exposed_ns += table.exposed_ns[row]
        if wait_ns != ABSENT:
            self.matched += 1
            self.wait_ns += wait_ns
        for reason, times in table.reasons.items():
            self.reasons[reason] += times[row]

    def result(self, kind: str, size: int | None, number: int | None) -> ExposedCollective:
        steps = sum(self.steps.values())
        reasons = _largest_first({reason: ns / steps for reason, ns in self.reasons.items()})
        return ExposedCollective(
            kind,
            size,
            next(iter(self.groups)) if len(self.groups) == 1 else None,
            number,
            self.count / steps,
            self.duration_ns / steps,
            self.exposed_ns / steps,
            min(self.wait_ns, self.exposed_ns) / steps if self.matched else None,
            next(iter(reasons), None),
            reasons,
        )


# Sends and receives -------------------------------------------------------------------------------


def _pairs(digests: Sequence[RankDigest], waits: CollectiveWaits) -> tuple[RankPair, ...]:
    matched = waits.matched
    rows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for at, key in enumerate(matched.keys):
        if key.kind in POINT_TO_POINT and matched.step[at] is not None:
            rows[sender_and_receiver(digests, matched.row[at])].append(at)
    pairs = []
    for (source, target), own in sorted(rows.items()):
        steps = max(1, len(digests[source].steps))
        sizes = [matched.keys[at].bytes for at in own]
        known = [size for size in sizes if size is not None]
        pairs.append(
            RankPair(
                digests[source].number,
                digests[target].number,
                len(own) / steps,
                sum(known) / steps if len(known) == len(own) else None,
                float(waits.transfer_ns[own].mean()),
                float(waits.exposed_wait_ns[own, source].sum()) / steps,
                float(waits.exposed_wait_ns[own, target].sum()) / steps,
            )
        )
    return tuple(pairs)
