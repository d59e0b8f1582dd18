"""What calls and GPU activities of a schedule waited for, and what calls cost themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.gpu_schedule import HOST_FUNCTION, NONE, STREAM_KEY, CallKind, OpKind
from gpusight.analysis.launch_index import KeyIndex
from gpusight.analysis.replay.simulation import CallWait

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import GpuOps, GpuSchedule
    from gpusight.trace.intervals import Flags, Ints


NEVER = -(1 << 60)
"""Stands for an end before any time."""
_COLLECTIVE = re.compile(r"(?i)^(?:void )?[nr]ccl")
_ONE_STREAM = re.compile(r"Stream|Event")
_ONE_EVENT = re.compile(r"Event")
_WAITING_FREE = re.compile(r"Free(?!Host|Async)")
_OWN_NS = 3_000
"""What a synchronizing call costs that need not wait, where the capture shows none."""
WAIT_TAIL_NS = 5_000
"""How long after the work a wait for it returns, where the capture shows none."""
_LAST_CHUNK_NS = 50_000
_STAGED_BYTES = 65_536
"""Smaller copies from pageable memory are staged at once, and the call does not wait for them."""
_ASYNCHRONOUS = re.compile(r"Async")
_LOOK_BACK = 32
"""Activities that are looked at for the one that a call waited for."""
_WIDE = 1 << 32
_FULL_QUEUE = 256
"""Launches wait for room in the queue of the driver, which holds some hundreds of them."""
_BLOCKED_LAUNCH_NS = 100_000
_SILENT_NS = 20_000
_RETURNS_WITHIN_NS = 200_000
BLOCKING_KERNEL_NS = 20_000
"""Of a shorter kernel, the launch may return later than it ends without waiting for it."""
BLOCKING_SHARE = 0.9
"""Share of the launches of longer kernels that return after their kernel where launches block."""
BLOCKING_LAUNCHES = 20
"""Launches of such kernels; fewer prove nothing."""
AT_ONCE_NS = 5_000
"""An activity that started within this time after the end of another started because of it."""
_DRAINING_NS = 50_000
"""How long the last blocks of a kernel may run while blocks of another one have started."""


class CallWaits:
    """Which calls wait for the GPU and for what; their time split into waiting and their own.

    Arrays by position in `GpuSchedule.calls`, but for `inside`, by position in `GpuSchedule.ops`.
    """

    def __init__(self, schedule: GpuSchedule) -> None:
        self._schedule = schedule
        self._calls, self._ops = schedule.calls, schedule.ops
        count = len(self._calls)
        self.own_ns = self._calls.end_ns - self._calls.start_ns
        self.wait = np.full(count, int(CallWait.NOTHING), np.int64)
        self.target = np.full(count, NONE, np.int64)
        self.tail_ns = np.zeros(count, np.int64)
        self.after_op = np.full(count, NONE, np.int64)
        self.after_ns = np.zeros(count, np.int64)
        self.silent_ns = np.zeros(count, np.int64)
        """Part of the time before a call in which the host waited for the GPU, without any call."""
        self.inside = np.zeros(len(self._ops), np.bool_)
        """Activities that ran while their call did: copies that the call waits for."""
        self._waited = np.zeros(count, np.bool_)
        """Calls that found what they wait for not yet done."""
        names = schedule.trace.table("api_calls", ["name"])["name"]
        self._names = names_of(names)
        codes = names.to_physical().to_numpy().astype(np.int64)
        self._code = np.append(codes, NONE)[self._calls.row]
        self._find_blocking_copies()
        self._find_blocking_launches()
        if len(self._ops):
            self._find_synchronizations()
            self._find_full_queues()
            self._find_silent_waits()

    def _named(self, pattern: re.Pattern[str]) -> Flags:
        """Return which calls have a name that matches."""
        matching = [code for code, name in enumerate(self._names) if pattern.search(name)]
        return np.isin(self._code, matching)

    def typical_tail_ns(self) -> Ints:
        """Return the tails, of calls that waited the median of those of the same name."""
        typical = self.tail_ns.copy()
        for code in np.unique(self._code[self._waited]):
            same = self._waited & (self._code == code)
            typical[same] = int(np.median(self.tail_ns[same]))
        return typical

    # Copies that block ------------------------------------------------------------------------

    def _find_blocking_copies(self) -> None:
        """A copy that ran while its call did, to the end: the call waited for it.

        Of pageable memory the call hands out the last chunk, and may return just before it is done.
        Short copies of an idle GPU are often done before a call returns that waits for nothing:
        of copies that CUDA does not wait for, only a call has waited that spent most of its time,
        besides the copy's, while the GPU was not done with earlier work of the stream.
        """
        ops, calls = self._ops, self._calls
        copies = np.flatnonzero(np.isin(ops.kind, (OpKind.COPY, OpKind.MEMSET)) & (ops.call >= 0))
        call = ops.call[copies]
        pageable, asynchronous = self._copy_kinds(copies)
        early_ns = np.where(pageable & ~asynchronous, _LAST_CHUNK_NS, 0)
        ran = (ops.start_ns[copies] >= calls.start_ns[call]) & (
            ops.end_ns[copies] <= calls.end_ns[call] + early_ns
        )
        rest_ns = calls.end_ns[call] - calls.start_ns[call] - (ops.end_ns - ops.start_ns)[copies]
        queued = self._before_in_stream()[copies] > calls.start_ns[call] + rest_ns // 2
        self._wait_for_own(copies[ran & (queued | ~asynchronous)])

    def _find_blocking_launches(self) -> None:
        """Launches that return after their kernel, all of them: CUDA_LAUNCH_BLOCKING=1."""
        ops, calls = self._ops, self._calls
        launched = np.flatnonzero((ops.kind == OpKind.KERNEL) & (ops.call >= 0))
        launched = launched[calls.kind[ops.call[launched]] == CallKind.LAUNCH]
        call = ops.call[launched]
        inside = (ops.start_ns[launched] >= calls.start_ns[call]) & (
            ops.end_ns[launched] <= calls.end_ns[call]
        )
        long = ops.end_ns[launched] - ops.start_ns[launched] >= BLOCKING_KERNEL_NS
        if np.count_nonzero(long) >= BLOCKING_LAUNCHES and inside[long].mean() >= BLOCKING_SHARE:
            self._wait_for_own(launched[inside])

    def _wait_for_own(self, ran: Ints) -> None:
        """Note that the calls of these activities waited for them."""
        ops, calls = self._ops, self._calls
        call = ops.call[ran]
        self.wait[call], self.target[call] = CallWait.OP, ran
        issuing = (CallKind.COPY, CallKind.MEMSET, CallKind.LAUNCH)
        self.inside[self.target[call]] = np.isin(calls.kind[call], issuing)
        self.tail_ns[call] = calls.end_ns[call] - ops.end_ns[ran]
        self._waited[call] = True
        # Besides the wait the call only sets the activity up; until the one before it is done it
        # waits, too.
        set_up_from = np.maximum(calls.start_ns[call], self._before_in_stream()[ran])
        self.own_ns[call] = np.minimum(self.own_ns[call], ops.start_ns[ran] - set_up_from)

    def _copy_kinds(self, copies: Ints) -> tuple[Flags, Flags]:
        """Return which copies use pageable memory of the host, and which CUDA does not wait for.

        These are copies on the GPU, small ones from pageable memory, and those of pinned memory by
        a call that is asynchronous by name.
        """
        ops = self._ops
        pageable, asynchronous = (np.zeros(len(copies), np.bool_) for _ in range(2))
        at = np.flatnonzero(ops.kind[copies] == OpKind.COPY)
        if not len(at):
            return pageable, asynchronous
        table = self._schedule.trace.table("copies", ["kind", "bytes", "src_kind", "dst_kind"])
        both = [pl.col(side).cast(pl.String) for side in ("src_kind", "dst_kind")]
        way, small = pl.col("kind").cast(pl.String), pl.col("bytes") < _STAGED_BYTES
        facts = table[ops.row[copies[at]]].select(
            pl.any_horizontal(side == "Pageable" for side in both).alias("pageable"),
            pl.any_horizontal(side == "Pinned" for side in both).alias("pinned"),
            (way == "Device-to-Device").alias("on_gpu"),
            ((way == "Host-to-Device") & small).alias("staged"),
        )
        facts = facts.select(pl.all().fill_null(value=False))
        by_name = self._named(_ASYNCHRONOUS)[ops.call[copies[at]]]
        pageable[at] = facts["pageable"].to_numpy()
        asynchronous[at] = (
            facts["on_gpu"].to_numpy()
            | (facts["pageable"] & facts["staged"]).to_numpy()
            | ((facts["pinned"] & ~facts["pageable"]).to_numpy() & by_name)
        )
        return pageable, asynchronous

    def _before_in_stream(self) -> Ints:
        """Return the end of the activity that ran before each in its stream."""
        ops = self._ops
        order = np.lexsort((ops.start_ns, ops.stream_id))
        before, after = order[:-1], order[1:]
        ends = np.full(len(ops), NEVER, np.int64)
        follows = ops.stream_id[before] == ops.stream_id[after]
        before, after = before[follows], after[follows]
        ends[after] = np.minimum(ops.end_ns[before], ops.start_ns[after])
        return ends

    # Synchronizing calls ----------------------------------------------------------------------

    def _find_synchronizations(self) -> None:
        """Synchronizing calls, and frees that find the device busy."""
        kind = self._calls.kind
        sync = kind == CallKind.SYNC
        frees = (kind == CallKind.FREE) & self._named(_WAITING_FREE)
        one_stream = sync & self._named(_ONE_STREAM)
        self._wait_for_device(np.flatnonzero((sync & ~one_stream) | frees))
        self._wait_for_stream(np.flatnonzero(one_stream))
        idle = sync & ~self._waited
        usual_ns = int(np.median(self.own_ns[idle])) if idle.any() else _OWN_NS
        waited = sync & self._waited
        self.own_ns[waited] = np.minimum(self.own_ns[waited], usual_ns)
        # A free that waited does its own work afterwards: that is its tail.
        freed = frees & self._waited
        self.own_ns[freed] = self.tail_ns[freed]
        # Calls that need not wait get the usual time to return, should they come to wait.
        rows = np.flatnonzero(idle & (self.wait != CallWait.NOTHING))
        usual_ns = int(np.median(self.tail_ns[waited])) if waited.any() else WAIT_TAIL_NS
        self.tail_ns[rows] = np.minimum(self.tail_ns[rows], usual_ns)

    def _wait_for_device(self, rows: Ints) -> None:
        """Wait for the GPU whose activities issued so far ended last before the call did."""
        best = np.full(len(rows), NONE, np.int64)
        done_ns = np.full(len(rows), NEVER, np.int64)
        for device in np.unique(self._ops.device):
            end_ns = self._latest_end(self._ops.device, np.full(len(rows), device), rows)
            fits = (end_ns <= self._calls.end_ns[rows]) & (end_ns >= done_ns)
            best[fits], done_ns[fits] = device, end_ns[fits]
        known = best >= 0
        self._set_waits(rows[known], CallWait.DEVICE, best[known], done_ns[known])
        self._wait_for_op(rows[~known], np.full(np.count_nonzero(~known), NONE))

    def _wait_for_stream(self, rows: Ints) -> None:
        """Wait for the stream that the capture names, else for the one that ended last in time.

        An event may have been recorded long before, and a stream that is not done when the call
        returns was not waited for: then it waited for an activity that was done.
        """
        recorded = self._recorded_streams(rows)
        op = _recorded_before(self._schedule, rows)
        op = np.where(op >= 0, op, self._last_ended(rows, recorded))
        likely = np.where(op >= 0, self._ops.stream_id[op], NONE)
        stream = np.where(recorded >= 0, recorded, likely)
        done_ns = self._latest_end(self._ops.stream_id, stream, rows)
        all_of_it = ~self._named(_ONE_EVENT)[rows] & (stream >= 0)
        all_of_it &= done_ns <= self._calls.end_ns[rows]
        self._set_waits(rows[all_of_it], CallWait.STREAM, stream[all_of_it], done_ns[all_of_it])
        self._wait_for_op(rows[~all_of_it], op[~all_of_it])

    def _wait_for_op(self, rows: Ints, op: Ints) -> None:
        """Wait for an activity, else for the last that had ended when the call returned."""
        op = np.where(op >= 0, op, self._last_ended(rows, np.full(len(rows), NONE)))
        rows, op = rows[op >= 0], op[op >= 0]
        self._set_waits(rows, CallWait.OP, op, self._ops.end_ns[op])

    def _set_waits(self, rows: Ints, wait: CallWait, target: Ints, done_ns: Ints) -> None:
        """Note what calls wait for; `done_ns` is when that had ended, as measured."""
        # What ended after the call returned was not waited for.
        fits = done_ns <= self._calls.end_ns[rows]
        rows, target, done_ns = rows[fits], target[fits], done_ns[fits]
        start, end = self._calls.start_ns[rows], self._calls.end_ns[rows]
        self.wait[rows], self.target[rows] = wait, target
        self._waited[rows] = done_ns > start
        self.tail_ns[rows] = np.minimum(end - done_ns, end - start)

    def _latest_end(self, group: Ints, wanted: Ints, rows: Ints) -> Ints:
        """Return the latest end of what a group (stream, GPU) was issued before each call."""
        ops = self._ops
        order = np.lexsort((ops.call, group))
        issued = np.where(ops.call >= 0, ops.call + 1, 0)[order]
        keys = group[order] * _WIDE + issued
        at = np.searchsorted(keys, np.maximum(wanted, 0) * _WIDE + rows, side="right") - 1
        ends = _running_maximum(group[order], ops.end_ns[order])
        fits = (at >= 0) & (group[order][at] == wanted)
        return np.where(fits, ends[at], NEVER)

    def _last_ended(self, rows: Ints, stream: Ints) -> Ints:
        """Return the activity that ended last before each call returned, of those issued before."""
        ops, last = self._ops, np.full(len(rows), NONE, np.int64)
        by_end = np.argsort(ops.end_ns, kind="stable")
        at = np.searchsorted(ops.end_ns[by_end], self._calls.end_ns[rows], side="right") - 1
        for _ in range(_LOOK_BACK):
            open_ = np.flatnonzero((last == NONE) & (at >= 0))
            if not len(open_):
                break
            op = by_end[at[open_]]
            fits = ops.call[op] < rows[open_]
            fits &= (stream[open_] == NONE) | (ops.stream_id[op] == stream[open_])
            last[open_[fits]] = op[fits]
            at[open_] -= 1
        return last

    def _recorded_streams(self, rows: Ints) -> Ints:
        """Return the stream that each call waited for, as the capture recorded it."""
        trace = self._schedule.trace
        streams = np.full(len(rows), NONE, np.int64)
        if not trace.has("syncs") or not len(rows):
            return streams
        syncs = trace.table("syncs", ["correlation", *STREAM_KEY])
        of_call = trace.table("api_calls", ["process", "correlation"])[self._calls.row[rows]]
        index = KeyIndex(syncs["process"], syncs["correlation"])
        at = index.find(of_call["process"], of_call["correlation"])
        known = np.flatnonzero(at >= 0)
        numbers = (
            syncs[at[known]]
            .select(STREAM_KEY)
            .join(ids_of_streams(self._schedule), on=STREAM_KEY, how="left", maintain_order="left")
        )
        streams[known] = numbers["stream_id"].fill_null(NONE).to_numpy()
        return streams

    # Waits that no synchronizing call shows ---------------------------------------------------

    def _find_full_queues(self) -> None:
        """Launches that took long with hundreds of others ahead of them waited for room."""
        ops, calls = self._ops, self._calls
        launch = np.isin(calls.kind, (CallKind.LAUNCH, CallKind.GRAPH)) & (self.wait == 0)
        rows = np.flatnonzero(launch & (self.own_ns > _BLOCKED_LAUNCH_NS))
        if not len(rows):
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
        usual_ns = int(np.median(self.own_ns[launch]))
        self.wait[rows], self.target[rows] = CallWait.OP, done
        self.tail_ns[rows] = calls.end_ns[rows] - ops.end_ns[done]
        self._waited[rows] = True
        self.own_ns[rows] = usual_ns

    def _find_silent_waits(self) -> None:
        """Silence after a host function (JAX), until what was issued is done."""
        calls = self._calls
        if not self._named(HOST_FUNCTION).any():
            return
        order = np.argsort(calls.host_thread, kind="stable")
        before, after = order[:-1], order[1:]
        silence_ns = calls.start_ns[after] - calls.end_ns[before]
        quiet = (calls.host_thread[before] == calls.host_thread[after]) & (silence_ns >= _SILENT_NS)
        before, after, silence_ns = before[quiet], after[quiet], silence_ns[quiet]
        done_ns, op = self._last_to_end(after)
        since_ns = calls.start_ns[after] - done_ns
        fits = (since_ns < silence_ns) & (since_ns >= 0) & (since_ns <= _RETURNS_WITHIN_NS)
        after = after[fits]
        self.after_op[after] = op[fits]
        self.after_ns[after] = since_ns[fits]
        self.silent_ns[after] = silence_ns[fits]

    def _last_to_end(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the latest end of what was issued before each call, and that activity."""
        ops = self._ops
        order = np.lexsort((ops.end_ns, ops.call))
        running = np.maximum.accumulate(ops.end_ns[order])
        leads = np.where(ops.end_ns[order] == running, np.arange(len(order)), 0)
        leader = order[np.maximum.accumulate(leads)]
        at = np.searchsorted(ops.call[order], rows) - 1
        return np.where(at >= 0, running[at], NEVER), np.where(at >= 0, leader[at], NONE)


