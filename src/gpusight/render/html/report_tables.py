"""Sections of a report with a table: kernels, copies, and ranges as a flame chart and a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.render.cell_text import safe_text, shorten_middle
from gpusight.render.charts.chart_page import safe_json
from gpusight.render.html import html_parts
from gpusight.render.html.html_parts import html_text
from gpusight.results import Composite, NotApplicable, TableResult
from gpusight.units import MISSING, format_count, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.render.html.html_parts import HtmlColumn
    from gpusight.reports.range_tree import RangeTree
    from gpusight.reports.report_contents import Report


MAX_KERNEL_ROWS = 1_000
_MAX_LONG_NAME_ROWS = 100
"""Rows whose names may be long."""
_LONG, _SHORT = 1_500, 360
"""Letters of a full name, in those and in the others."""
_LABEL = 160
_OF_TIMELINE = ("total_ns", "share", "calls", "mean_ns", "min_ns", "max_ns")
_OF_REPORT = ("total_ns", "share", "calls", "sm_share", "memory_share", "dram_share", "occupancy")
_EXTRA = ("mean_ns", "min_ns", "max_ns", "dram_share", "occupancy")


def kernels_section(report: Report) -> html_parts.ReportSection | None:
    """Write the kernels of the timeline, or those that were measured; None where there are none."""
    every = [report.program.kernels] if report.program else [m.kernels for m in report.measured]
    found = [table for table in every if isinstance(table, TableResult)]
    if not found:
        return None
    body = "\n".join(_kernels(table, number, report) for number, table in enumerate(found, 1))
    return html_parts.ReportSection("kernels", "Kernels", body)


def _kernels(table: TableResult, number: int, report: Report) -> str:
    if table.frame.is_empty():
        return '<p class="absent">No kernel ran in what was selected.</p>'
    keys = _OF_TIMELINE if report.program else _OF_REPORT
    filled = [k for k in keys if k in table.frame.columns and table.frame[k].count()]
    columns = html_parts.columns_of(table, filled, bars=("share",), extra=_EXTRA)
    rows = table.frame.head(MAX_KERNEL_ROWS)
    body = "".join(
        _kernel_row(one, columns, _LONG if place < _MAX_LONG_NAME_ROWS else _SHORT)
        for place, one in enumerate(rows.iter_rows(named=True))
    )
    heads = f'<th scope="col" class="name">Kernel</th>{_CATEGORY}{html_parts.table_head(columns)}'
    key = f"kernels-{number}"
    grid = html_parts.html_grid(heads, body, caption=table.title, kind="sortable kernels", key=key)
    left_out = table.frame.height - rows.height
    above = f"{_kernels_lead(table, report)}{_chips(table)}"
    rest = _left_out(table, left_out) if left_out else ""
    return f'<div class="searched" data-table="{key}">{above}{grid}</div>{rest}'


_CATEGORY = (
    '<th scope="col" class="extra" title="What the kernel does, from its name">Category</th>'
)


def _kernels_lead(table: TableResult, report: Report) -> str:
    names, total = table.frame.height, float(table.frame["total_ns"].sum() or 0)
    calls = int(table.frame["calls"].sum())
    launches = "1 launch" if calls == 1 else f"{calls:,} launches"
    of = "1 kernel" if names == 1 else f"{names:,} kernels"
    told = f"{launches} of {of}, {format_time(total)} of GPU time in all."
    return html_parts.lead(
        told + (" Steps of warm-up are counted here." if _has_warmup_left_out(report) else "")
    )


def _has_warmup_left_out(report: Report) -> bool:
    """Whether steps were left out elsewhere, which are part of this table."""
    steps = None if report.program is None else report.program.steps
    table = steps.sections[0] if isinstance(steps, Composite) else None
    return isinstance(table, TableResult) and not table.frame["kept"].all()


def _left_out(table: TableResult, count: int) -> str:
    rest = table.frame[MAX_KERNEL_ROWS:]
    share = format_share(float(rest["share"].sum() or 0))
    return (
        f'<p class="note">The {MAX_KERNEL_ROWS:,} kernels with most time are listed; '
        f"{count:,} more, "
        f"with {html_text(share)} of the kernel time, are in <code>gpusight kernels</code>.</p>"
    )


def _kernel_row(values: dict[str, Any], columns: Sequence[HtmlColumn], longest: int) -> str:
    category = values["category"] or "other"
    chip = (
        f'<td class="extra">{html_parts.swatch(category_color(category))}{html_text(category)}</td>'
    )
    return html_parts.table_row(
        (
            f'<td class="name">{_kernel_name(values, longest)}</td>'
            f"{chip}{html_parts.table_cells(values, columns)}"
        ),
        category=category,
    )


def _kernel_name(values: dict[str, Any], longest: int) -> str:
    short = html_parts.clipped_text(values["short_name"] or values["name"], _LABEL)
    full = html_parts.clipped_text(values["name"], longest)
    if short == full:
        return f"<span>{short}</span>"
    return f"<details><summary>{short}</summary><code>{full}</code></details>"


def category_color(category: str) -> str:
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
        f'<li data-category="{html_text(category)}">{html_parts.swatch(category_color(category))}'
        f"{html_text(category)} <b>{html_text(format_share((total or 0) / whole))}</b></li>"
        for category, total, _ in sums.iter_rows()
    )
    return f'<ul class="chips" aria-label="Kernel time by category">{shown}</ul>'


_COPY_FIELDS = (
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


def copies_section(table: TableResult | NotApplicable) -> html_parts.ReportSection | None:
    """Write the section; None where the capture has no copies."""
    if isinstance(table, NotApplicable) or table.frame.is_empty():
        return None
    total, exposed = (format_time(table.meta[key]) for key in ("total_ns", "exposed_ns"))
    told = f"Copies and memory fills took {total}, of which {exposed} beside no kernel."
    columns = html_parts.columns_of(
        table, _COPY_FIELDS, bars=("share",), extra=("share", "exposed_ns")
    )
    body = html_parts.lead(told) + html_parts.html_table(table, columns)
    return html_parts.ReportSection("copies", "Copies", body)


_MAX_LISTED_NODES = 600
"""Nodes of the tree; the flame chart has them all."""
_MAX_NAME_CHARACTERS = 120
_MAX_SIBLINGS = 40
"""Nodes within one that are listed one by one."""
_UNFOLDED_LEVELS = 3
"""Levels that are open when the page is."""


def ranges_section(tree: RangeTree | NotApplicable) -> html_parts.ReportSection | None:
    """Write the section; None where the capture has no ranges."""
    if isinstance(tree, NotApplicable):
        return None
    body = "\n".join(
        (
            html_parts.lead(_ranges_lead(tree)),
            _flame(tree),
            _tree(tree),
            html_parts.report_notes(tree.notes),
        )
    )
    return html_parts.ReportSection("ranges", "Ranges", body)


def _ranges_lead(tree: RangeTree) -> str:
    threads = f" on {tree.threads:,} threads" if tree.threads > 1 else ""
    many = "1 range" if tree.ranges == 1 else f"{tree.ranges:,} ranges"
    text = f"{many}{threads}, by what lies within what. Numbers in names that count are `#`."
    if tree.gpu_ns is not None:
        text += " GPU time is the work that any thread launched while a range was open."
    return text


# The flame chart ----------------------------------------------------------------------------------


def _flame(tree: RangeTree) -> str:
    """Give the nodes to the page's script; without it the tree says the same."""
    data = safe_json(flame_data(tree))
    return (
        '<div class="flame" hidden></div>'
        f'<script type="application/json" class="flame-data">{data}</script>'
    )


