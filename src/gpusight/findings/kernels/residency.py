"""Warps on an SM: how many there are, how many there could be, and what more of them would give."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpusight.analyses.counters import quantities as shared
from gpusight.findings.kernels import quantities as q
from gpusight.findings.kernels.launch import shares
from gpusight.findings.kernels.model import roof_limited
from gpusight.findings.kernels.stalls import THROTTLES
from gpusight.model.kernel_names import classify
from gpusight.model.occupancy import Shape, occupancy, whole_carve_out

if TYPE_CHECKING:
    from gpusight.findings.kernels.launch import Launch
    from gpusight.model.sm_table import SmLimits

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


def theoretical(launch: Launch) -> float | None:
    """Give the occupancy that the limits allow."""
    reported = launch.get(shared.THEORETICAL_OCCUPANCY)
    if reported is not None:
        return reported
    return None if launch.fit is None else launch.fit.share


def room(launch: Launch, *, without: str, at_most: float) -> Room | None:
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
    return Room(fit.warps, min(then, int(fit.warps * at_most)))


def _blocks_without(limit: str, sm: SmLimits, shape: Shape) -> int:
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
    return -math.expm1(times_warps * math.log1p(-min(rate, 0.999)))  # exact for small shares too


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
    """Tell whether the tensor cores do the work; by the name where that was not measured."""
    if "tensor" not in launch.busy:
        return classify(launch.name).tensor_core is True
    tensor = launch.busy["tensor"]
    return tensor >= TENSOR_KERNEL or tensor > launch.busy.get("fma", 1.0)