def _running_maximum(group: Ints, values: Ints) -> Ints:
    """Return the largest value so far within each group; rows of a group lie together."""
    low = int(values.min())
    span = int(values.max()) - low + 1
    number = np.cumsum(np.diff(group, prepend=group[0]) != 0)
    # Each group is lifted above the one before it, so that its maximum begins anew.
    lifted = np.maximum.accumulate(values - low + number * span)
    running: Ints = lifted - number * span + low
    return running


# Waits between streams ----------------------------------------------------------------------------


def waits_between_streams(schedule: GpuSchedule, late: Flags) -> tuple[Ints, Ints]:
    """Return for each GPU activity the one of another stream it depends on, and the time since.

    The time is at most that after which an end lets another activity start: what came later waited
    for something else, such as its launch by a thread that another rank kept waiting.
    """
    ops = schedule.ops
    gap_ns = np.zeros(len(ops), np.int64)
    if len(np.unique(ops.stream_id)) < 2:
        return np.full(len(ops), NONE, np.int64), gap_ns
    by_event, by_time = _by_events(schedule), _by_end_time(schedule, late)
    # What started before the other ended did not wait for it, whatever the events seem to say.
    by_event[(by_event >= 0) & (ops.start_ns < ops.end_ns[by_event])] = NONE
    needs = np.where(by_time >= 0, by_time, by_event)
    if not (schedule.calls.kind == CallKind.WAIT_EVENT).any():
        needs = np.where(needs >= 0, needs, _by_order(schedule))
    known = needs >= 0
    gap_ns[known] = ops.start_ns[known] - ops.end_ns[needs[known]]
    return needs, np.minimum(gap_ns, AT_ONCE_NS)


