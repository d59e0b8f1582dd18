"""How much faster a launch would be after a fix, and what more resident warps would save."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import AT_ROOF, SATURATED, busiest, overhead
from gpusight.analysis.counters.profiled_launch import UNIT_NAMES, shares
from gpusight.analysis.occupancy.block_occupancy import (
    REGISTER_CHANGE,
    SHARED_MEMORY_CHANGE,
    reductions,
)
from gpusight.hardware.sm_limits import occupancy, whole_carve_out
from gpusight.naming.kernel_names import classify
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.rule import CLEAN, KernelRuleMatch, RuleNotApplicable, RuleVerdict, Threshold
from gpusight.units import format_speedup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch


ATTAINABLE = 0.9
"""The share of its peak that a unit reaches in practice; copies reach 82 to 93% of DRAM."""
PIPES = ("issue", "fma", "alu", "fp16", "fp64")
PIPE_ATTAINABLE = 0.97
"""The same for the schedulers and the pipes of the SMs: loops of arithmetic reach 95 to 98%."""
MIN_SPEEDUP = 1.1
"""Estimates are not sharper than a tenth: a smaller gain is no finding."""


def time_left(
    launch: ProfiledLaunch, after: Mapping[str, float], *, waits_left: float | None = None
) -> float | None:
    """Return the part of the duration that remains after a fix; None where it is not known.

    `after` is how busy the units that the fix relieves would be, over the current duration;
    `waits_left` the part of the warps' time that remains, None where it is not known.
    """
    before = launch.busy
    if not before and waits_left is None:
        return None
    highest = max(before.values(), default=0.0)
    busy_after = {**before, **{unit: share for unit, share in after.items() if unit in before}}
    next_highest = max(busy_after.values(), default=0.0)
    saturated = highest >= SATURATED or waits_left is None
    pace = highest if saturated else ATTAINABLE
    by_units = next_highest / pace if pace else 1.0
    return with_launch_overhead(launch, max(by_units, waits_left or 0.0))


def is_worth(remaining: float | None) -> bool:
    """Return whether a gain is large enough for a finding, or not known."""
    return remaining is None or remaining <= 1 / MIN_SPEEDUP


def with_launch_overhead(launch: ProfiledLaunch, remaining: float) -> float:
    """Bound an estimate from below: the overhead of a launch remains in any case."""
    fixed = overhead(launch)
    return min(1.0, max(fixed + (1 - fixed) * remaining, 1e-3))


def roof_limited(launch: ProfiledLaunch, remaining: float) -> float:
    """Bound an estimate from below by what the busiest unit needs at best."""
    return min(
        1.0,
        max(with_launch_overhead(launch, remaining), overhead(launch) + busiest_unit_time(launch)),
    )


def busiest_unit_time(launch: ProfiledLaunch) -> float:
    """Return the part of the time that the busiest unit needs at best."""
    times = (
        share / (PIPE_ATTAINABLE if unit in PIPES else ATTAINABLE)
        for unit, share in launch.busy.items()
    )
    return max(times, default=0.0)


def roof_distance(launch: ProfiledLaunch, share: float) -> float:
    """Return the fraction of the time that remains when a unit reaches its peak."""
    return min(1.0, overhead(launch) + share / AT_ROOF)


def limit_sentence(
    launch: ProfiledLaunch, after: Mapping[str, float], remaining: float | None
) -> str:
    """Describe what limits a gain: the unit that is busiest after the fix, or other stalls."""
    busy_after = {**launch.busy, **{u: s for u, s in after.items() if u in launch.busy}}
    if remaining is None:
        return "gain unknown: utilization was not measured"
    if not busy_after:
        return "then limited by the remaining stalls"
    unit, share = max(busy_after.items(), key=lambda pair: pair[1])
    highest = max(launch.busy.values())
    if share >= remaining * highest * 0.98:
        before = launch.busy[unit]
        change = f" instead of {before:.0%}" if f"{before:.0%}" != f"{share:.0%}" else ""
        return (
            f"then limited by {UNIT_NAMES[unit]}, which needs {share:.0%}{change} of the present "
            "time"
        )
    return "then limited by the remaining stalls"


SHARED_WAITS = ("short_scoreboard", "mio_throttle")
"""Stalls on shared memory, and on what shares its queue."""
THROTTLES = ("math_pipe_throttle", "mio_throttle", "lg_throttle", "tex_throttle")
"""Stalls that more warps do not hide: a queue or a pipe is full."""


# Occupancy ----------------------------------------------------------------------------------------


MIN_TENSOR_SHARE = 0.1
"""From this share on a kernel is a Tensor Core kernel. Such kernels hide latency with few warps, by
software pipelines: their low occupancy is intended."""


@dataclass(frozen=True, slots=True)
class WarpSlots:
    """Warps that fit an SM, and those that would fit without one limit."""

    warps: int
    warps_then: int
    """As far as the estimate goes."""
    warps_without: int
    """By the other limits of the SM and the grid."""

    @property
    def times(self) -> float:
        """Factor between them."""
        return self.warps_then / self.warps


def theoretical_occupancy(launch: ProfiledLaunch) -> float | None:
    """Return the theoretical occupancy."""
    reported = launch.get(shared.THEORETICAL_OCCUPANCY)
    if reported is not None:
        return reported
    return None if launch.fit is None else launch.fit.share


def free_warp_slots(launch: ProfiledLaunch, *, without: str, at_most: float) -> WarpSlots | None:
    """Return how many warps would fit without one limit; None where it is not the only one.

    No more than the grid has, and `at_most` times the warps that fit now.
    """
    fit, sm, shape = launch.fit, launch.sm, launch.shape
    if fit is None or sm is None or shape is None or not fit.blocks:
        return None
    if fit.limiters != (without,):
        return None
    # Without the limit, and with another carve-out if needed.
    sm_then, then = sm, whole_carve_out(shape)
    if without == "registers":
        then = replace(then, registers=None)
    elif without == "shared_memory":
        then = replace(then, static_shared_bytes=0, dynamic_shared_bytes=0)
    elif without == "barriers":
        then = replace(then, barriers=None)
    elif without == "blocks":
        sm_then = replace(sm, max_blocks=sm.max_warps)
    else:
        sm_then = replace(sm, max_warps=sm.max_warps * sm.max_blocks)
    warps = min(occupancy(sm_then, then).blocks * fit.warps_per_block, sm.max_warps)
    if launch.grid is not None and launch.sm_count:
        blocks = max(fit.blocks, -(-launch.grid // launch.sm_count))
        warps = min(warps, blocks * fit.warps_per_block)
    return WarpSlots(fit.warps, min(warps, int(fit.warps * at_most)), warps)


@dataclass(frozen=True, slots=True)
class ResourceStep:
    """What a block may use so that more warps fit, and the speedup of that."""

    value: int
    """Registers per thread, or bytes of shared memory per block."""
    blocks: int
    warps: int
    speedup: float | None


def resource_steps(launch: ProfiledLaunch, limit: str, warps: int) -> tuple[ResourceStep, ...]:
    """Return the smallest reduction with which more warps fit, and the one with which `warps` do.

    These are the changes that `gpusight occupancy` lists; none for other limits than registers and
    shared memory.
    """
    fit, sm, shape = launch.fit, launch.sm, launch.shape
    if fit is None or sm is None or shape is None or limit not in _RESOURCES:
        return ()
    better = reductions(
        sm, shape, REGISTER_CHANGE if limit == "registers" else SHARED_MEMORY_CHANGE
    )
    enough = next((s for s in better if s.occupancy.warps >= warps), None)
    if enough is None:
        return ()
    steps = []
    for step in (better[0],) if enough is better[0] else (better[0], enough):
        remaining = time_left_with(launch, min(step.occupancy.warps, warps) / fit.warps)
        speedup = None if remaining is None else 1 / remaining
        steps.append(ResourceStep(step.value, step.occupancy.blocks, step.occupancy.warps, speedup))
    return tuple(steps)


def _step_comment(number: int, step: ResourceStep, unit: str) -> str:
    # Without the speedup, which the title has for all launches of the kernel: this is of one.
    return f"// step {number}: {step.value} {unit}, {step.warps} warps per SM"


def _resource_code(limit: str, threads: int, steps: Sequence[ResourceStep]) -> str:
    """Write the smallest step as code to paste, and the further one as a comment below it."""
    if limit == "registers":
        lines = []
        for number, step in enumerate(steps, 1):
            bounds = f"__launch_bounds__({threads}, {step.blocks})"
            if number == 1:
                declared = f"__global__ void {bounds} kernel(...)"
                lines += [_step_comment(number, step, "registers"), declared]
            else:
                comment = _step_comment(number, step, "registers")
                lines += [f"{comment}, unless it spills", f"//   {bounds}"]
        lines += [
            "// check each step: nvcc -Xptxas -v must print 0 bytes spill stores",
            "#pragma unroll 4                          // instead of a full unroll",
        ]
        return "\n".join(lines) + "\n"
    lines = [_step_comment(number, step, "bytes") for number, step in enumerate(steps, 1)]
    lines += [
        f"size_t bytes = ...;                       // at most {steps[0].value}",
        f"kernel<<<blocks, {threads}, bytes>>>(...);",
        "// raise the shared-memory carveout",
        "cudaFuncSetAttribute(kernel,",
        "                     cudaFuncAttributePreferredSharedMemoryCarveout,",
        "                     cudaSharedmemCarveoutMaxShared);",
    ]
    return "\n".join(lines) + "\n"


def _resource_text(limit: str, step: ResourceStep) -> str:
    if limit == "registers":
        return f"{step.value} registers per thread"
    return f"{step.value:,} B of shared memory per block"


def issue_rate(launch: ProfiledLaunch) -> float | None:
    """Return the instructions that a scheduler issues per active cycle, 0 to 1."""
    measured = launch.get(q.ISSUED)
    if measured is None:
        measured = launch.get(q.ISSUE)
        active = launch.get(q.SM_ACTIVE)
        measured = measured / active if measured is not None and active else measured
    return None if measured is None else min(1.0, measured)


def ready_share(rate: float, times_warps: float) -> float:
    """Return the share of cycles in which a warp is ready, with `times_warps` as many warps.

    If one of the current warps is ready in a share p of the cycles, then one of n times as many in
    1 - (1 - p)^n, where readiness is independent.
    """
    return -math.expm1(times_warps * math.log1p(-min(rate, 0.999)))  # exact for small shares too


def time_left_with(launch: ProfiledLaunch, times_warps: float) -> float | None:
    """Return the part of the time that remains with more warps; None if not known.

    Stalls on a full queue or pipe remain, and no unit exceeds its peak.
    """
    rate = issue_rate(launch)
    if rate is None or rate <= 0:
        return None
    throttled = shares(THROTTLES, launch.stalls)
    remaining = throttled + (1.0 - throttled) * rate / ready_share(rate, times_warps)
    return roof_limited(launch, remaining)


def is_tensor_core_kernel(launch: ProfiledLaunch) -> bool:
    """Return whether a kernel uses the Tensor Cores; by its name where that was not measured."""
    if "tensor" not in launch.busy:
        return classify(launch.name).tensor_core is True
    tensor = launch.busy["tensor"]
    return tensor >= MIN_TENSOR_SHARE or tensor > launch.busy.get("fma", 1.0)


MAX_LOW_OCCUPANCY = Threshold(
    0.6, "max. theoretical occupancy that counts as low; above it, more warps rarely help"
)
OCCUPANCY_NEEDS = (shared.REGISTERS, shared.STATIC_SHARED)
OCCUPANCY_HELPS = (q.ISSUED, q.WARPS, q.WARP_STATES, shared.OCCUPANCY)
OCCUPANCY_ESTIMATE = (
    "A scheduler that has an eligible warp in a share p of the cycles has one in 1 - (1 - p)^n "
    "with n times the warps. Throttle stalls stay, and no unit exceeds its roofline. What counts "
    "is the smallest change with which another block fits on an SM, if it gains enough."
)


def check_occupancy_limit(
    launch: ProfiledLaunch, limit: str, *, at_most: float, what: str
) -> RuleVerdict:
    """Check whether one limit alone prevents warps that would hide latency."""
    share = theoretical_occupancy(launch)
    if share is None or launch.fit is None:
        sections = ("Occupancy", "LaunchStats")
        return RuleNotApplicable("the occupancy limiter is unknown", sections)
    spare = free_warp_slots(launch, without=limit, at_most=at_most)
    if share > MAX_LOW_OCCUPANCY.value or spare is None or spare.warps_then <= spare.warps:
        return CLEAN
    if is_tensor_core_kernel(launch) or _is_at_a_roof(launch):
        return CLEAN
    remaining = time_left_with(launch, spare.times)
    if remaining is None:
        return RuleNotApplicable("not measured: scheduler issue rate", ("SchedulerStats",))
    return (
        CLEAN
        if remaining > 1 / MIN_SPEEDUP
        else _occupancy_match(launch, share, spare, remaining, limit, what)
    )


def _is_at_a_roof(launch: ProfiledLaunch) -> bool:
    """Return whether a unit is so busy that more warps would only queue for it.

    What all SMs share saturates well below its peak where accesses are scattered. The pipes of an
    SM do not: with few warps, the latency between instructions keeps them below their peak.
    """
    common, unit = busiest(launch, ("dram", "l2", "memory")), busiest(launch)
    return (common is not None and common[1] >= SATURATED) or (
        unit is not None and unit[1] >= AT_ROOF
    )


_BY_OTHER_LIMITS = "Max. resident warps per SM by the other limits"
_RESOURCES = {
    "registers": (shared.REGISTERS,),
    "shared_memory": (shared.DYNAMIC_SHARED, shared.STATIC_SHARED),
}
"""What a block has of each limit."""


def _occupancy_match(
    launch: ProfiledLaunch, share: float, spare: WarpSlots, remaining: float, limit: str, what: str
) -> KernelRuleMatch:
    rate = issue_rate(launch) or 0.0
    steps = resource_steps(launch, limit, spare.warps_then)
    warps, step, further = spare.warps_then, steps[-1] if steps else None, ""
    if len(steps) > 1 and steps[0].speedup is not None:
        other = steps[0]
        if steps[0].speedup >= MIN_SPEEDUP:
            # The smallest step counts, so that findings rank by what takes about as much work: with
            # far fewer registers most kernels spill, with far less shared memory tiles reuse less.
            step, other, warps = steps[0], steps[1], steps[0].warps
            remaining = 1 / steps[0].speedup
        if other.speedup is not None:
            further = f"; {format_speedup(other.speedup)} with {other.warps} warps"
            further += f" ({_resource_text(limit, other)})"
    needs = "" if step is None else f" ({_resource_text(limit, step)})"
    spills = "; less if registers spill" if limit == "registers" else ""
    times = spare.times * warps / spare.warps_then
    threads = launch.block or 0
    roof = busiest(launch)
    return KernelRuleMatch(
        title=f"Occupancy {share:.0%}, limited by {what}",
        time_share=remaining,
        estimate=f"with {warps} warps per SM{needs} instead of {spare.warps}, "
        f"schedulers issue in {ready_share(rate, times):.0%} of the cycles instead of {rate:.0%}"
        + (f"; busiest unit at {roof[1]:.0%}" if roof else "")
        + further
        + spills,
        evidence=(
            Evidence("theoretical_occupancy", share, "share", shared.THEORETICAL_OCCUPANCY.meaning),
            Evidence("warps_per_sm", spare.warps, "", "Max. resident warps per SM"),
            Evidence("warps_without_limit", spare.warps_without, "", _BY_OTHER_LIMITS),
            *launch.evidence(*_RESOURCES.get(limit, (shared.BLOCK_SIZE,))),
            Evidence("issue_rate", rate, "share", "Issue slot utilization"),
            *launch.evidence(shared.OCCUPANCY, q.WARPS),
        ),
        code=_resource_code(limit, threads, steps) if steps else "",
        confidence=Confidence.MEDIUM if launch.stalls else Confidence.LOW,
        confidence_reason="whether the kernel can use less is unknown"
        if launch.stalls
        else "warp stalls were not measured",
    )
