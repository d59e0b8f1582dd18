"""A verdict on a terminal: the line that counts, the checks, and why."""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import TYPE_CHECKING, TextIO

from gpusight.comparison.gate import Status
from gpusight.render.cells import display_width, pad, safe_text, shorten_middle
from gpusight.render.diagnosis.lines import Line, draw, plain, wrapped
from gpusight.render.gate import parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.comparison.gate import Gate

_STYLES = {
    Status.PASSED: "green",
    Status.FAILED: "bold red",
    Status.UNSURE: "yellow",
    Status.MISSING: "magenta",
    Status.INCONCLUSIVE: "bold yellow",
}
_LEAST_NAME = 12
_LEFT = {"metric", "status"}
_SPARED = ("interval", "baseline", "change")
"""Columns that a narrow screen does without, in this order."""


def to_text(gate: Gate, width: int | None) -> str:
    """Write a verdict as plain text."""
    return plain(lines_of(gate, width))


def print_text(gate: Gate, width: int | None, stream: TextIO) -> None:
    """Draw a verdict with colours on a stream that takes them."""
    draw(lines_of(gate, width), stream)


def lines_of(gate: Gate, width: int | None) -> Iterator[Line]:
    """Give the lines of a verdict."""
    doubts = gate.having(Status.UNSURE) or gate.having(Status.MISSING)
    calm = "bold yellow" if doubts or not gate.passed else "bold green"
    style = "bold red" if gate.outcome == "failed" else calm
    yield from wrapped(parts.verdict(gate), width, "", style)
    for label, names in parts.sides(gate):
        yield from wrapped(names, width, f"{label.ljust(8)}  ", "dim")
    yield Line("")
    yield from _table(gate, width)
    yield from _reasons(gate, width)
    yield from _explanation(gate, width)
    for note in (*parts.accepted(gate), *gate.notes):
        yield from wrapped(note, width, "note: ", "dim")
    for hint in parts.hints(gate):
        yield from wrapped(hint, width, "", "dim")


def _table(gate: Gate, width: int | None) -> Iterator[Line]:
    names = [one.name for one in fields(parts.Row)]
    rows = [parts.HEADINGS, *(parts.row(check) for check in gate.checks)]
    columns = dict(zip(names, zip(*map(astuple, rows), strict=True), strict=True))
    columns["metric"] = tuple(map(safe_text, columns["metric"]))
    for spared in _SPARED:
        empty = spared != "interval" and not gate.baseline
        if empty or (width is not None and _others(columns) + _LEAST_NAME > width):
            del columns[spared]
    if width is not None:
        room = max(_LEAST_NAME, width - _others(columns))
        columns["metric"] = tuple(shorten_middle(name, room) for name in columns["metric"])
    lines = _joined(columns)
    styles = ["bold", *(_STYLES[check.status] for check in gate.checks)]
    yield from (Line(line, style) for line, style in zip(lines, styles, strict=True))


def _others(columns: dict[str, tuple[str, ...]]) -> int:
    """Give the width of all columns but the metric's, with the gaps."""
    return sum(1 + _widest(cells) for name, cells in columns.items() if name != "metric")


def _widest(cells: Sequence[str]) -> int:
    return max(map(display_width, cells))


def _joined(columns: dict[str, tuple[str, ...]]) -> list[str]:
    padded = [
        [pad(cell, _widest(cells), right=name not in _LEFT) for cell in cells]
        for name, cells in columns.items()
    ]
    return [" ".join(cells) for cells in zip(*padded, strict=True)]


def _reasons(gate: Gate, width: int | None) -> Iterator[Line]:
    for number, (metrics, status, reason) in enumerate(parts.reasons(gate)):
        if number == 0:
            yield Line("")
        yield from wrapped(f"{metrics} {status.value}: {reason}", width, "", _STYLES[status])


def _explanation(gate: Gate, width: int | None) -> Iterator[Line]:
    """Say why the step changed, where anything is in the way."""
    yield Line("")
    if gate.comparison is None or not (gate.having(Status.FAILED) or gate.having(Status.UNSURE)):
        return
    for sentence in gate.comparison.explanation:
        yield from wrapped(sentence, width, "")
    yield Line("")
