"""What the server answers: its own three files, and what a page can request of a capture.

What a route needs is imported with it: the server answers sooner so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from gpusight.errors import GpusightError, InternalError, UsageError, internal_error, is_unexpected
from gpusight.web.loaded_capture import ServerStopped
from gpusight.web.payloads import safe, shown
from gpusight.web.pool import BusyError, GoneError, Pool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request

    from gpusight.trace.trace import Trace
    from gpusight.viewer.event_search import NamedEvents
    from gpusight.viewer.selection_measures import DeviceMeasures, KernelMeasures
    from gpusight.viewer.track_data import EventPosition
    from gpusight.web.job_payloads import ServedJob
    from gpusight.web.loaded_capture import LoadedCapture
    from gpusight.web.session import Session

    Endpoint = Callable[[Request], Awaitable[Response]]


MAX_TIME_NS = 2**62
"""Times beyond this, 146 years, are a mistake."""
_MAX_NUMBER_CHARS = 40
_MAX_SHOWN_CHARS = 40


class RequestQuery:
    """The parameters of a request."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def text(self, name: str, most: int) -> str:
        """Give a text of at most so many characters."""
        if name not in self._given:
            raise UsageError(f"{name} is missing")
        text = self._given[name]
        if len(text) > most:
            raise UsageError(f"{name} is too long", why=f"it may have {most:,} characters")
        return text

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Give a whole number; a fraction, which a page may compute, is cut off."""
        if default is not None and name not in self._given:
            return default
        text = self.text(name, _MAX_NUMBER_CHARS)
        value = read_whole(text)
        if value is None or not low <= value <= high:
            shown = text[:_MAX_SHOWN_CHARS]
            raise UsageError(f"{name} is {shown!r}, not a number from {low:,} to {high:,}")
        return value

    def time(self, name: str) -> int:
        """Give a time in nanoseconds from the capture's origin; it may lie before that."""
        return self.whole(name, -MAX_TIME_NS, MAX_TIME_NS)

    def stretch(self) -> tuple[int, int]:
        """Give the stretch of time from `start` to `end`."""
        start, end = self.time("start"), self.time("end")
        if end <= start:
            raise UsageError("end is not after start")
        return start, end

    def names(self, name: str, most: int, longest: int) -> list[str]:
        """Give a list separated by commas."""
        parts = self.text(name, most * (longest + 1)).split(",")
        kept = list(dict.fromkeys(part for part in parts if part))
        if len(kept) > most:
            raise UsageError(f"{name} has {len(kept):,} names", why=f"at most {most:,} at once")
        return kept


