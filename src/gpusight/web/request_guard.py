"""Which requests are let in.

From this machine, with the token, of bounded size, not too many at once.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, NamedTuple

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    Headers = Sequence[tuple[bytes, bytes]]


OWN_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_HTTP_PORT = 80
"""Browsers leave this one out of the name of a host."""
_METHODS = ("GET", "HEAD")
"""Those of a server that only answers questions in addresses."""
_OWN_SITE = (b"same-origin", b"none")
"""`none`: typed, or opened from another program."""
MAX_QUERY_BYTES = 1 << 16
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Part of every answer: nothing is kept, framed, or loaded from anywhere else."""


class _Refused(NamedTuple):
    """An answer that is none."""

    status: int
    why: str
    headers: Headers = ()


class Guard:
    """Lets requests through to the application that are ours; its paths have no token."""

    def __init__(
        self, app: ASGIApp, token: str, port: int, methods: Sequence[str] = _METHODS
    ) -> None:
        self._app = app
        self._methods = methods
        self._token = token.encode()
        hosts = [f"{host}:{port}" for host in OWN_HOSTS]
        hosts += OWN_HOSTS if port == _HTTP_PORT else ()
        self._hosts = frozenset(host.encode() for host in hosts)
        self._origins = frozenset(b"http://" + host for host in self._hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket, which nothing here speaks
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _with_ours(message.get("headers", ()))}
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await _refuse(refused, guarded)
            return
        path = scope["path"][1 + len(self._token) :]
        inside = {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}
        await self._app(inside, receive, guarded)

    def _refusal(self, scope: Scope) -> _Refused | None:
        """Return why a request is refused; None where it is not."""
        headers = scope["headers"]
        if self._is_foreign_host(headers):
            return _Refused(421, "unknown host name")
        if not self._is_token(scope["path"]):
            return _Refused(404, "not found")
        if self._is_foreign_page(scope, headers):
            return _Refused(403, "cross-origin request")
        if scope["method"] not in self._methods:
            allow = ", ".join(self._methods).encode()
            return _Refused(405, "method not allowed", [(b"allow", allow)])
        if len(scope["query_string"]) > MAX_QUERY_BYTES:
            return _Refused(414, f"a query has at most {MAX_QUERY_BYTES:,} bytes")
        if scope["path"] == f"/{self._token.decode()}":  # relative addresses need the slash
            return _Refused(307, "", [(b"location", b"/" + self._token + b"/")])
        return None

    def _is_foreign_host(self, headers: Headers) -> bool:
        hosts = _values(headers, b"host")
        return len(hosts) != 1 or hosts[0].lower() not in self._hosts

    def _is_token(self, path: str) -> bool:
        first, _, _ = path.removeprefix("/").partition("/")
        return path.startswith("/") and hmac.compare_digest(first.encode(), self._token)

    def _is_foreign_page(self, scope: Scope, headers: Headers) -> bool:
        if any(origin.lower() not in self._origins for origin in _values(headers, b"origin")):
            return True
        sites = _values(headers, b"sec-fetch-site")
        if all(site in _OWN_SITE for site in sites):
            return False
        return not self._is_followed_link(scope, headers)

    def _is_followed_link(self, scope: Scope, headers: Headers) -> bool:
        """Return whether someone followed a link to the page itself, as from a notebook's."""
        modes, places = _values(headers, b"sec-fetch-mode"), _values(headers, b"sec-fetch-dest")
        is_page = scope["path"].rstrip("/") == f"/{self._token.decode()}"
        return is_page and modes == [b"navigate"] and places == [b"document"]


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]


def _with_ours(headers: Headers) -> list[tuple[bytes, bytes]]:
    ours = {name for name, _ in HEADERS}
    return [*((name, value) for name, value in headers if name.lower() not in ours), *HEADERS]


async def _refuse(refused: _Refused, send: Send) -> None:
    body = f"{refused.why}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        *refused.headers,
    ]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


MAX_CONNECTIONS = 100
"""A browser opens six; systems that allow the fewest files allow 256."""
MAX_WAITING_CONNECTIONS = 50
"""Connections that are taken in at a time, before those that make room for them have closed."""


def bounded_protocol(most: int = MAX_CONNECTIONS) -> type[H11Protocol]:
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
