"""Programs whose steps are known: launches as libraries make them, with no ranges around them.

A family writes what its program does into a `Recorder`: kernels, copies, waits, host time, and
`step()` where one of its steps begins. `made` runs a family with a seed, which sets its sizes, and
returns the trace and the times at which its steps begin (none: nothing in it is a step).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.traces import build_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.trace.trace import Trace

US = 1_000
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::launch_clamp_scalar>"
RELU_BACK = "void at::native::vectorized_elementwise_kernel<4, at::native::threshold_backward>"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>"
NORM_BACK = "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float>"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false>"
SOFTMAX_BACK = "void (anonymous namespace)::softmax_warp_backward<float, float, float, 9>"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps>>"
COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"
LOSS = "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>"
LOSS_BACK = "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d"
EMBED = "void at::native::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMath<float>>"
LSTM = "void at::native::(anonymous namespace)::kernel::lstm_cell_forward<float, float>"
LSTM_BACK = "void at::native::(anonymous namespace)::kernel::lstm_cell_backward<float, float>"
GEMMS = ("ampere_sgemm_128x64_tn", "ampere_sgemm_64x64_nn", "ampere_sgemm_128x128_nt",
         "cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4")  # fmt: skip


@dataclass
class Recorder:
    """A host thread that launches, one GPU that runs what it gets in order."""

    rng: np.random.Generator
    launch_us: float = 6.0
    now: float = 0.0
    gpu_free: float = 0.0
    thread: int = 11
    speed: float = 1.0
    calls: list[dict[str, Any]] = field(default_factory=list)
    work: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)

    def step(self) -> None:
        self.starts.append(round(self.now * US))

    def host(self, us: float) -> None:
        self.now += us * float(self.rng.uniform(0.8, 1.3))

    def _launch(self, call: str, table: str, gpu_us: float, **row: Any) -> None:
        number = len(self.calls) + 1
        start = self.now
        self.now += self.launch_us * float(self.rng.uniform(0.8, 1.4))
        self._call(call, start, self.now - 0.5, number)
        begin = max(self.now, self.gpu_free)
        self.gpu_free = begin + gpu_us * self.speed * float(self.rng.uniform(0.97, 1.03))
        times = {"start_ns": round(begin * US), "end_ns": round(self.gpu_free * US)}
        self.work.setdefault(table, []).append({**times, "correlation": number, **row})

    def _call(self, name: str, start: float, end: float, number: int) -> None:
        times = {"start_ns": round(start * US), "end_ns": round(end * US)}
        self.calls.append({**times, "name": name, "correlation": number, "thread": self.thread})

    def kernel(self, name: str, grid: int = 64, gpu_us: float = 4.0) -> None:
        self._launch("cudaLaunchKernel", "kernels", gpu_us, name=name, grid_x=grid, block_x=128)

    def kernels(self, *names: str, grid: int = 64, gpu_us: float = 4.0) -> None:
        for name in names:
            self.kernel(name, grid, gpu_us)

    def graph(self, graph: int, gpu_us: float) -> None:
        self._launch("cudaGraphLaunch", "graph_launches", gpu_us, graph=graph)

    def h2d(self, size: int = 1 << 20) -> None:
        self._launch("cudaMemcpyAsync", "copies", 2 + size / 2e4, bytes=size)

    def d2h(self, size: int = 4) -> None:
        """Copy a result to the host and wait for it, as `.item()` does."""
        self._launch("cudaMemcpyAsync", "copies", 2.0, bytes=size, kind="Device-to-Host")
        self.sync("cudaStreamSynchronize")

    def memset(self, size: int = 512) -> None:
        self._launch("cudaMemsetAsync", "memsets", 1.5, bytes=size)

    def sync(self, name: str = "cudaDeviceSynchronize") -> None:
        start = self.now
        self.now = max(self.now, self.gpu_free) + 3
        self._call(name, start, self.now, len(self.calls) + 1)

    def load(self, us: float) -> None:
        start = self.now
        self.host(us)
        self._call("cuModuleLoadData", start, self.now, len(self.calls) + 1)

    def trace(self) -> Trace:
        return build_trace(None, api_calls=self.calls, **self.work)


# Parts of networks ------------------------------------------------------------------------------


def layer(r: Recorder, gemm: int = 0, grid: int = 64) -> None:
    names = (NORM, GEMMS[gemm], ADD, GEMMS[1], SOFTMAX, GEMMS[1], GEMMS[gemm], ADD, NORM,
             GEMMS[gemm], RELU, GEMMS[gemm], ADD)  # fmt: skip
    r.kernels(*names, grid=grid, gpu_us=8)


def layer_back(r: Recorder, gemm: int = 2, grid: int = 64) -> None:
    for _ in range(2):
        names = (GEMMS[gemm], GEMMS[0], RELU_BACK, REDUCE, NORM_BACK, SOFTMAX_BACK, ADD)
        r.kernels(*names, grid=grid, gpu_us=8)


def forward(r: Recorder, layers: int, grid: int = 64) -> None:
    r.kernels(EMBED, ADD, grid=grid)
    for _ in range(layers):
        layer(r, grid=grid)
    r.kernels(NORM, GEMMS[3], grid=grid * 4)


def backward(r: Recorder, layers: int, grid: int = 64) -> None:
    r.kernels(LOSS, LOSS_BACK, SOFTMAX_BACK, grid=grid)
    r.thread = 12
    for _ in range(layers):
        layer_back(r, grid=grid)
    r.kernels("void at::native::embedding_backward_feature_kernel<float>", grid=grid)
    r.thread = 11


def adam(r: Recorder, count: int = 4) -> None:
    for n in range(count):
        r.kernel(ADAM, 300 + 17 * n, 12)


def train(r: Recorder, layers: int, grid: int = 64) -> None:
    forward(r, layers, grid)
    backward(r, layers, grid)
    adam(r)


def setup(r: Recorder, count: int) -> None:
    """Create parameters on the GPU, each of its own size."""
    for n in range(count):
        r.h2d(1000 + 37 * n)
        if n % 3 == 0:
            r.kernel("void at::native::distribution_elementwise_grid_stride_kernel<float>", n + 1)


# Programs ---------------------------------------------------------------------------------------

FAMILIES: dict[str, Callable[[Recorder], None]] = {}
ONLY_HELD_OUT: set[str] = set()
"""Families that no limit was chosen with."""


def family(make: Callable[[Recorder], None]) -> Callable[[Recorder], None]:
    FAMILIES[make.__name__] = make
    return make


def held_out(make: Callable[[Recorder], None]) -> Callable[[Recorder], None]:
    ONLY_HELD_OUT.add(make.__name__)
    return family(make)


def made(name: str, seed: int) -> tuple[Trace, list[int]]:
    recorder = Recorder(np.random.default_rng([seed, *name.encode()]))
    FAMILIES[name](recorder)
    return recorder.trace(), recorder.starts


def some(r: Recorder, low: int, high: int) -> int:
    return int(r.rng.integers(low, high + 1))


@family
def training_without_waits(r: Recorder) -> None:
    setup(r, some(r, 10, 40))
    layers = some(r, 2, 6)
    for _ in range(some(r, 5, 15)):
        r.step()
        train(r, layers)
    r.sync()


@family
def training_with_loss_item(r: Recorder) -> None:
    setup(r, some(r, 10, 40))
    layers = some(r, 2, 6)
    for _ in range(some(r, 5, 15)):
        r.step()
        r.h2d()
        train(r, layers)
        r.kernel(REDUCE, 1)
        r.d2h()
        r.host(200)


@family
def evaluation_every_n_steps(r: Recorder) -> None:
    layers, every, batches = some(r, 1, 3), some(r, 4, 8), some(r, 2, 5)
    for n in range(every * some(r, 3, 4)):
        r.step()
        r.h2d()
        train(r, layers)
        if n % every == every - 1:
            for _ in range(batches):
                r.h2d()
                forward(r, layers)
                r.kernel(REDUCE, 2)
            r.d2h()


@family
def logging_every_n_steps(r: Recorder) -> None:
    layers, every = some(r, 1, 4), some(r, 3, 10)
    for n in range(every * some(r, 3, 4)):
        r.step()
        r.h2d()
        train(r, layers)
        if n % every == 0:
            r.kernels(REDUCE, COPY, grid=1)
            r.d2h()
            r.host(500)


@family
def checkpoint_every_n_steps(r: Recorder) -> None:
    layers, every = some(r, 2, 4), some(r, 4, 7)
    for n in range(every * 3):
        r.step()
        r.h2d()
        train(r, layers)
        r.d2h()
        if n % every == every - 1:
            for size in range(30):
                r.d2h(4000 + size)
            r.host(20_000)


@family
def lstm_cells_in_training(r: Recorder) -> None:
    cells = some(r, 16, 64)
    for _ in range(some(r, 3, 8)):
        r.step()
        r.h2d()
        r.kernels(FILL, FILL)
        for _ in range(cells):
            r.kernels(COPY, GEMMS[0], GEMMS[1], ADD, LSTM)
        r.kernels(GEMMS[3], LOSS, LOSS_BACK, GEMMS[2])
        r.thread = 12
        for _ in range(cells):
            r.kernels(LSTM_BACK, REDUCE, GEMMS[2], GEMMS[1], ADD, ADD, COPY)
        r.thread = 11
        adam(r, 2)
        r.d2h()


@family
def lstm_cells_in_inference(r: Recorder) -> None:
    cells = some(r, 16, 64)
    for _ in range(some(r, 3, 9)):
        r.step()
        r.h2d()
        r.kernels(FILL, FILL)
        for _ in range(cells):
            r.kernels(COPY, GEMMS[0], GEMMS[1], ADD, LSTM)
        r.kernels(GEMMS[3], ADD, SOFTMAX)
        r.d2h(4000)


def token(r: Recorder, layers: int, length: int) -> None:
    r.kernels(EMBED, COPY)
    for _ in range(layers):
        r.kernels(NORM, GEMMS[0], ADD, COPY, grid=8)
        r.kernel("void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64>>", length // 8 + 1)
        r.kernels(GEMMS[0], ADD, NORM, GEMMS[0], RELU, GEMMS[0], ADD, grid=8)
    r.kernels(NORM, GEMMS[3], REDUCE, ADD)
    r.d2h()
    r.host(50)


def prefill(r: Recorder, layers: int, length: int) -> None:
    r.h2d(length * 8)
    r.kernels(EMBED, ADD, COPY, grid=length)
    for _ in range(layers):
        r.kernels(NORM, GEMMS[3], ADD, COPY, grid=length)
        r.kernel("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128>>", length)
        r.kernels(GEMMS[3], ADD, NORM, GEMMS[3], RELU, GEMMS[3], ADD, grid=length)
    r.kernels(NORM, GEMMS[3], REDUCE)
    r.d2h()


@family
def generate_one_call(r: Recorder) -> None:
    layers = some(r, 2, 4)
    prefill(r, layers, 100)
    for length in range(some(r, 20, 40)):
        r.step()
        token(r, layers, 100 + length)


@family
def generate_calls_of_other_lengths(r: Recorder) -> None:
    layers = some(r, 1, 3)
    for _ in range(some(r, 4, 7)):
        r.step()
        r.host(300)
        start = some(r, 20, 200)
        prefill(r, layers, start)
        for length in range(some(r, 8, 30)):
            token(r, layers, start + length)
        r.host(500)


@family
def batches_of_other_sizes(r: Recorder) -> None:
    layers = some(r, 2, 5)
    for _ in range(some(r, 5, 14)):
        r.step()
        size = some(r, 10, 500)
        r.h2d(size * 4096)
        train(r, layers, size)
        r.d2h()


@family
def recompiled_for_every_length(r: Recorder) -> None:
    layers = some(r, 2, 5)
    for n in range(some(r, 5, 10)):
        r.step()
        length = some(r, 20, 900)
        r.h2d(length * 8)
        for part in range(layers):
            r.load(20_000)
            r.kernel(f"triton_per_fused_add_native_layer_norm_{n}_{part}", length)
            r.kernel(f"cutlass_80_tensorop_s1688gemm_{32 * (length % 5 + 1)}x128_tn", length)
            r.kernel(f"triton_poi_fused_gelu_{length % 7}", length)
            r.kernel(f"cutlass_80_tensorop_s1688gemm_{32 * (length % 3 + 1)}x64_nn", length)
        r.kernels(LOSS, LOSS_BACK, grid=length)
        for part in range(layers):
            r.kernel(f"cutlass_80_tensorop_s1688gemm_{32 * (length % 5 + 1)}x128_nt", length)
            r.kernel(f"triton_red_fused_native_layer_norm_backward_{n}_{part}", length)
            r.kernel(f"cutlass_80_tensorop_s1688gemm_{32 * (length % 3 + 1)}x64_nt", length)
        adam(r)
        r.d2h()


@family
def gradient_accumulation(r: Recorder) -> None:
    layers, micro = some(r, 1, 3), some(r, 2, 6)
    for _ in range(some(r, 4, 7)):
        r.step()
        for _ in range(micro):
            r.h2d()
            forward(r, layers)
            backward(r, layers)
        adam(r)
        r.memset()


@family
def two_networks_as_graphs(r: Recorder) -> None:
    for _ in range(some(r, 10, 40)):
        r.step()
        r.graph(1, 700)
        r.graph(2, 900)
        r.host(100)


@family
def copies_from_another_thread(r: Recorder) -> None:
    layers = some(r, 2, 4)
    for _ in range(some(r, 6, 12)):
        r.step()
        at = some(r, 0, 10 * layers)
        for n in range(13 * layers):
            if n == at:
                r.thread = 13
                r.h2d(4 << 20)
                r.thread = 11
            r.kernel((NORM, GEMMS[0], ADD, SOFTMAX)[n % 4])
        backward(r, layers)
        adam(r)


@family
def jax_with_numpy_feeds(r: Recorder) -> None:
    kernels = some(r, 12, 60)
    for n in range(20):
        r.load(3000)
        r.kernel(f"input_fusion_{n}")
    for _ in range(some(r, 6, 30)):
        r.step()
        r.h2d(1 << 20)
        r.h2d(1 << 10)
        for k in range(kernels):
            r.kernel(f"loop_add_fusion_{k}" if k % 3 else GEMMS[k % 4], 10 + k)
        r.d2h()
        r.host(300)


@family
def one_pass_of_layers(r: Recorder) -> None:
    setup(r, some(r, 5, 20))
    forward(r, some(r, 6, 24))
    r.d2h(4000)


@family
def one_training_step(r: Recorder) -> None:
    setup(r, some(r, 5, 20))
    r.h2d()
    train(r, some(r, 6, 24))
    r.d2h()


@family
def autotuning_in_front(r: Recorder) -> None:
    setup(r, 10)
    for n in range(some(r, 20, 50)):
        for _ in range(some(r, 5, 20)):
            r.kernel(f"cudnn_candidate_{n}", 10 + n)
        r.sync()
    layers = some(r, 2, 4)
    for _ in range(some(r, 5, 9)):
        r.step()
        r.h2d()
        train(r, layers)


@family
def clocks_that_rise(r: Recorder) -> None:
    layers, count = some(r, 2, 4), some(r, 12, 20)
    for n in range(count):
        r.speed = 6 * (1 + 0.6 * (1 - n / count))
        r.step()
        r.h2d()
        train(r, layers)
        r.d2h()


@family
def ode_solver(r: Recorder) -> None:
    for _ in range(some(r, 5, 10)):
        r.step()
        r.h2d()
        evaluations = some(r, 8, 26)
        for _ in range(evaluations):
            r.kernels(GEMMS[0], ADD, RELU, GEMMS[1], ADD, ADD)
            if evaluations % 2:
                r.d2h()
        r.kernels(LOSS, LOSS_BACK)
        for _ in range(some(r, 8, 26)):
            r.kernels(GEMMS[2], REDUCE, RELU_BACK, GEMMS[1], ADD)
        adam(r, 2)
        r.d2h()


@family
def lbfgs(r: Recorder) -> None:
    for _ in range(some(r, 4, 8)):
        r.step()
        r.h2d(1 << 16)
        for n in range(some(r, 8, 20)):
            r.memset()
            r.kernels(GEMMS[0], ADD, RELU, GEMMS[1], LOSS, LOSS_BACK, GEMMS[2], RELU_BACK, GEMMS[2])
            r.d2h()
            for _ in range(min(n, 5)):
                r.kernels("void dot_kernel<float>", ADD)
            r.d2h()
        r.kernels(REDUCE, COPY)
        r.d2h()


@family
def experts_of_other_numbers(r: Recorder) -> None:
    layers = some(r, 2, 4)
    for _ in range(some(r, 6, 12)):
        r.step()
        r.h2d()
        r.kernels(EMBED, ADD)
        for _ in range(layers):
            r.kernels(NORM, GEMMS[0], SOFTMAX, "void at::native::sbtopk::gatherTopK<float>")
            for _ in range(some(r, 3, 8)):
                r.kernel("void at::native::nonzero_kernel<long>", 4)
                r.d2h(8)
                tokens = some(r, 1, 60)
                r.kernels(EMBED, GEMMS[0], RELU, GEMMS[0], "index_add_kernel", grid=tokens)
        r.kernels(LOSS, LOSS_BACK)
        for _ in range(layers * 5):
            r.kernels(GEMMS[2], RELU_BACK, GEMMS[2])
        adam(r)
        r.d2h()


@family
def ppo_with_cpu_environments(r: Recorder) -> None:
    horizon, epochs = some(r, 16, 40), some(r, 2, 4)
    for _ in range(some(r, 3, 6)):
        r.step()
        for _ in range(horizon):
            r.h2d(256)
            r.kernels(GEMMS[0], RELU, GEMMS[1], SOFTMAX, "void sample_multinomial<float>")
            r.d2h(8)
            r.host(400)
        r.h2d(1 << 18)
        for _ in range(epochs * 4):
            r.kernels(EMBED, GEMMS[0], RELU, GEMMS[1], SOFTMAX, LOSS, LOSS_BACK, SOFTMAX_BACK,
                      GEMMS[2], RELU_BACK, GEMMS[2], REDUCE)  # fmt: skip
            adam(r, 2)
        r.d2h()


@family
def stencil(r: Recorder) -> None:
    r.launch_us = 2.5
    r.h2d(4 << 20)
    for _ in range(some(r, 100, 400)):
        r.step()
        r.kernel("stencil_kernel(float*, float*)", 4096, 30)
        r.kernel("boundary_kernel(float*)", 64, 5)
        r.kernel("swap_kernel(float*, float*)", 4096, 9)
    r.sync()
    r.d2h(4 << 20)


@family
def cupy_power_iteration(r: Recorder) -> None:
    r.h2d(8 << 20)
    for _ in range(some(r, 10, 60)):
        r.step()
        r.kernels("ampere_dgemv_n", "cupy_multiply__float64_float64_float64", "cupy_sum_float64",
                  "cupy_sqrt__float64_float64", "cupy_true_divide__float64")  # fmt: skip
        r.d2h(8)


@family
def unified_memory(r: Recorder) -> None:
    for n in range(some(r, 100, 300)):
        at = r.gpu_free + 1
        r.gpu_free = at + 3
        row = {"start_ns": round(at * US), "end_ns": round((at + 3) * US), "bytes": 65536}
        r.work.setdefault("copies", []).append({**row, "kind": "Unified Host-to-Device"})
        if n == 50:
            r.kernel("add_kernel(int, float*, float*)", 4096, 500)
    r.sync()


@family
def random_work(r: Recorder) -> None:
    for _ in range(some(r, 100, 300)):
        r.kernel(f"kernel_{some(r, 0, 30)}", 8, float(r.rng.uniform(1, 50)))
        if r.rng.random() < 0.05:
            r.sync()


@family
def training_then_test(r: Recorder) -> None:
    layers = some(r, 2, 3)
    for _ in range(some(r, 8, 16)):
        r.step()
        r.h2d()
        train(r, layers)
        r.d2h()
    for _ in range(some(r, 3, 5)):
        r.h2d()
        forward(r, layers)
        r.kernel(REDUCE)
        r.d2h()


@family
def gemm_benchmark(r: Recorder) -> None:
    r.kernel("void init_kernel<float>")
    r.sync()
    for _ in range(some(r, 10, 50)):
        r.step()
        r.kernel(GEMMS[2], 4096, 800)
    r.sync()


@family
def warm_up_with_other_kernels(r: Recorder) -> None:
    layers = some(r, 2, 4)
    for _ in range(2):
        r.h2d()
        for _ in range(layers):
            r.load(5000)
            r.kernels("cudnn_engine_a", "cudnn_engine_b", RELU)
        backward(r, layers)
        adam(r)
    for _ in range(some(r, 6, 12)):
        r.step()
        r.h2d()
        train(r, layers)


@family
def checks_in_every_layer(r: Recorder) -> None:
    layers = some(r, 4, 12)
    for _ in range(some(r, 4, 9)):
        r.step()
        r.kernels(EMBED, ADD)
        for _ in range(layers):
            r.h2d(4)
            r.kernels(NORM, GEMMS[0], RELU, GEMMS[0], ADD, "isnan_kernel", REDUCE)
            r.d2h(1)
        r.kernels(NORM, GEMMS[3])
        backward(r, layers)
        adam(r)


@held_out
def graph_for_each_request(r: Recorder) -> None:
    for _ in range(some(r, 10, 40)):
        r.step()
        r.h2d(600_000)
        r.graph(7, 1500)
        r.d2h(4000)
        r.host(some(r, 50, 900))


@held_out
def diffusion_images(r: Recorder) -> None:
    layers, count = some(r, 1, 2), some(r, 10, 25)
    for _ in range(some(r, 3, 5)):
        r.step()
        r.h2d(600)
        forward(r, 2, 77)
        r.kernel("void at::native::distribution_elementwise_grid_stride_kernel<normal>")
        for n in range(count):
            r.h2d(8 if n % 2 else 4)
            r.kernels(FILL, ADD, "implicit_convolve_sgemm", NORM)
            for _ in range(layers):
                r.kernels(NORM, "implicit_convolve_sgemm", RELU, ADD)
                layer(r, grid=256)
            r.kernels("implicit_convolve_sgemm", ADD, ADD)
        for _ in range(4):
            r.kernels("implicit_convolve_sgemm_decode", NORM, RELU, "upsample_nearest2d_out_frame")
        r.d2h(3 << 20)
        r.host(3000)


@held_out
def gloo_data_parallel(r: Recorder) -> None:
    layers = some(r, 2, 4)
    for _ in range(some(r, 5, 12)):
        r.step()
        r.h2d()
        forward(r, layers)
        backward(r, layers)
        for bucket in range(3):
            r.thread = 14
            r.d2h(1 << 20)
            r.host(some(r, 500, 3000))
            r.h2d((1 << 20) + bucket)
            r.thread = 11
        adam(r)


@held_out
def last_batch_smaller(r: Recorder) -> None:
    layers, batches = some(r, 2, 3), some(r, 4, 7)
    for _ in range(some(r, 2, 3)):
        for n in range(batches):
            r.step()
            grid = 64 if n < batches - 1 else 23
            r.h2d(grid * 1000)
            train(r, layers, grid)
            r.kernel(REDUCE, 1)
        r.d2h()


@held_out
def lengths_in_buckets(r: Recorder) -> None:
    layers = some(r, 2, 4)
    for _ in range(some(r, 6, 14)):
        r.step()
        gemm = some(r, 0, 2)
        r.h2d(1000 * (gemm + 1))
        r.kernels(EMBED, ADD, grid=10 * gemm + 8)
        for _ in range(layers):
            layer(r, gemm, 10 * gemm + 8)
        for _ in range(layers):
            layer_back(r, gemm, 10 * gemm + 8)
        adam(r)


@held_out
def clipped_gradients_sometimes(r: Recorder) -> None:
    layers = some(r, 2, 4)
    for _ in range(some(r, 8, 15)):
        r.step()
        r.h2d()
        forward(r, layers)
        backward(r, layers)
        r.kernel(REDUCE, 9)
        if r.rng.random() < 0.4:
            r.kernels(*[ADD] * some(r, 3, 20), grid=7)
        adam(r)
        r.d2h()


@held_out
def conjugate_gradients_in_time_steps(r: Recorder) -> None:
    for _ in range(some(r, 6, 12)):
        r.step()
        r.kernels("advect(float*)", "divergence(float*)", "apply_forces(float*)")
        for _ in range(some(r, 10, 40)):
            r.kernels("spmv_csr(int, float*)", "dot_partial(float*)", "axpy(float, float*)")
            r.d2h(8)
        r.kernels("project(float*)", "boundary(float*)")


@held_out
def loading_a_model(r: Recorder) -> None:
    setup(r, some(r, 60, 200))
    forward(r, some(r, 6, 16))
    r.d2h(4000)


@held_out
def plain_sgd_with_evaluation(r: Recorder) -> None:
    layers, every, batches = some(r, 1, 2), some(r, 5, 9), some(r, 3, 6)
    for n in range(every * 3):
        r.step()
        r.h2d()
        forward(r, layers)
        backward(r, layers)
        for parameter in range(6 * layers):
            r.kernel(ADD, 900 + parameter)
        if n % every == every - 1:
            for _ in range(batches):
                r.h2d(1 << 19)
                forward(r, layers, 32)
                r.kernel(REDUCE, 2)
            r.d2h()


@held_out
def streams_in_turn(r: Recorder) -> None:
    chunks = some(r, 2, 6)
    for _ in range(some(r, 5, 20)):
        r.step()
        for chunk in range(chunks):
            r.h2d(1 << 20)
            r.kernel("process_chunk(float*, int)", 512, 40)
            r._launch("cudaMemcpyAsync", "copies", 20.0, bytes=1 << 20, kind="Device-to-Host",
                      stream=20 + chunk)  # fmt: skip
        r.sync()
        r.host(1000)


@held_out
def detection_with_other_numbers_of_boxes(r: Recorder) -> None:
    layers = some(r, 3, 6)
    for _ in range(some(r, 6, 12)):
        r.step()
        r.h2d(some(r, 100, 900) * 1000)
        for n in range(layers):
            r.kernels(f"implicit_convolve_sgemm_{n}", NORM, RELU)
        boxes = some(r, 1, 25)
        for _ in range(boxes):
            r.kernels("void nms_kernel<float>", COPY, EMBED)
            r.d2h(8)
        r.kernels("roi_align_forward", GEMMS[0], RELU, GEMMS[0], SOFTMAX)
        r.d2h(4 * boxes)


@held_out
def tokenizing_between_batches(r: Recorder) -> None:
    layers = some(r, 3, 6)
    for _ in range(some(r, 5, 15)):
        r.step()
        r.host(8000)
        length = some(r, 30, 400)
        for extra in range(3):
            r.h2d(length * 8 + extra)
        forward(r, layers, length)
        r.kernels(REDUCE, COPY)
        r.d2h(3000)


@family
def passes_without_graph_in_front(r: Recorder) -> None:
    """Some passes of many kernels, then one graph per batch: few activities, more GPU time."""
    layers = some(r, 4, 6)
    for n in range(some(r, 3, 11)):
        if n == 0:
            r.load(20_000)
        r.h2d(1 << 16)
        forward(r, layers)
        r.sync()
    for _ in range(some(r, 20, 48)):
        r.step()
        r.h2d(1 << 16)
        r.graph(1, 400)
    r.sync()


@family
def compilation_in_front_repeats(r: Recorder) -> None:
    """As XLA does: each candidate of each GEMM is loaded, run and compared with the others."""
    for n in range(some(r, 30, 80)):
        r.load(4000)
        r.memset(1 << 16)
        r.kernels("xla_fill_random", f"gemm_fusion_dot_{n // 8}", "xla_compare", gpu_us=60)
        r.d2h(8)
    for n in range(some(r, 0, 60)):
        r.kernels(f"wrapped_convert_{n}", *["xla_fill_random"] * some(r, 0, 3), gpu_us=20)
    for _ in range(some(r, 8, 24)):
        r.step()
        r.h2d(1 << 18)
        r.kernels("loop_add_fusion", "gemm_fusion_dot_1", "input_reduce_fusion")
        r.d2h()


@held_out
def candidates_timed_in_front(r: Recorder) -> None:
    """As Triton's autotuner does: each candidate runs many times, the L2 cache cleared before."""
    for _ in range(some(r, 10, 16)):
        r.load(4000)
        for _ in range(some(r, 20, 30)):
            r.kernel(FILL, 4096, 60)
            r.kernel("matmul_kernel", 128, 40)
        r.sync()
    layers = some(r, 1, 3)
    for _ in range(some(r, 5, 9)):
        r.step()
        r.h2d()
        r.kernel("matmul_kernel", 128, 40)
        train(r, layers)


