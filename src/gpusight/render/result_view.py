"""Base classes of what `gpusight.api` returns: results that print themselves and can be saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpusight.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from gpusight.results import Composite, TableResult


REPR_ROWS = 20


class ResultInfo(Protocol):
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


class ResultView(ABC):
    """A result that shows itself, in a shell or a notebook."""

    result: ResultInfo

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


class SavableView(ResultView):
    """A result that can be written to a file, whose name says as what."""

    @abstractmethod
    def to_json(self) -> str:
        """Give the document that `--format json` writes."""

    @abstractmethod
    def to_csv(self) -> str:
        """Give the text that `--format csv` writes."""

    @abstractmethod
    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes."""

    def _drawn(self, form: str) -> bytes:
        """Draw it as one of the picture formats; results that have no picture say so."""
        raise UsageError(
            f"{self.title} cannot be written as {form or 'a file without an ending'}",
            hint="write .json, .csv, .md or .txt",
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a text (.json, .csv, .md, .txt) or a picture (.svg, .html, .png, .pdf).

        Gives where it is. A capture is never written over. In a .csv, a cell that a spreadsheet
        would run as a formula gets a `'` in front; `to_csv` gives it unchanged.
        """
        from gpusight.output_files import write_file
        from gpusight.sniff import refuse_capture

        target = Path(path)
        refuse_capture(target, None)
        form = target.suffix.lower().removeprefix(".")
        texts = {
            "json": self.to_json,
            "csv": self.to_csv,
            "md": self.to_markdown,
            "txt": self.to_text,
        }
        content = file_text(form, texts[form]()) if form in texts else self._drawn(form)
        write_file(target, content)
        return target


def file_text(form: str, text: str) -> bytes:
    """Give a text as a file has it: in a CSV, no cell is one that a spreadsheet would run."""
    from gpusight.render.csv_json import escape_formulas

    return (escape_formulas(text) if form == "csv" else text).encode("utf-8", "backslashreplace")


class TablesView(SavableView):
    """A result of one table or several."""

    result: TableResult | Composite
    shown_rows = REPR_ROWS
    """Rows of each table in a notebook; 0 for all."""

    def _repr_html_(self) -> str:
        from gpusight.render.html.html_templates import to_html

        return str(to_html(self.result, limit=self.shown_rows))

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.csv_json import to_json

        return to_json(self.result)

    def to_csv(self) -> str:
        """Give the text that `--format csv` writes."""
        from gpusight.render.csv_json import to_csv

        return to_csv(self.result)

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes, with all rows."""
        from gpusight.render.markdown_tables import to_markdown

        return to_markdown(self.result)
