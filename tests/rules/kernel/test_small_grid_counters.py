"""The rule `small-grid` on launches built by hand."""

from __future__ import annotations

import pytest

from gpusight.rules.rule import RuleNotApplicable
from tests.rules.kernel.rule_launches import FOUND, matched, speedup
from tests.rules.launches import ELAPSED, IDLE, launch_of, verdict_of


def test_the_estimate_follows_the_idle_sms() -> None:
    grid = matched("small-grid", **FOUND["small-grid"])
    assert grid.time_share == pytest.approx(0.2 / 0.9, rel=0.1)


def test_a_graph_has_no_grid() -> None:
    graph = launch_of(**{**FOUND["small-grid"], "kind": "graph"})
    assert isinstance(verdict_of("small-grid", graph), RuleNotApplicable)


def test_few_blocks_leave_warps_out_as_well_as_sms() -> None:
    few = {
        **IDLE,
        **dict.fromkeys(IDLE, 2.0),
        f"sm__issue_active{ELAPSED}": 1,
        f"sm__pipe_fma_cycles_active{ELAPSED}": 1,
        f"sm__pipe_alu_cycles_active{ELAPSED}": 1,
        f"sm__inst_executed_pipe_lsu{ELAPSED}": 1,
        "smsp__issue_active.avg.per_cycle_active": 0.03,
    }
    verdict = matched("small-grid", few, grid_x=40, duration_ns=1e6)
    # On all SMs it is 3.3 times as fast; with eight times the warps on each, memory is next.
    assert 10 < speedup(verdict) < 40