@held_out
def recompiled_until_a_test(r: Recorder) -> None:
    """Training that compiles for new lengths all the time is no start-up of the test after it."""
    layers = some(r, 2, 4)
    for n in range(some(r, 8, 12)):
        r.step()
        r.h2d(1 << 18)
        r.load(20_000)
        r.kernel(f"triton_per_fused_native_layer_norm_{n}")
        train(r, layers)
    for _ in range(some(r, 3, 5)):
        r.h2d(1 << 18)
        r.kernel("triton_per_fused_native_layer_norm_0")
        forward(r, layers)
        r.d2h()


# A loop inside each step, or something every few steps --------------------------------------------

RANDOM = (
    "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float>"
)


def denoise(r: Recorder, layers: int, index: int) -> None:
    r.h2d(8 if index % 2 else 4)
    r.kernels(FILL, ADD, "implicit_convolve_sgemm")
    for _ in range(layers):
        r.kernels(NORM, "implicit_convolve_sgemm", RELU, ADD)
        layer(r, grid=256)
    r.kernels("implicit_convolve_sgemm", ADD, ADD)


@family
def denoising_only(r: Recorder) -> None:
    """Each batch of images starts from noise; nothing decodes it, and no step waits."""
    layers, count = some(r, 1, 2), some(r, 10, 20)
    for _ in range(some(r, 3, 6)):
        r.step()
        r.kernel(RANDOM)
        for n in range(count):
            denoise(r, layers, n)


