"""The captures of several ranks as one trace on one clock."""

from __future__ import annotations

import polars as pl
import pytest

from gpusight.analysis.ranks.aligned_ranks import AlignedTrace, RankLinks, align_ranks
from gpusight.analysis.ranks.job_ranks import JobRanks, job_ranks
from gpusight.analysis.ranks.rank_digest import RankDigest, rank_digests
from gpusight.results import NotApplicable
from gpusight.trace.trace import RANKS
from gpusight.viewer.timeline_view import ViewerTimeline
from tests.analysis.ranks.jobs import MS, NCCL, NONE, US, Delay, job_traces


@pytest.fixture(scope="module")
def aligned() -> AlignedTrace:
    """Four ranks whose clocks differ by 37 ms each; rank 2 is late."""
    traces = job_traces(lambda rank, _: Delay(host_ns=3 * MS) if rank == 2 else NONE)
    digests: list[RankDigest] = []
    for trace in traces:
        made = rank_digests(trace)
        assert not isinstance(made, NotApplicable)
        digests += made
    job = job_ranks(digests)
    assert isinstance(job, JobRanks)
    # Their order is that of the ranks, whatever that of the files.
    return align_ranks(job, list(reversed(traces)))


def test_the_tables_are_those_of_a_capture(aligned: AlignedTrace) -> None:
    aligned.validate()
    assert aligned.meta.source == RANKS
    assert aligned.table("kernels", ["device"])["device"].unique().sort().to_list() == [0, 1, 2, 3]
    calls = aligned.table("api_calls", ["process", "thread"]).unique().sort("process")
    assert calls["process"].to_list() == [0, 1, 2, 3]
    assert calls["thread"].n_unique() == 4
    assert aligned.row_count("kernels") == aligned.kernels.height
    assert aligned.row_count("devices") == aligned.devices.height


def test_all_ranks_leave_a_collective_together(aligned: AlignedTrace) -> None:
    kernels = aligned.table("kernels", ["start_ns", "end_ns", "device", "name"])
    nccl = kernels.filter(pl.col("name").cast(pl.String) == NCCL)
    ends = nccl.with_columns(n=pl.col("end_ns").cum_count().over("device")).group_by("n")
    apart = ends.agg((pl.col("end_ns").max() - pl.col("end_ns").min()).alias("apart"))["apart"]
    assert len(apart) == 12
    assert apart.to_list() == [pytest.approx(0, abs=50 * US)] * 12
    assert "aligned by" in aligned.meta.notes[0]


def test_the_same_collective_is_found_on_every_rank(aligned: AlignedTrace) -> None:
    links = RankLinks.of(aligned.source, aligned)
    assert [len(events) for events in links.members.values()] == [4] * 12
    first = links.members[0][0]
    others = links.others(first.table, first.row)
    assert [event.rank for event in others] == [1, 2, 3]
    names = aligned.table("kernels", ["name"])["name"].cast(pl.String)
    assert {names[event.row] for event in others} == {NCCL}
    assert links.others("kernels", 0) == []


def test_tracks_are_named_by_rank(aligned: AlignedTrace) -> None:
    groups = list(dict.fromkeys(track.group for track in ViewerTimeline(aligned).tracks))
    assert [group[:6] for group in groups] == [f"Rank {rank}" for rank in range(4)] * 2


def test_how_clocks_were_aligned_is_written_down(aligned: AlignedTrace) -> None:
    about = aligned.source.clock_metadata()
    moved = {rank["rank"]: rank["added_ns"] for rank in about["ranks"]}
    assert moved[1] - moved[0] == pytest.approx(-37 * MS, abs=50 * US)
    assert moved[3] - moved[0] == pytest.approx(-3 * 37 * MS, abs=50 * US)