def _by_end_time(schedule: GpuSchedule, late: Flags) -> Ints:
    """Find the activity of another stream of the GPU whose end let late ones start.

    It ended just before; or its last blocks were still running, when room was made by its others.
    """
    ops = schedule.ops
    needs = np.full(len(ops), NONE, np.int64)
    rows = np.flatnonzero(late)
    by_end = np.argsort(ops.end_ns, kind="stable")
    at = np.searchsorted(ops.end_ns[by_end], ops.start_ns[rows], side="right")
    # The nearest end may be of the same stream or of another GPU: look a little further.
    for step in (-1, -2, -3, -4, 0, 1, 2, 3):
        near = np.clip(at + step, 0, len(by_end) - 1)
        other = by_end[near]
        since_ns = ops.start_ns[rows] - ops.end_ns[other]
        both_kernels = (ops.kind[other] == OpKind.KERNEL) & (ops.kind[rows] == OpKind.KERNEL)
        fits = (
            (near == at + step)
            & (needs[rows] == NONE)
            & (ops.stream_id[other] != ops.stream_id[rows])
            & (ops.device[other] == ops.device[rows])
            & (since_ns <= AT_ONCE_NS)
            & (since_ns >= np.where(both_kernels, -_DRAINING_NS, 0))
            & (ops.start_ns[other] < ops.start_ns[rows])
            # Only what was issued before can be waited for.
            & (ops.call[other] >= 0)
            & (ops.call[other] < ops.call[rows])
        )
        needs[rows[fits]] = other[fits]
    return needs


