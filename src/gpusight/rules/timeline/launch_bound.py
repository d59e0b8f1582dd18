"""launch-bound: the GPU is idle while the host launches kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.corrected_trace import correction_of
from gpusight.analysis.gpu_schedule import CallKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import GRAPH_LAUNCH_NS, as_graphs
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import (
    called_from,
    largest,
    mostly_in_libraries,
    named,
    own_locations,
)
from gpusight.rules.locations import launch_gaps
from gpusight.rules.patterns.fusable_kernels import parts_of
from gpusight.rules.patterns.host_gaps import (
    MAX_LAUNCHES_BETWEEN,
    MIN_STALL_NS,
    MIN_STALL_RATIO,
    at_most,
    busy_share,
    host_unknown,
    host_work,
    idle_ns,
    spent_before,
    waits,
)
from gpusight.rules.patterns.kernel_groups import (
    GRAPH_GAP_NS,
    HOPPER_GRAPH_GAP_NS,
    MAX_FEW_LAUNCH_NS,
    MIN_LAUNCHES_PER_STEP,
    MIN_REPEATED_SHARE,
    LaunchRepetition,
    graph_gap_ns,
    repetition,
)
from gpusight.rules.patterns.memcpys import not_in_graphs
from gpusight.rules.patterns.stack_lines import lines_behind
from gpusight.rules.rule import CLEAN, Framework, RuleMatch, Threshold, TimelineRule
from gpusight.rules.timeline.unfused_optimizer import optimizer_code
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import FindingLocation, RuleVerdict
    from gpusight.trace.intervals import Ints


MIN_IDLE_SHARE = Threshold(
    0.05,
    "share of the time in which the GPU is idle waiting for launches; below it, the host keeps "
    "ahead",
)
MAX_LAUNCH_NS = Threshold(
    1e6, "ns of host time per launch; above it, the host is slow for other reasons"
)
MIN_OPTIMIZER_SHARE = Threshold(
    0.1, "share of the launches from which on the fused optimizer is part of the advice"
)
MAX_GRAPH_SYNCS = Threshold(
    2,
    "blocking syncs per step between launches; above it, they must go before graphs help: each "
    "ends a graph",
)
MIN_NAMED_SHARE = Threshold(
    0.1, "share of the host time of launches from which on a place is named"
)
_MOST = 0.5
"""Share of the host time of launches from which on it is mostly in the places that are named."""
MIN_GRAPH_WORK_NS = Threshold(
    5 * GRAPH_LAUNCH_NS,
    "ns of GPU work per step; below it, the launch of a graph takes a large part of a step, and "
    "several steps share one",
)
MIN_EQUAL_STEPS = Threshold(
    0.5, "share of the steps with the same kernel sequence that one graph per step needs"
)


_GRAPH_CAVEATS = (
    "Each input shape needs its own graph. Control flow on GPU values cannot be captured."
)


class LaunchBound(TimelineRule):
    """Kernels that finish before the next one is launched."""

    id = "launch-bound"
    detects = (
        "Looks for GPU idle time in which the host is still preparing the next launch: inside "
        "launch calls, or in the framework between them."
    )
    why = (
        "A launch takes the host a few microseconds, a framework operator tens of microseconds. "
        "Shorter kernels finish before the next one is launched."
    )
    fix = (
        "Launch fewer, larger kernels: a CUDA graph launches a whole step at once, a compiler "
        "fuses kernels, a larger batch makes them longer."
    )
    code = """\
model = torch.compile(model, mode="reduce-overhead")     # CUDA graphs and fused kernels
"""
    graph_code = """\
# or, with static shapes:
model = torch.cuda.make_graphed_callables(model, (sample_input,))
"""
    shapes_code = """\
model = torch.compile(model, dynamic=True)               # fused kernels for changing shapes
"""
    cuda_code = """\
cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
step(stream);                                  // unchanged launches
cudaStreamEndCapture(stream, &graph);
cudaGraphInstantiate(&exec, graph, 0);
for (int i = 0; i < steps; ++i) cudaGraphLaunch(exec, stream);
"""
    jax_code = """\
@jax.jit
def many_steps(state, batches):                # one dispatch for all steps
    return jax.lax.scan(step, state, batches)
"""
    snippets: ClassVar = {
        Framework.CUPY: """\
stream = cp.cuda.Stream(non_blocking=True)
with stream:
    stream.begin_capture()
    step()                                     # into arrays that exist already
    graph = stream.end_capture()
for _ in range(steps):
    graph.launch(stream)
