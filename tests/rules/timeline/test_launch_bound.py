"""launch-bound: hosts that launch too slowly, and what graphs already solve."""

from __future__ import annotations

import pytest

import gpusight
from gpusight.rules.engine import run_timeline_rules
from gpusight.rules.finding import Confidence
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable
from gpusight.rules.timeline.launch_bound import LaunchBound
from tests.rules.timeline.gpu_traces import ADAM, ADD, GEMM, of, program
from tests.rules.timeline.rule_captures import Capture, evidence, judged, match_of, opened, saved_us
from tests.rules.timeline.test_host_sync import loop as syncing
from tests.shared import SHARED, needs_shared

RULE = LaunchBound()


def loop(
    *, launches: int = 20, every_us: float = 50, kernel_us: float = 5, steps: int = 4
) -> Capture:
    """Steps of launches of 6 us, `every_us` apart; a kernel begins 2 us after its launch.

    Where a kernel takes longer than that, the next waits for it, 1 us in between.
    """
    capture, at, free = Capture(), 0.0, 0.0
    for step in range(steps):
        begun = at
        capture.range("forward", at, at + launches * every_us)
        for number in range(launches):
            begins = max(at + 8, free)
            capture.launch((at, at + 6), (begins, begins + kernel_us), f"kernel_{number}")
            free, at = begins + kernel_us + 1, at + every_us
        done = max(at + 5, free + 3)
        capture.call("cudaDeviceSynchronize", at, done)
        capture.range(f"step_{step}", begun, done)
        at = free = done
    return capture


def test_short_kernels_with_a_slow_host() -> None:
    timeline = loop().timeline()
    verdict = match_of(RULE, timeline)
    # A step of 1,005 us: 20 kernels of 5 us, a synchronisation of 5 us, the rest is waiting.
    assert evidence(verdict) == {
        "idle_launching_ns": 900_000,
        "launches": 20,
        "kernel_ns": 5_000,
        "host_per_launch_ns": pytest.approx(50_000, rel=0.02),
        "gpu_busy": pytest.approx(100 / 1_005),
        "repeated": 1.0,
    }
    assert verdict.title == "Kernel launch overhead: GPU idle 900 µs/step"
    assert [(w.kind, w.name, w.count) for w in verdict.where] == [("range", "forward", 80)]
    assert verdict.where_time == "host time between launches (framework and launch call)"
    assert verdict.also == ("graph-candidate",)
    assert verdict.confidence is Confidence.HIGH
    # What stays is one launch of a graph, the kernels one after the other, and the wait.
    assert 700 < saved_us(verdict, timeline) < 900


def test_launches_of_two_threads_take_no_more_host_time_than_there_is() -> None:
    """The main thread is in Python while autograd's thread launches: nobody waits for it then."""
    capture = Capture("torch-json")
    for step in range(4):
        at = step * 2_000.0
        capture.range(f"step_{step}", at, at + 2_000)
        for number in range(40):
            start, thread = at + 50 * number, 1 + number // 20
            correlation = capture.call("cudaLaunchKernel", start, start + 6, thread=thread)
            capture.event(
                "kernels", f"kernel_{number}", start + 8, start + 13, correlation=correlation
            )
    verdict = match_of(RULE, capture.timeline())
    numbers = evidence(verdict)
    assert numbers["launches"] == 40
    assert numbers["host_per_launch_ns"] == pytest.approx(50_000, rel=0.02)


def test_syncs_between_launches_must_go_first() -> None:
    verdict = match_of(RULE, syncing(layers=30, read_us=100).timeline())
    assert verdict.needs == ("host-sync",)
    assert verdict.confidence is Confidence.MEDIUM
    assert "Remove the 29 blocking syncs per step first (host-sync)" in verdict.fix
    assert match_of(RULE, loop().timeline()).needs == ()


def test_no_more_is_promised_than_the_gpu_waited() -> None:
    timeline = loop().timeline()
    verdict = match_of(RULE, timeline)
    assert verdict.min_ns == timeline.replay.unchanged.total_ns - 4 * 900_000


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(loop(kernel_us=60), id="the GPU is busy"),
        pytest.param(loop(launches=2), id="too few launches for a graph"),
        pytest.param(loop(launches=5, every_us=150), id="few launches, other host work"),
        pytest.param(loop(launches=12, every_us=2_000), id="what is slow is not launching"),
        pytest.param(loop(steps=1, launches=30), id="no kernel comes again"),
    ],
)
def test_clean(capture: Capture) -> None:
    assert RULE.check(capture.timeline()) is CLEAN


