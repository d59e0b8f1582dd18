"""host-bound: idle time of the GPU that no other finding explains, and what the host does then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.gpu_schedule import CallKind, OpKind, kind_of
from gpusight.analysis.ledger.device_ledger import build_ledger
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import without_host_time
from gpusight.analysis.selection import GPU_WORK
from gpusight.naming.host_names import is_sleeping, is_waiting
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import TITLE_NAME_LENGTH, largest, named
from gpusight.rules.locations import idle_by_cause
from gpusight.rules.patterns.host_gaps import (
    at_most,
    behind,
    busy_share,
    host_unknown,
    idle_ns,
    launching_threads,
)
from gpusight.rules.patterns.stack_lines import line_sites, lines_behind
from gpusight.rules.rule import (
    CLEAN,
    FindingLocation,
    Framework,
    RuleMatch,
    Threshold,
    TimelineRule,
)
from gpusight.trace.intervals import Intervals, contains, coverage, gaps
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict


MIN_IDLE_SHARE = Threshold(0.1, "share of the time in which the GPU is idle; less is usual")
MIN_LEFT_SHARE = Threshold(
    0.5,
    "share of the idle time that the other findings leave; also a finding if it is more than the "
    "share of the time above",
)
MIN_CAUSE_SHARE = Threshold(
    0.1,
    "share of that idle time from which on a cause is named, and of a cause what it is spent on",
)
MIN_OTHER_GPUS_SHARE = Threshold(
    0.5, "share of the idle time in which another GPU works, above which GPUs wait for each other"
)
MIN_KEPT_SHARE = Threshold(
    0.5,
    "share of the idle time after the other fixes that has the cause it was measured with; below "
    "it, the measured causes count",
)
MIN_NAMED_SHARE = Threshold(
    0.5,
    "share of the idle time of a cause that has a name; below it, another capture can show more",
)
MIN_WHOLE_SHARE = Threshold(
    0.75,
    "share of the idle time of a cause that the other fixes leave; below it, the title begins with "
    "`Other`",
)
_DOING = {
    IdleCause.QUEUED: "launched work starts late",
    IdleCause.SYNCHRONIZING: "host returns from a sync",
    IdleCause.ALLOCATING: "host allocates or frees memory",
    IdleCause.LAUNCHING: "host is in launch calls",
    IdleCause.SETUP: "host is in setup calls",
    IdleCause.INPUT: "host loads data",
    IdleCause.WAITING: "host waits",
    IdleCause.FRAMEWORK: "host is in Python or the framework between launches",
    IdleCause.HOST: "host runs code with no CUDA call",
    IdleCause.UNKNOWN: "the launching thread is not known",
}
"""What happens while the GPU is idle, by cause; the profiler has a rule of its own."""
_TITLES = {
    IdleCause.QUEUED: ("launched work starts late", ""),
    IdleCause.SYNCHRONIZING: ("host returns late from syncs", ""),
    IdleCause.ALLOCATING: ("memory allocation on the host", ""),
    IdleCause.LAUNCHING: ("host time in launch calls", ""),
    IdleCause.SETUP: ("CUDA setup calls", ""),
    IdleCause.INPUT: ("data loading", ""),
    IdleCause.WAITING: ("host waits", ""),
    IdleCause.FRAMEWORK: ("Python/framework time", "between launches"),
    IdleCause.HOST: ("host code", "no CUDA calls"),
    IdleCause.UNKNOWN: ("unknown launching thread", ""),
}
"""Titles by cause, and what they mean where no range, operator or call names it better."""


class HostBound(TimelineRule):
    """Idle time that no other finding explains."""

    id = "host-bound"
    detects = (
        "Looks for GPU idle time that no other finding explains. It reports what the launching "
        "thread does then: CUDA and OS calls, ranges, operators, Python functions, CPU samples."
    )
    why = (
        "The GPU only works when the host has launched work for it. Whatever the launching thread "
        "does or waits for in the meantime adds to the step."
    )
    fix = (
        "Find out what the launching thread does in the idle time. Move that to another thread, do "
        "it less often, or do it after the next launches."
    )
    code = """\
