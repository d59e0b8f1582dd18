"""The kernels of a training step, with names, launches and speeds like those of an fp32 GPT.

Names are spelled out as the C++ compiler spells them, because their length (75 to 1000 characters)
is a good part of what a reader of such a trace has to get through.
"""

from __future__ import annotations

from dataclasses import dataclass

SMS = 132


@dataclass(frozen=True)
class Kernel:
    """One kernel: how it is launched and how long an element of its tensor takes."""

    name: str
    block: tuple[int, int, int]
    elements_a_block: int
    registers: int
    shared_bytes: int
    occupancy: int
    picoseconds: int
    api: str = "cudaLaunchKernel"

    def blocks(self, elements: int) -> int:
        """Count the blocks that cover so many elements."""
        return -(-elements // self.elements_a_block)

    def duration_ns(self, elements: int) -> int:
        """Say how long the kernel takes on so many elements."""
        return 1_100 + elements * self.picoseconds // 1000


def _vectorized(functor: str, tensors: int, picoseconds: int, registers: int = 32) -> Kernel:
    array = f"std::array<char*, {tensors}ul>"
    name = (
        f"void at::native::vectorized_elementwise_kernel<4, {functor}, {array} >"
        f"(int, {functor}, {array})"
    )
    return Kernel(name, (128, 1, 1), 512, registers, 0, 100, picoseconds)


def _strided(functor: str, picoseconds: int) -> Kernel:
    inner = (
        f"at::native::gpu_kernel_impl_nocast<{functor}>"
        f"(at::TensorIteratorBase&, {functor} const&)::{{lambda(int)#1}}"
    )
    name = f"void at::native::elementwise_kernel<128, 2, {inner}>(int, {inner})"
    return Kernel(name, (128, 1, 1), 256, 18, 0, 100, picoseconds)


def _lambda(function: str, arguments: str, outer: int = 2, inner: int = 7) -> str:
    call = "::operator()() const"
    return (
        f"at::native::{function}::{{lambda()#{outer}}}{call}::{{lambda()#{inner}}}{call}"
        f"::{{lambda({arguments})#1}}"
    )


def _times(form: str) -> str:
    times = "at::native::binary_internal::MulFunctor<float>"
    return f"at::native::{form}<float, float, float, {times} >"


def _xmma(layout: str, tile: str, warps: str, registers: int, picoseconds: int) -> Kernel:
    name = (
        f"sm80_xmma_gemm_f32f32_f32f32_f32_{layout}_n_tilesize{tile}x8_stage3_warpsize{warps}x1_"
        "ffma_aligna4_alignc4_execute_kernel__5x_cublas"
    )
    rows, columns = (int(side) for side in tile.split("x"))
    block, area, api = (128, 1, 1), rows * columns, "cudaLaunchKernelExC"
    return Kernel(name, block, area, registers, 33792, 13, picoseconds, api)


def _cutlass(tile: str, layout: str, picoseconds: int) -> Kernel:
    gemm = f"cutlass_80_simt_sgemm_{tile}_8x4_{layout}_align1"
    name = f"void cutlass::Kernel2<{gemm}>({gemm}::Params)"
    return Kernel(name, (256, 1, 1), 32768, 202, 49152, 13, picoseconds, "cuLaunchKernel")


_ANONYMOUS = "at::native::(anonymous namespace)::"
_SCALAR = "at::TensorIteratorBase&, c10::Scalar const&"
_GELU = "(at::TensorIteratorBase&, at::native::GeluType)"
_OPAQUE = f"{_ANONYMOUS}OpaqueType<4u>"
_INDEX = _lambda(
    "arange_cuda_out(c10::Scalar const&, c10::Scalar const&, c10::Scalar const&, at::Tensor&)",
    "long",
    outer=1,
    inner=4,
)
_SUM = (
    "at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor<float,"
    " float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int,"
    " float, 4, 4>"
)

ELEMENTWISE = {
    "add": _vectorized("at::native::CUDAFunctor_add<float>", 3, 2),
    "add_broadcast": _strided("at::native::CUDAFunctor_add<float> ", 3),
    "add_scalar": _vectorized("at::native::CUDAFunctorOnSelf_add<float>", 2, 2),
    "addcdiv": _vectorized(_lambda(f"addcdiv_cuda_kernel({_SCALAR})", "float, float, float"), 4, 4),
    "addcmul": _vectorized(_lambda(f"addcmul_cuda_kernel({_SCALAR})", "float, float, float"), 4, 3),
    "copy": _strided(_lambda("direct_copy_kernel_cuda(at::TensorIteratorBase&)", "float", 3), 3),
    "div": _vectorized(_times("BUnaryFunctor"), 2, 2),
    "fill": _vectorized("at::native::FillFunctor<float>", 1, 1, 16),
    "fill_bool": _vectorized("at::native::FillFunctor<bool>", 1, 1, 16),
    "gelu": _vectorized(_lambda(f"GeluCUDAKernelImpl{_GELU}", "float", inner=2), 2, 2, 31),
    "gelu_backward": _vectorized(
        _lambda(f"GeluBackwardCUDAKernelImpl{_GELU}", "float, float", inner=2), 3, 3
    ),
    "lerp": _vectorized(
        _lambda(f"(anonymous namespace)::lerp_scalar_kernel({_SCALAR})", "float, float"), 3, 3, 40
    ),
    "masked_fill": _strided(
        _lambda(f"(anonymous namespace)::masked_fill_kernel({_SCALAR})", "float, bool", 1), 3
    ),
    "mul": _vectorized(_times("AUnaryFunctor"), 2, 2),
    "mul_tensors": _vectorized(_times("BinaryFunctor"), 3, 3),
    "not": _vectorized(
        "at::native::bitwise_not_kernel_cuda(at::TensorIteratorBase&)::{lambda(bool)#1}", 2, 1, 26
    ),
    "sqrt": _vectorized(
        _lambda("sqrt_kernel_cuda(at::TensorIteratorBase&)", "float", inner=2), 2, 2
    ),
}

GEMMS = {
    "gemm_nn": _xmma("nn", "128x128", "2x2", 254, 130),
    "gemm_nn_small": _xmma("nn", "64x64", "1x4", 121, 28),
    "gemm_nn_wide": _xmma("nn", "256x128", "4x2", 254, 35),
    "gemm_nt": _xmma("nt", "64x64", "1x4", 114, 40),
    "gemm_tn": _xmma("tn", "128x128", "2x2", 255, 48),
    "gemm_tn_small": _xmma("tn", "64x64", "1x4", 128, 41),
    "gemm_tn_tall": _xmma("tn", "128x64", "2x2", 218, 37),
    "sgemm_nn": _cutlass("256x128", "nn", 4),
    "sgemm_nt": _cutlass("256x128", "nt", 85),
    "sgemm_nt_wide": _cutlass("128x256", "nt", 99),
}

_OTHER_NAMES = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "arange": f"void (anonymous namespace)::elementwise_kernel_with_index<int, {_INDEX}>"
    f"(int, {_INDEX}, function_traits<{_INDEX}>::result_type*)",
    "cat": f"void {_ANONYMOUS}CatArrayBatchedCopy<{_OPAQUE}, unsigned int, 4, 64, 64>({_OPAQUE}*,"
    f" {_ANONYMOUS}CatArrInputTensorMetadata<{_OPAQUE}, unsigned int, 64, 64>,"
    f" {_ANONYMOUS}TensorSizeStride<unsigned int, 4u>, int, unsigned int)",
    "embedding_backward": f"void {_ANONYMOUS}embedding_backward_feature_kernel<float, float, long>"
    "(long const*, float const*, float*, int, long, int)",
    "gamma_beta": f"void {_ANONYMOUS}GammaBetaBackwardCUDAKernelTemplate<float, float, 32u, 32u,"
    " 256u, false, true, false>(long, long, float const*, float const*, float const*,"
    " float const*, float*, float*)",
    "gather": "void at::native::vectorized_gather_kernel<16, long>"
    "(char*, char*, long*, int, long, long, long, long, bool)",
    "layer_norm": f"void {_ANONYMOUS}vectorized_layer_norm_kernel<float, float, false>"
    "(int, float, float const*, float const*, float const*, float*, float*, float*)",
    "layer_norm_backward": f"void {_ANONYMOUS}layer_norm_grad_input_kernel_vectorized<float, float,"
    " false>(float const*, float const*, float const*, float const*, float const*, float*, int)",
    "log_softmax": f"void {_ANONYMOUS}cunn_SoftMaxForwardSmem<4, float, float, float,"
    f" {_ANONYMOUS}LogSoftMaxForwardEpilogue, long>(float*, float const*, long)",
    "log_softmax_backward": f"void {_ANONYMOUS}cunn_SoftMaxBackwardSmem<4, float, float, float,"
    f" {_ANONYMOUS}LogSoftMaxBackwardEpilogue>(float*, float const*, float const*, long)",
    "nll_loss": f"void {_ANONYMOUS}nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>"
    "(float*, float*, float const*, long const*, float const*, bool, long, long, long, long)",
    "nll_loss_backward": f"void {_ANONYMOUS}nll_loss_backward_reduce_cuda_kernel_2d<float, long>"
    "(float*, float const*, long const*, float const*, float const*, bool, int, int, long, long)",
    "softmax": "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false,"
    " false>(float*, float const*, int, int, int, bool const*, int, bool)",
    "softmax_backward": "void (anonymous namespace)::softmax_warp_backward<float, float, float, 9,"
    " false, false>(float*, float const*, float const*, int, int, int, bool const*)",
    "split_k": "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, false,"
    " float, float, float, true, false, false, false>(cublasLt::cublasSplitKParams<float>,"
    " float const*, float const*, float*, float*, float const*, float const*, float const*,"
    " float const*, float*, void*, long, float*, int*, float*, float*, float const*,"
    " float const*, float const*, float const*, float const*)",
    "sum": f"void at::native::reduce_kernel<128, 4, {_SUM} >({_SUM})",
    "tril": "void at::native::triu_tril_kernel<bool, int, false, 8, false>"
    "(at::cuda::detail::TensorInfo<bool, int>, at::cuda::detail::TensorInfo<bool const, int>,"
    " long, long, int)",
}

