"""launch-bound: the GPU waits while the host launches its kernels one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.gpu_schedule import CallKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import as_graphs
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import (
    by_step,
    called_from,
    framework_of,
    largest,
    named,
    of_each_step,
    step_evidence,
)
from gpusight.rules.locations import launch_gaps
from gpusight.rules.patterns.host_gaps import (
    MAX_LAUNCHES_BETWEEN,
    MIN_STALL_NS,
    MIN_STALL_RATIO,
    at_most,
    busy_share,
    host_unknown,
    host_work,
    idle_ns,
    keeping_host_work,
    spent_before,
)
from gpusight.rules.patterns.kernel_groups import (
    MIN_LAUNCHES_PER_STEP,
    MIN_REPEATED_SHARE,
    LaunchRepetition,
    repetition,
)
from gpusight.rules.rule import CLEAN, RuleMatch, Threshold, TimelineRule
from gpusight.units import format_count, format_time

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import FindingLocation, RuleVerdict
    from gpusight.trace.intervals import Ints


MIN_IDLE_SHARE = Threshold(
    0.05,
    "part of the time in which the GPU waits for launches; below, the host keeps ahead of it",
)
MAX_LAUNCH_NS = Threshold(
    1e6, "ns of host time for a launch above which the host is slow for other reasons"
)
MIN_EQUAL_STEPS = Threshold(
    0.5, "part of the steps with the same sequence for a graph of the whole step"
)


class LaunchBound(TimelineRule):
    """Kernels that end before the next one is launched."""

    id = "launch-bound"
    detects = (
        "Looks for time in which the GPU has nothing to do because the host is still on its way to "
        "the next launch: inside launch calls, or in the framework between them."
    )
    why = (
        "A launch takes the host some microseconds, an operator of a framework tens of them. "
        "Kernels shorter than that are done before the next one comes."
    )
    fix = (
        "Launch more with each call: a CUDA graph replays a whole step with one launch, a "
        "compiler fuses many kernels into few, a larger batch makes kernels longer."
    )
    code = """\
model = torch.compile(model, mode="reduce-overhead")     # graphs, and fewer kernels
# or, with shapes that never change:
model = torch.cuda.make_graphed_callables(model, (sample_input,))
optimizer = torch.optim.AdamW(params, fused=True)        # one launch in place of many
"""
    cuda_code = """\
cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
step(stream);                                  // the launches as they are
cudaStreamEndCapture(stream, &graph);
cudaGraphInstantiate(&exec, graph, 0);
for (int i = 0; i < steps; ++i) cudaGraphLaunch(exec, stream);
"""
    jax_code = """\
@jax.jit
def many_steps(state, batches):                # one dispatch for all of them
    return jax.lax.scan(train_step, state, batches)
"""
    verify = (
        "`gpusight ledger` shows less `idle/launching` and `idle/framework`; "
        "`gpusight api` shows cudaGraphLaunch in place of most launches."
    )
    caveats = (
        "Profilers slow launches down: the share of time is smaller without one. Shapes that "
        "change from step to step, or Python that decides on values of the GPU, need a graph each "
        "or none at all."
    )
    estimate = (
        "Replay in which everything that is launched between two waits is one graph launch of 20 "
        "µs and the framework's time between launches goes; waits, input, allocations and other "
        "host work stay. No more than the GPU waited for launches."
    )
    thresholds: ClassVar = {
        "min_idle_share": MIN_IDLE_SHARE,
        "min_launches_per_step": MIN_LAUNCHES_PER_STEP,
        "min_repeated_share": MIN_REPEATED_SHARE,
        "max_launch_ns": MAX_LAUNCH_NS,
        "min_stall_ns": MIN_STALL_NS,
        "min_stall_ratio": MIN_STALL_RATIO,
        "max_launches_between": MAX_LAUNCHES_BETWEEN,
        "min_equal_steps": MIN_EQUAL_STEPS,
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Compare what the host needs for a launch with what the GPU makes of it."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        stalls = host_work(context)
        stalled = np.flatnonzero(stalls.apart)
        waited_ns = idle_ns(context, *_LAUNCHING) - stalls.of(stalled)
        calls = context.calls_of(CallKind.LAUNCH)
        if waited_ns < MIN_IDLE_SHARE.value * context.length_ns:
            return CLEAN
        if calls.height < MIN_LAUNCHES_PER_STEP.value * context.per_step:
            return CLEAN
        repeats = repetition(context)
        launch_ns = _launch_ns(context, calls, stalled)
        if launch_ns > MAX_LAUNCH_NS.value or not (repeats.worth_it or context.steps > 1):
            return CLEAN
        own_ns = stalls.end_ns - stalls.start_ns
        own_ns[stalled] = 0
        calls = calls.with_columns(
            pl.Series("host_ns", own_ns[calls["call"]] + calls["duration_ns"].to_numpy())
        )
        places = called_from(context, calls, "host_ns")
        where = largest(places["range"], places["operator"], places["site"])
        same = repeats.alike is None or repeats.alike >= MIN_EQUAL_STEPS.value
        confidence, reason = _confidence(repeats, same=same)
        return RuleMatch(
            title=f"The GPU waits for launches {of_each_step(context, waited_ns)}",
            evidence=_evidence(context, calls.height, repeats, waited_ns, launch_ns),
            confidence=confidence,
            confidence_reason=reason,
            change=(keeping_host_work(stalled), as_graphs()),
            min_ns=at_most(context, waited_ns),
            fix=_fix(context, calls.height, where, launch_ns, same=same),
            code=framework_of(context.trace).choose(
                torch=LaunchBound.code, cuda=LaunchBound.cuda_code, jax=LaunchBound.jax_code
            ),
            where=where,
            also=("graph-candidate",),
        )

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find the events with most gaps between launches."""
        return launch_gaps(context, finding)


