"""FLOPs of operators under the roof of the GPU."""

from __future__ import annotations

import re
from typing import Any

import polars as pl
import pytest

import gpusight as gs
from gpusight.analysis.flops.achieved_flops import FLOPS_FACTS, flops
from gpusight.analysis.flops.flops_tables import OPERATOR_FIELDS, REST_FIELDS, STEP_FIELDS
from gpusight.analysis.gpu_time import RECORDED_OVERHEAD
from gpusight.analysis.selection import Selection
from gpusight.errors import UsageError
from gpusight.naming.kernel_names import classify
from gpusight.pace import AS_RECORDED
from gpusight.readers.open import open_trace
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_tables import to_plain
from gpusight.results import Composite, NotApplicable, TableResult
from gpusight.trace.trace import Trace
from tests.shared import DATA, SHARED, needs_shared, opened
from tests.shared import name as capture
from tests.traces import Row, build_trace

SIMT = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_ffma_kernel"
TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x128x32_warpgroupsize1x1x1_kernel"
BF16 = "nvjet_sm90_tst_128x64_64x8_1x2_h_bz_NNT"
SPLIT = "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, false>(int)"
TRITON = "triton_poi_fused_gelu_0"
COPY = "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda(int)>(int)"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

M = N = K = 1024
MM_FLOPS = 2 * M * N * K
MM_BYTES = 3 * M * N * 4
H200_FP32, H200_TF32, H200_BF16, H200_BANDWIDTH = 66.90816e12, 494.71488e12, 989.42976e12, 4.8e12


def op(key: int, name: str, start: int, end: int, *shapes: list[int], **more: Any) -> Row:
    """An operator with tensors of these sizes, float unless `dtype` says otherwise."""
    kind = more.pop("dtype", "float")
    if shapes:
        more["shapes"] = str(list(shapes))
        more["types"] = str([kind] * len(shapes)).replace("'", '"')
    return {"op": key, "name": name, "start_ns": start, "end_ns": end, **more}


def kernel(key: int | None, name: str, start: int, length: int, **more: Any) -> Row:
    return {"op": key, "name": name, "start_ns": start, "end_ns": start + length, **more}


def mm(key: int, start: int, **more: Any) -> Row:
    return op(key, "aten::mm", start, start + 5, [M, K], [K, N], **more)


def built(ops: list[Row], kernels: list[Row], **tables: Any) -> Trace:
    devices = tables.pop("devices", [{"sm_count": 132}])
    return build_trace(None, cpu_ops=ops, kernels=kernels, devices=devices, **tables)


def page(trace: Trace, *args: Any, **options: Any) -> Composite:
    result = flops(trace, *args, **options)
    assert isinstance(result, Composite), result
    return result


def section(result: Composite, name: str) -> list[dict[str, Any]]:
    section = next(s for s in result.sections if s.command == name)
    assert isinstance(section, TableResult), section
    return section.rows()


def operators(trace: Trace, **options: Any) -> list[dict[str, Any]]:
    return section(page(trace, **options), "operators")


def facts(result: Composite) -> dict[str, Any]:
    return {fact.key: fact.value for fact in result.facts}


# One operator under its roof ----------------------------------------------------------------------


def test_a_product_bound_by_compute() -> None:
    (row,) = operators(
        built([mm(1, 0), mm(2, 10)], [kernel(k, SIMT, 100 * k, 50_000) for k in (1, 2)])
    )
    least = 2 * MM_FLOPS / H200_FP32 * 1e9
    assert (row["operator"], row["bound"]) == ("mm 1024x1024x1024 fp32", "compute")
    assert (row["calls"], row["flops"], row["gpu_ns"]) == (2, 2 * MM_FLOPS, 100_000)
    assert row["tflop_per_s"] == pytest.approx(2 * MM_FLOPS / 100_000 / 1e3)
    assert row["peak_share"] == row["roof_share"] == pytest.approx(least / 100_000)
    assert row["least_ns"] == pytest.approx(least)
    assert row["over_roof_ns"] == pytest.approx(100_000 - least)
    assert (row["min_bytes"], row["intensity"]) == (
        2 * MM_BYTES,
        pytest.approx(MM_FLOPS / MM_BYTES),
    )
    assert row["min_bandwidth"] == pytest.approx(2 * MM_BYTES / 100_000 * 1e9)


