"""cache-miss: data that are read again have left the caches by then."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import is_limited_by_memory, waits_left
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.patterns.access_pattern import RANDOM, overflows_l2, reads_at_random
from gpusight.rules.patterns.kernel_speedup import is_worth, limit_sentence, time_left
from gpusight.rules.rule import CLEAN, KernelRule, KernelRuleMatch, Threshold

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.rules.rule import RuleVerdict


MAX_L2_HIT_RATE = Threshold(
    0.6, "hit rate of L2 for reads below which DRAM gets most of what should have stayed"
)
MIN_TIMES_READ = Threshold(
    1.5,
    "min. times that the allocated memory was read from DRAM; a stream that reads everything "
    "once misses every cache",
)
TARGET_HIT_RATE = Threshold(0.9, "hit rate after the fix, as of a working set that fits the cache")
SAVED_WAIT_SHARE = Threshold(0.7, "share of a DRAM stall that an L2 hit saves")
EXTRA_ACCESSES_PER_MISS = Threshold(
    2, "extra L2 accesses per miss: the sector is filled and read again"
)


class CacheMiss(KernelRule):
    """Data is evicted from the caches before it is reused."""

    id = "cache-miss"
    effort = "rewrite"
    detects = (
        "Reads that a cache could serve go to DRAM: the working set exceeds L2, or reads hit "
        "random addresses of a large array."
    )
    why = "DRAM has a fifth to a third of the L2 bandwidth, and two to three times its latency."
    fix = (
        "Tile the loops so that the working set fits L2 or shared memory, sort indices before a "
        "gather, order blocks for locality, or use smaller types."
    )
    code = """\
// sort the indices of a gather by address
thrust::sort(thrust::device, index, index + n);
// tiles: all uses of a tile before the next one
for (int t = 0; t < tiles; ++t)
  for (int step = 0; step < steps; ++step) use(tile[t], step);
// keep hot data in L2
cudaAccessPolicyWindow window = {};  // cudaStreamSetAttribute(...)
"""
    caveats = (
        "Data that is read once misses every cache. The rule matches only random reads, and reads "
        "of more bytes than the program has allocated. By default, Nsight Compute flushes the "
        "caches before each launch."
    )
    estimate = (
        "DRAM reads shrink to 10% of the L2 reads, and the stalls on them by a part. L2 loses the "
        "cost of misses; other units keep their load."
    )
    thresholds: ClassVar = {
        "max_l2_hit_rate": MAX_L2_HIT_RATE,
        "min_times_read": MIN_TIMES_READ,
        "target_hit_rate": TARGET_HIT_RATE,
        "saved_wait_share": SAVED_WAIT_SHARE,
        "extra_accesses_per_miss": EXTRA_ACCESSES_PER_MISS,
        **RANDOM,
    }
    needs = (q.L2_READ_HITS, q.DRAM_READ)
    helps = (shared.L1_HIT_SHARE, shared.DRAM_SHARE, q.WARP_STATES)
    explains = frozenset({"memory-bound"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Check whether reads that could hit L2 go to DRAM, and limit the launch."""
        if not is_limited_by_memory(launch):
            return CLEAN
        hits = launch.known(q.L2_READ_HITS)
        accessible = launch.get(q.ACCESSIBLE)
        # How often the allocated memory was read, at least.
        times = launch.known(q.DRAM_READ) / accessible if accessible else 0.0
        random = reads_at_random(launch)
        if hits >= MAX_L2_HIT_RATE.value or not overflows_l2(launch):
            return CLEAN
        if not random and times < MIN_TIMES_READ.value:
            return CLEAN
        # DRAM loses the reads that would hit, and L2 what their misses cost.
        read, busy = launch.known(q.DRAM_READ), launch.busy
        dram = max(read, launch.get(shared.DRAM_BYTES) or read)
        work = (1 + EXTRA_ACCESSES_PER_MISS.value * (1 - TARGET_HIT_RATE.value)) / (
            1 + EXTRA_ACCESSES_PER_MISS.value * (1 - hits)
        )
        after = {
            "dram": busy.get("dram", 0.0) * (1 - read / dram * (1 - _missed(hits))),
            "l2": busy.get("l2", 0.0) * work,
        }
        saved = SAVED_WAIT_SHARE.value * (1 - _missed(hits))
        stays = waits_left(launch, {"long_scoreboard": saved, "lg_throttle": saved})
        remaining = time_left(launch, after, waits_left=stays)
        if not is_worth(remaining):
            return CLEAN
        return KernelRuleMatch(
            title=f"L2 read hit rate {hits:.0%}"
            + (": random reads" if random else f": memory read {times:.1f} times"),
            time_share=remaining,
            estimate=f"with an L2 hit rate of {TARGET_HIT_RATE.value:.0%}; "
            + limit_sentence(launch, after, remaining),
            evidence=(
                *launch.evidence(
                    q.L2_READ_HITS, shared.L1_HIT_SHARE, q.DRAM_READ, shared.DRAM_SHARE
                ),
                *launch.evidence(q.SECTORS_MOVED, q.SECTORS_NEEDED),
                *_l2_size(launch),
            ),
            confidence=Confidence.MEDIUM,
            confidence_reason="whether the reads can be sorted or tiled is unknown"
            if random
            else "whether the work can be tiled to fit L2 is unknown",
        )


def _missed(hits: float) -> float:
    """Return the share of the misses that remains at the target hit rate."""
    return (1 - TARGET_HIT_RATE.value) / (1 - hits)


def _l2_size(launch: ProfiledLaunch) -> tuple[Evidence, ...]:
    if launch.gpu is None or launch.gpu.l2_bytes is None:
        return ()
    return (Evidence("l2_bytes", launch.gpu.l2_bytes, "byte", "Size of the L2 cache"),)
