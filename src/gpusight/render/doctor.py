"""A checkup on a terminal: the verdict a tool, then the checks, then what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from gpusight.capture.doctor.check import Can, State
from gpusight.capture.doctor.report import checks, one_line, page
from gpusight.render.diagnosis.lines import Line, code_lines, draw, labelled, plain, wrapped
from gpusight.render.layout import Look
from gpusight.render.plain import to_plain
from gpusight.render.shown import ShownTables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpusight.capture.doctor.check import Check, Checkup, Verdict
    from gpusight.result import Composite, TableResult

WIDTH = 100
_STYLES = {Can.YES: "bold green", Can.PARTLY: "bold yellow", Can.NO: "bold red"}
_SHOWN = frozenset({"title", "state", "found"})


class DoctorView(ShownTables):
    """What a machine can capture with; printing it shows verdicts, checks and fixes."""

    result: Composite
    shown_rows = 0

    def __init__(self, checkup: Checkup) -> None:
        self.checkup = checkup
        self.result = page(checkup)

    @property
    def facts(self) -> Mapping[str, Any]:
        """Whether each tool can capture (`yes`, `partly`, `no`), and what `record` would use."""
        can = {verdict.tool.value: verdict.can.value for verdict in self.checkup.verdicts}
        return {**can, **{fact.key: fact.value for fact in self.result.facts}}

    def to_text(self) -> str:
        """Give it as plain text, as printing does."""
        return to_text(self.checkup, Look(WIDTH, 0))


def to_text(checkup: Checkup, look: Look) -> str:
    """Write a checkup as plain text."""
    head = plain(_verdicts(checkup, look.width))
    return f"{head}\n{to_plain(_brief(checkup), look)}{plain(_advice(checkup, look.width))}"


def print_text(checkup: Checkup, look: Look, stream: TextIO) -> None:
    """Draw a checkup with colours on a stream that takes them."""
    from gpusight.render.terminal import print_colored

    draw((*_verdicts(checkup, look.width), Line("")), stream)
    print_colored(_brief(checkup), look, stream)
    draw(_advice(checkup, look.width), stream)


def _verdicts(checkup: Checkup, width: int | None) -> Iterator[Line]:
    yield Line(page(checkup).title, "bold")
    for verdict in checkup.verdicts:
        yield from _verdict(verdict, width)
    uses = checkup.record_uses
    if uses is None:
        yield from wrapped("gpusight record has nothing to record with here.", width, "")
    else:
        yield from wrapped(f"gpusight record would use {uses.value}.", width, "")


def _verdict(verdict: Verdict, width: int | None) -> Iterator[Line]:
    lead = f"{verdict.tool.value:<5}  {verdict.can.value:<6}  "
    lines = wrapped(one_line(verdict), width, lead)
    first = next(lines)
    tool, can, rest = first.text[:7], first.text[7:15], first.text[15:]
    yield replace(first, parts=((tool, ""), (can, _STYLES[verdict.can]), (rest, "")))
    yield from lines


def _brief(checkup: Checkup) -> TableResult:
    """Leave to the table what fits into it; what follows is said below it."""
    table = checks(checkup)
    fields = tuple(replace(field, shown=field.key in _SHOWN) for field in table.fields)
    return replace(table, fields=fields)


def _advice(checkup: Checkup, width: int | None) -> Iterator[Line]:
    worth = [c for c in checkup.checks if c.state is not State.OK and (c.means or c.fix)]
    for number, check in enumerate(worth, 1):
        yield Line("")
        yield from _explained(check, number, width)


def _explained(check: Check, number: int, width: int | None) -> Iterator[Line]:
    yield from wrapped(f"{check.title}: {check.found}", width, f"{number}. ", "bold cyan")
    if check.means:
        yield from labelled("means", check.means, width)
    if check.fix:
        yield from labelled("fix", check.fix, width)
    yield from code_lines("\n".join(check.commands))