future = executor.submit(host_work, batch)     # on another thread, while the GPU computes
# to verify, name the parts of the loop and record again:
with torch.cuda.nvtx.range("host work"):
    result = host_work(batch)
"""
    snippets: ClassVar = {
        Framework.CUPY: """\
future = executor.submit(host_work, batch)     # on another thread, while the GPU computes
# to verify, name the parts of the loop and record again:
with cupyx.profiler.time_range("host work"):
    result = host_work(batch)
""",
        Framework.NUMBA: """\
future = executor.submit(host_work, batch)     # on another thread, while the GPU computes
# to verify, name the parts of the loop and record again (package nvtx):
with nvtx.annotate("host work"):
    result = host_work(batch)
""",
        Framework.JULIA: """\
task = Threads.@spawn host_work(batch)         # on another thread, while the GPU computes
# to verify, name the parts of the loop and record again (package NVTX):
NVTX.@range "host work" begin
    host_work(batch)
end
""",
    }
    queued_why = (
        "Work of one stream runs in order. Between two kernels the GPU is idle for about 1 µs, and "
        "longer where the second one waits for another stream or GPU, an event, or another process."
    )
    verify = "`gpusight ledger` shows less `idle`, and the causes that remain."
    caveats = (
        "The capture does not show whether the work is needed, or whether the step has to wait for "
        "it. A program that is meant to run at a fixed rate waits by design."
    )
    estimate = (
        "Simulation with the other findings fixed and without any host time between calls, "
        "allocations and setup calls. An upper bound, limited to the idle time."
    )
    thresholds: ClassVar = {
        "min_idle_share": MIN_IDLE_SHARE,
        "min_left_share": MIN_LEFT_SHARE,
        "min_cause_share": MIN_CAUSE_SHARE,
        "min_kept_share": MIN_KEPT_SHARE,
        "min_named_share": MIN_NAMED_SHARE,
        "min_whole_share": MIN_WHOLE_SHARE,
        "min_other_gpus_share": MIN_OTHER_GPUS_SHARE,
    }
    is_general = True

    def check(self, context: RuleContext) -> RuleVerdict:
        """Measure the idle time as if there were no other rules."""
        return self.check_rest(context, ())

    def check_rest(self, context: RuleContext, others: Sequence[RuleMatch]) -> RuleVerdict:
        """Measure the idle time that is left when the fixes of the other findings are made."""
        changes = [change for match in others for change in match.change]
        idle = sum(idle_ns(context, cause) for cause in _DOING)
        left_ns, by_cause = _idle_by_cause(context, changes)
        # What cannot be replayed is explained too.
        no_replay = [match for match in others if not match.change]
        left_ns -= int(sum(m.recoverable_ns or m.measured_ns or 0.0 for m in no_replay))
        for cause, ns in (pair for match in no_replay for pair in match.explained_ns.items()):
            if cause in by_cause:
                by_cause[cause] = max(0, by_cause[cause] - ns)
        by_cause = dict(sorted(by_cause.items(), key=lambda item: -item[1]))
        min_ns = MIN_IDLE_SHARE.value * context.length_ns
        if idle < min_ns or left_ns < min(min_ns, MIN_LEFT_SHARE.value * idle):
            return CLEAN
        return _match(context, by_cause, left_ns, changes, others=bool(others))

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find the longest idle gaps, in the events that the finding names if any."""
        return idle_by_cause(context, finding, *_DOING)


def _idle_by_cause(
    context: RuleContext, changes: Sequence[Change]
) -> tuple[int, dict[IdleCause, int]]:
    """Return the idle time of the busiest GPU with these changes, and its causes.

    No cause has more than was measured: a replay moves time from one to another. Where it only
    moves the time, the changes make the program wait elsewhere: the causes are those measured.
    """
    by_cause = {cause: idle_ns(context, cause) for cause in _DOING}
    left_ns = sum(by_cause.values())
    if changes:
        result = context.replay.run(*changes)
        ledger = build_ledger(context.schedule, context.replay.hosts_of(result), result.timing)
        device = next(d for d in ledger.devices if d.device == context.device)
        measured_ns, left_ns = left_ns, sum(device.ns(cause.entry) for cause in _DOING)
        left_ns = min(left_ns, measured_ns)
        kept = {cause: min(ns, device.ns(cause.entry)) for cause, ns in by_cause.items()}
        removed = left_ns < MIN_LEFT_SHARE.value * measured_ns
        if removed or sum(kept.values()) >= MIN_KEPT_SHARE.value * left_ns:
            by_cause = kept
    return left_ns, by_cause


