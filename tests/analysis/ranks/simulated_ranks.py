"""Ranks with known clocks: they arrive, wait, transfer, and leave with realistic skew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class InjectedClock:
    """How far a clock is ahead: offset, drift, and jumps of (true time, size)."""

    offset_ns: float = 0.0
    drift_ppm: float = 0.0
    jumps: tuple[tuple[float, float], ...] = ()

    def ahead(self, times_ns: Any) -> Floats:
        times = np.asarray(times_ns, np.float64)
        ahead: Floats = self.offset_ns + 1e-6 * self.drift_ppm * times
        for at, size in self.jumps:
            ahead = ahead + size * (times >= at)
        return ahead


@dataclass(frozen=True)
class SimulatedRanks:
    start: Floats
    end: Floats
    """True times of [collective, rank]."""

    def recorded(self, clocks: list[InjectedClock]) -> tuple[Floats, Floats]:
        start, end = (
            np.stack([t[:, r] + clock.ahead(t[:, r]) for r, clock in enumerate(clocks)], axis=1)
            for t in (self.start, self.end)
        )
        return start, end


def simulated_ranks(
    random: np.random.Generator,
    ranks: int = 4,
    collectives: int = 200,
    *,
    seconds: float = 5.0,
    notice_ns: float | None = None,
    noise_ns: float = 1500.0,
    always_last: int | None = None,
) -> SimulatedRanks:
    """Simulate training: compute, arrive, wait for the last one, transfer, leave.

    A waiting rank notices the end `notice_ns` after the last one does. Leaving has noise with a
    long tail (interrupts, contention); 2% of the events are far off.
    """
    notice = random.uniform(0, 10_000) if notice_ns is None else notice_ns
    step = seconds * 1e9 / collectives
    ready = (np.arange(collectives) + random.uniform(0.1, 0.4, collectives)) * step
    late = random.gamma(1.5, 0.02 * step, (collectives, ranks))
    late *= random.uniform(0.7, 1.4, ranks)
    if always_last is not None:
        late[:, always_last] += 0.3 * step
    arrive = ready[:, None] + late
    transfer = random.choice([3e4, 1.2e5, 4e5], collectives) * random.uniform(1, 1.3, collectives)
    last = arrive.argmax(axis=1)
    leave = (arrive.max(axis=1) + transfer)[:, None] + np.zeros((collectives, ranks))
    leave += notice * (np.arange(ranks)[None, :] != last[:, None])
    leave += random.gamma(2.0, noise_ns / 2, leave.shape)
    wild = random.random(leave.shape) < 0.02
    leave += wild * random.exponential(200_000, leave.shape)
    return SimulatedRanks(arrive, leave)


def random_clock(random: np.random.Generator, seconds: float, *, jumps: int = 0) -> InjectedClock:
    """Draw a clock: offset up to 50 ms, drift up to 50 ppm, jumps of 20 µs to 20 ms."""
    sizes = random.choice([-1, 1], jumps) * 10 ** random.uniform(4.3, 7.3, jumps)
    at = random.uniform(0.1, 0.9, jumps) * seconds * 1e9
    return InjectedClock(
        random.uniform(-5e7, 5e7), random.uniform(-50, 50), tuple(zip(at, sizes, strict=True))
    )
