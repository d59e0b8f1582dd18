"""Which framework a program is written in."""

from __future__ import annotations

import pytest

from gpusight.rules.frameworks import Framework, framework_of
from tests.traces import build_trace


@pytest.mark.parametrize(
    ("source", "kernel", "range_", "expected"),
    [
        ("nsys-sqlite", "void at::native::vectorized_elementwise_kernel<4>()", "step", "TORCH"),
        ("nsys-sqlite", "triton_poi_fused_add_0", "step", "TORCH"),
        ("nsys-sqlite", "ampere_sgemm_128x64_tn", "aten::mm, seq = 3", "TORCH"),
        ("torch-json", "ampere_sgemm_128x64_tn", "step", "TORCH"),
        ("jax-xplane", "loop_add_fusion", "step", "JAX"),
        ("nsys-sqlite", "loop_add_fusion", "XlaModule:#hlo_module=jit_f#", "JAX"),
        ("nsys-sqlite", "stencil(float*, int)", "time step", "CUDA"),
    ],
)
def test_framework(source: str, kernel: str, range_: str, expected: str) -> None:
    trace = build_trace({"source": source}, kernels=[{"name": kernel}], ranges=[{"name": range_}])
    assert framework_of(trace) is Framework[expected]


def test_operators_tell_pytorch() -> None:
    assert framework_of(build_trace(cpu_ops=[{"name": "aten::mm"}])) is Framework.TORCH


def test_jax_takes_the_words_for_cuda_where_it_has_none() -> None:
    assert Framework.JAX.choose(torch="t", cuda="c") == "c"
    assert Framework.JAX.choose(torch="t", cuda="c", jax="j") == "j"
