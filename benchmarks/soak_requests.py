"""Random requests to `gpusight serve`: valid ones of every route, invalid ones, abuse."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

_WORDS = (
    "gemm",
    "kernel",
    "a",
    "STEP",
    "step_1*",
    "layer",
    "float",
    "/elementwise.*4/",
    "cuda",
    "Memcpy",
    "*",
    "[",
    "ü",
    "no such name",
    "regex:^void",
)
_FILES = ("", "timeline.js", "timeline.css", "api/captures", "api/compare")
_INVALID = (
    "api/captures/{n}/window?start=5&end=1&bins=10&tracks=",
    "api/captures/{n}/window?start=0&end=nan&bins=10&tracks=",
    "api/captures/{n}/window?start=0&end=9&bins=0&tracks=",
    "api/captures/{n}/window?start=0&end=9&bins=100000000&tracks=",
    "api/captures/{n}/window?start=0&end=9&bins=10&tracks=no/such/track",
    "api/captures/{n}/window?start=0&end=9&bins=10",
    "api/captures/{n}/event?table=kernels&row=-1",
    "api/captures/{n}/event?table=kernels&row=4294967295",
    "api/captures/{n}/event?table=sqlite_master&row=0",
    "api/captures/{n}/event?table=..%2F..%2Fetc&row=0",
    "api/captures/{n}/search?q=%2F(%2F",
    "api/captures/{n}/search?limit=3",
    "api/captures/{n}/search?q=a&limit=1e99",
    "api/captures/{n}/next?table=kernels&code=x&time=0",
    "api/captures/{n}/pick?track=gpu0&line=0&time=0",
    "api/captures/{n}/measure?start=1&end=1",
    "api/captures/99/measure?start=0&end=1",
    "api/captures/-1",
    "api/captures/%00",
    "api/captures/{n}/../../../etc/passwd",
    "api/nothing",
    "no-such-file.js",
    "api/captures/{n}/search?q=" + "x" * 70_000,
)
_MAX_SILENT = 20


class Request(NamedTuple):
    """A request that was drawn."""

    kind: str
    path: str
    valid: bool


class _Track(NamedTuple):
    key: str
    lines: int
    series: bool


class _Capture(NamedTuple):
    number: int
    start_ns: int
    end_ns: int
    tracks: list[_Track]
    rows: dict[str, int]
    """Rows of each table that are sure to be there."""


class Requests:
    """Draws requests, as a person who zooms, clicks, searches and measures would send them."""

    def __init__(self, chance: random.Random, ask: Callable[[str], Any]) -> None:
        self._chance, self._ask = chance, ask
        self._captures: list[_Capture] = []
        self._names: list[tuple[str, int]] = []
        self._kinds: dict[str, Callable[[_Capture], str]] = {
            "window": self._window,
            "pick": self._pick,
            "event": self._event,
            "search": self._search,
            "next": self._next,
            "measure": self._measure,
            "state": self._state,
            "file": lambda _: chance.choice(_FILES),
        }

    def next(self) -> Request:
        """Draw one; until a capture can be looked at, only files and states."""
        if not self._captures:
            self._captures = self._ready()
        chance = self._chance
        if not self._captures:
            return Request("file", chance.choice(_FILES), valid=True)
        capture = chance.choice(self._captures)
        if chance.random() < 0.05:
            path = chance.choice(_INVALID).format(n=capture.number)
            return Request("invalid", path, valid=False)
        weights = (40, 10, 15, 5, 5, 10, 10, 5)
        kind = chance.choices(list(self._kinds), weights)[0]
        return Request(kind, self._kinds[kind](capture), valid=True)

    def learn(self, kind: str, body: bytes) -> None:
        """Remember names that a search found, so that the next ones of them can be asked for."""
        if kind == "search":
            groups = msgspec.json.decode(body)["groups"]
            self._names += [(group["table"], group["code"]) for group in groups[:5]]
            self._names = self._names[-200:]

    def _ready(self) -> list[_Capture]:
        overview = self._ask("api/captures")
        if any(each["state"] == "reading" for each in overview["captures"]):
            return []
        return [self._capture(each["id"]) for each in overview["captures"]]

    def _capture(self, number: int) -> _Capture:
        info = self._ask(f"api/captures/{number}")
        tracks = [_Track(t["key"], t["lines"], t["series"]) for t in info["tracks"]]
        rows: dict[str, int] = {}
        for track in info["tracks"]:
            if len(track["tables"]) == 1 and track["kind"] != "ledger" and not track["series"]:
                (table,) = track["tables"]
                rows[table] = rows.get(table, 0) + track["events"]
        return _Capture(number, info["start_ns"], info["end_ns"], tracks, rows)

    def _stretch(self, capture: _Capture) -> tuple[int, int]:
        """Draw a stretch of time of any zoom, now and then beyond the ends of the capture."""
        whole = capture.end_ns - capture.start_ns
        width = max(1, int(whole * 10 ** self._chance.uniform(-7, 0.1)))
        start = capture.start_ns + int(self._chance.uniform(-0.01, 1.0) * whole)
        return start, start + width

    def _window(self, capture: _Capture) -> str:
        start, end = self._stretch(capture)
        sample = self._chance.sample(capture.tracks, self._chance.randint(1, len(capture.tracks)))
        return _path(
            capture,
            "window",
            start=start,
            end=end,
            bins=self._chance.choice((1, 640, 1440, 3840)),
            tracks=",".join(track.key for track in sample),
        )

    def _pick(self, capture: _Capture) -> str:
        track = self._chance.choice(capture.tracks)
        start, end = self._stretch(capture)
        return _path(
            capture,
            "pick",
            track=track.key,
            line=self._chance.randrange(track.lines),
            time=start,
            within=end - start,
        )

    def _event(self, capture: _Capture) -> str:
        table = self._chance.choice(list(capture.rows))
        return _path(capture, "event", table=table, row=self._chance.randrange(capture.rows[table]))

    def _search(self, capture: _Capture) -> str:
        chance = self._chance
        word = chance.choice(_WORDS)
        if chance.random() < 0.5:
            word = f"{word}{chance.randrange(100)}" if word[-1].isalpha() else word
        return _path(capture, "search", q=word, limit=chance.choice((1, 50, 1000)))

    def _next(self, capture: _Capture) -> str:
        table, code = self._chance.choice(self._names or [("kernels", 0)])
        time_ns, _ = self._stretch(capture)
        return _path(
            capture,
            "next",
            table=table,
            code=code,
            time=time_ns,
            direction=self._chance.choice((-1, 1)),
        )

    def _measure(self, capture: _Capture) -> str:
        start, end = self._stretch(capture)
        return _path(capture, "measure", start=start, end=end)

    def _state(self, capture: _Capture) -> str:
        end = self._chance.choice(("", "/ledger", "/findings"))
        return f"api/captures/{capture.number}{end}"


def _path(capture: _Capture, what: str, **query: object) -> str:
    return f"api/captures/{capture.number}/{what}?{urlencode(query, quote_via=quote)}"


class Abuse:
    """Connections of clients that misbehave. What they are answered does not matter."""

    def __init__(self, chance: random.Random, address: tuple[str, int], root: str) -> None:
        self._chance, self._address = chance, address
        host = f"{address[0]}:{address[1]}"
        self._requests = [
            f"GET {root}{path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
            for path in ("api/captures/0/measure?start=0&end=4000000000", "timeline.js")
        ]
        self._silent: list[socket.socket] = []
        self._kinds = (self._reset, self._half, self._silence, self._garbage, self._pipeline)

    def next(self) -> str:
        """Misbehave once; returns how."""
        kind = self._chance.choice(self._kinds)
        connection = socket.create_connection(self._address, timeout=30)
        try:
            kind(connection)
        except ConnectionError:  # the server may close on such a client at any time
            connection.close()
        return kind.__name__.strip("_")

    def close(self) -> None:
        """Close what was left open."""
        while self._silent:
            self._silent.pop().close()

    def _reset(self, connection: socket.socket) -> None:
        """Ask, and reset the connection before the answer."""
        connection.sendall(self._chance.choice(self._requests))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def _half(self, connection: socket.socket) -> None:
        """Send half of a request and close."""
        connection.sendall(self._part())
        connection.close()

    def _silence(self, connection: socket.socket) -> None:
        """Send nothing, a part or all of a request; stay connected and never read."""
        connection.sendall(self._chance.choice((b"", self._part(), *self._requests)))
        self._silent.append(connection)
        if len(self._silent) > _MAX_SILENT:
            self._silent.pop(0).close()

    def _garbage(self, connection: socket.socket) -> None:
        """Send what is not HTTP."""
        connection.sendall(self._chance.randbytes(2000) + b"\r\n\r\n")
        connection.close()

    def _pipeline(self, connection: socket.socket) -> None:
        """Send several requests at once, read a little, close."""
        connection.sendall(self._chance.choice(self._requests) * 5)
        connection.recv(100)
        connection.close()

    def _part(self) -> bytes:
        request = self._chance.choice(self._requests)
        return request[: self._chance.randrange(1, len(request))]
