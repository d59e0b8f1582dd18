"""Host time between API calls: why the GPU is idle meanwhile, long stalls, and blocking waits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import (
    NestedIntervals,
    PythonCalls,
    is_own_code,
    optional,
)
from gpusight.analysis.gpu_schedule import NONE, CallKind
from gpusight.analysis.ledger.device_ledger import account
from gpusight.analysis.ledger.host_threads import LaunchThreads
from gpusight.analysis.ledger.idle_contributors import IdleContributors
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.steps.step_list import phase_of
from gpusight.naming.host_names import is_input
from gpusight.rules.context import memoize
from gpusight.rules.formatting import inner_range, summed_locations
from gpusight.rules.patterns.kernel_groups import MIN_LAUNCHES_PER_STEP
from gpusight.rules.patterns.memcpys import MIN_COPY_BYTES, exchanged_calls
from gpusight.rules.rule import FindingLocation, RuleNotApplicable, Threshold
from gpusight.trace.intervals import Intervals, coverage, intersect, union

if TYPE_CHECKING:
    from gpusight.analysis.ledger.device_ledger import DeviceAccount
    from gpusight.analysis.ledger.idle_contributors import IdleContributor
    from gpusight.rules.context import RuleContext
    from gpusight.trace.intervals import Flags, Ints, Reals


def host_unknown(context: RuleContext) -> RuleNotApplicable | None:
    """Return why rules about the host cannot be evaluated; None where they can."""
    if not context.trace.has("api_calls"):
        return RuleNotApplicable("the capture has no API calls: host activity is unknown")
    if not np.any(context.schedule.ops.call != NONE):
        return RuleNotApplicable("no GPU activity is linked to its launch")
    return None


# Idle time of the GPU -----------------------------------------------------------------------------


def idle_ns(context: RuleContext, *causes: IdleCause) -> int:
    """Return how long the busiest GPU was idle for these causes."""
    devices = [d for d in context.ledger.devices if d.device == context.device]
    return sum(device.ns(cause.entry) for device in devices for cause in causes)


def busy_share(context: RuleContext) -> float:
    """Return the share of time in which the busiest GPU did anything."""
    shares = (d.busy_share for d in context.ledger.devices if d.device == context.device)
    return next(shares, 1.0)


def idle_during(context: RuleContext, calls: Ints) -> int:
    """Return how long the busiest GPU was idle while some of these calls were open."""
    idle, schedule = _account(context).spans.idle, context.schedule
    return intersect(
        Intervals.from_arrays(idle.start_ns, idle.end_ns),
        Intervals.from_arrays(schedule.calls.start_ns[calls], schedule.calls.end_ns[calls]),
    ).length_ns


def at_most(context: RuleContext, ns: int) -> float:
    """Return the least length of the sample where a fix saves no more than this."""
    return float(max(0, context.replay.unchanged.total_ns - ns))


_LOCATION_KINDS = {
    "range": "range",
    "op": "operator",
    "os call": "call",
    "api call": "call",
    "call site": "site",
    "next": "kernel",
}


@memoize
def _account(context: RuleContext) -> DeviceAccount:
    """Return the spans of the busiest GPU."""
    accounts = account(context.schedule, context.hosts)
    return next(a for a in accounts if a.device == context.device)


@memoize
def _contributors(context: RuleContext) -> dict[str, tuple[IdleContributor, ...]]:
    """Return what was open while the busiest GPU was idle, by entry of the ledger."""
    return IdleContributors(context.schedule, context.hosts).of(_account(context))


def behind(context: RuleContext, cause: IdleCause) -> dict[str, list[FindingLocation]]:
    """Return what the host was in while the GPU was idle for a cause, by kind, longest first.

    The kind `kernel` holds what ended the idle time.
    """
    # The range of the step itself adds no information.
    steps = {_without_numbers(step.name) for step in context.focus.steps}
    locations: dict[str, list[FindingLocation]] = {kind: [] for kind in _LOCATION_KINDS.values()}
    for part in _contributors(context).get(cause.entry, ()):
        if _without_numbers(part.name) not in steps:
            kind = _LOCATION_KINDS[part.kind]
            locations[kind].append(FindingLocation(kind, part.name, float(part.ns), part.count))
    for places in locations.values():
        places.sort(key=lambda location: -(location.ns or 0.0))
    return locations


def launching_threads(context: RuleContext) -> list[FindingLocation]:
    """Return the threads that launched what ended the idle time, by name, longest first."""
    threads = context.trace.table("threads", ["thread", "name"]).drop_nulls()
    names = dict(threads.select(pl.col("thread"), pl.col("name").cast(pl.String)).iter_rows())
    idle, gaps = _account(context).spans.idle, _account(context).gaps
    op = gaps.op[idle.gap]
    launched = (op != NONE) & (gaps.host_thread[idle.gap] != NONE)
    call = context.schedule.ops.call[op[launched]]
    rows = pl.DataFrame(
        {"thread": context.schedule.calls.thread[call], "duration_ns": idle.length_ns[launched]}
    ).filter(pl.Series(call != NONE))
    by_position = {n: names.get(thread) for n, (_, thread) in enumerate(context.schedule.threads)}
    rows = rows.with_columns(
        pl.col("thread").replace_strict(by_position, default=None, return_dtype=pl.String)
    )
    return summed_locations(rows, "thread", "thread")


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", name)


# Time before calls --------------------------------------------------------------------------------


def before_calls(context: RuleContext) -> tuple[Ints, Ints]:
    """Return start and end of the time before each call, since the last one of its thread."""
    return context.schedule.before_calls, context.schedule.calls.start_ns


@memoize
def spent_before(context: RuleContext) -> Ints:
    """Return the ns that threads spent before each call (rows), by cause (columns)."""
    starts, ends = before_calls(context)
    spent = context.hosts.spent(context.schedule.calls.host_thread, starts, ends)
    spent.setflags(write=False)
    return spent


@memoize
def input_before(context: RuleContext) -> Ints:
    """Return the ns before each call that go with data loading: its own, and waits for that.

    A thread waits for data where the GPU is idle because another thread of its process loads some.
    """
    thread, start, end, cause = context.hosts.pieces
    starts, ends = before_calls(context)
    host_thread = context.schedule.calls.host_thread
    loading = _idle_for_input(context)
    input_ns = spent_before(context)[:, IdleCause.INPUT].copy()
    for waiting in np.unique(thread[cause == IdleCause.WAITING]):
        pieces = (thread == waiting) & (cause == IdleCause.WAITING)
        waits = Intervals.from_arrays(start[pieces], end[pieces])
        awaited = loading.get(_process_of(context, waiting), Intervals.empty())
        calls = np.flatnonzero(host_thread == waiting)
        input_ns[calls] += coverage(intersect(waits, awaited), starts[calls], ends[calls])
    input_ns.setflags(write=False)
    return input_ns


def _idle_for_input(context: RuleContext) -> dict[int | None, Intervals]:
    """Return when the busiest GPU was idle because a thread loaded data, by process."""
    thread, start, end, cause = context.hosts.pieces
    idle, gaps = _account(context).spans.idle, _account(context).gaps
    launching = gaps.host_thread[idle.gap]
    by_process: dict[int | None, Intervals] = {}
    for loading in np.unique(thread[cause == IdleCause.INPUT]):
        own = launching == loading
        pieces = (thread == loading) & (cause == IdleCause.INPUT)
        spans = intersect(
            Intervals.from_arrays(idle.start_ns[own], idle.end_ns[own]),
            Intervals.from_arrays(start[pieces], end[pieces]),
        )
        process = _process_of(context, loading)
        by_process[process] = union(by_process.get(process, Intervals.empty()), spans)
    return by_process


def _process_of(context: RuleContext, host_thread: int) -> int | None:
    calls = context.schedule.calls
    at = np.flatnonzero(calls.host_thread == host_thread)
    return context.schedule.threads[int(calls.thread[at[0]])][0] if len(at) else None


_ACTIVITY_TABLES = {"ranges": "range", "cpu_ops": "operator", "python_calls": "site"}


def activity_before(
    context: RuleContext, calls: Ints, ns: Ints
) -> dict[str, list[FindingLocation]]:
    """Return what was open in the middle of the time before calls, by kind, longest first.

    OS calls are short and many: of them, all are summed.
    """
    trace = context.trace
    starts, ends = (times[calls] for times in before_calls(context))
    middle_ns = starts + (ends - starts) // 2
    threads = _threads_of(context, calls)
    locations = {}
    for table, kind in _ACTIVITY_TABLES.items():
        events = trace.table(table, ["start_ns", "end_ns", "name", "thread"])
        if table == "python_calls" and trace.has(table):
            _, user_code, frame = PythonCalls(trace).at(middle_ns, threads)
            rows = np.where(user_code >= 0, user_code, frame)
        else:
            nested = _nested(events)
            rows = nested.rows_at(nested.innermost(middle_ns, threads))
        names = events["name"].gather(optional(rows)).cast(pl.String)
        named_rows = pl.DataFrame({"range": names, "duration_ns": ns})
        if kind == "range":
            named_rows = named_rows.with_columns(inner_range(context))
        locations[kind] = summed_locations(named_rows, kind, "range")
    locations["call"] = _os_calls_in(context, threads, starts, ends)
    return locations


def _os_calls_in(
    context: RuleContext, threads: pl.Series, starts: Ints, ends: Ints
) -> list[FindingLocation]:
    """Return the OS calls of threads in spans of theirs, by name, longest first."""
    calls = context.trace.table("os_calls", ["start_ns", "end_ns", "name", "thread"])
    parts = []
    for (thread,), rows in calls.filter(pl.col("thread").is_in(threads.implode())).group_by(
        "thread", maintain_order=True
    ):
        own = (threads == thread).to_numpy()
        spans = Intervals.from_arrays(starts[own], ends[own])
        inside_ns = coverage(spans, rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
        named_rows = rows.select(
            pl.col("name").cast(pl.String), pl.Series("duration_ns", inside_ns)
        )
        parts.append(named_rows.filter(pl.col("duration_ns") > 0))
    return summed_locations(pl.concat(parts), "call", "name") if parts else []


def input_functions(context: RuleContext) -> list[FindingLocation]:
    """Return the innermost Python functions that mean input, with the program's own around them.

    Of those on threads that launch, the longest first: `sleep in train.py(10): step`.
    """
    trace, schedule = context.trace, context.schedule
    events = trace.table("python_calls", ["start_ns", "end_ns", "name", "thread"])
    if not len(events):
        return []
    threads = {key for _, key in schedule.threads}
    nested = NestedIntervals.of_table(events)
    inside_ns = np.minimum(nested.ends, schedule.end_ns) - np.maximum(
        nested.starts, schedule.start_ns
    )
    is_input_place = nested.marked(events["name"], is_input)
    counted_ns = np.where(is_input_place, np.maximum(inside_ns, 0), 0)
    # The time of a function without that of the input functions inside it.
    around = nested.nearest(is_input_place)
    inner = np.flatnonzero(is_input_place & (nested.outer >= 0))
    inner = inner[around[nested.outer[inner]] >= 0]
    own_ns = counted_ns.copy()
    np.subtract.at(own_ns, around[nested.outer[inner]], counted_ns[inner])
    own_code = nested.nearest(nested.marked(events["name"], is_own_code))
    places = np.flatnonzero(own_ns > 0)
    names, sites = (
        events["name"].gather(optional(nested.rows_at(at))).cast(pl.String)
        for at in (places, own_code[places])
    )
    rows = pl.DataFrame(
        {
            "name": names.str.replace(r"^<built-in (?:function|method) (\w+).*>$", "${1}"),
            "site": sites,
            "thread": events["thread"].gather(nested.rows_at(places)),
            "duration_ns": own_ns[places],
        }
    ).filter(pl.col("thread").is_in(list(threads)))
    is_inner = pl.col("site").is_not_null() & (pl.col("site") != pl.col("name"))
    where = pl.when(is_inner).then(pl.format("{} in {}", "name", "site")).otherwise("name")
    return summed_locations(rows.with_columns(where.alias("where")), "site", "where")


def _threads_of(context: RuleContext, calls: Ints) -> pl.Series:
    threads = pl.Series([thread for _, thread in context.schedule.threads], dtype=pl.Int64)
    return threads.gather(context.schedule.calls.thread[calls])


def _nested(events: pl.DataFrame) -> NestedIntervals:
    return NestedIntervals.of(
        events["start_ns"].to_numpy(), events["end_ns"].to_numpy(), events["thread"]
    )


# Long stalls --------------------------------------------------------------------------------------


MIN_STALL_NS = Threshold(1e6, "ns between two calls; a longer gap is not launch overhead")
MIN_RARE_RATIO = 5
"""Ratio of the longest stall to the mean per step above which it is an outlier."""
MIN_STALL_RATIO = Threshold(
    20, "ratio to the usual host time between launches that a stall below 5 ms must exceed too"
)
_ALWAYS_STALL_NS = 5e6
MAX_LAUNCHES_BETWEEN = Threshold(
    0.1,
    "share of the launches between steps; above it, the ranges mark only parts of steps, and the "
    "time between them belongs to the steps too",
)
_OWN_WORK = [IdleCause.SETUP, IdleCause.FRAMEWORK, IdleCause.HOST]
_LAUNCH_KINDS = (CallKind.LAUNCH, CallKind.GRAPH)


@dataclass(frozen=True)
class HostStalls:
    """The host's own work before calls: no input, no waiting, not the profiler's."""

    ns: Ints
    """Before each call, by position."""
    idle_ns: Ints
    """The part of it in which the busiest GPU had nothing to run until this thread launched it."""
    framework_share: Reals
    """The part of it that is of the framework: the rest has no part in launching."""
    start_ns: Ints
    end_ns: Ints
    long: Flags
    """On the launching thread, and much longer than a launch takes the host."""
    between: Flags
    """After one step and before the next, on the thread of the steps."""

    @property
    def apart(self) -> Flags:
        """Return which of it is not for launching."""
        return self.long | self.between

    def of(self, calls: Ints) -> int:
        """Sum the time before these calls in which the GPU was idle."""
        return int(self.idle_ns[calls].sum())

    def framework_of(self, calls: Ints) -> int:
        """Sum the part of the same that the ledger counts for the framework."""
        return int((self.idle_ns[calls] * self.framework_share[calls]).sum())


@memoize
def host_work(context: RuleContext) -> HostStalls:
    """Measure the host's own work before each call."""
    calls_thread = context.schedule.calls.host_thread
    start_ns, end_ns = before_calls(context)
    spent_ns = spent_before(context)
    own_ns = spent_ns[:, _OWN_WORK].sum(axis=1)
    framework_share = spent_ns[:, IdleCause.FRAMEWORK] / np.maximum(own_ns, 1)
    # What the replay knows to be a silent wait for the GPU is no work.
    own_ns = np.minimum(own_ns, np.maximum(context.replay.program.gap_ns, 0))
    host_thread = launching_thread(context)
    limit_ns = np.clip(
        MIN_STALL_RATIO.value * _usual_ns(context, own_ns, host_thread),
        MIN_STALL_NS.value,
        _ALWAYS_STALL_NS,
    )
    axis, idle = LaunchThreads(context.schedule).axis, _account(context).spans.idle
    gaps = _account(context).gaps
    idle_thread = gaps.host_thread[idle.gap]
    known = idle_thread != NONE
    # Once the next activity is launched, the GPU does not wait for this thread.
    idle_spans = Intervals.from_arrays(
        *(axis.at(idle_thread[known], times[known]) for times in (idle.start_ns, gaps.until(idle)))
    )
    waited_ns = coverage(
        idle_spans, *(axis.at(calls_thread, times) for times in (start_ns, end_ns))
    )
    long = (own_ns >= limit_ns) & (calls_thread == host_thread)
    calls = np.flatnonzero(long & (own_ns < _ALWAYS_STALL_NS))
    # An optimizer walks all parameters before it launches anything, which takes milliseconds with
    # # many of them: stalls that lie mostly in a range of it that goes on are a part of the launch.
    middle_ns = (start_ns[calls] + end_ns[calls]) // 2
    ranges = context.trace.table("ranges", ["start_ns", "end_ns", "name", "thread"])
    names = names_of(ranges["name"])
    codes = [code for code, name in enumerate(names) if phase_of(name) == "optimizer"]
    nested = _nested(ranges.filter(pl.col("name").to_physical().is_in(codes)))
    threads = _threads_of(context, calls)
    in_stall = nested.innermost(middle_ns, threads)
    in_call = nested.innermost(context.schedule.calls.start_ns[calls], threads)
    same: Flags = (in_stall >= 0) & (in_stall == in_call)
    long[calls[same]] = False
    between = _between_steps(context)
    stalled_ns = np.minimum(own_ns, waited_ns)
    return HostStalls(own_ns, stalled_ns, framework_share, start_ns, end_ns, long, between)


