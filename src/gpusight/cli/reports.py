"""Reports of many captures: finding them, making every report, saying what became of each."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusight.cli.output import (
    EXIT_NOT_APPLICABLE,
    present,
    write_error,
    write_file,
    write_out,
)
from gpusight.cli.progress import progress
from gpusight.cli.running import open_capture
from gpusight.errors import CaptureError, GpusightError, UsageError
from gpusight.evidence import is_capture_name, refuse_capture
from gpusight.output_files import cannot_write
from gpusight.render.blocks import sentence
from gpusight.render.cells import safe_text
from gpusight.result import Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpusight.analyses.stats import StatsReport
    from gpusight.model.trace import Trace

WRITTEN, NO_DATA, FAILED = "written", "no data", "failed"
SUMMARY_FIELDS = (
    Field("capture", "Capture", Fmt.NAME, "Which capture"),
    Field("report", "Report", Fmt.TEXT, "Which report; null when the capture could not be read"),
    Field("status", "Status", Fmt.TEXT, "`written`, `no data` or `failed`"),
    Field("rows", "Rows", Fmt.COUNT, "Rows of the report"),
    Field("detail", "Why", Fmt.NAME, "Reason when nothing was written"),
)
LIST_FIELDS = (
    Field("report", "Report", Fmt.TEXT, "Name to give to -r"),
    Field("title", "Title", Fmt.NAME, "What nsys calls it"),
    Field("arguments", "Arguments", Fmt.NAME, "What may follow the name", shown=False),
)
_SUFFIXES = {"json": ".json", "csv": ".csv", "tsv": ".tsv", "markdown": ".md"}


@dataclass(frozen=True, slots=True)
class Answer:
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
    found: list[Path] = []
    for path in paths:
        inside = list(_captures_in(path)) if path.is_dir() else []
        found += inside or [path]
    if not found:
        raise UsageError("stats needs a capture", hint="type gpusight stats FILE")
    return dict(zip(_labels(found), found, strict=True))


def _captures_in(folder: Path) -> Iterator[Path]:
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise CaptureError(f"{folder} cannot be read", why=error.strerror or str(error)) from error
    return (p for p in inside if is_capture_name(p))


def _labels(paths: list[Path]) -> list[str]:
    """Name captures by the shortest form that tells them apart: run, run.sqlite, a_run.sqlite."""
    for form in (
        lambda p: p.stem,
        lambda p: p.name,
        lambda p: f"{p.resolve().parent.name}_{p.name}",
    ):
        labels = [str(form(p)) for p in paths]
        clashing = {label for label, count in Counter(labels).items() if count > 1}
        if not clashing:
            return labels
    return [f"{number}_{path.name}" for number, path in enumerate(paths, 1)]


def full_names(names: Sequence[str]) -> list[str]:
    """Give reports by their present names, arguments kept; refuses unknown ones before reading."""
    from gpusight.analyses.stats import resolve

    split = [name.partition(":") for name in names]
    return [resolve(name).name + colon + arguments for name, colon, arguments in split]


def answers(
    captures: Mapping[str, Path], names: Sequence[str], args: argparse.Namespace
) -> Iterator[Answer]:
    """Make every report of every capture; failures are answers too."""
    for label, path in captures.items():
        try:
            trace = open_capture(str(path), args)
        except GpusightError as error:
            yield Answer(label, None, error, str(path))
            continue
        for name in names:
            with progress(f"{path.name}: {name}", quiet=args.quiet):
                answer = _answer(label, trace, name)
            yield answer
        _warn(label, trace)  # reading the tables may have added to the warnings


def _warn(label: str, trace: Trace) -> None:
    """Say why reports may be less than the whole truth, apart from them."""
    try:
        warnings = trace.warnings
    except GpusightError:  # each report says why it cannot be made
        return
    for warning in warnings:
        write_error(f"gpusight: {safe_text(label)}: {safe_text(warning)}")


def _answer(label: str, trace: Trace, name: str) -> Answer:
    from gpusight.analyses.stats import run_report

    try:
        return Answer(label, name, run_report(trace, name), trace.meta.path)
    except UsageError:
        # A bad argument is the request's fault, not the capture's: it would fail for all of them.
        raise
    except GpusightError as error:
        return Answer(label, name, error, trace.meta.path)


def print_all(captures: Mapping[str, Path], names: Sequence[str], args: argparse.Namespace) -> int:
    """Write every report to standard output; what is missing is said in its place."""
    made: list[Answer] = []
    for answer in answers(captures, names, args):
        if isinstance(answer.outcome, GpusightError) and len(captures) == 1:
            raise answer.outcome
        made.append(answer if args.format == "json" else _printed(answer, made, captures, args))
    if args.format == "json":
        write_out(_json(made))
    return _exit_code(made, asked=bool(args.report) and len(captures) == 1)


def _printed(
    answer: Answer, before: Sequence[Answer], captures: Mapping[str, Path], args: argparse.Namespace
) -> Answer:
    """Write one report with the headings that several of them need; gives the answer back."""
    if len(captures) > 1 and (not before or before[-1].capture != answer.capture):
        separator = "\n" if before else ""
        write_out(f"{separator}Processing [{safe_text(str(captures[answer.capture]))}]\n")
    if answer.made is None:
        write_error(f"gpusight: {_name_of(answer)}: {safe_text(answer.reason or '')}")
        return answer
    if any(a.status == WRITTEN for a in before):
        write_out("\n")
    if args.format == "table":
        from gpusight.render.stats import as_printed

        present(as_printed(answer.made), _for_results(args))
    else:
        write_out(_text(answer.made, args))
    return answer


def _name_of(answer: Answer) -> str:
    return safe_text(": ".join(filter(None, (answer.capture, answer.report))))


def write_prefixed(
    captures: Mapping[str, Path], names: Sequence[str], args: argparse.Namespace
) -> int:
    """Write each report of one capture to PREFIX_REPORT, as `nsys stats --output PREFIX` does."""
    _refuse_captures(Path(f"{args.output}_report"), captures)
    made = []
    for answer in answers(captures, names, args):
        if isinstance(answer.outcome, GpusightError):
            raise answer.outcome
        made.append(answer)
        if answer.made is not None:
            suffix = _SUFFIXES.get(args.format, ".txt")
            path = Path(f"{args.output}_{_file_part(answer.report)}{suffix}")
            text = _json([answer]) if args.format == "json" else _text(answer.made, args)
            write_file(path, [text])
    _present_summary(made, args)
    return _exit_code(made, asked=bool(args.report))


def write_folder(
    captures: Mapping[str, Path], names: Sequence[str], args: argparse.Namespace
) -> int:
    """Write every report of every capture as text and CSV, and a summary of what became of each."""
    folder = Path(args.output)
    _refuse_captures(folder / "report", captures)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    made = [_filed(answer, folder) for answer in answers(captures, names, args)]
    summary = _summary(made)
    _write_summary(summary, folder)
    _present_summary(made, args)
    return _exit_code(made, asked=False)


def _refuse_captures(target: Path, captures: Mapping[str, Path]) -> None:
    """Raise when a file would be written into a capture that is itself a folder."""
    for path in captures.values():
        refuse_capture(target, str(path))


def _filed(answer: Answer, folder: Path) -> Answer:
    from gpusight.render import stats

    report = answer.made
    if report is not None:
        base = f"{answer.capture}.{_file_part(answer.report)}"
        text = f"{stats.heading(report)}\n\n{stats.to_column(report)}"
        write_file(folder / f"{base}.txt", [text])
        write_file(folder / f"{base}.csv", [stats.to_csv(report)])
    return answer


def _write_summary(summary: TableResult, folder: Path) -> None:
    from gpusight.render.csv import csv_pieces, escape_formulas
    from gpusight.render.layout import Look
    from gpusight.render.plain import to_plain

    write_file(folder / "summary.txt", [to_plain(summary, Look(width=None))])
    write_file(folder / "summary.csv", map(escape_formulas, csv_pieces(summary)))


def _present_summary(made: Iterable[Answer], args: argparse.Namespace) -> None:
    present(_summary(made), _for_results(args))


def _summary(made: Iterable[Answer]) -> TableResult:
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


def _rows(answer: Answer) -> int | None:
    return None if answer.made is None else answer.made.frame.height


def _exit_code(made: Sequence[Answer], *, asked: bool) -> int:
    """Give 2 when something could not be read, or nothing of what was asked by name was there."""
    if any(a.status == FAILED for a in made):
        return GpusightError.exit_code
    nothing = all(a.status == NO_DATA for a in made)
    return EXIT_NOT_APPLICABLE if asked and nothing else 0


def _file_part(report: str | None) -> str:
    """Make a report with arguments (`nvtx_sum:base`) a name that every file system takes."""
    return re.sub(r"[^\w.=-]", "_", report or "")


def _text(report: StatsReport, args: argparse.Namespace) -> str:
    from gpusight.render import stats

    if args.format in {"csv", "tsv"}:
        return stats.to_csv(report) if args.format == "csv" else stats.to_tsv(report)
    if args.format == "markdown":
        return f"### {report.title} ({report.name})\n\n{stats.to_markdown(report)}"
    return f"{stats.heading(report)}\n\n{stats.to_column(report)}"


def _json(made: Sequence[Answer]) -> str:
    """Write one document: what became of each report in `meta`, their rows in `rows`."""
    from gpusight.render.json import encode
    from gpusight.render.stats import as_table

    rows: list[dict[str, Any]] = []
    for answer in made:
        if answer.made is not None:
            tag = {"capture": answer.capture, "report": answer.report}
            rows += [{**tag, **row} for row in as_table(answer.made).rows()]
    return encode({"meta": {"command": "stats", "reports": _summary(made).rows()}, "rows": rows})


def list_reports(args: argparse.Namespace) -> int:
    """List the reports that can be made."""
    return present(report_list(), _for_results(args))


def report_list() -> TableResult:
    """Give every report with the arguments it takes."""
    import polars as pl

    from gpusight.analyses.stats import REPORTS

    rows = [(r.name, r.title, r.usage.removeprefix(r.name)) for r in REPORTS.values()]
    schema = dict.fromkeys([f.key for f in LIST_FIELDS], pl.String)
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult("stats", "Reports", LIST_FIELDS, frame)


def _for_results(args: argparse.Namespace) -> argparse.Namespace:
    """Make the arguments of `stats` those that results of other commands are shown by."""
    args.output, args.top = None, 0
    args.format = args.format if args.format in {"json", "csv", "markdown"} else "table"
    return args
