"""memory-growth: allocated GPU memory grows from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.memory.device_memory import DeviceMemories, slope
from gpusight.analysis.selection import EVERYTHING
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import MAX_LOCATIONS_SHOWN, is_training
from gpusight.rules.locations import single_span
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
    from collections.abc import Sequence

    from gpusight.analysis.memory.allocations import AllocationHistory
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


MIN_STEPS = Threshold(4, "steps that a trend needs; fewer may be warm-up")
MIN_GROWTH_OF_PEAK = Threshold(
    0.01, "growth per step as a share of the peak that is a finding by itself"
)
MAX_STEPS_TO_FULL = Threshold(
    10_000, "steps until the GPU is out of memory; typical runs have more steps"
)
MAX_FALLING_SHARE = Threshold(0.1, "share of step pairs in which memory may decrease")
MIN_LATER_GROWTH = Threshold(
    0.5, "growth in the later half relative to all steps; below it, memory levels off"
)


class MemoryGrowth(TimelineRule):
    """GPU memory that is not freed."""

    id = "memory-growth"
    detects = "Looks for allocated GPU memory that grows steadily from step to step."
    why = (
        "Each step keeps references to some of its tensors: losses with their autograd graphs, an "
        "unbounded cache, hooks. The run fails when the GPU is out of memory."
    )
    fix = (
        "Store detached tensors or numbers (tensor.detach(), loss.item()), bound caches, and drop "
        "references at the end of the step."
    )
    code = """\
total += loss.detach()  # not: losses.append(loss)
torch.cuda.memory._record_memory_history()  # which lines allocate it
torch.cuda.memory._dump_snapshot("memory.pickle")
"""
    inference_code = """\
with torch.inference_mode():  # keeps no autograd graph
    results.append(model(batch).cpu())  # not on the GPU
torch.cuda.memory._record_memory_history()  # which lines allocate it
torch.cuda.memory._dump_snapshot("memory.pickle")
"""
    verify = "`gpusight memory` shows a growth per step of about 0."
    caveats = (
        "Caches that a program fills on purpose grow too, such as a KV cache during generation. So "
        "does the caching allocator, where only driver allocations were recorded and shapes "
        "change."
    )
    estimate = "No time estimate: the cost is memory, and finally the run."
    effort = "one line"
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
                f"{len(steps)} steps are too few to distinguish growth from warm-up"
            )
        memory = DeviceMemories(trace, EVERYTHING)
        if not memory.gpus:
            return RuleNotApplicable("no GPU memory was recorded")
        growth = [_growth(trace, memory, gpu, steps) for gpu in memory.gpus]
        steady = [g for g in growth if g is not None and g.matters]
        return _match(context, max(steady, key=lambda g: g.per_step)) if steady else CLEAN

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Show all steps: memory rises from one to the next."""
        focus = context.focus
        name = f"memory over {len(focus.steps)} steps,"
        return single_span(focus.start_ns, focus.end_ns, name)


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
    trace: Trace, memory: DeviceMemories, device: int, steps: Sequence[TraceStep]
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
        full = f" (out of memory in {format_count(round(grown.steps_to_full))} steps)"
    torch_code = MemoryGrowth.code if is_training(context) else MemoryGrowth.inference_code
    rise = format_bytes(int(grown.levels[-1]) - int(grown.levels[0]))
    summary = f"Allocated memory on GPU {grown.device} grew by {rise} in {len(grown.levels)} steps"
    holder = f"; the largest source is {where[0].name}" if where else ""
    step_count = len(steps)
    first, last = int(grown.levels[0]), int(grown.levels[-1])
    capacity = []
    if grown.capacity is not None:
        capacity = [Evidence("memory_bytes", grown.capacity, "byte", "Memory of the GPU")]
    return RuleMatch(
        title=f"GPU memory grows {format_bytes(grown.per_step)}/step{full}",
        evidence=(
            Evidence(
                "growth_bytes",
                grown.per_step,
                "byte",
                "Growth per step, median over pairs of steps",
            ),
            Evidence("steps", step_count, "", "Steps compared"),
            Evidence("first_bytes", first, "byte", "Allocated at the end of the first step"),
            Evidence("last_bytes", last, "byte", "Allocated at the end of the last step"),
            Evidence("peak_bytes", grown.peak, "byte", "Peak allocated memory"),
            *capacity,
        ),
        confidence=Confidence.HIGH,
        confidence_reason="memory was measured in every step",
        fix=f"{summary}{holder}. {MemoryGrowth.fix}",
        code=context.framework.choose(
            torch=torch_code,
            cuda="cudaFreeAsync(buffer, stream);  // for each cudaMallocAsync\n",
            jax="del intermediate  # or donate inputs: donate_argnums\n",
        ),
        where=where,
    )


def _holders(
    trace: Trace, grown: _Growth, steps: Sequence[TraceStep]
) -> tuple[FindingLocation, ...]:
    """Return the operators that allocated what the steps did not free, the largest first."""
    from gpusight.analysis.memory.memory_peak import find_holders  # few captures need it

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
