"""The one way to NVTX, through which a program tells a profiler what it is doing."""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from typing import Any, NamedTuple, Protocol

from gpusight.errors import UsageError

PATH_VARIABLE = "NVTX_INJECTION64_PATH" if sys.maxsize > 2**32 else "NVTX_INJECTION32_PATH"
"""Holds the library of the tool that listens."""
DOMAIN = "gpusight"
"""Of ranges that we open on our own account, apart from the program's own."""
_COLORS = {
    "black": 0x000000,
    "blue": 0x0000FF,
    "cyan": 0x00FFFF,
    "gray": 0x808080,
    "green": 0x008000,
    "grey": 0x808080,
    "lime": 0x00FF00,
    "magenta": 0xFF00FF,
    "navy": 0x000080,
    "orange": 0xFFA500,
    "pink": 0xFFC0CB,
    "purple": 0x800080,
    "red": 0xFF0000,
    "teal": 0x008080,
    "white": 0xFFFFFF,
    "yellow": 0xFFFF00,
}
_OPAQUE = 0xFF000000


class NvtxUnavailableWarning(UserWarning):
    """A tool listens to NVTX, but it cannot be reached."""


class NvtxEvent(NamedTuple):
    """What a range or a mark says of itself."""

    name: str
    domain: str | None = None
    category: str | int | None = None
    color: int | None = None
    """0xAARRGGBB."""
    payload: float | None = None


class NvtxBackend(Protocol):
    """Speaks NVTX."""

    def push(self, event: NvtxEvent) -> None:
        """Open a range on this thread's stack in the domain."""

    def pop(self, domain: str | None) -> None:
        """Close the innermost of that stack."""

    def start(self, event: NvtxEvent) -> object:
        """Open a range that any thread may close, in any order; gives what `end` needs."""

    def end(self, handle: Any) -> None:
        """Close it."""

    def mark(self, event: NvtxEvent) -> None:
        """Say that something happens now."""


class _Choice:
    """What was found at the first use; NVTX itself looks for a tool once, too."""

    def __init__(self) -> None:
        self.made = False
        self.backend: NvtxBackend | None = None
        self.quiet = False
        """It is known that nobody listens."""
        self.lock = threading.RLock()  # a finaliser or a signal may bring us here again

    def make(self, backend: NvtxBackend | None) -> None:
        """Stay with this one."""
        self.backend, self.quiet, self.made = backend, backend is None, True


CHOICE = _Choice()


def backend() -> NvtxBackend | None:
    """Give what speaks to the tool that listens, None where none does."""
    return CHOICE.backend if CHOICE.made else _choose()


def choose_again() -> None:
    """Forget what was found: a tool was attached within this process (PATH_VARIABLE was set)."""
    CHOICE.made = CHOICE.quiet = False


def _choose() -> NvtxBackend | None:
    with CHOICE.lock:
        if not CHOICE.made:
            path = os.environ.get(PATH_VARIABLE)
            CHOICE.make(_find(path) if path else None)
    return CHOICE.backend


def _find(path: str) -> NvtxBackend | None:
    """Load the tool's library; NVTX_DISABLE is what the `nvtx` package calls its switch."""
    if os.environ.get("NVTX_DISABLE"):
        return None
    from gpusight.recording.inside.nvtx_direct import (
        DirectBackend,  # ctypes only where it is needed
    )

    try:
        return DirectBackend.load(path)
    except (OSError, AttributeError, RuntimeError) as error:
        text = f"NVTX ranges are not recorded: {path} cannot be used ({error})"
        warnings.warn(text, NvtxUnavailableWarning, stacklevel=2)
        return None


@functools.lru_cache(maxsize=256)
def argb(color: str | int | None) -> int | None:
    """Read a colour: a name, `#rrggbb` or a number 0xAARRGGBB."""
    if color is None:
        return None
    if isinstance(color, int) and 0 <= color <= 0xFFFFFFFF:
        return color
    if isinstance(color, str):
        text = color.strip().lower()
        if text in _COLORS:
            return _OPAQUE | _COLORS[text]
        digits = text.removeprefix("#")
        if len(digits) == 6 and text[0] == "#" and set(digits) <= set("0123456789abcdef"):
            return _OPAQUE | int(digits, 16)
    raise UsageError(
        f"{color!r} is not a colour",
        hint=f"write '#ff8800', 0xffff8800 or one of {', '.join(sorted(_COLORS))}",
    )


def start_range(name: str, *, domain: str | None = None) -> object | None:
    """Open a range that any thread may close; None where nobody listens."""
    speaker = backend()
    return None if speaker is None else (speaker, speaker.start(NvtxEvent(name, domain)))


def end_range(handle: Any) -> None:
    """Close what `start_range` gave."""
    if handle is not None:
        speaker, opened = handle
        speaker.end(opened)
