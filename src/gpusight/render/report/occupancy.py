"""How full kernels could make an SM, what limits them, and what would raise it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.render.diagnosis.page import text
from gpusight.render.report import markup
from gpusight.result import NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.result import Composite

_FACTS = ("theoretical", "achieved", "launches", "total_ns")
_SHOWN = ("limiters", "kernels", "advice")
_ROWS = 12


def occupancy_section(
    found: Composite | NotApplicable, *, key: str, title: str
) -> markup.Section | None:
    """Write the section; None where it cannot be worked out."""
    if isinstance(found, NotApplicable):
        return None
    tables = [s for s in found.sections if isinstance(s, TableResult) and s.frame.height]
    parts = (
        markup.lead("Warps that kernels have on an SM, of those that it can hold."),
        markup.facts(found, _FACTS),
        *(_table(one) for one in tables if one.command in _SHOWN),
    )
    return markup.Section(key, title, "\n".join(parts), "Occupancy")


def _table(table: TableResult) -> str:
    columns = markup.shown_columns(table)
    return f"<h3>{text(table.title)}</h3>" + markup.table(table, columns, limit=_ROWS)
