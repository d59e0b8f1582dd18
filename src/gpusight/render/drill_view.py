"""A drill in every text format: kernels to profile with the ncu commands, or what was profiled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.drill.drill_result import drill_page, kernel_table
from gpusight.render import diagnosis_text
from gpusight.render.cell_text import safe_text
from gpusight.render.diagnosis_screen import brief_title
from gpusight.render.explanation import NOTHING, gain_text
from gpusight.render.renderer import Renderer
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_tables import result_lines
from gpusight.render.terminal_text import StyledLine
from gpusight.results import Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analysis.drill.drill_result import DrillResult
    from gpusight.render.explanation import ExplainedKernel
    from gpusight.results import Composite
    from gpusight.rules.diagnosis import JoinedDiagnosis, TimedKernel
    from gpusight.rules.drill_workflow import MeasuredDrill


_MAX_EXPLAINED = 3
_UNLIMITED_WIDTH = 100
_NO_NCU_HINT = "ncu is not installed here: run this on the machine with the GPU"
_PLACEHOLDER_HINT = "replace `python your_script.py` with your program, or add: --run -- PROGRAM"
PROFILED_FIELDS = (
    Field("rank", "#", Fmt.ID, "1 for the kernel whose fix saves most"),
    Field("time_ns", "Time/step", Fmt.TIME, "Its time per step, or in the window"),
    Field("share", "% kernels", Fmt.SHARE, "Share of the time of all kernels", shown=False),
    Field("saved_ns", "Saves/step", Fmt.TIME, "GPU time that the fix saves"),
    Field("speedup", "Speedup", Fmt.TEXT, "Of the kernel, with the fix"),
    Field("kernel", "Kernel", Fmt.NAME, "Short kernel name"),
    Field("finding", "Finding", Fmt.NAME, "The finding whose fix saves most"),
)


def _profiled(drilled: MeasuredDrill) -> list[tuple[JoinedDiagnosis, TimedKernel]]:
    """Return the profiled kernels of all reports, the one whose fix saves most first.

    Of a kernel that several reports have, the first report counts.
    """
    kernels: dict[object, tuple[JoinedDiagnosis, TimedKernel]] = {}
    for joined in drilled.joined:
        for kernel in joined.kernels:
            launch = kernel.group.longest
            kernels.setdefault((launch.name, launch.grid, launch.block), (joined, kernel))
    return sorted(
        kernels.values(), key=lambda k: (k[1].finding is None, -k[1].saved_ns, -k[1].time_ns)
    )


def _profiled_table(drilled: MeasuredDrill) -> TableResult | None:
    """List the profiled kernels; None where no report has a kernel of the timeline."""
    kernels, drill = _profiled(drilled), drilled.drill
    if not kernels:
        return None
    steps = max(1, drill.steps)
    rows = []
    for rank, (_, kernel) in enumerate(kernels, 1):
        finding = kernel.finding
        share = kernel.time_ns / drill.kernel_ns if drill.kernel_ns else None
        gain = None if finding is None else gain_text(finding)
        saved_ns = kernel.saved_ns / steps or None
        title = NOTHING if finding is None else brief_title(finding.title)
        rows.append(
            (rank, kernel.time_ns / steps, share, saved_ns, gain, kernel.group.label, title)
        )
    texts = {"speedup", "kernel", "finding"}
    schema = {f.key: pl.String if f.key in texts else pl.Float64 for f in PROFILED_FIELDS}
    frame = pl.DataFrame(rows, schema=schema | {"rank": pl.Int64}, orient="row")
    labels = {} if drill.steps else {"time_ns": "Time", "saved_ns": "Saves"}
    fields = tuple(replace(f, label=labels.get(f.key, f.label)) for f in PROFILED_FIELDS)
    return TableResult("profiled", "Kernels by what their fix saves", fields, frame)


def _explained(drilled: MeasuredDrill) -> list[ExplainedKernel]:
    """Explain the first kernels of the table."""
    with_finding = [pair for pair in _profiled(drilled) if pair[1].finding is not None]
    return [diagnosis_text.explain_in_timeline(*pair) for pair in with_finding[:_MAX_EXPLAINED]]


def _page(drilled: MeasuredDrill) -> Composite:
    return drill_page(drilled.drill, _profiled_table(drilled))


def _lines(drilled: MeasuredDrill, look: TableOptions) -> Iterator[StyledLine]:
    """Give the table, commands, and the first kernels explained."""
    yield from result_lines(_page(drilled), look)
    if shows_commands(drilled.drill):
        yield StyledLine("")
        yield from map(StyledLine, command_lines(drilled.drill, look.width))
    for number, kernel in enumerate(_explained(drilled), 1):
        yield StyledLine("")
        yield from diagnosis_text.kernel_lines(kernel, number, look.width)


def as_markdown(drilled: MeasuredDrill, *, limit: int | None) -> str:
    """Write it as Markdown; `limit` rows of each table, 0 for all."""
    from gpusight.render.markdown_tables import to_markdown

    parts = [to_markdown(_page(drilled), limit=limit)]
    if shows_commands(drilled.drill):
        commands = "\n".join(
            safe_text(line)
            for command in drilled.drill.commands
            for line in command.lines(_UNLIMITED_WIDTH)
        )
        parts.append(f"```bash\n{commands}\n```\n")
    for number, kernel in enumerate(_explained(drilled), 1):
        parts.append("\n".join(diagnosis_text.kernel_markdown(kernel, number)) + "\n")
    return "\n".join(parts)


def as_fragment(drilled: MeasuredDrill, *, limit: int | None) -> str:
    """Write it as HTML for a notebook; `limit` rows of each table."""
    from gpusight.render.html.html_templates import render, to_html

    drill = drilled.drill
    fragment = render(
        "drill.html",
        tables=to_html(_page(drilled), limit=limit),
        commands="\n".join(command_lines(drill) if shows_commands(drill) else ()),
        kernels=_explained(drilled),
    )
    return str(fragment)


def _document(drilled: MeasuredDrill) -> dict[str, Any]:
    return drilled.drill.document() | {
        "diagnoses": [diagnosis.document() for diagnosis in drilled.joined]
    }


def shows_commands(drill: DrillResult) -> bool:
    """Return whether kernels are left to measure."""
    return bool(drill.commands) and drill.is_incomplete


def command_lines(drill: DrillResult, width: int | None = None) -> list[str]:
    """Write the commands, broken with backslashes so that they can be pasted."""
    from gpusight.render.terminal_text import wrapped_lines

    remarks = [] if drill.installed else [_NO_NCU_HINT]
    remarks += [] if drill.program else [_PLACEHOLDER_HINT]
    notes = [line.text for remark in remarks for line in wrapped_lines(remark, width, "note: ")]
    head = "Command" if len(drill.commands) == 1 else "Commands, to run in order"
    lines = [f"{head}, for {drill.tool}", *notes]
    for command in drill.commands:
        lines += ["", *map(safe_text, command.lines(width or _UNLIMITED_WIDTH))]
    return lines


DRILL_RENDERER = Renderer(
    tables=_page,
    rows=lambda drilled: kernel_table(drilled.drill),
    document=_document,
    lines=_lines,
    markdown=as_markdown,
    fragment=as_fragment,
    look=TableOptions(100, 20, rows_advice="all are in .to_dict()"),
)
