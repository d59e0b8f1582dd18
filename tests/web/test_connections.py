"""Who connects and says nothing cannot keep others out."""

from __future__ import annotations

import socket
import time
import urllib.request
from contextlib import ExitStack

import gpusight as gs
from gpusight.web.request_guard import MAX_CONNECTIONS
from tests.shared import DATA


def _answers(url: str) -> bool:
    with urllib.request.urlopen(f"{url}api/captures", timeout=10) as answer:
        return bool(answer.status == 200)


def test_the_silent_make_room() -> None:
    with gs.serve(DATA / "dataload.sqlite") as server, ExitStack() as opened:
        port = int(server.url.split(":")[2].split("/")[0])
        for number in range(2 * MAX_CONNECTIONS):
            one = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            time.sleep(0.001)  # the system lets only so many wait
            if number % 2 and number >= MAX_CONNECTIONS:
                one.sendall(b"GET / HTTP/1.1\r\nX: ")  # and never goes on
        assert _answers(server.url)
        assert len(server._server.server_state.connections) <= MAX_CONNECTIONS
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 1
