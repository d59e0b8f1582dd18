"""The answer about a job, also where captures are missing, repeated or of something else."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpusight.analysis.ranks.job_ranks import JobRanks, UnreadRank, job_ranks
from gpusight.results import NotApplicable
from tests.analysis.ranks.jobs import MS, NONE, Collective, Delay, digest, job_digests, step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.ranks.rank_digest import RankDigest


@pytest.fixture(scope="module")
def digests() -> list[RankDigest]:
    """Four ranks, of which rank 1 is late."""
    return job_digests(lambda rank, _: Delay(host_ns=3 * MS) if rank == 1 else NONE)


def answer(digests: Sequence[RankDigest], unread: Sequence[UnreadRank] = ()) -> JobRanks:
    job = job_ranks(digests, unread)
    assert isinstance(job, JobRanks)
    return job


def test_the_parts_of_each_rank_add_up_to_its_step(digests: list[RankDigest]) -> None:
    for rank in answer(digests).ranks:
        parts = (rank.compute_ns, rank.copy_ns, rank.transfer_ns, rank.wait_ns or 0, rank.idle_ns)
        assert sum(parts) == pytest.approx(rank.step_ns)


def test_waits_are_those_that_ranks_cause(digests: list[RankDigest]) -> None:
    ranks = answer(digests).ranks
    waits = [rank.wait_ns or 0 for rank in ranks]
    assert sum(waits) == pytest.approx(sum(rank.caused_wait_ns or 0 for rank in ranks))
    assert ranks[1].wait_ns == 0
    assert ranks[1].caused_wait_ns == pytest.approx(9 * MS, rel=0.02)
    assert ranks[1].last == ranks[1].collectives == len(digests[0].steps)


def test_the_order_of_captures_does_not_matter(digests: list[RankDigest]) -> None:
    shuffled = list(digests)
    random.Random(3).shuffle(shuffled)
    assert answer(shuffled).document() == answer(digests).document()


def test_the_document_has_the_keys_that_are_promised(digests: list[RankDigest]) -> None:
    document = answer(digests).document()
    assert list(document) == [
        "meta", "ranks", "stragglers", "steps", "clocks", "slowdown", "unread",
        "communication", "pipeline", "experts",
    ]  # fmt: skip
    rank = {"rank", "host", "device", "step_ns", "compute_ns", "transfer_ns", "wait_ns", "idle_ns"}
    assert {*rank, "caused_wait_ns"} <= set(document["ranks"][0])
    straggler = {"rank", "cause", "share", "recoverable_ns", "evidence"}
    assert straggler <= set(document["stragglers"][0])
    msgspec.json.encode(document)


def test_each_step_names_its_slowest_rank(digests: list[RankDigest]) -> None:
    steps = answer(digests).steps
    assert {step.slowest for step in steps} == {1}
    assert all(step.late_ns == pytest.approx(3 * MS, rel=0.02) for step in steps)


def test_the_simulation_agrees_with_the_measured_step(digests: list[RankDigest]) -> None:
    meta = answer(digests).meta
    assert abs(meta["simulation_error"]) < 0.02
    assert meta["balanced_step_ns"] == pytest.approx(meta["step_ns"] - 3 * MS, rel=0.02)


def test_what_is_saved_is_a_part_of_the_step_that_is_shown(digests: list[RankDigest]) -> None:
    found = answer(digests)
    for straggler in found.stragglers:
        assert straggler.recoverable_ns == pytest.approx(straggler.share * found.meta["step_ns"])


def test_clocks_are_compared_where_captures_have_one_origin(digests: list[RankDigest]) -> None:
    assert answer(digests).clocks == ()
    start_ns = 1_700_000_000_000_000_000
    dated = [msgspec.structs.replace(d, start_utc_ns=start_ns) for d in digests]
    found = answer(dated).document()["clocks"]
    assert [clock["rank"] for clock in found] == [d.rank for d in digests]
    offsets = [clock["offset_ns"] for clock in found]
    assert offsets == pytest.approx([37 * MS * rank for rank in range(len(digests))], abs=300_000)
    later = [
        msgspec.structs.replace(d, start_utc_ns=start_ns + MS * i) for i, d in enumerate(dated)
    ]
    moved = [clock["offset_ns"] for clock in answer(later).document()["clocks"]]
    assert [b - a for a, b in zip(offsets, moved, strict=True)] == pytest.approx(
        [MS * rank for rank in range(len(digests))], abs=2
    )


def notes(digests: Sequence[RankDigest], *unread: UnreadRank) -> str:
    return "\n".join(answer(digests, unread).notes)


def test_one_rank_alone(digests: list[RankDigest]) -> None:
    job = answer(digests[:1])
    assert job.stragglers == ()
    assert "only one rank" in notes(digests[:1])
    assert job.ranks[0].step_ns > 0


def test_missing_ranks_are_named(digests: list[RankDigest]) -> None:
    assert "2 of 4 ranks are missing (0, 3)" in notes(digests[1:3])
    assert answer(digests[1:3]).stragglers[0].rank == 1


def test_a_rank_given_twice_counts_once(digests: list[RankDigest]) -> None:
    again = msgspec.structs.replace(digests[2], file="job/z_copy.json", gpu="another")
    job = answer([*digests, again])
    assert [rank.rank for rank in job.ranks] == [0, 1, 2, 3]
    assert [(one.rank, one.file) for one in job.unread] == [(2, "job/z_copy.json")]
    assert "rank 2 again" in notes([*digests, again])


def test_captures_of_another_job_are_left_out(digests: list[RankDigest]) -> None:
    other = msgspec.structs.replace(digests[0], world_size=16, rank=9, file="other.json")
    job = answer([*digests, other])
    assert len(job.ranks) == 4
    assert "of another job: 16 ranks in all, others have 4" in job.unread[0].reason


def test_what_could_not_be_read_is_reported(digests: list[RankDigest]) -> None:
    broken = UnreadRank("job/rank3.json", "job/rank3.json is damaged: cut off")
    assert "not read: rank3.json: is damaged: cut off" in notes(digests[:3], broken)


def test_nothing_to_read_is_not_applicable() -> None:
    absent = job_ranks([], [UnreadRank("a.json", "is damaged")])
    assert isinstance(absent, NotApplicable)
    assert "is damaged" in absent.reason


def test_different_tools_are_named(digests: list[RankDigest]) -> None:
    other = msgspec.structs.replace(digests[0], tool="Nsight Systems")
    assert "recorded with Nsight Systems and built by hand" in notes([other, *digests[1:]])


def test_ranks_without_a_number_are_numbered_in_the_order_of_files() -> None:
    own = [Collective(0, 5)]
    files = ["node10.sqlite", "node9.sqlite", "node9.sqlite"]
    digests = [
        digest(number, own, [step(0, 0, 10)], file=file, place=place, rank_from=told)
        for file, place, number, told in zip(
            files, (0, 0, 1), (None, 0, 1), ("", *["order of processes"] * 2), strict=True
        )
    ]
    job = answer(digests)
    assert [(rank.rank, rank.file) for rank in job.ranks] == [
        (0, "node9.sqlite"),
        (1, "node9.sqlite"),
        (2, "node10.sqlite"),
    ]
    assert {rank.rank_from for rank in job.ranks} == {"order of files"}


def test_captures_of_different_times_are_named() -> None:
    first, second = (
        [Collective(n * MS, n * MS + 5, bytes=base + n, step=0) for n in range(4)]
        for base in (0, 100)
    )
    digests = [digest(n, own, [step(0, 0, 9 * MS)]) for n, own in enumerate((first, second))]
    assert "other groups, another job or time?" in notes(digests)


def test_steps_that_only_some_ranks_have_are_counted() -> None:
    digests = [
        digest(0, [], [step(n, n * 100, n * 100 + 100, wait_ns=60) for n in range(4)]),
        digest(1, [], [step(n, n * 100, n * 100 + 100, wait_ns=60) for n in range(2, 5)]),
    ]
    assert "2 of 4 steps are compared" in notes(digests)


def test_ranks_that_nothing_connects_are_not_compared() -> None:
    digests = [
        digest(rank, [], [step(n, n * 100, n * 100 + length) for n in range(6)])
        for rank, length in ((0, 100), (1, 40))
    ]
    job = answer(digests)
    assert (job.stragglers, job.steps, job.meta["simulated_step_ns"]) == ((), (), None)
    assert "waits for other ranks are not known" in notes(digests)


def test_steps_that_no_two_ranks_share_are_named(digests: list[RankDigest]) -> None:
    """A collective outside the window of one rank is not compared."""
    early, late = (
        msgspec.structs.replace(
            one,
            steps=tuple(s for s in one.steps if s.number in chosen),
            collectives=msgspec.structs.replace(
                one.collectives,
                step=tuple(n if n in chosen else None for n in one.collectives.step),
            ),
        )
        for one, chosen in ((digests[0], range(2, 5)), (digests[1], range(7, 10)))
    )
    job = answer([early, late])
    assert (job.stragglers, job.meta["steps"]) == ((), 0)
    assert "rank 0 has steps 2 to 4, rank 1 has steps 7 to 9" in notes([early, late])


def test_a_run_at_another_time_is_named(digests: list[RankDigest]) -> None:
    second = 1_000_000_000
    start = {rank: (90 if rank == 3 else 0) * second for rank in range(4)}
    moved = [msgspec.structs.replace(d, start_utc_ns=start[d.rank or 0]) for d in digests]
    assert "rank 3 recorded up to 90.0 s apart from the others" in notes(moved)
    together = [msgspec.structs.replace(d, start_utc_ns=0) for d in digests]
    assert "apart from the others" not in notes(together)


def test_more_ranks_than_the_job_has_are_named(digests: list[RankDigest]) -> None:
    more = msgspec.structs.replace(digests[0], rank=4, file="more.json")
    assert [rank.rank for rank in answer([*digests, more]).ranks] == [0, 1, 2, 3]
    assert "with it there are 5 ranks, and the job has 4" in notes([*digests, more])
