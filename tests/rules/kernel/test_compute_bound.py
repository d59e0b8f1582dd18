"""The rule `compute-bound` on launches built by hand."""

from __future__ import annotations

from tests.rules.kernel.rule_launches import matched, speedup
from tests.rules.launches import ELAPSED, IDLE


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
