"""Steps and ranges that begin and end in this process, and who listens."""

from __future__ import annotations

import functools
import importlib
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from gpusight.pace import GS_STEP, OPTIMIZER
from gpusight.recording.inside import nvtx_backend

if TYPE_CHECKING:
    from collections.abc import Callable


class StepListener(Protocol):
    """Is called when steps and ranges begin and end, on the thread where it happens."""

    def step_began(self, number: int) -> None:
        """Step `number`, counted from 0, begins now."""

    def step_ended(self, number: int) -> None:
        """It has ended."""

    def range_began(self, name: str) -> None:
        """A range of this name was opened."""

    def range_ended(self, name: str) -> None:
        """The last opened range of this name was closed."""


class StepHub:
    """Notifies listeners of steps and ranges, and counts steps.

    A program's own `gs.step` is more exact than a guess from its optimizer: from the first
    explicit step on, steps of hooks are ignored. Of explicit steps within each other on one
    thread (`gs.step` in the loop of a callback) the outermost counts.
    """

    def __init__(self) -> None:
        self._listeners: tuple[StepListener, ...] = ()
        self.has_listeners = False
        """Somebody listens; kept because every range needs it."""
        self.explicit = False
        self.source = ""
        """What counted the last step, one of `pace.STEP_SOURCES`."""
        self.next_step = 0
        self._inside: dict[int, int] = {}
        """Which explicit step each thread is in."""

    def listen(self, listener: StepListener) -> None:
        """Notify this one too."""
        self._listeners, self.has_listeners = (*self._listeners, listener), True

    def forget(self, listener: StepListener) -> None:
        """Notify this one no more."""
        self._listeners = tuple(known for known in self._listeners if known is not listener)
        self.has_listeners = bool(self._listeners)

    def restart(self) -> None:
        """Count from 0 again: another recording begins in this process."""
        self.explicit, self.source, self.next_step = False, "", 0
        self._inside = {}

    def begin_step(self, *, source: str = GS_STEP) -> int | None:
        """Count a step that begins; returns its number. All sources but `gs.step` are guesses.

        None when it was a guess not needed, or lies within another step: it is not counted.
        """
        thread = threading.get_ident()
        is_explicit = source == GS_STEP
        if thread in self._inside or (self.explicit and not is_explicit):
            return None
        self.source = source
        if is_explicit:
            self._trust_program()
            self._inside[thread] = self.next_step
        number = self.next_step
        self.next_step += 1
        for listener in self._listeners:
            listener.step_began(number)
        return number

    def end_step(self, number: int | None) -> None:
        """End a step, on whatever thread; None, one that did not count, is ignored."""
        if number is None:
            return
        for thread, inside in list(self._inside.items()):
            if inside == number:
                del self._inside[thread]
        for listener in self._listeners:
            listener.step_ended(number)

    def pass_step(self) -> None:
        """Count an explicit step that was not known to be one before it ended, without notice."""
        if threading.get_ident() not in self._inside:
            self._trust_program()
            self.next_step += 1

    def _trust_program(self) -> None:
        if not self.explicit:
            self.explicit, self.next_step = True, 0

    def begin_range(self, name: str) -> None:
        """Notify listeners that a range was opened."""
        for listener in self._listeners:
            listener.range_began(name)

    def end_range(self, name: str) -> None:
        """Notify listeners that a range was closed."""
        for listener in self._listeners:
            listener.range_ended(name)


HUB = StepHub()
"""The one of this process."""


class GuessedSteps:
    """Counts steps in the hub where each ends as the next begins.

    `marks` also names them in NVTX, as start/end ranges: those disturb no stack and span the
    threads of the backward pass.
    """

    def __init__(self, source: str, *, marks: bool) -> None:
        self._source, self._marks = source, marks
        self._number: int | None = None
        self._range: object = None

    def begin_unmarked(self) -> None:
        """Begin the first step where its begin is only a guess, so that it gets no range."""
        if self._number is None:
            self._number = HUB.begin_step(source=self._source)

    def advance(self) -> None:
        """End the step that is open, if one is, and begin the next."""
        self.end()
        self._number = HUB.begin_step(source=self._source)
        if self._marks and self._number is not None:
            self._range = nvtx_backend.start_range(
                f"step {self._number}", domain=nvtx_backend.DOMAIN
            )

    def end(self) -> None:
        """End the step that is open."""
        nvtx_backend.end_range(self._range)
        number, self._range, self._number = self._number, None, None
        if not HUB.explicit:
            HUB.end_step(number)


class OptimizerSteps:
    """Counts the steps of one PyTorch optimizer in the hub; where the first began is a guess."""

    def __init__(self, torch: Any, on_new_optimizer: Callable[[], None], *, marks: bool) -> None:
        self._torch, self._on_new_optimizer = torch, on_new_optimizer
        self._guessed = GuessedSteps(OPTIMIZER, marks=marks)
        self._first: weakref.ref[Any] | None = None
        self.steps = 0
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Hook PyTorch; versions before 2.0 have no such hooks, and only `gs.step` counts."""
        optimizer = importlib.import_module("torch.optim.optimizer")  # torch has it loaded
        register = getattr(optimizer, "register_optimizer_step_post_hook", None)
        if register is None:
            return
        self._undo.append(register(self._count_step).remove)
        self._wrap(optimizer.Optimizer, "__init__", self._new_optimizer)
        # Where gradients overflowed, these leave a step of the optimizer out.
        modules = (getattr(self._torch, "amp", None), getattr(self._torch.cuda, "amp", None))
        scalers = {getattr(module, "GradScaler", None) for module in modules}
        for scaler in scalers:
            if scaler is not None and "step" in vars(scaler):
                self._wrap(scaler, "step", self._count_left_out)

    def remove(self) -> None:
        """Remove every hook. A range stays open: what follows the last step is none."""
        while self._undo:
            self._undo.pop()()

    def _wrap(self, owner: Any, name: str, then: Callable[..., None]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            before = self.steps
            result = original(*args, **kwargs)
            if self._undo:
                then(before, *args)
            return result

        def unwrap() -> None:
            if getattr(owner, name) is wrapper:  # else somebody wrapped it again, and calls ours
                setattr(owner, name, original)

        setattr(owner, name, wrapper)
        self._undo.append(unwrap)

    def _new_optimizer(self, _before: int, *_: Any) -> None:
        """Begin step 0: programs make their optimizer just before they loop."""
        self._on_new_optimizer()
        if self.steps == 0:
            self._guessed.begin_unmarked()

    def _count_left_out(self, before: int, _scaler: Any, optimizer: Any, *_: Any) -> None:
        """Count a step that was left out; one that was taken is counted already."""
        if self.steps == before and self._is_ours(optimizer):
            self._next()

    def _count_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        compiler = getattr(self._torch, "compiler", None)
        is_compiling = getattr(compiler, "is_compiling", lambda: False)
        from gpusight.recording.inside import cuda_driver  # ctypes, not before it is needed

        if is_compiling() or cuda_driver.is_capturing():
            return
        if self._is_ours(optimizer):
            self._next()

    def _is_ours(self, optimizer: Any) -> bool:
        """Follow one optimizer; when it is gone, the next that steps."""
        if self._first is None or self._first() is None:
            self._first = weakref.ref(optimizer)
        return self._first() is optimizer

    def _next(self) -> None:
        self.steps += 1
        self._guessed.advance()
