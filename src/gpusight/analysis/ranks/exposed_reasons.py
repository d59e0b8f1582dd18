"""Why collectives are exposed: what kept the GPU from computing while they ran.

In exposed time nothing computes; what computes next shows why. The host had not launched it (late
launch, or it allocated memory, or it waited for the GPU), it was behind the collective on the same
stream, or it waited for it on another stream. A collective that starts late although all that was
launched before it is done waited for SMs that later kernels held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.gpu_schedule import NONE, CallKind
from gpusight.analysis.ledger.ledger_entries import COMMUNICATION, IdleCause
from gpusight.trace.intervals import Intervals, distinct

if TYPE_CHECKING:
    import polars as pl

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.ledger.accounting import Accounting
    from gpusight.analysis.ledger.device_ledger import DeviceAccount
    from gpusight.trace.intervals import Ints


STREAM_ORDER, LATE_LAUNCH, DEPENDENCY, ALLOCATION, SM_CONTENTION, UNKNOWN = (
    "stream-order",
    "late-launch",
    "dependency",
    "allocation",
    "sm-contention",
    "unknown",
)
REASONS = (STREAM_ORDER, LATE_LAUNCH, DEPENDENCY, ALLOCATION, SM_CONTENTION, UNKNOWN)
MEANINGS = {
    STREAM_ORDER: "the next compute kernel is behind it on the same stream",
    LATE_LAUNCH: "the host had not launched the next compute kernel yet",
    DEPENDENCY: "the next compute kernel, or the host, waits for it",
    ALLOCATION: "the host allocates or frees memory before the next launch",
    SM_CONTENTION: "it starts late because kernels that were launched later hold the SMs",
    UNKNOWN: "the capture does not show what launched the next compute kernel",
}
_LATENCY_NS = 10_000
"""A launch needs this long to take effect; what takes longer waited for something else."""
_MIN_BUSY_SHARE = 0.5
"""Part of a collective's delay in which other kernels must have run to be its cause."""
_HOST_WAITS = (IdleCause.SYNCHRONIZING, IdleCause.WAITING, IdleCause.QUEUED)


@dataclass(frozen=True)
class CollectivePieces:
    """Parts of collectives in order of time that do not overlap."""

    row: Ints
    """The collective of each."""
    start_ns: Ints
    end_ns: Ints


def exposed_reasons(
    accounting: Accounting, account: DeviceAccount, own: pl.DataFrame, pieces: CollectivePieces
) -> Ints:
    """Return the exposed ns of each collective (rows) by reason (columns, as `REASONS`)."""
    by_reason = np.zeros((own.height, len(REASONS)), np.int64)
    schedule = accounting.schedule
    ops = schedule.ops
    here = ops.device == account.device
    entries = np.array([label.entry == COMMUNICATION for label in account.labels.known], np.bool_)
    communicates = entries[account.labels.of_op] if len(ops) else np.zeros(0, np.bool_)
    work = np.flatnonzero(here & ~communicates)
    work = work[np.argsort(ops.start_ns[work], kind="stable")]
    busy = Intervals.from_arrays(ops.start_ns[work], ops.end_ns[work])
    row, start, end = _exposed(pieces, busy, schedule)
    if not len(row):
        return by_reason
    op = _ops_of(schedule, np.flatnonzero(here & communicates), own)
    after = np.searchsorted(ops.start_ns[work], start, side="left")
    following = np.append(work, NONE)[np.minimum(after, len(work))]
    host_ns, until = _host_part(schedule, account, following, start, end)
    # What runs on the CPU holds up the thread that launches until it is done.
    on_cpu = op[row] == NONE
    awaited = on_cpu & (until >= own["end_ns"].to_numpy()[row])
    column = {reason: at for at, reason in enumerate(REASONS)}
    spent = np.zeros((len(row), len(REASONS)), np.int64)
    for cause in IdleCause:
        reason = _reason(cause)
        into = np.where(awaited & (reason != ALLOCATION), column[DEPENDENCY], column[reason])
        np.add.at(spent, (np.arange(len(row)), into), host_ns[:, cause])
    same = (following != NONE) & ~on_cpu
    same &= ops.stream_id[following] == ops.stream_id[op[row]]
    queued = np.where(same, column[STREAM_ORDER], column[DEPENDENCY])
    queued = np.where(following == NONE, column[UNKNOWN], queued)
    np.add.at(spent, (np.arange(len(row)), queued), end - until)
    np.add.at(by_reason, row, spent)
    return _with_contention(schedule, by_reason, op, np.flatnonzero(here), busy)


def _reason(cause: IdleCause) -> str:
    if cause == IdleCause.ALLOCATING:
        return ALLOCATION
    if cause == IdleCause.UNKNOWN:
        return UNKNOWN
    return DEPENDENCY if cause in _HOST_WAITS else LATE_LAUNCH


