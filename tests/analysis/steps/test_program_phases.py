"""The start of a program, and which phase of a step GPU work belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.analysis.gpu_schedule import build_schedule
from gpusight.analysis.steps.program_phases import find_start, phases
from gpusight.analysis.steps.step_list import PHASES, phase_of
from gpusight.rules.diagnosis import TimelineDiagnosis
from gpusight.rules.timeline_diagnosis import diagnose_timeline
from gpusight.trace.trace import Trace
from tests.rules.timeline.rule_captures import US, Capture
from tests.shared import EVERY_SQLITE, EVERY_TORCH_TRACE, SHARED, name, needs_shared, opened
from tests.traces import build_trace

MAIN, AUTOGRAD = 11, 12


NAMES: dict[str | None, str] = {
    "forward": """forward; fwd; Forward pass; forward_pass; ForwardPass; ## forward ##; prefill;
        model_inference; DistributedDataParallel.forward; compute_loss; execute_model; attn(F);
        [pl][profile][Strategy]SingleDeviceStrategy.training_step""",
    "backward": """backward; bwd; Backward pass; loss.backward(); backward_inner; AddmmBackward0;
        autograd::engine::evaluate_function: MulBackward0; AddmmBackward0, seq = 12; attn(W)""",
    "optimizer": """optimizer; opt.step; opt_step; Optimizer.step#AdamW.step; zero_grad;
        Optimizer.zero_grad#SGD.zero_grad; optimizer-inner-step; clip_grad_norm_; Weight update""",
    "data": """data; dataload; data_loading; next batch; load_batch; h2d; to device;
        batch-generator;
        enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__; wait_for_training_batch""",
    "communication": """allreduce; all_reduce; nccl:all_reduce; ncclAllReduce; AllGather;
        reduce-scatter; grad sync; bwd_allreduce_microstep; halo exchange; moe_a2a; a2a dispatch""",
    None: """step_0; train_step; block_3; mlp; forward-backward; fwd_bwd; aten::broadcast_tensors;
        input_layernorm; computing_softmax; d2h; flash_attn::_flash_attn_forward; x;
        Call graph fba2a4mrx2nggomtew6kvq5cnvyujguoraux6r572lxtrj77r7aj""",
}


@pytest.mark.parametrize("phase", NAMES)
def test_names_in_any_spelling(phase: str | None) -> None:
    names = [text.strip() for text in NAMES[phase].split(";")]
    assert {text: phase_of(text) for text in names} == dict.fromkeys(names, phase)


def program(launches: list[tuple[int, int, str]], **tables: Any) -> Trace:
    """Launch kernels: when, on which thread, and their names."""
    calls = [
        {"start_ns": at, "end_ns": at + 1, "thread": thread, "correlation": n + 1}
        for n, (at, thread, _) in enumerate(launches)
    ]
    kernels = [
        {"start_ns": at + 1000, "end_ns": at + 1001, "name": kernel, "correlation": n + 1}
        for n, (at, _, kernel) in enumerate(launches)
    ]
    threads = [{"thread": MAIN, "tid": 4242}, {"thread": AUTOGRAD, "tid": 4243}]
    processes = [{"process": 1, "pid": 4242}]
    return build_trace(
        api_calls=calls, kernels=kernels, threads=threads, processes=processes, **tables
    )


def found(trace: Trace) -> list[str | None]:
    return phases(trace, build_schedule(trace, 0, 10_000)).to_list()


def test_the_innermost_range_that_speaks_of_a_phase_wins() -> None:
    ranges = [
        {"name": "step_0", "start_ns": 0, "end_ns": 100},
        {"name": "forward", "start_ns": 10, "end_ns": 50},
        {"name": "mlp", "start_ns": 20, "end_ns": 30},
        {"name": "allreduce", "start_ns": 40, "end_ns": 50},
    ]
    launches = [(5, MAIN, "a"), (15, MAIN, "b"), (25, MAIN, "c"), (45, MAIN, "d")]
    assert found(program(launches, ranges=ranges)) == [
        "other", "forward", "forward", "communication",
    ]  # fmt: skip


def test_kernels_of_the_backward_thread_belong_to_the_phase_on_the_main_one() -> None:
    ranges = [
        {"name": "backward", "start_ns": 10, "end_ns": 50, "thread": MAIN},
        {"name": "layer", "start_ns": 10, "end_ns": 50, "thread": AUTOGRAD},
        {"name": "forward", "start_ns": 60, "end_ns": 70, "thread": AUTOGRAD},
    ]
    launches = [(20, AUTOGRAD, "a"), (65, AUTOGRAD, "b")]
    assert found(program(launches, ranges=ranges)) == ["backward", "forward"]


def test_a_loaders_range_does_not_cover_the_main_thread() -> None:
    ranges = [{"name": "load data", "start_ns": 0, "end_ns": 90, "thread": 13}]
    assert found(program([(20, MAIN, "a")], ranges=ranges)) == [None]


