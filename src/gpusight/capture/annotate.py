"""Ranges and marks in people's own code: `gs.annotate` and `gs.mark`.

A range goes to whoever listens: a tool that hears NVTX, PyTorch's profiler while it runs, and the
recorder of `gpusight record`. Where nobody does, it costs a few hundred nanoseconds and nothing is
imported.
"""

from __future__ import annotations

import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from gpusight.capture import nvtx
from gpusight.capture.opening import (
    Opened,
    close_range,
    listened,
    open_range,
    record,
    start_range,
)
from gpusight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from typing_extensions import Self

    Function = TypeVar("Function", bound=Callable[..., Any])

_LARGEST_PAYLOAD = 2**63 - 1
_TASKS = 0
"""Stands for all tasks where a thread's number would; no thread has it."""


class Annotation:
    """A range to be opened and closed, any number of times and on any thread.

    `with` opens it on the thread's stack. `async with`, and the decorator on a coroutine, open
    a range without a stack, because other tasks run on the thread meanwhile; PyTorch's profiler
    has no such ranges and does not see it. A decorated generator has one range for each time it
    runs, up to its next `yield`.
    """

    __slots__ = ("_opened", "_what")

    def __init__(
        self,
        name: str | None = None,
        domain: str | None = None,
        category: str | int | None = None,
        color: str | int | None = None,
        payload: float | None = None,
    ) -> None:
        if color is not None:
            color = nvtx.argb(color)
        if payload is not None:
            payload = _checked(payload)
        self._what = (name, domain, category, color, payload)
        self._opened: dict[int, list[Opened | None]] = {}

    def __enter__(self) -> Self:
        """Open it on this thread."""
        if listened() or self._opened:
            self._open()
        return self

    def __exit__(self, *_: object) -> None:
        """Close what this thread opened last."""
        if self._opened:
            self._close()

    def _open(self) -> None:
        """Open it, or note that nobody hears it now while it is open further out."""
        mine = self._opened.setdefault(threading.get_ident(), [])
        mine.append(open_range(*self._what) if listened() else None)

    def _close(self) -> None:
        """Close it, unless it was opened before anybody listened."""
        thread = threading.get_ident()
        mine = self._opened.get(thread)
        if mine is None:
            return
        last = mine.pop()
        if not mine:
            del self._opened[thread]
        close_range(last)

    async def __aenter__(self) -> Self:
        """Open it for this task."""
        self._opened.setdefault(_TASKS, []).append(start_range(*self._what))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it; of several tasks that share one, it does not matter which closes which."""
        close_range(self._opened[_TASKS].pop())

    def __call__(self, function: Function) -> Function:
        """Open it whenever the function runs."""
        what = (self._what[0] or _name_of(function), *self._what[1:])
        return cast("Function", _wrapped(function, what))


@overload
def annotate(name: Function, /) -> Function: ...


@overload
def annotate(
    name: str | None = None,
    *,
    domain: str | None = None,
    category: str | int | None = None,
    color: str | int | None = None,
    payload: float | None = None,
) -> Annotation: ...


def annotate(
    name: Any = None,
    *,
    domain: str | None = None,
    category: str | int | None = None,
    color: str | int | None = None,
    payload: float | None = None,
) -> Any:
    """Name a part of a program: a context manager, and a decorator.

    >>> with gs.annotate("tokenise", category="input", color="orange"): ...
    >>> @gs.annotate
    ... def forward(batch): ...

    A decorated function gives the range its name unless there is one. `color` is a name,
    `#rrggbb` or 0xAARRGGBB; `payload` a number shown with the range.
    """
    if callable(name):
        return Annotation()(name)
    return Annotation(name, domain, category, color, payload)


def mark(
    name: str,
    *,
    domain: str | None = None,
    category: str | int | None = None,
    color: str | int | None = None,
    payload: float | None = None,
) -> None:
    """Say that something happens now, as a mark without length.

    PyTorch's profiler gets a range that is closed at once.
    """
    if payload is not None:
        payload = _checked(payload)
    shade = nvtx.argb(color) if color is not None else None
    speaker = nvtx.backend()
    if speaker is not None:
        speaker.mark(nvtx.Event(name, domain, category, shade, payload))
    recorded = record(name)
    if recorded is not None:
        recorded.__exit__(None, None, None)


def _checked(payload: float) -> float:
    """Refuse what NVTX cannot hold, also while nobody listens."""
    if isinstance(payload, int) and abs(payload) <= _LARGEST_PAYLOAD:
        return int(payload)
    if isinstance(payload, float):
        return payload
    raise UsageError(f"payload {payload!r} is not a number of 64 bits")


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__


def _wrapped(function: Any, what: tuple[Any, ...]) -> Any:
    """Wrap a function of whatever kind."""
    for is_kind, wrap in (
        (inspect.isasyncgenfunction, _async_generator),
        (inspect.iscoroutinefunction, _coroutine),
        (inspect.isgeneratorfunction, _generator),
    ):
        if is_kind(function):
            return functools.wraps(function)(wrap(function, what))
    return functools.wraps(function)(_plain(function, what))


def _plain(function: Callable[..., Any], what: tuple[Any, ...]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not listened():
            return function(*args, **kwargs)
        opened = open_range(*what)
        try:
            return function(*args, **kwargs)
        finally:
            close_range(opened)

    return run


def _coroutine(function: Callable[..., Awaitable[Any]], what: tuple[Any, ...]) -> Any:
    async def run(*args: Any, **kwargs: Any) -> Any:
        opened = start_range(*what)
        try:
            return await function(*args, **kwargs)
        finally:
            close_range(opened)

    return run


def _generator(function: Callable[..., Generator[Any, Any, Any]], what: tuple[Any, ...]) -> Any:
    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        resume = functools.partial(next, inner)
        while True:
            with Annotation(*what):
                try:
                    value = resume()
                except StopIteration as end:
                    return end.value
            try:
                resume = functools.partial(inner.send, (yield value))
            except GeneratorExit:
                with Annotation(*what):
                    inner.close()
                raise
            except BaseException as error:  # noqa: BLE001 - passed on to the generator
                resume = functools.partial(inner.throw, error)

    return run


def _async_generator(
    function: Callable[..., AsyncGenerator[Any, Any]], what: tuple[Any, ...]
) -> Any:
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        resume = inner.__anext__
        while True:
            opened = start_range(*what)
            try:
                value = await resume()
            except StopAsyncIteration:
                return
            finally:
                close_range(opened)
            try:
                resume = functools.partial(inner.asend, (yield value))
            except GeneratorExit:
                await inner.aclose()
                raise
            except BaseException as error:  # noqa: BLE001 - passed on to the generator
                resume = functools.partial(inner.athrow, error)

    return run
