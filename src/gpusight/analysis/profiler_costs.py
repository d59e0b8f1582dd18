"""What recording costs the host, and how long steps take without it: known or estimated.

A recorded event costs the launching thread time; how much is in one table (`COSTS`), in terms of a
time that every capture shows of its own machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from gpusight.analysis.gpu_schedule import NONE, CallKind
from gpusight.analysis.replay.schedule_waits import WAIT_TAIL_NS
from gpusight.analysis.replay.simulation import LatencyBase, run_program
from gpusight.analysis.replay.window_replay import LATENCY_NS, calibrate
from gpusight.trace.intervals import search

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.trace.intervals import Ints, Reals
    from gpusight.trace.trace import Trace


MAX_EVENT_NS = 20_000.0
"""Largest overhead per recorded event: 4 to 16 us explain the measured step times of programs that
the host limits. What is more than this slows the host down as a whole."""
TOLERANCE = 0.002
"""How exactly the replay must take the time that is known."""
MIN_HIDDEN_SHARE = 0.05
"""Share of the host's time by which an overhead must be larger that the step time does not show."""
_MAX_REPLAYS = 24
_MAX_AMOUNT = 2.0
"""Largest amount of `Overhead.of`."""
EVENT_TABLES = ("api_calls", "cpu_ops", "ranges", "os_calls", "python_calls")
"""What a profiler records of the host; each row costs the program time."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a profiler adds to the host's time."""

    event_ns: float
    """Per recorded event."""
    share: float = 0.0
    """Of all that is left of the host's time, and of launch latencies and returns from waits that
    are longer than usual."""

    @classmethod
    def of(cls, amount: float) -> Overhead:
        """Return more overhead for a larger amount: up to 1 per event, up to 2 of all time too."""
        return cls(min(amount, 1.0) * MAX_EVENT_NS, max(0.0, amount - 1))

    def removed_from(self, program: ReplayProgram, events: Reals) -> ReplayProgram:
        """Return a program without the overhead."""
        if not self.event_ns:
            return program
        gap_ns, own_ns = (
            self._reduced(host_ns, count)
            for host_ns, count in ((program.gap_ns, events[0]), (program.own_ns, events[1]))
        )
        movable_ns = np.minimum(program.movable_ns, np.maximum(gap_ns, 0))
        reduced = program.changed(gap_ns=gap_ns, movable_ns=movable_ns, own_ns=own_ns)
        if not self.share:
            return reduced
        launched = np.isin(program.latency_base, (LatencyBase.CALL_END, LatencyBase.CALL_START))
        latency_ns = self._usual(program.latency_ns, LATENCY_NS)
        return reduced.changed(
            latency_ns=np.where(launched, latency_ns, program.latency_ns),
            tail_ns=self._usual(program.tail_ns, WAIT_TAIL_NS),
        )

    def _usual(self, times_ns: Ints, usual_ns: int) -> Ints:
        """Take the share off what is longer than usual."""
        longer_ns = np.maximum(times_ns - usual_ns, 0)
        return times_ns - (self.share * longer_ns).astype(np.int64)

    def _reduced(self, host_ns: Ints, events: Reals) -> Ints:
        """Take events off times that are long against them, and a part off the others."""
        positive = np.maximum(host_ns, 1)
        left = (1 - self.share) * positive * np.exp(-events * self.event_ns / positive)
        reduced: Ints = np.where(host_ns > 0, left, host_ns).astype(np.int64)
        return reduced


Lengths: TypeAlias = "Callable[[Overhead], int]"
"""Replays a program without an overhead, and returns how long it takes."""


def replayed_length(
    schedule: GpuSchedule, weights: Mapping[str, float] | None = None
) -> tuple[Lengths, Reals]:
    """Return what replays a schedule without an overhead, and its recorded events."""
    program, events = calibrate(schedule).program, recorded_events(schedule, weights)

    @cache  # the searches replay the same overheads again
    def length_ns(overhead: Overhead) -> int:
        timing = run_program(overhead.removed_from(program, events))
        return timing.end_ns - timing.start_ns

    return length_ns, events