""",
        Framework.NUMBA: """\
step = kernel[blocks, threads, stream]         # configured once, outside the loop
for i in range(steps):
    step(x, y)                                 # one kernel that does all operations of a step
""",
        Framework.JULIA: """\
graph = CUDA.capture() do
    step!(state)                               # into arrays that exist already
end
exec = CUDA.instantiate(graph)
for _ in 1:steps
    CUDA.launch(exec)
end
""",
    }
    verify = (
        "`gpusight ledger` shows less `idle/launching` and `idle/framework`; `gpusight api` shows "
        "cudaGraphLaunch instead of most launches."
    )
    caveats = (
        f"Profilers slow down launches: without one, the idle share is smaller. {_GRAPH_CAVEATS}"
    )
    estimate = (
        "Simulation in which all launches between two syncs become one graph launch of 20 µs, "
        "without framework time between them. Its kernels are 0.5 µs apart, 0.15 µs on Hopper and "
        "later GPUs. Steps of few launches or little GPU work share a graph. Syncs, copies of "
        "pageable memory, data loading, allocations and other host work remain. Alone, limited to "
        "the GPU idle time waiting for launches. After fixes that shorten kernels the GPU waits "
        "longer for launches, so that it can save more."
    )
    effort = "one line"
    thresholds: ClassVar = {
        "min_idle_share": MIN_IDLE_SHARE,
        "min_launches_per_step": MIN_LAUNCHES_PER_STEP,
        "max_few_launch_ns": MAX_FEW_LAUNCH_NS,
        "graph_gap_ns": GRAPH_GAP_NS,
        "hopper_graph_gap_ns": HOPPER_GRAPH_GAP_NS,
        "min_repeated_share": MIN_REPEATED_SHARE,
        "max_launch_ns": MAX_LAUNCH_NS,
        "min_stall_ns": MIN_STALL_NS,
        "min_stall_ratio": MIN_STALL_RATIO,
        "max_launches_between": MAX_LAUNCHES_BETWEEN,
        "min_graph_work_ns": MIN_GRAPH_WORK_NS,
        "min_equal_steps": MIN_EQUAL_STEPS,
        "min_optimizer_share": MIN_OPTIMIZER_SHARE,
        "max_graph_syncs": MAX_GRAPH_SYNCS,
        "min_named_share": MIN_NAMED_SHARE,
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Compare what the host needs for a launch with what the GPU makes of it."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        stalls = host_work(context)
        stalled = np.flatnonzero(stalls.apart)
        waited_ns = idle_ns(context, *_LAUNCHING) - stalls.framework_of(stalled)
        calls = context.calls_of(CallKind.LAUNCH)
        if waited_ns < MIN_IDLE_SHARE.value * context.length_ns:
            return CLEAN
        few = calls.height < MIN_LAUNCHES_PER_STEP.value * context.per_step
        if calls.height < MIN_LAUNCHES_PER_STEP.value:
            return CLEAN
        repeats = repetition(context)
        calls = calls.with_columns(pl.Series("host_ns", _host_ns(context, calls, stalled)))
        launch_ns = float(calls["host_ns"].sum()) / max(1, calls.height)
        most_ns = (MAX_FEW_LAUNCH_NS if few else MAX_LAUNCH_NS).value
        if launch_ns > most_ns or not (repeats.repeats_enough or context.steps > 1):
            return CLEAN
        places = called_from(context, calls, "host_ns")
        where = largest(places["range"], places["operator"], places["site"])
        same = repeats.alike is None or repeats.alike >= MIN_EQUAL_STEPS.value
        in_libraries = mostly_in_libraries(context, calls)
        work_ns = int(context.ops["duration_ns"].sum())
        confidence, reason = _confidence(repeats, same=same)
        if in_libraries:
            confidence, reason = Confidence.LOW, "an upper bound: a library makes the launches"
        syncs = waits(context).filter(~pl.col("large"), ~pl.col("at_edge")).height
        split = syncs > MAX_GRAPH_SYNCS.value * context.per_step
        if split and confidence is Confidence.HIGH:
            confidence = Confidence.MEDIUM
            reason = "launches and idle time were measured, but no graph spans the blocking syncs"
        torch_way, torch_code = _torch_advice(context, calls, same=same)
        cuda_code = _BATCHED if in_libraries else LaunchBound.cuda_code
        return RuleMatch(
            title=f"Kernel launch overhead: GPU idle {context.time_per_step(waited_ns)}",
            evidence=_evidence(context, calls.height, repeats, waited_ns, launch_ns),
            measured_ns=waited_ns,
            confidence=confidence,
            confidence_reason=reason,
            change=(
                as_graphs(
                    kept=stalled,
                    gap_ns=graph_gap_ns(context),
                    spans_steps=few or work_ns < MIN_GRAPH_WORK_NS.value * context.per_step,
                    outside=not_in_graphs(context),
                ),
            ),
            min_ns=at_most(context, waited_ns),
            fix=_fix(context, calls, where, launch_ns, torch_way, same=same, syncs=syncs * split),
            # Corrected times have nothing of the profiler in them.
            caveats=_GRAPH_CAVEATS if correction_of(context.trace) is not None else "",
            code=context.framework.choose(
                torch=torch_code, cuda=cuda_code, jax=LaunchBound.jax_code
            ),
            effort=context.framework.choose(
                torch="rewrite" if split else "one line", cuda="rewrite"
            ),
            where=where,
            lines=lines_behind(context, *_LAUNCHING),
            where_time="host time between launches (framework and launch call)",
            also=("graph-candidate",),
            needs=("host-sync",) * split,
        )

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find the events with most gaps between launches."""
        return launch_gaps(context, finding)


