"""The checks of `doctor` as text: a verdict per tool, then the checks, then the fixes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.recording.doctor.checkup import checks_table, checkup_page, tool_summary
from gpusight.recording.doctor.machine import Ability, CheckState
from gpusight.render.renderer import Renderer
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_tables import result_lines
from gpusight.render.terminal_text import (
    INDENT,
    StyledLine,
    command_lines,
    labeled_lines,
    wrapped_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.recording.doctor.machine import Checkup


_STYLES = {Ability.YES: "bold green", Ability.PARTLY: "bold yellow", Ability.NO: "bold red"}
_SHOWN_FIELDS = frozenset({"title", "state", "found"})


def doctor_lines(checkup: Checkup, look: TableOptions) -> Iterator[StyledLine]:
    """Give the lines of a checkup."""
    width = look.width
    yield StyledLine(checkup_page(checkup).title, "bold")
    for verdict in checkup.verdicts:
        lead = f"{verdict.tool.value:<5}  {verdict.can.value:<6}  "
        first, *others = wrapped_lines(tool_summary(verdict), width, lead)
        tool, can, rest = first.text[:7], first.text[7:15], first.text[15:]
        yield replace(first, parts=((tool, ""), (can, _STYLES[verdict.can]), (rest, "")))
        yield from others
    uses = checkup.record_uses
    can_record = "cannot record here" if uses is None else f"would use {uses.value}"
    yield from wrapped_lines(f"gpusight record {can_record}.", width, "")
    yield StyledLine("")
    # The table has the columns that fit; the fixes are below it.
    table = checks_table(checkup)
    fields = tuple(replace(field, shown=field.key in _SHOWN_FIELDS) for field in table.fields)
    yield from result_lines(replace(table, fields=fields), look)
    worth = [c for c in checkup.checks if c.state is not CheckState.OK and (c.means or c.fix)]
    for number, check in enumerate(worth, 1):
        yield StyledLine("")
        yield from wrapped_lines(f"{check.title}: {check.found}", width, f"{number}. ", "bold cyan")
        if check.means:
            yield from labeled_lines("impact", check.means, width)
        if check.fix:
            yield from labeled_lines("fix", check.fix, width)
        for command in check.commands:
            for line in command_lines(command, width, INDENT):
                yield StyledLine(line, "green")


DOCTOR_RENDERER = Renderer(tables=checkup_page, lines=doctor_lines, look=TableOptions(100, 0))