def known_overhead(schedule: GpuSchedule, share: float) -> Overhead:
    """Find the overhead without which the replay takes this share of its time.

    Where the GPU needs more than that, the smallest one with which it does not wait for the host.
    """
    length_ns, _ = replayed_length(schedule)
    none, most = Overhead.of(0.0), Overhead.of(_MAX_AMOUNT)
    wanted_ns = max(share * length_ns(none), (1 + TOLERANCE) * length_ns(most))
    if length_ns(none) <= wanted_ns:
        return none
    return _found(length_ns, wanted_ns, Overhead.of, _MAX_AMOUNT)


def hidden_overhead(
    schedule: GpuSchedule, known: Overhead
) -> tuple[Overhead, EstimatedOverhead] | None:
    """Find more overhead than the step time shows, of a tool whose costs are known.

    Where the GPU sets the pace, the step is as long with a slow host as with a fast one. What the
    tool usually takes is then the better guess, as far as the step stays as long. None where the
    step time itself shows as much.
    """
    cost = estimate_overhead(schedule)
    if cost is None or not cost.is_used:
        return None
    known_length_ns, known_events = replayed_length(schedule)
    length_ns, events = replayed_length(schedule, cost.weights)
    wanted_ns = (1 - TOLERANCE) * known_length_ns(known)
    usual = cost.middle
    if length_ns(usual) < wanted_ns:
        usual = _found(length_ns, wanted_ns, Overhead, usual.event_ns)
    if length_ns(usual) < (1 - TOLERANCE) * wanted_ns:
        return None
    program = calibrate(schedule).program
    left_ns, known_left_ns = (
        _host_ns(overhead.removed_from(program, counted))
        for overhead, counted in ((usual, events), (known, known_events))
    )
    return (usual, cost) if left_ns < (1 - MIN_HIDDEN_SHARE) * known_left_ns else None


def _host_ns(program: ReplayProgram) -> int:
    """Return the host's time before calls and in them, without waits for the GPU."""
    return int(np.maximum(program.gap_ns, 0).sum() + program.own_ns.sum())


def _found(
    length_ns: Lengths, wanted_ns: float, overhead_of: Callable[[float], Overhead], most: float
) -> Overhead:
    """Find the overhead without which the replay takes `wanted_ns`.

    `overhead_of` returns more of it for a larger amount, up to `most`.
    """
    low, high = 0.0, most
    for _ in range(_MAX_REPLAYS):
        overhead = overhead_of((low + high) / 2)
        missed_ns = length_ns(overhead) - wanted_ns
        if abs(missed_ns) < TOLERANCE * wanted_ns:
            return overhead
        low, high = ((low + high) / 2, high) if missed_ns > 0 else (low, (low + high) / 2)
    return overhead_of(high)


def recorded_events(schedule: GpuSchedule, weights: Mapping[str, float] | None = None) -> Reals:
    """Count what was recorded on its thread in the time before each call, and in it.

    With `weights`, by table, the rows of a table count as so many events; otherwise as one.
    """
    calls, trace = schedule.calls, schedule.trace
    weights = weights or {}
    counts = np.zeros((2, len(calls)))
    # Part of what recording a call takes lies outside its own time stamps.
    counts[0] = (calls.kind != CallKind.MARK) * weights.get("api_calls", 1.0)
    for table in EVENT_TABLES:
        if not trace.has(table):
            continue
        frame = trace.table(table, ["start_ns", "process", "thread"])
        weight = weights.get(table, 1.0)
        for number, (process, thread) in enumerate(schedule.threads):
            own = np.flatnonzero(calls.thread == number)
            times = frame.filter(
                pl.col("process").fill_null(NONE) == process,
                pl.col("thread").fill_null(NONE) == thread,
            )["start_ns"].to_numpy()
            edges = (schedule.before_calls[own], calls.start_ns[own], calls.end_ns[own])
            before, start, end = (search(times, edge) for edge in edges)
            counts[0, own] += weight * np.maximum(start - before, 0)
            counts[1, own] += weight * np.maximum(end - start, 0)
    return counts


