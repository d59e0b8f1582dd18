"""The page about all ranks of a job: complete, of one file, and safe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusight.analysis.ranks.job_ranks import JobRanks, job_ranks
from gpusight.render.html.ranks_page import ranks_to_page
from tests.analysis.ranks.jobs import MS, NONE, Delay, job_digests
from tests.render.hostile import HOSTILE


@pytest.fixture(scope="module")
def job() -> JobRanks:
    answer = job_ranks(job_digests(lambda rank, _: Delay(host_ns=4 * MS) if rank == 1 else NONE))
    assert isinstance(answer, JobRanks)
    return answer


def test_every_section_is_there_and_nothing_is_loaded(job: JobRanks) -> None:
    page = ranks_to_page(job)
    for key in ("heat-map", "stragglers", "rank-timeline", "ranks", "limitations"):
        assert f'<section id="{key}"' in page
    assert "Rank 1 as fast as the median" in page
    assert page.count('<input type="radio"') == 3
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "default-src 'none'" in page


def test_names_out_of_captures_are_text(job: JobRanks) -> None:
    for name in HOSTILE:
        ranks = tuple(replace(rank, file=f"/x/{name}", gpu=name) for rank in job.ranks)
        page = ranks_to_page(replace(job, ranks=ranks, notes=(name,)))
        assert "<b>bold</b>" not in page
        assert "\x1b" not in page
        assert "\u202e" not in page


def test_a_job_without_waits_has_the_sections_that_are_known(job: JobRanks) -> None:
    ranks = tuple(replace(rank, wait_ns=None, caused_wait_ns=None) for rank in job.ranks)
    page = ranks_to_page(replace(job, ranks=ranks, stragglers=(), latest=None, notes=()))
    assert '<section id="rank-timeline"' not in page
    assert '<section id="limitations"' not in page
    assert "Wait for other ranks</dt>" not in page
