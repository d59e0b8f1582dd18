"""Warps per SM: how many there are, how many would fit, and what more of them would save."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpusight.analysis.counters import launch_quantities as shared
from gpusight.hardware.sm_occupancy import BlockShape, occupancy, whole_carve_out
from gpusight.naming.kernel_names import classify
from gpusight.rules import kernel_quantities as q
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.kernel_launch import shares
from gpusight.rules.patterns.kernel_speedup import (
    AT_ROOF,
    MIN_SPEEDUP,
    SATURATED,
    THROTTLES,
    busiest,
    roof_limited,
)
from gpusight.rules.rule import CLEAN, KernelRuleMatch, RuleNotApplicable, RuleVerdict, Threshold

if TYPE_CHECKING:
    from gpusight.hardware.sm_limits import SmLimits
    from gpusight.rules.kernel_launch import ProfiledLaunch


MIN_TENSOR_SHARE = 0.1
"""From this share on a kernel lives on its tensor cores. Such kernels hide waits within a few
warps, by pipelines of their own: their low occupancy is a choice."""


@dataclass(frozen=True, slots=True)
class WarpSlots:
    """Warps that fit an SM now, and when one limit is gone."""

    warps: int
    warps_then: int

    @property
    def times(self) -> float:
        """How many times the warps of today that is."""
        return self.warps_then / self.warps


def theoretical(launch: ProfiledLaunch) -> float | None:
    """Give the occupancy that the limits allow."""
    reported = launch.get(shared.THEORETICAL_OCCUPANCY)
    if reported is not None:
        return reported
    return None if launch.fit is None else launch.fit.share


def room(launch: ProfiledLaunch, *, without: str, at_most: float) -> WarpSlots | None:
    """Say how many warps would fit without one limit; None where it does not bind alone.

    The grid must have the blocks, and `at_most` is how much further the limit can be pushed.
    """
    fit, sm, shape = launch.fit, launch.sm, launch.shape
    if fit is None or sm is None or shape is None or not fit.blocks:
        return None
    if fit.limiters != (without,):
        return None
    each = fit.warps_per_block
    then = min(_blocks_without(without, sm, shape) * each, sm.max_warps)
    if launch.grid is not None and launch.sm_count:
        then = min(then, max(fit.blocks, -(-launch.grid // launch.sm_count)) * each)
    return WarpSlots(fit.warps, min(then, int(fit.warps * at_most)))


def _blocks_without(limit: str, sm: SmLimits, shape: BlockShape) -> int:
    """Give the blocks that would fit if one limit were none; the carve-out is chosen anew."""
    sm_then, then = sm, whole_carve_out(shape)
    if limit == "registers":
        then = replace(then, registers=None)
    elif limit == "shared_memory":
        then = replace(then, static_shared_bytes=0, dynamic_shared_bytes=0)
    elif limit == "barriers":
        then = replace(then, barriers=None)
    elif limit == "blocks":
        sm_then = replace(sm, max_blocks=sm.max_warps)
    else:
        sm_then = replace(sm, max_warps=sm.max_warps * sm.max_blocks)
    return occupancy(sm_then, then).blocks


def issue_rate(launch: ProfiledLaunch) -> float | None:
    """Give the instructions that a scheduler issues each active cycle, 0 to 1."""
    measured = launch.get(q.ISSUED)
    if measured is None:
        measured = launch.get(q.ISSUE)
        active = launch.get(q.SM_ACTIVE)
        measured = measured / active if measured is not None and active else measured
    return None if measured is None else min(1.0, measured)


def ready(rate: float, times_warps: float) -> float:
    """Give the share of cycles in which a warp is ready, with so many times the warps.

    If one of the warps of today is ready in a share p of the cycles, then one of n times as many
    in 1 - (1 - p)^n, where readiness is independent.
    """
    return -math.expm1(times_warps * math.log1p(-min(rate, 0.999)))  # exact for small shares too


def time_left_with(launch: ProfiledLaunch, times_warps: float) -> float | None:
    """Give the part of the time that remains with so many times the warps; None if not known.

    Waits for a full queue or pipe stay, and no unit goes beyond its roof.
    """
    rate = issue_rate(launch)
    if rate is None or rate <= 0:
        return None
    throttled = shares(THROTTLES, launch.stalls)
    left = throttled + (1.0 - throttled) * rate / ready(rate, times_warps)
    return roof_limited(launch, left)


def is_tensor_core_kernel(launch: ProfiledLaunch) -> bool:
    """Tell whether the tensor cores do the work; by the name where that was not measured."""
    if "tensor" not in launch.busy:
        return classify(launch.name).tensor_core is True
    tensor = launch.busy["tensor"]
    return tensor >= MIN_TENSOR_SHARE or tensor > launch.busy.get("fma", 1.0)


MAX_LOW_OCCUPANCY = Threshold(
    0.6,
    "highest theoretical occupancy that is called low: above it, more warps have hardly been seen "
    "to help",
)
EXPLAINS = frozenset({"latency-bound"})
NEEDS = (shared.REGISTERS, shared.STATIC_SHARED)
HELPS = (q.ISSUED, q.WARPS, q.WARP_STATES, shared.OCCUPANCY)
ESTIMATE = (
    "A scheduler that finds a ready warp in a share p of the cycles would find one in 1 - (1 - "
    "p)^n with n times the warps; waits for full queues stay, and no unit goes beyond its roof."
)


def check_occupancy_limit(
    launch: ProfiledLaunch, limit: str, *, at_most: float, what: str, sections: tuple[str, ...]
) -> RuleVerdict:
    """Find out whether one limit alone keeps warps away that would hide waits."""
    share = theoretical(launch)
    if share is None or launch.fit is None:
        return RuleNotApplicable("not known: which limit keeps blocks off an SM", sections)
    spare = room(launch, without=limit, at_most=at_most)
    if share > MAX_LOW_OCCUPANCY.value or spare is None or spare.warps_then <= spare.warps:
        return CLEAN
    if is_tensor_core_kernel(launch) or _is_at_a_roof(launch):
        return CLEAN
    left = time_left_with(launch, spare.times)
    if left is None:
        return RuleNotApplicable(
            "not measured: how often the schedulers issued", ("SchedulerStats",)
        )
    return CLEAN if left > 1 / MIN_SPEEDUP else _occupancy_match(launch, share, spare, left, what)


def _is_at_a_roof(launch: ProfiledLaunch) -> bool:
    """Tell whether a unit is so busy that more warps would only queue for it.

    What all SMs share is full well below its peak where accesses are scattered. The pipes of an SM
    are not: with few warps it is the waits between instructions that keep them from their roof.
    """
    common = busiest(launch, ("dram", "l2", "memory"))
    own = busiest(launch)
    return (common is not None and common[1] >= SATURATED) or (
        own is not None and own[1] >= AT_ROOF
    )


def _occupancy_match(
    launch: ProfiledLaunch, share: float, spare: WarpSlots, left: float, what: str
) -> KernelRuleMatch:
    rate = issue_rate(launch) or 0.0
    roof = busiest(launch)
    return KernelRuleMatch(
        title=f"{what} let only {share:.0%} of the warps of an SM be resident",
        time_share=left,
        estimate=f"with {spare.warps_then} warps on an SM instead of {spare.warps}, a scheduler "
        f"would issue in {ready(rate, spare.times):.0%} of the cycles instead of {rate:.0%}"
        + (f"; busiest unit at {roof[1]:.0%}" if roof else ""),
        evidence=(
            Evidence("theoretical_occupancy", share, "share", shared.THEORETICAL_OCCUPANCY.meaning),
            Evidence("warps_per_sm", spare.warps, "", "Warps that fit an SM at once"),
            Evidence("warps_without_limit", spare.warps_then, "", "Warps that would fit"),
            *launch.evidence(
                shared.OCCUPANCY,
                shared.REGISTERS,
                shared.STATIC_SHARED,
                shared.DYNAMIC_SHARED,
                q.WARPS,
            ),
            Evidence("issue_rate", rate, "share", "Cycles in which a scheduler issued"),
        ),
        confidence=Confidence.MEDIUM if launch.stalls else Confidence.LOW,
        confidence_reason="whether the code can do with less is not known"
        if launch.stalls
        else "what warps waited for was not measured",
    )
