"""input-starved: what the launching thread loads, and what only looks like it."""

from __future__ import annotations

import pytest

from gpusight.rules.finding import Confidence
from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.input_starved import InputStarved
from tests.rules.timeline.rule_captures import (
    MAIN,
    US,
    Capture,
    evidence,
    judged,
    match_of,
    opened,
    saved_us,
)
from tests.shared import needs_shared

RULE = InputStarved()


def loop(name: str, load_us: float, kernel_us: float) -> Capture:
    """Four steps: a range for `load_us`, a launch of 10 us, a kernel, then a synchronisation."""
    capture, at = Capture(), 0.0
    for step in range(4):
        begun = at
        capture.range(name, at, at + load_us)
        at += load_us
        capture.launch((at, at + 10), (at + 12, at + 12 + kernel_us))
        done = at + 12 + kernel_us + 3
        capture.call("cudaStreamSynchronize", at + 11, done)
        capture.range(f"step_{step}", begun, done)
        at = done
    return capture


def test_input_that_the_gpu_waits_for() -> None:
    timeline = loop("load batch", 800, 100).timeline()
    verdict = match_of(RULE, timeline)
    assert evidence(verdict) == {
        "idle_input_ns": 800_000,
        "input_ns": 800_000,
        "gpu_busy": pytest.approx(100 / 915),
    }
    assert verdict.title == ("Data loading (`load batch`) stalls the GPU 800 µs/step")
    assert [(w.kind, w.name, w.ns, w.count) for w in verdict.where] == [
        ("range", "load batch", 3_200_000, 4)
    ]
    assert saved_us(verdict, timeline) == 800
    assert verdict.confidence is Confidence.HIGH
    assert "One worker still takes 800 µs/step" in verdict.fix


@pytest.mark.parametrize(
    ("name", "load_us", "kernel_us"),
    [
        pytest.param("load batch", 5, 1_000, id="too short to matter"),
        pytest.param("forward", 800, 100, id="a range that is not about input"),
        pytest.param("data_parallel", 800, 100, id="a name that only looks like it"),
    ],
)
def test_what_is_not_input(name: str, load_us: float, kernel_us: float) -> None:
    assert RULE.check(loop(name, load_us, kernel_us).timeline()) is CLEAN


def test_input_beside_a_busy_gpu_is_clean() -> None:
    """The kernel of the step before runs while the next batch is loaded: nobody waits."""
    capture = Capture()
    for step in range(4):
        at = step * 1_000
        capture.range("data", at, at + 900)
        capture.launch((at + 900, at + 910), (at + 912, at + 1_905))
        capture.range(f"step_{step}", at, at + 1_000)
    assert RULE.check(capture.timeline()) is CLEAN


def test_os_calls_name_input_where_no_range_does() -> None:
    capture = Capture()
    for step in range(4):
        at = step * 1_000
        capture.event("os_calls", "pread64", at + 50, at + 850)
        capture.launch((at + 900, at + 910), (at + 912, at + 990))
        capture.range(f"step_{step}", at, at + 995)
    verdict = match_of(RULE, capture.timeline())
    assert evidence(verdict)["idle_input_ns"] == 800_000
    assert ("call", "pread64") in [(w.kind, w.name) for w in verdict.where]


@pytest.mark.parametrize("wait", ["nanosleep", "poll", "epoll_wait", "recv"])
def test_waits_are_not_input_without_evidence(wait: str) -> None:
    capture = Capture()
    for step in range(4):
        at = step * 1_000
        capture.event("os_calls", wait, at + 50, at + 850)
        capture.launch((at + 900, at + 910), (at + 912, at + 990))
        capture.range(f"step_{step}", at, at + 995)
    assert RULE.check(capture.timeline()) is CLEAN


def before_batches(*, ms: float = 8.0, size: int = 600_000, source: str = "torch-json") -> Capture:
    """Four steps: the thread does nothing that has a name, then copies a batch and launches."""
    capture, step_us = Capture(source), 1_000 * ms + 1_000
    for step in range(4):
        at = step * step_us
        loaded = at + 1_000 * ms
        capture.range(f"step_{step}", at, at + step_us)
        batch = {"kind": "Host-to-Device", "src_kind": "Pageable", "dst_kind": "Device"}
        capture.copy((loaded, loaded + 50), (loaded + 20, loaded + 60), size=size, **batch)
        for number in range(4):
            start = loaded + 100 + 100 * number
            capture.launch((start, start + 5), (start + 10, start + 100), f"kernel_{number}")
    return capture


@pytest.mark.parametrize("wait", ["clock_nanosleep", "epoll_wait"])
def test_who_sleeps_before_each_batch_loads_nothing(wait: str) -> None:
    capture = before_batches()
    for step in range(4):
        capture.event("os_calls", wait, 9_000 * step + 20, 9_000 * step + 7_900)
    assert RULE.check(capture.timeline()) is CLEAN


