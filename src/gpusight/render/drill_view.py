"""A drill plan in every text format: which kernels to profile, then the ncu commands to paste."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

from gpusight.analysis.drill.drill_result import drill_page, kernel_table
from gpusight.render import diagnosis_view
from gpusight.render.cell_text import safe_text
from gpusight.render.result_view import Renderer
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_text import StyledLine, draw_lines

if TYPE_CHECKING:
    from gpusight.analysis.drill.drill_result import DrillResult
    from gpusight.results import Composite, TableResult
    from gpusight.rules.drill_workflow import MeasuredDrill


_EXPLAINED = 3
"""Kernels that are explained."""
_NO_NCU_HINT = "ncu is not installed here: run this on the machine with the GPU"
_PLACEHOLDER_HINT = "replace `python your_script.py` with your program, or add: --run -- PROGRAM"


def as_text(drilled: MeasuredDrill, look: TableOptions) -> str:
    """Write it as plain text; ends with a newline."""
    from gpusight.render.terminal_tables import to_plain

    return to_plain(drill_page(drilled.drill), look) + _after_page(drilled, look)


def print_drill(drilled: MeasuredDrill, look: TableOptions, stream: TextIO) -> None:
    """Write it to a terminal, its tables with colors."""
    from gpusight.render.terminal_tables import print_colored

    print_colored(drill_page(drilled.drill), look, stream)
    draw_lines(map(StyledLine, _after_page(drilled, look).splitlines()), stream)


def _after_page(drilled: MeasuredDrill, look: TableOptions) -> str:
    """Write what comes below the page: commands, then the measured kernels."""
    shown = shows_commands(drilled.drill)
    parts = ["", *command_lines(drilled.drill, look.width)] if shown else []
    text = "".join(f"{line}\n" for line in parts)
    for diagnosis in drilled.joined:
        text += f"\n{diagnosis_view.kernels_text(diagnosis, look, explained=_EXPLAINED)}"
    return text


def as_markdown(drilled: MeasuredDrill, *, limit: int | None) -> str:
    """Write it as Markdown; `limit` rows of each table, 0 for all."""
    from gpusight.render.markdown_tables import to_markdown

    drill = drilled.drill
    parts = [to_markdown(drill_page(drill), limit=limit)]
    if shows_commands(drill):
        commands = "\n".join(safe_text(str(command)) for command in drill.commands)
        parts.append(f"```bash\n{commands}\n```\n")
    parts += [
        diagnosis_view.kernels_markdown(f, limit=limit or 0, explained=_EXPLAINED)
        for f in drilled.joined
    ]
    return "\n".join(parts)


def as_fragment(drilled: MeasuredDrill, *, limit: int | None) -> str:
    """Write it as HTML for a notebook; `limit` rows of each table."""
    from gpusight.render.html.html_templates import render, to_html

    fragment = render(
        "drill.html",
        tables=to_html(drill_page(drilled.drill), limit=limit),
        commands="\n".join(command_lines(drilled.drill) if shows_commands(drilled.drill) else ()),
        diagnoses=[
            diagnosis_view.kernels_fragment(joined, limit=limit or 0, details=_EXPLAINED)
            for joined in drilled.joined
        ],
    )
    return str(fragment)


def document(drilled: MeasuredDrill, *, limit: int | None = None) -> dict[str, Any]:
    """Give what `--format json` writes, whole."""
    del limit
    return drilled.drill.document() | {
        "diagnoses": [diagnosis.document() for diagnosis in drilled.joined]
    }


def shows_commands(drill: DrillResult) -> bool:
    """Return whether kernels are left to measure."""
    return bool(drill.commands) and (drill.measured is None or bool(drill.missing))


def command_lines(drill: DrillResult, width: int | None = None) -> list[str]:
    """Write the commands, each whole on a line of its own so that it can be pasted."""
    from gpusight.render.terminal_text import wrapped_lines

    remarks = [] if drill.installed else [_NO_NCU_HINT]
    remarks += [] if drill.program else [_PLACEHOLDER_HINT]
    notes = [line.text for remark in remarks for line in wrapped_lines(remark, width, "note: ")]
    head = "Command" if len(drill.commands) == 1 else "Commands, to run in order"
    commands = [safe_text(str(command)) for command in drill.commands]
    return [f"{head}, for {drill.tool}", *notes, *(line for c in commands for line in ("", c))]


def _tables(drilled: MeasuredDrill) -> Composite:
    return drill_page(drilled.drill)


def _kernels(drilled: MeasuredDrill) -> TableResult:
    return kernel_table(drilled.drill)


DRILL_RENDERER = Renderer(
    tables=_tables,
    rows=_kernels,
    document=document,
    text=as_text,
    print=print_drill,
    markdown=as_markdown,
    fragment=as_fragment,
    look=TableOptions(100, 20, rows_advice="all are in .to_dict()"),
)
