"""between-steps: what the host does from one step to the next."""

from __future__ import annotations

import pytest

from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.between_steps import BetweenSteps
from tests.rules.timeline.rule_captures import Capture, evidence, judged, match_of, opened, saved_us
from tests.shared import needs_shared

RULE = BetweenSteps()


def loop(
    between_us: float, name: str | None = "log metrics", source: str = "nsys-sqlite"
) -> Capture:
    """Five steps of 200 us with a kernel of 150 us, and something in between."""
    capture, at = Capture(source), 0.0
    for step in range(5):
        capture.range(f"step_{step}", at, at + 200)
        capture.launch((at + 10, at + 15), (at + 17, at + 167))
        capture.call("cudaDeviceSynchronize", at + 20, at + 170)
        if name:
            capture.range(name, at + 200, at + 200 + between_us)
        at += 200 + between_us
    return capture


def test_work_between_steps() -> None:
    timeline = loop(100).timeline()
    verdict = match_of(RULE, timeline)
    # Four gaps between five steps.
    assert evidence(verdict) == {
        "idle_ns": 4 * 100_000 / 5,
        "between_ns": 4 * 100_000 / 5,
        "host_ns": 4 * 100_000 / 5,
        "longest_ns": 100_000,
    }
    assert [(w.kind, w.name, w.ns, w.count) for w in verdict.where] == [
        ("range", "log metrics", 400_000, 4)
    ]
    assert saved_us(verdict, timeline) == 80
    assert "`log metrics`" in verdict.fix


def test_one_long_gap_is_told() -> None:
    capture = loop(30)
    capture.range("step_5", 1_500, 1_700)
    capture.launch((1_510, 1_515), (1_517, 1_667))
    capture.range("save checkpoint", 1_120, 1_490)
    verdict = match_of(RULE, capture.timeline())
    assert verdict.where[0].name == "save checkpoint"
    assert evidence(verdict)["longest_ns"] == 380_000


@pytest.mark.parametrize(
    ("between_us", "name"),
    [
        pytest.param(0, None, id="nothing"),
        pytest.param(15, None, id="the loop itself"),
        pytest.param(500, "load batch", id="input has a rule of its own"),
    ],
)
def test_clean(between_us: float, name: str | None) -> None:
    assert RULE.check(loop(between_us, name).timeline()) is CLEAN


def test_the_profiler_counting_steps_is_not_the_program() -> None:
    capture = loop(100, None, source="torch-json")
    for step in range(5):
        at = step * 300 + 200
        capture.event("python_calls", "torch/profiler/profiler.py(884): step", at + 1, at + 99)
    assert RULE.check(capture.timeline()) is CLEAN


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_follows_the_last_gpu_work_delays_none(*, goes_on: bool) -> None:
    """The program waits for the GPU, then the profiler does, much later."""
    capture = Capture("torch-json")
    for step in range(30):
        at = step * 500.0
        capture.range(f"step_{step}", at, at + (500 if step < 29 else 8_500))
        capture.launch((at, at + 5), (at + 7, at + 490))
    capture.call("cudaDeviceSynchronize", at + 20, at + 495)
    capture.call("cudaDeviceSynchronize", at + 8_480, at + 8_490)
    if goes_on:  # the step that the stall delays comes after the window
        capture.launch((at + 9_000, at + 9_005), (at + 9_007, at + 9_490))
    verdict = RULE.check(capture.timeline())
    assert (verdict is CLEAN) is not goes_on


def profiled(between_us: float, stall_us: float = 0.0) -> Capture:
    """Five steps of large GEMMs that end with a sync; torch.profiler marks them."""
    capture, at = Capture("torch-json"), 0.0
    for step in range(5):
        gpu = at + stall_us + 20
        for number in range(4):
            call = at + stall_us + 10 + 10 * number
            capture.launch((call, call + 5), (gpu, gpu + 1_000), "ampere_sgemm_128x128_nn")
            gpu += 1_001
        capture.call("cudaDeviceSynchronize", at + stall_us + 60, gpu + 5)
        capture.range(f"ProfilerStep#{step}", at, gpu + 10)
        at = gpu + 10 + between_us
    return capture


