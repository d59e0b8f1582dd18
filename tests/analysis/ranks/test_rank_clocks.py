"""Clocks between ranks: injected offsets, drifts and jumps are recovered, with honest intervals."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.analysis.ranks.rank_clocks import RankClock, rank_clocks
from gpusight.readers.open import open_trace
from tests.analysis.ranks.simulated_ranks import (
    InjectedClock,
    SimulatedRanks,
    random_clock,
    simulated_ranks,
)
from tests.shared import SHARED, needs_shared

Floats = npt.NDArray[np.float64]
RANKS = SHARED / "ranks"
SECONDS = 5.0


def errors_of(
    simulated: SimulatedRanks, clocks: list[InjectedClock]
) -> list[tuple[Floats, Floats, RankClock]]:
    """Return error and stated interval at every collective, for each rank but the first."""
    start, end = simulated.recorded(clocks)
    true = simulated.end[:, 0]
    return [
        (
            np.abs(fitted.offset_at(end[:, 0]) - (clock.ahead(true) - clocks[0].ahead(true))),
            fitted.error_at(end[:, 0]),
            fitted,
        )
        for fitted, clock in zip(rank_clocks(start, end)[1:], clocks[1:], strict=True)
    ]


def test_injected_clocks_are_recovered_and_intervals_cover() -> None:
    """Hundreds of pairs of ranks: offsets ±50 ms, drifts ±50 ppm, up to one jump."""
    random = np.random.default_rng(22)
    errors, covered, right = [], [], []
    for case in range(80):
        ranks, jumps = int(random.integers(2, 7)), case % 2
        simulated = simulated_ranks(random, ranks, int(random.integers(60, 300)), seconds=SECONDS)
        clocks = [random_clock(random, SECONDS)]
        clocks += [random_clock(random, SECONDS, jumps=jumps) for _ in range(ranks - 1)]
        for error, stated, fitted in errors_of(simulated, clocks):
            errors.append(error)
            covered.append(np.mean(error <= stated))
            right.append(len(fitted.jumps) == jumps)
            assert np.median(stated) < 5_000
    assert len(errors) > 200
    assert np.median(np.concatenate(errors)) < 2_000
    assert np.percentile(np.concatenate(errors), 99) < 10_000
    assert np.mean(covered) >= 0.95
    assert np.mean(right) >= 0.95


def test_intervals_of_pure_noise_are_not_too_wide() -> None:
    """Without the bias of waiting ranks, intervals are as wide as the noise alone demands."""
    random = np.random.default_rng(5)
    covered, ratio = [], []
    for _ in range(60):
        simulated = simulated_ranks(random, 4, 120, seconds=SECONDS, notice_ns=0.0)
        for error, stated, _ in errors_of(simulated, [random_clock(random, SECONDS)] * 4):
            covered.append(np.mean(error <= stated))
            ratio.append(np.median(stated) / 1960)
    assert 0.95 <= np.mean(covered) <= 0.995
    assert np.median(ratio) < 0.5


@settings(max_examples=15, deadline=None)
@given(
    offset=st.floats(-5e7, 5e7),
    drift=st.floats(-50, 50),
    size=st.floats(3e4, 2e7),
    at=st.floats(0.15, 0.85),
    seed=st.integers(0, 10_000),
)
def test_one_jump_is_found_with_time_and_size(
    offset: float, drift: float, size: float, at: float, seed: int
) -> None:
    simulated = simulated_ranks(np.random.default_rng(seed), 2, 150, seconds=SECONDS)
    clock = InjectedClock(offset, drift, ((at * SECONDS * 1e9, size),))
    [(error, _, fitted)] = errors_of(simulated, [InjectedClock(), clock])
    [jump] = fitted.jumps
    assert jump.size_ns == pytest.approx(size, abs=5_000)
    assert abs(jump.time_ns - at * SECONDS * 1e9) < 3 * SECONDS * 1e9 / 150
    assert np.median(error) < 3_000
    assert fitted.drift_ppm == pytest.approx(drift, abs=3)


@settings(max_examples=15, deadline=None)
@given(shift=st.integers(-(10**9), 10**9), origin=st.integers(0, 1_800_000_000 * 10**9))
def test_whole_shifts_and_epoch_times_change_nothing_else(shift: int, origin: int) -> None:
    """Epoch times in nanoseconds exceed the precision of a float."""
    simulated = simulated_ranks(np.random.default_rng(1), 3, 80)
    start, end = simulated.start.astype(np.int64), simulated.end.astype(np.int64)
    plain = rank_clocks(start, end)
    moved = rank_clocks(start + origin + [0, shift, 0], end + origin + [0, shift, 0])
    assert moved[1].offset_ns - plain[1].offset_ns == pytest.approx(shift, abs=1)
    assert moved[2].offset_ns == pytest.approx(plain[2].offset_ns, abs=1)
    assert moved[1].error_ns == pytest.approx(plain[1].error_ns, rel=1e-3)
    assert moved[1].drift_ppm == pytest.approx(plain[1].drift_ppm, abs=1e-3)


def test_swapped_ranks_have_opposite_offsets() -> None:
    random = np.random.default_rng(4)
    start, end = simulated_ranks(random, 2).recorded([InjectedClock(), InjectedClock(2e6, 20)])
    forward, back = rank_clocks(start, end)[1], rank_clocks(start, end, reference=1)[0]
    assert forward.offset_ns == pytest.approx(-back.offset_ns, abs=500)
    assert forward.drift_ppm == pytest.approx(-back.drift_ppm, abs=0.1)


@pytest.mark.parametrize("last", [0, 1])
def test_a_rank_that_is_always_last_makes_the_interval_wide(last: int) -> None:
    """The bias of 8 µs cannot be told from the offset: the interval must contain both."""
    random = np.random.default_rng(7)
    for _ in range(10):
        simulated = simulated_ranks(random, 3, 150, notice_ns=8_000.0, always_last=last)
        results = errors_of(simulated, [InjectedClock(), InjectedClock(1e7, 10), InjectedClock()])
        for rank, (error, stated, fitted) in enumerate(results, 1):
            assert (error <= stated).all()
            assert fitted.one_sided == (last in (0, rank))
            assert (np.median(stated) > 8_000) == fitted.one_sided


def test_a_drift_that_changes_is_followed() -> None:
    random = np.random.default_rng(8)
    simulated = simulated_ranks(random, 2, 400, seconds=60)
    start, end = simulated.start.copy(), simulated.end.copy()
    for times in (start, end):  # 20 ppm, then -20 ppm
        times[:, 1] += 2e-5 * (3e10 - np.abs(times[:, 1] - 3e10))
    truth = 2e-5 * (3e10 - np.abs(simulated.end[:, 0] - 3e10))
    fitted = rank_clocks(start, end)[1]
    error = np.abs(fitted.offset_at(end[:, 0]) - truth)
    assert np.percentile(error, 99) < 10_000
    assert np.mean(error <= fitted.error_at(end[:, 0]) + 1_000) >= 0.95  # knots lie on a grid
    assert fitted.jumps == ()


def test_ranks_are_connected_through_others() -> None:
    """Pipeline stages share collectives with neighbors only; a rank alone stays unknown."""
    random = np.random.default_rng(9)
    clocks = [InjectedClock(), InjectedClock(1e6), InjectedClock(-3e7, 30), InjectedClock()]
    start, end = simulated_ranks(random, 4, 300).recorded(clocks)
    present = np.zeros(start.shape, bool)
    present[0::2, :2] = present[1::2, 1:3] = True
    present[:2, 3] = True
    fitted = rank_clocks(start.astype(np.int64), end.astype(np.int64), present)
    offset = fitted[2].offset_at(end[:, 0]) - (clocks[2].ahead(end[:, 0]))
    assert np.max(np.abs(offset)) < 5_000
    assert fitted[2].error_ns > fitted[1].error_ns
    assert fitted[3].document() == {
        "rank": 3,
        "offset_ns": None,
        "drift_ppm": None,
        "error_ns": None,
        "jumps": [],
    }


def test_events_that_wait_for_nobody_are_ignored() -> None:
    random = np.random.default_rng(10)
    simulated = simulated_ranks(random, 2, 200)
    start, end = simulated.start.copy(), simulated.end.copy()
    alone = random.choice(200, 40, replace=False)
    end[alone] = start[alone] + 50_000  # an asynchronous call returns at once
    fitted = rank_clocks(start, end)[1]
    assert fitted.ignored > 20
    assert abs(fitted.offset_ns) < 5_000


def test_times_are_converted_to_the_reference() -> None:
    random = np.random.default_rng(11)
    simulated = simulated_ranks(random, 2)
    start, end = simulated.recorded([InjectedClock(), InjectedClock(4e7, -50)])
    fitted = rank_clocks(start, end, ranks=[8, 9])[1]
    assert (fitted.rank, fitted.reference) == (9, 8)
    there = fitted.to_reference(end[:, 1].astype(np.int64))
    assert np.median(np.abs(there - simulated.end[:, 1])) < 2_000
    assert rank_clocks(start, end)[0].offset_ns == 0


@pytest.mark.parametrize("shape", [(5,), (5, 2, 1)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\[collective, rank\]"):
        rank_clocks(np.zeros(shape), np.zeros(shape))
    with pytest.raises(ValueError, match="one rank per column"):
        rank_clocks(np.zeros((5, 2)), np.zeros((5, 2)), reference=2)


def gloo_collectives(planted: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Read all-reduces of four ranks of one host; those without sizes only enqueue work."""
    ranks = []
    for rank in range(4):
        with gzip.open(RANKS / f"ddp_torch_{planted}.rank{rank}.trace.json.gz") as file:
            events = json.load(file)["traceEvents"]
        by_size = defaultdict(list)
        for event in sorted((e for e in events if "ts" in e), key=lambda e: float(e["ts"])):
            sizes = event.get("args", {}).get("Input Dims")
            if event.get("name") == "gloo:all_reduce" and sizes:
                start = round(event["ts"] * 1000)
                by_size[str(sizes)].append((start, start + round(event["dur"] * 1000)))
        ranks.append([times for size in sorted(by_size) for times in by_size[size]])
    table = np.array(ranks, np.int64).transpose(1, 0, 2)
    return table[..., 0], table[..., 1]


