"""More programs whose steps are known, written before the detection was tried on any of them.

Half of them are kept for reporting, decided by a hash of the name.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tests.analysis.steps.programs import (
    ADAM,
    ADD,
    COPY,
    EMBED,
    FILL,
    GEMMS,
    LOSS,
    LOSS_BACK,
    LSTM,
    LSTM_BACK,
    NORM,
    ONLY_HELD_OUT,
    RANDOM,
    REDUCE,
    RELU,
    RELU_BACK,
    SOFTMAX,
    adam,
    backward,
    family,
    forward,
    prefill,
    setup,
    some,
    token,
    train,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.analysis.steps.programs import Recorder

FURTHER: list[str] = []


def further(make: Callable[[Recorder], None]) -> Callable[[Recorder], None]:
    """Add a family; a hash of its name decides whether limits may be chosen with it."""
    FURTHER.append(make.__name__)
    if hashlib.sha256(make.__name__.encode()).digest()[0] % 2:
        ONLY_HELD_OUT.add(make.__name__)
    return family(make)


@further
def speculative_decoding(r: Recorder) -> None:
    """A small model drafts tokens, the large one checks them together."""
    prefill(r, 2, 64)
    for n in range(some(r, 12, 25)):
        r.step()
        for _ in range(some(r, 2, 5)):
            r.kernels(EMBED, NORM, GEMMS[0], SOFTMAX, GEMMS[0], RELU, grid=2)
        r.kernels(EMBED, COPY, grid=16)
        for _ in range(3):
            r.kernels(NORM, GEMMS[1], ADD, SOFTMAX, GEMMS[1], ADD, grid=64 + n // 8)
        r.kernels(NORM, GEMMS[3], SOFTMAX, "void at::native::equal_kernel<long>")
        r.d2h(40)
        r.host(80)


@further
def generator_and_critic(r: Recorder) -> None:
    """Five updates of the critic, then one of the generator: each update is a step."""
    layers = some(r, 1, 2)
    for _ in range(some(r, 3, 5)):
        for _ in range(5):
            r.step()
            r.h2d()
            r.kernel(RANDOM)
            forward(r, layers, 32)
            forward(r, layers, 64)
            backward(r, layers, 64)
            adam(r, 2)
        r.step()
        r.kernel(RANDOM)
        forward(r, layers, 32)
        forward(r, layers, 64)
        backward(r, layers + 1, 48)
        adam(r, 3)


@further
def scaled_losses_with_overflows(r: Recorder) -> None:
    """Gradients are checked for infinities; now and then an update is left out."""
    layers = some(r, 2, 4)
    for _ in range(some(r, 9, 16)):
        r.step()
        r.h2d()
        forward(r, layers)
        backward(r, layers)
        r.kernels("multi_tensor_unscale_kernel", "multi_tensor_unscale_kernel")
        r.d2h(4)
        if r.rng.random() > 0.2:
            adam(r)
        r.kernel("update_scale_kernel")


@further
def frames_of_a_video(r: Recorder) -> None:
    """A frame is copied, converted and searched; the number of objects varies."""
    for _ in range(some(r, 15, 40)):
        r.step()
        r.h2d(3 << 20)
        r.kernels("nv12_to_rgb(uchar*)", "resize(float*)", "normalize(float*)", grid=900)
        for n in range(9):
            r.kernel(f"trt_conv_{n % 5}", 300, 40)
        for _ in range(some(r, 1, 6)):
            r.kernels("nms(float*)", "gather(float*)", grid=some(r, 1, 8))
        r.d2h(1 << 12)
        r.host(500)


@further
def multigrid_cycles(r: Recorder) -> None:
    """Smoothing on each level, down and up again."""
    levels = some(r, 3, 5)
    for _ in range(some(r, 6, 12)):
        r.step()
        for level in range(levels):
            for _ in range(2):
                r.kernels("smooth(double*)", "swap(double*)", grid=1024 >> level)
            r.kernels("residual(double*)", "restrict(double*)", grid=1024 >> level)
        r.kernel("solve_coarse(double*)", 1)
        for level in reversed(range(levels)):
            r.kernel("prolong(double*)", 1024 >> level)
            for _ in range(2):
                r.kernels("smooth(double*)", "swap(double*)", grid=1024 >> level)
        r.kernel("norm(double*)")
        r.d2h(8)


@further
def spectral_runge_kutta(r: Recorder) -> None:
    """Four equal stages per time step, and a sum of them; nothing waits."""
    for _ in range(some(r, 10, 30)):
        r.step()
        for stage in range(4):
            r.kernels(
                "vector_fft_r2c", "nonlinear(double2*)", "vector_fft_c2r", "dealias(double2*)"
            )
            r.kernel("axpy_stage(double2*)", 100 + stage)
        r.kernel("combine(double2*)", 400)


@further
def molecules_with_neighbor_lists(r: Recorder) -> None:
    """Lists are rebuilt when atoms have moved far enough: a loop around 6 to 11 equal steps."""
    left = 0
    for _ in range(some(r, 40, 90)):
        if left == 0:
            r.step()
            r.kernels(
                "cell_index(float4*)", "cub::DeviceRadixSort", "build_list(float4*)", gpu_us=30
            )
            r.d2h(4)
            left = some(r, 6, 11)
        left -= 1
        r.kernels("pair_force(float4*)", "bond_force(float4*)", "integrate(float4*)", gpu_us=12)


@further
def scanned_cells_in_one_call(r: Recorder) -> None:
    """A jitted loop: 128 equal cells in each call of the executable."""
    for _ in range(some(r, 5, 9)):
        r.step()
        r.h2d(1 << 16)
        r.kernel("input_transpose_fusion")
        for _ in range(128):
            r.kernels("gemm_fusion_dot_1", "loop_multiply_fusion", "loop_tanh_fusion", gpu_us=3)
        r.kernels("loop_reduce_fusion", "gemm_fusion_dot_2", "input_reduce_fusion_3")
        r.d2h(4)


@further
def clusters_until_nothing_moves(r: Recorder) -> None:
    r.h2d(8 << 20)
    for _ in range(some(r, 12, 40)):
        r.step()
        r.kernels("assign(float*, int*)", "cub::DeviceReduce", "update_centers(float*)",
                  "count_moved(int*)")  # fmt: skip
        r.d2h(4)


@further
def double_buffered_copies(r: Recorder) -> None:
    """The next batch is copied while the GPU computes; an event waits, not the host."""
    layers = some(r, 1, 3)
    r.h2d(2 << 20)
    for _ in range(some(r, 8, 16)):
        r.step()
        forward(r, layers)
        r.h2d(2 << 20)
        backward(r, layers)
        adam(r, 2)


@further
def teacher_and_student(r: Recorder) -> None:
    small, large = some(r, 1, 2), some(r, 3, 5)
    for n in range(some(r, 7, 12)):
        r.step()
        r.h2d()
        forward(r, large, 128)
        forward(r, small, 64)
        r.kernel("void at::native::kl_div_kernel<float>")
        backward(r, small, 64)
        adam(r, 2)
        if n % 5 == 4:
            r.d2h()


@further
def sentences_of_other_lengths(r: Recorder) -> None:
    """A recurrent encoder and decoder, cell by cell, as long as the longest of a batch."""
    for _ in range(some(r, 6, 10)):
        r.step()
        r.h2d(4096)
        length = some(r, 8, 40)
        for _ in range(2 * length):
            r.kernels(GEMMS[0], GEMMS[1], LSTM)
        r.kernels(GEMMS[3], LOSS, LOSS_BACK)
        for _ in range(2 * length):
            r.kernels(LSTM_BACK, GEMMS[2], GEMMS[2], ADD)
        adam(r, 2)
        r.d2h(4)


@further
def sampled_neighborhoods(r: Recorder) -> None:
    """Three hops sampled on the GPU, each with a size that is read back."""
    for _ in range(some(r, 8, 14)):
        r.step()
        r.h2d(4096)
        for _ in range(3):
            r.kernels("sample_neighbors", "cub::DeviceScan", "unique", grid=some(r, 2, 90))
            r.d2h(8)
        for _ in range(3):
            r.kernels("spmm_csr", GEMMS[0], ADD, RELU, grid=some(r, 2, 90))
        r.kernels(LOSS, LOSS_BACK)
        for _ in range(3):
            r.kernels(RELU_BACK, GEMMS[2], "spmm_csr_t", grid=some(r, 2, 90))
        adam(r, 1)


@further
def rays_in_chunks(r: Recorder) -> None:
    """An image is rendered in chunks whose number varies, and each step is one image."""
    for _ in range(some(r, 5, 9)):
        r.step()
        r.kernels(RANDOM, "ray_directions")
        for _ in range(some(r, 3, 7)):
            r.kernels("march_rays", "hash_encode", GEMMS[0], RELU, GEMMS[0], "composite_rays")
        r.kernels(LOSS, LOSS_BACK, "composite_backward", GEMMS[2], RELU_BACK, GEMMS[2],
                  "hash_encode_backward")  # fmt: skip
        adam(r, 2)
        r.d2h(4)


@further
def bounces_of_light(r: Recorder) -> None:
    """Rays bounce until none is left; the number of bounces is up to a frame."""
    for _ in range(some(r, 8, 15)):
        r.step()
        r.kernel("camera_rays(Ray*)", 900)
        for _ in range(some(r, 4, 12)):
            r.kernels("intersect(Ray*)", "shade(Ray*)", "compact(Ray*)", gpu_us=15)
            r.d2h(4)
        r.kernel("tonemap(uchar4*)", 900)
        r.d2h(1 << 20)


@further
def target_network_every_n(r: Recorder) -> None:
    """Four actions on the CPU's environment per update; a target network now and then."""
    every = some(r, 4, 7)
    for n in range(every * some(r, 4, 5)):
        r.step()
        for _ in range(4):
            r.h2d(512)
            r.kernels(GEMMS[0], RELU, GEMMS[1], "argmax")
            r.d2h(8)
            r.host(150)
        r.h2d(1 << 18)
        for _ in range(2):
            r.kernels(GEMMS[0], RELU, GEMMS[1])
        r.kernels(LOSS, LOSS_BACK, GEMMS[2], RELU_BACK, GEMMS[2])
        adam(r, 1)
        if n % every == every - 1:
            r.kernels(*[COPY] * 6)


