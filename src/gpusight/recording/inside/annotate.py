"""Ranges and marks in people's own code: `gs.annotate` and `gs.mark`; ranges for any listener."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast, overload

from gpusight.errors import UsageError
from gpusight.recording.inside import nvtx_backend
from gpusight.recording.inside.step_hub import HUB

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from typing_extensions import Self

    Function = TypeVar("Function", bound=Callable[..., Any])


class OpenRange(NamedTuple):
    """An open range, and what closes it."""

    domain: str | None
    hub_name: str | None
    """The name that listeners of the hub got."""
    backend: nvtx_backend.NvtxBackend | None
    handle: Any
    """Of a start/end range; None for push/pop."""
    record_function: Any
    """PyTorch's."""


def range_recorder(torch: Any) -> Callable[[], bool]:
    """Return what checks, fast, whether a profiler would record a range of this thread.

    `emit_nvtx` counts as a profiler, too, but would only repeat our own NVTX ranges.
    """
    profiler, here = torch.autograd.profiler, torch.autograd._profiler_enabled
    kind = getattr(torch._C._autograd, "_profiler_type", None)
    if kind is None or not hasattr(profiler, "_is_profiler_enabled"):
        return cast("Callable[[], bool]", here)
    return lambda: (profiler._is_profiler_enabled or here()) and kind().name != "NVTX"


class _Torch:
    """PyTorch's profiler and compiler, where the program has imported them; we never do."""

    def __init__(self) -> None:
        # Both are replaced by PyTorch's own functions once it is found.
        self.records: Callable[[], bool] = lambda: self.find() and self.records()
        """Whether the profiler runs."""
        self.compiles: Callable[[], bool] = lambda: self.find() and self.compiles()
        """Whether the compiler is tracing what we are called from."""

    def find(self) -> bool:
        """Look for them; once found, they are called without looking."""
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


_TORCH = _Torch()
_TORCH.find()


def is_recording() -> bool:
    """Return whether a profiler or a listener takes a range that this thread opens now.

    Nothing does in a function that `torch.compile` traces: its parts do not run one by one, and
    opening a range would break its graph.
    """
    listening = not nvtx_backend.CHOICE.is_off or HUB.has_listeners or _TORCH.records()
    return listening and not _TORCH.compiles()


def compiling() -> bool:
    """Return whether `torch.compile` is tracing what calls this."""
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
    hub_name = _notify(name, domain)
    backend = nvtx_backend.backend()
    if backend is not None:
        backend.push(nvtx_backend.NvtxEvent(name, domain, category, color, payload))
    return OpenRange(domain, hub_name, backend, None, record_range(name))


def start_range(
    name: str | None,
    domain: str | None = None,
    category: str | int | None = None,
    color: int | None = None,
    payload: float | None = None,
) -> OpenRange | None:
    """Open a range that any thread may close, in any order; None where nobody listens."""
    name = name or "range"
    hub_name = _notify(name, domain)
    backend = nvtx_backend.backend()
    if hub_name is None and backend is None:
        return None
    event = nvtx_backend.NvtxEvent(name, domain, category, color, payload)
    handle = backend.start(event) if backend else None
    return OpenRange(domain, hub_name, backend, handle, None)


def close_range(opened: OpenRange | None) -> None:
    """Close a range wherever it was opened, whoever listens by now."""
    if opened is None:
        return
    if opened.record_function is not None:
        opened.record_function.__exit__(None, None, None)
    if opened.backend is not None:
        if opened.handle is None:
            opened.backend.pop(opened.domain)
        else:
            opened.backend.end(opened.handle)
    if opened.hub_name is not None:
        HUB.end_range(opened.hub_name)


def _notify(name: str, domain: str | None) -> str | None:
    """Notify listeners of a range, as `name@domain` where it has one."""
    if not HUB.has_listeners:
        return None
    hub_name = name if domain is None else f"{name}@{domain}"
    HUB.begin_range(hub_name)
    return hub_name


