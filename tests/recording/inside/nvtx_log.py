"""An NVTX backend that logs calls, in place of a real tool."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gpusight.recording.inside import nvtx_backend


class LoggedRange(NamedTuple):
    """One call: `push`, `pop`, `start`, `end` or `mark`, and the range it names."""

    what: str
    name: str
    domain: str | None
    thread: int


class NvtxLog:
    """Records all calls, and keeps the stacks of open ranges that a tool would."""

    def __init__(self) -> None:
        self.events: list[LoggedRange] = []
        self.attributes: dict[str, tuple[str | int | None, int | None, float | None]] = {}
        self._stacks: dict[tuple[int, str | None], list[str]] = {}
        self._started = 0

    def push(self, event: nvtx_backend.NvtxEvent) -> None:
        self.attributes[event.name] = event[2:]
        self._stack(event.domain).append(event.name)
        self._note("push", event.name, event.domain)

    def pop(self, domain: str | None) -> None:
        self._note("pop", self._stack(domain).pop(), domain)

    def start(self, event: nvtx_backend.NvtxEvent) -> object:
        self._started += 1
        self.attributes[event.name] = event[2:]
        self._note("start", event.name, event.domain)
        return (self._started, event.name, event.domain)

    def end(self, handle: tuple[int, str, str | None]) -> None:
        self._note("end", handle[1], handle[2])

    def mark(self, event: nvtx_backend.NvtxEvent) -> None:
        self.attributes[event.name] = event[2:]
        self._note("mark", event.name, event.domain)

    def _stack(self, domain: str | None) -> list[str]:
        return self._stacks.setdefault((threading.get_ident(), domain), [])

    def _note(self, what: str, name: str, domain: str | None) -> None:
        self.events.append(LoggedRange(what, name, domain, threading.get_ident()))

    @property
    def open(self) -> list[str]:
        """The ranges that are still open, on any thread."""
        ended = sum(event.what == "end" for event in self.events)
        assert ended <= self._started
        return [name for stack in self._stacks.values() for name in stack]

    def lines(self, domain: str | None = None) -> list[str]:
        """List the calls in a domain as `+name` and `-name`, marks as `!name`."""
        signs = {"push": "+", "start": "+", "pop": "-", "end": "-", "mark": "!"}
        return [signs[e.what] + e.name for e in self.events if e.domain == domain]

    def kinds(self) -> set[str]:
        """Return which kinds of calls came."""
        return {event.what for event in self.events}


@contextmanager
def logged_nvtx() -> Iterator[NvtxLog]:
    """Log NVTX calls inside the block."""
    log = NvtxLog()
    nvtx_backend.CHOICE.make(log)
    try:
        yield log
    finally:
        nvtx_backend.choose_again()
