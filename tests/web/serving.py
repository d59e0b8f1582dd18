"""Captures served without a port: a client that asks the application through its guard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.testclient import TestClient

from gpusight.readers.open import open_trace
from gpusight.trace.trace import Trace
from gpusight.web.app import make_app
from gpusight.web.request_guard import Guard
from gpusight.web.session import Opened, Session

if TYPE_CHECKING:
    from httpx2 import Response

TOKEN, PORT = "token-of-the-test", 8765


@dataclass
class Asking:
    """A session and a client of it."""

    session: Session
    client: TestClient

    def get(self, path: str, query: dict[str, object]) -> Response:
        """Ask for something below `api/`."""
        params = {key: str(value) for key, value in query.items()}
        return self.client.get(f"/{TOKEN}/api/{path}", params=params)

    def answer(self, path: str, **query: object) -> Any:
        """Ask for JSON that must be there."""
        response = self.get(path, query)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        return response.json()

    def bytes(self, path: str, **query: object) -> bytes:
        """Ask for bytes that must be there."""
        response = self.get(path, query)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/octet-stream"
        return bytes(response.content)

    def refusal(self, path: str, **query: object) -> tuple[int, str]:
        """Ask for what is refused: the status and the line that says why."""
        response = self.get(path, query)
        assert response.status_code >= 400, response.text
        document = response.json()
        assert list(document) == ["error"]
        assert "\n" not in document["error"]
        return response.status_code, document["error"]


@contextmanager
def asking(*captures: Trace | Path | Opened, wait: bool = True) -> Iterator[Asking]:
    """Serve captures; waits until everything about them is worked out, unless told not to."""
    session = Session([_opened(one) for one in captures])
    session.start()
    try:
        if wait:
            _finished(session)
        guarded = Guard(make_app(session), TOKEN, PORT)
        yield Asking(session, TestClient(guarded, base_url=f"http://127.0.0.1:{PORT}"))
    finally:
        session.stop(10)
        assert not any(thread.is_alive() for thread in session._threads)


def _opened(one: Trace | Path | Opened) -> Opened:
    if isinstance(one, Opened):
        return one
    if isinstance(one, Trace):
        return Opened("built.sqlite", one, owned=False)
    return Opened(one.name, open_trace(one))


def _finished(session: Session) -> None:
    threads: Sequence[Any] = session._threads
    for served in session._served:
        assert served.done.wait(60)
    threads[-1].join(60)
    assert not threads[-1].is_alive()
