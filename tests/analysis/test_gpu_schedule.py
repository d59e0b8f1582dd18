"""Which calls of several threads count as one host thread."""

from __future__ import annotations

import numpy as np

from gpusight.analysis.gpu_schedule import CallKind, assign_host_threads

MS = 1_000_000
_MAIN, _BACKWARD = 0, 1


def _host_threads(calls: list[tuple[int, float, float]]) -> np.ndarray:
    """Assign launches, each a thread, a start and an end in ms."""
    thread, start_ms, end_ms = (
        np.array(column) for column in zip(*sorted(calls, key=_start), strict=True)
    )
    kind = np.full(len(calls), int(CallKind.LAUNCH), np.int64)
    start_ns, end_ns = ((times * MS).astype(np.int64) for times in (start_ms, end_ms))
    return assign_host_threads(thread, np.zeros(2, np.int64), kind, start_ns, end_ns)


def _start(call: tuple[int, float, float]) -> float:
    return call[1]


def _step(
    at_ms: float, backward: tuple[float, ...] = (1.1, 2.0, 2.9)
) -> list[tuple[int, float, float]]:
    """A step: the main thread launches, waits for the backward thread, and launches again."""
    main = [(_MAIN, at_ms + ms, at_ms + ms + 0.1) for ms in (0.9, 3.1)]
    return main + [(_BACKWARD, at_ms + ms, at_ms + ms + 0.1) for ms in backward]


def test_a_thread_that_takes_over_in_silences_is_the_same_host_thread() -> None:
    assert not _host_threads([call for n in range(4) for call in _step(10 * n)]).any()


def test_a_hand_over_that_is_too_short_to_show_belongs_to_the_same_host_thread() -> None:
    short = _step(40, backward=(2.8, 2.9))
    assert not _host_threads([call for n in range(4) for call in _step(10 * n)] + short).any()


def test_calls_that_overlap_stay_on_their_own_thread() -> None:
    steps = [call for n in range(4) for call in _step(10 * n)]
    overlapping = [(_MAIN, 50.0, 50.5), (_BACKWARD, 50.2, 50.4), (_MAIN, 50.6, 50.7)]
    host_thread = _host_threads(steps + overlapping)
    assert np.flatnonzero(host_thread == _BACKWARD).tolist() == [len(steps) + 1]


def test_threads_that_work_at_the_same_time_stay_apart() -> None:
    calls = [(thread, n + 0.1 * thread, n + 0.8) for n in range(20) for thread in (0, 1)]
    assert _host_threads(calls).tolist() == [0, 1] * 20
