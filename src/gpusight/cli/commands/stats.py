"""`gpusight stats`: the reports of nsys stats, for one capture or a folder of them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusight.cli import options
from gpusight.cli.capture_input import open_capture, progress
from gpusight.cli.output import EXIT_NOT_APPLICABLE, present, write_error, write_file, write_out
from gpusight.errors import CaptureError, GpusightError, UsageError
from gpusight.output_files import cannot_write
from gpusight.render.cell_text import safe_text
from gpusight.render.result_view import View
from gpusight.render.table_layout import sentence
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.sniff import is_capture_name, refuse_capture

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpusight.analysis.nsys_stats.stats_reports import StatsReport
    from gpusight.trace.trace import Trace


SUMMARY = "the reports of nsys stats, without nsys"
DESCRIPTION = (
    "Print reports with the headings, rows and digits of `nsys stats`, without nsys. Several "
    "captures or a folder of them with --output DIR write every report of every capture as text "
    "and CSV, with a summary of what was written, what had no data and what failed."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight stats run.nsys-rep",
    "gpusight stats -r cuda_gpu_kern_sum --format csv run.nsys-rep",
    "gpusight stats captures/ --output reports/",
    "gpusight stats --list",
)
DEFAULT_REPORTS = (
    "nvtx_sum",
    "osrt_sum",
    "cuda_api_sum",
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
)
"""What is printed when no report is named."""
FORMATS = ("table", "csv", "column", "json", "tsv", "markdown")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser, nargs="*")
    parser.add_argument(
        "-r",
        "--report",
        action="extend",
        type=options.names,
        metavar="REPORT[,REPORT]",
        help=f"reports, with arguments after colons (default: {', '.join(DEFAULT_REPORTS)})",
    )
    parser.add_argument("--list", action="store_true", help="list the reports instead")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="table",
        help="`table` fits the screen, `column` is nsys's own layout with whole names "
        "(default: table)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PREFIX|DIR|-",
        default="-",
        help="a folder for text and CSV files named CAPTURE.REPORT; with one capture, a prefix for "
        "files named PREFIX_REPORT in the chosen format; - for standard output (default)",
    )
    options.add_widths(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""

    if args.list:
        return list_reports(args)
    names = full_names(args.report or DEFAULT_REPORTS)
    captures = find_captures([Path(p) for p in args.file])
    if args.output == "-":
        return print_all(captures, names, args)
    if len(captures) == 1 and not _names_folder(args.output) and not Path(args.file[0]).is_dir():
        return write_prefixed(captures, names, args)
    return write_folder(captures, names, args)


def _names_folder(output: str) -> bool:
    return output.endswith(("/", "\\")) or Path(output).is_dir()


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
    from gpusight.analysis.nsys_stats.stats_reports import resolve

    split = [name.partition(":") for name in names]
    return [resolve(name).name + colon + arguments for name, colon, arguments in split]


def stats_answers(
    captures: Mapping[str, Path], names: Sequence[str], args: argparse.Namespace
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
                answer = _answer_report(label, trace, name)
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


def _answer_report(label: str, trace: Trace, name: str) -> StatsAnswer:
    from gpusight.analysis.nsys_stats.stats_reports import run_report

    try:
        return StatsAnswer(label, name, run_report(trace, name), trace.meta.path)
    except UsageError:
        # A bad argument is the request's fault, not the capture's: it would fail for all of them.
        raise
    except GpusightError as error:
        return StatsAnswer(label, name, error, trace.meta.path)


def print_all(captures: Mapping[str, Path], names: Sequence[str], args: argparse.Namespace) -> int:
    """Write every report to standard output; what is missing is reported in its place."""
    made: list[StatsAnswer] = []
    for answer in stats_answers(captures, names, args):
        if isinstance(answer.outcome, GpusightError) and len(captures) == 1:
            raise answer.outcome
        made.append(answer if args.format == "json" else _printed(answer, made, captures, args))
    if args.format == "json":
        write_out(_json(made))
    return _exit_code(made, requested=bool(args.report) and len(captures) == 1)


def _printed(
    answer: StatsAnswer,
    before: Sequence[StatsAnswer],
    captures: Mapping[str, Path],
    args: argparse.Namespace,
) -> StatsAnswer:
    """Write one report, with headings if there are several; return the answer."""
    if len(captures) > 1 and (not before or before[-1].capture != answer.capture):
        separator = "\n" if before else ""
        write_out(f"{separator}Processing [{safe_text(str(captures[answer.capture]))}]\n")
    if answer.made is None:
        write_error(f"gpusight stats: {_name_of(answer)}: {safe_text(answer.reason or '')}")
        return answer
    if any(a.status == WRITTEN for a in before):
        write_out("\n")
    if args.format == "table":
        from gpusight.render.stats_tables import stats_as_printed

        present(View(stats_as_printed(answer.made)), _for_results(args))
    else:
        write_out(_text(answer.made, args))
    return answer


def _name_of(answer: StatsAnswer) -> str:
    return safe_text(": ".join(filter(None, (answer.capture, answer.report))))


def write_prefixed(
    captures: Mapping[str, Path], names: Sequence[str], args: argparse.Namespace
) -> int:
    """Write each report of one capture to PREFIX_REPORT, as `nsys stats --output PREFIX` does."""
    _check_targets(Path(f"{args.output}_report"), captures)
    made = []
    for answer in stats_answers(captures, names, args):
        if isinstance(answer.outcome, GpusightError):
            raise answer.outcome
        made.append(answer)
        if answer.made is not None:
            suffix = _SUFFIXES.get(args.format, ".txt")
            path = Path(f"{args.output}_{_file_part(answer.report)}{suffix}")
            text = _json([answer]) if args.format == "json" else _text(answer.made, args)
            write_file(path, [text])
    _present_summary(made, args)
    return _exit_code(made, requested=bool(args.report))


def write_folder(
    captures: Mapping[str, Path], names: Sequence[str], args: argparse.Namespace
) -> int:
    """Write every report of every capture as text and CSV, and a summary of what became of each."""
    folder = Path(args.output)
    _check_targets(folder / "report", captures)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    made = [_filed(answer, folder) for answer in stats_answers(captures, names, args)]
    summary = _summary(made)
    _write_summary(summary, folder)
    _present_summary(made, args)
    return _exit_code(made, requested=False)


def _check_targets(target: Path, captures: Mapping[str, Path]) -> None:
    """Raise when a file would be written into a capture that is itself a folder."""
    for path in captures.values():
        refuse_capture(target, str(path))


def _filed(answer: StatsAnswer, folder: Path) -> StatsAnswer:
    from gpusight.render import stats_tables

    report = answer.made
    if report is not None:
        base = f"{answer.capture}.{_file_part(answer.report)}"
        text = f"{stats_tables.stats_heading(report)}\n\n{stats_tables.stats_to_column(report)}"
        write_file(folder / f"{base}.txt", [text])
        write_file(folder / f"{base}.csv", [stats_tables.stats_to_csv(report)])
    return answer


def _write_summary(summary: TableResult, folder: Path) -> None:
    from gpusight.render.csv_json import csv_chunks, escape_formulas
    from gpusight.render.table_layout import TableOptions
    from gpusight.render.terminal_tables import to_plain

    write_file(folder / "summary.txt", [to_plain(summary, TableOptions(width=None))])
    write_file(folder / "summary.csv", map(escape_formulas, csv_chunks(summary)))


def _present_summary(made: Iterable[StatsAnswer], args: argparse.Namespace) -> None:
    present(View(_summary(made)), _for_results(args))


def _summary(made: Iterable[StatsAnswer]) -> TableResult:
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


def _exit_code(made: Sequence[StatsAnswer], *, requested: bool) -> int:
    """Give 2 when something could not be read, or no report requested by name was made."""
    if any(a.status == FAILED for a in made):
        return GpusightError.exit_code
    nothing = all(a.status == NO_DATA for a in made)
    return EXIT_NOT_APPLICABLE if requested and nothing else 0


def _file_part(report: str | None) -> str:
    """Make a report with arguments (`nvtx_sum:base`) a name that every file system takes."""
    return re.sub(r"[^\w.=-]", "_", report or "")


def _text(report: StatsReport, args: argparse.Namespace) -> str:
    from gpusight.render import stats_tables

    if args.format in {"csv", "tsv"}:
        return (
            stats_tables.stats_to_csv(report)
            if args.format == "csv"
            else stats_tables.stats_to_tsv(report)
        )
    if args.format == "markdown":
        return f"### {report.title} ({report.name})\n\n{stats_tables.stats_to_markdown(report)}"
    return f"{stats_tables.stats_heading(report)}\n\n{stats_tables.stats_to_column(report)}"


def _json(made: Sequence[StatsAnswer]) -> str:
    """Write one document: what became of each report in `meta`, their rows in `rows`."""
    from gpusight.render.csv_json import encode_json
    from gpusight.render.stats_tables import stats_as_table

    rows: list[dict[str, Any]] = []
    for answer in made:
        if answer.made is not None:
            tag = {"capture": answer.capture, "report": answer.report}
            rows += [{**tag, **row} for row in stats_as_table(answer.made).rows()]
    return encode_json(
        {"meta": {"command": "stats", "reports": _summary(made).rows()}, "rows": rows}
    )


def list_reports(args: argparse.Namespace) -> int:
    """List the reports that can be made."""
    return present(View(report_list()), _for_results(args))


def report_list() -> TableResult:
    """Give every report with the arguments it takes."""
    import polars as pl

    from gpusight.analysis.nsys_stats.stats_reports import REPORTS

    rows = [(r.name, r.title, r.usage.removeprefix(r.name)) for r in REPORTS.values()]
    schema = dict.fromkeys([f.key for f in LIST_FIELDS], pl.String)
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult("stats", "Reports", LIST_FIELDS, frame)


def _for_results(args: argparse.Namespace) -> argparse.Namespace:
    """Make the arguments of `stats` those that results of other commands are shown by."""
    args.output, args.top = None, 0
    args.format = args.format if args.format in {"json", "csv", "markdown"} else "table"
    return args
