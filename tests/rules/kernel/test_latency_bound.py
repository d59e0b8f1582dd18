"""The rule `latency-bound` on launches built by hand."""

from __future__ import annotations

import pytest

from gpusight.analysis.counters.kernel_quantities import stall_name
from gpusight.analysis.counters.profiled_launch import launches
from gpusight.rules.kernel.latency_bound import LAUNCH_OVERHEAD
from gpusight.rules.rule import KernelRuleMatch, RuleNotApplicable
from tests.rules.kernel.rule_launches import L1_DATA, SHARED_PIPE, matched, speedup
from tests.rules.launches import ELAPSED, IDLE, STALLED, trace_of, verdict_of


def test_a_ladder_of_barriers_gives_more_than_half_of_one_wait() -> None:
    ladder = {
        **IDLE,
        L1_DATA: 68,
        SHARED_PIPE: 65,
        f"gpu__compute_memory_throughput{ELAPSED}": 68,
        f"l1tex__throughput{ELAPSED}": 68,
        f"sm__issue_active{ELAPSED}": 39,
        STALLED.format("barrier"): 31,
        STALLED.format("long_scoreboard"): 26,
        STALLED.format("short_scoreboard"): 18,
        STALLED.format("wait"): 6,
    }
    verdict = matched("latency-bound", ladder)
    assert speedup(verdict) == pytest.approx(2.5, rel=0.2)
    assert "shfl" in verdict.code
    # Barriers around something else than shared memory: no such advice.
    other = matched("latency-bound", {**ladder, SHARED_PIPE: 5})
    assert "shfl" not in other.code
    assert other.title == "Stall Barrier 38% (barriers)"
    assert other.evidence[1].meaning == (
        "Stall Long Scoreboard: warp time stalled on global or local memory"
    )


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("long_scoreboard", "Stall Long Scoreboard"),
        ("lg_throttle", "Stall LG Throttle"),
        ("imc_miss", "Stall IMC Miss"),
        ("wait", "Stall Wait"),
    ],
)
def test_stalls_have_the_names_of_nsight_compute(reason: str, name: str) -> None:
    assert stall_name(reason) == name


def test_a_total_counts_where_no_unit_is_known() -> None:
    (launch,) = launches(
        trace_of(
            {"counters": {f"sm__throughput{ELAPSED}": 3, **_memory(53)}},
            without=("pipe_", "issue", "l1tex2xbar", "inst_executed"),
        )
    )
    assert launch.busy["sm"] == pytest.approx(0.03)
    assert verdict_of("latency-bound", launch) != verdict_of("compute-bound", launch)
    assert not isinstance(verdict_of("latency-bound", launch), RuleNotApplicable)


def _memory(percent: float) -> dict[str, float]:
    names = ("gpu__compute_memory_throughput", "lts__throughput")
    return {f"{name}{ELAPSED}": percent for name in names} | {f"gpu__dram_throughput{ELAPSED}": 4}


@pytest.mark.parametrize("without", [(), ("issue_stalled", "warp_issue")])
def test_a_launch_of_microseconds_should_do_more_per_launch(without: tuple[str, ...]) -> None:
    short, long = (
        launches(trace_of({"counters": IDLE, "duration_ns": ns}, without=without))[0]
        for ns in (1_600.0, 200_000.0)
    )
    verdict, other = (verdict_of("latency-bound", launch) for launch in (short, long))
    assert isinstance(verdict, KernelRuleMatch)
    assert isinstance(other, KernelRuleMatch)
    assert verdict.title == LAUNCH_OVERHEAD
    assert "fuse the kernel" in verdict.fix
    assert "one launch" in verdict.code
    assert "fuse" not in other.fix


def test_units_are_named_where_not_all_were_measured() -> None:
    stalls = ("issue_stalled", "warp_issue")
    titles, estimates = [], []
    for without in (stalls, (*stalls, "memory_throughput", "l1tex__", "lts__")):
        (launch,) = launches(trace_of({"counters": IDLE}, without=without))
        verdict = verdict_of("latency-bound", launch)
        assert isinstance(verdict, KernelRuleMatch)
        titles.append(verdict.title)
        estimates.append(verdict.estimate)
    assert titles[0].startswith("Latency-bound: no unit above")
    assert "no measured unit above" in titles[1]
    assert "measured" not in estimates[0]
    assert "DRAM" in estimates[1]
    assert "L2" not in estimates[1]
