"""What the server answers about captures, asked through its own address."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE_S, _PAUSE_S = 60.0, 0.02


def served(*captures: str) -> list[str]:
    """Serve captures and ask every question about them; gives the answers."""
    import gpusight as gs

    server = gs.serve(list(captures))
    try:
        return list(_answers(server.url))
    finally:
        server.stop()


def _answers(url: str) -> Iterator[str]:
    overview = _finished(url, "captures")
    ready = [capture["id"] for capture in overview["captures"]]
    for number in ready:
        yield from _of_capture(url, f"captures/{number}")
    _finished(url, "compare")
    for path in ("captures", "compare", "captures/9"):
        yield _ask(url, path)


def _of_capture(url: str, path: str) -> Iterator[str]:
    info = json.loads(_ask(url, path))
    span = {"start": info["start_ns"], "end": info["end_ns"]}
    tracks = [track["key"] for track in info["tracks"]]
    # The ledger and the findings are computed once the first window was asked for.
    while '"pending":[]' not in _ask(
        url, f"{path}/window", **span, bins=1, tracks=",".join(tracks)
    ):
        time.sleep(_PAUSE_S)
    for part in ("findings", "ledger"):
        yield json.dumps(_finished(url, f"{path}/{part}"), indent=1, sort_keys=True)
    yield json.dumps(json.loads(_ask(url, path)), indent=1, sort_keys=True)
    for track in tracks:
        yield _ask(url, f"{path}/window", **span, bins=50, tracks=track)
    yield _ask(url, f"{path}/measure", **span)
    yield _ask(url, f"{path}/pick", track=tracks[0], line=0, time=span["start"], within=10**9)
    for table in ("kernels", "copies", "api_calls", "ranges", "nothing"):
        yield from (_ask(url, f"{path}/event", table=table, row=row) for row in (0, 7))
    document = json.loads(_ask(url, f"{path}/search", q="e", limit=20))
    yield json.dumps(document, indent=1, sort_keys=True)
    for group in document["groups"][:3]:
        name = {"table": group["table"], "code": group["code"]}
        yield _ask(url, f"{path}/next", **name, time=span["start"], direction=1)


def _finished(url: str, path: str) -> Any:
    """Ask until nothing is being computed any more."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        answer = json.loads(_ask(url, path))
        states = [capture["state"] for capture in answer.get("captures", [answer])]
        if not {"reading", "computing"} & set(states):
            return answer
        assert time.monotonic() < until, f"{path} is not finished: {states}"
        time.sleep(_PAUSE_S)


def _ask(url: str, path: str, **query: object) -> str:
    address = f"{url}api/{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(address, timeout=_PATIENCE_S) as response:
            data: bytes = response.read()
    except urllib.error.HTTPError as error:
        with error:
            data = b"%d " % error.code + error.read()
    return data.decode("utf-8", "backslashreplace")