def test_a_product_bound_by_memory() -> None:
    thin = op(1, "aten::mm", 0, 5, [1, 4096], [4096, 4096], dtype="c10::BFloat16")
    (row,) = operators(built([thin], [kernel(1, BF16, 0, 14_000)]))
    assert row["bound"] == "memory"
    moved = 2 * (4096 + 4096 * 4096 + 4096)
    assert row["least_ns"] == pytest.approx(moved / H200_BANDWIDTH * 1e9)
    assert row["roof_share"] == pytest.approx(moved / H200_BANDWIDTH * 1e9 / 14_000)
    assert row["peak_share"] < row["roof_share"]


def test_an_embedding_has_a_roof_but_no_flops() -> None:
    lookup = op(1, "aten::embedding", 0, 5, [10000, 768], [2048])
    (row,) = operators(built([lookup], [kernel(1, "vectorized_gather_kernel", 0, 5_000)]))
    assert (row["family"], row["flops"], row["bound"]) == ("embedding", 0, "memory")
    assert (row["tflop_per_s"], row["peak_share"]) == (None, None)
    assert 0 < row["roof_share"] < 1


@pytest.mark.parametrize(
    ("kernels", "precision", "tensor_core", "peak"),
    [
        ([SIMT], "fp32", False, H200_FP32),
        ([TF32], "tf32", True, H200_TF32),
        ([TF32, SPLIT, SPLIT, SPLIT], "tf32", True, H200_TF32),
        ([SIMT, TF32, TF32], "tf32", True, H200_TF32),
        ([SIMT, SIMT, SIMT, TF32], "tf32", True, H200_TF32),
        ([*[SIMT] * 19, TF32], "fp32", False, H200_FP32),
        (["my_kernel"], "fp32", None, None),
    ],
)
def test_the_precision_is_that_of_the_kernels(
    kernels: list[str], precision: str, tensor_core: bool | None, peak: float | None
) -> None:
    work = [kernel(1, name, 1000 * i, 900) for i, name in enumerate(kernels)]
    (row,) = operators(built([mm(1, 0)], work))
    assert (row["precision"], row["tensor_core"]) == (precision, tensor_core)
    assert row["peak_tflop_per_s"] == (None if peak is None else pytest.approx(peak / 1e12))


def mixed_notes(kernels: list[Row], **options: Any) -> list[str]:
    notes = page(built([mm(1, 0), mm(2, 10)], kernels), **options).notes
    return [note for note in notes if "several precisions" in note]


def test_calls_whose_kernels_disagree_are_counted_in_a_note() -> None:
    one = [kernel(1, SIMT, 0, 50_000), kernel(1, TF32, 50_000, 20_000)]
    two = [kernel(2, SIMT, 100_000, 30_000)]
    (note,) = mixed_notes(one + two)
    assert note == (
        "1 calls (70.00 µs of GPU time) ran kernels of several precisions or units: the peak of "
        "the fastest applies"
    )
    assert mixed_notes(one + two, peak=100) == []
    assert mixed_notes(two) == []
    assert mixed_notes([*two, kernel(2, SPLIT, 140_000, 30_000)]) == []


def test_kernels_that_do_not_name_a_precision_have_that_of_the_tensors() -> None:
    unnamed = "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_knob_7_64x128x64_4x1x1"
    assert (classify(unnamed).precision, classify(unnamed).tensor_core) == ("unknown", True)
    trace = built(
        [mm(1, 0, dtype="c10::BFloat16")],
        [kernel(1, unnamed, 0, 20_000), kernel(1, TF32, 20_000, 5_000)],
    )
    (row,) = operators(trace)
    assert (row["precision"], row["tensor_core"]) == ("bf16", True)


def test_sixteen_bits_are_those_of_the_tensors() -> None:
    name = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1"
    shape = [2, 8, 1024, 64]
    attention = op(1, "aten::_cudnn_attention_forward", 0, 5, *[shape] * 3, dtype="c10::BFloat16")
    (row,) = operators(built([attention], [kernel(1, name, 0, 14_000)]))
    assert (row["precision"], row["tensor_core"]) == ("bf16", True)
    assert row["operator"] == "_cudnn_attn_fwd 2x8x1024x64 bf16"