def flame_data(tree: RangeTree) -> dict[str, Any]:
    """Give the tree in columns, names cut so that the page stays small."""
    return {
        "names": [_cut(name) for name in tree.names],
        "name": tree.name.tolist(),
        "parent": tree.parent.tolist(),
        "calls": tree.calls.tolist(),
        "host": tree.host_ns.tolist(),
        "gpu": None if tree.gpu_ns is None else tree.gpu_ns.tolist(),
        "smaller": tree.smaller.tolist(),
    }


def _cut(name: str) -> str:
    """Cut a name to what takes no more than its room as JSON either."""
    safe = safe_text(name[: 8 * _MAX_NAME_CHARACTERS])
    width = _MAX_NAME_CHARACTERS
    while len(safe_json(shorten_middle(safe, width))) > _MAX_NAME_CHARACTERS + 2 and width > 1:
        width = width * 3 // 4
    return shorten_middle(safe, width)


# The tree -----------------------------------------------------------------------------------------


def _tree(tree: RangeTree) -> str:
    inside: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parent.tolist()[:_MAX_LISTED_NODES]):
        inside.setdefault(parent, []).append(node)
    gpu = "<b>GPU work</b>" if tree.gpu_ns is not None else ""
    heads = (
        f'<p class="heads" aria-hidden="true"><span>Range</span><b>Host</b>{gpu}<b>Times</b></p>'
    )
    listed = "".join(_nodes(tree, inside, -1, 0))
    more = html_parts.more_rows(len(tree) - _MAX_LISTED_NODES, "nodes are in the flame chart")
    return f'<div class="tree">{heads}<ul>{listed}</ul></div>{more}'


