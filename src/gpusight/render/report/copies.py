"""Copies and memory fills by direction and kinds of memory, with their bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.render.report import markup
from gpusight.result import NotApplicable
from gpusight.units import format_time

if TYPE_CHECKING:
    from gpusight.result import TableResult

_FIELDS = (
    "operation",
    "src_kind",
    "dst_kind",
    "total_ns",
    "share",
    "calls",
    "bytes",
    "bandwidth_bytes_s",
    "exposed_ns",
)


def copies_section(table: TableResult | NotApplicable) -> markup.Section | None:
    """Write the section; None where the capture has no copies."""
    if isinstance(table, NotApplicable) or table.frame.is_empty():
        return None
    total, exposed = (format_time(table.meta[key]) for key in ("total_ns", "exposed_ns"))
    told = f"Copies and memory fills took {total}, of which {exposed} beside no kernel."
    columns = markup.columns_of(table, _FIELDS, bars=("share",), extra=("share", "exposed_ns"))
    body = markup.lead(told) + markup.table(table, columns)
    return markup.Section("copies", "Copies", body)
