"""The step time of a pipeline if some ranks worked faster: each send and receive is replayed.

Between its exposed waits a rank works; a collective, or a send and its receive, begins when a rank
has done the work before it, and ends for all when the last one has arrived and the transfer is
done. Where it is exposed, the rank goes on only then.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpusight.naming.collective_names import POINT_TO_POINT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.ranks.match_collectives import MatchedCollectives
    from gpusight.analysis.ranks.rank_digest import RankDigest
    from gpusight.analysis.ranks.rank_replay import MissingWaits
    from gpusight.trace.intervals import Ints


@dataclass(frozen=True)
class _RankEvents:
    """What a rank does in order: its own work until each event, and what the event is."""

    work_ns: Ints
    row: Ints
    blocks: NDArray[np.bool_]
    """It waits there for the end of the collective; else it arrives at it."""
    total_ns: int


@dataclass(frozen=True)
class PipelineReplay:
    """The events of all ranks, ready to be replayed."""

    ranks: tuple[_RankEvents, ...]
    members: Ints
    """How many ranks run each collective."""
    transfer_ns: Ints
    steps: int

    def step_ns(self, work_factors: Sequence[float] | NDArray[np.float64]) -> float:
        """Return the step time if the work of each rank takes so many times as long."""
        now = [0.0] * len(self.ranks)
        worked = [0.0] * len(self.ranks)
        at = [0] * len(self.ranks)
        arrived: dict[int, int] = defaultdict(int)
        latest: dict[int, float] = defaultdict(float)
        going = True
        while going:
            going = False
            for rank, events in enumerate(self.ranks):
                while at[rank] < len(events.row):
                    row = int(events.row[at[rank]])
                    if events.blocks[at[rank]] and arrived[row] < self.members[row]:
                        break
                    work_ns = float(events.work_ns[at[rank]])
                    now[rank] += (work_ns - worked[rank]) * work_factors[rank]
                    worked[rank] = work_ns
                    if events.blocks[at[rank]]:
                        now[rank] = max(now[rank], latest[row] + float(self.transfer_ns[row]))
                    else:
                        arrived[row] += 1
                        latest[row] = max(latest[row], now[rank])
                    at[rank] += 1
                    going = True
        ends = [
            now[rank] + (events.total_ns - worked[rank]) * work_factors[rank]
            for rank, events in enumerate(self.ranks)
        ]
        return max(ends) / max(1, self.steps)


def pipeline_replay(
    digests: Sequence[RankDigest],
    matched: MatchedCollectives,
    transfer_ns: Ints,
    missing: Sequence[MissingWaits],
) -> PipelineReplay | None:
    """Prepare the replay of a job with sends and receives; None where it has none in its steps."""
    numbers = [{step.number for step in digest.steps} for digest in digests]
    common = set.intersection(*numbers) if numbers else set()
    inside = np.array([step in common for step in matched.step], np.bool_)
    sends = np.array([key.kind in POINT_TO_POINT for key in matched.keys], np.bool_)
    if not common or not (inside & sends).any():
        return None
    return PipelineReplay(
        tuple(
            _events(digest, rank, matched, inside, common, missing[rank])
            for rank, digest in enumerate(digests)
        ),
        matched.present.sum(axis=1),
        transfer_ns,
        len(common),
    )


def _events(
    digest: RankDigest,
    rank: int,
    matched: MatchedCollectives,
    inside: NDArray[np.bool_],
    common: set[int],
    missing: MissingWaits,
) -> _RankEvents:
    rows = np.flatnonzero(inside & matched.present[:, rank])
    steps = [step for step in digest.steps if step.number in common]
    begin_ns, end_ns = steps[0].start_ns, steps[-1].end_ns
    start, end = matched.start_ns[rows, rank], matched.end_ns[rows, rank]
    exposed = matched.exposed_ns[rows, rank]
    waits = np.flatnonzero(exposed)
    # The exposed part of a collective is its end: work that overlaps it hides the beginning.
    idle_from = (end - exposed)[waits]
    time = np.concatenate((start, idle_from))
    order = np.argsort(time, kind="stable")
    # Waits for missing ranks are no work; nothing replaces them.
    lost = np.isin(missing.step, list(common))
    idle = np.concatenate((idle_from, missing.start_ns[lost]))
    length = np.concatenate((exposed[waits], missing.wait_ns[lost]))
    work = time - begin_ns - _spent_before(time, idle, length)
    return _RankEvents(
        np.maximum.accumulate(np.maximum(0, work[order])),
        np.concatenate((rows, rows[waits]))[order],
        np.concatenate((np.zeros(len(rows), np.bool_), np.ones(len(waits), np.bool_)))[order],
        max(0, end_ns - begin_ns - int(length.sum())),
    )


def _spent_before(time: Ints, idle_from: Ints, length: Ints) -> Ints:
    """Return how much exposed time had passed at each time; the parts may be in any order."""
    if not len(idle_from):
        return np.zeros_like(time)
    order = np.argsort(idle_from, kind="stable")
    starts, lengths = idle_from[order], length[order]
    total = np.concatenate(([0], np.cumsum(lengths)))
    begun = np.searchsorted(starts, time, side="left")
    last = np.maximum(begun - 1, 0)
    rest = np.where(begun > 0, np.maximum(0, starts[last] + lengths[last] - time), 0)
    spent: Ints = total[begun] - rest
    return spent
