"""Steps of programs without an optimizer: calls of the outermost model on the GPU."""

from __future__ import annotations

import functools
import itertools
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from gpusight.pace import MODULE
from gpusight.recording.inside.environment import log_error
from gpusight.recording.inside.step_hub import GuessedSteps

if TYPE_CHECKING:
    from collections.abc import Callable


_CALLS_OF_A_LOOP = 2
"""A model that was called this often is the one whose calls are steps."""


class _Depth(threading.local):
    """How deep this thread is in calls of modules."""

    calls = 0


class ModuleSteps:
    """Counts the calls of one `nn.Module` in the hub: the first outermost one called repeatedly.

    Until it is found, every call of a module is looked at, which costs a few hundred nanoseconds;
    from then on only those of its class. Modules without weights on the GPU (transforms of images,
    losses) are not models. `wanted` returns whether calls count: a program with an optimizer
    has better steps.
    """

    def __init__(
        self, torch: Any, *, wanted: Callable[[], bool], needs_gpu: bool, marks: bool
    ) -> None:
        self._torch, self._wanted, self._needs_gpu = torch, wanted, needs_gpu
        self._guessed = GuessedSteps(MODULE, marks=marks)
        self._depth = _Depth()
        self._calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._model: weakref.ref[Any] | None = None
        self._undo: Callable[[], None] | None = None
        self.built_s: float | None = None
        """When the program last built a module, by the monotonic clock."""

    def install(self) -> None:
        """Look at every call of a module, and learn that some are built."""
        module = self._torch.nn.Module
        initialize, call = module.__init__, module.__call__
        is_compiling = self._is_compiling()

        @functools.wraps(initialize)
        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - replaces theirs
            self.built_s = time.monotonic()
            initialize(made, *args, **kwargs)

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

    def remove(self) -> None:
        """Look at calls no more. The range of the last step stays open: what follows is none."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def end(self) -> None:
        """End the step that is open: other steps are counted from here on."""
        self._guessed.end()

    def _is_compiling(self) -> Callable[[], bool]:
        """Return what is true while torch.compile traces: a call is then no call."""
        compiler = getattr(self._torch, "compiler", None)
        return getattr(compiler, "is_compiling", lambda: False)

    def _called(self, module: Any) -> None:
        """Count a call of an outermost module; nothing that goes wrong reaches the program."""
        try:
            if self._undo is None or not self._wanted():
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

    def _is_model(self, module: Any) -> bool:
        weights = itertools.chain(module.parameters(), module.buffers())
        if not self._needs_gpu:
            return next(weights, None) is not None
        return any(weight.is_cuda for weight in weights)

    def _follow(self, model: Any) -> None:
        """Look at this model's calls from here on, and at no others."""
        self.remove()
        self._model = weakref.ref(model)
        self._calls.clear()
        kind = type(model)
        call, is_own, is_compiling = kind.__call__, "__call__" in vars(kind), self._is_compiling()

        @functools.wraps(call)
        def __call__(called: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - replaces theirs
            if not is_compiling():
                self._called(called)
            return call(called, *args, **kwargs)

        def undo() -> None:
            if vars(kind).get("__call__") is not __call__:
                return
            if is_own:
                kind.__call__ = call
            else:
                del kind.__call__

        kind.__call__ = __call__
        self._undo = undo
