from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator

import pytest

import gpusight as gs
from gpusight.analysis.steps.step_list import read_name
from gpusight.errors import UsageError
from gpusight.recording.inside import step_hub
from gpusight.recording.inside import step_loop as step_module
from tests.recording.inside.nvtx_log import NvtxLog, logged_nvtx
from tests.recording.inside.test_annotate import ListenerLog


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> step_hub.StepHub:
    """Count from 0 in each test."""
    fresh = step_hub.StepHub()
    monkeypatch.setattr(step_module, "HUB", fresh)
    return fresh


@pytest.fixture
def log() -> Iterator[NvtxLog]:
    with logged_nvtx() as listener:
        yield listener
        assert listener.open == []


def test_a_block_is_a_step(log: NvtxLog) -> None:
    for _ in range(2):
        with gs.step():
            gs.mark("work")
    assert log.lines() == ["+step 0", "!work", "-step 0", "+step 1", "!work", "-step 1"]


def test_each_turn_of_a_loop_is_a_step_and_fetches_the_next_batch(log: NvtxLog) -> None:
    batches = []
    for batch in gs.step(iter([10, 20])):
        gs.mark("work")
        batches.append(batch)
    assert batches == [10, 20]
    assert log.lines() == [
        *("+input", "-input"),
        *("+step 0", "!work", "+input", "-input", "-step 0"),
        *("+step 1", "!work", "+input", "-input", "-step 1"),
    ]


def test_no_batch_is_no_step(log: NvtxLog) -> None:
    assert list(gs.step([])) == []
    assert log.lines() == ["+input", "-input"]


def test_steps_are_counted_over_loops_and_names(log: NvtxLog) -> None:
    for name in ("step", "validation"):
        for _ in gs.step([1], name=name):
            pass
    assert [text for text in log.lines() if text[0] == "+" and "input" not in text] == [
        "+step 0",
        "+validation 1",
    ]


def test_break_and_exceptions_end_the_step(log: NvtxLog) -> None:
    for _ in gs.step([1, 2]):
        break
    assert log.lines()[-1] == "-step 0"

    def fail() -> None:
        for _ in gs.step([1, 2]):
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert log.lines()[-2:] == ["+step 1", "-step 1"]
    with pytest.raises(KeyError), gs.step():
        raise KeyError
    assert log.lines()[-2:] == ["+step 2", "-step 2"]


def test_a_failing_loader_ends_the_step(log: NvtxLog) -> None:
    def batches() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(gs.step(batches()))
    assert log.lines()[-4:] == ["+step 0", "+input", "-input", "-step 0"]


def test_a_step_within_a_step_is_not_counted(log: NvtxLog, hub: step_hub.StepHub) -> None:
    listener_log = ListenerLog()
    hub.listen(listener_log)
    for _ in gs.step([1]):
        with gs.step(name="micro") as inner:
            assert inner.number is None
    with gs.step() as after:
        assert after.number == 1
    assert listener_log.events == ["+step 0", "-step 0", "+step 1", "-step 1"]
    assert "+micro" in log.lines()


def test_a_function_may_be_the_step(log: NvtxLog) -> None:
    @gs.step
    def train(x: int) -> int:
        return x

    @gs.step(name="serve")
    def serve() -> None:
        raise KeyError

    assert train(5) == 5
    with pytest.raises(KeyError):
        serve()
    assert log.lines() == ["+step 0", "-step 0", "+serve 1", "-serve 1"]


def test_listeners_hear_of_the_step_before_its_range(log: NvtxLog, hub: step_hub.StepHub) -> None:
    class Listener(ListenerLog):
        def step_began(self, number: int) -> None:
            gs.mark(f"begin {number}")

        def step_ended(self, number: int) -> None:
            gs.mark(f"end {number}")

    hub.listen(Listener())
    with gs.step():
        pass
    assert log.lines() == ["!begin 0", "+step 0", "-step 0", "!end 0"]


def test_the_loader_shows_through() -> None:
    class Loader(list[int]):
        closed = False

        def close(self) -> None:
            self.closed = True

    loader = Loader([1, 2, 3])
    loop = gs.step(loader)
    assert len(loop) == 3
    loop.close()
    assert loader.closed
    assert list(loop) == [1, 2, 3]
    assert list(loop) == [1, 2, 3]
    with pytest.raises(TypeError):
        len(gs.step(iter([1])))
    assert list(copy.deepcopy(loop)) == [1, 2, 3]


def test_a_batch_is_let_go_when_the_body_does() -> None:
    class Batch:
        pass

    for batch in gs.step(Batch() for _ in range(2)):
        gone = weakref.ref(batch)
        del batch
        assert gone() is None


def test_what_cannot_be_stepped_through_is_refused() -> None:
    async def work() -> None: ...

    with pytest.raises(UsageError, match="int"):
        gs.step(3)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="cannot decorate a generator"):
        gs.step(work)


@pytest.mark.parametrize("number", [0, 7, 123456])
def test_the_analysis_knows_our_steps(number: int) -> None:
    assert read_name(f"{step_module.STEP} {number}") == ("step #", number)
    assert read_name(step_module.INPUT) is None