@further
def trees_of_a_forest(r: Recorder) -> None:
    """Boosting: each tree grows by levels, with a histogram and a split for each."""
    depth = some(r, 4, 7)
    r.h2d(8 << 20)
    for _ in range(some(r, 10, 25)):
        r.step()
        r.kernel("gradients(float*)", 500)
        for level in range(depth):
            r.memset(1 << 16)
            r.kernels("histogram(int*)", "best_split(float*)", grid=1 << level)
            r.d2h(1 << level)
            r.kernel("partition(int*)", 500)
        r.kernel("predict(float*)", 500)


@further
def graphs_by_batch_size(r: Recorder) -> None:
    """A server with a CUDA graph for each size of a batch, in any order."""
    for _ in range(some(r, 30, 60)):
        r.step()
        r.h2d(1 << 12)
        bucket = some(r, 1, 4)
        r.graph(bucket, 150 * bucket)
        r.d2h(1 << 10)
        r.host(200)


@further
def speech_to_text(r: Recorder) -> None:
    """A clip: a spectrogram, an encoder, and as many tokens as were spoken."""
    for _ in range(some(r, 4, 7)):
        r.step()
        r.h2d(1 << 18)
        r.kernels("vector_fft", "mel_filter", "implicit_convolve_sgemm", "implicit_convolve_sgemm")
        forward(r, 3, 200)
        for length in range(some(r, 6, 24)):
            token(r, 2, length)
        r.host(1000)


