"""Planted stragglers of the benchmark: culprit and cause are found, balanced jobs not accused."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rank_faults import Event, Job, Score, warped, write_job


@pytest.mark.parametrize(
    "job",
    [
        Job("host", "fsdp", 1, steps=8),
        Job("slow-kernels", "ddp", 3, steps=8),
        Job("upstream", "tensor", 5, steps=8),
        Job("none", "ddp", 7, steps=8),
    ],
    ids=lambda job: f"{job.fault}-{job.layout}",
)
def test_simulated_faults_are_found(job: Job, tmp_path: Path) -> None:
    write_job(job.traces(), tmp_path)
    score = Score()
    score.add(tmp_path, job.fault, job.culprit(), repr(job))
    assert score.wrong == []
    assert (score.faults, score.first, score.cause) == (
        (0, 0, 0) if job.fault == "none" else (1, 1, 1)
    )
    assert score.balanced == (job.fault == "none")


def test_inserted_time_moves_what_follows_and_lengthens_what_it_is_in() -> None:
    events: list[Event] = [
        {"ts": 0.0, "dur": 10.0},
        {"ts": 4.0, "dur": 1.0},
        {"ts": 6.0, "dur": 2.0},
        {"ph": "M"},
    ]
    moved = warped(events, [(5.5, 3.0), (7.0, 1.0)])
    assert moved == [
        {"ts": 0.0, "dur": 14.0},
        {"ts": 4.0, "dur": 1.0},
        {"ts": 9.0, "dur": 3.0},
        {"ph": "M"},
    ]
