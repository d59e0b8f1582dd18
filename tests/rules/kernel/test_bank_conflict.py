"""The rule `bank-conflict` on launches built by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpusight.rules.rule import KernelRuleMatch, RuleNotApplicable
from tests.rules.kernel.rule_launches import FOUND, L1_DATA, matched, speedup
from tests.rules.launches import ELAPSED, IDLE, launch_of, verdict_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.rules.rule import RuleVerdict


STEPS = {
    # L1 takes four steps for each request, and for each 128 bytes to and from the registers.
    **IDLE,
    L1_DATA: 95,
    f"gpu__compute_memory_throughput{ELAPSED}": 95,
    f"l1tex__throughput{ELAPSED}": 95,
    f"l1tex__lsu_writeback_active{ELAPSED}": 21,
    f"sm__mio_pq_read_cycles_active{ELAPSED}": 3,
    f"l1tex__lsuin_requests{ELAPSED}": 21,
}
NOT_COUNTED = ("sectors", "wavefronts_shared", "wavefronts_mem_shared", "stalled")


def inferred(rule: str, changed: Mapping[str, float]) -> RuleVerdict:
    """Evaluate a rule where the counters of conflicts and sectors were not collected."""
    return verdict_of(rule, launch_of({**STEPS, **changed}, without=NOT_COUNTED))


def test_conflicts_are_inferred_where_they_were_not_counted() -> None:
    conflict = inferred("bank-conflict", {"launch__shared_mem_per_block_static": 4096})
    assert isinstance(conflict, KernelRuleMatch)
    assert conflict.confidence.value == "low"
    assert speedup(conflict) == pytest.approx(95 / 24, rel=0.05)
    # Without shared memory it is the addresses that lie apart.
    assert isinstance(inferred("bank-conflict", {}), RuleNotApplicable)
    apart = inferred("uncoalesced-access", {})
    assert isinstance(apart, KernelRuleMatch)
    assert speedup(apart) == pytest.approx(95 / 24, rel=0.05)


def test_steps_that_are_needed_are_no_conflict() -> None:
    block = {"launch__shared_mem_per_block_static": 4096.0}
    wide = {**block, f"l1tex__lsu_writeback_active{ELAPSED}": 80}  # 16 bytes for each thread
    ladder = {**block, f"l1tex__lsuin_requests{ELAPSED}": 92}  # many requests of few threads
    for needed in (wide, ladder):
        assert isinstance(inferred("bank-conflict", needed), RuleNotApplicable)
        assert isinstance(inferred("uncoalesced-access", needed), RuleNotApplicable)


@pytest.mark.parametrize(
    ("split", "title"),
    [
        (False, "16.0 wavefronts per load/store (mean)"),
        (True, "31.0 wavefronts per load, 1.0 per store"),
    ],
)
def test_loads_and_stores_are_told_apart_where_counted(split: bool, title: str) -> None:
    counters = dict(FOUND["bank-conflict"]["counters"])
    counters |= {"memory_l1_wavefronts_shared": 1.6e6, "memory_l1_wavefronts_shared_ideal": 1e5}
    if split:
        for operation, wavefronts, conflicts in (("ld", 1.55e6, 1.5e6), ("st", 5e4, 0)):
            end = f"mem_shared_op_{operation}.sum"
            counters[f"l1tex__data_pipe_lsu_wavefronts_{end}"] = wavefronts
            counters[f"l1tex__data_bank_conflicts_pipe_lsu_{end}"] = conflicts
    assert matched("bank-conflict", counters).title == f"Bank conflicts: {title}"
