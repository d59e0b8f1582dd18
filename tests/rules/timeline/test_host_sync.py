"""host-sync: waits inside steps, each counted once."""

from __future__ import annotations

import pytest

from gpusight.analysis.replay.changes import without_waiting
from gpusight.rules.patterns.host_gaps import waits
from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.host_sync import HostSync, library_of
from tests.rules.timeline.rule_captures import Capture, evidence, judged, match_of, opened, saved_us
from tests.shared import needs_shared

RULE = HostSync()


def loop(*, layers: int = 3, steps: int = 4, read_us: float = 10) -> Capture:
    """Steps of layers: a kernel of 100 us, then its result is read back as `.item()` does.

    The copy runs when the kernel is done, the synchronisation returns 2 us later; the host needs
    `read_us` until the next launch.
    """
    capture, at = Capture(), 0.0
    for step in range(steps):
        begun = at
        for _ in range(layers):
            capture.launch((at, at + 5), (at + 7, at + 107))
            capture.copy((at + 6, at + 9), (at + 108, at + 109))
            capture.call("cudaStreamSynchronize", at + 10, at + 111)
            at += 111 + read_us
        capture.range(f"step_{step}", begun, at)
    return capture


def test_a_value_read_back_is_one_wait() -> None:
    timeline = loop().timeline()
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    assert numbers["waits"] == 3
    assert numbers["read_back"] == 3
    assert verdict.title == "3 blocking syncs per step"
    assert [w.name for w in verdict.where] == ["cudaStreamSynchronize"]
    # Without waiting, launches are ahead: between kernels only copies and gaps are left.
    assert 20 < saved_us(verdict, timeline) < 70


_ISNAN = "void at::native::vectorized_elementwise_kernel<4, at::native::CompareEqFunctor<float> >"
_ANY = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<bool, at::native::or_kernel> >"
_SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::sum> >"


def checks(*names: str, size: int) -> Capture:
    """Steps of a kernel of 100 us, kernels of 50 us each on its result, and a value read back."""
    capture, at = Capture(), 0.0
    for step in range(4):
        begun, free = at, at + 107
        capture.launch((at, at + 5), (at + 7, free))
        for name in names:
            at += 6
            capture.launch((at, at + 5), (free + 1, free + 51), name=name)
            free += 51
        capture.copy((at + 6, at + 9), (free + 1, free + 2), size=size)
        capture.call("cudaStreamSynchronize", at + 10, free + 4)
        # The rest of the step, and its end.
        at = free + 10
        capture.launch((at, at + 5), (at + 7, at + 107))
        capture.call("cudaDeviceSynchronize", at + 6, at + 109)
        at += 115
        capture.range(f"step_{step}", begun, at - 1)
    return capture


def test_a_check_goes_with_its_kernels() -> None:
    """`if isnan(x).any()` is a comparison, a reduction and a copy: without it none of them runs."""
    flag = checks(_ISNAN, _ANY, size=1).timeline()
    assert 100 < saved_us(match_of(RULE, flag), flag) < 135
    # A sum may be needed for more than what is read of it, as may what is no check.
    for kernels, size in (((_SUM, "k"), 4), ((_ISNAN, "k"), 1)):
        value = checks(*kernels, size=size).timeline()
        assert 10 < saved_us(match_of(RULE, value), value) < 40


def test_many_waits_are_told_even_when_they_cost_nothing() -> None:
    """A host that needs 1 ms between layers is slower than the GPU anyway."""
    timeline = loop(layers=8, read_us=1_000_000).timeline()
    verdict = match_of(RULE, timeline)
    assert evidence(verdict)["waits"] == 8
    assert verdict.title == "8 blocking syncs per step"
    assert "It saves little alone" in verdict.fix


def test_syncs_that_return_late_are_listed_whatever_the_simulation_saves() -> None:
    """The thread gets its core back 100 us after the kernel is done, and then works for 1 ms."""
    capture = Capture()
    for step in range(4):
        at = step * 1_000
        for number in range(2):
            begun = at + 500 * number
            capture.launch((begun, begun + 5), (begun + 7, begun + 27))
            capture.call("cudaStreamSynchronize", begun + 6, begun + 127)
        capture.range(f"step_{step}", at, at + 1_000)
    verdict = match_of(RULE, capture.timeline())
    assert verdict.measured_ns == pytest.approx(4 * 101_000, rel=0.05)


def test_few_waits_that_cost_nothing_are_clean() -> None:
    assert RULE.check(loop(layers=2, read_us=1_000_000).timeline()) is CLEAN


def synchronised(*, early: bool) -> Capture:
    """Four steps: 100 us of the host, two kernels of 100 us, and one synchronisation.

    It waits for the first kernel before the second is launched, or for both at the end.
    """
    capture = Capture()
    for step in range(4):
        at = step * 400
        first = (at + 107, at + 207)
        capture.launch((at + 100, at + 105), first)
        if early:
            capture.call("cudaDeviceSynchronize", at + 108, at + 210)
            capture.launch((at + 270, at + 275), (at + 277, at + 377))
        else:
            capture.launch((at + 106, at + 110), (at + 208, at + 308))
            capture.call("cudaDeviceSynchronize", at + 111, at + 310)
        capture.range(f"step_{step}", at, at + 390)
    return capture


