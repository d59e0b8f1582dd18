"""Programs for the tests of rules about kernels: what a step launches, and how long it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.rules.timeline.rule_captures import Capture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.rules.context import RuleContext


def _pointwise(functor: str) -> str:
    return f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}>(int)"


GEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>(T1::Params)"
GEMM_TF32 = "cutlass_80_tensorop_s1688gemm_128x128_16x5_nt_align4"
GEMM_BF16 = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
SPLIT_K = "void splitKreduce_kernel<32, 16, int, float, float, float>(T1)"
GEMV = "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4>(T1)"
SOFTMAX = "void at::native::softmax_warp_forward<float, float, float, 9, false, false>(T2 *)"
SOFTMAX_BWD = "void at::native::softmax_warp_backward<float, float, float, 9, false, false>(T2 *)"
LOG_SOFTMAX = "void at::native::softmax_warp_forward<float, float, float, 9, true, false>(T2 *)"
FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)"
ADD, MUL = _pointwise("CUDAFunctor_add<float>"), _pointwise("MulFunctor<float>")
SUB, DIV = _pointwise("CUDAFunctor_sub<float>"), _pointwise("DivFunctor<float>")
FILL, SQRT = _pointwise("FillFunctor<float>"), _pointwise("sqrt_kernel_cuda")
ADDCDIV, ADDCMUL = _pointwise("addcdiv_cuda_kernel"), _pointwise("addcmul_cuda_kernel")
LERP = _pointwise("lerp_scalar_kernel")
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, sum_functor>>(T3)"
REDUCE_AND = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<bool, at::native::func_wrapper_t"
    "<bool, at::native::and_kernel_cuda(at::TensorIterator &)>, unsigned int, bool, 4, 4>>(T3)"
)
ISNEGINF = _pointwise("isneginf_kernel_impl(at::TensorIteratorBase &)::[lambda(float)]")
WHERE = _pointwise("where_kernel_impl(at::TensorIterator &)::[lambda(bool, float, float)]")
TO_BF16 = _pointwise("bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda(float)]")
TO_FP32 = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
    "at::TensorIteratorBase &)::[lambda(float) (instance 1)], std::array<char *, 2>, 4, "
    "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1>>(int, T1)"
)
SCAN = "void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float>>(T1 *)"
BATCH_NORM = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(T1)"
TRITON = "triton_poi_fused_add_mul_0"
FOREACH_ADD = (
    "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>, "
    "at::native::BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>(T1)"
)
FOREACH_MUL = FOREACH_ADD.replace("plus", "multiplies")
FOREACH_ADDCDIV = FOREACH_ADD.replace("plus", "divides").replace("BinaryOpListAlpha", "PointwiseOp")
FUSED_ADAM = (
    "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>, "
    "at::native::FusedAdamMathFunctor<float, 4, (ADAM_MODE)1, false>>(T1)"
)
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(T1)"
TO_NCHW = "void cudnn::ops::nhwcToNchwKernel<float, float, float, false, true>(T1)"
CONV_TF32 = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16"
CONV_FP32 = "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1>(int)"
FFT_PAD = "void DSE::regular_fft_pad<0, 1, 256, 16, 16, 1, float, float, float2>(T9 *, T7 *)"
FFT_CLIP = "void DSE::regular_fft_clip<1, 2, 256, 16, 16, 1, float, float, float2>(T7 *, T9 *)"
GEMM_COMPLEX = "sm80_xmma_gemm_cf32cf32_f32f32_cf32_tn_n_tilesize64x32x8_stage3_warpsize2x2x1_ffma"
TURN = "void cudnn::engines_precompiled::genericTranspose_kernel<float, float, float, true>(T3)"
IM2COL = "void at::native::im2col_kernel<float>(long)"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"

ADAM = (MUL, LERP, MUL, ADDCMUL, SQRT, MUL, ADD, ADDCDIV)
"""What AdamW runs for one tensor when it goes through them in a loop."""


def program(
    kernels: Sequence[tuple[str, float]],
    *,
    steps: int = 3,
    host_us: float = 4.0,
    blocks: int = 1_000,
    threads: int | None = None,
    **devices: Any,
) -> Capture:
    """Write down steps that launch these kernels, one every `host_us`, and wait for the last.

    Launch calls take 3 us; a kernel begins 2 us after its launch, or 1 us after the one before it.
    The wait ends 5 us after the last kernel.
    """
    capture, at = Capture(), 0.0
    capture.tables["devices"].append({"device": 0, **devices})
    for step in range(steps):
        begun, free = at, 0.0
        for name, duration in kernels:
            starts = max(at + 5, free)
            grid = {"grid_x": blocks, "block_x": threads, "block_y": 1, "block_z": 1}
            capture.launch((at, at + 3), (starts, starts + duration), name, **grid)
            free, at = starts + duration + 1, at + host_us
        done = max(at, free - 1) + 5
        capture.call("cudaDeviceSynchronize", at, done)
        capture.range(f"step_{step}", begun, done)
        at = done
    return capture


def of(kernels: Sequence[tuple[str, float]], **options: Any) -> RuleContext:
    """Judge such a program."""
    return program(kernels, **options).timeline()
