"""Captures of ranks as one job: on a timeline, in comparisons and in gates."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import gpusight as gs
from gpusight.cli.main import main
from gpusight.comparison.baseline_file import load_baseline
from gpusight.comparison.comparison_result import FindingStatus
from gpusight.errors import UsageError
from gpusight.open_job import is_job, is_job_folder, jobs_among, open_job

STEPS, RANKS = 12, 3
CALM_US, LATE_US = 4_000.0, 3_000.0


def written_job(folder: Path, late: dict[int, float] | None = None) -> Path:
    """Write torch traces of ranks that wait for each other; some are late in every step."""
    folder.mkdir()
    clocks = {rank: 5_000.0 * rank for rank in range(RANKS)}
    events: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(RANKS)}
    now = 1_000_000.0
    for step in range(STEPS):
        arrivals = {
            rank: now + 100 + (late or {}).get(rank, 0.0) + CALM_US + 7 * ((step * 5 + rank) % 3)
            for rank in range(RANKS)
        }
        end = max(arrivals.values()) + 500
        for rank, arrival in arrivals.items():
            at = clocks[rank]
            events[rank] += _step(step, now + at, arrival + at, end + at)
        now = end + 20
    for rank, own in events.items():
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS},
            "traceEvents": own,
        }
        path = folder / f"run.rank{rank}.json.gz"
        path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return folder


def _step(step: int, start: float, arrival: float, end: float) -> list[dict[str, Any]]:
    host = {"ph": "X", "pid": 10, "tid": 10}
    gpu = {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel"}
    one, two = 2 * step + 1, 2 * step + 2
    device = {"device": 0, "stream": 7, "context": 1}

    def launch(at: float, correlation: int) -> dict[str, Any]:
        args = {"correlation": correlation}
        named = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "args": args}
        return {**host, **named, "ts": at, "dur": 4}

    wait = {"name": "cudaDeviceSynchronize", "cat": "cuda_runtime", "args": {}}
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    work_start = arrival - CALM_US
    return [
        {**host, "name": f"ProfilerStep#{step}", "cat": "user_annotation", "ts": start,
         "dur": end + 10 - start},
        launch(work_start - 10, one),
        {**gpu, "name": "gemm", "ts": work_start, "dur": CALM_US,
         "args": {**device, "correlation": one}},
        launch(work_start - 5, two),
        {**gpu, "name": name, "ts": arrival, "dur": end - arrival,
         "args": {**device, "correlation": two}},
        {**host, **wait, "ts": work_start, "dur": end + 2 - work_start},
    ]  # fmt: skip


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_job(tmp_path_factory.mktemp("calm") / "calm")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_job(tmp_path_factory.mktemp("slow") / "slow", {1: LATE_US})


def test_captures_of_a_folder_are_a_job_where_their_names_have_ranks(
    calm: Path, tmp_path: Path
) -> None:
    files = sorted(calm.iterdir())
    assert is_job_folder(calm)
    assert is_job(list(files))
    assert not is_job(files[:1])
    assert jobs_among(files) == [files]
    repeats = [Path("a/run_1.json"), Path("a/run_2.json"), Path("b/rank0.json")]
    assert jobs_among(repeats) == [[path] for path in repeats]
    assert not is_job_folder(tmp_path / "none")


def test_a_folder_is_one_trace_on_one_clock(slow: Path) -> None:
    job = open_job([slow])
    assert job.trace.source.ranks == [0, 1, 2]
    assert [straggler.rank for straggler in job.answer.stragglers] == [1]
    job.trace.validate()


def test_a_comparison_of_jobs_shows_waits_and_stragglers(slow: Path, calm: Path) -> None:
    comparison = gs.compare(slow, calm)
    assert comparison.answer.before.labels == ("slow (3 ranks)",)
    straggler, wait = comparison.metrics["straggler"], comparison.metrics["wait_for_ranks"]
    assert straggler.change.before == pytest.approx(0.39, abs=0.05)
    assert straggler.change.after == 0
    assert wait.change.before == pytest.approx(2e6, rel=0.1)
    statuses = {finding.rule: finding.status for finding in comparison.findings}
    assert statuses["straggler/rank-1"] is FindingStatus.FIXED


def test_limits_on_stragglers_and_communication(
    slow: Path, calm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ["--max", "straggler=5%", "--max", "exposed_communication=30%"]
    assert main(["gate", str(calm), *limits]) == 0
    assert main(["gate", str(slow), *limits]) == 1
    assert "next: gpusight ranks" in capsys.readouterr().out
    baseline = tmp_path / "baseline.json"
    assert main(["baseline", "save", str(calm), "-o", str(baseline)]) == 0
    (digest,) = load_baseline(baseline)
    assert digest.job is not None
    assert digest.job.ranks == RANKS
    assert main(["gate", "--baseline", str(baseline), "--max", "straggler=+2%", str(slow)]) == 1
    assert main(["gate", "--baseline", str(baseline), "--max", "straggler=+2%", str(calm)]) == 0


def test_one_rank_alone_has_no_straggler(calm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = str(calm / "run.rank0.json.gz")
    assert main(["gate", "--max", "straggler=5%", one]) == 3
    assert "give the captures of all ranks" in " ".join(capsys.readouterr().out.split())
    assert main(["gate", "--max", "exposed_communication=50%", one]) == 0


def test_a_limit_on_stragglers_does_not_pass_without_all_ranks(
    slow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The late rank is the one that is missing."""
    for file in slow.iterdir():
        if "rank1" not in file.name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    command = ["gate", "--no-cache", "--max", "straggler=5%", str(tmp_path)]
    assert main(command) == 3
    assert "rank 1 of 3 missing, which may be late" in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--allow-changed", "incomplete"]) == 0
    assert main(["gate", "--no-cache", "--max", "exposed_communication=1s", str(tmp_path)]) == 0


def test_units_of_these_limits(calm: Path) -> None:
    with pytest.raises(UsageError, match="a part of the step"):
        gs.gate(calm, limits="straggler=5ms")
    with pytest.raises(UsageError, match="no sign"):
        gs.gate(calm, limits="step_time=5%")


def test_a_rank_that_cannot_be_read_is_reported(calm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    shutil.copytree(calm, folder)
    (folder / "run.rank2.json.gz").write_bytes(b"\x1f\x8b broken")
    comparison = gs.compare(folder, calm)
    assert any("not read: run.rank2.json.gz" in note for note in comparison.notes)


def test_a_report_of_a_folder_has_the_ranks(slow: Path, calm: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert main(["report", str(slow), "--compare", str(calm), "-o", str(target)]) == 0
    page = target.read_text()
    for key in ("job", "heat-map", "stragglers", "rank-timeline", "ranks", "findings", "ledger"):
        assert f'<section id="{key}"' in page
    assert "3 ranks, 12 steps" in page
    assert "slow (3 ranks)" in page
    assert "processes that use GPUs" not in page, "both sides are jobs"
    assert '<section id="job"' not in gs.report(slow / "run.rank0.json.gz").to_html()
