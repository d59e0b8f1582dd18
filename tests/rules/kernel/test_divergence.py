"""The rule `divergence` on launches built by hand."""

from __future__ import annotations

import pytest

from gpusight.rules.rule import Clean
from tests.rules.kernel.rule_launches import FOUND, matched, speedup
from tests.rules.launches import launch_of, verdict_of

BUSY = FOUND["divergence"]["counters"]
ACTIVE = "smsp__thread_inst_executed_per_inst_executed.ratio"
NOT_PREDICATED = "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"


def test_full_warps_need_the_share_of_instructions_that_was_active() -> None:
    quarter, half = (matched("divergence", {**BUSY, ACTIVE: active}) for active in (8, 16))
    assert quarter.title == "Divergence: 8.0 of 32 threads active per warp"
    assert speedup(quarter) > 1.5 * speedup(half) > 1.5


def test_predicated_threads_count_where_no_branch_diverges() -> None:
    verdict = matched("divergence", {**BUSY, ACTIVE: 32, NOT_PREDICATED: 8})
    assert verdict.title == "Divergence: 8.0 of 32 threads active per warp"


@pytest.mark.parametrize(("block", "active"), [(16, 16), (40, 20)])
def test_a_last_warp_that_is_not_full_does_not_diverge(block: int, active: float) -> None:
    counters = {**BUSY, ACTIVE: active, NOT_PREDICATED: active}
    assert isinstance(verdict_of("divergence", launch_of(counters, block_x=block)), Clean)
    assert matched("divergence", counters)
