"""Runs a function once a module has been imported, whoever imports it."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from gpusight.capture.inside.say import say_error

if TYPE_CHECKING:
    import importlib.machinery
    from collections.abc import Callable, Sequence
    from types import ModuleType

    Action = Callable[[ModuleType], None]


class _Finder:
    """Finds nothing itself: asks the others, and has the loader tell when the module is there."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Action]] = {}
        self._asking: set[tuple[int, str]] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        asking = threading.get_ident(), name
        if name not in self.waiting or asking in self._asking:
            return None
        self._asking.add(asking)
        try:
            spec = _ask_others(self, name, path, target)
        finally:
            self._asking.discard(asking)
        if spec is not None and spec.loader is not None:
            self._follow(name, spec.loader)
        return spec

    def _follow(self, name: str, loader: Any) -> None:
        try:
            self._attach(name, loader)
        except AttributeError as error:  # one that takes no attributes, or is of the oldest kind
            self.waiting.pop(name, None)
            say_error(f"following the import of {name}", error)

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

    An import that fails does not count: the next try does. What `action` raises is said, and the
    import goes on.
    """
    module = sys.modules.get(name)
    if module is not None and not _is_loading(module):
        _run(action, module)
        return
    _FINDER.waiting.setdefault(name, []).append(action)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _ask_others(
    asker: _Finder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        if finder is asker or find_spec is None:
            continue
        spec: importlib.machinery.ModuleSpec | None = find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


def _run(action: Action, module: ModuleType) -> None:
    try:
        action(module)
    except Exception as error:  # noqa: BLE001 - nothing of ours may break the program's import
        say_error(f"hooking {module.__name__}", error)
