"""Ranks that are planted to be late are found, with their cause and steps; others are not."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from gpusight.analysis.ranks.job_ranks import JobRanks, job_ranks
from gpusight.analysis.ranks.straggler_causes import Straggler
from tests.analysis.ranks.jobs import MS, NONE, US, Collective, Delay, digest, job_digests, step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.analysis.ranks.rank_digest import RankDigest

CAUSES = {
    "host": Delay(host_ns=3 * MS),
    "input": Delay(input_ns=3 * MS),
    "more-work": Delay(kernels=3),
    "slow-kernels": Delay(slow=1.6),
}


def analyzed(digests: Sequence[RankDigest]) -> JobRanks:
    job = job_ranks(digests)
    assert isinstance(job, JobRanks)
    return job


def found(plan: Callable[[int, int], Delay], **options: object) -> tuple[Straggler, ...]:
    return analyzed(job_digests(plan, **options)).stragglers


def only(rank: int, delay: Delay) -> Callable[[int, int], Delay]:
    return lambda who, _step: delay if who == rank else NONE


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("rank", [0, 2])
def test_a_late_rank_is_found_with_its_cause(cause: str, rank: int) -> None:
    [straggler] = found(only(rank, CAUSES[cause]))
    assert (straggler.rank, straggler.cause, straggler.pattern) == (rank, cause, "constant")
    # Steps of 4.5 ms last as much longer as the delay.
    assert straggler.recoverable_ns == pytest.approx(3 * MS, rel=0.25)
    assert straggler.share == pytest.approx(3 / 7.6, abs=0.08)


def test_larger_kernels_are_more_work() -> None:
    [straggler] = found(only(1, Delay(larger=2)))
    assert (straggler.rank, straggler.cause) == (1, "more-work")


@pytest.mark.parametrize(("period", "text"), [(2, "every 2nd step"), (3, "every 3rd step")])
def test_a_rank_that_is_late_in_every_nth_step(period: int, text: str) -> None:
    delay = Delay(host_ns=6 * MS)
    plan = lambda who, at: delay if who == 1 and at % period == 0 else NONE  # noqa: E731
    [straggler] = found(plan, steps=24)
    assert (straggler.rank, straggler.cause, straggler.pattern) == (1, "host", text)


def test_a_rank_that_gets_slower() -> None:
    plan = lambda who, at: Delay(slow=1 + 0.05 * at) if who == 3 else NONE  # noqa: E731
    [straggler] = found(plan, steps=20)
    assert (straggler.rank, straggler.cause, straggler.pattern) == (3, "slow-kernels", "drifting")


def test_two_late_ranks_are_both_found() -> None:
    delay = Delay(host_ns=3 * MS)
    stragglers = found(lambda who, _: delay if who in (1, 4) else NONE, ranks=6)
    assert sorted(s.rank for s in stragglers) == [1, 4]
    # Neither saves anything alone; together they save all of it.
    assert sum(s.recoverable_ns for s in stragglers) == pytest.approx(3 * MS, rel=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_balanced_ranks_are_not_accused(seed: int) -> None:
    chance = random.Random(seed)
    noise = {(r, s): abs(int(chance.gauss(0, MS // 2))) for r in range(4) for s in range(12)}
    stragglers = found(lambda *_: NONE, noise=lambda who, at: noise[who, at])
    assert [s for s in stragglers if s.share > 0.05] == []


@pytest.mark.parametrize("seed", range(10))
def test_a_late_rank_is_found_among_noise(seed: int) -> None:
    chance = random.Random(seed)
    noise = {(r, s): abs(int(chance.gauss(0, MS // 2))) for r in range(4) for s in range(12)}
    stragglers = found(only(2, CAUSES["host"]), noise=lambda who, at: noise[who, at])
    assert (stragglers[0].rank, stragglers[0].cause) == (2, "host")


def test_clocks_do_not_matter() -> None:
    plan = only(2, CAUSES["host"])
    agreeing, others = (
        found(plan, offset_ns=offset) for offset in (lambda _: 0, lambda who: 40 * MS * who)
    )
    assert agreeing == others


def test_two_ranks_are_enough() -> None:
    [straggler] = found(only(1, CAUSES["input"]), ranks=2)
    assert (straggler.rank, straggler.cause) == (1, "input")


def test_a_rank_that_waits_for_a_late_one_is_not_the_cause() -> None:
    """Ranks 0 and 1 are stages: 1 starts when 0 is done; 2 and 3 wait for 1 in the all-reduce."""
    digests = []
    for rank in range(4):
        collectives, steps = [], []
        for number in range(8):
            start_ns = number * 20 * MS
            stage_end, last_end = start_ns + 12 * MS, start_ns + 18 * MS
            if rank < 2:
                stage_start = start_ns + (11 * MS if rank == 0 else MS)
                collectives.append(
                    Collective(stage_start, stage_end, "broadcast", group="pp", step=number)
                )
            arrived = {0: 13 * MS, 1: 17 * MS, 2: 9 * MS, 3: 9 * MS}[rank]
            collectives.append(Collective(start_ns + arrived, last_end, group="dp", step=number))
            waited_ns = sum(c.end_ns - c.start_ns for c in collectives if c.step == number)
            steps.append(step(number, start_ns, start_ns + 20 * MS, collective_ns=waited_ns))
        digests.append(digest(rank, collectives, steps))
    by_rank = {s.rank: s for s in analyzed(digests).stragglers}
    assert by_rank[0].cause != "upstream"
    assert by_rank[0].recoverable_ns > 0
    assert by_rank[1].cause == "upstream"
    assert by_rank[1].recoverable_ns == 0
    assert "rank 0" in by_rank[1].evidence[0].meaning


def test_a_slow_link_is_the_network() -> None:
    """Rank 3 shares a group with 2 whose transfers take longer than those of 0 and 1."""
    digests = []
    for rank in range(4):
        collectives, steps = [], []
        for number in range(8):
            start_ns = number * 20 * MS
            group, transfer_ns = ("left", MS) if rank < 2 else ("right", 6 * MS)
            pair_end = start_ns + 5 * MS + transfer_ns
            collectives.append(
                Collective(start_ns + 5 * MS, pair_end, "all_gather", 8, group, step=number)
            )
            last_end = start_ns + 13 * MS
            collectives.append(Collective(pair_end + MS, last_end, group="dp", step=number))
            collective_ns = sum(c.end_ns - c.start_ns for c in collectives if c.step == number)
            steps.append(step(number, start_ns, start_ns + 14 * MS, collective_ns=collective_ns))
        digests.append(digest(rank, collectives, steps))
    stragglers = analyzed(digests).stragglers
    assert {s.rank for s in stragglers} == {2, 3}
    assert {s.cause for s in stragglers} == {"network"}


def test_waits_of_the_host_stand_in_for_collectives() -> None:
    def rank(number: int, wait_ns: int) -> RankDigest:
        idle = {"waiting": wait_ns, "sleeping": 30 * MS - wait_ns}
        steps = [
            step(at, at * 40 * MS, (at + 1) * 40 * MS, idle=idle, wait_ns=wait_ns)
            for at in range(10)
        ]
        return digest(number, [], steps)

    job = analyzed([rank(0, 30 * MS), rank(1, 10 * MS), rank(2, 30 * MS)])
    [straggler] = job.stragglers
    assert (straggler.rank, straggler.cause) == (1, "host")
    assert straggler.recoverable_ns == pytest.approx(20 * MS)
    assert job.meta["matched_by"] == ["waits of the host"]
    assert [rank.wait_ns for rank in job.ranks] == [20 * MS, 0, 20 * MS]
    assert (job.ranks[1].caused_wait_ns or 0) > US


def test_some_late_steps_among_noise_are_found() -> None:
    """Every third step is late by 20 ms; noise of the others is large, and once of its own too."""
    chance = random.Random(3)

    def noise(rank: int, step: int) -> int:
        return int(chance.gammavariate(1, 1.5 * MS)) + (8 * MS if (rank, step) == (1, 0) else 0)

    def plan(rank: int, step: int) -> Delay:
        return Delay(host_ns=20 * MS) if rank == 1 and step % 3 == 1 else NONE

    [straggler] = found(plan, steps=14, noise=noise)
    assert (straggler.rank, straggler.cause, straggler.pattern) == (1, "host", "every 3rd step")