def _match(
    context: RuleContext,
    by_cause: dict[IdleCause, int],
    left_ns: int,
    changes: Sequence[Change],
    *,
    others: bool,
) -> RuleMatch:
    total_ns = sum(by_cause.values())
    causes = [c for c, ns in by_cause.items() if ns >= MIN_CAUSE_SHARE.value * total_ns]
    activity = {cause: _activity(context, cause) for cause in causes}
    threads = launching_threads(context)
    cause = causes[0]
    early = cause is IdleCause.QUEUED and _is_before_all(context, by_cause[IdleCause.QUEUED])
    knows_host = host_unknown(context) is None
    parts = [
        context.evidence(
            f"idle_{cause.name.lower()}_ns",
            by_cause[cause],
            "ns",
            f"Idle: {_doing(cause, activity[cause])}",
        )
        for cause in causes
    ]
    what, meaning = _TITLES[cause]
    in_copies = cause is IdleCause.LAUNCHING and _is_copying(activity[cause])
    what = "host time in copy calls" if in_copies else what
    # Another finding has part of it: this is the rest.
    is_rest = others and by_cause[cause] < MIN_WHOLE_SHARE.value * idle_ns(context, cause)
    what = f"Other {what}" if is_rest else f"{what[0].upper()}{what[1:]}"
    source = _source(context, cause, activity[cause], threads, by_cause[cause])
    detail = source or meaning
    what = f"{what} ({detail})" if detail else what
    return RuleMatch(
        title=f"{what}: GPU idle {context.time_per_step(left_ns)}",
        evidence=(
            context.evidence("idle_ns", left_ns, "ns", "GPU idle after all other fixes"),
            *parts,
            Evidence("gpu_busy", busy_share(context), "share", "GPU busy"),
            *_faults(context),
        ),
        confidence=Confidence.LOW,
        confidence_reason="an upper bound: the capture does not show which of this work is needed",
        change=_without_host(context, changes) if knows_host else (),
        min_ns=at_most(context, left_ns),
        measured_ns=left_ns,
        why=HostBound.queued_why if cause is IdleCause.QUEUED else "",
        fix=_fix(context, causes, by_cause, activity, threads, early=early),
        code=context.framework.choose(torch=_TORCH_MORE_STEPS, cuda=_MORE_STEPS)
        if early
        else _code(context, cause, activity[cause]),
        lines=() if cause is IdleCause.QUEUED else lines_behind(context, *causes),
        where_time="measured GPU idle time (before other fixes)" if others else "",
        where=largest(
            *([w for w in activity[each] if w.kind != "kernel"] for each in causes),
            [w for w in activity[cause] if w.kind == "kernel"],
            threads[:1],
        ),
    )


def _source(
    context: RuleContext,
    cause: IdleCause,
    activity: tuple[FindingLocation, ...],
    threads: Sequence[FindingLocation],
    cause_ns: int,
) -> str:
    """Name what the host does while the GPU is idle by this cause; empty if nothing stands out."""
    if cause is IdleCause.QUEUED:
        return named(activity, "kernel", most=1, length=TITLE_NAME_LENGTH)
    min_ns = MIN_CAUSE_SHARE.value * cause_ns
    large = tuple(location for location in activity if (location.ns or 0.0) >= min_ns)
    source = named(large, *_NAMED, most=1, length=TITLE_NAME_LENGTH)
    waits = cause is IdleCause.WAITING and source == _top_call(activity)
    if not waits or not threads or is_sleeping(source.strip("`")):
        return source
    if _is_process_name(context, threads[0].name):
        return source
    # The name of a thread shows more than that of the lock it waits for.
    return named((threads[0],), "thread", length=TITLE_NAME_LENGTH)