@family
def tokens_until_the_end_of_text(r: Recorder) -> None:
    """Buffers are reset before each text; each token is looked at on the host."""
    layers = some(r, 1, 3)
    for _ in range(some(r, 4, 7)):
        r.step()
        r.kernels(FILL, FILL, grid=1)
        for _ in range(some(r, 8, 24)):
            token(r, layers, 64)


@family
def as_many_tokens_each_time(r: Recorder) -> None:
    layers, count = some(r, 1, 3), some(r, 10, 20)
    for _ in range(some(r, 4, 7)):
        r.step()
        r.memset()
        for _ in range(count):
            token(r, layers, 64)


@family
def graph_for_each_token(r: Recorder) -> None:
    for _ in range(some(r, 4, 8)):
        r.step()
        r.h2d(400)
        r.graph(1, 900)
        r.d2h()
        for _ in range(some(r, 12, 40)):
            r.graph(2, 300)
            r.d2h()


@family
def solver_iterations_in_time_steps(r: Recorder) -> None:
    count = some(r, 12, 30)
    for _ in range(some(r, 5, 10)):
        r.step()
        r.kernels("assemble(float*)", "apply_forces(float*)")
        for _ in range(count):
            r.kernels("spmv(int, float*)", "dot(float*)", "axpy(float, float*)", "axpy(float*)",
                      "dot(float*)", "xpay(float, float*)")  # fmt: skip
            r.d2h(8)


