"""Where answers go: to standard output, to standard error, or to the file of `-o`."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight import output_files
from gpusight.errors import GpusightError, UsageError
from gpusight.render.cell_text import safe_lines, safe_text
from gpusight.render.table_layout import sentence
from gpusight.results import NotApplicable
from gpusight.sniff import refuse_capture

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator
    from typing import TextIO

    from gpusight.render.table_layout import TableOptions
    from gpusight.results import Result

_SUFFIX_FORMATS = {".json": "json", ".csv": "csv", ".md": "markdown"}
_PICTURES = frozenset({".svg", ".png", ".pdf", ".html", ".htm", ".jpg", ".jpeg", ".gif", ".webp"})
_ASCII = str.maketrans({"µ": "u", "…": "...", "×": "x", "─": "-"})
EXIT_NOT_APPLICABLE = 2


def present(result: Result, args: argparse.Namespace) -> int:
    """Write a result as the arguments ask.

    A question that the capture cannot answer is exit code 2 with one line of reason; with
    `--format json` the document says it too, so that a program need not read the line.
    """
    form = chosen_format(args)
    if isinstance(result, NotApplicable):
        if form == "json":
            emit(render(result, form, args), args)
        write_error(f"gpusight: {safe_text(result.command)}: {sentence(result)}")
        return EXIT_NOT_APPLICABLE
    if form == "table" and not args.output and is_colored(args):
        from gpusight.render.terminal_tables import print_colored

        print_colored(result, look_of(args, bars=True), sys.stdout)
    else:
        emit(render(result, form, args), args)
    if form == "csv":
        warn_apart(args)
    return 0


def warn_apart(args: argparse.Namespace) -> None:
    """Write the warnings of the captures to standard error: the output has no room for them."""
    for warning in dict.fromkeys(getattr(args, "warnings", ())):
        write_error(f"gpusight: warning: {safe_text(warning)}")


def render(result: Result, form: str, args: argparse.Namespace) -> Iterable[str]:
    """Give a result as pieces of text in one of the formats; tables are plain."""
    if form == "json":
        from gpusight.render.csv_json import json_chunks as json_pieces

        return json_pieces(result, limit=args.top)
    if form == "csv":
        from gpusight.render.csv_json import csv_chunks as csv_pieces

        return csv_pieces(result, limit=args.top)
    if form == "markdown":
        from gpusight.render.markdown_tables import to_markdown

        return [to_markdown(result, limit=_top(args))]
    from gpusight.render.terminal_tables import to_plain

    return [to_plain(result, look_of(args))]


def chosen_format(args: argparse.Namespace) -> str:
    """Give the format asked for, or the one that the output file's name implies."""
    suffix = Path(args.output).suffix.lower() if args.output else ""
    if suffix in _PICTURES and not args.format:
        raise UsageError(
            f"this command cannot write {suffix} files",
            hint="-o takes .json, .csv, .md or any text file; compare, ledger, memory, occupancy, "
            "orion plot, roofline, timeline and utilisation also draw .svg, .html, .png and .pdf; "
            "report writes a page",
        )
    form: str = args.format or _SUFFIX_FORMATS.get(suffix, "table")
    return form


def look_of(args: argparse.Namespace, *, bars: bool = False) -> TableOptions:
    """Give how tables are to look."""
    from gpusight.render.table_layout import TableOptions as Look
    from gpusight.render.terminal_tables import screen_width

    width = None if args.wide else screen_width()
    return Look(width=width, limit=_top(args), every_field=args.wide, bars=bars)


def emit(pieces: Iterable[str], args: argparse.Namespace) -> None:
    """Write pieces of text to the file of `-o`, or to standard output."""
    output: str | None = args.output
    if output and output != "-":
        form = getattr(args, "format", None) or Path(output).suffix.lower().removeprefix(".")
        if form == "csv" and not getattr(args, "csv_raw", False):
            from gpusight.render.csv_json import escape_formulas

            pieces = map(escape_formulas, pieces)
        write_file(Path(output), pieces, capture=getattr(args, "file", None))
    else:
        for text in pieces:
            write_out(text)
    if getattr(args, "format", None) == "csv" or str(output).lower().endswith(".csv"):
        warn_apart(args)


def write_file(path: Path, pieces: Iterable[str], *, capture: str | None = None) -> None:
    """Write a file; never a capture, nor anything named like one."""
    refuse_capture(path, capture)
    # Names of files, which may be part of an answer, need not be UTF-8.
    output_files.write_file(path, (text.encode("utf-8", "backslashreplace") for text in pieces))


class OutputError(GpusightError):
    """Standard output does not take what is written to it."""


def give_streams() -> None:
    """Stand in for streams that the caller closed, so that nobody else need look."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def write_out(text: str) -> None:
    """Write to standard output, whatever its encoding.

    A terminal gets no control characters, not even in formats that leave text as data, such as CSV.
    """
    if sys.stdout.isatty():
        text = "\t".join(map(safe_lines, text.split("\t")))
    with _checked_output():
        write_to(sys.stdout, text)


def flush_out() -> None:
    """Send what is still buffered on its way."""
    with _checked_output():
        sys.stdout.flush()


@contextlib.contextmanager
def _checked_output() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError("cannot write the answer", why=error.strerror or str(error)) from error


def write_error(line: str) -> None:
    """Write one line to standard error."""
    write_to(sys.stderr, safe_lines(line) + "\n")


def write_to(stream: TextIO, text: str) -> None:
    """Write text; letters that the stream cannot show become ones that it can."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        # An ASCII or cp437 terminal still gets its table: 1.2 us instead of 1.2 µs.
        plain = text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
        stream.write(plain)


def _top(args: argparse.Namespace) -> int:
    from gpusight.cli.options import DEFAULT_TOP

    return DEFAULT_TOP if args.top is None else int(args.top)


def is_colored(args: argparse.Namespace) -> bool:
    """Tell whether standard output takes colours, and nobody asked for none."""
    from gpusight.render.terminal_tables import wants_color

    return not args.no_color and wants_color(sys.stdout)