def test_tensor_cores_are_assumed_where_only_they_are_fast_and_it_is_said() -> None:
    result = page(built([mm(1, 0, dtype="c10::BFloat16")], [kernel(1, "attn_fwd", 0, 9_000)]))
    (row,) = section(result, "operators")
    assert (row["precision"], row["tensor_core"]) == ("bf16", True)
    assert any("whether Tensor Cores ran" in note for note in result.notes)


# Which operator counts ----------------------------------------------------------------------------


def test_the_innermost_operator_counts_and_once() -> None:
    ops = [
        op(1, "aten::linear", 0, 50, [M, K], [N, K], [N]),
        op(2, "aten::t", 2, 4, [N, K]),
        op(3, "aten::addmm", 10, 40, [N], [M, K], [K, N]),
        op(4, "aten::copy_", 42, 45, [M, N], [M, N]),
    ]
    work = [kernel(3, SIMT, 0, 50_000), kernel(3, SPLIT, 60_000, 5_000), kernel(4, COPY, 70_000, 9)]
    result = page(built(ops, work))
    (row,) = section(result, "operators")
    assert (row["name"], row["calls"], row["flops"]) == ("aten::addmm", 1, MM_FLOPS)
    assert row["gpu_ns"] == 55_000
    assert [(r["name"], r["gpu_ns"]) for r in section(result, "not_counted")] == [
        ("aten::copy_", 9)
    ]
    assert facts(result)["counted_share"] == pytest.approx(55_000 / 55_009)


def test_work_of_helpers_inside_belongs_to_the_operator() -> None:
    ops = [
        op(1, "aten::embedding_dense_backward", 0, 50, [4, 512, 768], [4, 512],
           concrete='["","","10000"]'),
        op(2, "aten::zeros", 5, 20), op(3, "aten::fill_", 8, 15, [10000, 768]),
    ]  # fmt: skip
    work = [kernel(3, "fill", 0, 5_000), kernel(1, "embedding_backward", 6_000, 50_000)]
    (row,) = operators(built(ops, work))
    assert (row["name"], row["gpu_ns"]) == ("aten::embedding_dense_backward", 55_000)


def test_a_backend_without_a_formula_leaves_it_to_the_operator_around() -> None:
    values = '["","","","[1]","[0]","[1]","False","[0]","1"]'
    ops = [
        op(n, name, n, 50 - n, [4, 16, 32, 32], [32, 16, 3, 3], concrete=values)
        for n, name in enumerate(("aten::convolution", "aten::_convolution"), 1)
    ] + [op(3, "aten::_slow_conv2d_forward", 5, 20)]
    (row,) = operators(built(ops, [kernel(3, SIMT, 0, 9_000)]))
    assert (row["name"], row["flops"]) == ("aten::_convolution", 33177600)


def test_a_lookup_inside_does_not_replace_the_arithmetic_around() -> None:
    ops = [mm(1, 0), op(2, "aten::index_select", 1, 3, [M, K], [0], [5], concrete='["","0",""]')]
    rows = operators(built(ops, [kernel(1, SIMT, 0, 50_000), kernel(2, "gather", 60_000, 100)]))
    assert [(r["name"], r["gpu_ns"]) for r in rows] == [
        ("aten::mm", 50_000),
        ("aten::index_select", 100),
    ]


def test_operators_without_gpu_work_do_not_count() -> None:
    rows = operators(built([mm(1, 0), mm(2, 10)], [kernel(1, SIMT, 0, 50_000)]))
    assert [row["calls"] for row in rows] == [1]


