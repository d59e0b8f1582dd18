"""The one way to NVTX, through which a program marks for a profiler what it is doing."""

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
"""Of ranges that we open ourselves, apart from the program's own."""
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
    """The attributes of a range or a mark."""

    name: str
    domain: str | None = None
    category: str | int | None = None
    color: int | None = None
    """0xAARRGGBB."""
    payload: float | None = None


class NvtxBackend(Protocol):
    """Passes ranges and marks on to the tool that listens."""

    def push(self, event: NvtxEvent) -> None:
        """Open a range on this thread's stack in the domain."""

    def pop(self, domain: str | None) -> None:
        """Close the innermost of that stack."""

    def start(self, event: NvtxEvent) -> object:
        """Open a range that any thread may close, in any order; returns what `end` needs."""

    def end(self, handle: Any) -> None:
        """Close it."""

    def mark(self, event: NvtxEvent) -> None:
        """Mark that something happens now."""


class _Choice:
    """What was found at the first use; NVTX itself looks for a tool once, too."""

    def __init__(self) -> None:
        self.is_made = False
        self.backend: NvtxBackend | None = None
        self.is_off = False
        """It is known that no tool listens."""
        self.lock = threading.RLock()  # a finalizer or a signal may bring us here again

    def make(self, backend: NvtxBackend | None) -> None:
        """Keep this one."""
        self.backend, self.is_off, self.is_made = backend, backend is None, True


CHOICE = _Choice()


def backend() -> NvtxBackend | None:
    """Return the backend of the tool that listens, None where none does."""
    if not CHOICE.is_made:
        with CHOICE.lock:
            if not CHOICE.is_made:
                path = os.environ.get(PATH_VARIABLE)
                CHOICE.make(_find(path) if path else None)
    return CHOICE.backend


def choose_again() -> None:
    """Forget what was found: a tool was attached within this process (PATH_VARIABLE was set)."""
    CHOICE.is_made = CHOICE.is_off = False


def _find(path: str) -> NvtxBackend | None:
    """Load the tool's library; NVTX_DISABLE is what the `nvtx` package calls its switch."""
    if os.environ.get("NVTX_DISABLE"):
        return None
    from gpusight.recording.inside.nvtx_direct import DirectBackend  # ctypes is slow to import

    try:
        return DirectBackend.load(path)
    except (OSError, AttributeError, RuntimeError) as error:
        text = f"NVTX ranges are not recorded: {path} cannot be used ({error})"
        warnings.warn(text, NvtxUnavailableWarning, stacklevel=2)
        return None


@functools.lru_cache(maxsize=256)
def argb(color: str | int) -> int:
    """Read a color: a name, `#rrggbb` or a number 0xAARRGGBB."""
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
        f"{color!r} is not a color",
        hint=f"write '#ff8800', 0xffff8800 or one of {', '.join(sorted(_COLORS))}",
    )


def start_range(name: str, *, domain: str | None = None) -> object | None:
    """Open a range that any thread may close; None where no tool listens."""
    chosen = backend()
    return None if chosen is None else (chosen, chosen.start(NvtxEvent(name, domain)))


def end_range(handle: Any) -> None:
    """Close what `start_range` returned."""
    if handle is not None:
        chosen, opened = handle
        chosen.end(opened)


def mark(text: str, *, domain: str | None = None) -> None:
    """Mark that something happens now, where a tool listens."""
    chosen = backend()
    if chosen is not None:
        chosen.mark(NvtxEvent(text, domain))
