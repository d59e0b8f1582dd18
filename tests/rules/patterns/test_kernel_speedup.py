"""The model behind every estimate: units, waits, overhead."""

from __future__ import annotations

import pytest

from gpusight.analysis.counters.kernel_limiter import (
    COMPUTE,
    LATENCY,
    MEMORY,
    is_limited_by_memory,
    limiter,
    stall_share,
    steady_utilization,
    waits_left,
)
from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
from gpusight.rules.kernel.fp64_heavy import DEFAULT_FP64_RATIO, fp64_rate
from gpusight.rules.patterns.kernel_speedup import (
    free_warp_slots,
    ready_share,
    roof_limited,
    time_left,
    with_launch_overhead,
)
from gpusight.rules.rule import RuleNotApplicable
from tests.rules.launches import ELAPSED, IDLE, STALLED, launch_of, verdict_of


def launch(busy: dict[str, float], stalls: dict[str, float] | None = None) -> ProfiledLaunch:
    """Make a launch so long that its overhead is none, with these units busy and these waits."""
    made = ProfiledLaunch({"duration_ns": 1e12, "name": "k", "kind": "kernel"})
    made.__dict__["busy"] = busy
    made.__dict__["stalls"] = stalls or {}
    return made


def test_a_saturated_launch_runs_into_the_next_unit() -> None:
    profiled = launch({"l1_data": 0.8, "dram": 0.4})
    assert time_left(profiled, {"l1_data": 0.1}) == pytest.approx(0.5)
    assert time_left(profiled, {"dram": 0.1}) == pytest.approx(1.0)
    assert time_left(profiled, {"unknown": 0.1}) == pytest.approx(1.0)


def test_waits_limit_what_units_would_allow() -> None:
    profiled = launch({"l1_data": 0.8, "dram": 0.1}, {"short_scoreboard": 0.4, "wait": 0.6})
    left = waits_left(profiled, {"short_scoreboard": 1.0})
    assert left == pytest.approx(0.6)
    assert time_left(profiled, {"l1_data": 0.0}, waits_left=left) == pytest.approx(0.6)


def test_where_no_unit_is_saturated_the_roof_is_the_limit() -> None:
    profiled = launch({"issue": 0.3, "dram": 0.45}, {"long_scoreboard": 0.9, "selected": 0.1})
    left = waits_left(profiled, {"long_scoreboard": 1.0})
    assert time_left(profiled, {}, waits_left=left) == pytest.approx(0.5)


def test_nothing_known_gives_nothing() -> None:
    assert time_left(launch({}), {}) is None
    assert stall_share(launch({}), ("wait",)) is None


def test_barriers_shrink_with_what_siblings_wait_for() -> None:
    stalls = {"barrier": 0.5, "long_scoreboard": 0.3, "wait": 0.1, "selected": 0.1}
    assert stall_share(launch({}, stalls), ("long_scoreboard",)) == pytest.approx(0.3 + 0.5 * 0.75)
    assert stall_share(launch({}, stalls), ("barrier",)) == pytest.approx(0.5)


def test_a_short_launch_keeps_its_overhead() -> None:
    short = launch_of(duration_ns=3_000.0)
    assert with_launch_overhead(short, 0.0) == pytest.approx(0.5)
    assert roof_limited(short, 0.0) == 1.0
    assert steady_utilization(short, 0.4) == pytest.approx(0.8)
    assert with_launch_overhead(launch_of(duration_ns=None), 0.0) == pytest.approx(1e-3)


def test_more_warps_are_ready_more_often() -> None:
    assert ready_share(0.5, 1) == pytest.approx(0.5)
    assert ready_share(0.5, 2) == pytest.approx(0.75)
    assert ready_share(0.01, 4) == pytest.approx(0.04, rel=0.05)


def test_what_a_launch_is_bound_by() -> None:
    assert limiter(launch_of()) == MEMORY
    assert limiter(launch_of({**IDLE, f"sm__issue_active{ELAPSED}": 95})) == COMPUTE
    idle = launch_of({**IDLE, "sm__warps_active.avg.pct_of_peak_sustained_active": 10})
    assert limiter(idle) == LATENCY
    # Half of DRAM is no bandwidth limit, though the GPU is full of warps that wait for it.
    half = launch_of({**IDLE, f"gpu__dram_throughput{ELAPSED}": 50})
    assert limiter(half) == LATENCY
    assert is_limited_by_memory(half)
    assert not is_limited_by_memory(idle)
    waiting = {STALLED.format("barrier"): 500.0, f"sm__issue_active{ELAPSED}": 65}
    assert limiter(launch_of({**IDLE, **waiting})) == LATENCY
    only_sm = launch_of(
        {f"sm__throughput{ELAPSED}": 97}, without=("memory_", "dram", "lts", "l1tex")
    )
    assert limiter(only_sm) == COMPUTE
    assert limiter(launch_of(without=("throughput", "pipe", "issue", "l1tex2xbar"))) is None