def test_a_synchronisation_in_the_middle_counts() -> None:
    verdict = match_of(RULE, synchronised(early=True).timeline())
    assert evidence(verdict)["waits"] == 1


def test_one_at_the_end_of_a_step_does_not_though_it_costs() -> None:
    timeline = synchronised(early=False).timeline()
    ends = waits(timeline)
    assert timeline.replay.run(without_waiting(ends["calls"].explode().to_numpy())).saved_ns > 0
    assert RULE.check(timeline) is CLEAN


def test_two_waits_without_work_in_between_are_one() -> None:
    """The second synchronisation has another stream to wait for."""
    capture = Capture()
    for step in range(4):
        at = step * 600
        capture.launch((at + 5, at + 10), (at + 12, at + 102), "one", stream=7)
        capture.launch((at + 11, at + 16), (at + 18, at + 218), "other", stream=8)
        capture.call("cudaStreamSynchronize", at + 20, at + 105)
        capture.call("cudaDeviceSynchronize", at + 106, at + 221)
        capture.launch((at + 400, at + 405), (at + 407, at + 507), "next", stream=7)
        capture.range(f"step_{step}", at, at + 590)
    rows = waits(capture.timeline())
    assert rows["calls"].list.len().to_list() == [2, 2, 2, 2]
    assert all(waited > 190_000 for waited in rows["waited_ns"])
    assert evidence(match_of(RULE, capture.timeline()))["waits"] == 1


def read_back(kernel_us: float, copy_us: float, host_us: float) -> Capture:
    """Steps of one kernel whose 1 MB of results `.cpu()` copies, for the host to work on.

    The copy is of pageable memory: its call waits for the kernel, and until it is done.
    """
    capture, at = Capture(), 0.0
    for step in range(6):
        done = at + 7 + kernel_us
        capture.launch((at, at + 5), (at + 7, done))
        capture.copy((at + 6, done + copy_us + 4), (done + 1, done + 1 + copy_us), size=1_000_000)
        after = done + copy_us + 5 + host_us
        capture.range(f"step_{step}", at, after)
        at = after
    return capture


@pytest.mark.parametrize(
    ("kernel_us", "copy_us", "saved"),
    [
        pytest.param(1_000, 20, 600, id="it waits for the kernel: the host's work is hidden"),
        pytest.param(20, 1_000, None, id="it waits for the copy: other rules look at it"),
    ],
)
def test_large_copies(kernel_us: float, copy_us: float, saved: float | None) -> None:
    timeline = read_back(kernel_us, copy_us, 600).timeline()
    if saved is None:
        assert RULE.check(timeline) is CLEAN
    else:
        verdict = match_of(RULE, timeline)
        assert saved_us(verdict, timeline) == pytest.approx(saved, rel=0.05)


def test_places_are_named() -> None:
    capture = loop()
    for row in capture.tables["api_calls"]:
        if row["name"] == "cudaStreamSynchronize":
            start, end = row["start_ns"] / 1_000 - 1, row["end_ns"] / 1_000 + 1
            capture.event("cpu_ops", "aten::_local_scalar_dense", start, end)
    verdict = match_of(RULE, capture.timeline())
    assert ("operator", "aten::_local_scalar_dense") in [(w.kind, w.name) for w in verdict.where]
    assert "aten::_local_scalar_dense" in verdict.fix


def test_a_program_without_steps_must_lose_time_by_it() -> None:
    slow = loop(layers=1, steps=40, read_us=1_000_000).timeline(without=("ranges",))
    assert RULE.check(slow) is CLEAN


def test_without_calls_it_cannot_be_judged() -> None:
    kernels = [{"start_ns": 1_000 * i, "end_ns": 1_000 * i + 500, "name": "k"} for i in range(9)]
    assert isinstance(RULE.check(judged(kernels=kernels)), RuleNotApplicable)


@needs_shared
@pytest.mark.parametrize("capture", ["nsys/item.sqlite", "torch/item.json.gz"])
def test_item(capture: str) -> None:
    timeline = opened(capture)
    verdict = match_of(RULE, timeline)
    assert evidence(verdict)["waits"] == 16
    # Not the GPU's time, which is idle here, but what reading a value takes the host.
    assert 16 * 5 < saved_us(verdict, timeline) < 16 * 40


@needs_shared
@pytest.mark.parametrize(
    "capture", ["healthy", "tiny", "dataload", "conv", "graph", "gpt_small_train", "pageable"]
)
def test_clean_captures(capture: str) -> None:
    assert RULE.check(opened(f"nsys/{capture}.sqlite")) is CLEAN


