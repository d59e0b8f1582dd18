"""A tool that listens to NVTX, in place of a real one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gpusight.recording.inside import nvtx_backend


class Told(NamedTuple):
    """What was told: `push`, `pop`, `start`, `end` or `mark`, of which range."""

    what: str
    name: str
    domain: str | None
    thread: int


class Heard:
    """Writes down what it is told, and holds the stacks that a tool would."""

    def __init__(self) -> None:
        self.events: list[Told] = []
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
        self.events.append(Told(what, name, domain, threading.get_ident()))

    @property
    def open(self) -> list[str]:
        """What is open still, on whatever thread."""
        ended = sum(event.what == "end" for event in self.events)
        assert ended <= self._started
        return [name for stack in self._stacks.values() for name in stack]

    def told(self, domain: str | None = None) -> list[str]:
        """List what was told in a domain as `+name` and `-name`, marks as `!name`."""
        signs = {"push": "+", "start": "+", "pop": "-", "end": "-", "mark": "!"}
        return [signs[e.what] + e.name for e in self.events if e.domain == domain]

    def kinds(self) -> set[str]:
        """Tell which kinds of ranges came."""
        return {event.what for event in self.events}


@contextmanager
def hearing() -> Iterator[Heard]:
    """Listen to NVTX for a while."""
    heard = Heard()
    nvtx_backend.CHOICE.make(heard)
    try:
        yield heard
    finally:
        nvtx_backend.choose_again()