def test_steps_of_few_launches_share_a_graph() -> None:
    few, many = (match_of(RULE, loop(launches=n, every_us=40).timeline()) for n in (5, 20))
    assert [verdict.change[0].spans_steps for verdict in (few, many)] == [True, False]  # type: ignore[attr-defined]


def test_steps_of_little_work_share_a_graph() -> None:
    """A small field of an ODE: 12 launches of 2 us; a graph for each call would cost 20 us."""
    capture, at = Capture(), 0.0
    for step in range(60):
        capture.range(f"step_{step}", at, at + 240)
        for number in range(12):
            launched = at + 20 * number
            capture.launch((launched, launched + 5), (launched + 7, launched + 9), f"k{number}")
        at += 240
    timeline = capture.timeline()
    left_us = 240 - saved_us(match_of(RULE, timeline), timeline)
    assert left_us < 12 * 2 + 12 * 0.15 + 3


def test_other_host_work_is_not_launching() -> None:
    """A pause of 3 ms in each step is no way to a launch: it is neither counted nor promised."""
    capture = loop()
    for rows in capture.tables.values():
        for row in rows:
            late = row["start_ns"] % 1_005_000 >= 500_000 or row["name"] == "cudaDeviceSynchronize"
            pauses = row["start_ns"] // 1_005_000 + late
            shift = 3_000_000 * pauses
            row["start_ns"] += shift
            row["end_ns"] += shift
            if row["name"].startswith(("step", "forward")):
                row["end_ns"] += 3_000_000
    timeline = capture.timeline()
    verdict = match_of(RULE, timeline)
    assert timeline.length_ns / 4 == 4_005_000
    assert evidence(verdict)["idle_launching_ns"] < 900_000
    assert evidence(verdict)["host_per_launch_ns"] < 50_000
    assert saved_us(verdict, timeline) < 900


def test_graphs_are_not_accused() -> None:
    capture = Capture()
    for step in range(4):
        at = step * 1_000
        graph = capture.call("cudaGraphLaunch", at + 500, at + 520)
        for node in range(20):
            begins = (at + 525 + node * 10) * 1_000
            row = {"start_ns": begins, "end_ns": begins + 3_000, "name": f"kernel_{node}"}
            capture.tables["kernels"].append({**row, "correlation": graph, "graph_node": node})
        capture.range(f"step_{step}", at, at + 900)
    assert RULE.check(capture.timeline()) is CLEAN


def test_steps_that_differ_lower_the_confidence() -> None:
    """The kernels are the same, in an order that is never the same."""
    capture = Capture()
    for step in range(5):
        for number in range(20):
            at = step * 1_000 + number * 48
            capture.launch((at, at + 6), (at + 8, at + 12), f"kernel_{number * (step + 1) % 21}")
        capture.range(f"step_{step}", step * 1_000, step * 1_000 + 999)
    verdict = match_of(RULE, capture.timeline())
    assert verdict.confidence is Confidence.MEDIUM
    assert "The steps differ" in verdict.fix


def test_no_graph_is_pasted_where_the_steps_differ() -> None:
    capture = Capture()
    for step in range(5):
        for number in range(20):
            at = step * 1_000 + number * 48
            name = f"void at::native::kernel_{number * (step + 1) % 21}<float>()"
            capture.launch((at, at + 6), (at + 8, at + 12), name)
        capture.range(f"step_{step}", step * 1_000, step * 1_000 + 999)
    verdict = match_of(RULE, capture.timeline())
    assert "make_graphed_callables" not in verdict.code + verdict.fix
    assert "dynamic=True" in verdict.code


def test_steps_of_ever_other_kernels_wait_for_launches_as_well() -> None:
    capture = loop()
    for number, kernel in enumerate(capture.tables["kernels"]):
        kernel["name"] = f"never_again_{number}"
    verdict = match_of(RULE, capture.timeline())
    assert verdict.confidence is Confidence.LOW
    assert "no graph fits" in verdict.confidence_reason


def test_advice_speaks_the_language_of_the_program() -> None:
    plain, torch = loop(), loop()
    for row in torch.tables["kernels"]:
        row["name"] = f"void at::native::{row['name']}<float>()"
    assert "cudaStreamBeginCapture" in match_of(RULE, plain.timeline()).code
    assert "torch.compile" in match_of(RULE, torch.timeline()).code


def test_without_calls_it_cannot_be_judged() -> None:
    kernels = [{"start_ns": 1_000 * i, "end_ns": 1_000 * i + 500, "name": "k"} for i in range(9)]
    assert isinstance(RULE.check(judged(kernels=kernels)), RuleNotApplicable)
    unlinked = loop()
    for row in unlinked.tables["kernels"]:
        row["correlation"] = None
    verdict = RULE.check(unlinked.timeline())
    assert isinstance(verdict, RuleNotApplicable)
    assert "linked" in verdict.reason


