"""divergence: threads of a warp take different ways, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters.kernel_limiter import MEMORY_WAITS, stall_share
from gpusight.analysis.counters.profiled_launch import SM_UNITS, WARP
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.patterns.kernel_speedup import is_worth, limit_sentence, time_left
from gpusight.rules.rule import CLEAN, InstructionCounters, KernelRule, KernelRuleMatch, Threshold

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.rules.rule import RuleVerdict


MIN_ACTIVE_THREADS = Threshold(
    0.75,
    "min. average share of active threads per warp in code that does not diverge; bounds checks "
    "and loop ends cost the rest",
)
MIN_UNPREDICATED_THREADS = Threshold(
    0.6, "the same without predicated-off threads; ordinary code predicates more than it branches"
)


class Divergence(KernelRule):
    """Threads of a warp take different branches."""

    id = "divergence"
    effort = "rewrite"
    detects = (
        "Threads of a warp take different branches or loop counts, so that few threads are active "
        "per instruction."
    )
    why = (
        "A warp executes one instruction for all its threads. Where they diverge, it runs each "
        "path in turn with the other threads masked off."
    )
    fix = (
        "Keep warps uniform: sort or bin the work by kind, give each warp one kind, replace "
        "branches by arithmetic, balance loop counts."
    )
    code = """\
// before: every warp sees all kinds
switch (kind[i]) { ... }
// after: indices sorted by kind, one kind per warp
thrust::sort_by_key(thrust::device, kind, kind + n, index);
int i = index[blockIdx.x * blockDim.x + threadIdx.x];
// or without a branch
x = flag ? a : b;
"""
    caveats = (
        "Data-dependent divergence needs a sort, which costs time too. A kernel that mostly "
        "stalls on memory gains little."
    )
    estimate = (
        "Instructions shrink to the share that full warps need. Memory traffic and memory stalls "
        "stay."
    )
    thresholds: ClassVar = {
        "min_active_threads": MIN_ACTIVE_THREADS,
        "min_unpredicated_threads": MIN_UNPREDICATED_THREADS,
    }
    needs = (q.THREADS_PER_INSTRUCTION,)
    helps = (q.THREADS_NOT_PREDICATED, q.ISSUE, q.WARP_STATES)
    located_by = InstructionCounters(("inst_executed",), ("thread_inst_executed",), scale=WARP)
    explains = frozenset({"compute-bound", "latency-bound"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Compare the threads that take part in an instruction with those of a full warp."""
        # The last warp of a block may not be full.
        threads: float = WARP
        if launch.block is not None and launch.warps_per_block is not None:
            threads = launch.block / launch.warps_per_block
        active = min(1.0, launch.known(q.THREADS_PER_INSTRUCTION) / threads)
        unpredicated = launch.get(q.THREADS_NOT_PREDICATED)
        on = active if unpredicated is None else min(1.0, unpredicated / threads)
        if active >= MIN_ACTIVE_THREADS.value and on >= MIN_UNPREDICATED_THREADS.value:
            return CLEAN
        kept = active if active < MIN_ACTIVE_THREADS.value else on
        after = {unit: launch.busy[unit] * kept for unit in SM_UNITS if unit in launch.busy}
        # As much is loaded whoever executes the load: stalls on memory remain.
        memory = stall_share(launch, MEMORY_WAITS)
        stays = None if memory is None else memory + (1.0 - memory) * kept
        remaining = time_left(launch, after, waits_left=stays)
        if not is_worth(remaining):
            return CLEAN
        return KernelRuleMatch(
            title=f"Divergence: {kept * threads:.1f} of {threads:.0f} threads active per warp",
            time_share=remaining,
            estimate=f"full warps need {kept:.0%} of the instructions; "
            + limit_sentence(launch, after, remaining),
            evidence=(
                *launch.evidence(
                    q.THREADS_PER_INSTRUCTION, q.THREADS_NOT_PREDICATED, q.UNIFORM_BRANCHES, q.ISSUE
                ),
                Evidence("lanes", threads, "", "Threads per warp, for this block size"),
            ),
            confidence=Confidence.MEDIUM,
            confidence_reason="whether threads can be sorted by branch is unknown",
        )
