"""GPU clocks against the host: floors of launch latency, with drift and jumps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gpusight.analysis.ranks.launch_floor import (
    gpu_clock_differences,
    launch_floor,
    launch_floors,
)
from gpusight.readers.open import open_trace
from tests.shared import SHARED, needs_shared

Integers = npt.NDArray[np.int64]


def launches(seed: int = 0, count: int = 4000) -> tuple[Integers, npt.NDArray[np.float64]]:
    """Launches of 2 s: latency of 6 µs and more; queued ones of a third of the time wait long."""
    random = np.random.default_rng(seed)
    call = np.sort(random.uniform(0, 2e9, count))
    latency = 6_000 + random.gamma(2.0, 500, count)
    queued = random.random(count) < np.where((call // 3e8) % 3 == 1, 0.995, 0.3)
    return call.astype(np.int64), latency + queued * random.exponential(500_000, count)


def test_the_floor_is_that_of_idle_launches() -> None:
    call, latency = launches()
    floor = launch_floor(3, call, call + latency.astype(np.int64))
    assert floor is not None
    assert floor.device == 3
    assert floor.floor_ns == pytest.approx(6_200, abs=max(floor.error_ns, 500))
    assert floor.jumps == ()
    assert abs(floor.drift_ppm) < 1


@pytest.mark.parametrize("size", [13_000.0, -40_000.0])
def test_jumps_and_drift_of_a_gpu_clock_are_found(size: float) -> None:
    call, latency = launches(1)
    ahead = 3e-5 * call + size * (call > 0.9e9)
    floor = launch_floor(0, call, call + (latency + ahead).astype(np.int64))
    assert floor is not None
    [(time, found)] = floor.jumps
    assert found == pytest.approx(size, abs=2_000)
    assert time == pytest.approx(0.9e9, abs=1e8)
    assert floor.drift_ppm == pytest.approx(30, abs=2)


def test_gpus_of_a_host_are_compared() -> None:
    floors = []
    for device, offset in enumerate((0, -6_000, 250_000)):
        call, latency = launches(device)
        floors.append(launch_floor(device, call, call + latency.astype(np.int64) + offset))
    differences = gpu_clock_differences([floor for floor in floors if floor is not None])
    assert [one.device for one in differences] == [1, 2]
    for one, offset in zip(differences, (-6_000, 250_000), strict=True):
        assert one.offset_ns == pytest.approx(offset, abs=one.error_ns)
        assert one.error_ns < 4_000


def test_few_launches_have_no_floor() -> None:
    call, latency = launches(count=50)
    assert launch_floor(0, call, call + latency.astype(np.int64)) is None
    assert gpu_clock_differences([]) == []


@needs_shared
def test_two_gpus_of_a_public_capture_agree_with_their_collectives() -> None:
    trace = open_trace(SHARED / "public" / "ranks" / "mfu_2gpu_after.sqlite", cache=False)
    [difference] = gpu_clock_differences(launch_floors(trace))
    assert difference.offset_ns == pytest.approx(-6_000, abs=1_000)
    assert difference.error_ns < 4_000
