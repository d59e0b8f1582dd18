"""How each kind of answer is written: its renderer, and where that is."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpusight.render.table_layout import TableOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpusight.render.charts.figure import Figure, StripChart
    from gpusight.render.terminal_text import StyledLine
    from gpusight.results import Composite, TableResult


_ADVICE = "all are in .frame"
_LOOK = TableOptions(100, 20, rows_advice=_ADVICE, columns_advice=_ADVICE)


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """How one kind of answer is written: functions of the answer and of keyword options.

    What is None is made of the tables; where there are none either, it cannot be written so.
    """

    tables: Callable[..., TableResult | Composite] | None = None
    """The answer as tables."""
    rows: Callable[[Any], TableResult] | None = None
    """Its main table, which CSV and `.frame` have."""
    document: Callable[[Any], dict[str, Any]] | None = None
    """What JSON has."""
    long_lists: tuple[str, ...] = ()
    """Keys of that document whose lists `limit` cuts."""
    lines: Callable[..., Iterable[StyledLine]] | None = None
    """Lines of text, laid out as the `TableOptions` say."""
    markdown: Callable[..., str] | None = None
    fragment: Callable[..., str] | None = None
    """HTML for a notebook."""
    page: Callable[..., str] | None = None
    """An HTML page of its own."""
    figure: Callable[..., Figure | StripChart] | None = None
    draw: Callable[..., bytes] | None = None
    """The picture as a file of a format; an HTML page may have tables below it."""
    look: TableOptions = _LOOK
    """How tables look in a Python shell and, as for their rows, in a notebook."""


def _same(answer: TableResult | Composite) -> TableResult | Composite:
    return answer


def _figure(answer: Composite, **options: Any) -> Figure | StripChart:
    from gpusight.render.charts.draw_chart import figure_of

    return figure_of(answer, **options)


def _draw(answer: Composite, form: str, **options: Any) -> bytes:
    from gpusight.render.charts.draw_chart import draw_result

    return draw_result(answer, form, **options)


TABLE_RENDERER = Renderer(tables=_same)
COMPOSITE_RENDERER = Renderer(tables=_same, figure=_figure, draw=_draw)
_RENDERERS = {
    "TableResult": "renderer:TABLE_RENDERER",
    "Composite": "renderer:COMPOSITE_RENDERER",
    "LedgerReport": "ledger_view:LEDGER_RENDERER",
    "Hotspots": "hotspots_view:HOTSPOTS_RENDERER",
    "WhatIf": "ledger_view:WHATIF_RENDERER",
    "TimelineDiagnosis": "diagnosis_view:DIAGNOSIS_RENDERER",
    "KernelReportDiagnosis": "diagnosis_view:DIAGNOSIS_RENDERER",
    "JoinedDiagnosis": "diagnosis_view:DIAGNOSIS_RENDERER",
    "Explanation": "diagnosis_view:EXPLANATION_RENDERER",
    "MeasuredDrill": "drill_view:DRILL_RENDERER",
    "Comparison": "comparison_view:COMPARISON_RENDERER",
    "Baseline": "comparison_view:BASELINE_RENDERER",
    "JobRanks": "ranks_view:RANKS_RENDERER",
    "Gate": "gate_view:GATE_RENDERER",
    "SharedCopy": "share_view:SHARE_RENDERER",
    "Checkup": "doctor_view:DOCTOR_RENDERER",
    "Report": "html.report_page:REPORT_RENDERER",
}
"""Kinds of answers, and where in this package their renderers are."""


def renderer_of(answer: object) -> Renderer:
    """Give the renderer of an answer; modules are imported when they are first needed."""
    module, name = _RENDERERS[type(answer).__name__].split(":")
    renderer = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    assert isinstance(renderer, Renderer)
    return renderer
