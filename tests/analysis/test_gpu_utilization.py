"""GPU busy over time: bins that sum to the ledger, kernels counted, metrics averaged."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from gpusight.analysis.gpu_utilization import utilization
from gpusight.analysis.ledger.ledger_report import LedgerReport, ledger_report
from gpusight.analysis.selection import Selection
from gpusight.errors import UsageError
from gpusight.results import Composite, NotApplicable, TableResult
from tests.shared import DATA, opened
from tests.traces import PROCESS, Row, build_trace

GEMM, NCCL = "ampere_sgemm_128x64_nn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def kernel(start: int, end: int, name: str = GEMM, **more: Any) -> Row:
    return {"start_ns": start, "end_ns": end, "name": name, **more}


def answer(trace: Any, *, bins: int = 4, **options: Any) -> Composite:
    result = utilization(trace, bins=bins, **options)
    assert isinstance(result, Composite), result
    return result


def frame(result: Composite, name: str) -> pl.DataFrame:
    (section,) = (s for s in result.sections if s.command == name)
    assert isinstance(section, TableResult), section
    return section.frame


def facts(result: Composite) -> dict[str, Any]:
    return {fact.key: fact.value for fact in result.facts}


TRACE = build_trace(
    kernels=[kernel(0, 25), kernel(10, 30), kernel(60, 80, NCCL)],
    copies=[{"start_ns": 20, "end_ns": 50}, {"start_ns": 70, "end_ns": 100}],
)


def test_each_instant_counts_once_and_computing_first() -> None:
    bins = frame(answer(TRACE), "bins")
    columns = ["start_ns", "compute_ns", "copy_ns", "communication_ns", "idle_ns", "kernels"]
    assert bins.select(columns).rows() == [
        (0, 25, 0, 0, 0, 2),
        (25, 5, 20, 0, 0, 0),
        (50, 0, 5, 10, 10, 1),
        (75, 0, 25, 0, 0, 0),
    ]
    assert bins["busy_share"].to_list() == [1, 1, 0.6, 1]


def test_facts_say_how_busy_and_when_it_idled_longest() -> None:
    known = facts(answer(TRACE))
    assert known["busy_share"] == 0.9
    assert (known["longest_idle_ns"], known["longest_idle_at_ns"]) == (10, 50)
    assert known["bin_ns"] == 25
    assert "busiest" not in known


def test_several_gpus_are_compared() -> None:
    trace = build_trace(
        kernels=[kernel(0, 90), kernel(0, 100, device=1), kernel(10, 20, device=1)],
        devices=[{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}],
    )
    result = answer(trace)
    known = facts(result)
    assert known["busy_share"] == pytest.approx(0.95)
    assert (known["busiest"], known["least_busy"]) == ("GPU 1 (100.0%)", "GPU 0 (90.0%)")
    assert known["longest_idle_device"] == 0
    assert frame(result, "gpus").select("device", "busy_share", "kernels").rows() == [
        (0, 0.9, 1),
        (1, 1.0, 2),
    ]
    only = answer(trace, selection=Selection(device=1))
    assert frame(only, "bins")["device"].unique().to_list() == [1]


@pytest.mark.parametrize("name", ["dataload.sqlite", "graph.sqlite", "jax_small.xplane.pb"])
def test_groups_sum_to_the_ledger(name: str) -> None:
    trace = opened(DATA / name)
    bins = frame(answer(trace, bins=37), "bins")
    ledger = ledger_report(trace)
    assert isinstance(ledger, LedgerReport)
    for device in ledger.devices:
        own = bins.filter(device=device.ledger.device)
        for group in ("compute", "copy", "communication", "idle"):
            assert own[f"{group}_ns"].sum() == device.ledger.ns(group)
        assert own["duration_ns"].sum() == ledger.ledger.end_ns - ledger.ledger.start_ns


def test_bins_are_never_shorter_than_a_nanosecond() -> None:
    trace = build_trace(kernels=[kernel(0, 3)])
    assert frame(answer(trace, bins=400), "bins")["duration_ns"].to_list() == [1, 1, 1]
    for bins in (0, 10_001):
        with pytest.raises(UsageError, match="use 1 to 10,000"):
            utilization(trace, bins=bins)


def test_times_near_the_end_of_the_scale_do_not_wrap() -> None:
    far = 1 << 61
    bins = frame(answer(build_trace(kernels=[kernel(far, far + 10**15)]), bins=1000), "bins")
    assert bins["duration_ns"].sum() == 10**15
    assert (bins["busy_share"] == 1).all()


def test_steps_are_told_with_how_busy_they_were() -> None:
    steps = [{"start_ns": i * 50, "end_ns": i * 50 + 50, "name": f"step_{i}"} for i in range(4)]
    kernels = [kernel(i * 50, i * 50 + 25) for i in range(4)]
    rows = frame(answer(build_trace(kernels=kernels, ranges=steps), steps="all"), "steps")
    assert rows["busy_share"].to_list() == [0.5] * 4
    assert rows["start_ns"].to_list() == [0, 50, 100, 150]


def metric(time: int, value: float, name: str = "SMs Active [Throughput %]") -> Row:
    return {"time_ns": time, "metric": name, "value": value}


def test_metrics_are_averaged_and_hold_until_the_next_sample() -> None:
    trace = build_trace(
        kernels=[kernel(0, 100)],
        gpu_metrics=[
            *(metric(0, 40), metric(10, 60), metric(80, 90), metric(99, 30)),
            metric(5, 12, "Pixel Warps in Flight [Throughput %]"),
            metric(5, 1.9e9, "GPC Clock Frequency [MHz]"),
        ],
    )
    result = answer(trace)
    rows = frame(result, "metrics").select("metric", "start_ns", "share", "samples").rows()
    assert rows == [
        ("SMs Active", 0, 0.5, 2),
        ("SMs Active", 25, 0.6, 0),
        ("SMs Active", 50, 0.6, 0),
        ("SMs Active", 75, 0.6, 2),
    ]
    means = frame(result, "metric_means").row(0, named=True)
    assert (means["mean_share"], means["max_share"]) == (pytest.approx(0.575), 0.6)


def test_without_samples_the_reason_is_said() -> None:
    (metrics,) = (s for s in answer(TRACE).sections if s.command == "metrics")
    assert isinstance(metrics, NotApplicable)
    assert "gpu-metrics" in metrics.hint


def test_without_gpu_work_there_is_no_answer() -> None:
    host = build_trace(ranges=[{"start_ns": 0, "end_ns": 9, "name": "a"}])
    empty = utilization(host)
    assert isinstance(empty, NotApplicable)
    assert (empty.command, empty.reason) == ("utilization", "the capture shows no GPU work")
    other = build_trace(
        kernels=[kernel(0, 5)],
        processes=[{"process": PROCESS, "pid": 7}, {"process": 2, "pid": 8}],
    )
    absent = utilization(other, Selection(process="8"))
    assert isinstance(absent, NotApplicable)
