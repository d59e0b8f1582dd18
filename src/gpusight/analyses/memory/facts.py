"""The numbers at the top: the peak, what was reserved, how it began, ended and grew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpusight.analyses.memory.view import allocated_at, reserved_at
from gpusight.result import Fact, Field, Fmt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.memory.blocks import Flags
    from gpusight.analyses.memory.growth import Growth
    from gpusight.analyses.memory.view import View

    Floats = NDArray[np.float64]

FACT_FIELDS = (
    Field("peak_bytes", "Peak", Fmt.BYTES, "The most in use at once"),
    Field("peak_ns", "Peak at", Fmt.TIME, "When that was first reached"),
    Field("peak_share", "Of GPU memory", Fmt.SHARE, "The peak's part of the GPU's memory"),
    Field("peak_step", "In step", Fmt.ID, "Number of the step that holds the peak"),
    Field("start_bytes", "At the start", Fmt.BYTES, "In use when the window begins"),
    Field("end_bytes", "At the end", Fmt.BYTES, "In use when the window ends"),
    Field("reserved_at_peak_bytes", "Reserved at peak", Fmt.BYTES, "Held from the driver then"),
    Field("reserved_max_bytes", "Most reserved", Fmt.BYTES, "The most held from the driver"),
    Field(
        "fragmentation_at_peak",
        "Unused at peak",
        Fmt.SHARE,
        "Part of what was reserved that was not in use at the peak: fragmentation, and cache",
    ),
    Field("fragmentation_worst", "Most unused", Fmt.SHARE, "The same when it was largest"),
    Field("fragmentation_worst_ns", "Most unused at", Fmt.TIME, "When that was"),
    Field(
        "growth_per_step_bytes",
        "Growth a step",
        Fmt.BYTES,
        "What stays in use from step to step, median over all pairs of steps; null without steps",
    ),
    Field("allocations", "Allocations", Fmt.COUNT, "Allocations in the window"),
    Field(
        "allocations_per_step",
        "Allocations a step",
        Fmt.COUNT,
        "Median allocations of a step; null without steps",
    ),
    Field(
        "allocated_total_bytes", "Allocated in all", Fmt.BYTES, "Sizes of those allocations, summed"
    ),
)
"""What may be said; what the capture cannot tell is left out, growth aside."""


def facts(view: View, steps: Growth, memory_bytes: int | None) -> tuple[Fact, ...]:
    """Give the facts about one memory; `memory_bytes` is how much the GPU has."""
    start, end = (view.history.allocated_after(int(view.points.events[i])) for i in (0, -1))
    values = {
        "peak_bytes": view.peak_bytes,
        "peak_ns": view.peak_ns,
        **_known(
            peak_share=view.peak_bytes / memory_bytes if memory_bytes else None,
            peak_step=steps.step_at(view.peak_ns),
        ),
        "start_bytes": start,
        "end_bytes": end,
        **_reserved(view),
        "growth_per_step_bytes": steps.per_step,
        "allocations": len(view.takes),
        "allocations_per_step": steps.allocations,
        "allocated_total_bytes": int(view.takes.sum()),
    }
    return tuple(
        Fact(f.key, f.label, values[f.key], f.fmt, f.meaning)
        for f in FACT_FIELDS
        if f.key in values
    )


def _reserved(view: View) -> dict[str, Any]:
    """Give what was reserved, where the capture tells."""
    reserved = reserved_at(view.history, view.points)
    if reserved is None:
        return {}
    allocated = allocated_at(view.history, view.points)
    unused = np.full(len(reserved), -np.inf)
    np.divide(reserved - allocated, reserved, out=unused, where=reserved > 0)
    return {
        "reserved_at_peak_bytes": int(reserved[view.peak]),
        "reserved_max_bytes": int(reserved.max()),
        "fragmentation_at_peak": float(unused[view.peak]) if reserved[view.peak] > 0 else None,
        **_worst(view, np.where(_settled(view), unused, -np.inf)),
    }


def _worst(view: View, unused: Floats) -> dict[str, Any]:
    """Find when most of what was reserved was not in use; nothing where that cannot be said."""
    worst = int(np.argmax(unused))
    if np.isneginf(unused[worst]):
        return {}
    return {
        "fragmentation_worst": float(unused[worst]),
        "fragmentation_worst_ns": int(view.points.times[worst]),
    }


def _settled(view: View) -> Flags:
    """Tell at which points what is reserved can be compared with what is in use.

    Not before anything is in use; nor inside one request for memory, between the segment that is
    taken for it and the block that is handed out of that.
    """
    history = view.history
    assert history.reserved is not None, "what is reserved is not known"
    levels = np.append(history.start_allocated, history.allocated)
    taken = np.diff(history.reserved, prepend=history.start_reserved or 0) > 0
    settled = (np.maximum.accumulate(levels)[1:] > 0) & ~(taken & (np.diff(levels) == 0))
    found: Flags = np.append(settled, history.start_allocated > 0)[view.points.events]
    return found


def _known(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