# Where the step time without a profiler is not known ----------------------------------------------


@dataclass(frozen=True, slots=True)
class EventCost:
    """What one tool takes for an event that it records."""

    units: float
    """For a recorded event, in units that the capture shows."""
    low: float
    high: float
    """Lowest and highest cost, relative to `units`: most programs are in between. Wide, because
    runs of one program differ by up to 40%, and other machines were not measured."""
    weights: Mapping[str, float]
    """How many events a row of a table counts as; otherwise as one."""
    is_used: bool
    """Times are corrected by it. Else it is only shown: on programs that were not used for the fit,
    the error of the step time must be half of that of the recorded one."""
    unit_ns: float
    """The unit on the machine of the fit, for captures that show none."""
    max_slowdown: tuple[float, float]
    """How many times as long a step can take with the tool: most for the middle cost, and for the
    highest. Of the captures with a known time, 91 of 95 (nsys), 28 of 31 (CUPTI) and 37 of 40
    (torch.profiler) were slowed down by less than the first, all but one of nsys and one of
    torch.profiler by less than the second. No other machine was measured, so no estimate goes
    beyond."""


NSYS, CUPTI, TORCH = "nsys", "CUPTI", "torch.profiler"
COSTS = {
    NSYS: EventCost(
        1.0,
        low=0.3,
        high=3.0,
        weights={},
        is_used=True,
        unit_ns=6_300.0,
        max_slowdown=(2.0, 3.0),
    ),
    CUPTI: EventCost(
        1.0,
        low=0.3,
        high=4.0,
        weights={},
        is_used=False,
        unit_ns=5_300.0,
        max_slowdown=(2.0, 3.0),
    ),
    TORCH: EventCost(
        1.7,
        low=0.4,
        high=2.0,
        weights={"cpu_ops": 4.0, "python_calls": 0.25},
        is_used=True,
        unit_ns=1_300.0,
        max_slowdown=(3.0, 4.0),
    ),
}
"""Fitted by `benchmarks/programs/fit_costs.py` on the captures of an H200 (docs:
profiler-overhead.md), on programs that are not held out: 52 captures of nsys, 28 of torch.profiler,
14 of CUPTI. An operator of torch.profiler costs four times what a call does.
A Python call (`with_stack`) was in no capture of the fit: it is a callback without arguments, far
cheaper than an operator, and the quarter of an event is set by hand.

The unit is what launching a kernel takes, the lower quartile; for torch.profiler the lower quartile
of the time from the start of an operator to the start of the first one in it. That is little else
than recording, with shapes and stacks where they were on. Both units are longer on a slow CPU, and
the overhead is too: with a constant cost, the mean error on the programs of the fit was 19% instead
of 18% for nsys, 18% instead of 14% for torch.profiler, and no different for CUPTI."""
BACKTRACE_HIGH = 2.0
"""Times the highest cost, where call stacks were recorded at API calls or by sampling: a program
went from 132 to 261 ms with both; how much of it an event takes was not measured."""
MAX_UNIT = 2.0
"""Longest unit, against that of the fit: no capture of the fit showed a much longer one."""
_MIN_UNIT_EVENTS = 20
"""Events that show the unit of a capture; of fewer, that of the fit is used."""
MIN_LAUNCHES = 20
"""Kernel launches on which an estimate is based. Of fewer, the host does something else than
launch, which no program of the fit did, and the estimate is only shown."""
_MICROSECOND_NS = 1_000


