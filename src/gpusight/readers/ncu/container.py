"""The blocks of a report: where sources and results lie, and what is said about the session.

A report is the mark `NVR`, a header, and blocks to its end. A block has a header (counts, a piece
of the session's description, more strings for the table that all blocks share) and a payload of
messages: first the sources, then results of kernels, ranges, command lists and graphs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gpusight.errors import DamagedCaptureError
from gpusight.evidence import NCU_REPORT
from gpusight.readers.protobuf.wire import WireError, child, integer, parse, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.readers.protobuf.wire import Message

KINDS = ("kernel", "range", "command list", "graph")
_COUNTS = {"source": 1, "kernel": 2, "range": 7, "command list": 8, "graph": 9}
"""Fields of a block's header that count the messages of its payload, in their order there."""
_SESSION, _STRINGS, _PAYLOAD, _PROCESS = 3, 4, 5, 6
_WORD = 4


class Span(NamedTuple):
    """Where a message lies."""

    start: int
    end: int


class Process(NamedTuple):
    """A process that launched something."""

    pid: int
    name: str | None
    """Path of its executable."""


class Result(NamedTuple):
    """Where a result lies, and which process it is of."""

    kind: str
    span: Span
    process: Process | None


@dataclass
class Container:
    """What the blocks of a report hold; messages are not looked into yet."""

    strings: list[str] = field(default_factory=list)
    """Names of metrics, by number."""
    session: list[Message] = field(default_factory=list)
    sources: list[Span] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    problem: str | None = None
    """Why the walk ended before the last block."""


def read_container(path: str, data: memoryview) -> Container:
    """Walk over all blocks; a report that is cut off gives what lies before the cut."""
    container = Container()
    try:
        start = _first_block(data)
    except WireError as error:
        raise DamagedCaptureError(
            f"{path} is not a whole report", why=str(error), hint="copy or capture it again"
        ) from error
    try:
        for header, payload in _blocks(data, start):
            _take(container, data, header, payload)
    except WireError as error:
        container.problem = str(error)
    return container


def _first_block(data: memoryview) -> int:
    if bytes(data[: len(NCU_REPORT)]) != NCU_REPORT:
        raise WireError("its header is missing")
    header = _sized(data, len(NCU_REPORT), len(data))
    parse(data[header.start : header.end])
    return header.end


def _blocks(data: memoryview, at: int) -> Iterator[tuple[Message, Span]]:
    while at < len(data):
        header = _sized(data, at, len(data))
        message = parse(data[header.start : header.end])
        size = integer(message, _PAYLOAD) or 0
        if not message or size < 0:  # zeros to the end, or a way back to where we have been
            raise WireError("it goes on with something that is no block")
        payload = Span(header.end, header.end + size)
        yield message, payload
        at = payload.end


def _take(container: Container, data: memoryview, header: Message, payload: Span) -> None:
    container.strings += _strings(child(header, _STRINGS))
    described = child(header, _SESSION)
    if described:
        container.session.append(described)
    process = _process(child(header, _PROCESS))
    at, end = payload.start, min(payload.end, len(data))
    for kind, number in _COUNTS.items():
        for _ in range(integer(header, number) or 0):
            span = _sized(data, at, end)
            at = span.end
            if span.start == span.end:
                raise WireError("a message in it is empty")
            if kind == "source":
                container.sources.append(span)
            else:
                container.results.append(Result(kind, span, process))
    if payload.end > len(data):
        raise WireError("it is cut off in the middle of a block")


def _sized(data: memoryview, at: int, end: int) -> Span:
    """Find the message whose length is written in front of it."""
    start = at + _WORD
    if start > end:
        raise WireError("it is cut off where a length should be")
    size = int.from_bytes(data[at:start], "little")
    if size > end - start:
        raise WireError("it is cut off in the middle of a message")
    return Span(start, start + size)


def _strings(table: Message) -> list[str]:
    return [s.decode("utf-8", "replace") for s in table.get(1, ()) if isinstance(s, bytes)]


def _process(message: Message) -> Process | None:
    pid = integer(message, 1)
    return None if pid is None else Process(pid, text(message, 3))
