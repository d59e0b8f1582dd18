"""graph-candidate: a repeated sequence of short kernels that a CUDA graph could launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.gpu_schedule import CallKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import as_graphs
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import (
    called_from,
    is_training,
    largest,
    mostly_in_libraries,
    named,
    own_locations,
)
from gpusight.rules.locations import launch_gaps
from gpusight.rules.patterns.host_gaps import at_most, host_unknown, host_work, idle_ns
from gpusight.rules.patterns.kernel_groups import (
    GRAPH_GAP_NS,
    HOPPER_GRAPH_GAP_NS,
    MIN_LAUNCHES_PER_STEP,
    MIN_REPEATED_SHARE,
    graph_gap_ns,
    repetition,
)
from gpusight.rules.patterns.memcpys import not_in_graphs
from gpusight.rules.rule import CLEAN, RuleMatch, RuleVerdict, Threshold, TimelineRule
from gpusight.rules.timeline.launch_bound import LaunchBound
from gpusight.rules.timeline.unfused_optimizer import CAPTURABLE_IN_TORCH, optimizer_name
from gpusight.units import format_time

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding


MAX_MEDIAN_KERNEL_NS = Threshold(20_000, "ns of the median kernel up to which gaps of 1 µs matter")
MIN_EQUAL_STEPS = Threshold(0.5, "share of the steps that must have the same sequence of kernels")
MIN_SHARED_KERNELS = Threshold(
    2, "kernels per step, where several steps without a wait have enough launches for a graph"
)
_BETWEEN_KERNELS = (IdleCause.LAUNCHING, IdleCause.FRAMEWORK, IdleCause.QUEUED)


class GraphCandidate(TimelineRule):
    """Repeated kernel sequences that one graph launch could replace."""

    id = "graph-candidate"
    detects = (
        "Looks for sequences of short kernels that every step repeats without a CUDA graph, in "
        "programs that still keep the GPU busy."
    )
    why = (
        "The gap between two kernels of a stream is 1 µs or more; inside a CUDA graph it is a "
        "fraction of that. A graph also frees the host."
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
    cuda_code = LaunchBound.cuda_code
    jax_code = LaunchBound.jax_code
    snippets = LaunchBound.snippets
    training_code = """\
optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
def train_step():                              # inputs and targets: static tensors on the GPU
    optimizer.zero_grad(set_to_none=True)
    loss_of(model(inputs), targets).backward()
    optimizer.step()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):                  # warm-up: optimizer state, library handles
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    train_step()
for batch, labels in loader:
    inputs.copy_(batch)
    targets.copy_(labels)
    graph.replay()                             # forward, backward and optimizer
# or: model = torch.compile(model, mode="reduce-overhead")
"""
    verify = (
        "`gpusight api` shows one cudaGraphLaunch per step, `gpusight ledger` less `idle/queued`."
    )
    caveats = (
        "The gap inside graphs depends on GPU and driver. Each input shape needs its own graph."
    )
    estimate = (
        "Simulation with one graph launch for all launches between two syncs. Its kernels are at "
        "most 0.5 µs apart, 0.15 µs on Hopper and later GPUs. Alone, limited to the GPU "
        "idle time between kernels."
    )
    thresholds: ClassVar = {
        "max_median_kernel_ns": MAX_MEDIAN_KERNEL_NS,
        "graph_gap_ns": GRAPH_GAP_NS,
        "hopper_graph_gap_ns": HOPPER_GRAPH_GAP_NS,
        "min_launches_per_step": MIN_LAUNCHES_PER_STEP,
        "min_repeated_share": MIN_REPEATED_SHARE,
        "min_equal_steps": MIN_EQUAL_STEPS,
        "min_shared_kernels": MIN_SHARED_KERNELS,
    }
    min_share = 0.02

    def check(self, context: RuleContext) -> RuleVerdict:
        """Look for the same short kernels in every step."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        repeats = repetition(context)
        alike = repeats.repeated if repeats.alike is None else repeats.alike
        few = repeats.kernels < MIN_LAUNCHES_PER_STEP.value * context.per_step
        if few and not _share_graphs(context, repeats.kernels):
            return CLEAN
        if not repeats.repeats_enough or alike < MIN_EQUAL_STEPS.value:
            return CLEAN
        rows = context.kernels.filter(~pl.col("in_graph"))
        median_ns = float(rows["duration_ns"].median() or 0.0)  # type: ignore[arg-type]
        # What a library launches inside its own functions is not the program's to capture.
        if median_ns > MAX_MEDIAN_KERNEL_NS.value or mostly_in_libraries(context, rows):
            return CLEAN
        places = called_from(context, rows)
        where = largest(places["range"], places["operator"])
        work = host_work(context)
        stalled = np.flatnonzero(work.apart)
        what = named(own_locations(context, where), "range") or "the repeated sequence"
        kernel = f"The median kernel takes {format_time(median_ns, digits=3)}."
        many = context.count_per_step(repeats.kernels, "kernel")
        return RuleMatch(
            title=f"No CUDA graph for {many.replace(' per step', '/step')} (median "
            f"{format_time(median_ns, digits=3)})",
            evidence=(
                context.evidence("kernels", repeats.kernels, "", "Kernel launches"),
                Evidence("kernel_ns", median_ns, "ns", "Kernel duration, median"),
                Evidence(
                    "gap_ns",
                    float(context.replay.stream_gap_ns),
                    "ns",
                    "Gap between two kernels of a stream, median",
                ),
                Evidence(
                    "repeated",
                    repeats.repeated,
                    "share",
                    "Share of the kernels that most steps repeat",
                ),
            ),
            confidence=Confidence.MEDIUM,
            confidence_reason="the gap between kernels of a graph is assumed",
            change=(
                as_graphs(
                    kept=stalled,
                    gap_ns=graph_gap_ns(context),
                    spans_steps=few,
                    outside=not_in_graphs(context),
                ),
            ),
            min_ns=at_most(context, idle_ns(context, *_BETWEEN_KERNELS) - work.of(stalled)),
            fix=f"{kernel} Capture {what} into a CUDA graph: "
            + context.framework.choose(
                torch="torch.cuda.graph, torch.cuda.make_graphed_callables or torch.compile(mode="
                '"reduce-overhead").',
                cuda="cudaStreamBeginCapture once, cudaGraphLaunch each time.",
                jax="one jax.jit over the whole step, with --xla_gpu_enable_command_buffer.",
                other="capture its launches on a stream once, launch the graph each time; or "
                "write one kernel for several operations.",
            ),
            code=context.framework.choose(
                torch=_training_code(context) if is_training(context) else "", cuda="", jax=""
            ),
            where=where,
            where_time="kernel time",
        )

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find the events with most gaps between launches."""
        return launch_gaps(context, finding)


def _share_graphs(context: RuleContext, kernels: int) -> bool:
    """Return whether steps of few kernels do not wait, so that several can share a graph."""
    waits = context.calls_of(CallKind.SYNC).height
    several = kernels >= MIN_SHARED_KERNELS.value * context.per_step
    return several and kernels >= MIN_LAUNCHES_PER_STEP.value * max(1, waits)


def _training_code(context: RuleContext) -> str:
    """Return the code for a training step with the optimizer of the capture."""
    name = optimizer_name(context) or "AdamW"
    if name in CAPTURABLE_IN_TORCH:
        return GraphCandidate.training_code.replace("AdamW", name)
    return GraphCandidate.training_code.partition("\n")[2]