@family
def simulation_with_output(r: Recorder) -> None:
    """A time step checks its residual; every few steps fields are written to a file."""
    every = some(r, 5, 12)
    for n in range(every * some(r, 4, 6)):
        r.step()
        r.kernels(*(f"flux_{axis}(double*)" for axis in "xyz"), "update(double*)", "limit(double*)",
                  "norm(double*)")  # fmt: skip
        r.d2h(8)
        if n % every == every - 1:
            r.kernel("pack(double*)")
            r.d2h(1 << 20)
            r.host(5000)


@family
def epochs_on_gpu_data(r: Recorder) -> None:
    """Batches are slices of a tensor on the GPU, in another order in each epoch."""
    layers, batches = some(r, 1, 3), some(r, 5, 9)
    for _ in range(some(r, 3, 4)):
        r.kernels(RANDOM, "cub::DeviceRadixSort")
        for _ in range(batches):
            r.step()
            r.kernel(EMBED, 900)
            train(r, layers)
            r.d2h()


@family
def plain_sgd_epochs_on_gpu_data(r: Recorder) -> None:
    """The same with updates written by hand, which no name tells from other additions."""
    layers, batches = some(r, 1, 3), some(r, 5, 9)
    for _ in range(some(r, 3, 4)):
        r.kernels(RANDOM, "cub::DeviceRadixSort")
        for _ in range(batches):
            r.step()
            r.kernel(EMBED, 900)
            forward(r, layers)
            backward(r, layers)
            for parameter in range(6 * layers):
                r.kernel(ADD, 900 + parameter)
            r.d2h()