def _by_order(schedule: GpuSchedule) -> Ints:
    """Keep the order of communication and other work where a capture leaves out all waits.

    Streams of collectives wait for events and are waited for. Of what ran before an activity, the
    last to end of the other kind is what it may have waited for.
    """
    ops = schedule.ops
    needs = np.full(len(ops), NONE, np.int64)
    names = schedule.trace.table("kernels", ["name"])["name"]
    codes = [c for c, name in enumerate(names_of(names)) if _COLLECTIVE.search(name)]
    collective = ops.kind == OpKind.KERNEL
    rows = ops.row[collective]
    collective[collective] = np.isin(names.to_physical().to_numpy()[rows], codes)
    for kind in (True, False):
        own, others = np.flatnonzero(collective == kind), np.flatnonzero(collective != kind)
        if not len(own) or not len(others):
            continue
        by_end = others[np.argsort(ops.end_ns[others], kind="stable")]
        at = np.searchsorted(ops.end_ns[by_end], ops.start_ns[own], side="right") - 1
        before = by_end[np.maximum(at, 0)]
        fits = (at >= 0) & (ops.call[before] >= 0) & (ops.call[before] < ops.call[own])
        fits &= (ops.device[before] == ops.device[own]) & (
            ops.stream_id[before] != ops.stream_id[own]
        )
        needs[own[fits]] = before[fits]
    return needs


