"""Slowdown of a job: generated jobs with known causes, and the public ones with their figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest

from gpusight.analysis.ranks.job_slowdown import (
    ExplainedSlowdown,
    JobSlowdown,
    job_slowdown,
    slowdown_table,
)
from gpusight.readers.job_trace import read_job_operations
from gpusight.results import NotApplicable
from tests.analysis.ranks.generated_job import (
    all_forward_all_backward,
    generated_job,
    one_forward_one_backward,
    usual,
)
from tests.shared import SHARED, needs_shared

STAGES, DP_RANKS, MICROBATCHES = 3, 4, 5
ORDERS = [one_forward_one_backward(s, STAGES, MICROBATCHES) for s in range(STAGES)]
PUBLIC = sorted(SHARED.glob("public/ranks/trace-*.parquet"))


def slowdown_of(job: pl.DataFrame) -> JobSlowdown:
    slowdown = job_slowdown(job)
    assert isinstance(slowdown, JobSlowdown)
    return slowdown


def test_equal_workers_are_ideal() -> None:
    slowdown = slowdown_of(generated_job(ORDERS, DP_RANKS))
    assert (slowdown.stages, slowdown.dp_ranks, len(slowdown.by_rank)) == (STAGES, DP_RANKS, 12)
    for figure in (slowdown.blocking, slowdown.launch, *slowdown.by_rank.values()):
        assert figure == pytest.approx(1, abs=1e-9)
    assert slowdown.worst_workers.share is None
    assert slowdown.last_stage.share is None


@pytest.mark.parametrize(
    "orders", [ORDERS, [all_forward_all_backward(2, 3)] * 2, [all_forward_all_backward(1, 4)]]
)
def test_the_simulation_repeats_the_generated_times(
    orders: list[list[tuple[str, int, int]]],
) -> None:
    """Of pipelines, virtual pipelines and plain data parallelism, with uneven durations."""

    def uneven(step: int, dp_rank: int, stage: int, operation: str) -> float:
        return usual(step, dp_rank, stage, operation) * (1 + (7 * step + 3 * dp_rank + stage) % 5)

    slowdown = slowdown_of(generated_job(orders, DP_RANKS, duration=uneven))
    assert slowdown.simulated_ns == pytest.approx(slowdown.measured_ns, rel=1e-6)
    assert slowdown.launch == pytest.approx(1, abs=1e-6)
    assert slowdown.blocking > 1.1


def test_a_slow_worker_explains_the_slowdown() -> None:
    def slow(step: int, dp_rank: int, stage: int, operation: str) -> float:
        times = 3 if (dp_rank, stage) == (2, 1) and operation.endswith("compute") else 1
        return times * usual(step, dp_rank, stage, operation)

    slowdown = slowdown_of(generated_job(ORDERS, DP_RANKS, duration=slow))
    assert slowdown.blocking > 1.3
    assert slowdown.worst_workers.ranks == (1 * DP_RANKS + 2,)
    assert slowdown.worst_workers.share is not None
    assert slowdown.worst_workers.share > 0.95
    assert max(slowdown.by_rank, key=lambda rank: slowdown.by_rank[rank]) == 6
    assert slowdown.by_stage[1] == max(slowdown.by_stage.values())
    assert slowdown.by_dp_rank[2] == max(slowdown.by_dp_rank.values())
    assert slowdown.last_stage.share is not None
    assert slowdown.last_stage.share < 0.1


def test_a_long_last_stage_explains_the_slowdown() -> None:
    def long(step: int, dp_rank: int, stage: int, operation: str) -> float:
        times = 2 if stage == STAGES - 1 and operation == "forward-compute" else 1
        return times * usual(step, dp_rank, stage, operation)

    slowdown = slowdown_of(generated_job(ORDERS, DP_RANKS, duration=long))
    assert slowdown.last_stage.ranks == (8, 9, 10, 11)
    assert slowdown.last_stage.share is not None
    assert slowdown.last_stage.share > 0.9
    assert next(iter(slowdown.by_operation)) == "forward-compute"
    assert slowdown.by_operation["optimizer"] == pytest.approx(1)


def test_launch_delays_count_apart() -> None:
    slowdown = slowdown_of(generated_job(ORDERS, DP_RANKS, launch_ns=1e5))
    assert slowdown.launch > 1.03
    assert slowdown.blocking == pytest.approx(1, abs=0.01)


def test_incomplete_steps_are_listed() -> None:
    job = generated_job(ORDERS, DP_RANKS, steps=4)
    lost = (pl.col("step") == 2) & (pl.col("operation") == "optimizer") & (pl.col("rank") == 3)
    slowdown = slowdown_of(job.filter(~lost))
    assert (slowdown.steps, slowdown.skipped_steps) == ((0, 1, 3), (2,))


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ((pl.col("operation") == "forward-recv") & (pl.col("sequence") == 4), "4 forward-recv"),
        (pl.col("operation") == "backward-send", "0 backward-send"),
        (pl.lit(value=True), "no operations"),
    ],
)
def test_jobs_without_a_schedule_say_why(lost: pl.Expr, reason: str) -> None:
    slowdown = job_slowdown(generated_job(ORDERS, DP_RANKS).filter(~lost))
    assert isinstance(slowdown, NotApplicable)
    assert reason in slowdown.reason


def test_the_dictionary_has_the_keys_of_the_command() -> None:
    document = slowdown_of(generated_job(ORDERS, DP_RANKS)).document()
    assert {"blocking", "launch", "worst_workers"} <= set(document)
    assert json.loads(json.dumps(document)) == document


def test_the_table_lists_the_worst_parts() -> None:
    def slow(step: int, dp_rank: int, stage: int, operation: str) -> float:
        times = 3 if (dp_rank, stage) == (2, 1) and operation.endswith("compute") else 1
        return times * usual(step, dp_rank, stage, operation)

    job = generated_job(ORDERS, DP_RANKS, steps=4, duration=slow)
    lost = (pl.col("step") == 2) & (pl.col("operation") == "optimizer") & (pl.col("rank") == 3)
    table = slowdown_table(slowdown_of(job.filter(~lost)))
    rows = {(row["part"], row["name"]): row for row in table.rows()}
    assert table.rows()[0]["name"] == "all operations"
    assert rows["worst workers", "rank 6"]["share"] > 0.95
    assert rows["last stage", "ranks 8, 9, 10, 11"]["share"] < 0.1
    assert rows["stage", "1"]["slowdown"] > rows["stage", "0"]["slowdown"]
    assert rows["data-parallel rank", "2"]["cost_ns"] > 1e6
    assert len([part for part, _ in rows if part == "operation"]) == 5
    assert "1 of 4 steps" in table.notes[0]


@needs_shared
@pytest.mark.parametrize("path", PUBLIC, ids=lambda path: path.stem)
def test_public_jobs_have_their_published_figures(path: Path) -> None:
    slowdown = slowdown_of(read_job_operations(path))
    published = _json(path, "result")
    assert slowdown.blocking == pytest.approx(published["blocking_slowdown"], abs=1e-5)
    assert slowdown.launch == pytest.approx(published["launch_slowdown"], abs=1e-5)
    for key, figures in (
        ("optype", slowdown.by_operation),
        ("stage", slowdown.by_stage),
        ("dp_rank", slowdown.by_dp_rank),
    ):
        by_name = {str(name): value for name, value in figures.items()}
        assert by_name == pytest.approx(published[f"blocking_decompose_by_{key}"], abs=1e-5)
    for key, times in (("base", slowdown.measured_ns), ("nodelay", slowdown.simulated_ns)):
        seconds = {str(step): time / 1e9 for step, time in zip(slowdown.steps, times, strict=True)}
        assert seconds == pytest.approx(published[f"step_t_{key}"], abs=1e-5)
    _compare(slowdown.last_stage, _json(path, "ms"), "Ms")
    _compare(slowdown.worst_workers, _json(path, "mw"), "Mw")


def _compare(slowdown: ExplainedSlowdown, published: Mapping[str, float], key: str) -> None:
    assert slowdown.share == pytest.approx(published[key], abs=1e-5)
    assert slowdown.alone_share == pytest.approx(published["add"], abs=1e-5)
    assert slowdown.fixed_ns / 1e9 == pytest.approx(published["trem"], abs=1e-5)


def _json(path: Path, kind: str) -> dict[str, float]:
    name = path.name.replace("trace-", f"{kind}-").replace(".parquet", ".json")
    figures: dict[str, float] = json.loads(path.with_name(name).read_text("utf-8"))
    return figures
