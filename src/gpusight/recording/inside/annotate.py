"""Ranges and marks in people's own code.

`gs.annotate` and `gs.mark`, and opening a range for any listener.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast, overload

from gpusight.errors import UsageError
from gpusight.recording.inside import nvtx_backend
from gpusight.recording.inside.step_hub import HUB
from gpusight.recording.inside.torch_hooks import range_recorder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from typing_extensions import Self

    Function = TypeVar("Function", bound=Callable[..., Any])


class OpenRange(NamedTuple):
    """A range that somebody heard, and what closes it."""

    domain: str | None
    told: str | None
    """What listeners were told."""
    speaker: nvtx_backend.NvtxBackend | None
    handle: Any
    """Of a start/end range; None for push/pop."""
    recorded: Any
    """PyTorch's `record_function`."""


class _Torch:
    """PyTorch's profiler and compiler, where the program has imported them; we never do."""

    def __init__(self) -> None:
        self.records: Callable[[], bool] = self._records
        self.compiles: Callable[[], bool] = self._compiles

    def find(self) -> bool:
        """Look for them; once found, they are asked without looking."""
        torch = sys.modules.get("torch")
        if torch is None:
            return False
        autograd = getattr(torch, "autograd", None)  # not there while torch is being imported
        if not (hasattr(autograd, "profiler") and hasattr(autograd, "_profiler_enabled")):
            return False
        compiler = getattr(torch, "compiler", None)
        compiles = self.compiles = getattr(compiler, "is_compiling", lambda: False)
        records = range_recorder(torch)
        self.records = lambda: not compiles() and records()
        return True

    def _records(self) -> bool:
        """Tell whether the profiler runs."""
        return self.find() and self.records()

    def _compiles(self) -> bool:
        """Tell whether the compiler is tracing what we are called from."""
        return self.find() and self.compiles()


_TORCH = _Torch()
_TORCH.find()


def listened() -> bool:
    """Tell whether anybody would hear a range that this thread opens now.

    Nobody does in a function that `torch.compile` traces: its parts do not run one by one, and
    opening a range would break its graph.
    """
    heard = not nvtx_backend.CHOICE.quiet or HUB.heard or _TORCH.records()
    return heard and not _TORCH.compiles()


def compiling() -> bool:
    """Tell whether `torch.compile` is tracing what calls this."""
    return _TORCH.compiles()


def open_range(
    name: str | None,
    domain: str | None = None,
    category: str | int | None = None,
    color: int | None = None,
    payload: float | None = None,
) -> OpenRange:
    """Open a range on this thread's stack.

    Listeners come first: what they switch on shall see the range.
    """
    name = name or "range"
    told = _notify(name, domain)
    speaker = nvtx_backend.backend()
    if speaker is not None:
        speaker.push(nvtx_backend.NvtxEvent(name, domain, category, color, payload))
    return OpenRange(domain, told, speaker, None, record_range(name))


def start_range(
    name: str | None,
    domain: str | None = None,
    category: str | int | None = None,
    color: int | None = None,
    payload: float | None = None,
) -> OpenRange | None:
    """Open a range that any thread may close, in any order; None where nobody listens."""
    name = name or "range"
    told = _notify(name, domain)
    speaker = nvtx_backend.backend()
    if told is None and speaker is None:
        return None
    event = nvtx_backend.NvtxEvent(name, domain, category, color, payload)
    handle = speaker.start(event) if speaker else None
    return OpenRange(domain, told, speaker, handle, None)


def close_range(opened: OpenRange | None) -> None:
    """Close a range, whoever heard it open and whoever listens by now."""
    if opened is None:
        return
    if opened.recorded is not None:
        opened.recorded.__exit__(None, None, None)
    if opened.speaker is not None:
        if opened.handle is None:
            opened.speaker.pop(opened.domain)
        else:
            opened.speaker.end(opened.handle)
    if opened.told is not None:
        HUB.end_range(opened.told)


def _notify(name: str, domain: str | None) -> str | None:
    """Tell listeners of a range, as `name@domain` where it has one."""
    if not HUB.heard:
        return None
    told = name if domain is None else f"{name}@{domain}"
    HUB.begin_range(told)
    return told


def record_range(name: str) -> Any:
    """Open a range in PyTorch's profiler, if it runs."""
    if not _TORCH.records():
        return None
    recorded = sys.modules["torch"].autograd.profiler.record_function(name)
    recorded.__enter__()
    return recorded


_MAX_PAYLOAD = 2**63 - 1
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
            color = nvtx_backend.argb(color)
        if payload is not None:
            payload = _checked(payload)
        self._what = (name, domain, category, color, payload)
        self._opened: dict[int, list[OpenRange | None]] = {}

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
    shade = nvtx_backend.argb(color) if color is not None else None
    speaker = nvtx_backend.backend()
    if speaker is not None:
        speaker.mark(nvtx_backend.NvtxEvent(name, domain, category, shade, payload))
    recorded = record_range(name)
    if recorded is not None:
        recorded.__exit__(None, None, None)


def _checked(payload: float) -> float:
    """Refuse what NVTX cannot hold, also while nobody listens."""
    if isinstance(payload, int) and abs(payload) <= _MAX_PAYLOAD:
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