@needs_shared
@pytest.mark.parametrize("planted", [-1, 2])
def test_injected_into_captures_of_one_host(planted: int) -> None:
    """Ranks of one host have one clock: intervals contain 0, and what is injected adds up.

    gloo's ranks leave 0.1 to 8 ms after one another, so offsets are known to some 100 µs only.
    """
    start, end = gloo_collectives(planted)
    plain = rank_clocks(start, end)
    for clock in plain[1:]:
        assert abs(clock.offset_ns) <= clock.error_ns
        assert clock.error_ns > 50_000
    random = np.random.default_rng(planted + 1)
    errors = []
    for _ in range(25):
        injected = [InjectedClock(), *(random_clock(random, 1.0) for _ in range(3))]
        origin = start.min()
        added_start, added_end = (
            np.stack([c.ahead(t[:, r] - origin) for r, c in enumerate(injected)], axis=1)
            for t in (start, end)
        )
        fitted = rank_clocks(
            start + np.rint(added_start).astype(np.int64), end + np.rint(added_end).astype(np.int64)
        )
        middle = end[:, 0]
        for rank in range(1, 4):
            truth = injected[rank].ahead(middle - origin)
            moved = fitted[rank].offset_at(middle) - plain[rank].offset_at(middle) - truth
            errors.append(float(np.abs(np.median(moved))))
            outside = np.abs(fitted[rank].offset_at(middle) - truth) > fitted[rank].error_at(middle)
            assert outside.mean() <= 0.05
    assert np.median(errors) < 2_000
    assert np.percentile(errors, 99) < 10_000