@further
def lattice_with_output(r: Recorder) -> None:
    """Two short kernels per iteration, too small for a step; fields are saved every 200."""
    r.launch_us = 3.0
    for n in range(200 * some(r, 3, 5)):
        if n % 200 == 0:
            r.step()
        r.kernels("collide_stream(float*, float*)", "boundary(float*)", grid=4096, gpu_us=6)
        if n % 200 == 199:
            r.d2h(4 << 20)
            r.host(8000)


@further
def krylov_inside_newton(r: Recorder) -> None:
    """Three loops inside each other: time steps, Newton, Krylov."""
    for _ in range(some(r, 4, 7)):
        r.step()
        r.kernel("predictor(double*)", 300)
        for _ in range(some(r, 2, 4)):
            r.kernels("residual(double*)", "jacobian(double*)", grid=300)
            for _ in range(some(r, 5, 10)):
                r.kernels("matvec(double*)", "orthogonalize(double*)", "normalize(double*)")
                r.d2h(8)
            r.kernel("update(double*)", 300)
        r.kernel("output_norm(double*)", 300)
        r.d2h(8)


@further
def optimizer_parameter_by_parameter(r: Recorder) -> None:
    """Updates of many parameters, some kernels each, take most launches; nothing waits."""
    layers, parameters = some(r, 1, 2), some(r, 60, 120)
    for _ in range(some(r, 5, 9)):
        r.step()
        forward(r, layers)
        backward(r, layers)
        for parameter in range(parameters):
            r.kernels("mul_kernel", "addcmul_kernel", "sqrt_kernel", "addcdiv_kernel",
                      grid=1 + parameter % 7)  # fmt: skip


