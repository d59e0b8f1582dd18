"""A baseline that shows itself, in a shell or a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.comparison.baseline import baseline_page
from gpusight.render.shown import REPR_ROWS, ShownTables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.comparison.digest import Digest
    from gpusight.result import Composite

_WIDTH = 100


class BaselineView(ShownTables):
    """Captures summed up, which `gs.compare` and `gs.gate` take; printing shows their metrics."""

    result: Composite

    def __init__(
        self, digests: Sequence[Digest], *, file: str | None = None, size: int | None = None
    ) -> None:
        self.digests = tuple(digests)
        self.result = baseline_page(digests, file=file, size=size)

    def to_text(self) -> str:
        """Give it as plain text, as printing does."""
        from gpusight.render.layout import Look
        from gpusight.render.plain import to_plain

        return to_plain(self.result, Look(_WIDTH, REPR_ROWS, rows_advice="all are in .digests"))
