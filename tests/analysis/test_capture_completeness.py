"""Calls that issue GPU work, and whether the capture holds that work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpusight.analysis.capture_completeness import (
    LOST_EVENTS,
    MAX_UNANSWERED_SHARE,
    IssuedWork,
    issued_work,
    lost_sources,
    recorded_note,
)
from gpusight.analysis.capture_summary import summary
from gpusight.analysis.ledger.ledger_report import ledger_report
from tests.traces import build_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.trace.trace import Trace

ALL = [(0, 1_000_000)]


def call(number: int, name: str = "cudaLaunchKernel", **more: Any) -> dict[str, Any]:
    start = 100 * number
    known = {"start_ns": start, "end_ns": start + 50, "name": name, "correlation": number}
    return {**known, "thread": 1, "process": 1, **more}


def kernel(number: int, **more: Any) -> dict[str, Any]:
    start = 100 * number + 60
    known = {"start_ns": start, "end_ns": start + 30, "name": "gemm", "correlation": number}
    return {**known, "device": 0, "process": 1, **more}


def kernels_of(calls: list[dict[str, Any]], kernels: list[dict[str, Any]]) -> IssuedWork:
    return issued_work(build_trace(api_calls=calls, kernels=kernels), ALL)["kernels"]


def test_a_launch_without_its_kernel_is_unanswered() -> None:
    calls = [call(n) for n in range(1, 11)]
    assert kernels_of(calls, [kernel(n) for n in range(1, 11)]) == IssuedWork(10, 0)
    assert kernels_of(calls, [kernel(n) for n in range(1, 11, 2)]) == IssuedWork(10, 5)
    assert kernels_of(calls, []) == IssuedWork(10, 10)


def test_only_calls_in_the_spans_and_of_the_process_count() -> None:
    trace = build_trace(
        api_calls=[call(1), call(2), call(5, process=2, thread=2)], kernels=[kernel(1)]
    )
    assert issued_work(trace, [(0, 150)])["kernels"] == IssuedWork(1, 0)
    assert issued_work(trace, ALL, process=1)["kernels"] == IssuedWork(2, 1)
    assert issued_work(trace, ALL)["kernels"] == IssuedWork(3, 2)


def test_threads_that_call_at_the_same_time_are_not_inside_each_other() -> None:
    calls = [call(1), call(2, start_ns=110, end_ns=140, thread=2)]
    assert kernels_of(calls, [kernel(1)]) == IssuedWork(2, 1)


def test_a_driver_call_inside_a_runtime_call_is_one_launch() -> None:
    inner = call(2, "cuLaunchKernel", start_ns=110, end_ns=140)
    assert kernels_of([call(1), inner], [kernel(2)]) == IssuedWork(1, 0)
    assert kernels_of([call(1), inner], [kernel(1)]) == IssuedWork(1, 0)
    assert kernels_of([call(1), inner], []) == IssuedWork(1, 1)


def test_calls_that_issue_nothing_are_no_launches() -> None:
    failed = call(2, return_value=700)
    assert kernels_of([call(1), failed], [kernel(1)]) == IssuedWork(1, 0)
    captured = [call(2, "cudaStreamBeginCapture"), call(3), call(4, "cudaStreamEndCapture")]
    assert kernels_of([call(1), *captured, call(5)], [kernel(1)]) == IssuedWork(2, 1, recorded=1)
    host = call(2, "cuLaunchHostFunc")
    assert kernels_of([call(1), host], [kernel(1)]) == IssuedWork(1, 0)


def test_launches_recorded_into_a_graph_are_named() -> None:
    captured = [call(2, "cudaStreamBeginCapture"), call(3), call(4, "cudaStreamEndCapture")]
    trace = build_trace(api_calls=[call(1), *captured], kernels=[kernel(1)])
    (note,) = recorded_note(issued_work(trace, ALL))
    assert note.startswith("1 kernel launch was recorded into a CUDA graph")
    assert recorded_note(issued_work(build_trace(api_calls=[call(1)]), ALL)) == []


@pytest.mark.parametrize("result", [0, 900])
def test_a_capture_that_never_ends_does_not_excuse_lost_kernels(result: int) -> None:
    begin = call(0, "cudaStreamBeginCapture", return_value=result)
    calls = [begin, *(call(number) for number in range(1, 11))]
    checked = kernels_of(calls, [kernel(number) for number in range(1, 9)])
    assert (checked.calls, checked.unanswered) == (10, 2)


def test_work_without_a_known_call_may_be_what_a_call_issued() -> None:
    calls = [call(n) for n in range(1, 5)]
    unlinked = [kernel(n, correlation=None) for n in range(1, 5)]
    assert kernels_of(calls, unlinked) == IssuedWork(4, 0)


@pytest.mark.parametrize(
    ("kept", "is_lost"), [(1_000, False), (995, False), (980, True), (0, True)]
)
def test_a_source_is_lost_above_its_share(kept: int, is_lost: bool) -> None:
    calls = [call(n) for n in range(1, 1_001)]
    trace = build_trace(api_calls=calls, kernels=[kernel(n) for n in range(1, kept + 1)])
    assert MAX_UNANSWERED_SHARE["kernels"] == 0.01
    assert ("kernels" in lost_sources(trace, issued_work(trace, ALL))) is is_lost


@pytest.mark.parametrize("answer", [summary, ledger_report])
def test_summary_and_ledger_say_that_kernels_are_missing(answer: Callable[[Trace], Any]) -> None:
    calls = [call(n) for n in range(1, 11)]
    whole = build_trace(api_calls=calls, kernels=[kernel(n) for n in range(1, 11)])
    half = build_trace(api_calls=calls, kernels=[kernel(n) for n in range(1, 11, 2)])
    lost_note = "5 of 10 kernel launches (50.0%) have no kernels in the capture"
    assert not any("no kernels in the capture" in note for note in answer(whole).notes)
    assert any(note.startswith(lost_note) for note in answer(half).notes)


def test_without_calls_only_a_capture_without_kernels_has_lost_them() -> None:
    assert lost_sources(build_trace(kernels=[kernel(1)]), {}) == {}
    copy = {"start_ns": 1, "end_ns": 2, "device": 0, "bytes": 1}
    assert lost_sources(build_trace(copies=[copy]), {}) == {
        "kernels": "the capture has no GPU kernels"
    }


@pytest.mark.parametrize(
    ("text", "is_loss"),
    [
        ("CUDA events were dropped: not enough buffer space", True),
        ("Not all events might have been collected.", False),
        ("The capture is incomplete", True),
    ],
)
def test_what_profilers_say_of_lost_events(text: str, is_loss: bool) -> None:
    assert bool(LOST_EVENTS.search(text)) is is_loss
