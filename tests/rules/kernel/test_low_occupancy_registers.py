"""The rule `low-occupancy-registers` on launches built by hand."""

from __future__ import annotations

from gpusight.rules.rule import Clean
from tests.rules.kernel.rule_launches import FOUND, matched, speedup
from tests.rules.launches import launch_of, verdict_of

FEW_WARPS = FOUND["low-occupancy-registers"]["counters"]


def test_more_warps_than_registers_can_give_are_not_promised() -> None:
    quarter, eighth = (
        matched("low-occupancy-registers", {**FEW_WARPS, **limits})
        for limits in (
            {
                "launch__occupancy_limit_registers": 2,
                "sm__maximum_warps_per_active_cycle_pct": 25,
            },
            {},
        )
    )
    assert 1 < speedup(quarter) <= speedup(eighth)


def test_a_second_limit_as_low_leaves_no_gain() -> None:
    shared = {
        **FEW_WARPS,
        "launch__shared_mem_per_block_dynamic": 150_000,
        "launch__occupancy_limit_shared_mem": 1,
    }
    assert isinstance(verdict_of("low-occupancy-registers", launch_of(shared)), Clean)
