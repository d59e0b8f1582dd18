"""The rule `memory-bound` on launches built by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gpusight.rules.engine import run_kernel_rules
from gpusight.rules.finding import Confidence
from gpusight.rules.registry import kernel_rules
from gpusight.rules.rule import Clean, KernelRuleMatch
from tests.rules.kernel.rule_launches import matched, speedup
from tests.rules.launches import ELAPSED, launch_of, verdict_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.rules.finding import KernelFinding


def busy(dram: float, l2: float = 40.0) -> dict[str, float]:
    return {
        f"gpu__dram_throughput{ELAPSED}": dram,
        f"gpu__compute_memory_throughput{ELAPSED}": max(dram, l2),
        f"lts__throughput{ELAPSED}": l2,
    }


def test_at_the_roofline_nothing_is_saved_by_the_same_traffic() -> None:
    verdict = matched("memory-bound", busy(90))
    assert verdict.title == "At the DRAM roofline (90%)"
    assert speedup(verdict) == 1
    assert verdict.at_roofline
    assert verdict.confidence is Confidence.HIGH


def test_below_the_roofline_the_distance_to_it_is_saved() -> None:
    verdict = matched("memory-bound", busy(64))
    assert verdict.title == "Limited by DRAM (64% of peak)"
    assert speedup(verdict) == pytest.approx(0.8 / 0.64, rel=0.05)
    assert verdict.confidence is Confidence.LOW


def test_dram_is_named_where_its_bytes_keep_l2_a_little_busier() -> None:
    assert "DRAM" in matched("memory-bound", busy(85, l2=92)).title
    assert "L2" in matched("memory-bound", busy(40, l2=92)).title


def test_a_busier_sm_is_the_limit() -> None:
    counters = {**busy(65), f"sm__throughput{ELAPSED}": 90, f"sm__issue_active{ELAPSED}": 90}
    assert isinstance(verdict_of("memory-bound", launch_of(counters)), Clean)


def findings_of(counters: dict[str, float]) -> Sequence[KernelFinding]:
    rules = {"memory-bound": kernel_rules()["memory-bound"]}
    return run_kernel_rules(launch_of(counters), rules).findings


@pytest.mark.parametrize(
    ("locked", "says"),
    [(None, ""), (True, "Clocks were locked"), (False, "Clocks were not locked")],
)
def test_the_caveat_says_what_the_report_shows_of_clocks(locked: bool | None, says: str) -> None:
    launch = replace(launch_of(busy(90)), clocks_locked=locked)
    verdict = verdict_of("memory-bound", launch)
    assert isinstance(verdict, KernelRuleMatch)
    assert says in verdict.caveats
    assert bool(verdict.caveats) is (locked is not None)


def test_at_the_roofline_there_is_no_code_to_paste() -> None:
    (finding,) = findings_of(busy(90))
    assert (finding.code, finding.speedup) == ("", 1)
    assert finding.fix.startswith("Move fewer bytes")
    assert "float4" not in finding.fix
    (below,) = findings_of(busy(64))
    assert "float4" in below.code
