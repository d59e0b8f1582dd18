"""Runs a function once a module is imported; hooks ranges of torch.cuda.nvtx, nvtx, torch."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from gpusight.recording.inside.environment import log_error
from gpusight.recording.inside.step_hub import HUB

if TYPE_CHECKING:
    import importlib.machinery
    from collections.abc import Callable, Sequence
    from types import ModuleType

    Action = Callable[[ModuleType], None]


class _Finder:
    """Finds nothing itself: calls the others, and wraps the loader to learn of the import."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Action]] = {}
        self._searching: set[tuple[int, str]] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        search = threading.get_ident(), name
        if name not in self.waiting or search in self._searching:
            return None
        self._searching.add(search)
        try:
            spec = self._ask_others(name, path, target)
        finally:
            self._searching.discard(search)
        if spec is not None and spec.loader is not None:
            try:
                self._attach(name, spec.loader)
            except AttributeError as error:  # a loader without attributes or `exec_module`
                self.waiting.pop(name, None)
                log_error(f"following the import of {name}", error)
        return spec

    def _ask_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def _attach(self, name: str, loader: Any) -> None:
        """Wrap the one method on the loader itself, so that it stays what it is otherwise."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == name:
                loader.exec_module = execute
                self.fire(name, module)

        loader.exec_module = exec_module

    def fire(self, name: str, module: ModuleType) -> None:
        actions = self.waiting.pop(name, [])
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        for action in actions:
            _run(action, module)


_FINDER = _Finder()


def when_imported(name: str, action: Action) -> None:
    """Call `action` with a module once it is imported; at once if it is already.

    An import that fails does not count: the next try does. What `action` raises is logged, and the
    import goes on.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _run(action, module)
        return
    _FINDER.waiting.setdefault(name, []).append(action)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def _run(action: Action, module: ModuleType) -> None:
    try:
        action(module)
    except Exception as error:  # noqa: BLE001 - nothing of ours may break the program's import
        log_error(f"hooking {module.__name__}", error)


_INSTALLED: list[bool] = []


class _Stacks(threading.local):
    """The names that this thread has open, by domain."""

    def __init__(self) -> None:
        self.by_domain: dict[str | None, list[str]] = {}

    def push(self, name: str, domain: str | None = None) -> None:
        hub_name = _hub_name(name, domain)
        self.by_domain.setdefault(domain, []).append(hub_name)
        HUB.begin_range(hub_name)

    def pop(self, domain: str | None = None) -> None:
        stack = self.by_domain.get(domain)
        if stack:
            HUB.end_range(stack.pop())


def _hub_name(name: str, domain: str | None) -> str:
    return name if domain is None else f"{name}@{domain}"


def hook_ranges() -> None:
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
    initialize, call = annotate.__init__, annotate.__call__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - replaces theirs
        initialize(self, *args, **kwargs)
        message = args[0] if args else kwargs.get("message")
        self._name_and_domain = message, _name_and_domain(args, kwargs)[1]

    def __call__(self: Any, function: Any) -> Any:  # noqa: N807 - replaces theirs
        name, domain = self._name_and_domain
        hub_name = _hub_name(str(name or function.__name__), domain)
        annotated = call(self, function)

        @functools.wraps(annotated)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            HUB.begin_range(hub_name)
            try:
                return annotated(*args, **kwargs)
            finally:
                HUB.end_range(hub_name)

        return wrapper

    annotate.__init__ = functools.wraps(initialize)(__init__)
    annotate.__call__ = functools.wraps(call)(__call__)

    def name_of(manager: Any) -> tuple[str, str | None]:
        name, domain = manager._name_and_domain
        return str(name or ""), domain

    _hook_manager(annotate, name_of)


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
    """Follow a pair of functions that open a range and close it by the handle of the first."""
    names: dict[Any, list[str]] = {}
    starting, ending = getattr(module, start, None), getattr(module, end, None)
    if starting is None or ending is None:
        return

    @functools.wraps(starting)
    def started(*args: Any, **kwargs: Any) -> Any:
        hub_name = _hub_name(*_name_and_domain(args, kwargs))
        HUB.begin_range(hub_name)
        handle = starting(*args, **kwargs)
        names.setdefault(handle, []).append(hub_name)  # all are None while nobody listens
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
    def __enter__(self: Any) -> Any:  # noqa: N807 - replaces theirs
        stacks.push(*name_of(self))
        return entering(self)

    @functools.wraps(leaving)
    def __exit__(self: Any, *error: Any) -> Any:  # noqa: N807 - replaces theirs
        result = leaving(self, *error)
        stacks.pop(name_of(self)[1])
        return result

    manager.__enter__, manager.__exit__ = __enter__, __exit__


def _name_and_domain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str | None]:
    """Read a call: the name comes first in all of them, the domain third where there is one."""
    name = args[0] if args else kwargs.get("message", kwargs.get("msg"))
    domain = args[2] if len(args) > 2 else kwargs.get("domain")
    return str(name), domain
