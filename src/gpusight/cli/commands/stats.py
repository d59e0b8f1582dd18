"""`gpusight stats`: the reports of nsys stats, for one capture or a folder of them."""

from __future__ import annotations

import argparse
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusight.cli import options
from gpusight.cli.output import (
    flush_out,
    present,
    write_error,
    write_file,
    write_out,
)
from gpusight.cli.stats_answers import (
    WRITTEN,
    StatsAnswer,
    answer_summary,
    answers_exit_code,
    find_captures,
    stats_answers,
)
from gpusight.errors import GpusightError, UsageError
from gpusight.output_files import cannot_write
from gpusight.render.cell_text import safe_text
from gpusight.render.result_view import View
from gpusight.render.table_layout import TableOptions
from gpusight.results import Field, Fmt, TableResult
from gpusight.sniff import refuse_capture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


SUMMARY = "the reports of nsys stats, without nsys"
DESCRIPTION = (
    "Print reports with the headings, rows and digits of `nsys stats`, without nsys. The first "
    "report is written in the first format to the first output, and so on; the last format and "
    "output also serve all further reports. Several captures or a folder of them with --output DIR "
    "write every report of every capture as text and CSV, with a summary of what was written, what "
    "had no data and what failed."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight stats run.nsys-rep",
    "gpusight stats -r cuda_gpu_kern_sum --format csv run.nsys-rep",
    "gpusight stats -r cuda_gpu_trace,cuda_api_sum -f csv -o . run.nsys-rep",
    "gpusight stats -r cuda_api_sum --timeunit msec -f csv run.nsys-rep",
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
FORMATS = {
    "table": (".txt", "columns that fit the screen, kernels by their short names"),
    "csv": (".csv", "comma-separated values, byte for byte those of nsys"),
    "column": (".txt", "the layout of nsys for people, with whole names"),
    "json": (".json", "one object: `meta` with the status of each report, `rows` with all rows"),
    "nsys-json": (".json", "an array of rows for each report, in the shape of nsys stats -f json"),
    "tsv": (".tsv", "tab-separated values; tabs in names are escaped"),
    "markdown": (".md", "a table for pages and comments"),
}
"""Extension and description of each format."""
_TIME_WORDS = {
    "nsec": "ns",
    "nanoseconds": "ns",
    "usec": "us",
    "microseconds": "us",
    "msec": "ms",
    "milliseconds": "ms",
    "seconds": "s",
}
"""What nsys calls units of time; any beginning of a word that names one unit will do."""


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
        "-f",
        "--format",
        action="extend",
        type=_formats,
        metavar="FORMAT[,FORMAT]",
        help=f"{', '.join(FORMATS)}; . for the default: `table` on standard output, which fits the "
        "screen, else csv. `column` is nsys's own layout with whole names",
    )
    parser.add_argument(
        "-o",
        "--output",
        action="extend",
        type=options.names,
        metavar="OUTPUT[,OUTPUT]",
        help="- for standard output (default); a prefix for files named PREFIX_REPORT; . for the "
        "capture's name as the prefix, in the current folder; @COMMAND to pipe each report into a "
        "command, without a shell; a folder for text and CSV files named CAPTURE.REPORT",
    )
    parser.add_argument(
        "--timeunit",
        type=_time_unit,
        default="ns",
        metavar="UNIT",
        help=f"unit of times: {', '.join(_TIME_WORDS)}, or the beginning of one (default: nsec)",
    )
    parser.add_argument(
        "--force-export",
        choices=("true", "false"),
        default="false",
        help="true: read the capture again, not what the cache kept of it; gpusight needs no "
        "SQLite export",
    )
    parser.add_argument("--filter-time", metavar="START/END", help=argparse.SUPPRESS)
    for what, names in (("reports", "report"), ("formats", "format")):
        parser.add_argument(
            f"--help-{what}",
            nargs="?",
            const="",
            metavar="NAME|ALL",
            help=f"describe a {names}, or ALL; without a name list the {what}",
        )
    options.add_widths(parser)


def _formats(text: str) -> list[str]:
    forms = options.names(text)
    for form in forms:
        if form not in FORMATS and form != ".":
            raise argparse.ArgumentTypeError(
                f"no format {form!r}; choose from {', '.join(FORMATS)}"
            )
    return forms