_Launch = tuple[tuple[int, int, int], int, int, int, int, int, str]
_PLAIN, _EXTENDED = "cudaLaunchKernel", "cudaLaunchKernelExC"

# block, elements a block covers, registers a thread, shared bytes, occupancy %, ps an element, API
_OTHER_LAUNCHES: dict[str, _Launch] = {
    "all_reduce": ((544, 1, 1), 1 << 18, 96, 87568, 0, 40, _EXTENDED),
    "arange": ((64, 1, 1), 64, 16, 0, 0, 1, _PLAIN),
    "cat": ((512, 1, 1), 5958, 26, 0, 100, 5, _PLAIN),
    "embedding_backward": ((32, 32, 1), 65536, 27, 8192, 9, 9, _PLAIN),
    "gamma_beta": ((32, 32, 1), 65536, 31, 8448, 9, 4, _PLAIN),
    "gather": ((192, 1, 1), 768, 32, 0, 94, 3, _PLAIN),
    "layer_norm": ((32, 4, 1), 768, 39, 24, 75, 5, _PLAIN),
    "layer_norm_backward": ((128, 1, 1), 768, 32, 16, 97, 3, _PLAIN),
    "log_softmax": ((1024, 1, 1), 10000, 30, 40128, 100, 3, _PLAIN),
    "log_softmax_backward": ((512, 1, 1), 10000, 27, 40064, 100, 3, _PLAIN),
    "nll_loss": ((128, 1, 1), 1 << 30, 32, 1024, 0, 1, _PLAIN),
    "nll_loss_backward": ((128, 1, 1), 1 << 30, 32, 0, 0, 1, _PLAIN),
    "softmax": ((32, 4, 1), 2048, 32, 0, 100, 2, _PLAIN),
    "softmax_backward": ((32, 4, 1), 2048, 56, 0, 56, 3, _PLAIN),
    "split_k": ((32, 16, 1), 1024, 32, 0, 100, 3, _EXTENDED),
    "sum": ((32, 4, 1), 8192, 54, 2064, 9, 5, _PLAIN),
    "tril": ((128, 1, 1), 1024, 30, 0, 12, 5, _PLAIN),
}

KERNELS = {
    **ELEMENTWISE,
    **GEMMS,
    **{key: Kernel(_OTHER_NAMES[key], *launch) for key, launch in _OTHER_LAUNCHES.items()},
}