def test_a_total_stands_for_a_unit_that_is_not_known() -> None:
    busy = launch_of({f"sm__throughput{ELAPSED}": 99}).busy
    assert busy["sm"] == pytest.approx(0.99)
    assert "sm" not in launch_of().busy


def test_limits_of_the_report_win_and_are_worked_out_otherwise() -> None:
    reported = launch_of({"launch__occupancy_limit_registers": 3})
    assert reported.blocks_per_sm == 3
    computed = launch_of({"launch__registers_per_thread": 128}, without=("occupancy_limit",))
    assert computed.blocks_per_sm == 2
    spare = free_warp_slots(computed, without="registers", at_most=4)
    assert spare is not None
    assert (spare.warps, spare.warps_then) == (16, 64)
    small = launch_of(
        {"launch__registers_per_thread": 128}, without=("occupancy_limit",), grid_x=132
    )
    spare = free_warp_slots(small, without="registers", at_most=4)
    assert spare is not None
    assert spare.warps_then == spare.warps  # the grid has no more blocks


def test_a_carve_out_that_was_chosen_for_the_registers_is_no_limit() -> None:
    counters = {
        "launch__registers_per_thread": 128,
        "launch__shared_mem_per_block_static": 15 * 1024,
        "launch__shared_mem_config_size": 32 * 1024,
        "launch__occupancy_limit_registers": 2,
        "launch__occupancy_limit_shared_mem": 2,
    }
    tied = launch_of(counters)
    assert tied.fit is not None
    assert tied.fit.by_limit["registers"] == tied.fit.by_limit["shared_memory"] == 2
    assert tied.fit.limiters == ("registers",)
    spare = free_warp_slots(tied, without="registers", at_most=4)
    assert spare is not None
    assert (spare.warps, spare.warps_then) == (16, 64)
    assert free_warp_slots(tied, without="shared_memory", at_most=8) is None


def test_barriers_can_be_the_limit() -> None:
    held = launch_of({"launch__barrier_count": 16}, without=("occupancy_limit",))
    assert held.fit is not None
    assert held.fit.limiters == ("barriers",)
    assert free_warp_slots(held, without="registers", at_most=4) is None


def test_small_blocks_have_room_for_more_of_them() -> None:
    small = launch_of({"launch__barrier_count": 1}, without=("occupancy_limit",), block_x=32)
    assert small.fit is not None
    assert small.fit.limiters == ("blocks",)
    spare = free_warp_slots(small, without="blocks", at_most=8)
    assert spare is not None
    assert (spare.warps, spare.warps_then) == (32, 64)
    few = {"launch__registers_per_thread": 16}
    large = launch_of(few, without=("occupancy_limit",), block_x=768)
    spare = free_warp_slots(large, without="warps", at_most=8)
    assert spare is not None
    assert (spare.warps, spare.warps_then) == (48, 64)


def test_limits_of_the_capture_count_before_the_table() -> None:
    stated = {"device__attribute_max_warps_per_multiprocessor": 16}
    halved = launch_of(stated, without=("occupancy_limit",))
    assert halved.sm is not None
    assert halved.sm.max_warps == 16
    assert halved.blocks_per_sm == 2


def test_rates_of_a_gpu_that_is_not_listed_are_not_taken_from_another() -> None:
    attribute = "device__attribute_max_{}_per_multiprocessor"
    stated = {
        attribute.format("warps"): 64,
        attribute.format("blocks"): 32,
        attribute.format("registers"): 65536,
        attribute.format("shared_memory"): 233_472,
    }
    new = launch_of(stated, compute_major=42, compute_minor=0)
    assert new.fit is not None
    assert fp64_rate(ProfiledLaunch(new.values, None, new.sm)) == DEFAULT_FP64_RATIO.value


def test_without_the_limits_of_its_gpu_occupancy_is_not_judged() -> None:
    unknown = launch_of(compute_major=42, compute_minor=0)
    assert unknown.fit is None
    assert unknown.blocks_per_sm == 8
    assert isinstance(verdict_of("low-occupancy-registers", unknown), RuleNotApplicable)


def test_values_that_are_no_numbers_are_not_known() -> None:
    broken = launch_of({"launch__occupancy_limit_registers": float("nan")})
    assert broken.blocks_per_sm == 8
