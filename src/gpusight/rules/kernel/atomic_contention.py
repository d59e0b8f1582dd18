"""atomic-contention: atomics serialize on a few addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters.kernel_limiter import MEMORY_WAITS, stall_share, waits_left
from gpusight.analysis.counters.profiled_launch import SM_UNITS, WARP
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.patterns.kernel_speedup import (
    ATTAINABLE,
    MIN_SPEEDUP,
    SHARED_WAITS,
    is_worth,
    time_left,
    with_launch_overhead,
)
from gpusight.rules.rule import CLEAN, KernelRule, KernelRuleMatch, RuleNotApplicable, Threshold

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.rules.rule import RuleVerdict


MIN_HOT_SLICE_SHARE = Threshold(
    0.3,
    "min. utilization of the atomic unit of one L2 slice; atomics on many addresses stay below it",
)
MIN_SLICE_IMBALANCE = Threshold(
    4, "min. ratio of the busiest slice to the average: atomics hit few addresses"
)
MIN_ATOMIC_SHARE = Threshold(
    0.1, "min. share of atomics in the memory accesses, to attribute stalls to them"
)
MIN_WAIT_SHARE = Threshold(0.5, "min. share of warp time in stalls that atomics cause")
MIN_SHARED_ATOMIC_SHARE = Threshold(
    0.3, "min. share of atomics in the shared-memory instructions, to attribute stalls to them"
)
INSTRUCTIONS_PER_TRY = Threshold(4, "instructions per retry: load, operation, exchange, branch")
_WAITS = (*MEMORY_WAITS, *SHARED_WAITS)
LOOP_WAITS = ("wait", "branch_resolving")
"""Stalls within a retry loop, on its own instructions."""
MAX_THREADS_COMBINED = Threshold(
    256, "max. threads per block whose values are combined into one atomic"
)
MIN_WAVEFRONTS_PER_ATOMIC = Threshold(
    8, "min. wavefronts per shared-memory atomic; without contention it is one or two"
)

MIN_NAMED_STALL = 0.01
"""Share of the warps' time from which on a stall reason is named."""


