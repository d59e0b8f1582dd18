"""Pictures as files: which one the name given to `-o` asks for, and writing its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.cli import output
from gpusight.errors import UsageError
from gpusight.output_files import write_file
from gpusight.render.charts.draw_chart import CHART_FORMATS
from gpusight.results import Composite
from gpusight.sniff import refuse_capture

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from gpusight.results import Result


_TEXT_FORMATS = ("svg", "html")


def picture_format(args: argparse.Namespace) -> str | None:
    """Give the kind of picture that is asked for; None when it is no picture."""
    suffix = Path(args.output).suffix.lower().removeprefix(".") if args.output else ""
    form: str = args.format or suffix
    return form if form in CHART_FORMATS else None


def present_picture(
    result: Result,
    args: argparse.Namespace,
    draw: Callable[[Composite, str], bytes],
    brief: Callable[[Result, argparse.Namespace], Result] | None = None,
) -> int:
    """Draw a result where a picture is asked for, else write it as any other.

    `brief` leaves out what people do not read. Where there is nothing to draw, the reason goes to
    the screen and no file is made.
    """
    form = picture_format(args)
    if form is not None and isinstance(result, Composite):
        emit_picture(draw(result, form), form, args)
        return 0
    if form is not None:
        to_screen(args)
    return output.present(result if brief is None else brief(result, args), args)


def to_screen(args: argparse.Namespace) -> None:
    """Let what comes next be a table on the screen, not the file that was asked for."""
    args.output, args.format = None, "table"


def emit_picture(picture: bytes, form: str, args: argparse.Namespace) -> None:
    """Write a picture to the file of `-o`; those that are text also to standard output."""
    output.warn_apart(args)
    if args.output and args.output != "-":
        path = Path(args.output)
        refuse_capture(path, getattr(args, "file", None))
        write_file(path, picture)
    elif form in _TEXT_FORMATS:
        output.write_out(picture.decode())
    else:
        raise UsageError(f"{form} is written to a file only", hint=f"add: -o picture.{form}")
