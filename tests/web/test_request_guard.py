"""Who gets an answer: our own page on this machine with the token, and nobody else."""

from __future__ import annotations

import socket
import time
import urllib.request
from contextlib import ExitStack

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import Message
from starlette.websockets import WebSocketDisconnect

import gpusight as gs
from gpusight.web.request_guard import HEADERS, MAX_CONNECTIONS, MAX_QUERY_BYTES, Guard
from tests.shared import DATA

TOKEN, PORT = "s3cr3t-token_x", 8765
OWN = f"127.0.0.1:{PORT}"


async def _seen(request: Request) -> Response:
    return PlainTextResponse(f"seen {request.url.path}", headers={"cache-control": "public"})


@pytest.fixture
def client() -> TestClient:
    routes = [Route("/", _seen), Route("/api/captures", _seen)]
    app = Guard(Starlette(routes=routes), TOKEN, PORT)
    return TestClient(app, base_url=f"http://{OWN}", follow_redirects=False)


def test_the_application_sees_paths_without_the_token(client: TestClient) -> None:
    assert client.get(f"/{TOKEN}/").text == "seen /"
    assert client.get(f"/{TOKEN}/api/captures?x=1").text == "seen /api/captures"
    assert client.head(f"/{TOKEN}/").status_code == 200


def test_relative_addresses_need_the_slash(client: TestClient) -> None:
    answer = client.get(f"/{TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (307, f"/{TOKEN}/")


PATHS = {
    "": 404,
    "/": 404,
    "/api/captures": 404,
    "/wrong/": 404,
    f"/{TOKEN[:-1]}/": 404,
    f"/{TOKEN}x/": 404,
    f"/{TOKEN.upper()}/": 404,
    f"//{TOKEN}/": 404,
    f"/x/{TOKEN}/": 404,
    f"/{TOKEN}//": 404,
    f"/{TOKEN}/../../etc/passwd": 404,
    f"/{TOKEN}/%2e%2e/%2e%2e/etc/passwd": 404,
    f"/{TOKEN}/..%2f..%2fetc/passwd": 404,
    f"/{TOKEN}/static/index.html": 404,
    "/t\u00f6ken/": 404,
}


@pytest.mark.parametrize(("path", "status"), PATHS.items())
def test_nothing_is_at_other_paths(client: TestClient, path: str, status: int) -> None:
    assert client.get(path).status_code == status


HOSTS = {
    OWN: 200,
    f"localhost:{PORT}": 200,
    f"LOCALHOST:{PORT}": 200,
    f"[::1]:{PORT}": 200,
    "127.0.0.1": 421,
    "127.0.0.1:8766": 421,
    "localhost": 421,
    "evil.example": 421,
    f"evil.example:{PORT}": 421,
    f"127.0.0.1.evil.example:{PORT}": 421,
    f"localhost.evil.example:{PORT}": 421,
    f"127.0.0.1:{PORT}.evil.example": 421,
    f"0.0.0.0:{PORT}": 421,
    f"127.0.0.2:{PORT}": 421,
    f"user@127.0.0.1:{PORT}": 421,
    "": 421,
}


@pytest.mark.parametrize(("host", "status"), HOSTS.items())
def test_hosts(client: TestClient, host: str, status: int) -> None:
    assert client.get(f"/{TOKEN}/", headers={"host": host}).status_code == status


def _status(hosts: list[str], query: bytes = b"") -> int:
    """Ask without a client, which would refuse to send this."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/{TOKEN}/",
        "query_string": query,
        "headers": [(b"host", host.encode()) for host in hosts],
    }
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read of a request")

    anyio.run(Guard(Starlette(routes=[Route("/", _seen)]), TOKEN, PORT), scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize("hosts", [[], [OWN, OWN], [OWN, "evil.example"]])
def test_a_request_names_one_host(hosts: list[str]) -> None:
    assert _status(hosts) == 421


ORIGINS = {
    f"http://{OWN}": 200,
    f"http://localhost:{PORT}": 200,
    "http://evil.example": 403,
    "null": 403,
    "http://127.0.0.1": 403,
    "http://127.0.0.1:8766": 403,
    f"https://{OWN}": 403,
    f"http://{OWN}.evil.example": 403,
    "": 403,
}


@pytest.mark.parametrize(("origin", "status"), ORIGINS.items())
def test_origins(client: TestClient, origin: str, status: int) -> None:
    assert client.get(f"/{TOKEN}/", headers={"origin": origin}).status_code == status


def _fetched(site: str, mode: str, dest: str) -> dict[str, str]:
    return {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}


FETCHES = [
    ("/", _fetched("none", "navigate", "document"), 200),
    ("/api/captures", _fetched("same-origin", "cors", "empty"), 200),
    ("/api/captures", _fetched("cross-site", "cors", "empty"), 403),
    ("/api/captures", _fetched("same-site", "cors", "empty"), 403),
    ("/api/captures", _fetched("cross-site", "no-cors", "script"), 403),
    ("/api/captures", _fetched("cross-site", "navigate", "document"), 403),
    ("/", _fetched("cross-site", "navigate", "document"), 200),  # a link in a notebook
    ("/", _fetched("cross-site", "navigate", "iframe"), 403),
    ("/", _fetched("cross-site", "no-cors", "image"), 403),
    ("/", _fetched("", "navigate", "iframe"), 403),
]


@pytest.mark.parametrize(("path", "headers", "status"), FETCHES)
def test_pages_that_ask(
    client: TestClient, path: str, headers: dict[str, str], status: int
) -> None:
    assert client.get(f"/{TOKEN}{path}", headers=headers).status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_nothing_can_be_changed(client: TestClient, method: str) -> None:
    answer = client.request(method, f"/{TOKEN}/")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 414)])
def test_a_query_is_bounded(extra: int, status: int) -> None:
    assert _status([OWN], b"x" * (MAX_QUERY_BYTES + extra)) == status


def test_nothing_speaks_over_web_sockets(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(f"/{TOKEN}/"):
        pass


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (f"/{TOKEN}/", {}),
        (f"/{TOKEN}", {}),
        (f"/{TOKEN}/nothing", {}),
        ("/nothing", {}),
        (f"/{TOKEN}/", {"host": "evil.example"}),
        (f"/{TOKEN}/", {"origin": "null"}),
    ],
)
def test_every_answer_says_what_browsers_may_do_with_it(
    client: TestClient, path: str, headers: dict[str, str]
) -> None:
    answer = client.get(path, headers=headers)
    for name, value in HEADERS:
        assert answer.headers.get_list(name.decode()) == [value.decode()]


def test_the_policy_lets_nothing_in() -> None:
    policy = dict(HEADERS)[b"content-security-policy"].decode()
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_on_the_usual_port_hosts_have_none() -> None:
    app = Guard(Starlette(routes=[Route("/", _seen)]), TOKEN, 80)
    client = TestClient(app, base_url="http://localhost")
    assert client.get(f"/{TOKEN}/").status_code == 200


# Who connects and says nothing cannot keep others out.


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
