"""What could not be told, or not fully: the end of every report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight._version import __version__
from gpusight.render.diagnosis.page import prose, text
from gpusight.render.report import markup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.reporting.report import Report
    from gpusight.reporting.untold import Absent, Note

_MOST = 200


def untold_section(report: Report) -> markup.Section:
    """Write the section."""
    body = "\n".join(_parts(report))
    return markup.Section("untold", "What could not be told", body, "Not told")


def _parts(report: Report) -> Iterator[str]:
    told = report.untold
    if not told.absent:
        yield markup.lead("Every part of this report could be filled.")
    else:
        yield f'<dl class="untold">{"".join(map(_absent, told.absent[:_MOST]))}</dl>'
    if told.notes:
        yield "<h3>To be read with care</h3>"
        yield f'<ul class="notes">{"".join(map(_note, told.notes[:_MOST]))}</ul>'
    for table in told.missing:
        yield f"<h3>{text(table.title)}</h3>"
        yield markup.table(table, markup.shown_columns(table))
    if told.messages:
        many = "1 message" if told.messages == 1 else f"{told.messages:,} messages"
        yield markup.notes([f"The profiler warned in {many}: `gpusight info` shows them."])
    yield f'<p class="note">Made by gpusight {text(__version__)}.</p>'


def _absent(one: Absent) -> str:
    hint = f" <small>{prose(markup.begun(one.hint))}</small>" if one.hint else ""
    return f"<div><dt>{text(one.part)}</dt><dd>{prose(markup.begun(one.reason))}.{hint}</dd></div>"


def _note(one: Note) -> str:
    return f"<li><b>{text(', '.join(one.parts))}:</b> {prose(markup.begun(one.text))}</li>"
