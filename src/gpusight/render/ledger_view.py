"""A ledger and a what-if prediction as Python results.

In a shell, in a notebook, and in every text format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusight.analysis.scenario import whatif_page
from gpusight.render.result_view import ResultView, SavableView
from gpusight.render.table_layout import TableOptions

if TYPE_CHECKING:
    from gpusight.analysis.ledger.device_ledger import Ledger
    from gpusight.analysis.ledger.ledger_report import DeviceLedgerReport, LedgerReport
    from gpusight.analysis.scenario import AppliedChange, WhatIf
    from gpusight.render.charts.figure import StripChart


LEDGER_WIDTH = 100
LEDGER_ROWS = 20


class LedgerView(SavableView):
    """Where the time of each GPU went; printing it shows the tables."""

    result: LedgerReport

    def __init__(self, result: LedgerReport) -> None:
        self.result = result

    @property
    def devices(self) -> tuple[DeviceLedgerReport, ...]:
        """Each GPU with its entries, steps, overlaps and contributors to idle time."""
        return self.result.devices

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, as `--format json` writes them."""
        return self.result.document()

    def to_text(self) -> str:
        """Give it as plain text, as printing does."""
        from gpusight.analysis.ledger.ledger_tables import ledger_page as page
        from gpusight.render.table_layout import TableOptions as Look
        from gpusight.render.terminal_tables import to_plain

        look = Look(LEDGER_WIDTH, LEDGER_ROWS, rows_advice="all are in .document()")
        return to_plain(page(self.result), look)

    def _repr_html_(self) -> str:
        from gpusight.analysis.ledger.ledger_tables import ledger_page as page
        from gpusight.render.html.html_templates import to_html

        return str(to_html(page(self.result), limit=LEDGER_ROWS))

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.csv_json import encode_json as encode

        return encode(self.result.document())

    def to_csv(self) -> str:
        """Give the text that `--format csv` writes: one line for each entry and step."""
        from gpusight.analysis.ledger.ledger_tables import ledger_lines_table as lines
        from gpusight.render.csv_json import to_csv

        return to_csv(lines(self.result))

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes, with every step."""
        from gpusight.analysis.ledger.ledger_tables import ledger_page as page
        from gpusight.render.markdown_tables import to_markdown

        return to_markdown(page(self.result, by_step=True))

    @property
    def figure(self) -> StripChart:
        """The picture: a bar for each GPU, and its steps."""
        from gpusight.render.charts.ledger_charts import ledger_figure

        return ledger_figure(self.result)

    def _drawn(self, form: str) -> bytes:
        return draw_ledger(self.result, form)


def draw_ledger(report: LedgerReport, form: str) -> bytes:
    """Draw a ledger; a page has its tables below the picture."""
    from gpusight.analysis.ledger.ledger_tables import ledger_page as page
    from gpusight.render.charts.draw_chart import draw
    from gpusight.render.charts.ledger_charts import ledger_figure

    return draw(ledger_figure(report), form, result=page(report, by_step=True))


WHATIF_WIDTH = 100
WHATIF_ROWS = 20


class WhatIfView(ResultView):
    """What changes give back, alone and together; printing it shows the tables."""

    result: WhatIf

    def __init__(self, result: WhatIf) -> None:
        self.result = result

    @property
    def changes(self) -> tuple[AppliedChange, ...]:
        """Each change with the time it gives back."""
        return self.result.changes

    @property
    def saved_ns(self) -> int:
        """What all changes give back together, of the replayed time."""
        return self.result.saved_ns

    @property
    def before(self) -> Ledger:
        """Where the time goes now."""
        return self.result.before

    @property
    def after(self) -> Ledger:
        """Where the time goes with all changes."""
        return self.result.after

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, as `--format json` writes them."""
        return self.result.document()

    def to_text(self) -> str:
        """Give it as plain text, as printing does."""
        from gpusight.render.terminal_tables import to_plain

        return to_plain(
            whatif_page(self.result),
            TableOptions(WHATIF_WIDTH, WHATIF_ROWS, rows_advice="all are in .document()"),
        )

    def _repr_html_(self) -> str:
        from gpusight.render.html.html_templates import to_html

        return str(to_html(whatif_page(self.result), limit=WHATIF_ROWS))

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.csv_json import encode_json as encode

        return encode(self.document())

    def to_csv(self) -> str:
        """Give the text that `--format csv` writes."""
        from gpusight.render.csv_json import to_csv

        return to_csv(whatif_page(self.result))

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes, with all rows."""
        from gpusight.render.markdown_tables import to_markdown

        return to_markdown(whatif_page(self.result))
