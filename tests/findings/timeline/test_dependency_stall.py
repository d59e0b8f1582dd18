"""dependency-stall: launched work that waits for another stream while the GPU is idle."""

from __future__ import annotations

import pytest

from gpusight.findings.finding import Confidence
from gpusight.findings.timeline.rule import Absent
from gpusight.findings.timeline.rules.dependency_stall import DependencyStall
from gpusight.findings.verdict import CLEAN
from tests.findings.timeline.traces import Capture, evidence, found, opened, saved_us
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
    verdict = found(RULE, timeline)
    numbers = evidence(verdict)
    assert verdict.title == "Launched work waits 200.0 µs of each 1.000 ms step for other streams"
    assert numbers["queued_share"] == pytest.approx(0.2)
    assert numbers["waits"] == 1
    assert numbers["longest_ns"] == 200_000
    assert "stream 7 (consume) waiting for stream 20 (produce)" in verdict.fix
    assert verdict.confidence is Confidence.LOW
    # It could begin right behind `third`; `produce` still takes until 317 us, `consume` 100 more.
    assert saved_us(verdict, timeline) == pytest.approx(103, abs=10)


def test_waiting_for_what_the_capture_does_not_show_is_not_blamed_on_streams() -> None:
    capture = steps(recorded=False)
    capture.tables["kernels"] = [k for k in capture.tables["kernels"] if k["name"] != "produce"]
    verdict = RULE.check(capture.timeline())
    assert isinstance(verdict, Absent)
    assert verdict.reason.startswith("launched work waited 20.0% of the time for nothing")
    assert "another program on the GPU" in verdict.reason


def test_short_gaps_are_how_streams_work() -> None:
    assert RULE.check(steps(idle_us=9).timeline()) == CLEAN


def test_without_calls_nothing_can_be_said() -> None:
    verdict = RULE.check(steps().timeline(without=("api_calls",)))
    assert verdict == Absent("no GPU work is linked to the call that launched it")


@needs_shared
@pytest.mark.parametrize("name", ["healthy", "gpt_small_forward", "gpt_small_train", "pageable"])
def test_programs_with_one_stream_are_clean(name: str) -> None:
    assert RULE.check(opened(f"nsys/{name}.sqlite")) == CLEAN
