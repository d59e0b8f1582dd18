"""graph-candidate: short kernels in the same order again and again, with gaps in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analyses.ledger.causes import Cause
from gpusight.analyses.replay.changes import as_graphs, closer
from gpusight.findings.finding import Confidence, Evidence
from gpusight.findings.timeline.framework import framework_of
from gpusight.findings.timeline.host import at_most, called_from, host_unknown, idle_ns, named
from gpusight.findings.timeline.repetition import FEW, REPEATED, repetition
from gpusight.findings.timeline.rule import Found, Rule
from gpusight.findings.timeline.rules.launch_bound import LaunchBound
from gpusight.findings.timeline.stalls import host_work, keeping_host_work
from gpusight.findings.timeline.texts import by_step, largest
from gpusight.findings.verdict import CLEAN, Limit
from gpusight.units import format_count, format_time

if TYPE_CHECKING:
    from gpusight.findings.timeline.repetition import Repetition
    from gpusight.findings.timeline.rule import Verdict, Where
    from gpusight.findings.timeline.timeline import Timeline

SHORT = Limit(20_000, "ns of the median kernel up to which gaps of a microsecond count")
GAP = Limit(
    500,
    "ns between kernels of one graph, assumed: 130 were measured on one H200, against 1,000 to "
    "1,400 between single launches; other GPUs and drivers were not measured",
)
ALIKE = Limit(0.5, "least part of the steps that have the same sequence of kernels")
_BETWEEN_KERNELS = (Cause.LAUNCHING, Cause.FRAMEWORK, Cause.QUEUED)


class GraphCandidate(Rule):
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
    afterwards = (
        "`gpusight api` shows one cudaGraphLaunch a step, `gpusight ledger` less `idle/queued`."
    )
    misleads = (
        "The gap inside graphs differs between GPUs and drivers. Shapes that change need a graph "
        "each."
    )
    estimate = (
        "Replay with one graph launch in place of the launches between two waits, and half a "
        "microsecond between kernels of a stream where it was more. No more than the GPU waits "
        "between kernels."
    )
    limits: ClassVar = {
        "SHORT": SHORT,
        "GAP": GAP,
        "FEW": FEW,
        "REPEATED": REPEATED,
        "ALIKE": ALIKE,
    }
    least_share = 0.02

    def check(self, timeline: Timeline) -> Verdict:
        """Look for the same short kernels in every step."""
        if (unknown := host_unknown(timeline)) is not None:
            return unknown
        again = repetition(timeline)
        alike = again.repeated if again.alike is None else again.alike
        if again.kernels < FEW.value * timeline.per_step:
            return CLEAN
        if not again.worth_it or alike < ALIKE.value:
            return CLEAN
        rows = timeline.kernels.filter(~pl.col("in_graph"))
        usual_ns = float(rows["duration_ns"].median() or 0.0)  # type: ignore[arg-type]
        return CLEAN if usual_ns > SHORT.value else _found(timeline, rows, again, usual_ns)


def _found(timeline: Timeline, rows: pl.DataFrame, again: Repetition, usual_ns: float) -> Found:
    each = format_count(round(again.kernels / timeline.per_step))
    places = called_from(timeline, rows)
    where = largest(places["range"], places["operator"])
    work = host_work(timeline)
    stalled = np.flatnonzero(work.apart)
    return Found(
        title=f"{by_step(timeline, f'{each} kernels')} of {format_time(usual_ns)} each "
        "are launched one by one",
        evidence=(
            Evidence(
                "kernels",
                again.kernels / timeline.per_step,
                "",
                by_step(timeline, "Kernels launched one by one"),
            ),
            Evidence("kernel_ns", usual_ns, "ns", "A kernel takes, median"),
            Evidence(
                "gap_ns",
                float(timeline.replay.queue_gap_ns),
                "ns",
                "Between two kernels of a stream, median",
            ),
            Evidence(
                "repeated", again.repeated, "share", "Part of them that comes again in most steps"
            ),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="the gap inside a graph is assumed",
        change=(
            keeping_host_work(stalled),
            as_graphs(),
            closer(rows["op"].to_numpy(), int(GAP.value)),
        ),
        least_ns=at_most(timeline, idle_ns(timeline, *_BETWEEN_KERNELS) - work.of(stalled)),
        fix=_fix(timeline, where),
        code=framework_of(timeline.trace).choose(
            torch=GraphCandidate.code, cuda=LaunchBound.cuda_code, jax=LaunchBound.jax_code
        ),
        where=where,
    )


def _fix(timeline: Timeline, where: tuple[Where, ...]) -> str:
    what = named(where, "range", "operator") or "the repeated sequence"
    return f"Capture {what} into a CUDA graph: " + framework_of(timeline.trace).choose(
        torch='torch.cuda.graph, torch.cuda.make_graphed_callables or torch.compile(mode="reduce-'
        'overhead").',
        cuda="cudaStreamBeginCapture once, cudaGraphLaunch each time.",
        jax="one jax.jit over the whole step, with --xla_gpu_enable_command_buffer.",
    )