def _exposed(
    pieces: CollectivePieces, busy: Intervals, schedule: GpuSchedule
) -> tuple[Ints, Ints, Ints]:
    """Cut pieces where compute and copies run; returns those parts in which none do."""
    window = np.array([schedule.start_ns, schedule.end_ns])
    cuts = distinct(window, pieces.start_ns, pieces.end_ns, busy.starts, busy.ends)
    cuts = cuts[(cuts >= window[0]) & (cuts <= window[1])]
    at = np.searchsorted(pieces.start_ns, cuts[:-1], side="right") - 1
    inside = (at >= 0) & (cuts[:-1] < np.append(pieces.end_ns, 0)[at])
    ran = np.searchsorted(busy.starts, cuts[:-1], side="right") - 1
    inside &= ~((ran >= 0) & (cuts[:-1] < np.append(busy.ends, 0)[ran]))
    return pieces.row[at[inside]], cuts[:-1][inside], cuts[1:][inside]


def _ops_of(schedule: GpuSchedule, communication: Ints, own: pl.DataFrame) -> Ints:
    """Return the GPU activity of each collective; `NONE` for one on the CPU."""
    starts = own["start_ns"].to_numpy()
    order = communication[np.argsort(schedule.ops.start_ns[communication], kind="stable")]
    if not len(order):
        return np.full(len(starts), NONE, np.int64)
    place = np.searchsorted(schedule.ops.start_ns[order], starts)
    op = order[np.minimum(place, len(order) - 1)]
    is_kernel = own["device"].is_not_null().to_numpy()
    exact = schedule.ops.start_ns[op] == starts
    return np.where(is_kernel & exact, op, NONE)


def _host_part(
    schedule: GpuSchedule, account: DeviceAccount, following: Ints, start: Ints, end: Ints
) -> tuple[Ints, Ints]:
    """Return what the host did until the next compute was launched, and until when."""
    ops, calls = schedule.ops, schedule.calls
    call = np.where(following == NONE, NONE, ops.call[following])
    carried = (following != NONE) & ops.carried[following]
    known = call != NONE
    returned = np.where(known, calls.end_ns[call] + _LATENCY_NS if len(calls) else end, end)
    returned = np.where(carried | (following == NONE), start, returned)
    until: Ints = np.clip(returned, start, end)
    thread = np.where(known, calls.host_thread[call] if len(calls) else NONE, NONE)
    return account.hosts.spent(thread, start, until), until


def _with_contention(
    schedule: GpuSchedule, by_reason: Ints, op: Ints, here: Ints, busy: Intervals
) -> Ints:
    """Give SM contention the part of the exposed time by which a collective started too late."""
    ops, calls = schedule.ops, schedule.calls
    rows = np.flatnonzero((op != NONE) & (ops.call[op] != NONE) & by_reason.any(axis=1))
    if not len(rows) or not len(calls):
        return by_reason
    call = ops.call[op[rows]]
    rows, call = rows[calls.kind[call] != CallKind.GRAPH], call[calls.kind[call] != CallKind.GRAPH]
    issued = np.where(ops.call[here] == NONE, schedule.start_ns, calls.start_ns[ops.call[here]])
    order = np.argsort(issued, kind="stable")
    done = np.maximum.accumulate(ops.end_ns[here][order])
    before = np.searchsorted(issued[order], calls.start_ns[call], side="left") - 1
    free = np.where(before >= 0, done[np.maximum(before, 0)], schedule.start_ns)
    ready = np.maximum(free, calls.end_ns[call] + _LATENCY_NS)
    start = ops.start_ns[op[rows]]
    late = np.maximum(0, start - ready)
    ran = _covered(busy, ready, start)
    contended = (late > _LATENCY_NS) & (ran >= _MIN_BUSY_SHARE * late)
    exposed = by_reason[rows].sum(axis=1)
    taken = np.where(contended, np.minimum(ran, exposed), 0)
    share = (exposed - taken) / np.maximum(1, exposed)
    kept = np.floor(by_reason[rows] * share[:, None]).astype(np.int64)
    kept[:, REASONS.index(SM_CONTENTION)] += exposed - kept.sum(axis=1)
    changed = by_reason.copy()
    changed[rows] = np.where(contended[:, None], kept, by_reason[rows])
    return changed


def _covered(busy: Intervals, starts: Ints, ends: Ints) -> Ints:
    """Return how long something runs from `starts` to `ends`."""
    total = np.concatenate(([0], np.cumsum(busy.ends - busy.starts)))

    def until(times: Ints) -> Ints:
        at = np.searchsorted(busy.starts, times, side="right")
        over = np.where(at > 0, np.maximum(0, np.append(busy.ends, 0)[at - 1] - times), 0)
        return np.asarray(total[at] - over, np.int64)

    covered: Ints = np.maximum(0, until(np.maximum(starts, ends)) - until(starts))
    return covered
