"""Pictures as files: which one the name given to `-o` asks for, and writing its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.errors import UsageError
from gpusight.render.pictures import FORMATS

if TYPE_CHECKING:
    import argparse

_TEXT = ("svg", "html")


def picture_format(args: argparse.Namespace) -> str | None:
    """Give the kind of picture that is asked for; None when it is no picture."""
    suffix = Path(args.output).suffix.lower().removeprefix(".") if args.output else ""
    form: str = args.format or suffix
    return form if form in FORMATS else None


def emit_picture(picture: bytes, form: str, args: argparse.Namespace) -> None:
    """Write a picture to the file of `-o`; those that are text also to standard output."""
    from gpusight.cli.output import cannot_write, write_out
    from gpusight.evidence import refuse_capture

    if args.output and args.output != "-":
        path = Path(args.output)
        refuse_capture(path, getattr(args, "file", None))
        try:
            path.write_bytes(picture)
        except OSError as error:
            raise cannot_write(path, error) from error
    elif form in _TEXT:
        write_out(picture.decode())
    else:
        raise UsageError(f"{form} is written to a file only", hint=f"add: -o picture.{form}")
