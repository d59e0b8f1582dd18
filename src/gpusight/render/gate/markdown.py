"""A verdict as Markdown, to be posted on a pull request."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

from gpusight.comparison.gate import Status
from gpusight.render.gate import parts
from gpusight.render.markdown import code, escape, prose, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.comparison.gate import Check, Gate

_LEFT = (True, False, False, False, False, False, True)
_LOUD = {*Status} - {Status.PASSED}


def to_markdown(gate: Gate) -> str:
    """Write a verdict as Markdown; ends with a newline."""
    return "\n".join(_lines(gate)) + "\n"


def error_markdown(reason: str) -> str:
    """Write that the gate could not be evaluated."""
    return f"## Gate error\n\n{escape(reason)}\n"


def _lines(gate: Gate) -> Iterator[str]:
    yield f"## {escape(parts.verdict(gate))}"
    rows = [_row(check) for check in gate.checks]
    yield from ("", table(astuple(parts.HEADINGS), [not left for left in _LEFT], rows), "")
    for metrics, status, reason in parts.reasons(gate):
        yield f"- {code(metrics, cell=False)} **{status.value}**: {escape(reason)}"
    why = list(_explanation(gate))
    if why and not gate.passed:
        yield from ("", "What changed:", "", *why)
    yield from _details(gate, why if gate.passed else ())


def _explanation(gate: Gate) -> Iterator[str]:
    if gate.comparison is not None:
        for sentence in gate.comparison.explanation:
            yield f"- {prose(sentence, cell=False)}"


def _row(check: Check) -> tuple[str, ...]:
    cells = parts.row(check)
    others = [escape(cell) for cell in astuple(cells)[1:-1]]
    status = f"**{cells.status}**" if check.status in _LOUD else cells.status
    return code(cells.metric), *others, status


def _details(gate: Gate, why: Iterable[str]) -> Iterator[str]:
    """Fold away what is needed only where something is wrong."""
    yield from ("", "<details><summary>Details</summary>", "")
    yield from why
    for label, names in parts.sides(gate):
        yield f"- {label}: {escape(names)}"
    for text in (*parts.accepted(gate), *gate.notes, *parts.hints(gate)):
        yield f"- {prose(text, cell=False)}"
    yield from ("", "</details>")
