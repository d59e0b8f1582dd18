"""`gpusight ranks`: text that fits a terminal, every format, digests, and the planted truth."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import polars as pl
import pytest

import gpusight as gs
from gpusight.analysis.ranks.straggler_causes import (
    ADVICE,
    HOST,
    INPUT,
    MORE_WORK,
    NETWORK,
    SLOW_KERNELS,
    UPSTREAM,
)
from gpusight.cli.main import main
from tests.analysis.ranks.generated_job import generated_job, one_forward_one_backward, usual
from tests.analysis.ranks.jobs import MS, NONE, Delay, job_traces
from tests.shared import SHARED
from tests.test_rank_files import write_torch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two ranks, of which rank 1 waits for its input."""
    folder = tmp_path_factory.mktemp("job")
    plan = lambda rank, _: Delay(input_ns=3 * MS) if rank == 1 else NONE  # noqa: E731
    for rank, trace in enumerate(job_traces(plan, ranks=2, steps=8)):
        write_torch(trace, folder / f"trace.rank{rank}.json.gz")
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert main(["ranks", *map(str, arguments), "--no-cache", "--jobs", "1"]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_the_answer_fits_a_terminal(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(capsys, job).splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    assert "rank 1 is late (input)" in lines[0]
    assert any(line.startswith("rank 1 as fast as the median") for line in lines)


@pytest.mark.parametrize("form", ["json", "csv", "markdown", "html"])
def test_every_format_is_written(job: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, job, "--format", form)
    assert {
        "json": '"stragglers"',
        "csv": "rank,rank_from,host,device",
        "markdown": "### Stragglers",
        "html": "Stragglers",
    }[form] in text


def test_a_trace_of_operations_gives_the_slowdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def duration(step: int, dp_rank: int, stage: int, operation: str) -> float:
        slow = stage == 1 and operation == "forward-compute"
        return usual(step, dp_rank, stage, operation) * (2 if slow else 1)

    orders = [one_forward_one_backward(stage, 2, 4) for stage in range(2)]
    operations = generated_job(orders, 2, duration=duration)
    trace = tmp_path / "job.parquet"
    operations.select(
        "step", "rank", "dp_rank", "stage",
        optype="operation", seq_id="sequence",
        mc=pl.col("chunk").fill_null(-1), mb_id=pl.col("microbatch").fill_null(-1),
        start_ts=pl.col("start_ns") / 1e9,
        duration=(pl.col("end_ns") - pl.col("start_ns")) / 1e9,
    ).write_parquet(trace)  # fmt: skip
    monkeypatch.setenv("COLUMNS", "80")
    text = run(capsys, trace)
    assert "2 stages x 2 data-parallel ranks" in text.splitlines()[0]
    assert max(map(len, text.splitlines())) <= 80
    document = json.loads(run(capsys, trace, "--format", "json"))
    assert document["slowdown"]["blocking"] > 1.05
    assert next(iter(document["slowdown"]["by_operation"])) == "forward-compute"
    other = tmp_path / "other.parquet"
    shutil.copy(trace, other)
    assert "pass one job trace alone" in run(capsys, trace, other, code=2)


def test_digests_and_their_merge(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        file = job / f"trace.rank{rank}.json.gz"
        run(capsys, "digest", file, "-o", tmp_path / f"{rank}.ranks")
    merged = run(capsys, "merge", tmp_path / "0.ranks", tmp_path / "1.ranks", "--format", "json")
    assert merged == run(capsys, job, "--format", "json")
    run(capsys, job, "-o", tmp_path / "all.ranks")
    assert run(capsys, tmp_path / "all.ranks", "--format", "json") == merged


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digest"], "digest needs files"),
        (["digest", "{job}"], "add: -o rank0.ranks"),
        (["{job}/absent.json"], "no such file"),
        (["{job}", "-o", "x.xyz"], "cannot write .xyz files"),
    ],
)
def test_mistakes_are_explained(
    arguments: list[str], message: str, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [text.replace("{job}", str(job)) for text in arguments]
    assert message in run(capsys, *given, code=2)


RANKS = SHARED / "ranks"


@pytest.mark.skipif(not RANKS.exists(), reason="needs the shared captures")
@pytest.mark.parametrize("files", ["ddp_torch_{}.rank*.trace.json.gz", "ddp_nsys_{}.nsys-rep"])
def test_the_planted_straggler_is_found_and_balanced_ranks_are_not_accused(files: str) -> None:
    late = gs.ranks(str(RANKS / files.format(2)), cache=False, jobs=1)
    assert [(s.rank, s.cause, s.pattern) for s in late.stragglers] == [(2, "host", "constant")]
    # The rank sleeps 20 ms of each step.
    assert late.stragglers[0].late_ns == pytest.approx(20 * MS, rel=0.1)
    balanced = gs.ranks(str(RANKS / files.format(-1)), cache=False, jobs=1)
    assert [s for s in balanced.stragglers if s.share > 0.05] == []
    assert json.loads(balanced.to_json())["meta"]["ranks"] == 4


def test_a_folder_of_two_runs_is_refused_with_a_map(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {"first": job, "second": tmp_path / "later"}
    later = lambda rank, _: Delay(host_ns=2 * MS) if rank == 0 else NONE  # noqa: E731
    runs["second"].mkdir()
    for rank, trace in enumerate(job_traces(later, ranks=2, steps=8)):
        write_torch(trace, runs["second"] / f"trace.rank{rank}.json.gz")
    for name, folder in runs.items():
        for file in folder.iterdir():
            shutil.copy(file, tmp_path / f"{name}.{file.name.removeprefix('trace.')}")
    text = run(capsys, tmp_path, code=2)
    lines = text.splitlines()
    assert lines[0] == "Jobs among these captures"
    pattern = f"'{tmp_path}/second.rank*.json.gz'"
    assert f"{tmp_path}/first.rank" in lines[-1]
    assert pattern in lines[-1]
    assert main(["ranks", str(tmp_path), "--format", "json", "--no-cache", "--jobs", "1"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert [(row["job"], row["rank"], row["name"]) for row in document["rows"]] == [
        (number, rank, f"{name}.rank{rank}.json.gz")
        for number, name in enumerate(runs, 1)
        for rank in (0, 1)
    ]
    assert f"gpusight ranks {pattern}" in {row["command"] for row in document["rows"]}
    assert "rank 0 is late (host)" in run(capsys, pattern.strip("'"))


@pytest.mark.parametrize("named", [["{job}"], ["{job}/trace.rank*"], ["{job}", "rank:1"]])
def test_a_straggler_is_explained(
    job: Path, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *(word.format(job=job) for word in named), "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["meta"]["title"] == "rank 1 of 2: late (input), constant"
    assert page["meta"]["late_ns"] == pytest.approx(3 * MS, rel=0.2)
    assert page["meta"]["why"] == ADVICE["input"][0]
    idle, *_ = [row for row in page["rows"] if row["section"] == "idle"]
    assert idle["cause"] == "input"
    assert idle["idle_ns"] > idle["median_ns"]
    late = [row["late_ns"] for row in page["rows"] if row["section"] == "steps"]
    assert len(late) == 8
    assert late == sorted(late, reverse=True)


def test_a_rank_that_is_not_late_and_one_that_is_not_there(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = gs.explain(job, "rank:0")
    assert other.answer.title == "rank 0 of 2: no straggler"
    assert "why" not in other.to_dict()["meta"]
    for word in ("2", "rank:7", "rank:x"):
        assert main(["explain", str(job), word]) == 2
        assert "stragglers: rank:1; ranks: rank:0 to rank:1" in capsys.readouterr().err


def test_every_cause_has_advice() -> None:
    causes = {HOST, INPUT, MORE_WORK, SLOW_KERNELS, UPSTREAM, NETWORK}
    assert set(ADVICE) == causes