_LAUNCHING = (IdleCause.LAUNCHING, IdleCause.FRAMEWORK)


def _host_ns(context: RuleContext, calls: pl.DataFrame, stalled: Ints) -> Ints:
    """Return the host time of each launch: in the framework since the last one, and in the call.

    The last one of any thread: while autograd's thread launches, the main thread prepares nothing.
    So that the times of all launches add up to no more than the window. Without the time before
    `stalled` calls, which is not for launching.
    """
    call, host_thread = calls["call"].to_numpy(), calls["host_thread"].to_numpy()
    ends = (calls["start_ns"] + calls["duration_ns"]).to_numpy()
    order = np.argsort(ends, kind="stable")
    starts = np.empty_like(ends)
    starts[order] = np.append(context.schedule.start_ns, ends[order][:-1])
    starts = np.minimum(starts, ends)
    spent = context.hosts.spent(host_thread, starts, ends)
    host_ns: Ints = spent[:, list(_LAUNCHING)].sum(axis=1)
    stalled_ns = spent_before(context)[:, list(_LAUNCHING)].sum(axis=1)
    for thread in np.unique(host_thread):
        own = np.flatnonzero(host_thread == thread)
        own = own[np.argsort(call[own])]
        stalls = stalled[context.schedule.calls.host_thread[stalled] == thread]
        following = np.searchsorted(call[own], stalls)
        known = following < len(own)
        np.subtract.at(host_ns, own[following[known]], stalled_ns[stalls[known]])
    return host_ns.clip(min=0)


def _evidence(
    context: RuleContext, launches: int, repeats: LaunchRepetition, waited_ns: int, launch_ns: float
) -> tuple[Evidence, ...]:
    kernel_ns = context.kernels["duration_ns"].median()
    evidence = [
        context.evidence(
            "idle_launching_ns", waited_ns, "ns", "GPU idle time waiting for the next launch"
        ),
        context.evidence("launches", launches, "", "Kernel launches"),
        Evidence(
            "host_per_launch_ns",
            launch_ns,
            "ns",
            "Host time between launches (framework and launch call), mean",
        ),
        Evidence("gpu_busy", busy_share(context), "share", "GPU busy"),
        Evidence(
            "repeated", repeats.repeated, "share", "Share of the kernels that most steps repeat"
        ),
    ]
    if kernel_ns is not None:
        evidence.insert(2, Evidence("kernel_ns", float(kernel_ns), "ns", "Kernel duration, median"))  # type: ignore[arg-type]
    return tuple(evidence)


def _confidence(repeats: LaunchRepetition, *, same: bool) -> tuple[Confidence, str]:
    """Rate how far a graph can replace the launches as in the replay."""
    if not repeats.repeats_enough:
        few = "the estimate assumes as few launches as with graphs"
        return Confidence.LOW, f"few kernels repeat, so that no graph fits: {few}"
    if not same:
        return (
            Confidence.MEDIUM,
            "the steps launch different kernels, so that one graph does not fit all of them",
        )
    if repeats.alike is None:
        return Confidence.HIGH, "launches and idle time were measured, and kernels repeat"
    return (
        Confidence.HIGH,
        "launches and idle time were measured, and all steps launch the same kernels",
    )