def test_what_is_not_counted_says_why() -> None:
    attention = op(5, "vllm::unified_attention", 80, 90, [8, 8, 64], [8, 1, 64], [8, 1, 64])
    ops = [op(1, "aten::add", 0, 5, [4]), op(2, "my::moe", 10, 15), op(3, "triton_poi_0", 20, 25),
           op(4, "c10d::allreduce_", 30, 35), attention]  # fmt: skip
    work = [
        kernel(1, COPY, 0, 500), kernel(2, BF16, 1_000, 400), kernel(2, COPY, 1_500, 50),
        kernel(3, TRITON, 2_000, 300), kernel(4, NCCL, 3_000, 200), kernel(None, SIMT, 4_000, 100),
        kernel(5, "attn_fwd", 5_000, 90),
    ]  # fmt: skip
    result = page(built(ops, work))
    assert [(r["name"], r["gpu_ns"], r["why"]) for r in section(result, "not_counted")] == [
        ("aten::add", 500, "other kind of operator"),
        ("my::moe", 450, "no formula for it is known"),
        ("triton_poi_0", 300, "generated code"),
        ("c10d::allreduce_", 200, "communication"),
        (None, 100, "outside recorded operators"),
        ("vllm::unified_attention", 90, "how many cached keys are looked at is not recorded"),
    ]
    assert facts(result)["tflop"] == 0
    notes = " ".join(result.notes)
    assert "no counted operator" in notes
    assert "36.0% of GPU time: GEMMs" in notes  # 400 + 100 + 90 of 1640
    assert "18.3% of GPU time is in generated code" in notes


# Grouping and selecting ---------------------------------------------------------------------------


def grouped() -> Trace:
    small = op(3, "aten::mm", 30, 35, [256, 256], [256, 256])
    ops = [mm(1, 0), mm(2, 10), small, op(4, "aten::bmm", 40, 45, [2, 64, 64], [2, 64, 64])]
    return built(
        ops, [kernel(k, SIMT if k != 2 else TF32, k * 100_000, 60_000) for k in range(1, 5)]
    )


@pytest.mark.parametrize(
    ("by", "labels"),
    [
        ("shapes", {"mm 1024x1024x1024 fp32", "mm 1024x1024x1024 tf32", "mm 256x256x256 fp32",
                    "bmm 2x64x64x64 fp32"}),
        ("op", {"mm fp32", "mm tf32", "bmm fp32"}),
        ("family", {"matmul fp32", "matmul tf32"}),
    ],
)  # fmt: skip
def test_rows_can_be_grouped(by: str, labels: set[str]) -> None:
    rows = operators(grouped(), by=by)
    assert {row["operator"] for row in rows} == labels
    assert sum(row["flops"] for row in rows) == 2 * MM_FLOPS + 2 * 256**3 + 4 * 64**3


def test_roofs_add_up_whatever_the_grouping() -> None:
    sums = [sum(r["over_roof_ns"] for r in operators(grouped(), by=by)) for by in ("shapes", "op")]
    assert sums[0] == pytest.approx(sums[1])


def test_rows_come_by_the_time_they_could_give_back() -> None:
    over = [row["over_roof_ns"] for row in operators(grouped())]
    assert over == sorted(over, reverse=True)


def test_a_selection_counts_only_what_it_launched() -> None:
    trace = built(
        [mm(1, 0), mm(2, 100)],
        [kernel(1, SIMT, 10, 50, correlation=1), kernel(2, SIMT, 110, 50, correlation=2)],
        api_calls=[{"start_ns": 2, "correlation": 1}, {"start_ns": 102, "correlation": 2}],
        ranges=[{"name": "second", "start_ns": 99, "end_ns": 120}],
    )
    result = page(trace, Selection(within="second"))
    assert facts(result)["tflop"] == pytest.approx(MM_FLOPS / 1e12)
    assert facts(result)["window_ns"] == 160 - 99


# The whole ----------------------------------------------------------------------------------------


def test_utilization_is_of_the_peak_that_most_flops_ran_in() -> None:
    ops = [mm(1, 0), op(2, "aten::mm", 10, 15, [256, 256], [256, 256])]
    result = page(built(ops, [kernel(1, TF32, 0, 50_000), kernel(2, SIMT, 150_000, 50_000)]))
    done = MM_FLOPS + 2 * 256**3
    top = facts(result)
    assert (top["window_ns"], top["gpu_ns"], top["peak_of"]) == (
        200_000,
        100_000,
        "tf32 on Tensor Cores",
    )
    assert top["busy_tflop_per_s"] == pytest.approx(done / 100_000 / 1e3)
    assert top["window_tflop_per_s"] == pytest.approx(done / 200_000 / 1e3)
    assert top["mfu"] == pytest.approx(done / (200e-6 * H200_TF32))


