"""memory-growth: memory in use rises from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.memory.device_memory import DeviceMemories, slope
from gpusight.analysis.memory.memory_peak import find_holders
from gpusight.analysis.selection import EVERYTHING
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import MAX_LOCATIONS_SHOWN, framework_of
from gpusight.rules.locations import one_stretch
from gpusight.rules.rule import (
    CLEAN,
    FindingLocation,
    RuleMatch,
    RuleNotApplicable,
    Threshold,
    TimelineRule,
)
from gpusight.units import format_bytes, format_count

if TYPE_CHECKING:
    from gpusight.analysis.memory.allocations import AllocationHistory
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


MIN_STEPS = Threshold(4, "steps that a trend needs; fewer may be the end of warming up")
MIN_GROWTH_OF_PEAK = Threshold(
    0.01, "growth of a step as a part of the peak that is worth a word by itself"
)
MAX_STEPS_TO_FULL = Threshold(
    10_000, "steps in which the GPU is full, so that a run of usual length would not end well"
)
MAX_FALLING_SHARE = Threshold(0.1, "part of all pairs of steps of which the later may hold less")
MIN_LATER_GROWTH = Threshold(
    0.5, "growth of the later half over that of all steps, below which it is levelling off"
)


class MemoryGrowth(TimelineRule):
    """Memory that is not freed."""

    id = "memory-growth"
    detects = "Looks for memory in use at the end of steps that rises steadily."
    why = (
        "Something keeps a part of what each step takes: a list of losses with their graphs, a "
        "cache without a limit, hooks that hold tensors. The run ends when the GPU is full."
    )
    fix = (
        "Keep numbers instead of tensors (loss.item(), tensor.detach()), give caches a limit, and "
        "drop references at the end of the step."
    )
    code = """\
total += loss.detach()  # not: losses.append(loss)
torch.cuda.memory._record_memory_history()  # who took what is held
torch.cuda.memory._dump_snapshot("memory.pickle")
"""
    verify = "`gpusight memory` shows a growth a step of about 0."
    caveats = (
        "A cache that a program fills on purpose grows as well: keys and values while a sequence "
        "is generated, embeddings seen for the first time. So does the framework's cache where "
        "only the driver's allocations were recorded and shapes differ between steps."
    )
    estimate = "No time: what is lost is memory, and in the end the run."
    thresholds: ClassVar = {
        "min_steps": MIN_STEPS,
        "min_growth_of_peak": MIN_GROWTH_OF_PEAK,
        "max_steps_to_full": MAX_STEPS_TO_FULL,
        "max_falling_share": MAX_FALLING_SHARE,
        "min_later_growth": MIN_LATER_GROWTH,
    }
    min_share = None

    def check(self, context: RuleContext) -> RuleVerdict:
        """Compare the memory in use at the ends of steps."""
        trace, steps = context.trace, context.focus.steps
        if not trace.has("memory_events"):
            return RuleNotApplicable("the capture has no memory events")
        if len(steps) < MIN_STEPS.value:
            return RuleNotApplicable(
                f"{len(steps)} steps are too few to tell growth from warming up"
            )
        memory = DeviceMemories(trace, EVERYTHING)
        if not memory.gpus:
            return RuleNotApplicable("no memory of a GPU was recorded")
        growth = [_growth(trace, memory, gpu, steps) for gpu in memory.gpus]
        steady = [g for g in growth if g is not None and g.matters]
        return _match(context, max(steady, key=lambda g: g.per_step)) if steady else CLEAN

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Show all steps: memory rises from one to the next."""
        focus = context.focus
        name = f"memory over {len(focus.steps)} steps,"
        return one_stretch(focus.start_ns, focus.end_ns, name)


@dataclass(frozen=True)
class _Growth:
    """Growth of the memory in use on one GPU."""

    device: int
    history: AllocationHistory
    levels: Ints
    """Bytes in use at the end of each step."""
    per_step: float
    peak: int
    capacity: int | None

    @property
    def steps_to_full(self) -> float | None:
        """Steps until the GPU is full; None where its memory is not known."""
        if self.capacity is None:
            return None
        return max(0, self.capacity - self.peak) / self.per_step

    @property
    def matters(self) -> bool:
        """Whether it is large, or fills the GPU in a run of usual length."""
        if self.per_step >= MIN_GROWTH_OF_PEAK.value * self.peak:
            return True
        return self.steps_to_full is not None and self.steps_to_full <= MAX_STEPS_TO_FULL.value