def read_whole(text: str) -> int | None:
    """Read a whole number, or the whole part of another; None for anything else."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return None
    return math.floor(value) if math.isfinite(value) else None


MAX_WINDOW_BINS = 8192
MAX_WINDOW_TRACKS = 1024
MAX_SEARCH_RESULTS = 1000
MAX_KEY_CHARS = 200
MAX_SEARCH_CHARS = 500
_MAX_LINE = 1 << 16
_MAX_ROW = 1 << 32
_Named = TypeVar("_Named", "NamedEvents", "DeviceMeasures", "KernelMeasures")


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """A question about one capture."""

    served: LoadedCapture
    query: RequestQuery
    reports: Sequence[Trace]
    """Nsight Compute reports of the same program."""


RouteHandler: TypeAlias = "Callable[[RouteRequest], object]"
"""Gives what becomes JSON, or the bytes themselves."""


def info(request: RouteRequest) -> object:
    """Return what a page needs before it loads events."""
    return request.served.info


def window(request: RouteRequest) -> bytes:
    """Give what a screen shows of some tracks."""
    from gpusight.web.capture_payloads import encode_window

    start_ns, end_ns = request.query.stretch()
    bins = request.query.whole("bins", 1, MAX_WINDOW_BINS)
    keys = request.query.names("tracks", MAX_WINDOW_TRACKS, MAX_KEY_CHARS)
    answer = encode_window(request.served.timeline.window(keys, start_ns, end_ns, bins))
    request.served.seen.set()
    return answer


def pick(request: RouteRequest) -> EventPosition | None:
    """Give the event at a time on a line, or the nearest."""
    query = request.query
    spot = request.served.timeline.pick(
        query.text("track", MAX_KEY_CHARS),
        query.whole("line", 0, _MAX_LINE),
        query.time("time"),
        query.whole("within", 0, MAX_TIME_NS, default=0),
    )
    return None if spot is None else safe(spot)


def event(request: RouteRequest) -> object:
    """Return everything about one event."""
    from gpusight.web.analysis_payloads import event_payload

    table, row = request.query.text("table", MAX_KEY_CHARS), request.query.whole("row", 0, _MAX_ROW)
    details = event_payload(request.served.timeline, table, row, request.reports)
    job = request.served.job
    return details if job is None else job.with_links(details, request.served.timeline)


def search(request: RouteRequest) -> object:
    """Find names that hold a text."""
    from gpusight.viewer.event_search import search as find

    text = request.query.text("q", MAX_SEARCH_CHARS)
    limit = request.query.whole("limit", 1, MAX_SEARCH_RESULTS, default=50)
    matches = find(request.served.timeline.trace, text, limit)
    return replace(matches, groups=tuple(map(_readable, matches.groups)))


def following(request: RouteRequest) -> EventPosition | None:
    """Give the next event of a name, or the one before."""
    from gpusight.viewer.event_search import next_event

    query, timeline = request.query, request.served.timeline
    table = query.text("table", MAX_KEY_CHARS)
    direction = query.whole("direction", -1, 1, default=1) or 1
    code, time_ns = query.whole("code", 0, _MAX_ROW), query.time("time")
    row = next_event(timeline.trace, table, code, time_ns, direction)
    spot = None if row is None else timeline.spot(table, row)
    return None if spot is None else safe(spot)


def measure(request: RouteRequest) -> object:
    """Add up what lies in a stretch of time."""
    from gpusight.viewer.selection_measures import measure as measured

    measurement = measured(request.served.timeline, *request.query.stretch())
    devices, kernels = (
        tuple(map(_readable, measurement.devices)),
        tuple(map(_readable, measurement.kernels)),
    )
    return replace(measurement, devices=devices, kernels=kernels)


def flame(request: RouteRequest) -> object:
    """Give the stacks of a stretch of time as a flame graph, of all tracks or one."""
    from gpusight.web.analysis_payloads import flame_payload

    query = request.query
    of, by = (query.text(name, _MAX_SHOWN_CHARS) for name in ("of", "by"))
    keys = query.names("track", 1, MAX_KEY_CHARS)
    timeline = request.served.timeline
    track = timeline.track_source(keys[0]) if keys else None
    return flame_payload(timeline.trace, query.stretch(), of, by, track)


def findings(request: RouteRequest) -> object:
    """Return the findings as a plan."""
    return request.served.findings


def ledger(request: RouteRequest) -> object:
    """Return where the time goes."""
    return request.served.ledger


def ranks(request: RouteRequest) -> object:
    """Compare the ranks of a job."""
    return _job_of(request).info


def collective(request: RouteRequest) -> EventPosition | None:
    """Give the longest collective of a rank in a stretch of time."""
    job, rank = _job_of(request), request.query.whole("rank", 0, _MAX_ROW)
    return job.collective(request.served.timeline, rank, *request.query.stretch())


def _job_of(request: RouteRequest) -> ServedJob:
    if request.served.job is None:
        raise UsageError("this is one capture, not a job of several ranks")
    return request.served.job


def _readable(named: _Named) -> _Named:
    """Give something whose name, out of a capture, is safe to show."""
    return replace(named, name=shown(named.name))


ROUTES: dict[str, RouteHandler] = {
    "": info,
    "/window": window,
    "/pick": pick,
    "/event": event,
    "/search": search,
    "/next": following,
    "/measure": measure,
    "/flame": flame,
    "/findings": findings,
    "/ledger": ledger,
    "/ranks": ranks,
    "/collective": collective,
}
"""Every question, by the end of its address."""


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


def _route_endpoint(session: Session, pool: Pool, question: RouteHandler) -> Endpoint:
    async def answer(request: Request) -> Response:
        text = request.path_params["number"]
        value = read_whole(text) if text.isdecimal() and len(text) < 10 else None
        served = session.capture(-1 if value is None else value)
        if served is None:
            raise HTTPException(404, "no such capture")
        routed = RouteRequest(served, RequestQuery(request.query_params), session.reports)
        try:
            return await pool.run(request, lambda: _route_response(question, routed))
        except GpusightError as error:
            return _error(_status(error), served.reason(error))

    return answer


def _route_response(question: RouteHandler, routed: RouteRequest) -> Response:
    """Answer, and keep a bug from ending the server or printing on its terminal."""
    try:
        return _json_response(question(routed))
    except GpusightError:
        raise
    except BaseException as error:  # a panic of Polars is no Exception
        if not is_unexpected(error) or isinstance(error, ServerStopped):
            raise
        raise internal_error(error) from error


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
