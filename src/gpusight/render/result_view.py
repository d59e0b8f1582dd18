"""The result that every function of `gpusight.api` returns and every command shows.

Analyses return plain answers (`gpusight.results` and the types of their packages). `Result` puts
one of them into text, JSON, CSV, Markdown, HTML or a picture; `renderer.py` is the one place that
knows how each kind of answer is written. This is part of `render` and not of `gpusight.results`,
which lies below the analyses and must not import what draws.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusight.errors import UsageError
from gpusight.results import Composite, NotApplicable, TableResult

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TextIO

    import polars as pl

    from gpusight.analysis.drill.drill_kernels import DrillKernel
    from gpusight.analysis.hotspots.stack_times import Hotspots
    from gpusight.analysis.ledger.device_ledger import Ledger
    from gpusight.analysis.ledger.ledger_report import DeviceLedgerReport, LedgerReport
    from gpusight.analysis.ranks.job_ranks import JobRanks, RankSummary, UnreadRank
    from gpusight.analysis.ranks.straggler_causes import Straggler
    from gpusight.analysis.scenario import AppliedChange, WhatIf
    from gpusight.comparison.baseline_file import Baseline
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
    from gpusight.comparison.gate_check import Gate, GateCheck
    from gpusight.comparison.significance import MeasuredChange
    from gpusight.recording.doctor.machine import Checkup
    from gpusight.render.charts.figure import Figure, StripChart
    from gpusight.render.html.notebook_frame import NotebookPage
    from gpusight.render.renderer import Renderer
    from gpusight.render.table_layout import TableOptions
    from gpusight.render.terminal_text import StyledLine
    from gpusight.reports.report_contents import Report
    from gpusight.rules.diagnosis import (
        AnyDiagnosis,
        JoinedDiagnosis,
        LaunchDiagnosis,
        TimelineDiagnosis,
    )
    from gpusight.rules.drill_workflow import MeasuredDrill
    from gpusight.rules.finding import KernelFinding, TimelineFinding
    from gpusight.sharing.leak_report import Leak
    from gpusight.sharing.sanitized_copy import SharedCopy

CHART_FORMATS = ("svg", "html", "png", "pdf")
"""Formats of pictures, which is also how the names of such files end."""


class Result:
    """The answer to a question, which shows itself in a shell, in a notebook and in files."""

    answer: Any
    """What the analysis returned, of one of the kinds that `renderer.py` knows."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    @property
    def title(self) -> str:
        """What the result is about."""
        title: str = self._described.title
        return title

    @property
    def meta(self) -> Mapping[str, Any]:
        """Totals and other values about the result as a whole."""
        meta: Mapping[str, Any] = self._described.meta
        return meta

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: incomplete data, what was left out, what was assumed."""
        notes: tuple[str, ...] = self._described.notes
        return notes

    @property
    def frame(self) -> pl.DataFrame:
        """The table as a Polars frame: all rows and fields, in nanoseconds, bytes, fractions of 1.

        Raises where the result has no table, or several.
        """
        return self._table("frame").frame

    @property
    def figure(self) -> Figure | StripChart:
        """The picture, for answers that have one: memory, roofline, ledger, timeline, …"""
        figure: Figure | StripChart = self._function("figure", "a picture")(self.answer)
        return figure

    def to_dict(self, *, limit: int | None = None) -> dict[str, Any]:
        """Give plain Python objects, as JSON has them."""
        if self._renderer.document is not None:
            document = self._renderer.document(self.answer)
            for key in self._renderer.long_lists:
                if limit and key in document:
                    document[key] = document[key][:limit]
            return document
        from gpusight.render.csv_json import json_document

        return json_document(self._tables("json"), limit=limit)

    def to_json(self, *, limit: int | None = None) -> str:
        """Give the document that `--format json` writes."""
        return "".join(self.json_chunks(limit=limit))

    def json_chunks(self, *, limit: int | None = None) -> Iterable[str]:
        """Give the same piece by piece: a long table need not be in memory at once."""
        from gpusight.render import csv_json

        if self._renderer.document is not None:
            return [csv_json.encode_json(self.to_dict(limit=limit))]
        return csv_json.json_chunks(self._tables("json"), limit=limit)

    def to_csv(self, *, limit: int | None = None) -> str:
        """Give the text that `--format csv` writes."""
        return "".join(self.csv_chunks(limit=limit))

    def csv_chunks(self, *, limit: int | None = None) -> Iterable[str]:
        """Give the same piece by piece."""
        from gpusight.render import csv_json

        rows = self._renderer.rows
        table = self._tables("csv") if rows is None else rows(self.answer)
        return csv_json.csv_chunks(table, limit=limit)

    def to_text(self, look: TableOptions | None = None, **options: Any) -> str:
        """Give it as plain text, as printing does; `look` is how wide, and how many rows."""
        from gpusight.render.terminal_text import plain_lines

        return plain_lines(self._lines(look or self._renderer.look, **options))

    def print_to(self, stream: TextIO, look: TableOptions, **options: Any) -> None:
        """Write the text with colors to a terminal."""
        from gpusight.render.terminal_text import draw_lines

        draw_lines(self._lines(look, **options), stream)

    def _lines(self, look: TableOptions, **options: Any) -> Iterable[StyledLine]:
        if self._renderer.lines is not None:
            return self._renderer.lines(self.answer, look, **options)
        from gpusight.render.terminal_tables import result_lines

        return result_lines(self._tables("txt", **options), look)

    def to_markdown(
        self, *, limit: int | None = None, full_names: bool = False, **options: Any
    ) -> str:
        """Give the text that `--format markdown` writes, with all rows unless there is a limit."""
        if self._renderer.markdown is not None:
            return self._renderer.markdown(self.answer, limit=limit, **options)
        from gpusight.render.markdown_tables import to_markdown

        return to_markdown(self._tables("md", **options), limit=limit, full_names=full_names)

    def to_html(self, *, limit: int | None = None, **options: Any) -> str:
        """Give an HTML page of its own, which needs nothing else."""
        if self._renderer.page is not None:
            return self._renderer.page(self.answer, limit=limit, **options)
        from gpusight.render.charts.draw_chart import has_figure

        if self._renderer.draw is not None and (
            not isinstance(self.answer, Composite) or has_figure(self.answer)
        ):
            return self.draw("html", **options).decode()
        from gpusight.render.html.html_templates import html_page, markup

        window: str = getattr(self._described, "window", "")
        return html_page(self.title, window, markup(self._fragment(limit, **options)))

    def _repr_html_(self) -> str:
        return self._fragment(self._renderer.look.limit, is_headed=True)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Give notebooks the interactive chart above the tables, which are read without it too."""
        renderer = self._renderer
        if renderer.draw is None or renderer.fragment is not None or renderer.page is not None:
            return {}
        from gpusight.render.html.notebook_frame import chart_in_notebook

        chart, answer = chart_in_notebook(self), self.answer
        if not chart:
            return {}
        if isinstance(answer, Composite):
            from gpusight.render.charts.draw_chart import without_points

            answer = without_points(answer)
        return {"text/html": chart + type(self)(answer)._repr_html_()}

    def show(self, height: int | None = None) -> NotebookPage:
        """Show the HTML page in a notebook, in a frame of this height in pixels.

        The page is what `.save("x.html")` writes; the notebook keeps it, and needs no network.
        """
        from gpusight.render.html.notebook_frame import PAGE_HEIGHT, NotebookPage

        return NotebookPage(self.to_html(), self.title, height or PAGE_HEIGHT)

    def _fragment(self, limit: int | None, *, is_headed: bool = False, **options: Any) -> str:
        if self._renderer.fragment is not None:
            return str(self._renderer.fragment(self.answer, limit=limit, **options))
        from gpusight.render.html.html_templates import to_html

        return str(to_html(self._tables("html", **options), limit=limit, is_headed=is_headed))

    @property
    def has_page(self) -> bool:
        """Return whether its HTML page is made for reading, with notes and warnings in it."""
        return self._renderer.page is not None

    def draw(self, form: str, **options: Any) -> bytes:
        """Draw the picture as `svg`, `html`, `png` or `pdf`."""
        picture: bytes = self._function("draw", form)(self.answer, form, **options)
        return picture

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a text (.json, .csv, .md, .txt), a page (.html) or a picture (.svg, .png, .pdf).

        Gives where it is. A capture is never written over. In a .csv, a cell that a spreadsheet
        would run as a formula gets a `'` in front; `to_csv` gives it unchanged.
        """
        from gpusight.output_files import write_file
        from gpusight.render.csv_json import escape_formulas
        from gpusight.sniff import refuse_capture

        target = Path(path)
        refuse_capture(target, None)
        form = target.suffix.lower().removeprefix(".")
        texts: dict[str, Callable[[], str]] = {
            "json": self.to_json,
            "csv": lambda: escape_formulas(self.to_csv()),
            "md": self.to_markdown,
            "txt": self.to_text,
            "html": self.to_html,
            "htm": self.to_html,
        }
        if form in texts:
            write_file(target, texts[form]().encode("utf-8", "backslashreplace"))
        else:
            write_file(target, self.draw(form))
        return target

    def __repr__(self) -> str:
        """Return plain text; in ASCII where standard output is not UTF-8."""
        from gpusight.render.terminal_text import ascii_text, can_encode

        text = self.to_text().rstrip("\n")
        is_text = getattr(sys.stdout, "encoding", None) is None  # io.StringIO takes any letter
        return text if is_text or can_encode(text, sys.stdout) else ascii_text(text)

    @property
    def _renderer(self) -> Renderer:
        from gpusight.render.renderer import renderer_of

        return renderer_of(self.answer)

    @property
    def _described(self) -> Any:
        """What has title, meta and notes: the answer, or its tables."""
        return self.answer if hasattr(self.answer, "meta") else self._tables("txt")

    def _tables(self, form: str, **options: Any) -> TableResult | Composite:
        tables: TableResult | Composite = self._function("tables", form)(self.answer, **options)
        return tables

    def _table(self, form: str) -> TableResult:
        rows = self._renderer.rows
        if rows is None and self._renderer.tables is None:
            raise UsageError(f"{self.title} has no table", hint="see .to_dict()")
        table = self._tables(form) if rows is None else rows(self.answer)
        if isinstance(table, TableResult):
            return table
        tables = [section for section in table.sections if isinstance(section, TableResult)]
        if len(tables) == 1:
            return tables[0]
        names = ", ".join(section.command for section in tables)
        raise UsageError(
            f"{self.title} has {len(tables) or 'no'} tables",
            hint=f"choose one, such as result[{tables[0].command!r}].frame, of: {names}"
            if tables
            else "see .facts and .to_dict()",
        )

    def _writable(self) -> str:
        """List the endings of the texts that `save` writes."""
        renderer = self._renderer
        parts = {
            ".json": renderer.document,
            ".csv": renderer.rows,
            ".md": renderer.markdown,
            ".txt": renderer.lines,
        }
        endings = [ending for ending, part in parts.items() if part or renderer.tables]
        return " or ".join(filter(None, (", ".join(endings[:-1]), *endings[-1:])))

    def _function(self, name: str, form: str) -> Callable[..., Any]:
        function: Callable[..., Any] | None = getattr(self._renderer, name)
        if function is None:
            raise UsageError(
                f"{self.title} cannot be written as {form or 'a file without an ending'}",
                hint=f"write {self._writable()}",
            )
        return function


class View(Result):
    """A table: `frame` is the Polars frame, printing it shows the first rows."""

    answer: TableResult

    def rows(self) -> list[dict[str, Any]]:
        """Give all rows as plain dictionaries."""
        return self.answer.rows()

    def __len__(self) -> int:
        """Count the rows."""
        return self.answer.frame.height


class Page(Result):
    """A one-screen answer: facts, and tables by name: `page["kernels"]`."""

    answer: Composite

    @property
    def facts(self) -> dict[str, Any]:
        """The facts at the top, in base units."""
        return {fact.key: fact.value for fact in self.answer.facts}

    def __iter__(self) -> Iterator[str]:
        """Give the names of the sections."""
        return (section.command for section in self.answer.sections)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __getitem__(self, name: str) -> View:
        """Give a section; raises MissingDataError when the capture could not fill it."""
        for section in self.answer.sections:
            if section.command == name:
                if isinstance(section, NotApplicable):
                    raise section.error()
                return View(section)
        names = ", ".join(section.command for section in self.answer.sections)
        raise KeyError(f"no section {name!r}; sections are {names}")


class OrionPage(Page):
    """What `gs.orion_build` made: a summary, and the kernel-info file itself."""

    def __init__(self, summary: Composite, file_text: str) -> None:
        super().__init__(summary)
        self.file_text = file_text


class LedgerView(Result):
    """Where the time of each GPU went; printing it shows the tables."""

    answer: LedgerReport

    @property
    def devices(self) -> tuple[DeviceLedgerReport, ...]:
        """Each GPU with its entries, steps, overlaps and contributors to idle time."""
        return self.answer.devices


class HotspotsView(Result):
    """Time by line of code; printing it shows the table, `save` also writes flame graphs.

    `.svg`, `.html`, `.png` and `.pdf` are flame graphs; `.folded`, `.speedscope.json` and
    `.pb.gz` are stacks for other tools.
    """

    answer: Hotspots

    def rows(self) -> list[dict[str, Any]]:
        """Give all rows as plain dictionaries, most idle time first."""
        return self.answer.table().rows()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as `Result.save` does, or as stacks for another tool."""
        from gpusight.output_files import write_file
        from gpusight.render.hotspots_view import stack_format
        from gpusight.sniff import refuse_capture

        form = stack_format(Path(path))
        if form is None:
            return super().save(path)
        refuse_capture(Path(path), None)
        write_file(Path(path), self.draw(form))
        return Path(path)


