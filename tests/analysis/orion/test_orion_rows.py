"""Which row of the kernel-info file a launch goes to, and under which name."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from gpusight.analysis.orion.orion_rows import OrionRole, group, merged_profile, role_of, row_name
from tests.analysis.orion.orion_reports import (
    BN,
    CONV,
    GEMM,
    RELU,
    SPLIT_K,
    TO_NCHW,
    TO_NHWC,
    built,
    facts,
    launch,
    lines,
    section,
)
from tests.shared import SHARED, needs_shared, opened


@pytest.mark.parametrize(
    ("name", "role"),
    [
        (CONV, OrionRole.CONVOLUTION),
        ("volta_scudnn_128x64_relu_medium_nn_v1", OrionRole.CONVOLUTION),
        ("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", OrionRole.CONVOLUTION),
        ("turing_fp16_s1688cudnn_fp16_256x64_ldg8_relu_f2f_nhwc_tn_v1", OrionRole.CONVOLUTION),
        ("void implicit_convolve_sgemm<float, float, 128, 5, 5>(int)", OrionRole.CONVOLUTION),
        ("void cudnn::detail::dgrad_engine<float, 512>(int)", OrionRole.CONVOLUTION),
        ("void cudnn::cnn::wgrad_alg0_engine<float, 512, 6>(int)", OrionRole.CONVOLUTION),
        (
            "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32>(T1)",
            OrionRole.CONVOLUTION,
        ),
        (TO_NHWC, OrionRole.HELPER),
        (TO_NCHW, OrionRole.HELPER),
        ("void cudnn::winograd::generateWinogradTilesKernel<0, float>(T2)", OrionRole.HELPER),
        ("void cudnn::winograd_nonfused::winogradForwardOutput4x4<float>(T2)", OrionRole.HELPER),
        ("void cudnn::cnn::im2col4d_kernel<float, long>(T1)", OrionRole.HELPER),
        ("void fft2d_r2c_32x32<float, 0, 0>(float2 *)", OrionRole.HELPER),
        ("void cask_cudnn::computeOffsetsKernel<0, 0>(x)", OrionRole.HELPER),
        ("void cask_plugin__5x_cudnn::init_device_workspace_kernel<x>(T1, bool)", OrionRole.HELPER),
        (BN, OrionRole.BATCH_NORM),
        ("void cudnn::batchnorm_fwtr_nhwc_semiPersist<__half, float>(x)", OrionRole.BATCH_NORM),
        ("void at::native::batch_norm_collect_statistics_kernel<float>(x)", OrionRole.BATCH_NORM),
        # PyTorch launches these itself, so each is a call of its own.
        ("void at::native::conv_depthwise2d_forward_kernel<3, float>(x)", OrionRole.OTHER),
        ("void at::native::im2col_kernel<float>(long)", OrionRole.OTHER),
        (RELU, OrionRole.OTHER),
        ("cudnn_generated_fort_native_sdpa_sm100_flash_fprop_f16_knob_7", OrionRole.OTHER),
        ("conv2d_naive(float const*, float*, int)", OrionRole.OTHER),
        ("my_memcpy_kernel(float*, float*)", OrionRole.OTHER),
        (GEMM, OrionRole.GEMM),
        (SPLIT_K, OrionRole.SPLIT_K),
        ("[CUDA memcpy HtoD]", OrionRole.MEMORY),
        ("Memset (Device)", OrionRole.MEMORY),
    ],
)
def test_roles(name: str, role: OrionRole) -> None:
    assert role_of(name, "bert") is role


@pytest.mark.parametrize(
    ("name", "in_vision"),
    [
        ("volta_sgemm_128x64_nn", OrionRole.CONVOLUTION),
        ("volta_sgemm_128x64_nt", OrionRole.CONVOLUTION),
        ("volta_sgemm_128x64_tn", OrionRole.GEMM),
        ("volta_sgemm_64x64_nn", OrionRole.GEMM),
        ("ampere_sgemm_128x64_nn", OrionRole.GEMM),
    ],
)
def test_products_that_are_convolutions_of_1_x_1_on_volta(name: str, in_vision: OrionRole) -> None:
    assert role_of(name, "vision") is in_vision
    assert role_of(name, "bert") is OrionRole.GEMM


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (RELU, "void at::native::vectorized_elementwise_kernel"),
        (
            "void at::<unnamed>::max_pool<float, int>(T2)",
            "void at::(anonymous namespace)::max_pool",
        ),
        ("<unnamed>::g<int, 3>(x)", "(anonymous namespace)::g"),
        ("(anonymous namespace)::f(int, float)", "(anonymous namespace)::f"),
        ("copy(const float *, float *, int)", "copy"),
        ("f(int)", "f(int)"),
        (GEMM, GEMM),
        ("a\nb<int>", "a b"),
        ("", "unnamed"),
    ],
)
def test_names_in_the_file(name: str, written: str) -> None:
    assert row_name(name) == written


def shape(names: list[str], model_type: str = "vision", helpers: str = "next") -> list[Any]:
    return [(row.name, row.launches) for row in group(names, model_type, helpers).rows]


def test_helpers_go_to_the_convolution_that_follows() -> None:
    names = [TO_NHWC, TO_NHWC, CONV, TO_NCHW, BN, RELU, TO_NHWC, CONV]
    relu = row_name(RELU)
    bn = ("BatchNorm", [4])
    assert shape(names) == [("Conv", [0, 1, 2]), bn, (relu, [5]), ("Conv", [3, 6, 7])]
    assert shape(names, helpers="own") == [
        ("Conv", [0, 1, 2, 3]),
        bn,
        (relu, [5]),
        ("Conv", [6, 7]),
    ]


def test_the_last_helper_goes_to_its_own_convolution_or_stays() -> None:
    assert shape([CONV, TO_NCHW]) == [("Conv", [0, 1])]
    alone = group([RELU, TO_NHWC, RELU], "vision")
    assert [row.launches for row in alone.rows] == [[0], [1], [2]]
    assert alone.without_convolution == [1]


def test_the_second_half_of_a_convolution_is_part_of_it() -> None:
    first = "sm90_xmma_wgrad_indexed_implicit_gemm_f32_execute_segment_k_on_kernel__5x_cudnn"
    second = "sm90_xmma_wgrad_indexed_implicit_gemm_f32_execute_split_k_kernel__5x_cudnn"
    assert shape([first, second, TO_NCHW, CONV]) == [("Conv", [0, 1]), ("Conv", [2, 3])]


def test_a_product_that_cudnn_prepared_is_a_convolution_in_vision_models() -> None:
    assert shape([TO_NHWC, GEMM, GEMM]) == [("Conv", [0, 1]), (GEMM, [2])]
    assert [r.launches for r in group([TO_NHWC, GEMM], "bert").rows] == [[0], [1]]


def test_products_of_one_fourier_transform_are_one_convolution() -> None:
    spectra = "volta_gcgemm_32x32_nt"
    assert shape(["void fft2d_r2c_32x32<float>(x)", spectra, spectra]) == [("Conv", [0, 1, 2])]


def test_split_k_is_merged_for_transformers_and_left_out_else() -> None:
    names = [GEMM, SPLIT_K, RELU, SPLIT_K]
    merged = group(names, "transformer")
    assert [row.launches for row in merged.rows] == [[0, 1], [2]]
    assert merged.left_out == {3: "split-K reduce"}
    assert group(names, "bert").left_out == {1: "split-K reduce", 3: "split-K reduce"}


@pytest.mark.parametrize("model_type", ["vision", "bert", "transformer"])
@pytest.mark.parametrize("helpers", ["next", "own"])
def test_no_launch_is_lost(model_type: str, helpers: str) -> None:
    names = [TO_NCHW, SPLIT_K, "[CUDA memset]", GEMM, SPLIT_K, TO_NHWC, GEMM, BN, CONV, TO_NCHW]
    result = group(names, model_type, helpers)
    placed = [at for row in result.rows for at in row.launches]
    assert sorted([*placed, *result.left_out]) == list(range(len(names)))


@pytest.mark.parametrize(
    ("profiles", "main", "merged"),
    [
        ([-1, -1], -1, -1),
        ([0, -1], -1, 0),
        ([1, -1, 1], -1, 1),
        ([0, 1], 1, 1),
        ([0, 1], 0, 0),
        ([0, 1, -1], -1, -1),
    ],
)
def test_classes_of_merged_launches(profiles: list[int], main: int, merged: int) -> None:
    assert merged_profile(profiles, main) == merged


def test_a_merged_row_has_the_most_sms_and_all_of_the_time() -> None:
    result = built(
        launch(TO_NHWC, grid=6400, duration=10.5),
        launch(CONV, grid=64, duration=30.0),
        launch("[CUDA memset]", duration=5),
        launch("f(int, float)", duration=1),
    )
    assert result.text.splitlines()[0] == "Name,Profile,Memory_footprint,SM_usage,Duration"
    assert lines(result) == [["Conv", "-1", "0", "800", "40.5"], ["f", "-1", "0", "125", "1"]]
    values = facts(result.summary)
    assert (values["rows"], values["launches"], values["merged"], values["left_out"]) == (
        2,
        4,
        1,
        1,
    )
    assert values["total_ns"] + values["left_out_ns"] == 46.5
    assert section(result.summary, "launches")["row"].to_list() == [0, 0, None, 1]


def test_seven_columns() -> None:
    result = built(launch(TO_NHWC), launch(CONV, grid=64, block=128), columns=7)
    assert result.text.splitlines()[0].endswith(",Duration,Block,Grid")
    assert lines(result) == [["Conv", "-1", "0", "125", "20", "128", "64"]]


@needs_shared
def test_a_training_step_has_a_row_for_every_call() -> None:
    """ResNet-18 has 20 convolutions: 20 forward, 20 for weights, 19 for inputs; ten steps."""
    trace = opened(SHARED / "nsys" / "conv.sqlite")
    names = trace.table("kernels", ["name"])["name"].cast(pl.String).to_list()
    rows = [row.name for row in group(names, "vision").rows]
    assert rows.count("Conv") == 590
    assert rows.count("BatchNorm") == 400