class AtomicContention(KernelRule):
    """Atomics serialize on a few addresses."""

    id = "atomic-contention"
    effort = "rewrite"
    detects = "Many threads update the same few addresses with atomics, which serialize."
    why = (
        "Atomics on one address run one after the other, in one L2 slice or one shared-memory "
        "bank. The rest of the GPU waits."
    )
    fix = (
        "Reduce within the thread, warp and block first, then issue one atomic per block. For "
        "histograms, keep a private copy per block in shared memory."
    )
    code = """\
int sum = __reduce_add_sync(0xffffffff, value);  // sm_80 on
if ((threadIdx.x & 31) == 0) atomicAdd(&counter, sum);
// histograms: one private copy per block
__shared__ int bins[BINS];
for (int b = threadIdx.x; b < BINS; b += blockDim.x)
  bins[b] = 0;
__syncthreads();
if (i < n) atomicAdd(&bins[key[i]], 1);
__syncthreads();
for (int b = threadIdx.x; b < BINS; b += blockDim.x)
  if (bins[b]) atomicAdd(&result[b], bins[b]);
"""
    caveats = (
        "Atomics whose old value is used (a queue tail) need another scheme: one atomic per warp "
        "that reserves a range."
    )
    estimate = (
        "One atomic per block (of at most 256 threads) remains, with the same share of the memory "
        "stalls. The load of other units stays."
    )
    thresholds: ClassVar = {
        "min_hot_slice_share": MIN_HOT_SLICE_SHARE,
        "min_slice_imbalance": MIN_SLICE_IMBALANCE,
        "min_atomic_share": MIN_ATOMIC_SHARE,
        "min_wait_share": MIN_WAIT_SHARE,
        "max_threads_combined": MAX_THREADS_COMBINED,
        "min_wavefronts_per_atomic": MIN_WAVEFRONTS_PER_ATOMIC,
        "min_shared_atomic_share": MIN_SHARED_ATOMIC_SHARE,
        "instructions_per_try": INSTRUCTIONS_PER_TRY,
    }
    helps = (q.GLOBAL_ATOMICS, q.SHARED_ATOMICS, q.L2_ATOMICS_HOTTEST, q.WARP_STATES)
    explains = frozenset(
        {"latency-bound", "memory-bound", "bank-conflict", "uncoalesced-access", "divergence"}
    )

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Look for a busy atomic unit in L2, or stalls on atomics where nothing else is busy."""
        total, in_shared = launch.get(q.GLOBAL_ATOMICS), launch.get(q.SHARED_ATOMICS)
        hottest = launch.get(q.L2_ATOMICS_HOTTEST)
        if total is None and in_shared is None and hottest is None:
            return RuleNotApplicable("not measured: atomic operations", self.sections)
        if total or hottest:
            verdict = _in_global(launch, total, hottest or 0.0)
            if isinstance(verdict, KernelRuleMatch):
                return verdict
        return _in_shared(launch) if in_shared else CLEAN


def _in_global(launch: ProfiledLaunch, atomics: float | None, hottest: float) -> RuleVerdict:
    average = launch.get(q.L2_ATOMICS) or 0.0
    # What units other than L1 and L2 need, which are busy with the atomics themselves.
    others = max(launch.busy.get(unit, 0.0) for unit in (*SM_UNITS, "dram"))
    busy = max(hottest, average)
    saturated = busy >= MIN_HOT_SLICE_SHARE.value and busy >= others
    accesses = sum(launch.get(quantity) or 0.0 for quantity in (q.LOAD_REQUESTS, q.STORE_REQUESTS))
    atomic_share = atomics / (atomics + accesses) if atomics else 0.0
    waiting = stall_share(launch, _WAITS) or 0.0
    queued = (
        atomic_share >= MIN_ATOMIC_SHARE.value
        and waiting >= MIN_WAIT_SHARE.value
        and max(launch.busy.values(), default=0.0) < MIN_HOT_SLICE_SHARE.value
    )
    if not saturated and not queued:
        return CLEAN
    # One atomic per block remains. Loads wait behind atomics in the same queues, so that their
    # stalls shrink as well.
    kept = 1 / min(launch.block or WARP, MAX_THREADS_COMBINED.value)
    stays = waits_left(launch, dict.fromkeys(_WAITS, 1 - kept))
    remaining = with_launch_overhead(launch, max(stays or 0.0, others / ATTAINABLE, kept))
    if remaining > 1 / MIN_SPEEDUP:
        return CLEAN
    focused = (
        hottest >= MIN_HOT_SLICE_SHARE.value and hottest >= MIN_SLICE_IMBALANCE.value * average
    )
    where = "one L2 slice" if focused else "L2"
    return KernelRuleMatch(
        title=f"Atomics keep {where} {busy:.0%} busy"
        if saturated
        else f"Warps stalled {waiting:.0%} of the time on atomics",
        time_share=remaining,
        estimate="each block reduces first and issues one atomic",
        evidence=(
            *launch.evidence(
                q.GLOBAL_ATOMICS, q.L2_ATOMIC_SECTORS, q.L2_ATOMICS_HOTTEST, q.L2_ATOMICS
            ),
            *_wait_evidence(launch, _WAITS),
        ),
        confidence=Confidence.HIGH if saturated and launch.stalls else Confidence.MEDIUM,
        confidence_reason="atomic utilization and stalls were measured"
        if saturated and launch.stalls
        else "the cause of the stalls is inferred",
    )


def _in_shared(launch: ProfiledLaunch) -> RuleVerdict:
    atomics, wavefronts = launch.known(q.SHARED_ATOMICS), launch.get(q.SHARED_ATOMIC_WAVEFRONTS)
    each = (wavefronts or 0.0) / atomics
    conflicts = each >= MIN_WAVEFRONTS_PER_ATOMIC.value
    if not conflicts and not _retries(launch, atomics):
        return CLEAN
    removed = 1 - 1 / (each if conflicts else WARP)
    # The part of the shared-memory wavefronts due to atomics: in a retry loop all of them.
    pipe_share, retry_share = 1.0, 0.0
    if conflicts and wavefronts:
        pipe_share = wavefronts / max(wavefronts, launch.get(q.SHARED_WAVEFRONTS) or wavefronts)
    instructions = launch.get(q.INSTRUCTIONS)
    if not conflicts and instructions:
        retry_share = min(1.0, INSTRUCTIONS_PER_TRY.value * atomics / instructions)
    tried = retry_share * removed
    kept = 1 - pipe_share * removed
    after = {unit: launch.busy.get(unit, 0.0) * kept for unit in ("l1_data", "l1", "lsu")}
    after |= {u: launch.busy.get(u, 0.0) * (1 - tried) for u in ("issue", "alu", "fma", "sm")}
    waits = dict.fromkeys(SHARED_WAITS, removed) | dict.fromkeys(LOOP_WAITS, tried)
    stays = waits_left(launch, waits)
    remaining = time_left(launch, after, waits_left=stays)
    if not is_worth(remaining):
        return CLEAN
    return KernelRuleMatch(
        title=f"{each:.0f} wavefronts per shared-memory atomic (ideal 1)"
        if conflicts
        else "Retry loops on shared-memory atomics",
        time_share=remaining,
        estimate="one wavefront per atomic instruction"
        if conflicts
        else "each warp reduces first: one retry in 32 remains",
        evidence=(
            *launch.evidence(q.SHARED_ATOMICS, q.SHARED_ATOMIC_WAVEFRONTS, q.L1_DATA),
            *_wait_evidence(launch, SHARED_WAITS),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="the distribution of addresses is unknown",
    )


def _retries(launch: ProfiledLaunch, atomics: float) -> bool:
    """Return whether atomics dominate the shared-memory accesses, and warps stall on these.

    An atomic without an instruction of its own is a compare-and-swap loop, which repeats for every
    thread that came second.
    """
    accesses = launch.get(q.SHARED_INSTRUCTIONS)
    waiting = stall_share(launch, SHARED_WAITS) or 0.0
    return (
        bool(accesses)
        and atomics >= MIN_SHARED_ATOMIC_SHARE.value * (accesses or 0.0)
        and waiting >= MIN_WAIT_SHARE.value
    )


def _wait_evidence(launch: ProfiledLaunch, reasons: tuple[str, ...]) -> tuple[Evidence, ...]:
    waiting = stall_share(launch, reasons)
    if waiting is None:
        return ()
    notable = [r for r in reasons if launch.stalls.get(r, 0.0) >= MIN_NAMED_STALL]
    names = [q.stall_name(r) for r in sorted(notable, key=lambda r: -launch.stalls[r])]
    meaning = f"Warp time due to {', '.join(names)}" if names else "Warp time in stalls on atomics"
    return (Evidence("waits", waiting, "share", meaning),)
