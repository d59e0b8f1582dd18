"""The rule `compute-bound` on launches built by hand."""

from __future__ import annotations

from gpusight.analysis.counters.profiled_launch import launches
from gpusight.rules.finding import Confidence
from gpusight.rules.rule import KernelRuleMatch
from tests.rules.kernel.rule_launches import matched, speedup
from tests.rules.launches import ELAPSED, IDLE, trace_of, verdict_of


def test_constants_read_one_at_a_time_are_named() -> None:
    counters = {
        **IDLE,
        f"sm__throughput{ELAPSED}": 73,
        f"idc__request_cycles_active{ELAPSED}": 72,
        f"sm__issue_active{ELAPSED}": 1,
    }
    verdict = matched("compute-bound", counters)
    assert "Divergent constant reads" in verdict.title
    assert "shared memory" in verdict.fix
    assert speedup(verdict) > 4


def test_a_busy_load_store_pipe_is_no_roofline() -> None:
    verdict = matched(
        "compute-bound",
        {
            **IDLE,
            f"sm__throughput{ELAPSED}": 85,
            f"sm__inst_executed_pipe_lsu{ELAPSED}": 85,
        },
    )
    assert verdict.title == "LSU pipe 85% busy"
    assert not verdict.at_roofline
    assert verdict.evidence[0].value == 0.85
    assert "fewer loads and stores" in verdict.estimate
    assert "float4" in verdict.code


BUSY = {**IDLE, f"sm__throughput{ELAPSED}": 90, f"sm__pipe_alu_cycles_active{ELAPSED}": 90}


def test_fast_math_is_advice_only_where_the_xu_pipe_is_used() -> None:
    plain = matched("compute-bound", BUSY)
    assert "__expf" not in plain.code
    special = matched("compute-bound", {**BUSY, f"sm__inst_executed_pipe_xu{ELAPSED}": 30})
    assert "__expf" in special.code
    assert "fast math" in special.fix


def test_one_measured_side_is_no_high_confidence() -> None:
    assert matched("compute-bound", BUSY).confidence is Confidence.HIGH
    (launch,) = launches(
        trace_of({"counters": BUSY}, without=("memory_throughput", "dram_", "lts__", "l1tex__"))
    )
    verdict = verdict_of("compute-bound", launch)
    assert isinstance(verdict, KernelRuleMatch)
    assert verdict.confidence is Confidence.MEDIUM
    assert verdict.confidence_reason == "memory utilization was not measured"
