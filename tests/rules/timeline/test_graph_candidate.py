"""graph-candidate: repeated short kernels on a busy GPU."""

from __future__ import annotations

import pytest

from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.graph_candidate import GraphCandidate
from tests.rules.timeline.rule_captures import Capture, evidence, judged, match_of, opened, saved_us
from tests.shared import needs_shared

RULE = GraphCandidate()


def loop(*, kernels: int = 20, kernel_us: float = 10, steps: int = 4) -> Capture:
    """Steps of kernels 1.5 us apart, launched faster than they run."""
    capture, at = Capture(), 0.0
    for step in range(steps):
        begun, gpu = at, at + 8
        for number in range(kernels):
            capture.launch((at, at + 3), (gpu, gpu + kernel_us), f"kernel_{number}")
            gpu, at = gpu + kernel_us + 1.5, at + 4
        done = gpu + 3
        capture.call("cudaDeviceSynchronize", at, done)
        capture.range(f"step_{step}", begun, done)
        at = done
    return capture


def test_gaps_between_short_kernels() -> None:
    timeline = loop().timeline()
    verdict = match_of(RULE, timeline)
    assert evidence(verdict) == {
        "kernels": 20,
        "kernel_ns": 10_000,
        "gap_ns": 1_500,
        "repeated": 1.0,
    }
    assert verdict.title == "No CUDA graph for 20 kernels/step (median 10.0 µs)"
    # 19 gaps shrink from 1.5 to 0.5 us; the launch of a graph takes longer than that of a kernel.
    assert 0 < saved_us(verdict, timeline) <= 19


def test_the_graph_of_a_training_step_has_the_whole_step() -> None:
    capture = loop()
    for row in capture.tables["kernels"]:
        row["name"] = f"void at::native::{row['name']}_bwd"
    code = match_of(RULE, capture.timeline()).code
    ordered = ["capturable=True", "zero_grad(set_to_none=True)", "backward()", "optimizer.step()"]
    ordered += ["torch.cuda.stream(side)", "torch.cuda.graph(graph)", "inputs.copy_", "replay()"]
    places = [code.index(part) for part in ordered]
    assert places == sorted(places)
    assert "cudaGraphLaunch(exec, stream)" in match_of(RULE, loop().timeline()).code


@pytest.mark.parametrize(
    ("optimizer", "line"),
    [
        ("Adam", "optimizer = torch.optim.Adam(model.parameters(), capturable=True)"),
        ("SGD", "def train_step():"),
        ("Shampoo", "def train_step():"),
    ],
)
def test_the_graph_has_the_optimizer_of_the_capture(optimizer: str, line: str) -> None:
    capture = loop()
    for row in capture.tables["kernels"]:
        row["name"] = f"void at::native::{row['name']}_bwd"
    capture.range(f"Optimizer.step#{optimizer}.step", 1, 2)
    code = match_of(RULE, capture.timeline()).code
    assert code.startswith(line)
    assert ("torch.optim" in code) == line.startswith("optimizer")


@pytest.mark.parametrize(
    ("kernels", "waits", "found"), [(3, 0, True), (3, 1, False), (1, 0, False)]
)
def test_short_steps_share_a_graph_where_nothing_waits(
    kernels: int, waits: int, *, found: bool
) -> None:
    """Each kernel waits for another stream: 4 us between two of them, whatever the host does."""
    capture, at, gpu = Capture(), 0.0, 9.0
    for step in range(40):
        begun = at
        for number in range(kernels):
            capture.launch((at, at + 2), (gpu, gpu + 2), f"kernel_{number}")
            at, gpu = at + 3, gpu + 6
        for _ in range(waits):
            capture.call("cudaDeviceSynchronize", at, gpu)
            at = gpu
        capture.range(f"step_{step}", begun, at)
    timeline = capture.timeline()
    if not found:
        assert RULE.check(timeline) is CLEAN
        return
    assert match_of(RULE, timeline).title.startswith("No CUDA graph for 3")
    assert saved_us(match_of(RULE, timeline), timeline) > 1


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(loop(kernel_us=100), id="kernels are long"),
        pytest.param(loop(kernels=6), id="kernels are few"),
        pytest.param(loop(steps=1, kernels=40), id="nothing comes again"),
    ],
)
def test_clean(capture: Capture) -> None:
    assert RULE.check(capture.timeline()) is CLEAN


def test_steps_of_different_kernels_are_no_candidates() -> None:
    capture = loop()
    for number, row in enumerate(capture.tables["kernels"]):
        row["name"] = f"kernel_{number}"
    assert RULE.check(capture.timeline()) is CLEAN


def test_without_calls_it_cannot_be_judged() -> None:
    kernels = [{"start_ns": 1_000 * i, "end_ns": 1_000 * i + 500, "name": "k"} for i in range(99)]
    assert isinstance(RULE.check(judged(kernels=kernels)), RuleNotApplicable)


@needs_shared
@pytest.mark.parametrize("capture", ["healthy", "graph", "graph_node", "pageable"])
def test_clean_captures(capture: str) -> None:
    assert RULE.check(opened(f"nsys/{capture}.sqlite")) is CLEAN


def test_what_a_library_launches_is_not_the_program_s_to_capture() -> None:
    capture = loop()
    for row in list(capture.tables["ranges"]):
        start, end = row["start_ns"] / 1_000, row["end_ns"] / 1_000
        capture.range("cub::DeviceRadixSort::SortPairs", start + 0.5, end - 0.5)
    assert RULE.check(capture.timeline()) is CLEAN


def test_only_ranges_of_the_program_are_named() -> None:
    capture = loop()
    for row in list(capture.tables["ranges"]):
        start, end = row["start_ns"] / 1_000, row["end_ns"] / 1_000
        middle = (start + end) / 2
        capture.range("solve", start + 0.5, middle)
        capture.range("aten::mm, op_id = 3", middle + 0.1, end - 0.5)
    fix = match_of(RULE, capture.timeline()).fix
    assert "Capture `solve` into a CUDA graph" in fix
    assert "aten" not in fix
