"""A drill plan in every text format: which kernels to measure, then the ncu commands to paste."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusight.analysis.drill.drill_result import drill_page, kernel_table
from gpusight.render import diagnosis_view
from gpusight.render.cell_text import safe_text
from gpusight.render.result_view import ResultView
from gpusight.render.table_layout import TableOptions

if TYPE_CHECKING:
    from gpusight.analysis.drill.drill_kernels import DrillKernel
    from gpusight.analysis.drill.drill_result import DrillResult
    from gpusight.rules.diagnosis_results import JoinedDiagnosis
    from gpusight.rules.drill_workflow import MeasuredDrill


WIDTH = 100
ROWS = 20
DETAILS = 3
_NO_NCU_HINT = "ncu is not on this machine: run this where it is"
_PLACEHOLDER_HINT = (
    "put your program in place of `python your_script.py`, or give it: --run -- PROGRAM"
)


def as_text(drilled: MeasuredDrill, look: TableOptions) -> str:
    """Write it as plain text; ends with a newline."""
    from gpusight.render.terminal_tables import to_plain

    return to_plain(drill_page(drilled.drill), look) + after_page(drilled, look)


def after_page(drilled: MeasuredDrill, look: TableOptions) -> str:
    """Write what comes below the page: commands, then what was measured."""
    shown = shows_commands(drilled.drill)
    parts = ["", *command_lines(drilled.drill, look.width)] if shown else []
    text = "".join(f"{line}\n" for line in parts)
    for found in drilled.joined:
        text += f"\n{diagnosis_view.kernels_text(found, look, details=DETAILS)}"
    return text


def as_markdown(drilled: MeasuredDrill, *, limit: int) -> str:
    """Write it as Markdown; `limit` rows of each table, 0 for all."""
    from gpusight.render.markdown_tables import to_markdown

    drill = drilled.drill
    parts = [to_markdown(drill_page(drill), limit=limit)]
    if shows_commands(drill):
        commands = "\n".join(safe_text(str(command)) for command in drill.commands)
        parts.append(f"```bash\n{commands}\n```\n")
    parts += [
        diagnosis_view.kernels_markdown(f, limit=limit, details=DETAILS) for f in drilled.joined
    ]
    return "\n".join(parts)


def document(drilled: MeasuredDrill) -> dict[str, Any]:
    """Give what `--format json` writes."""
    return drilled.drill.document() | {"diagnoses": [found.document() for found in drilled.joined]}


def shows_commands(drill: DrillResult) -> bool:
    """Tell whether there is something left to measure."""
    return bool(drill.commands) and (drill.measured is None or bool(drill.missing))


def command_lines(drill: DrillResult, width: int | None = None) -> list[str]:
    """Write the commands, each whole on a line of its own so that it can be pasted."""
    from gpusight.render.terminal_tables import wrap

    remarks = [] if drill.installed else [_NO_NCU_HINT]
    remarks += [] if drill.program else [_PLACEHOLDER_HINT]
    said = [line for remark in remarks for line in wrap(remark, width, "note: ")]
    head = "Command" if len(drill.commands) == 1 else "Commands, one after the other"
    commands = [safe_text(str(command)) for command in drill.commands]
    return [f"{head}, for {drill.tool}", *said, *(line for c in commands for line in ("", c))]


class DrillView(ResultView):
    """Kernels worth measuring, the commands that do it, and what they showed."""

    result: DrillResult

    def __init__(self, drilled: MeasuredDrill) -> None:
        self.drilled = drilled
        self.result = drilled.drill

    @property
    def kernels(self) -> tuple[DrillKernel, ...]:
        """The chosen kernels, the longest first."""
        return self.result.chosen

    @property
    def commands(self) -> tuple[str, ...]:
        """The command lines, as they can be pasted into a shell."""
        return tuple(str(command) for command in self.result.commands)

    @property
    def diagnoses(self) -> tuple[JoinedDiagnosis, ...]:
        """The timeline joined with each report."""
        return self.drilled.joined

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, as `--format json` writes them."""
        return document(self.drilled)

    def to_text(self) -> str:
        """Give it as plain text, as printing does."""
        return as_text(
            self.drilled, TableOptions(WIDTH, ROWS, rows_advice="all are in .document()")
        )

    def _repr_html_(self) -> str:
        from gpusight.render.html.html_templates import render, to_html

        fragment = render(
            "drill.html",
            tables=to_html(drill_page(self.result), limit=ROWS),
            commands="\n".join(command_lines(self.result) if shows_commands(self.result) else ()),
            diagnoses=[
                diagnosis_view.kernels_fragment(found, limit=ROWS, details=DETAILS)
                for found in self.diagnoses
            ],
        )
        return str(fragment)

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.csv_json import encode_json as encode

        return encode(self.document())

    def to_csv(self) -> str:
        """Give the text that `--format csv` writes: the kernels."""
        from gpusight.render.csv_json import to_csv

        return to_csv(kernel_table(self.result))

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes, with all rows."""
        return as_markdown(self.drilled, limit=0)
