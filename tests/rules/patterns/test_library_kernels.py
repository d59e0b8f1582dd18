"""Advice for kernels that are not the program's own."""

from __future__ import annotations

import pytest

from gpusight.rules.finding import Confidence, KernelFinding
from gpusight.rules.patterns.library_kernels import advise_on_library
from gpusight.rules.rule import Framework

CONV = "sm80_xmma_fprop_implicit_gemm_tf32f32_nhwckrsc_nchw_execute_kernel__5x_cudnn"


def finding(name: str, rule: str = "small-grid") -> KernelFinding:
    return KernelFinding(
        rule=rule,
        title="",
        where=name,
        time_ns=1.0,
        speedup=2.0,
        confidence=Confidence.LOW,
        confidence_reason="",
        estimate="",
        evidence=(),
        why="",
        fix="Use more blocks",
        code="dim3 grid(rows);",
        caveats="",
    )


def test_library_kernels_get_advice_for_the_program_that_calls_them() -> None:
    in_torch = advise_on_library(finding(CONV), Framework.TORCH)
    assert "cuDNN" in in_torch.fix
    assert "channels_last" in in_torch.code
    in_cuda = advise_on_library(finding(CONV), Framework.CUDA)
    assert "torch" not in in_cuda.fix + in_cuda.code
    norm = advise_on_library(finding("void cudnn::bn_fw_inf_1C11_kernel_NCHW"), Framework.TORCH)
    assert "fold" in norm.fix
    copy = advise_on_library(
        finding("void at::native::elementwise_kernel<128, direct_copy_kernel_cuda>"),
        Framework.CUDA,
    )
    assert "torch.compile" in copy.fix
    for advised in (in_torch, in_cuda, norm, copy):
        assert "dim3" not in advised.code
        assert all(len(line) <= 69 for line in advised.code.splitlines())


def test_own_kernels_and_advice_about_calls_stay() -> None:
    own = finding("my_kernel(float*)")
    assert advise_on_library(own, Framework.TORCH) is own
    precision = finding(CONV, "tensor-cores-idle")
    assert advise_on_library(precision, Framework.TORCH) is precision


@pytest.mark.parametrize("framework", [Framework.TORCH, Framework.CUDA])
@pytest.mark.parametrize(
    ("name", "lower"),
    [
        ("ampere_sgemm_128x64_tn", "BF16 or TF32"),
        ("sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize64x64x16_cublas", "BF16"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_tn>", ""),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_cublas", ""),
    ],
)
def test_a_precision_that_a_kernel_has_is_not_advised(
    name: str, lower: str, framework: Framework
) -> None:
    advised = advise_on_library(finding(name), framework)
    for word in ("BF16", "TF32"):
        assert (f"Use {lower}" in advised.fix and word in lower) or word not in advised.fix
    is_torch = framework is Framework.TORCH
    assert ("bfloat16" in advised.code) is (is_torch and bool(lower))
    set_tf32 = 'precision("high")' if is_torch else "cublasSetMathMode"
    assert (set_tf32 in advised.code) is ("TF32" in lower)