class WhatIfView(Result):
    """Predicted savings of changes, each alone and combined; printing it shows the tables."""

    answer: WhatIf

    @property
    def changes(self) -> tuple[AppliedChange, ...]:
        """Each change with the time it saves."""
        return self.answer.changes

    @property
    def saved_ns(self) -> int:
        """Time that all changes save together, of the simulated time."""
        return self.answer.saved_ns

    @property
    def before(self) -> Ledger:
        """Where the time goes now."""
        return self.answer.before

    @property
    def after(self) -> Ledger:
        """Where the time goes with all changes."""
        return self.answer.after


class DiagnosisView(Result):
    """What holds a program or its kernels back; printing it explains the foremost findings.

    `save("x.sarif")` writes the findings for code scanning, with paths below the current folder.
    """

    answer: AnyDiagnosis

    @property
    def timeline(self) -> TimelineDiagnosis | None:
        """The diagnosis of the timeline; None where there is only a report of measured kernels."""
        from gpusight.rules.diagnosis import JoinedDiagnosis, TimelineDiagnosis

        if isinstance(self.answer, JoinedDiagnosis):
            return self.answer.timeline
        return self.answer if isinstance(self.answer, TimelineDiagnosis) else None

    def explain(self, which: int | str) -> Result:
        """Explain one finding: by its number, its rule or, in an ncu report, its kernel."""
        from gpusight.rules.diagnosis import explain_finding

        return Result(explain_finding(self.answer, which))

    def to_sarif(self, source_root: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Give the SARIF log that `--format sarif` writes; `source_root` is your checkout."""
        from gpusight.render.editor_formats import sarif_log

        return sarif_log(self.answer, source_root)

    def to_lsp(self, source_root: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
        """Give the diagnostics by file that `--format lsp` writes, for a plugin of an editor."""
        from gpusight.render.editor_formats import lsp_diagnostics

        return lsp_diagnostics(self.answer, source_root)

    @property
    def kernels(self) -> tuple[LaunchDiagnosis, ...]:
        """Every profiled launch with its findings, largest savings first."""
        from gpusight.rules.diagnosis import JoinedDiagnosis, KernelReportDiagnosis

        if isinstance(self.answer, JoinedDiagnosis):
            return tuple(k for kernel in self.answer.kernels for k in kernel.group.kernels)
        return self.answer.kernels if isinstance(self.answer, KernelReportDiagnosis) else ()

    @property
    def findings(self) -> tuple[KernelFinding | TimelineFinding, ...]:
        """Every finding, largest savings first; those of the timeline, if there is one."""
        from gpusight.rules.diagnosis import KernelReportDiagnosis

        if isinstance(self.answer, KernelReportDiagnosis):
            return self.answer.findings
        return self.timeline.findings if self.timeline else ()

    @property
    def ledger(self) -> Ledger | None:
        """Where the time of the window went; None where there is only a report."""
        return None if self.timeline is None else self.timeline.ledger

    @property
    def saved_ns(self) -> float:
        """Time saved by the first fix of each kernel; for a timeline, by the first fix."""
        from gpusight.rules.diagnosis import KernelReportDiagnosis

        if isinstance(self.answer, KernelReportDiagnosis):
            return self.answer.saved_ns
        findings = self.timeline.findings if self.timeline else ()
        return max((finding.recoverable_ns or 0.0 for finding in findings), default=0.0)


class DrillView(Result):
    """Kernels worth measuring, the commands that do it, and what they showed."""

    answer: MeasuredDrill

    @property
    def kernels(self) -> tuple[DrillKernel, ...]:
        """The chosen kernels, the longest first."""
        return self.answer.drill.chosen

    @property
    def commands(self) -> tuple[str, ...]:
        """The command lines, as they can be pasted into a shell."""
        return tuple(str(command) for command in self.answer.drill.commands)

    @property
    def diagnoses(self) -> tuple[JoinedDiagnosis, ...]:
        """The timeline joined with each report."""
        return self.answer.joined


class ComparisonView(Result):
    """What changed between two sides, and why; printing it shows the answer and the tables."""

    answer: Comparison

    @property
    def step(self) -> MeasuredChange:
        """Step time: before, after, confidence interval and whether the change is significant."""
        return self.answer.step

    @property
    def explanation(self) -> tuple[str, ...]:
        """Why the step changed, or did not, in sentences; the first is the verdict."""
        return self.answer.explanation

    @property
    def metrics(self) -> dict[str, MetricChange]:
        """Quantities of the whole by the names that `gate --max` has for them."""
        return {metric.key: metric for metric in self.answer.metrics}

    @property
    def ledger(self) -> tuple[EntryChange, ...]:
        """Entries of the ledger, those that changed most first; they sum to the step."""
        return self.answer.ledger

    @property
    def phases(self) -> dict[str, MeasuredChange]:
        """GPU work by phase."""
        return dict(self.answer.phases)

    @property
    def kernels(self) -> tuple[KernelChange, ...]:
        """Kernels, those that changed most first."""
        return self.answer.kernels

    @property
    def ranges(self) -> tuple[CallChange, ...]:
        """Ranges (NVTX, annotations)."""
        return self.answer.ranges

    @property
    def api_calls(self) -> tuple[CallChange, ...]:
        """CUDA API calls."""
        return self.answer.api

    @property
    def copies(self) -> tuple[CopyChange, ...]:
        """Copies and fills by direction."""
        return self.answer.copies

    @property
    def findings(self) -> tuple[FindingChange, ...]:
        """Findings of `diagnose` that were fixed, are new, or stayed."""
        return self.answer.findings


class BaselineView(Result):
    """Captures summed up, which `gs.compare` and `gs.gate` take; printing shows their metrics."""

    answer: Baseline

    @property
    def digests(self) -> tuple[Digest, ...]:
        """What a comparison needs to know of each capture."""
        return self.answer.digests


class RanksView(Result):
    """All ranks of a job; printing it shows stragglers and ranks, `.frame` has a row per rank."""

    answer: JobRanks

    @property
    def stragglers(self) -> tuple[Straggler, ...]:
        """Ranks that hold up the job, the most expensive first."""
        return self.answer.stragglers

    @property
    def ranks(self) -> tuple[RankSummary, ...]:
        """Each rank with its time per step."""
        return self.answer.ranks

    @property
    def unread(self) -> tuple[UnreadRank, ...]:
        """Captures that are not part of the answer, and why."""
        return self.answer.unread


class GateView(Result):
    """The outcome of a gate: PASS, FAIL or INCONCLUSIVE; printing it shows the checks."""

    answer: Gate

    @property
    def passed(self) -> bool:
        """Whether the exit code of `gpusight gate` is 0."""
        return self.answer.passed

    @property
    def outcome(self) -> str:
        """`pass`, `fail` or `inconclusive`."""
        return self.answer.outcome.value

    @property
    def exit_code(self) -> int:
        """The exit code of `gpusight gate`: 0 PASS, 1 FAIL, 3 INCONCLUSIVE."""
        return self.answer.exit_code

    @property
    def checks(self) -> tuple[GateCheck, ...]:
        """Each metric against its limit."""
        return self.answer.checks

    @property
    def comparison(self) -> Comparison | None:
        """What changed since the baseline; None where there is none."""
        return self.answer.comparison

    def __bool__(self) -> bool:
        """Whether it passed, so that `assert gs.gate(…)` works."""
        return self.passed

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as `Result.save` does; an .xml file is JUnit XML."""
        if Path(path).suffix.lower() != ".xml":
            return super().save(path)
        from gpusight.output_files import write_file
        from gpusight.sniff import refuse_capture

        refuse_capture(Path(path), None)
        write_file(Path(path), self.to_junit().encode())
        return Path(path)

    def to_junit(self) -> str:
        """Give the XML that `--junit` writes."""
        from gpusight.render.gate_reports import to_junit

        return to_junit(self.answer)


class ShareView(Result):
    """What became of a capture: `.leaks`, and `.path` of the copy where one was written."""

    answer: SharedCopy

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """What the capture holds, where, and what became of it; never the values."""
        return self.answer.leaks

    @property
    def remains(self) -> tuple[Leak, ...]:
        """Removed values that the copy still holds as part of names that are kept."""
        return self.answer.remains

    @property
    def suspects(self) -> tuple[Leak, ...]:
        """Names that are kept although they look like a path, an address or a key."""
        return self.answer.suspects

    @property
    def path(self) -> Path | None:
        """Where the copy lies; None where nothing was written."""
        return self.answer.path


class DoctorView(Result):
    """What a machine can capture with; printing it shows verdicts, checks and fixes."""

    answer: Checkup

    @property
    def facts(self) -> dict[str, Any]:
        """Whether each tool can capture (`yes`, `partly`, `no`), and what `record` would use."""
        uses = self.answer.record_uses
        can = {verdict.tool.value: verdict.can.value for verdict in self.answer.verdicts}
        return {**can, "record_uses": None if uses is None else uses.value}


class ReportView(Result):
    """Everything about a capture: `save` writes the page; printing shows its beginning."""

    answer: Report

    def __init__(self, answer: Report, captures: tuple[str, ...] = ()) -> None:
        super().__init__(answer)
        self._captures = captures
        """Where the captures lie, which `save` never writes to."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, which is replaced; gives where it is."""
        from gpusight.output_files import write_file
        from gpusight.sniff import refuse_capture

        target = Path(path)
        for capture in self._captures or (None,):
            refuse_capture(target, capture)
        write_file(target, self.to_html().encode("utf-8", "backslashreplace"))
        return target