@family
def accumulation_with_losses_read(r: Recorder) -> None:
    layers, micro = some(r, 1, 3), 4
    for _ in range(some(r, 4, 8)):
        r.step()
        for _ in range(micro):
            r.h2d()
            forward(r, layers)
            backward(r, layers)
            r.d2h()
        adam(r)


@family
def plain_sgd_after_parts_of_a_batch(r: Recorder) -> None:
    layers, micro = some(r, 1, 3), some(r, 3, 5)
    for _ in range(some(r, 4, 8)):
        r.step()
        for _ in range(micro):
            forward(r, layers)
            backward(r, layers)
            r.d2h()
        for parameter in range(12 * layers):
            r.kernel(ADD, 900 + parameter)
        for parameter in range(12 * layers):
            r.kernel(FILL, 900 + parameter)


@family
def rollouts_on_the_gpu_then_an_update(r: Recorder) -> None:
    horizon, layers = some(r, 16, 40), some(r, 1, 2)
    for _ in range(some(r, 4, 7)):
        r.step()
        r.kernel(FILL)
        for _ in range(horizon):
            r.kernels("simulate(float*)", GEMMS[0], RELU, GEMMS[1], SOFTMAX, RANDOM, COPY)
        forward(r, layers)
        backward(r, layers)
        adam(r, 2)
        r.d2h()


