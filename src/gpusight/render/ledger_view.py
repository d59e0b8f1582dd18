"""Renderers of a ledger and a what-if prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analysis.ledger.ledger_tables import ledger_lines_table, ledger_page
from gpusight.analysis.scenario import whatif_page
from gpusight.render.renderer import Renderer
from gpusight.render.table_layout import TableOptions

if TYPE_CHECKING:
    from gpusight.analysis.ledger.ledger_report import LedgerReport
    from gpusight.render.charts.figure import StripChart

_LOOK = TableOptions(100, 20, rows_advice="all are in .to_dict()")


def _ledger_markdown(report: LedgerReport, *, limit: int | None, by_step: bool = True) -> str:
    from gpusight.render.markdown_tables import to_markdown

    return to_markdown(ledger_page(report, by_step=by_step), limit=limit)


def _ledger_figure(report: LedgerReport) -> StripChart:
    from gpusight.render.charts.ledger_charts import ledger_figure

    return ledger_figure(report)


def _draw_ledger(report: LedgerReport, form: str) -> bytes:
    """Draw a bar for each GPU, and its steps; a page has its tables below the picture."""
    from gpusight.render.charts.draw_chart import draw

    return draw(_ledger_figure(report), form, result=ledger_page(report, by_step=True))


LEDGER_RENDERER = Renderer(
    tables=ledger_page,
    rows=ledger_lines_table,
    document=lambda report: report.document(),
    markdown=_ledger_markdown,
    figure=_ledger_figure,
    draw=_draw_ledger,
    look=_LOOK,
)


WHATIF_RENDERER = Renderer(
    tables=whatif_page, document=lambda whatif: whatif.document(), look=_LOOK
)
