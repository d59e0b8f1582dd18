"""Which calls wait for the GPU, for what, and their own cost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.gpu_schedule import HOST_FUNCTION, NONE, QUEUE, CallKind, OpKind
from gpusight.analysis.launch_index import KeyIndex
from gpusight.analysis.replay.simulation import CallWait
from gpusight.analysis.replay.stream_dependencies import queues_of_streams, recorded_before

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.replay.simulation import Flags
    from gpusight.trace.intervals import Ints


_ONE_STREAM = re.compile(r"Stream|Event")
_ONE_EVENT = re.compile(r"Event")
_WAITING_FREE = re.compile(r"Free(?!Host|Async)")
_OWN_NS = 3_000
"""What a synchronising call costs that need not wait, where the capture shows none."""
_TAIL_NS = 5_000
_LAST_PIECE_NS = 50_000
_LOOK_BACK = 32
"""Pieces of work that are looked at for the one that a call waited for."""
_WIDE = 1 << 32
_FULL_QUEUE = 256
"""Launches wait for room in the queue of the driver, which holds some hundreds of them."""
_BLOCKED_LAUNCH_NS = 100_000
_SILENT_NS = 20_000
_RETURNS_WITHIN_NS = 200_000


@dataclass(frozen=True)
class CallWaits:
    """By position in `GpuSchedule.calls`, but for `inside`, by position in `GpuSchedule.ops`."""

    own_ns: Ints
    wait: Ints
    target: Ints
    tail_ns: Ints
    typical_tail_ns: Ints
    after_op: Ints
    after_ns: Ints
    silent_ns: Ints
    """Part of the time before a call in which the host waited for work, without any call."""
    inside: Flags
    """Work that ran while its call did: a copy that the call waits for."""


def find_waits(schedule: GpuSchedule) -> CallWaits:
    """Find the calls that wait and split their time into waiting and their own."""
    calls, ops = schedule.calls, schedule.ops
    finder = _Finder(schedule)
    finder.copies()
    finder.synchronisations()
    finder.full_queues()
    finder.silent()
    inside = np.zeros(len(ops), np.bool_)
    own_copy = np.flatnonzero((finder.wait == CallWait.OP) & np.isin(calls.kind, _MOVES))
    inside[finder.target[own_copy]] = True
    return CallWaits(
        finder.own,
        finder.wait,
        finder.target,
        finder.tail,
        finder.typical_tails(),
        finder.after_op,
        finder.after_ns,
        finder.silent_ns,
        inside,
    )


_MOVES = (CallKind.COPY, CallKind.FILL)


class _Finder:
    """Fills the arrays in, one reason to wait after the other."""

    def __init__(self, schedule: GpuSchedule) -> None:
        self.schedule = schedule
        self.calls, self.ops = schedule.calls, schedule.ops
        n = len(self.calls)
        self.own = self.calls.end_ns - self.calls.start_ns
        self.wait = np.full(n, int(CallWait.NOTHING), np.int64)
        self.target = np.full(n, NONE, np.int64)
        self.tail = np.zeros(n, np.int64)
        self.waited = np.zeros(n, np.bool_)
        """Calls that found what they wait for not yet done."""
        self.after_op = np.full(n, NONE, np.int64)
        self.after_ns = np.zeros(n, np.int64)
        self.silent_ns = np.zeros(n, np.int64)
        names = schedule.trace.table("api_calls", ["name"])["name"]
        codes = names.to_physical().to_numpy()
        self._names = names_of(names)
        self._code = np.where(self.calls.row >= 0, _taken(codes, self.calls.row), NONE)

    def named(self, pattern: re.Pattern[str]) -> Flags:
        """Tell which calls have a name that matches."""
        hits = [code for code, name in enumerate(self._names) if pattern.search(name)]
        return np.isin(self._code, hits)

    def copies(self) -> None:
        """A copy that ran while its call did, to the end: the call waited for it.

        Of pageable memory the call hands out the last piece, and may return just before it is over.
        """
        ops, calls = self.ops, self.calls
        moved = np.flatnonzero(np.isin(ops.kind, (OpKind.COPY, OpKind.FILL)) & (ops.call >= 0))
        call = ops.call[moved]
        early = np.where(self._pageable()[moved], _LAST_PIECE_NS, 0)
        ran = (ops.start_ns[moved] >= calls.start_ns[call]) & (
            ops.end_ns[moved] <= calls.end_ns[call] + early
        )
        moved, call = moved[ran], call[ran]
        self.wait[call], self.target[call] = CallWait.OP, moved
        self.tail[call] = calls.end_ns[call] - ops.end_ns[moved]
        self.waited[call] = True
        # Beside the wait the call only sets the copy up; until the work before the copy is done
        # it waits, too.
        began = np.maximum(calls.start_ns[call], self._before_in_queue()[moved])
        self.own[call] = np.minimum(self.own[call], ops.start_ns[moved] - began)

    def _pageable(self) -> Flags:
        """Tell which work copies from or to pageable memory of the host."""
        trace, ops = self.schedule.trace, self.ops
        found = np.zeros(len(ops), np.bool_)
        copies = np.flatnonzero(ops.kind == OpKind.COPY)
        if len(copies):
            kinds = trace.table("copies", ["src_kind", "dst_kind"])[ops.row[copies]]
            either = pl.any_horizontal(pl.all().cast(pl.String) == "Pageable")
            found[copies] = kinds.select(either.fill_null(value=False)).to_series().to_numpy()
        return found

    def _before_in_queue(self) -> Ints:
        """Give the end of the work that ran before each piece of work in its queue."""
        ops = self.ops
        order = np.lexsort((ops.start_ns, ops.queue))
        follows = ops.queue[order][1:] == ops.queue[order][:-1]
        before = np.full(len(ops), _NEVER, np.int64)
        ends = np.minimum(ops.end_ns[order][:-1], ops.start_ns[order][1:])
        before[order[1:]] = np.where(follows, ends, _NEVER)
        return before

    def synchronisations(self) -> None:
        """Synchronising calls, and frees that find the device busy."""
        if not len(self.ops):
            return
        kind = self.calls.kind
        sync = kind == CallKind.SYNC
        frees = (kind == CallKind.FREE) & self.named(_WAITING_FREE)
        one = sync & self.named(_ONE_STREAM)
        self._wait_for_device(np.flatnonzero((sync & ~one) | frees))
        self._wait_for_queue(np.flatnonzero(one))
        idle = sync & ~self.waited
        usual = int(np.median(self.own[idle])) if idle.any() else _OWN_NS
        waited = sync & self.waited
        self.own[waited] = np.minimum(self.own[waited], usual)
        # A free that waited does its own work afterwards: that is its tail.
        freed = frees & self.waited
        self.own[freed] = self.tail[freed]
        self._expect_tails(np.flatnonzero(idle & (self.wait != CallWait.NOTHING)), waited)

    def _expect_tails(self, rows: Ints, waited: Flags) -> None:
        """Give calls that need not wait the usual time to return, should they come to wait."""
        usual = int(np.median(self.tail[waited])) if waited.any() else _TAIL_NS
        self.tail[rows] = np.minimum(self.tail[rows], usual)

    def _wait_for_device(self, rows: Ints) -> None:
        """Wait for the GPU whose work, as far as it was issued, ended last before the call did."""
        best = np.full(len(rows), NONE, np.int64)
        done = np.full(len(rows), _NEVER, np.int64)
        for device in np.unique(self.ops.device):
            ended = self._latest(self.ops.device, np.full(len(rows), device), rows)
            fits = (ended <= self.calls.end_ns[rows]) & (ended >= done)
            best[fits], done[fits] = device, ended[fits]
        self._put(rows[best >= 0], CallWait.DEVICE, best[best >= 0], done[best >= 0])
        self._wait_for_work(rows[best < 0], np.full(np.count_nonzero(best < 0), NONE))

    def _wait_for_queue(self, rows: Ints) -> None:
        """Wait for the stream that the capture names, else for the one that ended last in time.

        An event may have been recorded long before, and a stream that is not done when the call
        returns was not waited for: then it waited for work that was done.
        """
        known = self._recorded_queues(rows)
        work = self._recorded_work(rows)
        likely = np.where(work >= 0, work, self._last_ended(rows, known))
        queue = np.where(known >= 0, known, np.where(likely >= 0, self.ops.queue[likely], NONE))
        done = self._latest(self.ops.queue, queue, rows)
        whole = ~self.named(_ONE_EVENT)[rows] & (queue >= 0) & (done <= self.calls.end_ns[rows])
        self._put(rows[whole], CallWait.QUEUE, queue[whole], done[whole])
        self._wait_for_work(rows[~whole], likely[~whole])

    def _wait_for_work(self, rows: Ints, work: Ints) -> None:
        """Wait for a piece of work, else for the last that had ended when the call returned."""
        work = np.where(work >= 0, work, self._last_ended(rows, np.full(len(rows), NONE)))
        has = work >= 0
        rows, work = rows[has], work[has]
        self._put(rows, CallWait.OP, work, self.ops.end_ns[work])

    def _latest(self, group: Ints, wanted: Ints, rows: Ints) -> Ints:
        """Give the latest end of work of a group (a queue, a GPU) issued before each call."""
        ops = self.ops
        order = np.lexsort((ops.call, group))
        issued = np.where(ops.call >= 0, ops.call + 1, 0)[order]
        keys = group[order] * _WIDE + issued
        at = np.searchsorted(keys, np.maximum(wanted, 0) * _WIDE + rows, side="right") - 1
        ends = _running_maximum(group[order], ops.end_ns[order])
        inside = np.maximum(at, 0)
        fits = (at >= 0) & (group[order][inside] == wanted)
        return np.where(fits, ends[inside], _NEVER)

    def _last_ended(self, rows: Ints, queue: Ints) -> Ints:
        """Find the work that ended last before each call returned, of those issued before it."""
        ops, found = self.ops, np.full(len(rows), NONE, np.int64)
        by_end = np.argsort(ops.end_ns, kind="stable")
        at = np.searchsorted(ops.end_ns[by_end], self.calls.end_ns[rows], side="right") - 1
        for _ in range(_LOOK_BACK):
            left = np.flatnonzero((found == NONE) & (at >= 0))
            if not len(left):
                break
            work = by_end[at[left]]
            fits = ops.call[work] < rows[left]
            fits &= (queue[left] == NONE) | (ops.queue[work] == queue[left])
            found[left[fits]] = work[fits]
            at[left] -= 1
        return found

    def _recorded_work(self, rows: Ints) -> Ints:
        """Give the work behind which the event was recorded that each call waits for."""
        return recorded_before(self.schedule, rows)

    def _recorded_queues(self, rows: Ints) -> Ints:
        """Give the queue that each call waited for, as the capture recorded it."""
        trace = self.schedule.trace
        queues = np.full(len(rows), NONE, np.int64)
        if not trace.has("syncs") or not len(rows) or not len(self.ops):
            return queues
        syncs = trace.table("syncs", ["correlation", *QUEUE])
        of_call = trace.table("api_calls", ["process", "correlation"])[self.calls.row[rows]]
        at = KeyIndex(syncs["process"], syncs["correlation"]).find(
            of_call["process"], of_call["correlation"]
        )
        found = np.flatnonzero(at >= 0)
        streams, known = syncs[at[found]].select(QUEUE), queues_of_streams(self.schedule)
        numbers = streams.join(known, on=QUEUE, how="left", maintain_order="left")["queue"]
        queues[found] = numbers.fill_null(NONE).to_numpy()
        return queues

    def _put(self, rows: Ints, wait: CallWait, target: Ints, done: Ints) -> None:
        """Note what calls wait for; `done` is when that had ended, as measured."""
        start, end = self.calls.start_ns[rows], self.calls.end_ns[rows]
        # What ended after the call returned was not waited for.
        right = done <= end
        rows, target, done = rows[right], target[right], done[right]
        start, end = start[right], end[right]
        self.wait[rows], self.target[rows] = wait, target
        self.waited[rows] = done > start
        self.tail[rows] = np.minimum(end - done, end - start)

    def full_queues(self) -> None:
        """Launches that took long with hundreds of others ahead of them waited for room."""
        ops, calls = self.ops, self.calls
        launch = np.isin(calls.kind, (CallKind.LAUNCH, CallKind.GRAPH)) & (self.wait == 0)
        long = launch & (self.own > _BLOCKED_LAUNCH_NS)
        rows = np.flatnonzero(long)
        if not len(rows) or not len(ops):
            return
        issued = np.searchsorted(np.sort(ops.call), rows)
        by_end = np.argsort(ops.end_ns, kind="stable")
        ends = ops.end_ns[by_end]
        pending = issued - np.searchsorted(ends, calls.start_ns[rows])
        last = np.searchsorted(ends, calls.end_ns[rows], side="right") - 1
        done = by_end[np.maximum(last, 0)]
        fits = (pending >= _FULL_QUEUE) & (last >= 0) & (ops.end_ns[done] > calls.start_ns[rows])
        fits &= ops.call[done] < rows
        rows, done = rows[fits], done[fits]
        usual = int(np.median(self.own[launch])) if launch.any() else _OWN_NS
        self.wait[rows], self.target[rows] = CallWait.OP, done
        self.tail[rows] = calls.end_ns[rows] - ops.end_ns[done]
        self.waited[rows] = True
        self.own[rows] = usual

    def silent(self) -> None:
        """Waits that no call shows: silence after a host function, until the work is done."""
        calls = self.calls
        if not len(self.ops) or not self.named(HOST_FUNCTION).any():
            return
        order = np.argsort(calls.lane, kind="stable")
        before, after = order[:-1], order[1:]
        quiet = (calls.lane[before] == calls.lane[after]) & (
            calls.start_ns[after] - calls.end_ns[before] >= _SILENT_NS
        )
        before, after = before[quiet], after[quiet]
        ends, which = self._latest_ended()
        done = ends[after]
        fits = (done > calls.end_ns[before]) & (done <= calls.start_ns[after])
        fits &= calls.start_ns[after] - done <= _RETURNS_WITHIN_NS
        before, after, done = before[fits], after[fits], done[fits]
        self.after_op[after] = which[after]
        self.after_ns[after] = calls.start_ns[after] - done
        self.silent_ns[after] = calls.start_ns[after] - calls.end_ns[before]

    def _latest_ended(self) -> tuple[Ints, Ints]:
        """Give for each call the latest end of work issued before it, and that work."""
        ops = self.ops
        order = np.lexsort((ops.end_ns, ops.call))
        running = np.maximum.accumulate(ops.end_ns[order])
        leads = np.where(ops.end_ns[order] == running, np.arange(len(order)), 0)
        leader = order[np.maximum.accumulate(leads)]
        at = np.searchsorted(ops.call[order], np.arange(len(self.calls))) - 1
        known = at >= 0
        safe = np.maximum(at, 0)
        return np.where(known, running[safe], _NEVER), np.where(known, leader[safe], NONE)

    def typical_tails(self) -> Ints:
        """Give each call that waited the median tail of its name."""
        typical = self.tail.copy()
        for code in np.unique(self._code[self.waited]):
            same = self.waited & (self._code == code)
            typical[same] = int(np.median(self.tail[same]))
        return typical


_NEVER = -(1 << 60)


def _running_maximum(group: Ints, values: Ints) -> Ints:
    """Give the largest value so far within each group; rows of a group lie together."""
    low = int(values.min())
    span = int(values.max()) - low + 1
    number = np.cumsum(np.concatenate(([0], group[1:] != group[:-1])))
    # Each group is lifted above the one before it, so that its maximum begins anew.
    lifted = np.maximum.accumulate(values - low + number * span)
    running: Ints = lifted - number * span + low
    return running


def _taken(values: Ints, rows: Ints) -> Ints:
    """Take rows of an array; any value where the row is `NONE`."""
    if not len(values):
        return np.full(len(rows), NONE, np.int64)
    taken: Ints = values[np.maximum(rows, 0)].astype(np.int64)
    return taken
