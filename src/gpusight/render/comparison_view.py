"""Renderers of a comparison and a baseline; a comparison as one table for CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.comparison.baseline_file import baseline_page
from gpusight.comparison.phrases import copy_name
from gpusight.render.comparison_text import comparison_lines, comparison_to_markdown
from gpusight.render.renderer import Renderer
from gpusight.render.table_layout import TableOptions
from gpusight.results import Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.comparison.comparison_result import CallChange, Comparison
    from gpusight.comparison.significance import MeasuredChange
    from gpusight.render.charts.figure import Figure


COMPARISON_FIELDS = (
    Field("section", "Section", Fmt.TEXT, "`metrics`, `ledger`, `phases`, `kernels`, …"),
    Field("name", "Name", Fmt.NAME, "Metric, entry, phase, kernel, range, call, copy or rule"),
    Field("unit", "Unit", Fmt.TEXT, "`ns`, `bytes`, or `count`"),
    Field("before", "Before", Fmt.REAL, "Mean per step before"),
    Field("after", "After", Fmt.REAL, "Mean per step after"),
    Field("change", "Change", Fmt.REAL, "After less before"),
    Field("ratio", "%", Fmt.REAL, "The change as a share of the value before"),
    Field("low", "Low", Fmt.REAL, "Lower end of the interval of the change"),
    Field("high", "High", Fmt.REAL, "Upper end of it"),
    Field("verdict", "Verdict", Fmt.TEXT, "`lower`, `higher`, `same`, `unclear`, `appeared`, …"),
    Field("basis", "Basis", Fmt.TEXT, "Basis of the interval: `repeats`, `steps`, `none`"),
    Field("calls_before", "Calls before", Fmt.REAL, "Calls per step before"),
    Field("calls_after", "Calls after", Fmt.REAL, "Calls per step after"),
)
_TEXTS = (Fmt.TEXT, Fmt.NAME)
_UNITS = {Fmt.TIME: "ns", Fmt.BYTES: "bytes", Fmt.COUNT: "count"}


def as_table(comparison: Comparison) -> TableResult:
    """Give every compared value as a row."""
    schema = {f.key: pl.String() if f.fmt in _TEXTS else pl.Float64() for f in COMPARISON_FIELDS}
    rows = [[row.get(key) for key in schema] for row in _rows(comparison)]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult(
        comparison.command, comparison.title, COMPARISON_FIELDS, frame, notes=comparison.notes
    )


def _rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for metric in comparison.metrics:
        yield _row("metrics", metric.key, metric.change, unit=_UNITS.get(metric.fmt, ""))
    for entry in comparison.ledger:
        yield _row("ledger", entry.entry, entry.change)
    for phase, change in comparison.phases:
        yield _row("phases", phase, change)
    for kernel in comparison.kernels:
        calls = _calls(kernel.calls_before, kernel.calls_after)
        yield _row("kernels", kernel.short, kernel.ns, **calls)
    yield from _timed("ranges", comparison.ranges)
    yield from _timed("api_calls", comparison.api)
    for copy in comparison.copies:
        calls = _calls(copy.calls_before, copy.calls_after)
        yield _row("copies", copy_name(copy), copy.ns, **calls)
    for finding in comparison.findings:
        times = {"before": finding.before_ns, "after": finding.after_ns, "unit": "ns"}
        yield {"section": "findings", "name": finding.rule, "verdict": finding.status.value} | times


def _timed(section: str, calls: tuple[CallChange, ...]) -> Iterator[dict[str, Any]]:
    """Give ranges and API calls: their time on the host and, where known, on the GPU."""
    for call in calls:
        often = _calls(call.calls_before, call.calls_after)
        yield _row(section, call.name, call.host_ns, **often)
        if call.gpu_ns is not None:
            yield _row(f"{section}_gpu", call.name, call.gpu_ns, **often)


def _calls(before: float, after: float) -> dict[str, float]:
    return {"calls_before": before, "calls_after": after}


def _row(section: str, name: str, change: MeasuredChange, **more: object) -> dict[str, Any]:
    return {"section": section, "name": name, "unit": "ns"} | change.document() | more


def _fragment(comparison: Comparison, *, limit: int | None) -> str:
    from gpusight.render.html.comparison_page import comparison_fragment

    return comparison_fragment(comparison, limit=limit)


def _page(comparison: Comparison, *, limit: int | None) -> str:
    from gpusight.render.html.comparison_page import comparison_to_page

    return comparison_to_page(comparison, limit=limit)


def _figure(comparison: Comparison) -> Figure:
    from gpusight.render.charts.ledger_charts import waterfall

    return waterfall(comparison)


def _draw(comparison: Comparison, form: str) -> bytes:
    from gpusight.render.charts.draw_chart import draw

    return draw(_figure(comparison), form)


COMPARISON_RENDERER = Renderer(
    rows=as_table,
    document=lambda comparison: comparison.document(),
    long_lists=("kernels", "ranges", "api_calls", "copies", "ledger", "phases", "findings"),
    lines=comparison_lines,
    markdown=comparison_to_markdown,
    fragment=_fragment,
    page=_page,
    figure=_figure,
    draw=_draw,
    look=TableOptions(100, rows_advice="all are in .kernels, .ranges, …"),
)
BASELINE_RENDERER = Renderer(
    tables=baseline_page, look=TableOptions(100, 20, rows_advice="all are in .digests")
)
