"""Simulated changes of a job: what they save is what the same job without the fault takes."""

from __future__ import annotations

import json

import polars as pl
import pytest

from gpusight.analysis.ranks.job_whatif import operations_whatif, ranks_whatif
from gpusight.analysis.ranks.rank_digest import RankDigest
from gpusight.errors import UsageError
from gpusight.readers.job_trace import read_job_operations
from gpusight.results import NotApplicable, TableResult
from tests.analysis.ranks.generated_job import generated_job, one_forward_one_backward, usual
from tests.analysis.ranks.jobs import MS, NONE, US, Collective, Delay, digest, job_digests, step
from tests.shared import SHARED, needs_shared


def simulated(digests: list[RankDigest], *changes: tuple[str, str]) -> TableResult:
    table = ranks_whatif(digests, changes)
    assert isinstance(table, TableResult), table
    return table


def job(
    sizes: list[int], work_ns: list[int], *, steps: int = 6, latency_ns: int = 200 * US
) -> list[RankDigest]:
    """Ranks that work, then reduce gradients of these sizes one after another, at 1 GB/s."""
    made = []
    for rank, own_ns in enumerate(work_ns):
        collectives, parts, now = [], [], 0
        for number in range(steps):
            begin = now
            start, now = begin + own_ns, begin + max(work_ns)
            for place, size in enumerate(sizes):
                end = now + latency_ns + size
                sequence = number * len(sizes) + place
                collectives.append(
                    Collective(start, end, "all_reduce", size, "0", sequence, step=number)
                )
                start = now = end
            exposed = now - begin - own_ns
            parts.append(step(number, begin, now, collective_ns=exposed))
        made.append(digest(rank, collectives, parts))
    return made


SIZES, WORK = [4 * MS, 8 * MS, 2 * MS], [20 * MS, 20 * MS, 26 * MS, 20 * MS]
STEP = 26 * MS + 14 * MS + 3 * 200 * US


def test_without_changes_each_straggler_is_as_fast_as_the_median() -> None:
    table = simulated(job(SIZES, WORK))
    [row] = table.rows()
    assert row["change"] == "rank 2 as fast as the median"
    assert table.meta["step_ns"] == pytest.approx(STEP)
    assert row["alone_ns"] == pytest.approx(6 * MS, rel=1e-6)
    assert row["step_ns"] == pytest.approx(STEP - 6 * MS, rel=1e-6)


def test_the_prediction_is_the_job_without_the_fault() -> None:
    """Of jobs that are traces: the step time of the same job without the delay."""
    late = job_digests(lambda rank, _: Delay(host_ns=7 * MS) if rank == 1 else NONE)
    fine = simulated(job_digests(lambda _rank, _step: NONE))
    assert simulated(late).meta["predicted_ns"] == pytest.approx(fine.meta["step_ns"], rel=0.01)
    assert fine.rows() == []
    assert "no straggler" in fine.notes[0]