def test_two_gpus_have_two_peaks() -> None:
    work = [kernel(1, SIMT, 0, 50_000, device=0), kernel(2, SIMT, 0, 50_000, device=1)]
    result = page(built([mm(1, 0), mm(2, 10)], work, devices=[{"sm_count": 132}] * 2))
    assert facts(result)["mfu"] == pytest.approx(2 * MM_FLOPS / (50e-6 * 2 * H200_FP32))
    assert "the peak is that of 2 GPUs together" in result.notes


def test_an_unknown_gpu_has_no_roof_unless_it_is_given() -> None:
    trace = built([mm(1, 0)], [kernel(1, SIMT, 0, 50_000)], devices=[{"name": "Foo 9000"}])
    result = page(trace)
    (row,) = section(result, "operators")
    assert row["tflop_per_s"] == pytest.approx(MM_FLOPS / 50_000 / 1e3)
    assert (row["peak_share"], row["roof_share"], row["over_roof_ns"]) == (None, None, None)
    assert "mfu" not in facts(result)
    assert any("of Foo 9000 are unknown; set them with --peak" in note for note in result.notes)
    given = page(trace, peak=100, bandwidth=1000)
    (row,) = section(given, "operators")
    assert row["peak_share"] == pytest.approx(MM_FLOPS / 50e-6 / 100e12)
    assert (row["bandwidth"], facts(given)["peak_of"]) == (1e12, "as given")
    assert facts(given)["mfu"] == pytest.approx(MM_FLOPS / 50e-6 / 100e12)


def test_a_gpu_under_another_number_is_the_only_one_described() -> None:
    trace = built([mm(1, 0)], [kernel(1, SIMT, 0, 50_000, device=2)])
    result = page(trace)
    assert facts(result)["gpus"] == "NVIDIA H200"
    assert "GPU 2 is assumed to be NVIDIA H200" in result.notes


def test_more_than_the_peak_is_shown_and_explained() -> None:
    result = page(built([mm(1, 0)], [kernel(1, SIMT, 0, 20_000)]))
    (row,) = section(result, "operators")
    assert row["peak_share"] == pytest.approx(MM_FLOPS / 20e-6 / H200_FP32)
    assert row["peak_share"] > 1
    assert row["over_roof_ns"] < 0
    assert any(note.startswith("mm 1024x1024x1024 fp32 at 160.5%") for note in result.notes)


def test_what_was_assumed_is_said() -> None:
    shape = [2, 1024, 8, 64]
    attention = op(1, "aten::_flash_attention_forward", 0, 5, *[shape] * 3, dtype="c10::BFloat16")
    result = page(built([attention], [kernel(1, "flash_fwd_kernel", 0, 14_000)]))
    assert any("causal or not" in note for note in result.notes)


# Steps --------------------------------------------------------------------------------------------


def test_steps_last_until_their_gpu_work_is_done() -> None:
    # The host runs ahead: both steps are launched before the first one's work is done.
    trace = built(
        [mm(1, 2), mm(2, 12), mm(3, 14)],
        [kernel(k, SIMT, 100 * k, 90, correlation=k) for k in (1, 2, 3)],
        api_calls=[{"start_ns": t, "correlation": k} for k, t in ((1, 3), (2, 13), (3, 15))],
        ranges=[
            {"name": "ProfilerStep#3", "start_ns": 0, "end_ns": 10},
            {"name": "ProfilerStep#4", "start_ns": 10, "end_ns": 20},
        ],
    )
    rows = section(page(trace), "steps")
    assert [(r["step"], r["number"], r["flops"], r["gpu_ns"]) for r in rows] == [
        ("ProfilerStep#3", 3, MM_FLOPS, 90),
        ("ProfilerStep#4", 4, 2 * MM_FLOPS, 180),
    ]
    assert [(r["span_ns"], r["range_ns"]) for r in rows] == [(190, 10), (200, 10)]
    assert rows[1]["mfu"] == pytest.approx(2 * MM_FLOPS / (200e-9 * H200_FP32))