def _usual_ns(context: RuleContext, own_ns: Ints, host_thread: int) -> float:
    """Return the median of the host's own time from one launch of a thread to the next.

    From one call to the next where launches are so few that the other work of a step is between
    any two of them.
    """
    calls = context.schedule.calls
    on_thread = np.flatnonzero(calls.host_thread == host_thread)
    spent_ns = np.cumsum(own_ns[on_thread])[np.isin(calls.kind[on_thread], _LAUNCH_KINDS)]
    if len(spent_ns) > max(1, MIN_LAUNCHES_PER_STEP.value * context.steps):
        return float(np.median(np.diff(spent_ns)))
    nonzero_ns = own_ns[own_ns > 0]
    return float(np.median(nonzero_ns)) if len(nonzero_ns) else 0.0


def _between_steps(context: RuleContext) -> Flags:
    """Return which calls come after a step and up to the beginning of the next one."""
    calls = context.schedule.calls
    marks = np.flatnonzero(calls.kind == CallKind.MARK)
    if len(marks) < 4:  # two steps
        return np.zeros(len(calls), np.bool_)
    edges = np.zeros(len(calls) + 1, np.int64)
    edges[marks[1:-1:2] + 1] += 1
    edges[marks[2::2] + 1] -= 1
    between: Flags = np.cumsum(edges[:-1]) > 0
    between &= calls.host_thread == calls.host_thread[marks[0]]
    launches = np.isin(calls.kind, _LAUNCH_KINDS)
    count = np.count_nonzero(between & launches)
    return between & (count <= MAX_LAUNCHES_BETWEEN.value * np.count_nonzero(launches))


