"""The rule `tensor-cores-idle` on launches built by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.analysis.counters.profiled_launch import launches
from gpusight.hardware.gpu_lookup import find_gpu
from gpusight.rules.rule import Clean, KernelRuleMatch, RuleNotApplicable
from tests.rules.kernel.rule_launches import FFMA, FOUND, L1_DATA, matched, speedup
from tests.rules.launches import ELAPSED, IDLE, launch_of, trace_of, verdict_of

if TYPE_CHECKING:
    from gpusight.rules.rule import RuleVerdict


FED_BY_L1 = {
    **IDLE,
    L1_DATA: 94,
    f"gpu__compute_memory_throughput{ELAPSED}": 94,
    f"l1tex__throughput{ELAPSED}": 94,
    f"sm__pipe_fma_cycles_active{ELAPSED}": 14,
    FFMA: 1_000_000_000,
    "smsp__inst_executed.sum": 100_000_000,
    "smsp__sass_inst_executed_op_shared.sum": 46_000_000,
    "dram__bytes_read.sum": 30_000_000,
    "dram__bytes_write.sum": 10_000_000,
    "lts__t_sectors_srcunit_tex.sum": 15_000_000,
}


def test_a_gpu_without_tensor_cores_is_clean() -> None:
    launch = launch_of(**FOUND["tensor-cores-idle"])
    pascal = replace(launch, gpu=find_gpu("GTX 1080 Ti"))
    assert isinstance(verdict_of("tensor-cores-idle", pascal), Clean)


def test_a_gpu_without_tf32_is_not_told_to_use_it() -> None:
    launch = launch_of(**FOUND["tensor-cores-idle"])
    for name, absent in (("Tesla T4", True), ("NVIDIA A100-SXM4-40GB", False)):
        other = replace(launch, gpu=find_gpu(name))
        verdict = verdict_of("tensor-cores-idle", other)
        assert isinstance(verdict, KernelRuleMatch)
        assert (verdict.fix == "") is not absent
        if absent:
            assert "TF32" not in f"{verdict.fix} {verdict.code} {verdict.caveats}"


def test_a_matrix_times_a_vector_does_not_want_tensor_cores() -> None:
    counters = {**IDLE, FFMA: 40_000_000}  # a quarter of an operation for each byte of DRAM
    launch = launch_of(counters, name="gemv_rows(float*)")
    assert isinstance(verdict_of("tensor-cores-idle", launch), Clean)
    product = {**counters, FFMA: 10_000_000_000}
    matched("tensor-cores-idle", product, name="gemv_rows(float*)")


def test_a_gemm_fed_by_l1() -> None:
    matched("tensor-cores-idle", FED_BY_L1, name="mystery(float*)")
    # A filter in shared memory reads its tile from L2 once.
    filtering = {**FED_BY_L1, "lts__t_sectors_srcunit_tex.sum": 1_250_000}
    launch = launch_of(filtering, name="mystery(float*)")
    assert isinstance(verdict_of("tensor-cores-idle", launch), Clean)


def test_a_gemm_near_the_fp32_peak_leaves_tensor_cores_idle() -> None:
    """As in printed tables: neither tensor cores nor the name of the GPU are known."""
    from gpusight.hardware.gpu_table import Peaks

    def verdict_at(percent: int) -> RuleVerdict:
        message = (
            "The ratio of peak float (FP32) to double (FP64) performance on this device is 2:1. "
            f"The workload achieved  close to {percent}% of this device's FP32 peak performance "
            "and 58% of its FP64 peak performance."
        )
        rows = [{"launch": 0, "rule": "SOLFPRoofline", "message": message}]
        trace = trace_of(
            {"name": "sgemm_128x128_nn(float*)", "counters": IDLE},
            without=("tensor", "pipe_fma", "_ffma", "fp64"),
            rule_results=rows,
        )
        (launch,) = launches(trace)
        assert launch.gpu is not None
        unnamed = replace(launch, gpu=replace(launch.gpu, tensor=Peaks()))
        return verdict_of("tensor-cores-idle", unnamed)

    gemm = verdict_at(57)
    assert isinstance(gemm, KernelRuleMatch)
    assert speedup(gemm) > 3
    assert isinstance(verdict_at(3), RuleNotApplicable)