def test_a_loader_without_workers_and_without_a_name() -> None:
    timeline = before_batches().timeline()
    verdict = match_of(RULE, timeline)
    assert verdict.title.startswith("Data loading (before H2D copies) stalls the GPU 8.")
    assert verdict.confidence is Confidence.MEDIUM
    assert "num_workers" in verdict.fix
    assert "num_workers" in verdict.code
    assert saved_us(verdict, timeline) == pytest.approx(8_000, rel=0.1)


def test_a_rare_wait_for_workers() -> None:
    """One step of twelve waits 50 ms for a batch, as when an epoch begins and workers start."""
    capture, at = Capture("torch-json"), 0.0
    for step in range(12):
        begun = at
        at += 50_000 if step == 6 else 20
        if step == 6:
            capture.event("os_calls", "sem_clockwait", begun + 10, at - 10)
        batch = {"kind": "Host-to-Device", "src_kind": "Pinned", "dst_kind": "Device"}
        capture.copy((at, at + 50), (at + 20, at + 60), size=600_000, **batch)
        for number in range(4):
            start = at + 100 + 100 * number
            capture.launch((start, start + 5), (start + 10, start + 100), f"kernel_{number}")
        at += 520
        capture.range(f"step_{step}", begun, at)
    verdict = match_of(RULE, capture.timeline())
    assert "waits for batches in `sem_clockwait`" in verdict.fix
    assert "persistent_workers" in verdict.fix
    assert verdict.fix.endswith("Few stalls dominate: the longest takes 50.0 ms.")


def test_work_before_a_scalar_is_no_batch() -> None:
    assert RULE.check(before_batches(size=4).timeline()) is CLEAN


def test_a_step_that_only_has_its_own_name_is_not_named() -> None:
    capture = Capture()
    for step in range(4):
        at = step * 1_000
        capture.event("os_calls", "read", at + 50, at + 850)
        capture.launch((at + 900, at + 910), (at + 912, at + 990))
        capture.range(f"step_{step}", at, at + 995)
    assert all("step" not in w.name for w in match_of(RULE, capture.timeline()).where)


def test_without_calls_it_cannot_be_judged() -> None:
    kernels = [{"start_ns": 1_000 * i, "end_ns": 1_000 * i + 500, "name": "k"} for i in range(9)]
    verdict = RULE.check(judged(kernels=kernels))
    assert isinstance(verdict, RuleNotApplicable)
    assert "no API calls" in verdict.reason


@needs_shared
@pytest.mark.parametrize(
    ("capture", "place"),
    [
        ("nsys/dataload.sqlite", "data"),
        ("nsys_rep/dataload.nsys-rep", "data"),
        ("torch/dataload.json.gz", "sleep in sick.py(10): step"),
    ],
)
def test_dataload(capture: str, place: str) -> None:
    timeline = opened(capture)
    verdict = match_of(RULE, timeline)
    assert verdict.where[0].name == place
    # A sleep is not data loading for sure, unless a range says so.
    assert (verdict.confidence is Confidence.HIGH) == (place == "data")
    assert verdict.title.startswith("Data loading or another wait (`sleep`)") == (place != "data")
    assert saved_us(verdict, timeline) == pytest.approx(10_110, rel=0.01)


@needs_shared
@pytest.mark.parametrize("capture", ["healthy", "tiny", "conv", "gpt_small_train", "graph"])
def test_others_do_not_wait_for_input(capture: str) -> None:
    assert RULE.check(opened(f"nsys/{capture}.sqlite")) is CLEAN


@pytest.mark.parametrize(("lock", "saved"), [("pthread_cond_wait", 800), ("", 0)])
def test_a_thread_that_waits_for_the_loading_thread_waits_no_longer(lock: str, saved: int) -> None:
    """Another thread loads and copies a batch; the main thread waits for it, or works."""
    capture, loader = Capture(), {"thread": MAIN + 1}
    for step in range(4):
        at = step * 1_000
        capture.range(f"step_{step}", at, at + 1_000)
        capture.range("load batch", at, at + 800, **loader)
        correlation = capture.call("cudaMemcpyAsync", at + 800, at + 805, **loader)
        kinds = {"kind": "Host-to-Device", "src_kind": "Pinned", "dst_kind": "Device"}
        times = {"start_ns": (at + 810) * US, "end_ns": (at + 850) * US, "bytes": 1 << 20}
        capture.tables["copies"].append({"correlation": correlation, **times, **kinds})
        if lock:
            capture.event("os_calls", lock, at + 1, at + 860)
        capture.launch((at + 870, at + 880), (at + 885, at + 985))
    timeline = capture.timeline()
    verdict = match_of(RULE, timeline)
    assert evidence(verdict)["idle_input_ns"] == pytest.approx(800_000, rel=0.05)
    assert saved_us(verdict, timeline) == pytest.approx(saved, rel=0.05, abs=20)