@further
def autotuning_in_the_middle(r: Recorder) -> None:
    """A new size of images comes after some steps: candidates are timed again."""
    layers = some(r, 2, 3)
    for part in range(2):
        for n in range(some(r, 6, 9)):
            r.step()
            r.h2d()
            if n == 0:
                for candidate in range(30):
                    r.kernels(*[f"cudnn_candidate_{part}_{candidate}"] * 5, grid=10 + candidate)
                r.sync()
            train(r, layers, 64 << part)


@further
def weights_in_and_out(r: Recorder) -> None:
    """A model is copied to the GPU tensor by tensor, trained, and copied back."""
    layers, tensors = some(r, 2, 3), some(r, 100, 300)
    for n in range(tensors):
        r.h2d(1 << (10 + n % 8))
    for _ in range(some(r, 6, 10)):
        r.step()
        r.h2d()
        train(r, layers)
        r.d2h()
    for n in range(tensors):
        r.d2h(1 << (10 + n % 8))


@further
def images_with_pauses(r: Recorder) -> None:
    """One image at a time; the program waits for the next one."""
    layers = some(r, 3, 6)
    for _ in range(some(r, 8, 20)):
        r.host(20_000)
        r.step()
        r.h2d(600_000)
        for n in range(layers):
            r.kernels("implicit_convolve_sgemm", NORM, RELU, grid=200 >> n)
        r.kernels(REDUCE, GEMMS[3], SOFTMAX)
        r.d2h(4000)


@further
def contrastive_queue(r: Recorder) -> None:
    """Two encoders; the second one follows the first, parameter by parameter."""
    layers = some(r, 2, 3)
    for _ in range(some(r, 7, 12)):
        r.step()
        r.h2d(2 << 20)
        forward(r, layers)
        for parameter in range(4 * layers):
            r.kernels("lerp_kernel", grid=10 + parameter)
        forward(r, layers)
        r.kernels(GEMMS[1], SOFTMAX, COPY)
        backward(r, layers)
        adam(r, 2)


@further
def options_priced_in_batches(r: Recorder) -> None:
    """Monte Carlo: ten equal launches, a reduction and a result per option."""
    for _ in range(some(r, 20, 50)):
        r.step()
        for _ in range(10):
            r.kernel("simulate_paths(float*, curandState*)", 256, 40)
        r.kernel("reduce_payoff(float*)", 64)
        r.d2h(8)


