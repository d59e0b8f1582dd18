"""The table that kernel names are recognized by: the first row that matches wins.

A row's `pattern` is searched in the lower-case function name (for launchers such as
`cutlass::Kernel2<…>` also in what they launch), `args` in the template arguments. Rows marked
`words` see the bare function name split into words (`matrixMulKernel` -> ` matrix mul kernel `),
so that they cannot match inside a longer word. Patterns have bounded repeats only.

Label templates: {p} precision, {np} precision unless fp32, {fn} function name, {1} first group;
the rest is in kernel_names.FILLERS.

`ORIGINS` lists the libraries and frameworks that kernels come from.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import NamedTuple

# ruff: noqa: E501  (one row a line, however long its alternatives)

CATEGORIES: tuple[str, ...] = (
    "matmul",
    "convolution",
    "attention",
    "softmax",
    "normalization",
    "elementwise",
    "reduction",
    "optimizer",
    "embedding",
    "copy",
    "random",
    "sort",
    "pooling",
    "loss",
    "communication",
    "generated",
    "fft",
    "stencil",
    "loop",
    "custom",
    "other",
)


class KernelPattern(NamedTuple):
    """One family of kernels."""

    pattern: str
    category: str
    label: str
    args: str = ""
    words: bool = False
    precision: str = ""


ELEMENTWISE = r"elementwise_kernel|elementwisekernel"
LIBRARIES = (
    r"(?:at|at_cuda_detail|c10|torch|torchvision|caffe2|cub|thrust|cuda|cutlass\w{0,8}|cute|eigen|xla|tensorflow|onnxruntime|tvm|mxnet"
    r"|paddle|phi|vllm|sglang|sgl_kernel|flashinfer|fbgemm\w{0,8}|transformer_engine|apex|deepspeed|bitsandbytes|ck|ck_tile|aiter|rocprim|raft|cuml|cudf"
    r"|cugraph|rmm|dali|faiss|cupy|numba|magma\w{0,8}|ggml\w{0,8}|llama)::"
    r"|(?:cudnn|cublas|cufft|cusparse|cusolver|cutensor|curand|nccl|nvjpeg|npp|tensorrt|trt|rocblas|hipblas|rocsolver|rocsparse|miopen|magma|__)"
    r"|(?:kepler|maxwell|pascal|volta|turing|ampere|hopper|sm\d{2,3})_"
)
"""Beginnings of names that are a library's, in lower case."""