def _is_process_name(context: RuleContext, thread: str) -> bool:
    """Return whether a thread has the name of its program, as main threads have."""
    names = context.trace.table("processes", ["name"])["name"].cast(pl.String).drop_nulls()
    return any(PurePath(name).name.startswith(thread) for name in names.unique())


def _is_before_all(context: RuleContext, queued_ns: int) -> bool:
    """Return whether launched work starts late because it is the first that the capture shows."""
    starts = [context.trace.table(table, ["start_ns"])["start_ns"].min() for table in GPU_WORK]
    first_ns = min(ns for ns in starts if isinstance(ns, int))
    waited_ns = first_ns - context.schedule.start_ns
    return 2 * waited_ns > queued_ns


def _doing(cause: IdleCause, activity: tuple[FindingLocation, ...]) -> str:
    """Say what happens while the GPU is idle."""
    in_copies = cause is IdleCause.LAUNCHING and _is_copying(activity)
    return "host is in copy calls" if in_copies else _DOING[cause]


def _is_copying(activity: tuple[FindingLocation, ...]) -> bool:
    """Return whether the call with most of the idle time copies memory: it launches no kernel."""
    return kind_of(_top_call(activity).strip("`")) is CallKind.COPY


def _top_call(activity: tuple[FindingLocation, ...]) -> str:
    """Name the OS or CUDA call with most of the idle time, as a title does."""
    return named(activity, "call", most=1, length=TITLE_NAME_LENGTH)


_NAMED = ("range", "operator", "site", "call")
_HOST_CODE = (IdleCause.HOST, IdleCause.FRAMEWORK, IdleCause.WAITING)
"""Causes that more names, stacks or samples can explain further."""


def _activity(context: RuleContext, cause: IdleCause) -> tuple[FindingLocation, ...]:
    """Return what the host was in while the GPU was idle for a cause, and what ended that.

    As measured: whatever the other findings change.
    """
    places = behind(context, cause)
    ends = places.pop("kernel")
    if cause in _OWN_CODE:
        # A thread that waits while another one works has no part in the work.
        places["call"] = [location for location in places["call"] if not is_waiting(location.name)]
    if cause in _HOST_CODE and not places["site"]:
        lines = line_sites(lines_behind(context, cause))
        places["site"] = lines or _sampled_functions(context, cause)
    activity = [location for group in places.values() for location in group]
    return (*sorted(activity, key=lambda location: -(location.ns or 0.0)), *ends[:1])


def _sampled_functions(context: RuleContext, cause: IdleCause) -> list[FindingLocation]:
    """Return the functions that CPU samples of the launching threads show in the idle time."""
    trace, schedule, ops = context.trace, context.schedule, context.schedule.ops
    if not trace.has("cpu_samples", "callchain"):
        return []
    on_gpu = ops.device == context.device
    busy = Intervals.from_arrays(ops.start_ns[on_gpu], ops.end_ns[on_gpu])
    idle = gaps(busy, schedule.start_ns, schedule.end_ns)
    samples = trace.table("cpu_samples", ["time_ns", "thread", "callchain"]).filter(
        pl.col("thread").is_in([thread for _, thread in schedule.threads])
    )
    samples = samples.filter(pl.Series(contains(idle, samples["time_ns"].to_numpy())))
    frames = trace.table("callchains", ["source", "callchain", "depth", "symbol", "unresolved"])
    # The innermost function that has a name.
    functions = (
        frames.filter(
            pl.col("source").cast(pl.String) == "cpu_samples",
            pl.col("callchain").is_in(samples["callchain"].unique().to_list()),
            ~pl.col("unresolved").fill_null(value=False),
            pl.col("symbol").is_not_null(),
        )
        .sort("depth")
        .unique("callchain", keep="first", maintain_order=True)
    )
    counts = (
        samples.join(functions, on="callchain")
        .group_by(pl.col("symbol").cast(pl.String), maintain_order=True)
        .len()
        .sort("len", descending=True, maintain_order=True)
        .head(3)
    )
    sample_ns = idle_ns(context, cause) / max(1, samples.height)
    return [FindingLocation("site", name, n * sample_ns, n) for name, n in counts.iter_rows()]


