"""The rule `uncoalesced-access` on launches built by hand."""

from __future__ import annotations

import pytest

from gpusight.rules.kernel.uncoalesced_access import load_cycles
from gpusight.rules.rule import KernelRuleMatch
from tests.rules.kernel.rule_launches import FOUND, L1_DATA, SECTORS, matched, speedup
from tests.rules.launches import ELAPSED, STALLED, launch_of, verdict_of


def test_the_estimate_follows_the_sectors() -> None:
    uncoalesced = matched("uncoalesced-access", **FOUND["uncoalesced-access"])
    # One sector in eight is needed: DRAM keeps 12.5%, issuing 20% is what is next.
    assert uncoalesced.time_share == pytest.approx(0.2 / 0.9, rel=0.25)


def test_a_gain_that_cannot_be_computed_is_unknown() -> None:
    units = ("throughput", "pipe_", "issue", "l1tex2xbar", "stalled", "cycles_active")
    verdict = verdict_of(
        "uncoalesced-access", launch_of({f"{SECTORS}_ideal": 125_000}, without=units)
    )
    assert isinstance(verdict, KernelRuleMatch)
    assert verdict.time_share is None


def test_full_queues_empty_when_what_fills_them_is_gone() -> None:
    waste = {
        f"{SECTORS}_ideal": 250_000,
        "l1tex__t_sector_hit_rate.pct": 50,
        f"gpu__dram_throughput{ELAPSED}": 31,
        f"lts__throughput{ELAPSED}": 48,
        f"gpu__compute_memory_throughput{ELAPSED}": 48,
        f"sm__issue_active{ELAPSED}": 1,
        f"sm__throughput{ELAPSED}": 2,
        f"sm__inst_executed_pipe_lsu{ELAPSED}": 1,
        f"sm__pipe_fma_cycles_active{ELAPSED}": 1,
        f"sm__pipe_alu_cycles_active{ELAPSED}": 1,
        L1_DATA: 15,
        f"l1tex__throughput{ELAPSED}": 15,
        f"l1tex__m_l1tex2xbar_req_cycles_active{ELAPSED}": 10,
        "smsp__issue_active.avg.per_cycle_active": 0.003,
        STALLED.format("lg_throttle"): 900,
    }
    assert speedup(matched("uncoalesced-access", waste)) > 5  # not only the 4 of the sectors


def test_a_rate_that_was_printed_as_zero_still_bounds_the_latency() -> None:
    """ncu's CSV rounds 0.0018 to 0.00; without a bound, all waits for memory seemed to vanish."""
    rate = "smsp__issue_active.avg.per_cycle_active"
    sums = {"smsp__inst_issued.sum": 18, "smsp__cycles_active.sum": 10_000}
    stalled = {STALLED.format("long_scoreboard"): 500}
    exact, printed, bound, summed = (
        load_cycles(launch_of(stalled | more), 1_000.0)
        for more in ({rate: 0.0018}, {rate: 0.0}, {rate: 0.005}, {rate: 0.0} | sums)
    )
    assert exact is not None
    assert bound is not None
    assert printed == bound < exact
    assert summed == pytest.approx(exact)
