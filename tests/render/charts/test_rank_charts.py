"""Pictures of a job: the late rank is the row that stands out."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

import gpusight as gs
from gpusight.analysis.ranks.job_ranks import JobRanks, job_ranks
from gpusight.errors import MissingDataError
from gpusight.render.charts.figure import ChartStrip, StripChart
from gpusight.render.charts.rank_charts import (
    LEVELS,
    HeatQuantity,
    aligned_step,
    rank_bars,
    rank_heat_map,
)
from gpusight.render.charts.svg_charts import to_svg
from tests.analysis.ranks.jobs import MS, NONE, Delay, job_digests, job_traces


def late(rank: int, _: int) -> Delay:
    return Delay(host_ns=4 * MS) if rank == 1 else NONE


@pytest.fixture(scope="module")
def job() -> JobRanks:
    answer = job_ranks(job_digests(late))
    assert isinstance(answer, JobRanks)
    return answer


def strips(chart: StripChart) -> list[ChartStrip]:
    return [row for row in chart.rows if isinstance(row, ChartStrip)]


def test_the_late_rank_is_the_row_of_strong_color(job: JobRanks) -> None:
    rows = strips(rank_heat_map(job))
    assert [row.name for row in rows] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert {color for row in (rows[0], rows[2]) for color in row.cells.colors} == {LEVELS[0]}
    assert set(rows[1].cells.colors) <= set(LEVELS[-2:])
    assert rows[1].cells.titles[0].startswith("rank 1, step ")


def test_waits_are_those_of_the_others(job: JobRanks) -> None:
    rows = strips(rank_heat_map(job, HeatQuantity.WAIT))
    assert set(rows[1].cells.colors) == {LEVELS[0]}
    assert LEVELS[0] not in rows[0].cells.colors


def test_equal_steps_are_all_of_the_lowest_level() -> None:
    even = job_ranks(job_digests(lambda _rank, _step: NONE))
    assert isinstance(even, JobRanks)
    chart = rank_heat_map(even, HeatQuantity.STEP)
    assert {color for row in strips(chart) for color in row.cells.colors} == {LEVELS[0]}
    assert len(chart.legend) == 1


def test_many_ranks_and_steps_are_cut_to_what_a_picture_holds(job: JobRanks) -> None:
    rows = [
        (rank, step, 10 * MS, 5 * MS if (rank, step) == (777, 500) else 0, 0, 0, 0, 0, 0)
        for rank in range(1000)
        for step in range(0, 600, 50)
    ] + [(777, step, 10 * MS, 0, 0, 0, 0, 0, 0) for step in range(600) if step % 50]
    assert job.by_step is not None
    frame = pl.DataFrame(rows, schema=job.by_step.schema, orient="row")
    ranks = tuple(replace(job.ranks[0], rank=rank) for rank in range(1000))
    chart = rank_heat_map(replace(job, by_step=frame, ranks=ranks))
    drawn = strips(chart)
    assert len(drawn) == 256
    assert max(len(row.cells.x) for row in drawn) == 120
    assert [c for row in drawn for c in row.cells.colors].count(LEVELS[-1]) == 1
    assert len(chart.footnotes) == 2
    assert to_svg(chart)


def test_a_bar_has_all_parts_of_the_step(job: JobRanks) -> None:
    for row, rank in zip(strips(rank_bars(job)), job.ranks, strict=True):
        assert row.cells.ends[-1] == pytest.approx(rank.step_ns)


def test_the_ends_of_a_collective_are_joined(job: JobRanks) -> None:
    assert job.latest is not None
    chart = aligned_step(job.latest)
    assert [(join.upper, join.lower) for join in chart.joins] == [(0, 1), (1, 2), (2, 3)]
    lines = to_svg(chart).count('class="line-quiet"')
    assert lines == 3


def test_pictures_of_a_job_are_written() -> None:
    view = gs.ranks(job_traces(late))
    svg = view.draw("svg").decode()
    assert svg.startswith("<svg")
    assert "rank 1" in svg
    assert isinstance(view.figure, StripChart)


def test_a_trace_of_operations_says_why_it_has_no_heat_map(job: JobRanks) -> None:
    with pytest.raises(MissingDataError, match="no heat map"):
        rank_heat_map(replace(job, by_step=None))
