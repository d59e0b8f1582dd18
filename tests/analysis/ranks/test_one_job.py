"""Folders that hold captures of several jobs: one is compared, or a map says what to type."""

from __future__ import annotations

import fnmatch
import random
import shlex
from typing import TYPE_CHECKING

import pytest

from gpusight.analysis.ranks.job_ranks import JobRanks, job_ranks
from gpusight.analysis.ranks.one_job import jobs_of
from gpusight.analysis.ranks.rank_identity import without_rank
from gpusight.errors import CaptureMismatchError
from gpusight.results import TableResult
from tests.analysis.ranks.jobs import Collective, digest, step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.ranks.rank_digest import RankDigest

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def run(
    name: str, ranks: Sequence[int], *, world: int | None = 4, begin_s: int | None = 0
) -> list[RankDigest]:
    """Torch traces of a run; `name` has `{}` for the rank."""
    start_ns = None if begin_s is None else START + begin_s * SECOND
    return [
        digest(
            rank,
            [Collective(10 + rank, 50)],
            [step(0, 0, SECOND)],
            file=name.format(rank),
            world_size=world,
            start_utc_ns=start_ns,
        )
        for rank in ranks
    ]


def node(file: str, ranks: int, *, begin_s: int | None = 0) -> list[RankDigest]:
    """An nsys report whose processes are numbered by their order."""
    start_ns = None if begin_s is None else START + begin_s * SECOND
    return [
        digest(
            place,
            [Collective(10 + place, 50)],
            [step(0, 0, SECOND)],
            file=file,
            place=place,
            tool="Nsight Systems",
            rank_from="order of processes",
            start_utc_ns=start_ns,
            pid=sum(file.encode()) + place,
        )
        for place in range(ranks)
    ]


def compared(digests: Sequence[RankDigest]) -> list[tuple[int, str]]:
    answer = job_ranks(digests)
    assert isinstance(answer, JobRanks)
    return [(rank.rank, rank.file) for rank in answer.ranks]


def refused(digests: Sequence[RankDigest]) -> tuple[CaptureMismatchError, TableResult]:
    with pytest.raises(CaptureMismatchError) as caught:
        job_ranks(digests)
    assert isinstance(caught.value.table, TableResult)
    return caught.value, caught.value.table


def test_several_whole_jobs_are_refused_with_a_map() -> None:
    digests = [
        *run("d/a_1.rank{}.json.gz", range(4)),
        *run("d/a_2.rank{}.json.gz", range(4), begin_s=60),
        *node("d/a_1.nsys-rep", 4, begin_s=30),
        *node("d/a_2.nsys-rep", 4, begin_s=90),
    ]
    random.Random(1).shuffle(digests)
    error, table = refused(digests)
    assert error.what == "these captures are of 4 jobs or runs, with 16 ranks in all"
    of_jobs = {
        (row["job"], row["file"].rpartition(".rank")[0] or row["file"]) for row in table.rows()
    }
    assert len(of_jobs) == 4
    assert sorted(row["rank"] for row in table.rows()) == sorted([*range(4)] * 4)
    for row in table.rows():  # what is to be typed names the files of this job, and no other one
        pattern = shlex.split(row["command"])[2]
        own = {other["file"] for other in table.rows() if other["job"] == row["job"]}
        assert set(fnmatch.filter([d.file for d in digests], pattern)) == own
        assert shlex.quote(pattern) in error.hint


def test_each_job_of_the_map_can_be_compared_alone() -> None:
    first, second = run("d/a_1.rank{}.gz", range(4)), run("d/a_2.rank{}.gz", range(4), begin_s=60)
    _, table = refused([*first, *second])
    for number, own in ((1, first), (2, second)):
        files = {row["file"] for row in table.rows() if row["job"] == number}
        assert compared([d for d in (*first, *second) if d.file in files]) == [
            (rank, d.file) for rank, d in enumerate(own)
        ]


def test_the_only_complete_job_is_compared() -> None:
    whole = run("new/trace.rank{}.json", range(4))
    rest = run("old/trace.rank{}.json", (0, 2), begin_s=-90)
    assert compared([*rest, *whole]) == [(rank, d.file) for rank, d in enumerate(whole)]
    answer = job_ranks([*rest, *whole])
    assert isinstance(answer, JobRanks)
    assert [(one.rank, one.reason) for one in answer.unread] == [
        (0, "rank 0 again, as in trace.rank0.json"),
        (2, "rank 2 again, as in trace.rank2.json"),
    ]


