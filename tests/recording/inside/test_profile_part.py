from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Iterator

import pytest

import gpusight as gs
from gpusight.errors import RecordError, UsageError
from gpusight.recording.inside import cuda_driver, nvtx_backend, profile_part
from gpusight.recording.inside.environment import VARIABLE
from gpusight.recording.inside.step_hub import HUB
from tests.recording.inside.nvtx_log import NvtxLog, logged_nvtx
from tests.recording.inside.test_annotate import ListenerLog


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give what CUDA was asked for; it has a GPU."""
    made: list[str] = []
    monkeypatch.setattr(cuda_driver, "profiler_start", lambda: made.append("start"))
    monkeypatch.setattr(cuda_driver, "profiler_stop", lambda: made.append("stop"))
    monkeypatch.setattr(profile_part, "_SWITCH", profile_part._Switch())
    return made


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise cuda_driver.CudaNotFoundError("no CUDA runtime was found")

    monkeypatch.setattr(cuda_driver, "profiler_start", fail)
    monkeypatch.setattr(profile_part, "_SWITCH", profile_part._Switch())


@pytest.fixture
def log() -> Iterator[NvtxLog]:
    with logged_nvtx() as listener:
        yield listener
        assert listener.open == []


@pytest.mark.usefixtures("calls")
def test_the_range_lies_inside_the_recording(monkeypatch: pytest.MonkeyPatch, log: NvtxLog) -> None:
    monkeypatch.setattr(cuda_driver, "profiler_start", lambda: gs.mark("start"))
    monkeypatch.setattr(cuda_driver, "profiler_stop", lambda: gs.mark("stop"))
    with gs.profile("part"):
        pass
    assert log.lines() == ["!start", "+part", "-part", "!stop"]


def test_an_exception_ends_it(calls: list[str], log: NvtxLog) -> None:
    with pytest.raises(ValueError, match="x"), gs.profile():
        raise ValueError("x")
    assert calls == ["start", "stop"]
    assert log.lines() == ["+profile", "-profile"]


def test_only_the_outermost_starts_and_stops(calls: list[str], log: NvtxLog) -> None:
    part = gs.profile("a")
    with part:
        with part, gs.profile("b", range=False):
            pass
        assert calls == ["start"]
    assert calls == ["start", "stop"]
    assert log.lines() == ["+a", "+a", "-a", "-a"]


def test_parts_that_overlap_on_threads_are_recorded_whole(calls: list[str]) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with gs.profile("other"):
            inside.set()
            go_on.wait()

    thread = threading.Thread(target=work)
    with gs.profile("this"):
        thread.start()
        inside.wait()
    assert calls == ["start"]
    go_on.set()
    thread.join()
    assert calls == ["start", "stop"]


def test_a_function_is_recorded_whenever_it_runs(calls: list[str], log: NvtxLog) -> None:
    @gs.profile("work")
    def work() -> int:
        return len(calls)

    @gs.profile("later")
    async def later() -> int:
        await asyncio.sleep(0)
        return len(calls)

    @gs.profile("parts")
    def parts() -> Iterator[int]:
        yield len(calls)

    assert [work(), work(), asyncio.run(later()), *parts()] == [1, 3, 5, 7]
    assert calls == ["start", "stop"] * 4
    assert log.lines()[-4:] == ["+later", "-later", "+parts", "-parts"]


@pytest.mark.usefixtures("no_cuda")
def test_without_cuda_it_warns_once_where_it_is_used() -> None:
    expected = pytest.warns(profile_part.ProfilerUnavailableWarning, match="no CUDA runtime")
    with expected as warned, gs.profile():
        pass
    assert [warning.filename for warning in warned] == [__file__]
    with gs.profile():
        pass


@pytest.mark.usefixtures("no_cuda")
def test_without_cuda_strict_raises_and_leaves_nothing_open() -> None:
    with pytest.raises(RecordError, match="no CUDA runtime"), gs.profile(strict=True):
        raise AssertionError("not reached")
    with pytest.warns(profile_part.ProfilerUnavailableWarning), gs.profile():
        pass


@pytest.mark.usefixtures("no_cuda")
def test_the_range_is_there_without_cuda() -> None:
    with logged_nvtx() as log, warnings.catch_warnings():
        warnings.simplefilter("ignore", profile_part.ProfilerUnavailableWarning)
        with gs.profile("part"):
            pass
    assert log.lines() == ["+part", "-part"]


def test_under_record_it_is_a_range_that_the_recorder_hears(
    monkeypatch: pytest.MonkeyPatch, calls: list[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "{}")
    listener_log = ListenerLog()
    HUB.listen(listener_log)
    try:
        with gs.profile("part"):
            pass
    finally:
        HUB.forget(listener_log)
    assert calls == []
    assert listener_log.events == ["+part", "-part"]


@pytest.mark.usefixtures("calls")
def test_a_stop_that_fails_does_not_hide_what_the_part_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise RecordError("it went wrong")

    monkeypatch.setattr(cuda_driver, "profiler_stop", fail)
    warned = pytest.warns(profile_part.ProfilerUnavailableWarning, match="it went wrong")
    with warned, pytest.raises(ValueError, match="x"), gs.profile():
        raise ValueError("x")


def test_parentheses_are_needed() -> None:
    with pytest.raises(UsageError, match="parentheses"):
        gs.profile(lambda: None)  # type: ignore[arg-type]


def test_an_asynchronous_generator_is_refused() -> None:
    async def parts() -> object:
        yield 1

    with pytest.raises(UsageError, match="asynchronous generator"):
        gs.profile("a")(parts)


def test_the_gpu_is_waited_for_only_where_a_tool_listens(
    monkeypatch: pytest.MonkeyPatch, calls: list[str]
) -> None:
    monkeypatch.setattr(cuda_driver, "wait_for_gpus", lambda: calls.append("wait"))
    nvtx_backend.choose_again()
    with gs.profile():
        pass
    assert calls == ["start", "stop"]
    with logged_nvtx(), gs.profile():
        pass
    assert calls[2:] == ["wait", "start", "wait", "stop"]