def _time_unit(text: str) -> str:
    units = {unit for word, unit in _TIME_WORDS.items() if word.startswith(text.lower())}
    if len(units) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(_TIME_WORDS)}")
    return units.pop()


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if args.list or args.help_reports == "":
        return present(View(report_list()), _for_results(args))
    if args.help_reports is not None or args.help_formats is not None:
        write_out(_described(args))
        return 0
    if args.filter_time is not None:
        start, _, end = args.filter_time.partition("/")
        raise UsageError(
            "stats has no --filter-time: its reports are of the whole capture",
            hint=f"gpusight kernels, api, copies and ranges take --window {start}-{end}",
        )
    args.no_cache |= args.force_export == "true"
    names = full_names(args.report or DEFAULT_REPORTS)
    captures = find_captures([Path(p) for p in args.file])
    outputs = args.output or ["-"]
    one_file = list(captures.values()) == [Path(args.file[0])]  # maybe a folder of tables
    paths = [output for output in outputs if not _is_stream(output) and output != "."]
    folders = [path for path in paths if not one_file or _names_folder(path)]
    if folders and len(outputs) == 1:
        return write_folder(captures, names, args)
    if folders:
        what = "a folder" if one_file else "a prefix for several captures"
        raise UsageError(f"{folders[0]} is {what}: it must be the only output", hint="use -o DIR/")
    return write_reports(captures, plan(names, args.format or ["."], outputs), args)


def _is_stream(output: str) -> bool:
    return output == "-" or output.startswith("@")


def _names_folder(output: str) -> bool:
    return output.endswith(("/", "\\")) or Path(output).is_dir()


def _described(args: argparse.Namespace) -> str:
    """Describe reports or formats by name, or all of them."""
    from gpusight.analysis.nsys_stats.stats_reports import REPORTS, resolve

    texts = []
    if args.help_reports is not None:
        every = args.help_reports == "ALL"
        for report in REPORTS.values() if every else [resolve(args.help_reports)]:
            lines = [report.usage, f"  {report.title}"]
            lines += [f"  older names: {', '.join(report.aliases)}"] if report.aliases else []
            texts.append(
                "\n".join([*lines, f"  columns: {', '.join(c.header for c in report.columns)}"])
            )
    if args.help_formats is not None:
        name = args.help_formats
        if name not in {"", "ALL", *FORMATS}:
            raise UsageError(f"no format {name!r}", hint=f"formats are {', '.join(FORMATS)}")
        for form in [name] if name in FORMATS else FORMATS:
            extension, description = FORMATS[form]
            texts.append(f"{form}\n  {description} ({extension})")
    return "\n".join(texts) + "\n"


@dataclass(frozen=True, slots=True)
class StatsJob:
    """One report in one format to one output."""

    report: str
    form: str
    output: str

    @property
    def is_file(self) -> bool:
        """Whether it is written to a file of its own."""
        return not _is_stream(self.output)


def plan(names: Sequence[str], forms: Sequence[str], outputs: Sequence[str]) -> list[StatsJob]:
    """Pair reports with formats and outputs, in order, as nsys does; the last ones serve the rest.

    The special format `.` is the default of the output.
    """
    jobs = []
    for at, name in enumerate(names):
        form, output = forms[min(at, len(forms) - 1)], outputs[min(at, len(outputs) - 1)]
        default = "table" if output == "-" else "csv"
        jobs.append(StatsJob(name, default if form == "." else form, output))
    return jobs


LIST_FIELDS = (
    Field("report", "Report", Fmt.TEXT, "Name for -r"),
    Field("title", "Title", Fmt.NAME, "What nsys calls it"),
    Field("arguments", "Arguments", Fmt.NAME, "What may follow the name", shown=False),
)


def full_names(names: Sequence[str]) -> list[str]:
    """Give reports by their present names, arguments kept; refuses unknown ones before reading."""
    from gpusight.analysis.nsys_stats.stats_reports import resolve

    split = [name.partition(":") for name in names]
    return [resolve(name).name + colon + arguments for name, colon, arguments in split]


def write_reports(
    captures: Mapping[str, Path], jobs: Sequence[StatsJob], args: argparse.Namespace
) -> int:
    """Write every report to its output; what is missing is reported in its place."""
    for job, path in itertools.product(jobs, captures.values()):
        if job.is_file:
            refuse_capture(Path(f"{_prefix(job, path)}_report"), str(path))
    # All JSON on standard output is one document.
    together = all(job.form == "json" and job.output == "-" for job in jobs)
    made: list[StatsAnswer] = []
    reports = [job.report for job in jobs]
    for answer in stats_answers(captures, reports, args, time_unit=args.timeunit):
        if isinstance(answer.outcome, GpusightError) and len(captures) == 1:
            raise answer.outcome
        if not together:
            number = sum(a.capture == answer.capture for a in made)
            _write(answer, jobs[number], made, captures, args)
        made.append(answer)
    if together:
        write_out(_json(made))
    elif all(job.is_file for job in jobs):
        present(View(answer_summary(made)), _for_results(args))
    return answers_exit_code(made, requested=bool(args.report) and len(captures) == 1)