def test_a_job_that_may_be_complete_is_not_ignored() -> None:
    """An nsys report does not say how many ranks the job has."""
    refused([*run("trace.rank{}.json", range(4)), *node("job.nsys-rep", 4, begin_s=60)])


def test_single_captures_beside_a_job_are_left_out() -> None:
    stray = run("other.rank{}.json", (0,), world=16, begin_s=3600)
    part = run("trace.rank{}.json", range(3), world=8)
    assert compared([*stray, *part]) == [(rank, d.file) for rank, d in enumerate(part)]


def test_runs_in_two_folders_are_two_jobs() -> None:
    runs = (run(f"run{n}/rank{{}}.json", range(2), begin_s=n, world=None) for n in (1, 2))
    refused([digest for own in runs for digest in own])


def test_runs_of_equal_names_are_told_apart_by_time() -> None:
    """As TensorBoard's handler names them: host, process and time."""
    early = run("host_{}7.170.pt.trace.json", range(4))
    late = run("host_{}9.180.pt.trace.json", range(4), begin_s=600)
    _, table = refused([*early, *late])
    assert {(row["job"], row["file"].split(".")[1]) for row in table.rows()} == {
        (1, "170"),
        (2, "180"),
    }


def test_nodes_that_ran_at_the_same_time_are_one_job() -> None:
    nodes = [*node("node0.nsys-rep", 2), *node("node1.nsys-rep", 2, begin_s=1)]
    assert [rank for rank, _ in compared(nodes)] == [0, 1, 2, 3]
    unknown = [*node("node0.sqlite", 2, begin_s=None), *node("node1.sqlite", 2, begin_s=None)]
    assert [rank for rank, _ in compared(unknown)] == [0, 1, 2, 3]
    refused([*node("node0.nsys-rep", 2), *node("node1.nsys-rep", 2, begin_s=300)])


def test_one_job_recorded_with_two_tools_is_one_job() -> None:
    first = run("trace.rank{}.json", (0, 1))
    second = run("rank{}.sqlite", (2, 3), world=None)
    assert [rank for rank, _ in compared([*first, *second])] == [0, 1, 2, 3]


def test_copies_of_a_capture_count_once() -> None:
    own = run("d/trace.rank{}.json", range(4))
    copy = run("d/copy of trace.rank{}.json", (1,))
    answer = job_ranks([*copy, *own])
    assert isinstance(answer, JobRanks)
    assert len(answer.ranks) == 4
    assert [one.reason for one in answer.unread] == ["the same capture as copy of trace.rank1.json"]


def test_the_order_of_captures_does_not_matter() -> None:
    digests = [
        *run("a/rank{}.json", range(4)),
        *run("b/rank{}.json", range(4), begin_s=60),
        *node("c.nsys-rep", 4, begin_s=30),
    ]
    expected = [job.files for job in jobs_of(digests)]
    random.Random(2).shuffle(digests)
    assert {frozenset(job.files) for job in jobs_of(digests)} == set(map(frozenset, expected))


def test_commands_quote_names_and_escape_patterns() -> None:
    first = run("my [new] traces/rank{}.json", range(4))
    second = run("it's old/rank{}.json", range(4), begin_s=60)
    _, table = refused([*first, *second])
    arguments = {tuple(shlex.split(row["command"])[2:]) for row in table.rows()}
    assert arguments == {("my [[]new] traces/rank*.json",), ("it's old/rank*.json",)}


def test_files_that_no_pattern_selects_are_named_one_by_one() -> None:
    first = run("d/x_rank{}.json", range(2), world=2)
    second = [
        *run("d/x_rank{}.json.gz", (0,), world=2, begin_s=60),
        *run("d/y/z_rank{}.json.gz", (1,), world=2, begin_s=60),
    ]
    _, table = refused([*first, *second])
    commands = {row["command"] for row in table.rows()}
    assert "gpusight ranks d/x_rank0.json.gz d/y/z_rank1.json.gz" in commands


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("d/trace.rank3.json", "d/trace.rank#.json"),
        ("d/rank_12/profile.nsys-rep", "d/rank_#/profile.nsys-rep"),
        ("d/a_2.rank3.json", "d/a_2.rank#.json"),
        ("d/node1.nsys-rep", "d/node1.nsys-rep"),
    ],
)
def test_names_without_their_rank(path: str, plain: str) -> None:
    assert without_rank(path) == plain