def _by_events(schedule: GpuSchedule) -> Ints:
    """Follow events from where they were recorded to the stream that was made to wait."""
    ops = schedule.ops
    needs = np.full(len(ops), NONE, np.int64)
    if _has_events(schedule):
        calls = np.flatnonzero(schedule.calls.kind == CallKind.WAIT_EVENT)
        pairs = _event_pairs(schedule, calls)
        recorded = _issued_before(ops, pairs["stream_id_recorded"], pairs["record_call"])
        waiting = _issued_after(ops, pairs["stream_id"], pairs["call"])
        both = (recorded >= 0) & (waiting >= 0)
        needs[waiting[both]] = recorded[both]
    return needs


def _recorded_before(schedule: GpuSchedule, calls: Ints) -> Ints:
    """Return the last activity before the record of the event that each call waits for."""
    op = np.full(len(calls), NONE, np.int64)
    if _has_events(schedule):
        pairs = _event_pairs(schedule, calls)
        at = np.searchsorted(calls, pairs["call"].to_numpy())
        op[at] = _issued_before(schedule.ops, pairs["stream_id_recorded"], pairs["record_call"])
    return op


def _has_events(schedule: GpuSchedule) -> bool:
    trace = schedule.trace
    return trace.has("event_records") and trace.has("syncs") and trace.has("syncs", "event")


