"""Reports of `nsys stats` for captures in files and folders: what became of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.cli.capture_input import open_capture, progress
from gpusight.cli.output import (
    EXIT_NOT_APPLICABLE,
    write_error,
)
from gpusight.errors import CaptureError, GpusightError, UsageError
from gpusight.render.cell_text import safe_text
from gpusight.render.table_layout import sentence
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.sniff import is_capture_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gpusight.analysis.nsys_stats.stats_reports import StatsReport
    from gpusight.trace.trace import Trace


WRITTEN, NO_DATA, FAILED = "written", "no data", "failed"
SUMMARY_FIELDS = (
    Field("capture", "Capture", Fmt.NAME, "Which capture"),
    Field("report", "Report", Fmt.TEXT, "Which report; null when the capture could not be read"),
    Field("status", "Status", Fmt.TEXT, "`written`, `no data` or `failed`"),
    Field("rows", "Rows", Fmt.COUNT, "Rows of the report"),
    Field("detail", "Why", Fmt.NAME, "Reason when nothing was written"),
)


@dataclass(frozen=True, slots=True)
class StatsAnswer:
    """What became of one report of one capture."""

    capture: str
    report: str | None
    """None when the capture could not be opened at all."""
    outcome: StatsReport | NotApplicable | GpusightError
    path: str = ""
    """Where the capture lies; not repeated in the reason."""

    @property
    def status(self) -> str:
        """Written, no data or failed."""
        if isinstance(self.outcome, GpusightError):
            return FAILED
        return NO_DATA if isinstance(self.outcome, NotApplicable) else WRITTEN

    @property
    def made(self) -> StatsReport | None:
        """The report, if there is one."""
        if isinstance(self.outcome, (GpusightError, NotApplicable)):
            return None
        return self.outcome

    @property
    def reason(self) -> str | None:
        """Why there is no report, in one line."""
        if isinstance(self.outcome, GpusightError):
            return str(self.outcome).removeprefix(f"{self.path} ")
        if isinstance(self.outcome, NotApplicable):
            return sentence(self.outcome).removeprefix(f"{self.path} ")
        return None


def find_captures(paths: Sequence[Path]) -> dict[str, Path]:
    """Name the captures to read: files as given, and all captures that lie in a folder."""
    captures: list[Path] = []
    for path in paths:
        inside = list(_captures_in(path)) if path.is_dir() else []
        captures += inside or [path]
    if not captures:
        raise UsageError("stats needs a capture", hint="type gpusight stats FILE")
    return dict(zip(_labels(captures), captures, strict=True))


def _captures_in(folder: Path) -> Iterator[Path]:
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise CaptureError(f"{folder} cannot be read", why=error.strerror or str(error)) from error
    return (p for p in inside if is_capture_name(p))


def _labels(paths: list[Path]) -> list[str]:
    """Name captures by the shortest unique form: run, run.sqlite, a_run.sqlite."""
    for form in (
        lambda p: p.name if p.is_dir() else p.stem,
        lambda p: p.name,
        lambda p: f"{p.resolve().parent.name}_{p.name}",
    ):
        labels = [str(form(p)) for p in paths]
        clashing = {label for label, count in Counter(labels).items() if count > 1}
        if not clashing:
            return labels
    return [f"{number}_{path.name}" for number, path in enumerate(paths, 1)]


def stats_answers(
    captures: Mapping[str, Path],
    names: Sequence[str],
    args: argparse.Namespace,
    *,
    time_unit: str = "ns",
) -> Iterator[StatsAnswer]:
    """Make every report of every capture; failures are answers too."""
    for label, path in captures.items():
        try:
            trace = open_capture(str(path), args)
        except GpusightError as error:
            yield StatsAnswer(label, None, error, str(path))
            continue
        for name in names:
            with progress(f"{path.name}: {name}", quiet=args.quiet):
                answer = _answer_report(label, trace, name, time_unit)
            yield answer
        _warn(label, trace)  # reading the tables may have added to the warnings


def _warn(label: str, trace: Trace) -> None:
    """Say why reports may be less than the whole truth, apart from them."""
    try:
        warnings = trace.warnings
    except GpusightError:  # each report has its own reason
        return
    for warning in warnings:
        write_error(f"gpusight stats: {safe_text(label)}: {safe_text(warning)}")


def _answer_report(label: str, trace: Trace, name: str, unit: str) -> StatsAnswer:
    from gpusight.analysis.nsys_stats.stats_reports import in_time_unit, run_report

    try:
        outcome = run_report(trace, name)
        if unit != "ns" and not isinstance(outcome, NotApplicable):
            outcome = in_time_unit(outcome, unit)
        return StatsAnswer(label, name, outcome, trace.meta.path)
    except UsageError:
        # A bad argument is the request's fault, not the capture's: it would fail for all of them.
        raise
    except GpusightError as error:
        return StatsAnswer(label, name, error, trace.meta.path)


def answer_summary(made: Iterable[StatsAnswer]) -> TableResult:
    """Give a row for each report: its rows, or why there is none."""
    import polars as pl

    rows = [
        (a.capture, a.report, a.status, _rows(a), None if a.reason is None else safe_text(a.reason))
        for a in made
    ]
    types = [pl.String, pl.String, pl.String, pl.Int64, pl.String]
    schema = dict(zip([f.key for f in SUMMARY_FIELDS], types, strict=True))
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    counts = Counter(frame["status"].to_list())
    title = ", ".join(f"{counts[s]} {s}" for s in (WRITTEN, NO_DATA, FAILED) if counts[s])
    return TableResult("stats", f"Reports: {title}", SUMMARY_FIELDS, frame)


def _rows(answer: StatsAnswer) -> int | None:
    return None if answer.made is None else answer.made.frame.height


def answers_exit_code(made: Sequence[StatsAnswer], *, requested: bool) -> int:
    """Give 2 when something could not be read, or no report requested by name was made."""
    if any(a.status == FAILED for a in made):
        return GpusightError.exit_code
    nothing = all(a.status == NO_DATA for a in made)
    return EXIT_NOT_APPLICABLE if requested and nothing else 0
