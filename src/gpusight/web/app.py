"""What the server answers: its own three files, and questions about the captures."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from gpusight.errors import GpusightError, InternalError, UsageError, internal_error, is_unexpected
from gpusight.web.loaded_capture import ServerStopped
from gpusight.web.pool import BusyError, GoneError, Pool
from gpusight.web.routes import ROUTES, RequestQuery, RouteRequest, read_whole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from gpusight.web.routes import Route as Question
    from gpusight.web.session import Session

    Endpoint = Callable[[Request], Awaitable[Response]]


FILES = {
    "/": ("index.html", "text/html"),
    "/timeline.js": ("timeline.js", "text/javascript"),
    "/timeline.css": ("timeline.css", "text/css"),
}
"""Every file that is served; no path ever comes from a request."""
_JSON = "application/json"
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (UsageError, 400),
    (BusyError, 503),
    (GoneError, 503),
    (InternalError, 500),
    (GpusightError, 404),
)


def make_app(session: Session) -> Starlette:
    """Make the application behind the guard."""
    pool = Pool()
    routes = [Route(path, _file(*file)) for path, file in FILES.items()]
    routes.append(Route("/api/captures", _overview(session)))
    routes += [
        Route(f"/api/captures/{{number}}{end}", _route_endpoint(session, pool, question))
        for end, question in ROUTES.items()
    ]
    routes.append(Route("/api/compare", _comparison(session)))
    app = Starlette(
        routes=routes,
        exception_handlers={
            GpusightError: _failed,
            ServerStopped: _stopped,
            HTTPException: _absent,
        },
    )
    app.router.redirect_slashes = False
    return app


def _file(name: str, media_type: str) -> Endpoint:
    async def answer(_: Request) -> Response:
        file = resources.files("gpusight.web").joinpath("static", name)
        if not file.is_file():
            raise GpusightError(f"{name} is not installed", hint="reinstall gpusight")
        return Response(file.read_bytes(), media_type=media_type)

    return answer


def _overview(session: Session) -> Endpoint:
    async def answer(_: Request) -> Response:
        return _json_response(session.overview())

    return answer


def _comparison(session: Session) -> Endpoint:
    async def answer(_: Request) -> Response:
        return _json_response(session.comparison)

    return answer


def _route_endpoint(session: Session, pool: Pool, question: Question) -> Endpoint:
    async def answer(request: Request) -> Response:
        served = session.capture(_number(request))
        if served is None:
            raise HTTPException(404, "no such capture")
        routed = RouteRequest(served, RequestQuery(request.query_params), session.reports)
        try:
            return await pool.run(request, lambda: _route_response(question, routed))
        except GpusightError as error:
            return _error(_status(error), served.reason(error))

    return answer


def _route_response(question: Question, routed: RouteRequest) -> Response:
    """Answer, and keep a bug from ending the server or printing on its terminal."""
    try:
        return _json_response(question(routed))
    except GpusightError:
        raise
    except BaseException as error:  # a panic of Polars is no Exception
        if not is_unexpected(error) or isinstance(error, ServerStopped):
            raise
        raise internal_error(error) from error


def _number(request: Request) -> int:
    text = request.path_params["number"]
    value = read_whole(text) if text.isdecimal() and len(text) < 10 else None
    return -1 if value is None else value


def _json_response(answer: object) -> Response:
    if isinstance(answer, bytes):
        return Response(answer, media_type="application/octet-stream")
    return Response(msgspec.json.encode(answer, enc_hook=_plain), media_type=_JSON)


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be serialized")


def _error(status: int, line: str) -> Response:
    return Response(msgspec.json.encode({"error": line}), status, media_type=_JSON)


def _status(error: Exception) -> int:
    return next(code for kind, code in _STATUS if isinstance(error, kind))


async def _failed(_: Request, error: Exception) -> Response:
    return _error(_status(error), str(error))


async def _stopped(*_: object) -> Response:
    return _error(503, "the server is shutting down")


async def _absent(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail)
