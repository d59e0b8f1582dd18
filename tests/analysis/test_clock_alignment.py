"""Clocks of host and GPU that disagree: found, told by how much, and corrected where one number is.

A launch of 10 µs every 100 µs, its kernel 20 µs later, and a wait for all of them at the end.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.analysis.clock_alignment import TOLERANCE_NS, aligned, clock_shifts
from gpusight.trace.trace import Trace
from tests.traces import Rows, build_trace

US = 1_000
MINUTES_NS = 180 * 10**9
WAIT_NS = 1_000 * US


def program(*shifts_ns: int, waits: bool = True, syncs: bool = False) -> Trace:
    """Ten launches; the GPU's clock is off by each of `shifts_ns` in turn."""
    launched = [100 * US * number for number in range(10)]
    calls: list[dict[str, Any]] = [
        {
            "start_ns": at,
            "end_ns": at + 10 * US,
            "name": "cudaLaunchKernel",
            "correlation": number + 1,
        }
        for number, at in enumerate(launched)
    ]
    if waits:
        name = "cudaStreamSynchronize" if syncs else "cudaDeviceSynchronize"
        wait = {"start_ns": WAIT_NS, "end_ns": WAIT_NS + 50 * US, "name": name, "correlation": 99}
        calls.append(wait)
    kernels: list[dict[str, Any]] = [
        {
            "start_ns": at + 20 * US + shifts_ns[number % len(shifts_ns)],
            "end_ns": at + 90 * US + shifts_ns[number % len(shifts_ns)],
            "correlation": number + 1,
            "name": "k",
            "stream": 7,
            "context": 1,
        }
        for number, at in enumerate(launched)
    ]
    wait_of = {"start_ns": WAIT_NS, "end_ns": WAIT_NS, "correlation": 99, "stream": 7, "context": 1}
    waited: Rows = [wait_of] if syncs else []
    return build_trace(api_calls=calls, kernels=kernels, syncs=waited)


@pytest.mark.parametrize("shift_ns", [0, TOLERANCE_NS // 2, -TOLERANCE_NS // 2])
def test_clocks_that_agree(shift_ns: int) -> None:
    trace = program(shift_ns)
    assert clock_shifts(trace) == ()
    assert aligned(trace) is trace


@pytest.mark.parametrize("syncs", [False, True], ids=["device", "stream"])
def test_a_gpu_clock_minutes_ahead_ends_work_after_the_wait_for_it(syncs: bool) -> None:
    trace = program(MINUTES_NS, syncs=syncs)
    (shift,) = clock_shifts(trace)
    assert not shift.early
    assert abs(shift.shift_ns + MINUTES_NS) < TOLERANCE_NS
    assert shift.described() == (
        "the clocks of host and GPU 0 are 180 s apart; GPU times are corrected "
        "(GPU work ends after the wait for it: 1 of 1)"
    )
    kernels = aligned(trace).table("kernels", ["start_ns", "end_ns"])
    assert int(kernels["end_ns"].max()) <= WAIT_NS + 50 * US  # type: ignore[arg-type]
    assert (kernels["end_ns"] - kernels["start_ns"]).unique().to_list() == [70 * US]


def test_a_gpu_clock_behind_starts_work_before_its_launch() -> None:
    trace = program(-MINUTES_NS, waits=False)
    (shift,) = clock_shifts(trace)
    assert shift.early
    corrected = aligned(trace)
    first = int(corrected.table("kernels", ["start_ns"])["start_ns"].min())  # type: ignore[arg-type]
    assert 0 <= first < TOLERANCE_NS
    # The corrected capture knows by what it was corrected, and is not corrected again.
    assert clock_shifts(corrected) == (shift,)
    assert aligned(corrected) is corrected


def test_clocks_that_drift_are_named_but_not_corrected() -> None:
    trace = program(MINUTES_NS, -MINUTES_NS)
    (shift,) = clock_shifts(trace)
    assert shift.shift_ns == 0
    assert "idle causes are unreliable" in shift.described()
    assert aligned(trace) is trace


def test_captures_that_cannot_show_it() -> None:
    assert clock_shifts(build_trace(kernels=[{"name": "k", "end_ns": 5}])) == ()
    unlinked = build_trace(
        kernels=[{"name": "k", "end_ns": 5}], api_calls=[{"name": "cudaFree", "end_ns": 1}]
    )
    assert clock_shifts(unlinked) == ()