def _without_host(context: RuleContext, changes: Sequence[Change]) -> tuple[Change, ...]:
    """Remove the host time that the other fixes leave: between calls, in them, and at the end."""
    program, calls = context.replay.program, context.schedule.calls
    for change in changes:
        program = change(program)
    late = np.flatnonzero(program.gap_ns > 0)
    in_calls = context.hosts.spent(calls.host_thread, calls.start_ns, calls.end_ns)
    slow_ns = in_calls[:, [IdleCause.ALLOCATING, IdleCause.SETUP]].sum(axis=1)

    def shorter_calls(program: ReplayProgram) -> ReplayProgram:
        own_ns = np.maximum(program.own_ns - slow_ns, 0)
        return replace(program, own_ns=own_ns, trailing_ns=0)

    return without_host_time(late, program.gap_ns[late]), shorter_calls


def _faults(context: RuleContext) -> tuple[Evidence, ...]:
    """Count the page faults of managed memory in the sample."""
    if not context.trace.has("page_faults"):
        return ()
    schedule = context.schedule
    faults = context.trace.table("page_faults", ["start_ns"]).filter(
        pl.col("start_ns").is_between(schedule.start_ns, schedule.end_ns, closed="left")
    )
    if faults.is_empty():
        return ()
    return (context.evidence("page_faults", faults.height, "", "Page faults"),)


def _fix(
    context: RuleContext,
    causes: Sequence[IdleCause],
    by_cause: dict[IdleCause, int],
    activity: dict[IdleCause, tuple[FindingLocation, ...]],
    threads: list[FindingLocation],
    *,
    early: bool,
) -> str:
    """Say what happens in the idle time; `early`: most is before the first GPU activity."""
    total_ns = max(1, sum(by_cause.values()))
    sentences = []
    for cause in causes:
        min_named_ns = MIN_CAUSE_SHARE.value * idle_ns(context, cause)
        large = tuple(w for w in activity[cause] if (w.ns or 0.0) >= min_named_ns)
        source = named(large, *_NAMED)
        # What the host does matters only where the GPU waits for it.
        inside = f", mostly in {source}" if source and cause is not IdleCause.QUEUED else ""
        before = named(activity[cause], "kernel", most=1)
        until = f", mostly before {before}" if before else ""
        share = format_share(by_cause[cause] / total_ns)
        doing = _doing(cause, activity[cause]).replace("host ", "the host ", 1)
        sentences.append(f"In {share} of the idle time, {doing}{inside}{until}.")
    if threads and causes[0] is not IdleCause.QUEUED:
        launched_by = named(tuple(threads), "thread")
        is_one = launched_by.count("`") == 2
        who, launch = ("The thread", "launches") if is_one else ("The threads", "launch")
        sentences.append(f"{who} {launched_by} then {launch} the next GPU activity.")
    advice = _EARLY if early else _ADVICE[causes[0]]
    if causes[0] is IdleCause.LAUNCHING and _is_copying(activity[causes[0]]):
        advice = _COPY_ADVICE
    if causes[0] is IdleCause.QUEUED and not early:
        graphs = "" if _uses_graphs(context) else "CUDA graphs and "
        advice = f"{advice} {graphs}{'f' if graphs else 'F'}used kernels shorten them."
        advice = _other_gpus(context) or advice
    sentences += [advice, _how_to_learn(context, causes[0], activity[causes[0]])]
    return " ".join(filter(None, sentences))


def _other_gpus(context: RuleContext) -> str:
    """Return advice where other GPUs of the program work for most of the idle time."""
    schedule, ops = context.schedule, context.schedule.ops
    on_gpu = ops.device == context.device
    busy, others = (
        Intervals.from_arrays(ops.start_ns[at], ops.end_ns[at]) for at in (on_gpu, ~on_gpu)
    )
    idle = gaps(busy, schedule.start_ns, schedule.end_ns)
    share = float(coverage(others, idle.starts, idle.ends).sum()) / max(1, idle.length_ns)
    if share < MIN_OTHER_GPUS_SHARE.value:
        return ""
    return (
        f"Another GPU of the program works in {format_share(share)} of it: they wait for each "
        "other. More and smaller micro-batches keep the stages of a pipeline busy; other programs "
        "give each GPU a part of the data."
    )


