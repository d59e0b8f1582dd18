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

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.call_sites import text_of
from gpusight.analysis.attribution.work_causes import (
    KINDS,
    causes_of_calls,
    causes_of_rows,
    names_of_causes,
)
from gpusight.analysis.capture_completeness import MEMSETS, issued_work
from gpusight.analysis.gpu_schedule import NONE, CallKind, OpKind, build_schedule
from gpusight.analysis.kernel_summary import BLOCK, GRID, distinct_short_names, product
from gpusight.analysis.ledger.device_ledger import Accounting, build_ledger
from gpusight.analysis.ledger.idle_causes import host_time
from gpusight.analysis.replay.window_replay import GpuSharing, Replay
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, ResolvedSelection
from gpusight.analysis.steps.step_phases import phases
from gpusight.hardware.gpu_lookup import listed_gpu
from gpusight.naming.kernel_names import classify
from gpusight.rules.frameworks import framework_of
from gpusight.trace.intervals import Intervals, clip
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gpusight.analysis.capture_completeness import IssuedWork
    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.ledger.device_ledger import Ledger
    from gpusight.analysis.ledger.host_threads import HostTime
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.analysis.selection import Selection
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.analysis.steps.step_window import StepWindow
    from gpusight.hardware.gpu_table import Gpu
    from gpusight.rules.frameworks import Framework
    from gpusight.trace.intervals import Ints
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
        frame = _ops_frame(self.schedule)
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
        return _calls_frame(self.schedule, self.replay.program)

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
        later = focus.steps[focus.steps.index(steps[-1]) + 1 :]
        start_ns, end_ns = steps[0].start_ns, later[0].start_ns if later else focus.end_ns
    op_count = _op_count(op_starts, start_ns, end_ns)
    if op_count > (_MAX_STEP_OPS if steps else MAX_SAMPLE_OPS):
        steps = ()
        first = int(np.searchsorted(op_starts, start_ns)) + (op_count - MAX_SAMPLE_OPS) // 2
        start_ns, end_ns = int(op_starts[first]), int(op_starts[first + MAX_SAMPLE_OPS])
    marks = [
        (
            moment_ns,
            NONE if step.process is None else step.process,
            NONE if step.thread is None else step.thread,
        )
        for step in steps
        for moment_ns in (step.start_ns, step.end_ns)
    ]
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


def _representative(focus: StepWindow, op_starts: Ints, op_ns: Ints) -> tuple[TraceStep, ...]:
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
        first, last, miss = _most_alike(totals, max_ops)
        if miss <= MAX_SAMPLE_MISS:
            break
    return focus.steps[first:last]


def _most_alike(totals: NDArray[np.float64], max_ops: int) -> tuple[int, int, float]:
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


# Frames -------------------------------------------------------------------------------------------


_DETAILS = {
    "name": pl.String,
    "label": pl.String,
    "category": pl.String,
    "precision": pl.String,
    "tensor_core": pl.Boolean,
    "blocks": pl.Int64,
    "threads": pl.Int64,
    "bytes": pl.Int64,
    "direction": pl.String,
    "src_kind": pl.String,
    "dst_kind": pl.String,
}
"""Columns of an activity that come from its own table; null where the table lacks one."""


def _ops_frame(schedule: GpuSchedule) -> pl.DataFrame:
    ops = schedule.ops
    kinds = [kind for kind in OpKind if (ops.kind == kind).any()] or [OpKind.KERNEL]
    parts = [_details_and_causes(schedule, kind) for kind in kinds]
    details = pl.concat([pl.DataFrame(schema=_DETAILS), *parts], how="diagonal")
    frame = pl.DataFrame(
        {
            "op": np.arange(len(ops)),
            "kind": pl.Series(KINDS, dtype=pl.Enum(KINDS)).gather(ops.kind),
            "start_ns": ops.start_ns,
            "end_ns": ops.end_ns,
            "duration_ns": ops.end_ns - ops.start_ns,
            "device": ops.device,
            "stream_id": ops.stream_id,
            "call": pl.Series(ops.call, dtype=pl.Int64),
            "step": _step_of(schedule, ops.call),
        }
    ).with_columns(pl.when(pl.col("call") >= 0).then("call").alias("call"))
    return frame.hstack(details.sort("op").drop("op").get_columns())


