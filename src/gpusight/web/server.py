"""A server on this machine alone: bound before anything is read, stopped without a trace."""

from __future__ import annotations

import errno
import html
import os
import secrets
import socket
import threading
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from gpusight.errors import GpusightError, UsageError
from gpusight.open_job import is_job, open_job
from gpusight.readers.open import open_trace
from gpusight.trace.trace import Capture, Trace
from gpusight.web.app import make_app
from gpusight.web.request_guard import (
    MAX_QUERY_BYTES,
    MAX_WAITING_CONNECTIONS,
    Guard,
    bounded_protocol,
)
from gpusight.web.session import Opened, Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self


LOOPBACK = "127.0.0.1"
MAX_PORT = 65_535
_TOKEN_BYTES = 18
_PATIENCE_S = 1.0
"""A moment before the server starts, in which what fails at once does."""
_STOPPING_S = 0.6
"""What stopping may take; whatever is still at work then ends by itself."""
_MAX_HEAD_BYTES = MAX_QUERY_BYTES + (1 << 15)
"""Of the first line and the headers of a request."""


class Server:
    """A server that runs in threads of its own until it is stopped."""

    def __init__(self, session: Session, port: int = 0) -> None:
        self._session = session
        self._socket = bound_socket(port)
        self._port: int = self._socket.getsockname()[1]
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.url = f"http://{LOOPBACK}:{self._port}/{token}/"
        """Where the page is; whoever knows it may look."""
        config = uvicorn.Config(
            Guard(make_app(session), token, self._port),
            http=bounded_protocol(),
            backlog=MAX_WAITING_CONNECTIONS,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="error",  # a bug still shows its traceback
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="gpusight-serve", daemon=True)

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def start(self) -> None:
        """Answer from now on, and begin to read; raises where nothing can be shown at all."""
        self._session.start(_PATIENCE_S)
        try:
            self.check()
        except GpusightError:
            self.stop()
            raise
        self._thread.start()

    def stop(self) -> None:
        """Answer no more, and be done with the captures; takes less than a second."""
        until = time.monotonic() + _STOPPING_S
        self._server.should_exit = True
        self._session.stop(_STOPPING_S)
        if self._thread.ident is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
        self._socket.close()

    def check(self) -> None:
        """Raise where it has turned out that nothing can be shown."""
        if self._session.failure is not None:
            raise self._session.failure

    @property
    def is_finished(self) -> bool:
        """Whether everything about the captures has been computed, or has failed."""
        return self._session.is_finished

    @property
    def failures(self) -> list[str]:
        """Why captures cannot be shown, a line each."""
        return [
            str(capture.error) for capture in self._session.captures if capture.error is not None
        ]

    def __enter__(self) -> Self:
        """Use as a context manager to have it stopped at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()

    def __repr__(self) -> str:
        """Name the server and its address."""
        return f"<gpusight server at {self.url}>"

    def _repr_html_(self) -> str:
        link = html.escape(self.url)
        return f'<a href="{link}" target="_blank" rel="noopener">{link}</a>'


def bound_socket(port: int) -> socket.socket:
    """Take a port of this machine; 0 for any that is free."""
    if not 0 <= port <= MAX_PORT:
        raise UsageError(f"{port} is not a port", hint=f"ports are 1 to {MAX_PORT:,}")
    # asyncio sends small answers at once only where the protocol is named; else they wait 40 ms.
    taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if os.name == "posix":  # elsewhere this would let two servers have one port
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((LOOPBACK, port))
        taken.listen()  # whoever connects before the loop runs waits, and is not refused
    except OSError as error:
        taken.close()
        if error.errno == errno.EADDRINUSE:
            hint = "choose another, or none for one that is free"
            raise UsageError(f"port {port} is in use", hint=hint) from error
        raise GpusightError(
            f"port {port} cannot be used", why=error.strerror or str(error)
        ) from error
    return taken


def serve(
    captures: Capture | Sequence[Capture],
    *,
    port: int = 0,
    open_browser: bool = False,
    cache: bool = True,
    pace: str | float | None = None,
) -> Server:
    """Serve captures and give the server, which runs; raises where none can be opened."""
    given = [captures] if isinstance(captures, (str, os.PathLike, Trace)) else list(captures)
    if not given:
        raise UsageError("no capture was given", hint="gpusight serve FILE")
    if is_job(given):
        opened = [_opened_job(given, cache=cache)]
    else:
        opened = [_opened(path, cache=cache, pace=pace) for path in given]
    server = Server(Session(opened), port)
    server.start()
    if open_browser:
        webbrowser.open(server.url)
    return server


def _opened_job(captures: Sequence[Capture], *, cache: bool) -> Opened:
    """Open all ranks of a job as one capture."""
    from gpusight.web.job_payloads import MAX_TIMELINES

    job = open_job(captures, cache=cache, most=MAX_TIMELINES)
    first = Path(captures[0] if not isinstance(captures[0], Trace) else captures[0].meta.path)
    name = first.resolve().name if first.is_dir() else f"{len(job.answer.ranks)} ranks"
    return Opened(name, job.trace, path=first, job=job)


def _opened(capture: Capture, *, cache: bool, pace: str | float | None = None) -> Opened:
    """Open a capture; one that is opened already is read anew, so that it stays its owner's."""
    if isinstance(capture, Trace):
        path = Path(capture.meta.path)
        if not path.exists():
            return Opened(path.name, capture, owned=False)
        return _opened(path, cache=cache, pace=capture.pace)
    path = Path(capture)
    try:
        trace = open_trace(capture, cache=cache)
    except GpusightError as error:
        return Opened(path.name, error, path=path)
    trace.pace = pace
    return Opened(path.name, trace, path=path)