@pytest.mark.parametrize("between_us", [100, 400, 2_000])
def test_time_between_the_steps_that_the_profiler_marks_is_its_own(between_us: float) -> None:
    assert RULE.check(profiled(between_us).timeline()) is CLEAN


def test_stalls_inside_the_steps_that_the_profiler_marks_count() -> None:
    verdict = match_of(RULE, profiled(400, stall_us=3_000).timeline())
    assert evidence(verdict)["between_ns"] == 0
    assert evidence(verdict)["idle_ns"] == pytest.approx(3_000_000, rel=0.25)


def kernels_in_a_row(pause_us: float) -> Capture:
    """Eight times the same four kernels, no ranges; the host pauses before each third one."""
    capture, at = Capture(), 0.0
    for _ in range(8):
        for number in range(4):
            at += pause_us if number == 2 else 0
            capture.launch((at, at + 5), (at + 7, at + 40), f"kernel_{number}")
            at += 50
    return capture


def test_a_long_stretch_inside_steps_counts_as_well() -> None:
    timeline = kernels_in_a_row(2_000).timeline()
    verdict = match_of(RULE, timeline)
    assert verdict.title.startswith("Long host stalls inside steps: GPU idle 2.0")
    assert evidence(verdict)["between_ns"] == 0
    assert saved_us(verdict, timeline) == pytest.approx(2_000, rel=0.05)
    assert RULE.check(kernels_in_a_row(900).timeline()) is CLEAN


def test_a_hiccup_in_one_step_is_no_finding() -> None:
    """One stretch of 1.5 ms in eight steps of 4 ms; one of 3 ms tells."""
    for pause_us, tells in ((1_500, False), (3_000, True)):
        capture = Capture()
        for step in range(8):
            capture.range(f"step_{step}", step * 4_000, step * 4_000 + 4_000)
            for number in range(40):
                at = step * 4_000 + number * 100
                if step == 4 and 5 <= number < 5 + pause_us / 100:
                    continue
                capture.launch((at, at + 5), (at + 7, at + 95))
        assert (RULE.check(capture.timeline()) is not CLEAN) == tells


def reading(kernel_us: float, host_us: float) -> Capture:
    """Steps of twelve kernels whose result is read back at their end, for the host to work on."""
    capture, at = Capture(), 0.0
    for step in range(6):
        for number in range(12):
            begins = at + 7 + number * kernel_us
            capture.launch((at + number * 8, at + 5 + number * 8), (begins, begins + kernel_us - 1))
        done = at + 7 + 12 * kernel_us
        capture.copy((at + 100, done + 5), (done + 1, done + 3))
        capture.range(f"step_{step}", at, done + 5 + host_us)
        at = done + 5 + host_us
    return capture


@pytest.mark.parametrize(
    ("kernel_us", "host_us", "reported"),
    [
        pytest.param(300, 2_000, False, id="hidden once nobody waits: that is host-sync"),
        pytest.param(20, 2_000, True, id="longer than the GPU works: it costs by itself"),
    ],
)
def test_work_on_what_was_read_back(kernel_us: float, host_us: float, *, reported: bool) -> None:
    assert (RULE.check(reading(kernel_us, host_us).timeline()) is not CLEAN) == reported


@pytest.mark.parametrize(
    ("kind", "saved"),
    [
        pytest.param("Device-to-Host", 900, id="read for that work: it goes with it"),
        pytest.param("Host-to-Device", 700, id="the next step needs it"),
    ],
)
def test_copies_between_steps(kind: str, saved: float) -> None:
    """200 us for a copy that blocks, then 700 us of the host, after each of five steps."""
    capture = Capture()
    for step in range(5):
        at = step * 1_100
        capture.range(f"step_{step}", at, at + 200)
        capture.launch((at + 10, at + 15), (at + 17, at + 167))
        capture.call("cudaDeviceSynchronize", at + 20, at + 170)
        capture.copy((at + 200, at + 400), (at + 205, at + 398), kind=kind, size=1_000)
    timeline = capture.timeline()
    verdict = match_of(RULE, timeline)
    # Four times in five steps.
    assert saved_us(verdict, timeline) == pytest.approx(saved * 4 / 5, rel=0.15)
    assert ("copies" in evidence(verdict)) == (kind == "Device-to-Host")