def _event_pairs(schedule: GpuSchedule, calls: Ints) -> pl.DataFrame:
    """Join calls that wait for an event to the last record of that event before them."""
    rows = schedule.trace.table("api_calls", ["process", "correlation"])
    index = KeyIndex(rows["process"], rows["correlation"])
    position = np.full(rows.height + 1, NONE, np.int64)
    called = schedule.calls.row >= 0
    position[schedule.calls.row[called]] = np.flatnonzero(called)
    streams = ids_of_streams(schedule)
    columns = ["device", "process", "context", "stream", "correlation", "event"]

    def events(table: str) -> pl.DataFrame:
        """Events with the call that recorded or awaited them and the number of their stream."""
        frame = schedule.trace.table(table, columns)
        call = position[index.find(frame["process"], frame["correlation"])]
        frame = frame.with_columns(pl.Series("call", call))
        frame = frame.filter(pl.col("call") >= 0).drop_nulls("event")
        return frame.join(streams, on=STREAM_KEY, how="left")

    waits = events("syncs").filter(pl.col("call").is_in(pl.Series(calls).implode()))
    pairs = waits.sort("call").join_asof(
        events("event_records").sort("call").with_columns(record_call="call"),
        on="call",
        by=["process", "event"],
        suffix="_recorded",
        check_sortedness=False,
    )
    return pairs.drop_nulls("stream_id_recorded").unique("call", keep="last", maintain_order=True)