def test_the_snippet_speaks_of_losses_in_training_only() -> None:
    def read_back(kernel: str) -> Capture:
        capture = Capture("torch-json")
        for step in range(3):
            at = step * 400
            capture.range(f"step_{step}", at, at + 400)
            for n in range(4):
                begun = at + n * 90
                capture.launch((begun, begun + 5), (begun + 7, begun + 57), kernel)
                capture.copy((begun + 6, begun + 60), (begun + 57, begun + 58))
                capture.launch((begun + 62, begun + 65), (begun + 67, begun + 80), kernel)
        return capture

    training = match_of(RULE, read_back("flash_bwd_kernel").timeline())
    inference = match_of(RULE, read_back("flash_fwd_kernel").timeline())
    assert "loss" in training.code
    assert "loss" not in inference.code


def jax_loop(*, read: bool) -> Capture:
    """Eight steps of JAX: 300 us of the host, a graph of 200 us, and the loss, read by a thread.

    Without reading, the next step is issued while this one runs.
    """
    capture, at = Capture("jax-xplane"), 0.0
    for step in range(8):
        capture.launch((at + 300, at + 310), (at + 315, at + 515), "fusion")
        capture.range(f"step_{step}", at + 290, at + 312)
        if read:
            capture.copy((at + 320, at + 325), (at + 516, at + 518))
            capture.tables["api_calls"][-1]["thread"] = 12
        at += 520 if read else 300
    return capture


def test_jax_reads_back_without_a_synchronizing_call() -> None:
    verdict = match_of(RULE, jax_loop(read=True).timeline())
    assert verdict.title == "1 blocking readback per step"
    # The GPU works for 202 us between readbacks, the host for 318.
    assert evidence(verdict)["serialized_ns"] == pytest.approx(202_000 * 7 / 8, rel=0.1)
    assert "float(loss)" in verdict.fix


def test_jax_that_runs_ahead_is_clean() -> None:
    assert RULE.check(jax_loop(read=False).timeline()) is CLEAN


# Syncs inside libraries: whose they are, and what a user can change ---------------------------


def reading(frames: tuple[str, ...] = (), range_: str = "") -> Capture:
    """Steps that read eight values back, inside these Python functions or this range."""
    capture, at = Capture("torch-json"), 0.0
    for step in range(4):
        begun = at
        for _ in range(8):
            capture.launch((at, at + 5), (at + 7, at + 57))
            capture.copy((at + 10, at + 70), (at + 58, at + 60))
            at += 120
        capture.range(f"step_{step}", begun, at)
        if range_:
            capture.range(range_, begun + 1, at - 1)
        for depth, frame in enumerate(frames, 2):
            capture.event("python_calls", frame, begun + depth, at - depth)
    return capture


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("torch/optim/lbfgs.py(314): step", "torch.optim.LBFGS"),
        ("Optimizer.step#LBFGS.step", "torch.optim.LBFGS"),
        ("Optimizer.step#Rprop.step", "torch.optim.Rprop"),
        ("torch/optim/optimizer.py(485): wrapper", None),
        (
            "/opt/lib/python3.11/site-packages/transformers/generation/utils.py(9): _sample",
            "generate() of transformers",
        ),
        ("/opt/lib/python3.11/site-packages/somelib/core.py(9): run", "somelib"),
        ("torch/amp/grad_scaler.py(400): step", "torch.amp.GradScaler"),
        ("torch/_tensor_str.py(300): _str", None),
        ("train.py(12): main", None),
    ],
)
def test_library_of(name: str, library: str | None) -> None:
    answer = library_of(name)
    assert (answer.name if answer else None) == library


@pytest.mark.parametrize(
    ("capture", "library"),
    [
        pytest.param(reading(range_="Optimizer.step#LBFGS.step"), "torch.optim.LBFGS", id="range"),
        pytest.param(
            reading(("train.py(9): main", "torch/optim/lbfgs.py(314): step")),
            "torch.optim.LBFGS",
            id="stack",
        ),
        pytest.param(
            reading(("train.py(9): main", "transformers/generation/utils.py(9): _sample")),
            "generate() of transformers",
            id="generate",
        ),
    ],
)
def test_syncs_of_a_library_are_said_to_be_its_own(capture: Capture, library: str) -> None:
    verdict = match_of(RULE, capture.timeline())
    assert f"inside {library}: library code" in verdict.fix
    assert "read them back once" not in verdict.fix
    assert "losses.append" not in verdict.code


@pytest.mark.parametrize(
    "frames",
    [
        ("train.py(9): main",),
        # A closure of the program, which LBFGS calls.
        ("train.py(9): main", "torch/optim/lbfgs.py(314): step", "train.py(20): closure"),
    ],
)
def test_the_code_of_the_program_gets_the_usual_advice(frames: tuple[str, ...]) -> None:
    verdict = match_of(RULE, reading(frames).timeline())
    assert "library code" not in verdict.fix
    assert "read them back once" in verdict.fix
