"""Whose code a kernel is."""

from __future__ import annotations

import polars as pl
import pytest

from gpusight.naming.kernel_patterns import LIBRARY_KERNELS, kernel_origin


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_nhwckrsc_nchw_execute_kernel__5x_cudnn", "cuDNN"),
        ("void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float>(T2, T2)", "cuDNN"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_execute_kernel__5x_cublas", "cuBLAS"),
        ("ampere_sgemm_128x64_tn", "cuBLAS"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1)", "CUTLASS"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>", "PyTorch"),
        ("void <unnamed>::softmax_warp_forward<float, float, float, 9>(T2 *)", "PyTorch"),
        ("triton_poi_fused_add_0", "torch.compile"),
        ("loop_add_fusion_2", "XLA"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", "NCCL"),
        ("void DSpRealComplex::postprocessC2C_kernelMem<unsigned int, float>()", "cuFFT"),
        ("nvshmemi_proxy_kernel", "NVSHMEM"),
        ("void genericReformat::copyVectorizedKernel<double, float>()", "TensorRT"),
        ("Cijk_Alik_Bljk_HHS_BH_Bias_HAS_SAV_UserArgs_MT256x128x64", "rocBLAS/hipBLASLt"),
        ("void rocprim::detail::block_reduce_kernel<true, float>()", "rocPRIM/hipCUB"),
        ("fft_rtc_fwd_len256_factors_4_4_4_4_wgs_64_tpt_64", "rocFFT"),
        ("void xformers::sparse24::meta_kernel<float>()", "xFormers"),
        ("void BatchDecodeWithPagedKVCacheKernel<0, 2, 1, 16>(T9)", "FlashInfer"),
        ("void PersistentVariableLengthMergeStatesKernel<8, 16>(T5 *)", "FlashInfer"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausal", "TensorRT-LLM"),
        ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16", "TensorRT-LLM"),
        ("void deep_ep::internode::combine<false, 8>(int4*)", "DeepEP"),
        ("void fbgemm_gpu::permute_2D_data_kernel<false, int>(int)", "FBGEMM"),
        ("void ck_tile::kentry<1, ck_tile::Rmsnorm2dFwd<float>>", "Composable Kernel"),
        ("void explicit_convolve_sgemm<float, int, 1024>(int)", "cuDNN"),
        ("void sgemm_largek_lds64<true, true, 6>(float*)", "cuBLAS"),
        ("sgemm_128x128x8_kernel(const float *)", None),
        ("batched_transpose_kernel(float*)", None),
        ("__omp_offloading_10305_2c4b8f_relax_l88", None),
        ("__raygen__camera", None),
        ("copy_strided(const float *, float *, unsigned long, int)", None),
        ("void softmax_kernel<float>(float*)", None),
        ("matmul_kernel", None),
        ("fused_bias_gelu(float*)", None),
    ],
)
def test_kernels_of_libraries_are_not_the_program_s_own(name: str, origin: str | None) -> None:
    assert kernel_origin(name) == origin


def test_the_pattern_of_all_libraries_is_one_that_polars_compiles() -> None:
    names = pl.Series(["void BatchDecodeWithPagedKVCacheKernel<0>(T9)", "my_kernel(float*)"])
    assert names.str.contains(LIBRARY_KERNELS).to_list() == [True, False]
