"""`gpusight stats`: the reports of `nsys stats`, for one capture or a folder of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "the reports of nsys stats, for one capture or a folder of them"
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
    parser.add_argument("--wide", action="store_true", help="show whole names and every column")


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight.cli import reports

    if args.list:
        return reports.list_reports(args)
    names = reports.full_names(args.report or DEFAULT_REPORTS)
    captures = reports.find_captures([Path(p) for p in args.file])
    if args.output == "-":
        return reports.print_all(captures, names, args)
    if len(captures) == 1 and not _names_folder(args.output) and not Path(args.file[0]).is_dir():
        return reports.write_prefixed(captures, names, args)
    return reports.write_folder(captures, names, args)


def _names_folder(output: str) -> bool:
    return output.endswith(("/", "\\")) or Path(output).is_dir()