_LAUNCHING = (IdleCause.LAUNCHING, IdleCause.FRAMEWORK)


def _launch_ns(context: RuleContext, calls: pl.DataFrame, stalled: Ints) -> float:
    """Return the mean host time of a launch, with that of the framework before it."""
    schedule = context.schedule
    lanes = calls["lane"].unique().to_numpy()
    bounds = (np.full(len(lanes), t) for t in (schedule.start_ns, schedule.end_ns))
    spent_ns = context.hosts.spent(lanes, *bounds)[:, list(_LAUNCHING)].sum()
    stalled_ns = spent_before(context)[stalled][:, list(_LAUNCHING)].sum()
    return float(spent_ns - stalled_ns) / max(1, calls.height)


def _evidence(
    context: RuleContext,
    launches: int,
    repeats: LaunchRepetition,
    waited_ns: int,
    launch_ns: float,
) -> tuple[Evidence, ...]:
    kernel_ns = context.kernels["duration_ns"].median()
    evidence = [
        step_evidence(
            context,
            "idle_launching_ns",
            waited_ns,
            "ns",
            "Time in which the GPU waits for the next launch",
        ),
        step_evidence(context, "launches", launches, "", "Kernels launched one by one"),
        Evidence("host_per_launch_ns", launch_ns, "ns", "Host time for a launch, mean"),
        Evidence("gpu_busy", busy_share(context), "share", "Part of the time the GPU works"),
        Evidence(
            "repeated",
            repeats.repeated,
            "share",
            "Part of the kernels that come again in most steps",
        ),
    ]
    if kernel_ns is not None:
        evidence.insert(2, Evidence("kernel_ns", float(kernel_ns), "ns", "A kernel takes, median"))  # type: ignore[arg-type]
    return tuple(evidence)


def _confidence(repeats: LaunchRepetition, *, same: bool) -> tuple[Confidence, str]:
    """Rate how far a graph can replace the launches as in the replay."""
    if not repeats.worth_it:
        few = "the gain is that of as few launches as graphs would need"
        return Confidence.LOW, f"hardly any kernel comes again, so that no graph fits: {few}"
    if not same:
        return (
            Confidence.MEDIUM,
            "the steps launch different kernels, so that one graph does not fit them all",
        )
    if repeats.alike is None:
        return Confidence.HIGH, "launches and waits were measured, and kernels come again"
    return (
        Confidence.HIGH,
        "launches and waits were measured, and the steps launch the same kernels",
    )


def _fix(
    context: RuleContext,
    launches: int,
    where: tuple[FindingLocation, ...],
    launch_ns: float,
    *,
    same: bool,
) -> str:
    count = by_step(context, f"{format_count(round(launches / context.per_step))} launches")
    places = named(where, "range", "operator", most=3)
    most = f", most of them in {places}" if places else ""
    seen = f"{count} of {format_time(launch_ns)} host time each{most}."
    fitting = "The same kernels are launched again, so a CUDA graph can replay them at once."
    if not same:
        fitting = "The steps differ: make shapes the same (padding, buckets) before using graphs."
    way = framework_of(context.trace).choose(
        torch='Use torch.compile(mode="reduce-overhead") or torch.cuda.make_graphed_callables; '
        "fused or foreach optimizers, compiled functions and larger batches help as well.",
        cuda="Capture the sequence with cudaStreamBeginCapture and replay it with "
        "cudaGraphLaunch; fuse short kernels or give each more to do.",
        jax="Put the whole step, or several of them (lax.scan), under one jax.jit; XLA launches "
        "graphs with --xla_gpu_enable_command_buffer.",
    )
    return f"{seen} {fitting} {way}"
