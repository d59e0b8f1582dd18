"""Which framework a program is written in, and whether its steps are alike."""

from __future__ import annotations

import pytest

from gpusight.rules.formatting import Framework, framework_of
from gpusight.rules.patterns.kernel_groups import LaunchRepetition, repetition
from tests.rules.timeline.rule_captures import Capture
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


def steps(*sequences: str) -> LaunchRepetition:
    """Compare steps whose kernels have names of one letter."""
    capture = Capture()
    for step, names in enumerate(sequences):
        capture.range(f"step_{step}", step * 1_000, step * 1_000 + 900)
        for number, name in enumerate(names):
            at = step * 1_000 + number * 50
            capture.launch((at, at + 5), (at + 7, at + 17), name)
    return repetition(capture.timeline())


@pytest.mark.parametrize(
    ("sequences", "repeated", "alike"),
    [
        (("abc", "abc", "abc"), 1.0, 1.0),
        (("abc", "acb", "abc"), 1.0, 2 / 3),
        (("abx", "aby", "abz"), 2 / 3, 1 / 3),
        (("abc", "def", "ghi"), 0.0, 1 / 3),
    ],
)
def test_repetition(sequences: tuple[str, ...], repeated: float, alike: float) -> None:
    found = steps(*sequences)
    assert found.kernels == 9
    assert found.repeated == pytest.approx(repeated)
    assert found.alike == pytest.approx(alike)


def test_one_step_has_nothing_to_be_compared_with() -> None:
    capture = Capture("torch-json")
    capture.range("ProfilerStep#1", 0, 900)
    for number, name in enumerate("aaab"):
        capture.launch((number * 50, number * 50 + 5), (number * 50 + 7, number * 50 + 17), name)
    assert repetition(capture.timeline()) == LaunchRepetition(4, 0.75, None)
