"""The roofline: what is counted from which counters, the roofs, and what holds a kernel down."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from gpusight.analysis.roofline.arithmetic_counters import (
    cuda_core_flops,
    paths,
    tensor_core_flops,
    tensor_quantities,
)
from gpusight.analysis.roofline.roofline_points import COLUMNS, measure, roofline_points
from gpusight.analysis.roofline.roofline_report import roofline
from gpusight.analysis.selection import Selection
from gpusight.errors import UsageError
from gpusight.results import Composite, NotApplicable, TableResult
from gpusight.trace.trace import Trace
from tests.shared import SHARED, needs_shared, opened
from tests.traces import Row, build_trace

US = 1000.0
LANES = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
PEAK = "sm__sass_thread_inst_executed_op_{}_pred_on.sum.peak_sustained"
CLOCK = {"sm__cycles_elapsed.avg.per_second": 1e9}
DRAM_ROOF = {"dram__bytes.sum.peak_sustained": 1000, "dram__cycles_elapsed.avg.per_second": 1e9}
"""10¹² bytes a second."""
FP32_ROOF = {PEAK.format("ffma"): 5000, **CLOCK}
"""10¹³ FLOP/s."""
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
L2_ALL = {"lts__t_sectors.sum": 30}
"""With what goes to DRAM and between the halves of the cache."""
L2_PARTS = {
    f"lts__t_sectors_srcunit_tex_op_{op}.sum": n
    for op, n in (("read", 3), ("write", 2), ("red", 1))
}
L2_ATOMICS = {
    f"lts__t_sectors_srcunit_tex_op_atom_dot_{op}.sum": n for op, n in (("alu", 4), ("cas", 1))
}
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"


def ops(letter: str = "f", *, add: float = 0, mul: float = 0, fma: float = 0) -> dict[str, float]:
    counts = {"add": add, "mul": mul, "fma": fma}
    return {LANES.format(letter + op): count for op, count in counts.items()}


def trace_of(*launches: dict[str, float], **profile: Any) -> Trace:
    """Make a report of launches of 10 µs with these counters."""
    base = {"kind": "kernel", "name": "work(float *)", "duration_ns": 10 * US, "grid_x": 100}
    sides = {"grid_y": 1, "grid_z": 1, "block_x": 100, "block_y": 1, "block_z": 1}
    device: Row = {"name": "", "compute_major": 9, "compute_minor": 0}
    return build_trace(
        {"source": "ncu-rep", "tool": "Nsight Compute"},
        devices=[device],
        profiles=[
            {**base, **sides, "launch": number, "compute_major": 9, "compute_minor": 0, **profile}
            for number in range(len(launches))
        ],
        counters=[
            {"launch": number, "metric": metric, "value": float(value)}
            for number, counters in enumerate(launches)
            for metric, value in counters.items()
        ],
    )


def point(**counters: float) -> dict[str, Any]:
    return roofline_points(trace_of(counters)).row(0, named=True)


# FLOPs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counters", "flops"),
    [
        (ops(add=1, mul=2, fma=3), 9),
        (ops("d", add=1, mul=2, fma=3) | ops(), 9),
        ({k.replace("smsp__", "sm__"): v for k, v in ops(add=1, fma=3).items()}, 7),
        (ops(fma=3) | {LANES.format("ffma2"): 5, LANES.format("fadd2"): 7}, 6 + 20 + 14),
        ({LANES.format("ffma"): 4}, 8),
        # Amounts a second and a cycle, over 10 µs at 1 GHz.
        ({LANES.format("ffma") + ".per_second": 1e9}, 2e4),
        ({LANES.format("ffma") + ".per_cycle_elapsed": 3, **CLOCK}, 6e4),
        (
            {LANES.format("ffma") + ".per_cycle_elapsed": 3, "smsp__cycles_elapsed.avg": 9000},
            54_000,
        ),
    ],
)
def test_flops_are_counted_from_whatever_the_capture_has(
    counters: dict[str, float], flops: float
) -> None:
    assert point(**counters)["flops"] == pytest.approx(flops)


def test_a_pair_of_halves_is_two_operations_and_an_fma_four() -> None:
    result = point(**ops(), **ops("h", add=1, mul=1, fma=1e6))
    assert result["flops_fp16"] == 4e6 + 4
    assert result["arithmetic"] == "fp16"


@pytest.mark.parametrize(
    ("counters", "profile", "fp16"),
    [
        (ops() | ops("h", fma=8 * 10_000), {}, 0),
        (ops() | ops("h", fma=1e6), {}, 4e6),
        (ops(fma=1e6) | ops("h", fma=4e5), {}, 0),
        (ops() | ops("h", fma=1e6) | {"smsp__inst_executed.sum": 1e6}, {}, 0),
        (ops() | ops("h", fma=1e6) | {"smsp__inst_executed.sum": 1e5}, {}, 4e6),
        (ops() | ops("h", fma=10), {"name": "axpy(__half *, const __half *)"}, 40),
        (ops() | ops("h", fma=10, add=1), {}, 42),
    ],
)
def test_constants_that_compilers_load_by_an_fma_are_no_arithmetic(
    counters: dict[str, float], profile: dict[str, Any], fp16: float
) -> None:
    result = roofline_points(trace_of(counters, **profile)).row(0, named=True)
    assert result["flops_fp16"] == fp16
    assert result["flops"] == fp16 + result["flops_fp32"]


def path(source: str, form: str = "sum") -> str:
    return f"sm__ops_path_tensor_{source}.{form}"


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        # The coarse counter holds the fine ones.
        (
            {
                path("src_bf16_dst_fp32"): 100,
                path("op_hgmma_src_bf16_dst_fp32_sparsity_off"): 90,
                path("op_hmma_src_bf16_dst_fp32_sparsity_off"): 10,
            },
            {"tensor_bf16": 100},
        ),
        # Fine ones alone add up, whatever they leave open.
        (
            {
                path("op_hgmma_src_fp16_sparsity_off"): 1,
                path("op_hgmma_src_fp16_sparsity_on"): 2,
                path("op_hmma_src_fp16_dst_fp16_sparsity_off"): 4,
                path("op_hmma_src_fp16_dst_fp32_sparsity_off"): 8,
            },
            {"tensor_fp16": 15},
        ),
        # Counters that overlap in part are not added up.
        ({path("src_fp16_dst_fp32"): 5, path("op_hmma_src_fp16"): 6}, {"tensor_fp16": 5}),
        ({path("src_fp16_bf16_tf32_dst_fp32"): 5}, {"tensor_fp16": 5}),
        (
            {
                path("op_utcqmma_src_fp4_fp6_fp8_dst_fp32_sparsity_off"): 3,
                path("op_utcomma_src_fp4_dst_fp32_sparsity_off"): 4,
            },
            {"tensor_fp8": 3, "tensor_fp4": 4},
        ),
        ({path("src_int8", "sum.per_second"): 1e9}, {"tensor_int8": 1e4}),
        ({path("src_fp64"): 7, "sm__ops_path_tensor_src_fp64_realtime.sum": 7}, {"tensor_fp64": 7}),
    ],
)
def test_operations_of_tensor_cores_are_counted_once(
    counters: dict[str, float], expected: dict[str, float]
) -> None:
    result = point(**counters)
    assert {k: result[f"flops_{k}"] for k in expected} == expected
    assert result["flops"] == sum(expected.values())


def test_names_of_tensor_counters_are_taken_apart_and_put_together() -> None:
    names = [path("src_fp16"), path("op_hmma_src_tf32_dst_fp32_sparsity_on", "sum.per_second")]
    assert [
        f"{p.base}.{p.form}" for p in paths([*names, "sm__throughput.avg", "breakdown:x"])
    ] == names
    assert not list(tensor_quantities(["pmsampling:" + path("src_fp16")]))


@pytest.mark.parametrize(
    ("opcode", "kind", "flops"),
    [
        ("HMMA.1688.F32.TF32", "tensor_tf32", 2048),
        ("HMMA.16816.F32", "tensor_fp16", 4096),
        ("HMMA.16816.F32.BF16", "tensor_bf16", 4096),
        ("HMMA.16816.F16", "tensor_fp16", 4096),
        ("HMMA.884.F32.F32.STEP0", "tensor_fp16", 512),
        ("HMMA.884.F16.F16.STEP0", "tensor_fp16", 1024),
        ("HGMMA.64x64x8.F32.TF32", "tensor_tf32", 16384),
        ("QGMMA.64x128x32.F32.E4M3.E4M3", "tensor_fp8", 131072),
        ("IMMA.16832.S8.S8", "tensor_int8", 8192),
        ("IMMA.16864.S4.S4", "tensor_int4", 16384),
        ("DMMA.884", "tensor_fp64", 512),
        ("HMMA.SP.16832.F32.BF16", "tensor_bf16", 8192),
        ("UTCHMMA.2CTA", None, 0),
        ("HMMA.99999.F32", None, 0),
        ("FFMA", None, 0),
    ],
)
def test_the_name_of_a_matrix_instruction_tells_its_operations(
    opcode: str, kind: str | None, flops: float
) -> None:
    assert tensor_core_flops(opcode) == (None if kind is None else (kind, flops))


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("FFMA.FTZ", ("fp32", 2)),
        ("FADD32I", ("fp32", 1)),
        ("FFMA2.FTZ", ("fp32", 4)),
        ("DMUL", ("fp64", 1)),
        ("HFMA2.MMA", ("half_fma", 4)),
        ("HADD2_32I", ("half_other", 2)),
        ("FSETP.GT", None),
        ("IMAD.MOV", None),
    ],
)
def test_instructions_of_cuda_cores(opcode: str, expected: tuple[str, float] | None) -> None:
    assert cuda_core_flops(opcode) == expected


WARPS = "sass__inst_executed_per_opcode_with_modifier_all"
THREADS = "sass__thread_inst_executed_true_per_opcode_with_modifier_all"


def opcode_trace(rows: Sequence[tuple[str, str, float]], **counters: float) -> Trace:
    return build_trace(
        devices=[{"name": "NVIDIA H200", "sm_count": 132, "clock_hz": 1_000_000_000}],
        profiles=[
            {
                "launch": 0,
                "kind": "kernel",
                "name": "sm90_gemm",
                "duration_ns": 10 * US,
                "device": 0,
            }
        ],
        counters=[
            {"launch": 0, "metric": m, "value": float(v)}
            for m, v in {WARPS: 0, THREADS: 0, **counters}.items()
        ],
        counter_instances=[
            {"launch": 0, "metric": m, "key": key, "value": float(v)} for m, key, v in rows
        ],
    )


def test_instructions_tell_flops_where_no_counter_does() -> None:
    rows = [
        (WARPS, "HMMA.16816.F32.BF16", 100),
        (WARPS, "FFMA", 1),
        (THREADS, "FFMA", 32),
        (THREADS, "HMMA.16816.F32.BF16", 3200),
        (THREADS, "DADD", 5),
    ]
    result = roofline_points(opcode_trace(rows)).row(0, named=True)
    assert result["flops_tensor_bf16"] == 409_600
    assert result["flops_fp32"] == 64
    assert result["flops_fp64"] == 5
    assert result["flops"] == 409_669
    assert not result["estimated"]


def test_counters_go_before_instructions_unless_they_miss_what_was_done() -> None:
    rows = [(WARPS, "DMMA.884", 100), (THREADS, "FFMA", 32)]
    counted = opcode_trace(rows, **{path("src_fp64"): 7, LANES.format("ffma"): 1})
    assert roofline_points(counted)["flops"][0] == 9
    missed = opcode_trace(rows, **{path("src_fp64"): 0, LANES.format("ffma"): 1, TENSOR: 90})
    assert roofline_points(missed)["flops_tensor_fp64"][0] == 51_200


def test_instructions_without_a_size_leave_the_total_unknown() -> None:
    rows = [(WARPS, "UTCHMMA", 100), (THREADS, "FFMA", 32)]
    result = roofline_points(opcode_trace(rows, **{TENSOR: 40})).row(0, named=True)
    assert result["flops"] is None
    assert result["compute_share"] == pytest.approx(0.4)
    assert result["arithmetic"] == "tensor"


def h200_trace(name: str, **counters: float) -> Trace:
    return build_trace(
        devices=[{"name": "NVIDIA H200", "sm_count": 132, "clock_hz": 1_980_000_000}],
        profiles=[{"launch": 0, "kind": "kernel", "name": name, "duration_ns": US, "device": 0}],
        counters=[{"launch": 0, "metric": m, "value": float(v)} for m, v in counters.items()],
    )


def test_busy_tensor_cores_give_an_estimate_when_the_name_tells_the_format() -> None:
    result = roofline_points(h200_trace("nvjet_tst_128x64_64x6", **{TENSOR: 50})).row(0, named=True)
    assert result["estimated"]
    assert result["arithmetic"] == "tensor bf16"
    assert result["compute_share"] == pytest.approx(0.5)
    assert result["flops"] == pytest.approx(0.5 * result["peak_tensor_bf16"] * 1e-6)
    unknown = roofline_points(h200_trace("mystery", **{TENSOR: 50})).row(0, named=True)
    assert (unknown["flops"], unknown["estimated"]) == (None, False)


def test_the_busiest_of_old_and_new_tensor_units_counts() -> None:
    aside = "sm__pipe_tc_cycles_active.avg.pct_of_peak_sustained_elapsed"
    result = roofline_points(h200_trace("mystery", **{TENSOR: 3, aside: 35})).row(0, named=True)
    assert result["compute_share"] == pytest.approx(0.35)


@pytest.mark.parametrize("counted", [{}, {path("src_fp16"): 0.0}])
def test_constants_that_pass_through_tensor_cores_are_no_work(counted: dict[str, float]) -> None:
    result = point(**ops(fma=5), **counted, **{TENSOR: 6})
    assert (result["flops"], result["arithmetic"]) == (10, "fp32")
    matrices = TENSOR.replace("tensor", "tensor_type_hmma_hgmma_qgmma_imma_igmma_bmma_bgmma")
    assert point(**ops(fma=5), **{TENSOR: 30, matrices: 0})["flops"] == 10
    doubles = {TENSOR.replace("tensor", "tensor_op_dmma"): 0.0}
    assert point(**ops(fma=5), **{TENSOR: 30}, **doubles)["flops"] is None


def test_what_was_not_counted_is_not_nothing() -> None:
    result = point(**{SM: 50, MEMORY: 50})
    assert result["flops"] is None
    assert result["flop_per_s"] is None
    assert result["roof_share"] is None


def test_busy_fp16_units_that_nobody_counted_leave_the_total_unknown() -> None:
    for unit in ("fma_type_fp16", "fp16"):
        busy = f"sm__inst_executed_pipe_{unit}.avg.pct_of_peak_sustained_elapsed"
        assert point(**ops(fma=5), **{busy: 40, SM: 50})["flops"] is None
        assert point(**ops(fma=5), **{busy: 40, SM: 50})["compute_share"] != 0
        assert point(**ops(fma=5), **{busy: 1})["flops"] == 10
        assert point(**ops(fma=5), **ops("h", add=1), **{busy: 40})["flops"] == 12


# Bytes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counters", "level", "amount"),
    [
        ({"dram__bytes.sum": 5}, "dram", 5),
        ({"dram__bytes_read.sum": 5, "dram__bytes_write.sum": 6}, "dram", 11),
        ({"dram__bytes_op_read.sum": 5, "dram__bytes_op_write.sum": 6}, "dram", 11),
        ({"dram__bytes.sum.per_second": 1e9}, "dram", 10_000),
        ({"dram__sectors_read.sum": 2, "dram__sectors_write.sum": 1}, "dram", 96),
        ({"lts__t_sectors_srcunit_tex.sum": 3, "lts__t_sectors.sum": 9}, "l2", 96),
        ({**L2_PARTS, "lts__t_sectors_srcunit_tex_op_atom.sum": 4, **L2_ALL}, "l2", 320),
        ({**L2_PARTS, **L2_ATOMICS, **L2_ALL}, "l2", 352),
        ({**L2_PARTS, **L2_ALL}, "l2", 960),
        ({"lts__t_bytes.sum": 7}, "l2", 7),
        ({"derived__lts__lts2xbar_bytes.sum.per_second": 1e9}, "l2", 10_000),
        ({"l1tex__t_bytes.sum": 7}, "l1", 7),
        ({"l1tex__t_sectors.sum": 7}, "l1", 224),
        # Most went past L1, from L2 into shared memory.
        ({"l1tex__t_bytes.sum": 7, "lts__t_bytes.sum": 70}, "l1", None),
    ],
)
def test_bytes_of_each_level(counters: dict[str, float], level: str, amount: float | None) -> None:
    result = point(**counters, **ops(fma=100))
    assert result[f"{level}_bytes"] == amount
    assert result[f"{level}_intensity"] == (None if amount is None else 200 / amount)


# Roofs --------------------------------------------------------------------------------------------


def test_the_report_knows_its_roofs() -> None:
    result = point(**FP32_ROOF, **DRAM_ROOF, **ops(fma=25e6), **{"dram__bytes.sum": 2e6})
    assert result["compute_roof"] == 1e13
    assert result["memory_roof"] == 1e12
    assert result["knee"] == 10
    assert result["flop_per_s"] == pytest.approx(5e12)
    assert result["compute_share"] == pytest.approx(0.5)
    assert result["memory_share"] == pytest.approx(0.2)
    assert result["roof_share"] == pytest.approx(0.5)
    assert result["roofs_from"] == "report"


def test_a_peak_of_nothing_is_not_known() -> None:
    nothing = dict.fromkeys((*FP32_ROOF, *DRAM_ROOF), 0.0)
    result = point(**nothing, **ops(fma=25e6), **{"dram__bytes.sum": 0.0})
    keys = ("compute_roof", "memory_roof", "compute_share", "memory_share", "roof_share", "knee")
    assert [result[key] for key in keys] == [None] * len(keys)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_what_nothing_can_count_is_not_known(value: float) -> None:
    result = point(**ROOFS, **ops(), **{"dram__bytes.sum": value})
    assert (result["dram_bytes"], result["memory_share"]) == (None, None)


def test_a_peak_without_a_word_on_sparsity_is_halved_where_sparsity_exists() -> None:
    peak = {path("src_bf16_dst_fp32", "sum.peak_sustained"): 8192, **CLOCK}
    assert point(**peak)["peak_tensor_bf16"] == 4096e9
    dense = {path("op_hgmma_src_bf16_dst_fp32_sparsity_off", "sum.peak_sustained"): 4000}
    slower = {path("op_hmma_src_bf16_dst_fp32_sparsity_off", "sum.peak_sustained"): 2000}
    assert point(**peak, **dense, **slower)["peak_tensor_bf16"] == 4000e9
    turing = roofline_points(trace_of(peak, compute_major=7))
    assert turing["peak_tensor_bf16"][0] == 8192e9
    assert (
        point(**{path("src_fp64", "sum.peak_sustained"): 256, **CLOCK})["peak_tensor_fp64"] == 256e9
    )


def test_sums_in_fp32_set_the_peak_of_geforce_tensor_cores() -> None:
    half = {path("src_fp16_dst_fp32_sparsity_off", "sum.peak_sustained"): 512}
    full = {path("src_fp16_dst_fp16_sparsity_off", "sum.peak_sustained"): 1024}
    assert point(**half, **full, **CLOCK)["peak_tensor_fp16"] == 512e9


def test_the_table_stands_in_at_the_clock_of_the_launch() -> None:
    full = roofline_points(h200_trace("work", **ops(fma=1))).row(0, named=True)
    assert full["roofs_from"] == "GPU table"
    assert full["compute_roof"] == pytest.approx(132 * 128 * 2 * 1.98e9)
    assert full["memory_roof"] == pytest.approx(4.8e12, rel=0.01)
    slow = roofline_points(
        h200_trace("work", **ops(fma=1), **{"sm__cycles_elapsed.avg.per_second": 0.99e9})
    )
    assert slow["compute_roof"][0] == pytest.approx(full["compute_roof"] / 2)
    # What a tensor core does a cycle does not depend on the clock that data sheets rate it at.
    assert full["peak_tensor_bf16"] == pytest.approx(132 * 4096 * 1.83e9)
    assert slow["peak_tensor_bf16"][0] == pytest.approx(132 * 4096 * 0.99e9)
    assert slow["peak_tensor_fp64"][0] == pytest.approx(132 * 256 * 0.99e9, rel=1e-3)


def test_a_share_of_the_peak_tells_the_peak() -> None:
    whole = "dram__bytes.sum.pct_of_peak_sustained_elapsed"
    busy = {"dram__bytes.sum": 5e6, whole: 50.0}
    idle = {"dram__bytes.sum": 4e3, whole: 0.03}
    result = roofline_points(trace_of(busy, idle))
    assert result["memory_roof"].to_list() == pytest.approx([1e12, 1e12])
    assert result["memory_share"].to_list() == pytest.approx([0.5, 0.0004])


def test_a_named_gpu_gives_roofs_and_an_unknown_name_is_refused() -> None:
    trace = trace_of({**ops(fma=1e6), "dram__bytes.sum": 1e6})
    assert measure(trace).frame["roof_share"][0] is None
    named = measure(trace, "RTX 3090").frame.row(0, named=True)
    assert named["memory_roof"] == 936e9
    assert named["roofs_from"] == "GPU table"
    with pytest.raises(UsageError, match="no GPU named 'RTX 1'"):
        measure(trace, "RTX 1")


# What holds a kernel down -------------------------------------------------------------------------

ROOFS = {**FP32_ROOF, **DRAM_ROOF}


@pytest.mark.parametrize(
    ("counters", "bound", "limit"),
    [
        ({**ops(fma=45e6), "dram__bytes.sum": 1e5}, "compute", "fp32"),
        ({**ops(fma=1e6), "dram__bytes.sum": 8e6}, "memory", "dram"),
        ({**ops(fma=1e6), "dram__bytes.sum": 1e6}, "latency", None),
        # Nothing is counted in FLOPs, but the SMs are busy.
        ({**ops(), "dram__bytes.sum": 1e5, SM: 90, MEMORY: 5}, "compute", "sm"),
        (
            {
                **ops(),
                "dram__bytes.sum": 1e6,
                SM: 10,
                MEMORY: 85,
                "lts__throughput.avg.pct_of_peak_sustained_elapsed": 85,
                "l1tex__throughput.avg.pct_of_peak_sustained_elapsed": 20,
            },
            "memory",
            "l2",
        ),
        (
            {
                **ops(),
                "dram__bytes.sum": 1e6,
                SM: 10,
                MEMORY: 85,
                "lts__throughput.avg.pct_of_peak_sustained_elapsed": 15,
                "l1tex__throughput.avg.pct_of_peak_sustained_elapsed": 85,
            },
            "memory",
            "l1",
        ),
        # Utilization decides, as in `diagnose`; which memory unit it was is unknown.
        ({**ops(fma=30e6), "dram__bytes.sum": 1e5, SM: 78, MEMORY: 80}, "memory", None),
        # The other side is not known.
        ({SM: 65}, None, None),
        ({SM: 85}, "compute", "sm"),
        ({MEMORY: 30}, None, None),
    ],
)
def test_bound(counters: dict[str, float], bound: str | None, limit: str | None) -> None:
    result = point(**ROOFS, **counters)
    assert (result["bound"], result["limit"]) == (bound, limit)


def test_the_kind_nearest_to_its_own_peak_counts_not_the_most_flops() -> None:
    peaks = {PEAK.format("dfma"): 100, **ROOFS}
    result = point(**peaks, **ops(fma=5e6), **ops("d", fma=9e5))
    assert result["arithmetic"] == "fp64"
    assert result["compute_share"] == pytest.approx(0.9)


def test_without_flops_bandwidth_is_the_distance() -> None:
    result = point(**ROOFS, **ops(), **{"dram__bytes.sum": 8e6})
    assert result["roof_share"] == pytest.approx(0.8)
    assert result["arithmetic"] is None


def test_without_durations_rates_still_place_a_launch() -> None:
    rates = {
        **ROOFS,
        LANES.format("ffma") + ".per_cycle_elapsed": 2500,
        "dram__bytes.sum.per_second": 1e11,
        "lts__t_bytes.sum": 5,
    }
    result = roofline_points(trace_of(rates, duration_ns=None)).row(0, named=True)
    assert result["flop_per_s"] == 5e12
    assert result["dram_intensity"] == 50
    assert result["roof_share"] == 0.5
    assert (result["flops"], result["dram_bytes"], result["l2_bytes"]) == (None, None, None)


# The answer ---------------------------------------------------------------------------------------


def answer(trace: Trace, **options: Any) -> Composite:
    result = roofline(trace, **options)
    assert isinstance(result, Composite)
    return result


def rows(result: Composite, section: str = "kernels") -> pl.DataFrame:
    table = next(s for s in result.sections if s.command == section)
    assert isinstance(table, TableResult)
    return table.frame


def two_shapes() -> Trace:
    work = {**ROOFS, **ops(fma=10e6), "dram__bytes.sum": 1e6}
    trace = trace_of(work, work, {**ROOFS, **ops(), "dram__bytes.sum": 9e6})
    profiles = trace.table("profiles").to_dicts()
    profiles[1]["duration_ns"] = 30 * US
    profiles[2]["name"] = "copy(float *)"
    counters = trace.table("counters").to_dicts()
    return build_trace(
        devices=trace.table("devices").to_dicts(), profiles=profiles, counters=counters
    )


def test_kernels_are_summed_up_by_time() -> None:
    result = answer(two_shapes())
    work, copy = rows(result).rows(named=True)
    assert (work["short_name"], work["calls"], work["total_ns"]) == ("work", 2, 40 * US)
    assert work["tflop_per_s"] == pytest.approx(40e6 / 40e-6 / 1e12)
    assert work["dram_intensity"] == 20
    assert work["share"] == 0.8
    assert work["roof_share"] == pytest.approx((0.2 * 10 + 0.2 / 3 * 30) / 40)
    assert (copy["bound"], copy["limit"], copy["roof_share"]) == ("memory", "dram", 0.9)
    assert rows(result, "roofs")["roof"].to_list() == ["dram", "fp32"]
    facts = {fact.key: fact.value for fact in result.facts}
    assert facts["launches"] == 3
    assert facts["memory_time_share"] == pytest.approx(0.2)
    assert result.notes == ()


def test_every_launch_can_be_listed_and_kernels_chosen() -> None:
    result = answer(two_shapes(), launches=True, kernel="work")
    assert rows(result, "launches")["launch"].to_list() == [1, 0]
    assert answer(two_shapes(), selection=Selection(device=0)).facts


@pytest.mark.parametrize(
    ("counters", "note"),
    [
        ({SM: 50, MEMORY: 10}, "no launch has FLOP counters; collect with: ncu --section"),
        ({**ops(fma=1), **FP32_ROOF}, "no launch has DRAM byte counters"),
        (
            {LANES.format("ffma"): 1, "dram__bytes.sum": 1, **ROOFS},
            "FADD, FMUL instructions were not counted",
        ),
        (
            {**ROOFS, **ops(fma=60e6), "dram__bytes.sum": 1},
            "1 launch above 100% of the roofline (12 TFLOP/s of 10 TFLOP/s, 120.0%, by work)",
        ),
        ({**DRAM_ROOF, **ops(fma=1), "dram__bytes.sum": 1}, "1 launch without compute peak"),
    ],
)
def test_what_is_missing_is_said(counters: dict[str, float], note: str) -> None:
    assert note in " | ".join(answer(trace_of(counters)).notes)


def test_tensor_cores_that_nobody_counted_are_mentioned() -> None:
    trace = h200_trace("nvjet_tst_128x64_64x6", **ops(fma=1), **{"dram__bytes.sum": 1})
    assert "Tensor Core FLOPs were not counted" in " ".join(answer(trace).notes)
    trace = h200_trace("nvjet_tst_128x64_64x6", **ops(fma=1), **{TENSOR: 50})
    assert "are estimated from Tensor Core utilization" in " ".join(answer(trace).notes)


def test_without_any_roof_the_remedy_is_named() -> None:
    result = answer(trace_of({**ops(fma=1), "dram__bytes.sum": 1}))
    roofs = result.sections[1]
    assert isinstance(roofs, NotApplicable)
    assert "--gpu NAME" in roofs.hint


def test_a_timeline_has_no_roofline() -> None:
    kernels: list[Row] = [{"start_ns": 0, "end_ns": 10, "name": "gemm"}]
    result = roofline(build_trace(kernels=kernels))
    assert isinstance(result, NotApplicable)
    assert "ncu --set roofline" in result.hint
    assert "gpusight flops" not in result.hint
    shaped: Row = {"start_ns": 0, "end_ns": 1, "name": "aten::mm", "shapes": "[[2, 2], [2, 2]]"}
    result = roofline(build_trace(kernels=kernels, cpu_ops=[shaped]))
    assert isinstance(result, NotApplicable)
    assert "gpusight flops" in result.hint


def test_a_report_that_counts_nothing_useful_says_so() -> None:
    result = roofline(trace_of({"launch__registers_per_thread": 32}))
    assert isinstance(result, NotApplicable)
    assert "no counters of FLOPs, bytes or utilization" in result.reason


def test_no_launches_give_no_points() -> None:
    empty = roofline_points(build_trace())
    assert empty.is_empty()
    assert set(COLUMNS) <= set(empty.columns)
    assert roofline_points(trace_of({})).height == 1


# Real reports -------------------------------------------------------------------------------------

FMA_THREADS = 132 * 16 * 256
FP64_THREADS = 132 * 8 * 256


@needs_shared
def test_flops_of_planted_kernels_are_what_their_source_says() -> None:
    trace = opened(SHARED / "ncu" / "kernels_full.ncu-rep.xz")
    names = trace.table("profiles", ["launch", "name"])
    measured = {
        str(row["name"]).partition("(")[0]: row
        for row in roofline_points(trace).join(names, on="launch").iter_rows(named=True)
    }
    # Loops alone; what is left are additions at the ends.
    assert measured["fma_heavy"]["flops_fp32"] == pytest.approx(
        2 * 4096 * 8 * FMA_THREADS, rel=1e-3
    )
    assert measured["fp64_heavy"]["flops_fp64"] == pytest.approx(
        2 * 2048 * 4 * FP64_THREADS, rel=1e-3
    )
    assert (
        measured["copy_coalesced"]["l1_bytes"] == measured["copy_coalesced"]["l2_bytes"] == 2 << 28
    )
    assert measured["copy_strided"]["flops"] == 0  # its FP16 FMAs load constants
    bounds = {name: (row["bound"], row["limit"]) for name, row in measured.items()}
    assert bounds["copy_coalesced"] == ("memory", "dram")
    assert bounds["fma_heavy"] == ("compute", "fp32")
    assert bounds["fp64_heavy"] == ("compute", "fp64")
    assert bounds["pointer_chase"] == bounds["tiny_grid"] == ("latency", None)
    assert measured["fma_heavy"]["roof_share"] > 0.8 < measured["copy_coalesced"]["roof_share"]


@needs_shared
def test_convolutions_are_counted_from_their_instructions() -> None:
    trace = opened(SHARED / "ncu" / "resnet18.ncu-rep.xz")
    result = roofline_points(trace)
    three_by_three = 2 * 4 * 56 * 56 * 64 * 64 * 9
    # By mma.sync (HMMA) and by warp groups (HGMMA) alike.
    exact = result.filter(pl.col("flops_tensor_tf32") == three_by_three)
    assert exact.height >= 4
    assert not result["estimated"].any()


_PEAKS = re.compile(
    r"achieved\s+(?:close to\s+)?(\d+)% of this device's fp32 peak performance and\s+"
    r"(?:close to\s+)?(\d+)% of its fp64",
    re.IGNORECASE,
)


@needs_shared
@pytest.mark.parametrize(
    "name",
    [
        "ncu/kernels_full.ncu-rep.xz",
        "ncu/gpt_fwd.ncu-rep.xz",
        "public/ncu/2021.1.0.0__RTX-2070__699ccb6.ncu-rep",
        "public/ncu/2024.1.1.0__GTX-1660-SUPER__7aafec1.ncu-rep",
        "public/ncu/2024.2.1.0__Tesla-T4__cad96ed.ncu-rep",
    ],
)
def test_shares_of_the_peak_are_those_that_ncu_states(name: str) -> None:
    trace = opened(SHARED / name)
    ncu_shares = {
        launch: tuple(map(int, match.groups()))
        for launch, message in trace.table("rule_results", ["launch", "message"]).iter_rows()
        if (match := _PEAKS.search(message or ""))
    }
    assert ncu_shares
    for row in roofline_points(trace).iter_rows(named=True):
        seconds = row["duration_ns"] * 1e-9
        reached = tuple(
            round(100 * row[f"flops_{kind}"] / seconds / row[f"peak_{kind}"])
            for kind in ("fp32", "fp64")
        )
        assert reached == ncu_shares[row["launch"]], row["launch"]
