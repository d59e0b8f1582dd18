"""between-steps: host work that launches nothing stalls the GPU, between steps or inside them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import optional
from gpusight.analysis.gpu_schedule import NONE, CallKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import free_calls, remove, without_host_time, without_waiting
from gpusight.analysis.selection import GPU_WORK
from gpusight.naming.host_names import is_input, is_waiting
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import largest, named
from gpusight.rules.locations import idle_by_cause
from gpusight.rules.patterns.host_gaps import (
    MAX_LAUNCHES_BETWEEN,
    MIN_RARE_RATIO,
    MIN_STALL_NS,
    MIN_STALL_RATIO,
    activity_before,
    at_most,
    host_unknown,
    host_work,
    launching_thread,
    waits,
)
from gpusight.rules.patterns.memcpys import MIN_COPY_BYTES
from gpusight.rules.patterns.stack_lines import line_sites, lines_before
from gpusight.rules.rule import (
    CLEAN,
    Framework,
    RuleMatch,
    RuleNotApplicable,
    Threshold,
    TimelineRule,
)
from gpusight.trace.intervals import Intervals, coverage, gaps, intersect, union
from gpusight.units import format_bytes, format_time

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.patterns.host_gaps import HostStalls
    from gpusight.rules.rule import FindingLocation, RuleVerdict
    from gpusight.trace.intervals import Flags, Ints


MIN_IDLE_SHARE = Threshold(
    0.02, "share of the time that the GPU is idle due to this work; less is noise"
)
BUFFER_BYTES_S = Threshold(
    4e9,
    "byte/s; allocating, touching and freeing a host buffer is faster (at most 1 µs per 4 kB "
    "page), so that a longer stall next to a D2H copy works on the data",
)
MIN_NAMED_SHARE = Threshold(
    0.1, "share of this work that a range, operator or function must cover to name it"
)
MIN_STEP_SHARE = Threshold(
    0.5,
    "share of the steps that must have a long stall at the same point, or share of a step that a "
    "rare stall must take; others are noise",
)
LOOP_NS_PER_STEP = Threshold(20_000, "ns per step that the loop itself takes")
MIN_HIDDEN_SHARE = Threshold(
    0.5,
    "share of the host work after a readback that overlaps with the GPU once the readback does not "
    "block; above it, the blocking sync is the cause (host-sync)",
)
_STEP_MARK = "ProfilerStep#"
_PROFILER = re.compile(r"(?:^|/)torch/profiler/|ProfilerStep|profiler_util")


@dataclass(frozen=True)
class _OtherWork:
    """Host work that does not launch anything."""

    calls: Ints
    """Positions of the calls that it came before."""
    ns: Ints
    """Before each of them."""
    idle_ns: int
    """The part of it with the GPU idle."""
    spans: Intervals
    thread: int
    between_ns: int
    """The part of the idle time between steps."""
    read: pl.DataFrame
    """Copies to the host between steps, which that work needs."""


class BetweenSteps(TimelineRule):
    """Host work that launches nothing, between steps or in the middle of them."""

    id = "between-steps"
    detects = (
        "Looks for host work that stalls the GPU and is neither data loading nor kernel "
        "launching. It is between steps (logging, checkpoints, validation), or takes 1 ms or more "
        "inside steps."
    )
    why = (
        "The host launches nothing during this work. Once the kernels launched before are done, "
        "the GPU is idle until the next launch."
    )
    fix = "Do this work less often, on another thread, or after the next step is launched."
    code = """\
if step % 100 == 0:                            # not every step
    executor.submit(write_log, step, metrics)  # another thread
# checkpoints: torch.distributed.checkpoint.async_save(state, checkpoint_id=path)
"""
    snippets: ClassVar = {
        **dict.fromkeys(
            (Framework.CUPY, Framework.NUMBA),
            """\
if step % 100 == 0:                            # not every step
    executor.submit(write_log, step, metrics)  # another thread
""",
        ),
        Framework.JULIA: """\