def launching_thread(context: RuleContext) -> int:
    """Return the thread that launches most GPU activities."""
    issued = context.schedule.ops.call
    host_threads = context.schedule.calls.host_thread[issued[issued != NONE]]
    return int(np.bincount(host_threads).argmax()) if len(host_threads) else NONE


# Waits for the GPU --------------------------------------------------------------------------------


MIN_COPY_WAIT_SHARE = Threshold(
    0.5,
    "share of a wait that a large copy must take to be its cause; below it, the host waits for "
    "earlier kernels, and a faster copy changes little",
)
_IS_LAUNCH = pl.col("kind").cast(pl.String).is_in(["launch", "graph"]).cast(pl.Int64)
_ISSUES = pl.col("kind").cast(pl.String).is_in(["launch", "graph", "copy", "memset"])
"""Calls that put an activity on a GPU."""


def waits(context: RuleContext) -> pl.DataFrame:
    """Return the waits for the GPU, a row each, in order of start.

    A value that is read back is a copy and a synchronizing call after it: one wait. Columns:
    `calls` (positions), `start_ns`, `waited_ns`, `step` (calls after a step count to it),
    `copies` (it waits for its own copy), `large` (mostly for one that other rules look at,
    not for the work before it), `reads` (for a copy to the host), `last_call` (what issued the
    last activity before it: that copy),
    `at_edge` (nothing was launched before it in its step, or nothing after it), and the `range`,
    `operator`, `site` and `name` of its first call.
    """
    blocking = pl.col("waits") & pl.col("kind").cast(pl.String).is_in(["sync", "copy"])
    first = ("start_ns", "step", "launched", "to_launch", "range", "operator", "site", "name")
    return (
        _calls_with_launches(context)
        .filter(blocking)
        .group_by("host_thread", "issued", maintain_order=True)
        .agg(
            pl.col("call").alias("calls"),
            pl.col(first).first(),
            pl.col("waited_ns").sum(),
            (pl.col("kind").cast(pl.String) == "sync").any().alias("syncs"),
            (pl.col("last_kind") == "copy").any().alias("copies"),
            (pl.col("last_bytes") > MIN_COPY_BYTES.value).any().alias("large"),
            pl.col("last_duration_ns").max(),
            pl.col("last_call").first(),
            pl.col("reads").fill_null(value=False).any(),
        )
        # A value that is read back blocks the host although the GPU happens to be done already.
        .filter(
            (pl.col("waited_ns") > 0) | (pl.col("copies") & (pl.col("syncs") | pl.col("reads")))
        )
        .with_columns(
            ((pl.col("launched") == 0) | (pl.col("to_launch") == 0)).alias("at_edge"),
            pl.col("large")
            & (pl.col("last_duration_ns") >= MIN_COPY_WAIT_SHARE.value * pl.col("waited_ns")),
        )
        # What is sent to other processes has to be there.
        .filter(~pl.col("last_call").is_in(exchanged_calls(context)).fill_null(value=False))
        .sort("start_ns")
    )


