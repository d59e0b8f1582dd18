"""How near measured kernels came to what their GPU can do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.errors import MissingDataError
from gpusight.render.diagnosis.page import text
from gpusight.render.pictures.roofline import roofline_figure
from gpusight.render.report import markup
from gpusight.render.report.picture import picture
from gpusight.result import NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.result import Composite

_FACTS = (
    "roof_share",
    "compute_time_share",
    "memory_time_share",
    "latency_time_share",
    "roofs_from",
)
_ROWS = 24
_DOTS = 300


def roofline_section(
    found: Composite | NotApplicable, *, key: str, title: str
) -> markup.Section | None:
    """Write the section; None where nothing was counted."""
    if isinstance(found, NotApplicable):
        return None
    lead = "Kernels under the roofs of their GPU: one that lies on a roof cannot be faster."
    tables = [s for s in found.sections if isinstance(s, TableResult)][:1]
    parts = (
        markup.lead(lead),
        markup.facts(found, _FACTS),
        _drawn(found),
        *(markup.table(one, markup.shown_columns(one), limit=_ROWS) for one in tables),
    )
    return markup.Section(key, title, "\n".join(parts), "Roofline")


def _drawn(found: Composite) -> str:
    """Draw the roofline, or say why no kernel can be placed under it."""
    shown, left_out = _foremost(found)
    try:
        drawn = picture(roofline_figure(shown))
    except MissingDataError as error:
        return f'<p class="absent">{text(str(error))}.</p>'
    told = f"The {_DOTS} kernels with most time are drawn; {left_out:,} more are not."
    return drawn + markup.notes([told] if left_out else [])


def _foremost(found: Composite) -> tuple[Composite, int]:
    """Leave out of the picture what nobody could tell apart, so that the page stays small."""
    table = found.sections[0]
    if not isinstance(table, TableResult) or table.frame.height <= _DOTS:
        return found, 0
    cut = replace(table, frame=table.frame.head(_DOTS))
    return replace(found, sections=(cut, *found.sections[1:])), table.frame.height - _DOTS