@family
def benchmark_of_sizes(r: Recorder) -> None:
    """Each size gets random inputs and the same number of runs: a run is a step."""
    runs = some(r, 10, 20)
    for size in range(some(r, 4, 6)):
        r.kernels(RANDOM, RANDOM, grid=64 << size)
        for _ in range(runs):
            r.step()
            r.kernels(GEMMS[0], ADD, RELU, GEMMS[1], ADD, grid=8 << size, gpu_us=20 << size)
            r.sync()


@family
def equal_layers_and_a_pause(r: Recorder) -> None:
    """A pass is nothing but equal layers; only the host shows where one starts."""
    layers = some(r, 3, 8)
    for _ in range(some(r, 9, 20)):
        r.host(25)
        r.step()
        for _ in range(layers):
            r.kernels(GEMMS[3], RELU, ADD, gpu_us=200)
    r.sync()


@held_out
def scheduler_on_the_host(r: Recorder) -> None:
    """Denoising whose schedule waits for the GPU in each step; the result is copied at the end."""
    layers, count = some(r, 1, 2), some(r, 8, 16)
    for _ in range(some(r, 4, 6)):
        r.step()
        r.h2d(600)
        r.kernels(EMBED, RANDOM)
        for n in range(count):
            denoise(r, layers, n)
            r.d2h(4)
        r.d2h(1 << 20)
        r.host(2000)


