"""Connections of a server, so few that no program of this machine can use up all files of ours.

Any program may connect, say nothing and stay. Once files run out the event loop cannot take anybody
else in; so whoever has been silent for longest makes room before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

MOST_CONNECTIONS = 100
"""A browser opens six; systems that allow the fewest files allow 256."""
MOST_WAITING = 50
"""Connections that are taken in at a time, before those that make room for them have closed."""


def bounded_protocol(most: int = MOST_CONNECTIONS) -> type[H11Protocol]:
    """Make the protocol of one server, which holds at most so many connections."""
    silent_first: dict[H11Protocol, asyncio.Transport] = {}

    class Bounded(H11Protocol):
        """A connection that may be ended to make room for another."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Take somebody in."""
            super().connection_made(transport)
            silent_first[self] = transport
            if len(silent_first) > most:
                silent_first.pop(next(iter(silent_first))).abort()

        def data_received(self, data: bytes) -> None:
            """Listen, and remember who spoke last."""
            if self in silent_first:
                silent_first[self] = silent_first.pop(self)
            super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            """Forget who has gone."""
            silent_first.pop(self, None)
            super().connection_lost(exc)

    return Bounded
