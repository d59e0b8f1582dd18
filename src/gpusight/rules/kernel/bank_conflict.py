"""bank-conflict: threads of a warp address the same bank of shared memory at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters.kernel_limiter import SATURATED, waits_left
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.patterns.access_pattern import (
    MIN_EXCESS_WAVEFRONTS,
    MIN_GLOBAL_TRAFFIC_RATIO,
    excess_is_global,
    excess_wavefronts,
)
from gpusight.rules.patterns.kernel_speedup import SHARED_WAITS, is_worth, limit_sentence, time_left
from gpusight.rules.rule import (
    CLEAN,
    InstructionCounters,
    KernelRule,
    KernelRuleMatch,
    RuleNotApplicable,
    RuleVerdict,
    Threshold,
)

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch


MIN_EXCESS_SHARE = Threshold(
    0.1,
    "least part of the steps that conflicts add: a few come from other traffic that crosses in L1, "
    "whatever the addresses",
)


class BankConflict(KernelRule):
    """Threads of a warp address the same bank of shared memory at once."""

    id = "bank-conflict"
    detects = (
        "Threads of a warp address different words of the same shared-memory bank in one "
        "instruction."
    )
    why = (
        "A bank serves one word a cycle: an access to n words of a bank takes n steps, in the pipe "
        "that L1 and all warps of the SM share."
    )
    fix = (
        "Pad the tile by one element, or permute its columns, so that the threads of a warp fall "
        "into 32 different banks."
    )
    code = """\
__shared__ float tile[32][32 + 1];   // each row begins a bank later
// or without padding: swizzle the column
tile[row][col ^ (row & 31)] = value;
"""
    caveats = (
        "Accesses of 8 or 16 bytes a thread need two or four steps anyway, which is not counted as "
        "conflict. Conflicts in a phase that takes little time weigh as much as others."
    )
    estimate = (
        "The pipe of L1 and shared memory loses the steps that conflicts added, and warps the same "
        "part of their waits for shared memory. Where conflicts were not counted, they are taken "
        "to be the steps that requests and their data do not account for."
    )
    thresholds: ClassVar = {
        "min_excess_share": MIN_EXCESS_SHARE,
        "min_excess_wavefronts": MIN_EXCESS_WAVEFRONTS,
        "min_global_traffic_ratio": MIN_GLOBAL_TRAFFIC_RATIO,
    }
    helps = (q.SHARED_WAVEFRONTS, q.SHARED_EXCESS, q.WARP_STATES, q.L1_DATA)
    located_by = InstructionCounters(
        ("memory_l1_wavefronts_shared",), ("memory_l1_wavefronts_shared_ideal",)
    )
    explains = frozenset({"memory-bound", "latency-bound"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Compare the wavefronts of shared-memory accesses with those they needed."""
        steps, excess = launch.get(q.SHARED_WAVEFRONTS), launch.get(q.SHARED_EXCESS)
        if steps is None or excess is None:
            return _inferred(launch)
        if steps <= 0 or excess / steps < MIN_EXCESS_SHARE.value:
            return CLEAN
        removed = min(1.0, excess / steps)
        after = _relieved(launch, removed)
        remaining = time_left(
            launch, after, waits_left=waits_left(launch, dict.fromkeys(SHARED_WAITS, removed))
        )
        if not is_worth(remaining):
            return CLEAN
        waiting = sum(launch.stalls.get(reason, 0.0) for reason in SHARED_WAITS)
        waits = Evidence("waits_shared", waiting, "share", "Warps that waited for shared memory")
        return KernelRuleMatch(
            title=f"shared memory takes {steps / (steps - excess):.1f} steps where one would do"
            if steps > excess
            else "bank conflicts take all the time of shared memory",
            time_share=remaining,
            estimate=f"without {removed:.0%} of the shared-memory steps; "
            + limit_sentence(launch, after, remaining),
            evidence=(
                *launch.evidence(q.SHARED_WAVEFRONTS, q.SHARED_EXCESS, q.SHARED_SHARE, q.L1_DATA),
                *([waits] if launch.stalls else []),
            ),
            confidence=Confidence.HIGH if launch.stalls else Confidence.MEDIUM,
            confidence_reason="conflicts and waits were measured"
            if launch.stalls
            else "what warps waited for was not measured",
        )


def _inferred(launch: ProfiledLaunch) -> RuleVerdict:
    """Infer conflicts from L1 wavefronts that neither requests nor data account for."""
    absent = RuleNotApplicable(
        "not measured: steps that shared-memory accesses took", (q.SHARED_EXCESS.section,)
    )
    removed = excess_wavefronts(launch)
    if removed is None or excess_is_global(launch) or launch.busy["l1_data"] < SATURATED:
        return absent
    after = {u: s * (1 - removed) for u, s in launch.busy.items() if u in {"l1_data", "l1"}}
    remaining = time_left(launch, after)
    if not is_worth(remaining):
        return absent
    return KernelRuleMatch(
        title=f"L1 and shared memory take {1 / (1 - removed):.1f} steps where one would do",
        time_share=remaining,
        estimate=f"without {removed:.0%} of the steps; " + limit_sentence(launch, after, remaining),
        evidence=launch.evidence(q.L1_DATA, q.L1_REQUESTS, q.L1_DELIVERED, q.L1_STORED),
        confidence=Confidence.LOW,
        confidence_reason="that the steps are conflicts is inferred: collect SourceCounters",
    )


def _relieved(launch: ProfiledLaunch, removed: float) -> dict[str, float]:
    busy = launch.busy
    pipe, shared = busy.get("l1_data", 0.0), launch.get(q.SHARED_SHARE)
    after = {"l1_data": pipe - (pipe if shared is None else min(shared, pipe)) * removed}
    if "l1" in busy:
        after["l1"] = busy["l1"] * (1 - removed)
    if "memory" in busy and "l1_data" not in busy:
        after["memory"] = busy["memory"] * (1 - removed)
    return after