_ADVICE = {
    IdleCause.QUEUED: "The work was launched in time: it waits for another stream, GPU or process, "
    "or for an event. Gaps of a few µs are the latency between two kernels.",
    IdleCause.SYNCHRONIZING: "Wait less often. A slow return means that the thread got no CPU "
    "core: check the load of the machine and the CPU affinity.",
    IdleCause.ALLOCATING: "Allocate once and reuse buffers, or use a caching allocator.",
    IdleCause.LAUNCHING: "Launch more work per call: CUDA graphs, fused kernels, larger batches.",
    IdleCause.SETUP: "Create handles, load code and build graphs once, before the loop.",
    IdleCause.INPUT: "Load data on another thread, ahead of the step.",
    IdleCause.WAITING: "Find what it waits for: another rank, another thread, or a sleep. With "
    "several ranks, compare their captures to find the straggler.",
    IdleCause.FRAMEWORK: "Launch more work per call, or do this host work while the GPU computes.",
    IdleCause.HOST: "Do this work on another thread, less often, or after the next launches.",
    IdleCause.UNKNOWN: "Record with `gpusight record`, which traces the calls that launch.",
}


_COPY_ADVICE = (
    "A call that copies pageable memory returns when the copy is done. Copy from pinned memory, "
    "asynchronously, and in fewer and larger copies."
)


def _uses_graphs(context: RuleContext) -> bool:
    is_graph = context.schedule.ops.kind == OpKind.GRAPH
    return bool(is_graph.any() or (context.schedule.calls.kind == CallKind.GRAPH).any())


_EARLY = (
    "Most of it is before the first GPU activity of the capture. Work that was launched before the "
    "recording began may still have run then. Record more steps, and ignore the first."
)


def _how_to_learn(
    context: RuleContext, cause: IdleCause, activity: tuple[FindingLocation, ...]
) -> str:
    """Return what to record to learn more; empty where the capture names what the host does."""
    named_ns = max((w.ns or 0.0 for w in activity if w.kind in _NAMED), default=0.0)
    is_named = named_ns >= MIN_NAMED_SHARE.value * idle_ns(context, cause)
    if is_named or cause not in _HOST_CODE:
        return ""
    if context.framework in {Framework.CUDA, Framework.JULIA}:
        return "NVTX ranges around the parts of the program name it in the next capture."
    return (
        "`gpusight record` samples its Python stacks, which name the line, and NVTX ranges around "
        "the parts of the loop name it."
    )


def _code(context: RuleContext, cause: IdleCause, activity: tuple[FindingLocation, ...]) -> str:
    """Choose what to change by what the capture shows; then the ranges that verify it."""
    framework = context.framework
    next_on_gpu = next((location.name for location in activity if location.kind == "kernel"), "")
    if cause is IdleCause.QUEUED:
        in_cuda = _CUDA_FUSED if _uses_graphs(context) else _CUDA_GRAPH
        return framework.choose(torch=_TORCH_GRAPHS, cuda=in_cuda, jax=_JAX_FUSED)
    if cause is IdleCause.WAITING and any("gloo" in location.name for location in activity):
        change = framework.choose(torch=_TORCH_COLLECTIVES, cuda="", jax="")
    elif cause is IdleCause.INPUT or (cause in _OWN_CODE and next_on_gpu == _H2D_COPY):
        # Host work right before an H2D copy makes the input of the step.
        change = framework.choose(torch=_TORCH_LOADER, cuda=_CUDA_AHEAD, jax=_JAX_AHEAD)
    elif cause is IdleCause.HOST or (cause in _OWN_CODE and named(activity, "range", "site")):
        change = framework.choose(torch=_TORCH_THREAD, cuda=_CUDA_FIRST, jax=_JAX_FIRST)
    elif cause is IdleCause.LAUNCHING and _is_copying(activity):
        change = framework.choose(torch=_TORCH_PINNED, cuda=_CUDA_PINNED, jax=_JAX_AHEAD)
    elif cause in {IdleCause.LAUNCHING, IdleCause.FRAMEWORK}:
        change = framework.choose(torch=_TORCH_COMPILE, cuda=_CUDA_FIRST, jax=_JAX_SCAN)
    elif cause is IdleCause.ALLOCATING:
        change = framework.choose(torch=_TORCH_BUFFER, cuda=_CUDA_BUFFER, jax="")
    else:
        change = ""
    return change + framework.choose(torch=_TORCH_RANGE, cuda=_CUDA_RANGE, jax=_JAX_RANGE)


