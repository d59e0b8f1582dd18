"""Steps counted by calls of a model and replays of a CUDA graph, with a stand-in for PyTorch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpusight.pace import GRAPH, MODULE
from gpusight.recording.inside import cuda_driver, module_steps, step_hub
from gpusight.recording.inside.module_steps import ModuleSteps
from gpusight.recording.inside.step_hub import StepHub

if TYPE_CHECKING:
    from collections.abc import Iterator


class Weight:
    is_cuda = True


class Program:
    """A program on a PyTorch of its own: one model with an inner module, and one graph."""

    def __init__(self, hub: StepHub) -> None:
        self.hub = hub

        class Module:
            def __init__(self) -> None:
                self.inner: Any = None

            def __call__(self) -> None:
                if self.inner is not None:
                    self.inner()

            def parameters(self) -> Iterator[Weight]:
                yield Weight()

            def buffers(self) -> Iterator[Weight]:
                return iter(())

        class CUDAGraph:
            def replay(self) -> None:
                pass

            def capture_begin(self) -> None:
                pass

            def capture_end(self) -> None:
                pass

        self.torch = SimpleNamespace(
            nn=SimpleNamespace(Module=Module), cuda=SimpleNamespace(CUDAGraph=CUDAGraph)
        )
        self.originals = dict(vars(CUDAGraph)), dict(vars(Module))
        self.steps = ModuleSteps(self.torch, wanted=lambda: True, needs_gpu=True, marks=False)
        self.steps.install()
        self.model, self.graph = Module(), CUDAGraph()
        self.model.inner = Module()

    def capture(self) -> None:
        self.graph.capture_begin()
        self.model()
        self.graph.capture_end()


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    hub = StepHub()
    monkeypatch.setattr(step_hub, "HUB", hub)
    monkeypatch.setattr(module_steps, "HUB", hub)
    monkeypatch.setattr(cuda_driver, "torch_with_gpu", lambda: None)
    return Program(hub)


def test_calls_of_the_outermost_model_are_steps(program: Program) -> None:
    for _ in range(5):
        program.model()
    assert (program.hub.next_step, program.hub.source) == (4, MODULE)


def test_calls_into_a_graph_are_no_steps(program: Program) -> None:
    program.model()
    program.capture()
    program.capture()
    assert program.hub.next_step == 0
    assert not cuda_driver.CAPTURED_GRAPHS
    program.model()
    assert program.hub.next_step == 1


def test_where_a_graph_is_replayed_instead_of_the_model_replays_are_steps(
    program: Program,
) -> None:
    for _ in range(3):
        program.model()
    program.capture()
    counted = program.hub.next_step
    for _ in range(7):
        program.graph.replay()
    assert (program.hub.next_step - counted, program.hub.source) == (5, GRAPH)
    other = type(program.graph)()
    other.replay()
    assert program.hub.next_step - counted == 5


def test_a_graph_within_steps_that_something_else_counts_is_none(program: Program) -> None:
    for _ in range(6):
        program.graph.replay()
        program.hub.end_step(program.hub.begin_step(source="optimizer"))
    assert program.hub.source == "optimizer"
    assert program.hub.next_step == 6


def test_a_graph_that_a_model_replays_is_a_part_of_its_call(program: Program) -> None:
    program.model.inner = program.graph.replay
    for _ in range(6):
        program.model()
    assert (program.hub.next_step, program.hub.source) == (5, MODULE)


def test_hooks_are_removed(program: Program) -> None:
    for _ in range(3):
        program.model()
    program.steps.remove()
    graph_names, module_names = program.originals
    assert dict(vars(program.torch.cuda.CUDAGraph)) == graph_names
    assert vars(program.torch.nn.Module)["__call__"] is module_names["__call__"]
    program.model()
    program.graph.replay()
    assert program.hub.next_step == 2
