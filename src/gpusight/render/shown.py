"""What every answer of `gpusight.api` has in common: it says what it is, and shows itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.result import Composite, TableResult

REPR_ROWS = 20


class Answer(Protocol):
    """What results of every kind tell about themselves."""

    @property
    def title(self) -> str:
        """What it is about."""
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """Totals and other values about it as a whole."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know."""
        ...


class Shown(ABC):
    """A result that shows itself, in a shell or a notebook."""

    result: Answer

    @property
    def title(self) -> str:
        """What the result is about."""
        return self.result.title

    @property
    def meta(self) -> Mapping[str, Any]:
        """Totals and other values about the result as a whole."""
        return self.result.meta

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: incomplete data, what was left out, what was assumed."""
        return self.result.notes

    @abstractmethod
    def to_text(self) -> str:
        """Give it as plain text, as printing does."""

    def __repr__(self) -> str:
        """Show it as plain text."""
        return self.to_text().rstrip("\n")


class ShownTables(Shown):
    """A result of one table or several."""

    result: TableResult | Composite
    shown_rows = REPR_ROWS
    """Rows of each table in a notebook; 0 for all."""

    def _repr_html_(self) -> str:
        from gpusight.render.html import to_html

        return to_html(self.result, limit=self.shown_rows)

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.json import to_json

        return to_json(self.result)

    def to_csv(self) -> str:
        """Give the text that `--format csv` writes."""
        from gpusight.render.csv import to_csv

        return to_csv(self.result)

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes, with all rows."""
        from gpusight.render.markdown import to_markdown

        return to_markdown(self.result)
