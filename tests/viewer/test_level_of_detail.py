"""What a line or a series shows of any stretch, against a loop over events and bins."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.viewer import level_of_detail
from gpusight.viewer.level_of_detail import EventLine, SampledValues

# What a line answers about any stretch, against a loop over events and bins.


class Event(NamedTuple):
    """An event of a line."""

    start: int
    end: int
    color: int

    def inside(self, start: int, end: int) -> int:
        """Measure what of it lies in [start, end)."""
        return max(0, min(self.end, end) - max(self.start, start))

    def touches(self, start: int, end: int) -> bool:
        """Say whether some of it lies in [start, end); an instant does where it is in there."""
        if self.start == self.end:
            return start <= self.start < end
        return self.inside(start, end) > 0


Row = tuple[int, int, int, int]


@st.composite
def lines(draw: st.DrawFn) -> list[Event]:
    """Events that follow each other, some at once, some instants; few colors or many."""
    colors = st.integers(0, draw(st.sampled_from([0, 2, 255])))
    gap, length = st.integers(0, 4), st.integers(0, draw(st.sampled_from([1, 9, 90])))
    time, events = draw(st.integers(-20, 20)), []
    for pause, lasts, color in draw(st.lists(st.tuples(gap, length, colors), max_size=30)):
        events.append(Event(time + pause, time + pause + lasts, color))
        time += pause + lasts
    return events


windows = st.tuples(st.integers(-60, 150), st.integers(1, 300))
"""Start and width; a stretch may lie beside all events, within one, or around all."""
parts = st.integers(1, 24)
leasts = st.integers(1, 70)


def line_of(events: list[Event]) -> EventLine:
    table = np.array(events, np.int64).reshape(-1, 3)
    return EventLine.of(table[:, 0], table[:, 1], table[:, 2].astype(np.uint8))


def edges_of(window: tuple[int, int], bins: int) -> list[int]:
    """Cut a stretch as `Window` does: more bins than nanoseconds leave some without width."""
    start, width = window
    return [start + part * width // bins for part in range(bins + 1)]


def bin_row(events: list[Event], start: int, end: int) -> tuple[int, int, int]:
    """Sum up a bin: busy time, events that begin in it, and its color (-1 where it has none)."""
    busy: Counter[int] = Counter()
    for event in events:
        busy[event.color] += event.inside(start, end)
    begins = [event.color for event in events if start <= event.start < end]
    most = max(busy.values(), default=0)
    color = min(c for c, ns in busy.items() if ns == most) if most else (begins or [-1])[0]
    return busy.total(), len(begins), color


def bins_of(line: EventLine, edges: list[int], least: int) -> list[Row]:
    bins = line.bins(np.array(edges, np.int64), least)
    columns = (bins.bin, bins.busy_ns, bins.count, bins.color)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@settings(deadline=None)
@given(lines(), windows, leasts)
def test_slices(events: list[Event], window: tuple[int, int], least: int) -> None:
    start, end = window[0], window[0] + window[1]
    assert line_of(events).slices(start, end, least).tolist() == [
        position
        for position, event in enumerate(events)
        if event.touches(start, end) and event.end - event.start >= least
    ]


@settings(deadline=None)
@given(lines(), windows, parts, leasts, st.sampled_from([1, 2, 64]))
def test_bins(
    events: list[Event], window: tuple[int, int], bins: int, least: int, block: int
) -> None:
    edges = edges_of(window, bins)
    narrow = [event for event in events if event.end - event.start < least]
    rows = [bin_row(narrow, *edges[k : k + 2]) for k in range(bins)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(level_of_detail, "_MIN_BLOCK", block)
        answer = bins_of(line_of(events), edges, least)
    assert answer == [(k, *row) for k, row in enumerate(rows) if row[:2] != (0, 0)]


@settings(deadline=None)
@given(lines(), windows, parts)
def test_busy(events: list[Event], window: tuple[int, int], bins: int) -> None:
    edges = edges_of(window, bins)
    assert line_of(events).busy_ns(np.array(edges, np.int64)).tolist() == [
        sum(event.inside(*edges[k : k + 2]) for event in events) for k in range(bins)
    ]


@settings(deadline=None)
@given(lines(), windows)
def test_sums(events: list[Event], window: tuple[int, int]) -> None:
    start, end = window[0], window[0] + window[1]
    inside, count = line_of(events).sums(start, end)
    assert len(inside) == len(count) == 256
    for color in range(256):
        alike = [event for event in events if event.color == color]
        assert inside[color] == sum(event.inside(start, end) for event in alike)
        assert count[color] == sum(event.touches(start, end) for event in alike)


@settings(deadline=None)
@given(lines(), st.integers(-40, 200), st.integers(0, 30))
def test_at(events: list[Event], time: int, within: int) -> None:
    result = line_of(events).at(time, within)
    away = [max(event.start - time, time - event.end, 0) for event in events]
    if min(away, default=within + 1) > within:
        assert result is None
        return
    assert result is not None
    assert away[result] == min(away)
    holds = [position for position, event in enumerate(events) if event.touches(time, time + 1)]
    assert not holds or result in holds


@pytest.mark.parametrize("colors", [1, 3, 40])
def test_few_bins_over_many_events(colors: int) -> None:
    # More events than are added up one by one: sums of whole blocks, and what is left of them.
    chance, time, events = Random(colors), 0, []
    for _ in range(3_000):
        start = time + chance.choice((0, 0, 5))
        time = start + chance.choice((0, 1, 30, 700))
        events.append(Event(start, time, chance.randrange(colors)))
    line = line_of(events)
    for window in ((0, time), (time // 3, time // 2), (-500, 2 * time)):
        edges = edges_of(window, 3)
        narrow = [event for event in events if event.end - event.start < 500]
        rows = [bin_row(narrow, *edges[k : k + 2]) for k in range(3)]
        assert bins_of(line, edges, 500) == [
            (k, *row) for k, row in enumerate(rows) if any(row[:2])
        ]


def test_slices_and_bins_together_are_everything() -> None:
    events = [Event(at * 10, at * 10 + at % 11, at % 5) for at in range(1_000)]
    line, edges = line_of(events), np.linspace(-7, 10_003, 41).astype(np.int64)
    long = line.slices(-7, 10_003, 6)
    assert len(long) == sum(event.end - event.start >= 6 for event in events)
    narrow_ns = line.bins(edges, 6).busy_ns.sum()
    assert (line.end_ns - line.start_ns)[long].sum() + narrow_ns == line.busy_ns(edges).sum()


def test_an_instant_between_long_events_keeps_its_color() -> None:
    # The bin begins with a slice, which its color is not about.
    line = line_of([Event(0, 10, 3), Event(10, 20, 4), Event(20, 20, 7), Event(20, 20, 5)])
    assert bins_of(line, [0, 100], 10) == [(0, 0, 2, 7)]


def test_times_near_the_limits() -> None:
    far = 2**62
    line = line_of([Event(0, far - 3, 1), Event(far - 3, far - 1, 2), Event(far - 1, far, 9)])
    assert line.slices(0, far, far // 2).tolist() == [0]
    # A length that a float rounds up to the next power of two is still told from it.
    assert line.slices(0, far, far - 3).tolist() == [0]
    assert line.slices(0, far, far - 2).tolist() == []
    assert bins_of(line, [far - 10, far - 2, far], 3) == [(0, 1, 1, 2), (1, 2, 1, 2)]
    assert line.busy_ns(np.array([-far, 0, far // 2, far])).tolist() == [0, far // 2, far // 2]


def test_read_only_arrays_are_enough() -> None:
    start = np.arange(0, 100, 10)
    start.setflags(write=False)
    color = np.zeros(10, np.uint8)
    color.setflags(write=False)
    line = EventLine.of(start, start, color)
    assert line.start_ns is start
    assert bins_of(line, [0, 50, 100], 1) == [(0, 0, 5, 0), (1, 0, 5, 0)]


@pytest.mark.parametrize(
    ("start", "end"), [([0, 5], [6, 9]), ([5, 0], [6, 3]), ([4], [3]), ([0, 1], [1])]
)
def test_refuses_what_is_no_line(start: list[int], end: list[int]) -> None:
    with pytest.raises(ValueError, match=r"overlap|length"):
        EventLine.of(np.array(start), np.array(end), np.zeros(len(start), np.uint8))


def test_an_event_takes_thirty_bytes_at_most() -> None:
    start = np.arange(0, 2_000_000, 10)
    color = (np.arange(len(start)) % 256).astype(np.uint8)
    assert EventLine.of(start, start + 7, color).nbytes / len(start) < 30


# Values of bins, against a loop over every nanosecond and sample.


Taken = list[tuple[int, float]]
SampleRow = tuple[int, float, float, float]

values = st.one_of(st.integers(-5, 5), st.floats(-1e3, 1e3), st.just(0.1))
taken = st.lists(st.tuples(st.integers(0, 60), values), max_size=40).map(
    lambda rows: sorted(rows, key=lambda row: row[0])
)
sample_windows = st.tuples(st.integers(-20, 80), st.integers(1, 90), st.integers(1, 30))
"""Start, width and bins; more bins than nanoseconds leave some without width."""
patience = st.sampled_from([(1, 0), (4, 3), (64, 1_000_000)])
"""Samples of a block, and how many are looked at one by one."""


def sample_edges(window: tuple[int, int, int]) -> list[int]:
    start, width, bins = window
    return [start + part * width // bins for part in range(bins + 1)]


def sampled_bins(
    samples: Taken, window: tuple[int, int, int], how: tuple[int, int], holds: bool
) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(level_of_detail, "_BLOCK", how[0])
        patch.setattr(level_of_detail, "_MAX_DIRECT_VALUES", how[1])
        times, levels = np.array(samples, np.float64).reshape(-1, 2).T
        bins = SampledValues.of(times.astype(np.int64), levels, holds).bins(
            np.array(sample_edges(window))
        )
    return list(zip(*(column.tolist() for column in bins), strict=True))


def row(number: int, values: list[float], mean: float) -> Any:
    exact = pytest.approx(mean, rel=1e-12, abs=1e-9)
    return (number, min(values), max(values), exact)


@settings(deadline=None)
@given(taken, sample_windows, patience)
def test_sampled(samples: Taken, window: tuple[int, int, int], how: tuple[int, int]) -> None:
    edges, expected = sample_edges(window), []
    for number, (start, end) in enumerate(pairwise(edges)):
        inside = [value for time, value in samples if start <= time < end]
        before = [value for time, value in samples if time < start]
        if not inside and before and samples[-1][0] >= end:
            inside = before[-1:]
        if inside:
            expected.append(row(number, inside, math.fsum(inside) / len(inside)))
    assert sampled_bins(samples, window, how, holds=False) == expected


@settings(deadline=None)
@given(taken, sample_windows, patience)
def test_held(samples: Taken, window: tuple[int, int, int], how: tuple[int, int]) -> None:
    edges, expected = sample_edges(window), []
    for number, (start, end) in enumerate(pairwise(edges)):
        at_start = [value for time, value in samples if time <= start]
        taken_in = [value for time, value in samples if time == start or start < time < end]
        values = [*at_start[-1:], *taken_in]
        held = [
            [value for time, value in samples if time <= moment][-1]
            for moment in range(start, end)
            if samples and moment >= samples[0][0]
        ]
        if values:
            mean = math.fsum(held) / len(held) if held else values[0]
            expected.append(row(number, values, mean))
    assert sampled_bins(samples, window, how, holds=True) == expected


def test_all_that_was_taken_at_the_start_of_a_bin_counts() -> None:
    # Nine, then two at the same moment: the last of those holds, the first was still seen.
    samples = SampledValues.of(np.array([0, 5, 5]), np.array([9, 7, 3]), holds=True)
    assert [column.tolist() for column in samples.bins(np.array([5, 8]))] == [[0], [3], [7], [3]]


def test_what_is_no_finite_number_is_no_sample() -> None:
    samples = SampledValues.of(
        np.array([0, 1, 2, 3]), np.array([4.0, np.nan, np.inf, 2.0]), holds=False
    )
    assert len(samples) == 2
    bins = samples.bins(np.array([0, 4]))
    assert [column.tolist() for column in bins] == [[0], [2.0], [4.0], [3.0]]


def test_short_bins_of_large_values_are_exact() -> None:
    # Sums up to here are beyond what a float holds exactly; those of a bin are not.
    times = np.arange(0, 10**13, 10**9)
    samples = SampledValues.of(times, np.full(len(times), 141 * 2**30), holds=True)
    assert samples.bins(np.array([10**12 + 1, 10**12 + 3])).mean.tolist() == [141 * 2**30]


@pytest.mark.parametrize("holds", [True, False])
def test_none_and_one(holds: bool) -> None:
    nothing = SampledValues.of(np.empty(0, np.int64), np.empty(0), holds)
    assert nothing.bins(np.array([0, 5, 10])).bin.tolist() == []
    one = SampledValues.of(np.array([7]), np.array([3]), holds)
    assert one.bins(np.array([0, 5, 10, 15])).bin.tolist() == ([1, 2] if holds else [1])


def test_refuses_what_is_out_of_order() -> None:
    with pytest.raises(ValueError, match="order"):
        SampledValues.of(np.array([3, 2]), np.array([1.0, 1.0]), holds=True)