@pytest.mark.parametrize("form", ["bf16", "fp16"])
def test_half_the_bytes_take_half_the_time_without_the_latency(form: str) -> None:
    table = simulated(job(SIZES, WORK), ("gradients", form))
    truth = job([size // 2 for size in SIZES], WORK)
    assert table.meta["predicted_ns"] == pytest.approx(simulated(truth).meta["step_ns"], rel=1e-6)
    assert "FP32" in table.notes[0]


@pytest.mark.parametrize(
    ("bucket", "latencies"), [("1GB", 2), ("12MB", 1), ("12.0 MB", 1), ("5MB", 0)]
)
def test_larger_buckets_save_latencies(bucket: str, latencies: int) -> None:
    """Of 4, 8 and 2 MB: all in one, the first two in one, or as they are."""
    table = simulated(job(SIZES, WORK), ("bucket", bucket))
    assert table.rows()[0]["saved_ns"] == pytest.approx(latencies * 200 * US, rel=1e-3, abs=10)


def test_overlap_hides_what_there_is_compute_for() -> None:
    whole = simulated(job([4 * MS, 2 * MS], WORK), ("overlap", "communication"))
    assert whole.meta["predicted_ns"] == pytest.approx(26 * MS, rel=1e-6)
    little = simulated(job([30 * MS, 20 * MS], [10 * MS, 10 * MS]), ("overlap", "communication"))
    assert little.rows()[0]["saved_ns"] == pytest.approx(10 * MS, rel=1e-3)


def test_balanced_ranks_have_the_mean_work() -> None:
    table = simulated(job(SIZES, WORK), ("balance", "ranks"))
    mean = sum(WORK) / len(WORK)
    assert table.rows()[0]["saved_ns"] == pytest.approx(26 * MS - mean, rel=1e-6)


def test_changes_are_incremental_in_order() -> None:
    table = simulated(
        job(SIZES, WORK), ("as-median", "2"), ("gradients", "bf16"), ("balance", "ranks")
    )
    rows = table.rows()
    assert rows[-1]["step_ns"] == table.meta["predicted_ns"]
    assert sum(row["saved_ns"] for row in rows) == pytest.approx(
        table.meta["step_ns"] - table.meta["predicted_ns"]
    )
    assert rows[2]["alone_ns"] > MS
    assert rows[2]["saved_ns"] == pytest.approx(0, abs=10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("as-median", "9"), "no rank 9"),
        (("gradients", "int4"), "no format int4"),
        (("bucket", "many"), "no size"),
        (("balance", "luck"), "cannot balance luck"),
        (("overlap", "copies"), "cannot overlap copies"),
        (("remove", "sync"), "does not apply to all ranks"),
    ],
)
def test_mistakes_are_explained(change: tuple[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ranks_whatif(job(SIZES, WORK), [change])


def test_latency_needs_several_sizes() -> None:
    with pytest.raises(UsageError, match="several sizes"):
        ranks_whatif(job([4 * MS, 4 * MS], WORK), [("bucket", "1GB")])


def test_one_rank_cannot_be_simulated() -> None:
    assert isinstance(ranks_whatif(job(SIZES, WORK)[:1]), NotApplicable)


def test_balanced_stages_of_a_trace_of_operations() -> None:
    """The same compute in all stages, and the same in sum, is the job with even stages."""

    def uneven(step: int, dp_rank: int, stage: int, operation: str) -> float:
        factor = (0.5, 1.5)[stage] if operation.endswith("compute") else 1.0
        return factor * usual(step, dp_rank, stage, operation)

    orders = [one_forward_one_backward(stage, 2, 6) for stage in range(2)]
    table = operations_whatif(generated_job(orders, 2, duration=uneven))
    even = operations_whatif(generated_job(orders, 2))
    assert isinstance(table, TableResult)
    assert isinstance(even, TableResult)
    rows = {row["change"]: row for row in table.rows()}
    assert rows["balanced stages (compute)"]["step_ns"] == pytest.approx(even.meta["step_ns"])
    assert rows["balanced stages (compute)"]["saved_ns"] > MS


@needs_shared
@pytest.mark.parametrize("name", ["SE", "ST"])
def test_public_jobs_give_the_published_figures(name: str) -> None:
    """S, M_S, M_W and the step times behind them, to 1e-3."""
    folder = SHARED / "public" / "ranks"
    table = operations_whatif(read_job_operations(folder / f"trace-{name}.parquet"))
    assert isinstance(table, TableResult)
    truth = {
        kind: json.loads((folder / f"{kind}-{name}.json").read_text("utf-8"))
        for kind in ("result", "ms", "mw")
    }
    slowdown = table.meta["slowdown"]
    assert slowdown["blocking"] == pytest.approx(truth["result"]["blocking_slowdown"], rel=1e-3)
    assert slowdown["launch"] == pytest.approx(truth["result"]["launch_slowdown"], rel=1e-3)
    assert slowdown["last_stage"] == pytest.approx(truth["ms"]["Ms"], rel=1e-3)
    assert slowdown["worst_workers"] == pytest.approx(truth["mw"]["Mw"], rel=1e-3)
    steps = table.frame.with_columns(pl.col("step_ns") / 1e9)["step_ns"].to_list()
    assert steps[0] == pytest.approx(truth["mw"]["trem"], rel=1e-3)
    assert steps[1] == pytest.approx(truth["ms"]["trem"], rel=1e-3)
    assert steps[-1] == pytest.approx(truth["ms"]["tideal"], rel=1e-3)