def _prefix(job: StatsJob, capture: Path) -> str:
    """Return what the names of files begin with: as given, or the name of the capture.

    Where nsys writes next to the capture, these files go to the current folder.
    """
    return capture.stem if job.output == "." else job.output


def _write(
    answer: StatsAnswer,
    job: StatsJob,
    before: Sequence[StatsAnswer],
    captures: Mapping[str, Path],
    args: argparse.Namespace,
) -> None:
    """Write one report to its output, with headings on standard output if there are several."""
    capture = captures[answer.capture]
    first_of_capture = not before or before[-1].capture != answer.capture
    if not job.is_file and len(captures) > 1 and first_of_capture:
        separator = "\n" if before else ""
        write_out(f"{separator}Processing [{safe_text(str(capture))}]\n")
    if answer.made is None:
        if not job.is_file:
            write_error(f"gpusight stats: {_name_of(answer)}: {safe_text(answer.reason or '')}")
        return
    if job.is_file:
        path = f"{_prefix(job, capture)}_{_file_part(answer.report)}{FORMATS[job.form][0]}"
        write_file(Path(path), [_text(answer, job.form)])
    elif job.output != "-":
        _pipe(job.output.removeprefix("@").split(), _text(answer, job.form))
    else:
        if any(a.status == WRITTEN for a in before):
            write_out("\n")
        if job.form == "table":
            from gpusight.render.stats_tables import stats_as_printed

            present(View(stats_as_printed(answer.made)), _for_results(args))
        else:
            write_out(_text(answer, job.form))


def _pipe(command: Sequence[str], text: str) -> None:
    """Run a command with a report as its standard input; its own output stays where it is."""
    import subprocess

    if not command:
        raise UsageError("no command follows @", hint="type -o '@less -S'")
    flush_out()
    try:
        # The user typed this command, and no shell reads it.
        done = subprocess.run(  # noqa: S603
            command, input=text.encode("utf-8", "backslashreplace"), check=False
        )
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"{command[0]} cannot be run", why=why) from error
    if done.returncode:
        raise GpusightError(f"{command[0]} failed", why=f"exit code {done.returncode}")


def _name_of(answer: StatsAnswer) -> str:
    return safe_text(": ".join(filter(None, (answer.capture, answer.report))))


def write_folder(
    captures: Mapping[str, Path], names: Sequence[str], args: argparse.Namespace
) -> int:
    """Write every report of every capture as text and CSV, and a summary of what became of each."""
    folder = Path(args.output[0])
    for path in captures.values():
        refuse_capture(folder / "report", str(path))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    answers = stats_answers(captures, names, args, time_unit=args.timeunit)
    made = [_filed(answer, folder) for answer in answers]
    summary = answer_summary(made)
    _write_summary(summary, folder)
    present(View(summary), _for_results(args))
    return answers_exit_code(made, requested=False)


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
    from gpusight.render.terminal_tables import to_plain

    write_file(folder / "summary.txt", [to_plain(summary, TableOptions(width=None))])
    write_file(folder / "summary.csv", map(escape_formulas, csv_chunks(summary)))


def _file_part(report: str | None) -> str:
    """Make a report with arguments (`nvtx_sum:base`) a name that every file system takes."""
    return re.sub(r"[^\w.=-]", "_", report or "")


def _text(answer: StatsAnswer, form: str) -> str:
    """Write a report as text; `table` only fits screens, elsewhere it is `column`."""
    from gpusight.render import stats_tables

    report = answer.made
    assert report is not None, "there is a report"
    if form == "json":
        return _json([answer])
    if form == "nsys-json":
        return stats_tables.stats_to_nsys_json(report)
    if form == "csv":
        return stats_tables.stats_to_csv(report)
    if form == "tsv":
        return stats_tables.stats_to_tsv(report)
    if form == "markdown":
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
        {"meta": {"command": "stats", "reports": answer_summary(made).rows()}, "rows": rows}
    )


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
    form = (args.format or ["table"])[0]
    known = form if form in {"json", "csv", "markdown"} else "table"
    return argparse.Namespace(**{**vars(args), "output": None, "top": 0, "format": known})
