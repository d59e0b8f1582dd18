"""Which part of the window is judged: whole steps of one process, few enough to replay often."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.launch_columns import BLOCK, GRID
from gpusight.analyses.ledger.accounting import Accounting
from gpusight.analyses.schedule.build import build
from gpusight.analyses.schedule.schedule import NONE
from gpusight.analyses.select import EVERYTHING, GPU_WORK, Scope
from gpusight.findings.timeline.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analyses.ledger.ledger import Ledger
    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.analyses.select import Selection
    from gpusight.analyses.steps.focus import Focus
    from gpusight.analyses.steps.step import Step
    from gpusight.model.trace import Trace

_MOST_IN_A_STEP = 100_000
"""A step with more work than this is judged in part."""
MOST_OPS = 24_000
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


def read(trace: Trace) -> None:
    """Read what a diagnosis needs in one walk through each table."""
    trace.read_together(_READ)


def judged_part(trace: Trace, focus: Focus, selection: Selection = EVERYTHING) -> Timeline:
    """Take as many whole steps from the middle of the window as can be replayed fast.

    A step that is too long by itself is judged in part.
    """
    process = busiest_process(trace, focus, selection)
    starts = _starts(trace, process)
    steps, start_ns, end_ns = focus.steps, focus.start_ns, focus.end_ns
    if _count(starts, start_ns, end_ns) > MOST_OPS and steps:
        steps = _middle(steps, starts)
        start_ns, end_ns = steps[0].start_ns, _end(focus, steps)
    most = _MOST_IN_A_STEP if steps else MOST_OPS
    if _count(starts, start_ns, end_ns) > most:
        steps = ()
        first = int(np.searchsorted(starts, start_ns))
        first += (_count(starts, start_ns, end_ns) - MOST_OPS) // 2
        start_ns, end_ns = int(starts[first]), int(starts[first + MOST_OPS])
    schedule = build(trace, start_ns, end_ns, process=process, marks=_marks(steps))
    return Timeline(focus, schedule, len(steps), device=selection.device)


def whole_ledger(
    focus: Focus,
    timeline: Timeline,
    selection: Selection = EVERYTHING,
    known: Accounting | None = None,
) -> Ledger:
    """Say where the time of the whole window went, on all GPUs or on the one selected."""
    trace = timeline.trace
    chosen = None if selection.process is None else busiest_process(trace, focus, selection)
    every = Accounting(trace, focus.start_ns, focus.end_ns, chosen).or_known(known).ledger
    if selection.device is None:
        return every
    return replace(every, devices=tuple(d for d in every.devices if d.device == selection.device))


def busiest_process(trace: Trace, focus: Focus, selection: Selection = EVERYTHING) -> int | None:
    """Name the process to judge where there are several: that of the steps, else the busiest."""
    if focus.steps and focus.steps[0].process is not None:
        return focus.steps[0].process
    scope = Scope(trace, selection)
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


def _middle(steps: Sequence[Step], starts: Ints) -> tuple[Step, ...]:
    """Choose consecutive steps round the middle with little enough work; at least one."""
    begun = np.searchsorted(starts, [s.start_ns for s in steps])
    ended = np.searchsorted(starts, [s.end_ns for s in steps])
    middle = len(steps) // 2
    first = last = middle
    while first > 0 or last < len(steps) - 1:
        wider = (max(0, first - 1), min(len(steps) - 1, last + 1))
        if ended[wider[1]] - begun[wider[0]] > MOST_OPS:
            break
        first, last = wider
    return tuple(steps[first : last + 1])


def _end(focus: Focus, steps: Sequence[Step]) -> int:
    """Give the end of the last step's own time: the next one's start, or the window's end."""
    at = focus.steps.index(steps[-1])
    return focus.steps[at + 1].start_ns if at + 1 < len(focus.steps) else focus.end_ns


def _marks(steps: Sequence[Step]) -> list[tuple[int, int, int]]:
    """Mark where steps begin and end, on their threads."""
    return [
        (moment, _or_none(step.process), _or_none(step.thread))
        for step in steps
        for moment in (step.start_ns, step.end_ns)
    ]


def _or_none(key: int | None) -> int:
    return NONE if key is None else key