STEPPED: dict[str, Any] = {
    "ops": [mm(1, 2), mm(2, 12), mm(3, 16)],
    "kernels": [kernel(k, SIMT, 100 * k, 90, correlation=k) for k in (1, 2, 3)],
    "api_calls": [{"start_ns": t, "correlation": k} for k, t in ((1, 3), (2, 13), (3, 17))],
    "ranges": [
        {"name": "all", "start_ns": 0, "end_ns": 20},
        {"name": "ProfilerStep#3", "start_ns": 0, "end_ns": 10},
        {"name": "ProfilerStep#4", "start_ns": 10, "end_ns": 20},
        {"name": "forward", "start_ns": 11, "end_ns": 15},
        {"name": "from the middle", "start_ns": 5, "end_ns": 20},
    ],
}


@pytest.mark.parametrize(
    ("within", "shown"),
    [
        ("all", ["ProfilerStep#3", "ProfilerStep#4"]),
        ("ProfilerStep#*", ["ProfilerStep#3", "ProfilerStep#4"]),
        ("ProfilerStep#4", ["ProfilerStep#4"]),
        ("from the middle", ["ProfilerStep#4"]),
    ],
)
def test_a_selected_step_is_what_it_is_without_the_selection(within: str, shown: list[str]) -> None:
    trace = built(**STEPPED)
    every = {row["step"]: row for row in section(page(trace), "steps")}
    assert section(page(trace, Selection(within=within)), "steps") == [every[s] for s in shown]


def test_parts_of_steps_are_not_held_against_their_whole_time() -> None:
    result = page(built(**STEPPED), Selection(within="forward"))
    steps = result.sections[0]
    assert isinstance(steps, NotApplicable)
    assert "include no whole step" in steps.reason
    assert steps.hint == "select steps: --in 'ProfilerStep#3'"
    assert not any("a step has" in note for note in result.notes)
    assert facts(result)["tflop"] == pytest.approx(MM_FLOPS / 1e12)


def test_recorded_steps_are_selected_whole_or_not_at_all() -> None:
    trace = opened(DATA / "torch_odd.json.gz")
    part = page(trace, Selection(within="forward")).sections[0]
    assert isinstance(part, NotApplicable)
    every = section(page(trace), "steps")
    (row,) = section(page(trace, Selection(within="ProfilerStep#3")), "steps")
    assert row == next(r for r in every if r["number"] == 3)


def test_the_profilers_own_time_is_told_with_the_steps_it_fell_into() -> None:
    own: Row = {"start_ns": 12, "end_ns": 19, "name": "Buffer Request"}
    notes = page(built(**STEPPED, overheads=[own])).notes
    (note,) = [n for n in notes if "profiler" in n and n != AS_RECORDED]
    assert note == f"{RECORDED_OVERHEAD}: 7 ns of the GPU's idle time (in ProfilerStep#4)"
    recorded = page(opened(DATA / "healthy.json.gz")).notes
    assert any("2.753 ms of the GPU's idle time (in train_step 0)" in n for n in recorded)


def test_no_steps_is_a_section_that_says_so() -> None:
    steps = page(grouped()).sections[0]
    assert isinstance(steps, NotApplicable)
    assert steps.command == "steps"


# What cannot be answered --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "reason", "hint"),
    [
        ({"kernels": [{"name": SIMT}]}, "no framework operators", "record_shapes=True"),
        ({"kernels": [{"name": SIMT}], "cpu_ops": [{"name": "aten::mm"}]},
         "input shapes of the operators were not recorded", "record_shapes=True"),
        ({"cpu_ops": [mm(1, 0)]}, "no GPU kernels", "capture"),
    ],
)  # fmt: skip
def test_missing_data_is_explained(tables: dict[str, Any], reason: str, hint: str) -> None:
    result = flops(build_trace(None, **tables))
    assert isinstance(result, NotApplicable)
    assert reason in result.reason
    assert hint in result.hint


@pytest.mark.parametrize(
    "options", [{"by": "colour"}, {"peak": 0}, {"peak": float("nan")}, {"bandwidth": -1}]
)
def test_wrong_requests_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        flops(grouped(), **options)


def test_a_capture_of_nsys_says_where_sizes_come_from() -> None:
    result = flops(opened(DATA / "dataload.sqlite"))
    assert isinstance(result, NotApplicable)
    assert "torch.profiler" in result.hint


# Real captures ------------------------------------------------------------------------------------