@pytest.mark.parametrize(
    ("places", "reported"),
    [
        pytest.param((20, 20, 20, 20, 20, 20), True, id="the same place in each step"),
        pytest.param((5, 12, 20, 27, 33, 38), False, id="another place each time: hiccups"),
        pytest.param((20, 12, 20, 27, 20, 38), True, id="the same in half of them"),
    ],
)
def test_stretches_inside_steps(places: tuple[int, ...], *, reported: bool) -> None:
    """Six steps of 40 kernels, 100 us apart; the host pauses for 2.5 ms once in each."""
    capture, at = Capture(), 0.0
    for step, place in enumerate(places):
        begun = at
        for number in range(40):
            at += 2_500 if number == place else 0
            capture.launch((at, at + 5), (at + 7, at + 95), f"kernel_{number}")
            at += 100
        capture.range(f"step_{step}", begun, at)
    assert (RULE.check(capture.timeline()) is not CLEAN) == reported


@pytest.mark.parametrize(
    ("name", "reported"),
    [("optimizer.step", False), ("AdamW", False), ("postprocess", True), ("forward", True)],
)
def test_an_optimizer_on_its_way_to_a_launch(name: str, *, reported: bool) -> None:
    """2 ms without a call in the same range in each step of 6 ms."""
    capture = Capture()
    for step in range(5):
        at = step * 6_000
        capture.range(f"step_{step}", at, at + 6_000)
        capture.range(name, at + 3_900, at + 5_990)
        for number in range(40):
            start = at + 100 * number if number < 39 else at + 5_900
            capture.launch((start, start + 5), (start + 7, start + 90), f"kernel_{number}")
    assert (RULE.check(capture.timeline()) is not CLEAN) == reported


def test_ranges_around_a_part_of_each_step_say_nothing_of_the_rest() -> None:
    """Half of the launches come after the range: that is no time between steps."""
    capture = Capture()
    for step in range(5):
        at = step * 400
        capture.range(f"step_{step}", at, at + 200)
        capture.launch((at + 10, at + 15), (at + 17, at + 167))
        capture.launch((at + 310, at + 315), (at + 317, at + 367))
    assert RULE.check(capture.timeline()) is CLEAN


def test_one_step_cannot_be_judged() -> None:
    assert isinstance(RULE.check(judged(kernels=[{"end_ns": 10, "name": "k"}])), RuleNotApplicable)
    capture = Capture("torch-json")
    capture.range("ProfilerStep#3", 0, 300)
    capture.launch((10, 15), (17, 290))
    assert isinstance(RULE.check(capture.timeline()), RuleNotApplicable)


@needs_shared
@pytest.mark.parametrize(
    "capture",
    ["nsys/healthy.sqlite", "nsys/graph.sqlite", "torch/healthy.json.gz", "torch/item.json.gz"],
)
def test_clean_captures(capture: str) -> None:
    assert RULE.check(opened(capture)) is CLEAN


def test_the_snippet_fits_what_the_host_does() -> None:
    logging = match_of(RULE, loop(100, source="torch-json").timeline())
    unnamed = match_of(RULE, loop(100, None, source="torch-json").timeline())
    assert "write_log" in logging.code
    assert "write_log" not in unnamed.code
    assert "NVTX ranges" in unnamed.fix


def test_work_before_a_copy_to_the_gpu_loads_data() -> None:
    capture = loop(100, None, source="torch-json")
    for step in range(1, 5):
        at = step * 300
        capture.copy((at + 1, at + 3), (at + 4, at + 6), kind="Host-to-Device", src_kind="Pinned")
        capture.tables["ranges"][step]["start_ns"] += 4_000
    verdict = match_of(RULE, capture.timeline())
    assert "An H2D copy follows this work" in verdict.fix
    assert "DataLoader" in verdict.code
    assert "write_log" not in verdict.code