@held_out
def beams_as_graphs(r: Recorder) -> None:
    count = some(r, 12, 30)
    for _ in range(some(r, 5, 9)):
        r.step()
        r.kernel(FILL)
        for _ in range(count):
            r.graph(3, 500)
            r.kernels("cub::DeviceRadixSort", EMBED)
            r.d2h(8)


@held_out
def newton_in_time_steps(r: Recorder) -> None:
    for _ in range(some(r, 5, 9)):
        r.step()
        r.kernels("predict(double*)", "jacobian(double*)")
        for _ in range(some(r, 3, 9)):
            r.kernels("residual(double*)", "factor(double*)", "solve(double*)", "axpy(double*)")
            r.d2h(8)
        r.kernel("accept(double*)")


@held_out
def moving_average_every_few_steps(r: Recorder) -> None:
    layers, every = some(r, 1, 3), some(r, 4, 8)
    for n in range(every * some(r, 4, 5)):
        r.step()
        r.h2d()
        train(r, layers)
        r.d2h()
        if n % every == every - 1:
            for parameter in range(6 * layers):
                r.kernel("lerp_kernel", 900 + parameter)


@held_out
def inference_with_metrics_every_few_batches(r: Recorder) -> None:
    layers, every = some(r, 2, 4), some(r, 4, 9)
    for n in range(every * some(r, 4, 5)):
        r.step()
        r.h2d()
        forward(r, layers)
        r.d2h(4000)
        if n % every == every - 1:
            r.memset()
            r.kernels(REDUCE, REDUCE, FILL)
            r.d2h()


