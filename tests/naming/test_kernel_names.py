# ruff: noqa: E501  (kernel names are long, and a row is read as one line)
"""Kernel names: a table of real ones, every capture at hand, and hostile text."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sqlite3
import subprocess
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.naming import kernel_patterns
from gpusight.naming.demangle import demangle
from gpusight.naming.kernel_names import (
    FILLERS,
    MAX_LABEL_CHARS,
    classify,
    distinguish,
    unique_short_names,
)
from gpusight.naming.kernel_patterns import CATEGORIES
from gpusight.naming.name_parts import PRECISIONS, parts_of
from gpusight.readers.tables import strip_api_version
from tests.shared import SHARED, needs_shared

# fmt: off
NAMES: list[tuple[str, str, str, str, bool | None]] = [
    # (name as captured, short label, category, precision, tensor cores)
    # matmul
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas", "gemm f32 tn 64x64", "matmul", "fp32", False),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_split_k_kernel__5x_cublas", "gemm f32 nn 64x64 split-k", "matmul", "fp32", False),
    ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize32x32x64_stage3_warpsize2x2x1_tensor16x8x8_aligna4_alignc4_execute_kernel__5x_cublas", "gemm tf32 nn 32x32", "matmul", "tf32", True),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas", "gemm bf16 tn 64x64", "matmul", "bf16", True),
    ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas", "gemm tf32 tn 64x64", "matmul", "tf32", True),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nn_align1>(T1::Params)", "gemm f32 nn 64x64", "matmul", "fp32", False),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nt_align4>(T1::Params)", "gemm tf32 nt 128x128", "matmul", "tf32", True),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8::Params)", "gemm bf16 tn 64x64 +relu", "matmul", "bf16", True),
    ("void Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)", "gemm bf16 tn 32x32", "matmul", "bf16", True),
    ("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "gemm bf16 tn 192x192", "matmul", "bf16", True),
    ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "gemm bf16 tn 64x64 +bias", "matmul", "bf16", True),
    ("volta_sgemm_128x32_nt", "gemm f32 nt 128x32", "matmul", "fp32", False),
    ("ampere_sgemm_32x32_sliced1x4_tn", "gemm f32 tn 32x32", "matmul", "fp32", False),
    ("ampere_gcgemm_64x64_nt", "gemm complex nt 64x64", "matmul", "complex", False),
    ("void sgemm_largek_lds64<true, true, 6, 3, 4, 5, 2, 66>(float*, float const*, float const*, int, int, int, int, int, int, float const*, float const*, float, float, int, int, int*, int*)", "gemm f32", "matmul", "fp32", False),
    ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, 1, cublasGemvTensorStridedBatched<const float>, cublasGemvTensorStridedBatched<const float>, cublasGemvTensorStridedBatched<float>>(cublasGemmSmallNParams<T9, T10, T11, T1>)", "gemm small f32 tn", "matmul", "fp32", False),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>(cublasLt::cublasSplitKParams<float>, float const*, float const*, float*, float const*, float const*, float const*, float const*, float*, void*, long, float*, int*)", "gemm split-k reduce f32", "matmul", "fp32", None),
    ("void epilogue::impl::globalKernel<float, float, float, true, true>(int, int, long, float*, cublasLtEpilogue_t, int, float*, long, void*, long, long, long, float*, long, int*)", "gemm epilogue f32", "matmul", "fp32", None),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "moe gemm bf16 16x128 +swiglu", "matmul", "bf16", True),
    ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_schedP2x1x2x3_biasM_bN_tmaOpt_clmp_dynBatch_sm100f", "bmm mixed 128x16", "matmul", "mixed", True),
    ("trt_ampere_h16816gemm_64x64_ldg8_relu_stages_64x5_tn_v1", "gemm f16 tn 64x64 +relu", "matmul", "fp16", True),
    ("matrixMulKernel(float *, float *, float *, int)", "matrixMulKernel", "matmul", "fp32", None),
    ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn", "gemm f16 tn 128x128", "matmul", "fp16", True),
    ("volta_h884gemm_64x128_ldg8_nn", "gemm f16 nn 64x128", "matmul", "fp16", True),
    ("turing_fp16_s1688gemm_fp16_128x64_ldg8_f2f_nt", "gemm f16 nt 128x64", "matmul", "fp16", True),
    ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn", "gemm f16 tn 128x64", "matmul", "fp16", True),
    ("ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_nt", "gemm bf16 nt 256x128", "matmul", "bf16", True),
    ("ampere_s16816gemm_bf16_128x128_ldg8_stages_32x5_nn", "gemm bf16 nn 128x128", "matmul", "bf16", True),
    ("ampere_int8_i16832gemm_int8_128x128_ldg16_stages_64x3_tn", "gemm i8 tn 128x128", "matmul", "int8", True),
    ("volta_fp16_sgemm_fp16_64x64_tn", "gemm f32 tn 64x64", "matmul", "fp32", False),
    ("volta_dgemm_128x64_nn", "gemm f64 nn 128x64", "matmul", "fp64", False),
    ("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", "gemm f64 nn 64x64", "matmul", "fp64", True),
    ("cutlass_80_tensorop_i16832gemm_s8_128x128_64x3_tn_align16", "gemm i8 tn 128x128", "matmul", "int8", True),
    ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_128x128_32x5_nn_align8>(cutlass_80_tensorop_f16_s16816gemm_f16_128x128_32x5_nn_align8::Params)", "gemm f16 nn 128x128", "matmul", "fp16", True),
    ("cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_tnn_align8_warpspecialized_cooperative_epi_tma", "gemm bf16 tn 128x128", "matmul", "bf16", True),
    ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas", "gemm fp8 tn 128x128", "matmul", "fp8", True),
    ("sm80_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize64x64x16_stage4_warpsize2x2x1_tensor8x8x4_execute_kernel__5x_cublas", "gemm f64 tn 64x64", "matmul", "fp64", True),
    ("sm80_xmma_gemm_i8i8_i8i32_f32_tn_n_tilesize128x128x64_stage3_warpsize2x2x1_tensor16x8x32_execute_kernel_trt", "gemm i8 tn 128x128", "matmul", "int8", True),
    ("nvjet_hsh_128x192_64x5_1x2_h_bz_TNN", "gemm f16 tn 128x192", "matmul", "fp16", True),
    ("nvjet_sss_64x64_32x8_2x1_v_bz_TNN", "gemm tf32 tn 64x64", "matmul", "tf32", True),
    ("nvjet_qqtst_128x128_128x6_2x1_v_bz_TNT", "gemm fp8 tn 128x128", "matmul", "fp8", True),
    ("void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4, false, true, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<__nv_bfloat16 const> > >(float)", "gemv bf16", "matmul", "bf16", False),
    ("void marlin::Marlin<__half, 1125899906843648l, 256, 1, 8, 8, false, 4, 2, false>(int4 const*, int4 const*)", "quantized gemm Marlin", "matmul", "fp16", True),
    ("fused_moe_kernel", "moe gemm", "matmul", "unknown", None),
    ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 7168u, 1u, 128u, 128u>(float*, int*)", "deep_gemm sm90_fp8_gemm_1d2d_impl", "matmul", "fp8", True),
    ("triton_tem_fused_addmm_5", "triton addmm_5", "matmul", "unknown", None),
    ("gemm_fusion_dot_4", "xla gemm_fusion_dot_4", "matmul", "unknown", None),
    ("__myl_FcAddCast_myl0_5", "myelin __myl_FcAddCast_myl0_5", "matmul", "unknown", None),
    ("matmul_kernel", "matmul_kernel", "matmul", "unknown", None),
    ("void ck::kernel_gemm_xdl_cshuffle_v1<ck::GridwiseGemm<_Float16> >(x)", "gemm f16", "matmul", "fp16", True),
    ("_ZN2ck15kernel_gemm_xdlIDF16_EEvPKT_.kd", "gemm f16", "matmul", "fp16", True),
    ("Cijk_Alik_Bljk_SB_MT128x64x16_SN_1LDSB0_APM1", "gemm f32 tn 128x64", "matmul", "fp32", None),
    ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1_SE_1LDSB0", "gemm f16 nn 128x128", "matmul", "fp16", True),
    ("void matmul_tiled<float>(float const*, float const*, float*, int)", "matmul_tiled<float>", "matmul", "fp32", None),
    ("void cusparse::csrmm_kernel<float>(int)", "sparse csrmm_kernel f32", "matmul", "fp32", None),
    # convolution
    ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc_tilesize128x128x32_stage4_warpsize2x2x1_g1_tensor16x8x16_execute_kernel_trt", "conv fprop f16 nhwc 128x128", "convolution", "fp16", True),
    ("sm90_xmma_wgrad_indexed_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x64x32_warpgroupsize1x1x1_g1_execute_split_k_kernel__5x_cudnn", "conv wgrad tf32 nhwc 64x64", "convolution", "tf32", True),
    ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_stage3_warpsize1x2x1_g1_ffma_aligna4_alignc4_execute_kernel__5x_cudnn", "conv fprop f32 nchw 32x32", "convolution", "fp32", False),
    ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc_unity_stride_align4>(T1::Params)", "conv dgrad tf32 nhwc 256x64", "convolution", "tf32", True),
    ("void xmma_cudnn::implicit_gemm::strided_dgrad_indexed::kernel_helper_stage_3(xmma_cudnn::implicit_gemm::strided_dgrad_indexed::Helper_params)", "conv dgrad kernel_helper_stage_3", "convolution", "unknown", None),
    ("volta_scudnn_128x64_relu_medium_nn_v1", "conv f32 128x64 +relu", "convolution", "fp32", False),
    ("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "conv winograd f32", "convolution", "fp32", False),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams<float, float>)", "conv winograd forwarddata4x4 f32", "convolution", "fp32", False),
    ("void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, true, true>(int, int, int, float const*, int, float*, float const*, kernel_conv_params, unsigned long long, int, float, float, int, float const*, float const*, bool, int, int)", "conv implicit gemm f32", "convolution", "fp32", False),
    ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*, int, float const*, int, float*, kernel_grad_params, unsigned long long, int, unsigned long long, int, float, int, int, int)", "conv dgrad engine f32", "convolution", "fp32", False),
    ("igemm_fwd_gtcx2_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2_ta1x8x2x1_1x4x1x64_tb1x8x2x1_1x4x1x64_gkgs", "conv fprop bf16 nhwc 128x128", "convolution", "bf16", True),
    ("void cask_cudnn::computeOffsetsKernel<false, false>(cask_cudnn::ComputeOffsetsParams)", "conv setup computeOffsetsKernel", "convolution", "unknown", None),
    ("void at::native::(anonymous namespace)::conv_depthwise2d_backward_kernel", "depthwise conv dgrad", "convolution", "unknown", False),
    ("void fft2d_r2c_32x32<float, false, 5u, true>(float2*, float const*, int, int, int, int, int, int, int, int, int, cudnn::reduced_divisor, bool, int2, int, int)", "conv fft fft2d_r2c_32x32", "convolution", "fp32", False),
    ("turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1", "conv f16 128x128 +relu", "convolution", "fp16", True),
    ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1", "miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1", "convolution", "fp32", None),
    ("naive_conv_ab_nonpacked_fwd_nchw_half_double_half", "naive_conv_ab_nonpacked_fwd_nchw_half_double_ha…", "convolution", "fp16", None),
    ("convolution2DKernel(float*, float*, int)", "convolution2DKernel", "convolution", "fp32", None),
    # attention
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, false, false, false, false, false, true, false>(pytorch_flash::Flash_fwd_params)", "flash attention fwd bf16 d64", "attention", "bf16", True),
    ("cudnn_generated_fort_native_sdpa_sm100_flash_fprop_f16_knob_7_8x128x128_4x1x1_cga1x1x1_kernel0_0", "cudnn attention fwd", "attention", "unknown", True),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x1x1_kernel0_0", "cudnn attention bwd", "attention", "unknown", True),
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", "fmha context fp8 d64", "attention", "fp8", True),
    ("void BatchDecodeWithPagedKVCacheKernel<0, 2, 1, 16, 8, 4, 4, DefaultAttention<0, 0, 0, 0>, Params>(T9)", "flashinfer batch decode", "attention", "unknown", None),
    ("kernel_unified_attention_2d", "kernel_unified_attention_2d", "attention", "unknown", None),
    ("void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::half_t, Flash_kernel_traits<128, 64, 128, 4, cutlass::half_t> >, true>(Flash_fwd_params)", "flash attention fwd split-kv f16 d128", "attention", "fp16", True),
    ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<64, 128, 128, 8, cutlass::bfloat16_t> >, false, true, false>(pytorch_flash::Flash_bwd_params)", "flash attention bwd bf16 d64", "attention", "bf16", True),
    ("void pytorch_flash::flash_bwd_dot_do_o_kernel<true, pytorch_flash::Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_bwd_params)", "flash attention bwd dot_do_o bf16", "attention", "bf16", False),
    ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t, cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)", "attention fwd mem-efficient f16", "attention", "fp16", True),
    ("fmha_cutlassB_bf16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::bfloat16_t, cutlass::arch::Sm80, true, false, true, 64, 64, 64, false>::Params)", "attention bwd mem-efficient bf16", "attention", "bf16", True),
    ("void vllm::paged_attention_v2_kernel<__nv_bfloat16, __nv_bfloat16, 128, 16, 128, (vllm::Fp8KVCacheDataType)0, false, 512>(float*)", "paged_attention_v2_kernel", "attention", "bf16", None),
    ("triton_tem_fused_flex_attention_0", "triton flex_attention_0", "attention", "unknown", None),
    ("_attn_fwd", "_attn_fwd", "attention", "unknown", None),
    ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1, 128u, 2u, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16> >(x)", "flashinfer batch prefill bf16", "attention", "bf16", True),
    # softmax
    ("void <unnamed>::softmax_warp_forward<float, float, float, (int)9, (bool)0, (bool)0>(T2 *, const T1 *, int, int, int, const bool *, int, bool)", "softmax fwd", "softmax", "fp32", False),
    ("void (anonymous namespace)::softmax_warp_backward<float, float, float, 10, true, false>(float*, float const*, float const*, int, int, int, bool const*)", "log_softmax bwd", "softmax", "fp32", False),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxForwardSmem<8, c10::BFloat16, float, c10::BFloat16, at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue, long>(c10::BFloat16*, c10::BFloat16 const*, long)", "log_softmax fwd bf16", "softmax", "bf16", False),
    ("softmax_kernel(float*)", "softmax", "softmax", "fp32", False),
    # normalization
    ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float, 32u, 32u, 256u, false, true, false>(long, long, float const*, float const*, float const*, float const*, float*, float*)", "layer_norm bwd (gamma, beta)", "normalization", "fp32", False),
    ("void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<float, float, false>(float const*, float const*, float const*, float const*, float const*, float*, int)", "layer_norm bwd (input)", "normalization", "fp32", False),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)", "layer_norm fwd bf16", "normalization", "bf16", False),
    ("void cudnn::bn_fw_tr_1C11_singleread<float, (int)512, (bool)1, (int)1, (int)2, (int)0>(cudnn::bn_fw_tr_1C11_args<T1>)", "batch_norm fwd", "normalization", "fp32", False),
    ("void cudnn::bn_bw_1C11_singleread<float, 512, true, 1, 2, 0>(cudnn::bn_bw_1C11_args<float>)", "batch_norm bwd", "normalization", "fp32", False),
    ("void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, 1, 1>(T2, T2, cudnnTensorStruct, const T1 *, cudnnTensorStruct, T1 *, cudnnTensorStruct, const T2 *, const T2 *, const T2 *, const T2 *, T2)", "batch_norm inference", "normalization", "fp32", False),
    ("void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, c10::BFloat16 const*, long, long, long, long, long, c10::BFloat16 const*, float, int, int)", "rms_norm bf16", "normalization", "bf16", False),
    ("std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, c10::BFloat16*, c10::BFloat16 const*, float, int, int)", "fused_add_rms_norm_kernel bf16", "normalization", "bf16", False),
    ("MIOpenBatchNormFwdTrainSpatial", "batch_norm fwd", "normalization", "unknown", False),
    ("void vllm::rms_norm_static_fp8_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>(x)", "rms_norm_static_fp8_quant_kernel bf16", "normalization", "bf16", False),
    # elementwise
    ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, std::array<char *, (unsigned long)3>>(int, T2, T3)", "elementwise add", "elementwise", "fp32", False),
    ("void at::vectorized_elementwise_kernel<4, at::CUDAFunctor_add<float>, std::array<char *, 3>>(int, T2, T3)", "elementwise add", "elementwise", "fp32", False),
    ("void at::native::vectorized_elementwise_kernel<(int)8, at::native::BUnaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float>>, std::array<char *, (unsigned long)2>>(int, T2, T3)", "elementwise mul bf16", "elementwise", "bf16", False),
    ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::GeluBackwardCUDAKernelImpl(at::TensorIteratorBase &, at::native::GeluType)::[lambda() (instance 2)]::operator ()() const::[lambda() (instance 2)]::operator ()() const::[lambda(float, float) (instance 1)], std::array<char *, (unsigned long)3>>(int, T2, T3)", "elementwise gelu bwd", "elementwise", "fp32", False),
    ("void at::native::vectorized_elementwise_kernel<(int)8, at::native::<unnamed>::launch_clamp_scalar(at::TensorIteratorBase &, c10::Scalar, c10::Scalar, at::native::detail::ClampLimits)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance 9)]::operator ()() const::[lambda(c10::BFloat16) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)", "elementwise clamp bf16", "elementwise", "bf16", False),
    ("void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::<unnamed>::masked_fill_kernel(at::TensorIterator &, const c10::Scalar &)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda(float, bool) (instance 1)]>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)", "elementwise masked_fill strided", "elementwise", "fp32", False),
    ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<bool>, std::array<char *, (unsigned long)1>>(int, T2, T3)", "elementwise fill int", "elementwise", "int", False),
    ("void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctorOnSelf_add<float>, std::array<char *, (unsigned long)2>, (int)4, TrivialOffsetCalculator<(int)1, unsigned int>, TrivialOffsetCalculator<(int)1, unsigned int>, at::native::memory::LoadWithCast<(int)1>, at::native::memory::StoreWithCast<(int)1>>(int, T1, T2, T4, T5, T6, T7)", "elementwise add cast", "elementwise", "fp32", False),
    ("void cudnn::engines_precompiled::scalePackedTensor_kernel<float, float>(long, T1 *, T2)", "scale", "elementwise", "fp32", False),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*, c10::BFloat16 const*, int, long, long, long, int, int, int)", "rotary embedding bf16", "elementwise", "bf16", False),
    ("void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(c10::Float8_e4m3fn*, c10::BFloat16 const*, float const*, int, long, long)", "scaled_fp8_quant_kernel_strided", "elementwise", "bf16", False),
    ("vecAdd(double *, double *, double *, int)", "vecAdd", "elementwise", "fp64", False),
    ("unnamed>::saxpy_kernel(float, const float *, float *, int)", "saxpy_kernel", "elementwise", "fp32", False),
    ("void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat16>(c10::BFloat16 const&)), true>(c10::BFloat16*, c10::BFloat16 const*, int)", "act_and_mul_kernel", "elementwise", "bf16", False),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}, at::detail::Array<char*, 2> >(int)", "elementwise silu", "elementwise", "fp32", False),
    ("void op_tensor_kernel_alpha2_zero<2, float, float, float, 128, 1, 1, 4, 2>(x)", "op_tensor_kernel_alpha2_zero", "elementwise", "fp32", False),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<thrust::cuda_cub::__uninitialized_fill::functor<thrust::device_ptr<float>, float>, unsigned long>, float, unsigned long>(x)", "thrust uninitialized_fill", "elementwise", "fp32", False),
    ("cupy_add__float32_float32_float32", "cupy_add__float32_float32_float32", "elementwise", "fp32", False),
    ("void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar const&)::{lambda()#1}::operator()() const::{lambda(long)#1}>(int)", "arange int", "elementwise", "int", False),
    # reduction
    ("void at::reduce_kernel<512, 1, at::ReduceOp<float, at::MeanOps<float, float, float, float>, unsigned int, float, 4, 4>>(T3)", "reduce mean", "reduction", "fp32", False),
    ("void at::native::reduce_kernel<(int)128, (int)4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator ()(at::TensorIterator &)::[lambda(float, float) (instance 1)]>, unsigned int, c10::BFloat16, (int)4, (int)8>>(T3)", "reduce sum bf16", "reduction", "bf16", False),
    ("void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::MaxNanFunctor<float>>, unsigned int, float, (int)4, (int)4>>(T3)", "reduce max", "reduction", "fp32", False),
    ("void reduceCompleteUnroll<(unsigned int)512>(int *, int *, unsigned int)", "reduceCompleteUnroll<512>", "reduction", "int", False),
    ("void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>, cublasGemvTensorStridedBatched<float> > >(cublasDotParams<float>)", "dot f32", "reduction", "fp32", False),
    ("void reduce_1Block_kernel<float, 128, 7, cublasGemvTensorStridedBatched<float>>(float const*, float, float*, int)", "dot f32", "reduction", "fp32", False),
    ("void Kokkos::Impl::cuda_parallel_launch_local_memory<Kokkos::Impl::ParallelReduce<Dot<double>, Kokkos::RangePolicy<Kokkos::Cuda> > >(x)", "kokkos reduce f64", "reduction", "fp64", False),
    # optimizer
    ("void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::FusedOptimizerTensorListMetadata<(int)4>, at::native::<unnamed>::FusedAdamMathFunctor<float, (int)4, (at::native::ADAM_MODE)1, (bool)0>, const float *, double, double, double, double, double, bool, const float *, const float *>(T1, T2, T3...)", "adam multi-tensor f32", "optimizer", "fp32", False),
    ("void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)1>, at::native::<unnamed>::BinaryOpScalarFunctor<float, (int)1, (int)1, (int)0>, std::plus<float>, float>(T1, T2, T3...)", "foreach add multi-tensor f32", "optimizer", "fp32", False),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<4>, at::native::(anonymous namespace)::PointwiseOpListFunctor<float, 4, 4, 0>, std::divides<float> >(x)", "foreach addcdiv multi-tensor f32", "optimizer", "fp32", False),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<1>, at::native::(anonymous namespace)::UnaryOpFunctor<float, 1, 1, 0>, at::native::Sqrt<float> >(x)", "foreach sqrt multi-tensor f32", "optimizer", "fp32", False),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<1>, at::native::(anonymous namespace)::LpNormFunctor<float, (at::native::NormType)1, float, 1, 1, 0>, float*, int>(x)", "foreach lp_norm multi-tensor f32", "optimizer", "fp32", False),
    ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<c10::BFloat16, float, int>, float, float, float, float, float, float, adamMode_t, float>(long, int volatile*, TensorListMetadata<4>)", "adam multi-tensor bf16", "optimizer", "bf16", False),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<3>, at::native::(anonymous namespace)::FusedSgdMathFunctor<float, 3, false>, double>(x)", "sgd multi-tensor f32", "optimizer", "fp32", False),
    # embedding
    ("void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>(at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>, at::cuda::detail::TensorInfo<c10::BFloat16 const, unsigned int>, at::cuda::detail::TensorInfo<long const, unsigned int>, int, int, unsigned int, unsigned int, long)", "index select bf16", "embedding", "bf16", False),
    ("void at::native::<unnamed>::embedding_backward_feature_kernel<float, float, long>(const T3 *, const T1 *, T1 *, int, long, int)", "embedding bwd", "embedding", "fp32", False),
    ("void at::vectorized_gather_kernel<16, long>(char *, char *, T2 *, int, long, long, long, long, bool)", "gather", "embedding", "unknown", False),
    ("void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::index_put_kernel_impl<at::native::OpaqueType<4> >(x)>(int)", "index_put", "embedding", "unknown", False),
    # copy
    ("void at::native::vectorized_elementwise_kernel<(int)8, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)", "copy f32→bf16", "copy", "mixed", False),
    ("void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda(float) (instance 1)]>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)", "copy f32 strided", "copy", "fp32", False),
    ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>, (int)4, TrivialOffsetCalculator<(int)1, unsigned int>, TrivialOffsetCalculator<(int)1, unsigned int>, at::native::memory::LoadWithCast<(int)1>, at::native::memory::StoreWithCast<(int)1>>(int, T1, T2, T4, T5, T6, T7)", "copy →f32", "copy", "mixed", False),
    ("void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, (bool)0, (bool)1, (cudnnKernelDataType_t)0>(cudnn::engines_precompiled::nchw2nhwc_params_t<T3>, const T1 *, T2 *)", "nchw→nhwc f32", "copy", "fp32", False),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 1, 128, 1>(float*, at::native::(anonymous namespace)::CatArrInputTensorMetadata<float, unsigned int, 128, 1>, at::native::(anonymous namespace)::TensorSizeStride<unsigned int, 4u>, int, unsigned int)", "cat", "copy", "fp32", False),
    ("batched_transpose_256x4_half", "batched_transpose_256x4_half", "copy", "unknown", False),
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char, (vllm::Fp8KVCacheDataType)1>(__nv_bfloat16 const*, __nv_bfloat16 const*, unsigned char*, unsigned char*, long const*, long, long, long, long, long, int, int, int, float const*, float const*)", "kv-cache write bf16", "copy", "bf16", False),
    ("void genericReformat::copyVectorizedKernel<double, __half, __half, (bool)1, (bool)0, (int)1>(unsigned int, const void *, genericReformat::ArrayN<T6>, genericReformat::ArrayNWithReducedDivisors<T6>, genericReformat::ArrayN<T6>, int, const float *, void *, genericReformat::ArrayN<T6>, genericReformat::ArrayNWithReducedDivisors<T6>, genericReformat::ArrayN<T6>, int, const float *)", "reformat", "copy", "unknown", False),
    ("transpose_padded(const float *, float *, int)", "transpose_padded", "copy", "fp32", False),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<float, unsigned int, 2, 128, 1>(float*)", "cat", "copy", "fp32", False),
    ("cupy_copy__float64_float64", "cupy_copy__float64_float64", "copy", "fp64", False),
    # random
    ("void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(x)", "dropout", "random", "fp32", False),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::masked_scale_kernel<bool, float, float>(at::Tensor&)::{lambda(float, bool)#1}, at::detail::Array<char*, 3> >(int)", "dropout bwd", "random", "fp32", False),
    # sort
    ("void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, false, long, int, int, int>(int*, int*, int*, int const*, long*, long const*, int*, int const*, int, int, int)", "radix sort onesweep int", "sort", "int", False),
    ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo<float, unsigned int>, unsigned int, unsigned int, bool, unsigned int, unsigned int, at::cuda::detail::TensorInfo<float, unsigned int>, unsigned int, at::cuda::detail::TensorInfo<long, unsigned int>, unsigned int, float*)", "gatherTopK", "sort", "fp32", False),
    ("void cub::DeviceScanInitKernel<cub::ScanTileState<int, true> >(cub::ScanTileState<int, true>, int)", "cub scaninit int", "sort", "int", False),
    ("void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<cutlass::bfloat16_t, cutlass::bfloat16_t, 4, true> >(x)", "finalizeKernelVecLoad", "reduction", "bf16", False),
    ("void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<__nv_bfloat16, __nv_bfloat16, (ScaleMode)1, false>(__nv_bfloat16 const*, float const*)", "finalizeMoeRoutingKernel", "reduction", "bf16", False),
    ("_finalize_matmul_scatter_bf16", "_finalize_matmul_scatter_bf16", "reduction", "bf16", False),
    ("void vllm::moe::moe_sum_kernel<c10::BFloat16, 6>(c10::BFloat16*, c10::BFloat16 const*, int)", "moe_sum_kernel<c10::BFloat16, 6>", "reduction", "bf16", False),
    ("_unpermute_kernel", "_unpermute_kernel", "reduction", "unknown", False),
    ("void expandInputRowsKernel<float>(float const*, float*)", "expandInputRowsKernel<float>", "copy", "fp32", False),
    ("void moe_permute_topK_kernel<float>(float const*, float*)", "moe_permute_topK_kernel<float>", "copy", "fp32", False),
    ("void cuda::get_fused_mapping<512>(long const*, int*)", "get_fused_mapping<512>", "sort", "int", False),
    ("void tensorTransformGeneric<float, float, float, true, false, false, (cudnnKernelDataType_t)2>(x)", "tensor transform", "copy", "fp32", False),
    ("void cudnn::ops::nchwToFoldedNhwcKernel<__half, __half, float, true, (cudnnKernelDataType_t)0>(x)", "nchw→nhwc f16", "copy", "fp16", False),
    ("void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*, int)", "moe_align_block_size_kernel<int>", "sort", "int", False),
    ("void vllm::moe::topkGating<4, 64, 4, 16, 32, int, float>(float const*, bool const*, float*, int)", "topkGating", "sort", "int", False),
    ("void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float> >(float*, float const*, unsigned int, unsigned int, float, std::plus<float>)", "tensor_kernel_scan_innermost_dim", "sort", "fp32", False),
    ("void at::native::bitonicSortKVInPlace<2, -1, 16, 16, float, long, at::native::GTOp<float, true>, unsigned int>(x)", "bitonicSortKVInPlace", "sort", "fp32", False),
    # pooling
    ("void at::<unnamed>::max_pool_forward_nchw<float, int>(T2, const T1 *, long, long, long, int, int, int, int, int, int, int, int, int, int, T1 *, long *)", "max pool fwd", "pooling", "fp32", False),
    ("void cudnn::ops::pooling_fw_4d_kernel<float, float, cudnn::averpooling_func<float>, (cudnnPoolingMode_t)2, false>(cudnnTensorStruct)", "pooling f32", "pooling", "fp32", False),
    ("void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<float, float>(int, float, float)", "upsample bilinear2d", "pooling", "fp32", False),
    # loss
    ("void at::native::<unnamed>::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(T1 *, T1 *, const T1 *, const T3 *, const T1 *, bool, long, long, long, long)", "nll loss fwd", "loss", "fp32", False),
    ("void at::native::vectorized_elementwise_kernel<8, at::native::mse_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#4}::operator()() const::{lambda(c10::BFloat16, c10::BFloat16)#1}, std::array<char*, 3ul> >(int, at::native::mse_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#4}::operator()() const::{lambda(c10::BFloat16, c10::BFloat16)#1}, std::array<char*, 3ul>)", "loss mse bf16", "loss", "bf16", False),
    # communication
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long, unsigned int**, unsigned long, unsigned long)", "multimem_all_reduce_kernel<c10::BFloat16, 16>", "communication", "bf16", False),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl AllGather RING LL", "communication", "unknown", False),
    ("void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, long*, int, int const*, int*, int const*, int*, int, bool const*, int, int, int, int, int, int, int, int*, int*, int*, int*, void*, void**, int**, int, int, int*, int)", "notify_dispatch<false, 8>", "communication", "int", False),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, vllm::Signal*, __nv_bfloat16*, int, int)", "cross_device_reduce_1stage<__nv_bfloat16, 8>", "communication", "bf16", False),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl AllReduce Sum bf16 RING LL", "communication", "bf16", False),
    ("ncclDevKernel_Generic_1(ncclDevComm*, channelMasks, ncclWork*) [clone .kd]", "nccl Generic 1", "communication", "unknown", False),
    # generated
    ("triton_poi_fused__to_copy_1", "triton to_copy_1", "generated", "unknown", None),
    ("triton_per_fused_add_native_layer_norm_3", "triton add_native_layer_norm_3", "generated", "unknown", None),
    ("triton_red_fused_sum_1", "triton sum_1", "generated", "unknown", None),
    ("triton__0d1d2d3de", "triton 0d1d2d3de", "generated", "unknown", None),
    ("loop_add_fusion_2", "xla loop_add_fusion_2", "generated", "unknown", None),
    ("input_reduce_fusion", "xla input_reduce_fusion", "generated", "unknown", None),
    ("fusion_12", "xla fusion_12", "generated", "unknown", None),
    # other
    ("fma_heavy(float *, int)", "fma_heavy", "custom", "fp32", None),
    ("void gmem_coalesce<(int)32>(int, int, int, const float *, const float *, float *)", "gmem_coalesce<32>", "custom", "fp32", None),
    ("nvkernel_solve_F1L210_2", "omp solve line 210", "loop", "unknown", None),
    ("void at::native::_assert_async_cuda_kernel<bool>(bool const*)", "_assert_async_cuda_kernel<bool>", "other", "int", None),
    ("void Kokkos::Impl::cuda_parallel_launch_constant_memory<Kokkos::Impl::ParallelFor<AXPBY, Kokkos::RangePolicy<Kokkos::Cuda> > >()", "kokkos for axpby", "loop", "unknown", None),
    ("__omp_offloading_fd02_c40a1_main_l42", "omp main line 42", "loop", "unknown", None),
    ("nvkernel__ZN3foo3barEv_F1L33_4", "omp zn3foo3barev line 33", "loop", "unknown", None),
    ("jacobi_step_42_gpu", "jacobi_step_42_gpu", "stencil", "unknown", False),
    ("solve_88_gpu", "acc solve line 88", "loop", "unknown", None),
    ("solve_91_gpu__red", "acc solve line 91", "reduction", "unknown", False),
    ("main$_omp_fn$0", "omp main", "loop", "unknown", None),
    ("relax._omp_fn.3", "omp relax", "loop", "unknown", None),
    ("void DSpRealComplex::postprocessC2C_kernelMem<unsigned int, float>(int)", "postprocessC2C_kernelMem<unsigned int, float>", "fft", "fp32", False),
    ("void cusparse::load_balancing_kernel<256u, double>(int)", "sparse load_balancing_kernel f64", "matmul", "fp64", None),
    ("void csr2csc_kernel<double>(int)", "sparse csr2csc_kernel f64", "copy", "fp64", False),
    ("matrix_addition1D(float *, float *, float *, int)", "matrix_addition1D", "elementwise", "fp32", False),
    ("initialise_field(double*, int)", "initialise_field", "elementwise", "fp64", False),
    ("sobelFilter(unsigned char*, int)", "sobelFilter", "stencil", "int", False),
    ("resizeBilinear(float*, int)", "resizeBilinear", "pooling", "fp32", False),
    ("__closesthit__glass", "__closesthit__glass", "custom", "unknown", None),
    ("julia_step_1234", "julia step", "loop", "unknown", None),
    ("gpu_update_(CompilerMetadata<DynamicSize>)", "julia update", "loop", "unknown", None),
    ("gpu_broadcast_kernel_linear(CompilerMetadata<DynamicSize>)", "julia gpu_broadcast_kernel_linear", "elementwise", "unknown", False),
    ("partial_mapreduce_grid(identity, add_sum, Float32)", "julia partial_mapreduce_grid", "reduction", "unknown", False),
    ("void RAJA::policy::cuda::impl::forall_cuda_kernel<256, 1>(int)", "raja forall_cuda_kernel", "loop", "unknown", None),
    ("my_solver::update_cells(double*, int)", "update_cells", "custom", "fp64", None),
    ("_Z9fma_heavyPfi", "fma_heavy", "custom", "fp32", None),
    ("void regular_fft<256u, 4u, 16u>(float2*)", "regular_fft<256u, 4u, 16u>", "fft", "fp32", False),
    # AMD, serving frameworks, XLA and others
    ("__amd_rocclr_copyBuffer", "__amd_rocclr_copyBuffer", "copy", "unknown", False),
    ("__amd_rocclr_fillBufferAligned.kd", "__amd_rocclr_fillBufferAligned", "elementwise", "unknown", False),
    ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN_LDSB0_AFC1_AFEM1", "gemm bf16 tn 16x16", "matmul", "bf16", True),
    ("Cijk_Alik_Bljk_F8BS_BH_Bias_HA_S_SAB_SCD_SAV_UserArgs_MT256x256x128_MI16x16x1_SN", "gemm fp8 tn 256x256", "matmul", "fp8", True),
    ("Cijk_Ailk_Bjlk_B8NF8NBS_BH_Bias_HA_S_SAB_SAV_UserArgs_MT128x128x128_MI16x16x1_SN", "gemm fp8 nt 128x128", "matmul", "fp8", True),
    ("Cijk_Alik_Bljk_I8II_BH_Bias_MT128x128x128_MI16x16x1_SN", "gemm i8 tn 128x128", "matmul", "int8", True),
    ("Cijk_Ailk_Bljk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT64x64x32_MI16x16x1_SN", "gemm tf32 nn 64x64", "matmul", "tf32", True),
    ("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT64x64x32_MI16x16x1_SN", "gemm f32 nn 64x64", "matmul", "fp32", True),
    ("Cijk_Alik_Bljk_SB_MT64x64x8_SE_TT4_4_WG16_16_1", "gemm f32 tn 64x64", "matmul", "fp32", False),
    ("Cijk_SB_GG_BiasS_HAS_ScaleAlphaVec_PostGSU8_VW2", "gemm split-k f32 Cijk_SB_GG_BiasS_HAS_ScaleAlph…", "matmul", "fp32", None),
    ("void ck::kernel_gemm_multiple_d_xdl_cshuffle<ck::GridwiseGemmMultipleD_xdl_cshuffle<unsigned short, unsigned short, float>>(x)", "gemm bf16", "matmul", "bf16", True),
    ("void ck::tensor_operation::device::(anonymous namespace)::kernel_grouped_conv_fwd_multiple_abd_xdl_cshuffle<ck::GridwiseGemmMultipleABD_xdl_cshuffle<_Float16>>(x)", "kernel_grouped_conv_fwd_multiple_abd_xdl_cshuff…", "convolution", "fp16", True),
    ("void ck::tensor_operation::device::kernel_batched_gemm_xdlops_bwd_weight<ck::GridwiseGemm_bk0mk1_bk0nk1_mn_xdlops_bwd_weight<_Float16>>(x)", "kernel_batched_gemm_xdlops_bwd_weight", "convolution", "fp16", True),
    ("void ck_tile::kentry<1, ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipelineQRKSVSAsync<ck_tile::bf16_t>>>(x)", "fmha fwd bf16", "attention", "bf16", True),
    ("void ck_tile::kentry<1, ck_tile::MoeSortingKernel<ck_tile::MoeSortingProblemEx<int, float>>>(x)", "MoeSortingKernel", "sort", "int", False),
    ("_ZN5aiter32fmha_fwd_hd192_hd128_bf16_causalE", "fmha fwd bf16", "attention", "bf16", True),
    ("_ZN5aiter42pa_bf16_pertokenFp8_gqa10_1tg_4w_mtp3_msk1E", "pa_bf16_pertokenFp8_gqa10_1tg_4w_mtp3_msk1", "attention", "fp8", True),
    ("_ZN5aiter50fmoe_bf16_pertokenMXfp4_g1u1_flat_novs_silu_16x128E", "moe gemm fp4 16x128", "matmul", "fp4", True),
    ("_ZN5aiter33f4gemm_bf16_per1x32Fp4_tn_256x256E", "f4gemm_bf16_per1x32Fp4_tn_256x256", "matmul", "fp4", True),
    ("_gemm_a8w8_blockscale_kernel", "_gemm_a8w8_blockscale_kernel", "matmul", "unknown", None),
    ("void aiter::kn_entry_2c_sbhd_cached_indirect_inplace<aiter::OpCachedFwd, 0, true, false>(x)", "rotary embedding", "elementwise", "unknown", False),
    ("void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2, 16, 8, 2, 1>(x)", "wvSplitK_hf_sml_", "matmul", "bf16", None),
    ("void paged_attention_ll4mi_QKV_mfma16_kernel<__hip_bfloat16, unsigned char, (vllm::Fp8KVCacheDataType)1, __hip_bfloat16, 16, 128, 256, false, 8>(x)", "paged_attention_ll4mi_QKV_mfma16_kernel", "attention", "bf16", True),
    ("MIOpenBatchNormBwdSpatial", "batch_norm bwd", "normalization", "unknown", False),
    ("MIOpenNeuronFwd", "MIOpenNeuronFwd", "elementwise", "unknown", False),
    ("MIOpenConvUni", "MIOpenConvUni", "convolution", "unknown", None),
    ("Im2d2Col", "Im2d2Col", "convolution", "unknown", None),
    ("Op4dTensorGeneric", "Op4dTensorGeneric", "elementwise", "unknown", False),
    ("mloPoolingMaxBwd", "pooling", "pooling", "unknown", False),
    ("void rocprim::detail::onesweep_iteration_kernel<rocprim::default_config, true, long*, long*>(x)", "rocprim onesweep_iteration_kernel", "sort", "int", False),
    ("void rocprim::ROCPRIM_300001_NS::detail::trampoline_kernel<rocprim::detail::wrapped_reduce_config<rocprim::default_config, float>>(x)", "rocprim reduce", "reduction", "fp32", False),
    ("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", "nccl GenericKernel", "communication", "unknown", False),
    ("mscclKernel_Sum_half_LL_true", "mscclKernel_Sum_half_LL_true", "communication", "fp16", False),
    ("void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(x)", "EpDispatchIntraNodeKernel<__hip_bfloat16>", "communication", "bf16", False),
    ("void deep_ep::internode_ll::combine<false, 7168>(void*)", "combine<false, 7168>", "communication", "unknown", False),
    ("void deep_gemm::sm90_fp8_paged_mqa_logits<1u>(x)", "sm90_fp8_paged_mqa_logits<1u>", "attention", "fp8", True),
    ("silu_mul_fp8_quant_deep_gemm", "silu_mul_fp8_quant_deep_gemm", "elementwise", "fp8", False),
    ("_fwd_grouped_kernel_stage1_rope", "_fwd_grouped_kernel_stage1_rope", "attention", "unknown", None),
    ("_bwd_kernel_dkdv", "_bwd_kernel_dkdv", "attention", "unknown", None),
    ("fused_recurrent_gated_delta_rule_fwd_kernel", "fused_recurrent_gated_delta_rule_fwd_kernel", "attention", "unknown", None),
    ("void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16, float>>(SSMParamsBase)", "selective_scan_fwd_kernel", "attention", "fp32", None),
    ("create_flashinfer_kv_indices_triton", "create_flashinfer_kv_indices_triton", "embedding", "unknown", False),
    ("void vllm::moe::topkGatingSoftmax<8, 256, 4, 16, int>(x)", "topkGatingSoftmax<8, 256, 4, 16, int>", "sort", "int", False),
    ("void transformer_engine::detail::cast_transpose_general_kernel<8ul, 8ul, float, __nv_fp8_e4m3>(x)", "cast_transpose_general_kernel", "copy", "fp32", False),
    ("void transformer_engine::gated_act_kernel<float>(x)", "gated_act_kernel<float>", "elementwise", "fp32", False),
    ("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, unsigned char*, float*, __nv_bfloat16*, int, int)", "kDequantizeBlockwise", "elementwise", "bf16", False),
    ("void kOptimizer32bit2State<float, 0>(x)", "kOptimizer32bit2State<float, 0>", "optimizer", "fp32", False),
    ("triton_tem_fused__scaled_mm_0", "triton scaled_mm_0", "matmul", "unknown", None),
    ("triton_flex_attention", "triton flex_attention", "attention", "unknown", None),
    ("triton_poi_fused_mm_3", "triton mm_3", "generated", "unknown", None),
    ("fusion.12", "xla fusion.12", "generated", "unknown", None),
    ("multiply_add_fusion.clone", "xla multiply_add_fusion.clone", "generated", "unknown", None),
    ("wrapped_convert", "xla wrapped_convert", "generated", "unknown", None),
    ("dot_general.3", "xla dot_general.3", "matmul", "unknown", None),
    ("all-reduce-start.1", "all-reduce-start.1", "communication", "unknown", False),
    ("dynamic-update-slice.3", "xla dynamic-update-slice.3", "copy", "unknown", False),
    ("jax::cuda::(anonymous namespace)::ThreeFry2x32Kernel(x)", "ThreeFry2x32Kernel", "random", "unknown", False),
    ("void mul_mat_q<(ggml_type)12, 64, false>(x)", "mul_mat_q", "matmul", "unknown", None),
    ("void LSTM_elementWise_fp<float, float, float>(x)", "LSTM_elementWise_fp", "elementwise", "fp32", False),
]
# fmt: on


@pytest.mark.parametrize(("name", "short", "category", "precision", "tensor_core"), NAMES)
def test_a_known_name_is_recognised(
    name: str, short: str, category: str, precision: str, tensor_core: bool | None
) -> None:
    result = classify(name)
    assert (result.short, result.category, result.precision, result.tensor_core) == (
        short,
        category,
        precision,
        tensor_core,
    )


def test_the_table_covers_every_category_and_precision_but_unmet_ones() -> None:
    assert {row[2] for row in NAMES} == set(CATEGORIES)
    assert {row[3] for row in NAMES} >= set(PRECISIONS) - {"fp4"}


def test_every_row_of_the_patterns_is_well_formed() -> None:
    known = set(FILLERS) | {"p", "np", "1", "2"}
    for row in kernel_patterns.PATTERNS:
        assert row.category in CATEGORIES
        assert row.precision in {*PRECISIONS, ""}
        assert set(re.findall(r"\{(\w+)\}", row.label)) <= known
        assert not re.search(r"(?<!\\)[*+](?![^\[]*\])", row.pattern.replace("_+", "")), row.pattern


def test_both_tools_spellings_give_one_kernel() -> None:
    nsys = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::<unnamed>::launch_clamp_scalar(at::TensorIteratorBase &, c10::Scalar)::[lambda() (instance 1)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)"
    torch = "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&, c10::Scalar)::{lambda()#1}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >(int, at::native::(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&, c10::Scalar)::{lambda()#1}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>)"
    a, b = classify(nsys), classify(torch)
    assert a.short == b.short == "elementwise clamp"
    assert (a.category, a.precision, a.tensor_core) == (b.category, b.precision, b.tensor_core)


# Mangled names, with what c++filt makes of them.
MANGLED = [
    ("_Z9fma_heavyPfi", "fma_heavy(float*, int)"),
    ("_Z3addiPfS_", "add(int, float*, float*)"),
    ("_Z5test1Pdyy", "test1(double*, unsigned long long, unsigned long long)"),
    (
        "_ZN7cutlass7Kernel2I41cutlass_80_simt_sgemm_64x64_8x5_nt_align1EEvNT_6ParamsE",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nt_align1>(cutlass_80_simt_sgemm_64x64_8x5_nt_align1::Params)",
    ),
    (
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
    ),
    (
        "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_14func_wrapper_tIfZNS0_11sum_functorIfffEclERNS_14TensorIteratorEEUlffE_EEjfLi4ELi4EEEEEvT1_",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, float, 4, 4>)",
    ),
    (
        "_ZN2ns5packsIJifEEEvSt5tupleIJDpT_EEDpPNS_3VecIS2_Li2EEE",
        "void ns::packs<int, float>(std::tuple<int, float>, ns::Vec<int, 2>*, ns::Vec<float, 2>*)",
    ),
    (
        "_ZN2nsL3arrILi5EEEvPAT__fRA3_KfPFifiE",
        "void ns::arr<5>(float (*) [5], float const (&) [3], int (*)(float, int))",
    ),
    (
        "_ZN2nsL4litsILNS_4ModeE1ELb1ELln5ELj7EEEvPf",
        "void ns::lits<(ns::Mode)1, true, -5l, 7u>(float*)",
    ),
    (
        "_ZN2ns36_GLOBAL__N__eb88b06e_4_t_cu_8c71a45c5anon2EPf",
        "ns::(anonymous namespace)::anon2(float*)",
    ),
]


@pytest.mark.parametrize(("mangled", "expected"), MANGLED)
def test_a_mangled_name_is_demangled(mangled: str, expected: str) -> None:
    assert demangle(mangled) == expected
    assert classify(mangled).demangled == expected


@pytest.mark.parametrize("name", ["", "_Z", "_ZN", "fma_heavy", "_Z3ab", "_ZNSt", "_Z1fS9_", "_Zé"])
def test_what_is_not_understood_comes_back_unchanged(name: str) -> None:
    assert demangle(name) == name


def test_a_name_that_cannot_be_demangled_still_shows_its_family() -> None:
    result = classify("_ZN7cutlass13device_kernelIN5flash12FlashAttnFwdI?broken")
    assert result.demangled == result.raw
    assert result.category == "attention"


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC"),
        ("cuMemAlloc_v2", "cuMemAlloc"),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync"),
        ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync"),
        ("cuMemcpy_ptds", "cuMemcpy"),
        ("cudaDeviceSynchronize", "cudaDeviceSynchronize"),
        ("hipLaunchKernel", "hipLaunchKernel"),
        ("hipExtModuleLaunchKernel", "hipExtModuleLaunchKernel"),
        ("hipMemcpyAsync_spt", "hipMemcpyAsync"),
        ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties"),
        ("", ""),
    ],
)
def test_an_api_call_loses_its_version(name: str, bare: str) -> None:
    assert strip_api_version(name) == bare


@settings(deadline=None)
@given(
    st.one_of(st.text(), st.text().map("_ZN".__add__), st.text(alphabet="_ZNIESTPK0123ab<>(), :"))
)
def test_any_text_is_classified(name: str) -> None:
    result = classify(name)
    assert result.raw == name
    assert result.category in CATEGORIES
    assert result.precision in PRECISIONS
    assert 0 < len(result.short) <= MAX_LABEL_CHARS
    assert result.short.isprintable()
    assert classify(name) is result
    assert classify.__wrapped__(name) == result


HOSTILE = {
    "open brackets": "<" * 100_000,
    "parentheses": "(" * 50_000 + ")" * 50_000,
    "nested mangling": "_Z" + "N" * 100_000,
    "pointers": "_Z1f" + "PK" * 9_000 + "i",
    "letters": "a" * 100_000,
    "digits": "_Z" + "1" * 100_000,
    "repeated keyword": "kokkos" * 20_000,
    "repeated functor": "elementwise_kernel<" + "copy_kernel " * 9_000,
    "exploding substitutions": "_Z1f1aIiiE"
    + "".join(f"S_IS{c}_S{c}_E" for c in "0123456789ABCDEFGHIJKLMNOPQRSTUVWX"),
    "controls": "\x00\x1b[31m\n\u202e" * 1_000,
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_name_is_answered_at_once(name: str) -> None:
    started = time.process_time()
    result = classify.__wrapped__(name)
    assert time.process_time() - started < 1.0
    assert result.short.isprintable()
    assert len(result.short) <= MAX_LABEL_CHARS


# Short names of a capture

ALIKE = {
    "the functor": {
        "void at::native::vectorized_elementwise_kernel<4, at::native::BUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int)": "elementwise mul tensor-scalar",
        "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int)": "elementwise mul tensor-tensor",
    },
    "the data type": {
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, at::detail::Array<char*, 1> >(int)": "elementwise fill int i32",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<long>, at::detail::Array<char*, 1> >(int)": "elementwise fill int i64",
    },
    "the tile of a stage": {
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x5_tn_align4>(T1::Params)": "gemm tf32 tn 128x128 32x5",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4>(T1::Params)": "gemm tf32 tn 128x128 16x5",
    },
    "the library": {
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)": "gemm f32 nn 256x128 cutlass",
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas": "gemm f32 nn 256x128 xmma",
    },
    "template arguments": {
        "void cudnn::bn_bw_1C11_singleread<float, 512, true, 1, 2, 0>(cudnn::bn_bw_1C11_args<float>)": "batch_norm bwd singleread",
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 32, true, 1>(float)": "batch_norm bwd kernel <32>",
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 128, true, 1>(float)": "batch_norm bwd kernel <128>",
    },
    "words of long names": {
        "triton_poi_fused__to_copy_add_mul_native_layer_norm_backward_select_backward_1": "triton to_copy_add_mul_native_layer_norm_ba… <1>",
        "triton_poi_fused__to_copy_add_mul_native_layer_norm_backward_select_backward_2": "triton to_copy_add_mul_native_layer_norm_ba… <2>",
    },
}  # fmt: skip


@pytest.mark.parametrize("names", ALIKE.values(), ids=ALIKE.keys())
def test_kernels_of_one_label_get_what_differs(names: dict[str, str]) -> None:
    assert len({classify(name).short for name in names}) == 1
    assert unique_short_names(names) == names
    assert unique_short_names(reversed(list(names))) == names


def test_a_kernel_alone_keeps_its_label() -> None:
    names = [name for name, *_ in NAMES[:1]]
    assert unique_short_names(names) == {names[0]: classify(names[0]).short}


def test_spellings_of_one_kernel_share_their_short_name() -> None:
    names = ["void k<(int)4>(char *)", "void k<4>(char *)"]
    assert len(set(unique_short_names(names).values())) == 1


def test_kernels_whose_names_hardly_differ_are_numbered() -> None:
    same = "x" * 5_000
    names = {f"{same}{'a' * 400 + str(at)}": "label" for at in range(3)}
    assert len(set(distinguish(names).values())) == 3


@settings(deadline=None)
@given(st.lists(st.text(alphabet="abk_<>(), 01:", min_size=1), unique=True))
def test_short_names_of_any_texts_differ_and_fit(names: list[str]) -> None:
    short = unique_short_names(names)
    assert short == unique_short_names(sorted(names))
    assert all(0 < len(label) <= MAX_LABEL_CHARS for label in short.values())
    kernels = {parts_of(name)[1].text for name in names}
    assert len(set(short.values())) == len(kernels)


def test_many_names_of_one_label_take_little_time() -> None:
    names = {f"{'x' * 100}_{at}_{'<int, ' * 50}": "label" for at in range(2_000)}
    started = time.process_time()
    assert len(set(distinguish(names).values())) == len(names)
    assert time.process_time() - started < 4.0


# Every capture at hand


def nsys_time_by_name(path: Path) -> dict[str, float]:
    query = (
        "SELECT s.value, sum(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds s ON s.id = k.demangledName GROUP BY 1"
    )
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        try:
            return dict(database.execute(query).fetchall())
        except sqlite3.OperationalError:
            return {}


def torch_time_by_name(path: Path) -> dict[str, float]:
    data = path.read_bytes()
    trace = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data, strict=False)
    times: dict[str, float] = defaultdict(float)
    for event in trace["traceEvents"] if isinstance(trace, dict) else trace:
        if str(event.get("cat")).lower() == "kernel":
            times[event["name"]] += event.get("dur", 0)
    return times


def time_by_name(path: Path) -> dict[str, float]:
    return nsys_time_by_name(path) if path.suffix == ".sqlite" else torch_time_by_name(path)


def captures(*folders: str) -> list[Path]:
    result = (path for folder in folders for path in (SHARED / folder).glob("*"))
    return sorted(path for path in result if path.name.endswith((".sqlite", ".json", ".json.gz")))


def share_of_other(times: dict[str, float]) -> float:
    other = sum(ns for name, ns in times.items() if classify(name).category == "other")
    return other / (sum(times.values()) or 1)


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize("path", captures("nsys", "torch"), ids=lambda path: path.name)
def test_little_of_our_captures_is_unknown(path: Path) -> None:
    assert share_of_other(time_by_name(path)) <= 0.03


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize("path", captures("public/torch"), ids=lambda path: path.name)
def test_little_of_public_traces_is_unknown(path: Path) -> None:
    times = {name: ns for name, ns in time_by_name(path).items() if name != "Kernel"}
    assert share_of_other(times) <= 0.001


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize(
    "path", captures("public/nsys", "public/torch"), ids=lambda path: path.name
)
def test_what_is_unknown_in_public_captures_is_user_code(path: Path) -> None:
    libraries = re.compile(
        r"at::native|cudnn|cublas|cutlass|gemm|nccl|triton|conv|softmax|norm", re.I
    )
    times = time_by_name(path)
    unknown = {name: ns for name, ns in times.items() if classify(name).category == "other"}
    recognisable = sum(ns for name, ns in unknown.items() if libraries.search(name))
    assert recognisable <= 0.03 * sum(times.values())


def mangled_names() -> set[str]:
    query = (
        "SELECT DISTINCT s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds s ON s.id = k.mangledName WHERE s.value LIKE '\\_Z%' ESCAPE '\\'"
    )
    names: set[str] = set()
    for path in captures("nsys"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
            try:
                names.update(row[0] for row in database.execute(query))
            except sqlite3.OperationalError:
                continue
    return names


@pytest.mark.shared
@pytest.mark.skipif(shutil.which("c++filt") is None, reason="c++filt is not here")
@needs_shared
def test_demangling_agrees_with_binutils_on_our_captures() -> None:
    names = sorted(mangled_names())
    ran = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    )
    # c++filt gives up on the longest instances, which says nothing of ours.
    pairs = zip(names, ran.stdout.splitlines(), strict=True)
    expected = {name: shown for name, shown in pairs if shown != name}
    assert len(expected) > 50
    assert {name: demangle(name) for name in expected} == expected


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize(
    "path", captures("nsys", "torch", "public/torch"), ids=lambda path: path.name
)
def test_short_names_in_captures_differ(path: Path) -> None:
    names = list(time_by_name(path))
    short = unique_short_names(names)
    assert len(set(short.values())) == len({parts_of(name)[1].text for name in names})
    numbered = [label for label in short.values() if re.search(r" #\d+$", label)]
    assert len(numbered) <= 0.05 * len(names)
