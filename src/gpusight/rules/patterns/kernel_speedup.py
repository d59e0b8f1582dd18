"""What limits a launch (memory, compute, latency), and how much faster it would be without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.roofline.roofline_points import BUSY
from gpusight.rules.kernel_launch import MEMORY_UNITS, SM_UNITS, UNIT_NAMES, shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpusight.rules.kernel_launch import ProfiledLaunch


SATURATED = BUSY
"""From this share on a unit sets the pace. Below it, units wait for work."""
ATTAINABLE = 0.9
"""What a unit reaches at best in practice; copies reach 82 to 93% of DRAM."""
PIPES = ("issue", "fma", "alu", "fp16", "fp64")
PIPE_ATTAINABLE = 0.97
"""The same for the schedulers and the pipes of the SMs: loops of arithmetic reach 95 to 98%."""
AT_ROOF = 0.8
"""From this share of a unit's peak on, a launch is at its roof."""
MIN_SPEEDUP = 1.1
"""Estimates are not sharper than a tenth: a smaller gain is no finding."""
OVERHEAD_NS = 1_500.0
"""What starting and draining a grid takes, whatever it does: no launch is shorter."""
MAX_OVERHEAD_SHARE = 0.9
"""Part of a launch that may be called overhead: shorter ones than we know of do exist."""
WAITING_FOR_OTHERS = ("barrier", "sleeping", "membar", "drain")
"""Waits that are as long as what others wait for, or as what is still under way."""
MAX_OVERHEAD_CORRECTION = 0.5
"""Most that is taken off a short launch as overhead, when asking how busy a unit was."""
RUNNING = ("selected", "not_selected")
"""Warps that issue, or could: nothing is lost on them."""


def time_left(
    launch: ProfiledLaunch, after: Mapping[str, float], *, waits_left: float | None = None
) -> float | None:
    """Give the part of the duration that remains after a fix; None where nothing tells it.

    `after` is how busy the units that the fix relieves would be, over the time that the launch
    takes now; `waits_left` the part of the warps' time that stays, None where it is not known.
    """
    before = launch.busy
    if not before and waits_left is None:
        return None
    highest = max(before.values(), default=0.0)
    remaining = {**before, **{unit: share for unit, share in after.items() if unit in before}}
    next_highest = max(remaining.values(), default=0.0)
    saturated = highest >= SATURATED or waits_left is None
    pace = highest if saturated else ATTAINABLE
    by_units = next_highest / pace if pace else 1.0
    return limited(launch, max(by_units, waits_left or 0.0))


def overhead(launch: ProfiledLaunch) -> float:
    """Give the part of the duration that starting and draining the grid takes."""
    if not launch.duration_ns:
        return 0.0
    return min(MAX_OVERHEAD_SHARE, OVERHEAD_NS / launch.duration_ns)


def is_worth(left: float | None) -> bool:
    """Tell whether a gain is large enough to speak of; one that is not known is."""
    return left is None or left <= 1 / MIN_SPEEDUP


def limited(launch: ProfiledLaunch, left: float) -> float:
    """Keep an estimate within what is possible: the overhead of a launch stays in any case."""
    fixed = overhead(launch)
    return min(1.0, max(fixed + (1 - fixed) * left, 1e-3))


def roof_limited(launch: ProfiledLaunch, left: float) -> float:
    """Keep an estimate above what the busiest unit needs at best."""
    return min(1.0, max(limited(launch, left), overhead(launch) + needed(launch)))


def needed(launch: ProfiledLaunch) -> float:
    """Give the part of the time that the busiest unit needs at best."""
    shares_ = [share / attainable(unit) for unit, share in launch.busy.items()]
    return max(shares_, default=0.0)


def attainable(unit: str) -> float:
    """Give the share of its peak that a unit reaches at best in practice."""
    return PIPE_ATTAINABLE if unit in PIPES else ATTAINABLE


def roof_distance(launch: ProfiledLaunch, share: float) -> float:
    """Give the part of the time that remains when a unit comes to where its roof begins."""
    return min(1.0, overhead(launch) + share / AT_ROOF)


def steady(launch: ProfiledLaunch, share: float) -> float:
    """Give how busy a unit was between the start and the drain of the grid."""
    return min(1.0, share / (1 - min(MAX_OVERHEAD_CORRECTION, overhead(launch))))