# fmt: off
PATTERNS: tuple[KernelPattern, ...] = (
    # --- Generated code: what its name lists was fused, so it comes before all single operations
    # triton_tem_fused_addmm_3, triton_tem_fused__scaled_mm_0, triton_mm_12
    KernelPattern(r"^triton_(?:tem_fused_\w{0,60}?_?)?_?(?:int_|mixed_|scaled_|grouped_){0,2}(?:mm|bmm|addmm|baddbmm)(?:_|$)", "matmul", "triton {triton}"),
    KernelPattern(r"^triton_(?:tem_\w{0,60})?flex_(?:attention|decoding)", "attention", "triton {triton}"),
    KernelPattern(r"^triton_tem_\w{0,60}conv", "convolution", "triton {triton}"),
    # XLA's Triton softmax and matmul: triton_softmax_12, gemm_fusion_dot_4, triton_gemm_dot
    KernelPattern(r"^triton_softmax", "softmax", "triton {triton}"),
    KernelPattern(r"^triton_gemm|gemm_fusion", "matmul", "xla {base}"),
    # triton_poi_fused_add_0, triton_per_fused_native_layer_norm_3, triton_red_fused_sum_1, triton__0d1d2de
    KernelPattern(r"^triton_", "generated", "triton {triton}"),
    # loop_add_fusion_2, input_reduce_fusion, fusion.14, multiply_add_fusion.clone, wrapped_slice
    KernelPattern(r"^(?:\w{0,60}_)?fusion(?:[._]\d{1,6})?(?:\.clone)?(?:[._]\d{1,6})?$|^fusion_|^wrapped_|^loop_\w{1,60}fusion", "generated", "xla {base}"),
    # What XLA did not fuse, named after its operation: dot_general.3, dynamic-update-slice.7
    KernelPattern(r"^dot(?:[-_]general)?(?:[._]\d{1,6})?$", "matmul", "xla {base}"),
    KernelPattern(r"^dynamic[-_](?:update[-_])?slice", "copy", "xla {base}"),
    KernelPattern(r"three_?fry|rng[-_]bit[-_]generator", "random", "{base}"),
    # TensorRT's compiler: __myl_FcAddCast_myl0_5, __myl_Fmha_…
    KernelPattern(r"__myl_\w{0,60}(?:mha|fmha)", "attention", "myelin {base}"),
    KernelPattern(r"__myl_\w{0,60}(?:fc|gemm|matmul)", "matmul", "myelin {base}"),
    KernelPattern(r"__myl_\w{0,60}conv", "convolution", "myelin {base}"),
    KernelPattern(r"__myl_|myelin", "generated", "myelin {base}"),

    # --- Communication
    # ncclDevKernel_AllReduce_Sum_f32_RING_LL(…), ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t, rccl
    KernelPattern(r"nccl|rccl", "communication", "nccl {coll}"),
    KernelPattern(r"msccl", "communication", "{base}"),
    # deep_ep::intranode::dispatch, mori::moe::EpCombineIntraNodeKernel, internode_ll::combine
    KernelPattern(r"nvshmem|rocshmem|(?:^|:)(?:internode|intranode)(?:_ll)?::|get_dispatch_layout|deep_ep|mori::|ep_?(?:dispatch|combine)\w{0,20}kernel", "communication", "{fn}"),
    # vllm::cross_device_reduce_1stage, one_shot_all_reduce, multimem_all_reduce_kernel, userbuffers
    KernelPattern(r"cross_device_(?:reduce|store)|all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|collective[-_]?(?:permute|broadcast)|multimem_|userbuffers|p2p_barrier|(?:^|:)(?:barrier|put_signal|wait_signal)_kernel", "communication", "{fn}"),

    # --- Attention and what serves it
    # Which page holds which token: create_flashinfer_kv_indices_triton, _compute_slot_mapping_kernel
    KernelPattern(r"req_to_token|kv_indices|slot_mapping|page_indices|(?:page|block)_table", "embedding", "{fn}"),
    # vllm::reshape_and_cache_flash_kernel, append_paged_kv_cache, copy_blocks_kernel
    KernelPattern(r"reshape_and_cache|concat_and_cache|append\w{0,8}_?(?:paged)?_?kv|kv_?cache_?copy|copy_blocks|set_kv_buffer", "copy", "kv-cache write {np}"),
    # The two halves of decoding with many keys, as SGLang names them: _fwd_grouped_kernel_stage1_rope
    KernelPattern(r"^_fwd_(?:grouped_)?kernel_stage\d", "attention", "{fn}"),
    # vllm::rotary_embedding_kernel, rotary_kernel, fused_rope, aiter::kn_entry_2c_sbhd_cached
    KernelPattern(r"rotary|fused_?rope|(?:^|_|:)rope(?:_|$)|rope\w{0,20}kernel|kn_entry_\dc_(?:sbhd|thd|2d)", "elementwise", "rotary embedding {dir} {np}"),
    # Megatron's and apex's scaled_masked_softmax_warp_forward
    KernelPattern(r"scaled_\w{0,30}softmax", "softmax", "masked softmax {dir} {np}"),
    # flash_fwd_splitkv_combine_kernel, FlashAttnFwdCombine
    KernelPattern(r"flash_fwd_splitkv_combine|flashattnfwdcombine", "attention", "flash attention combine {np} {d}"),
    KernelPattern(r"flash_fwd_splitkv", "attention", "flash attention fwd split-kv {p} {d}"),
    # flash_bwd_dot_do_o_kernel, FlashAttnBwdPreprocess, FlashAttnBwdPostprocessConvertdQ
    KernelPattern(r"flash_bwd_(dot_do_o|convert_dq|clear_dkv)", "attention", "flash attention bwd {1} {np}"),
    KernelPattern(r"flashattnbwd(preprocess|postprocess)", "attention", "flash attention bwd {1} {np} {d}"),
    # pytorch_flash::flash_fwd_kernel<…>, flash::compute_attn_ws, flash::FlashAttnBwd
    KernelPattern(r"flash_(?:fwd|bwd)|flashattn(?:fwd|bwd)|flash::compute_attn", "attention", "flash attention {dir} {p} {d}"),
    # fmha_cutlassF_f16_aligned_64x64_rf_sm80, AttentionKernel<cutlass::half_t…>, AttentionBackwardKernel
    KernelPattern(r"fmha_cutlass|attentionkernel<|attentionbackwardkernel<", "attention", "attention {dir} mem-efficient {p}"),
    # cudnn_generated_fort_native_sdpa_sm100_flash_fprop_f16_…
    KernelPattern(r"sdpa\w{0,40}bprop", "attention", "cudnn attention bwd {p}"),
    KernelPattern(r"sdpa", "attention", "cudnn attention {dir} {p}"),
    # fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausal…, fmha_v2_flash_attention_fp16_64_128, ck_tile FmhaFwdKernel
    KernelPattern(r"fmha\w{0,140}(context|generation)", "attention", "fmha {1} {p} {d}"),
    KernelPattern(r"fmha|fused_multihead", "attention", "fmha {dir} {p} {d}"),
    # FlashInfer: BatchDecodeWithPagedKVCacheKernel, BatchPrefillWithRaggedKVCacheKernel, …MergeStatesKernel
    KernelPattern(r"(batch|single|)_?(decode|prefill)\w{0,12}with", "attention", "flashinfer {1} {2} {p}"),
    KernelPattern(r"merge_?(?:attn_)?states", "attention", "attention merge states {np}"),
    # vllm::paged_attention_v2_kernel, kernel_unified_attention_2d, masked_multihead_attention, mla_decode
    KernelPattern(r"paged_attention|unified_attention|multihead_attention|mmha|xqa_|(?:^|_|:)mla_|flash_?mla|flash_attn|attn_(?:fwd|bwd)|_attn_|prepare_varlen", "attention", "{fn}"),
    # aiter::pa_bf16_pertokenFp8_gqa8, deep_gemm::sm90_fp8_paged_mqa_logits
    KernelPattern(r"(?:^|:)pa_(?:bf16|fp16|fwd|decode)|mqa_logits", "attention", "{fn}"),
    # Triton's attention from its tutorial and its heirs: _fwd_kernel, _bwd_kernel_dkdv, bwd_kernel_dk_dv
    KernelPattern(r"^_(?:fwd|bwd)_kernel$|bwd_kernel_(?:dk|dq|one_col)|bwd_preprocess_do_o", "attention", "{fn}"),
    # Linear attention and state spaces: chunk_fwd_kernel_o, selective_scan_fwd_kernel, _chunk_state_fwd_kernel
    KernelPattern(r"delta_rule|selective_scan|selective_state_update|(?:^|_)chunk_(?:\w{1,20}_)?(?:fwd|bwd)_kernel|fused_recurrent_|chunk_(?:scan|state)_|state_passing", "attention", "{fn}"),

    # --- Losses, softmax and normalization
    # nll_loss_forward_reduce_cuda_kernel_2d, cunn_ClassNLLCriterion_updateOutput_kernel, ctc_loss
    KernelPattern(r"nll_?loss|nllcriterion", "loss", "nll loss {dir} {np}"),
    KernelPattern(r"cross_?entropy", "loss", "cross entropy {dir} {np}"),
    KernelPattern(r"(ctc|mse|smooth_?l1|huber|multi_?margin|bce)\w{0,8}_?(?:loss|criterion|kernel)", "loss", "{1} loss {dir} {np}"),
    # Expert routing: vllm::moe::topkGatingSoftmax, moe_fused_gate_kernel, ck_tile MoeSortingKernel
    KernelPattern(r"topk_?gating|topk_?softmax|moe\w{0,12}_gate(?:_|$)|moe_?sort", "sort", "{fn}"),
    # cunn_SoftMaxForwardSmem<8, …, LogSoftMaxForwardEpilogue>
    KernelPattern(r"soft_?max", "softmax", "log_softmax {dir} {np}", args=r"logsoftmax"),
    # softmax_warp_forward<float, float, float, 10, true, false>: the first flag is log_softmax
    KernelPattern(r"softmax_warp", "softmax", "log_softmax {dir} {np}", args=r"^[^<>]{1,120}, \d{1,2}, (?:true|1)"),
    KernelPattern(r"soft_?max", "softmax", "softmax {dir} {np}"),
    # GammaBetaBackwardCUDAKernelTemplate<float, float, …>, layer_norm::ln_bwd_finalize_kernel
    KernelPattern(r"gammabetabackward|ln_bwd_finalize|computepartgradgammabeta|computegradgammabeta", "normalization", "layer_norm bwd (gamma, beta) {np}"),
    # layer_norm_grad_input_kernel_vectorized, vectorized_layer_norm_kernel, ln_fwd_kernel, cuApplyLayerNorm
    KernelPattern(r"layer_?norm_grad_input|cucomputegradinput", "normalization", "layer_norm bwd (input) {np}"),
    KernelPattern(r"rowwisemoments", "normalization", "layer_norm moments {np}"),
    KernelPattern(r"rms_?norm\w{0,12}_quant|fused_add_rms_?norm", "normalization", "{base} {np}"),
    KernelPattern(r"rms_?norm", "normalization", "rms_norm {dir} {np}"),
    KernelPattern(r"vectorized_layer_norm_kernel", "normalization", "layer_norm fwd {np}"),
    KernelPattern(r"layer_?norm|(?:^|:|_)ln_(?:fwd|bwd)", "normalization", "layer_norm {dir} {np}"),
    KernelPattern(r"group_?norm|computefusedparams", "normalization", "group_norm {dir} {np}"),
    # cudnn::bn_fw_tr_1C11_kernel_NCHW, batch_norm_collect_statistics_kernel, MIOpenBatchNormFwdTrainSpatial
    KernelPattern(r"bn_fw_inf", "normalization", "batch_norm inference {np}"),
    KernelPattern(r"batch_?norm\w{0,40}(collect_statistics|transform_input|reduce|elemt|update_stats)", "normalization", "batch_norm {1} {np}"),
    KernelPattern(r"bn_fw|bn_bw|batch_?norm|bnfwd|bnbwd", "normalization", "batch_norm {dir} {np}"),
    KernelPattern(r"instance_?norm|welford|weight_?norm|l2_?norm", "normalization", "{fn}"),
    KernelPattern(ELEMENTWISE, "normalization", "batch_norm {op}", args=r"batch_norm"),

    # --- Optimizers (multi-tensor kernels exist for optimizers, gradient clipping and averages)
    # multi_tensor_apply_kernel<…, FusedAdamMathFunctor<float, 4, …>>
    KernelPattern(r"multi_tensor_apply", "optimizer", "{optim} multi-tensor {p}"),
    # fbgemm: split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1
    KernelPattern(r"split_embedding_backward_codegen_(\w{2,30})_(?:un)?weighted", "embedding", "embedding bwd {1} {np}"),
    KernelPattern(r"fused_?adam|adamw?_|_adamw?|adam\w{0,12}kernel|multi_tensor|kpreconditionoptimizer|koptimizer|(?:^|_)(?:lamb|adagrad|fused_sgd|lion)_", "optimizer", "{fn}"),

    # --- Layout changes around convolutions and matmuls
    # cudnn::engines_precompiled::nchwToNhwcKernel<float, …>, nhwcToNchwKernel
    KernelPattern(r"(nchw|nhwc|ncdhw|ndhwc)_?to_?(?:folded)?(nchw|nhwc|ncdhw|ndhwc)", "copy", "{1}→{2} {p}"),
    # MIOpen batched_transpose_16x64_pack_…, cuda::batched_transpose, user transpose_tiled
    KernelPattern(r"\w{0,30}cast_and_transpose|cast_transpose", "copy", "{base}"),
    KernelPattern(r"batched_transpose|(?:^|:)(?:\w{1,20}_)?transpose(?:_|<|$|2d|kernel)", "copy", "{fn}"),
    # cuDNN's tensorTransformGeneric<float, float, float, true, …>
    KernelPattern(r"tensortransform", "copy", "tensor transform {np}"),
    # TensorRT genericReformat::copyVectorizedKernel, cuTENSOR permutationKernelPLC3
    KernelPattern(r"genericreformat", "copy", "reformat"),
    KernelPattern(r"cutensor\w{0,20}::permutation|permutationkernel", "copy", "tensor permute {np}"),
    KernelPattern(r"catarraybatchedcopy|concat_kernel", "copy", "cat {np}"),

    # --- Convolution, before matmul: implicit GEMM is both
    # What prepares strided gradients: xmma_cudnn::implicit_gemm::strided_dgrad_indexed::kernel_helper_stage_3
    KernelPattern(r"(?:fprop|dgrad|wgrad)\w{0,20}::kernel_helper", "convolution", "conv {conv} {base}"),
    # sm90_xmma_wgrad_indexed_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32_…
    KernelPattern(r"xmma_(?:fprop|dgrad|wgrad)|implicit_?gemm(?:_|::)\w{0,20}(?:fprop|dgrad|wgrad)", "convolution", "conv {conv} {p} {data} {tile}"),
    # cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc_…
    KernelPattern(r"\d(?:fprop|dgrad|wgrad)_|implicitgemmconvolution", "convolution", "conv {conv} {p} {data} {tile}"),
    # cutlass__5x_cudnn::Kernel<…reduction::kernel::ReduceSplitK<…>>
    KernelPattern(r"cudnn\w{0,10}::kernel<.{0,40}reducesplitk|reduce_wgrad", "convolution", "conv split-k reduce {p}"),
    # volta_scudnn_winograd_128x128_…, cudnn::winograd_nonfused::winogradForwardData4x4
    KernelPattern(r"winograd_nonfused::winograd(\w{4,30})", "convolution", "conv winograd {1} {p}"),
    KernelPattern(r"winograd", "convolution", "conv winograd {p}"),
    # volta_scudnn_128x64_relu_medium_nn_v1, turing_fp16_s1688cudnn_fp16_…
    KernelPattern(r"[sh]\d{0,6}cudnn_", "convolution", "conv {p} {tile} {extras}"),
    # implicit_convolve_sgemm<…>, explicit_convolve_sgemm, cudnn::cnn::wgrad_alg0_engine, dgrad_engine
    KernelPattern(r"(implicit|explicit)_convolve", "convolution", "conv {1} gemm {p}"),
    KernelPattern(r"wgrad_alg|wgrad2d|dgrad2d|dgrad_engine|wgrad_engine", "convolution", "conv {conv} engine {p}"),
    KernelPattern(r"fft2d_|cudnn\w{0,20}::fft", "convolution", "conv fft {base}"),
    # cask_cudnn::computeOffsetsKernel, cask_plugin__5x_cudnn::…::init_device_workspace_kernel
    KernelPattern(r"compute\w{0,16}offsetskernel|init_device_workspace|kern_precompute_indices", "convolution", "conv setup {base}"),
    # MIOpen: igemm_fwd_gtcx2_nhwc_bf16_…, naive_conv_…, ck grouped convolutions
    KernelPattern(r"igemm_(?:fwd|bwd|wrw)", "convolution", "conv {conv} {p} {data} {tile}"),
    KernelPattern(r"im\d?d?2col|col2im|vol2col|col2vol", "convolution", "{base} {np}"),
    KernelPattern(r"depthwise", "convolution", "depthwise conv {conv} {np}"),
    KernelPattern(r"causal_conv|(?:^|_|:)conv(?:olution|\dd|_|$|-)|miopen\w{0,10}c(?:on)?v|gridwise\w{0,10}conv|convolution|xdlops_bwd_(?:weight|data)", "convolution", "{fn}"),

    # --- Matmul
    # void splitKreduce_kernel<32, 16, int, float, …>, cutlass ReduceSplitK
    KernelPattern(r"splitk_?reduce|reducesplitk", "matmul", "gemm split-k reduce {p}"),
    KernelPattern(r"epilogue::impl|cublaslt::globalkernel", "matmul", "gemm epilogue {p}"),
    # fused_moe_kernel, _matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1, aiter::fmoe_bf16_pertokenFp8_g1u1_…
    KernelPattern(r"fused_moe_(?:kernel|gemm|gptq|awq)|fused_moe::|(?:^|:)fmoe_|_matmul_ogs|moe\w{0,12}gemm", "matmul", "moe gemm {p} {tile} {extras}"),
    # AMD's: aiter::f8gemm_bf16_blockscale_…, _gemm_a8w8_blockscale_kernel, flatmm_uk_gfx9_…, wvSplitK_hf_sml_
    KernelPattern(r"(?:^|:)(?:b?f|fp|i)\d{1,2}gemm_|gemm_a(?:\d{1,2}|fp4)_?w(?:\d|fp4)|flatmm|wv_?splitk|llgemm|llmm1", "matmul", "{fn}"),
    # bmm_Bfloat16_MxE2m1MxE4m3_…
    KernelPattern(r"(?:^|:)bmm_\w", "matmul", "bmm {p} {tile}"),
    KernelPattern(r"marlin|awq|gptq|exllama|machete", "matmul", "quantized gemm {base}"),
    KernelPattern(r"fill_tensormaps", "matmul", "gemm setup {base}"),
    # nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN, sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_…
    KernelPattern(r"nvjet|xmma_gemm", "matmul", "gemm {p} {layout} {tile} {extras}"),
    # Tensile (rocBLAS, hipBLASLt): Cijk_Ailk_Bjlk_BBS_BH_Bias_HAS_SAV_UserArgs_MT128x64x32_…,
    # and what it runs before and after: Cijk_SB_GA, Cijk_SB_GG_BiasS_PostGSU8_VW2
    KernelPattern(r"cijk_a[ijkl]{3,4}_b", "matmul", "gemm {p} {layout} {tile}"),
    KernelPattern(r"cijk_", "matmul", "gemm split-k {p} {base}"),
    # gemv2T_kernel_val<…>, gemvNSP_kernel<…>, internal::gemvx::kernel<…>
    KernelPattern(r"gemv|dot_product_vec", "matmul", "gemv {p}"),
    KernelPattern(r"gemmk1_kernel|gemmsn_(\w\w)_kernel", "matmul", "gemm small {p} {1}"),
    # dpsk::grouped_gemm::…GemmKernel, deep_gemm::sm90_fp8_gemm_1d2d_impl
    KernelPattern(r"grouped_gemm|groupedgemm|group_gemm", "matmul", "grouped gemm {p} {tile}"),
    KernelPattern(r"deep_gemm::", "matmul", "deep_gemm {base}"),
    # cutlass_80_tensorop_s1688gemm_128x128_16x5_nt_align4, volta_sgemm_128x64_nn, trt_ampere_h16816gemm_…
    KernelPattern(r"cutlass\w{0,24}_\w{0,24}gemm|(?:kepler|maxwell|pascal|volta|turing|ampere|hopper|sm\d{2,3})_\w{0,16}gemm", "matmul", "gemm {p} {layout} {tile} {extras}"),
    # sgemm_largek_lds64<true, false, 5, …>, sgemm_32x32x32_NT_vec
    KernelPattern(r"(?:^|:)[sdhcz]gemm_(?:largek|\d)", "matmul", "gemm {p} {layout} {tile}"),
    KernelPattern(r"gemm_?(?:universal|kernel)|<gemm|::gemm<|mma(?:pipelined|multistage)|kernel_gemm|gemm_xdl|cublas\w{0,20}gemm", "matmul", "gemm {p} {tile}"),
    KernelPattern(r"trsm|syrk|trmm|getrf|potrf|lu_?factor", "matmul", "{base} {p}"),
    # cuSPARSE: cusparse::csrmm_kernel<…>, csrmv_v3_kernel<…>
    KernelPattern(r"csr_?m[mv]|(?:^|_|:)k?spm[mv]", "matmul", "sparse {base} {p}"),
    # How cuSPARSE splits the rows of a sparse product over blocks
    KernelPattern(r"cusparse::(?:load_balancing|partition|merge_path)", "matmul", "sparse {base} {p}"),
    # Conversions between sparse formats: csr2csc_kernel, coo2csr, dense2csr
    KernelPattern(r"(?:^|_|:)(?:csr|csc|coo|bsr|ell|dense)2(?:csr|csc|coo|bsr|ell|dense)", "copy", "sparse {base} {np}"),
    # ggml: mul_mat_q<…>, mul_mat_vec_q
    KernelPattern(r"(?:^|_|:)mul_mat(?:_|$)", "matmul", "{fn}"),
    # cuDNN's recurrent layers: RNN_blockPersist_fp_LSTM; their cells: LSTM_elementWise_fp, lstm_cell_forward
    KernelPattern(r"rnn\w{0,12}persist|persist\w{0,12}rnn", "matmul", "{base} {p}"),
    KernelPattern(r"(?:lstm|gru|rnn)_?(?:cell|elementwise)|elemwisernncell", "elementwise", "{base} {np}"),
    # cuBLAS level 1: dot_kernel<float, 128, 0, …>, reduce_1Block_kernel, scal_kernel, axpy_kernel
    KernelPattern(r"(?:^|:)dot_kernel|reduce_1block", "reduction", "dot {p}"),
    KernelPattern(r"(?:^|:)scal_kernel|scalepackedtensor", "elementwise", "scale {np}"),

    # --- Random numbers
    KernelPattern(r"dropout", "random", "dropout {dir} {np}"),
    KernelPattern(ELEMENTWISE, "random", "dropout bwd {np}", args=r"masked_scale_kernel"),
    # distribution_elementwise_grid_stride_kernel<float, 4, …normal_and_transform…>
    KernelPattern(r"distribution_\w{0,40}kernel", "random", "random {1} {np}", args=r"(normal|uniform|bernoulli|random|exponential|geometric|cauchy)"),
    KernelPattern(r"distribution_\w{0,40}kernel|philox|curand|rocrand|rand(?:perm|int|n)(?:_|$)|bernoulli|multinomial|generate_seed_pseudo|gen_sequenced", "random", "random {base}"),

    # --- Pooling
    KernelPattern(r"(max|avg|average|adaptive\w{0,8}|global)_?pool\w{0,6}", "pooling", "{1} pool {dir} {np}"),
    KernelPattern(r"pooling", "pooling", "pooling {p}"),
    # upsample_bilinear2d_out_frame, grid_sampler_2d_kernel: resampling, as pooling is
    KernelPattern(r"roi_?(align|pool)", "pooling", "roi {1} {dir} {np}"),
    KernelPattern(r"upsample_(\w{4,20}?)(?:_|$)", "pooling", "upsample {1} {dir} {np}"),
    KernelPattern(r"grid_sampler", "pooling", "grid sampler {dir} {np}"),

    # --- Mixtures of experts (choosing them is sorting, above and below)
    # The outputs of a token's experts, weighted and summed: moe::dev::finalize::finalizeKernelVecLoad,
    # finalizeMoeRoutingKernel, _finalize_matmul_scatter_bf16, vllm::moe::moe_sum_kernel
    KernelPattern(r"moe\w{0,6}::\w{0,12}:?:?finalize|finalize_?moe|finalizekernelvec|_finalize_matmul|moe_?(?:unpermute|sum)|(?:^|_|:)unpermute_", "reduction", "{fn}"),
    # Tokens laid out by expert: expandInputRowsKernel, moe_permute_topK_kernel, expand_to_fused_impl
    KernelPattern(r"expand_?input_?rows|moe_?permute|expand_to_fused", "copy", "{fn}"),
    KernelPattern(r"fused_mapping", "sort", "{fn}"),

    # --- Embedding, indexing, gather, scatter
    KernelPattern(r"embedding_?bag", "embedding", "embedding bag {dir} {np}"),
    # krn_partials_per_segment and compute_grad_weight serve embedding_dense_backward
    KernelPattern(r"embedding|krn_partial|(?:^|:)compute_grad_weight", "embedding", "embedding {dir} {np}"),
    # indexSelectLargeIndex, index_elementwise_kernel<…index_put_kernel_impl…>, indexing_backward_kernel
    KernelPattern(r"index_elementwise_kernel", "embedding", "{op} {np}"),
    KernelPattern(r"indexselect|index_select", "embedding", "index select {np}"),
    KernelPattern(r"scatter_gather_elementwise", "embedding", "{1}", args=r"(scatter_fill|scatter_reduce)"),
    KernelPattern(r"scatter_gather_elementwise", "embedding", "scatter add {np}", args=r"reduceadd"),
    KernelPattern(r"scatter_gather_elementwise", "embedding", "scatter/gather {np}"),
    KernelPattern(r"vectorized_gather", "embedding", "gather"),
    KernelPattern(r"index_?(?:put|add|fill|copy|func)|indexing_backward|indexfunc|scatter|gather(?!topk)|take_put|masked_select|linearize_index|pooled_embs|permute_indices|bounds_check_indices|unique_group_indices", "embedding", "{base} {np}"),

    # --- Sort, scan, top-k
    # cub::DeviceRadixSortOnesweepKernel<…>, at_cuda_detail::cub::DeviceScanKernel<…>
    KernelPattern(r"deviceradixsort(\w{0,30}?)kernel", "sort", "radix sort {1} {p}"),
    KernelPattern(r"device(segmentedradixsort|mergesort|segmentedsort)\w{0,30}", "sort", "{1} {p}"),
    KernelPattern(r"device(scan\w{0,8}|select\w{0,12}|compact\w{0,8}|partition\w{0,8}|runlengthencode|histogram\w{0,8}|unique\w{0,8})kernel", "sort", "cub {1} {p}"),
    KernelPattern(r"device(?:segmented)?reduce\w{0,30}kernel", "reduction", "cub {base}"),
    KernelPattern(r"_kernel_agent|static_kernel", "sort", "thrust {1}", args=r"(radix_?sort|merge_?sort|blocksort|partition|scan|copy_if|unique|set_op)"),
    KernelPattern(r"_kernel_agent", "reduction", "thrust reduce", args=r"reduce"),
    KernelPattern(r"_kernel_agent|static_kernel|transform_kernel", "elementwise", "thrust {1} {np}", args=r"__(uninitialized_fill|uninitialized_copy|fill|transform|tabulate|replace)"),
    KernelPattern(r"_kernel_agent|static_kernel|transform_kernel", "elementwise", "thrust for_each {np}", args=r"parallelfor|for_each|transform|fill"),
    KernelPattern(r"for_each::static_kernel|(?:rocprim|cub)::\S{0,80}transform_kernel", "elementwise", "{base} {np}"),
    # rocprim starts most through one function: trampoline_kernel<…wrapped_radix_sort_config…>
    KernelPattern(r"trampoline_kernel", "sort", "rocprim {1} {p}", args=r"(radix_?sort|onesweep|merge_?sort|segmented_?sort|partition|select|unique|run_length|histogram|scan)"),
    KernelPattern(r"trampoline_kernel", "reduction", "rocprim reduce {np}", args=r"reduce"),
    KernelPattern(r"trampoline_kernel", "elementwise", "rocprim {1} {np}", args=r"(transform|fill|copy|for_each)"),
    # rocprim::detail::onesweep_iteration_kernel, partition_kernel, init_lookback_scan_state_kernel
    KernelPattern(r"rocprim::\S{0,200}(?:onesweep|partition|mergepath|merge_path|lookback|non_trivial_runs|block_sort|nth_element|adjacent)", "sort", "rocprim {base}"),
    KernelPattern(r"top_?k|topp|sampling|moe_?align|routing|route|count_expert|count_and_sort|bitonic|radix_?sort|merge_?sort|quick_?sort|segmented_sort|sort_?(?:pairs|kernel|by_key)|tensor_kernel_scan|cumsum|cumprod|prefix_?sum|inclusive_?scan|exclusive_?scan|histogram|unique", "sort", "{fn}"),

    # --- PyTorch's generic kernels, by what their functor does
    # direct_copy_kernel_cuda, bfloat16_copy_kernel_cuda (a cast), copy_device_to_device
    KernelPattern(ELEMENTWISE, "copy", "copy {p}→{to}", args=r"(?:bfloat16|float16|float8|float4)\w{0,12}_copy_kernel", precision="mixed"),
    KernelPattern(ELEMENTWISE, "copy", "copy →{p}", args=r"copy_kernel.{0,4000}loadwithcast", precision="mixed"),
    KernelPattern(ELEMENTWISE, "copy", "copy {p} {access}", args=r"copy_kernel|copy_device_to_device"),
    KernelPattern(ELEMENTWISE, "loss", "loss {op} {np}", args=r"(?:mse|smooth_l1|huber|kl_div|binary_cross_entropy|xlogy)\w{0,20}kernel"),
    KernelPattern(ELEMENTWISE, "elementwise", "{op} {np}", args=r"arange_cuda|linspace|range_cuda"),
    # vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, std::array<char*, 3ul> >
    KernelPattern(ELEMENTWISE, "elementwise", "elementwise {op} {access} {np}"),
    # reduce_kernel<512, 1, ReduceOp<float, MeanOps<float, …>>>
    KernelPattern(r"(?:at|native)::reduce_kernel|^reduce_kernel", "reduction", "reduce {reduce} {np}", args=r"reduceop"),
    KernelPattern(r"lean_reduction|reduce_kernel|op_tensor_reduce", "reduction", "reduce {np}"),
    KernelPattern(r"triu_tril", "elementwise", "triu/tril {np}"),
    KernelPattern(r"op_tensor_kernel|op_generic_tensor|subtensorop|optensor|tensorop(?:fwd|with)", "elementwise", "{base}"),
    # MIOpen: Op4dTensorGeneric, MIOpenNeuronFwd (activations), SubTensorOpWithScalar1d (fills)
    KernelPattern(r"^op\dd?tensor|miopen(?:neuron|activ)", "elementwise", "{base}"),
    # TransformerEngine: delayed_scaling_recipe::amax_and_scale_update, gated_act_kernel, unary_kernel
    KernelPattern(r"amax_and_scale|(?:^|_|:)amax_kernel", "reduction", "{base} {np}"),
    KernelPattern(r"gated_act|(?:^|:)(?:unary|binary)_(?:\w{0,12}_)?kernel|penalt", "elementwise", "{fn}"),
    # repeat_interleave's compute_cuda_kernel; flips, rolls
    KernelPattern(r"(?:^|:)compute_cuda_kernel|(?:^|:)(?:roll|flip)_cuda_kernel", "copy", "{fn}"),
    KernelPattern(r"offsets_range", "elementwise", "{fn}"),
    # fbgemm and vLLM quantization: scaled_fp8_quant_kernel_strided, per_token_cast_to_fp8
    KernelPattern(r"quant|per_(?:token|channel)_cast|cast_back|_to_fp8|fp8\w{0,8}_to_float|fp8_qparam", "elementwise", "{fn}"),
    # vllm::act_and_mul_kernel<…silu_kernel…>, swiglu_forward, gelu_kernel, doActivationKernel
    KernelPattern(r"act_and_mul|silu|swiglu|geglu|gelu|relu|sigmoid|tanh|activation", "elementwise", "{fn}"),

    # --- Fourier transforms: vector_fft<…>, regular_fft<256u, 4u, 16u>, multi_bluestein_fft, vkfft,
    # and what cuFFT runs around real ones: DSpRealComplex::postprocessC2C_kernelMem
    KernelPattern(r"(?:^|_|:)(?:vk|roc|cu)?fft(?:_|\d|$|<|kernel)|_fft(?:_|$|<)|bluestein|(?:^|_)[sdhcz]p?radix\d|dsprealcomplex::", "fft", "{fn}"),

    # --- Parallel-loop frameworks, by construct
    KernelPattern(r"kokkos\S{0,4000}(?:viewfill|zeromemset)", "elementwise", "kokkos fill {p}"),
    KernelPattern(r"kokkos\S{0,4000}viewcopy", "copy", "kokkos copy {p}"),
    KernelPattern(r"kokkos\S{0,4000}parallelreduce", "reduction", "kokkos reduce {p}"),
    KernelPattern(r"kokkos\S{0,4000}parallelscan", "sort", "kokkos scan {p}"),
    KernelPattern(r"kokkos::impl::parallelfor<(?:\w{1,60}::){0,6}(\w{1,60})", "loop", "kokkos for {1}"),
    KernelPattern(r"kokkos", "loop", "kokkos {base}"),
    # RAJA::policy::cuda::impl::forall_cuda_kernel<…>, amrex::launch_global<…>, alpaka, SYCL
    KernelPattern(r"raja\S{0,400}reduce", "reduction", "raja reduce {p}"),
    KernelPattern(r"(raja|amrex|alpaka|sycl)::\S{0,400}?(?:forall|launch|kernel|parallel)", "loop", "{1} {base}"),
    # CUDA.jl: partial_mapreduce_grid, big_mapreduce_kernel, gpu_broadcast_kernel_linear
    KernelPattern(r"mapreduce_(?:grid|kernel|block)", "reduction", "julia {base}"),
    KernelPattern(r"(?:^|_)(?:broadcast_kernel|map_kernel)(?:_|$)", "elementwise", "julia {base}"),
    KernelPattern(r"(?:^|_)permutedims_kernel", "copy", "julia {base}"),
    # cupy_add__float32_float32_float32, cupy_copy__float64_float64
    KernelPattern(r"^cupy_(?:copy|concat|take|transpose)", "copy", "{base}"),
    KernelPattern(r"^cupy_(?:sum|mean|max|min|prod|amax|amin|argmax|argmin|var)", "reduction", "{base}"),
    KernelPattern(r"^cupy_", "elementwise", "{base}"),

    # --- OpenACC's reductions: solve_88_gpu__red (NVHPC)
    KernelPattern(r"^_?(\w{1,80}?)_(\d{1,6})_gpu__red$", "reduction", "acc {1} line {2}"),

    # --- Anyone's kernels, by the words of their names
    KernelPattern(r" (?:attention|attn|mha) ", "attention", "{fn}", words=True),
    KernelPattern(r" (?:[sdhcz]?gemm|mat ?mul|matrix mul\w{0,12}|mm|bmm|mmm|matmul\w{0,8}|wmma|mma|matrix multiplication|multiply matri\w{0,4}|block ?tiling|warp ?tiling|gemv|spmm|linear) ", "matmul", "{fn}", words=True),
    KernelPattern(r" (?:conv\dd|conv|convolve|convolution|stencil conv) ", "convolution", "{fn}", words=True),
    KernelPattern(r" (?:soft ?max) ", "softmax", "{fn}", words=True),
    KernelPattern(r" (?:norm|normali[sz]e|normali[sz]ation|layernorm|batchnorm|rmsnorm|renorm) ", "normalization", "{fn}", words=True),
    KernelPattern(r" (?:loss) ", "loss", "{fn}", words=True),
    KernelPattern(r" (?:sort|topk|scan|prefix|cumsum|compact|histogram|hist|nms) ", "sort", "{fn}", words=True),
    KernelPattern(r" (?:reduce|reduction|sum|dot|max|min|mean|norm2|argmax|argmin|accumulate) ", "reduction", "{fn}", words=True),
    KernelPattern(r" (?:transpose|copy|memcpy|cpy|permute|cat|concat|pad|reorder|pack|unpack|reshape|split|roll|flip|slice|im 2 col) ", "copy", "{fn}", words=True),
    KernelPattern(r" (?:stencil|jacobi|laplac\w{0,6}|poisson|heat|fdtd|lbm|advect\w{0,4}|diffusion|gauss seidel|smooth\w{0,3}|halo|sobel|blur|gaussian blur|bilateral|erode|dilate) ", "stencil", "{fn}", words=True),
    KernelPattern(r" (?:rand|random|rng|shuffle|dropout) ", "random", "{fn}", words=True),
    KernelPattern(r" (?:pool|maxpool|avgpool|resize|upsample|downsample|interpolate) ", "pooling", "{fn}", words=True),
    KernelPattern(r" (?:gather|scatter|index|indices|lookup|embed|embedding|get rows) ", "embedding", "{fn}", words=True),
    KernelPattern(r" (?:adam|adamw|sgd|optimizer|optim) ", "optimizer", "{fn}", words=True),
    KernelPattern(r" (?:vec ?add|add|addition|sub|subtract|subtraction|mul|multiply|div|scale|scal|saxpy|daxpy|axpy|axpby|fill|init|initiali[sz]e|set|zero|memset|relu|exp|sqrt|abs|clamp|cast|convert|elementwise|eltwise|pointwise|map|where|mask|broadcast|bcast|select|iota|unary) ", "elementwise", "{fn}", words=True),
    KernelPattern(r"vectoradd|vecadd|saxpy|daxpy|initarray", "elementwise", "{fn}"),
    KernelPattern(r"(?<!fb)gemm|matmul|matrixmul", "matmul", "{fn}"),
    KernelPattern(r"reduce|reduction", "reduction", "{fn}"),
    KernelPattern(r"transpose|copy|concat", "copy", "{fn}"),
    KernelPattern(r"attention", "attention", "{fn}"),

    # --- Names that show the origin but not the kind: parallel loops of the program's own source
    # __omp_offloading_31_18a80bc_main_l42 (LLVM), nvkernel_solve_F1L210_2 (NVHPC), main$_omp_fn$0, main._omp_fn.0 (GCC)
    KernelPattern(r"^__omp_offloading_[0-9a-f]{1,16}_[0-9a-f]{1,16}_+(\w{1,80}?)_l(\d{1,6})", "loop", "omp {1} line {2}"),
    KernelPattern(r"^__omp_offloading_", "loop", "omp {base}"),
    KernelPattern(r"^nvkernel_+(\w{1,80}?)_f\d{1,4}l(\d{1,6})", "loop", "omp {1} line {2}"),
    KernelPattern(r"^(\w{1,80})[$.]_omp_fn", "loop", "omp {1}"),
    # jacobi_42_gpu (NVHPC's OpenACC), main$ck_L42_1 (Cray)
    KernelPattern(r"^_?(\w{1,80}?)_(\d{1,6})_gpu$", "loop", "acc {1} line {2}"),
    KernelPattern(r"^(\w{1,80})\$ck_l(\d{1,6})", "loop", "omp {1} line {2}"),
    # julia_step_1234, gpu_step_ (KernelAbstractions: the function is named gpu_step!)
    KernelPattern(r"^julia_(\w{1,80}?)(?:_\d{1,8})?$", "loop", "julia {1}"),
    KernelPattern(r"^gpu_(\w{1,80})_$", "loop", "julia {1}"),
    # OptiX calls programs of the application by their kind: __raygen__camera, __closesthit__glass
    KernelPattern(r"^__(?:raygen|closesthit|anyhit|miss|intersection|exception|direct_callable|continuation_callable)__", "custom", "{fn}"),
    # Whose namespace or first word is that of no library: the program's own CUDA or HIP
    KernelPattern(rf"^(?!{LIBRARIES})", "custom", "{fn}"),
    KernelPattern(r"", "other", "{fn}"),
)
# fmt: on


