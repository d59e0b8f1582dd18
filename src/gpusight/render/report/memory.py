"""Memory over time, and who held it at the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.render.diagnosis.page import text
from gpusight.render.pictures.memory import memory_figure
from gpusight.render.report import markup
from gpusight.render.report.picture import picture
from gpusight.result import NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.result import Composite

_FACTS = (
    "peak_bytes",
    "peak_ns",
    "peak_share",
    "reserved_max_bytes",
    "fragmentation_at_peak",
    "growth_per_step_bytes",
    "allocations",
)
_HOLDERS = 16


def memory_section(found: Composite | NotApplicable) -> markup.Section | None:
    """Write the section; None where no memory was recorded."""
    if isinstance(found, NotApplicable):
        return None
    parts = (
        markup.lead(f"{found.title}."),
        markup.facts(found, _FACTS),
        picture(memory_figure(found)),
        _holders(found),
    )
    return markup.Section("memory", "Memory", "\n".join(parts))


def _holders(found: Composite) -> str:
    table = next((s for s in found.sections if s.command == "peak"), None)
    if not isinstance(table, TableResult) or table.frame.is_empty():
        return ""
    columns = markup.shown_columns(table)
    return f"<h3>{text(table.title)}</h3>" + markup.table(table, columns, limit=_HOLDERS)
