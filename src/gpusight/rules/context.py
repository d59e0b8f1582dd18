"""The input of timeline rules: a sample of whole steps of one process, with ledger and replay.

GPU activities and API calls of the sample are frames with their names, ranges and operators.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl

from gpusight.analysis.capture_completeness import MEMSETS, issued_work
from gpusight.analysis.gpu_schedule import CallKind, build_schedule, step_marks
from gpusight.analysis.ledger.accounting import Accounting
from gpusight.analysis.ledger.device_ledger import build_ledger
from gpusight.analysis.ledger.idle_causes import host_time
from gpusight.analysis.replay.window_replay import GpuSharing, Replay
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, ResolvedSelection
from gpusight.analysis.steps.program_phases import phases
from gpusight.hardware.gpu_lookup import listed_gpu
from gpusight.results import Evidence
from gpusight.rules.context_frames import calls_frame, ops_frame
from gpusight.rules.rule import framework_of
from gpusight.trace.intervals import Intervals, clip
from gpusight.trace.schema_gpu import BLOCK, GRID
from gpusight.units import format_mean, format_time, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.analysis.capture_completeness import IssuedWork
    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.ledger.device_ledger import Ledger
    from gpusight.analysis.ledger.host_threads import HostTime
    from gpusight.analysis.selection import Selection
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.hardware.gpu_table import Gpu
    from gpusight.rules.rule import Framework
    from gpusight.trace.intervals import Ints, Reals
    from gpusight.trace.trace import Trace


class RuleContext:
    """The sample that is diagnosed: whole steps of one process, as many as can be replayed fast."""

    def __init__(
        self, focus: StepWindow, schedule: GpuSchedule, steps: int, *, device: int | None = None
    ) -> None:
        self.focus = focus
        """The whole window; the sample may be a part of it."""
        self.schedule = schedule
        """GPU activities and calls of the sample as arrays, to which frames and changes refer."""
        self.steps = steps
        """Steps in the sample; 0 where none are known."""
        self._device = device

    @property
    def trace(self) -> Trace:
        """The capture."""
        return self.schedule.trace

    @property
    def length_ns(self) -> int:
        """Length of the sample."""
        return self.schedule.length_ns

    @property
    def part(self) -> str:
        """What the sample is, such as `3 of 10 steps`; empty where it is the whole window."""
        if self.length_ns >= self.focus.length_ns:
            return ""
        if self.steps:
            return f"{self.steps} of {len(self.focus.steps)} steps"
        return format_time(self.length_ns)

    @property
    def per_step(self) -> int:
        """Divisor for values per step: 1 where no steps are known."""
        return max(1, self.steps)

    @property
    def step_ns(self) -> float:
        """Step time of the window, as in headlines; its length where no steps are known."""
        return self.focus.length_ns / max(1, len(self.focus.steps))

    @cached_property
    def issued(self) -> dict[str, IssuedWork]:
        """Calls of the window that launch kernels or copies, and those without a recorded activity.

        Memsets are left out: some tools record none, and no rule needs them.
        """
        issued = issued_work(self.trace, [(self.focus.host_start_ns, self.focus.end_ns)])
        return {source: work for source, work in issued.items() if source != MEMSETS}

    @cached_property
    def hosts(self) -> HostTime:
        """What the host did at every instant."""
        return host_time(self.trace, self.schedule)

    @cached_property
    def ledger(self) -> Ledger:
        """Where the time of the sample went."""
        return build_ledger(self.schedule, self.hosts)

    @cached_property
    def replay(self) -> Replay:
        """Simulates how long the sample would take if something were different."""
        return Replay(self.schedule, self.hosts, self._sharing)

    @cached_property
    def other_processes(self) -> pl.DataFrame:
        """Activities of other processes on the same GPU, in the time of the sample.

        Columns: `start_ns`, `end_ns`, `process`, `device`.
        """
        own = {process for process, _ in self.schedule.threads}
        columns = ["start_ns", "end_ns", "process", "device"]
        parts = [
            self.trace.table(table, columns).filter(
                pl.col("process").is_not_null() & ~pl.col("process").is_in(list(own)),
                pl.col("device") == self.device,
                pl.col("end_ns") > self.schedule.start_ns,
                pl.col("start_ns") < self.schedule.end_ns,
            )
            for table in GPU_WORK
            if self.trace.has(table)
        ]
        empty = pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64))
        return pl.concat([empty, *parts], how="vertical_relaxed") if own else empty

    @property
    def _sharing(self) -> GpuSharing | None:
        """How other processes share the GPU; None where there are none."""
        others, window = self.other_processes, (self.schedule.start_ns, self.schedule.end_ns)
        if others.is_empty():
            return None
        ops = self.schedule.ops
        on_gpu = np.flatnonzero(ops.device == self.device)
        own = Intervals.from_arrays(ops.start_ns[on_gpu], ops.end_ns[on_gpu])
        theirs = Intervals.from_arrays(*(others[c].to_numpy() for c in ("start_ns", "end_ns")))
        return GpuSharing.of(
            self.device, clip(own, *window), clip(theirs, *window), self.schedule.length_ns
        )

    @cached_property
    def ops(self) -> pl.DataFrame:
        """GPU activities, a row each in the order of `schedule.ops`.

        Columns: `op` (position in `schedule.ops`), `kind` (kernel, copy, memset, graph),
        `start_ns`, `end_ns`, `duration_ns`, `device`, `stream_id`, `call` (position in
        `schedule.calls`, null for none), `step` (number within the sample, null outside), `name`,
        `label` (short), `category`, `precision`, `tensor_core`, `blocks`, `threads` (a block),
        `in_graph`, `bytes`, `direction`, `src_kind`, `dst_kind`, `range` (innermost), `operator`,
        `forward_operator`, `shapes` (of the operator), `module`, `site` (line of Python), `phase`.
        """
        frame = ops_frame(self.schedule)
        return frame.with_columns(phases(self.trace, self.schedule).alias("phase"))

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """The rows of `ops` that are kernels."""
        return self.ops.filter(pl.col("kind") == "kernel")

    @cached_property
    def calls(self) -> pl.DataFrame:
        """API calls, a row each in the order of `schedule.calls`, without marks.

        Columns: `call` (position), `kind` (of `CallKind`, lower case), `name`, `start_ns`,
        `end_ns`, `duration_ns`, `host_thread`, `process`, `thread`, `step`, `range`, `operator`,
        `site`, `waits` (it waits for the GPU), `waited_ns` (how long it really did).
        """
        return calls_frame(self.schedule, self.replay.program)

    @cached_property
    def gpu(self) -> Gpu | None:
        """Specifications of `device`; None where they are not known."""
        rows = self.trace.table("devices").filter(pl.col("device") == self.device)
        return listed_gpu(rows.row(0, named=True)) if rows.height else None

    @cached_property
    def framework(self) -> Framework:
        """What the program is written with."""
        return framework_of(self.trace)

    @cached_property
    def device(self) -> int:
        """Number of the selected GPU, else of the one that was busy longest."""
        if self._device is not None:
            return self._device
        ops = self.schedule.ops
        devices, first, at = np.unique(ops.device, return_index=True, return_inverse=True)
        busy_ns = np.bincount(at, ops.end_ns - ops.start_ns)
        return int(devices[np.lexsort((first, -busy_ns))[0]])

    def calls_of(self, *kinds: CallKind) -> pl.DataFrame:
        """Return the calls of some kinds."""
        return self.calls.filter(pl.col("kind").is_in([kind.name.lower() for kind in kinds]))

    # Amounts per step ---------------------------------------------------------------------------

    def scaled_ns(self, ns: float) -> float:
        """Scale a time of the sample to one step of the window; to the window without steps.

        Like the savings of findings: so that it is a part of the step time in the headline.
        """
        return ns * self.step_ns / max(1, self.length_ns)

    def step_count(self, count: float) -> float:
        """Divide a count of the sample by its steps; scale it where it holds no whole step."""
        return count / self.steps if self.steps else self.scaled_ns(count)

    def time_per_step(self, ns: float) -> str:
        """Format a time of the sample: `10.1 ms/step`, `10.1 ms` where no steps are known."""
        text = format_time(self.scaled_ns(ns), digits=3)
        return f"{text}/step" if self.focus.steps else text

    def count_per_step(self, count: float, noun: str = "") -> str:
        """Format a count of the sample: `96 per step`, `12 blocking syncs per step`.

        The noun is given in its singular.
        """
        if count and count < self.steps:
            noun = f" {plural(noun, count)}" if noun else ""
            return f"{format_mean(count)}{noun} in {self.steps:,} steps"
        amount = self.step_count(count)
        text = format_mean(amount if self.steps else round(amount))
        if noun:
            text = f"{text} {noun if text == '1' else plural(noun)}"
        return self.by_step(text)

    def by_step(self, amount: str) -> str:
        """Add the unit to an amount of one step: `14 per step`."""
        return f"{amount} per step" if self.focus.steps else amount

    def evidence(self, metric: str, total: float, unit: str, meaning: str) -> Evidence:
        """Return an amount of the sample as evidence, for one step."""
        amount = self.scaled_ns if unit == "ns" else self.step_count
        return Evidence(metric, amount(float(total)), unit, self.by_step(meaning))


def process_names(context: RuleContext) -> list[str]:
    """Name the other processes on the GPU as `python3 (4242)`."""
    processes = context.trace.table("processes", ["process", "pid", "name"])
    others = context.other_processes["process"].unique().implode()
    rows = processes.filter(pl.col("process").is_in(others))
    return [f"{name or 'process'} ({pid})" for _, pid, name in rows.sort("pid").iter_rows()]


_MAX_STEP_OPS = 100_000
"""A step with more GPU activities than this is sampled in part."""
MAX_SAMPLE_OPS = 32_000
"""GPU activities that are replayed, if a step has no more: one replay then takes about a hundredth
of a second, whatever the size of the capture."""
MAX_VARIED_OPS = 2 * MAX_SAMPLE_OPS
"""As many, where the steps that fit are not like all steps: what fixes save then depends on which
steps are chosen."""
MAX_SAMPLE_MISS = 0.02
"""Part by which the mean of a sample may differ from that of the window: half of the typical error
of a prediction."""
_SAME_MISS = 0.005
"""Samples whose means differ by less are equally good: the one nearest to the middle is taken."""


_ACTIVITY = [
    *("start_ns", "end_ns", "device", "context", "stream", "process", "correlation", "op"),
    "graph_node",
]
_READ = {
    "kernels": [*_ACTIVITY, "name", *GRID, *BLOCK],
    "copies": [*_ACTIVITY, "kind", "bytes", "src_kind", "dst_kind"],
    "memsets": [*_ACTIVITY, "bytes"],
    "api_calls": [
        *("start_ns", "end_ns", "name", "api", "thread", "process", "correlation", "op"),
        "callchain",
        "return_value",
    ],
    "ranges": [
        *("start_ns", "end_ns", "name", "kind", "open", "thread", "process"),
        *("domain", "domain_key", "source"),
    ],
}
"""Columns of the large tables that a diagnosis reads."""


def preload_tables(trace: Trace) -> None:
    """Read all that a diagnosis needs in one pass over each table."""
    trace.read_together(_READ)


def sample_steps(trace: Trace, focus: StepWindow, selection: Selection = EVERYTHING) -> RuleContext:
    """Take as many whole steps as can be replayed fast, those that are most like all of them.

    A step that is too long by itself is sampled in part.
    """
    process = busiest_process(trace, focus, selection)
    op_starts, op_ns = _op_times(trace, process)
    # The replay starts with the host, which may be ahead of the GPU.
    steps, start_ns, end_ns = focus.steps, focus.host_start_ns, focus.end_ns
    if _op_count(op_starts, start_ns, end_ns) > MAX_SAMPLE_OPS and steps:
        steps = _representative(focus, op_starts, op_ns)
        # The time up to the next step belongs to a step.
        later = focus.steps[list(focus.steps).index(steps[-1]) + 1 :]
        start_ns, end_ns = steps[0].start_ns, later[0].start_ns if later else focus.end_ns
    op_count = _op_count(op_starts, start_ns, end_ns)
    if op_count > (_MAX_STEP_OPS if steps else MAX_SAMPLE_OPS):
        steps = ()
        first = int(np.searchsorted(op_starts, start_ns)) + (op_count - MAX_SAMPLE_OPS) // 2
        start_ns, end_ns = int(op_starts[first]), int(op_starts[first + MAX_SAMPLE_OPS])
    marks = step_marks(steps)
    schedule = build_schedule(trace, start_ns, end_ns, process=process, marks=marks)
    return RuleContext(focus, schedule, len(steps), device=selection.device)


def whole_ledger(
    focus: StepWindow,
    context: RuleContext,
    selection: Selection = EVERYTHING,
    known: Accounting | None = None,
) -> Ledger:
    """Build the ledger of the whole window, of all GPUs or of the selected one."""
    trace = context.trace
    chosen = None if selection.process is None else busiest_process(trace, focus, selection)
    ledger = Accounting(trace, focus.start_ns, focus.end_ns, chosen).or_known(known).ledger
    if selection.device is None:
        return ledger
    return replace(ledger, devices=tuple(d for d in ledger.devices if d.device == selection.device))


def busiest_process(
    trace: Trace, focus: StepWindow, selection: Selection = EVERYTHING
) -> int | None:
    """Return the process to diagnose: that of the steps, else the busiest; None where one ran."""
    if focus.steps and focus.steps[0].process is not None:
        return focus.steps[0].process
    scope = ResolvedSelection(trace, selection)
    busy = [
        scope.gpu(table, ["process", "start_ns", "end_ns", "device"]).select(
            "process", (pl.col("end_ns") - pl.col("start_ns")).alias("ns")
        )
        for table in GPU_WORK
        if trace.has(table)
    ]
    if not busy:
        return None
    by_process = pl.concat(busy).drop_nulls().group_by("process").agg(pl.col("ns").sum())
    if by_process.is_empty() or (by_process.height < 2 and scope.processes is None):
        return None
    return int(by_process.sort("ns", "process", descending=[True, False])["process"][0])


def _op_times(trace: Trace, process: int | None) -> tuple[Ints, Ints]:
    """Return the sorted start times of all GPU activities, and their durations."""
    parts = []
    for table in GPU_WORK:
        if trace.has(table):
            frame = trace.table(table, ["start_ns", "end_ns", "process"])
            if process is not None:
                frame = frame.filter(pl.col("process").is_null() | (pl.col("process") == process))
            parts.append(frame.select("start_ns", (pl.col("end_ns") - pl.col("start_ns"))))
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ops = pl.concat(parts).sort("start_ns")
    return ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()


def _op_count(op_starts: Ints, start_ns: int, end_ns: int) -> int:
    first, last = np.searchsorted(op_starts, (start_ns, end_ns))
    return int(last - first)


def _representative(focus: StepWindow, op_starts: Ints, op_ns: Ints) -> Sequence[TraceStep]:
    """Choose consecutive steps that are fast to replay and like all steps of the window.

    Alike are the means of step time, GPU time and number of GPU activities. Where no steps that fit
    are, as where every tenth one also writes a checkpoint, more steps are taken.
    """
    edges_ns = np.array([*(step.start_ns for step in focus.steps), focus.end_ns])
    at = np.searchsorted(op_starts, edges_ns)
    gpu_ns = np.append(0, np.cumsum(op_ns))[at]
    # One column each, summed up to the start of every step.
    totals = np.stack((edges_ns, gpu_ns, at), axis=1).astype(np.float64)
    for max_ops in (MAX_SAMPLE_OPS, MAX_VARIED_OPS):
        first, last, miss = _most_typical(totals, max_ops)
        if miss <= MAX_SAMPLE_MISS:
            break
    return focus.steps[first:last]


def _most_typical(totals: Reals, max_ops: int) -> tuple[int, int, float]:
    """Return the run of steps whose means miss those of all steps least, and by which part.

    Of runs with at most so many GPU activities, the last column of `totals`; at least one step.
    """
    count = len(totals) - 1
    first, ops = np.arange(count), totals[:, -1]
    last = np.searchsorted(ops, ops[:-1] + max_ops, side="right") - 1
    last = np.clip(last, first + 1, count)
    # Runs that the end of the window cuts short are parts of others.
    whole = np.append(True, last[1:] > last[:-1])
    first, last = first[whole], last[whole]
    means = (totals[last] - totals[first]) / (last - first)[:, None]
    overall = (totals[-1] - totals[0]) / count
    miss = np.abs(means / np.maximum(overall, 1) - 1).max(axis=1)
    off_middle = np.abs(first + last - count)
    best = int(np.lexsort((off_middle, miss // _SAME_MISS))[0])
    return int(first[best]), int(last[best]), float(miss[best])


_Measured = TypeVar("_Measured")


def memoize(measure: Callable[[RuleContext], _Measured]) -> Callable[[RuleContext], _Measured]:
    """Cache what a function computes from a context for as long as the context lives."""
    results: WeakKeyDictionary[RuleContext, _Measured] = WeakKeyDictionary()

    @wraps(measure)
    def measured(context: RuleContext) -> _Measured:
        if context not in results:
            results[context] = measure(context)
        return results[context]

    return measured