@cache
def _compiled() -> list[tuple[KernelPattern, re.Pattern[str], re.Pattern[str] | None]]:
    """Compile the rows once, for the first name: that takes as long as reading a small capture."""
    return [
        (row, re.compile(row.pattern), re.compile(row.args) if row.args else None)
        for row in PATTERNS
    ]


def find(subject: str, args: str, words: str) -> tuple[KernelPattern, tuple[str, ...]]:
    """Return the first row that matches, with what its groups matched."""
    for row, pattern, args_pattern in _compiled():
        match = pattern.search(words if row.words else subject)
        if match is None:
            continue
        if args_pattern is None:
            return row, match.groups("")
        args_match = args_pattern.search(args)
        if args_match is not None:
            return row, (*match.groups(""), *args_match.groups(""))
    return PATTERNS[-1], ()


ORIGINS: tuple[tuple[str, str], ...] = (
    # Generated code first: its names list operators of others.
    ("torch.compile", r"^triton_(?:poi|red|per|tem|for|spl|mix|unk|mm|bmm)_"),
    (
        "XLA",
        (
            r"^(?:\w{0,60}_)?fusion(?:[._]\d{1,6})?(?:\.clone)?(?:[._]\d{1,6})?$|^fusion_|^wrapped_"
            r"|^loop_\w{1,60}fusion|gemm_fusion|^triton_(?:softmax|gemm)"
        ),
    ),
    ("NCCL", r"nccl(?:dev|symk?dev)?kernel|ncclsymk|^rccl"),
    ("NVSHMEM", r"nvshmem"),
    ("TensorRT", r"__myl_|myelin|tensorrt|\btrt_|nvinfer1::|genericreformat::|_kernel_trt$"),
    (
        "PyTorch",
        (
            r"\bat::|\bc10::|at_cuda_detail|pytorch_flash|\btorch::|fmha_cutlass|\bcunn_"
            r"|softmax_warp_(?:for|back)ward|(?:vectorized|unrolled)_elementwise_kernel"
            r"|elementwise_kernel_with_index|multi_tensor_apply"
        ),
    ),
    ("TensorFlow", r"tensorflow::|eigen::internal"),
    (
        "cuDNN",
        (
            r"cudnn|xmma_(?:fprop|dgrad|wgrad|conv)|(?:im|ex)plicit_convolve_|nchwtonhwc|nhwctonchw"
            r"|\bbn_(?:fw|bw)_"
        ),
    ),
    (
        "cuBLAS",
        (
            r"cublas|nvjet|xmma|splitkreduce|\d_[sdhcz]gemm|\b[sdhcz]gemm_(?:largek_)?lds\d"
            r"|gemv2|gemvx|gemmsn_|gemmk1_"
            r"|\b(?:maxwell|volta|turing|ampere|hopper|sm\d{2,3})_\w{0,60}gemm"
        ),
    ),
    (
        "cuFFT",
        r"cufft|\b(?:vector|regular|composite_\dway|multi_bluestein)_fft\b|\bdsprealcomplex::",
    ),
    ("cuSPARSE", r"cusparse"),
    ("cuSOLVER", r"cusolver"),
    ("cuTENSOR", r"cutensor"),
    ("CUTLASS", r"cutlass"),
    ("CUB/Thrust", r"\bcub::|thrust::"),
    ("MAGMA", r"magma_"),
    ("RAPIDS", r"cudf::|raft::|cuml::|cugraph::"),
    ("FlashAttention", r"\bflash::|flash_(?:fwd|bwd)_|flashattn(?:fwd|bwd)"),
    ("vLLM", r"\bvllm::"),
    (
        "FlashInfer",
        (
            r"flashinfer|(?:decode|prefill)with(?:paged|ragged)?kvcachekernel"
            r"|mergestates?(?:inplace)?kernel\b"
        ),
    ),
    (
        "TensorRT-LLM",
        r"tensorrt_llm|\bmoe::dev::|^fmhasm\d{2}|_t\d{2,3}x\d{1,3}x\d{2,3}u\d_s\d",
    ),
    ("Transformer Engine", r"\btransformer_engine::"),
    ("Apex", r"\bapex::|\blayer_norm::ln_(?:fwd|bwd)_"),
    ("DeepGEMM", r"\bdeep_gemm::"),
    ("DeepEP", r"\bdeep_ep::|\bep::(?:internode|intranode)::"),
    ("FBGEMM", r"\bfbgemm_gpu::|permute_pooled_embs_kernel"),
    ("xFormers", r"\bxformers::"),
    ("rocBLAS/hipBLASLt", r"^cijk_|rocblas|hipblas"),
    ("MIOpen", r"miopen|\bigemm_(?:fwd|bwd|wrw)_gtc|^batched_transpose_\d{1,3}x\d|^subtensorop"),
    ("Composable Kernel", r"\bck(?:_tile)?::"),
    ("rocPRIM/hipCUB", r"\brocprim::|\bhipcub::"),
    ("rocFFT", r"rocfft|^fft_rtc_"),
    ("rocSPARSE", r"\brocsparse"),
    ("rocSOLVER", r"\brocsolver"),
)
"""Libraries and frameworks, and what their kernel names contain in lower case; the first wins."""
LIBRARY_KERNELS = r"(?i)" + "|".join(f"(?:{pattern})" for _, pattern in ORIGINS)
"""Matches the kernels that are not the program's own."""


@cache
def _compiled_origins() -> list[tuple[str, re.Pattern[str]]]:
    return [(origin, re.compile(pattern)) for origin, pattern in ORIGINS]


@lru_cache(maxsize=4096)
def kernel_origin(name: str) -> str | None:
    """Return the library or framework that a kernel belongs to; None for the program's own."""
    text = name.lower().removeprefix("void ")
    return next((origin for origin, pattern in _compiled_origins() if pattern.search(text)), None)