@dataclass(frozen=True, slots=True)
class EstimatedOverhead:
    """What a tool is likely to add to the host's time."""

    tool: str
    middle: Overhead
    low: Overhead
    high: Overhead
    weights: Mapping[str, float]
    is_used: bool

    def limited(self, length_ns: Lengths) -> EstimatedOverhead:
        """Return an estimate that shortens steps by no more than was ever measured."""
        usual, most = COSTS[self.tool].max_slowdown
        recorded_ns = length_ns(Overhead(0.0))
        middle, high = (
            overhead
            if length_ns(overhead) >= recorded_ns / slowdown
            else _found(length_ns, recorded_ns / slowdown, Overhead, overhead.event_ns)
            for overhead, slowdown in ((self.middle, usual), (self.high, most))
        )
        return replace(self, middle=middle, high=high)


def estimate_overhead(schedule: GpuSchedule) -> EstimatedOverhead | None:
    """Estimate what the profiler of a capture takes; None for a tool that was not measured."""
    trace = schedule.trace
    tool = recording_tool(trace)
    if tool is None:
        return None
    cost = COSTS[tool]
    shown_ns = capture_unit_ns(schedule, tool) or cost.unit_ns
    event_ns = cost.units * min(shown_ns, MAX_UNIT * cost.unit_ns)
    # A sanitized copy has the times of samples, but no stacks.
    with_stacks = trace.has("callchains") or trace.has("cpu_samples")
    high = cost.high * (BACKTRACE_HIGH if with_stacks else 1.0)
    middle, low, high_overhead = (Overhead(event_ns * factor) for factor in (1.0, cost.low, high))
    launches = np.count_nonzero(schedule.calls.kind == CallKind.LAUNCH)
    is_used = cost.is_used and int(launches) >= MIN_LAUNCHES
    return EstimatedOverhead(tool, middle, low, high_overhead, cost.weights, is_used)


def recording_tool(trace: Trace) -> str | None:
    """Return which tool recorded a capture, if its costs were measured."""
    tool = trace.meta.tool
    if (trace.meta.cuda_version or "").startswith("HIP"):
        return None  # GPUs of AMD are recorded by other libraries
    if tool == "torch.profiler":
        return TORCH if trace.has("cpu_ops") else CUPTI
    if tool.startswith("gpusight record, CUPTI"):
        return CUPTI
    return NSYS if tool == "Nsight Systems" else None


def capture_unit_ns(schedule: GpuSchedule, tool: str) -> float | None:
    """Return the unit of costs; None where too few events show it."""
    return _operator_ns(schedule) if tool == TORCH else _launch_ns(schedule)


def _launch_ns(schedule: GpuSchedule) -> float | None:
    """Return how long a launch takes; None where most wait for their kernel."""
    calls, ops = schedule.calls, schedule.ops
    launches = np.flatnonzero(calls.kind == CallKind.LAUNCH)
    if len(launches) < _MIN_UNIT_EVENTS:
        return None
    kernels = np.flatnonzero(ops.call >= 0)
    waited = np.zeros(len(calls), np.bool_)
    waited[ops.call[kernels]] = ops.end_ns[kernels] <= calls.end_ns[ops.call[kernels]]
    if waited[launches].mean() > 0.5:  # CUDA_LAUNCH_BLOCKING
        return None
    return float(np.quantile(calls.end_ns[launches] - calls.start_ns[launches], 0.25))


def _operator_ns(schedule: GpuSchedule) -> float | None:
    """Return how long after an operator the first one in it starts: the lower quartile.

    None for time stamps of whole microseconds, as of old versions, which do not show it.
    """
    columns = ["start_ns", "end_ns", "process", "thread"]
    inside = pl.col("start_ns").is_between(schedule.start_ns, schedule.end_ns)
    ops = schedule.trace.table("cpu_ops", columns).filter(inside)
    if (ops["start_ns"].diff().drop_nulls() % _MICROSECOND_NS == 0).all():
        return None
    following = pl.col("start_ns").shift(-1).over("process", "thread")
    nested = ops.select(
        pl.when(following < pl.col("end_ns")).then(following - pl.col("start_ns")).alias("ns")
    )["ns"].drop_nulls()
    return None if len(nested) < _MIN_UNIT_EVENTS else nested.quantile(0.25)
