"""A ledger that shows itself, in a shell or a notebook, and as text of every form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.analyses.ledger.report import DeviceReport, LedgerReport

WIDTH = 100
ROWS = 20


class LedgerView:
    """Where the time of each GPU went; printing it shows the tables."""

    def __init__(self, result: LedgerReport) -> None:
        self.result = result

    @property
    def devices(self) -> tuple[DeviceReport, ...]:
        """Each GPU with its entries, steps, overlaps and contributors to idle time."""
        return self.result.devices

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the ledger is of."""
        return self.result.meta

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: what was left out, what cannot be told."""
        return self.result.notes

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, as `--format json` writes them."""
        return self.result.document()

    def __repr__(self) -> str:
        """Show it as plain text."""
        from gpusight.analyses.ledger.tables import page
        from gpusight.render.layout import Look
        from gpusight.render.plain import to_plain

        look = Look(WIDTH, ROWS, rows_advice="all are in .document()")
        return to_plain(page(self.result), look).rstrip("\n")

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
