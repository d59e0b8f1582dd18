"""recompilation: steps after warm-up that compile, load or autotune kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.gpu_schedule import CallKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import free_calls, remove, without_host_time
from gpusight.naming.host_names import is_compiling
from gpusight.rules.context import memoize
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import largest, named, quoted_name, summed_locations
from gpusight.rules.locations import host_events, of_calls
from gpusight.rules.patterns.host_gaps import (
    MIN_STALL_NS,
    host_unknown,
    host_work,
    launching_thread,
    spent_before,
)
from gpusight.rules.patterns.kernel_groups import MAX_HOST_TIME_NS
from gpusight.rules.patterns.stack_lines import compiled_before, lines_before
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.trace.intervals import Intervals, clip, contains, coverage, union

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import FindingLocation, RuleVerdict
    from gpusight.trace.intervals import Flags, Ints


MIN_COMPILE_SHARE = Threshold(0.02, "share of the time in compilation; less is noise")
MIN_STEPS = Threshold(2, "steps that compile; a single one may be a first evaluation")
MIN_LAST_STEP = Threshold(
    2 / 3, "share of the steps after which some step still compiles; what ends earlier is warm-up"
)
MAX_LONGEST_SHARE = Threshold(
    0.75,
    "share of the compile time in one compilation, above which the program compiles once: "
    "autotuning repeats itself too, and may look like steps",
)
MIN_DETACHED_NS = Threshold(
    50e6,
    "ns of a stall in a step that loads code, but not right before a load: a compiler takes that "
    "long, other host work rarely does",
)
MIN_TUNING_LAUNCHES = Threshold(
    5, "launches of one new kernel in a row that time it; programs rarely repeat a kernel so"
)
_LOADS = r"^(?:cu|cuda|hip)(?:Module|Library|Link)(?:Load|Create|AddData|Complete)|^nvrtcCompile"
_NAMED = ("ranges", "cpu_ops", "python_calls")


class Recompilation(TimelineRule):
    """Compilation inside steps."""

    id = "recompilation"
    detects = (
        "Looks for compilation inside steps after warm-up. Names of ranges, operators and Python "
        "calls show it (TorchDynamo, Inductor, XLA, NVRTC). So do long host gaps in steps that "
        "load modules, or before kernels that never ran before."
    )
    why = (
        "A compiler specializes code for the shapes and values of its inputs. When these change, "
        "it compiles again, which takes 0.1 to 10 seconds, and the GPU is idle meanwhile."
    )
    fix = "Compile once: make shapes dynamic, or pad inputs to a few sizes."
    code = """\
model = torch.compile(model, dynamic=True)         # one kernel for all lengths
torch._dynamo.mark_dynamic(inputs, 1)              # or: only this dimension changes
inputs = F.pad(inputs, (0, -inputs.shape[1] % 64)) # or: few lengths (buckets of 64)
# which guard failed: TORCH_LOGS=recompiles python script.py
"""
    cuda_code = """\
cuLibraryLoadData(&library, image, ...);       // once, before the loop; keep the handle
// CUDA_MODULE_LOADING=EAGER loads all kernels at start-up
"""
    jax_code = """\
