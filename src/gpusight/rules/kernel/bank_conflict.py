"""bank-conflict: threads of a warp access different words of one shared-memory bank."""

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
    Threshold,
)

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.rules.rule import RuleVerdict


MIN_EXCESS_SHARE = Threshold(
    0.1, "min. share of wavefronts that conflicts add; other L1 traffic causes a few in any kernel"
)


class BankConflict(KernelRule):
    """Threads of a warp access different words of one shared-memory bank."""

    id = "bank-conflict"
    effort = "one line"
    detects = (
        "Threads of a warp access different words of the same shared-memory bank in one "
        "instruction."
    )
    why = (
        "A bank serves one word per cycle. An access to n words of a bank takes n wavefronts in "
        "the data pipe that all warps of the SM share."
    )
    fix = (
        "Pad the tile by one element or swizzle its columns, so that the threads of a warp hit 32 "
        "different banks."
    )
    code = """\
__shared__ float tile[32][32 + 1];   // rows start one bank apart
// or without padding: swizzle the column
tile[row][col ^ (row & 31)] = value;
"""
    caveats = (
        "Accesses of 8 or 16 bytes per thread need two or four wavefronts anyway; these are not "
        "counted as conflicts."
    )
    estimate = (
        "The L1/shared-memory data pipe loses the excess wavefronts, and warps the same share of "
        "their shared-memory stalls. Where conflicts were not counted, they are inferred from "
        "wavefronts that requests and data do not explain."
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
        wavefronts, excess = launch.get(q.SHARED_WAVEFRONTS), launch.get(q.SHARED_EXCESS)
        if wavefronts is None or excess is None:
            return _inferred(launch)
        if wavefronts <= 0 or excess / wavefronts < MIN_EXCESS_SHARE.value:
            return CLEAN
        removed, ideal = min(1.0, excess / wavefronts), wavefronts - excess
        busy = launch.busy
        pipe, shared = busy.get("l1_data", 0.0), launch.get(q.SHARED_SHARE)
        after = {"l1_data": pipe - (pipe if shared is None else min(shared, pipe)) * removed}
        if "l1" in busy:
            after["l1"] = busy["l1"] * (1 - removed)
        if "memory" in busy and "l1_data" not in busy:
            after["memory"] = busy["memory"] * (1 - removed)
        remaining = time_left(
            launch, after, waits_left=waits_left(launch, dict.fromkeys(SHARED_WAITS, removed))
        )
        if not is_worth(remaining):
            return CLEAN
        waiting = sum(launch.stalls.get(reason, 0.0) for reason in SHARED_WAITS)
        waits = Evidence("waits_shared", waiting, "share", "Warp time stalled on shared memory")
        return KernelRuleMatch(
            title=_title(launch, wavefronts / ideal)
            if ideal > 0
            else "Bank conflicts fill the shared-memory pipe",
            time_share=remaining,
            estimate=f"without {removed:.0%} of the shared-memory wavefronts; "
            + limit_sentence(launch, after, remaining),
            evidence=(
                *launch.evidence(q.SHARED_WAVEFRONTS, q.SHARED_EXCESS),
                *launch.evidence(q.SHARED_LOAD_WAVEFRONTS, q.SHARED_STORE_WAVEFRONTS),
                *launch.evidence(q.SHARED_SHARE, q.L1_DATA),
                *([waits] if launch.stalls else []),
            ),
            confidence=Confidence.HIGH if launch.stalls else Confidence.MEDIUM,
            confidence_reason="conflicts and stalls were measured"
            if launch.stalls
            else "warp stalls were not measured",
        )


def _title(launch: ProfiledLaunch, mean: float) -> str:
    """Give the wavefronts per access, ideally 1: of loads and of stores where both are known."""
    load, store = launch.get(q.SHARED_LOAD_WAVEFRONTS), launch.get(q.SHARED_STORE_WAVEFRONTS)
    if load is None or store is None:
        what = f"{mean:.1f} wavefronts per load/store (mean)"
    else:
        what = f"{load:.1f} wavefronts per load, {store:.1f} per store"
    return f"Bank conflicts: {what}"


def _inferred(launch: ProfiledLaunch) -> RuleVerdict:
    """Infer conflicts from L1 wavefronts that neither requests nor data account for."""
    absent = RuleNotApplicable("not measured: shared-memory wavefronts", (q.SHARED_EXCESS.section,))
    removed = excess_wavefronts(launch)
    if removed is None or excess_is_global(launch) or launch.busy["l1_data"] < SATURATED:
        return absent
    after = {u: s * (1 - removed) for u, s in launch.busy.items() if u in {"l1_data", "l1"}}
    remaining = time_left(launch, after)
    if not is_worth(remaining):
        return absent
    return KernelRuleMatch(
        title=f"{1 / (1 - removed):.1f} L1/shared wavefronts per request (ideal 1)",
        time_share=remaining,
        estimate=f"without {removed:.0%} of the wavefronts; "
        + limit_sentence(launch, after, remaining),
        evidence=launch.evidence(q.L1_DATA, q.L1_REQUESTS, q.L1_DELIVERED, q.L1_STORED),
        confidence=Confidence.LOW,
        confidence_reason="bank conflicts are inferred: collect SourceCounters",
    )
