"""Waits without clocks, and the step time if ranks were faster."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from gpusight.analysis.ranks.match_collectives import match_collectives
from gpusight.analysis.ranks.rank_digest import CollectiveKey
from gpusight.analysis.ranks.rank_replay import CollectiveWaits, OwnTimes, own_times
from tests.analysis.ranks.jobs import Collective, Delay, digest, job_digests, step

MS = 1_000_000


def test_the_rank_with_the_shortest_collective_arrived_last() -> None:
    waits = CollectiveWaits(
        match_collectives(
            [
                digest(0, [Collective(0, 100)]),
                digest(1, [Collective(1070, 1100)]),
                digest(2, [Collective(500, 580, exposed_ns=50)]),
            ]
        )
    )
    assert waits.transfer_ns.tolist() == [30]
    assert waits.last.tolist() == [1]
    assert waits.wait_ns.tolist() == [[70, 0, 50]]
    # Work that overlaps a collective hides its beginning, which is the wait.
    assert waits.exposed_wait_ns.tolist() == [[70, 0, 20]]
    assert waits.exposed_transfer_ns.tolist() == [[30, 30, 30]]


def own(*segments: list[int]) -> OwnTimes:
    numbers = np.arange(len(segments))
    return OwnTimes(np.array(segments, np.int64), numbers, np.empty(0, np.int64))


def test_the_slowest_rank_of_each_segment_decides() -> None:
    assert own([10, 20, 10], [10, 10, 16]).job_ns == 18.0


def test_a_rank_as_fast_as_the_median_of_the_others() -> None:
    times = own([10, 20, 12], [10, 20, 14])
    assert times.simulate([1]) == 13.0
    assert times.saved_ns(1, [1]) == 7.0
    assert times.late_ns.tolist() == [[0, 9, 0], [0, 8, 0]]


def test_two_late_ranks_share_what_both_save() -> None:
    times = own([10, 20, 20, 10])
    assert times.saved_ns(1, [1]) == 0.0
    assert times.saved_ns(1, [1, 2]) == times.saved_ns(2, [1, 2]) == 5.0


def test_own_times_add_up_to_the_measured_step() -> None:
    digests = job_digests(lambda rank, _: Delay(host_ns=2 * MS) if rank == 1 else Delay())
    times = own_times(digests, CollectiveWaits(match_collectives(digests)))
    measured = np.mean([step.length_ns for step in digests[0].steps])
    assert abs(times.job_ns / measured - 1) < 0.02
    assert len(times.steps) == len(digests[0].steps)


def test_steps_are_compared_by_number_without_collectives() -> None:
    from tests.analysis.ranks.jobs import step

    digests = [
        digest(0, [], [step(n, n * 100, n * 100 + 100, wait_ns=60) for n in range(3)]),
        digest(1, [], [step(n, n * 100, n * 100 + 100, wait_ns=20) for n in range(1, 4)]),
    ]
    times = own_times(digests, CollectiveWaits(match_collectives(digests)))
    assert times.steps.tolist() == [1, 2]
    assert times.own_ns.tolist() == [[60, 100], [60, 100]]


def test_a_pipeline_whose_first_stage_is_never_exposed_is_simulated() -> None:
    """Its sends overlap with compute: it has no wait that the replay could begin with."""
    stages = [
        digest(rank, [Collective(at, at + 20, kind, exposed_ns=exposed)], [step(0, 0, 100)])
        for rank, kind, at, exposed in ((0, "send", 40, 0), (1, "recv", 10, 30))
    ]
    for place, stage in enumerate(stages):
        table = structs.replace(stage.collectives, peer=(1 - place,))
        stages[place] = structs.replace(stage, collectives=table)
    times = own_times(stages, CollectiveWaits(match_collectives(stages)))
    assert times.pipeline is not None
    assert times.job_ns == 100


def test_waits_for_a_missing_rank_are_no_time_of_the_one_that_waits() -> None:
    """Of two groups of equal collectives, one has both ranks: it shows the transfer."""
    ranks = [
        digest(rank, [Collective(10, end, group=name, bytes=8)], [step(0, 0, 100)])
        for rank, name, end in ((0, "a", 80), (1, "b", 40), (2, "b", 30))
    ]
    for place, (own, members) in enumerate(zip(ranks, ("[0, 3]", "[1, 2]", "[1, 2]"), strict=True)):
        (key,) = own.collectives.keys
        named = CollectiveKey(key.kind, key.bytes, key.group, members, key.source)
        table = structs.replace(own.collectives, keys=(named,))
        ranks[place] = structs.replace(own, collectives=table)
    times = own_times(ranks, CollectiveWaits(match_collectives(ranks)))
    assert [found.wait_ns.tolist() for found in times.missing] == [[50], [], []]
    assert times.own_ns.tolist() == [[50, 90, 100]]