@further
def restarted_conjugate_gradients(r: Recorder) -> None:
    """The residual is computed anew every ten iterations: a loop around them."""
    for n in range(10 * some(r, 4, 8)):
        if n % 10 == 0:
            r.step()
        r.kernels("csr_spmv", "dot", "axpy", "axpy", "dot", "xpay")
        r.d2h(8)
        if n % 10 == 9:
            r.kernels("csr_spmv", "residual", "copy_vector")


@further
def beams_reordered(r: Recorder) -> None:
    """Beam search: caches are reordered after each token; texts differ in length."""
    for _ in range(some(r, 4, 6)):
        r.step()
        prefill(r, 1, some(r, 20, 90))
        for length in range(some(r, 6, 18)):
            token(r, 1, length)
            r.kernels("cub::DeviceRadixSort", "index_select_cache", "index_select_cache")
        r.d2h(400)


@further
def statistics_over_one_long_array(r: Recorder) -> None:
    """Nothing repeats: each quantity has kernels of its own."""
    r.h2d(64 << 20)
    for n in range(some(r, 8, 16)):
        r.kernel(f"pass_{n}(float*)", 4096, 200)
        if n % 3 == 2:
            r.kernel(REDUCE)
            r.d2h(8)


@further
def losses_of_two_tasks_in_turn(r: Recorder) -> None:
    """Batches of two tasks in turn, with different heads: a batch is a step."""
    layers = some(r, 2, 3)
    for n in range(2 * some(r, 5, 8)):
        r.step()
        r.h2d()
        forward(r, layers)
        r.kernels(*((GEMMS[0], SOFTMAX) if n % 2 else (GEMMS[1], RELU, GEMMS[1], FILL, ADD)))
        backward(r, layers)
        adam(r, 2)
        r.d2h(4)


@further
def halo_exchange_with_norms(r: Recorder) -> None:
    """A time step exchanges its borders through the host; a norm is read every few of them."""
    r.h2d(40 << 20)
    for n in range(some(r, 40, 70)):
        r.step()
        r.kernel("pack_halo", 30, 12)
        r.d2h(2 << 20)
        r.host(1500)
        r.h2d(2 << 20)
        r.kernels("unpack_halo", grid=30, gpu_us=12)
        r.kernel("jacobi", 4000, 800)
        if n % 10 == 9:
            r.kernel("norm_reduce", 100, 30)
            r.d2h(8)


@further
def offloaded_regions_with_own_copies(r: Recorder) -> None:
    """Two OpenACC regions of a loop, each with its copies: only lines of the source differ."""
    for _ in range(some(r, 30, 50)):
        r.step()
        for region in ("main_F1L88_4", "main_F1L97_6"):
            r.h2d(8 << 20)
            r.h2d(8 << 20)
            r.kernel(region, 2000, 300)
            r.sync("cuStreamSynchronize")
            r.d2h(8 << 20)


@further
def texts_found_then_read(r: Recorder) -> None:
    """A page is copied and searched for lines of text; each line is copied and read."""
    for _ in range(some(r, 10, 18)):
        r.step()
        r.h2d(6 << 20)
        for _ in range(11):
            r.kernels(RELU, GEMMS[3], grid=600, gpu_us=70)
        r.d2h(2 << 20)
        r.host(9000)
        for _ in range(some(r, 2, 7)):
            r.h2d(100_000)
            for _ in range(6):
                r.kernels(LSTM, GEMMS[0], GEMMS[0], grid=300, gpu_us=25)
            r.d2h(4000)
            r.host(900)


@further
def small_network_compiled_for_each_length(r: Recorder) -> None:
    """All compiled kernels but the GEMM have new names in each step."""
    for n in range(some(r, 8, 12)):
        r.step()
        for _ in range(5):
            r.load(30_000)
        for k in range(12):
            r.kernels(GEMMS[0], f"triton_per_fused_add_{k}_s{n}", grid=100 + n, gpu_us=30)
        r.d2h()


