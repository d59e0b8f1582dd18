"""The programs: where each is, what is wrong with it, and what a diagnosis should name first.

A program is a function `(repaired, device) -> step`; a family of them is a module. Those in CUDA
C++ are functions of `native.cu`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


FOUND, REPAIRED = "found", "repaired"


@dataclass(frozen=True)
class Program:
    """One program; without a defect it is healthy, and there is nothing to repair."""

    name: str
    module: str
    defect: str | None = None
    expected: tuple[str, ...] = ()
    """Ids of rules that would be right in first place; none for a healthy program, nor for a defect
    that no rule looks for."""
    fixed: tuple[str, ...] | None = None
    """Ids of rules whose fixes the repair makes, where these are not all that are right: CUDA
    graphs would be right too where the repair only removes waits. Predictions are of these."""
    steps: int = 25
    warmup: int = 8
    library: str = "torch"
    """Whose way to wait for the GPU is used; `cuda` for a program in CUDA C++."""
    needs: tuple[str, ...] = ()
    """Packages beside the library; where one is absent the program is skipped."""
    processes: int = 1
    tools: tuple[str, ...] = ("nsys", "cupti", "torch")
    """Whose captures can show the defect."""
    calls: int | None = 1
    """Calls of its model in a step as found; None where that varies. Of a program without an
    optimizer, `gpusight record` takes each for a step."""
    repaired_calls: int | None = 1
    step_ms: float = 40.0
    """About how long a step as found takes on an H200: plans a lease until it was measured."""
    eight: bool = False
    """One of the eight cases that `diagnose` got wrong on programs that nobody annotated."""

    @property
    def repairs(self) -> tuple[str, ...]:
        """Ids of rules whose fixes the repaired program has."""
        return self.expected if self.fixed is None else self.fixed

    @property
    def variants(self) -> tuple[str, ...]:
        """A healthy program has one."""
        return (FOUND, REPAIRED) if self.defect else (FOUND,)

    @property
    def held_out(self) -> bool:
        """Whether it is kept for reporting: rules are designed on the others.

        Decided by the name alone, before anyone has seen a capture of it.
        """
        return hashlib.sha256(self.name.encode()).digest()[0] % 2 == 1

    def absent(self) -> str | None:
        """Name a package that is needed and not installed."""
        if self.library == "cuda":
            return None if shutil.which("nvcc") else "nvcc"
        packages = (self.library, *self.needs)
        return next((name for name in packages if importlib.util.find_spec(name) is None), None)

    def build(self) -> Callable[[bool, str], Callable[[int], Any]]:
        """Import the function that makes the step."""
        module = importlib.import_module(f"benchmarks.programs.{self.module}")
        builder: Callable[[bool, str], Callable[[int], Any]] = getattr(module, self.name)
        return builder


_LIST = (
    Program(
        "changing_lengths",
        "sequence",
        "torch.compile compiles again for each input length",
        ("recompilation",),
        steps=6,
        warmup=1,
        eight=True,
    ),
    Program(
        "jax_numpy_batches",
        "jax_programs",
        "NumPy batches and float(loss) in each step",
        ("small-transfers", "host-sync", "pageable-copy", "exposed-copy", "input-starved"),
        library="jax",
        needs=("numpy",),
        steps=40,
        eight=True,
    ),
    Program(
        "lstm_cells",
        "sequence",
        "LSTMCell called for each time step",
        ("launch-bound", "graph-candidate"),
        steps=15,
        warmup=5,
        eight=True,
    ),
    Program(
        "float64_features",
        "tabular",
        "NumPy's float64 features made the model float64",
        ("fp64-math",),
        eight=True,
    ),
    Program(
        "checkpointed_blocks",
        "transformer",
        "activation checkpointing of a model that fits",
        ("recomputation",),
        eight=True,
    ),
    Program(
        "nan_checks",
        "transformer",
        "isnan().any() and a scalar copied to the GPU in each layer",
        ("host-sync", "small-transfers"),
        eight=True,
    ),
    Program(
        "augmented_images",
        "vision",
        "costly augmentation with num_workers=0",
        ("input-starved",),
        steps=20,
        warmup=6,
        eight=True,
    ),
    Program(
        "slow_rank",
        "distributed",
        "one rank of two prepares its batch for long",
        ("host-bound", "exposed-communication", "input-starved"),
        processes=2,
        steps=20,
        warmup=5,
        eight=True,
    ),
    Program("large_gemms", "inference", steps=30),
    Program("compiled_training", "transformer", steps=30, warmup=6),
    Program("graphed_inference", "inference", steps=40),
    Program("jax_scan", "jax_programs", library="jax", steps=20, warmup=4),
    Program("resnet_channels_last", "vision", needs=("torchvision",), steps=20),
    Program(
        "token_loop",
        "sequence",
        "a small decoder launched kernel by kernel for each token",
        ("launch-bound", "graph-candidate", "host-sync"),
        steps=12,
        warmup=3,
        calls=48,
        repaired_calls=48,
    ),
    Program(
        "tokenized_on_main_thread",
        "sequence",
        "text is tokenized between the steps, on the main thread",
        ("input-starved", "host-bound"),
        needs=("tokenizers",),
        steps=15,
        warmup=5,
    ),
    Program(
        "looped_optimizer",
        "transformer",
        "AdamW(foreach=False)",
        ("unfused-optimizer", "launch-bound"),
        fixed=("unfused-optimizer",),
    ),
    Program(
        "fp32_matmuls",
        "transformer",
        "FP32 matmuls without TF32",
        ("fp32-no-tensor-cores",),
    ),
    Program(
        "written_out_attention",
        "transformer",
        "unfused attention with a mask",
        ("unfused-attention",),
    ),
    Program(
        "logged_activations",
        "transformer",
        "mean().item() of each layer's output",
        ("host-sync",),
    ),
    Program(
        "blocked_launches",
        "transformer",
        "CUDA_LAUNCH_BLOCKING=1",
        ("blocking-launches",),
    ),
    Program(
        "anomaly_detection",
        "transformer",
        "torch.autograd.set_detect_anomaly(True)",
        ("anomaly-mode",),
    ),
    Program(
        "pageable_batches",
        "tabular",
        "large batches copied from pageable memory",
        ("pageable-copy", "exposed-copy"),
    ),
    Program(
        "elementwise_formulas",
        "science",
        "normalization and activation as separate element-wise operations",
        ("elementwise-chain",),
    ),
    Program(
        "emptied_cache",
        "vision",
        "torch.cuda.empty_cache() in each step",
        ("alloc-churn",),
    ),
    Program(
        "nchw_convolutions",
        "vision",
        "NCHW convolutions and BatchNorm under autocast",
        ("layout-transpose", "conv-algorithm"),
        needs=("torchvision",),
        steps=20,
    ),
    Program(
        "graph_messages",
        "science",
        "messages of all edges are stored, then added by index_add",
    ),
    Program(
        "cpu_environment",
        "science",
        "a policy asked for one environment at a time, environments in Python",
        ("host-sync", "launch-bound", "small-transfers", "host-bound"),
        needs=("numpy",),
        steps=12,
        warmup=3,
    ),
    Program(
        "ode_solver",
        "science",
        "Runge-Kutta steps of a small field, kernel by kernel",
        ("launch-bound", "graph-candidate"),
        steps=15,
        warmup=4,
        calls=240,
        repaired_calls=240,
    ),
    Program(
        "expert_loop",
        "science",
        "a loop over experts with nonzero()",
        ("host-sync", "launch-bound"),
        steps=15,
        warmup=4,
    ),
    Program(
        "lbfgs_fit",
        "science",
        "LBFGS reads scalars of the GPU in each iteration",
        ("host-sync", "launch-bound"),
        fixed=("host-sync",),
        steps=12,
        warmup=3,
        repaired_calls=9,
    ),
    Program(
        "diffusion_sampling",
        "science",
        "a sampling loop that reads its coefficients on the host",
        ("host-sync", "launch-bound", "small-transfers", "graph-candidate"),
        steps=12,
        warmup=3,
        calls=40,
        repaired_calls=40,
    ),
    Program(
        "cupy_small_kernels",
        "cupy_programs",
        "a formula as many small CuPy kernels",
        ("launch-bound", "graph-candidate", "elementwise-chain"),
        fixed=("elementwise-chain",),
        library="cupy",
        steps=25,
    ),
    Program(
        "shared_gpu",
        "sharing",
        "a second process trains on the same GPU",
        ("gpu-shared",),
        tools=("nsys",),  # the others record one process
        steps=30,
    ),
    Program(
        "python_threads",
        "sharing",
        "a Python thread that computes holds the GIL",
        ("gil-contention", "host-bound"),
        steps=10,
        warmup=3,
        step_ms=250,
    ),
    Program(
        "small_features",
        "sharing",
        "160 small columns copied to the GPU one by one",
        ("small-transfers",),
        steps=60,
        step_ms=3,
    ),
    Program(
        "copied_metrics",
        "sharing",
        "80 numbers copied to the host one by one",
        ("host-sync", "small-transfers"),
        steps=40,
        step_ms=3,
    ),
    Program(
        "masked_losses",
        "tabular",
        "rows of each task picked by a mask on the GPU",
        ("host-sync", "launch-bound"),
        steps=40,
        step_ms=8,
    ),
    Program(
        "host_ranking",
        "tabular",
        "scores ranked with NumPy after each step",
        ("between-steps", "host-bound"),
        needs=("numpy",),
        steps=20,
        step_ms=40,
    ),
    Program(
        "molecule_batches",
        "public_libraries",
        "small graphs collated on the main thread",
        ("input-starved", "host-bound"),
        fixed=("input-starved", "host-bound", "pageable-copy", "small-transfers", "exposed-copy"),
        needs=("torch_geometric",),
        steps=20,
        step_ms=50,
    ),
    Program(
        "adaptive_solver",
        "public_libraries",
        "an adaptive solver reads its error in each step",
        ("host-sync", "launch-bound"),
        needs=("torchdiffeq",),
        steps=15,
        warmup=4,
        step_ms=60,
        calls=None,
        repaired_calls=96,
    ),
    Program(
        "checked_metrics",
        "public_libraries",
        "metrics with checks of their inputs in each step",
        ("host-sync", "launch-bound"),
        fixed=("host-sync",),
        needs=("torchmetrics",),
        steps=30,
        step_ms=10,
    ),
    Program(
        "audio_spectrograms",
        "public_libraries",
        "spectrograms made on the CPU before each step",
        ("input-starved", "host-bound"),
        fixed=("input-starved", "host-bound", "pageable-copy", "exposed-copy"),
        needs=("torchaudio",),
        steps=20,
    ),
    Program(
        "single_images",
        "public_libraries",
        "images classified in batches of one",
        ("launch-bound", "graph-candidate"),
        needs=("torchvision",),
        steps=20,
        warmup=4,
        step_ms=25,
        calls=8,
        repaired_calls=8,
    ),
    Program(
        "prompts_one_by_one",
        "language_models",
        "generate() for one prompt at a time",
        ("launch-bound", "graph-candidate", "host-sync"),
        fixed=(),
        needs=("transformers",),
        steps=6,
        warmup=2,
        step_ms=500,
        calls=64,
        repaired_calls=16,
    ),
    Program(
        "eager_attention",
        "language_models",
        'attn_implementation="eager"',
        ("unfused-attention",),
        needs=("transformers",),
        steps=20,
        step_ms=70,
    ),
    Program(
        "anomaly_training",
        "transformer",
        "set_detect_anomaly(True) left on",
        ("anomaly-mode",),
        steps=15,
        step_ms=60,
    ),
    Program(
        "debug_launches",
        "transformer",
        "CUDA_LAUNCH_BLOCKING=1 left on",
        ("blocking-launches",),
        step_ms=50,
    ),
    Program(
        "jax_without_jit",
        "jax_programs",
        "JAX without jit, operation by operation",
        ("launch-bound", "graph-candidate", "elementwise-chain", "host-bound"),
        library="jax",
        steps=30,
        step_ms=30,
    ),
    Program(
        "jax_changing_shapes",
        "jax_programs",
        "jit compiles again for each batch size",
        ("recompilation",),
        library="jax",
        needs=("numpy",),
        steps=8,
        warmup=2,
        step_ms=700,
    ),
    Program(
        "jax_float64",
        "jax_programs",
        "jax_enable_x64 left on",
        ("fp64-math",),
        library="jax",
        steps=20,
    ),
    Program(
        "cupy_conjugate_gradient",
        "cupy_programs",
        "the residual is read in each iteration",
        ("host-sync", "launch-bound"),
        fixed=("host-sync",),
        library="cupy",
        steps=20,
        step_ms=30,
    ),
    Program(
        "cupy_saved_fields",
        "cupy_programs",
        "results copied to pageable memory after each step",
        ("pageable-copy", "exposed-copy"),
        library="cupy",
        steps=20,
        step_ms=25,
    ),
    Program(
        "triton_few_blocks",
        "triton_programs",
        "a Triton kernel with a block for each of eight rows",
        ("small-grid",),
        needs=("triton",),
        steps=40,
        step_ms=4,
    ),
    Program(
        "cuda_synced_stencil",
        "native",
        "cudaDeviceSynchronize after each launch",
        ("host-sync", "launch-bound"),
        library="cuda",
        steps=30,
        step_ms=4,
    ),
    Program(
        "cuda_temporaries",
        "native",
        "cudaMalloc and cudaFree in each iteration",
        ("alloc-churn",),
        library="cuda",
        steps=30,
        step_ms=10,
    ),
    Program(
        "cuda_one_stream",
        "native",
        "copies and kernels in one stream",
        ("exposed-copy",),
        library="cuda",
        steps=30,
        step_ms=5,
    ),
    Program("vit_training", "public_libraries", needs=("torchvision",), steps=15, step_ms=90),
    Program("gpt2_training", "language_models", needs=("transformers",), steps=15, step_ms=120),
    Program("cupy_fft", "cupy_programs", library="cupy", steps=40, step_ms=4),
    Program("triton_fused", "triton_programs", needs=("triton",), steps=30, step_ms=6),
    Program("cuda_nbody", "native", library="cuda", steps=20, step_ms=70),
)
PROGRAMS = {program.name: program for program in _LIST}


def _group(program: Program) -> str:
    if program.eight or program.defect is None:
        return "first"
    if program.library != "torch":
        return "others"
    return "libraries" if program.needs else "torch"


GROUPS = {
    group: tuple(program.name for program in _LIST if _group(program) == group)
    for group in ("first", "torch", "libraries", "others")
}
"""Parts that each fit one lease of a GPU machine."""
