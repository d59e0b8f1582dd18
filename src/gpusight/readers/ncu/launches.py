"""What a result says of its launch, and where its counters and rules lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpusight.readers.names import NAMELESS
from gpusight.readers.ncu.container import Span
from gpusight.readers.ncu.nvtx import open_ranges
from gpusight.readers.protobuf.wire import (
    NUMBER,
    Message,
    WireError,
    fields,
    integer,
    parse,
    signed,
)

if TYPE_CHECKING:
    from gpusight.readers.ncu.container import Process, Result

_NONE = 0


@dataclass(frozen=True, slots=True)
class _Layout:
    """Numbers of the fields in one kind of result; 0 for those that it does not have."""

    metrics: int
    nvtx: int
    context: int
    stream: int
    clocks: int
    rules: int = _NONE
    name: int = _NONE


_LAYOUTS = {
    "kernel": _Layout(metrics=13, nvtx=21, context=22, stream=23, clocks=25, rules=19),
    "range": _Layout(metrics=4, nvtx=10, context=11, stream=_NONE, clocks=12),
    "command list": _Layout(
        metrics=4, nvtx=10, context=11, stream=12, clocks=13, rules=21, name=18
    ),
    "graph": _Layout(metrics=4, nvtx=10, context=11, stream=12, clocks=13),
}
_THREAD, _MANGLED, _FUNCTION, _DEMANGLED, _GRID, _BLOCK, _SOURCE = 1, 5, 6, 7, 10, 11, 15
_NAMELESS = {"range": "(range)", "graph": "(graph)", "command list": "(command list)"}


@dataclass(slots=True)
class Launch:
    """One result: what was launched, and where the rest of it lies."""

    number: int
    kind: str
    process: Process | None
    thread: int | None = None
    mangled: str | None = None
    function: str | None = None
    demangled: str | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    context: int | None = None
    stream: int | None = None
    ranges: str | None = None
    source: int | None = None
    """Reference to the code that it ran."""
    locked: bool | None = None
    """Whether clocks were held at a fixed rate."""
    metrics: list[Span] = field(default_factory=list)
    rules: list[Span] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The best name that the report has for it."""
        named = self.demangled or self.function or self.mangled
        return named or _NAMELESS.get(self.kind, NAMELESS)


def read_launch(data: memoryview, number: int, result: Result) -> Launch | None:
    """Read what a result says of its launch; None when it cannot be decoded."""
    try:
        return _read(data, number, result)
    except WireError:
        return None


def _read(data: memoryview, number: int, result: Result) -> Launch:
    """Read what is small; counters and rules are only found."""
    layout = _LAYOUTS[result.kind]
    launch = Launch(number, result.kind, result.process)
    numbers: dict[int, int] = {}
    spans: dict[int, Span] = {}
    base = result.span.start
    whole = bytes(data[base : result.span.end])
    for found, start, end in fields(whole, 0, len(whole)):
        if start == NUMBER:
            numbers[found] = signed(end)
        elif found == layout.metrics:
            launch.metrics.append(Span(base + start, base + end))
        elif found == layout.rules:
            launch.rules.append(Span(base + start, base + end))
        else:
            spans[found] = Span(base + start, base + end)

    def message(field: int) -> Message:
        span = spans.get(field)
        return {} if span is None else parse(data[span.start : span.end])

    launch.thread = numbers.get(_THREAD)
    launch.context = numbers.get(layout.context)
    launch.stream = numbers.get(layout.stream)
    launch.ranges = open_ranges(message(layout.nvtx), launch.thread)
    launch.locked = _is_locked(message(layout.clocks))
    if result.kind == "kernel":
        launch.mangled, launch.function, launch.demangled = (
            _text(data, spans.get(field)) for field in (_MANGLED, _FUNCTION, _DEMANGLED)
        )
        launch.grid, launch.block = _size(message(_GRID)), _size(message(_BLOCK))
        launch.source = integer(message(_SOURCE), 1)
    else:
        launch.function = _text(data, spans.get(layout.name))
    return launch


def _text(data: memoryview, span: Span | None) -> str | None:
    found = b"" if span is None else bytes(data[span.start : span.end])
    return found.decode("utf-8", "replace") or None


def _size(message: Message) -> tuple[int, int, int] | None:
    x, y, z = (integer(message, axis) for axis in (1, 2, 3))
    return None if x is None else (x, y or 1, z or 1)


def _is_locked(message: Message) -> bool | None:
    locked = integer(message, 2)
    return None if locked is None else bool(locked)
