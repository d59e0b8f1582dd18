"""Steps of programs without an optimizer: calls of the outermost model, replays of a graph."""

from __future__ import annotations

import functools
import itertools
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from gpusight.pace import GRAPH, MODULE
from gpusight.recording.inside import cuda_driver
from gpusight.recording.inside.environment import log_error
from gpusight.recording.inside.step_hub import HUB, GuessedSteps

if TYPE_CHECKING:
    from collections.abc import Callable


_CALLS_OF_A_LOOP = 2
"""A model that was called this often is the one whose calls are steps."""
_REPLAYS_OF_A_LOOP = 3
"""A graph that was replayed this often, while nothing else counted a step, is what steps do."""


class _Depth(threading.local):
    """How deep this thread is in calls of modules."""

    calls = 0


class ModuleSteps:
    """Counts the calls of one `nn.Module` in the hub: the first outermost one called repeatedly.

    Until it is found, every call of a module is looked at, which costs a few hundred nanoseconds;
    from then on only those of its class. Modules without weights on the GPU (transforms of images,
    losses) are not models. Calls while a stream is captured into a CUDA graph do not count; where
    the program then replays the graph instead of calling its model, replays are the steps.
    `wanted` returns whether calls count: a program with an optimizer has better steps.
    """

    def __init__(
        self, torch: Any, *, wanted: Callable[[], bool], needs_gpu: bool, marks: bool
    ) -> None:
        self._torch, self._wanted, self._needs_gpu = torch, wanted, needs_gpu
        self._guessed = GuessedSteps(MODULE, marks=marks)
        self._replayed_steps = GuessedSteps(GRAPH, marks=marks)
        self._depth = _Depth()
        self._calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._model: weakref.ref[Any] | None = None
        self._graph: weakref.ref[Any] | None = None
        self._replays = 0
        """Of that graph, since anything else counted a step."""
        self._known_steps = 0
        self._undo: Callable[[], None] | None = None
        self._undo_replay: Callable[[], None] | None = None
        self.built_s: float | None = None
        """When the program last built a module, by the monotonic clock."""

    def install(self) -> None:
        """Look at every call of a module, and learn that some are built."""
        module = self._torch.nn.Module
        initialize, call = module.__init__, module.__call__
        is_compiling = self._is_compiling()

        @functools.wraps(initialize)
        def __init__(new_module: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - replaces theirs
            self.built_s = time.monotonic()
            initialize(new_module, *args, **kwargs)

        @functools.wraps(call)
        def __call__(called: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - replaces theirs
            if is_compiling() or self._depth.calls:
                return call(called, *args, **kwargs)
            self._called(called)
            self._depth.calls = 1
            try:
                return call(called, *args, **kwargs)
            finally:
                self._depth.calls = 0

        def undo() -> None:
            if module.__init__ is __init__:  # else somebody wrapped ours, and calls it
                module.__init__ = initialize
            if module.__call__ is __call__:
                module.__call__ = call

        module.__init__, module.__call__ = __init__, __call__
        self._undo = undo
        self._watch_graphs()

    def _watch_graphs(self) -> None:
        """Look at every replay of a graph, and learn when one is captured."""
        kind = getattr(self._torch.cuda, "CUDAGraph", None)
        names = ("replay", "capture_begin", "capture_end")
        if kind is None or not vars(kind).keys() >= set(names):
            return
        originals = {name: getattr(kind, name) for name in names}

        @functools.wraps(originals["replay"])
        def replay(graph: Any) -> Any:
            if not self._depth.calls:
                self._replayed(graph)
            return originals["replay"](graph)

        @functools.wraps(originals["capture_begin"])
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            cuda_driver.CAPTURED_GRAPHS.add(id(graph))
            return originals["capture_begin"](graph, *args, **kwargs)

        @functools.wraps(originals["capture_end"])
        def capture_end(graph: Any) -> Any:
            try:
                return originals["capture_end"](graph)
            finally:
                cuda_driver.CAPTURED_GRAPHS.discard(id(graph))

        watched = (replay, capture_begin, capture_end)

        def undo() -> None:
            for name, wrapper in zip(names, watched, strict=True):
                if getattr(kind, name) is wrapper:
                    setattr(kind, name, originals[name])

        for name, wrapper in zip(names, watched, strict=True):
            setattr(kind, name, wrapper)
        self._undo_replay = undo

    def remove(self) -> None:
        """Look at calls no more. The range of the last step stays open: what follows is none."""
        self._look_away()
        if self._undo_replay is not None:
            self._undo_replay()
            self._undo_replay = None

    def _look_away(self) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None

    def end(self) -> None:
        """End the step that is open: other steps are counted from here on."""
        self._guessed.end()
        self._replayed_steps.end()

    def _is_compiling(self) -> Callable[[], bool]:
        """Return what is true while torch.compile traces: a call is then no call."""
        compiler = getattr(self._torch, "compiler", None)
        return getattr(compiler, "is_compiling", lambda: False)

    def _called(self, module: Any) -> None:
        """Count a call of an outermost module; nothing that goes wrong reaches the program."""
        try:
            if self._undo is None or not self._wanted() or cuda_driver.is_capturing():
                return
            if self._model is None and self._is_model(module):
                self._calls[module] = self._calls.get(module, 0) + 1
                if self._calls[module] >= _CALLS_OF_A_LOOP:
                    self._follow(module)
            if self._model is not None and self._model() is module:
                self._guessed.advance()
        except Exception as error:  # noqa: BLE001 - the program must not feel that we failed
            self.remove()
            log_error("counting calls of a model", error)

    def _replayed(self, graph: Any) -> None:
        """Count a replay outside of calls of a model; nothing that goes wrong reaches anyone."""
        try:
            if self._undo_replay is None or HUB.explicit:
                return
            if self._graph is None or self._graph() is None:
                self._graph, self._replays = weakref.ref(graph), 0
            if self._graph() is not graph:
                return  # one of several graphs of a step
            if self._known_steps != HUB.next_step:
                self._known_steps, self._replays = HUB.next_step, 0
            self._replays += 1
            if self._replays == _REPLAYS_OF_A_LOOP:
                self._look_away()
                self._guessed.end()
            if self._replays >= _REPLAYS_OF_A_LOOP:
                self._replayed_steps.advance()
                self._known_steps = HUB.next_step
        except Exception as error:  # noqa: BLE001 - the program must not feel that we failed
            self.remove()
            log_error("counting replays of a graph", error)

    def _is_model(self, module: Any) -> bool:
        weights = itertools.chain(module.parameters(), module.buffers())
        if not self._needs_gpu:
            return next(weights, None) is not None
        return any(weight.is_cuda for weight in weights)

    def _follow(self, model: Any) -> None:
        """Look at this model's calls from here on, and at no others."""
        self._look_away()
        self._model = weakref.ref(model)
        self._calls.clear()
        kind = type(model)
        call, is_own, is_compiling = kind.__call__, "__call__" in vars(kind), self._is_compiling()

        @functools.wraps(call)
        def __call__(called: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - replaces theirs
            if is_compiling():
                return call(called, *args, **kwargs)
            self._called(called)
            self._depth.calls += 1
            try:
                return call(called, *args, **kwargs)
            finally:
                self._depth.calls -= 1

        def undo() -> None:
            if vars(kind).get("__call__") is not __call__:
                return
            if is_own:
                kind.__call__ = call
            else:
                del kind.__call__

        kind.__call__ = __call__
        self._undo = undo
