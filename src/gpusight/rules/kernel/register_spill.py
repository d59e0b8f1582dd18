"""register-spill: values that do not fit the registers go through local memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import waits_left
from gpusight.analysis.counters.profiled_launch import SECTOR_BYTES
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.patterns.kernel_speedup import is_worth, limit_sentence, time_left
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


MIN_SPILL_SHARE = Threshold(
    0.05, "min. share of accesses that go to local memory; calls and the stack cause a few"
)
_WAITS = ("long_scoreboard", "lg_throttle", "mio_throttle", "drain")


class RegisterSpill(KernelRule):
    """Registers spill to local memory."""

    id = "register-spill"
    effort = "one line"
    detects = (
        "Loads and stores of local memory: register spills, and arrays that are indexed by a "
        "variable."
    )
    why = (
        "Local memory is device memory behind L1. A spilled value costs a store, a load, L1 "
        "capacity and a stall."
    )
    fix = (
        "Allow more registers (remove -maxrregcount, relax __launch_bounds__, smaller blocks), "
        "reduce live values, and index arrays by constants after unrolling."
    )
    code = """\
// no minimum of blocks: more registers per thread
__global__ void __launch_bounds__(128) kernel(...)
#pragma unroll  // constant indices: acc[i] becomes a register
for (int i = 0; i < N; ++i) acc[i] += x * a[i];
// print spills: nvcc -Xptxas -v
"""
    caveats = (
        "Spills in code that runs once do not matter. More registers mean fewer resident warps: "
        "see low-occupancy-registers."
    )
    estimate = (
        "L1 loses the sectors of local memory. L2 and DRAM keep what global accesses touch. "
        "Memory stalls shrink by the share of local sectors."
    )
    thresholds: ClassVar = {"min_spill_share": MIN_SPILL_SHARE}
    helps = (
        q.LOCAL_INSTRUCTIONS,
        q.LOAD_REQUESTS,
        q.LOCAL_SECTORS,
        q.SECTORS_MOVED,
        q.L2_SECTORS,
        q.WARP_STATES,
    )
    located_by = InstructionCounters(("memory_l2_theoretical_sectors_local",))
    explains = frozenset({"memory-bound", "latency-bound", "uncoalesced-access", "cache-miss"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Compare the accesses to local memory with all others."""
        part = _part(launch)
        if part is None:
            sections = (q.LOCAL_INSTRUCTIONS.section, q.LOAD_REQUESTS.section)
            return RuleNotApplicable("not measured: accesses to local memory", sections)
        if part < MIN_SPILL_SHARE.value:
            return CLEAN
        # L1, L2 and DRAM lose the traffic of local memory.
        busy = launch.busy
        weight = _weight(launch, part)
        l1 = ("l1_data", "l1", "l1_to_l2", "lsu")
        after: dict[str, float] = {unit: busy[unit] * (1 - weight) for unit in l1 if unit in busy}
        # Instructions that spill go; those on an array remain, in another memory.
        spills, instructions = launch.get(q.SPILL_REQUESTS), launch.get(q.INSTRUCTIONS)
        spill_share = min(1.0, spills / instructions) if spills and instructions else 0.0
        if "issue" in busy:
            after["issue"] = busy["issue"] * (1 - spill_share)
        # Global accesses keep at most the sectors they touch; the rest of the traffic was local.
        moved, l2 = launch.get(q.SECTORS_MOVED), launch.get(q.L2_SECTORS)
        kept = min(1.0, moved / l2) if moved is not None and l2 else 1 - weight
        after |= {u: busy[u] * kept for u in ("l2", "memory") if u in busy}
        dram = launch.get(shared.DRAM_BYTES)
        if "dram" in busy and dram:
            after["dram"] = busy["dram"] * (
                kept if moved is None else min(1.0, moved * SECTOR_BYTES / dram)
            )
        stays = waits_left(launch, dict.fromkeys(_WAITS, _weight(launch, part)))
        remaining = time_left(launch, after, waits_left=stays)
        if not is_worth(remaining):
            return CLEAN
        return KernelRuleMatch(
            title=f"Local memory: {part:.0%} of memory accesses",
            time_share=remaining,
            estimate="without accesses to local memory; "
            + limit_sentence(launch, after, remaining),
            evidence=(
                Evidence("local_share", part, "share", "Share of accesses to local memory"),
                *launch.evidence(
                    q.LOCAL_INSTRUCTIONS,
                    q.LOCAL_SECTORS,
                    q.LOCAL_MISSES,
                    q.SPILL_REQUESTS,
                    shared.REGISTERS,
                ),
            ),
            confidence=Confidence.MEDIUM,
            confidence_reason="the cost of fewer resident warps is not included"
            if spills is None or spills > 0
            else "local memory holds an array here, not spills",
        )


def _part(launch: ProfiledLaunch) -> float | None:
    """Return the part of the accesses to global and local memory that are to local memory.

    Where only spills were counted, none of them does not rule out arrays in local memory.
    """
    local, loads = launch.get(q.LOCAL_INSTRUCTIONS), launch.get(q.LOAD_REQUESTS)
    if local is None or loads is None:
        return launch.get(q.SPILL_SHARE) or None
    others = loads + (launch.get(q.STORE_REQUESTS) or 0.0)
    return local / (local + others) if local else 0.0


def _weight(launch: ProfiledLaunch, part: float) -> float:
    """Weigh waits by sectors where they are known: a spill that hits L1 waits less."""
    local, moved = launch.get(q.LOCAL_SECTORS), launch.get(q.SECTORS_MOVED)
    if local is None or moved is None or not local + moved:
        return part
    return local / (local + moved)
