"""Work that takes longer than a moment, off the event loop and bounded.

A page that zooms sends requests far more often than it needs the answers. Only a few are worked on
at once; one whose page has gone away while it waited is dropped.

Answers need large arrays for a moment. What several threads have freed stays in the heaps of the C
library, which fragment and grow for hours; `release_memory` returns it to the system, and
`return_large_blocks` keeps large arrays out of those heaps.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread

from gpusight.errors import GpusightError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

_AT_ONCE = 4
"""More would only share the same processors."""
_MAX_WAITING = 64
_RELEASE_AFTER_S = 10.0
"""How long after a request freed memory is returned; all requests until then share that."""
_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 1 << 20
_Made = TypeVar("_Made")


class BusyError(GpusightError):
    """Too many requests at once."""


class GoneError(GpusightError):
    """Nobody waits for the answer any more."""


class Pool:
    """Runs functions in threads, a few at a time."""

    def __init__(self) -> None:
        self._limiter: anyio.CapacityLimiter | None = None  # belongs to the first request's loop
        self._pending = 0
        self._release: asyncio.TimerHandle | None = None

    async def run(self, request: Request, work: Callable[[], _Made]) -> _Made:
        """Run a function for a request; raises where the server is busy, or the page has gone."""
        if self._pending >= _MAX_WAITING:
            raise BusyError("too many requests", hint="try again")
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_AT_ONCE)
        self._pending += 1
        # Cancelling takes effect while the request waits for its turn: a thread that runs is not
        # abandoned, or those of impatient pages would add up.
        with anyio.CancelScope() as scope:
            watcher = asyncio.ensure_future(_cancel_when_gone(request, scope))
            try:
                return await anyio.to_thread.run_sync(work, limiter=self._limiter)
            finally:
                self._pending -= 1
                watcher.cancel()
                self._release_later()
        raise GoneError("the client disconnected")

    def _release_later(self) -> None:
        if self._release is None:
            loop = asyncio.get_running_loop()
            self._release = loop.call_later(_RELEASE_AFTER_S, self._release_now)

    def _release_now(self) -> None:
        self._release = None
        # In a thread: it may take a tenth of a second, and answers must not wait for it.
        threading.Thread(target=release_memory, name="release-memory", daemon=True).start()


def release_memory() -> bool:
    """Return freed memory to the system; false where there was none, or the C library cannot."""
    trim = _glibc("malloc_trim")
    return trim is not None and bool(trim(0))


def return_large_blocks() -> bool:
    """Have the C library return large blocks as soon as they are freed, from now on.

    This is for a process of our own. It costs a millisecond of page faults per answer, and more
    while a capture is read.
    """
    set_option = _glibc("mallopt")
    return set_option is not None and bool(set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES))


def _glibc(name: str) -> Callable[..., int] | None:
    """Find a function that only the C library of GNU has."""
    return getattr(ctypes.CDLL(None), name, None) if os.name == "posix" else None


async def _cancel_when_gone(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
