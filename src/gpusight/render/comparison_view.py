"""A comparison and a baseline as Python results, and a comparison as one table for CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.comparison.baseline_page import baseline_page
from gpusight.comparison.phrases import copy_name
from gpusight.render.result_view import REPR_ROWS, ResultView, TablesView, file_text
from gpusight.results import Field, Fmt, TableResult

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from gpusight.comparison.comparison_result import (
        CallChange,
        Comparison,
        CopyChange,
        EntryChange,
        FindingChange,
        KernelChange,
        MetricChange,
    )
    from gpusight.comparison.digest import Digest
    from gpusight.comparison.significance import MeasuredChange
    from gpusight.render.charts.figure import Figure
    from gpusight.results import Composite


COMPARISON_FIELDS = (
    Field("section", "Section", Fmt.TEXT, "`metrics`, `ledger`, `between`, `phases`, `kernels`, …"),
    Field("name", "Name", Fmt.NAME, "Metric, entry, phase, kernel, range, call, copy or rule"),
    Field("unit", "Unit", Fmt.TEXT, "`ns`, `bytes`, or `count`"),
    Field("before", "Before", Fmt.REAL, "Mean a step before"),
    Field("after", "After", Fmt.REAL, "Mean a step after"),
    Field("change", "Change", Fmt.REAL, "After less before"),
    Field("ratio", "%", Fmt.REAL, "The change as a part of what was before"),
    Field("low", "Low", Fmt.REAL, "Lower end of the interval of the change"),
    Field("high", "High", Fmt.REAL, "Upper end of it"),
    Field("verdict", "Verdict", Fmt.TEXT, "`lower`, `higher`, `same`, `unclear`, `appeared`, …"),
    Field("basis", "Basis", Fmt.TEXT, "What the interval rests on: `repeats`, `steps`, `none`"),
    Field("calls_before", "Calls before", Fmt.REAL, "How often a step, before"),
    Field("calls_after", "Calls after", Fmt.REAL, "How often a step, after"),
)
_TEXTS = (Fmt.TEXT, Fmt.NAME)
_UNITS = {Fmt.TIME: "ns", Fmt.BYTES: "bytes", Fmt.COUNT: "count"}


def as_table(comparison: Comparison) -> TableResult:
    """Give everything that was compared, a row each."""
    schema = {f.key: pl.String() if f.fmt in _TEXTS else pl.Float64() for f in COMPARISON_FIELDS}
    rows = [[row.get(key) for key in schema] for row in _rows(comparison)]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult(
        comparison.command, comparison.title, COMPARISON_FIELDS, frame, notes=comparison.notes
    )


def _rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for metric in comparison.metrics:
        yield _row("metrics", metric.key, metric.change, unit=_UNITS.get(metric.fmt, ""))
    for section, entries in (("ledger", comparison.ledger), ("between", comparison.between)):
        for entry in entries:
            yield _row(section, entry.entry, entry.change)
    for phase, change in comparison.phases:
        yield _row("phases", phase, change)
    for one in comparison.kernels:
        calls = _calls(one.calls_before, one.calls_after)
        yield _row("kernels", one.short, one.ns, **calls)
    yield from _timed("ranges", comparison.ranges)
    yield from _timed("api_calls", comparison.api)
    for copy in comparison.copies:
        calls = _calls(copy.calls_before, copy.calls_after)
        yield _row("copies", copy_name(copy), copy.ns, **calls)
    for found in comparison.findings:
        times = {"before": found.before_ns, "after": found.after_ns, "unit": "ns"}
        yield {"section": "findings", "name": found.rule, "verdict": found.fate.value} | times


def _timed(section: str, calls: tuple[CallChange, ...]) -> Iterator[dict[str, Any]]:
    """Give ranges and API calls: their time on the host and, where known, on the GPU."""
    for one in calls:
        often = _calls(one.calls_before, one.calls_after)
        yield _row(section, one.name, one.host_ns, **often)
        if one.gpu_ns is not None:
            yield _row(f"{section}_gpu", one.name, one.gpu_ns, **often)


def _calls(before: float, after: float) -> dict[str, float]:
    return {"calls_before": before, "calls_after": after}


def _row(section: str, name: str, change: MeasuredChange, **more: object) -> dict[str, Any]:
    return {"section": section, "name": name, "unit": "ns"} | change.document() | more


COMPARISON_WIDTH = 100


class ComparisonView(ResultView):
    """What changed between two sides, and why; printing it shows the answer and the tables."""

    result: Comparison

    def __init__(self, result: Comparison) -> None:
        self.result = result

    @property
    def step(self) -> MeasuredChange:
        """The step time: before, after, its interval and what can be claimed."""
        return self.result.step

    @property
    def explanation(self) -> tuple[str, ...]:
        """Why the step changed, or did not, in sentences; the first is the verdict."""
        return self.result.explanation

    @property
    def metrics(self) -> dict[str, MetricChange]:
        """Quantities of the whole by the names that `gate --max` has for them."""
        return {metric.key: metric for metric in self.result.metrics}

    @property
    def ledger(self) -> tuple[EntryChange, ...]:
        """Entries of the ledger, those that changed most first; they sum to the step."""
        return self.result.ledger

    @property
    def between(self) -> tuple[EntryChange, ...]:
        """The same of the time between steps; empty where that is next to nothing."""
        return self.result.between

    @property
    def phases(self) -> dict[str, MeasuredChange]:
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
        from gpusight.render.charts.ledger_charts import waterfall

        return waterfall(self.result)

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, as `--format json` writes them."""
        return self.result.document()

    def to_text(self) -> str:
        """Give it as plain text, as printing does."""
        from gpusight.render.comparison_text import comparison_to_text as to_text
        from gpusight.render.table_layout import TableOptions as Look

        look = Look(COMPARISON_WIDTH, rows_advice="all are in .kernels, .ranges, …")
        return to_text(self.result, look)

    def _repr_html_(self) -> str:
        from gpusight.render.html.comparison_page import comparison_fragment as to_fragment

        return str(to_fragment(self.result, limit=None))

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.csv_json import encode_json as encode

        return encode(self.result.document())

    def to_csv(self) -> str:
        """Give the text that `--format csv` writes: one line for each thing compared."""
        from gpusight.render.csv_json import to_csv

        return to_csv(as_table(self.result))

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes, for a pull request."""
        from gpusight.render.comparison_text import comparison_to_markdown as to_document

        return to_document(self.result)

    def to_html(self) -> str:
        """Give the page that `--format html` writes."""
        from gpusight.render.html.comparison_page import comparison_to_page as to_page

        return to_page(self.result)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a page (.html), a text (.md, .csv, .json, .txt) or the picture; gives where it is.

        The picture alone is .svg, .png or .pdf.
        """
        from gpusight.output_files import write_file
        from gpusight.render.charts.draw_chart import draw
        from gpusight.sniff import refuse_capture

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


_BASELINE_WIDTH = 100


class BaselineView(TablesView):
    """Captures summed up, which `gs.compare` and `gs.gate` take; printing shows their metrics."""

    result: Composite

    def __init__(
        self, digests: Sequence[Digest], *, file: str | None = None, size: int | None = None
    ) -> None:
        self.digests = tuple(digests)
        self.result = baseline_page(digests, file=file, size=size)

    def to_text(self) -> str:
        """Give it as plain text, as printing does."""
        from gpusight.render.table_layout import TableOptions as Look
        from gpusight.render.terminal_tables import to_plain

        return to_plain(
            self.result, Look(_BASELINE_WIDTH, REPR_ROWS, rows_advice="all are in .digests")
        )
