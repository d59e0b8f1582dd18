"""Planted stragglers of the benchmark: culprit and cause are found, balanced jobs not accused."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import ddp_faults
from benchmarks.rank_faults import Event, Job, LayoutScore, Score, warped, write_job
from benchmarks.rank_layouts import LAYOUTS, Plan


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


@pytest.mark.parametrize(
    "plan",
    [
        Plan("tensor", "host", 2205),  # no groups, windows that differ
        Plan("hsdp", "late-host", 2140),  # a missing rank, that others wait for
        Plan("pp", "larger-work", 2370),
        Plan("gloo", "input", 2430),  # two groups without sizes
        Plan("tensor", "none", 2270),
    ],
    ids=lambda plan: f"{plan.fault}-{plan.layout}",
)
def test_faults_of_many_layouts_are_found(plan: Plan) -> None:
    score, job = LayoutScore(), plan.run()
    now, fixed = job.step_ns(), plan.run(with_fault=False).step_ns()
    score.add_job(job, (now - fixed) / now)
    assert score.wrong == []
    assert max(score.accused, default=0.0) == 0.0
    assert (score.faults, score.balanced) == ((0, 1) if plan.fault == "none" else (1, 0))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_simulated_without_a_deadlock(layout: str) -> None:
    job = Plan(layout, "none", 3, steps=5).run()
    assert job.step_ns() > 1e6
    assert len(job.documents()) >= len(job.ranks) - 1


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


def test_recorded_jobs_have_every_fault_early() -> None:
    jobs = ddp_faults.plan(1024)
    assert Counter(job.fault for job in jobs) == {**dict.fromkeys(ddp_faults.FAULTS, 6), "none": 14}
    assert {job.fault for job in jobs[:9]} == {*ddp_faults.FAULTS, "none"}
    assert len({job.folder for job in jobs}) == len(jobs)
    halves = Counter((job.fault, job.number % 2) for job in jobs)
    assert len(set(halves.values()) - {7}) == 1  # as many of each fault in both halves


@pytest.mark.wide
def test_recording_writes_whole_jobs_into_one_tar(tmp_path: Path) -> None:
    target, archive = tmp_path / "jobs", tmp_path / "jobs.tar"
    command = [sys.executable, ddp_faults.__file__, target, "--jobs", 2, "--width", 16]
    subprocess.run([*map(str, command), "--tar", str(archive)], check=True, timeout=300)
    with tarfile.open(archive) as files:
        names = {name for name in files.getnames() if name.endswith(".gz")}
    folders = [job.folder for job in ddp_faults.plan(16)[:2]]
    ranks = range(ddp_faults.RANKS)
    assert names == {f"{name}/trace.rank{rank}.json.gz" for name in folders for rank in ranks}
