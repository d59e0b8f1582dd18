"""What the three rules about low occupancy have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.counters import quantities as shared
from gpusight.findings.finding import Confidence, Evidence
from gpusight.findings.kernels import quantities as q
from gpusight.findings.kernels.model import AT_ROOF, SATURATED, WORTH, busiest
from gpusight.findings.kernels.residency import (
    Room,
    issue_rate,
    lives_on_tensor_cores,
    ready,
    room,
    theoretical,
    time_left_with,
)
from gpusight.findings.kernels.rule import Absent, Found, Verdict
from gpusight.findings.verdict import CLEAN, Limit

if TYPE_CHECKING:
    from gpusight.findings.kernels.launch import Launch

LOW = Limit(
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


def judge(
    launch: Launch, limit: str, *, at_most: float, what: str, sections: tuple[str, ...]
) -> Verdict:
    """Find out whether one limit alone keeps warps away that would hide waits."""
    share = theoretical(launch)
    if share is None or launch.fit is None:
        return Absent("not known: which limit keeps blocks off an SM", sections)
    spare = room(launch, without=limit, at_most=at_most)
    if share > LOW.value or spare is None or spare.warps_then <= spare.warps:
        return CLEAN
    if lives_on_tensor_cores(launch) or _is_at_a_roof(launch):
        return CLEAN
    left = time_left_with(launch, spare.times)
    if left is None:
        return Absent("not measured: how often the schedulers issued", ("SchedulerStats",))
    return CLEAN if left > 1 / WORTH else _found(launch, share, spare, left, what)


def _is_at_a_roof(launch: Launch) -> bool:
    """Tell whether a unit is so busy that more warps would only queue for it.

    What all SMs share is full well below its peak where accesses are scattered. The pipes of an SM
    are not: with few warps it is the waits between instructions that keep them from their roof.
    """
    common = busiest(launch, ("dram", "l2", "memory"))
    own = busiest(launch)
    return (common is not None and common[1] >= SATURATED) or (
        own is not None and own[1] >= AT_ROOF
    )


def _found(launch: Launch, share: float, spare: Room, left: float, what: str) -> Found:
    rate = issue_rate(launch) or 0.0
    roof = busiest(launch)
    return Found(
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
