"""Sections of a report with a table: kernels, copies, and ranges as a flame chart and a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.render.cell_text import safe_text, shorten_middle
from gpusight.render.charts.chart_page import safe_json
from gpusight.render.html.html_templates import ReportSection, columns_of, markup, render
from gpusight.results import NotApplicable, TableResult
from gpusight.units import MISSING, format_time

if TYPE_CHECKING:
    from gpusight.render.html.html_templates import HtmlColumn
    from gpusight.reports.range_tree import RangeTree
    from gpusight.reports.report_contents import Report


_MAX_KERNEL_ROWS = 1_000
_OF_TIMELINE = ("total_ns", "share", "calls", "mean_ns", "min_ns", "max_ns")
_OF_REPORT = ("total_ns", "share", "calls", "sm_share", "memory_share", "dram_share", "occupancy")
_EXTRA = ("mean_ns", "min_ns", "max_ns", "dram_share", "occupancy")


@dataclass(frozen=True, slots=True)
class _KernelTable:
    """Kernels as the page lists them."""

    title: str
    intro: str
    columns: list[HtmlColumn]
    rows: list[dict[str, Any]]
    categories: list[tuple[str, float]]
    """What kernels do, and its share of their time."""
    left_out: int
    rest_share: float


def kernels_section(report: Report) -> ReportSection | None:
    """Write the kernels of the timeline, or the profiled ones; None where there are none."""
    every = [report.program.kernels] if report.program else [m.kernels for m in report.measured]
    tables = [_kernels(table, report) for table in every if isinstance(table, TableResult)]
    if not tables:
        return None
    body = render("report_kernels.html", tables=tables, category_color=category_color)
    return ReportSection("kernels", "Kernels", body)


def _kernels(table: TableResult, report: Report) -> _KernelTable:
    frame = table.frame
    keys = _OF_TIMELINE if report.program else _OF_REPORT
    filled = [key for key in keys if key in frame.columns and frame[key].count()]
    rest = frame[_MAX_KERNEL_ROWS:]
    names, total = table.frame.height, float(table.frame["total_ns"].sum() or 0)
    calls = int(table.frame["calls"].sum())
    launches = "1 launch" if calls == 1 else f"{calls:,} launches"
    of = "1 kernel" if names == 1 else f"{names:,} kernels"
    return _KernelTable(
        table.title,
        f"{launches} of {of}, {format_time(total)} of GPU time in all.",
        columns_of(table, filled, bars=("share",), extra=_EXTRA),
        frame.head(_MAX_KERNEL_ROWS).to_dicts(),
        _categories(frame),
        rest.height,
        float(rest["share"].sum() or 0),
    )


def _categories(frame: pl.DataFrame) -> list[tuple[str, float]]:
    """Sum kernels up by what they do; the page's script makes these a choice."""
    whole = float(frame["total_ns"].sum() or 0) or 1.0
    sums = (
        frame.with_columns(pl.col("category").fill_null("other"))
        .group_by("category")
        .agg(pl.col("total_ns").sum())
        .sort("total_ns", "category", descending=[True, False])
    )
    return [(category, (total or 0) / whole) for category, total in sums.iter_rows()]


def category_color(category: str) -> str:
    """Give the key of the palette for a category of kernels."""
    return category if category == "communication" else f"compute/{category}"


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


def copies_section(table: TableResult | NotApplicable) -> ReportSection | None:
    """Write the section; None where the capture has no copies."""
    if isinstance(table, NotApplicable) or table.frame.is_empty():
        return None
    total, exposed = (format_time(table.meta[key]) for key in ("total_ns", "exposed_ns"))
    lead = f"Copies and memsets: {total}, of which {exposed} exposed (no kernel overlaps)."
    columns = columns_of(table, _COPY_FIELDS, bars=("share",), extra=("share", "exposed_ns"))
    return ReportSection(
        "copies", "Copies", render("report_copies.html", intro=lead, copies=table, columns=columns)
    )


_MAX_LISTED_NODES = 600
"""Nodes of the tree; the flame chart has them all."""
_MAX_NAME_CHARACTERS = 120
_MAX_SIBLINGS = 40
"""Nodes within one that are listed one by one."""
_UNFOLDED_LEVELS = 3
"""Levels that are open when the page is."""


@dataclass(frozen=True, slots=True)
class _RangeNode:
    """A line of the tree: a range, or several that are not shown one by one."""

    name: str
    several: str
    """How many, in words; empty for one."""
    calls: int
    host_ns: int
    host_share: float
    gpu_ns: int
    inside: list[_RangeNode]


def ranges_section(tree: RangeTree | NotApplicable) -> ReportSection | None:
    """Write the section; None where the capture has no ranges."""
    if isinstance(tree, NotApplicable):
        return None
    inside: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parent.tolist()[:_MAX_LISTED_NODES]):
        inside.setdefault(parent, []).append(node)
    threads = f" on {tree.threads:,} threads" if tree.threads > 1 else ""
    many = "1 range" if tree.ranges == 1 else f"{tree.ranges:,} ranges"
    text = f"{many}{threads}, by nesting. `#` stands for the number of a numbered range."
    if tree.gpu_ns is not None:
        text += " GPU work is what any thread launches while a range is open."
    body = render(
        "report_ranges.html",
        intro=text,
        flame=markup(safe_json(flame_data(tree))),
        nodes=_nodes(tree, inside, -1),
        has_gpu=tree.gpu_ns is not None,
        unfolded=_UNFOLDED_LEVELS,
        max_characters=2 * _MAX_NAME_CHARACTERS,
        left_out=len(tree) - _MAX_LISTED_NODES,
        noted=tree.notes,
        missing=MISSING,
    )
    return ReportSection("ranges", "Ranges", body)


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


def _nodes(tree: RangeTree, inside: dict[int, list[int]], parent: int) -> list[_RangeNode]:
    """Give the nodes within one; the tree is at most as deep as levels are looked at."""
    children = inside.get(parent, [])
    nodes = [_node(tree, [node], _nodes(tree, inside, node)) for node in children[:_MAX_SIBLINGS]]
    rest = children[_MAX_SIBLINGS:]
    return [*nodes, _node(tree, rest, [], f"{len(rest):,} more")] if rest else nodes


def _node(
    tree: RangeTree, nodes: list[int], inside: list[_RangeNode], several: str = ""
) -> _RangeNode:
    """Sum up a node, or several together."""
    number = int(tree.name[nodes[0]])
    if not several and number < 0:
        several = f"{int(tree.smaller[nodes[0]]):,} smaller"
    host, calls = (int(values[nodes].sum()) for values in (tree.host_ns, tree.calls))
    return _RangeNode(
        "" if several else tree.names[number],
        several,
        calls,
        host,
        host / max(1, tree.host_total_ns),
        0 if tree.gpu_ns is None else int(tree.gpu_ns[nodes].sum()),
        inside,
    )
