"""The rule `low-occupancy-block-size` on launches built by hand."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.rules.rule import Clean
from tests.rules.kernel.rule_launches import OCCUPANCY, matched
from tests.rules.launches import ELAPSED, IDLE, launch_of, verdict_of


def test_block_launch_overhead() -> None:
    many: dict[str, Any] = {"block_x": 64, "grid_x": 5_000_000, "duration_ns": 2e6}
    verdict = matched("low-occupancy-block-size", {**IDLE, OCCUPANCY: 25}, **many)
    assert "Block launch overhead" in verdict.title
    # SMs that are full all the same do not wait for blocks to start.
    assert isinstance(verdict_of("low-occupancy-block-size", launch_of(IDLE, **many)), Clean)


def test_partial_warps_of_a_block() -> None:
    counters = {**IDLE, f"sm__inst_executed_pipe_xu{ELAPSED}": 95}
    verdict = matched("low-occupancy-block-size", counters, block_x=40)
    assert verdict.time_share == pytest.approx(0.625, rel=0.05)
