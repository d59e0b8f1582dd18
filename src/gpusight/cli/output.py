"""Where results go: to standard output, to standard error, or to the file of `-o`."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusight import output_files
from gpusight.cli.options import DEFAULT_TOP, TABLE_FORMATS
from gpusight.errors import CaptureMismatchError, GpusightError, UsageError
from gpusight.render.cell_text import safe_lines, safe_text
from gpusight.render.result_view import View
from gpusight.render.table_layout import TableOptions, sentence
from gpusight.results import NotApplicable
from gpusight.sniff import refuse_capture
from gpusight.units import format_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TextIO

    from gpusight.errors import NotApplicableError
    from gpusight.render.result_view import Result

_SUFFIX_FORMATS = {
    "": "table",
    ".txt": "table",
    ".log": "table",
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".html": "html",
    ".htm": "html",
    ".svg": "svg",
    ".png": "png",
    ".pdf": "pdf",
    ".ranks": "digests",
    ".folded": "folded",
    ".speedscope": "speedscope",
    ".pprof": "pprof",
    ".gz": "pprof",
    ".sarif": "sarif",
}
_LISTED_SUFFIXES = (
    *(".txt", ".json", ".csv", ".md", ".html", ".svg", ".png", ".pdf", ".ranks", ".folded"),
    *(".speedscope", ".pprof", ".sarif"),
)
_PAGE_SUFFIXES = frozenset({"html", "htm", "xhtml"})
_PICTURE_TEXTS = frozenset({"svg", "html", "folded", "speedscope", "sarif", "lsp"})
EXIT_NOT_APPLICABLE = 2
_MAX_DIFFERENCES = 32
"""Rows of what an error shows."""


def present(
    result: Result,
    args: argparse.Namespace,
    *,
    look: Mapping[str, Any] | None = None,
    **options: Any,
) -> int:
    """Write a result as the arguments request; returns the exit code.

    `look` changes how tables are laid out; `options` are those that the kind of result knows.
    """
    form = chosen_format(args)
    look = look or {}
    if form == "table" and not args.output and is_colored(args):
        result.print_to(sys.stdout, replace(table_options(args, bars=True), **look), **options)
    elif form == "table":
        emit([result.to_text(replace(table_options(args), **look), **options)], args)
    elif form == "json":
        emit(result.json_chunks(limit=args.top), args)
    elif form == "csv":
        emit(result.csv_chunks(limit=args.top), args)
    elif form == "markdown":
        limit = replace(table_options(args), **look).limit
        markdown = result.to_markdown(limit=limit, full_names=_full_names(args), **options)
        emit([markdown], args)
    elif form == "html" and result.has_page:
        emit([result.to_html(limit=args.top, **options)], args)
    else:
        _emit_picture(result.draw(form, **options), form, args)
    return 0


def present_absent(error: NotApplicableError, args: argparse.Namespace) -> int:
    """Print why there is no result: one line and exit code 2.

    With `--format json` the document has the reason too.
    """
    absent = NotApplicable(args.command, error.what, error.hint)
    if (getattr(args, "format", None) or _extension_format(args)) == "json":
        from gpusight.render.csv_json import encode_json, json_document

        document = json_document(absent) | _no_verdict(args.command, EXIT_NOT_APPLICABLE)
        emit([encode_json(document)], args)
    write_error(f"gpusight {absent.command}: {sentence(absent)}")
    return EXIT_NOT_APPLICABLE


def error_json(error: GpusightError, command: str) -> str:
    """Write an error as the document that `--format json` gives in place of a result."""
    from gpusight.render.csv_json import encode_json

    what = f"{error.what}: {error.why}" if error.why else error.what
    reason = {"reason": what, "hint": error.hint or None, "exit_code": error.exit_code}
    rows = _differences(error).rows() if isinstance(error, CaptureMismatchError) else []
    document = {"meta": {"command": command, "error": reason}, "rows": rows}
    return encode_json(document | _no_verdict(command, error.exit_code))


def show_differences(error: CaptureMismatchError) -> None:
    """Show how captures differ that ought to be of one run, above the line of the error."""
    from gpusight.render.terminal_text import screen_width

    text = _differences(error).to_text(TableOptions(screen_width(), _MAX_DIFFERENCES))
    write_to(sys.stderr, text.rstrip("\n") + "\n\n")


def _differences(error: CaptureMismatchError) -> View:
    return View(error.table)


def _no_verdict(command: str, exit_code: int) -> dict[str, Any]:
    """Give what scripts read of a gate: one that could not be evaluated has not passed."""
    if command != "gate":
        return {}
    return {"passed": False, "outcome": "error", "exit_code": exit_code}


def write_warnings(args: argparse.Namespace) -> None:
    """Write the warnings of the captures to standard error: the output has no room for them."""
    for warning in dict.fromkeys(getattr(args, "warnings", ())):
        write_error(f"gpusight {args.command}: warning: {safe_text(warning)}")


def chosen_format(args: argparse.Namespace) -> str:
    """Return the format of `--format`, or the one that the extension of `-o` stands for."""
    form = getattr(args, "format", None) or _extension_format(args)
    if form is None:
        output = Path(args.output)
        allowed = [s for s in _LISTED_SUFFIXES if _SUFFIX_FORMATS[s] in _written_formats(args)]
        kinds = f"{output.suffix.lower()} files"
        raise UsageError(
            f"cannot write {kinds}",
            hint=f"-o takes {', '.join(allowed[:-1])} or {allowed[-1]}",
        )
    return form


def check_extension(args: argparse.Namespace) -> None:
    """Refuse an extension of `-o` that the command cannot write, before anything is read."""
    if not getattr(args, "formats", ()) or not args.output or _extension_format(args):
        return
    captures = getattr(args, "file", None) or [None]
    keep_inputs(args, [captures] if isinstance(captures, str) else captures)
    chosen_format(args)


def keep_inputs(args: argparse.Namespace, captures: Iterable[str | Path | None]) -> None:
    """Refuse, before anything is read, to overwrite an input by `-o`."""
    if args.output and args.output != "-":
        for capture in captures:
            refuse_capture(Path(args.output), None if capture is None else str(capture))


def _extension_format(args: argparse.Namespace) -> str | None:
    """Return what the extension of `-o` stands for; None where the command cannot write it."""
    output = getattr(args, "output", None)
    form = _SUFFIX_FORMATS.get(Path(output).suffix.lower()) if output else "table"
    if output and output.lower().endswith(".speedscope.json"):
        form = "speedscope"
    return form if form in _written_formats(args) else None


def _written_formats(args: argparse.Namespace) -> tuple[str, ...]:
    return getattr(args, "formats", TABLE_FORMATS)


def is_read(args: argparse.Namespace) -> bool:
    """Return whether people read the result as tables; pictures and programs take more rows."""
    return chosen_format(args) in {"table", "markdown"}


def table_options(args: argparse.Namespace, *, bars: bool = False) -> TableOptions:
    """Return how tables are to look."""
    from gpusight.render.terminal_text import screen_width

    width = None if args.wide else screen_width()
    limit = DEFAULT_TOP if args.top is None else args.top
    return TableOptions(
        width=width, limit=limit, every_field=args.wide, full_names=_full_names(args), bars=bars
    )


def _full_names(args: argparse.Namespace) -> bool:
    """Return whether full names are wanted; commands without names do not have the option."""
    return bool(getattr(args, "full_names", False))


def emit(pieces: Iterable[str], args: argparse.Namespace) -> None:
    """Write pieces of text to the file of `-o`, or to standard output."""
    output: str | None = args.output
    if output and output != "-":
        form = _named_form(args)
        if form == "csv" and not getattr(args, "csv_raw", False):
            from gpusight.render.csv_json import escape_formulas

            pieces = map(escape_formulas, pieces)
        write_file(Path(output), pieces, capture=getattr(args, "file", None))
        if form in _PAGE_SUFFIXES:
            _announce(Path(output), args)
    else:
        for text in pieces:
            write_out(text)
    if getattr(args, "format", None) == "csv" or str(output).lower().endswith(".csv"):
        write_warnings(args)


def _emit_picture(picture: bytes, form: str, args: argparse.Namespace) -> None:
    """Write a picture to the file of `-o`; those that are text also to standard output."""
    write_warnings(args)
    if args.output and args.output != "-":
        path = Path(args.output)
        refuse_capture(path, getattr(args, "file", None))
        output_files.write_file(path, picture)
        _announce(path, args)
    elif form in _PICTURE_TEXTS:
        write_out(picture.decode())
    else:
        raise UsageError(f"{form} is written to a file only", hint=f"add: -o picture.{form}")


def _named_form(args: argparse.Namespace) -> str:
    """Return the format of `--format`, or else the extension of `-o`."""
    return getattr(args, "format", None) or Path(args.output).suffix.lower().removeprefix(".")


def _announce(path: Path, args: argparse.Namespace) -> None:
    """Print what was written for people to open; files for programs are written silently."""
    if args.quiet or not path.is_file():  # a stream by name, such as /dev/stdout
        return
    size = format_bytes(path.stat().st_size)
    is_page = _named_form(args) in _PAGE_SUFFIXES
    note = "; open it in a browser (one file, no network needed)" if is_page else ""
    write_error(f"gpusight {args.command}: wrote {safe_text(str(path))} ({size}){note}")


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
        raise OutputError("cannot write the output", why=error.strerror or str(error)) from error


def write_error(line: str) -> None:
    """Write one line to standard error; on a terminal it is wrapped between words."""
    text = safe_lines(line)
    if sys.stderr.isatty():
        import textwrap

        from gpusight.render.terminal_text import screen_width

        wrapped = (
            textwrap.fill(
                part,
                screen_width(),
                subsequent_indent="  ",
                break_long_words=False,  # paths and commands to copy
                break_on_hyphens=False,
            )
            for part in text.split("\n")
        )
        text = "\n".join(wrapped)
    write_to(sys.stderr, text + "\n")


def write_to(stream: TextIO, text: str) -> None:
    """Write text; letters that the stream cannot show become ones that it can."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        from gpusight.render.terminal_text import ascii_text

        encoding = stream.encoding or "ascii"
        stream.write(ascii_text(text).encode(encoding, "backslashreplace").decode(encoding))


def is_colored(args: argparse.Namespace) -> bool:
    """Return whether standard output takes colors, and `--no-color` is not given."""
    from gpusight.render.terminal_text import wants_color

    return not args.no_color and wants_color(sys.stdout)