step % 100 == 0 && Threads.@spawn write_log(step, metrics)   # not every step, another thread
""",
    }
    verify = (
        "`gpusight steps` shows a shorter gap between steps. `gpusight ledger` shows less "
        "`idle/framework` and `idle/host`."
    )
    caveats = (
        "Where ranges mark only a part of each step, the rest of the step counts as work between "
        "steps. A stall without any name may be work that the step needs."
    )
    estimate = (
        "Simulation without the host time of these stalls and without the D2H copies issued "
        "between steps. Other calls and syncs remain."
    )
    thresholds: ClassVar = {
        "min_idle_share": MIN_IDLE_SHARE,
        "loop_ns_per_step": LOOP_NS_PER_STEP,
        "min_step_share": MIN_STEP_SHARE,
        "min_hidden_share": MIN_HIDDEN_SHARE,
        "min_stall_ns": MIN_STALL_NS,
        "min_stall_ratio": MIN_STALL_RATIO,
        "max_launches_between": MAX_LAUNCHES_BETWEEN,
        "buffer_rate": BUFFER_BYTES_S,
        "min_named_share": MIN_NAMED_SHARE,
    }
    min_share = 0.02

    def check(self, context: RuleContext) -> RuleVerdict:
        """Measure the host's own time between the marks of steps, and in long stretches."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        if context.steps < 2:
            return RuleNotApplicable("fewer than two steps are known")
        work = host_work(context)
        profiler = _profiler_spans(context)
        in_profiler = 2 * coverage(profiler, work.start_ns, work.end_ns) > work.ns
        candidates = (work.between | _regular_stalls(context, work)) & (work.ns > 0) & ~in_profiler
        candidates &= context.schedule.calls.start_ns <= _last_work_ns(context)
        calls = _without_reads(context, work, np.flatnonzero(candidates))
        threads = context.schedule.calls.thread[calls]
        other = _OtherWork(
            calls,
            work.ns[calls],
            work.of(calls),
            Intervals.from_arrays(work.start_ns[calls], work.end_ns[calls]),
            int(np.bincount(threads).argmax()) if len(threads) else 0,
            work.of(calls[work.between[calls]]),
            context.ops.filter(
                pl.col("kind") == "copy",
                pl.col("direction") == "Device-to-Host",
                pl.col("call").is_in(np.flatnonzero(work.between)),
            ),
        )
        min_idle_ns = max(
            MIN_IDLE_SHARE.value * context.length_ns, LOOP_NS_PER_STEP.value * context.steps
        )
        if other.idle_ns - intersect(profiler, other.spans).length_ns < min_idle_ns:
            return CLEAN
        return _match(context, other)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find idle time in which the host did something else than launch."""
        causes = (IdleCause.FRAMEWORK, IdleCause.HOST, IdleCause.WAITING, IdleCause.SETUP)
        return idle_by_cause(context, finding, *causes)


def _last_work_ns(context: RuleContext) -> int:
    """Return when the last GPU work of the capture starts: what the host does later delays none.

    Programs and profilers end with a wait for the GPU, after work of their own.
    """
    starts = (context.trace.table(table, ["start_ns"])["start_ns"].max() for table in GPU_WORK)
    return max((cast("int", start) for start in starts if start is not None), default=0)


def _profiler_spans(context: RuleContext) -> Intervals:
    """Return when torch.profiler counts a step: in Python functions of its own, between its marks.

    A program runs all of its own code inside a marked step.
    """
    schedule = context.schedule
    events = context.trace.table("python_calls", ["start_ns", "end_ns", "name", "thread"]).filter(
        pl.col("thread").is_in([thread for _, thread in schedule.threads]),
        pl.col("end_ns") > pl.col("start_ns"),
        pl.col("end_ns") > schedule.start_ns,
        pl.col("start_ns") < schedule.end_ns,
    )
    codes = [c for c, name in enumerate(names_of(events["name"])) if _PROFILER.search(name)]
    own = events.filter(pl.col("name").to_physical().is_in(codes))
    spans = Intervals.from_arrays(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
    ranges = context.trace.table("ranges", ["start_ns", "end_ns", "name"])
    codes = [c for c, name in enumerate(names_of(ranges["name"])) if name.startswith(_STEP_MARK)]
    marked = ranges.filter(pl.col("name").to_physical().is_in(codes))
    if marked.height < 2:
        return spans
    steps = Intervals.from_arrays(marked["start_ns"].to_numpy(), marked["end_ns"].to_numpy())
    return union(spans, gaps(steps, int(steps.starts[0]), int(steps.ends[-1])))


def _without_reads(context: RuleContext, work: HostStalls, calls: Ints) -> Ints:
    """Leave out work on values that were read back, if the wait for them is the cause."""
    reads = waits(context).filter(pl.col("reads"), ~pl.col("large"))["calls"]
    host_thread = context.schedule.calls.host_thread
    order = np.argsort(host_thread, kind="stable")
    same_thread = host_thread[order][1:] == host_thread[order][:-1]
    call_before = np.full(len(host_thread), NONE, np.int64)
    call_before[order[1:]] = np.where(same_thread, order[:-1], NONE)
    before = call_before[calls]
    after_read = np.isin(before, reads.explode().to_numpy())
    if not after_read.any():
        return calls
    read = reads.filter(reads.list.eval(pl.element().is_in(before[after_read])).list.any())
    saved_ns = context.replay.run(without_waiting(read.explode().to_numpy())).saved_ns
    if saved_ns >= MIN_HIDDEN_SHARE.value * work.of(calls[after_read]):
        return calls[~after_read]
    return calls


def _without_reading(context: RuleContext, read: pl.DataFrame) -> tuple[Change, ...]:
    """Remove copies, their calls and the waits for them."""
    if read.is_empty():
        return ()
    issued = read["call"].unique().to_numpy()
    groups = waits(context)["calls"]
    waiting = groups.filter(groups.list.eval(pl.element().is_in(issued)).list.any()).explode()
    return free_calls(np.union1d(issued, waiting.to_numpy())), remove(read["op"].to_numpy())


def _regular_stalls(context: RuleContext, work: HostStalls) -> Flags:
    """Choose the long stalls that come in most steps, or that are long for a step."""
    calls = context.schedule.calls
    marks = calls.start_ns[calls.kind == CallKind.MARK][::2]
    long = np.flatnonzero(work.long)
    step = np.searchsorted(marks, calls.start_ns[long], side="right")
    # A point of a step: the activities that the thread launched before and after it.
    host_thread = context.schedule.calls.host_thread
    issued = context.ops.filter(pl.col("call").is_not_null()).sort("call")
    launched = issued.filter(pl.Series(host_thread[issued["call"]] == launching_thread(context)))
    names = launched["name"].cast(pl.String)
    after = np.searchsorted(launched["call"].to_numpy(), long)
    around = [
        names.gather(optional(np.where((at >= 0) & (at < launched.height), at, NONE)))
        for at in (after - 1, after)
    ]
    rows = pl.DataFrame(
        {
            "place": pl.DataFrame([s.alias(str(n)) for n, s in enumerate(around)]).to_struct(
                "place"
            ),
            "step": step,
        }
    )
    in_steps = rows.select(pl.col("step").n_unique().over("place"))["step"].to_numpy()
    chosen = work.ns >= MIN_STEP_SHARE.value * context.length_ns / context.per_step
    chosen[long[in_steps >= MIN_STEP_SHARE.value * context.steps]] = True
    return work.long & chosen


def _match(context: RuleContext, other: _OtherWork) -> RuleMatch:
    activity = activity_before(context, other.calls, other.ns)
    # A thread that waits while another one works has no part in the work.
    calls = [location for location in activity["call"] if not is_waiting(location.name)]
    lines = lines_before(context, other.calls, other.ns)
    sites = activity["site"] or line_sites(lines)
    where = largest(activity["range"], activity["operator"], sites, calls)
    min_named_ns = MIN_NAMED_SHARE.value * float(other.ns.sum())
    where = tuple(location for location in where if (location.ns or 0.0) >= min_named_ns)
    longest_ns = float(other.ns.max(initial=0))
    between = other.between_ns >= 0.9 * other.idle_ns
    loads_data = _loads_data(context, other, where)
    near = _Readback() if loads_data else _readback(context, other)
    inside = other.between_ns <= 0.1 * other.idle_ns
    what = "Long host stalls inside steps" if inside else "Long host stalls"
    what = "Host work between steps" if between else what
    copies = context.evidence("copies", other.read.height, "", "D2H copies between steps")
    reading = context.calls.filter(pl.col("call").is_in(other.read["call"].unique()))
    reading_ns = int(reading["duration_ns"].sum())
    return RuleMatch(
        title=f"{what}: GPU idle {context.time_per_step(other.idle_ns)}",
        evidence=(
            context.evidence("idle_ns", other.idle_ns, "ns", "GPU idle time due to this work"),
            context.evidence(
                "between_ns", other.between_ns, "ns", "Part of the idle time between steps"
            ),
            context.evidence("host_ns", other.ns.sum(), "ns", "Host time of this work"),
            Evidence("longest_ns", longest_ns, "ns", "Longest stall"),
            *([] if other.read.is_empty() else [copies]),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="the capture does not show whether this work can be moved or removed",
        change=(without_host_time(other.calls, other.ns), *_without_reading(context, other.read)),
        min_ns=at_most(context, other.idle_ns + reading_ns),
        measured_ns=other.idle_ns,
        fix=_fix(context, other, where, near, loads_data=loads_data),
        code=_code(context, where, near, loads_data=loads_data),
        verify=BetweenSteps.verify if between else _VERIFY_INSIDE,
        where=where,
        lines=lines,
    )


_LOGS = re.compile(
    r"(?i)log|metric|print|checkpoint|save|valid|eval|report|summary|wandb|tensorboard"
)
"""Names of work that is done rarely or on another thread."""


def _loads_data(
    context: RuleContext, other: _OtherWork, where: tuple[FindingLocation, ...]
) -> bool:
    """Return whether most of the work prepares input: by its names, else by the H2D copy after it.

    Names decide first, so that logging and checkpoints do not count.
    """
    names = [w for w in where if w.kind in ("range", "operator", "site")]
    if names:
        input_ns = sum(w.ns or 0.0 for w in names if is_input(w.name))
        return 2 * input_ns > sum(w.ns or 0.0 for w in names)
    copies = context.ops.filter(
        pl.col("direction") == "Host-to-Device", pl.col("call").is_not_null()
    )["call"]
    before_copy = np.isin(other.calls, copies.unique().to_numpy())
    return bool(2 * other.ns[before_copy].sum() > other.ns.sum())


@dataclass(frozen=True)
class _Readback:
    """What most of the work has to do with large D2H copies right before or after it."""

    buffer: bool = False
    """It takes no longer than to allocate or free the host buffer."""
    results: bool = False
    """It takes longer, and follows the copies."""
    size: int = 0
    """Bytes of a copy, on average."""


def _readback(context: RuleContext, other: _OtherWork) -> _Readback:
    """Find out whether most of the work is for large D2H copies, or on what they brought."""
    host_thread = context.schedule.calls.host_thread
    issued = context.ops.filter(pl.col("call").is_not_null()).unique("call").sort("call")
    issued = issued.filter(pl.Series(host_thread[issued["call"]] == launching_thread(context)))
    is_large = pl.col("bytes").fill_null(0) >= MIN_COPY_BYTES.value
    reads = issued.select((pl.col("direction") == "Device-to-Host") & is_large).to_series()
    flags = np.append(reads.fill_null(value=False).to_numpy(), False)
    size = np.append(issued["bytes"].fill_null(0).to_numpy(), 0) * flags
    calls = issued["call"].to_numpy()
    after = np.searchsorted(calls, other.calls)
    is_next = np.append(calls, NONE)[after] == other.calls
    copy = np.where(size[after - 1] >= size[after] * is_next, after - 1, after)
    near = (size[after - 1] > 0) | ((size[after] > 0) & is_next)
    if 2 * other.ns[near].sum() <= other.ns.sum():
        return _Readback()
    # Several calls may be next to one copy.
    moved = size[np.unique(copy[near])]
    if other.ns[near].sum() <= moved.sum() * 1e9 / BUFFER_BYTES_S.value:
        return _Readback(buffer=True)
    follows = other.ns[flags[after - 1]].sum()
    return _Readback(results=bool(2 * follows > other.ns.sum()), size=round(moved.mean()))


def _fix(
    context: RuleContext,
    other: _OtherWork,
    where: tuple[FindingLocation, ...],
    near: _Readback,
    *,
    loads_data: bool,
) -> str:
    source = named(where, "range", "operator", "site") or named(where, "call")
    what = f"The host runs {source}." if source else "No range or operator names this work."
    named_ns = max((w.ns or 0.0 for w in where), default=0.0)
    if source and named_ns < _MIN_MOSTLY_NAMED * float(other.ns.sum()):
        what, source = f"Part of it is in {source}, the rest has no name.", ""
    if loads_data and not source:
        what = "An H2D copy follows this work, so that it probably loads data."
    longest_ns = float(other.ns.max(initial=0))
    rare = ""
    if longest_ns > MIN_RARE_RATIO * float(other.ns.sum()) / context.per_step:
        rare = f" Few stalls dominate: the longest takes {format_time(longest_ns, digits=3)}."
    way = BetweenSteps.fix
    if loads_data:
        way = context.framework.choose(
            torch="Load batches in DataLoader workers (num_workers > 0), ahead of the step.",
            cuda="Load the next batch on another thread, into pinned memory.",
            jax="Load the next batch on another thread, and call jax.device_put there.",
        )
    elif near.buffer:
        summary = (
            "It is next to a large D2H copy: allocating or freeing the host buffer takes time."
        )
        instead = context.framework.choose(
            torch="Allocate one pinned buffer before the loop, and copy into it.",
            cuda="Allocate the buffer once with cudaMallocHost, and reuse it.",
            jax="Read results back less often, or on another thread.",
            other="Allocate one pinned buffer before the loop, and copy into it.",
        )
        way = f"{summary} {instead}"
    elif near.results and not source:
        summary = (
            f"It follows a D2H copy of {format_bytes(near.size)}, so that it probably works on "
        )
        way = f"{summary}results. Do that on the GPU, and copy only what the host has to have."
    elif not source:
        way = f"Put NVTX ranges around the parts of the loop to name it. {way}"
    return f"{what}{rare} {way}"


def _code(
    context: RuleContext, where: tuple[FindingLocation, ...], near: _Readback, *, loads_data: bool
) -> str:
    """Choose the snippet by what the work is; a neutral one where it has no name."""
    framework = context.framework
    if loads_data:
        return framework.choose(torch=_TORCH_LOADER, cuda=_CUDA_LOADER, jax=_JAX_LOADER)
    if near.buffer:
        return framework.choose(torch=_TORCH_BUFFER, cuda=_CUDA_BUFFER, jax=_JAX)
    if any(_LOGS.search(w.name) for w in where):
        return framework.choose(torch=BetweenSteps.code, cuda=_CUDA, jax=_JAX)
    if named(where, "range", "operator", "site"):
        return framework.choose(torch=_TORCH_ELSEWHERE, cuda=_CUDA, jax=_JAX_NEUTRAL)
    if near.results:
        return framework.choose(torch=_TORCH_RESULTS, cuda=_CUDA_RESULTS, jax=_JAX_RESULTS)
    return framework.choose(torch=_TORCH_NEUTRAL, cuda=_CUDA, jax=_JAX_NEUTRAL)


_MIN_MOSTLY_NAMED = 0.5
"""Share of this work that a name must cover to stand for all of it."""
_TORCH_LOADER = """\
loader = DataLoader(dataset, num_workers=8, pin_memory=True, persistent_workers=True)
for batch in loader:                           # loaded ahead by the workers
    batch = batch.to("cuda", non_blocking=True)
