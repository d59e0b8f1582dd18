"""What holds a launch up: memory, compute, or latency.

Other than the roofline's `bound`, which tells how busy units were, this asks what warps waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.counters import quantities as shared
from gpusight.findings.kernels.launch import MEMORY_UNITS, SM_UNITS
from gpusight.findings.kernels.model import AT_ROOF, RUNNING, SATURATED, blamed, busiest, steady
from gpusight.findings.kernels.stalls import MEMORY_WAITS

if TYPE_CHECKING:
    from gpusight.findings.kernels.launch import Launch

MEMORY, COMPUTE, LATENCY = "memory", "compute", "latency"
FULL = 0.5
"""Occupancy from which on a GPU is full enough: more warps would not help."""
NOTICEABLE = 0.3
"""Share of a memory unit from which on waits for memory are waits for its bandwidth too."""
NEARLY = 0.95
_L1_UNITS = ("l1", "l1_data", "l1_to_l2")
BARRIERS = 0.25
"""Part of the warps' time at barriers from which on these set the pace."""
MOSTLY = 0.5
"""Part of the warps' time from which on they mostly wait for memory."""


def _held_at_barriers(launch: Launch, highest: float) -> bool:
    """Tell whether a unit that is not at its roof is kept from it by barriers."""
    waits = {r: s for r, s in launch.stalls.items() if r not in RUNNING}
    first = max(waits, key=lambda reason: waits[reason], default="")
    return highest < AT_ROOF and first == "barrier" and waits[first] >= BARRIERS


def held_by(launch: Launch) -> str | None:
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
    if highest >= SATURATED and not _held_at_barriers(launch, highest):
        # L1 is a part of the SM that feeds its pipes: a product on tensor cores keeps both busy.
        share = NEARLY if memory[0] in _L1_UNITS else 1.0
        return MEMORY if memory[1] * share >= compute[1] else COMPUTE
    # Steps in shared memory between barriers keep L1 busy, and wait for nothing outside the SM.
    between_barriers = highest >= SATURATED and memory[0] in _L1_UNITS
    if between_barriers or memory[1] < max(NOTICEABLE, compute[1]):
        return LATENCY
    waiting = blamed(launch, MEMORY_WAITS)
    occupancy = launch.get(shared.OCCUPANCY)
    full = occupancy is not None and occupancy >= FULL
    return MEMORY if full and waiting is not None and waiting >= MOSTLY else LATENCY
