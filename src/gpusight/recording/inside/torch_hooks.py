"""PyTorch in this process: its optimizer's steps, whether its profiler runs, its memory history."""

from __future__ import annotations

import functools
import importlib
import weakref
from typing import TYPE_CHECKING, Any, cast

from gpusight.recording.inside import nvtx_backend
from gpusight.recording.inside.step_hub import HUB

if TYPE_CHECKING:
    from collections.abc import Callable


class OptimizerSteps:
    """The steps of one optimizer, told to the hub.

    `marks` also names each step but the first in NVTX, as a start/end range: that disturbs no
    stack and spans the threads of the backward pass. Where the first began is only a guess.
    """

    def __init__(self, torch: Any, made: Callable[[], None], *, marks: bool) -> None:
        self._torch, self._made, self._marks = torch, made, marks
        self._first: weakref.ref[Any] | None = None
        self._steps = 0
        self._number: int | None = None
        self._range: object = None
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Hook PyTorch; versions before 2.0 have no such hooks, and only `gs.step` tells."""
        optimizer = importlib.import_module("torch.optim.optimizer")  # torch has it loaded
        register = getattr(optimizer, "register_optimizer_step_post_hook", None)
        if register is None:
            return
        self._undo.append(register(self._stepped).remove)
        self._wrap(optimizer.Optimizer, "__init__", self._was_made)
        for scaler in self._scalers():
            self._wrap(scaler, "step", self._scaled)

    def remove(self) -> None:
        """Take every hook away. A range stays open: what follows the last step is none."""
        while self._undo:
            self._undo.pop()()

    def _scalers(self) -> list[Any]:
        """Give the classes that may leave a step out, where gradients overflowed."""
        torch = self._torch
        places = (getattr(torch, "amp", None), getattr(torch.cuda, "amp", None))
        found = (getattr(place, "GradScaler", None) for place in places)
        return list({scaler for scaler in found if scaler is not None and "step" in vars(scaler)})

    def _wrap(self, owner: Any, name: str, then: Callable[..., None]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            before = self._steps
            result = original(*args, **kwargs)
            if self._undo:
                then(before, *args)
            return result

        def unwrap() -> None:
            if getattr(owner, name) is wrapper:  # else somebody wrapped it again, and calls ours
                setattr(owner, name, original)

        setattr(owner, name, wrapper)
        self._undo.append(unwrap)

    def _was_made(self, _before: int, *_: Any) -> None:
        """Begin step 0: programs make their optimizer just before they loop."""
        self._made()
        if self._steps == 0 and self._number is None:
            self._number = HUB.begin_step(explicit=False)

    def _scaled(self, before: int, _scaler: Any, optimizer: Any, *_: Any) -> None:
        """Count a step that was left out; one that was taken is counted already."""
        if self._steps == before and self._is_ours(optimizer):
            self._next()

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if _is_compiling(self._torch) or not self._is_ours(optimizer):
            return
        self._next()

    def _is_ours(self, optimizer: Any) -> bool:
        """Follow one optimizer; when it is gone, the next that steps."""
        if self._first is None or self._first() is None:
            self._first = weakref.ref(optimizer)
        return self._first() is optimizer

    def _next(self) -> None:
        self._steps += 1
        self._close()
        if not HUB.explicit:
            HUB.end_step(self._number)
        self._number = HUB.begin_step(explicit=False)
        if self._marks and self._number is not None:
            self._range = nvtx_backend.start_range(
                f"step {self._number}", domain=nvtx_backend.DOMAIN
            )

    def _close(self) -> None:
        nvtx_backend.end_range(self._range)
        self._range = None


def _is_compiling(torch: Any) -> bool:
    """Tell whether `torch.compile` is reading us rather than Python running us."""
    compiler = getattr(torch, "compiler", None)
    is_compiling = getattr(compiler, "is_compiling", None)
    return bool(is_compiling()) if is_compiling is not None else False


def profiler_runs(torch: Any) -> bool:
    """Tell whether one runs: two at once are not possible.

    A profiler of one thread says so on that thread, one of all threads in a module's variable,
    which PyTorch has since 2.1.
    """
    everywhere = getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    return bool(everywhere or torch.autograd._profiler_enabled())


def range_recorder(torch: Any) -> Callable[[], bool]:
    """Give what tells, fast, whether a profiler would record a range of this thread.

    `emit_nvtx` counts as a profiler, too, but would only repeat what we tell NVTX ourselves.
    """
    profiler, here = torch.autograd.profiler, torch.autograd._profiler_enabled
    kind = getattr(torch._C._autograd, "_profiler_type", None)
    if kind is None or not hasattr(profiler, "_is_profiler_enabled"):
        return cast("Callable[[], bool]", here)
    return lambda: (profiler._is_profiler_enabled or here()) and kind().name != "NVTX"


_ENTRIES = 1_000_000


class AllocatorHistory:
    """Switches the history on and off again; one that the program keeps itself is left on."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        is_kept = getattr(torch._C, "_cuda_isHistoryEnabled", bool)
        self._is_ours = not is_kept()
        if self._is_ours:
            record = torch.cuda.memory._record_memory_history
            record("all", stacks="python", max_entries=_ENTRIES)

    def snapshot(self) -> dict[str, Any]:
        """Give the history, and the memory as it is now."""
        taken: dict[str, Any] = self._torch.cuda.memory._snapshot()
        return taken

    def end(self) -> None:
        """Keep no more of it."""
        if self._is_ours:
            self._is_ours = False
            self._torch.cuda.memory._record_memory_history(None)
