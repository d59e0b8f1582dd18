"""Pipeline stages and experts: bubbles, microbatches, and who has more to do than the others."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpusight.analysis.ranks.match_collectives import sender_and_receiver
from gpusight.naming.collective_names import POINT_TO_POINT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analysis.ranks.rank_digest import RankDigest
    from gpusight.analysis.ranks.rank_replay import CollectiveWaits
    from gpusight.trace.intervals import Ints


_MIN_STAGES = 2
_ALL_TO_ALL = "all_to_all"


@dataclass(frozen=True)
class PipelineStage:
    """One stage of the pipeline: its ranks, and means per step and rank."""

    stage: int
    ranks: tuple[int, ...]
    compute_ns: float
    bubble_ns: float
    """Exposed waits for other stages, in sends and receives."""


@dataclass(frozen=True)
class Pipeline:
    """Ranks that send activations and gradients to each other."""

    stages: tuple[PipelineStage, ...]
    microbatches: float
    """Sends from the first stage to the second, per step."""
    bubble_share: float
    """Part of the step, the mean of all ranks."""
    ideal_bubble_share: float
    """(stages - 1) / (microbatches + stages - 1): equal stages, without interleaving."""
    imbalance_ns: float
    """Compute per step of the slowest stage beyond the mean of all."""


@dataclass(frozen=True)
class ExpertGroup:
    """Ranks that exchange tokens by all-to-alls; experts run between the first and the second."""

    ranks: tuple[int, ...]
    layers: float
    """Pairs of all-to-alls per step."""
    expert_ns: Mapping[int, float]
    """Time between both all-to-alls of all layers, per step, by rank."""
    imbalance_ns: float
    """What the slowest rank of each layer takes beyond the mean, per step."""


@dataclass(frozen=True)
class Balance:
    """Whether stages and experts have equal work."""

    pipeline: Pipeline | None
    experts: tuple[ExpertGroup, ...]

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return {
            "pipeline": None if self.pipeline is None else asdict(self.pipeline),
            "experts": [asdict(group) for group in self.experts],
        }


def balance(digests: Sequence[RankDigest], waits: CollectiveWaits) -> Balance:
    """Compare the stages of a pipeline and the experts of each group."""
    return Balance(_pipeline(digests, waits), _experts(digests, waits))


# Stages -------------------------------------------------------------------------------------------


def stages_of(digests: Sequence[RankDigest], waits: CollectiveWaits) -> tuple[tuple[int, ...], ...]:
    """Return the stages, each with the positions of its ranks; none where ranks form no chains."""
    sends = _sends(digests, waits)
    near: dict[int, set[int]] = defaultdict(set)
    for source, target in sends:
        near[source].add(target)
        near[target].add(source)
    chains: list[list[int]] = []
    waiting = set(near)
    while waiting:
        own = _connected(min(waiting), near)
        waiting -= own
        chain = _chain(own, near)
        if chain is None:
            return ()
        chains.append(chain)
    if not chains or len({len(chain) for chain in chains}) > 1 or len(chains[0]) < _MIN_STAGES:
        return ()
    return tuple(tuple(sorted(ranks)) for ranks in zip(*chains, strict=True))


def _sends(
    digests: Sequence[RankDigest], waits: CollectiveWaits
) -> dict[tuple[int, int], list[int]]:
    matched = waits.matched
    sends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for at, key in enumerate(matched.keys):
        if key.kind in POINT_TO_POINT and matched.step[at] is not None:
            sends[sender_and_receiver(digests, matched.row[at])].append(at)
    return sends


def _connected(first: int, near: Mapping[int, set[int]]) -> set[int]:
    connected, waiting = {first}, [first]
    while waiting:
        new = near[waiting.pop()] - connected
        connected |= new
        waiting += new
    return connected


def _chain(own: set[int], near: Mapping[int, set[int]]) -> list[int] | None:
    """Order ranks from end to end; interleaved stages form a ring, which begins at its first."""
    if any(len(near[rank]) > 2 for rank in own):
        return None
    ends = [rank for rank in own if len(near[rank]) == 1]
    if not ends:
        return sorted(own)
    chain = [min(ends)]
    while len(chain) < len(own):
        chain.append(next(iter(near[chain[-1]] - set(chain[-2:-1]))))
    return chain


def _pipeline(digests: Sequence[RankDigest], waits: CollectiveWaits) -> Pipeline | None:
    stages = stages_of(digests, waits)
    if not stages:
        return None
    sends = _sends(digests, waits)
    own_sends = [at for rows in sends.values() for at in rows]
    compute = _per_step(digests, lambda step: step.compute_ns)
    length = _per_step(digests, lambda step: step.length_ns)
    steps = np.array([max(1, len(digest.steps)) for digest in digests])
    bubble = waits.exposed_wait_ns[own_sends].sum(axis=0) / steps
    forward = [
        len(sends[source, target]) / steps[source]
        for source in stages[0]
        for target in stages[1]
        if (source, target) in sends
    ]
    of_stage = [float(compute[list(ranks)].mean()) for ranks in stages]
    made = tuple(
        PipelineStage(
            number,
            tuple(digests[rank].number for rank in ranks),
            of_stage[number],
            float(bubble[list(ranks)].mean()),
        )
        for number, ranks in enumerate(stages)
    )
    microbatches = float(np.median(forward)) if forward else 0.0
    every = [rank for ranks in stages for rank in ranks]
    return Pipeline(
        made,
        microbatches,
        float((bubble[every] / np.maximum(1, length[every])).mean()),
        (len(stages) - 1) / max(1.0, microbatches + len(stages) - 1),
        max(of_stage) - float(np.mean(of_stage)),
    )


def _per_step(digests: Sequence[RankDigest], part: Any) -> Any:
    return np.array([np.mean([part(step) for step in d.steps] or [0.0]) for d in digests])


# Experts ------------------------------------------------------------------------------------------


def expert_layers(
    waits: CollectiveWaits,
) -> dict[tuple[int, ...], list[tuple[int, int]]]:
    """Return the pairs of all-to-alls (dispatch, combine) of each group of positions."""
    matched = waits.matched
    by_step: dict[tuple[tuple[int, ...], int], list[int]] = defaultdict(list)
    for at, key in enumerate(matched.keys):
        step = matched.step[at]
        if key.kind == _ALL_TO_ALL and step is not None:
            members = tuple(np.flatnonzero(matched.present[at]).tolist())
            by_step[members, step].append(at)
    layers: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
    for (members, _), rows in by_step.items():
        if len(rows) % 2 == 0:
            layers[members] += zip(rows[::2], rows[1::2], strict=True)
    return layers


def expert_times(waits: CollectiveWaits, layers: Sequence[tuple[int, int]]) -> Ints:
    """Return the time between dispatch and combine by layer (rows) and rank (columns).

    A rank's own clock measures it.
    """
    matched = waits.matched
    dispatch, combine = (np.array(rows, np.int64) for rows in zip(*layers, strict=True))
    times: Ints = np.maximum(0, matched.start_ns[combine] - matched.end_ns[dispatch])
    return times


def _experts(digests: Sequence[RankDigest], waits: CollectiveWaits) -> tuple[ExpertGroup, ...]:
    groups = []
    for members, layers in sorted(expert_layers(waits).items()):
        steps = len({waits.matched.step[at] for at, _ in layers})
        times = expert_times(waits, layers)[:, list(members)]
        beyond = times.max(axis=1) - times.mean(axis=1)
        groups.append(
            ExpertGroup(
                tuple(digests[rank].number for rank in members),
                len(layers) / steps,
                {
                    digests[rank].number: float(times[:, column].sum()) / steps
                    for column, rank in enumerate(members)
                },
                float(beyond.sum()) / steps,
            )
        )
    return tuple(groups)