def _calls_with_launches(context: RuleContext) -> pl.DataFrame:
    """Return calls with what was issued before, and launched before and after in their step."""
    copies = (
        context.ops.filter(pl.col("kind") == "copy", pl.col("call").is_not_null())
        .group_by("call")
        .agg(
            pl.col("bytes").sum(),
            pl.col("duration_ns").sum().alias("copied_ns"),
            (pl.col("direction") == "Device-to-Host").any().alias("to_host"),
        )
    )
    in_step = ["host_thread", "step"]
    return (
        context.calls.join(copies, on="call", how="left", maintain_order="left")
        .with_columns(
            pl.col("bytes", "copied_ns").fill_null(0),
            pl.col("to_host").fill_null(value=False),
            # What comes between two steps comes after the first of them.
            pl.col("step").forward_fill().over("host_thread").fill_null(-1),
            _ISSUES.cast(pl.Int64).cum_sum().over("host_thread").alias("issued"),
        )
        .with_columns(
            _IS_LAUNCH.cum_sum().over(in_step).alias("launched"),
            _last_issued("kind", pl.String).alias("last_kind"),
            _last_issued("call", pl.Int64).alias("last_call"),
            _last_issued("bytes", pl.Int64).alias("last_bytes"),
            _last_issued("copied_ns", pl.Int64).alias("last_duration_ns"),
            _last_issued("to_host", pl.Boolean).alias("reads"),
        )
        .with_columns((_IS_LAUNCH.sum().over(in_step) - pl.col("launched")).alias("to_launch"))
    )


def _last_issued(column: str, dtype: type[pl.DataType]) -> pl.Expr:
    """Return the value of the last call of the thread that put an activity on a GPU."""
    return pl.when(_ISSUES).then(pl.col(column).cast(dtype)).forward_fill().over("host_thread")