def ids_of_streams(schedule: GpuSchedule) -> pl.DataFrame:
    """Return the CUDA stream of each `stream_id` that did anything."""
    ops, trace = schedule.ops, schedule.trace
    parts = []
    for kind in OpKind:
        of_kind = ops.kind == kind
        if of_kind.any():
            frame = trace.table(kind.table, STREAM_KEY)[ops.row[of_kind]]
            parts.append(frame.with_columns(pl.Series("stream_id", ops.stream_id[of_kind])))
    streams: pl.DataFrame = pl.concat(parts).unique()
    return streams


def _issued_before(ops: GpuOps, streams: pl.Series, calls: pl.Series) -> Ints:
    """Return the last activity issued on a stream before a call, or `NONE`."""
    return _issued_next_to(ops, streams, calls, "left", -1)


def _issued_after(ops: GpuOps, streams: pl.Series, calls: pl.Series) -> Ints:
    """Return the first activity issued on a stream after a call, or `NONE`."""
    return _issued_next_to(ops, streams, calls, "right", 0)


def _issued_next_to(
    ops: GpuOps, streams: pl.Series, calls: pl.Series, side: Literal["left", "right"], offset: int
) -> Ints:
    stream = streams.fill_null(NONE).to_numpy().astype(np.int64)
    order = np.lexsort((ops.call, ops.stream_id))
    keys = ops.stream_id[order] * _WIDE + ops.call[order]
    at = np.searchsorted(keys, stream * _WIDE + calls.to_numpy(), side=side) + offset
    # `NONE` stands behind the last, which is also where -1 leads.
    op = np.append(order, NONE)[at]
    return np.where((op >= 0) & (ops.stream_id[op] == stream), op, NONE)
