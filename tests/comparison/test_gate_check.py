"""Whether captures hold their limits, on digests written by hand and on real captures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpusight.comparison.digest import Digest, DigestFinding
from gpusight.comparison.gate_check import CheckStatus, Doubt, Gate, GateCheck, gate
from gpusight.comparison.gate_limits import read_limit
from gpusight.comparison.significance import Basis
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from tests.comparison import digests

if TYPE_CHECKING:
    from collections.abc import Sequence

MS = 1e6
GB = 10**9


def digest(steps_ms: Sequence[float], label: str = "run", **changed: Any) -> Digest:
    """Steps that compute in one kernel, `gemm`, for half of their time and idle for the other."""
    half = [ms / 2 for ms in steps_ms]
    made = digests.digest({"compute/matmul": half, "idle/launching": half}, label)
    gemm = msgspec.structs.replace(made.kernels[0], name="gemm", short="gemm")
    fields: dict[str, Any] = {"kernels": (gemm,), "memory_peak": {"0": 8 * GB}, "gpus": ("H200",)}
    return msgspec.structs.replace(
        made, **{**fields, "missing": {"phases": "no phases are known"}, **changed}
    )


def runs(*means_ms: float, **changed: Any) -> list[Digest]:
    """Give a capture of three nearly equal steps for each mean."""
    return [
        digest((0.999 * ms, ms, 1.001 * ms), f"run_{number}", **changed)
        for number, ms in enumerate(means_ms)
    ]


def judged(before: list[Digest], after: list[Digest], *limits: str, **options: Any) -> Gate:
    gate_result = gate(before, after, [read_limit(text) for text in limits], **options)
    assert isinstance(gate_result, Gate)
    return gate_result


def checked(before: list[Digest], after: list[Digest], limit: str, **options: Any) -> GateCheck:
    (check,) = judged(before, after, limit, **options).checks
    return check


BASE = (10.0, 10.1, 9.9)
NOISY = (8.0, 10.0, 12.0)


def test_input_that_is_loaded_between_steps_is_part_of_the_step() -> None:
    # Neither moving time from the steps to the gaps nor longer gaps passes a limit on step time.
    quick, slow = (
        [digests.steady(compute_matmul=ms, idle_input=gap, between=gap) for ms in BASE]
        for gap in (2.0, 10.0)
    )
    check = checked(quick, slow, "step_time=+5%")
    assert check.status is CheckStatus.FAILED
    assert check.change.after == pytest.approx(20 * MS)
    assert checked(slow, quick, "step_time=+5%").status is CheckStatus.PASSED
    assert checked(quick, slow, "between_steps=+1ms").status is CheckStatus.FAILED
    assert checked(quick, slow, "idle/input=+1ms").status is CheckStatus.FAILED
    assert checked(slow, quick, "idle/input=+1ms").status is CheckStatus.PASSED
    assert checked([], slow, "step_time=15ms").status is CheckStatus.FAILED
    assert checked([], slow, "step_time=25ms").status is CheckStatus.PASSED
    with pytest.raises(UsageError, match="unknown metric 'step_period'"):
        judged(quick, slow, "step_period=+10%")


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        (("A100",), "GPU model: different (H200 vs. A100)"),
        (("H200", "H200"), "number of GPUs: 1 vs. 2"),
        (("H200",), ""),
        (("unknown GPU",), "GPU model: unknown on one side (H200 vs. unknown GPU)"),
    ],
)
def test_nothing_measured_on_other_gpus_passes(gpus: tuple[str, ...], reason: str) -> None:
    before, after = runs(*BASE), runs(9.0, 9.1, 8.9, gpus=gpus)
    limits = ("step_time=+3%", "launches=+0", "memory_peak=+5%", "kernel:gemm=+1ms")
    step, *others, ceiling = judged(before, after, *limits, "step_time=50ms").checks
    expected = CheckStatus.INCONCLUSIVE if reason else CheckStatus.PASSED
    assert [check.status for check in (step, *others)] == [expected] * 4
    assert step.reason == reason
    assert ceiling.status is CheckStatus.PASSED
    for policy, code in ((None, 3), ("fail", 1), ("pass", 0)):
        result = judged(before, after, "step_time=+3%", inconclusive=policy)
        assert (result.outcome, result.exit_code) == (expected, code if reason else 0)
        assert result.passed is (result.exit_code == 0)
    if reason:
        assert step.doubt is Doubt.NOT_COMPARABLE
    worse = checked(before, runs(12.0, 12.1, 11.9, gpus=gpus), "step_time=+3%")
    assert worse.status is CheckStatus.FAILED


def test_a_pattern_that_matches_nothing_is_missing_data() -> None:
    for limit in ("kernel:nope*=+3%", "kernel:nope*=1ms", "range:nope=+1ms"):
        check = checked(runs(*BASE), runs(*BASE), limit)
        assert (check.status, check.doubt) == (CheckStatus.INCONCLUSIVE, Doubt.NOT_RECORDED)
        assert check.reason.startswith("matches nothing in any capture")
        assert (check.change.after, check.low) == (None, None)
        skipped = judged(runs(*BASE), runs(*BASE), limit, "launches=+0", allow_missing=True)
        assert skipped.passed
    check = checked(runs(*BASE), runs(*BASE), "kernel:nope*=+3%")
    assert check.reason == "matches nothing in any capture"  # `gemm` is not similar
    check = checked(runs(*BASE), runs(*BASE), "kernel:gem=+3%")
    assert check.reason.endswith("; similar names: 'gemm'")
    # What is forbidden is not expected to be there.
    forbidden = checked(runs(*BASE), runs(*BASE), "api:nope=0")
    assert forbidden.status is CheckStatus.PASSED
    assert forbidden.reason.startswith("matches nothing in any capture")


def test_copies_of_a_capture_are_no_repeats() -> None:
    capture, other = runs(10.0)[0], runs(11.0)[0]
    copies = [msgspec.structs.replace(capture, label=f"copy_{n}") for n in range(3)]
    result = judged(copies, [other], "step_time=+3%")
    assert result.baseline == ("copy_0",)
    assert result.checks[0].change.basis is Basis.STEPS
    assert "copy_0 and copy_1 are the same capture: counted once" in result.notes
    ceiling = judged([], copies, "step_time=50ms")
    assert "copy_0 and copy_2 are the same capture: counted once" in ceiling.notes


def test_another_part_of_captures_is_refused() -> None:
    part = runs(*BASE, scope="--in forward")
    for before, after in ((part, runs(*BASE)), ([], [*part, *runs(*BASE)])):
        result = gate(before, after, [read_limit("step_time=1s")])
        assert isinstance(result, NotApplicable)
        assert result.hint.startswith("add --in forward")
    assert judged(part, part, "step_time=+3%").passed


@pytest.mark.parametrize(
    ("before", "after", "limit", "status"),
    [
        # Growth of a tenth where runs differ by a hundredth.
        (BASE, (11.0, 11.1, 10.9), "step_time=+3%", CheckStatus.FAILED),
        (BASE, (11.0, 11.1, 10.9), "step_time=+15%", CheckStatus.PASSED),
        (BASE, (11.0, 11.1, 10.9), "step_time=+0.5ms", CheckStatus.FAILED),
        (BASE, (11.0, 11.1, 10.9), "step_time=+2ms", CheckStatus.PASSED),
        (BASE, (11.0, 11.1, 10.9), "compute=+3%", CheckStatus.FAILED),
        (BASE, (11.0, 11.1, 10.9), "launches=+0", CheckStatus.PASSED),
        (BASE, (9.0, 9.1, 8.9), "step_time=+3%", CheckStatus.PASSED),
        # The same growth where runs differ by a fifth.
        (NOISY, (8.8, 11.0, 13.2), "step_time=+3%", CheckStatus.INCONCLUSIVE),
        (NOISY, (8.8, 11.0, 13.2), "step_time=+15%", CheckStatus.PASSED),
        # A ceiling is held by the captures alone.
        (BASE, BASE, "step_time=9ms", CheckStatus.FAILED),
        (BASE, BASE, "step_time=11ms", CheckStatus.PASSED),
        (BASE, NOISY, "step_time=9.9ms", CheckStatus.INCONCLUSIVE),
        # An improvement that is asked for.
        (BASE, (9.0, 9.1, 8.9), "step_time=-5%", CheckStatus.PASSED),
        (BASE, (9.0, 9.1, 8.9), "step_time=-20%", CheckStatus.FAILED),
        (BASE, BASE, "step_time=-5%", CheckStatus.FAILED),
        (BASE, NOISY, "step_time=-5%", CheckStatus.INCONCLUSIVE),
        (BASE, (7.0, 9.0, 11.0), "step_time=-5%", CheckStatus.INCONCLUSIVE),
    ],
)
def test_over_the_limit_and_no_chance(
    before: tuple[float, ...], after: tuple[float, ...], limit: str, status: CheckStatus
) -> None:
    check = checked(runs(*before), runs(*after), limit)
    assert (check.status, check.change.basis) == (status, Basis.REPEATS)
    noise = status is CheckStatus.INCONCLUSIVE
    assert (check.doubt is Doubt.NOISE) is noise
    assert noise or check.repeats is None


def test_over_the_limit_by_less_than_noise_is_inconclusive() -> None:
    # It grew for sure, but whether by more than 9.5% is open.
    sides = runs(*BASE), runs(11.0, 11.1, 10.9)
    check = checked(*sides, "step_time=+9.5%")
    assert (check.status, check.doubt) == (CheckStatus.INCONCLUSIVE, Doubt.NOISE)
    assert check.low is not None
    assert 0 < check.low < 0.95 * MS


def test_repeats_shrink_with_the_distance_and_settle() -> None:
    near, far = (
        checked(runs(*NOISY), runs(*(ms * factor for ms in NOISY)), "step_time=+3%")
        for factor in (1.1, 1.3)
    )
    assert near.doubt is far.doubt is Doubt.NOISE
    assert far.repeats is not None
    assert near.repeats is None or near.repeats > far.repeats
    # So many captures of the same spread do settle it.
    spread = [8.0 + 4.0 * n / (far.repeats - 1) for n in range(far.repeats)]
    settled = checked(runs(*spread), runs(*(ms * 1.3 for ms in spread)), "step_time=+3%")
    assert settled.status is CheckStatus.FAILED


def test_a_large_change_within_noise_does_not_pass() -> None:
    sides = [digest((9.0, 11.0, 10.0), "a")], [digest((8.0, 15.0, 12.0), "b")]
    result = judged(*sides, "step_time=+3%")
    assert result.checks[0].change.ratio == pytest.approx(0.167, abs=0.001)
    assert (result.outcome, result.exit_code, result.passed) == (CheckStatus.INCONCLUSIVE, 3, False)
    single = judged([digest((12.0,), "a")], [digest((14.0,), "b")], "step_time=+3%")
    assert (single.outcome, single.exit_code) == (CheckStatus.INCONCLUSIVE, 3)
    assert single.checks[0].repeats == 3


@pytest.mark.parametrize(
    ("factor", "limit", "status"),
    [
        # Half of the step is idle time, which the host determines.
        (1.1, "step_time=+3%", CheckStatus.INCONCLUSIVE),
        (1.1, "step_time=10ms", CheckStatus.INCONCLUSIVE),
        (0.9, "step_time=-5%", CheckStatus.INCONCLUSIVE),
        (2.0, "step_time=+3%", CheckStatus.FAILED),
        (3.0, "step_time=10ms", CheckStatus.FAILED),
        (1.02, "step_time=+3%", CheckStatus.PASSED),
        # The same kernels take nearly the same time in every run.
        (1.04, "kernel_time=+1%", CheckStatus.INCONCLUSIVE),
        (1.1, "kernel_time=+3%", CheckStatus.FAILED),
        (1.1, "kernel:gemm=+3%", CheckStatus.FAILED),
        (0.9, "compute/matmul=-5%", CheckStatus.PASSED),
        (1.1, "idle/launching=+3%", CheckStatus.INCONCLUSIVE),
    ],
)
def test_steps_of_one_capture_do_not_show_how_runs_vary(
    factor: float, limit: str, status: CheckStatus
) -> None:
    steps = (10, 10.01, 9.99, 10)
    check = checked([digest(steps)], [digest([ms * factor for ms in steps])], limit)
    assert (check.status, check.change.basis) == (status, Basis.STEPS)
    assert check.run_noise
    assert check.repeats == (3 if status is CheckStatus.INCONCLUSIVE else None)
    # Repeats measure it instead.
    sides = runs(10, 10.01, 9.99), runs(*(ms * factor for ms in (10, 10.01, 9.99)))
    assert checked(*sides, limit).run_noise is None


def test_one_capture_whose_steps_vary() -> None:
    check = checked([digest((10, 10.1, 9.9, 10))], [digest((7, 14, 9, 14))], "step_time=+3%")
    assert (check.status, check.change.basis) == (CheckStatus.INCONCLUSIVE, Basis.STEPS)


def test_counts_of_one_capture_are_certain() -> None:
    more = digest((10.0, 10.1), kernels=(digests.kernel("gemm", (5 * MS, 5 * MS), calls=9.0),))
    limits = "launches=+3%", "memory_peak=+3%"
    result = judged(
        [digest((10.0, 10.1))],
        [msgspec.structs.replace(more, memory_peak={"0": 9 * GB})],
        *limits,
        allow_changed=("kernels",),
    )
    assert [check.status for check in result.checks] == [CheckStatus.FAILED] * 2
    assert [check.run_noise for check in result.checks] == [None, None]


def test_no_interval_is_below_zero() -> None:
    check = checked(runs(*NOISY), runs(1.0), "step_time=+3%")
    assert check.low == pytest.approx(-10 * MS)
    ceiling = checked([], runs(1.0, 20.0), "step_time=50ms")
    assert ceiling.low == 0


def test_a_window_without_steps_says_so() -> None:
    (check,) = judged([], [digest((10.0,), steps=0)], "step_time=1ms").checks
    assert check.reason == "no steps: step_time is of the whole capture"
    assert check.status is CheckStatus.INCONCLUSIVE


@pytest.mark.parametrize(
    ("after", "limit", "status"),
    [
        (11.0, "step_time=+3%", CheckStatus.INCONCLUSIVE),
        (10.2, "step_time=+3%", CheckStatus.PASSED),
        (11.0, "step_time=10ms", CheckStatus.INCONCLUSIVE),
        (9.0, "step_time=-5%", CheckStatus.INCONCLUSIVE),
        (9.9, "step_time=-5%", CheckStatus.INCONCLUSIVE),
    ],
)
def test_the_variance_of_one_step_each_is_unknown(
    after: float, limit: str, status: CheckStatus
) -> None:
    check = checked([digest((10.0,))], [digest((after,))], limit)
    assert (check.status, check.low, check.change.basis) == (status, None, Basis.NONE)
    assert check.repeats == (3 if status is CheckStatus.INCONCLUSIVE else None)


def test_what_was_not_there_before_is_held_too() -> None:
    def starving(ms: float) -> Digest:
        ledger = {"compute/matmul": (5 * MS,) * 3, "idle/input": (ms * MS,) * 3}
        return digest((5 + ms,) * 3, ledger=ledger)

    after = [starving(ms) for ms in (2.0, 2.1, 2.2)]
    check = checked(runs(*BASE), after, "idle/input=+1ms")
    assert (check.status, check.change.before) == (CheckStatus.FAILED, 0.0)
    assert checked(runs(*BASE), after, "idle/input=+3ms").status is CheckStatus.PASSED
    assert checked(runs(*BASE), after, "idle/input=+50%").status is CheckStatus.FAILED
    assert checked(after, runs(*BASE), "idle/input=+0%").status is CheckStatus.PASSED


def test_memory_has_one_value_a_capture() -> None:
    before, after = runs(*BASE), runs(*BASE, memory_peak={"0": 7 * GB, "1": 9 * GB})
    check = checked(before, after, "memory_peak=+5%")
    assert (check.status, check.change.after, check.most) == (CheckStatus.FAILED, 9 * GB, 8.4 * GB)
    assert checked(before, after, "memory_peak=+1GB").status is CheckStatus.PASSED
    assert checked([], after, "memory_peak=8GiB").status is CheckStatus.FAILED
    assert checked(before[:1], after[:1], "memory_peak=+5%").status is CheckStatus.FAILED


def test_findings_are_counted() -> None:
    findings = DigestFinding(
        rule="launch-bound", title="t", step_ns=MS, share=0.1, confidence="high"
    )
    about_capture = msgspec.structs.replace(findings, rule="profiler-overhead")
    after = runs(*BASE, findings=(findings, about_capture))
    check = checked([], after, "findings=0")
    assert (check.status, check.over) == (CheckStatus.FAILED, 1.0)
    assert check.reason == "launch-bound"
    assert checked([], runs(*BASE, findings=(about_capture,)), "findings=0").over == 0.0
    # Below the plan of `diagnose` are notes, and fixes that save too little after the others.
    below = msgspec.structs.replace(findings, in_plan=False, step_ns=None)
    assert checked([], runs(*BASE, findings=(below,)), "findings=0").over == 0.0
    check = checked(runs(*BASE), runs(*BASE, findings=(below,)), "finding:launch-bound=+0.5ms")
    assert (check.status, check.change.after) == (CheckStatus.PASSED, 0.0)
    assert checked(runs(*BASE), after, "finding:launch-bound=+2ms").status is CheckStatus.PASSED
    assert checked(runs(*BASE), after, "finding:launch-bound=+0.5ms").status is CheckStatus.FAILED


CORRECTED = {"recorded_step_ns": 15 * MS, "pace_steps": 20, "pace_spread": 0.02}


def test_times_under_the_profiler_are_no_regression() -> None:
    """Corrected and recorded times differ by the profiler: neither PASS nor FAIL."""
    before, after = runs(*BASE, **CORRECTED), runs(20.0, 20.1, 19.9)
    for old, new in ((before, after), (after, before)):
        result = judged(old, new, "step_time=+5%", "idle=+5%", "launches=+0", "memory_peak=+5%")
        assert not result.corrected
        assert [check.status for check in result.checks] == [
            CheckStatus.INCONCLUSIVE,
            CheckStatus.INCONCLUSIVE,
            CheckStatus.PASSED,
            CheckStatus.PASSED,
        ]
        assert "not corrected for the profiler" in result.checks[0].reason
    mixed = [*before, *after]
    assert checked([], mixed, "step_time=1s").doubt is Doubt.NOT_COMPARABLE
    assert checked([], mixed, "kernel_time=1s").status is CheckStatus.PASSED
    accepted = judged(before, after, "step_time=+5%", allow_changed=["profiler"])
    assert accepted.outcome is CheckStatus.FAILED
    assert judged(before, before, "step_time=+5%").corrected


def test_the_number_of_steps_matters_to_whole_captures_only() -> None:
    """`record` chooses it by time, and all other metrics are per step."""
    before, after = runs(*BASE), runs(*BASE, steps_left_out=3)
    result = judged(before, after, "step_time=+5%", "launches=+0", "memory_peak=+5%")
    passed, passed_too, peak = result.checks
    assert passed.status is passed_too.status is CheckStatus.PASSED
    assert (peak.status, peak.doubt) == (CheckStatus.INCONCLUSIVE, Doubt.NOT_COMPARABLE)
    assert peak.reason == "number of steps: 3 -> 6 (+100%)"


def test_captures_of_two_tools_with_known_step_times_are_compared() -> None:
    torch = {"tool": "torch.profiler", "steps_found": "numbered ranges, such as 'ProfilerStep#1'"}
    nsys, trace = runs(*BASE, **CORRECTED), runs(*BASE, **CORRECTED, **torch)
    result = judged(nsys, trace, "step_time=+5%")
    assert result.outcome is CheckStatus.PASSED
    assert result.differences == ()
    assert not any("overhead changes" in note for note in result.notes)
    # Unknown step times, or another amount of work in a step: these may be other steps.
    assert judged(runs(*BASE), runs(*BASE, **torch), "step_time=+5%").differences
    (kernel,) = digest((5.0, 5.0, 5.0)).kernels
    fewer = msgspec.structs.replace(kernel, calls=(2.0, 2.0, 2.0))
    less = runs(*BASE, **CORRECTED, **torch, kernels=(fewer,))
    kinds = [row.kind for row in judged(nsys, less, "step_time=+5%").differences]
    assert kinds == ["steps", "kernels"]


def test_what_is_not_known_never_passes() -> None:
    unknown = runs(*BASE, memory_peak={}, missing={"memory_peak": "no memory was recorded"})
    for before, after in ((runs(*BASE), unknown), (unknown, runs(*BASE))):
        result = judged(before, after, "memory_peak=+5%", "step_time=+5%")
        assert [check.status for check in result.checks] == [
            CheckStatus.INCONCLUSIVE,
            CheckStatus.PASSED,
        ]
        assert (result.exit_code, result.checks[0].doubt) == (3, Doubt.NOT_RECORDED)
        assert result.checks[0].reason == "run_0: no memory was recorded"
        limits = ("memory_peak=+5%", "launches=+0")
        assert judged(before, after, *limits, inconclusive="pass").exit_code == 3
        assert judged(before, after, *limits, inconclusive="fail").exit_code == 1
        skipped = judged(before, after, *limits, allow_missing=True)
        assert (skipped.exit_code, skipped.checks[0].status) == (0, CheckStatus.SKIPPED)
        # A gate that measured nothing does not pass.
        nothing = judged(before, after, "memory_peak=+5%", allow_missing=True, inconclusive="pass")
        assert (nothing.outcome, nothing.exit_code) == (CheckStatus.INCONCLUSIVE, 3)
    assert checked(unknown, runs(*BASE), "memory_peak=9GB").status is CheckStatus.PASSED
    mixed = [*runs(*BASE), *unknown[:1]]
    check = checked(runs(*BASE), mixed, "memory_peak=+5%")
    assert check.status is CheckStatus.PASSED
    assert "not counted: run_0: no memory was recorded" in check.reason


@pytest.mark.parametrize(("policy", "code"), [(None, 3), ("fail", 1), ("pass", 0)])
def test_noise_counts_as_the_policy_has_it(policy: str | None, code: int) -> None:
    sides = runs(*NOISY), runs(8.8, 11.0, 13.2)
    result = judged(*sides, "step_time=+3%", "launches=+0", inconclusive=policy)
    assert (result.outcome, result.exit_code) == (CheckStatus.INCONCLUSIVE, code)
    # A check that fails outweighs it.
    failed = judged(runs(*BASE), runs(11.0, 11.1, 10.9), "step_time=+3%", inconclusive=policy)
    assert (failed.outcome, failed.exit_code) == (CheckStatus.FAILED, 1)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="write pass or fail"):
        judged(runs(*BASE), runs(*BASE), "step_time=+3%", inconclusive="maybe")


def test_growth_needs_a_baseline_and_a_ceiling_none() -> None:
    with pytest.raises(UsageError, match=r"needs a baseline.*gpusight baseline save"):
        gate([], runs(*BASE), [read_limit("step_time=50ms"), read_limit("step_time=+3%")])
    result = judged([], runs(*BASE), "step_time=50ms")
    assert (result.passed, result.baseline, result.comparison) == (True, (), None)
    assert result.captures == ("run_0", "run_1", "run_2")


def test_a_gate_that_holds_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no limit was given"):
        gate(runs(*BASE), runs(*BASE), [])
    with pytest.raises(UsageError, match="no capture was given"):
        gate(runs(*BASE), [], [read_limit("step_time=+3%")])
    for confidence in (0.1, 1.0, float("nan")):
        with pytest.raises(UsageError, match="a confidence of"):
            gate([], runs(*BASE), [read_limit("step_time=3ms")], confidence=confidence)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("step_tiem=+3%", "unknown metric 'step_tiem'"),
        ("step_time=+3", "step_time is a time"),
        ("memory_peak=+3ms", "memory_peak is a size in bytes"),
        ("launches=+3MB", "launches is a count"),
    ],
)
def test_limits_that_make_no_sense(limit: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gate(runs(*BASE), runs(*BASE), [read_limit(limit)])


def test_steps_are_not_held_against_a_window() -> None:
    window = digest((100.0,), steps=0)
    result = gate([window], runs(*BASE), [read_limit("step_time=+3%")])
    assert isinstance(result, NotApplicable)


def test_the_document_is_plain() -> None:
    result = judged(runs(*BASE), runs(11.0, 11.1, 10.9), "step_time=+3%", "memory_peak=+5%")
    document = result.document()
    assert (document["passed"], document["meta"]["command"]) == (False, "gate")
    step = document["checks"][0]
    assert step["metric"] == "step_time"
    assert (step["status"], step["cause"], step["repeats"]) == ("fail", None, None)
    assert (document["outcome"], document["exit_code"]) == ("fail", 1)
    assert step["before"] == pytest.approx(10 * MS)
    assert step["most"] == pytest.approx(10.3 * MS)
    assert step["over"] == pytest.approx(0.7 * MS)
    assert 0 < step["low"] < MS < step["high"]
    assert document["explanation"]
    assert msgspec.json.decode(msgspec.json.encode(document)) == document