def test_kernels_that_communicate_do_so_in_any_phase() -> None:
    ranges = [{"name": "backward", "start_ns": 0, "end_ns": 90}]
    launches = [(20, MAIN, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"), (30, MAIN, "gemm")]
    assert found(program(launches, ranges=ranges)) == ["communication", "backward"]


def test_without_any_hint_the_phase_is_not_known_but_an_optimizers_kernel_tells() -> None:
    fused = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>(int)"
    assert found(program([(20, MAIN, "gemm"), (30, MAIN, fused)])) == [None, "optimizer"]


def test_autograds_own_operators_tell_where_no_range_does() -> None:
    """Forward, zero_grad, backward, clipping, step: as a loop without annotations records them."""
    ops = [
        {"name": "aten::mm", "start_ns": 10, "end_ns": 20, "sequence": 5, "op": 1},
        {"name": "autograd::engine::evaluate_function: MmBackward0", "start_ns": 40, "end_ns": 50,
         "thread": AUTOGRAD, "sequence": 5, "forward_thread": 1, "op": 2},
        {"name": "aten::add_", "start_ns": 55, "end_ns": 59, "op": 3},
    ]  # fmt: skip
    ranges = [
        {"name": "Optimizer.zero_grad#SGD.zero_grad", "start_ns": 30, "end_ns": 35},
        {"name": "Optimizer.step#SGD.step", "start_ns": 60, "end_ns": 70},
    ]
    launches = [
        (12, MAIN, "mm"),
        (25, MAIN, "no operator, but a backward follows"),
        (32, MAIN, "zero"),
        (45, AUTOGRAD, "mm backward"),
        (57, MAIN, "between backward and step"),
        (65, MAIN, "step"),
    ]
    assert found(program(launches, ranges=ranges, cpu_ops=ops)) == [
        "forward", "forward", "optimizer", "backward", "other", "optimizer",
    ]  # fmt: skip


@pytest.mark.parametrize("path", [*EVERY_SQLITE, *EVERY_TORCH_TRACE], ids=name)
def test_every_capture_has_one_phase_or_none_for_each_piece_of_work(path: Any) -> None:
    trace = opened(path)
    schedule = build_schedule(trace, -(1 << 60), 1 << 60)
    given = phases(trace, schedule)
    assert len(given) == len(schedule.ops)
    assert set(given.drop_nulls()) <= set(PHASES)


@needs_shared
def test_both_tools_agree_about_one_program() -> None:
    """The nsys capture has ranges for the phases, the torch trace only autograd's links."""
    shares = []
    for file in ("nsys/gpt_small_train.sqlite", "torch/gpt_small_train.json.gz"):
        trace = opened(SHARED / file)
        schedule = build_schedule(trace, 0, 1 << 60)
        counts = phases(trace, schedule).value_counts()
        shares.append(dict(zip(counts["phase"], counts["count"], strict=True)))
    for phase in ("forward", "backward", "optimizer"):
        assert shares[0][phase] == pytest.approx(shares[1][phase], rel=0.01)


DIFFERENT = ("a", "b", "c", "d", "e")
"""Kernels that do not repeat: no steps."""


def starting_program(
    work_us: float = 5_000,
    *,
    loading: tuple[float, float] | None = None,
    compiling: tuple[float, float] | None = None,
    tuning_us: tuple[float, ...] = (),
) -> Capture:
    """A program whose own kernels begin at `work_us`, 100 us apart; before, it may tune others."""
    capture = Capture()
    capture.call("cuInit", 0, 1)
    if loading:
        capture.call("cuModuleLoadData", *loading)
    if compiling:
        capture.range("XlaCompile:#module=jit_f#", *compiling)
    for number, at in enumerate(tuning_us):
        capture.launch((at, at + 5), (at + 7, at + 20), f"tuned_{number}")
    for number, kernel in enumerate(DIFFERENT):
        at = work_us + 100 * number
        capture.launch((at, at + 5), (at + 7, at + 95), kernel)
    return capture


@pytest.mark.parametrize(
    ("capture", "end_us"),
    [
        pytest.param(starting_program(), 5_007, id="most of the window, whatever it does"),
        pytest.param(starting_program(600), None, id="half a millisecond is the way to a launch"),
        pytest.param(
            starting_program(compiling=(10, 4_900), tuning_us=(1_000, 3_000)), 4_900, id="tuning"
        ),
        pytest.param(
            starting_program(6_000, compiling=(5_000, 5_900), tuning_us=(100, 2_000, 3_500)),
            None,
            id="compiled in the middle of its work",
        ),
        pytest.param(starting_program(compiling=(10, 5_800)), 5_007, id="compiled to the end"),
    ],
)
def test_where_it_ends(capture: Capture, end_us: float | None) -> None:
    trace = build_trace({"source": "nsys-sqlite"}, **capture.tables)
    start = find_start(trace, 0, 6_500 * US)
    assert (start and start.end_ns) == (end_us and end_us * US)


def test_a_diagnosis_leaves_it_out_and_says_so() -> None:
    capture = starting_program(loading=(10, 900))
    trace = build_trace({"source": "nsys-sqlite"}, devices=[{"device": 0}], **dict(capture.tables))
    diagnosis = diagnose_timeline(trace)
    assert isinstance(diagnosis, TimelineDiagnosis)
    assert diagnosis.focus.start_ns == 5_000 * US
    assert diagnosis.focus.before_ns == 5_000 * US
    assert any("5.00 ms (program start) are excluded" in note for note in diagnosis.notes)
    finding = diagnosis.findings[0]
    assert (finding.rule, finding.recoverable_ns, finding.share) == ("startup-bound", None, None)
    assert finding.title.startswith("Start-up: 5.00 ms of 5.50 ms")
    assert {e.metric: e.value for e in finding.evidence}["code_ns"] == 890 * US
    assert diagnosis.covered["warmup-in-window"] == "startup-bound"


def test_it_stays_where_it_is_asked_for() -> None:
    trace = build_trace(
        {"source": "nsys-sqlite"}, devices=[{"device": 0}], **starting_program().tables
    )
    for options in ({"warmup": True}, {"window": (0, None)}):
        diagnosis = diagnose_timeline(trace, **options)
        assert isinstance(diagnosis, TimelineDiagnosis)
        assert diagnosis.focus.start_ns == 0
        finding = next(f for f in diagnosis.findings if f.rule == "warmup-in-window")
        assert finding.recoverable_ns == 5_007 * US
