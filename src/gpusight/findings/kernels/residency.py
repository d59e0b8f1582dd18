"""Warps on an SM: how many there are, how many there could be, and what more of them would give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.analyses.counters import quantities as shared
from gpusight.findings.kernels import quantities as q
from gpusight.findings.kernels.launch import shares
from gpusight.findings.kernels.model import roof_limited
from gpusight.findings.kernels.stalls import THROTTLES

if TYPE_CHECKING:
    from gpusight.findings.kernels.launch import Launch

TENSOR_KERNEL = 0.1
"""From this share on a kernel lives on its tensor cores. Such kernels hide waits within a few
warps, by pipelines of their own: their low occupancy is a choice."""


@dataclass(frozen=True, slots=True)
class Room:
    """Warps that fit an SM now, and when one limit is gone."""

    warps: int
    warps_then: int

    @property
    def times(self) -> float:
        """How many times the warps of today that is."""
        return self.warps_then / self.warps


def binding_limit(launch: Launch) -> tuple[str, ...]:
    """Name the limits that keep the next block off an SM."""
    limits = _told_apart(launch)
    least = min(limits.values(), default=0)
    return tuple(name for name, blocks in limits.items() if blocks == least)


def _told_apart(launch: Launch) -> dict[str, int]:
    """Leave out limits that are none of their own: of barriers and shared memory not asked for."""
    limits = dict(launch.blocks_by_limit)
    if limits.get("barriers") == limits.get("blocks"):
        limits.pop("barriers", None)
    asked = (launch.get(shared.STATIC_SHARED) or 0) + (launch.get(shared.DYNAMIC_SHARED) or 0)
    if not asked:  # what the driver takes for each block then sets the limit, and its carve-out
        limits.pop("shared_memory", None)
    return limits


def theoretical(launch: Launch) -> float | None:
    """Give the occupancy that the limits allow."""
    reported = launch.get(shared.THEORETICAL_OCCUPANCY)
    if reported is not None:
        return reported
    blocks, warps, sm = launch.blocks_per_sm, launch.warps_per_block, launch.sm
    if blocks is None or warps is None or sm is None:
        return None
    return blocks * warps / sm.max_warps


def room(launch: Launch, *, without: str, at_most: float) -> Room | None:
    """Say how many warps would fit without one limit; None where it does not bind alone.

    The grid must have the blocks, and `at_most` is how much further the limit can be pushed.
    """
    each, sm, now = launch.warps_per_block, launch.sm, launch.blocks_per_sm
    if binding_limit(launch) != (without,) or not each or sm is None or not now:
        return None
    others = [blocks for name, blocks in _told_apart(launch).items() if name != without]
    then = min(min(others, default=now) * each, sm.max_warps)
    if launch.grid is not None and launch.sm_count:
        then = min(then, max(now, -(-launch.grid // launch.sm_count)) * each)
    return Room(now * each, min(then, int(now * each * at_most)))


def issue_rate(launch: Launch) -> float | None:
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
    return float(1.0 - (1.0 - min(rate, 0.999)) ** times_warps)


def time_left_with(launch: Launch, times_warps: float) -> float | None:
    """Give the part of the time that remains with so many times the warps; None if not known.

    Waits for a full queue or pipe stay, and no unit goes beyond its roof.
    """
    rate = issue_rate(launch)
    if rate is None or rate <= 0:
        return None
    throttled = shares(THROTTLES, launch.stalls)
    left = throttled + (1.0 - throttled) * rate / ready(rate, times_warps)
    return roof_limited(launch, left)


def lives_on_tensor_cores(launch: Launch) -> bool:
    """Tell whether the tensor cores do the work."""
    tensor = launch.busy.get("tensor", 0.0)
    return tensor >= TENSOR_KERNEL or tensor > launch.busy.get("fma", 1.0)
