"""Which framework a program is written in."""

from __future__ import annotations

import re

import pytest

from gpusight.rules.diagnosis import TimelineDiagnosis
from gpusight.rules.registry import timeline_rules
from gpusight.rules.rule import Framework, framework_of
from gpusight.rules.timeline_diagnosis import diagnose_timeline
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
        ("nsys-sqlite", "cupy_add__float32_float32_float32", "step", "CUPY"),
        ("nsys-sqlite", "cudapy::__main__::step[abi:v1](Array<float, 1>)", "step", "NUMBA"),
        (
            "nsys-sqlite",
            "_ZN6cudapy8__main__4stepB2v1E5ArrayIfLi1E1C7mutable7alignedE",
            "",
            "NUMBA",
        ),
        ("nsys-sqlite", "_Z4step13CuDeviceArrayI7Float32Li1ELi1EE", "step", "JULIA"),
        ("nsys-sqlite", "julia_step_1234", "step", "JULIA"),
    ],
)
def test_framework(source: str, kernel: str, range_: str, expected: str) -> None:
    trace = build_trace({"source": source}, kernels=[{"name": kernel}], ranges=[{"name": range_}])
    assert framework_of(trace) is Framework[expected]


def test_operators_tell_pytorch() -> None:
    assert framework_of(build_trace(cpu_ops=[{"name": "aten::mm"}])) is Framework.TORCH


@pytest.mark.parametrize(
    ("process", "expected"), [("/usr/bin/python3.11", "TORCH"), ("/opt/solver", "CUDA")]
)
def test_kernels_hidden_in_graphs_of_a_python_program(process: str, expected: str) -> None:
    graphs = [{"start_ns": 1_000, "end_ns": 2_000}]
    trace = build_trace(graph_launches=graphs, processes=[{"name": process}])
    assert framework_of(trace) is Framework[expected]


def test_jax_takes_the_words_for_cuda_where_it_has_none() -> None:
    assert Framework.JAX.choose(torch="t", cuda="c") == "c"
    assert Framework.JAX.choose(torch="t", cuda="c", jax="j") == "j"


FOREIGN = re.compile(r"torch|DataLoader|<<<|//|\bcuda[A-Z]\w+\(|std::|jax|jnp")


@pytest.mark.parametrize("framework", [Framework.CUPY, Framework.NUMBA, Framework.JULIA])
def test_snippets_are_of_the_language_of_the_program(framework: Framework) -> None:
    code = {id_: rule.snippet(framework) for id_, rule in timeline_rules().items()}
    assert sum(map(bool, code.values())) >= 12
    allowed = {
        Framework.CUPY: r"cp\.|cupy|CUPY",
        Framework.NUMBA: r"cuda\.|numba",
        Framework.JULIA: r"CUDA\.",
    }
    assert re.search(allowed[framework], code["host-sync"] + code["pageable-copy"])
    for text in code.values():
        assert not FOREIGN.search(text.replace(") // threads", ""))


@pytest.mark.parametrize(
    ("kernel", "own"),
    [
        ("cupy_add__float32_float32", "cp."),
        ("cudapy::step", "copy_to_host"),
        ("julia_k_1", "Array("),
    ],
)
def test_advice_is_for_the_program(kernel: str, own: str) -> None:
    capture, at = Capture(), 0.0
    for step in range(4):
        begun = at
        for _ in range(8):
            capture.launch((at, at + 5), (at + 7, at + 57), kernel)
            capture.copy((at + 10, at + 70), (at + 58, at + 60))
            at += 120
        capture.range(f"step_{step}", begun, at)
    diagnosis = diagnose_timeline(capture.timeline().trace)
    assert isinstance(diagnosis, TimelineDiagnosis)
    syncs = next(f for f in diagnosis.findings if f.rule == "host-sync")
    assert own in syncs.code
    for finding in diagnosis.findings:
        assert not FOREIGN.search(finding.code + finding.fix)


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (("__main__", "torch.nn.modules.linear"), "TORCH"),
        (("solve", "cupy._core.core"), "CUPY"),
        (("numba.cuda.dispatcher",), "NUMBA"),
        (("jax._src.api",), "JAX"),
        (("libtorch_cuda.so", "torchlike"), "CUDA"),
    ],
)
def test_packages_on_sampled_stacks_show_the_framework(
    modules: tuple[str, ...], expected: str
) -> None:
    trace = build_trace(
        {"source": "nsys-sqlite"},
        kernels=[{"name": "gemm"}],
        stack_samples=[{"time_ns": 1, "stack": 0, "source": "gpusight"}],
        stack_frames=[
            {"stack": 0, "depth": depth, "function": "f", "module": module}
            for depth, module in enumerate(modules)
        ],
    )
    assert framework_of(trace) is Framework[expected]