_TORCH_MORE_STEPS = """\
schedule = torch.profiler.schedule(wait=1, warmup=2, active=5)  # and prof.step() in each step
"""
_MORE_STEPS = "gpusight record --steps 10:20 -- ./program\n"
_OWN_CODE = (IdleCause.HOST, IdleCause.FRAMEWORK)
_H2D_COPY = "H2D copy"
_TORCH_LOADER = """\
loader = DataLoader(dataset, num_workers=8, pin_memory=True, persistent_workers=True)
for batch in loader:                           # prepared ahead by the workers
    batch = batch.to("cuda", non_blocking=True)
"""
_TORCH_THREAD = """\
future = executor.submit(host_work, batch)     # on another thread, while the GPU computes
"""
_TORCH_COMPILE = """\
model = torch.compile(model)                   # less Python and fewer operators per step
"""
_TORCH_GRAPHS = """\
model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs and fused kernels
"""
_CUDA_GRAPH = """\
cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);  // shorter gaps in a CUDA graph
launch_step(stream);
cudaStreamEndCapture(stream, &graph);
"""
_CUDA_FUSED = """\
fused_kernel<<<blocks, threads, 0, stream>>>(...);  // one kernel instead of several short ones
"""
_JAX_FUSED = """\
step = jax.jit(step)                           # one program: XLA fuses its kernels
"""
_TORCH_COLLECTIVES = """\
torch.distributed.init_process_group("nccl")   # collectives on the GPU; gloo runs on the host
"""
_TORCH_BUFFER = """\
buffer = torch.empty(shape, device="cuda")     # once, before the loop
torch.matmul(a, b, out=buffer)                 # each step
"""
_TORCH_PINNED = """\
batch = batch.pin_memory().to("cuda", non_blocking=True)  # or DataLoader(pin_memory=True)
"""
_CUDA_PINNED = """\
cudaMallocHost(&host, bytes);                  // once, instead of malloc
cudaMemcpyAsync(device, host, bytes, cudaMemcpyDefault, stream);  // returns at once
"""
_TORCH_RANGE = """\
# to verify, name the parts of the loop and record again:
with torch.cuda.nvtx.range("host work"):
    result = host_work(batch)
"""
_CUDA_AHEAD = """\
auto next = std::async(std::launch::async, prepare, i + 1);  // while the GPU computes
launch_step(i, stream);
batch = next.get();
"""
_CUDA_FIRST = """\
launch_step(i + 1, stream);                    // keep the GPU busy first
host_work(i);                                  // then do the host work
"""
_CUDA_BUFFER = """\
cudaMallocAsync(&buffer, bytes, stream);       // once, before the loop; or from a memory pool
"""
_CUDA_RANGE = """\
nvtxRangePushA("host work");                   // to verify, name the parts and record again
host_work();
nvtxRangePop();
"""
_JAX_AHEAD = """\
upcoming = executor.submit(lambda: jax.device_put(prepare(batch)))  # while the GPU computes
state = step(state, upcoming.result())
"""
_JAX_FIRST = """\
state = step(state, batch)                     # dispatched, not awaited
host_work()                                    # while the GPU computes
"""
_JAX_SCAN = """\
state, losses = jax.lax.scan(step, state, batches)  # one dispatch for many steps, under jax.jit
"""
_JAX_RANGE = """\
# to verify, name the parts of the loop and record again:
with jax.profiler.TraceAnnotation("host work"):
    host_work()
"""
