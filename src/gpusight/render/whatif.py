"""A what-if that shows itself, in a shell or a notebook, and as text of every form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusight.analyses.whatif.tables import page
from gpusight.render.layout import Look
from gpusight.render.shown import Shown

if TYPE_CHECKING:
    from gpusight.analyses.ledger.ledger import Ledger
    from gpusight.analyses.whatif.report import Applied, WhatIf

WIDTH = 100
ROWS = 20


class WhatIfView(Shown):
    """What changes give back, alone and together; printing it shows the tables."""

    result: WhatIf

    def __init__(self, result: WhatIf) -> None:
        self.result = result

    @property
    def changes(self) -> tuple[Applied, ...]:
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
        from gpusight.render.plain import to_plain

        return to_plain(page(self.result), Look(WIDTH, ROWS, rows_advice="all are in .document()"))

    def _repr_html_(self) -> str:
        from gpusight.render.html import to_html

        return to_html(page(self.result), limit=ROWS)

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.json import encode

        return encode(self.document())

    def to_csv(self) -> str:
        """Give the text that `--format csv` writes."""
        from gpusight.render.csv import to_csv

        return to_csv(page(self.result))

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes, with all rows."""
        from gpusight.render.markdown import to_markdown

        return to_markdown(page(self.result))