@held_out
def equal_blocks_of_convolutions(r: Recorder) -> None:
    blocks = some(r, 3, 6)
    for _ in range(some(r, 10, 20)):
        r.host(40)
        r.step()
        for _ in range(blocks):
            r.kernels("implicit_convolve_sgemm", NORM, RELU, "implicit_convolve_sgemm", NORM, ADD,
                      gpu_us=60)  # fmt: skip


@family
def sampling_without_noise_at_the_end(r: Recorder) -> None:
    """Coefficients are looked up on the host; noise is added after all repetitions but the last."""
    layers, count = some(r, 1, 2), some(r, 6, 14)
    for _ in range(some(r, 3, 6)):
        r.step()
        r.kernel(RANDOM)
        for n in range(count):
            denoise(r, layers, 0)
            r.d2h(4)
            r.kernel(ADD)
            if n < count - 1:
                r.d2h(4)
                r.kernels(RELU, RANDOM, ADD)


@family
def last_layer_without_activation(r: Recorder) -> None:
    """Each layer is checked on the host; the last one has no activation, and nothing is reset."""
    count = some(r, 5, 12)
    for _ in range(some(r, 4, 8)):
        r.step()
        for n in range(count):
            r.kernels(GEMMS[0], ADD, NORM, SOFTMAX)
            r.d2h(1)
            if n < count - 1:
                r.kernel(RELU)


@held_out
def langevin_with_levels_of_noise(r: Recorder) -> None:
    """A few Langevin steps at each level of noise; the last level of a sample removes the noise."""
    levels, each = some(r, 4, 8), some(r, 2, 3)
    for _ in range(some(r, 4, 7)):
        r.step()
        r.kernels(RANDOM, COPY)
        for _ in range(levels):
            for _ in range(each):
                forward(r, 1)
                r.d2h(4)
                r.kernels(RANDOM, ADD)
        forward(r, 1)
        r.d2h(1 << 20)


@held_out
def heun_sampler(r: Recorder) -> None:
    """Two evaluations in each step of a solver, one in the last."""
    count = some(r, 6, 12)
    for _ in range(some(r, 3, 6)):
        r.step()
        r.kernels(RANDOM, ADD)
        for n in range(count):
            forward(r, 1, 128)
            r.kernels(ADD, COPY)
            r.d2h(4)
            if n < count - 1:
                forward(r, 1, 128)
                r.kernel(SOFTMAX)


@held_out
def residuals_every_few_sweeps(r: Recorder) -> None:
    """A sweep exchanges halos through the host; every few, a residual is computed and read."""
    every = some(r, 3, 9)
    for n in range(every * some(r, 4, 6)):
        r.step()
        r.kernels("sweep_red(double*)", "sweep_black(double*)", "pack_halo(double*)")
        r.d2h(512)
        r.kernels("unpack_halo(double*)", "boundary(double*)")
        if n % every == 0:
            r.kernels("residual(double*)", "norm(double*)")
            r.d2h(8)


@held_out
def clusters_from_several_starts(r: Recorder) -> None:
    """K-means: each start has centers of its own and iterates until nothing moves."""
    for _ in range(some(r, 4, 8)):
        r.step()
        r.kernels(RANDOM, "gather_rows(float*)")
        for _ in range(some(r, 5, 15)):
            r.kernels(GEMMS[1], "argmin_rows(float*)", "segment_sum(float*)", "divide(float*)")
            r.d2h(8)


@held_out
def scores_of_data_on_the_gpu(r: Recorder) -> None:
    """Inference on data that are on the GPU; the last batch of each pass is smaller."""
    count = some(r, 5, 9)
    for _ in range(some(r, 3, 5)):
        for n in range(count):
            r.step()
            r.kernel(EMBED, 64 if n < count - 1 else 20)
            r.kernels(GEMMS[0] if n < count - 1 else GEMMS[1], NORM, RELU, ADD)
            r.kernels(SOFTMAX, REDUCE)
            r.d2h(4)
