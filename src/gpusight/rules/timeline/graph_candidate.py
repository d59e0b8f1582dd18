"""graph-candidate: short kernels in the same order again and again, with gaps in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import as_graphs, set_gap
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import (
    by_step,
    called_from,
    framework_of,
    largest,
    named,
    step_evidence,
)
from gpusight.rules.locations import launch_gaps
from gpusight.rules.patterns.host_gaps import (
    at_most,
    host_unknown,
    host_work,
    idle_ns,
    keeping_host_work,
)
from gpusight.rules.patterns.kernel_groups import (
    MIN_LAUNCHES_PER_STEP,
    MIN_REPEATED_SHARE,
    repetition,
)
from gpusight.rules.rule import CLEAN, RuleMatch, Threshold, TimelineRule
from gpusight.rules.timeline.launch_bound import LaunchBound
from gpusight.units import format_count, format_time

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.patterns.kernel_groups import LaunchRepetition
    from gpusight.rules.rule import FindingLocation, RuleVerdict


MAX_MEDIAN_KERNEL_NS = Threshold(
    20_000, "ns of the median kernel up to which gaps of a microsecond count"
)
GRAPH_GAP_NS = Threshold(
    500,
    "ns between kernels of one graph, assumed: 130 were measured on one H200, against 1,000 to "
    "1,400 between single launches; other GPUs and drivers were not measured",
)
MIN_EQUAL_STEPS = Threshold(0.5, "least part of the steps that have the same sequence of kernels")
_BETWEEN_KERNELS = (IdleCause.LAUNCHING, IdleCause.FRAMEWORK, IdleCause.QUEUED)


class GraphCandidate(TimelineRule):
    """Repeated sequences that one launch could replace."""

    id = "graph-candidate"
    detects = (
        "Looks for sequences of short kernels that every step repeats, launched one by one, in "
        "programs that keep the GPU busy all the same."
    )
    why = (
        "Between two kernels of a stream lies a microsecond or more in which the GPU starts the "
        "next; inside a CUDA graph it is a fraction of that. The host is free meanwhile, too."
    )
    fix = "Capture the sequence into a CUDA graph and replay it each step."
    code = """\
step = torch.cuda.CUDAGraph()
with torch.cuda.graph(step):
    static_output = model(static_input)
for batch in batches:
    static_input.copy_(batch)
    step.replay()
"""
    verify = (
        "`gpusight api` shows one cudaGraphLaunch a step, `gpusight ledger` less `idle/queued`."
    )
    caveats = (
        "The gap inside graphs differs between GPUs and drivers. Shapes that change need a graph "
        "each."
    )
    estimate = (
        "Replay with one graph launch in place of the launches between two waits, and half a "
        "microsecond between kernels of a stream where it was more. No more than the GPU waits "
        "between kernels."
    )
    thresholds: ClassVar = {
        "max_median_kernel_ns": MAX_MEDIAN_KERNEL_NS,
        "graph_gap_ns": GRAPH_GAP_NS,
        "min_launches_per_step": MIN_LAUNCHES_PER_STEP,
        "min_repeated_share": MIN_REPEATED_SHARE,
        "min_equal_steps": MIN_EQUAL_STEPS,
    }
    min_share = 0.02

    def check(self, context: RuleContext) -> RuleVerdict:
        """Look for the same short kernels in every step."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        repeats = repetition(context)
        alike = repeats.repeated if repeats.alike is None else repeats.alike
        if repeats.kernels < MIN_LAUNCHES_PER_STEP.value * context.per_step:
            return CLEAN
        if not repeats.worth_it or alike < MIN_EQUAL_STEPS.value:
            return CLEAN
        rows = context.kernels.filter(~pl.col("in_graph"))
        median_ns = float(rows["duration_ns"].median() or 0.0)  # type: ignore[arg-type]
        if median_ns > MAX_MEDIAN_KERNEL_NS.value:
            return CLEAN
        return _match(context, rows, repeats, median_ns)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find the events with most gaps between launches."""
        return launch_gaps(context, finding)


def _match(
    context: RuleContext, rows: pl.DataFrame, repeats: LaunchRepetition, median_ns: float
) -> RuleMatch:
    count = format_count(round(repeats.kernels / context.per_step))
    places = called_from(context, rows)
    where = largest(places["range"], places["operator"])
    work = host_work(context)
    stalled = np.flatnonzero(work.apart)
    return RuleMatch(
        title=f"{by_step(context, f'{count} kernels')} of {format_time(median_ns)} each "
        "are launched one by one",
        evidence=(
            step_evidence(context, "kernels", repeats.kernels, "", "Kernels launched one by one"),
            Evidence("kernel_ns", median_ns, "ns", "A kernel takes, median"),
            Evidence(
                "gap_ns",
                float(context.replay.stream_gap_ns),
                "ns",
                "Between two kernels of a stream, median",
            ),
            Evidence(
                "repeated", repeats.repeated, "share", "Part of them that comes again in most steps"
            ),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="the gap inside a graph is assumed",
        change=(
            keeping_host_work(stalled),
            as_graphs(),
            set_gap(rows["op"].to_numpy(), int(GRAPH_GAP_NS.value)),
        ),
        min_ns=at_most(context, idle_ns(context, *_BETWEEN_KERNELS) - work.of(stalled)),
        fix=_fix(context, where),
        code=framework_of(context.trace).choose(
            torch=GraphCandidate.code, cuda=LaunchBound.cuda_code, jax=LaunchBound.jax_code
        ),
        where=where,
    )


def _fix(context: RuleContext, where: tuple[FindingLocation, ...]) -> str:
    what = named(where, "range", "operator") or "the repeated sequence"
    return f"Capture {what} into a CUDA graph: " + framework_of(context.trace).choose(
        torch='torch.cuda.graph, torch.cuda.make_graphed_callables or torch.compile(mode="reduce-'
        'overhead").',
        cuda="cudaStreamBeginCapture once, cudaGraphLaunch each time.",
        jax="one jax.jit over the whole step, with --xla_gpu_enable_command_buffer.",
    )
