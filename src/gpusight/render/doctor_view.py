"""The checks of `doctor` as text: a verdict per tool, then the checks, then the fixes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from gpusight.recording.doctor.checkup import checks_table, checkup_page, tool_summary
from gpusight.recording.doctor.machine import Ability, CheckState
from gpusight.render.result_view import Renderer
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_tables import to_plain
from gpusight.render.terminal_text import (
    StyledLine,
    code_lines,
    draw_lines,
    labeled_lines,
    plain_lines,
    wrapped_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.recording.doctor.machine import Checkup, MachineCheck, ToolVerdict
    from gpusight.results import TableResult


_STYLES = {Ability.YES: "bold green", Ability.PARTLY: "bold yellow", Ability.NO: "bold red"}
_SHOWN_FIELDS = frozenset({"title", "state", "found"})


def doctor_to_text(checkup: Checkup, look: TableOptions) -> str:
    """Write a checkup as plain text."""
    head = plain_lines(_verdicts(checkup, look.width))
    return f"{head}\n{to_plain(_brief(checkup), look)}{plain_lines(_advice(checkup, look.width))}"


def print_doctor(checkup: Checkup, look: TableOptions, stream: TextIO) -> None:
    """Write a checkup with colors to a terminal."""
    from gpusight.render.terminal_tables import print_colored

    draw_lines((*_verdicts(checkup, look.width), StyledLine("")), stream)
    print_colored(_brief(checkup), look, stream)
    draw_lines(_advice(checkup, look.width), stream)


def _verdicts(checkup: Checkup, width: int | None) -> Iterator[StyledLine]:
    yield StyledLine(checkup_page(checkup).title, "bold")
    for verdict in checkup.verdicts:
        yield from _verdict(verdict, width)
    uses = checkup.record_uses
    if uses is None:
        yield from wrapped_lines("gpusight record cannot record here.", width, "")
    else:
        yield from wrapped_lines(f"gpusight record would use {uses.value}.", width, "")


def _verdict(verdict: ToolVerdict, width: int | None) -> Iterator[StyledLine]:
    lead = f"{verdict.tool.value:<5}  {verdict.can.value:<6}  "
    lines = wrapped_lines(tool_summary(verdict), width, lead)
    first = next(lines)
    tool, can, rest = first.text[:7], first.text[7:15], first.text[15:]
    yield replace(first, parts=((tool, ""), (can, _STYLES[verdict.can]), (rest, "")))
    yield from lines


def _brief(checkup: Checkup) -> TableResult:
    """Keep the columns that fit; the fixes are below the table."""
    table = checks_table(checkup)
    fields = tuple(replace(field, shown=field.key in _SHOWN_FIELDS) for field in table.fields)
    return replace(table, fields=fields)


def _advice(checkup: Checkup, width: int | None) -> Iterator[StyledLine]:
    worth = [c for c in checkup.checks if c.state is not CheckState.OK and (c.means or c.fix)]
    for number, check in enumerate(worth, 1):
        yield StyledLine("")
        yield from _explained(check, number, width)


def _explained(check: MachineCheck, number: int, width: int | None) -> Iterator[StyledLine]:
    yield from wrapped_lines(f"{check.title}: {check.found}", width, f"{number}. ", "bold cyan")
    if check.means:
        yield from labeled_lines("impact", check.means, width)
    if check.fix:
        yield from labeled_lines("fix", check.fix, width)
    yield from code_lines("\n".join(check.commands))


DOCTOR_RENDERER = Renderer(
    tables=checkup_page, text=doctor_to_text, print=print_doctor, look=TableOptions(100, 0)
)
