"""Which part of the window is judged: whole steps of one process, few enough to replay often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.launch_columns import BLOCK, GRID
from gpusight.analyses.ledger.hosts import host_time
from gpusight.analyses.ledger.ledger import ledger
from gpusight.analyses.schedule.build import build
from gpusight.analyses.schedule.schedule import NONE
from gpusight.analyses.select import GPU_WORK
from gpusight.findings.timeline.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analyses.ledger.ledger import Ledger
    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.analyses.steps.focus import Focus
    from gpusight.analyses.steps.step import Step
    from gpusight.model.trace import Trace

MOST_OPS = 40_000
"""Pieces of GPU work that are replayed: a rule's question then takes some hundredths of a second,
whatever the size of the capture."""


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


def judged_part(trace: Trace, focus: Focus) -> Timeline:
    """Take as many whole steps from the middle of the window as can be replayed fast."""
    process = busiest_process(trace, focus)
    starts = _starts(trace, process)
    count = np.searchsorted(starts, (focus.start_ns, focus.end_ns))
    if count[1] - count[0] <= MOST_OPS:
        return _timeline(trace, focus, focus.steps, focus.start_ns, focus.end_ns, process)
    if focus.steps:
        steps = _middle(focus.steps, starts)
        return _timeline(trace, focus, steps, steps[0].start_ns, _end(focus, steps), process)
    first = int(count[0] + (count[1] - count[0] - MOST_OPS) // 2)
    start, end = int(starts[first]), int(starts[first + MOST_OPS])
    return _timeline(trace, focus, (), start, end, process)


def whole_ledger(focus: Focus, timeline: Timeline) -> Ledger:
    """Say where the time of the whole window went, on all GPUs."""
    trace = timeline.trace
    schedule = build(trace, focus.start_ns, focus.end_ns, marks=_marks(focus.steps))
    return ledger(schedule, host_time(trace, schedule))


def busiest_process(trace: Trace, focus: Focus) -> int | None:
    """Name the process to judge where there are several: that of the steps, else the busiest."""
    if focus.steps and focus.steps[0].process is not None:
        return focus.steps[0].process
    worked = [
        trace.table(table, ["process", "start_ns", "end_ns"]).select(
            "process", (pl.col("end_ns") - pl.col("start_ns")).alias("ns")
        )
        for table in GPU_WORK
        if trace.has(table)
    ]
    if not worked:
        return None
    by_process = pl.concat(worked).drop_nulls().group_by("process").agg(pl.col("ns").sum())
    if by_process.height < 2:
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


def _timeline(
    trace: Trace,
    focus: Focus,
    steps: Sequence[Step],
    start_ns: int,
    end_ns: int,
    process: int | None,
) -> Timeline:
    schedule = build(trace, start_ns, end_ns, process=process, marks=_marks(steps))
    return Timeline(focus, schedule, len(steps))


def _marks(steps: Sequence[Step]) -> list[tuple[int, int, int]]:
    """Mark where steps begin and end, on their threads."""
    return [
        (moment, _or_none(step.process), _or_none(step.thread))
        for step in steps
        for moment in (step.start_ns, step.end_ns)
    ]


def _or_none(key: int | None) -> int:
    return NONE if key is None else key