def record_range(name: str) -> Any:
    """Open a range in PyTorch's profiler, if it runs."""
    if not _TORCH.records():
        return None
    record_function = sys.modules["torch"].autograd.profiler.record_function(name)
    record_function.__enter__()
    return record_function


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

    __slots__ = ("_arguments", "_opened")

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
            payload = _check_payload(payload)
        self._arguments = (name, domain, category, color, payload)
        self._opened: dict[int, list[OpenRange | None]] = {}
        """The open ranges of each thread."""

    def __enter__(self) -> Self:
        """Open it on this thread."""
        is_recorded = is_recording()
        # Where it is open further out, note that it is not recorded now.
        if is_recorded or self._opened:
            stack = self._opened.setdefault(threading.get_ident(), [])
            stack.append(open_range(*self._arguments) if is_recorded else None)
        return self

    def __exit__(self, *_: object) -> None:
        """Close what this thread opened last, unless that was before anybody listened."""
        if not self._opened:
            return
        thread = threading.get_ident()
        stack = self._opened.get(thread)
        if stack is None:
            return
        last = stack.pop()
        if not stack:
            del self._opened[thread]
        close_range(last)

    async def __aenter__(self) -> Self:
        """Open it for this task."""
        self._opened.setdefault(_TASKS, []).append(start_range(*self._arguments))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it; of several tasks that share one, it does not matter which closes which."""
        close_range(self._opened[_TASKS].pop())

    def __call__(self, function: Function) -> Function:
        """Open it whenever the function runs."""
        own_name = getattr(function, "__qualname__", None) or type(function).__name__
        arguments = (self._arguments[0] or own_name, *self._arguments[1:])
        wrap = next((wrap for is_kind, wrap in _WRAPPERS if is_kind(function)), _plain)
        return cast("Function", functools.wraps(function)(wrap(function, arguments)))


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

    >>> with gs.annotate("tokenize", category="input", color="orange"): ...
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
        payload = _check_payload(payload)
    argb = None if color is None else nvtx_backend.argb(color)
    backend = nvtx_backend.backend()
    if backend is not None:
        backend.mark(nvtx_backend.NvtxEvent(name, domain, category, argb, payload))
    record_function = record_range(name)
    if record_function is not None:
        record_function.__exit__(None, None, None)


def _check_payload(payload: float) -> float:
    """Refuse what NVTX cannot hold, also while nobody listens."""
    if isinstance(payload, int) and abs(payload) <= _MAX_PAYLOAD:
        return int(payload)
    if isinstance(payload, float):
        return payload
    raise UsageError(f"payload {payload!r} is not a number of 64 bits")


def _plain(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not is_recording():
            return function(*args, **kwargs)
        opened = open_range(*arguments)
        try:
            return function(*args, **kwargs)
        finally:
            close_range(opened)

    return run


def _coroutine(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    async def run(*args: Any, **kwargs: Any) -> Any:
        opened = start_range(*arguments)
        try:
            return await function(*args, **kwargs)
        finally:
            close_range(opened)

    return run


def _generator(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        resume = functools.partial(next, inner)
        while True:
            with Annotation(*arguments):
                try:
                    value = resume()
                except StopIteration as end:
                    return end.value
            try:
                resume = functools.partial(inner.send, (yield value))
            except GeneratorExit:
                with Annotation(*arguments):
                    inner.close()
                raise
            except BaseException as error:  # noqa: BLE001 - passed on to the generator
                resume = functools.partial(inner.throw, error)

    return run


def _async_generator(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        resume = inner.__anext__
        while True:
            opened = start_range(*arguments)
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


_WRAPPERS: tuple[tuple[Callable[[Any], bool], Callable[..., Any]], ...] = (
    (inspect.isasyncgenfunction, _async_generator),
    (inspect.iscoroutinefunction, _coroutine),
    (inspect.isgeneratorfunction, _generator),
)
"""What wraps each kind of function; `_plain` all others."""
