"""Input that nothing names: the host reads or waits for data, works on it, copies it to the GPU.

Only calls of the operating system tell that. What lies between them, such as the arithmetic that
prepares a batch, belongs to the input as well: the copy that follows is what all of it was for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.schedule.schedule import CallKind, OpKind
from gpusight.model.intervals import Intervals, coverage

if TYPE_CHECKING:
    from gpusight.analyses.ledger.lanes import Lanes
    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.model.trace import Trace

_LONG_NS = 1_000_000
"""The shortest stretch that counts: below, it is the way to the next call."""
_READING = 0.05
"""The least part of it that goes into reading: a stray read in other work is less."""
_WAITING = 0.5
"""The least part of it that goes into waiting for another thread, which then brings the data."""
_ACTING = (CallKind.LAUNCH, CallKind.GRAPH, CallKind.COPY, CallKind.FILL, CallKind.SYNC)
_TO_GPU = ("Host-to-Device", "Host-to-Array")


def prepared(trace: Trace, lanes: Lanes, reading: Intervals, waiting: Intervals) -> Intervals:
    """Give the stretches that end in a copy to the GPU and are spent on reading or waiting."""
    if not len(reading) and not len(waiting):
        return Intervals.empty()
    start, end = _before_copies(trace, lanes)
    long = end - start >= _LONG_NS
    start, end = start[long], end[long]
    read, waited = (coverage(spans, start, end) for spans in (reading, waiting))
    for_input = (read >= _READING * (end - start)) | (waited >= _WAITING * (end - start))
    return Intervals.from_arrays(start[for_input], end[for_input])


def _before_copies(trace: Trace, lanes: Lanes) -> tuple[Ints, Ints]:
    """Give the time before copies to the GPU since the lane last gave it work or waited for it."""
    calls = lanes.schedule.calls
    acting = lanes.order[np.isin(calls.kind[lanes.order], _ACTING)]
    before, after = acting[:-1], acting[1:]
    kept = (calls.lane[before] == calls.lane[after]) & np.isin(after, _copying(trace, lanes))
    before, after = before[kept], after[kept]
    start, end = calls.end_ns[before], calls.start_ns[after]
    return lanes.axis.at(calls.lane[after], start), lanes.axis.at(calls.lane[after], end)


def _copying(trace: Trace, lanes: Lanes) -> Ints:
    """Give the calls that copy to the GPU."""
    ops = lanes.schedule.ops
    copies = np.flatnonzero((ops.kind == OpKind.COPY) & (ops.call >= 0))
    kinds = trace.table("copies", ["kind"])["kind"].gather(ops.row[copies])
    called: Ints = ops.call[copies[kinds.is_in(list(_TO_GPU)).to_numpy()]]
    return called