def torch_mflops(path: Any) -> dict[str, float]:
    """Read "Total MFLOPs" of the operators, as torch.profiler printed them."""
    lines = path.read_text().splitlines()
    matches = (re.match(r"\s*(aten::\w+) .*\s([\d.]+)\s*$", line) for line in lines)
    return {line[1]: float(line[2]) for line in matches if line}


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        (DATA, "gpt_small_forward"),
        pytest.param(SHARED / "torch", "gpt_small_train", marks=needs_shared),
        pytest.param(SHARED / "torch", "gpt_small_train_bf16_fused", marks=needs_shared),
        pytest.param(SHARED / "torch", "gpt_small_train_stack", marks=needs_shared),
        pytest.param(SHARED / "torch", "gpt_tiny_compile", marks=needs_shared),
    ],
)
def test_flops_are_those_that_torch_counts(folder: Any, name: str) -> None:
    theirs = torch_mflops(folder / f"{name}_key_averages.txt")
    trace = open_trace(folder / f"{name}.json.gz", cache=False)
    frame = pl.DataFrame(operators(trace, by="op"))
    ours = dict(frame.group_by("name").agg(pl.col("flops").sum() / 1e6).iter_rows())
    compared = [op for op in ("aten::mm", "aten::addmm", "aten::bmm") if op in theirs]
    assert compared
    assert {op: round(ours[op], 3) for op in compared} == {op: theirs[op] for op in compared}


TORCH_COUNTS = {
    "sdpa_flash_causal0": 15_032_385_536,
    "sdpa_flash_cross": 7_516_192_768,
    "sdpa_eff_causal0": 15_032_385_536,
    "sdpa_eff_cross": 7_516_192_768,
    "sdpa_cudnn_causal0": 15_032_385_536,
    "sdpa_cudnn_cross": 7_516_192_768,
    "sdpa_math_causal0": 12_884_901_888,
    "sdpa_math_causal1": 12_884_901_888,
    "sdpa_math_cross": 6_442_450_944,
    "sdpa_math_gqa": 25_769_803_776,
    "sdpa_eff_mask": 15_032_385_536,
    "sdpa_eff_fp32": 15_032_385_536,
    "conv2d_basic": 2_774_532_096,
    "conv2d_first": 3_776_446_464,
    "conv2d_cl": 5_549_064_192,
    "conv2d_fp32": 5_549_064_192,
    "conv1d": 979_107_840,
    "conv3d": 2_717_908_992,
    "convT2d": 1_233_125_376,
    "conv2d_slow": 99_532_800,
    "mm_bf16": 2_147_483_648,
    "mm_fp16": 2_147_483_648,
    "mm_fp64": 2_147_483_648,
    "mm_fp32": 2_147_483_648,
    "mm_tf32": 2_147_483_648,
    "scaled_mm": 2_147_483_648,
    "scaled_mm_row": 2_147_483_648,
    "bmm": 536_870_912,
    "baddbmm": 536_870_912,
    "linear3d": 28_991_029_248,
    "einsum": 33_554_432,
}
"""What `torch.utils.flop_counter` counted in ranges of operators.json.gz (PyTorch 2.11, H200)."""
OTHER_COUNTS = {
    # Half of the pairs, where torch counts them all.
    "sdpa_flash_causal1": 15_032_385_536 // 2,
    "sdpa_eff_causal1": 15_032_385_536 // 2,
    "sdpa_cudnn_causal1": 15_032_385_536 // 2,
    # Gradients by group, where torch counts one group; 3 x 2 x elements x channels x 9.
    "conv2d_group": 3 * 2 * (8 * 128 * 52 * 52) * 16 * 9,
    "conv2d_depthwise": 3 * 2 * (8 * 64 * 56 * 56) * 9,
    "convT2d_group": 3 * 2 * (8 * 64 * 28 * 28) * 8 * 9,
    # What torch does not count, or not as complex numbers.
    "mm_c64": 8 * 2048 * 512 * 1024,
    "int_mm": 2 * 2048 * 512 * 1024,
    "grouped_mm_2d3d": 2 * 1024 * 512 * 256,
    "addbmm": 16 * 2 * 256 * 128 * 512,
    "mv": 2 * 4096 * 2048,
    "addmm_act": 2 * 512 * 3072 * 768,
    "embedding": 0,
    "graph": 0,
}


