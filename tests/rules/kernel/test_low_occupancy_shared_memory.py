"""The rule `low-occupancy-shared-memory` on launches built by hand."""

from __future__ import annotations

import pytest

from gpusight.rules.rule import Clean
from tests.rules.kernel.rule_launches import L1_DATA, matched, speedup
from tests.rules.launches import ELAPSED, IDLE, launch_of, verdict_of

FEW_WARPS = {
    **IDLE,
    "smsp__issue_active.avg.per_cycle_active": 0.3,
    "launch__shared_mem_per_block_dynamic": 65_536,
    "launch__occupancy_limit_shared_mem": 1,
    "sm__maximum_warps_per_active_cycle_pct": 12.5,
}


def test_few_warps_matter_to_the_pipes_of_an_sm_and_not_to_a_full_dram() -> None:
    pipe = {**FEW_WARPS, L1_DATA: 62, f"gpu__compute_memory_throughput{ELAPSED}": 62}
    assert speedup(matched("low-occupancy-shared-memory", pipe)) == pytest.approx(1.26, rel=0.05)
    dram = {
        **FEW_WARPS,
        f"gpu__dram_throughput{ELAPSED}": 62,
        f"gpu__compute_memory_throughput{ELAPSED}": 62,
    }
    assert isinstance(verdict_of("low-occupancy-shared-memory", launch_of(dram)), Clean)
