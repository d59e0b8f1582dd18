"""A part of a program that a profiler around it shall record: `gs.profile`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
import warnings
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpusight.errors import RecordError, UsageError
from gpusight.recording.inside import cuda_driver, nvtx_backend
from gpusight.recording.inside.annotate import (
    OpenRange,
    close_range,
    is_recording,
    open_range,
    start_range,
)
from gpusight.recording.inside.environment import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from typing_extensions import Self

    Function = TypeVar("Function", bound=Callable[..., Any])


class ProfilerUnavailableWarning(UserWarning):
    """A part should be recorded, and there is no CUDA here to switch a profiler on."""


class _Switch:
    """The profiler around this process. The outermost part switches it on and off."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may have a part of its own
        self._parts = 0
        self._on = False
        self._warned = False

    def enter(self, *, strict: bool) -> None:
        """Switch the profiler on, if this is the first part that is open."""
        with self._lock:
            # `gpusight record` switches the profiler on and off itself.
            if self._parts == 0 and VARIABLE not in os.environ:
                self._start(strict=strict)
            self._parts += 1

    def leave(self, *, strict: bool) -> None:
        """Switch it off, if this was the last."""
        with self._lock:
            self._parts -= 1
            if self._parts == 0 and self._on:
                self._on = False
                self._stop(strict=strict)

    def _start(self, *, strict: bool) -> None:
        try:
            _finish_gpu_work()
            cuda_driver.profiler_start()
        except RecordError as error:
            if strict:
                raise
            self._warn(f"gs.profile could not start a profiler: {error}")
        else:
            self._on = True

    def _stop(self, *, strict: bool) -> None:
        try:
            _finish_gpu_work()
            cuda_driver.profiler_stop()
        except RecordError as error:
            if strict:
                raise
            self._warn(f"gs.profile could not stop the profiler: {error}")

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(text, ProfilerUnavailableWarning, stacklevel=7)


_SWITCH = _Switch()


def _finish_gpu_work() -> None:
    """Wait for the GPU, so that the recording has all GPU activity of the part and nothing else.

    Only where a tool may be recording; a part that nobody records does not slow the program.
    """
    if nvtx_backend.backend() is not None:
        cuda_driver.wait_for_gpus()


class profile:  # noqa: N801 - used like a function: with gs.profile("name")
    """Let the profiler around the program record this part: a context manager, and a decorator.

    >>> with gs.profile("one step"):
    ...     train(batch)

    Parts may be nested and may overlap on several threads: recording lasts from the first that
    is opened to the last that is closed, also when they end in an exception. The part is an NVTX
    range of that name, too, unless `range` is False. `gpusight record --range NAME` records it
    with any tool; under `record --steps` it is a range only. Without CUDA there is one
    warning and the program runs unrecorded; with `strict` that is an error.
    """

    def __init__(
        self,
        name: str = "profile",
        *,
        strict: bool = False,
        range: bool = True,  # noqa: A002 - read as gs.profile("name", range=False)
    ) -> None:
        if not isinstance(name, str):
            raise UsageError("gs.profile needs parentheses", hint='write @gs.profile("name")')
        self.name = name
        self._strict = strict
        self._range = range
        self._inside: dict[int, list[AbstractContextManager[None]]] = {}

    def __enter__(self) -> Self:
        """Record from here on."""
        part = self._part(_open)
        part.__enter__()
        self._inside.setdefault(threading.get_ident(), []).append(part)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Record no more."""
        self._inside[threading.get_ident()].pop().__exit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        """Record the function whenever it runs."""
        if inspect.isasyncgenfunction(function):
            raise UsageError(
                "gs.profile cannot decorate an asynchronous generator", hint="use it inside"
            )

        def run(*args: Any, **kwargs: Any) -> Any:
            with self._part(_open):
                return function(*args, **kwargs)

        async def run_coroutine(*args: Any, **kwargs: Any) -> Any:
            with self._part(start_range):
                return await function(*args, **kwargs)

        def run_generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with self._part(start_range):
                return (yield from function(*args, **kwargs))

        wrapper: Any = run
        if inspect.iscoroutinefunction(function):
            wrapper = run_coroutine
        elif inspect.isgeneratorfunction(function):
            wrapper = run_generator
        return cast("Function", functools.wraps(function)(wrapper))

    @contextlib.contextmanager
    def _part(self, opening: Callable[[str], OpenRange | None]) -> Iterator[None]:
        """Switch the profiler on first and off last, so that the range is recorded."""
        _SWITCH.enter(strict=self._strict)
        try:
            opened = opening(self.name) if self._range else None
            try:
                yield
            finally:
                close_range(opened)
        finally:
            _SWITCH.leave(strict=self._strict)


def _open(name: str) -> OpenRange | None:
    """Open a range on this thread's stack, if anybody listens."""
    return open_range(name) if is_recording() else None
