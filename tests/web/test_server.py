"""`gs.serve`: a server beside one's own program."""

from __future__ import annotations

import gc
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
import weakref
from pathlib import Path

import pytest

import gpusight as gs
from gpusight.errors import CaptureError, UsageError
from tests.shared import DATA
from tests.web.test_app import hand_built

CAPTURE = DATA / "dataload.sqlite"


def _threads() -> set[threading.Thread]:
    """Give all threads but those that write the cache, which outlive a capture."""
    return {
        thread for thread in threading.enumerate() if not thread.name.startswith("gpusight-cache")
    }


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_it_runs_beside_the_program_and_stops() -> None:
    before = _threads()
    with gs.serve(CAPTURE) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert status(f"{server.url}api/captures") == 200
        assert status(server.url.rsplit("/", 2)[0] + "/api/captures") == 404
        assert server.url in repr(server)
        assert f'href="{server.url}"' in server._repr_html_()
        began = time.monotonic()
    assert time.monotonic() - began < 1
    with pytest.raises(urllib.error.URLError):
        status(server.url)
    server.stop()  # once more does no harm
    deadline = time.monotonic() + 10
    while _threads() - before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _threads() - before


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_servers_that_come_and_go_leave_nothing() -> None:
    counts = []
    for _ in range(3):
        with gs.serve(CAPTURE) as server:
            assert status(f"{server.url}api/captures") == 200
            assert all(capture.done.wait(30) for capture in server._session._served)
        session = weakref.ref(server._session)
        del server
        deadline = time.monotonic() + 10
        while session() is not None and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.02)
        assert session() is None
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert counts[1:] == counts[:1] * 2


def test_opened_captures_stay_their_owner_s() -> None:
    trace = gs.open(CAPTURE)
    with gs.serve([trace, hand_built()]) as server:
        names = [capture.name for capture in server._session.captures]
        assert names == ["dataload.sqlite", "hand-built"]
    assert trace.table("kernels", ["start_ns"]).height > 0


def test_a_port_can_be_chosen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} is in use"):
            gs.serve(CAPTURE, port=port)
    with gs.serve(CAPTURE, port=port) as server:
        assert f":{port}/" in server.url


@pytest.mark.skipif(sys.platform != "linux", reason="reads which addresses are listened on")
def test_only_this_machine_can_reach_it() -> None:
    with gs.serve(CAPTURE) as server:
        end = f":{int(server.url.split(':')[2].split('/')[0]):04X}"
        tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
        rows = [line.split() for text in tables for line in text.splitlines()[1:]]
        bound = {row[1] for row in rows if row[3] == "0A" and row[1].endswith(end)}
        assert bound == {f"0100007F{end}"}  # 127.0.0.1


def test_small_answers_are_sent_at_once() -> None:
    with gs.serve(CAPTURE) as server:
        assert server._socket.proto == socket.IPPROTO_TCP  # what makes asyncio set TCP_NODELAY


def test_every_server_has_another_token() -> None:
    with gs.serve(CAPTURE) as one, gs.serve(CAPTURE) as two:
        assert one.url.split("/")[3] != two.url.split("/")[3]
        assert len(one.url.split("/")[3]) >= 22


@pytest.mark.parametrize(
    ("captures", "kind", "says"),
    [
        ("nowhere.sqlite", CaptureError, "no such file"),
        ([], UsageError, "no capture was given"),
        (DATA / "thrice.ncu-rep.xz", UsageError, "have no timeline"),
    ],
)
def test_what_cannot_be_served_raises(
    captures: str | Path | list[str], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        gs.serve(captures)
    assert "gpusight-serve" not in {thread.name for thread in _threads()}


def test_ports_that_are_none() -> None:
    for port in (-1, 65_536):
        with pytest.raises(UsageError, match="is not a port"):
            gs.serve(CAPTURE, port=port)


def test_the_browser_is_opened_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with gs.serve(CAPTURE, open_browser=True) as server:
        assert opened == [server.url]


def _asked(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(request)
        received = b""
        while part := connection.recv(65_536):
            received += part
            if b"\r\n\r\n" in received:
                break
        return received


def test_requests_that_are_none_get_an_answer_and_do_no_harm() -> None:
    with gs.serve(CAPTURE) as server:
        port = int(server.url.split(":")[2].split("/")[0])
        path = "/" + server.url.split("/", 3)[3]
        for request, answer in (
            (b"\x00\xff\xfe nonsense\r\n\r\n", b" 400 "),
            (f"GET {path} HTTP/1.1\r\n\r\n".encode(), b" 400 "),
            (f"GET {path} HTTP/1.1\r\nHost: evil\r\n\r\n".encode(), b" 421 "),
            (f"GET /{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode(), b" 404 "),
            (f"GET {path}../../ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode(), b" 404 "),
            (b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n", b" 400 "),
            (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", b" 400 "),
        ):
            assert answer in _asked(port, request).split(b"\r\n")[0]
        assert status(f"{server.url}api/captures") == 200