def waits_left(launch: ProfiledLaunch, removed: Mapping[str, float]) -> float | None:
    """Give the part of the warps' time that stays when a part of some waits goes; None if unknown.

    Warps at a barrier wait for siblings that wait for something else: such waits shrink with the
    waits that are no consequence of others.
    """
    stalls = launch.stalls
    if not stalls:
        return None
    secondary = [r for r in WAITING_FOR_OTHERS if r not in removed]
    primary = [r for r in stalls if r not in secondary and r not in RUNNING]
    direct = sum(stalls.get(reason, 0.0) * part for reason, part in removed.items())
    of_primary = shares(primary, stalls)
    shrunk = direct / of_primary if of_primary else 0.0
    return 1.0 - direct - shrunk * shares(secondary, stalls)


def stall_share(launch: ProfiledLaunch, reasons: Iterable[str]) -> float | None:
    """Give the part of the warps' time that these waits cost; None where it is not known."""
    left = waits_left(launch, dict.fromkeys(reasons, 1.0))
    return None if left is None else 1.0 - left


def busiest(launch: ProfiledLaunch, units: Iterable[str] | None = None) -> tuple[str, float] | None:
    """Name the busiest unit, of all or of some, and how busy it was."""
    of = [(u, s) for u, s in launch.busy.items() if units is None or u in set(units)]
    return max(of, key=lambda pair: pair[1], default=None)


def limit_sentence(launch: ProfiledLaunch, after: Mapping[str, float], left: float | None) -> str:
    """Say what limits a gain: the unit that is busiest after the fix, or the waits that stay."""
    remaining = {**launch.busy, **{u: s for u, s in after.items() if u in launch.busy}}
    if left is None:
        return "how much that gives is not known: how busy the units were was not measured"
    if not remaining:
        return "then limited by the waits that stay"
    unit, share = max(remaining.items(), key=lambda pair: pair[1])
    highest = max(launch.busy.values())
    if share >= left * highest * 0.98:
        return f"then limited by {UNIT_NAMES[unit]} ({share:.0%} of the time now)"
    return "then limited by the waits that stay"


@dataclass(frozen=True, slots=True)
class WarpStall:
    """One reason."""

    what: str
    """What warps wait for, as the end of a sentence."""
    fix: str


STALLS: dict[str, WarpStall] = {
    "long_scoreboard": WarpStall(
        "data from global or local memory",
        "Have more loads under way: issue several independent loads before the first use "
        "(unrolling, 16-byte vector loads, cp.async or TMA into shared memory), or keep what is "
        "read again in shared memory or registers.",
    ),
    "short_scoreboard": WarpStall(
        "shared memory or special functions",
        "Read from shared memory earlier than the value is needed, with wider loads; replace slow "
        "functions (division, sin, exp) by fast ones (__fdividef, __sinf, __expf) where the "
        "precision allows.",
    ),
    "barrier": WarpStall(
        "the other warps of their block, at a barrier",
        "Let warps reach __syncthreads() together: even out the work between barriers, use smaller "
        "blocks (several for each SM), or __syncwarp() where a warp is enough.",
    ),
    "wait": WarpStall(
        "the fixed latency of their own last instruction",
        "Give each thread independent work to interleave: several accumulators, unrolled loops.",
    ),
    "math_pipe_throttle": WarpStall(
        "an arithmetic pipe that is busy",
        "Use a mix of pipes, or fewer instructions on the busy one (FP32 for FP64, tensor cores, "
        "strength reduction).",
    ),
    "mio_throttle": WarpStall(
        "the queue of shared memory and special functions",
        "Issue fewer and wider shared-memory instructions, and fewer special functions.",
    ),
    "lg_throttle": WarpStall(
        "the queue of global and local memory",
        "Issue fewer and wider loads and stores: float4 for four floats, no spills.",
    ),
    "tex_throttle": WarpStall(
        "the queue of the texture unit",
        "Issue fewer texture or surface accesses; read through ordinary loads.",
    ),
    "drain": WarpStall(
        "their last stores, before they can end",
        "Write with whole, aligned sectors; let each block do more, so that fewer blocks end.",
    ),
    "membar": WarpStall(
        "a memory fence",
        "Use the narrowest fence that is right (block rather than device or system), less often.",
    ),
    "no_instruction": WarpStall(
        "instructions, which are not in the instruction cache",
        "Make the code smaller: less unrolling, fewer branches that jump far.",
    ),
    "imc_miss": WarpStall(
        "constants, which are not in the constant cache",
        "Read values that differ between threads through ordinary loads, not from __constant__.",
    ),
    "branch_resolving": WarpStall(
        "the target of a branch",
        "Have fewer branches in the inner loop: unroll it, use conditional assignments.",
    ),
    "dispatch_stall": WarpStall("the dispatcher", "Rarely in the way: look at the next reason."),
    "sleeping": WarpStall(
        "the end of their own __nanosleep",
        "Sleep for a shorter time, or wait on a barrier instead.",
    ),
    "gmma": WarpStall(
        "the tensor cores to finish a warp-group product",
        "Have more products under way: deeper pipelines, larger tiles.",
    ),
    "warpgroup_arrive": WarpStall(
        "their warp group", "Have more products under way: deeper pipelines, larger tiles."
    ),
    "misc": WarpStall("something else", "Look at the instructions in the source view."),
}
MEMORY_WAITS = ("long_scoreboard", "lg_throttle", "drain", "membar")
"""Waits for global and local memory."""
SHARED_WAITS = ("short_scoreboard", "mio_throttle")
"""Waits for shared memory, and for what shares its queue."""
THROTTLES = ("math_pipe_throttle", "mio_throttle", "lg_throttle", "tex_throttle")
"""Waits that more warps do not hide: a queue or a pipe is full."""


