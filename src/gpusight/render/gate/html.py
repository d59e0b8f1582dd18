"""A verdict for a notebook: a small table, with nothing to load and all text escaped."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

from gpusight.comparison.gate import Status
from gpusight.render.diagnosis.page import prose, text
from gpusight.render.gate import parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.comparison.gate import Gate

_LEFT = {0, len(astuple(parts.HEADINGS)) - 1}
"""The metric and the status; numbers stand at the right."""


def to_fragment(gate: Gate) -> str:
    """Write a verdict as HTML without styles of its own."""
    return "\n".join(_lines(gate))


def _lines(gate: Gate) -> Iterator[str]:
    yield f"<p><b>{text(parts.verdict(gate))}</b></p>"
    for label, names in parts.sides(gate):
        yield f"<p>{label}: {text(names)}</p>"
    yield f"<table><thead>{_row(astuple(parts.HEADINGS), 'th')}</thead><tbody>"
    for check in gate.checks:
        yield _row(astuple(parts.row(check)), "td")
    yield "</tbody></table>"
    for metrics, status, reason in parts.reasons(gate):
        yield f"<p>{text(f'{metrics} {status.value}: {reason}')}</p>"
    if gate.comparison is not None and gate.having(Status.FAILED):
        told = "".join(f"<li>{prose(one)}</li>" for one in gate.comparison.explanation)
        yield f"<ul>{told}</ul>"
    notes = (*parts.accepted(gate), *gate.notes, *parts.hints(gate))
    yield from (f"<p><i>{prose(one)}</i></p>" for one in notes)


def _row(cells: tuple[str, ...], tag: str) -> str:
    aligned = ("left" if n in _LEFT else "right" for n in range(len(cells)))
    made = (
        f'<{tag} style="text-align:{side}">{text(cell)}</{tag}>'
        for side, cell in zip(aligned, cells, strict=True)
    )
    return f"<tr>{''.join(made)}</tr>"