def _fix(
    context: RuleContext,
    calls: pl.DataFrame,
    where: tuple[FindingLocation, ...],
    launch_ns: float,
    torch_way: str,
    *,
    same: bool,
    syncs: int,
) -> str:
    count = context.count_per_step(calls.height, "launch")
    host_ns = float(calls["host_ns"].sum())
    min_ns = MIN_NAMED_SHARE.value * host_ns
    main = tuple(w for w in where if (w.ns or 0.0) >= min_ns)
    kind = "range" if named(main, "range", most=3) else "operator"
    places = named(main, kind, most=3)
    share = sum(w.ns or 0.0 for w in [w for w in main if w.kind == kind][:3]) / max(1.0, host_ns)
    how_much = "mostly" if share >= _MOST else f"{format_share(share)} of it"
    most = f", {how_much} in {places}" if places else ""
    summary = f"{count}, {format_time(launch_ns, digits=3)} of host time each{most}."
    if mostly_in_libraries(context, calls) and not context.framework.is_ml:
        return (
            f"{summary} The launches are inside a library: call it less often, on larger or "
            "batched inputs, or use a function that handles all inputs in one call."
        )
    own = named(own_locations(context, where), "range", most=3)
    capture = f"Capture {own}" if own else "Capture the step"
    who = "All steps launch the same kernels" if context.steps > 1 else "The kernels repeat"
    fitting = f"{who}, so that a CUDA graph can launch them."
    if not same:
        fitting = "The steps differ: make shapes static (padding, buckets) before using graphs."
    way = context.framework.choose(
        torch=torch_way,
        cuda=f"{capture} with cudaStreamBeginCapture, and replay it with cudaGraphLaunch. Or fuse "
        "short kernels.",
        jax="Put the whole step, or several steps (lax.scan), under one jax.jit. XLA launches "
        "CUDA graphs with --xla_gpu_enable_command_buffer.",
        other=f"{capture} on a stream as a CUDA graph, and launch that, or fuse "
        "short kernels into one.",
    )
    if syncs:
        breaks = ", and torch.compile breaks its graph at each readback"
        breaks *= not context.framework.is_array_language
        fitting = (
            f"Remove the {context.count_per_step(syncs, 'blocking sync')} first (host-sync): a "
            f"CUDA graph cannot contain them{breaks}."
        )
    return f"{summary} {fitting} {way}"


def _optimizer_share(context: RuleContext, calls: pl.DataFrame) -> float:
    """Return the share of the launches that an optimizer with a fused form makes."""
    if not context.kernels.height:
        return 0.0
    launched_by = context.schedule.ops.call[parts_of(context).optimizer.group >= 0]
    return float(np.isin(calls["call"].to_numpy(), launched_by).mean())


def _torch_advice(context: RuleContext, calls: pl.DataFrame, *, same: bool) -> tuple[str, str]:
    """Return advice and code by what launches most: model graphs do not include the optimizer."""
    share = _optimizer_share(context, calls)
    compiled = LaunchBound.code if same else LaunchBound.shapes_code
    code = compiled + LaunchBound.graph_code * same
    way = 'Use torch.compile(mode="reduce-overhead") or torch.cuda.make_graphed_callables.'
    is_compiled = _is_compiled(context)
    if not same:
        way = "Or fuse kernels with torch.compile(dynamic=True)."
    elif is_compiled:
        way = (
            'The model is compiled already: mode="reduce-overhead" adds CUDA graphs, unless graph '
            "breaks split it (TORCH_LOGS=graph_breaks)."
        )
    if share >= MIN_OPTIMIZER_SHARE.value:
        summary = f"The optimizer makes {format_share(share)} of the launches: fuse it"
        if share > 0.5:
            rest = way if is_compiled else "Then apply torch.compile to the model."
            way, code = f"{summary} first. {rest}", optimizer_code(context) + compiled
        else:
            way, code = f"{way} {summary} too.", code + optimizer_code(context)
    return f"{way} Larger batches help too.", code


def _is_compiled(context: RuleContext) -> bool:
    """Return whether torch.compile made parts of the program."""
    tables = [table for table in ("cpu_ops", "ranges") if context.trace.has(table)]
    names = [name for t in tables for name in names_of(context.trace.table(t, ["name"])["name"])]
    return any(name.startswith(_COMPILED) for name in names)


_COMPILED = ("Torch-Compiled Region", "## Call CompiledFx", "CompiledFxGraph", "CompiledFunction")
"""How the regions of torch.compile begin."""
_BATCHED = """\
// one library call for all inputs instead of one call per input
process_all(inputs, offsets, count, stream);
"""