@further
def parameter_groups_updated_one_by_one(r: Recorder) -> None:
    """An optimizer with a group for each parameter: most kernels of a step are its loop."""
    for _ in range(some(r, 8, 12)):
        r.step()
        r.h2d()
        forward(r, 1)
        backward(r, 1)
        for _ in range(100):
            r.kernels(ADAM, ADD, FILL, grid=40, gpu_us=5)


@further
def pairs_rebuilt_when_needed(r: Recorder) -> None:
    """Molecules: lists of pairs are rebuilt after any number of steps."""
    for n in range(some(r, 60, 90)):
        r.step()
        if n % 30 in (3, 5, 17, 18) or r.rng.random() < 0.03:
            r.kernels("bin_atoms", "build_pairs", "sort_pairs", gpu_us=150)
        r.kernels("spread", "forward_fft", "solve", "inverse_fft", "gather", gpu_us=60)
        r.kernels("nonbonded", "leapfrog", "constraints", gpu_us=60)
        r.d2h(200_000)
        r.host(90)


@family
def three_trainings_one_after_the_other(r: Recorder) -> None:
    """Each of a model of its own size, whose kernels the others do not have."""
    for number in range(3):
        for _ in range(12):
            r.step()
            r.h2d()
            r.kernels(*(f"{name}_{number}" for name in GEMMS * (3 + 2 * number)))
            r.kernels(LOSS, LOSS_BACK)
            r.kernels(*(f"{name}_backward_{number}" for name in GEMMS * (3 + 2 * number)))
            adam(r, 2)
            r.d2h()
        r.host(2000)


@family
def steps_rejected_now_and_then(r: Recorder) -> None:
    """A solver reads its error; the solution is copied only if that is small enough."""
    for n in range(42):
        r.step()
        for stage in range(7):
            r.kernels(GEMMS[stage % 2], RELU, ADD, COPY, grid=8)
        r.kernels(SOFTMAX, REDUCE)
        r.d2h()
        if n not in {7, 20, 28}:
            r.kernels(FILL, EMBED)


@family
def output_every_fifty_time_steps(r: Recorder) -> None:
    """The program ends in between."""
    for n in range(110):
        r.step()
        r.kernels("collide", "stream", "bounce_back", gpu_us=40)
        if n % 50 == 49:
            r.d2h(1 << 20)
            r.host(4000)


@family
def batches_of_sizes_with_other_kernels(r: Recorder) -> None:
    """Few of them need the kernels for large sizes."""
    for n in range(17):
        large = n in {0, 1, 9}
        r.step()
        r.h2d(300_000 if large else 90_000 + 512 * n)
        for _ in range(4):
            r.kernels("spmm_by_rows" if large else "spmm_by_blocks", GEMMS[large], RELU, grid=n)
        r.kernels(LOSS, LOSS_BACK)
        for _ in range(4):
            r.kernels(RELU_BACK, GEMMS[2 + large], REDUCE, grid=n)
        adam(r, 1)
        r.d2h()


@family
def long_evaluation_after_each_epoch(r: Recorder) -> None:
    """It takes longer than the few batches of training before it, with what the host does then."""
    for _ in range(4):
        for _ in range(6):
            r.step()
            r.h2d()
            train(r, 1)
        for _ in range(5):
            r.h2d()
            forward(r, 2)
            r.d2h()
        r.host(5000)


@family
def one_model_trained_several_times(r: Recorder) -> None:
    """A search for parameters: between two trainings the host prepares longer than one takes."""
    for _ in range(5):
        r.host(30_000)
        r.kernels(FILL, FILL, FILL, FILL, RANDOM, RANDOM)
        for _ in range(12):
            r.step()
            r.h2d()
            r.kernels(GEMMS[0], RELU, GEMMS[0], LOSS, LOSS_BACK, GEMMS[2], RELU_BACK, GEMMS[2])
            adam(r, 1)
        r.d2h()


