"""The compiled core computes what NumPy does, bit for bit."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpusight.analysis.attribution.nested_intervals import NestedIntervals
from gpusight.analysis.corrected_trace import _Knots, _moved_times
from gpusight.analysis.gpu_schedule import _outer_calls
from gpusight.analysis.ledger.device_ledger import DeviceAccount, DeviceGaps, DeviceSpans
from gpusight.analysis.ledger.host_threads import HostTime, _most_spent
from gpusight.analysis.ledger.idle_causes import _running_spent
from gpusight.analysis.ledger.ledger_entries import (
    ActivityPriority,
    EntryLabel,
    EntryLabels,
    IdleCause,
)
from gpusight.analysis.replay.simulation import CallWait, ReplayProgram, _simulated, run_program
from gpusight.core import native
from gpusight.core.library import core_status
from gpusight.trace.intervals import Intervals, _searched_inside
from gpusight.viewer import track_events

pytestmark = pytest.mark.skipif(
    core_status().library is None, reason=f"no compiled core: {core_status().reason}"
)
Span: TypeAlias = tuple[int, int, int]
TIMES = st.one_of(st.integers(0, 12), st.integers(0, 1 << 60))
SPANS = st.lists(
    st.tuples(TIMES, TIMES, st.integers(0, 2)).map(lambda s: (min(s[:2]), max(s[:2]), s[2])),
    max_size=40,
)


def columns(spans: list[Span]) -> list[np.ndarray]:
    """Give starts, ends and threads as columns."""
    return [np.array([span[i] for span in spans], np.int64) for i in range(3)]


@given(spans=SPANS)
def test_enclosing(spans: list[Span]) -> None:
    starts, ends, threads = columns(spans)
    nested = NestedIntervals.of(starts, ends, pl.Series(threads))
    assert nested.outer.tolist() == nested._outer().tolist()


@given(spans=SPANS, wanted=st.lists(st.tuples(TIMES, st.integers(0, 3)), max_size=40))
def test_innermost(spans: list[Span], wanted: list[tuple[int, int]]) -> None:
    starts, ends, threads = columns(spans)
    nested = NestedIntervals.of(starts, ends, pl.Series(threads))
    times, of_threads = (np.array([w[i] for w in wanted], np.int64) for i in range(2))
    found = nested.innermost(times, pl.Series(of_threads))
    if spans:
        assert (
            found.tolist()
            == nested._innermost(nested._codes(pl.Series(of_threads)), times).tolist()
        )
    # A deep stack of intervals that are over: the rest is searched.
    deep = [(0, 100 - i, 0) for i in range(50)]
    starts, ends, threads = columns(deep)
    nested = NestedIntervals.of(starts, ends, pl.Series(threads))
    assert nested.innermost(np.array([99, 50]), pl.Series([0, 0])).tolist() == [0, 49]


def test_innermost_refuses_positions_outside_of_buffers() -> None:
    three = np.arange(3)
    one, first = np.zeros(1, np.int64), np.array([0, 3])
    for outer, bounds in ((three, first), (three - 4, first), (three - 1, first + 1)):
        with pytest.raises(ValueError, match="out of bounds"):
            native.innermost((three, three, outer), bounds, one, one + 9)


@given(spans=SPANS)
def test_nested_lines(spans: list[Span]) -> None:
    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    starts, ends, _ = columns(ordered)
    crossing = any(
        first[0] < second[0] < first[1] < second[1] for first in ordered for second in ordered
    )
    lines = native.nested_lines(starts, ends)
    assert (lines is None) is crossing
    if lines is not None:
        assert lines.tolist() == track_events._lines(starts, ends).tolist()
    assert native.nested_lines(ends[::-1] + 1, starts[::-1]) is None or not spans


@given(spans=SPANS, in_order=st.booleans(), groups=st.integers(1, 3))
def test_group_lines(spans: list[Span], in_order: bool, groups: int) -> None:
    ordered = sorted(spans, key=lambda span: (span[0], -span[1])) if in_order else spans
    starts, ends, _ = columns(ordered)
    keys = pl.Series("key", [number % groups for number in range(len(spans))], dtype=pl.Int64)
    times = pl.DataFrame({"start_ns": starts, "end_ns": np.maximum(starts, ends)})
    events = times.with_columns(keys).with_row_index(track_events.EVENT)
    found = track_events.lay_out(events, ["key"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "group_lines", lambda *_: None)
        expected = track_events.lay_out(events, ["key"])
    assert found.event.tolist() == expected.event.tolist()
    assert found.lines.equals(expected.lines)
    assert found.lines.schema == expected.lines.schema


def test_group_lines_are_those_of_events_that_nest() -> None:
    starts, ends = np.array([0, 1, 2, 5, 5]), np.array([9, 3, 2, 8, 5])
    codes = np.zeros(5, np.int64)
    lines = native.group_lines(starts, ends, codes, 1)
    assert lines is not None
    assert lines.events.tolist() == [0, 1, 3, 2, 4]
    assert lines.events_of.tolist() == [1, 2, 2]
    assert lines.busy_ns.tolist() == [9, 5, 0]
    crossing = native.group_lines(starts, ends + np.array([0, 7, 0, 0, 0]), codes, 1)
    assert crossing is None
    for outside in (codes + 1, codes - 1):
        assert native.group_lines(starts, ends, outside, 1) is None
    assert native.group_lines(starts[::-1].copy(), ends[::-1].copy(), codes, 1) is None


def test_columns_of_other_lengths_or_kinds_are_refused() -> None:
    three, two = np.zeros(3, np.int64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="columns of 3 values"):
        native.enclosing(three, two, three)
    with pytest.raises(TypeError):
        native.enclosing(three, three, np.zeros(3))  # type: ignore[arg-type]
    strided = np.arange(6)[::2]
    assert native.enclosing(strided, strided + 1, three) is not None


RISING = st.lists(TIMES, max_size=40).map(sorted)


@given(values=RISING, times=st.one_of(RISING, st.lists(TIMES, max_size=40)), right=st.booleans())
def test_search(values: list[int], times: list[int], right: bool) -> None:
    rising, wanted = np.array(values, np.int64), np.array(times, np.int64)
    found = native.search(rising, wanted, right=right)
    assert found is not None
    side: Literal["left", "right"] = "right" if right else "left"
    assert found.tolist() == np.searchsorted(rising, wanted, side=side).tolist()


@given(spans=SPANS, times=st.lists(TIMES, max_size=40), right=st.booleans())
def test_inside(spans: list[Span], times: list[int], right: bool) -> None:
    united = Intervals.from_arrays(*columns(spans)[:2])
    wanted = np.array(times, np.int64)
    found = native.inside(united.starts, united.ends, wanted, right=right)
    assert found is not None
    expected = _searched_inside(united, wanted, "right" if right else "left")
    assert found.tolist() == expected.tolist()


@given(spans=SPANS, in_order=st.booleans())
def test_unite(spans: list[Span], in_order: bool) -> None:
    starts, ends, _ = columns(sorted(spans) if in_order else spans)
    starts, ends = (np.where(starts % 5 == 3, a, b) for a, b in ((ends, starts), (starts, ends)))
    expected = Intervals._united(starts, ends)
    assert Intervals.from_arrays(starts, ends) == expected
    found = native.unite(starts, ends)
    valid = starts[starts < ends]
    assert (found is None) == bool((valid[1:] < valid[:-1]).any())
    if found is not None:
        assert Intervals(*found) == expected


@st.composite
def host_times(draw: st.DrawFn) -> HostTime:
    """Draw what host threads spent: stretches of one cause, or of several as a replay has them."""
    columns = draw(st.integers(1, 3))
    threads, starts, ends, spent = [], [], [], []
    for thread in draw(st.lists(st.integers(0, 5), unique=True, max_size=3).map(sorted)):
        now = draw(st.integers(-5, 1 << 40))  # beyond 2**53, floats of NumPy round
        for parts in draw(st.lists(st.lists(st.integers(0, 9), max_size=columns), max_size=5)):
            row = [*parts, *[0] * (columns - len(parts))]
            now += draw(st.integers(0, 2))
            threads.append(thread)
            starts.append(now)
            now += sum(row)
            ends.append(now)
            spent.append(row)
    by_cause = np.zeros((len(threads), len(IdleCause)), np.int64)
    if spent:
        by_cause[:, draw(st.permutations(range(len(IdleCause))))[:columns]] = spent
    moments = [np.array(column, np.int64) for column in (threads, starts, ends)]
    return HostTime.of_stretches(moments[0], moments[1], moments[2], by_cause)


@st.composite
def spans_of_threads(draw: st.DrawFn, hosts: HostTime) -> list[np.ndarray]:
    """Draw host threads, starts and ends near the moments of these."""
    moments = st.sampled_from([*hosts.time_ns.tolist(), 0])
    time = st.builds(lambda moment, offset: moment + offset, moments, st.integers(-3, 9))
    rows = draw(st.lists(st.tuples(st.integers(-1, 6), time, time), max_size=20))
    return [np.array([row[i] for row in rows], np.int64) for i in range(3)]


@given(data=st.data(), hosts=host_times())
def test_host_spent(data: st.DataObject, hosts: HostTime) -> None:
    threads, starts, ends = data.draw(spans_of_threads(hosts))
    spent = native.host_spent(hosts.moments, threads, starts, ends)
    assert spent is not None
    assert spent.tolist() == hosts._spent(threads, starts, ends).tolist()
    assert (spent.sum(axis=1) == np.maximum(ends - starts, 0)).all()


@given(data=st.data(), hosts=host_times())
def test_ledger_sums(data: st.DataObject, hosts: HostTime) -> None:
    threads, starts, ends = data.draw(spans_of_threads(hosts))
    starts, ends = np.minimum(starts, ends), np.maximum(starts, ends)
    n = len(threads)
    column = st.lists(st.integers(-50, 50), min_size=n, max_size=n)
    busy = np.array(data.draw(column), np.int64) > 0
    launched = starts + np.array(data.draw(column), np.int64)
    part = np.array(data.draw(column), np.int64) % 3
    gap = np.where(busy, -1, np.cumsum(~busy) - 1)
    gaps = DeviceGaps(
        starts[~busy], threads[~busy], launched[~busy], part[~busy] == 1, threads[~busy]
    )
    known = tuple(EntryLabel(name, ActivityPriority.COMPUTE) for name in "ab")
    labels = EntryLabels(known, np.array([0, 1, 1], np.int64))
    spans = DeviceSpans(starts, ends, np.where(busy, np.abs(threads) % 3, -1), gap)
    account = DeviceAccount(0, spans, gaps, labels, hosts)
    assert account._sums(spans, part, 3).tolist() == account._summed(spans, part, 3).tolist()


def test_indexes_outside_of_buffers_are_refused() -> None:
    one, zero = np.ones(1, np.int64), np.zeros(1, np.int64)
    host = native.SpentMoments(zero, zero, zero, zero, zero, np.zeros((1, 1), np.int64), 2, 1)
    for wrong in (
        host._replace(first=2 * one),
        host._replace(last=one),
        host._replace(causes=-one),
    ):
        with pytest.raises(ValueError, match="out of bounds"):
            native.host_spent(wrong, zero, zero, one)
    with pytest.raises(ValueError, match="1 rows of 1 columns"):
        native.host_spent(host._replace(spent_ns=zero), zero, zero, one)
    gaps, spans = (zero, zero, zero), (zero, one, -one, zero, zero)
    assert native.ledger_sums(host, gaps, spans, 1, 1) is not None
    for at, value in ((2, one), (3, one), (4, one), (4, -one)):
        wrong_spans = (*spans[:at], value, *spans[at + 1 :])
        with pytest.raises(ValueError, match="out of bounds"):
            native.ledger_sums(host, gaps, wrong_spans, 1, 1)
    with pytest.raises(ValueError, match="out of bounds"):
        native.ledger_sums(host, (zero, zero, 2 * one), spans, 1, 1)


@st.composite
def programs(draw: st.DrawFn) -> ReplayProgram:
    """Draw a program: calls of a few threads that wait, activities of a few streams and GPUs."""
    n, m = draw(st.integers(0, 12)), draw(st.one_of(st.integers(0, 12), st.integers(100, 120)))
    seed = np.random.default_rng(draw(st.integers(0, 1 << 30)))

    def column(count: int, low: int, high: int) -> np.ndarray:
        return seed.integers(low, high, count, dtype=np.int64, endpoint=True)

    stream = column(m, 0, 3)
    devices = np.unique(stream % 2)
    wait = column(n, 0, 3) * column(n, 0, 1) if m else np.zeros(n, np.int64)
    target = column(n, 0, max(m - 1, 0))
    target = np.where(wait == CallWait.STREAM, target % (int(stream.max(initial=0)) + 1), target)
    on_device = wait == CallWait.DEVICE
    target[on_device] = seed.choice(devices, int(on_device.sum())) if m else 0
    none = np.zeros(n, np.bool_)
    return ReplayProgram(
        start_ns=draw(st.integers(0, 50)),
        end_ns=1_000,
        host_thread=column(n, 0, 2),
        gap_ns=column(n, -5, 20),
        movable_ns=column(n, 0, 0),
        own_ns=column(n, 0, 20),
        mergeable=none,
        mark=none,
        wait=wait,
        target=target,
        tail_ns=column(n, 0, 5),
        after_op=np.where(column(n, 0, 3) == 0, column(n, -1, m - 1), -1),
        after_ns=column(n, 0, 9),
        call=column(m, -1, n) if draw(st.booleans()) else np.sort(column(m, 0, n)),
        stream=stream,
        device=stream % 2,
        engine=stream,
        duration_ns=column(m, 0, 40),
        inside=np.ones(m),
        latency_base=column(m, 0, 3),
        latency_ns=column(m, 0, 60),
        stream_gap_ns=column(m, 0, 6),
        needs=np.where(column(m, 0, draw(st.sampled_from([3, 99]))) == 0, column(m, -1, m - 1), -1),
        needs_gap_ns=column(m, 0, 5),
        removed=column(m, 0, 5) == 0,
        trailing_ns=0,
        counted=~none,
    )


@given(program=programs())
def test_replay(program: ReplayProgram) -> None:
    timing = run_program(program)
    call_start, call_end, op_start, op_end = _simulated(program)
    assert timing.call_start_ns.tolist() == call_start.tolist()
    assert timing.call_end_ns.tolist() == call_end.tolist()
    assert timing.op_start_ns.tolist() == op_start.tolist()
    assert timing.op_end_ns.tolist() == op_end.tolist()


@given(data=st.data(), program=programs())
def test_replay_refuses_indexes_outside_of_buffers(
    data: st.DataObject, program: ReplayProgram
) -> None:
    calls, ops = ("host_thread", "after_op"), ("call", "stream", "needs")
    name = data.draw(st.sampled_from([*(calls if len(program.wait) else ()), *ops]))
    column = getattr(program, name).copy()
    if not len(column):
        return
    column[data.draw(st.integers(0, len(column) - 1))] = data.draw(
        st.sampled_from([1 << 62, 1 << 40] if name in ("after_op", "needs", "call") else [-2])
    )
    with pytest.raises(ValueError, match="out of bounds"):
        run_program(program.changed(**{name: column}))


@given(spans=SPANS)
def test_outer_calls(spans: list[Span]) -> None:
    starts, ends, threads = columns(sorted(spans))
    found = native.outer_calls(starts, ends, threads)
    assert found is not None
    outer, around = _outer_calls(starts, ends, threads)
    assert found[0].tolist() == outer.tolist()
    assert found[1].tolist() == around.tolist()


def test_outer_calls_refuses_threads_below_0() -> None:
    zero = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="out of bounds"):
        native.outer_calls(zero, zero, zero - 1)


MOMENTS = st.one_of(st.integers(-3, 12), st.integers(-(1 << 53), 1 << 53))


@given(
    knots=st.lists(st.tuples(MOMENTS, MOMENTS), min_size=1, max_size=20),
    times=st.lists(MOMENTS, max_size=20),
)
@example(knots=[(0, 1)], times=[1 << 53])  # floating point has no number for what comes out
def test_move_times(knots: list[tuple[int, int]], times: list[int]) -> None:
    before, after = (np.array(sorted(column), np.int64) for column in zip(*knots, strict=True))
    wanted = np.array(times, np.int64)
    moved = native.move_times(before, after, wanted)
    assert moved is not None
    assert moved.tolist() == _moved_times(_Knots(before, after), wanted).tolist()


@given(
    before=st.lists(TIMES, min_size=2, max_size=8),
    times=st.lists(TIMES, max_size=8),
)
def test_move_times_leaves_what_it_cannot_move(before: list[int], times: list[int]) -> None:
    moments = np.array(before, np.int64)  # in any order, and too large for floating point
    moved = native.move_times(moments, np.sort(moments), np.array(times, np.int64))
    assert moved is None or len(moved) == len(times)


def test_moved_times_between_two_moments_are_in_proportion() -> None:
    before, after = np.array([10, 20, 20, 40], np.int64), np.array([10, 15, 25, 35], np.int64)
    times = np.array([5, 10, 14, 20, 30, 40, 50], np.int64)
    moved = [5, 10, 12, 25, 30, 35, 45]
    compiled = native.move_times(before, after, times)
    assert compiled is not None
    assert compiled.tolist() == _moved_times(_Knots(before, after), times).tolist() == moved
    inside = np.interp(times[1:-1], before, after).astype(np.int64)
    assert compiled[1:-1].tolist() == inside.tolist()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.tuples(*[st.integers(0, 3) | st.sampled_from([-(2**63), 2**63 - 1])] * 3),
        ),
        max_size=12,
    )
)
def test_most_spent(moments: list[tuple[int, tuple[int, ...]]]) -> None:
    threads = np.array([thread for thread, _ in moments], np.int64)
    spent_ns = np.array([spent for _, spent in moments], np.int64).reshape(-1, 3)
    compiled = native.most_spent(threads, spent_ns)
    assert compiled is not None
    assert compiled.tolist() == _most_spent(threads, spent_ns).tolist()


@given(times=RISING, data=st.data())
def test_running_spent(times: list[int], data: st.DataObject) -> None:
    stretches = max(len(times) - 1, 0)
    column = data.draw(st.lists(st.integers(-1, 2), min_size=stretches, max_size=stretches))
    moments, columns = np.array(times, np.int64), np.array(column, np.int64)
    spent = native.running_spent(moments, columns, 3)
    assert spent is not None
    assert spent.tolist() == _running_spent(moments, columns, 3).tolist()
    if 2 in column:
        with pytest.raises(ValueError, match="out of bounds"):
            native.running_spent(moments, columns, 2)
