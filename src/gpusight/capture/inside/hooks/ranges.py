"""Hears the ranges that a program opens through torch.cuda.nvtx, nvtx and record_function.

Only installed when a range says when to record. Ranges of the `nvtx` package's Domain objects,
which are compiled code, are not heard.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

from gpusight.capture.inside.events import HUB
from gpusight.capture.inside.imports import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


_INSTALLED: list[bool] = []


class _Stacks(threading.local):
    """The names that this thread has open, by domain."""

    def __init__(self) -> None:
        self.by_domain: dict[str | None, list[str]] = {}

    def push(self, name: str, domain: str | None = None) -> None:
        told = name if domain is None else f"{name}@{domain}"
        self.by_domain.setdefault(domain, []).append(told)
        HUB.begin_range(told)

    def pop(self, domain: str | None = None) -> None:
        stack = self.by_domain.get(domain)
        if stack:
            HUB.end_range(stack.pop())


def install() -> None:
    """Hook each library when it is imported, once in the life of a process and its forks."""
    if _INSTALLED:
        return
    _INSTALLED.append(True)
    when_imported("torch", _hook_torch)
    when_imported("nvtx", _hook_nvtx)


def _hook_torch(torch: ModuleType) -> None:
    _hook_stack(torch.cuda.nvtx, "range_push", "range_pop")
    _hook_handles(torch.cuda.nvtx, "range_start", "range_end")
    _hook_manager(
        torch.autograd.profiler.record_function, lambda manager: (str(manager.name), None)
    )


def _hook_nvtx(package: ModuleType) -> None:
    _hook_stack(package, "push_range", "pop_range")
    _hook_handles(package, "start_range", "end_range")
    annotate = package.annotate
    initialise, call = annotate.__init__, annotate.__call__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - stands in for theirs
        initialise(self, *args, **kwargs)
        message = args[0] if args else kwargs.get("message")
        self._told = message, _name_and_domain(args, kwargs)[1]

    def __call__(self: Any, function: Any) -> Any:  # noqa: N807 - stands in for theirs
        name, domain = self._told
        told = str(name or function.__name__), domain
        return _around(call(self, function), told)

    annotate.__init__ = functools.wraps(initialise)(__init__)
    annotate.__call__ = functools.wraps(call)(__call__)
    _hook_manager(annotate, lambda manager: (str(manager._told[0] or ""), manager._told[1]))


def _around(function: Callable[..., Any], told: tuple[str, str | None]) -> Callable[..., Any]:
    stacks = _Stacks()

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        stacks.push(*told)
        try:
            return function(*args, **kwargs)
        finally:
            stacks.pop(told[1])

    return wrapper


def _hook_stack(module: Any, push: str, pop: str) -> None:
    """Follow a pair of functions that open and close the innermost range of a thread."""
    stacks, pushing, popping = _Stacks(), getattr(module, push), getattr(module, pop)

    @functools.wraps(pushing)
    def pushed(*args: Any, **kwargs: Any) -> Any:
        stacks.push(*_name_and_domain(args, kwargs))
        return pushing(*args, **kwargs)

    @functools.wraps(popping)
    def popped(*args: Any, **kwargs: Any) -> Any:
        result = popping(*args, **kwargs)
        stacks.pop(args[0] if args else kwargs.get("domain"))
        return result

    setattr(module, push, pushed)
    setattr(module, pop, popped)


def _hook_handles(module: Any, start: str, end: str) -> None:
    """Follow a pair of functions that open a range and close it by what the first gave."""
    names: dict[Any, list[str]] = {}
    starting, ending = getattr(module, start, None), getattr(module, end, None)
    if starting is None or ending is None:
        return

    @functools.wraps(starting)
    def started(*args: Any, **kwargs: Any) -> Any:
        name, domain = _name_and_domain(args, kwargs)
        told = name if domain is None else f"{name}@{domain}"
        HUB.begin_range(told)
        handle = starting(*args, **kwargs)
        names.setdefault(handle, []).append(told)  # all are None while nobody listens
        return handle

    @functools.wraps(ending)
    def ended(handle: Any, *args: Any, **kwargs: Any) -> Any:
        result = ending(handle, *args, **kwargs)
        if names.get(handle):
            HUB.end_range(names[handle].pop())
        return result

    setattr(module, start, started)
    setattr(module, end, ended)


def _hook_manager(manager: Any, name_of: Callable[[Any], tuple[str, str | None]]) -> None:
    """Follow a context manager, which knows its own name."""
    stacks, entering, leaving = _Stacks(), manager.__enter__, manager.__exit__

    @functools.wraps(entering)
    def __enter__(self: Any) -> Any:  # noqa: N807 - stands in for theirs
        stacks.push(*name_of(self))
        return entering(self)

    @functools.wraps(leaving)
    def __exit__(self: Any, *error: Any) -> Any:  # noqa: N807 - stands in for theirs
        result = leaving(self, *error)
        stacks.pop(name_of(self)[1])
        return result

    manager.__enter__, manager.__exit__ = __enter__, __exit__


def _name_and_domain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str | None]:
    """Read a call: the name comes first in all of them, the domain third where there is one."""
    name = args[0] if args else kwargs.get("message", kwargs.get("msg"))
    domain = args[2] if len(args) > 2 else kwargs.get("domain")
    return str(name), domain