@family
def requests_of_two_networks(r: Recorder) -> None:
    """In any order, with kernels of their own."""
    for _ in range(some(r, 40, 60)):
        r.step()
        large = r.rng.random() < 0.4
        r.h2d(600_000 if large else 4_096)
        r.kernels(*(f"{'res' if large else 'bert'}_{word}" for word in ("a", "b", "c", "d") * 3))
        r.d2h(4_000)
        r.host(200)


@family
def tokens_with_prompts_between_them(r: Recorder) -> None:
    """A server: a prompt of a new request comes after any number of tokens of the others."""
    for _ in range(some(r, 40, 60)):
        r.step()
        prompt = r.rng.random() < 0.3
        r.h2d(1_500)
        r.kernel(EMBED, some(r, 20, 400) if prompt else some(r, 1, 8))
        for _ in range(2):
            r.kernels(NORM, GEMMS[prompt], "prefill_kernel" if prompt else "decode_kernel", ADD)
        r.d2h(64)


@family
def stages_with_borders_through_the_host(r: Recorder) -> None:
    """Three stages per time step; the length of the step is read before the first."""
    for _ in range(some(r, 12, 20)):
        r.step()
        r.kernel("time_step_reduce")
        r.d2h(8)
        for _ in range(3):
            r.kernels("pack_face", "pack_face")
            r.d2h(1 << 16)
            r.h2d(1 << 16)
            r.kernels("unpack_face", "riemann_x", "riemann_y", "update_stage", gpu_us=40)


@family
def evaluation_and_checkpoint_of_other_periods(r: Recorder) -> None:
    setup(r, 30)
    for n in range(1, 29):
        r.step()
        r.h2d()
        train(r, 1)
        if n % 6 == 0:
            for _ in range(4):
                r.h2d()
                forward(r, 1)
                r.d2h()
        if n % 10 == 0:
            for size in range(24):
                r.d2h(4_000 + size)
            r.host(9_000)


@family
def grid_of_a_scene_every_few_steps(r: Recorder) -> None:
    """It is updated with two of the kernels of a step, which is none for that."""
    for n in range(61):
        r.step()
        r.kernels("sample_rays", "march_rays", "encode_hash", "mlp_forward", "composite")
        r.d2h()
        r.kernels("loss", "composite_backward", "mlp_backward", "encode_backward", ADAM)
        if n % 16 == 15:
            r.kernels("grid_samples", "encode_hash", "mlp_forward", "splat_max", "bitfield")


@family
def critics_then_a_smaller_generator(r: Recorder) -> None:
    """Five updates of the critic and one of the generator, whose kernels differ: a round."""
    for _ in range(6):
        r.step()
        for _ in range(5):
            r.h2d()
            forward(r, 1)
            forward(r, 2, 32)
            backward(r, 2, 32)
            adam(r, 2)
        r.kernels(RANDOM, GEMMS[2], RELU, GEMMS[3], RELU)
        forward(r, 1, 16)
        backward(r, 1, 16)
        adam(r, 1)


@family
def queries_with_operators_of_their_own(r: Recorder) -> None:
    """Kernels whose names mean nothing are no category: chance repeats no part of this."""
    kinds = ("scan", "filter", "build", "probe", "sum", "order", "project")
    names = [f"{what}_{of}" for what in kinds for of in ("int", "float", "text")]
    for _ in range(some(r, 6, 14)):
        for _ in range(some(r, 4, 15)):
            r.kernel(names[some(r, 0, 20)], some(r, 20, 900), 50)
        r.d2h(some(r, 1, 5000))


@family
def blocks_of_a_transformer_in_the_middle(r: Recorder) -> None:
    """The capture starts and ends inside one pass; a scalar is copied in each block."""
    for _ in range(9):
        r.kernels(NORM, GEMMS[0], "flash_fwd_kernel<64>", GEMMS[1], ADD)
        r.h2d(8)
        r.sync("cudaStreamSynchronize")
        r.kernels(NORM, GEMMS[1], "flash_fwd_kernel<64>", GEMMS[1], ADD, GEMMS[3], RELU, GEMMS[3])
