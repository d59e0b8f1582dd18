"""`gpusight share`: a sanitized copy of a capture for sharing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import progress
from gpusight.cli.output import chosen_format, is_read, present, table_options, write_out
from gpusight.render.cell_text import safe_text

if TYPE_CHECKING:
    import argparse

    from gpusight.render.result_view import ShareView
    from gpusight.sharing.sanitized_copy import SharedCopy

SUMMARY = "sanitized copy of a capture for sharing"
DESCRIPTION = (
    "Profilers record private data: nsys stores the environment variables of every process of the "
    "machine. Write a sanitized copy that keeps only safe data: times, sizes, names of kernels, "
    "ranges and API calls, versions, the GPU. Unknown data is not copied. List what is removed, by "
    "category, without any value. The capture is not changed."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight share run.nsys-rep --check",
    "gpusight share run.nsys-rep -o run.shared.sqlite",
    "gpusight share trace.json.gz -o shared.json.gz --hash-names",
)
EXIT_REMAINS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="the capture: nsys .nsys-rep, .qdrep, .sqlite or an exported folder; a trace of "
        "torch.profiler; ncu .ncu-rep",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the copy (default: NAME.shared with the extension of its format, in this folder); "
        "never replaces a file. With --check, the file for the report",
    )
    parser.add_argument(
        "--check", action="store_true", help="only list private data in the capture"
    )
    parser.add_argument(
        "--hash-names",
        action="store_true",
        help="also hash names of kernels and ranges, except words such as gemm or forward",
    )
    parser.add_argument(
        "--salt",
        metavar="TEXT",
        help="salt of the hashes: copies with the same salt are comparable (default: random, not "
        "stored)",
    )
    parser.add_argument(
        "--to",
        choices=("sqlite", "parquet"),
        help="format of a copy of an nsys capture (default: sqlite; parquet if OUT is a folder)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with code 1 if a kept name contains a removed value, or looks like a path, an "
        "address or a key",
    )
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=options.TABLE_FORMATS, help="format of the report")
    group.add_argument("--top", type=options.number, metavar="N", help="rows of each table")
    options.add_widths(group)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    with progress(f"reading {Path(args.file).name}", quiet=args.quiet):
        result = _shared(args)
    args.top = args.top or 0
    sections = {"categories": not args.check, "places": args.check} if is_read(args) else {}
    present(result, args, **sections)
    _print_next(result.answer, args)
    return EXIT_REMAINS if args.strict and (result.remains or result.suspects) else 0


def _shared(args: argparse.Namespace) -> ShareView:
    """Check the capture, or write the copy; `-o` is then the copy, not the report."""
    if args.check:
        return gs.share_check(args.file, hash_names=args.hash_names, salt=args.salt)
    output, args.output = args.output, None
    folder = output is not None and output.endswith(("/", "\\"))
    form = args.to or ("parquet" if folder else None)
    return gs.share(args.file, output or None, hash_names=args.hash_names, salt=args.salt, to=form)


def _print_next(shared: SharedCopy, args: argparse.Namespace) -> None:
    """Print a summary and the next command below the tables."""
    from gpusight.render.share_view import closing_sentences
    from gpusight.render.terminal_text import plain_lines, wrapped_lines

    if args.output or chosen_format(args) != "table":
        return
    width = table_options(args).width
    lines = [line for text in closing_sentences(shared) for line in wrapped_lines(text, width, "")]
    write_out("\n" + plain_lines(lines))
    if not args.quiet:
        path = safe_text(str(shared.path or shared.capture))
        if shared.path:
            write_out(f"Check it before you send it.\nnext: gpusight share --check {path}\n")
        elif shared.removed or shared.hash_names:
            write_out(f"next: gpusight share {path}\n")
