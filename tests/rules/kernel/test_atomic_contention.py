"""The rule `atomic-contention` on launches built by hand."""

from __future__ import annotations

from gpusight.rules.rule import Clean
from tests.rules.kernel.rule_launches import ATOMIC_MAX, FOUND, matched, speedup
from tests.rules.launches import ELAPSED, STALLED, launch_of, verdict_of

HOT = FOUND["atomic-contention"]["counters"]


def test_one_atomic_per_block_is_left() -> None:
    large, small = (matched("atomic-contention", HOT, block_x=size) for size in (256, 64))
    assert speedup(large) >= speedup(small) > 5


def test_a_unit_that_is_busier_than_the_atomics_is_the_limit() -> None:
    busy = {**HOT, f"gpu__dram_throughput{ELAPSED}": 85}
    assert isinstance(verdict_of("atomic-contention", launch_of(busy)), Clean)


def test_stalls_behind_atomics_count_where_nothing_is_busy() -> None:
    queued = {**HOT, ATOMIC_MAX: 5}
    assert matched("atomic-contention", queued)
    computing = {
        **queued,
        STALLED.format("long_scoreboard"): 0,
        STALLED.format("math_pipe_throttle"): 60,
    }
    assert isinstance(verdict_of("atomic-contention", launch_of(computing)), Clean)


def test_the_evidence_names_its_stalls() -> None:
    counters = {**HOT, STALLED.format("long_scoreboard"): 60, STALLED.format("lg_throttle"): 30}
    meanings = [e.meaning for e in matched("atomic-contention", counters).evidence]
    (waits,) = [meaning for meaning in meanings if meaning.startswith("Warp time")]
    assert "Stall Long Scoreboard" in waits
    assert "Stall LG Throttle" in waits
