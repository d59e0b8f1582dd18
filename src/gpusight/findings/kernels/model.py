"""How much faster a launch would be: the one model behind every estimate.

A launch takes as long as its busiest unit needs, or, where no unit is busy, as long as its warps
wait. A fix takes load off some units and removes some waits. What is left of the time is the larger
of

- what the units still need: the load of the busiest one after the fix, over the load of the busiest
  one before it (a launch that saturates a unit now will saturate the next one as well), or over
  what a unit can attain where none is saturated now; and
- the waits that stay, where it is known what warps waited for.

So a fix gets only what it gives: it is limited by the next bottleneck and by the waits it leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.roofline.points import BUSY
from gpusight.findings.kernels.launch import UNIT_NAMES, shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpusight.findings.kernels.launch import Launch

SATURATED = BUSY
"""From this share on a unit sets the pace. Below it, units wait for work."""
ATTAINABLE = 0.9
"""What a unit reaches at best in practice; copies reach 82 to 93% of DRAM."""
PIPES = ("issue", "fma", "alu", "fp16", "fp64")
PIPE_ATTAINABLE = 0.97
"""The same for the schedulers and the pipes of the SMs: loops of arithmetic reach 95 to 98%."""
AT_ROOF = 0.8
"""From this share of a unit's peak on, a launch is at its roof."""
WORTH = 1.1
"""Estimates are not sharper than a tenth: a smaller gain is no finding."""
OVERHEAD_NS = 1_500.0
"""What starting and draining a grid takes, whatever it does: no launch is shorter."""
MOST_OVERHEAD = 0.9
"""Part of a launch that may be called overhead: shorter ones than we know of do exist."""
WAITING_FOR_OTHERS = ("barrier", "sleeping", "membar", "drain")
"""Waits that are as long as what others wait for, or as what is still under way."""
SHORT = 0.5
"""Most that is taken off a short launch as overhead, when asking how busy a unit was."""
RUNNING = ("selected", "not_selected")
"""Warps that issue, or could: nothing is lost on them."""


def time_left(
    launch: Launch, after: Mapping[str, float], *, waits_left: float | None = None
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


def overhead(launch: Launch) -> float:
    """Give the part of the duration that starting and draining the grid takes."""
    if not launch.duration_ns:
        return 0.0
    return min(MOST_OVERHEAD, OVERHEAD_NS / launch.duration_ns)


def is_worth(left: float | None) -> bool:
    """Tell whether a gain is large enough to speak of; one that is not known is."""
    return left is None or left <= 1 / WORTH


def limited(launch: Launch, left: float) -> float:
    """Keep an estimate within what is possible: the overhead of a launch stays in any case."""
    fixed = overhead(launch)
    return min(1.0, max(fixed + (1 - fixed) * left, 1e-3))


def roof_limited(launch: Launch, left: float) -> float:
    """Keep an estimate above what the busiest unit needs at best."""
    return min(1.0, max(limited(launch, left), overhead(launch) + needed(launch)))


def needed(launch: Launch) -> float:
    """Give the part of the time that the busiest unit needs at best."""
    shares_ = [share / attainable(unit) for unit, share in launch.busy.items()]
    return max(shares_, default=0.0)


def attainable(unit: str) -> float:
    """Give the share of its peak that a unit reaches at best in practice."""
    return PIPE_ATTAINABLE if unit in PIPES else ATTAINABLE


def roof_distance(launch: Launch, share: float) -> float:
    """Give the part of the time that remains when a unit comes to where its roof begins."""
    return min(1.0, overhead(launch) + share / AT_ROOF)


def steady(launch: Launch, share: float) -> float:
    """Give how busy a unit was between the start and the drain of the grid."""
    return min(1.0, share / (1 - min(SHORT, overhead(launch))))


def waits_left(launch: Launch, removed: Mapping[str, float]) -> float | None:
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


def blamed(launch: Launch, reasons: Iterable[str]) -> float | None:
    """Give the part of the warps' time that these waits cost; None where it is not known."""
    left = waits_left(launch, dict.fromkeys(reasons, 1.0))
    return None if left is None else 1.0 - left


def busiest(launch: Launch, units: Iterable[str] | None = None) -> tuple[str, float] | None:
    """Name the busiest unit, of all or of some, and how busy it was."""
    of = [(u, s) for u, s in launch.busy.items() if units is None or u in set(units)]
    return max(of, key=lambda pair: pair[1], default=None)


def limit_sentence(launch: Launch, after: Mapping[str, float], left: float | None) -> str:
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
