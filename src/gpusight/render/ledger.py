"""A ledger that shows itself, in a shell or a notebook, and as text of every form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusight.render.shown import Saved

if TYPE_CHECKING:
    from gpusight.analyses.ledger.report import DeviceReport, LedgerReport
    from gpusight.render.pictures.board import Board

WIDTH = 100
ROWS = 20


class LedgerView(Saved):
    """Where the time of each GPU went; printing it shows the tables."""

    result: LedgerReport

    def __init__(self, result: LedgerReport) -> None:
        self.result = result

    @property
    def devices(self) -> tuple[DeviceReport, ...]:
        """Each GPU with its entries, steps, overlaps and contributors to idle time."""
        return self.result.devices

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, as `--format json` writes them."""
        return self.result.document()

    def to_text(self) -> str:
        """Give it as plain text, as printing does."""
        from gpusight.analyses.ledger.tables import page
        from gpusight.render.layout import Look
        from gpusight.render.plain import to_plain

        look = Look(WIDTH, ROWS, rows_advice="all are in .document()")
        return to_plain(page(self.result), look)

    def _repr_html_(self) -> str:
        from gpusight.analyses.ledger.tables import page
        from gpusight.render.html import to_html

        return to_html(page(self.result), limit=ROWS)

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.json import encode

        return encode(self.result.document())

    def to_csv(self) -> str:
        """Give the text that `--format csv` writes: one line for each entry and step."""
        from gpusight.analyses.ledger.tables import lines
        from gpusight.render.csv import to_csv

        return to_csv(lines(self.result))

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes, with every step."""
        from gpusight.analyses.ledger.tables import page
        from gpusight.render.markdown import to_markdown

        return to_markdown(page(self.result, by_step=True))

    @property
    def figure(self) -> Board:
        """The picture: a bar for each GPU, and its steps."""
        from gpusight.render.pictures.ledger import ledger_figure

        return ledger_figure(self.result)

    def _drawn(self, form: str) -> bytes:
        return draw_ledger(self.result, form)


def draw_ledger(report: LedgerReport, form: str) -> bytes:
    """Draw a ledger; a page has its tables below the picture."""
    from gpusight.analyses.ledger.tables import page
    from gpusight.render.pictures import draw
    from gpusight.render.pictures.ledger import ledger_figure

    return draw(ledger_figure(report), form, result=page(report, by_step=True))