def _largest(tree: RangeTree) -> list[int]:
    """Choose the nodes that are listed; nothing is larger than what it lies in."""
    sizes = [tree.host_ns / max(1, tree.host_total_ns)]
    if tree.gpu_ns is not None:
        sizes.append(tree.gpu_ns / max(1, tree.gpu_total_ns))
    order = np.argsort(-np.maximum.reduce(sizes), kind="stable")
    return sorted(order[:_MAX_LISTED_NODES].tolist())


def _nodes(tree: RangeTree, inside: dict[int, list[int]], parent: int, level: int) -> Iterator[str]:
    """Write the nodes within one; the tree is at most as deep as levels are looked at."""
    children = inside.get(parent, [])
    for node in children[:_MAX_SIBLINGS]:
        line = _line(tree, [node], _range_name(tree, node))
        if node in inside:
            is_open = " open" if level < _UNFOLDED_LEVELS else ""
            yield f"<li><details{is_open}><summary>{line}</summary><ul>"
            yield from _nodes(tree, inside, node, level + 1)
            yield "</ul></details></li>"
        else:
            yield f'<li class="leaf">{line}</li>'
    if rest := children[_MAX_SIBLINGS:]:
        yield f'<li class="leaf">{_line(tree, rest, f"<i>{len(rest):,} more</i>")}</li>'


def _range_name(tree: RangeTree, node: int) -> str:
    number = int(tree.name[node])
    if number < 0:
        return f"<i>{int(tree.smaller[node]):,} smaller</i>"
    return html_parts.clipped_text(tree.names[number], 2 * _MAX_NAME_CHARACTERS)


def _line(tree: RangeTree, nodes: list[int], name: str) -> str:
    """Write the numbers of a node, or of several together, behind a name."""
    host, calls = (int(values[nodes].sum()) for values in (tree.host_ns, tree.calls))
    gpu = ""
    if tree.gpu_ns is not None:
        work = int(tree.gpu_ns[nodes].sum())
        gpu = f'<b title="GPU work">{format_time(work) if work else MISSING}</b>'
    share = format_share(host / max(1, tree.host_total_ns))
    return (
        f'<span>{name}</span><b title="Host time, {share}">{format_time(host)}</b>{gpu}'
        f'<b title="Times">{format_count(calls)}</b>'
    )
