"""Long host work that launches nothing, launches that repeat in steps, and waits for the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import NestedIntervals
from gpusight.analysis.gpu_schedule import NONE, CallKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.simulation import put
from gpusight.analysis.steps.step_list import phase_of
from gpusight.rules.context import memoize
from gpusight.rules.patterns.host_gaps import before_calls, issues, spent_before
from gpusight.rules.patterns.memcpys import MIN_COPY_BYTES
from gpusight.rules.rule import Threshold
from gpusight.trace.intervals import Intervals, coverage, gaps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analysis.gpu_schedule import Ints
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.rules.context import RuleContext


MIN_REPEATED_SHARE = Threshold(
    0.5, "part of the launches that must come again in most steps, for a graph of them to be of use"
)
MIN_LAUNCHES_PER_STEP = Threshold(
    10, "launches a step from which on one launch for all of them is worth anything"
)
_AGAIN = 3
"""Times that a kernel runs, where no steps are known, to count as repeated."""
_SAME = ["name", "blocks"]


@dataclass(frozen=True, slots=True)
class LaunchRepetition:
    """How far the steps of a program are alike, in kernels that no graph launches."""

    kernels: int
    """Launched one by one, in the judged part."""
    repeated: float
    """Part of them that comes in most of the steps: the same kernel with the same grid."""
    alike: float | None
    """Part of the steps whose sequence of kernels is the same; None with fewer than two steps."""

    @property
    def worth_it(self) -> bool:
        """There is something that a graph could launch at once."""
        return self.repeated >= MIN_REPEATED_SHARE.value


@memoize
def repetition(context: RuleContext) -> LaunchRepetition:
    """Compare the kernels of the steps."""
    rows = context.kernels.filter(~pl.col("in_graph")).select(*_SAME, "step")
    if rows.is_empty():
        return LaunchRepetition(0, 0.0, None)
    codes = rows.select(pl.struct(_SAME).rank("dense").alias("code"), "step")
    if context.steps < 2:
        again = codes.select((pl.len().over("code") >= _AGAIN).mean()).item()
        return LaunchRepetition(rows.height, float(again), None)
    most = pl.col("step").n_unique().over("code") > context.steps / 2
    repeated = codes.select(most.mean()).item()
    return LaunchRepetition(rows.height, float(repeated), _equal_steps(codes, context.steps))


def _equal_steps(codes: pl.DataFrame, steps: int) -> float:
    """Give the part of the steps that have the most frequent sequence."""
    sequences = (
        codes.drop_nulls("step")
        .with_columns(pl.int_range(pl.len()).over("step").alias("place"))
        .group_by("step")
        .agg(pl.len(), pl.struct("code", "place").hash().sum().alias("sequence"))
    )
    counts = sequences.group_by("len", "sequence").len("steps")["steps"]
    return float(counts.max() or 0) / steps  # type: ignore[arg-type]


MIN_STALL_NS = Threshold(
    1e6, "ns between two calls from which on it is no longer the way to the next launch"
)
MIN_STALL_RATIO = Threshold(
    20,
    "times what the host usually needs from one launch to the next that such a stretch must be, "
    "too, if it is below 5 ms",
)
_ALWAYS_NS = 5e6
MAX_LAUNCHES_BETWEEN = Threshold(
    0.1,
    "part of the launches that lie between steps from which on the ranges mark parts of steps: "
    "what is between them is then as much the step's own",
)
_OWN = [IdleCause.FRAMEWORK, IdleCause.OTHER, IdleCause.UNKNOWN]


@dataclass(frozen=True)
class HostStalls:
    """The host's own work before calls: no input, no waiting, not the profiler's."""

    ns: Ints
    """Before each call, by position."""
    idle_ns: Ints
    """Of it, with nothing running on the GPU that works longest."""
    start_ns: Ints
    end_ns: Ints
    long: NDArray[np.bool_]
    """It is a stretch of the launching lane much longer than the way to a launch."""
    between: NDArray[np.bool_]
    """It comes after one step and before the next, on the lane of the steps."""

    @property
    def apart(self) -> NDArray[np.bool_]:
        """Tell which of it is not for launching."""
        return self.long | self.between

    def of(self, calls: Ints) -> int:
        """Add up the time before these calls in which the GPU had nothing to do."""
        return int(self.idle_ns[calls].sum())


@memoize
def host_work(context: RuleContext) -> HostStalls:
    """Measure the host's own work before each call."""
    calls = context.schedule.calls
    start, end = before_calls(context)
    own = spent_before(context)[:, _OWN].sum(axis=1)
    # What the replay knows to be a silent wait for the GPU is no work.
    own = np.minimum(own, np.maximum(context.replay.program.gap_ns, 0))
    lane = launching_lane(context)
    limit = np.clip(
        MIN_STALL_RATIO.value * _usual_ns(context, own, lane), MIN_STALL_NS.value, _ALWAYS_NS
    )
    idle = np.minimum(own, coverage(_idle(context), start, end))
    long = (own >= limit) & (calls.lane == lane)
    at = np.flatnonzero(long & (own < _ALWAYS_NS))
    long[at[_on_its_way(context, at, (start[at] + end[at]) // 2)]] = False
    return HostStalls(own, idle, start, end, long, _between(context))


def _usual_ns(context: RuleContext, own: Ints, lane: int) -> float:
    """Give the host's own time from one launch of a lane to the next, median.

    From one call to the next where launches are so few that the other work of a step is between
    any two of them.
    """
    calls = context.schedule.calls
    at = np.flatnonzero(calls.lane == lane)
    spent = np.cumsum(own[at])[np.isin(calls.kind[at], (CallKind.LAUNCH, CallKind.GRAPH))]
    if len(spent) > max(1, MIN_LAUNCHES_PER_STEP.value * context.steps):
        return float(np.median(np.diff(spent)))
    some = own[own > 0]
    return float(np.median(some)) if len(some) else 0.0


def _on_its_way(context: RuleContext, calls: Ints, middle_ns: Ints) -> NDArray[np.bool_]:
    """Tell which stretches lie, for the most part, in a range of the optimizer that goes on.

    It walks all parameters before it launches anything, which takes milliseconds with many of
    them: that is the way to a launch, and goes with it.
    """
    schedule = context.schedule
    ranges = context.trace.table("ranges", ["start_ns", "end_ns", "name", "thread"])
    names = names_of(ranges["name"])
    telling = [code for code, name in enumerate(names) if phase_of(name) == "optimizer"]
    ranges = ranges.filter(pl.col("name").to_physical().is_in(telling))
    keys = pl.Series([thread for _, thread in schedule.threads], dtype=pl.Int64)
    threads = keys.gather(schedule.calls.thread[calls])
    nested = NestedIntervals.of(
        ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy(), ranges["thread"]
    )
    first, last = (
        nested.innermost(times, threads) for times in (middle_ns, schedule.calls.start_ns[calls])
    )
    same: NDArray[np.bool_] = (first >= 0) & (first == last)
    return same


def _between(context: RuleContext) -> NDArray[np.bool_]:
    """Tell which calls come after a step and up to the beginning of the next one."""
    calls = context.schedule.calls
    marks = np.flatnonzero(calls.kind == CallKind.MARK)
    if len(marks) < _TWO_STEPS:
        return np.zeros(len(calls), np.bool_)
    edges = np.zeros(len(calls) + 1, np.int64)
    edges[marks[1:-1:2] + 1] += 1
    edges[marks[2::2] + 1] -= 1
    between: NDArray[np.bool_] = np.cumsum(edges[:-1]) > 0
    between &= calls.lane == calls.lane[marks[0]]
    launches = np.isin(calls.kind, (CallKind.LAUNCH, CallKind.GRAPH))
    held = np.count_nonzero(between & launches)
    return between & (held <= MAX_LAUNCHES_BETWEEN.value * np.count_nonzero(launches))


_TWO_STEPS = 4
"""Marks of two steps."""


def launching_lane(context: RuleContext) -> int:
    """Give the lane that puts most work on GPUs."""
    issued = context.schedule.ops.call
    lanes = context.schedule.calls.lane[issued[issued != NONE]]
    return int(np.bincount(lanes).argmax()) if len(lanes) else NONE


def _idle(context: RuleContext) -> Intervals:
    schedule, ops = context.schedule, context.schedule.ops
    own = ops.device == context.device
    busy = Intervals.from_arrays(ops.start_ns[own], ops.end_ns[own])
    return gaps(busy, schedule.start_ns, schedule.end_ns)


def keeping_host_work(calls: Ints) -> Change:
    """Let the time before these calls stay when launches become a graph."""

    def change(program: ReplayProgram) -> ReplayProgram:
        return program.changed(movable_ns=put(program.movable_ns, calls, 0))

    return change


# Waits for the GPU --------------------------------------------------------------------------------


MIN_COPY_WAIT_SHARE = Threshold(
    0.5,
    "part of a wait that a large copy itself must take to be what is waited for; below, the host "
    "waits for the work before it, and a faster copy changes little",
)
_PLACES = ("range", "operator", "site", "name")


def waits(context: RuleContext) -> pl.DataFrame:
    """Give the waits for the GPU, a row each, in order of start.

    A value that is read back is a copy and a synchronising call after it: one wait. Columns:
    `calls` (positions), `start_ns`, `waited_ns`, `step` (calls after a step count to it),
    `copies` (it waits for a copy of its own), `large` (mostly for one that other rules look at,
    not for the work before it), `reads` (for a copy to the host),
    `at_edge` (nothing was launched before it in its step, or nothing after it), and the `range`,
    `operator`, `site` and `name` of its first call.
    """
    calls = _with_launches(context)
    blocking = pl.col("waits") & pl.col("kind").cast(pl.String).is_in(["sync", "copy"])
    return (
        calls.filter(blocking)
        .group_by("lane", "issued", maintain_order=True)
        .agg(
            pl.col("call").alias("calls"),
            pl.col("start_ns", "step", "launched", "to_launch", *_PLACES).first(),
            pl.col("waited_ns").sum(),
            (pl.col("last_kind") == "copy").any().alias("copies"),
            (pl.col("last_bytes") > MIN_COPY_BYTES.value).any().alias("large"),
            pl.col("last_duration_ns").max(),
            pl.col("reads").fill_null(value=False).any(),
        )
        .filter(pl.col("waited_ns") > 0)
        .with_columns(
            ((pl.col("launched") == 0) | (pl.col("to_launch") == 0)).alias("at_edge"),
            pl.col("large")
            & (pl.col("last_duration_ns") >= MIN_COPY_WAIT_SHARE.value * pl.col("waited_ns")),
        )
        .sort("start_ns")
    )


def _with_launches(context: RuleContext) -> pl.DataFrame:
    """Give calls with what was issued before them, and launched before and after in their step."""
    sizes = (
        context.ops.filter(pl.col("kind") == "copy", pl.col("call").is_not_null())
        .group_by("call")
        .agg(
            pl.col("bytes").sum(),
            pl.col("duration_ns").sum().alias("copied_ns"),
            (pl.col("direction") == "Device-to-Host").any().alias("to_host"),
        )
    )
    own = ["lane", "step"]
    launch = pl.col("kind").cast(pl.String).is_in(["launch", "graph"]).cast(pl.Int64)
    return (
        context.calls.join(sizes, on="call", how="left", maintain_order="left")
        .with_columns(
            pl.col("bytes", "copied_ns").fill_null(0),
            pl.col("to_host").fill_null(value=False),
            # What comes between two steps comes after the first of them.
            pl.col("step").forward_fill().over("lane").fill_null(-1),
            issues().cast(pl.Int64).cum_sum().over("lane").alias("issued"),
        )
        .with_columns(
            launch.cum_sum().over(own).alias("launched"),
            _last("kind", pl.String).alias("last_kind"),
            _last("bytes", pl.Int64).alias("last_bytes"),
            _last("copied_ns", pl.Int64).alias("last_duration_ns"),
            _last("to_host", pl.Boolean).alias("reads"),
        )
        .with_columns((launch.sum().over(own) - pl.col("launched")).alias("to_launch"))
    )


def _last(column: str, dtype: type[pl.DataType]) -> pl.Expr:
    """Give the value of the last call of the lane that put work on a GPU."""
    return pl.when(issues()).then(pl.col(column).cast(dtype)).forward_fill().over("lane")