length = -(-x.shape[0] // 64) * 64             # few lengths (buckets of 64), one compile each
x = jnp.pad(x, ((0, length - x.shape[0]), (0, 0)))
# which call compiled: JAX_LOG_COMPILES=1 python script.py
"""
    verify = (
        "`gpusight api` shows no module loads after the first steps, and all steps take the same "
        "time."
    )
    caveats = (
        "Each new shape compiles once: a program with few shapes stops compiling by itself. "
        "Dynamic kernels may be a little slower than those of one shape."
    )
    estimate = (
        "Simulation without the host time in compilation and module loads. What autotuning "
        "launches goes too: during compilation that has a name, or one new kernel again and again. "
        "In steps that mostly compile, all long host gaps and waits from the first to the last "
        "load or new kernel are compilation."
    )
    effort = "one line"
    thresholds: ClassVar = {
        "min_compile_share": MIN_COMPILE_SHARE,
        "min_steps": MIN_STEPS,
        "min_last_step": MIN_LAST_STEP,
        "max_longest_share": MAX_LONGEST_SHARE,
        "min_detached_ns": MIN_DETACHED_NS,
        "min_tuning_launches": MIN_TUNING_LAUNCHES,
    }
    removes_work = True

    def check(self, context: RuleContext) -> RuleVerdict:
        """Measure compilation in steps."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        if context.steps < MIN_STEPS.value:
            return RuleNotApplicable("compilation at the start is expected, and no steps are known")
        compiles = _compilation(context)
        steps = compiles.steps
        if len(steps) < MIN_STEPS.value or steps[-1] < MIN_LAST_STEP.value * context.steps:
            return CLEAN
        if compiles.ns < MIN_COMPILE_SHARE.value * context.length_ns:
            return CLEAN
        if compiles.longest > MAX_LONGEST_SHARE.value:
            return CLEAN
        return _match(context, compiles)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find compilation by name, else module loads with the time before them."""
        compiles = _compilation(context)
        named_events = host_events(context, finding.where)
        by_name = named_events.filter(pl.col("table") != "api_calls")
        if by_name.height:
            return by_name
        calls = context.calls.filter(pl.col("call").is_in(compiles.stalled.tolist()))
        before_ns = pl.Series(context.schedule.before_calls[calls["call"].to_numpy()])
        spans = of_calls(context, calls, "name")
        return spans.with_columns(
            before_ns.alias("start_ns"), (pl.col("end_ns") - before_ns).alias("weight_ns")
        )


@dataclass(frozen=True)
class _Compilation:
    """Compilation in the steps of a sample."""

    spans: Intervals
    """When the program compiled or waited for it."""
    longest: float
    """Share of the longest compilation."""
    steps: Ints
    """Numbers of the steps that compile, in order."""
    stalled: Ints
    """Calls of the launching thread with host time of compilation before them."""
    host_ns: Ints
    """Time before each call, of any thread, in compilation."""
    inside: Ints
    """Calls of autotuning: during compilation that has a name, or by what they launch."""
    loads: pl.DataFrame
    """Calls that load code."""
    new_kernels: int
    """Kernels that first ran in one of these steps, other than the first of the sample."""
    events: dict[str, list[FindingLocation]]
    """Named events of compilation, by kind."""

    @property
    def ns(self) -> int:
        return self.spans.length_ns


@memoize
def _compilation(context: RuleContext) -> _Compilation:
    schedule, calls = context.schedule, context.schedule.calls
    stalls = host_work(context)
    by_name, events = _named_spans(context)
    loads = context.calls.filter(pl.col("name").str.contains(_LOADS), pl.col("step").is_not_null())
    first_ran = _first_launches(context)
    # A stall before a load, or a long one in a step that loads code later; after compilation with
    # a name; or before a kernel that is new.
    step = _steps_of_calls(context)
    last_load = loads.group_by("step").agg(pl.col("call").max())
    until = np.full(context.steps + 1, -1, np.int64)
    until[last_load["step"].to_numpy()] = last_load["call"].to_numpy()
    in_step = (step >= 0) & (calls.host_thread == launching_thread(context))
    # The compiler has processes of its own, which the program waits for.
    waited_ns = spent_before(context)[:, IdleCause.WAITING]
    long = stalls.long | (waited_ns >= MIN_STALL_NS.value)
    long_ns = np.where(in_step & long, stalls.ns + waited_ns, 0)
    new = np.zeros(len(calls), np.bool_)
    new[first_ran] = True
    # All kernels of the first step may be new.
    adjacent = _before_load(context, loads) | (new & (step > 0))
    apart = (np.arange(len(calls)) <= until[step]) & (stalls.ns >= MIN_DETACHED_NS.value)
    apart = ~adjacent & ~new & (apart | _after_named(context, by_name, step))
    spent_ns = np.where(adjacent, long_ns, 0)
    spent_ns += _beyond_usual(spent_ns, np.where(apart, long_ns, 0), long_ns, step, context.steps)
    # What has a name is known exactly.
    named_ns = coverage(by_name, stalls.start_ns, stalls.end_ns)
    spent_ns = np.maximum(spent_ns, np.where(in_step, np.minimum(named_ns, stalls.ns), 0))
    load_at = loads["call"].to_numpy()
    signs = np.union1d(load_at, np.flatnonzero((spent_ns > 0) | (new & (step > 0))))
    within = in_step & _among_signs(context, signs, step, spent_ns)
    rest_ns = np.where(within & (long_ns == 0), stalls.ns + waited_ns, 0)
    spent_ns = np.maximum(spent_ns, np.where(within, long_ns, 0))
    spent_ns += np.where(rest_ns > MAX_HOST_TIME_NS, rest_ns, 0)
    at = np.flatnonzero(spent_ns > 0)
    spans = union(
        clip(by_name, schedule.start_ns, schedule.end_ns),
        union(
            Intervals.from_arrays(stalls.end_ns[at] - spent_ns[at], stalls.end_ns[at]),
            Intervals.from_arrays(calls.start_ns[load_at], calls.end_ns[load_at]),
        ),
    )
    parts_ns = by_name.ends - by_name.starts if len(by_name) else spent_ns
    # Other threads, those of the compiler too, wait or work for it meanwhile.
    inside_ns = coverage(spans, stalls.start_ns, stalls.end_ns)
    host_ns = np.minimum(inside_ns, np.maximum(context.replay.program.gap_ns, 0))
    marks = context.schedule.calls.start_ns[context.schedule.calls.kind == CallKind.MARK]
    inside_ns = coverage(spans, marks[::2], marks[1::2])
    lengths_ns = marks[1::2] - marks[::2]
    steps: Ints = np.flatnonzero(inside_ns >= MIN_COMPILE_SHARE.value * lengths_ns)
    return _Compilation(
        spans=spans,
        longest=float(parts_ns.max(initial=0) / max(1, parts_ns.sum())),
        steps=steps,
        stalled=at,
        host_ns=np.maximum(spent_ns, host_ns),
        inside=np.union1d(
            np.flatnonzero(contains(by_name, calls.start_ns)), _tuning(context, within, first_ran)
        ),
        loads=loads,
        new_kernels=int(np.count_nonzero(step[first_ran] > 0)),
        events=events,
    )


def _among_signs(context: RuleContext, signs: Ints, step: Ints, spent_ns: Ints) -> Flags:
    """Return which calls lie from the first to the last sign of steps that mostly compile."""
    marks = context.schedule.calls.start_ns[context.schedule.calls.kind == CallKind.MARK]
    lengths_ns = marks[1::2] - marks[::2]
    inside = step >= 0
    compiled_ns = np.bincount(step[inside], spent_ns[inside], len(lengths_ns))
    mostly = np.append(2 * compiled_ns > lengths_ns, False)
    signs = signs[step[signs] >= 0]
    first = np.full(len(mostly), len(step), np.int64)
    last = np.full(len(mostly), -1, np.int64)
    np.minimum.at(first, step[signs], signs)
    np.maximum.at(last, step[signs], signs)
    position = np.arange(len(step))
    among: Flags = mostly[step] & (position >= first[step]) & (position <= last[step])
    return among


def _tuning(context: RuleContext, within: Flags, first_ran: Ints) -> Ints:
    """Return the calls that launch a new kernel again and again, and those in between.

    A compiler times what it compiled; one launch is the program's.
    """
    launched = context.kernels.filter(pl.col("call").is_not_null()).sort("call")
    new = launched.filter(pl.col("call").is_in(first_ran.tolist()))["name"].unique()
    launched = launched.filter(pl.Series(within[launched["call"].to_numpy()]))
    runs = (
        launched.with_columns(pl.col("name").rle_id().alias("run"))
        .filter(pl.col("name").is_in(new.implode()))
        .group_by("run", maintain_order=True)
        .agg(pl.col("call").first().alias("first"), pl.col("call").last().alias("last"), pl.len())
        .filter(pl.col("len") >= MIN_TUNING_LAUNCHES.value)
    )
    edges = np.zeros(len(within) + 1, np.int64)
    edges[runs["first"].to_numpy() + 1] += 1
    edges[runs["last"].to_numpy() + 1] -= 1
    calls: Ints = np.flatnonzero(within & (np.cumsum(edges[:-1]) > 0))
    return calls


def _beyond_usual(certain_ns: Ints, apart_ns: Ints, long_ns: Ints, step: Ints, steps: int) -> Ints:
    """Take off `apart_ns` what steps without compilation stall as well, such as data loading."""
    inside = step >= 0
    certain, apart, stalled = (
        np.bincount(step[inside], ns[inside], minlength=steps)
        for ns in (certain_ns, apart_ns, long_ns)
    )
    others = stalled[(certain == 0) & (apart == 0)]
    usual_ns = float(np.median(others)) if len(others) else 0.0
    part = np.maximum(0.0, 1 - usual_ns / np.maximum(apart, 1))
    scaled: Ints = (apart_ns * np.append(part, 0.0)[step]).astype(np.int64)
    return scaled


def _before_load(context: RuleContext, loads: pl.DataFrame) -> Flags:
    """Return which calls load code, or come before a load with nothing launched in between."""
    calls = context.schedule.calls
    is_load = np.zeros(len(calls), np.bool_)
    is_load[loads["call"].to_numpy()] = True
    effects = (CallKind.LAUNCH, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET)
    acts = is_load | np.isin(calls.kind, effects)
    order = np.argsort(calls.host_thread, kind="stable")
    following = np.where(acts[order], np.arange(len(order)), len(order))
    following = np.minimum.accumulate(following[::-1])[::-1]
    owner = np.append(order, -1)[following]
    same_thread = (owner >= 0) & (calls.host_thread[owner] == calls.host_thread[order])
    before = np.zeros(len(calls), np.bool_)
    before[order] = same_thread & is_load[owner]
    return before


def _after_named(context: RuleContext, by_name: Intervals, step: Ints) -> Flags:
    """Return which calls come after compilation with a name began in their step.

    A compiled region still loads its kernels and compiles its backward pass when it first runs.
    """
    calls = context.schedule.calls
    begins = calls.start_ns[calls.kind == CallKind.MARK][::2]
    following = np.searchsorted(by_name.ends, begins, side="right")
    first_ns = np.append(by_name.starts, np.iinfo(np.int64).max)[following]
    after: Flags = calls.start_ns >= np.append(first_ns, 0)[step]
    return after


def _steps_of_calls(context: RuleContext) -> Ints:
    """Return the step of each call, -1 outside."""
    step = np.full(len(context.schedule.calls), -1, np.int64)
    rows = context.calls
    step[rows["call"].to_numpy()] = rows["step"].fill_null(-1).to_numpy()
    return step


def _named_spans(context: RuleContext) -> tuple[Intervals, dict[str, list[FindingLocation]]]:
    """Return when threads that launch or mark steps were in a function of a compiler."""
    schedule = context.schedule
    threads = {thread for _, thread in schedule.threads}
    spans, events = Intervals.empty(), {}
    for table, kind in zip(_NAMED, ("range", "operator", "site"), strict=True):
        if not context.trace.has(table):
            continue
        frame = context.trace.table(table, ["start_ns", "end_ns", "name", "thread"])
        codes = [code for code, name in enumerate(names_of(frame["name"])) if is_compiling(name)]
        rows = frame.filter(
            pl.col("name").to_physical().is_in(codes),
            pl.col("end_ns") > schedule.start_ns,
            pl.col("start_ns") < schedule.end_ns,
            pl.col("thread").is_in(list(threads)),
        )
        spans = union(spans, Intervals.from_arrays(*(rows[c].to_numpy() for c in _TIMES)))
        rows = rows.with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"))
        events[kind] = summed_locations(rows, kind, "name")
    return spans, events


_EFFECTS = (
    *("between-steps", "host-bound", "input-starved", "warmup-in-window"),
    *("alloc-churn", "host-sync", "small-transfers"),
)
"""Rules that see what compilation and autotuning do, where these take most of the time."""
_TIMES = ("start_ns", "end_ns")


def _first_launches(context: RuleContext) -> Ints:
    """Return the calls that launch kernels which never ran before in the capture."""
    table = context.trace.table("kernels", ["name", "start_ns"])
    first = table.group_by("name").agg(pl.col("start_ns").min())["start_ns"]
    rows = context.kernels.filter(
        pl.col("start_ns").is_in(first.implode()), pl.col("call").is_not_null()
    )
    calls: Ints = rows["call"].unique().to_numpy()
    return calls


def _match(context: RuleContext, compiles: _Compilation) -> RuleMatch:
    loads = compiles.loads
    calls = np.flatnonzero(compiles.host_ns)
    tuning = context.ops.filter(pl.col("call").is_in(compiles.inside.tolist()))
    change: tuple[Change, ...] = (
        without_host_time(calls, compiles.host_ns[calls]),
        free_calls(np.union1d(loads["call"].to_numpy(), compiles.inside)),
        remove(tuning["op"].to_numpy()),
    )
    where = largest(*compiles.events.values(), summed_locations(loads, "call", "name"))
    framework = context.framework
    per_step = len(compiles.steps) / context.steps
    often = "every step" if per_step == 1 else f"{len(compiles.steps)} of {context.steps} steps"
    what = named(where, "range", "operator", "site", most=1) or "Module loads and host stalls"
    functions = [quoted_name(f) for f in compiled_before(context, calls, compiles.host_ns[calls])]
    of = f" of {functions[0]}" if len(functions) == 1 else ""
    compiled = f" torch.compile compiles {' and '.join(functions[:2])}." if functions else ""
    return RuleMatch(
        lines=lines_before(context, calls, compiles.host_ns[calls]),
        title=f"Recompilation{of} in {often}: {context.time_per_step(compiles.ns)}",
        evidence=(
            context.evidence("compile_ns", compiles.ns, "ns", "Time in compilation"),
            Evidence("steps", per_step, "share", "Steps that compile"),
            context.evidence("loads", loads.height, "", "Module and library loads"),
            Evidence(
                "new_kernels", compiles.new_kernels, "", "Kernels that first run after a first step"
            ),
        ),
        confidence=Confidence.HIGH if any(compiles.events.values()) else Confidence.MEDIUM,
        confidence_reason="compilation has a name in the capture"
        if any(compiles.events.values())
        else "compilation is inferred from module loads and new kernels",
        change=change,
        measured_ns=compiles.ns,
        fix=f"{what} in {often}.{compiled} "
        + framework.choose(
            torch="torch.compile and Triton compile again when shapes or Python values change: use "
            "dynamic=True or mark_dynamic, or pad inputs to a few lengths. TORCH_LOGS=recompiles "
            "names the cause.",
            cuda="Load and compile all modules before the loop, and keep their handles. Cache what "
            "NVRTC compiles.",
            jax="jax.jit compiles again for each new shape or static argument: pad inputs to a few "
            "lengths, and pass changing numbers as arrays. JAX_LOG_COMPILES=1 names the function.",
        ),
        effort=framework.choose(torch="one line", cuda="rewrite", jax="rewrite"),
        where=where,
        also=_EFFECTS if 2 * compiles.ns > context.length_ns else (),
    )
