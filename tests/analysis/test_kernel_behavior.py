"""Kernels whose names say nothing: by what follows them, and by GPU metrics."""

from __future__ import annotations

from typing import Any

import pytest

import gpusight
from gpusight.analysis.kernel_behavior import kinds_of
from gpusight.trace.trace import Trace
from tests.traces import build_trace

US = 1_000


def solver(
    *, result: int = 8, check: str = "check(double*)", check_us: int = 5, every: int = 1
) -> dict[str, list[dict[str, Any]]]:
    """Iterations of a kernel of 40 us, then one whose result is copied to the host."""
    kernels: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    at = 0
    for n in range(10):
        for name, us in (("advance(double*)", 40), (check, check_us)):
            calls.append(_call("cudaLaunchKernel", at, 3, len(calls)))
            kernels.append(_times(at + 4, us) | {"name": name, "correlation": len(calls) - 1})
            at += us + 5
        if n % every == 0:
            calls.append(_call("cudaMemcpy", at, 10, len(calls)))
            way = {"kind": "Device-to-Host", "bytes": result, "correlation": len(calls) - 1}
            copies.append(_times(at + 4, 2) | way)
        at += 20
    return {"kernels": kernels, "copies": copies, "api_calls": calls}


def _times(at: int, us: int) -> dict[str, Any]:
    return {"start_ns": at * US, "end_ns": (at + us) * US}


def _call(name: str, at: int, us: int, correlation: int) -> dict[str, Any]:
    return _times(at, us) | {"name": name, "correlation": correlation}


def categories(trace: Trace, *names: str) -> list[str]:
    return [kind.category for kind in kinds_of(trace, names)]


def test_a_kernel_whose_result_is_read_reduces() -> None:
    trace = build_trace(None, **solver())
    assert categories(trace, "check(double*)", "advance(double*)") == ["reduction", "custom"]
    # All answers agree.
    rows = gpusight.kernels(trace).frame
    assert dict(rows.select("short_name", "category").iter_rows()) == {
        "check": "reduction",
        "advance": "custom",
    }
    (device,) = gpusight.ledger(trace).to_dict()["devices"]
    ns = {entry["entry"]: entry["ns"] for entry in device["entries"]}
    assert ns["compute/custom"] == 8 * ns["compute/reduction"]


@pytest.mark.parametrize(
    "tables",
    [
        pytest.param(solver(result=1 << 20), id="a field is saved"),
        pytest.param(solver(every=4), id="now and then"),
        pytest.param(solver(check_us=90), id="most of the work"),
    ],
)
def test_other_kernels_before_a_copy_do_not(tables: dict[str, list[dict[str, Any]]]) -> None:
    assert categories(build_trace(None, **tables), "check(double*)") == ["custom"]


def test_a_name_that_says_something_counts() -> None:
    trace = build_trace(None, **solver(check="transpose(double*)"))
    assert categories(trace, "transpose(double*)") == ["copy"]


@pytest.mark.parametrize(
    ("metric", "percent", "category"),
    [
        ("Tensor Active [Throughput %]", 60, "matmul"),
        ("Tensor Active [Throughput %]", 2, "custom"),
        ("SM Issue [Throughput %]", 60, "custom"),
    ],
)
def test_tensor_cores_that_work_are_those_of_a_matmul(
    metric: str, percent: float, category: str
) -> None:
    tables = solver()
    advances = [k for k in tables["kernels"] if k["name"].startswith("advance")]
    rows = [
        {"time_ns": kernel["start_ns"] + n * 10 * US, "metric": metric, "value": float(percent)}
        for kernel in advances
        for n in range(4)
    ]
    trace = build_trace(None, gpu_metrics=[{"device": 0, **row} for row in rows], **tables)
    assert categories(trace, "advance(double*)") == [category]
