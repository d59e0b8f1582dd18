"""What operators cost, from inputs as PyTorch 2.11 on an H200 recorded them.

The FLOPs beside a case are what `torch.utils.flop_counter` counted for the same call, where it
counts it rightly: it takes causal attention as full and groups of gradients as one.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusight.analysis.flops.operator_cost import FORMULAS, cost_of, has_formula
from gpusight.analysis.flops.operator_inputs import FAMILIES, OperatorCost, UnknownCost
from tests.shared import REPOSITORY

BF16, FP16, FP32, FP64, LONG = "c10::BFloat16", "c10::Half", "float", "double", "long int"
FP8, INT8, COMPLEX = "c10::Float8_e4m3fn", "signed char", "c10::complex<float>"


def count(
    name: str, args: list[Any], types: str = BF16, strides: list[Any] | None = None
) -> OperatorCost | UnknownCost | None:
    """Cost of a call: lists are tensors, text is a value, None an argument left out.

    A tensor is a list of sizes, of the type given for all, or (type, sizes).
    """
    shapes, kinds, values = [], [], []
    for arg in args:
        tensor = isinstance(arg, (list, tuple))
        kind, shape = arg if isinstance(arg, tuple) else (types, arg)
        shapes.append(shape if tensor else [])
        kinds.append(kind if tensor else "" if arg is None else "Scalar")
        values.append(arg if isinstance(arg, str) else "")
    inputs = [json.dumps(part) for part in (shapes, kinds, values, strides or [])]
    return cost_of(name, *inputs)


def cost(name: str, args: list[Any], types: str = BF16, **more: Any) -> OperatorCost:
    operator_cost = count(name, args, types, **more)
    assert isinstance(operator_cost, OperatorCost), operator_cost
    return operator_cost


# Matrix products ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "flops", "read", "written", "sizes"),
    [
        ("aten::mm", [[2048, 1024], [1024, 512]], 2147483648, 5242880, 2097152, "2048x512x1024"),
        ("aten::addmm", [[3072], [2048, 768], [768, 3072], "1", "1"],
         9663676416, 7870464, 12582912, "2048x3072x768"),
        ("aten::addmm_", [[512, 3072], [512, 768], [768, 3072], "1", "1"],
         2415919104, 8650752, 3145728, "512x3072x768"),
        ("aten::_addmm_activation", [[3072], [512, 768], [768, 3072], "1", "1", "True"],
         2415919104, 5511168, 3145728, "512x3072x768"),
        ("aten::bmm", [[16, 256, 128], [16, 128, 512]],
         536870912, 3145728, 4194304, "16x256x512x128"),
        ("aten::baddbmm", [[16, 256, 512], [16, 256, 128], [16, 128, 512], "1", "1"],
         536870912, 7340032, 4194304, "16x256x512x128"),
        ("aten::mv", [[4096, 2048], [2048]], 16777216, 16781312, 8192, "4096x1x2048"),
        ("aten::addmv_", [[4096], [4096, 2048], [2048], "0", "1"],
         16777216, 16789504, 8192, "4096x1x2048"),
        ("aten::dot", [[4096], [4096]], 8192, 16384, 2, "1x1x4096"),
        ("aten::linear", [[4, 512, 768], [3072, 768], [3072]],
         9663676416, 7870464, 12582912, "2048x3072x768"),
        ("aten::matmul", [[4096, 2048], [2048]], 16777216, 16781312, 8192, "4096x1x2048"),
        ("aten::matmul", [[2, 1, 128, 64], [4, 64, 256]],
         33554432, 163840, 524288, "8x128x256x64"),
    ],
)  # fmt: skip
def test_matrix_products(
    name: str, args: list[Any], flops: int, read: int, written: int, sizes: str
) -> None:
    operator_cost = cost(name, args)
    assert (operator_cost.family, operator_cost.precision, operator_cost.sizes) == (
        "matmul",
        "bf16",
        sizes,
    )
    assert (operator_cost.flops, operator_cost.read_bytes, operator_cost.written_bytes) == (
        flops,
        read,
        written,
    )


@pytest.mark.parametrize(
    ("name", "args", "types", "precision", "written"),
    [
        ("aten::mm", [[2048, 1024], [1024, 512]], FP64, "fp64", 8388608),
        ("aten::mm", [[2048, 1024], [1024, 512]], FP16, "fp16", 2097152),
        ("aten::_int_mm", [[2048, 1024], [1024, 512]], INT8, "int8", 4194304),
        # out_dtype 15 is bfloat16; older versions had it before the scales.
        ("aten::_scaled_mm", [[2048, 1024], [1024, 512], (FP32, []), (FP32, []), None, None, "15",
                              "False"], FP8, "fp8", 2097152),
        ("aten::_scaled_mm", [[2048, 1024], [1024, 512], None, "15", (FP32, []), (FP32, []), None,
                              "False"], FP8, "fp8", 2097152),
        ("aten::_scaled_mm_v2", [[2048, 1024], [1024, 512], "", "[0]", "[]", "", "[0]", "[]", None,
                                 "15", "[]", "False"], FP8, "fp8", 2097152),
        ("fbgemm::f8f8bf16_rowwise", [[2048, 1024], [512, 1024], (FP32, [2048])],
         FP8, "fp8", 2097152),
        ("_C::cutlass_scaled_mm", [(BF16, [2048, 512]), [2048, 1024], [1024, 512]],
         FP8, "fp8", 2097152),
        ("aten::_weight_int8pack_mm", [[2048, 1024], (INT8, [512, 1024]), [512]],
         BF16, "bf16", 2097152),
        ("aten::_weight_int4pack_mm", [[2048, 1024], ("int", [64, 8, 32, 4]), "32"],
         BF16, "bf16", 2097152),
    ],
)  # fmt: skip
def test_types_of_products(
    name: str, args: list[Any], types: str, precision: str, written: int
) -> None:
    operator_cost = cost(name, args, types)
    assert (operator_cost.flops, operator_cost.precision, operator_cost.written_bytes) == (
        2147483648,
        precision,
        written,
    )


def test_a_complex_multiply_add_is_eight_operations() -> None:
    operator_cost = cost("aten::mm", [[2048, 1024], [1024, 512]], COMPLEX)
    assert (operator_cost.flops, operator_cost.precision) == (4 * 2147483648, "complex")


@pytest.mark.parametrize(
    ("a", "b", "flops", "written"),
    [
        ([1024, 512], [4, 512, 256], 2 * 1024 * 512 * 256, 1024 * 256),
        ([4, 256, 512], [4, 512, 256], 2 * 4 * 256 * 512 * 256, 4 * 256 * 256),
        ([4, 256, 512], [512, 1024], 2 * 256 * 512 * 1024, 256 * 1024),
        ([256, 1024], [1024, 512], 2 * 256 * 1024 * 512, 4 * 256 * 512),
    ],
)
def test_products_by_group(a: list[int], b: list[int], flops: int, written: int) -> None:
    operator_cost = cost("aten::_grouped_mm", [a, b, ("int", [4]), None, None])
    assert (operator_cost.flops, operator_cost.written_bytes) == (flops, 2 * written)
    assert "every row" in operator_cost.assumed


def test_an_expanded_input_is_read_once() -> None:
    grad = cost(
        "aten::mm", [[32, 1000], [1000, 512]], FP32, strides=[[0, 0], [512, 1]]
    )  # the gradient of a mean
    assert grad.read_bytes == 4 * (1 + 1000 * 512)


# Convolutions -------------------------------------------------------------------------------------

NCHW, KERNEL = [8, 64, 56, 56], [128, 64, 3, 3]
STRIDE = ["[2, 2]", "[1, 1]", "[1, 1]"]


@pytest.mark.parametrize(
    ("name", "args", "flops", "read", "written"),
    [
        # One convolution as every layer of PyTorch records it.
        ("aten::conv2d", [NCHW, KERNEL, [128], *STRIDE, "1"], 924844032, 3358976, 1605632),
        ("aten::convolution", [NCHW, KERNEL, [128], *STRIDE, "False", "[0, 0]", "1"],
         924844032, 3358976, 1605632),
        ("aten::_convolution", [NCHW, KERNEL, [128], *STRIDE, "False", "[0, 0]", "1", "False",
                                "False", "True", "True"], 924844032, 3358976, 1605632),
        ("aten::cudnn_convolution", [NCHW, KERNEL, "[1, 1]", "[2, 2]", "[1, 1]", "1", "False",
                                     "False", "True"], 924844032, 3358720, 1605632),
        ("aten::miopen_convolution", [NCHW, KERNEL, None, "[1, 1]", "[2, 2]", "[1, 1]", "1",
                                      "False", "False"], 924844032, 3358720, 1605632),
        # Groups, dilation, one and three dimensions.
        ("aten::convolution", [NCHW, [128, 16, 3, 3], None, "[1, 1]", "[0, 0]", "[2, 2]", "False",
                               "[0, 0]", "4"], 797442048, 3248128, 5537792),
        ("aten::convolution", [NCHW, [64, 1, 3, 3], None, "[1, 1]", "[1, 1]", "[1, 1]", "False",
                               "[0, 0]", "64"], 28901376, 3212416, 3211264),
        ("aten::conv1d", [[8, 64, 1000], [128, 64, 5], None, "[2]", "[0]", "[1]", "1"],
         326369280, 1105920, 1019904),
        ("aten::conv3d", [[2, 16, 16, 32, 32], [32, 16, 3, 3, 3], None, "[1]", "[1]", "[1]", "1"],
         905969664, 1076224, 2097152),
        # Transposed: every input element meets the whole kernel.
        ("aten::conv_transpose2d", [[8, 64, 28, 28], [64, 32, 4, 4], [32], "[2, 2]", "[1, 1]",
                                    "[0, 0]", "1", "[1, 1]"], 411041792, 868416, 1605632),
        ("aten::cudnn_convolution_transpose",
         [[8, 64, 28, 28], [64, 8, 3, 3], "[0, 0]", "[1, 1]", "[2, 2]", "[2, 2]", "4", "False",
          "False", "True"], 57802752, 812032, 1843200),
        # Gradients: one more convolution for each that is asked for.
        ("aten::convolution_backward",
         [[8, 128, 28, 28], NCHW, KERNEL, "[128]", *STRIDE, "False", "[0, 0]", "1",
          "[True, True, True]"], 1849688064, 4964352, 3358976),
        ("aten::convolution_backward",
         [[8, 64, 112, 112], [8, 3, 224, 224], [64, 3, 7, 7], "[0]", "[2, 2]", "[3, 3]", "[1, 1]",
          "False", "[0, 0]", "1", "[False, True, False]"], 1888223232, 15253504, 18816),
        ("aten::convolution_backward",
         [[8, 32, 56, 56], [8, 64, 28, 28], [64, 32, 4, 4], "[32]", "[2, 2]", "[1, 1]", "[1, 1]",
          "True", "[0, 0]", "1", "[True, True, True]"], 822083584, 2473984, 868416),
        ("aten::convolution_backward",
         [[8, 128, 52, 52], NCHW, [128, 16, 3, 3], "[0]", "[1, 1]", "[0, 0]", "[2, 2]", "False",
          "[0, 0]", "4", "[True, True, False]"], 1594884096, 8785920, 3248128),
    ],
)  # fmt: skip
def test_convolutions(name: str, args: list[Any], flops: int, read: int, written: int) -> None:
    operator_cost = cost(name, args)
    assert (operator_cost.family, operator_cost.precision) == ("convolution", "bf16")
    assert (operator_cost.flops, operator_cost.read_bytes, operator_cost.written_bytes) == (
        flops,
        read,
        written,
    )


def test_the_sizes_of_a_convolution_name_input_weight_and_stride() -> None:
    args = [NCHW, KERNEL, None, *STRIDE, "1"]
    assert cost("aten::conv2d", args).sizes == "8x64x56x56 * 128x64x3x3 /2"


def test_without_values_a_convolution_is_not_counted_but_its_gradients_are() -> None:
    forward = count("aten::cudnn_convolution", [NCHW, KERNEL])
    assert isinstance(forward, UnknownCost)
    assert "stride" in forward.reason
    backward = cost("aten::cudnn_convolution_backward", [NCHW, [8, 128, 28, 28], KERNEL])
    assert (backward.flops, "mask" in backward.assumed) == (1849688064, True)


# Attention ----------------------------------------------------------------------------------------

FULL = 4 * 2 * 8 * 1024 * 1024 * 64
HEADS_FIRST, SEQUENCE_FIRST = [2, 8, 1024, 64], [2, 1024, 8, 64]


def attention(name: str, causal: bool) -> list[Any]:
    """The arguments of each attention over 2 x 8 heads, 1024 queries and keys, 64 wide."""
    bhsd, bshd, flag = [HEADS_FIRST] * 3, [SEQUENCE_FIRST] * 3, str(causal)
    lse, seed = (FP32, [2, 8, 1024]), (LONG, list[int]())
    arguments: dict[str, list[Any]] = {
        "aten::scaled_dot_product_attention": [*bhsd, None, "0.", flag, None, "False"],
        "aten::_scaled_dot_product_flash_attention": [*bhsd, "0.", flag, "False", "0.125"],
        "aten::_scaled_dot_product_efficient_attention": [*bhsd, None, "True", "0.", flag, None],
        "aten::_scaled_dot_product_cudnn_attention": [
            *bhsd, None, "True", "0.", flag, "False", None],
        "aten::_flash_attention_forward": [
            *bshd, None, None, "1024", "1024", "0.", flag, "False", "0.125", None, None, None,
            None],
        "aten::_efficient_attention_forward": [
            *bshd, None, None, None, None, None, "0.", str(int(causal)), "True", None, None, None],
        "aten::_cudnn_attention_forward": [
            *bhsd, None, None, None, "1024", "1024", "True", "0.", flag, "False", None],
        "flash_attn::_flash_attn_forward": [
            *bshd, "0.", "0.125", flag, "-1", "-1", "0.", None, "False"],
        "xformers_flash::flash_fwd": [
            *bshd, None, None, None, "1024", "1024", "0.", "0.125", flag, "-1", "-1", "False"],
        "xformers::efficient_attention_forward_cutlass": [
            *bshd, None, None, None, None, "0.", "True", str(int(causal)), None, None, None],
        "aten::_scaled_dot_product_flash_attention_backward": [
            HEADS_FIRST, *bhsd, HEADS_FIRST, lse, None, None, "1024", "1024", "0.", flag, seed,
            seed, "0.125"],
        "aten::_flash_attention_backward": [
            SEQUENCE_FIRST, *bshd, SEQUENCE_FIRST, lse, None, None, "1024", "1024", "0.", flag,
            (LONG, [2]), seed, "0.125", None, None],
        "aten::_scaled_dot_product_efficient_attention_backward": [
            HEADS_FIRST, *bhsd, None, HEADS_FIRST, lse, seed, seed, "0.",
            "[True, True, True, False]", flag, None],
        "aten::_efficient_attention_backward": [
            SEQUENCE_FIRST, *bshd, None, SEQUENCE_FIRST, None, None, "8", "8", lse, "0.", seed,
            seed, str(int(causal)), "False", None, None, None, "False"],
        "aten::_cudnn_attention_backward": [
            HEADS_FIRST, *bhsd, HEADS_FIRST, (FP32, [2, 8, 1024, 1]), seed, seed, None, None, None,
            "1024", "1024", "0.", flag, None],
        "flash_attn::_flash_attn_backward": [
            SEQUENCE_FIRST, *bshd, SEQUENCE_FIRST, lse, None, None, None, "0.", "0.125", flag,
            "-1", "-1", "0.", None, "False", (LONG, [2])],
    }  # fmt: skip
    return arguments[name]


FORWARD = [
    "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_flash_attention_forward",
    "aten::_efficient_attention_forward",
    "aten::_cudnn_attention_forward",
    "flash_attn::_flash_attn_forward",
    "xformers_flash::flash_fwd",
    "xformers::efficient_attention_forward_cutlass",
]
BACKWARD = [
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_flash_attention_backward",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_efficient_attention_backward",
    "aten::_cudnn_attention_backward",
    "flash_attn::_flash_attn_backward",
]


@pytest.mark.parametrize("name", FORWARD)
def test_attention_forward_is_two_products_and_half_of_them_when_causal(name: str) -> None:
    whole, half = (cost(name, attention(name, causal)) for causal in (False, True))
    assert (whole.flops, half.flops) == (FULL, FULL // 2)
    assert (whole.sizes, half.sizes) == ("2x8x1024x64", "2x8x1024x64 causal")
    assert (whole.read_bytes, whole.written_bytes) == (6291456, 2097152)
    assert whole.assumed == ""


@pytest.mark.parametrize("name", BACKWARD)
def test_attention_backward_is_five_products(name: str) -> None:
    whole, half = (cost(name, attention(name, causal)) for causal in (False, True))
    assert (whole.flops, half.flops) == (FULL * 5 // 2, FULL * 5 // 4)
    assert (whole.read_bytes, whole.written_bytes) == (10485760, 6291456)


def flash(q: list[int], k: list[int], *rest: str | None) -> OperatorCost:
    return cost("flash_attn::_flash_attn_forward", [q, k, k, "0.", "0.125", *rest])


def test_shared_key_heads_do_not_save_operations_but_bytes() -> None:
    grouped = flash([2, 1024, 8, 128], [2, 1024, 2, 128], "True", "-1", "-1")
    assert (grouped.flops, grouped.read_bytes) == (4294967296, 6291456)


@pytest.mark.parametrize(
    ("queries", "keys", "rest", "pairs"),
    [
        (512, 1024, ["False", "-1", "-1"], 512 * 1024),
        # The last query sees all keys: 1024 + 1023 + … + 513.
        (512, 1024, ["True", "-1", "-1"], 512 * 1024 - 512 * 511 // 2),
        (1, 1024, ["True", "-1", "-1"], 1024),
        # A window: each query sees itself and the two before, but for the first ones.
        (8, 8, ["True", "2", "0"], 1 + 2 + 3 * 6),
        (8, 8, ["False", "1", "1"], 2 + 3 * 6 + 2),
        (8, 8, ["False", "100", "100"], 64),
    ],
)
def test_pairs_that_are_looked_at(queries: int, keys: int, rest: list[str], pairs: int) -> None:
    assert flash([1, queries, 1, 64], [1, keys, 1, 64], *rest).flops == 4 * 64 * pairs


def test_causal_from_the_top_left_looks_at_fewer() -> None:
    q, k = [1, 1, 4, 64], [1, 1, 8, 64]
    name = "aten::scaled_dot_product_attention"
    assert cost(name, [q, k, k, None, "0.", "True"]).flops == 4 * 64 * (1 + 2 + 3 + 4)


def packed(total_q: int, total_k: int, longest_q: int, longest_k: int, causal: str) -> list[Any]:
    ends = ("int", [4])
    q, k = [total_q, 8, 64], [total_k, 8, 64]
    numbers = [str(longest_q), str(longest_k)]
    return [q, k, k, ends, ends, *numbers, "0.", causal, "False", None, "-1", "-1"]


@pytest.mark.parametrize(
    ("sizes", "causal", "pairs", "assumed"),
    [
        ((1500, 1500, 500, 500), "False", 3 * 500 * 500, False),
        ((1500, 1500, 500, 500), "True", 3 * 500 * 500 / 2, False),
        ((3, 1000, 1, 500), "True", 1000, False),
        ((900, 900, 500, 500), "False", 900 * 900 / 3, True),
    ],
)
def test_packed_sequences(
    sizes: tuple[int, int, int, int], causal: str, pairs: float, assumed: bool
) -> None:
    operator_cost = cost("aten::_flash_attention_forward", packed(*sizes, causal))
    assert (operator_cost.flops, "least it can be" in operator_cost.assumed) == (
        4 * 8 * 64 * pairs,
        assumed,
    )


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten::_flash_attention_forward", packed(700, 1000, 400, 500, "True")),
        ("flash_attn::_flash_attn_varlen_forward",
         [[32, 8, 64], [900, 16, 8, 64], [900, 16, 8, 64], ("int", [33]), ("int", [33]), "1", "9"]),
        ("vllm::unified_attention_with_output", [[888, 8, 64], [888, 1, 64], [888, 1, 64]]),
    ],
)  # fmt: skip
def test_what_depends_on_unrecorded_lengths_is_not_guessed(name: str, args: list[Any]) -> None:
    operator_cost = count(name, args)
    assert isinstance(operator_cost, UnknownCost)
    assert "not recorded" in operator_cost.reason


def test_without_values_all_pairs_are_counted_and_it_is_said() -> None:
    operator_cost = cost("aten::_flash_attention_forward", [SEQUENCE_FIRST] * 3)
    assert (operator_cost.flops, "causal or not" in operator_cost.assumed) == (FULL, True)


# Embeddings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "read", "written"),
    [
        ("aten::embedding", [[10000, 768], (LONG, [4, 512]), "-1"],
         2048 * (768 * 2 + 8), 2048 * 768 * 2),
        ("aten::embedding", [[100, 768], (LONG, [4, 512]), "-1"],
         100 * 768 * 2 + 2048 * 8, 2048 * 768 * 2),
        ("aten::index_select", [[10000, 768], "0", (LONG, [2048])],
         2048 * (768 * 2 + 8), 2048 * 768 * 2),
        ("aten::index_select", [[10, 768], "-1", (LONG, [100])],
         10 * 100 * 2 + 100 * 8, 10 * 100 * 2),
        ("aten::_embedding_bag", [[10000, 768], (LONG, [2048]), (LONG, [512]), "False", "0",
                                  "False", None, "False", "-1"],
         2048 * (768 * 2 + 8), 512 * 768 * 2),
        ("aten::embedding_dense_backward", [[4, 512, 768], (LONG, [4, 512]), "10000", "-1"],
         2048 * (768 * 2 + 8), 10000 * 768 * 2),
    ],
)  # fmt: skip
def test_embeddings_only_move_bytes(name: str, args: list[Any], read: int, written: int) -> None:
    operator_cost = cost(name, args)
    assert (operator_cost.family, operator_cost.flops) == ("embedding", 0)
    assert (operator_cost.read_bytes, operator_cost.written_bytes) == (read, written)


# What is not known --------------------------------------------------------------------------------


def test_other_operators_are_not_counted() -> None:
    assert count("aten::add", [[4, 4], [4, 4]]) is None
    assert not has_formula("aten::add")
    assert has_formula("aten::addmm_")


def test_without_types_the_bytes_are_unknown_but_not_the_flops() -> None:
    operator_cost = cost_of("aten::mm", "[[32,1000],[1000,2048]]", "[]")
    assert isinstance(operator_cost, OperatorCost)
    assert (operator_cost.flops, operator_cost.precision) == (2 * 32 * 1000 * 2048, None)
    assert (operator_cost.read_bytes, operator_cost.written_bytes) == (None, None)


@pytest.mark.parametrize("shapes", [None, "", "[]", "[[]", "{}", "null"])
def test_missing_sizes_are_a_reason(shapes: str | None) -> None:
    operator_cost = cost_of("aten::mm", shapes)
    assert isinstance(operator_cost, UnknownCost)
    assert "no sizes" in operator_cost.reason


@pytest.mark.parametrize(
    "shapes",
    ["[[2,3],[4,5]]", "[[2,3]]", '[[2,"x"],[3,4]]', "[[2,-3],[-3,4]]", "[[true,2],[2,3]]",
     "[[[2,3]],[3,4]]", "[[2.5,3],[3,4]]"],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_a_reason(shapes: str) -> None:
    operator_cost = cost_of("aten::mm", shapes, '["float","float"]')
    assert isinstance(operator_cost, UnknownCost)
    assert "do not fit" in operator_cost.reason


def test_sizes_beyond_any_gpu_are_a_reason() -> None:
    huge = json.dumps([[1 << 40, 1 << 40], [1 << 40, 1 << 40]])
    operator_cost = cost_of("aten::mm", huge, '["float","float"]')
    assert isinstance(operator_cost, UnknownCost)
    assert "no sense" in operator_cost.reason


ANYTHING: st.SearchStrategy[object] = st.sampled_from(
    [None, True, -3, 1.5, 10**30, "x", {}, {"a": []}, [[1]], [None, "1"]]
)
SIZES = st.lists(st.lists(st.integers(0, 8), max_size=5) | ANYTHING, max_size=18)
TYPES = st.lists(st.sampled_from([BF16, FP32, LONG, "Scalar", "", "?"]) | ANYTHING, max_size=18)
VALUES = st.lists(
    st.sampled_from(["", "True", "False", "0", "1", "-2", "[1, 1]", "[0]", "[True, True, False]"])
    | ANYTHING,
    max_size=18,
)


@given(st.sampled_from(sorted(FORMULAS)), SIZES, TYPES, VALUES, SIZES)
def test_no_input_breaks_a_formula(
    name: str, shapes: object, types: object, concrete: object, strides: object
) -> None:
    operator_cost = cost_of(
        name, *(json.dumps(part) for part in (shapes, types, concrete, strides))
    )
    if isinstance(operator_cost, OperatorCost):
        assert operator_cost.family in FAMILIES
        assert (
            min(
                operator_cost.flops, operator_cost.read_bytes or 0, operator_cost.written_bytes or 0
            )
            >= 0
        )
    else:
        assert isinstance(operator_cost, UnknownCost)


def test_every_formula_is_documented() -> None:
    page = (REPOSITORY / "docs" / "flops.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w:]+)`", page))
    never_known = {name for name in FORMULAS if name.startswith("vllm::unified")}
    names = {name.removeprefix("aten::") for name in set(FORMULAS) - never_known}
    assert names - named == set()