def readback(stall_us: float, size: int) -> Capture:
    """Five steps: a kernel, its results copied to the host, and something the host does then."""
    capture = Capture()
    for step in range(5):
        at = step * (1_000 + stall_us)
        capture.launch((at, at + 5), (at + 10, at + 400))
        capture.copy((at + 10, at + 990), (at + 400, at + 980), size=size)
        for call in range(10):  # next to the same copy
            capture.call("cudaFree", at + 1_000 + 3 * call, at + 1_001 + 3 * call)
        capture.event("os_calls", "putc", at + 1_000 + stall_us / 2, at + 1_005 + stall_us / 2)
    return capture


@pytest.mark.parametrize(
    ("size", "text", "code"),
    [
        pytest.param(80_000_000, "freeing the host buffer", "cudaMallocHost", id="13 GB/s"),
        pytest.param(8_000_000, "copy of 8.000 MB, so that it probably works", "on_gpu", id="1.3"),
    ],
)
def test_work_after_a_large_readback(size: int, text: str, code: str) -> None:
    verdict = match_of(RULE, readback(6_000, size).timeline())
    assert text in verdict.fix
    assert code in verdict.code
    assert "putc" not in verdict.fix  # 5 µs in the middle of it


def test_many_short_calls_name_their_part() -> None:
    capture = readback(6_000, 8_000_000)
    for step in range(5):
        for call in range(100):
            at = step * 7_000 + 1_100 + 55 * call
            capture.event("os_calls", "fputs", at, at + 20)
    verdict = match_of(RULE, capture.timeline())
    assert "Part of it is in `fputs`, the rest has no name. It follows a D2H copy" in verdict.fix
    # Nothing is launched after the last step, so that its stall is not known.
    assert [(w.kind, w.name, w.count) for w in verdict.where] == [("call", "fputs", 400)]


@pytest.mark.parametrize(
    ("table", "name", "between_us", "text"),
    [
        pytest.param("ranges", "save", 900, "No range or operator names", id="little of it"),
        pytest.param("ranges", "save", 6_000, "Part of it is in `save`, the rest", id="a part"),
        pytest.param("ranges", "save", 30_000, "The host runs `save`.", id="most of it"),
        pytest.param("os_calls", "pthread_cond_wait", 30_000, "No range or operator", id="a wait"),
    ],
)
def test_a_name_stands_for_the_work_that_it_covers(
    table: str, name: str, between_us: float, text: str
) -> None:
    """Each step stalls for 15 ms in work without a name; what is between steps has one."""
    capture = Capture()
    for step in range(5):
        at = step * (15_500 + between_us)
        capture.range(f"step_{step}", at, at + 15_500)
        capture.launch((at + 10, at + 15), (at + 20, at + 100), "first")
        capture.launch((at + 15_100, at + 15_105), (at + 15_110, at + 15_400), "second")
        capture.event(table, name, at + 15_501, at + 15_499 + between_us)
    verdict = match_of(RULE, capture.timeline())
    assert text in verdict.fix
    assert "idle/host" in verdict.verify


def test_the_gpu_does_not_wait_for_the_host_once_work_is_launched() -> None:
    """The second kernel of each step is launched early, and starts late for another reason."""
    capture = Capture()
    for step in range(6):
        at = step * 3_000
        capture.range(f"step_{step}", at, at + 3_000)
        capture.launch((at, at + 5), (at + 10, at + 100), "first")
        capture.launch((at + 10, at + 15), (at + 2_400, at + 2_900), "second")
        capture.launch((at + 2_600, at + 2_605), (at + 2_905, at + 2_990), "third")
    assert RULE.check(capture.timeline()) is CLEAN


@needs_shared
def test_work_next_to_a_large_readback_is_for_its_buffer() -> None:
    verdict = match_of(RULE, opened("nsys/pageable.sqlite"))
    assert "Allocate one pinned buffer before the loop" in verdict.fix
    assert verdict.code.startswith("host = torch.empty_like")
    assert "gap between steps" not in verdict.verify
