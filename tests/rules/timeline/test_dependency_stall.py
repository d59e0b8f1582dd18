"""dependency-stall: launched work that waits for another stream while the GPU is idle."""

from __future__ import annotations

import pytest

from gpusight.rules.finding import Confidence
from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.dependency_stall import DependencyStall
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, opened, saved_us
from tests.shared import needs_shared

RULE = DependencyStall()


def steps(*, idle_us: float = 200, recorded: bool = True) -> Capture:
    """A step of 1 ms on two GPUs: `consume` was launched early and waits for `produce` elsewhere.

    GPU 0 works until 120 us and is idle until the other GPU is done.
    """
    capture = Capture()
    capture.tables["devices"] = [{"device": 0}, {"device": 1}]
    for n in range(4):
        at = n * 1_000
        done = at + 120 + idle_us
        capture.range(f"step_{n}", at, at + 1_000)
        capture.launch((at + 10, at + 15), (at + 20, done - 3), "produce", device=1, stream=20)
        record = capture.call("cudaEventRecord", at + 16, at + 18)
        capture.launch((at + 20, at + 22), (at + 24, at + 60), "first")
        capture.launch((at + 22, at + 24), (at + 61, at + 90), "second")
        capture.launch((at + 24, at + 26), (at + 91, at + 120), "third")
        wait = capture.call("cudaStreamWaitEvent", at + 26, at + 28)
        capture.launch((at + 30, at + 35), (done, done + 100), "consume")
        capture.call("cudaDeviceSynchronize", at + 40, done + 110)
        if recorded:
            event = {"event": 5, "context": 1}
            capture.tables["event_records"].append(
                {"stream": 20, "correlation": record, "device": 1, **event}
            )
            capture.tables["syncs"].append(
                {"kind": "stream waits for event", "correlation": wait, "stream": 7, **event}
            )
    return capture


def test_who_waits_for_whom_is_named() -> None:
    timeline = steps().timeline()
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    assert verdict.title == "GPU idle waiting for other streams: 200 µs/step"
    assert numbers["queued_share"] == pytest.approx(0.2)
    assert numbers["waits"] == 1
    assert numbers["longest_ns"] == 200_000
    assert "stream 7 (consume) waiting for stream 20 (produce)" in verdict.fix
    assert verdict.confidence is Confidence.LOW
    # It could begin right behind `third`; nothing else waits for `produce` of the other GPU.
    assert saved_us(verdict, timeline) == pytest.approx(199, abs=5)


def test_waiting_for_what_the_capture_does_not_show_is_not_blamed_on_streams() -> None:
    capture = steps(recorded=False)
    capture.tables["kernels"] = [k for k in capture.tables["kernels"] if k["name"] != "produce"]
    verdict = RULE.check(capture.timeline())
    assert isinstance(verdict, RuleNotApplicable)
    assert verdict.reason.startswith("launched kernels are stalled 20.0% of the time")
    assert "another process on the GPU" in verdict.reason


def test_short_gaps_are_how_streams_work() -> None:
    assert RULE.check(steps(idle_us=9).timeline()) == CLEAN


def test_without_calls_nothing_can_be_said() -> None:
    verdict = RULE.check(steps().timeline(without=("api_calls",)))
    assert verdict == RuleNotApplicable("no GPU activity is linked to its launch")


def turns(*, blocks: int = 4, waits: bool = True, count: int = 6, **second: str) -> Capture:
    """A step of 1 ms in which two streams launch `count` kernels of 60 us each, all at once.

    With `waits` each waits for the one before it, of the other stream; else both run at once.
    """
    capture = Capture()
    capture.tables["devices"] = [{"device": 0, "sm_count": 132}]
    size = {"grid_x": blocks, "grid_y": 1, "grid_z": 1}
    for n in range(4):
        at = n * 1_000
        capture.range(f"step_{n}", at, at + 1_000)
        for k in range(count):
            name, stream = (("scan_a", 13), (second.get("name", "scan_b"), 17))[k % 2]
            begin = at + 20 + 61 * (k if waits else k // 2)
            launch = at + 2 * k, at + 2 * k + 1
            capture.launch(launch, (begin, begin + 60), name, stream=stream, **size)
        capture.call("cudaDeviceSynchronize", at + 2 * count, begin + 65)
    return capture


def test_streams_that_take_turns_with_small_kernels() -> None:
    timeline = turns().timeline()
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    # The third to sixth wait for 60 us each; the first two of a step need nobody's turn before.
    assert verdict.title == ("Streams serialized instead of concurrent: 240 µs/step")
    assert numbers["waits"] == 4
    assert "stream 13 (scan_a) waiting for stream 17 (scan_b)" in verdict.fix
    assert verdict.confidence is Confidence.LOW
    # 6 kernels in a row took 365 us; 2 beside each other, the second stream 61 us behind, 244.
    assert saved_us(verdict, timeline) == pytest.approx(122, abs=3)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ({"blocks": 250}, "each of them fills the GPU: at once they take as long"),
        ({"blocks": 67}, "two of them have more blocks than the GPU has SMs"),
        ({"waits": False}, "the streams run beside each other"),
        ({"count": 5}, "three turns a step may be one dependency"),
        ({"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}, "communication has its own rule"),
    ],
)
def test_near_turns(case: dict[str, object], why: str) -> None:
    assert RULE.check(turns(**case).timeline()) == CLEAN, why  # type: ignore[arg-type]


def functions(*, name: str = "cudaLaunchHostFunc", late_us: float = 200) -> Capture:
    """A step of 1 ms: two kernels launched at once, the second begins long after the first."""
    capture = Capture()
    for n in range(4):
        at = n * 1_000
        capture.range(f"step_{n}", at, at + 1_000)
        capture.launch((at + 10, at + 15), (at + 20, at + 120), "first")
        capture.call(name, at + 16, at + 18)
        capture.launch((at + 20, at + 25), (at + 120 + late_us, at + 220 + late_us), "second")
        capture.launch((at + 26, at + 29), (at + 221 + late_us, at + 321 + late_us), "third")
        capture.call("cudaStreamSynchronize", at + 40, at + 330 + late_us)
    return capture


@pytest.mark.parametrize(
    "name", ["cudaLaunchHostFunc", "cuLaunchHostFunc", "cudaStreamAddCallback"]
)
def test_work_behind_a_host_function(name: str) -> None:
    timeline = functions(name=name).timeline()
    verdict = match_of(RULE, timeline)
    assert verdict.title == ("GPU idle waiting for host functions: 200 µs/step")
    assert evidence(verdict)["waits"] == 1
    assert (
        "1 stall per step; most time: stream 7 (second) waiting for a host function" in verdict.fix
    )
    assert "cudaLaunchHostFunc(side" in verdict.code
    assert saved_us(verdict, timeline) == pytest.approx(199, abs=2)


def test_a_host_function_that_holds_nothing_up_is_clean() -> None:
    assert RULE.check(functions(late_us=1).timeline()) == CLEAN


def test_late_work_without_a_host_function_is_not_blamed_on_one() -> None:
    verdict = RULE.check(functions(name="cudaStreamIsCapturing").timeline())
    assert isinstance(verdict, RuleNotApplicable)
    assert verdict.reason.startswith("launched kernels are stalled 20.0% of the time")


@needs_shared
@pytest.mark.parametrize("name", ["healthy", "gpt_small_forward", "gpt_small_train", "pageable"])
def test_programs_with_one_stream_are_clean(name: str) -> None:
    assert RULE.check(opened(f"nsys/{name}.sqlite")) == CLEAN
