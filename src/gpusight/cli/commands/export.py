"""`gpusight export`: the capture's tables as files, or a timeline for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze, keep_warnings, progress
from gpusight.cli.output import write_out, write_warnings
from gpusight.errors import UsageError
from gpusight.render.cell_text import safe_text
from gpusight.units import format_bytes

if TYPE_CHECKING:
    import argparse

SUMMARY = "tables as CSV, Parquet, JSON or Arrow; timeline for Perfetto"
DESCRIPTION = (
    "Write the tables of a capture, one file per table, or (--to chrome) a timeline that "
    "ui.perfetto.dev and chrome://tracing open. The captures of all ranks of a job, in one folder, "
    "become one timeline on one clock. The capture is not changed."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight export run.nsys-rep --to parquet -o run_tables/",
    "gpusight export run.nsys-rep --to csv --tables kernels -o kernels.csv",
    "gpusight export run.nsys-rep --to chrome -o run.json.gz",
    "gpusight export traces/ --to chrome -o job.json.gz",
)
TO = ("csv", "parquet", "json", "arrow", "chrome")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser)
    parser.add_argument(
        "--to", choices=TO, help="the format (default: from the extension of -o, where one has it)"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=True,
        help="a folder for one file per table; a file for one table or chrome (.gz compresses)",
    )
    parser.add_argument(
        "--tables",
        type=options.names,
        metavar="T,T",
        help="only these tables (default: all that have rows)",
    )
    parser.add_argument("--force", action="store_true", help="replace existing files")
    options.add_csv_raw(parser)
    options.add_selection(parser)


_EXTENSIONS = {f".{form}": form for form in ("csv", "parquet", "arrow")}
"""Extensions that one format has: `.json` may be a table or a timeline."""


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from gpusight.open_job import is_job_folder, open_job

    args.to = args.to or _EXTENSIONS.get(Path(args.output).suffix.lower())
    if args.to is None:
        raise UsageError(f"{args.output} does not show the format", hint=f"add --to {'|'.join(TO)}")
    what = {
        "out": args.output,
        "to": args.to,
        "tables": args.tables,
        "force": args.force,
        "csv_raw": args.csv_raw,
        **options.selection(args),
    }
    if is_job_folder(Path(args.file)):
        with progress(f"exporting {Path(args.file).name}", quiet=args.quiet):
            trace = open_job([args.file], cache=not args.no_cache).trace
            written = gs.export(trace, **what)
            keep_warnings(args, trace)
    else:
        written = analyze(gs.export, args, verb="exporting", **what)
    for path in written:
        write_out(f"{format_bytes(path.stat().st_size):>9}  {safe_text(str(path))}\n")
    write_warnings(args)
    return 0
