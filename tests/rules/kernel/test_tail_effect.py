"""The rule `tail-effect` on launches built by hand."""

from __future__ import annotations

import pytest

from gpusight.rules.rule import Clean
from tests.rules.kernel.rule_launches import OCCUPANCY, matched, speedup
from tests.rules.launches import ELAPSED, IDLE, launch_of, verdict_of


def test_uneven_blocks_are_load_imbalance() -> None:
    verdict = matched("tail-effect", {**IDLE, "sm__cycles_active.avg": 100})
    assert "Load imbalance" in verdict.title


def test_a_last_wave_counts_below_the_peak_of_a_pipe() -> None:
    tail = {
        **IDLE,
        f"sm__throughput{ELAPSED}": 82,
        f"sm__issue_active{ELAPSED}": 82,
        OCCUPANCY: 85,
    }
    verdict = matched("tail-effect", tail, grid_x=132 * 8 * 2 + 80)
    assert speedup(verdict) == pytest.approx(0.97 / 0.82, rel=0.03)
    full = {**tail, f"sm__throughput{ELAPSED}": 95, f"sm__issue_active{ELAPSED}": 95}
    launch = launch_of(full, grid_x=132 * 8 * 2 + 80)
    assert isinstance(verdict_of("tail-effect", launch), Clean)
