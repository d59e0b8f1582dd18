"""A comparison that shows itself, in a shell or a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusight.render.shown import Shown, file_text

if TYPE_CHECKING:
    import os

    from gpusight.comparison.change import Change
    from gpusight.comparison.outcome import (
        CallChange,
        Comparison,
        CopyChange,
        Entry,
        FindingChange,
        KernelChange,
        Metric,
    )
    from gpusight.render.pictures.figure import Figure

WIDTH = 100


class ComparisonView(Shown):
    """What changed between two sides, and why; printing it shows the answer and the tables."""

    result: Comparison

    def __init__(self, result: Comparison) -> None:
        self.result = result

    @property
    def step(self) -> Change:
        """The step time: before, after, its interval and what can be claimed."""
        return self.result.step

    @property
    def explanation(self) -> tuple[str, ...]:
        """Why the step changed, or did not, in sentences; the first is the verdict."""
        return self.result.explanation

    @property
    def metrics(self) -> dict[str, Metric]:
        """Quantities of the whole by the names that `gate --max` has for them."""
        return {metric.key: metric for metric in self.result.metrics}

    @property
    def ledger(self) -> tuple[Entry, ...]:
        """Entries of the ledger, those that changed most first; they sum to the step."""
        return self.result.ledger

    @property
    def between(self) -> tuple[Entry, ...]:
        """The same of the time between steps; empty where that is next to nothing."""
        return self.result.between

    @property
    def phases(self) -> dict[str, Change]:
        """GPU work by phase."""
        return dict(self.result.phases)

    @property
    def kernels(self) -> tuple[KernelChange, ...]:
        """Kernels, those that changed most first."""
        return self.result.kernels

    @property
    def ranges(self) -> tuple[CallChange, ...]:
        """Ranges (NVTX, annotations)."""
        return self.result.ranges

    @property
    def api_calls(self) -> tuple[CallChange, ...]:
        """CUDA API calls."""
        return self.result.api

    @property
    def copies(self) -> tuple[CopyChange, ...]:
        """Copies and fills by direction."""
        return self.result.copies

    @property
    def findings(self) -> tuple[FindingChange, ...]:
        """Findings of `diagnose` that were fixed, are new, or stayed."""
        return self.result.findings

    @property
    def figure(self) -> Figure:
        """The step as a waterfall; `save` writes it."""
        from gpusight.render.comparison.picture import waterfall

        return waterfall(self.result)

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, as `--format json` writes them."""
        return self.result.document()

    def to_text(self) -> str:
        """Give it as plain text, as printing does."""
        from gpusight.render.comparison.text import to_text
        from gpusight.render.layout import Look

        look = Look(WIDTH, rows_advice="all are in .kernels, .ranges, …")
        return to_text(self.result, look)

    def _repr_html_(self) -> str:
        from gpusight.render.comparison.html import to_fragment

        return to_fragment(self.result, limit=None)

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.json import encode

        return encode(self.result.document())

    def to_csv(self) -> str:
        """Give the text that `--format csv` writes: one line for each thing compared."""
        from gpusight.render.comparison.tables import as_table
        from gpusight.render.csv import to_csv

        return to_csv(as_table(self.result))

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes, for a pull request."""
        from gpusight.render.comparison.markdown import to_document

        return to_document(self.result)

    def to_html(self) -> str:
        """Give the page that `--format html` writes."""
        from gpusight.render.comparison.html import to_page

        return to_page(self.result)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a page (.html), a text (.md, .csv, .json, .txt) or the picture; gives where it is.

        The picture alone is .svg, .png or .pdf.
        """
        from gpusight.evidence import refuse_capture
        from gpusight.output_files import write_file
        from gpusight.render.pictures import draw

        target = Path(path)
        refuse_capture(target, None)
        form = target.suffix.lower().removeprefix(".")
        write = {
            "html": self.to_html,
            "htm": self.to_html,
            "md": self.to_markdown,
            "csv": self.to_csv,
            "json": self.to_json,
            "txt": self.to_text,
        }.get(form)
        content = draw(self.figure, form) if write is None else file_text(form, write())
        write_file(target, content)
        return target
