"""Ranks by step, and the latest step on one clock."""

from __future__ import annotations

import polars as pl
import pytest

from gpusight.analysis.ranks.job_ranks import JobRanks, job_ranks
from gpusight.analysis.ranks.rank_digest import rank_digests
from gpusight.results import NotApplicable
from tests.analysis.ranks.jobs import MS, NONE, US, Delay, job_digests, job_traces


def answer(late_step: int = 5, **options: int) -> JobRanks:
    job = job_ranks(
        job_digests(
            lambda rank, step: Delay(host_ns=6 * MS) if (rank, step) == (2, late_step) else NONE,
            **options,
        )
    )
    assert isinstance(job, JobRanks)
    return job


def test_lateness_and_waits_are_given_for_each_rank_and_step() -> None:
    frame = answer().by_step
    assert frame is not None
    late = frame.filter(pl.col("late_ns") > MS)
    assert late.select("rank", "step").rows() == [(2, 5)]
    assert late["late_ns"].item() == pytest.approx(6 * MS, rel=0.02)
    assert late["wait_ns"].item() < 50 * US
    others = frame.filter(pl.col("step") == 5, pl.col("rank") != 2)
    assert others["wait_ns"].to_list() == pytest.approx([6 * MS] * 3, rel=0.02)


def test_the_parts_of_a_step_add_up_to_it() -> None:
    frame = answer().by_step
    assert frame is not None
    parts = [pl.col(p) for p in ("wait_ns", "transfer_ns", "compute_ns", "copy_ns", "idle_ns")]
    assert frame.select(pl.sum_horizontal(parts) == pl.col("step_ns")).to_series().all()


def test_the_latest_step_is_on_one_clock_although_clocks_differ() -> None:
    step = answer().latest
    assert step is not None
    assert (step.step, step.rank) == (5, 2)
    ends = {row.rank: [span.end_ns for span in row.spans] for row in step.rows}
    assert all(abs(end - ends[0][0]) < 20 * US for (end,) in ends.values())
    waited = {row.rank: row.spans[0].transfer_start_ns - row.spans[0].start_ns for row in step.rows}
    assert waited[2] < 50 * US
    assert waited[0] == pytest.approx(6 * MS, rel=0.02)


def test_one_rank_has_steps_but_no_lateness() -> None:
    (trace,) = job_traces(lambda _rank, _step: NONE, ranks=1)
    digests = rank_digests(trace)
    assert not isinstance(digests, NotApplicable)
    job = job_ranks(digests)
    assert isinstance(job, JobRanks)
    assert job.latest is None
    assert job.by_step is not None
    assert job.by_step["late_ns"].null_count() == job.by_step.height > 0