def _growth(
    trace: Trace, memory: DeviceMemories, device: int, steps: tuple[TraceStep, ...]
) -> _Growth | None:
    """Measure the growth on one GPU; None where memory does not rise steadily."""
    history = memory.view(device).history
    if not len(history):
        return None
    ends = [history.last_before(step.end_ns) for step in steps]
    levels = np.array([history.allocated_after(event) for event in ends], np.int64)
    rise, late = slope(levels), slope(levels[len(levels) // 2 :])
    if rise is None or late is None or rise <= 0 or late < MIN_LATER_GROWTH.value * rise:
        return None
    sample = np.linspace(0, len(levels) - 1, min(len(levels), _MAX_COMPARED)).astype(np.int64)
    first, second = np.triu_indices(len(sample), 1)
    falling = float(np.mean(levels[sample[second]] < levels[sample[first]]))
    if falling > MAX_FALLING_SHARE.value:
        return None
    peak = int(history.allocated[: ends[-1] + 1].max(initial=history.start_allocated))
    rows = trace.table("devices", ["device", "memory_bytes"]).filter(pl.col("device") == device)
    known = rows["memory_bytes"].drop_nulls()
    capacity = int(known[0]) if len(known) and known[0] > 0 else None
    return _Growth(device, history, levels, rise, peak, capacity)


_MAX_COMPARED = 400


def _match(context: RuleContext, grown: _Growth) -> RuleMatch:
    steps = context.focus.steps
    where = _holders(context.trace, grown, steps)
    full = ""
    if grown.steps_to_full is not None:
        full = f": full after {format_count(round(grown.steps_to_full))} more"
    return RuleMatch(
        title=f"GPU {grown.device} holds {format_bytes(grown.per_step)} more after each step{full}",
        evidence=_evidence(grown, len(steps)),
        confidence=Confidence.HIGH,
        confidence_reason="memory was measured at every step",
        fix=_fix(grown, where),
        code=framework_of(context.trace).choose(
            torch=MemoryGrowth.code,
            cuda="cudaFreeAsync(buffer, stream);  // for each cudaMallocAsync\n",
            jax="del intermediate  # or donate_argnums for inputs\n",
        ),
        where=where,
    )


def _evidence(grown: _Growth, steps: int) -> tuple[Evidence, ...]:
    first, last = int(grown.levels[0]), int(grown.levels[-1])
    capacity = []
    if grown.capacity is not None:
        capacity = [Evidence("memory_bytes", grown.capacity, "byte", "Memory of the GPU")]
    return (
        Evidence(
            "growth_bytes", grown.per_step, "byte", "Growth a step, median over pairs of steps"
        ),
        Evidence("steps", steps, "", "Steps compared"),
        Evidence("first_bytes", first, "byte", "In use at the end of the first of them"),
        Evidence("last_bytes", last, "byte", "In use at the end of the last"),
        Evidence("peak_bytes", grown.peak, "byte", "The most in use until then"),
        *capacity,
    )


def _holders(
    trace: Trace, grown: _Growth, steps: tuple[TraceStep, ...]
) -> tuple[FindingLocation, ...]:
    """Return the operators that allocated what the steps did not free, the largest first."""
    blocks, history = grown.history.blocks, grown.history
    if blocks is None:
        return ()
    first, last = (history.last_before(step.end_ns) for step in (steps[0], steps[-1]))
    kept = blocks.chosen(
        np.flatnonzero((blocks.began > first) & (blocks.began <= last) & (blocks.ended > last))
    )
    holders = find_holders(trace, kept, history.origin).select("holder")
    sums = (
        holders.with_columns(pl.Series("bytes", kept.bytes))
        .group_by("holder", maintain_order=True)
        .agg(pl.col("bytes").sum(), pl.len().alias("count"))
        .sort("bytes", descending=True, maintain_order=True)
        .head(MAX_LOCATIONS_SHOWN)
    )
    return tuple(
        FindingLocation("operator", f"{holder}: {format_bytes(size)}", None, count)
        for holder, size, count in sums.iter_rows()
    )


def _fix(grown: _Growth, where: tuple[FindingLocation, ...]) -> str:
    rise = format_bytes(int(grown.levels[-1]) - int(grown.levels[0]))
    seen = f"In use rose by {rise} over {len(grown.levels)} steps"
    holder = f"; most of what was kept was taken by {where[0].name}" if where else ""
    return f"{seen}{holder}. {MemoryGrowth.fix}"
