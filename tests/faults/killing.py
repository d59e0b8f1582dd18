"""Ends a process by SIGKILL at the N-th call that changes something below a folder."""

from __future__ import annotations

import builtins
import io
import os
import signal
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_CHANGING = ("replace", "rename", "link", "unlink", "mkdir", "chmod", "rmdir")


def killed_at(number: int, folder: Path, action: Callable[[], object]) -> bool:
    """Run an action in a fork that is killed at its N-th change; False where it makes fewer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads: the action uses none
        child = os.fork()
    if child == 0:
        try:
            _Killing(number, str(folder)).arm()
            action()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), "the action failed"
    return code != 0


class _Killing:
    """Counts changes, in this process only and for good."""

    def __init__(self, number: int, folder: str) -> None:
        self._left, self._folder = number, folder

    def count(self, path: object) -> None:
        """Count a change; the last one is the last thing done."""
        if not isinstance(path, (str, os.PathLike)) or not str(path).startswith(self._folder):
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def arm(self) -> None:
        """Watch the calls of the system that change files, before and after each."""
        patched: Any = os
        for name in _CHANGING:
            setattr(patched, name, self._around(getattr(os, name)))
        patched.open = self._opening(os.open)
        patched.fdopen = io.open  # which is watched too
        for module in (io, builtins):
            vars(module)["open"] = self._streaming(io.open)

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any, *more: Any, **named: Any) -> Any:
            self.count(path)
            made = call(path, *more, **named)
            self.count(path)
            return made

        return watched

    def _opening(self, call: Callable[..., int]) -> Callable[..., int]:
        def watched(path: Any, flags: int, *more: Any, **named: Any) -> int:
            handle = call(path, flags, *more, **named)
            if flags & (os.O_WRONLY | os.O_RDWR):
                self.count(path)
            return handle

        return watched

    def _streaming(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            stream = call(file, mode, *more, **named)
            if not set(mode) & set("wxa+"):
                return stream
            self.count(_path_of(stream))
            return _Halves(stream, self)

        return watched


def _path_of(stream: Any) -> str:
    return str(Path(f"/proc/self/fd/{stream.fileno()}").readlink())


class _Halves:
    """A file whose every write comes in two halves."""

    def __init__(self, stream: Any, killing: _Killing) -> None:
        self._stream, self._killing = stream, killing
        self._path = _path_of(stream)

    def write(self, data: Any) -> int:
        """Write one half, flush it, and be killed, or write the other."""
        half = len(data) // 2
        self._stream.write(data[:half])
        self._stream.flush()
        self._killing.count(self._path)
        return half + int(self._stream.write(data[half:]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._killing.count(self._path)
