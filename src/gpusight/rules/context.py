"""What timeline rules look at.

A sample of whole steps of one process, with its ledger and replay.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl

from gpusight.analysis.capture_completeness import MEMSETS, issued_work
from gpusight.analysis.capture_gpus import listed_gpu
from gpusight.analysis.gpu_schedule import NONE, build_schedule
from gpusight.analysis.kernel_summary import BLOCK, GRID
from gpusight.analysis.ledger.device_ledger import Accounting, build_ledger
from gpusight.analysis.ledger.idle_causes import host_time
from gpusight.analysis.replay.window_replay import Replay
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, ResolvedSelection
from gpusight.analysis.steps.step_phases import phases
from gpusight.rules.activity_frames import calls_frame, ops_frame
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.analysis.capture_completeness import IssuedWork
    from gpusight.analysis.gpu_schedule import CallKind, GpuSchedule, Ints
    from gpusight.analysis.ledger.device_ledger import Ledger
    from gpusight.analysis.ledger.idle_causes import HostTime
    from gpusight.analysis.selection import Selection
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.analysis.steps.step_window import StepWindow
    from gpusight.hardware.gpu_table import Gpu
    from gpusight.trace.trace import Trace


class RuleContext:
    """The judged part of a capture: whole steps of one process, as many as can be replayed fast."""

    def __init__(
        self, focus: StepWindow, schedule: GpuSchedule, steps: int, *, device: int | None = None
    ) -> None:
        self.focus = focus
        """All of the time that was asked for; the judged part may be less of it."""
        self.schedule = schedule
        """The judged part: GPU work and calls as arrays, to which frames and changes refer."""
        self.steps = steps
        """Steps in the judged part; 0 where none are known."""
        self._device = device

    @property
    def trace(self) -> Trace:
        """The capture."""
        return self.schedule.trace

    @property
    def length_ns(self) -> int:
        """Length of the judged part."""
        return self.schedule.length_ns

    @property
    def part(self) -> str:
        """Name the judged part, where it is not all of the window; else empty."""
        if self.length_ns >= self.focus.length_ns:
            return ""
        if self.steps:
            return f"{self.steps} of {len(self.focus.steps)} steps"
        return format_time(self.length_ns)

    @property
    def per_step(self) -> int:
        """What to divide by for the time of a step: 1 where no steps are known."""
        return max(1, self.steps)

    @cached_property
    def issued(self) -> dict[str, IssuedWork]:
        """Calls of the window that issue kernels or copies, and those whose work is not recorded.

        Memsets are left out: some tools record none, and no rule needs them.
        """
        every = issued_work(self.trace, [(self.focus.start_ns, self.focus.end_ns)])
        return {source: one for source, one in every.items() if source != MEMSETS}

    @cached_property
    def hosts(self) -> HostTime:
        """What the host did at every instant."""
        return host_time(self.trace, self.schedule)

    @cached_property
    def ledger(self) -> Ledger:
        """Where the time of the judged part went."""
        return build_ledger(self.schedule, self.hosts)

    @cached_property
    def replay(self) -> Replay:
        """Says how long the judged part would take if something were different."""
        return Replay(self.schedule, self.hosts)

    @cached_property
    def ops(self) -> pl.DataFrame:
        """GPU work, a row each in the order of `schedule.ops`.

        Columns: `op` (position in `schedule.ops`), `kind` (kernel, copy, memset, graph),
        `start_ns`, `end_ns`, `duration_ns`, `device`, `queue`, `call` (position in
        `schedule.calls`, null for none), `step` (number within the part, null outside), `name`,
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
        `end_ns`, `duration_ns`, `lane`, `process`, `thread`, `step`, `range`, `operator`, `site`,
        `waits` (it waits for the GPU), `waited_ns` (how long it really did).
        """
        return calls_frame(self.schedule, self.replay.program)

    @cached_property
    def gpu(self) -> Gpu | None:
        """The GPU that did most, where it is known what it can do."""
        device = self.device
        rows = self.trace.table("devices").filter(pl.col("device") == device)
        return listed_gpu(rows.row(0, named=True)) if rows.height else None

    @cached_property
    def device(self) -> int:
        """Number of the GPU that was chosen, or that worked longest."""
        if self._device is not None:
            return self._device
        by_device = self.ops.group_by("device", maintain_order=True).agg(
            pl.col("duration_ns").sum()
        )
        return int(by_device.sort("duration_ns", descending=True)["device"][0])

    def calls_of(self, *kinds: CallKind) -> pl.DataFrame:
        """Give the calls of some kinds."""
        return self.calls.filter(pl.col("kind").is_in([kind.name.lower() for kind in kinds]))


_MOST_IN_A_STEP = 100_000
"""A step with more work than this is judged in part."""
MAX_SAMPLE_OPS = 24_000
"""Pieces of GPU work that are replayed, if a step has no more: a rule's question then takes some
hundredths of a second, whatever the size of the capture."""


_WORK = [
    *("start_ns", "end_ns", "device", "context", "stream", "process", "correlation", "op"),
    "graph_node",
]
_READ = {
    "kernels": [*_WORK, "name", *GRID, *BLOCK],
    "copies": [*_WORK, "kind", "bytes", "src_kind", "dst_kind"],
    "memsets": [*_WORK, "bytes"],
    "api_calls": [
        *("start_ns", "end_ns", "name", "api", "thread", "process", "correlation", "op"),
        "callchain",
    ],
    "ranges": [
        *("start_ns", "end_ns", "name", "kind", "open", "thread", "process"),
        *("domain", "domain_key"),
    ],
}
"""What a diagnosis reads of the large tables."""


def preload_tables(trace: Trace) -> None:
    """Read what a diagnosis needs in one walk through each table."""
    trace.read_together(_READ)


def sample_steps(trace: Trace, focus: StepWindow, selection: Selection = EVERYTHING) -> RuleContext:
    """Take as many whole steps from the middle of the window as can be replayed fast.

    A step that is too long by itself is judged in part.
    """
    process = busiest_process(trace, focus, selection)
    starts = _starts(trace, process)
    steps, start_ns, end_ns = focus.steps, focus.start_ns, focus.end_ns
    if _count(starts, start_ns, end_ns) > MAX_SAMPLE_OPS and steps:
        steps = _middle(steps, starts)
        start_ns, end_ns = steps[0].start_ns, _end(focus, steps)
    most = _MOST_IN_A_STEP if steps else MAX_SAMPLE_OPS
    if _count(starts, start_ns, end_ns) > most:
        steps = ()
        first = int(np.searchsorted(starts, start_ns))
        first += (_count(starts, start_ns, end_ns) - MAX_SAMPLE_OPS) // 2
        start_ns, end_ns = int(starts[first]), int(starts[first + MAX_SAMPLE_OPS])
    schedule = build_schedule(trace, start_ns, end_ns, process=process, marks=_marks(steps))
    return RuleContext(focus, schedule, len(steps), device=selection.device)


def whole_ledger(
    focus: StepWindow,
    context: RuleContext,
    selection: Selection = EVERYTHING,
    known: Accounting | None = None,
) -> Ledger:
    """Say where the time of the whole window went, on all GPUs or on the one selected."""
    trace = context.trace
    chosen = None if selection.process is None else busiest_process(trace, focus, selection)
    every = Accounting(trace, focus.start_ns, focus.end_ns, chosen).or_known(known).ledger
    if selection.device is None:
        return every
    return replace(every, devices=tuple(d for d in every.devices if d.device == selection.device))


def busiest_process(
    trace: Trace, focus: StepWindow, selection: Selection = EVERYTHING
) -> int | None:
    """Name the process to judge where there are several: that of the steps, else the busiest."""
    if focus.steps and focus.steps[0].process is not None:
        return focus.steps[0].process
    scope = ResolvedSelection(trace, selection)
    worked = [
        scope.gpu(table, ["process", "start_ns", "end_ns", "device"]).select(
            "process", (pl.col("end_ns") - pl.col("start_ns")).alias("ns")
        )
        for table in GPU_WORK
        if trace.has(table)
    ]
    if not worked:
        return None
    by_process = pl.concat(worked).drop_nulls().group_by("process").agg(pl.col("ns").sum())
    if by_process.is_empty() or (by_process.height < 2 and scope.processes is None):
        return None
    return int(by_process.sort("ns", "process", descending=[True, False])["process"][0])


def _starts(trace: Trace, process: int | None) -> Ints:
    """Give the beginnings of all GPU work, in order."""
    parts = []
    for table in GPU_WORK:
        if trace.has(table):
            frame = trace.table(table, ["start_ns", "process"])
            if process is not None:
                frame = frame.filter(pl.col("process").is_null() | (pl.col("process") == process))
            parts.append(frame["start_ns"].to_numpy())
    return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def _count(starts: Ints, start_ns: int, end_ns: int) -> int:
    """Count the work that begins in a window."""
    first, last = np.searchsorted(starts, (start_ns, end_ns))
    return int(last - first)


def _middle(steps: Sequence[TraceStep], starts: Ints) -> tuple[TraceStep, ...]:
    """Choose consecutive steps round the middle with little enough work; at least one."""
    begun = np.searchsorted(starts, [s.start_ns for s in steps])
    ended = np.searchsorted(starts, [s.end_ns for s in steps])
    middle = len(steps) // 2
    first = last = middle
    while first > 0 or last < len(steps) - 1:
        wider = (max(0, first - 1), min(len(steps) - 1, last + 1))
        if ended[wider[1]] - begun[wider[0]] > MAX_SAMPLE_OPS:
            break
        first, last = wider
    return tuple(steps[first : last + 1])


def _end(focus: StepWindow, steps: Sequence[TraceStep]) -> int:
    """Give the end of the last step's own time: the next one's start, or the window's end."""
    at = focus.steps.index(steps[-1])
    return focus.steps[at + 1].start_ns if at + 1 < len(focus.steps) else focus.end_ns


def _marks(steps: Sequence[TraceStep]) -> list[tuple[int, int, int]]:
    """Mark where steps begin and end, on their threads."""
    return [
        (moment, _or_none(step.process), _or_none(step.thread))
        for step in steps
        for moment in (step.start_ns, step.end_ns)
    ]


def _or_none(key: int | None) -> int:
    return NONE if key is None else key


_Measured = TypeVar("_Measured")


def memoize(measure: Callable[[RuleContext], _Measured]) -> Callable[[RuleContext], _Measured]:
    """Keep what a function computes from a context for as long as the context lives."""
    done: WeakKeyDictionary[RuleContext, _Measured] = WeakKeyDictionary()

    @wraps(measure)
    def measured(context: RuleContext) -> _Measured:
        if context not in done:
            done[context] = measure(context)
        return done[context]

    return measured
