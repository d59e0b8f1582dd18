"""Every kernel of a capture: searched, sorted and filtered by what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.render.diagnosis.page import text
from gpusight.render.report import markup
from gpusight.result import Composite, TableResult
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.render.report.markup import Column
    from gpusight.reporting.report import Report

MOST_ROWS = 1_000
_FIRST = 100
"""Rows whose names may be long."""
_LONG, _SHORT = 1_500, 360
"""Letters of a full name, in those and in the others."""
_LABEL = 160
_OF_TIMELINE = ("total_ns", "share", "calls", "mean_ns", "min_ns", "max_ns")
_OF_REPORT = ("total_ns", "share", "calls", "sm_share", "memory_share", "dram_share", "occupancy")
_EXTRA = ("mean_ns", "min_ns", "max_ns", "dram_share", "occupancy")


def kernels_section(report: Report) -> markup.Section | None:
    """Write the kernels of the timeline, or those that were measured; None where there are none."""
    every = [report.program.kernels] if report.program else [m.kernels for m in report.measured]
    found = [table for table in every if isinstance(table, TableResult)]
    if not found:
        return None
    body = "\n".join(_kernels(table, number, report) for number, table in enumerate(found, 1))
    return markup.Section("kernels", "Kernels", body)


def _kernels(table: TableResult, number: int, report: Report) -> str:
    if table.frame.is_empty():
        return '<p class="absent">No kernel ran in what was selected.</p>'
    keys = _OF_TIMELINE if report.program else _OF_REPORT
    filled = [k for k in keys if k in table.frame.columns and table.frame[k].count()]
    columns = markup.columns_of(table, filled, bars=("share",), extra=_EXTRA)
    rows = table.frame.head(MOST_ROWS)
    body = "".join(
        _row(one, columns, _LONG if place < _FIRST else _SHORT)
        for place, one in enumerate(rows.iter_rows(named=True))
    )
    heads = f'<th scope="col" class="name">Kernel</th>{_CATEGORY}{markup.head(columns)}'
    key = f"kernels-{number}"
    grid = markup.grid(heads, body, caption=table.title, kind="sortable kernels", key=key)
    left_out = table.frame.height - rows.height
    above = f"{_lead(table, report)}{_chips(table)}"
    rest = _left_out(table, left_out) if left_out else ""
    return f'<div class="searched" data-table="{key}">{above}{grid}</div>{rest}'


_CATEGORY = (
    '<th scope="col" class="extra" title="What the kernel does, from its name">Category</th>'
)


def _lead(table: TableResult, report: Report) -> str:
    names, total = table.frame.height, float(table.frame["total_ns"].sum() or 0)
    calls = int(table.frame["calls"].sum())
    launches = "1 launch" if calls == 1 else f"{calls:,} launches"
    of = "1 kernel" if names == 1 else f"{names:,} kernels"
    told = f"{launches} of {of}, {format_time(total)} of GPU time in all."
    return markup.lead(told + (" Steps of warm-up are counted here." if _warmed(report) else ""))


def _warmed(report: Report) -> bool:
    """Whether steps were left out elsewhere, which are part of this table."""
    steps = None if report.program is None else report.program.steps
    table = steps.sections[0] if isinstance(steps, Composite) else None
    return isinstance(table, TableResult) and not table.frame["kept"].all()


def _left_out(table: TableResult, count: int) -> str:
    rest = table.frame[MOST_ROWS:]
    share = format_share(float(rest["share"].sum() or 0))
    return (
        f'<p class="note">The {MOST_ROWS:,} kernels with most time are listed; {count:,} more, '
        f"with {text(share)} of the kernel time, are in <code>gpusight kernels</code>.</p>"
    )


def _row(values: dict[str, Any], columns: Sequence[Column], longest: int) -> str:
    category = values["category"] or "other"
    chip = f'<td class="extra">{markup.swatch(colour_of(category))}{text(category)}</td>'
    return markup.row(
        f'<td class="name">{_name(values, longest)}</td>{chip}{markup.cells(values, columns)}',
        category=category,
    )


def _name(values: dict[str, Any], longest: int) -> str:
    short = markup.clipped(values["short_name"] or values["name"], _LABEL)
    full = markup.clipped(values["name"], longest)
    if short == full:
        return f"<span>{short}</span>"
    return f"<details><summary>{short}</summary><code>{full}</code></details>"


def colour_of(category: str) -> str:
    """Give the key of the palette for a category of kernels."""
    return category if category == "communication" else f"compute/{category}"


def _chips(table: TableResult) -> str:
    """Sum kernels up by what they do; the page's script makes these a choice."""
    whole = float(table.frame["total_ns"].sum() or 0) or 1.0
    sums = (
        table.frame.with_columns(pl.col("category").fill_null("other"))
        .group_by("category")
        .agg(pl.col("total_ns").sum(), pl.len().alias("names"))
        .sort("total_ns", "category", descending=[True, False])
    )
    shown = "".join(
        f'<li data-category="{text(category)}">{markup.swatch(colour_of(category))}'
        f"{text(category)} <b>{text(format_share((total or 0) / whole))}</b></li>"
        for category, total, _ in sums.iter_rows()
    )
    return f'<ul class="chips" aria-label="Kernel time by category">{shown}</ul>'