MEMORY, COMPUTE, LATENCY = "memory", "compute", "latency"
MIN_FULL_OCCUPANCY = 0.5
"""Occupancy from which on a GPU is full enough: more warps would not help."""
MIN_MEMORY_UNIT_SHARE = 0.3
"""Share of a memory unit from which on waits for memory are waits for its bandwidth too."""
L1_SHARE_WEIGHT = 0.95
_L1_UNITS = ("l1", "l1_data", "l1_to_l2")
MIN_BARRIER_SHARE = 0.25
"""Part of the warps' time at barriers from which on these set the pace."""
MIN_MEMORY_WAIT = 0.5
"""Part of the warps' time from which on they mostly wait for memory."""


def _limited_by_barriers(launch: ProfiledLaunch, highest: float) -> bool:
    """Tell whether a unit that is not at its roof is kept from it by barriers."""
    waits = {r: s for r, s in launch.stalls.items() if r not in RUNNING}
    first = max(waits, key=lambda reason: waits[reason], default="")
    return highest < AT_ROOF and first == "barrier" and waits[first] >= MIN_BARRIER_SHARE


def limiter(launch: ProfiledLaunch) -> str | None:
    """Say what sets the pace; None where nothing was measured that tells.

    A unit that is busy for 60% of the time or more does. Below that, a launch whose warps are many
    and mostly wait for memory, with a memory unit the busiest, is memory-bound; all others are
    latency-bound.
    """
    memory = busiest(launch, (*MEMORY_UNITS, "memory"))
    compute = busiest(launch, SM_UNITS)
    if memory is None or compute is None:
        known = memory or compute
        if known is None or steady(launch, known[1]) < AT_ROOF:
            return None
        return MEMORY if compute is None else COMPUTE
    highest = steady(launch, max(memory[1], compute[1]))
    if highest >= SATURATED and not _limited_by_barriers(launch, highest):
        # L1 is a part of the SM that feeds its pipes: a product on tensor cores keeps both busy.
        share = L1_SHARE_WEIGHT if memory[0] in _L1_UNITS else 1.0
        return MEMORY if memory[1] * share >= compute[1] else COMPUTE
    # Steps in shared memory between barriers keep L1 busy, and wait for nothing outside the SM.
    between_barriers = highest >= SATURATED and memory[0] in _L1_UNITS
    if between_barriers or memory[1] < max(MIN_MEMORY_UNIT_SHARE, compute[1]):
        return LATENCY
    waiting = stall_share(launch, MEMORY_WAITS)
    occupancy = launch.get(shared.OCCUPANCY)
    full = occupancy is not None and occupancy >= MIN_FULL_OCCUPANCY
    return MEMORY if full and waiting is not None and waiting >= MIN_MEMORY_WAIT else LATENCY
