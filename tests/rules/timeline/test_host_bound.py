"""host-bound: what no other finding explains, and what the host does meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gpusight.rules.engine import run_timeline_rules
from gpusight.rules.registry import timeline_rules
from gpusight.rules.rule import CLEAN, RuleMatch
from gpusight.rules.timeline.host_bound import HostBound
from tests.rules.timeline.rule_captures import (
    MAIN,
    Capture,
    evidence,
    judged,
    match_of,
    opened,
    saved_us,
)
from tests.shared import needs_shared

if TYPE_CHECKING:
    from gpusight.analysis.replay.simulation import ReplayProgram

RULE = HostBound()


def waiting(*, idle_us: float, source: str = "nsys-sqlite") -> Capture:
    """Four steps: three kernels of 100 us, then nothing for `idle_us`."""
    capture, at = Capture(source), 0.0
    for step in range(4):
        capture.range(f"step_{step}", at, at + 310 + idle_us)
        for number in range(3):
            start = at + idle_us + 100 * number
            capture.launch((start, start + 5), (start + 7, start + 106), f"kernel_{number}")
        at += 310 + idle_us
    return capture


@pytest.mark.parametrize(
    ("table", "name", "title"),
    [
        ("ranges", "gloo:all_reduce", "Host waits (`gloo:all_reduce`)"),
        ("os_calls", "clock_nanosleep", "Host waits (`clock_nanosleep`)"),
        ("ranges", "solve on CPU", "Python/framework time (`solve on CPU`)"),
        ("api_calls", "cuModuleLoadData", "CUDA setup calls (`cuModuleLoadData`)"),
        ("api_calls", "cudaMalloc", "Memory allocation on the host (`cudaMalloc`)"),
        (None, "", "Host code (no CUDA calls)"),
    ],
)
def test_what_the_host_does_is_named(table: str | None, name: str, title: str) -> None:
    capture = waiting(idle_us=2_000)
    for step in range(4):
        if table is not None:
            at = step * 2_310
            capture.event(table, name, at + 100, at + 1_990)
    timeline = capture.timeline()
    verdict = match_of(RULE, timeline)
    assert verdict.title == f"{title}: GPU idle 2.01 ms/step"
    assert evidence(verdict)["idle_ns"] == pytest.approx(2_010_000, rel=0.01)
    assert saved_us(verdict, timeline) == pytest.approx(1_950, rel=0.1)
    assert "`kernel_0`" in verdict.fix
    assert verdict.measured_ns == pytest.approx(4 * 2_010_000, rel=0.01)


@pytest.mark.parametrize(
    ("table", "name", "to_paste"),
    [
        ("ranges", "gloo:all_reduce", 'init_process_group("nccl")'),
        ("ranges", "solve on CPU", "executor.submit(host_work, batch)"),
        ("api_calls", "cudaMalloc", "once, before the loop"),
        ("cpu_ops", "aten::add", "torch.compile(model)"),
        (None, "", "executor.submit(host_work, batch)"),
    ],
)
def test_code_acts_on_what_the_host_does(table: str | None, name: str, to_paste: str) -> None:
    capture = waiting(idle_us=2_000, source="torch-json")
    for step in range(4 if table is not None else 0):
        capture.event(str(table), name, step * 2_310 + 100, step * 2_310 + 1_990)
    change, verification = match_of(RULE, capture.timeline()).code.split("# to verify")
    assert to_paste in change
    assert "nvtx.range" in verification


def test_host_work_before_an_h2d_copy_goes_to_workers() -> None:
    capture, at = Capture("torch-json"), 0.0
    for step in range(4):
        capture.range(f"step_{step}", at, at + 2_300)
        capture.copy((at + 2_000, at + 2_005), (at + 2_007, at + 2_020), kind="Host-to-Device")
        capture.launch((at + 2_030, at + 2_035), (at + 2_040, at + 2_290), "kernel")
        at += 2_300
    assert "DataLoader(dataset, num_workers=8" in match_of(RULE, capture.timeline()).code


def test_a_busy_gpu_is_clean() -> None:
    assert RULE.check(waiting(idle_us=5).timeline()) is CLEAN


@pytest.mark.parametrize(
    ("source", "advice"),
    [("nsys-sqlite", "NVTX ranges"), ("torch-json", "gpusight record")],
)
def test_how_to_learn_more_where_nothing_has_a_name(source: str, advice: str) -> None:
    assert advice in match_of(RULE, waiting(idle_us=2_000, source=source).timeline()).fix


def test_names_that_cover_the_time_need_no_other_capture() -> None:
    capture = waiting(idle_us=2_000, source="torch-json")
    for step in range(4):
        capture.range("solve on CPU", step * 2_310 + 10, step * 2_310 + 1_990)
    assert "gpusight record" not in match_of(RULE, capture.timeline()).fix


def test_samples_of_the_launching_thread_name_functions() -> None:
    capture = waiting(idle_us=2_000)
    times = [step * 2_310_000 + at for step in range(4) for at in (500_000, 1_000_000, 1_500_000)]
    samples = [{"time_ns": t, "thread": MAIN, "callchain": n} for n, t in enumerate(times)]
    frames: list[dict[str, Any]] = [
        {"source": "cpu_samples", "callchain": n, "depth": depth, "symbol": symbol}
        for n in range(len(times))
        for depth, symbol in enumerate(("assemble_matrix", "main"))
    ]
    timeline = judged(
        {"source": "nsys-sqlite"}, cpu_samples=samples, callchains=frames, **capture.tables
    )
    verdict = match_of(RULE, timeline)
    assert ("site", "assemble_matrix", 12) in [(w.kind, w.name, w.count) for w in verdict.where]
    assert "`assemble_matrix`" in verdict.title


def test_what_other_findings_explain_is_not_repeated() -> None:
    capture = waiting(idle_us=2_000)
    for step in range(4):
        capture.range("load batch", step * 2_310 + 10, step * 2_310 + 1_990)
    timeline = capture.timeline()
    loading = timeline_rules()["input-starved"]
    match = match_of(loading, timeline)
    assert RULE.check_rest(timeline, [match]) is CLEAN
    assert isinstance(RULE.check(timeline), RuleMatch)
    results = run_timeline_rules(timeline, [loading, RULE])
    assert [f.rule for f in results.findings] == ["input-starved"]
    assert "host-bound" in results.clean


def test_without_calls_the_idle_time_is_still_told() -> None:
    kernels = [{"start_ns": 1_000 * i, "end_ns": 1_000 * i + 300, "name": "k"} for i in range(9)]
    timeline = judged(kernels=kernels)
    (finding,) = run_timeline_rules(timeline, [RULE]).findings
    assert finding.title.startswith("Unknown launching thread: GPU idle ")
    assert finding.recoverable_ns is None
    assert "gpusight record" in finding.fix


def test_a_thread_that_waits_is_named_rather_than_its_lock() -> None:
    capture = waiting(idle_us=2_000)
    for step in range(4):
        capture.event("os_calls", "pthread_cond_wait", step * 2_310 + 10, step * 2_310 + 1_990)
    threads = [{"thread": MAIN, "name": "pt_gloo_runloop"}]
    timeline = judged({"source": "nsys-sqlite"}, threads=threads, **capture.tables)
    verdict = match_of(RULE, timeline)
    assert verdict.title.startswith("Host waits (`pt_gloo_runloop`): GPU idle ")
    assert "`pthread_cond_wait`" in verdict.fix
    assert "The thread `pt_gloo_runloop` then launches the next" in verdict.fix


@pytest.mark.parametrize(
    ("call", "thread", "named"),
    [
        ("pthread_cond_wait", "python3", "pthread_cond_wait"),
        ("pthread_cond_wait", "loader", "loader"),
        ("clock_nanosleep", "loader", "clock_nanosleep"),
    ],
)
def test_the_name_of_the_program_says_less_than_the_call(
    call: str, thread: str, named: str
) -> None:
    capture = waiting(idle_us=2_000)
    for step in range(4):
        capture.event("os_calls", call, step * 2_310 + 10, step * 2_310 + 1_990)
    timeline = judged(
        {"source": "nsys-sqlite"},
        threads=[{"thread": MAIN, "name": thread}],
        processes=[{"name": "/usr/bin/python3.11"}],
        **capture.tables,
    )
    assert match_of(RULE, timeline).title.startswith(f"Host waits (`{named}`): GPU idle ")


def test_causes_are_those_measured_where_the_other_fixes_only_move_the_idle_time() -> None:
    """Without its own code, the host spends the same time in launch calls."""
    timeline = waiting(idle_us=2_000).timeline()

    def in_launches(program: ReplayProgram) -> ReplayProgram:
        return replace(program, own_ns=program.own_ns + program.gap_ns, gap_ns=0 * program.gap_ns)

    moving = replace(match_of(RULE, timeline), change=(in_launches,), measured_ns=None)
    verdict = RULE.check_rest(timeline, [moving])
    assert isinstance(verdict, RuleMatch)
    assert verdict.title.startswith("Host code (no CUDA calls): GPU idle ")


@pytest.mark.parametrize(("left", "begins"), [(0.9, "Host code"), (0.6, "Other host code")])
def test_what_another_finding_has_a_part_of_is_called_other(left: float, begins: str) -> None:
    timeline = waiting(idle_us=2_000).timeline()

    def shorter(program: ReplayProgram) -> ReplayProgram:
        return replace(program, gap_ns=(left * program.gap_ns).astype(int))

    fixed = replace(match_of(RULE, timeline), change=(shorter,), measured_ns=None)
    verdict = RULE.check_rest(timeline, [fixed])
    assert isinstance(verdict, RuleMatch)
    assert verdict.title.startswith(f"{begins} (no CUDA calls): GPU idle ")


def test_a_short_call_does_not_name_the_idle_time() -> None:
    """Of 2 ms in which the host runs code with no CUDA call, 100 us are in a call."""
    capture = waiting(idle_us=2_000)
    for step in range(4):
        capture.event("os_calls", "writev", step * 2_310 + 10, step * 2_310 + 110)
    verdict = match_of(RULE, capture.timeline())
    assert verdict.title.startswith("Host code (no CUDA calls): GPU idle ")
    assert "writev" not in verdict.fix


def test_the_end_of_the_program_is_no_cause_of_the_rest() -> None:
    """1.5 ms of slow launches between kernels, then 4 ms in which nothing runs any more."""
    capture = Capture()
    for number in range(10):
        at = 250 * number
        capture.launch((at, at + 150), (at + 155, at + 245), f"kernel_{number}")
    capture.call("cudaGetLastError", 6_490, 6_500)
    timeline = capture.timeline()
    results = run_timeline_rules(timeline, [timeline_rules()["startup-bound"], RULE])
    ending, rest = results.findings
    assert ending.title.startswith("Program end: 4.00 ms of 6.5")
    assert rest.title == "Host time in launch calls (`cudaLaunchKernel`): GPU idle 1.59 ms"
    assert "no CUDA call" not in rest.fix


def test_what_runs_first_may_wait_for_work_from_before_the_capture() -> None:
    capture = Capture("torch-json")
    capture.range("ProfilerStep#7", 0, 3_000)
    for number in range(8):
        call = 10 * number, 10 * number + 5
        capture.launch(call, (2_000 + 100 * number, 2_099 + 100 * number), f"kernel_{number}")
    verdict = match_of(RULE, capture.timeline())
    assert verdict.title.startswith("Launched work starts late")
    assert "before the first GPU activity of the capture" in verdict.fix
    assert "schedule(" in verdict.code
    assert "compile" not in verdict.code
    capture.launch((0, 5), (1, 50), "kernel_9")
    assert "before the first GPU" not in match_of(RULE, capture.timeline()).fix


def test_work_that_starts_late_gets_no_advice_about_the_host() -> None:
    capture = Capture()
    for number in range(8):
        call = 10 * number, 10 * number + 5
        capture.launch(call, (20 + 100 * number, 60 + 100 * number), f"kernel_{number}")
    verdict = match_of(RULE, capture.timeline())
    assert verdict.title.startswith("Launched work starts late")
    assert "Between two kernels" in verdict.why
    assert "CUDA graphs and fused kernels" in verdict.fix
    assert "cudaStreamBeginCapture" in verdict.code
    for absent in ("host_work", "cudaLaunchKernel", "The thread"):
        assert absent not in f"{verdict.fix} {verdict.code}"


@pytest.mark.parametrize("gpus", [2, 1])
def test_stages_of_a_pipeline_wait_for_each_other(gpus: int) -> None:
    """A step has 1.1 ms on the first GPU, then 0.9 ms on the next one; all is launched at once."""
    capture = Capture()
    for step in range(6):
        at = step * 2_100.0
        capture.range(f"step_{step}", at, at + 2_100)
        capture.launch((at, at + 5), (at + 7, at + 20), "gather", device=0)
        capture.launch((at + 6, at + 11), (at + 950, at + 2_050), "stage_0", device=0)
        if gpus > 1:
            capture.launch((at + 12, at + 17), (at + 30, at + 940), "stage_1", device=1)
        capture.call("cudaDeviceSynchronize", at + 20, at + 2_080)
    capture.tables["devices"] = [{"device": number} for number in range(gpus)]
    match = match_of(RULE, capture.timeline())
    assert match.title.startswith("Launched work starts late")
    assert ("micro-batches" in match.fix) is (gpus > 1)


def test_most_of_little_idle_time_is_told_too() -> None:
    """Of 12% idle time, another finding explains a third: less than 10% of the time is left."""
    capture = waiting(idle_us=40)
    timeline = capture.timeline()
    assert isinstance(RULE.check(timeline), RuleMatch)
    a_third = replace(match_of(RULE, timeline), change=(), measured_ns=timeline.length_ns * 0.06)
    assert isinstance(RULE.check_rest(timeline, [a_third]), RuleMatch)
    most = replace(a_third, measured_ns=timeline.length_ns * 0.12)
    assert RULE.check_rest(timeline, [most]) is CLEAN


def test_page_faults_are_counted() -> None:
    capture = waiting(idle_us=2_000)
    faults = [{"start_ns": 50_000 + n, "end_ns": 50_001 + n, "side": "cpu"} for n in range(6)]
    timeline = judged({"source": "nsys-sqlite"}, page_faults=faults, **capture.tables)
    assert evidence(match_of(RULE, timeline))["page_faults"] == 6 / 4


@pytest.mark.parametrize("idle_us", [60, 500, 20_000])
def test_an_idle_gpu_never_goes_without_a_finding(idle_us: float) -> None:
    timeline = waiting(idle_us=idle_us).timeline()
    results = run_timeline_rules(timeline, timeline_rules().values())
    fixes = [finding for finding in results.findings if finding.is_fix]
    explained = max(finding.share or 0.0 for finding in fixes)
    assert explained > 0.5 * idle_us / (310 + idle_us)


@needs_shared
@pytest.mark.parametrize(
    ("capture", "name"),
    [("ddp_torch_2.rank0.trace.json.gz", "gloo:all_reduce"), ("ddp_nsys_2.nsys-rep", "pt_gloo")],
)
def test_a_rank_that_waits_for_another(capture: str, name: str) -> None:
    timeline = opened(f"ranks/{capture}")
    assert timeline_rules()["input-starved"].check(timeline) is CLEAN
    verdict = match_of(RULE, timeline)
    assert f"Host waits (`{name}" in verdict.title
    assert "straggler" in verdict.fix
