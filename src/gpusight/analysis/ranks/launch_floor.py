"""Clocks of GPUs against the host that launches on them: the shortest launches of each window.

A kernel cannot start before its launch, and an idle GPU starts it some µs after. The shortest time
from call to start in a window is that latency plus the difference of both clocks. The latency
itself is unknown, so the floor bounds the difference; its drift and jumps are those of the clocks,
and two GPUs that one host launches on are compared by the difference of their floors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.ranks.clock_fit import MIN_SAMPLES, ClockFit, Floats, fit_clock

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpusight.trace.trace import Trace

_MIN_LAUNCHES, _MAX_WINDOWS = 48, 48
"""Launches that a window needs to contain one that did not wait, and windows at most."""
_NEIGHBORS = 2
"""A window is used where its floor is near the lowest one of this many windows on each side."""
_NEAR_NS = 3_000.0
_LATENCY_ERROR_NS = 1_000.0
"""How differently two GPUs of a host may react to a launch: in the error of their difference."""


@dataclass(frozen=True, slots=True)
class LaunchFloor:
    """The shortest time from launch to start on one GPU, over time."""

    device: int
    floor_ns: float
    """In the middle of the capture: the GPU's clock is ahead of the host's by less than this."""
    drift_ppm: float
    error_ns: float
    """Half-width of the 95% interval of the floor."""
    jumps: tuple[tuple[int, float], ...]
    """Time on the host's clock and size in ns of each."""
    launches: int
    windows: int
    """Windows that the fit is based on: those with a launch that did not wait."""
    _fit: ClockFit
    _span: tuple[int, int, int]
    """Origin of the fit's times, and where they begin and end."""

    def at(self, times_ns: npt.NDArray[np.int64]) -> Floats:
        """Return the floor at these times of the host's clock."""
        return self._fit.at((times_ns - self._span[0]).astype(np.float64))


@dataclass(frozen=True, slots=True)
class GpuClockDifference:
    """How far the clock of one GPU of a capture is ahead of that of another."""

    device: int
    reference: int
    offset_ns: float
    error_ns: float


def launch_floor(
    device: int, call_ns: npt.NDArray[np.int64], start_ns: npt.NDArray[np.int64]
) -> LaunchFloor | None:
    """Fit the floor of one GPU from starts of launching calls and of kernels; None for too few."""
    windows = min(len(call_ns) // _MIN_LAUNCHES, _MAX_WINDOWS)
    if windows < MIN_SAMPLES:
        return None
    order = np.argsort(call_ns, kind="stable")
    origin = int(call_ns[order[0]])
    latency = (start_ns - call_ns)[order].astype(np.float64)
    parts = np.array_split(np.arange(len(order)), windows)
    lowest = np.array([part[np.argmin(latency[part])] for part in parts])
    times, floors = (call_ns[order][lowest] - origin).astype(np.float64), latency[lowest]
    idle = floors <= _lowest_nearby(floors) + _NEAR_NS
    if idle.sum() < MIN_SAMPLES:
        return None
    times, floors = times[idle], floors[idle]
    fit = fit_clock(times, floors, np.zeros(len(times)))
    while (busy := _busy(fit, times)).any() and (~busy).sum() >= MIN_SAMPLES:
        times, floors = times[~busy], floors[~busy]
        fit = fit_clock(times, floors, np.zeros(len(times)))
    return _floor_of(device, fit, origin, times, len(call_ns))


def _busy(fit: ClockFit, times: Floats) -> npt.NDArray[np.bool_]:
    """Find windows between a jump up and one down: there, launches waited for other work."""
    sizes = [size for _, size, _ in fit.jumps()]
    part = np.searchsorted(fit.jump_times, times, side="right")
    high = [n + 1 for n in range(len(sizes) - 1) if sizes[n] > 0 > sizes[n + 1]]
    return np.isin(part, high)


def _floor_of(device: int, fit: ClockFit, origin: int, times: Floats, launches: int) -> LaunchFloor:
    middle = np.array([(times[0] + times[-1]) / 2])
    return LaunchFloor(
        device=device,
        floor_ns=float(fit.at(middle)[0]),
        drift_ppm=1e6 * fit.drift,
        error_ns=float(fit.error_at(times).max()),
        jumps=tuple((origin + round(time), size) for time, size, _ in fit.jumps()),
        launches=launches,
        windows=len(times),
        _fit=fit,
        _span=(origin, round(times[0]), round(times[-1])),
    )


def _lowest_nearby(floors: Floats) -> Floats:
    padded = np.pad(floors, _NEIGHBORS, mode="edge")
    views = np.lib.stride_tricks.sliding_window_view(padded, 2 * _NEIGHBORS + 1)
    lowest: Floats = views.min(axis=1)
    return lowest


def launch_floors(trace: Trace) -> list[LaunchFloor]:
    """Fit the floors of all GPUs of a capture; those with too few launches are left out."""
    key = ["process", "correlation"]
    if not trace.has("api_calls") or not trace.has("kernels"):
        return []
    calls = trace.table("api_calls", ["start_ns", *key]).rename({"start_ns": "call_ns"})
    kernels = trace.table("kernels", ["start_ns", "device", *key]).drop_nulls()
    # One call may launch many kernels, as a CUDA graph does: the first one starts with it.
    launched = (
        kernels.sort("start_ns")
        .unique(key, keep="first", maintain_order=True)
        .join(calls.unique(key, keep="first"), on=key)
    )
    floors = [
        launch_floor(int(str(device)), own["call_ns"].to_numpy(), own["start_ns"].to_numpy())
        for (device,), own in launched.group_by("device", maintain_order=True)
    ]
    return sorted((floor for floor in floors if floor is not None), key=lambda f: f.device)


def gpu_clock_differences(floors: list[LaunchFloor]) -> list[GpuClockDifference]:
    """Compare the GPUs of one capture with the first of them, over the time that both were used."""
    differences = []
    for floor in floors[1:]:
        begin = max(one._span[0] + one._span[1] for one in (floor, floors[0]))
        end = min(one._span[0] + one._span[2] for one in (floor, floors[0]))
        times = np.linspace(begin, max(begin, end), _MAX_WINDOWS).astype(np.int64)
        differences.append(
            GpuClockDifference(
                device=floor.device,
                reference=floors[0].device,
                offset_ns=float(np.median(floor.at(times) - floors[0].at(times))),
                error_ns=_LATENCY_ERROR_NS + floor.error_ns + floors[0].error_ns,
            )
        )
    return differences
