"""Reports and timelines built by hand for the tests of `gpusight orion`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from gpusight.analysis.orion.orion_build import OrionFile, OrionOptions, build
from gpusight.results import Composite, TableResult
from gpusight.trace.trace import Trace
from tests.traces import build_trace

TO_NHWC = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, (bool)0>(T1, T2 *)"
TO_NCHW = "void engines_precompiled::nhwcToNchwKernel<float, float, 1>(T1, T2 *)"
CONV = "sm80_xmma_fprop_implicit_gemm_tf32f32_f32_nhwckrsc_nchw_tilesize128x64x32_kernel__5x_cudnn"
BN = "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, 1, 1>(T2, T2, cudnnTensorStruct)"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::<unnamed>::f(int), x>(int, T2)"
GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_execute_kernel__5x_cublas"
SPLIT_K = "void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(T1, T2)"


SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
SMSP = "smsp__sass_thread_inst_executed_op_"
PER_CYCLE = "_pred_on.sum.per_cycle_elapsed"


def launch(
    name: str = RELU,
    counters: Mapping[str, float] | None = None,
    *,
    block: int = 256,
    grid: int = 1000,
    duration: float = 10.0,
) -> dict[str, Any]:
    return {
        "profile": {"name": name, "grid_x": grid, "block_x": block, "duration_ns": duration},
        "counters": {"launch__registers_per_thread": 32, **(counters or {})},
    }


def report(*launches: dict[str, Any], **meta: Any) -> Trace:
    """Make a report; dots in names of counters are written as they are."""
    profiles, counters = [], []
    for number, one in enumerate(launches):
        shape = {"kind": "kernel", "grid_y": 1, "grid_z": 1, "block_y": 1, "block_z": 1}
        known = {"compute_major": 7, "compute_minor": 0, **shape, **meta, **one["profile"]}
        profiles.append({"launch": number, **known})
        counters += [
            {"launch": number, "metric": metric, "value": float(value)}
            for metric, value in one["counters"].items()
        ]
    return build_trace(profiles=profiles, counters=counters)


def timeline(*kernels: tuple[str, int, int], grid: int = 1000, block: int = 256) -> Trace:
    rows = [
        {"name": n, "start_ns": s, "end_ns": e, "grid_x": grid, "block_x": block}
        | {"grid_y": 1, "grid_z": 1, "block_y": 1, "block_z": 1, "correlation": at}
        for at, (n, s, e) in enumerate(kernels)
    ]
    return build_trace(kernels=rows)


def built(*launches: dict[str, Any], nsys: Trace | None = None, **options: Any) -> OrionFile:
    result = build(report(*launches), OrionOptions(**options), nsys=nsys)
    assert isinstance(result, OrionFile), result
    return result


def lines(result: OrionFile) -> list[list[str]]:
    return [line.split(",") for line in result.text.splitlines()[1:]]


def section(result: Composite, name: str) -> pl.DataFrame:
    return next(
        s.frame for s in result.sections if s.command == name and isinstance(s, TableResult)
    )


def facts(result: Composite) -> dict[str, Any]:
    return {fact.key: fact.value for fact in result.facts}


def operations(fadd: float, fmul: float, ffma: float, bytes_per_second: float) -> dict[str, float]:
    return {
        f"{SMSP}fadd{PER_CYCLE}": fadd,
        f"{SMSP}fmul{PER_CYCLE}": fmul,
        f"{SMSP}ffma{PER_CYCLE}": ffma,
        "smsp__cycles_elapsed.avg.per_second": 1e9,
        "dram__bytes.sum.per_second": bytes_per_second,
    }