"""
_CUDA_LOADER = """\
auto next = std::async(std::launch::async, load_batch, i + 1);  // while the GPU computes
launch_step(i, stream);
batch = next.get();
"""
_JAX_LOADER = """\
upcoming = executor.submit(lambda: jax.device_put(next(batches)))  # while the GPU computes
state = step(state, batch)
batch = upcoming.result()
"""
_VERIFY_INSIDE = "`gpusight ledger` shows less `idle/framework` and `idle/host`."
_TORCH_BUFFER = """\
host = torch.empty_like(out, device="cpu", pin_memory=True)  # once, before the loop
host.copy_(out, non_blocking=True)             # each step; wait for an event before reading it
"""
_CUDA_BUFFER = """\
cudaMallocHost(&host, bytes);                  // once, before the loop
cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream);
"""
_TORCH_RESULTS = """\
centers = sums / counts                        # on the GPU, not with out.cpu().numpy()
"""
_CUDA_RESULTS = """\
update_on_gpu<<<grid, block, 0, stream>>>(results);  // instead of copying and updating on the host
"""
_JAX_RESULTS = """\
state = jax.jit(update)(state, results)        # jnp, not numpy: stays on the GPU
"""
_TORCH_ELSEWHERE = """\
future = executor.submit(host_work)            # on another thread, while the GPU computes
"""
_TORCH_NEUTRAL = """\
with torch.cuda.nvtx.range("host work"):       # name it, then capture again
    result = host_work()
future = executor.submit(host_work)            # or run it while the GPU computes
"""
_JAX_NEUTRAL = """\
state = step(state, batch)                     # dispatched, not awaited
host_work()                                    # while the GPU computes
"""
_CUDA = """\
launch_step(i + 1, stream);                    // keep the GPU busy first
host_work(i);                                  // then do the host work
"""
_JAX = """\
next_state = step(state, batch)                # dispatched, not awaited
if number % 100 == 0:
    log(jax.device_get(metrics))               # of the previous step
"""
