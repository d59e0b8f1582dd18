"""Runs a function on the main thread, from another one.

PyTorch's profiler sees the operators of the thread that started it, before version 2.7 only
those; so a clock of ours must not start it from its own thread.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_S = 1.0
"""A main thread that does not run any Python for longer than this only waits for others."""


class _Once:
    """A function that runs once, on whichever thread gets to it first."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._claim = threading.Lock()
        self.done = threading.Event()

    def run(self) -> None:
        if self._claim.acquire(blocking=False):
            try:
                self._action()
            finally:
                self.done.set()


_Pending = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_KEPT: list[object] = []
"""What the interpreter was given to call lives as long as the process: it may call late."""


def run_on_main_thread(action: Callable[[], None]) -> None:
    """Have the main thread call `action`, and wait for that; where it does not come to it, do so.

    A main thread that is stuck in a call into C runs no Python.
    """
    once = _Once(action)
    if ask_main_thread(once.run):
        once.done.wait(_PATIENCE_S)
    once.run()


def ask_main_thread(action: Callable[[], None]) -> bool:
    """Have the main thread call `action` between two of its instructions; does not wait.

    On the main thread it runs at once. False where too many others ask.
    """
    if threading.current_thread() is threading.main_thread():
        action()
        return True

    def call(_: object) -> int:
        action()
        return 0

    pending = _Pending(call)
    _KEPT.append(pending)
    return bool(ctypes.pythonapi.Py_AddPendingCall(pending, None) == 0)