@needs_shared
@pytest.mark.parametrize(
    ("capture", "least_ms", "most_ms"),
    [
        ("tiny", 10.0, 11.4),
        ("conv", 4.8, 5.6),
        ("item", 2.6, 3.7),
        ("gpt_small_train", 3.5, 5.1),
        ("gpt_small_train_bf16_fused", 29.0, 32.0),
        ("gpt_tiny_train_r1", 8.5, 9.8),
    ],
)
def test_planted(capture: str, least_ms: float, most_ms: float) -> None:
    timeline = opened(f"nsys/{capture}.sqlite")
    verdict = match_of(RULE, timeline)
    assert verdict.min_ns is not None
    # Alone, no more than the GPU waited for launches.
    most_us = (timeline.replay.unchanged.total_ns - verdict.min_ns) / timeline.per_step / 1e3
    assert least_ms < min(saved_us(verdict, timeline), most_us) / 1e3 < most_ms


@needs_shared
@pytest.mark.parametrize("capture", ["graph", "graph_node", "healthy", "pageable"])
def test_clean_captures(capture: str) -> None:
    assert not isinstance(RULE.check(opened(f"nsys/{capture}.sqlite")), RuleMatch)


@pytest.mark.parametrize(
    ("name", "domain"),
    [("cub::DeviceRadixSort::SortPairs", ""), ("inner_join", "libcudf"), ("sort", "CCCL")],
)
def test_ranges_of_libraries_are_not_captured_into_graphs(name: str, domain: str) -> None:
    capture = loop()
    for row in capture.tables["ranges"]:
        if row["name"] == "forward":
            row.update(name=name, domain=domain)
    verdict = match_of(RULE, capture.timeline())
    assert "inside a library" in verdict.fix
    assert "Capture" not in verdict.fix
    assert "cudaStreamBeginCapture" not in verdict.code
    assert verdict.confidence is Confidence.LOW


def test_the_program_s_own_range_is_captured() -> None:
    verdict = match_of(RULE, loop().timeline())
    assert "Capture `forward` with cudaStreamBeginCapture" in verdict.fix


def test_the_optimizer_is_advised_where_one_is_seen() -> None:
    inference = match_of(RULE, of([(ADD, 1)] * 40, host_us=20))
    assert "optim" not in inference.code + inference.fix
    assert "make_graphed_callables" in inference.code
    adam = [(name, 1) for name in ADAM * 4]
    mostly_model = match_of(RULE, of([(GEMM, 1)] * 3 * len(adam) + adam, host_us=20))
    assert mostly_model.code.index("torch.compile") < mostly_model.code.index("fused=True")
    assert "The optimizer makes 25.0% of the launches: fuse it too." in mostly_model.fix


def test_the_optimizer_comes_first_where_it_launches_most() -> None:
    adam = [(name, 1) for name in ADAM * 4]
    verdict = match_of(RULE, of([(GEMM, 1)] * (len(adam) // 4) + adam, host_us=20))
    assert verdict.code.index("fused=True") < verdict.code.index("torch.compile")
    # Graphs of the model do not capture the optimizer.
    assert "make_graphed_callables" not in verdict.code + verdict.fix
    assert "The optimizer makes 80.0% of the launches: fuse it first." in verdict.fix


def test_a_compiled_program_gets_other_advice() -> None:
    adam = [(name, 1) for name in ADAM * 4]
    capture = program([(GEMM, 1)] * (len(adam) // 4) + adam, host_us=20)
    capture.range("Torch-Compiled Region: 0/0", 0, 100)
    fix = match_of(RULE, capture.timeline()).fix
    assert "apply torch.compile" not in fix
    assert "The model is compiled already" in fix


def test_corrected_times_have_no_caveat_about_the_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = loop().timeline()
    (measured,) = run_timeline_rules(timeline, [RULE]).findings
    assert "Profilers slow down launches" in measured.caveats
    monkeypatch.setattr("gpusight.rules.timeline.launch_bound.correction_of", lambda _: object())
    (corrected,) = run_timeline_rules(timeline, [RULE]).findings
    assert corrected.caveats
    assert "rofiler" not in corrected.caveats


@needs_shared
def test_places_with_a_small_part_of_the_time_are_not_most_of_it() -> None:
    """In `item` the optimizer has 16% of the host time of launches."""
    view = gpusight.diagnose(SHARED / "torch" / "item.json.gz").to_dict()
    (finding,) = (row for row in view["findings"] if row["rule"] == "launch-bound")
    assert "% of it in `Optimizer.step#SGD.step`" in finding["fix"]
    assert "mostly in" not in finding["fix"]
