"""What holds for every ledger: it sums to the window, nothing is negative, order means nothing."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.analysis.ledger.device_ledger import account, build_ledger
from gpusight.analysis.ledger.idle_causes import HostTime, host_time
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.schedule_builder import build_schedule
from tests.traces import build_trace

_KERNELS = ("gemm", "softmax_warp_forward<float>", "ncclDevKernel_AllReduce", "my_kernel")
_CALLS = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaMalloc", "cuOther")
_COPIES = ("Host-to-Device", "Device-to-Host", "Device-to-Device")
_OS_CALLS = ("read", "nanosleep", "pthread_cond_wait", "ioctl")
_RANGES = ("data", "step_1", "forward")
_LONG = 5_000_000
Tables = dict[str, Any]


def _spans(names: tuple[str, ...], key: str, most: int, **columns: Any) -> st.SearchStrategy[Any]:
    """Draw rows of a table."""
    row = st.fixed_dictionaries(
        {"start": st.integers(0, _LONG), "length": st.integers(0, _LONG // 4)}
        | {key: st.sampled_from(names)}
        | {name: st.sampled_from(values) for name, values in columns.items()}
    )
    return st.lists(row.map(_row), max_size=most)


def _row(drawn: dict[str, Any]) -> dict[str, Any]:
    start, length = drawn.pop("start"), drawn.pop("length")
    return {"start_ns": start, "end_ns": start + length, **drawn}


@st.composite
def tables(draw: st.DrawFn) -> Tables:
    """Draw the tables of a capture; each piece of work has one call at most."""
    places = {"device": (0, 1), "stream": (7, 8)}
    found: Tables = {
        "kernels": draw(_spans(_KERNELS, "name", 8, **places)),
        "copies": draw(_spans(_COPIES, "kind", 3, **places)),
        "memsets": draw(_spans(("Device",), "memory_kind", 2, **places)),
        "ranges": draw(_spans(_RANGES, "name", 3, thread=(11, 12))),
        "os_calls": draw(_spans(_OS_CALLS, "name", 3, thread=(11, 12))),
        "cpu_ops": draw(_spans(("aten::mm", "aten::add"), "name", 3, thread=(11, 12))),
        "overheads": draw(_spans(("Buffer flush", "Module Loading"), "name", 2, thread=(11, 0))),
        "api_calls": draw(_spans(_CALLS, "name", 10, thread=(11, 12))),
        "threads": [{"thread": 11}, {"thread": 12}],
    }
    ids = draw(st.permutations(range(1, 14)))
    work = [*found["kernels"], *found["copies"], *found["memsets"]]
    for row, number in zip(work, ids, strict=False):
        row["correlation"] = number
    # Calls of one thread that begin at the same moment have no order that a capture could tell.
    distinct = {(row["thread"], row["start_ns"]): row for row in found["api_calls"]}
    found["api_calls"] = list(distinct.values())
    for number, row in enumerate(found["api_calls"], 1):
        row["correlation"] = number
    return found


def _ledger(found: Tables, start: int, end: int) -> dict[int, dict[str, int]]:
    trace = build_trace(**found)
    schedule = build_schedule(trace, start, end)
    made = build_ledger(schedule, host_time(trace, schedule))
    return {d.device: {e.entry: e.ns for e in d.entries} for d in made.devices}


windows = st.tuples(st.integers(0, _LONG), st.integers(1, _LONG)).map(lambda w: (w[0], sum(w)))


@given(tables(), windows)
@settings(max_examples=70, deadline=None)
def test_entries_sum_to_the_window_and_none_is_negative(
    found: Tables, window: tuple[int, int]
) -> None:
    for ledger in _ledger(found, *window).values():
        assert sum(ledger.values()) == window[1] - window[0]
        assert all(ns > 0 for ns in ledger.values())


@given(tables(), windows, st.integers(-(10**12), 10**12))
@settings(max_examples=30, deadline=None)
def test_shifting_time_changes_nothing(found: Tables, window: tuple[int, int], shift: int) -> None:
    moved = {name: [_shifted(row, shift) for row in rows] for name, rows in found.items()}
    assert _ledger(moved, window[0] + shift, window[1] + shift) == _ledger(found, *window)


def _shifted(row: dict[str, Any], shift: int) -> dict[str, Any]:
    return row | {key: row[key] + shift for key in ("start_ns", "end_ns") if key in row}


@given(tables(), windows, st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_of_rows_means_nothing(
    found: Tables, window: tuple[int, int], order: random.Random
) -> None:
    shuffled = {name: order.sample(rows, len(rows)) for name, rows in found.items()}
    assert _ledger(shuffled, *window) == _ledger(found, *window)


@given(tables(), windows, st.lists(st.integers(0, 2 * _LONG), max_size=4))
@settings(max_examples=50, deadline=None)
def test_parts_of_the_window_add_up_to_it(
    found: Tables, window: tuple[int, int], cuts: list[int]
) -> None:
    trace = build_trace(**found)
    schedule = build_schedule(trace, *window)
    inside = sorted({cut for cut in cuts if window[0] < cut < window[1]})
    bounds = np.array([window[0], *inside, window[1]], np.int64)
    for one in account(schedule, host_time(trace, schedule)):
        parts = one.between(bounds[:-1], bounds[1:])
        assert (parts >= 0).all()
        assert parts.sum(axis=1).tolist() == np.diff(bounds).tolist()
        whole = dict.fromkeys(one.names, 0) | {e.entry: e.ns for e in one.entries()}
        assert parts.sum(axis=0).tolist() == [whole[name] for name in one.names]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, len(IdleCause) - 1)), min_size=1, max_size=8
    ),
    st.lists(st.integers(0, 90), min_size=9, max_size=9),
    st.lists(st.integers(-20, 700), min_size=2, max_size=6),
)
@settings(max_examples=100, deadline=None)
def test_host_time_that_is_moved_still_sums_to_the_time(
    stretches: list[tuple[int, int]], lengths: list[int], asked: list[int]
) -> None:
    """A replay moves moments: whatever it asks, the causes sum to what it asked about."""
    length = np.array([n for n, _ in stretches], np.int64)
    ends = np.cumsum(length)
    by_cause = np.zeros((len(length), len(IdleCause)), np.int64)
    by_cause[np.arange(len(length)), [cause for _, cause in stretches]] = length
    lane = np.zeros(len(length), np.int64)
    hosts = HostTime.of_stretches(lane, ends - length, ends, by_cause)
    # Every other moment is moved, so that what lies between two has several causes.
    before = np.unique(np.append(0, ends[1::2]))
    after = np.cumsum(np.array(lengths[: len(before)], np.int64))
    moved = hosts.moved(np.zeros(len(before), np.int64), before, after)
    times = np.array(sorted(asked), np.int64)
    for one in (hosts, moved):
        spent = one.spent(np.zeros(len(times) - 1, np.int64), times[:-1], times[1:])
        assert (spent >= 0).all()
        assert spent.sum(axis=1).tolist() == np.diff(times).tolist()