@pytest.fixture(scope="module")
def recorded() -> Trace:
    return opened(DATA / "operators.json.gz")


@pytest.mark.parametrize(("case", "expected"), (TORCH_COUNTS | OTHER_COUNTS).items())
def test_recorded_operators_count_once_whatever_they_run(
    recorded: Trace, case: str, expected: int
) -> None:
    assert page(recorded, Selection(within=f"case:{case}")).meta["flops"] == expected


@pytest.mark.parametrize(
    ("case", "precision", "tensor_core"),
    [
        ("mm_fp32", "fp32", False), ("mm_tf32", "tf32", True), ("mm_bf16", "bf16", True),
        ("mm_fp16", "fp16", True), ("mm_fp64", "fp64", True), ("int_mm", "int8", True),
        ("scaled_mm", "fp8", True), ("sdpa_cudnn_causal0", "bf16", True),
        ("sdpa_flash_cross", "bf16", True), ("conv2d_fp32", "tf32", True),
        ("conv2d_depthwise", "bf16", False), ("grouped_mm_3d3d", "bf16", True),
    ],
)  # fmt: skip
def test_recorded_operators_ran_in_the_precision_of_their_kernels(
    recorded: Trace, case: str, precision: str, tensor_core: bool
) -> None:
    rows = section(page(recorded, Selection(within=f"case:{case}")), "operators")
    assert {(row["precision"], row["tensor_core"]) for row in rows} == {(precision, tensor_core)}


def test_healthy_matmuls_are_near_the_roof() -> None:
    result = page(opened(DATA / "healthy.json.gz"))
    (row,) = section(result, "operators")
    assert (row["operator"], row["calls"]) == ("addmm 8192x4096x4096 bf16", 24)
    assert 600 < row["tflop_per_s"] < 989
    assert row["roof_share"] == row["peak_share"] > 0.8
    steps = section(result, "steps")
    assert [round(step["mfu"], 2) for step in steps[1:]] == [0.75, 0.75, 0.75]


def test_a_window_of_steps_starts_when_the_gpu_is_done_with_earlier_ones() -> None:
    result = gs.flops(DATA / "healthy.json.gz").answer
    steps, whole = section(result, "steps"), facts(result)
    assert whole["window_ns"] == sum(step["span_ns"] for step in steps)
    assert whole["mfu"] == pytest.approx(steps[0]["mfu"], rel=0.001)
    assert whole["gpu_ns"] / whole["window_ns"] == pytest.approx(0.986, abs=0.001)


@needs_shared
def test_a_training_step_of_resnet18() -> None:
    result = page(opened(SHARED / "torch" / "conv.json.gz"))
    # 1.814 G multiply-adds an image, three times, but for the first layer's input gradient.
    first = 2 * 32 * 64 * 112 * 112 * 3 * 49
    assert section(result, "steps")[0]["tflop"] == pytest.approx(
        (32 * 3 * 2 * 1.814e9 - first) / 1e12, rel=0.005
    )
    assert facts(result)["peak_of"] == "tf32 on Tensor Cores"


@needs_shared
@pytest.mark.parametrize("path", sorted((SHARED / "public" / "torch").glob("*.json*")), ids=capture)
def test_every_public_trace_is_answered_or_explained(path: Any) -> None:
    result = flops(opened(path))
    if isinstance(result, NotApplicable):
        assert result.hint
        return
    shares = [facts(result)["counted_share"]] + [
        row["gpu_share"] for row in section(result, "not_counted")
    ]
    assert sum(shares) == pytest.approx(1)


def test_the_default_tables_fit_eighty_columns() -> None:
    result = page(opened(DATA / "healthy.json.gz"))
    assert max(map(len, to_plain(result, TableOptions(80, 20)).splitlines())) <= 80
    assert "no room for" not in to_plain(result, TableOptions(80, 20))


def test_every_field_and_fact_is_documented_once() -> None:
    for fields in (OPERATOR_FIELDS, STEP_FIELDS, REST_FIELDS, FLOPS_FACTS):
        keys = [field.key for field in fields]
        assert len(set(keys)) == len(keys)
        assert all(field.meaning for field in fields)