@needs_shared
def test_two_gpus_of_a_public_capture() -> None:
    """Their clocks are about 6 µs apart; the naive median of ends gives up to 9 µs."""
    trace = open_trace(SHARED / "public" / "ranks" / "mfu_2gpu_after.sqlite", cache=False)
    kernels = trace.table("kernels", ["start_ns", "end_ns", "device", "name"])
    transfers = kernels.filter(pl.col("name").cast(pl.String).str.contains("nccl"))
    start, end = (
        np.stack([transfers.filter(device=gpu)[name].to_numpy() for gpu in (0, 1)], axis=1)
        for name in ("start_ns", "end_ns")
    )
    fitted = rank_clocks(start, end)[1]
    assert len(start) == 31
    assert fitted.offset_ns == pytest.approx(-6_200, abs=fitted.error_ns)
    assert fitted.error_ns < 3_000
    assert fitted.notice_ns == pytest.approx(9_800, abs=1_000)


def test_many_ranks_are_rarely_last_themselves() -> None:
    """Of 64 ranks a third one is nearly always last: both others notice the end equally late."""
    random = np.random.default_rng(12)
    simulated = simulated_ranks(random, 64, 60, notice_ns=9_000.0)
    clocks = [random_clock(random, SECONDS) for _ in range(64)]
    results = errors_of(simulated, clocks)
    assert not any(fitted.one_sided for _, _, fitted in results)
    assert np.median(np.concatenate([error for error, _, _ in results])) < 1_000
    assert np.mean([np.mean(error <= stated) for error, stated, _ in results]) >= 0.95