def _details_and_causes(schedule: GpuSchedule, kind: OpKind) -> pl.DataFrame:
    """Describe the activities of one kind, with the range, operator and line that launched them."""
    trace, op = schedule.trace, np.flatnonzero(schedule.ops.kind == kind)
    rows = pl.Series("row", schedule.ops.row[op])
    if kind is OpKind.KERNEL:
        details = _kernel_details(trace, rows)
    elif kind is OpKind.COPY:
        copies = trace.table("copies", ["kind", "bytes", "src_kind", "dst_kind"])[rows]
        direction = pl.col("kind").cast(pl.String)
        details = copies.select(
            pl.format("[copy {}]", direction).alias("name"),
            "bytes",
            direction.alias("direction"),
            pl.col("src_kind", "dst_kind").cast(pl.String),
        )
    elif kind is OpKind.MEMSET:
        memsets = trace.table("memsets", ["bytes"])[rows]
        details = memsets.with_columns(pl.lit("[memset]").alias("name"))
    else:
        details = pl.select(pl.repeat("[CUDA graph]", len(rows)).alias("name"))
    if kind is not OpKind.KERNEL:
        details = details.with_columns(pl.col("name").alias("label"))
    causes = causes_of_rows(trace, kind.table, rows)
    names = names_of_causes(trace, causes)
    shapes = pl.Series([], dtype=pl.String).extend_constant(None, len(rows))
    if trace.has("cpu_ops", "shapes"):
        shapes = text_of(trace.table("cpu_ops", ["shapes"])["shapes"], causes["op"])
    return details.hstack(
        [
            pl.Series("op", op),
            causes["in_graph"],
            names["range"],
            names["op"].alias("operator"),
            names["forward_op"].alias("forward_operator"),
            shapes.alias("shapes"),
            names["module"],
            names["call_site"].alias("site"),
        ]
    )


def _kernel_details(trace: Trace, rows: pl.Series) -> pl.DataFrame:
    table = trace.table("kernels", ["name", *GRID, *BLOCK])
    kernels = table[rows]
    code = kernels["name"].to_physical()
    names, codes = names_of(kernels["name"]), code.unique().sort()
    kinds = [classify(names[c]) for c in codes]
    by_name = pl.DataFrame(
        {
            "code": codes,
            "label": distinct_short_names(kernels["name"]).gather(codes),
            "category": pl.Series([k.category for k in kinds], dtype=pl.String),
            "precision": pl.Series([k.precision for k in kinds], dtype=pl.String),
            "tensor_core": pl.Series([k.tensor_core for k in kinds], dtype=pl.Boolean),
        }
    )
    return (
        kernels.with_columns(code.alias("code"), text_of(table["name"], rows))
        .join(by_name, on="code", maintain_order="left")
        .select(
            *("name", "label", "category", "precision", "tensor_core"),
            product(GRID).alias("blocks"),
            product(BLOCK).alias("threads"),
        )
    )


def _step_of(schedule: GpuSchedule, calls: Ints) -> pl.Series:
    """Return the number of the step that each call is in; null outside steps."""
    marks = np.flatnonzero(schedule.calls.kind == CallKind.MARK)
    # Steps begin at the first mark, end at the second, and so on.
    passed = np.searchsorted(marks, calls, side="right")
    inside = (passed % 2 == 1) & (calls >= 0)
    return pl.Series("step", np.where(inside, passed // 2, NONE)).replace(NONE, None)


def _calls_frame(schedule: GpuSchedule, program: ReplayProgram) -> pl.DataFrame:
    calls, trace = schedule.calls, schedule.trace
    position = np.flatnonzero(calls.kind != CallKind.MARK)
    rows = pl.Series("row", calls.row[position])
    kinds = [kind.name.lower() for kind in CallKind]
    threads = pl.DataFrame(
        list(schedule.threads), schema={"process": pl.Int64, "thread": pl.Int64}, orient="row"
    )[calls.thread[position]]
    duration_ns = calls.end_ns - calls.start_ns
    waits = program.wait != 0
    waited_ns = np.where(waits, np.maximum(duration_ns - program.own_ns, 0), 0)
    causes = names_of_causes(trace, causes_of_calls(trace, rows))
    return pl.DataFrame(
        {
            "call": position,
            "kind": pl.Series(kinds, dtype=pl.Enum(kinds)).gather(calls.kind[position]),
            "name": text_of(trace.table("api_calls", ["name"])["name"], rows),
            "start_ns": calls.start_ns[position],
            "end_ns": calls.end_ns[position],
            "duration_ns": duration_ns[position],
            "host_thread": calls.host_thread[position],
            "step": _step_of(schedule, position),
            "waits": waits[position],
            "waited_ns": waited_ns[position],
        }
    ).hstack(
        [
            *threads.get_columns(),
            causes["range"],
            causes["op"].alias("operator"),
            causes["call_site"].alias("site"),
        ]
    )


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
